"""Compare how many nodes the launcher of a start command expects with how many the job has."""

from __future__ import annotations

import re
from collections.abc import Iterator

from jobsubmit.common.finding import Finding
from jobsubmit.plan.launch_plan import LaunchPlan
from jobsubmit.plan.launchers import launch_of_command

_BY_TORCH = {"torchrun": "torchrun", "launch": "torch.distributed.launch"}
_HINT = (
    "let jobsubmit start it: replace `command` by mode: torchrun and boot_file; or pass --nnodes=$NNODES "
    "--node_rank=$NODE_RANK --master_addr=$MASTER_ADDR --master_port=$MASTER_PORT with `bash -c`"
)
_COUNTS_NODES = re.compile(r"--?(?:num[-_]machines|nnodes|num[-_]nodes|n[-_]nodes|nodes|world[-_]size)\b")
_NUMBERS_NODE = re.compile(r"rank|NODE_INDEX|TASK_INDEX|PROCID|NODEID|--rdzv|--node[-_]id", re.IGNORECASE)


def check_launcher(job: LaunchPlan) -> Iterator[Finding]:
    """Yield where a start command starts on other numbers of nodes than the job does, or does not number its nodes."""
    text = " ".join(job.command or ())
    launch = launch_of_command(job.command or ())
    if job.nodes > 1 and launch.launcher == "python" and _COUNTS_NODES.search(text) and not _NUMBERS_NODE.search(text):
        said = f"says how many nodes there are, but not which one this is: all {job.nodes} nodes would be the first"
        yield Finding("warning", "launcher-nodes", "command", said, "pass $NODE_RANK as well, with `bash -c`")
    launcher = _BY_TORCH.get(launch.launcher)
    if launcher is None or not isinstance(launch.nodes, int) or launch.nodes == job.nodes:
        return
    if launch.nodes > job.nodes:
        text = f"{launcher} waits for {launch.nodes} nodes (--nnodes), and the job has only {job.nodes}"
        yield Finding("error", "launcher-nodes", "command", text, f"set resources.nodes: {launch.nodes}, or --nnodes")
    elif launch.nodes == 1:
        given = "is given --nnodes=1" if "nnodes" in launch.options else "is not given --nnodes"
        text = f"{launcher} {given}: each of the {job.nodes} nodes would train by itself"
        yield Finding("warning", "launcher-nodes", "command", text, _HINT)
    else:
        text = f"{launcher} starts on {launch.nodes} nodes (--nnodes), but the job has {job.nodes}"
        yield Finding("warning", "launcher-nodes", "command", text, f"set resources.nodes: {launch.nodes}, or --nnodes")
