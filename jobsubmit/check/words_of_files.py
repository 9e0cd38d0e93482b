"""Arguments that argparse reads from files: `@train.txt` (fromfile_prefix_chars)."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from jobsubmit.check.arguments import Word
from jobsubmit.check.program.configuration import read_text
from jobsubmit.check.program.program import Program

_CONVERTS = "convert_arg_line_to_args"


def with_words_of_files(program: Program, words: tuple[Word, ...]) -> tuple[Word, ...]:
    """Return words with those of the files that they name; a file that cannot be read stays as it is named."""
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
