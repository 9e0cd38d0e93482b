"""The settings of yacs and fvcore: their defaults in the code, and the files and words that a job merges into them.

Source: yacs 0.1.8, README and `yacs.config.CfgNode.merge_from_file`, `merge_from_list`.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from jobsubmit.check.program.configuration import parse_text, read_text
from jobsubmit.check.program.module import Module, spelled, unparsed
from jobsubmit.check.program.operations import UNKNOWN, has_gaps

if TYPE_CHECKING:
    from jobsubmit.check.program.values import Values

MERGES = frozenset(["merge_from_file", "merge_from_list", "merge_from_other_cfg"])
_KEY = re.compile(r"(?:^|\.)([A-Z][A-Z0-9_]*(?:\.[A-Z][A-Z0-9_]*)*)$")
_INHERITS = ("BASE", "_BASE_")
_NODE = re.compile(r"(?:\w*(?:Cfg|Config)Node|CN)\((?:new_allowed=True)?\)$")


def key_of(node: ast.Attribute) -> str:
    """Return the name of a setting, `TRAIN.BATCH_SIZE` of `cfg.TRAIN.BATCH_SIZE`; empty for anything else."""
    found = _KEY.search(spelled(node))
    return found[1] if found else ""


def is_default(place: ast.Attribute, module: Module) -> bool:
    """Return whether a place sets a default: `_C.NUM_GPUS = 1` at the top of a module, where `_C` is a node."""
    root = spelled(place).partition(".")[0]
    made = (module.parents.get(store) for store in module.stores.get((module.tree, root), ()))
    is_node = any(isinstance(one, ast.Assign) and _NODE.search(unparsed(one.value)) for one in made)
    return is_node and module.function_of(place) is None


def key_of_default(place: ast.Attribute) -> str:
    """Return the name of the setting for which a place sets the default: all but the variable of the node."""
    return spelled(place).partition(".")[2]


def overrides(values: Values) -> Mapping[str, Any] | None:
    """Return the settings that files and words give, by their names; None if some of them are not known."""
    found: dict[str, Any] = {}
    calls = [
        (module, call, call.func.attr)
        for module, call, _ in values.program.calls
        if isinstance(call.func, ast.Attribute) and call.func.attr in MERGES and call not in values.dead
    ]
    for module, call, method in sorted(calls, key=lambda one: one[2] == "merge_from_list"):  # after the files
        given = call.args[0] if call.args else None
        if method == "merge_from_list":
            more = _of_list(values.of(given, module))
        else:
            more = _of_file(values, given if method == "merge_from_file" else _opened(given, module), module)
        if more is None:
            return None
        found |= more
    return found


def _opened(given: ast.expr | None, module: Module) -> ast.expr | None:
    """Return the path of the file that is opened for `merge_from_other_cfg(cfg.load_cfg(stream))`."""
    if not isinstance(given, ast.Call) or not spelled(given.func).endswith("load_cfg") or len(given.args) != 1:
        return None
    items = (item for above in module.above(given) if isinstance(above, ast.With) for item in above.items)
    opens = [item.context_expr for item in items if spelled(item.optional_vars or given) == spelled(given.args[0])]
    return next((call.args[0] for call in opens if isinstance(call, ast.Call) and call.args), None)


def _of_file(values: Values, node: ast.expr | None, module: Module) -> dict[str, Any] | None:
    path = values.of(node, module)
    text = read_text(values.program, path) if isinstance(path, str) else ""
    read = parse_text(text) if text else None
    if not isinstance(read, dict) or any(read.get(name) not in (None, "", [""]) for name in _INHERITS):
        return None
    return dict(_leaves(read, ""))


def _leaves(settings: Mapping[Any, Any], above: str) -> Iterator[tuple[str, Any]]:
    for name, value in settings.items():
        if isinstance(value, dict):
            yield from _leaves(value, f"{above}{name}.")
        else:
            yield f"{above}{name}", decoded(value)


def _of_list(words: Any) -> dict[str, Any] | None:
    if words is None:
        return {}
    if not isinstance(words, list) or has_gaps(words[::2]) or len(words) % 2:
        return None
    return {str(name): decoded(value) for name, value in zip(words[::2], words[1::2], strict=True)}


def decoded(text: Any) -> Any:
    """Return what a word means: a literal of Python, else the word itself."""
    try:
        return ast.literal_eval(text) if isinstance(text, str) else text
    except (ValueError, SyntaxError):
        return text if "$" not in text else UNKNOWN
