"""The pages of the documentation, and the blocks in them: commands with their output, job files, programs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
CHINESE = DOCS / "zh"
_BLOCK = re.compile(r"(?:^<!-- (?P<note>[^>]*) -->\n)?^```(?P<kind>[\w{}-]+)[^\n]*\n(?P<text>.*?)^```$", re.M | re.S)


class Block(NamedTuple):
    """A fenced block: its kind, its text, and the line of its page where it begins.

    `needs` says what a command cannot run without; `file` is the file that the block is the content of.
    """

    page: Path
    line: int
    kind: str
    text: str
    needs: str = ""
    file: str = ""

    @property
    def where(self) -> str:
        """Return the page and the line."""
        return f"{self.page.relative_to(ROOT)}:{self.line}"


class Command(NamedTuple):
    """A command of a console block, and what the page shows of its output."""

    text: str
    output: str


def pages() -> list[Path]:
    """Return the English pages that people read, the generated ones left out."""
    docs = [page for page in DOCS.rglob("*.md") if page.parent.name != "reference" and CHINESE not in page.parents]
    return [ROOT / "README.md", *sorted(docs)]


def translated_pages() -> dict[Path, Path]:
    """Return the pages that have a Chinese version, with that."""
    found = {DOCS / page.relative_to(CHINESE): page for page in sorted(CHINESE.rglob("*.md"))}
    return {ROOT / "README.md": ROOT / "README.zh-CN.md", **found}


def with_blocks_of(english: str, chinese: str) -> str:
    """Return a Chinese page with the blocks of its English one in place of its own, one by one."""
    blocks = [found[0] for found in _BLOCK.finditer(english)]
    assert len(blocks) == len(_BLOCK.findall(chinese)), "the pages have different numbers of blocks"
    remaining = iter(blocks)
    return _BLOCK.sub(lambda _: next(remaining), chinese)


def blocks_of(page: Path) -> Iterator[Block]:
    """Yield the blocks of a page in order."""
    text = page.read_text(encoding="utf-8")
    for found in _BLOCK.finditer(text):
        key, _, value = (found["note"] or "").partition(": ")
        line = text.count("\n", 0, found.start("kind")) + 1
        needs = value if key == "block" else ""
        yield Block(page, line, found["kind"], found["text"], needs, value if key == "file" else "")


def commands_of(block: Block) -> list[Command]:
    """Return the commands of a console block; a line that begins with `> ` goes on with the one before."""
    commands: list[Command] = []
    for line in block.text.splitlines():
        if line.startswith("$ "):
            commands.append(Command(line[2:], ""))
        elif line.startswith("> ") and commands and not commands[-1].output:
            commands[-1] = commands[-1]._replace(text=f"{commands[-1].text}\n{line[2:]}")
        elif commands:
            commands[-1] = commands[-1]._replace(output=f"{commands[-1].output}{line}\n")
    return commands


def fits(output: str, shown: str) -> bool:
    """Return whether a command printed what a page shows: `…` stands for anything, alone on a line for any lines.

    Columns of a table are as wide as their values, which differ from run to run: any gap of two or more spaces fits.
    """
    if not shown.strip():
        return True
    lines = [r"(?:.*\n)*?" if line.strip() == "…" else _pattern(line) + r"[ \t]*\n" for line in shown.splitlines()]
    return re.fullmatch("".join(lines), "\n".join(line.rstrip() for line in output.splitlines()) + "\n") is not None


def _pattern(line: str) -> str:
    columns = re.split(r"(?<=\S) {2,}", line.rstrip())
    return " {2,}".join(".*".join(map(re.escape, column.split("…"))) for column in columns)


def sentences(page: Path) -> Iterator[list[str]]:
    """Yield the words of each sentence of a page; blocks, tables, headings and comments are none."""
    text = re.sub(r"^```.*?^```$|<!--.*?-->", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
    text = re.sub(r"\[([^]]*)\]\([^)]*\)|`([^`]*)`", lambda found: found[1] or "code", text)
    for paragraph in re.split(r"\n\s*\n|\n(?=\s*(?:[-*]|\d+\.) )", text):
        if paragraph.lstrip().startswith(("#", "|", "!")):
            continue
        for sentence in re.split(r"(?<=[.!?:])\s+(?=[A-Z*`\"(])", " ".join(paragraph.split())):
            words = re.findall(r"[\w'\u2019-]+", sentence)
            if len(words) > 1:
                yield words
