"""What Accelerate does on GPUs only, or refuses on nodes without them."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from typing import Any

from jobsubmit.check.code import Code
from jobsubmit.check.origins import last_value, seen_through
from jobsubmit.check.program.module import FUNCTIONS, Module, own_method, returned_values, unparsed
from jobsubmit.check.program.tree import walk
from jobsubmit.check.wrapper import is_prepare
from jobsubmit.common.finding import Finding


def check_accelerate_on_cpus(code: Code, launched_with: Mapping[str, Any]) -> Iterator[Finding]:
    """Yield what Accelerate refuses on nodes without GPUs; `launched_with` are the options of `accelerate launch`."""
    if code.facts.gpus == 0:
        yield from _shards(code, launched_with)
        yield from _prepares_loss(code) if code.is_parallel else ()


def is_on(launched_with: Mapping[str, Any], name: str, *, usually: bool = False) -> bool:
    """Return whether an option of `accelerate launch` is on; `usually` says so for one that is not given."""
    return str(launched_with.get(name, usually)).lower() != "false"


def _shards(code: Code, launched_with: Mapping[str, Any]) -> Iterator[Finding]:
    """Yield an error where `accelerate launch` has the model sharded.

    Source: `FullyShardedDataParallelPlugin` of accelerate 1.15, which sends the states to an accelerator.
    """
    settings = launched_with.get("fsdp_config")
    options = {**settings, **launched_with} if isinstance(settings, dict) else launched_with
    is_asked = is_on(options, "use_fsdp") or options.get("distributed_type") == "FSDP"
    if is_asked and is_on(options, "fsdp_sync_module_states", usually=True):
        yield Finding(
            "error",
            "cuda-on-cpu",
            "command",
            f"FSDP of accelerate needs GPUs, but {code.facts.no_gpus}",
            "choose nodes with GPUs, or leave out --use_fsdp (distributed_type: FSDP) on nodes without them",
        )


def _prepares_loss(code: Code) -> Iterator[Finding]:
    """Yield a warning for a loss that is given to `prepare`: on CPUs it is wrapped although it has no parameters.

    Source: `Accelerator.prepare_model` of accelerate 1.15, which asks for parameters with gradients on GPUs only.
    """
    for module, call, _ in code.reached.calls:
        for given in call.args if is_prepare(call) else ():
            made = last_value(given, module) if isinstance(given, ast.Name) else None
            if made is not None and any(_is_loss(code, part, home) for home, part in _made_by(code, made, module)):
                yield Finding(
                    "warning",
                    "prepared-loss",
                    module.where(call),
                    f"{unparsed(given)} has no parameters: on CPUs, accelerate wraps it in DistributedDataParallel, "
                    "which refuses that",
                    "leave it out of prepare(): a loss need not be prepared",
                )
                return


def _made_by(code: Code, node: ast.expr, module: Module) -> Iterator[tuple[Module, ast.expr]]:
    """Yield an expression, or what the function of the program that it calls returns."""
    found = code.program.called(node, module) if isinstance(node, ast.Call) else None
    if found is None or not isinstance(found[1], FUNCTIONS):
        yield module, node
        return
    for returned in returned_values(found[1]):
        made = seen_through(returned, found[0])
        if made is not None:
            yield found[0], made


def _is_loss(code: Code, node: ast.AST, module: Module) -> bool:
    """Return whether a call makes a loss, of torch or of the program, that surely has no parameters."""
    if not isinstance(node, ast.Call):
        return False
    name = code.program.name_of(node.func, module)
    found = code.program.definition(name)
    if found is None or not isinstance(found[1], ast.ClassDef):
        return _is_loss_of_torch(name)
    home, owner = found[0], found[1]
    bases = [code.program.name_of(base, home) for base in owner.bases]
    maker = own_method(owner, "__init__")
    made = [one.func for one in walk(maker) if isinstance(one, ast.Call)] if maker is not None else []
    is_plain = all(_is_loss_of_torch(code.program.name_of(one, home)) or "super" in unparsed(one) for one in made)
    given = [*node.args, *(keyword.value for keyword in node.keywords)]
    is_of_torch = any(base == "torch.nn.Module" or _is_loss_of_torch(base) for base in bases)
    return (
        owner.name.endswith("Loss") and is_of_torch and is_plain and all(isinstance(one, ast.Constant) for one in given)
    )


def _is_loss_of_torch(name: str) -> bool:
    return name.startswith("torch.nn.") and name.endswith("Loss") and not name.endswith("WithLoss")
