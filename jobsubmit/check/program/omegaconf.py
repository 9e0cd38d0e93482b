"""The configurations that OmegaConf makes: of files, of words of the command line, and of each other.

Source: OmegaConf 2.3, "Creating" and "OmegaConf.merge()".
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from jobsubmit.check.program.calls import argument
from jobsubmit.check.program.configuration import merge, parse_text, read_configuration, without_computed
from jobsubmit.check.program.module import Module
from jobsubmit.check.program.objects import default_of_field, fields_of, is_record
from jobsubmit.check.program.operations import UNKNOWN, has_gaps

if TYPE_CHECKING:
    from jobsubmit.check.program.values import Values

_SAME = ("to_container", "to_object")


def value_of_omegaconf(values: Values, method: str, node: ast.Call, module: Module) -> Any:
    """Return what `OmegaConf.method()` returns, computed values as UNKNOWN; may raise any error."""
    if method == "structured":
        return _of_class(values, node.args[0], module)
    given = list(_given(values, node, module))
    if method == "load":
        return without_computed(read_configuration(values.program, given[0], "yaml"))
    if method == "create":
        made = given[0] if given else {}
        return without_computed(parse_text(made) if isinstance(made, str) else made)
    if method in ("from_cli", "from_dotlist"):
        return _of_words(given[0] if given else values.facts.argv)
    if method == "merge":
        return _merged(given)
    return given[0] if method in _SAME else UNKNOWN


def _of_class(values: Values, node: ast.expr, module: Module) -> Any:
    """Return the fields of a dataclass, or of an object made of it, with those of the dataclasses that make them."""
    maker = node.func if isinstance(node, ast.Call) else node
    found = values.program.definition(values.program.name_of(maker, module))
    if found is None or not isinstance(found[1], ast.ClassDef) or not is_record(found[1]):
        return UNKNOWN
    given = {one.arg: one.value for one in node.keywords} if isinstance(node, ast.Call) and not node.args else {}
    if isinstance(node, ast.Call) and (node.args or None in given):
        return UNKNOWN
    fields = {name: _of_field(values, one.value, found[0]) for name, one in fields_of(found[1]).items()}
    return {**fields, **{str(name): values.of(value, module) for name, value in given.items()}}


def _of_field(values: Values, default: ast.expr | None, home: Module) -> Any:
    """Return the value that a field has by default: of `field(default_factory=Options)`, the fields of that class."""
    factory = argument(default, "default_factory") if isinstance(default, ast.Call) else None
    maker = factory if factory is not None else default
    inner = _of_class(values, maker, home) if isinstance(maker, (ast.Name, ast.Attribute, ast.Call)) else UNKNOWN
    plain = default_of_field(default)
    return inner if inner is not UNKNOWN or plain is None else values.of(plain, home)


def _given(values: Values, node: ast.Call, module: Module) -> list[Any]:
    """Return the arguments of a call, in order; raise ValueError if one is not known."""
    found: list[Any] = []
    for item in node.args:
        if isinstance(item, ast.Starred):
            found += values.required(item.value, module)
        else:
            found.append(values.required(item, module))
    return found


def _of_words(words: Any) -> Any:
    """Return the mapping that words such as `train.lr=0.1` make."""
    if has_gaps(words):
        return UNKNOWN
    found: dict[str, Any] = {}
    for word in words:
        name, sign, text = word.partition("=")
        *above, last = name.split(".")
        target = found
        for part in above:
            target = target.setdefault(part, {})
        target[last] = without_computed(parse_text(text)) if sign else None
    return found


def _merged(configurations: Sequence[Any]) -> Any:
    found: dict[str, Any] = {}
    for one in configurations:
        if not isinstance(one, dict):
            return UNKNOWN
        merge(found, without_computed(one))
    return found
