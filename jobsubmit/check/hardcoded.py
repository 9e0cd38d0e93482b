"""What is written down in the code, and differs from process to process or from job to job."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from jobsubmit.agent import node_contract as contract
from jobsubmit.check.code import INIT, Code, is_count
from jobsubmit.check.program.calls import Reach, argument
from jobsubmit.check.program.modules import Module
from jobsubmit.check.program.values import UNKNOWN
from jobsubmit.check.ranks import uses_environment
from jobsubmit.common.finding import Finding, Level

_HERE = ("localhost", "127.0.0.1", "::1", "0.0.0.0")  # noqa: S104 - names a user may write


def check_fixed(code: Code) -> Iterator[Finding]:
    """Yield what should not be fixed: world size, rank, meeting point, NCCL where there is no GPU."""
    for module, call in code.calls(INIT, least=Reach.SURELY):
        yield from _world(code, module, call)
        yield from _nccl(code, module, call)
        yield from _meeting(code, module, call)


def _world(code: Code, module: Module, call: ast.Call) -> Iterator[Finding]:
    size = code.values.of(argument(call, "world_size", 3), module)
    rank = argument(call, "rank", 4)
    expected = code.world_size
    if is_count(size) and size > 0 and expected not in (None, size):
        spelled = ast.unparse(argument(call, "world_size", 3) or call)
        why = f"world_size={spelled} is {size}, and the job has {expected} processes"
        hint = "world_size counts processes here"
        if not code.facts.has_launcher:
            hint += "; the argument --world_size counts nodes: multiply it by the processes of a node"
        else:
            hint += ": leave it out, it is in the environment"
        yield Finding("error", "fixed-world-size", module.where(call), why, hint)
    if isinstance(rank, ast.Constant) and isinstance(rank.value, int) and rank.value >= 0 and (expected or 2) > 1:
        yield Finding(
            "error",
            "fixed-world-size",
            module.where(call),
            f"every process says that it has rank {rank.value}",
            "leave rank and world_size out, they are in the environment; under mp.spawn work it out",
        )


def _nccl(code: Code, module: Module, call: ast.Call) -> Iterator[Finding]:
    backend = code.values.of(argument(call, "backend", 0), module)
    if code.facts.gpus == 0 and str(backend).lower() == "nccl":
        yield Finding(
            "error",
            "nccl-on-cpu",
            module.where(call),
            "backend nccl needs GPUs, and these nodes have none",
            'take "gloo" there: backend = "nccl" if torch.cuda.is_available() else "gloo"',
        )


def _meeting(code: Code, module: Module, call: ast.Call) -> Iterator[Finding]:
    method = code.values.of(argument(call, "init_method", 1), module)
    if isinstance(method, str) and method.startswith("tcp://") and code.facts.nodes > 1:
        if method.removeprefix("tcp://").rpartition(":")[0] in _HERE:
            yield _fixed_master(module.where(call), f"each node would meet itself at {method}")
    if not uses_environment(code, module, call):
        return
    for home, node in code.program.nodes:
        if not isinstance(node, ast.Assign) or not code.reached.is_sure(node, home):
            continue
        for target in node.targets:
            if not isinstance(target, ast.Subscript) or code.program.name_of(target.value, home) != "os.environ":
                continue
            name = code.values.of(target.slice, home)
            value = code.values.of(node.value, home)
            if name == contract.MASTER_ADDR and value in _HERE and code.facts.nodes > 1:
                yield _fixed_master(home.where(node), f"MASTER_ADDR={value}: each node would meet itself")
            elif name == contract.MASTER_ADDR and isinstance(value, str) and value not in _HERE:
                yield _fixed_master(
                    home.where(node), f"MASTER_ADDR={value} is one machine's address: the nodes have others", "warning"
                )
            elif name == contract.MASTER_PORT and value is not UNKNOWN and code.facts.has_launcher:
                yield _fixed_master(
                    home.where(node), f"MASTER_PORT={value} replaces the port that the launcher listens on"
                )


def _fixed_master(where: str, text: str, level: Level = "error") -> Finding:
    return Finding(
        level,
        "fixed-master",
        where,
        text,
        "leave MASTER_ADDR and MASTER_PORT to the launcher; in mode spawn use --init_method. "
        "os.environ.setdefault keeps the script usable by hand",
    )
