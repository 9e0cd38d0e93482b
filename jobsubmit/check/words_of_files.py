"""Arguments that a program reads from files: lines of `@train.txt` for argparse, and `--config` of LightningCLI."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Any

from jobsubmit.check.arguments import Word
from jobsubmit.check.parsers.lightning_cli import makes_cli
from jobsubmit.check.program.configuration import parse_text, read_text
from jobsubmit.check.program.program import Program

_CONVERTS = "convert_arg_line_to_args"


def with_words_of_files(program: Program, words: tuple[Word, ...]) -> tuple[Word, ...]:
    """Return words with those of the files that they name; a file that cannot be read stays as it is named."""
    if makes_cli(program):
        return _with_configurations(program, words)
    given = (node.value for _, node in program.of(ast.keyword) if node.arg == "fromfile_prefix_chars")
    signs = tuple("".join(str(one.value) for one in given if isinstance(one, ast.Constant) and one.value))
    if not signs or not any(word.text.startswith(signs) for word in words):
        return words
    by_space = _CONVERTS in program.methods or _CONVERTS in program.attribute_stores  # as all of them do
    return tuple(one for word in words for one in _expanded(program, word, signs, by_space=by_space))


def _expanded(program: Program, word: Word, signs: tuple[str, ...], *, by_space: bool) -> Iterator[Word]:
    text = read_text(program, word.text[1:]) if word.text.startswith(signs) else ""
    if not text:
        yield word
        return
    for line in text.splitlines():
        for part in line.split() if by_space else [line]:
            yield Word(part, word.field)


def _with_configurations(program: Program, words: tuple[Word, ...]) -> tuple[Word, ...]:
    """Return words with the settings of the files that `--config` names after each: later ones replace them."""
    found: list[Word] = []
    before = ""
    for word in words:
        found.append(word)
        is_file = before in ("-c", "--config") or word.name in ("-c", "--config")
        file = word.value if is_file else ""
        settings = parse_text(read_text(program, file)) if file else None
        found += _settings(settings, file) if isinstance(settings, dict) else ()
        before = word.text
    return tuple(found)


def _settings(settings: dict[str, Any], file: str) -> Iterator[Word]:
    """Yield `--model.lr=1` for the settings of a file, two levels deep."""
    for group, fields in settings.items():
        if not isinstance(fields, dict):
            yield Word(f"--{group}={fields}", file)
            continue
        for name, value in fields.items():
            yield Word(f"--{group}.{name}" if isinstance(value, (dict, list)) else f"--{group}.{name}={value}", file)
