"""What timm does for a program: it makes models of functions that are registered, and joins the process group."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, Any

from jobsubmit.check.interpreter.memory import FunctionValue
from jobsubmit.check.program.operations import UNKNOWN
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


def joined_group(run: Calls, args: list[Any]) -> tuple[Any]:
    """Join the process group, and set the fields of the arguments to the numbers of the process.

    Source: `init_distributed_device` of timm 0.6 to 1.0, which reads the variables of a launcher.
    """
    run.has_group = True
    process = run.process
    fields = {
        "distributed": UNKNOWN if run.facts.world_size is UNKNOWN else run.facts.world_size != 1,
        "world_size": run.facts.world_size if process is None else process.world_size,
        "rank": run.facts.rank if process is None else process.rank,
        "local_rank": UNKNOWN if process is None else process.local_rank,
        "device": f"cuda:{process.local_rank}" if process is not None and run.facts.gpus else UNKNOWN,
    }
    for name, value in fields.items() if args else ():
        run.set_attribute(args[0], name, value)
    return (UNKNOWN,)
