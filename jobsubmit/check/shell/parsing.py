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


def has_errors(text: str) -> bool:
    """Return whether there are parts of a text that cannot be parsed."""
    waiting = [parse_shell(text).root_node]
    for node in waiting:
        waiting += node.children if node.has_error else []
    return any(node.is_error for node in waiting)


@cache
def _parser() -> Parser:
    import tree_sitter
    import tree_sitter_bash

    return tree_sitter.Parser(tree_sitter.Language(tree_sitter_bash.language()))
