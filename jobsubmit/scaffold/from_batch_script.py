"""A script for sbatch → the command line that it starts, with the numbers that its #SBATCH lines give."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from jobsubmit.check.shell.follow import follow_words
from jobsubmit.check.shell.started import chosen_launch
from jobsubmit.check.shell.state import Shell
from jobsubmit.check.shell.texts import is_open
from jobsubmit.errors import UsageError
from jobsubmit.scaffold.from_command import split_command

_DIRECTIVE = re.compile(r"^#SBATCH\s+(\S.*)$", re.MULTILINE)
_OPTION = re.compile(r"--?([A-Za-z][\w-]*)(?:=(.*))?")
_LONG = {
    **{"N": "nodes", "n": "ntasks", "p": "partition", "A": "account", "q": "qos", "C": "constraint", "x": "exclude"},
    **{"c": "cpus-per-task", "t": "time"},
}
_GLUED = re.compile(r"-([Nnc])(\d+)")
_OF_BACKEND = ("partition", "account", "qos", "constraint", "exclude", "mem", "time")
_LAST_NUMBER = re.compile(r"(\d+)$")
_OF_SRUN = re.compile(r"-(?:N|n)\d*|--(?:nodes|ntasks|ntasks-per-node)(?:=.*)?")
_SHELL_ONLY = re.compile(r"^\s*(module|ml|conda|mamba|source|\.|spack)\s", re.MULTILINE)
_OF_THE_JOB = re.compile(r"(?:SLURM|MASTER|RDZV)_|NNODES|NODE_RANK|WORLD_SIZE|PATH$|PYTHONPATH$")


class BatchScript(NamedTuple):
    """The command that a script starts, the variables that Slurm sets there, and what of the script is left out."""

    command: str
    variables: Mapping[str, str]
    notes: tuple[str, ...]


def read_batch_script(command: str, directory: Path) -> BatchScript | None:
    """Return what `sbatch script.sh` starts; None for another command, or where the script is not in the directory.

    Raises UsageError if the script starts no program that is known.
    """
    words = split_command(command)
    if words[:1] != ["sbatch"]:
        return None
    script = next((word for word in words[1:] if not word.startswith("-") and (directory / word).is_file()), "")
    if not script:
        return None
    place = words.index(script)
    text = (directory / script).read_text(errors="replace")
    given = [word for line in _DIRECTIVE.findall(text) for word in _words(line)]
    options = _options([*given, *words[1:place]])
    variables = _variables(options)
    shell = Shell({**variables}, set(variables), set(), _reader(directory))
    executed = follow_words(("bash", script, *words[place + 1 :]), shell)
    found = chosen_launch(executed, _reader(directory))
    if found is None:
        raise UsageError(
            f"the command: {script} starts no program that jobsubmit knows how to start",
            "give the command that it starts, such as: torchrun --nproc_per_node=8 train.py",
        )
    one, _ = found
    left = dict.fromkeys(_SHELL_ONLY.findall(text))
    notes = [f"from {one.where}: {shlex.join(_shown(one.words))}"]
    if left:
        notes.append(
            f"{', '.join(left)} in {script}: left out; name the Python of the nodes in `backend.python`, or put what "
            "prepares a node into `setup`"
        )
    if backend := _backend(options):
        notes.append(f"for Slurm, add to the job file: backend: {backend}")
    environment = [f"{name}={value}" for name, value in sorted(one.environment.items()) if _is_own(name, value)]
    return BatchScript(shlex.join([*environment, *_with_numbers(one.words, options)]), variables, tuple(notes))


def _words(line: str) -> list[str]:
    return shlex.split(line, comments=True)


def _reader(directory: Path) -> Callable[[str], str]:
    def read(path: str) -> str:
        file = directory / path
        return file.read_text(errors="replace") if path and file.is_file() else ""

    return read


def _options(words: Sequence[str]) -> dict[str, str]:
    """Return the options of sbatch with their values; the last of several counts."""
    found: dict[str, str] = {}
    for word, following in pairwise((*words, "")):
        if glued := _GLUED.fullmatch(word):
            found[_LONG[glued[1]]] = glued[2]
        elif named := _OPTION.fullmatch(word):
            value = named[2] if named[2] is not None else "" if following.startswith("-") else following
            found[_LONG.get(named[1], named[1])] = value
    return found


def _variables(options: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that Slurm sets in a script, as far as its options say them."""
    nodes, tasks = _nodes(options), options.get("ntasks-per-node", "1")
    gpus = _LAST_NUMBER.search(options.get("gpus-per-node") or options.get("gres", ""))
    each = int(tasks) if tasks.isdecimal() else 1
    variables = {
        **dict.fromkeys(("SLURM_NNODES", "SLURM_JOB_NUM_NODES"), nodes),
        "SLURM_NTASKS_PER_NODE": str(each),
        "SLURM_NTASKS": options.get("ntasks") or str(int(nodes) * each),
        "SLURM_CPUS_PER_TASK": options.get("cpus-per-task", ""),
        "SLURM_GPUS_ON_NODE": gpus[1] if gpus else "",
    }
    return {name: value for name, value in variables.items() if value}


def _backend(options: Mapping[str, str]) -> str:
    """Return what the options say of nodes and queues, as the field `backend` of a job file; empty for nothing."""
    found = {name: options[name] for name in _OF_BACKEND if options.get(name)}
    gpus = options.get("gpus-per-node") or options.get("gres", "").partition("gpu:")[2]
    cpus, tasks = options.get("cpus-per-task", ""), options.get("ntasks-per-node", "1")
    found |= {"gpus_per_node": gpus} if gpus else {}
    found |= {"cpus_per_task": str(int(cpus) * int(tasks))} if cpus.isdecimal() and tasks.isdecimal() else {}
    values = {name: json.dumps(value) if ":" in value else value for name, value in {"kind": "slurm", **found}.items()}
    return "{" + ", ".join(f"{name}: {value}" for name, value in values.items()) + "}" if found else ""


def _nodes(options: Mapping[str, str]) -> str:
    text = options.get("nodes", "1").partition("-")[0]
    return text if text.isdecimal() else "1"


def _with_numbers(words: Sequence[str], options: Mapping[str, str]) -> list[str]:
    """Return the words of a command; srun takes the numbers that it is not given from the script."""
    if words[0].rpartition("/")[2] != "srun" or any(_OF_SRUN.fullmatch(word) for word in words):
        return list(words)
    tasks = options.get("ntasks-per-node") or ""
    count = (
        [f"--ntasks-per-node={tasks}"] if tasks else [f"--ntasks={options['ntasks']}"] if "ntasks" in options else []
    )
    return [words[0], f"--nodes={_nodes(options)}", *count, *words[1:]]


def _is_own(name: str, value: str) -> bool:
    """Return whether a variable that a script sets is one of its program, and known."""
    return not is_open(value) and _OF_THE_JOB.search(name) is None


def _shown(words: Sequence[str]) -> list[str]:
    """Return the words up to the program."""
    end = next((number for number, word in enumerate(words) if word.endswith(".py")), len(words) - 1)
    return list(words[: end + 1])
