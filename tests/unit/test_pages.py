"""README and docs: the reference pages follow from the code, and what they show can be typed."""

from __future__ import annotations

import ast
import re
import shlex
from pathlib import Path

import pytest
import reference_pages
import yaml
from documentation import DOCS, ROOT, Block, blocks_of, commands_of, fits, pages, translated_pages, with_blocks_of

from jobsubmit.cli.commands import COMMANDS
from jobsubmit.common.resources import starter_job
from jobsubmit.errors import SpecError
from jobsubmit.spec.loader import load_mapping
from jobsubmit.spec.yaml_document import read_document

BLOCKS = [block for page in pages() for block in blocks_of(page)]


def of_kind(*kinds: str) -> pytest.MarkDecorator:
    found = [block for block in BLOCKS if block.kind in kinds]
    return pytest.mark.parametrize("block", found, ids=[block.where for block in found])


@pytest.mark.parametrize("name", sorted(reference_pages.pages()))
def test_the_reference_is_that_of_the_code(name: str) -> None:
    text = (reference_pages.FOLDER / name).read_text(encoding="utf-8")
    assert text == reference_pages.pages()[name], "run: python tests/support/reference_pages.py"


@of_kind("console", "sh")
def test_commands_and_options_exist(block: Block) -> None:
    lines = [command.text for command in commands_of(block)] if block.kind == "console" else block.text.splitlines()
    for line in lines:
        for words in simple_commands(line):
            if words[0] == "jobsubmit" and len(words) > 1 and not words[1].startswith("-"):
                assert words[1] in COMMANDS, line
                ours = words[2 : words.index("--")] if "--" in words else words[2:]
                known = reference_pages.options_of(words[1]) | {"-o", "--output", "--debug", "-h", "--help"}
                for word in ours:
                    name = word.partition("=")[0]
                    assert not name.startswith("-") or name in known or name == "-" or word[1:].isdigit(), line


def simple_commands(line: str) -> list[list[str]]:
    """Return the words of each command of a shell line."""
    reader = shlex.shlex(line, posix=True, punctuation_chars="|&;<>")
    reader.whitespace_split, reader.commenters = True, "#"
    commands: list[list[str]] = [[]]
    for word in reader:
        if set(word) <= set("|&;"):
            commands.append([])
        else:
            commands[-1].append(word)
    return [words for words in commands if words]


@of_kind("yaml")
def test_job_files_are_valid(block: Block, tmp_path: Path) -> None:
    text = block.text.replace("…", "x")
    document = yaml.safe_load(text)
    if not isinstance(document, dict) or "apiVersion" in document or block.needs:
        return
    base = read_document(
        starter_job(document.get("mode", "spawn" if "framework" in document else "torchrun")), "starter", ""
    ).values
    if "command" in document and "mode" not in document:
        base = {name: base[name] for name in ("name", "code_dir")}
    whole = {"name", "code_dir"} <= document.keys()
    try:
        load_mapping(document if whole else {**base, **document}, directory=tmp_path)
    except SpecError as error:
        pytest.fail(f"{block.where}: {error.message}")


@of_kind("python")
def test_programs_can_be_read(block: Block) -> None:
    ast.parse(block.text)


# Not the pages for developers, and not those that compare or measure.
TASKS = [
    *(f"{name}.md" for name in ("index", "quickstart", "your-own-code", "samples")),
    *(f"{name}.md" for name in ("job-file", "checks", "uploads", "job-life", "data", "metrics", "profiling", "ui")),
    *(
        str(page.relative_to(DOCS))
        for folder in ("guides", "backends")
        for page in sorted((DOCS / folder).glob("*.md"))
    ),
]


def test_each_task_page_has_a_chinese_version() -> None:
    there = {str(page.relative_to(DOCS)) for page in translated_pages() if page.is_relative_to(DOCS)}
    assert there == set(TASKS)


@pytest.mark.parametrize("english", translated_pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_a_chinese_page_has_the_blocks_of_its_english_one(english: Path) -> None:
    if english.name != "index.md":  # its blocks are tables of contents
        text = translated_pages()[english].read_text("utf-8")
        assert text == with_blocks_of(english.read_text("utf-8"), text), "run: python tests/support/chinese_pages.py"


@pytest.mark.parametrize("english", translated_pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_a_chinese_page_has_the_sections_of_its_english_one(english: Path) -> None:
    def levels(page: Path) -> list[str]:
        prose = re.sub(r"^```.*?^```$", "", page.read_text("utf-8"), flags=re.M | re.S)
        return re.findall(r"^#+(?= )", prose, re.M)

    if english.name != "index.md":
        assert levels(english) == levels(translated_pages()[english])


def test_what_fits_an_output() -> None:
    assert fits("job x-1 SUCCEEDED\n", "job x-… SUCCEEDED\n")
    assert fits("a\nb\nc\n", "a\n…\nc\n")
    assert fits("step   p95\n0  131 ms\n", "step     p95\n0   … ms\n")
    assert not fits("step p95\n", "step  p95\n")
    assert not fits("  step\n", "    step\n")
    assert not fits("a\nb\n", "a\n")
    assert not fits("failed\n", "job …\n")
