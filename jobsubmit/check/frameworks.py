"""Libraries that place processes themselves, used in a way that does not fit the job."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from jobsubmit.check.code import Code, is_count
from jobsubmit.check.program.calls import argument, hides_arguments
from jobsubmit.check.sampler import LOADERS
from jobsubmit.common.finding import Finding

_TRAINERS = tuple(
    f"{package}.Trainer"
    for package in ("lightning", "lightning.pytorch", "pytorch_lightning", "lightning.pytorch.trainer")
)
_NOT_TRAINING = re.compile(r"val|test|eval|dev|infer|predict|sample")


def check_frameworks(code: Code) -> Iterator[Finding]:
    """Yield what Lightning refuses, and loaders that Accelerate does not divide among the processes."""
    yield from _nodes_of_lightning(code)
    if code.world_size != 1:
        yield from _not_prepared(code)


def _nodes_of_lightning(code: Code) -> Iterator[Finding]:
    """Yield a warning for another number of nodes than the job has: Lightning compares it with the launcher's."""
    for module, call, name in code.reached.calls:
        given = argument(call, "num_nodes")
        if name not in _TRAINERS or hides_arguments(call) or not code.facts.has_launcher:
            continue
        nodes = 1 if given is None else code.values.of(given, module)
        if is_count(nodes) and nodes != code.facts.nodes:
            yield Finding(
                "warning",
                "lightning-nodes",
                module.where(call),
                f"num_nodes of the Trainer is {nodes}, and the job has {code.facts.nodes}: Lightning refuses that",
                'pass num_nodes=int(os.environ["NNODES"])',
            )
            return


def _not_prepared(code: Code) -> Iterator[Finding]:
    """Yield a warning for a loader of the training that is not given to Accelerator.prepare."""
    if not any(name == "accelerate.Accelerator" for _, _, name in code.reached.calls):
        return
    prepares = [call for _, call, _ in code.reached.calls if _is_prepare(call)]
    given = {node.id for call in prepares for node in ast.walk(call) if isinstance(node, ast.Name)}
    if not prepares or any(hides_arguments(call) for call in prepares):
        return
    looped = {
        node.id for _, loop in code.program.of(ast.For) for node in ast.walk(loop.iter) if isinstance(node, ast.Name)
    }
    for module, call, name in code.reached.calls:
        statement = module.parents.get(call)
        target = statement.targets[0] if isinstance(statement, ast.Assign) else None
        if name not in LOADERS or not isinstance(target, ast.Name) or _NOT_TRAINING.search(target.id):
            continue
        if target.id in looped and target.id not in given:
            yield Finding(
                "warning",
                "no-sampler",
                module.where(call),
                f"{target.id} is not given to accelerator.prepare: each process gets all of the data",
                f"pass it as well: {target.id} = accelerator.prepare({target.id})",
            )
            return


def _is_prepare(call: ast.Call) -> bool:
    return isinstance(call.func, ast.Attribute) and call.func.attr in ("prepare", "prepare_data_loader")
