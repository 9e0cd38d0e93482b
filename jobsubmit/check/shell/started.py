"""The start command of a job → which program it starts on a node, by which launcher and with which variables."""

from __future__ import annotations

import itertools
import posixpath
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from jobsubmit.agent import node_contract as contract
from jobsubmit.check.shell.follow import follow_words
from jobsubmit.check.shell.state import OF_PROCESSES, Executed, Shell
from jobsubmit.plan.launch_plan import LaunchPlan
from jobsubmit.plan.launchers import Launch, parse_launch
from jobsubmit.plan.processes import build_boot_words

SUPPOSED_ADDRESS = "node-0"  # what the checks take $MASTER_ADDR for
_NOTHING = Launch("", ())
_TRAINS = re.compile(r"distributed|accelerat|lightning|deepspeed|horovod|\bTrainer\b|multiprocessing")


@dataclass(frozen=True)
class Started:
    """What a start command starts on one node.

    `executed` are all commands that are executed; `launch` is that of the program of the job, with its `words`, the
    variables that shells give it (`environment`), and its place in a script (`where`). A shell starts so many `copies`
    of it side by side; what differs between them is a variable there.
    """

    executed: tuple[Executed, ...] = ()
    launch: Launch = _NOTHING
    words: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    where: str = "command"
    copies: int = 1


def start_on(node: int, job: LaunchPlan, read: Callable[[str], str]) -> Started:
    """Follow the start command of a job on a node; `read` returns the text of a file of the job."""
    if job.command is None:
        return Started()
    given = _variables(node, job)
    shell = Shell(given, set(given), set(OF_PROCESSES) - set(given), read)
    executed = follow_words((*job.command, *(value.text for value in build_boot_words(job, node))), shell)
    found = chosen_launch(executed, read)
    if found is None:
        return Started(tuple(executed))
    one, launch = found
    copies = _copies(executed, launch)
    if len(copies) > 1:
        one, launch = copies[0][0], replace(launch, program=_same_words([each.program for _, each in copies], node))
    environment = _same_values([each.environment for each, _ in copies] or [one.environment], node)
    return Started(tuple(executed), launch, one.words, environment, one.where, max(len(copies), 1))


def _copies(executed: Sequence[Executed], launch: Launch) -> list[tuple[Executed, Launch]]:
    """Return the commands that start a program side by side: `for i in 0 1; do python train.py --rank $i & done`."""
    if launch.launcher != "python":
        return []
    started = [(one, _launch(one)) for one in executed if one.in_background]
    beside = [
        (one, each) for one, each in started if each.program[:1] == launch.program[:1] and each.folder == launch.folder
    ]
    return [(one, each) for one, each in beside if len(each.program) == len(launch.program)]


def _same_words(programs: Sequence[tuple[str, ...]], node: int) -> tuple[str, ...]:
    """Return the words of several copies: where they differ, a variable stands that no other node has."""
    return tuple(_same(words, node) for words in zip(*programs, strict=True))


def _same_values(environments: Sequence[Mapping[str, str]], node: int) -> Mapping[str, str]:
    names = {name: None for environment in environments for name in environment}
    return {name: _same([each.get(name, "") for each in environments], node) for name in names}


def _same(texts: Sequence[str], node: int) -> str:
    """Return a text that all copies have, or a variable of this node, after the name of its option if it has one."""
    if len(set(texts)) == 1:
        return texts[0]
    option, sign, _ = posixpath.commonprefix(texts).partition("=")
    return f"{option}=$COPY_{node}" if sign else f"$COPY_{node}"


def file_of(launch: Launch, read: Callable[[str], str], roots: Iterable[str] = ()) -> str:
    """Return the file of the job that is started, if it is known; a module is looked for in the roots, too."""
    program = launch.program[0] if launch.launcher and launch.program else ""
    if not launch.is_module:
        is_ours = program.endswith(".py") and not program.startswith("/") and "$" not in program
        return posixpath.normpath(posixpath.join(launch.folder, program)) if is_ours else ""
    bases = [posixpath.join(root, program.replace(".", "/")) for root in (launch.folder, *roots)]
    return next((path for base in bases for path in (f"{base}.py", f"{base}/__main__.py") if read(path)), "")


def _launch(one: Executed) -> Launch:
    words = list(one.words)
    if words[0] == "horovodrun":
        words = list(itertools.dropwhile(lambda word: not word.startswith("python"), words))
    launch = parse_launch(["torchrun", *words[2:]] if words[:2] == ["colossalai", "run"] else words)
    inner = parse_launch(list(launch.program)) if launch.options.get("no_python") else launch
    if inner.launcher == "python":
        launch = replace(launch, program=inner.program, is_module=inner.is_module)
    return replace(launch, folder=one.folder) if one.folder is not None else _NOTHING


def chosen_launch(executed: Sequence[Executed], read: Callable[[str], str]) -> tuple[Executed, Launch] | None:
    """Return the command that starts the training: that of a launcher, else of a program that looks like it."""
    launches = ((one, _launch(one)) for one in executed)
    found = [(one, launch) for one, launch in launches if launch.launcher]
    own = [(one, launch) for one, launch in found if read(file_of(launch, read))] or found
    by_launcher = [(one, launch) for one, launch in own if launch.launcher != "python"]
    trains = [(one, launch) for one, launch in own if _TRAINS.search(read(file_of(launch, read)))]
    return next(iter(by_launcher or trains or own[-1:]), None)


def _variables(node: int, job: LaunchPlan) -> dict[str, str | list[str]]:
    """Return the variables of a node that are known before."""
    mounted = [text for mount in job.mounts for text in (mount.variable, mount.name)]
    return {
        **{str(name): f"${name}" for name in (*mounted, *dict(job.secrets))},
        **{name: value for name, value in job.env if "$" not in value},
        contract.NNODES: str(job.nodes),
        contract.NODE_RANK: str(node),
        contract.MASTER_ADDR: SUPPOSED_ADDRESS,
        contract.MASTER_PORT: str(contract.DEFAULT_PORT),
        contract.NPROC_PER_NODE: str(job.nproc_per_node or f"${contract.NPROC_PER_NODE}"),
    }
