"""timm's models: `create_model` calls a function of the program that is registered under the name it is given."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, Any

from jobsubmit.check.interpreter.memory import FunctionValue
from jobsubmit.check.program.registries import names_of

if TYPE_CHECKING:
    from jobsubmit.check.interpreter.calls import Calls

# What create_model keeps for itself, and what it gives only to models that declare it.
_OWN = frozenset(
    [
        *("model_name", "pretrained_cfg", "pretrained_cfg_overlay", "checkpoint_path", "scriptable", "exportable"),
        *("no_jit", "cache_dir", "drop_connect_rate", "bn_tf", "bn_momentum", "bn_eps"),
    ]
)


def created_model(run: Calls, args: list[Any], keywords: dict[str, Any]) -> tuple[Any] | None:
    """Return the model of this program that timm makes, in a tuple; None if it is not one of this program.

    As in timm, arguments that are None are left out. A module that nobody has imported registers nothing.
    """
    name = args[0] if args else keywords.get("model_name")
    makers = [module.scope.names.get(name) for module in run.modules.values()] if isinstance(name, str) else []
    for maker in makers:
        if isinstance(maker, FunctionValue) and isinstance(maker.node, ast.FunctionDef) and names_of(maker.node):
            given = {key: value for key, value in keywords.items() if key not in _OWN and value is not None}
            given.setdefault("pretrained", args[1] if len(args) > 1 else False)
            return (run.call(maker, [], given),)
    return None
