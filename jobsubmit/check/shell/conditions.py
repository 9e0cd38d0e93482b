"""Conditions of a shell → whether they hold, as far as it is known."""

from __future__ import annotations

import fnmatch
import operator
from collections.abc import Callable
from typing import TYPE_CHECKING

from jobsubmit.check.shell.state import Shell
from jobsubmit.check.shell.texts import computed, is_open
from jobsubmit.check.shell.words import text_of, value_of

if TYPE_CHECKING:
    from tree_sitter import Node

_NUMBERS: dict[str, Callable[[int, int], bool]] = {
    "-eq": operator.eq,
    "-ne": operator.ne,
    "-lt": operator.lt,
    "-le": operator.le,
    "-gt": operator.gt,
    "-ge": operator.ge,
}
_JOINS = {"&&": all, "-a": all, "||": any, "-o": any}


def is_true(node: Node, shell: Shell) -> bool | None:
    """Return whether the expression of `[ … ]`, `[[ … ]]` or `(( … ))` holds; None if it is not known."""
    children = node.children
    match node.type:
        case "test_command":
            return is_true(node.named_children[0], shell) if node.named_children else False
        case "parenthesized_expression":
            return is_true(node.named_children[0], shell)
        case "unary_expression":
            return _is_unary_true(text_of(children[0]), children[-1], shell)
        case "binary_expression" if text_of(children[1]) in _JOINS:
            return _joined(text_of(children[1]), [is_true(children[0], shell), is_true(children[-1], shell)])
        case "binary_expression":
            return _is_binary_true(text_of(children[1]), children[0], children[-1], shell)
    text = _without_unset(value_of(node, shell), shell)
    return None if is_open(text) else bool(text)


def is_sum_true(text: str, shell: Shell) -> bool | None:
    """Return whether an arithmetic expression is not 0; None if it is not known."""
    value = computed(text, shell.value)
    return None if is_open(value) else value != "0"


def _joined(how: str, found: list[bool | None]) -> bool | None:
    decides = how in ("||", "-o")
    if decides in found:
        return decides
    return None if None in found else not decides


def _is_unary_true(test: str, operand: Node, shell: Shell) -> bool | None:
    if test == "!":
        found = is_true(operand, shell)
        return None if found is None else not found
    value = f"${text_of(operand)}" if test == "-v" else value_of(operand, shell)
    value = _without_unset(value, shell)
    if test in ("-z", "-n", "-v"):
        return None if is_open(value) else (not value) is (test == "-z")
    path = shell.path(value)
    if test in ("-f", "-e", "-s", "-r") and path is not None and shell.read(path):
        return True
    return None  # other files may be on the nodes


def _is_binary_true(test: str, left_node: Node, right_node: Node, shell: Shell) -> bool | None:
    left, right = (_without_unset(value_of(node, shell), shell) for node in (left_node, right_node))
    if is_open(left) or is_open(right):
        return None
    if test in _NUMBERS:
        is_number = all(one.lstrip("-").isdecimal() for one in (left, right))
        return _NUMBERS[test](int(left), int(right)) if is_number else None
    if test in ("=", "==", "!="):
        is_pattern = right_node.type not in ("string", "raw_string")
        is_same = fnmatch.fnmatchcase(left, right) if is_pattern else left == right
        return is_same is (test != "!=")
    return None


def _without_unset(text: str, shell: Shell) -> str:
    """Return a text, which is empty if it is only a variable that is not set."""
    return "" if text.startswith("$") and shell.is_unset(text[1:]) else text
