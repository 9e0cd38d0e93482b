"""Texts of a shell: what is known of them, and what stands as `$NAME` or `$(command)` because it is not."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable
from contextlib import suppress

from jobsubmit.check.program.operations import operated

HERE = "$PWD"  # the code directory
_NAME = re.compile(r"\$?\{?\b([A-Za-z_]\w*)\}?")
_OPEN = re.compile(r"\$(?:\w+|\{[^}]*\}|\([^()]*(?:\([^()]*\)[^()]*)*\))")
_COMPARED: dict[type[ast.cmpop], Callable[[int, int], bool]] = {
    ast.Eq: int.__eq__,
    ast.NotEq: int.__ne__,
    ast.Lt: int.__lt__,
    ast.LtE: int.__le__,
    ast.Gt: int.__gt__,
    ast.GtE: int.__ge__,
}


def is_open(text: str) -> bool:
    """Return whether a part of a text is not known."""
    return "$" in text.replace(HERE, "")


def open_part(text: str) -> str:
    """Return the first part of a text that is not known."""
    found = _OPEN.search(text)
    return found[0] if found else "$"


def computed(text: str, value_of: Callable[[str], str]) -> str:
    """Return the value of an arithmetic expression, such as `NODE_RANK * 8`, or the part of it that is not known."""
    filled = _NAME.sub(lambda found: value_of(found[1]) or "0", text.strip()).replace("$((", "((")
    if "$" in filled:
        return open_part(filled)
    with suppress(SyntaxError, ValueError, ArithmeticError):
        tree = ast.parse(filled.replace("/", "//").replace("&&", " and ").replace("||", " or "), mode="eval")
        return str(int(_result(tree.body)))
    return f"$(({text.strip()}))"


def _result(node: ast.expr) -> int:
    """Return the result of an arithmetic expression; raise ValueError for anything else."""
    match node:
        case ast.BinOp():
            result = operated(node.op, _result(node.left), _result(node.right))
            if isinstance(result, int):
                return result
        case ast.UnaryOp(op=ast.USub()):
            return -_result(node.operand)
        case ast.Compare(ops=[operator], comparators=[right]) if type(operator) in _COMPARED:
            return int(_COMPARED[type(operator)](_result(node.left), _result(right)))
        case ast.BoolOp(op=ast.And()):
            return int(all(_result(value) for value in node.values))
        case ast.BoolOp():
            return int(any(_result(value) for value in node.values))
        case ast.Constant(value=int(number)):
            return number
    raise ValueError(ast.dump(node))
