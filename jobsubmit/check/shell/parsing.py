"""Parse the text of a shell."""

from __future__ import annotations

import re
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tree_sitter import Parser, Tree

_ARGUMENT = re.compile(r"(?<!\\)\$(\d)")  # tree-sitter-bash takes that in `$name=$2` for two words


def parse_shell(text: str) -> Tree:
    """Return the statements of a text; parts that cannot be parsed are nodes of the type ERROR."""
    return _parser().parse(_ARGUMENT.sub(r"${\1}", text).encode())


@cache
def _parser() -> Parser:
    import tree_sitter
    import tree_sitter_bash

    return tree_sitter.Parser(tree_sitter.Language(tree_sitter_bash.language()))
