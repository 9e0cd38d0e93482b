"""Programs that every node of a job starts in the same way, and that do not find each other."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from jobsubmit.agent import node_contract as contract
from jobsubmit.check.code import Code
from jobsubmit.check.origins import words_of
from jobsubmit.check.program.calls import SPAWNS
from jobsubmit.check.shell.started import Started
from jobsubmit.common.finding import Finding

# Variables that say which node or process this is: those of launchers, schedulers and platforms.
# Not those of torch's launchers, which nobody sets here.
_NUMBERS = re.compile(
    r"(?!(?:LOCAL_)?(?:RANK|WORLD_SIZE)$)"
    r"(?:[A-Z]+_)*(?:RANK|NODE_?ID|PROCID|TASK_INDEX|NODE_INDEX|WORLD_SIZE|MACHINE_RANK)"
)
_PLAIN = "python"
_START_PROGRAMS = frozenset(f"subprocess.{name}" for name in ("Popen", "run", "call", "check_call", "check_output"))
# Libraries that only join the processes of a launcher → what makes them do so.
_JOIN = {
    "transformers": re.compile(r"\.\w*(?:TrainingArguments|Trainer)$"),
    "accelerate": re.compile(r"\.Accelerator$"),
}


def check_alone(code: Code, started: Started, last: Started) -> Iterator[Finding]:
    """Yield a warning where `python train.py` trains on several nodes, and nothing says which node each one is."""
    if started.launch.launcher != _PLAIN:
        return
    yield from _starting_others(code, started)
    if joining := next(_made_to_join(code), None):
        yield from _without_launcher(code, started, *joining)
        return
    if code.facts.nodes == 1 or code.has_framework or "backward" not in code.names:
        return
    names = {name for name, value in last.environment.items() if started.environment.get(name) != value}
    is_numbered = started.words != last.words or not names <= {contract.NODE_RANK, contract.NODE_INDEX}
    if (
        not is_numbered
        and not _sets_rank(code)
        and not any(map(_NUMBERS.fullmatch, code.texts))
        and not code.program.unread
    ):
        text = f"does not tell the program which of the {code.facts.nodes} nodes it is on: each would train by itself"
        hint = "start it with torchrun, which needs $NNODES, $NODE_RANK and $MASTER_ADDR, or set resources.nodes: 1"
        if any(name in SPAWNS for _, _, name in code.program.calls):
            hint = "pass it its number, $NODE_RANK, with `bash -c`, or set resources.nodes: 1"
        if not code.knows_others:
            hint = "set resources.nodes: 1; no code makes a process group or knows of other processes"
        yield Finding("warning", "launcher-nodes", started.where, text, hint)


def _made_to_join(code: Code) -> Iterator[tuple[str, str]]:
    """Yield each library that joins the processes of a launcher, and starts none itself, with the place of its use."""
    for module, call, name in code.reached.calls:
        library = joins_processes(name)
        if library and code.reached.is_sure(call, module):
            yield library, module.where(call)


def joins_processes(name: str) -> str:
    """Return the library that joins the processes of a launcher where this function or class is called; else ""."""
    return next(
        (library for library, made in _JOIN.items() if name.startswith(f"{library}.") and made.search(name)), ""
    )


def _without_launcher(code: Code, started: Started, library: str, where: str) -> Iterator[Finding]:
    is_set = any(name in started.environment for name in (contract.RANK, contract.WORLD_SIZE))
    starts = any(name in SPAWNS for _, _, name in code.program.calls) or "notebook_launcher" in code.names
    if code.facts.nodes > 1 and not (is_set or starts or _sets_rank(code)):
        yield Finding(
            "warning",
            "launcher-nodes",
            started.where,
            f"python starts one process on each node, and {library} ({where}) only joins the processes that a launcher "
            "starts: each of them would train by itself",
            "start it with torchrun, or write mode: torchrun and boot_file in place of `command`",
        )


def _sets_rank(code: Code) -> bool:
    """Return whether the program sets the variable RANK itself."""
    return any(
        isinstance(node.ctx, ast.Store) and code.values.of(node.slice, module) == contract.RANK
        for module, node in code.program.of(ast.Subscript)
        if code.program.name_of(node.value, module) == "os.environ"
    )


def _starting_others(code: Code, started: Started) -> Iterator[Finding]:
    """Yield that the code is not checked of programs that a launcher of the job's own starts, as subprocesses."""
    if "backward" in code.names or code.has_framework:
        return
    for module, call, name in code.reached.calls:
        words = words_of(code, call, module) if name in _START_PROGRAMS else ""
        if "sys.executable" in words:
            text = f"{module.where(call)} starts other programs with Python, so their code is not checked"
            hint = "start the training program itself, for example with mode: torchrun"
            yield Finding("unknown", "command", started.where, text, hint)
            return
