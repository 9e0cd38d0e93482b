"""Command lines of launchers → how many nodes and processes they start, and of what program.

The options are those of torch.distributed.run, accelerate launch, deepspeed, fabric run, srun and mpirun (the --help of
each).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from jobsubmit.agent import node_contract as contract

_SET_ON_NODES = (
    *(contract.NNODES, contract.NODE_RANK, contract.NPROC_PER_NODE, contract.NODE_ADDR),
    *(contract.MASTER_ADDR, contract.MASTER_PORT, contract.RDZV_ID, contract.JOB_ID),
)
# A variable that each node sets, in a word: only a shell replaces it there.
OF_NODES = re.compile(rf"\$\{{?(?:{'|'.join(map(str, _SET_ON_NODES))})\b\}}?")
STARTED_BY_SRUN = re.compile(
    r"(?:\S*/)?(?:python[\d.]*|torchrun|accelerate|deepspeed|bash|sh|env)"
)  # it begins what srun starts
OF_SCHEDULERS = ("srun", "mpirun")  # their processes have the variables of a scheduler, and none of torch
_TORCH_MODULES = {
    "torch.distributed.launch": "launch",
    "torch.distributed.run": "torchrun",
    "torch.distributed.launcher": "torchrun",
}
_PYTHON = re.compile(r"python[\d.]*")
_PYTHON_WITH_VALUE = ("-W", "-X", "-Q")
# Words before a command that change nothing about what it is; those of the second kind have a word of their own.
_WRAPPERS = (("nohup",), ("time",), ("exec",), ("command",), ("uv", "run"), ("poetry", "run"), ("pipenv", "run"))

# Options that take no value, with `_` for `-`.
_TORCH_SWITCHES = ("use_env", "standalone", "module", "no_python", "run_path", "virtual_local_rank")
_ACCELERATE_SWITCHES = (
    *("multi_gpu", "cpu", "use_cpu", "tpu", "use_xpu", "use_deepspeed", "use_fsdp", "use_megatron_lm", "use_tpu"),
    *(
        "quiet",
        "q",
        "debug",
        "module",
        "m",
        "no_python",
        "same_network",
        "ipex",
        "enable_cpu_affinity",
        "use_parallelism",
    ),
)
_DEEPSPEED_SWITCHES = (
    *("no_ssh", "no_python", "module", "no_local_rank", "force_multi", "elastic_training", "bind_cores_to_rank"),
    *("save_pid", "no_ssh_check"),
)
_SRUN_SWITCHES = (
    *("label", "unbuffered", "exclusive", "overlap", "verbose", "quiet", "no_kill", "pty", "contiguous", "overcommit"),
    *("kill_on_bad_exit", "l", "u", "v", "s", "Q", "k", "O"),
)
_MPI_SWITCHES = (
    *("allow_run_as_root", "oversubscribe", "tag_output", "bynode", "byslot", "report_bindings", "verbose", "v", "q"),
    *("display_map", "nolocal", "prefix_id", "bind_to_core", "bind_to_none"),
)
_COUNTS = ("nodes", "ntasks", "ntasks_per_node", "np", "H", "per_node", "x")  # what a job file says in other words
_MPI_TWO = ("mca", "genv", "gmca")
_SHORT = {"m": "module", "r": "redirects", "t": "tee"}
_SRUN_SHORT = {"N": "nodes", "n": "ntasks", "c": "cpus_per_task", "p": "partition", "J": "job_name", "G": "gpus"}
_MPI_SHORT = {"n": "np", "c": "np", "host": "H", "npernode": "per_node", "ppn": "per_node", "N": "per_node"}
_FABRIC_OWN = ("devices", "num_nodes", "node_rank", "main_address", "main_port")
_FABRIC_OPTIONS = (*_FABRIC_OWN, "accelerator", "strategy", "precision")
_ACCELERATE_OWN = ("num_processes", "num_machines", "machine_rank", "main_process_ip", "main_process_port")
# What accelerate's launcher hands to its processes by variables (accelerate.utils.launch).
_ACCELERATE_ENV: Mapping[str, str] = {
    "mixed_precision": "ACCELERATE_MIXED_PRECISION",
    "gradient_accumulation_steps": "ACCELERATE_GRADIENT_ACCUMULATION_STEPS",
    "num_cpu_threads_per_process": "OMP_NUM_THREADS",
}


@dataclass(frozen=True)
class Launch:
    """A program and the launcher that starts it.

    `program` are its words, the first of which is a file, or with `is_module` a module; without a `launcher` they are
    any command. They are started in a `folder` of the code directory, or in itself. `nproc` is None where each node
    starts one process per accelerator. `options` are the launcher's, and `of_scheduler` those of srun or mpirun around
    it.
    """

    launcher: str
    program: tuple[str, ...]
    is_module: bool = False
    nodes: int | str = 1
    nproc: int | None = 1
    options: Mapping[str, Any] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    python: tuple[str, ...] = ("python",)
    own_words: tuple[str, ...] = ()
    of_scheduler: tuple[str, ...] = ()
    folder: str = ""


def parse_launch(words: Sequence[str]) -> Launch:
    """Return what a command line, without the assignments before it, starts and how."""
    rest = _without_wrappers(list(words))
    name = rest[0].rpartition("/")[2] if rest else ""
    if name == "accelerate" and rest[1:2] == ["launch"]:
        return _accelerate(rest[2:])
    if name in ("fabric", "lightning") and rest[1:2] == ["run"]:
        return _fabric(rest[3:] if rest[2:3] == ["model"] else rest[2:])
    if _PYTHON.fullmatch(name):
        return _python(rest)
    parse = {"torchrun": _torchrun, "deepspeed": _deepspeed, "ds": _deepspeed, "srun": _srun}.get(name)
    parse = _mpi if name in ("mpirun", "mpiexec", "mpiexec.hydra") else parse
    return parse(rest[1:]) if parse else Launch("", tuple(rest))


def _without_wrappers(words: list[str]) -> list[str]:
    found = next((wrapper for wrapper in _WRAPPERS if tuple(words[: len(wrapper)]) == wrapper), None)
    return _without_wrappers(words[len(found) :]) if found else words


def _python(words: list[str]) -> Launch:
    rest, options = words[1:], ["python"]
    while rest and rest[0].startswith("-") and rest[0] not in ("-m", "-c", "-"):
        options.append(rest.pop(0))
        if options[-1] in _PYTHON_WITH_VALUE and rest:
            options.append(rest.pop(0))
    if rest[:1] == ["-m"] and len(rest) > 1:
        if rest[1] in _TORCH_MODULES:
            return _torch(_TORCH_MODULES[rest[1]], rest[2:])
        if rest[1] in ("accelerate.commands.launch", "accelerate.commands.accelerate_cli"):
            return _accelerate(rest[3:] if rest[2:3] == ["launch"] else rest[2:])
        return Launch("python", tuple(rest[1:]), is_module=True, python=tuple(options))
    if rest and rest[0].endswith(".py"):
        return Launch("python", tuple(rest), python=tuple(options))
    return Launch("", ("python", *words[1:]))


def _torchrun(words: list[str]) -> Launch:
    return _torch("torchrun", words)


def _torch(mode: str, words: list[str]) -> Launch:
    options, _, program = _options(words, _TORCH_SWITCHES, _SHORT)
    nodes = str(options.get("nnodes", "1"))
    nproc = str(options.get("nproc_per_node", "1"))  # both launchers' default
    is_module = bool(options.pop("module", False))
    return Launch(
        mode,
        _program(program),
        is_module,
        int(nodes) if nodes.isdecimal() else nodes,
        int(nproc) if nproc.isdecimal() else None,
        options,
    )


def _accelerate(words: list[str]) -> Launch:
    options, own, program = _options(words, _ACCELERATE_SWITCHES, {"m": "module"}, keep=_ACCELERATE_OWN)
    nodes = _count(options.get("num_machines"), 1)
    total = _count(options.get("num_processes"), 0)
    is_module = bool(options.pop("module", False))
    env = {variable: str(options.pop(name)) for name, variable in _ACCELERATE_ENV.items() if name in options}
    if options.pop("cpu", False) or options.pop("use_cpu", False):
        env["ACCELERATE_USE_CPU"] = "true"
    own = [word for word in own if word not in ("-m", "--module")]
    is_known = str(options.get("num_machines", "1")).isdecimal()  # it may be $NNODES
    nproc = max(1, total // nodes) if total and is_known else None
    return Launch("accelerate", _program(program), is_module, nodes, nproc, options, env, own_words=tuple(own))


def _deepspeed(words: list[str]) -> Launch:
    options, _, program = _options(words, _DEEPSPEED_SWITCHES, {"H": "hostfile", "i": "include", "e": "exclude"})
    gpus = options.get("num_gpus", options.get("num_accelerators"))
    is_module = bool(options.pop("module", False))
    nproc = _count(gpus, 0) or None
    return Launch("deepspeed", _program(program), is_module, _count(options.get("num_nodes"), 1), nproc, options)


def _program(words: Sequence[str]) -> tuple[str, ...]:
    """Return a program and its arguments without a `--` between them, which argparse of the launchers removes."""
    return (*words[:1], *words[2:]) if words[1:2] == ["--"] else tuple(words)


def _fabric(words: list[str]) -> Launch:
    """Return what Lightning Fabric's launcher starts; source: `fabric run --help`, `lightning run model` before 2.4."""
    options, own, program = _options(_fabric_options_first(words), (), {}, keep=_FABRIC_OWN)
    devices = str(options.get("devices", "1"))
    nproc = len(devices.split(",")) if "," in devices else _count(devices, 0) or None
    return Launch(
        "fabric", tuple(program), False, _count(options.get("num_nodes"), 1), nproc, options, own_words=tuple(own)
    )


def _fabric_options_first(words: Sequence[str]) -> list[str]:
    """Return the words with Fabric's options before the program: its launcher also takes those that come after it."""
    first: list[str] = []
    others: list[str] = []
    rest = list(words)
    while rest:
        word = rest.pop(0)
        if word == "--":
            return [*first, *others, *rest]
        name, separator, _ = word.lstrip("-").partition("=")
        is_own = word.startswith("--") and name.replace("-", "_") in _FABRIC_OPTIONS
        own = first if is_own else others
        own.append(word)
        if is_own and not separator and rest:
            own.append(rest.pop(0))
    return [*first, *others]


def _srun(words: list[str]) -> Launch:
    options, _, program = _options(words, _SRUN_SWITCHES, _SRUN_SHORT)
    nodes = _count(str(options.get("nodes", "")).partition("-")[0], 1)
    total = _count(options.get("ntasks"), 0)
    each = _count(options.get("ntasks_per_node"), 0) or (max(1, total // nodes) if total else 1)
    return _inside("srun", program, nodes, each, options)


def _mpi(words: list[str]) -> Launch:
    env = {name: value for name, separator, value in (w.partition("=") for w in _exported(words)) if separator}
    options, _, program = _options(words, _MPI_SWITCHES, _MPI_SHORT, two=_MPI_TWO)
    total = _count(options.get("np"), 1)
    hosts = [host.partition(":")[2] for host in str(options.get("H", "")).split(",") if host]
    slots = [int(slot) for slot in hosts if slot.isdecimal()]
    each = _count(options.get("per_node"), 0) or (slots[0] if slots else max(1, total // max(1, len(hosts))))
    found = _inside("mpirun", program, max(1, -(-total // each)), min(each, total), options)
    return replace(found, env={**env, **found.env})


def _exported(words: Sequence[str]) -> list[str]:
    return [words[index + 1] for index, word in enumerate(words[:-1]) if word == "-x"]


def _inside(outer: str, words: list[str], nodes: int, each: int, options: Mapping[str, Any]) -> Launch:
    """Return what is started by a launcher of a scheduler, once for each task."""
    inner = parse_launch(words)
    left = tuple(name for name in options if name not in (*_COUNTS, *_SRUN_SWITCHES, *_MPI_SWITCHES, *_MPI_TWO))
    if inner.launcher == "python":
        return Launch(outer, inner.program, inner.is_module, nodes, each, python=inner.python, of_scheduler=left)
    if inner.launcher:  # a launcher for each node
        return replace(inner, nodes=nodes if inner.nodes == 1 else inner.nodes, of_scheduler=left)
    return Launch(outer, inner.program, nodes=nodes, nproc=each, python=(), of_scheduler=left)


# An option of one letter with its value: -N2, -w$NODES.
_GLUED = re.compile(r"[A-Za-z](?:\d+|\$.*)")


def _options(
    words: Sequence[str],
    switches: Sequence[str],
    names: Mapping[str, str],
    *,
    keep: Sequence[str] = (),
    two: Sequence[str] = (),
) -> tuple[dict[str, Any], list[str], list[str]]:
    """Split a launcher's options from the program; also return the words of those that are not its to `keep`."""
    rest, found, other = list(words), dict[str, Any](), list[str]()
    while rest and rest[0].startswith("-") and rest[0] != "--":
        word = rest.pop(0)
        bare, separator, value = word.lstrip("-").partition("=")
        name = names.get(bare, bare).replace("-", "_")
        taken = [word]
        if not word.startswith("--") and _GLUED.fullmatch(bare):
            found[names.get(bare[0], bare[0])] = bare[1:]
        elif name in switches:
            found[name] = True
        elif separator:
            found[name] = value
        elif rest:
            taken += [rest.pop(0) for _ in range(2 if name in two else 1) if rest]
            found[name] = taken[-1]
        if name not in keep:
            other += taken
    return found, other, rest[1:] if rest[:1] == ["--"] else rest


def _count(value: object, otherwise: int) -> int:
    text = str(value)
    return int(text) if text.isdecimal() and int(text) else otherwise
