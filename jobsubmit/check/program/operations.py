"""What operators and functions make of values that are known, unknown, or several: one in each process."""

from __future__ import annotations

import ast
import itertools
import math
import operator
import posixpath
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import PurePosixPath
from typing import Any, Final, NamedTuple

from jobsubmit.check.program.module import unparsed


class _Unknown:
    def __repr__(self) -> str:
        return "UNKNOWN"


UNKNOWN: Final[Any] = _Unknown()


class Several(NamedTuple):
    """Values that an expression has in one process or another, as a rank does: the first, one amid, the last."""

    values: tuple[Any, ...]


def several(values: Iterable[Any]) -> Any:
    """Return values as one where they are equal; UNKNOWN where one is not known, or they are too many."""
    found = list(values)
    if any(value is UNKNOWN for value in found):
        return UNKNOWN
    different = [value for index, value in enumerate(found) if value not in found[:index]]
    if len(different) == 1:
        return different[0]
    return Several(tuple(different)) if 0 < len(different) <= _MOST_VALUES else UNKNOWN


_MOST_VALUES = 9
_LONGEST_TEXT = 1_000
_LARGEST_NUMBER = 1 << 60
_LARGEST_POWER = 64
LONGEST_RANGE = 10_000


def _modulo(left: Any, right: Any) -> Any:
    """Return the rest of a division, or a text with values in the places of `%s` and `%d`."""
    if not isinstance(left, str):
        return left % right
    given = right if isinstance(right, list) else [right]
    is_plain = re.fullmatch(r"(?:[^%]|%[sd])*", left) is not None and all(isinstance(one, (str, int)) for one in given)
    return left % tuple(given) if is_plain and left.count("%") == len(given) else UNKNOWN


def _from_here(path: Any) -> str:
    """Return a path so that it has a folder, as a whole one has: the code directory is `.`."""
    return str(path) if "/" in str(path) else f"./{path}"


def _power(left: Any, right: Any) -> Any:
    return UNKNOWN if abs(right) > _LARGEST_POWER else left**right


BINARY: Mapping[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: lambda left, right: UNKNOWN if str in (type(left), type(right)) else left * right,
    ast.FloorDiv: operator.floordiv,
    ast.Div: operator.truediv,
    ast.Mod: _modulo,
    ast.Pow: _power,
    ast.BitXor: operator.xor,
    ast.BitAnd: operator.and_,
    ast.BitOr: operator.or_,
}
COMPARE: Mapping[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Is: operator.is_,
    ast.IsNot: operator.is_not,
    ast.In: lambda item, items: item in items,
    ast.NotIn: lambda item, items: item not in items,
}
CONVERT: Mapping[str, Callable[..., Any]] = {
    "int": int,
    "float": float,
    "str": str,
    "bool": bool,
    "len": len,
    "list": list,
    "tuple": list,
    "sorted": sorted,
    "abs": abs,
    "min": min,
    "max": max,
    "divmod": lambda left, right: list(divmod(left, right)),
    "sum": sum,
    "all": all,
    "any": any,
    "math.prod": math.prod,
    "math.ceil": lambda value: -int(-value // 1),
    "math.floor": lambda value: int(value // 1),
    "math.log2": math.log2,
    "math.sqrt": math.sqrt,
}


def _relative(path: str, start: str = "") -> Any:
    """Return a path as seen from another one; UNKNOWN where only one of them begins in the code."""
    if path.startswith("/") is not start.startswith("/"):
        return UNKNOWN
    return posixpath.relpath(posixpath.join("/", path), posixpath.join("/", start))


def _as_path(value: Any) -> PurePosixPath:
    """Return a path, seen from the code directory: there a program starts, and its files are."""
    return PurePosixPath(value)


# `__file__` is a path below the code directory, and so is every path that is made of it.
PATH_FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    "os.path.join": posixpath.join,
    "os.path.dirname": posixpath.dirname,
    "os.path.basename": posixpath.basename,
    "os.path.splitext": lambda path: list(posixpath.splitext(path)),
    "os.path.normpath": posixpath.normpath,
    "os.path.relpath": _relative,
    **dict.fromkeys(("os.path.abspath", "os.path.realpath"), _from_here),
    **dict.fromkeys(("os.path.expanduser", "os.fspath"), str),
    **dict.fromkeys(("pathlib.Path", "pathlib.PurePath"), PurePosixPath),
    "os.getcwd": lambda: "",
    "pathlib.Path.cwd": PurePosixPath,
}
PATH_METHODS: Mapping[str, Callable[[Any], Any]] = dict.fromkeys(
    ("resolve", "absolute", "expanduser", "as_posix"), _as_path
)
TEXT_METHODS = ("startswith", "endswith", "lower", "upper", "strip", "split", "replace")
_TYPES = {kind.__name__: kind for kind in (bool, int, float, str, list, tuple, dict)}


def is_instance(value: Any, kinds: ast.expr) -> Any:
    """Return whether a value is of one of the built-in types that are named."""
    named = {unparsed(kind) for kind in (kinds.elts if isinstance(kinds, ast.Tuple) else [kinds])}
    if not named <= set(_TYPES) or is_open(value):
        return UNKNOWN
    return isinstance(value, tuple(_TYPES[name] for name in named))


def is_open(value: Any) -> bool:
    """Return whether a value is not one, and known."""
    return value is UNKNOWN or isinstance(value, Several)


def has_gaps(value: Any) -> bool:
    """Return whether a value or a part of it is not known."""
    if isinstance(value, dict):
        value = list(value.values())
    return any(map(has_gaps, value)) if isinstance(value, list) else value is UNKNOWN


def operated(op: ast.operator, left: Any, right: Any) -> Any:
    """Return the value of `left op right`."""
    if type(op) not in BINARY or left is UNKNOWN or right is UNKNOWN:
        return UNKNOWN
    return lifted(BINARY[type(op)], left, right)


def lifted(operation: Callable[..., Any], *values: Any) -> Any:
    """Return what an operation makes of values, each of which may be several."""
    each = [value.values if isinstance(value, Several) else (value,) for value in values]
    if any(not _is_small(item) for items in each for item in items if not isinstance(item, (list, dict, bool))):
        return UNKNOWN
    return several(operation(*chosen) for chosen in itertools.product(*each))


def _is_small(value: Any) -> bool:
    """Return whether a value is small enough to compute here."""
    if isinstance(value, (str, PurePosixPath)):
        return len(str(value)) < _LONGEST_TEXT
    return value is None or (isinstance(value, (int, float)) and abs(value) < _LARGEST_NUMBER)
