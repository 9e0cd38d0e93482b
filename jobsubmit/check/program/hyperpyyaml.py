"""Configurations of HyperPyYAML: YAML whose values refer to others (`!ref <batch_size>`) and make objects (`!new:…`).

Source: HyperPyYAML 1.2, the docstring of load_hyperpyyaml().
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from jobsubmit.check.program.configuration import small
from jobsubmit.check.program.operations import UNKNOWN, operated

_REFERENCE = re.compile(r"<([^<>]*)>")


class _Reference(NamedTuple):
    """A value that is computed from others: `<rate> * <count>`, `<folder>/save`."""

    text: str


class _Values(NamedTuple):
    """The values of a file, and of its references those that are known; UNKNOWN while one is computed."""

    tree: dict[str, Any]
    known: dict[str, Any]


def parse_hyperpyyaml(text: str, overrides: Mapping[str, Any] | None = None) -> Any:
    """Return the values of a text, UNKNOWN for objects that it makes; raise ValueError where it has another form."""
    from ruamel.yaml import YAML
    from ruamel.yaml.constructor import SafeConstructor
    from ruamel.yaml.error import YAMLError

    class Constructor(SafeConstructor):
        """Keep references, and leave out objects."""

    Constructor.add_multi_constructor("!", _constructed)
    reader = YAML(typ="safe", pure=True)
    reader.Constructor = Constructor
    try:
        tree = reader.load(text)
    except YAMLError as error:
        raise ValueError(str(error)) from None
    if not isinstance(tree, dict):
        raise ValueError
    _update(small(tree), overrides or {})
    return small(_resolved(tree, _Values(tree, {})))


def _constructed(constructor: Any, tag: str, node: Any) -> Any:
    if tag.lstrip("!") in ("ref", "copy"):
        return _Reference(str(node.value))
    is_list = tag.lstrip("!") == "tuple" and isinstance(node.value, list)
    return constructor.construct_sequence(node, deep=True) if is_list else UNKNOWN


def _update(tree: dict[str, Any], overrides: Mapping[str, Any]) -> None:
    for key, value in overrides.items():
        if isinstance(value, Mapping) and isinstance(tree.get(key), dict):
            _update(tree[key], value)
        else:
            tree[key] = value


def _resolved(value: Any, values: _Values) -> Any:
    """Return a value without references; what cannot be computed is UNKNOWN."""
    if isinstance(value, _Reference):
        if value.text not in values.known:
            values.known[value.text] = UNKNOWN
            values.known[value.text] = _of_reference(value.text, values)
        return values.known[value.text]
    if isinstance(value, dict):
        return {key: _resolved(one, values) for key, one in value.items()}
    return [_resolved(one, values) for one in value] if isinstance(value, list) else value


def _of_reference(text: str, values: _Values) -> Any:
    parts = {name: _resolved(_found(name, values.tree), values) for name in _REFERENCE.findall(text)}
    if whole := _REFERENCE.fullmatch(text):
        return parts[whole[1]]
    if not all(isinstance(one, (str, int, float)) for one in parts.values()):
        return UNKNOWN
    filled = _REFERENCE.sub(lambda match: str(parts[match[1]]), text)
    try:
        return _computed(ast.parse(filled, mode="eval").body)
    except (SyntaxError, ValueError, ArithmeticError):
        return filled


def _found(name: str, tree: dict[str, Any]) -> Any:
    """Return what a name such as `sizes[small]` refers to."""
    found: Any = tree
    for part in name.split("["):
        found = found.get(part.rstrip("]"), UNKNOWN) if isinstance(found, dict) else UNKNOWN
    return found


def _computed(node: ast.expr) -> Any:
    """Return what numbers and operators make; raise ValueError for a text that is none."""
    if isinstance(node, ast.Constant):
        return node.value
    if not isinstance(node, ast.BinOp):
        raise ValueError
    return operated(node.op, _computed(node.left), _computed(node.right))
