"""Fabric of Lightning: it makes the process group only when it is launched."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from jobsubmit.check.code import Code
from jobsubmit.check.program.module import Module, spelled
from jobsubmit.common.finding import Finding

_FABRICS = tuple(f"{package}.Fabric" for package in ("lightning", "lightning.fabric", "lightning_fabric"))
_NEED_LAUNCH = frozenset(["setup", "setup_module", "setup_dataloaders", "setup_optimizers"])


def check_fabric(code: Code) -> Iterator[Finding]:
    """Yield an error where several processes use Fabric, and nothing launches it.

    Source: `Fabric._validate_launched` of Lightning 2.0 to 2.6; only the `fabric run` command launches it by itself.
    """
    fabrics = [(module, call) for module, call, name in code.reached.calls if name in _FABRICS]
    is_launched = "launch" in code.names or "LT_CLI_USED" in code.facts.environment
    if not fabrics or is_launched or code.world_size == 1:
        return
    names = {"fabric", *(_held_in(call, module) for module, call in fabrics)}
    for module, call, _ in code.reached.calls:
        owner = spelled(call.func.value).rpartition(".")[2] if isinstance(call.func, ast.Attribute) else ""
        if isinstance(call.func, ast.Attribute) and call.func.attr in _NEED_LAUNCH and owner in names:
            made_in, made = fabrics[0]
            yield Finding(
                code.level_of(call, module),
                "not-launched",
                made_in.where(made),
                f"nothing calls launch() of this Fabric: with several processes, {call.func.attr}() "
                f"({module.where(call)}) refuses to work without it",
                "call fabric.launch() before everything else",
            )
            return


def _held_in(call: ast.Call, module: Module) -> str:
    """Return the variable or field that a Fabric is assigned to."""
    statement = module.parents.get(call)
    return spelled(statement.targets[0]).rpartition(".")[2] if isinstance(statement, ast.Assign) else ""
