"""A shell script, for sbatch or not → the command line that it starts, with the numbers of its #SBATCH lines."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from types import MappingProxyType

from jobsubmit.check.shell.follow import follow_words
from jobsubmit.check.shell.started import chosen_launch
from jobsubmit.check.shell.state import Executed, Shell
from jobsubmit.check.shell.texts import HERE, is_open
from jobsubmit.errors import UsageError
from jobsubmit.plan.launchers import STARTED_BY_SRUN, Launch
from jobsubmit.scaffold.command_words import hide_secrets, is_secret_name, split_command

_DIRECTIVE = re.compile(r"^#SBATCH\s+(\S.*)$", re.MULTILINE)
_SHORT = {
    **{"N": "nodes", "n": "ntasks", "p": "partition", "A": "account", "q": "qos", "C": "constraint", "x": "exclude"},
    **{"c": "cpus-per-task", "t": "time"},
}
_GLUED = re.compile(r"-([A-Za-z])([^-=\s].*)")
_SWITCHES = frozenset(
    [
        *("exclusive", "requeue", "no-requeue", "parsable", "wait", "hold", "test-only", "contiguous", "overcommit"),
        *("oversubscribe", "quiet", "verbose", "no-kill", "spread-job", "use-min-nodes"),
        *("W", "H", "Q", "v", "k", "s", "O"),
    ]
)
_GPUS = re.compile(r"(?:^|,)(?:gpu:)?((?:[A-Za-z][\w.-]*:)?(\d+))(?=[,(]|$)")
_OF_OTHER_FOLDERS = re.compile(r"^\s*cd\s+[\"']?[/~$].*$", re.MULTILINE)
_CHANGES_SHELL = re.compile(r"^\s*(module|ml|conda|mamba|spack|(?:source|\.)\s+\S+)(?=\s|$)", re.MULTILINE)
# Variables that a job of jobsubmit gets otherwise.
_OF_THE_JOB = re.compile(r"(?:SLURM|MASTER|RDZV)_\w+|NNODES|NODE_RANK|WORLD_SIZE|PATH|LD_LIBRARY_PATH")
_HAS_PASSWORD = re.compile(r"://[^/\s]*:[^/\s]*@")
_SHELLS = ("bash", "sh")
_ENDS_OF_SCRIPTS = (".sh", ".bash")
_WRITES_FILE = re.compile(r"^\s*(?:echo|printf|date|hostname|nvidia-smi)\b[^#\n]*>\s*[^&\s]", re.MULTILINE)
_HARMLESS = ("set", "export", "echo", "printf", "date", "hostname", "nvidia-smi", "ulimit")
_LAUNCHERS = ("torchrun", "launch", "accelerate", "deepspeed")
_PLAIN = re.compile(r"[A-Za-z][\w-]*")


@dataclass(frozen=True)
class StartScript:
    """What a shell script starts.

    `command` is a command line, executed in a `folder` of the directory; `resources` are those of the job, where the
    script says them. `variables` are those that Slurm sets in the script, and `notes` say what is left out.
    """

    command: str
    folder: str
    resources: Mapping[str, int]
    variables: Mapping[str, str]
    notes: tuple[str, ...]


def read_script(command: str, directory: Path) -> StartScript | None:
    """Return what `sbatch script.sh`, `bash script.sh` or `./script.sh` starts.

    None for another command, or where the script is not in the directory; without sbatch, also where it does more than
    to start a launcher. Raises UsageError if a script for sbatch starts no program that is known.
    """
    words = split_command(command)
    return _read_batch_script(words, directory) if words[:1] == ["sbatch"] else _read_plain_script(words, directory)


def _read_plain_script(words: Sequence[str], directory: Path) -> StartScript | None:
    own = words[1:] if words[:1] and words[0].rpartition("/")[2] in _SHELLS else words
    found = _read_script(own[0], directory) if own and own[0].endswith(_ENDS_OF_SCRIPTS) else None
    if found is None:
        return None
    script, text = found
    read = read_from(directory)
    executed = follow_words(("bash", script, *own[1:]), Shell({}, set(), set(), read))
    chosen = chosen_launch(executed, read)
    others = [one for one in executed if chosen is not None and one is not chosen[0]]
    is_all = all(one.words and one.words[0].rpartition("/")[2] in _HARMLESS for one in others)
    if chosen is None or not is_all or not chosen[0].is_sure or chosen[1].launcher not in _LAUNCHERS:
        return None
    if any(map(is_open, chosen[0].words)) or _WRITES_FILE.search(text):
        return None
    return _started(script, text, chosen, {}, {}, directory)


def _read_batch_script(words: Sequence[str], directory: Path) -> StartScript | None:
    place = _place_of_script(words)
    found = _read_script(words[place], directory) if place is not None else None
    if place is None or found is None:
        return None
    script, text = found
    given = [word for line in _DIRECTIVE.findall(text) for word in _words(line)]
    options = _options([*given, *words[1:place]])
    variables = _variables(options)
    read = read_from(directory, {script: _OF_OTHER_FOLDERS.sub("", text)})
    set_before: dict[str, str | list[str]] = {**variables, **_exported(options), "SLURM_SUBMIT_DIR": HERE}
    shell = Shell(set_before, set(set_before), set(), read)
    executed = follow_words(("bash", script, *words[place + 1 :]), shell)
    chosen = chosen_launch(executed, read)
    if chosen is None or not chosen[1].program:
        raise UsageError(
            f"the command: {script} starts no program that jobsubmit knows how to start",
            "give the command that it starts, such as: torchrun --nproc_per_node=8 train.py",
        )
    return _started(script, text, chosen, options, variables, directory)


def _started(
    script: str,
    text: str,
    chosen: tuple[Executed, Launch],
    options: Mapping[str, str],
    variables: Mapping[str, str],
    directory: Path,
) -> StartScript:
    """Return what a script starts, by the options of sbatch and the variables that these set, if there are some."""
    one, launch = chosen
    own = {name: value for name, value in one.environment.items() if _is_of_program(name, value)}
    notes = (
        f"from {one.where}: {hide_secrets(shlex.join(one.words))}",
        *_left_out(script, text, chosen, options, directory),
    )
    line = shlex.join([*(f"{name}={own[name]}" for name in sorted(own)), *one.words])
    return StartScript(line, launch.folder, _resources(one.words, launch, options), variables, notes)


def _place_of_script(words: Sequence[str]) -> int | None:
    """Return the position of the first word of sbatch that is neither an option nor the value of one."""
    position = 1
    while position < len(words):
        name = words[position].lstrip("-")
        if not words[position].startswith("-"):
            return position
        is_alone = "=" in name or name in _SWITCHES or (not words[position].startswith("--") and len(name) > 1)
        position += 1 if is_alone else 2
    return None


def _read_script(word: str, directory: Path) -> tuple[str, str] | None:
    """Return the path of a script in the directory, and its text; None if it is none, or cannot be read."""
    with suppress(OSError, ValueError):
        file = (directory / word).resolve()
        return file.relative_to(directory.resolve()).as_posix(), file.read_text(errors="replace")
    return None


def _words(line: str) -> list[str]:
    with suppress(ValueError):
        return shlex.split(line, comments=True)
    return []


def read_from(directory: Path, known: Mapping[str, str] = MappingProxyType({})) -> Callable[[str], str]:
    """Return what reads the files of a directory, others are empty; of the `known` ones, it returns these texts."""

    def read(path: str) -> str:
        if path in known:
            return known[path]
        found = _read_script(path, directory) if path else None
        return found[1] if found else ""

    return read


def _options(words: Sequence[str]) -> dict[str, str]:
    """Return options with their values, by their long names; the last of several counts."""
    found: dict[str, str] = {}
    rest = list(words)
    while rest:
        word = rest.pop(0)
        name, separator, value = word.lstrip("-").partition("=")
        if not word.startswith("-"):
            continue
        if not word.startswith("--") and (glued := _GLUED.fullmatch(word)):
            name, separator, value = glued[1], "=", glued[2]
        if not separator and name not in _SWITCHES and rest and not rest[0].startswith("-"):
            value = rest.pop(0)
        found[_SHORT.get(name, name)] = value
    return found


def _exported(options: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of `--export=ALL,LR=3`."""
    pairs = (one.partition("=") for one in options.get("export", "").split(","))
    return {name: value for name, separator, value in pairs if separator}


def _variables(options: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that Slurm sets in a script, where its options give their values."""
    nodes, tasks = _number(options, "nodes", 1), _number(options, "ntasks-per-node", 0)
    variables = {
        **dict.fromkeys(("SLURM_NNODES", "SLURM_JOB_NUM_NODES"), str(nodes)),
        "SLURM_NTASKS_PER_NODE": str(tasks or ""),
        "SLURM_NTASKS": options.get("ntasks") or str(nodes * (tasks or 1)),
        "SLURM_CPUS_PER_TASK": options.get("cpus-per-task", ""),
        "SLURM_GPUS_ON_NODE": _gpus(options).rpartition(":")[2],
    }
    return {name: value for name, value in variables.items() if value}


def _gpus(options: Mapping[str, str]) -> str:
    """Return the GPUs of a node, such as `a100:4` or `4`; empty where no option says how many."""
    given = options.get("gpus-per-node", "")
    if not given:
        given = next((one for one in options.get("gres", "").split(",") if one.startswith("gpu:")), "")
    if found := _GPUS.match(given):
        return found[1]
    of_task = _GPUS.match(options.get("gpus-per-task", ""))
    return f"{of_task[1][: -len(of_task[2])]}{int(of_task[2]) * _tasks_of_node(options)}" if of_task else ""


def _tasks_of_node(options: Mapping[str, str]) -> int:
    """Return how many tasks a node has: as it is said, or as all of them are divided among the nodes."""
    shared = _number(options, "ntasks", 1) // _number(options, "nodes", 1)
    return _number(options, "ntasks-per-node", max(1, shared))


def _number(options: Mapping[str, str], name: str, otherwise: int) -> int:
    text = options.get(name, "").partition("-")[0]
    return int(text) if text.isdecimal() and int(text) else otherwise


def _resources(words: Sequence[str], launch: Launch, options: Mapping[str, str]) -> dict[str, int]:
    """Return the nodes and processes that srun or mpirun starts on; nothing for a command on the first node alone."""
    name = words[0].rpartition("/")[2]
    if name not in ("srun", "mpirun", "mpiexec"):
        return {}
    own = _options([*takewhile(lambda word: not STARTED_BY_SRUN.fullmatch(word), words[1:])])
    own |= {"ntasks": own["np"]} if own.get("np") else {}
    merged = {**options, **own}
    if "ntasks" in own and "ntasks-per-node" not in own:
        merged.pop("ntasks-per-node", None)
    nodes = _number(merged, "nodes", 1)
    if launch.launcher not in ("srun", "mpirun"):
        return {"nodes": nodes}
    total = _number(merged, "ntasks", nodes)
    return {"nodes": nodes, "nproc_per_node": _number(merged, "ntasks-per-node", max(1, total // nodes))}


def _is_of_program(name: str, value: str) -> bool:
    """Return whether a variable that a script sets is for its program, known, and no secret."""
    is_secret = is_secret_name(name) or _HAS_PASSWORD.search(value) is not None
    return not is_open(value) and not is_secret and _OF_THE_JOB.fullmatch(name) is None


def _left_out(
    script: str, text: str, chosen: tuple[Executed, Launch], options: Mapping[str, str], directory: Path
) -> Iterator[str]:
    """Yield what a job file does not have of a script."""
    shells = [found.partition(" ") for found in dict.fromkeys(_CHANGES_SHELL.findall(text))]
    names = dict.fromkeys(name for name, _, file in shells if not (file and _read_script(file.strip(), directory)))
    if names:
        yield (
            f"{', '.join(names)} in {script}: left out; name the Python of the nodes in `backend.python`, or put what "
            "prepares a node into `setup`"
        )
    one, launch = chosen
    own = {name: value for name, value in sorted(one.environment.items()) if not _OF_THE_JOB.fullmatch(name)}
    if left := [name for name, value in own.items() if not _is_of_program(name, value)]:
        yield f"{', '.join(left)}: left out, a secret or known only on the cluster; set it in `env` or `secrets`"
    if words := [word for word in launch.program[1:] if is_open(word)]:
        yield f"{', '.join(words)}: known only on the cluster; write the value into the job file"
    if backend := _backend(options):
        yield f"for Slurm, add to the job file: backend: {backend}"


def _backend(options: Mapping[str, str]) -> str:
    """Return what the options say of nodes and queues, as the field `backend` of a job file; empty for nothing."""
    found = {
        name: options[name] for name in ("partition", "account", "qos", "constraint", "exclude") if options.get(name)
    }
    if re.fullmatch(r"[1-9]\d*[KMGT]", options.get("mem", "")):
        found["mem"] = options["mem"]
    if gpus := _gpus(options):
        found["gpus_per_node"] = gpus
    if cpus := _number(options, "cpus-per-task", 0):
        found["cpus_per_task"] = str(cpus * _tasks_of_node(options))
    is_number = {"gpus_per_node", "cpus_per_task"}
    values = {
        name: value if _PLAIN.fullmatch(value) or (name in is_number and value.isdecimal()) else json.dumps(value)
        for name, value in {"kind": "slurm", **found}.items()
    }
    return "{" + ", ".join(f"{name}: {value}" for name, value in values.items()) + "}" if found else ""
