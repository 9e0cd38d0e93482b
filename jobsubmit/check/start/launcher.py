"""What a start command says of nodes, processes and addresses, compared with what the job gives it."""

from __future__ import annotations

import itertools
import posixpath
import re
import sys
from collections.abc import Callable, Collection, Container, Iterator, Mapping, Sequence
from typing import Any

from jobsubmit.check.program.configuration import parse_text
from jobsubmit.check.shell.started import Started, file_of
from jobsubmit.check.start.devices import hidden_gpus
from jobsubmit.check.start.hardcoded import THIS_NODE
from jobsubmit.common.finding import Finding
from jobsubmit.plan.launch_plan import LaunchPlan
from jobsubmit.plan.launchers import STARTED_BY_SRUN, Launch

_BY_TORCH = {"torchrun": "torchrun", "launch": "torch.distributed.launch"}
_NAMES = {**_BY_TORCH, "accelerate": "accelerate"}
_HINTS = {
    "torchrun": "let jobsubmit start it: replace `command` by mode: torchrun and boot_file; or pass --nnodes=$NNODES "
    "--node_rank=$NODE_RANK --master_addr=$MASTER_ADDR --master_port=$MASTER_PORT with `bash -c`",
    "accelerate": 'write the job with `jobsubmit init --from "accelerate launch …"`, or pass --num_machines $NNODES '
    "--machine_rank $NODE_RANK --main_process_ip $MASTER_ADDR --main_process_port $MASTER_PORT, and --num_processes "
    "for all nodes, with `bash -c`",
}
_ANOTHER = "let jobsubmit start it: use mode: torchrun"
_COUNTS_NODES = re.compile(r"--?(?:num[-_]machines|nnodes|num[-_]nodes|n[-_]nodes|nodes|world[-_]size)\b")
_NUMBERS_NODE = re.compile(r"rank|NODE_INDEX|TASK_INDEX|PROCID|NODEID|--rdzv|--node[-_]id", re.IGNORECASE)
_ONE_NUMBER = re.compile(r"(--(?:node|machine)[_-]rank)[= ]\d+(?=\s|$)")
_STARTS_ALL = ("srun", "mpirun", "mpiexec", "deepspeed", "horovodrun", "colossalai")
_SCRIPT = re.compile(r"(?<![\w./-])[\w./-]+\.sh\b")
_OF_NODE = re.compile(r"NODE_RANK|NODE_INDEX|TASK_INDEX|NODEID")
_OF_NODE_IN_SLURM = re.compile(rf"{_OF_NODE.pattern}|SLURM_PROCID")  # one task runs on each node
_NAMES_HOSTS = frozenset(["H", "host", "hostfile", "machinefile", "f", "hosts", "default_hostfile"])
_ON_OWN_NODE = re.compile(r" (?:-N|--nodes|-n|--ntasks)[= ]?1 | (?:-w|--nodelist|--jobid)\b")  # options of srun
_ADDRESSES = ("master_addr", "rdzv_endpoint", "main_process_ip")
_SETS_OPTIONS = "PET_"  # variables that torchrun takes its options from


def check_launcher(job: LaunchPlan, nodes: tuple[Started, Started], read: Callable[[str], str]) -> Iterator[Finding]:
    """Yield where a start command starts on other numbers of nodes than the job does, or does not number its nodes.

    `nodes` is what it starts on the first node and on the last one; `read` returns the text of a file of the job.
    """
    yield from _loopback(job)
    started, last = nodes
    launch = started.launch
    yield from _hidden_gpus(job, started)
    if outside := list(_outside_of_slurm(job, started)):
        yield from outside
        return
    if job.nodes == 1:
        yield from _other_processes(job, started, read)
    if job.nodes == 1 or not launch.launcher:
        return
    found = [*_nodes_not_numbered(job, started, last, read), *_other_numbers(job, started, last, read)]
    found = found or ([*_never_meet(job, started, read)] if started.words[0] != "colossalai" else [])
    yield from found or _other_processes(job, started, read)


def _outside_of_slurm(job: LaunchPlan, started: Started) -> Iterator[Finding]:
    """Yield a warning for srun on this machine: it starts nothing where no Slurm has given it nodes."""
    name = started.words[0].rpartition("/")[2] if started.words else ""
    if name == "srun" and job.backend.is_this_machine:
        script = started.where.partition(":")[0]
        command = f"sbatch {script}" if script.endswith((".sh", ".sbatch", ".slurm")) else "srun …"
        hint = f'write a job file for what it starts: jobsubmit init --from "{command}"'
        text = "srun starts programs on the nodes of a Slurm job, and this job runs on this machine"
        yield Finding("warning", "launcher-nodes", started.where, text, hint)


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
    path = posixpath.normpath(posixpath.join(launch.folder or ".", name.replace(".", "/")))
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


def _nodes_not_numbered(
    job: LaunchPlan, started: Started, last: Started, read: Callable[[str], str]
) -> Iterator[Finding]:
    """Yield where all nodes have the same number."""
    first_words, last_words = " ".join(started.words), " ".join(last.words)
    is_counted = _COUNTS_NODES.search(last_words) and not _NUMBERS_NODE.search(last_words)
    is_counted = is_counted and first_words == last_words
    is_known = _uses_lightning(started.launch, read) or _reads_number(job, started.launch, read)
    if started.launch.launcher == "python" and is_counted and not is_known:
        said = f"says how many nodes there are, but not which one this is: all {job.nodes} nodes would be the first"
        yield Finding("warning", "launcher-nodes", started.where, said, "pass $NODE_RANK as well, with `bash -c`")
    fixed = _ONE_NUMBER.search(last_words)
    is_counted_by_launcher = started.launch.options.get("rdzv_backend", "static") != "static"
    if fixed and fixed[0] in first_words and not is_counted_by_launcher:
        said = f"{fixed[0]} is the same on all {job.nodes} nodes: their processes would have the same ranks"
        yield Finding("error", "launcher-nodes", started.where, said, f"pass {fixed[1]}=$NODE_RANK, with `bash -c`")


def _reads_number(job: LaunchPlan, launch: Launch, read: Callable[[str], str]) -> bool:
    """Return whether a program reads the number of its node from the environment itself."""
    names = _OF_NODE_IN_SLURM if job.backend.kind == "slurm" else _OF_NODE
    return names.search(read(file_of(launch, read))) is not None


def _other_numbers(job: LaunchPlan, started: Started, last: Started, read: Callable[[str], str]) -> Iterator[Finding]:
    """Yield where a launcher starts on other nodes than the job has."""
    launch = started.launch
    if launch.launcher == last.launch.launcher and (said := _started_by_each(job, started, read)):
        yield Finding("warning", "launcher-nodes", started.where, said, _ANOTHER)
    if started.words[0] == "colossalai":
        return
    nodes = _nodes_of(launch, read)
    if launch.launcher not in _NAMES or not isinstance(nodes, int) or nodes == job.nodes:
        return
    name, hint = _NAMES[launch.launcher], _HINTS.get(launch.launcher, _HINTS["torchrun"])
    option = "--num_machines" if launch.launcher == "accelerate" else "--nnodes"
    if nodes > job.nodes:
        text = f"{name} waits for {nodes} nodes ({option}), and the job has only {job.nodes}"
        yield Finding(
            "error", "launcher-nodes", started.where, text, f"set resources.nodes: {nodes}, or {option} $NNODES"
        )
    elif nodes == 1:
        is_given = option.lstrip("-") in launch.options
        given = f"is given {option}=1" if is_given else f"is not given {option}"
        if launch.launcher == "accelerate" and not is_given and (file := launch.options.get("config_file")):
            given = f"reads num_machines: 1 in {file}"
        text = f"{name} {given}: each of the {job.nodes} nodes would train by itself"
        yield Finding("warning", "launcher-nodes", started.where, text, hint)
    else:
        text = f"{name} starts on {nodes} nodes ({option}), but the job has {job.nodes}"
        yield Finding(
            "warning", "launcher-nodes", started.where, text, f"set resources.nodes: {nodes}, or {option} $NNODES"
        )


def _started_by_each(job: LaunchPlan, started: Started, read: Callable[[str], str]) -> str:
    """Return what happens if each node executes a launcher that starts processes on other nodes, too; empty if fine."""
    launch, name = started.launch, started.words[0].rpartition("/")[2]
    given = (*launch.of_scheduler, *launch.options, *(word.lstrip("-").partition("=")[0] for word in started.words))
    has_hosts = not _NAMES_HOSTS.isdisjoint(given) or (launch.launcher == "mpirun" and launch.nodes != 1)
    starts_launcher = name == "srun" and launch.launcher != "srun"
    is_fine = launch.options.get("no_ssh") or (starts_launcher and _is_on_own_node(started.words))
    if is_fine or name not in _STARTS_ALL or _numbers_nodes(job, started, read):
        return ""
    if name == "srun" and not starts_launcher and launch.nodes != job.nodes:
        return f"each of the {job.nodes} nodes executes srun: the tasks of each would have the same ranks"
    if has_hosts or name == "srun":
        return f"each of the {job.nodes} nodes executes the command: {name} would start all processes {job.nodes} times"
    return f"{name} is given no hosts: each of the {job.nodes} nodes would train by itself"


def _is_on_own_node(words: Sequence[str]) -> bool:
    """Return whether srun starts a launcher on one node: that of the command, or one that it names."""
    own = itertools.takewhile(lambda word: not STARTED_BY_SRUN.fullmatch(word), words)
    return _ON_OWN_NODE.search(" ".join((*own, ""))) is not None


def _numbers_nodes(job: LaunchPlan, started: Started, read: Callable[[str], str]) -> bool:
    """Return whether something uses the number of the node: a script of the command, or the program."""
    names = [word for word in job.command or () if not word.startswith("-")]
    texts = [*names, *(read(posixpath.normpath(name)) for name in names), read(file_of(started.launch, read))]
    texts += [read(posixpath.normpath(name)) for text in texts for name in _SCRIPT.findall(text)]
    return any(_OF_NODE.search(text) for text in texts)


def _never_meet(job: LaunchPlan, started: Started, read: Callable[[str], str]) -> Iterator[Finding]:
    """Yield where the nodes do not know the address of the first one, or their own number."""
    launch = started.launch
    if launch.launcher not in _NAMES or not isinstance(_nodes_of(launch, read), int):
        return
    if any(name.startswith(_SETS_OPTIONS) for name in started.environment):
        return
    options = {**settings_of(launch, read), **launch.options}
    hint = _HINTS.get(launch.launcher, _HINTS["torchrun"])
    for name in _ADDRESSES:
        address = str(options.get(name, "")).partition(":")[0]
        if address in THIS_NODE:
            said = (
                f"the address in --{name} is {address}: each of the {job.nodes} nodes would look for the others on "
                "itself"
            )
            yield Finding("error", "launcher-nodes", started.where, said, "pass $MASTER_ADDR, with `bash -c`")
            return
    is_torch = launch.launcher in _BY_TORCH
    if is_torch and options.get("standalone"):
        said = f"with --standalone, each of the {job.nodes} nodes would train by itself"
        yield Finding("warning", "launcher-nodes", started.where, said, hint)
        return
    address, number = ("master_addr", "node_rank") if is_torch else ("main_process_ip", "machine_rank")
    if not options.get(address) and not options.get("rdzv_endpoint") and not options.get("rdzv_conf"):
        said = f"{_NAMES[launch.launcher]} is not given --{address}: the {job.nodes} nodes would never meet"
        yield Finding("error", "launcher-nodes", started.where, said, hint)
    elif number not in launch.options and options.get("rdzv_backend", "static") == "static":
        said = f"{_NAMES[launch.launcher]} is not given --{number}: all {job.nodes} nodes would have the same number"
        yield Finding("error", "launcher-nodes", started.where, said, hint)


def _other_processes(job: LaunchPlan, started: Started, read: Callable[[str], str]) -> Iterator[Finding]:
    """Yield a warning where a launcher starts another number of processes on each node than the job has."""
    launch = started.launch
    if sum(any("nproc" in word or "num_processes" in word for word in one.words) for one in started.executed) > 1:
        return  # one may only prepare what another one trains with
    settings = settings_of(launch, read)
    total = launch.options.get("num_processes", settings.get("num_processes"))
    starts = int(total) // job.nodes if str(total).isdecimal() and launch.launcher == "accelerate" else launch.nproc
    is_given = "nproc_per_node" in launch.options or total is not None
    if job.nproc_per_node and starts and starts != job.nproc_per_node and launch.launcher in _NAMES and is_given:
        text = f"{_NAMES[launch.launcher]} starts {starts} processes on each node, and the job has {job.nproc_per_node}"
        hint = "set resources.nproc_per_node to the same number, or pass --nproc_per_node=$NPROC_PER_NODE"
        if launch.launcher == "accelerate":
            hint = "--num_processes counts those of all nodes: pass $((NNODES * NPROC_PER_NODE))"
        yield Finding("warning", "launcher-processes", started.where, text, hint)


def _nodes_of(launch: Launch, read: Callable[[str], str]) -> int | str | None:
    """Return how many nodes a launcher gets, by its options or its file; None if it is not known."""
    if launch.launcher != "accelerate" or "num_machines" in launch.options:
        return launch.nodes
    file, settings = launch.options.get("config_file"), settings_of(launch, read)
    if file and not settings:
        return None
    nodes = settings.get("num_machines", 1)
    return nodes if isinstance(nodes, int) else None


def settings_of(launch: Launch, read: Callable[[str], str]) -> Mapping[str, Any]:
    """Return what a configuration file of accelerate says."""
    file = str(launch.options.get("config_file", "")) if launch.launcher == "accelerate" else ""
    settings = parse_text(read(posixpath.normpath(posixpath.join(launch.folder, file)))) if file else {}
    return settings if isinstance(settings, dict) else {}


def _uses_lightning(launch: Launch, read: Callable[[str], str]) -> bool:
    """Return whether a program is one of Lightning's, which reads NODE_RANK itself."""
    program = launch.program[0] if launch.program else ""
    return program.endswith(".py") and "lightning" in read(posixpath.normpath(program))


def _hidden_gpus(job: LaunchPlan, started: Started) -> Iterator[Finding]:
    """Yield a warning where a start command lets the processes of a node see fewer GPUs than there are processes."""
    visible = started.environment.get("CUDA_VISIBLE_DEVICES", "")
    is_own = visible != dict(job.env).get("CUDA_VISIBLE_DEVICES")
    if re.fullmatch(r"\d+(?:,\d+)*", visible) and is_own and started.launch.launcher in _BY_TORCH:
        yield from hidden_gpus(started.where, visible, started.launch.nproc or 0)


def _loopback(job: LaunchPlan) -> Iterator[Finding]:
    """Yield a warning where the nodes are to communicate on an interface that does not leave the machine."""
    for name in ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME"):
        value = dict(job.env).get(name, "").removeprefix("=")
        if job.nodes > 1 and not job.backend.is_this_machine and value.partition(",")[0] in ("lo", "lo0"):
            text = f"{name} is {value}: no node reaches another one on this interface"
            yield Finding(
                "warning", "loopback", f"env.{name}", text, "remove it, or name the interface between the nodes"
            )
