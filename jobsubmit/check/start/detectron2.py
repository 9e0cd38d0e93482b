"""What detectron2's `launch()` needs: it starts the processes of a node itself, from numbers that it is given."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from jobsubmit.check.code import INIT, Code, is_count
from jobsubmit.check.program.calls import argument
from jobsubmit.check.program.module import Module
from jobsubmit.check.start.hardcoded import THIS_NODE, host_of
from jobsubmit.common.finding import Finding

_LAUNCH = ("detectron2.engine.launch", "detectron2.engine.launch.launch")
_ONE_PER_NODE = (
    "start it once per node with command: [bash, -c, …], and pass --num-gpus $NPROC_PER_NODE --num-machines $NNODES "
    "--machine-rank $NODE_RANK --dist-url tcp://$MASTER_ADDR:$MASTER_PORT"
)


def check_detectron2(code: Code) -> Iterator[Finding]:
    """Yield what is wrong with the numbers that `launch()` gets, and where a launcher starts processes, too.

    Source: detectron2.engine.launch of detectron2 0.6: of one process on one machine it calls the function at once.
    """
    for module, call in code.calls(*_LAUNCH):
        gpus = code.values.of(argument(call, "num_gpus_per_machine", 1), module)
        machines = _given(code, call, "num_machines", 2, 1, module)
        if not isinstance(gpus, int) or not isinstance(machines, int):
            continue
        if code.facts.has_launcher and code.facts.nproc != 1:
            if gpus * machines == 1 and any(code.calls(INIT)):
                return  # the function makes the group itself
            yield _started_twice(code, call, gpus * machines, module)
        elif code.facts.nodes > 1:
            yield from _of_nodes(code, call, machines, module)
        if not code.facts.has_launcher and code.facts.nproc not in (None, gpus):
            text = f"launch() gets {gpus} as the number of GPUs, but resources.nproc_per_node is {code.facts.nproc}"
            hint = "pass --num-gpus $NPROC_PER_NODE"
            yield Finding("warning", "fixed-world-size", module.where(call), text, hint)


def _given(code: Code, call: ast.Call, name: str, position: int, default: object, module: Module) -> object:
    node = argument(call, name, position)
    return default if node is None else code.values.of(node, module)


def _started_twice(code: Code, call: ast.Call, processes: int, module: Module) -> Finding:
    """Return what happens in each process that a launcher starts."""
    said = f"launch() would start more processes in each process that mode {code.facts.mode} starts"
    if processes == 1:
        said = f"launch() of 1 process forms no group: each process that mode {code.facts.mode} starts trains alone"
    return Finding(code.level_of(call, module), "nested-spawn", module.where(call), said, _ONE_PER_NODE)


def _of_nodes(code: Code, call: ast.Call, machines: int, module: Module) -> Iterator[Finding]:
    """Yield an error where the nodes of a job do not form one group."""
    nodes, level, where = code.facts.nodes, code.level_of(call, module), module.where(call)
    if machines != nodes:
        said = f"launch() gets num_machines={machines}, but the job has {nodes} nodes: they do not form one group"
        yield Finding(level, "fixed-world-size", where, said, _ONE_PER_NODE)
        return
    number = _given(code, call, "machine_rank", 3, 0, module)
    if is_count(number) and not code.facts.options_of_node:
        said = f"launch() gets machine_rank={number} on all {nodes} nodes: they have the same ranks"
        yield Finding(level, "same-ranks", where, said, _ONE_PER_NODE)
    url = _given(code, call, "dist_url", 4, None, module)
    if isinstance(url, str) and (url == "auto" or host_of(url) in THIS_NODE):
        said = f"launch() gets dist_url {url!r}, which is another place on each of the {nodes} nodes: they never meet"
        yield Finding(level, "fixed-master", where, said, _ONE_PER_NODE)
