"""A command line, as people have it in their shell scripts → the fields of a job file."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

from jobsubmit.errors import UsageError
from jobsubmit.plan.launchers import OF_NODES, Launch, parse_launch
from jobsubmit.scaffold.command_words import ASSIGNMENT, arguments_in, is_secret_name, split_command, without_secrets
from jobsubmit.scaffold.draft import NPROC_NOT_SET, JobDraft
from jobsubmit.spec.constraints import INIT_METHOD, SINGLE_NODE_RANKS
from jobsubmit.spec.field_types import env_name_problem

_HINT = "write it like: torchrun --nproc_per_node=8 train.py --lr 0.1"
_SUBMITS = ("sbatch", "salloc", "qsub", "bsub")
_TAKES_TEXT = re.compile(r"-[a-z]*c")
_OF_OUTPUT = ("output", "error", "o", "e", "job_name", "J", "label", "l", "unbuffered", "u")  # jobsubmit keeps it
_OF_TRAINER = re.compile(r"(?:--|\+{1,2})?trainer\.(num_nodes|devices)=([1-9]\d{0,5})")
_HOST = re.compile(r"^[^#\s]+\s+slots=(\d+)", re.MULTILINE)
_COUNTS_NODES = re.compile(r'(--[\w-]+) "\$NNODES"')
_UNDERSTOOD = (
    *("nnodes", "nproc_per_node", "use_env", "rdzv_backend", "max_restarts", "no_python"),
    *("num_machines", "num_processes", "num_nodes", "num_gpus", "num_accelerators", "multi_gpu", "devices"),
    *("nodes", "ntasks", "ntasks_per_node", "np", "H", "per_node", "x"),
)
_NOT_NEEDED = (
    *("node_rank", "master_addr", "master_port", "rdzv_endpoint", "rdzv_id", "rdzv_conf", "local_addr", "no_ssh"),
    *("machine_rank", "main_process_ip", "main_process_port", "main_address", "main_port", "hostfile", "same_network"),
    "standalone",
)
_TORCHRUN = (
    'exec python -m torch.distributed.run --nnodes="$NNODES" --node_rank="$NODE_RANK" '
    '--nproc_per_node="$NPROC_PER_NODE" --master_addr="$MASTER_ADDR" --master_port="$MASTER_PORT"'
)
_SHELLS = ("bash", "sh", "/bin/bash", "/bin/sh")
# The variable of a scheduler for each variable of torch's launcher.
_TASKS: Mapping[str, Mapping[str, str]] = {
    "srun": {
        "SLURM_PROCID": "RANK",
        "SLURM_LOCALID": "LOCAL_RANK",
        "SLURM_NTASKS": "WORLD_SIZE",
        "SLURM_NODEID": "GROUP_RANK",
        "SLURM_NNODES": "GROUP_WORLD_SIZE",
    },
    "mpirun": {
        "OMPI_COMM_WORLD_RANK": "RANK",
        "OMPI_COMM_WORLD_LOCAL_RANK": "LOCAL_RANK",
        "OMPI_COMM_WORLD_SIZE": "WORLD_SIZE",
        "OMPI_COMM_WORLD_LOCAL_SIZE": "LOCAL_WORLD_SIZE",
    },
}
_BY_LAUNCHER_ALONE = ("use_deepspeed", "use_fsdp", "use_megatron_lm", "config_file", "tpu", "use_tpu", "dynamo_backend")


def drafts_from_command(text: str, read: Callable[[str], str] = lambda path: "") -> tuple[JobDraft, ...]:
    """Return the jobs that a command line may mean, the best first; raise UsageError if it is invalid.

    Which of them can run depends on the code: the last one leaves most to the command itself. `read` returns the text
    of a file that the command names, empty for none.
    """
    env, launch = _parse(text)
    launch = _with_hosts(_with_trainer(launch), read)
    own_words, notes = without_secrets(launch.program[1:])
    env = {**env, **launch.env}
    secrets = {name: f"env:{name}" for name in env if is_secret_name(name)}
    if secrets:
        notes.append(
            f"{', '.join(secrets)}: read from your environment at submission; jobsubmit itself writes it to no file"
        )
    plain = {name: value for name, value in env.items() if name not in secrets}
    ways = [*_in_a_mode(launch, own_words), *_by_command(launch, own_words)]
    more = {"env": plain, "secrets": secrets}
    common = {name: value for name, value in more.items() if value}
    named = next((word for word in launch.program if word not in _SHELLS and not word.startswith("-")), "")
    stem = named.rpartition("/")[2].removesuffix(".py").removesuffix(".sh").rpartition(".")[2]
    first = {"name": job_name(stem) or "job", "code_dir": "."}
    return tuple(JobDraft({**first, **way.fields, **common}, (*notes, *way.notes)) for way in ways)


def job_name(text: str) -> str:
    """Return a text as the name of a job, with the characters that a name may have."""
    return re.sub(r"[^A-Za-z0-9_-]+", "-", text).strip("-")[:64]


def _parse(text: str) -> tuple[dict[str, str], Launch]:
    words = split_command(text)
    if shell := [word for word in words if re.fullmatch(r"\||\|\||&&?|;|\d?>{1,2}.*|<.*", word)]:
        raise UsageError(
            f"the command: {shell[0]} is shell syntax", "pass the command without it, or as: bash -c 'COMMAND'"
        )
    env, words = _environment(words)
    launch = parse_launch(words)
    if not launch.program:
        raise UsageError("the command names no program to start", _HINT)
    if launch.program[0].rpartition("/")[2] in _SUBMITS:
        raise UsageError(
            f"the command: {launch.program[0]} submits a job of its own, which jobsubmit would not follow",
            "give the command that its script starts, such as: torchrun --nproc_per_node=8 train.py",
        )
    is_file = launch.program[0].endswith(".py") or launch.is_module
    if not re.fullmatch(r"\d+(?::\d+)?", str(launch.nodes)):
        raise UsageError(f"--nnodes={launch.nodes}: must be a number", "write the number in place of the variable")
    if (
        launch.launcher in ("torchrun", "launch", "accelerate", "deepspeed", "fabric")
        and not is_file
        and not _no_python(launch)
    ):
        raise UsageError(f"the command: {launch.program[0]} is not a Python file that the launcher can start", _HINT)
    return env, launch


def _with_trainer(launch: Launch) -> Launch:
    """Return a program that is started directly with the numbers that its words give Lightning's Trainer."""
    words = launch.program[1:]
    joined = [*words, *(f"{name}={value}" for name, value in pairwise(words))]
    matches = (match for word in joined if (match := _OF_TRAINER.fullmatch(word)))
    found = {match[1]: int(match[2]) for match in matches}
    if launch.launcher != "python" or not found:
        return launch
    return replace(launch, nodes=found.get("num_nodes", 1), nproc=found.get("devices", launch.nproc or 1))


def _with_hosts(launch: Launch, read: Callable[[str], str]) -> Launch:
    """Return what `deepspeed` starts, with the numbers of its hostfile where it gives none: `worker-1 slots=4`."""
    hosts = _HOST.findall(read(str(launch.options.get("hostfile", ""))))
    if launch.launcher != "deepspeed" or not hosts or "num_nodes" in launch.options:
        return launch
    return replace(launch, nodes=len(hosts), nproc=launch.nproc or max(map(int, hosts)))


def _no_python(launch: Launch) -> bool:
    return bool(launch.options.get("no_python"))


def _environment(words: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """Split off the assignments before a command."""
    rest = list(words)
    if rest[:1] == ["env"]:
        rest.pop(0)
    env = {}
    while rest and ASSIGNMENT.fullmatch(rest[0]):
        name, _, value = rest.pop(0).partition("=")
        if name != "CUDA_VISIBLE_DEVICES" and not env_name_problem(name):
            env[name] = value
    return env, rest


# ── a mode of ours ──────────────────────────────────────────────────────────────────────────────────────────────────


def _in_a_mode(launch: Launch, own_words: Sequence[str]) -> list[JobDraft]:
    """Return the modes that start a file as the command does."""
    if launch.is_module or launch.launcher == "fabric" or _no_python(launch) or not launch.program[0].endswith(".py"):
        return []
    if any(launch.options.get(name) for name in _BY_LAUNCHER_ALONE) or _is_for_shell(launch.program[0], own_words):
        return []
    started = {"boot_file": launch.program[0].removeprefix("./")}
    hyperparameters, args, notes = arguments_in(own_words)
    words = {"hyperparameters": hyperparameters, "args": args}
    if launch.launcher == "python":
        ranks = _given_by_the_platform(hyperparameters)
        if args or not ranks:
            return []
        fields = {"mode": "spawn", **started, "resources": {"nodes": 1}, **_filled(words)}
        return [JobDraft(fields, (*notes, *ranks))]
    mode = launch.launcher if launch.launcher == "launch" else "torchrun"
    fields = {"mode": mode, **started}
    if mode == "launch" and not launch.options.get("use_env"):
        fields["local_rank"] = "argument"
    if mode == "torchrun" and launch.options.get("rdzv_backend") in ("static", "c10d"):
        fields["rdzv_backend"] = launch.options["rdzv_backend"]
    fields |= {"resources": _resources(launch), **_filled(words)}
    if (restarts := str(launch.options.get("max_restarts", "0"))) != "0" and restarts.isdecimal():
        fields["restarts"] = int(restarts)
    drafts = [fields]
    if "local_rank" in fields:  # torch 2 passes an argument that older scripts do not know
        drafts.append({**{name: value for name, value in fields.items() if name != "local_rank"}, "mode": "torchrun"})
    return [JobDraft(each, (*notes, *_of_launcher(launch))) for each in drafts]


def _given_by_the_platform(hyperparameters: dict[str, Any]) -> list[str]:
    """Take out what the platform, or jobsubmit, passes in mode spawn, and say so."""
    own = [name for name in (*SINGLE_NODE_RANKS, INIT_METHOD) if hyperparameters.pop(name, None) is not None]
    return [f"{', '.join(f'--{name}' for name in own)}: dropped, each node gets its own"] if own else []


def draft_spawn(draft: JobDraft, boot_file: str) -> JobDraft | None:
    """Return the draft of `python FILE` as one of mode spawn; None if it has words that no platform passes."""
    if draft.fields.get("args"):
        return None
    fields = {name: value for name, value in draft.fields.items() if name != "command"}
    return JobDraft({**fields, "mode": "spawn", "boot_file": boot_file, "resources": {"nodes": 1}}, draft.notes)


def draft_torchrun(draft: JobDraft, boot_file: str) -> JobDraft | None:
    """Return the draft of `python FILE` as one of mode torchrun, for a program that only joins what a launcher starts.

    None for a module, and for options of Python.
    """
    if str(draft.fields.get("command")).split() not in (["python", boot_file], ["python", f"./{boot_file}"]):
        return None
    fields = {name: value for name, value in draft.fields.items() if name != "command"}
    note = "mode torchrun: a launcher must start the processes, because the library that trains does not"
    return JobDraft({**fields, "mode": "torchrun", "boot_file": boot_file}, (*draft.notes, note))


def with_places(draft: JobDraft, command: Sequence[str]) -> JobDraft | None:
    """Return the draft of `python FILE` with a command that gives each node its own place among the nodes.

    Those words go that say the same of one node; None if the draft has none of them.
    """
    names = set(re.findall(r"--[\w-]+", " ".join(command)))
    own = {name.lstrip("-").replace("-", "_") for name in names}
    given = dict(draft.fields.get("hyperparameters", {}))
    dropped = [f"--{name}" for name in given if name.replace("-", "_") in own]
    values = {f"--{name}": str(value) for name, value in given.items()}
    kept = {name: value for name, value in given.items() if f"--{name}" not in dropped}
    words = [str(word) for word in draft.fields.get("args", ())]
    args: list[str] = []
    while words:
        word = words.pop(0)
        name, is_joined, _ = word.partition("=")
        if name.lstrip("-").replace("-", "_") not in own or not name.startswith("--"):
            args.append(word)
            continue
        dropped.append(name)
        values[name] = words.pop(0) if not is_joined and words else word.partition("=")[2]
    if not dropped:
        return None
    fields = {name: value for name, value in draft.fields.items() if name not in ("hyperparameters", "args")}
    fields |= {"command": list(command), **_filled({"hyperparameters": kept, "args": args})}
    nodes = next((values[name] for name in _COUNTS_NODES.findall(" ".join(command)) if name in values), "")
    if nodes.isdecimal() and int(nodes):
        fields["resources"] = {**fields.get("resources", {}), "nodes": int(nodes)}
    notes = (note for note in draft.notes if not note.startswith(tuple(f"{name} " for name in dropped)))
    return JobDraft(fields, (*notes, f"{', '.join(dropped)}: replaced, each node gets its own"))


def _filled(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value}


def _resources(launch: Launch) -> dict[str, Any]:
    each = {} if launch.nproc is None else {"nproc_per_node": launch.nproc}
    return {"nodes": launch.nodes, **each}


def _of_launcher(launch: Launch) -> list[str]:
    """Return notes on the options of a launcher."""
    kept = [word.lstrip("-").partition("=")[0].replace("-", "_") for word in launch.own_words]
    left = [f"--{name}" for name in launch.options if name not in (*_UNDERSTOOD, *_NOT_NEEDED, *kept)]
    notes = [f"{option}: dropped, it is an option of the launcher" for option in left]
    if dropped := [name for name in launch.options if name in _NOT_NEEDED]:
        notes.append(f"{', '.join(f'--{name}' for name in dropped)}: dropped, set by the backend")
    if "hostfile" in launch.options and launch.nodes == 1:
        notes.append("--hostfile: set resources.nodes to the number of its hosts")
    if launch.launcher == "deepspeed" and not launch.options.get("no_local_rank"):
        notes.append(
            "deepspeed passes --local_rank; torchrun does not, it sets LOCAL_RANK, which deepspeed.init_distributed() "
            "reads"
        )
    if of_scheduler := [name for name in launch.of_scheduler if name not in _OF_OUTPUT]:
        given = ((name, "-" if len(name) == 1 else "--") for name in of_scheduler)
        names = ", ".join(f"{dashes}{name.replace('_', '-')}" for name, dashes in given)
        notes.append(f"{names}: dropped; for Slurm, write what the job needs into `backend`")
    if launch.nproc is None:
        notes.append(
            f"{NPROC_NOT_SET}: each node starts one process per accelerator, on this machine at least one; "
            "--set resources.nproc_per_node=2 starts two"
        )
    return notes


# ── a command of its own ────────────────────────────────────────────────────────────────────────────────────────────


def _by_command(launch: Launch, own_words: Sequence[str]) -> list[JobDraft]:
    """Return the command that starts a program as the launcher would, on each node."""
    if _is_for_shell(launch.program[0], own_words):
        return [_with_variables(draft, own_words, launch.program[0]) for draft in _by_command(launch, ())]
    hyperparameters, args, notes = arguments_in(own_words)
    words = _filled({"hyperparameters": hyperparameters, "args": args})
    program = launch.program[0]
    module = ["-m"] if launch.is_module else []
    if launch.launcher == "python":
        command = [*launch.python, *module, program]
    elif launch.launcher in ("torchrun", "launch", "deepspeed"):
        flag = " --no-python" if _no_python(launch) else " -m" if launch.is_module else ""
        command = ["bash", "-c", f'{_TORCHRUN}{flag} "$0" "$@"', program]
    elif launch.launcher == "accelerate":
        text = (
            'exec accelerate launch --num_machines "$NNODES" --num_processes "$((NNODES * NPROC_PER_NODE))" '
            '--machine_rank "$NODE_RANK" --main_process_ip "$MASTER_ADDR" --main_process_port "$MASTER_PORT" "$@"'
        )
        command = ["bash", "-c", text, "accelerate", *launch.own_words, *module, program]
    elif launch.launcher == "fabric":
        text = (
            'exec fabric run --devices "$NPROC_PER_NODE" --num_nodes "$NNODES" --node_rank "$NODE_RANK" '
            '--main_address "$MASTER_ADDR" --main_port "$MASTER_PORT" "$@"'
        )
        command = ["bash", "-c", text, "fabric", *launch.own_words, program]
    elif launch.launcher in _TASKS:
        ranks = " ".join(f"{name}=${source}" for name, source in _TASKS[launch.launcher].items())
        text = f'{_TORCHRUN} --no-python bash -c \'{ranks} exec "$0" "$@"\' "$0" "$@"'
        command = ["bash", "-c", text, *launch.python, *module, program]
    else:
        shell = ["bash"] if program.endswith(".sh") else []  # it may not be executable
        command = [*shell, program, *own_words]
        return [JobDraft({"command": _spelled(command), "resources": {"nodes": 1, "nproc_per_node": 1}})]
    fields = {"command": _spelled(command), "resources": _resources(launch), **words}
    return [JobDraft(fields, (*notes, *_of_launcher(launch)))]


def _is_for_shell(program: str, own_words: Sequence[str]) -> bool:
    """Return whether a program's own words have variables that each node sets, and no shell among them reads these."""
    is_shell = program.rpartition("/")[2] in ("bash", "sh") and any(map(_TAKES_TEXT.fullmatch, own_words))
    return not is_shell and any(map(OF_NODES.search, own_words))


def _with_variables(draft: JobDraft, own_words: Sequence[str], program: str) -> JobDraft:
    """Return a draft whose command has a shell read the program's own words."""
    command, text = draft.fields["command"], " ".join(map(_quoted, own_words))
    if isinstance(command, list) and command[:2] == ["bash", "-c"]:
        command = [*command[:2], f"{command[2]} {text}", *command[3:]]
    else:
        start = command if isinstance(command, str) else shlex.join(command)
        command = ["bash", "-c", f'exec {start} {text} "$@"', program]
    return replace(draft, fields={**draft.fields, "command": command})


def _quoted(word: str) -> str:
    """Return a word as a shell reads it: with the values of its variables."""
    if not OF_NODES.search(word):
        return shlex.quote(word)
    return '"' + re.sub(r'(["\\`])', r"\\\1", word) + '"'


def _spelled(words: Sequence[str]) -> str | list[str]:
    """Return a command as a text where it reads the same without quotes, else as a list."""
    return " ".join(words) if all(re.fullmatch(r"[\w./:=@%+,-]+", word) for word in words) else list(words)
