"""The configurations that OmegaConf makes: of files, of words of the command line, and of each other.

Source: OmegaConf 2.3, "Creating" and "OmegaConf.merge()".
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from jobsubmit.check.program.configuration import merge_into, parse_text, read_configuration, without_computed
from jobsubmit.check.program.module import Module
from jobsubmit.check.program.operations import UNKNOWN, has_gaps

if TYPE_CHECKING:
    from jobsubmit.check.program.values import Values

_SAME = ("to_container", "to_object")


def value_of_omegaconf(values: Values, method: str, node: ast.Call, module: Module) -> Any:
    """Return what `OmegaConf.method()` returns, computed values as UNKNOWN; may raise any error."""
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
        merge_into(found, one)
    return found
