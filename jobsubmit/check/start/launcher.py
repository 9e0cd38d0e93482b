"""What a start command says of nodes and ranks, compared with what the job gives it."""

from __future__ import annotations

import posixpath
import re
import sys
from collections.abc import Callable, Collection, Container, Iterator

from jobsubmit.check.program.configuration import parse_text
from jobsubmit.check.start.devices import hidden_gpus
from jobsubmit.common.finding import Finding
from jobsubmit.plan.launch_plan import LaunchPlan
from jobsubmit.plan.launchers import Launch, launch_of_command
from jobsubmit.plan.shell_words import text_of_command

_BY_TORCH = {"torchrun": "torchrun", "launch": "torch.distributed.launch"}
_HINT = (
    "let jobsubmit start it: replace `command` by mode: torchrun and boot_file; or pass --nnodes=$NNODES "
    "--node_rank=$NODE_RANK --master_addr=$MASTER_ADDR --master_port=$MASTER_PORT with `bash -c`"
)
_OF_PROCESS = re.compile(r"(?<!\\)\$\{?(LOCAL_RANK|RANK|WORLD_SIZE|LOCAL_WORLD_SIZE)\b(?!:?[-=+])")
_COUNTS_NODES = re.compile(r"--?(?:num[-_]machines|nnodes|num[-_]nodes|n[-_]nodes|nodes|world[-_]size)\b")
_NUMBERS_NODE = re.compile(r"rank|NODE_INDEX|TASK_INDEX|PROCID|NODEID|--rdzv|--node[-_]id", re.IGNORECASE)
_OWN_ID = re.compile(
    r"(--rdzv[_-]id)[=\s]\S*?(\$\{?RANDOM\b|\$\$|\$\((?:date|uuidgen|hostname)[^)]*\)|\$\{?HOSTNAME\b|`(?:date|uuidgen|hostname)[^`]*`)"
)
_ONE_NUMBER = re.compile(r"(--(?:node|machine)[_-]rank)[= ]\d+\b")
_OWN_SEED = re.compile(r"--\w*seed[= ]\$\{?RANDOM\b\}?")
_OWN_PORT = re.compile(r"(?m)^\s*(?:export\s+)?(\w+)=([^\n]*?(?:RANDOM|\bshuf\b)[^\n]*)$")
_VISIBLE = re.compile(r"(?m)^(?:export\s+)?CUDA_VISIBLE_DEVICES=[\"']?(\d+(?:,\d+)*)\b")
_NAMES_HOSTS = frozenset(["H", "hostfile", "machinefile", "f", "hosts", "default_hostfile"])
_MEETS = r"--(?:dist|master|rdzv|init)[_-](?:url|port|endpoint|method)[=\s]\W?"


def check_launcher(job: LaunchPlan, read: Callable[[str], str]) -> Iterator[Finding]:
    """Yield where a start command starts on other numbers of nodes than the job does, or does not number its nodes.

    `read` returns the text of a file of the job.
    """
    yield from _loopback(job)
    text = text_of_command(job.command or (), read)
    launch = launch_of_command(job.command or (), read, variables_of(job))
    yield from _unset_variables(job, text)
    is_counted = _COUNTS_NODES.search(text) and not _NUMBERS_NODE.search(text)
    if job.nodes > 1 and launch.launcher == "python" and is_counted and not _uses_lightning(launch, read):
        said = f"says how many nodes there are, but not which one this is: all {job.nodes} nodes would be the first"
        yield Finding("warning", "launcher-nodes", "command", said, "pass $NODE_RANK as well, with `bash -c`")
    if job.nodes > 1 and (found := _ONE_NUMBER.search(text)):
        said = f"{found[0]} is the same on all {job.nodes} nodes: their processes would have the same ranks"
        yield Finding("error", "launcher-nodes", "command", said, f"pass {found[1]}=$NODE_RANK, with `bash -c`")
    if job.nodes > 1 and (found := _OWN_ID.search(text)):
        said = f"{found[1]} is another text on each node ({found[2]}): the nodes would never meet"
        yield Finding(
            "error", "launcher-nodes", "command", said, "use $JOBSUBMIT_JOB_ID, which is the same on all nodes"
        )
    if job.nodes > 1 and (found := _OWN_PORT.search(text)) and re.search(rf"{_MEETS}\S*\$\{{?{found[1]}\b", text):
        said = f"${found[1]} is another port on each node ({found[2]}): the nodes would never meet"
        yield Finding("error", "launcher-nodes", "command", said, "use $MASTER_PORT, which is the same on all nodes")
    if job.nodes > 1 and (found := _OWN_SEED.search(text)):
        said = f"{found[0]} is another number on each node: their processes shuffle and split the data in other ways"
        yield Finding("warning", "launcher-nodes", "command", said, "give a number that is the same on all nodes")
    yield from _hidden_gpus(job, launch, text)
    yield from _machines_of_accelerate(job, launch, read)
    if (
        job.nodes > 1
        and launch.launcher == "mpirun"
        and launch.nodes == 1
        and _NAMES_HOSTS.isdisjoint(launch.of_scheduler)
    ):
        said = f"mpirun is given no hosts: each of the {job.nodes} nodes would start all ranks, and train by itself"
        yield Finding("warning", "launcher-nodes", "command", said, "let jobsubmit start it: use mode: torchrun")
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


def check_script(job: LaunchPlan, paths: Container[str]) -> Iterator[Finding]:
    """Yield an error for a shell script that a start command names, and that is not among the files of the job."""
    words = list(job.command or ())
    if words and words[0].rpartition("/")[2] in ("bash", "sh"):
        words = words[1:2]
    script = words[0] if words else ""
    is_own = script.endswith(".sh") and not script.startswith(("/", "~")) and "$" not in script
    if is_own and not job.setup and posixpath.normpath(script) not in paths:
        hint = "correct the path: a job starts in the code directory; `jobsubmit bundle --list` shows what is uploaded"
        yield Finding("error", "boot-file", "command", f"{script} is not among the files that are uploaded", hint)


def check_module(
    job: LaunchPlan, launch: Launch, paths: Collection[str], find_missing: Callable[[Collection[str]], set[str]] | None
) -> Iterator[Finding]:
    """Yield an error for a module that a start command executes, and that neither the job nor the nodes' Python has."""
    name = launch.program[0] if launch.is_module and launch.program else ""
    path = name.replace(".", "/")
    if not re.fullmatch(r"\w+(?:\.\w+)*", name) or {f"{path}.py", f"{path}/__main__.py"} & set(paths):
        return
    top = name.partition(".")[0]
    may_be_made = job.setup or job.requirements or "PYTHONPATH" in dict(job.env)
    is_elsewhere = re.search(r"\bcd\s|PYTHONPATH", " ".join(job.command or ()))
    if may_be_made or is_elsewhere or top in sys.stdlib_module_names:
        return
    if any(one.startswith(f"{top}/") or one == f"{top}.py" for one in paths):
        hint = "correct the name: a job starts in the code directory; `jobsubmit bundle --list` shows what is uploaded"
        yield Finding("error", "boot-file", "command", f"module {name} is not among the files that are uploaded", hint)
    elif find_missing is not None and find_missing([top]):
        hint = "correct the name, or name its package in a `requirements` file, which each node installs"
        yield Finding("error", "packages", "command", f"the nodes' Python has no module {top}", hint)


def variables_of(job: LaunchPlan) -> frozenset[str]:
    """Return the names of the variables that a job itself sets on its nodes."""
    return frozenset([*dict(job.env), *dict(job.secrets)])


def _uses_lightning(launch: Launch, read: Callable[[str], str]) -> bool:
    """Return whether a program is one of Lightning's, which reads NODE_RANK itself."""
    program = launch.program[0] if launch.program else ""
    return program.endswith(".py") and "lightning" in read(posixpath.normpath(program))


def _machines_of_accelerate(job: LaunchPlan, launch: Launch, read: Callable[[str], str]) -> Iterator[Finding]:
    """Yield a warning for `accelerate launch` on one machine, by its options or its file, in a job of several."""
    file = str(launch.options.get("config_file", ""))
    if launch.launcher != "accelerate" or job.nodes == 1 or "num_machines" in launch.options:
        return
    settings = parse_text(read(file)) if file else {}
    machines = settings.get("num_machines", 1) if isinstance(settings, dict) else None
    if machines == 1 and (settings or not file):
        text = f"accelerate launch is not given --num_machines: each of the {job.nodes} nodes would train by itself"
        if file:
            text = f"{file} says num_machines: 1, so each of the {job.nodes} nodes would train by itself"
        yield Finding(
            "warning",
            "launcher-nodes",
            "command",
            text,
            "pass --num_machines $NNODES --machine_rank $NODE_RANK --main_process_ip $MASTER_ADDR --main_process_port "
            "$MASTER_PORT, and --num_processes for all nodes, with `bash -c`",
        )


def _hidden_gpus(job: LaunchPlan, launch: Launch, text: str) -> Iterator[Finding]:
    """Yield a warning where a start command lets the processes of a node see fewer GPUs than there are processes."""
    found = _VISIBLE.search(text) if job.command else None
    is_given = "NPROC_PER_NODE" in str(launch.options.get("nproc_per_node"))
    starts = job.nproc_per_node if is_given else launch.nproc
    if found and launch.launcher in _BY_TORCH:
        yield from hidden_gpus("command", found[1], starts or 0)


def _unset_variables(job: LaunchPlan, text: str) -> Iterator[Finding]:
    """Yield an error for a variable of a shell that only launchers set, and only for the processes they start.

    What stands in single quotes may be for those.
    """
    for found in _OF_PROCESS.finditer(re.sub(r"'[^']*'", "", text) if job.command else ""):
        name = found[1]
        is_set = name in dict(job.env) or re.search(rf"\b{name}=", text) is not None
        if not is_set:
            yield Finding(
                "error",
                "launcher-nodes",
                "command",
                f"${name} is empty in the command: only launchers set it, for the processes that they start",
                "use $NODE_RANK for the number of the node, $NNODES and $NPROC_PER_NODE",
            )
            return


def _loopback(job: LaunchPlan) -> Iterator[Finding]:
    """Yield a warning where the nodes are to communicate on an interface that does not leave the machine."""
    for name in ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME"):
        value = dict(job.env).get(name, "").removeprefix("=")
        if job.nodes > 1 and not job.backend.is_this_machine and value.partition(",")[0] in ("lo", "lo0"):
            text = f"{name} is {value}: no node reaches another one on this interface"
            yield Finding(
                "warning", "loopback", f"env.{name}", text, "remove it, or name the interface between the nodes"
            )
