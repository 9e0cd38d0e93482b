"""Configurations that are files of Python, as `Config.fromfile` of mmcv, mmengine and their like reads them."""

from __future__ import annotations

import ast
import posixpath
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from jobsubmit.check.program.module import spelled
from jobsubmit.check.program.operations import UNKNOWN, operated
from jobsubmit.check.program.program import LONGEST_CONFIGURATION, Program

_BASE, _REPLACES = "_base_", "_delete_"
_MOST_BASES = 5  # that are based on each other


def read_python_configuration(program: Program, path: str, depth: int = 0) -> Any:
    """Return the variables that a file of Python sets, on top of those of its `_base_`; UNKNOWN if it cannot be read.

    Source: the page "Config" of mmengine's documentation: mappings are merged, unless one has `_delete_=True`.
    """
    try:
        with Path(program.file(path, program.sources)).open(errors="replace") as stream:
            tree = ast.parse(stream.read(LONGEST_CONFIGURATION))
    except (OSError, SyntaxError, ValueError):
        return UNKNOWN
    own: dict[str, Any] = {}
    for node in tree.body:
        target = node.targets[0] if isinstance(node, ast.Assign) else None
        if isinstance(node, ast.Assign) and isinstance(target, ast.Name):
            own[target.id] = _value(node.value, own)
    return _on_bases(program, path, own, depth)


@lru_cache(maxsize=1000)
def variables_given(program: Program, argv: Sequence[str]) -> Mapping[str, Any] | None:
    """Return the variables that arguments set; None if they are no arguments of a configurator.

    Source: configurator.py of nanoGPT: `--name=value` sets a variable of the script, and a file of Python sets several.
    """
    found: dict[str, Any] = {}
    for word in argv:
        name, separator, text = word.removeprefix("--").partition("=")
        if word.startswith("--") and separator:
            try:
                found[name] = ast.literal_eval(text)
            except (ValueError, SyntaxError):
                found[name] = text
            continue
        values = UNKNOWN if word.startswith("-") else read_python_configuration(program, word)
        if not isinstance(values, dict):
            return None
        found |= values
    return found


def _on_bases(program: Program, path: str, own: dict[str, Any], depth: int) -> Any:
    bases = own.pop(_BASE, [])
    merged: dict[str, Any] = {}
    for base in bases if isinstance(bases, list) else [bases]:
        where = posixpath.join(posixpath.dirname(path), str(base))
        known = read_python_configuration(program, where, depth + 1) if depth < _MOST_BASES else UNKNOWN
        if known is UNKNOWN:
            return UNKNOWN
        merged = _merged(merged, known)
    return _merged(merged, own)


def _merged(base: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """Return a mapping with the entries of another one, and those of the mappings in it."""
    found = dict(base)
    for name, value in own.items():
        before = found.get(name)
        if not isinstance(value, dict):
            found[name] = value
        elif isinstance(before, dict) and not value.get(_REPLACES):
            found[name] = _merged(before, value)
        else:
            found[name] = _merged({}, {key: one for key, one in value.items() if key != _REPLACES})
    return found


def _value(node: ast.expr, known: Mapping[str, Any]) -> Any:
    """Return the value of an expression, as far as it is written down."""
    match node:
        case ast.Constant():
            return node.value
        case ast.Name():
            return known.get(node.id, UNKNOWN)
        case ast.List() | ast.Tuple():
            return [_value(item, known) for item in node.elts]
        case ast.Dict():
            keys = [UNKNOWN if key is None else _value(key, known) for key in node.keys]
            values = [_value(item, known) for item in node.values]
            is_known = all(isinstance(key, (str, int)) for key in keys)
            return dict(zip(keys, values, strict=True)) if is_known else UNKNOWN
        case ast.Call() if spelled(node.func) == "dict" and not node.args:
            return _of_keywords(node, known)
        case ast.UnaryOp(op=ast.USub()):
            return operated(ast.Mult(), -1, _value(node.operand, known))
        case ast.BinOp():
            left, right = _value(node.left, known), _value(node.right, known)
            are_lists = isinstance(left, list) and isinstance(right, list) and isinstance(node.op, ast.Add)
            are_numbers = all(isinstance(one, (int, float)) for one in (left, right))
            return [*left, *right] if are_lists else operated(node.op, left, right) if are_numbers else UNKNOWN
    return UNKNOWN


def _of_keywords(call: ast.Call, known: Mapping[str, Any]) -> Any:
    found: dict[str, Any] = {}
    for keyword in call.keywords:
        value = _value(keyword.value, known)
        if keyword.arg is not None:
            found[keyword.arg] = value
        elif isinstance(value, dict):
            found |= value
        else:
            return UNKNOWN
    return found
