"""Commands of a shell: what changes itself, its functions, other shells, and the programs that it executes."""

from __future__ import annotations

import itertools
import posixpath
import re
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from jobsubmit.check.shell.parsing import parse_shell
from jobsubmit.check.shell.state import OF_PROCESSES, Executed, Shell, path_in
from jobsubmit.plan.launchers import OF_SCHEDULERS, parse_launch

if TYPE_CHECKING:
    from tree_sitter import Node

SHELLS = ("bash", "sh", "zsh", "dash")
_MOST_SHELLS = 12  # one inside the other
# Commands that execute another one, and their options that take a word.
_AROUND = {
    **dict.fromkeys(("nohup", "time", "command", "exec", "setsid", "sudo", "unbuffer"), ()),
    "env": ("-u", "-C"),
    "nice": ("-n",),
    "ionice": ("-c", "-n"),
    "taskset": (),
    "timeout": ("-s", "-k"),
    "stdbuf": ("-i", "-o", "-e"),
    "numactl": (),
}
_WITH_NUMBER = ("timeout", "taskset")  # the first word after the options is theirs
_SETS = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)
# What those set for each of their tasks.
_OF_TASKS = ("SLURM_PROCID", "SLURM_LOCALID", "SLURM_NTASKS", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK")


_ASSIGNED = re.compile(r"(?m)(?:^|[\s;({])([A-Za-z_]\w*)\+?=")
_READS = ("read", "mapfile", "readarray", "getopts")


class Left(Exception):  # noqa: N818 - it is none of ours
    """A shell leaves a loop, a function or itself."""


class Exited(Left):
    """A shell ends."""


class Returned(Left):
    """A function, or a script that is sourced, ends."""


class Broken(Left):
    """A loop ends."""


class Continued(Broken):
    """A pass of a loop ends."""


_LEAVES = {"exit": Exited, "return": Returned, "break": Broken, "continue": Continued}


class Commands:
    """Follows commands; `follow` is for the statements of what they execute."""

    def __init__(self) -> None:
        self.executed: list[Executed] = []
        self._depth = 0

    def follow(self, node: Node, shell: Shell) -> None:
        raise NotImplementedError

    def call(self, words: list[str], given: dict[str, str], shell: Shell, where: str) -> None:
        """Follow a command by its name: what changes the shell itself, a function, or a program."""
        name, arguments = words[0], words[1:]
        if name in shell.functions:
            self._call_function(shell.functions[name], arguments, shell)
            return
        match name:
            case "cd" | "pushd":
                shell.go_to(next((word for word in arguments if not word.startswith("-")), "/"))
            case "source" | ".":
                self._source(arguments, shell)
            case "eval":
                before, shell.place = shell.place, where
                self.follow(parse_shell(" ".join(arguments)).root_node, shell)
                shell.place = before
            case "shift":
                shell.shift(int(arguments[0]) if arguments and arguments[0].isdecimal() else 1)
            case "let":
                shell.compute(" ".join(arguments))
            case "set" if "--" in arguments:
                shell.arguments = arguments[arguments.index("--") + 1 :]
            case _ if name in _READS:
                for word in arguments:
                    shell.assign(word, f"${word}")
            case "exec" if arguments:
                self.execute(arguments, given, shell, where)
                raise Exited
            case "exit" | "return" | "break" | "continue":
                self._note(words, {}, shell, where)
                raise _LEAVES[name]
            case _:
                self.execute(words, given, shell, where)

    def _call_function(self, body: Node, arguments: list[str], shell: Shell) -> None:
        before, shell.arguments = shell.arguments, arguments
        self._depth += 1
        try:
            if self._depth <= _MOST_SHELLS:
                self.follow(body, shell)
        except Returned:
            pass
        finally:
            self._depth -= 1
            shell.arguments = before

    def _source(self, arguments: list[str], shell: Shell) -> None:
        path = shell.path(arguments[0]) if arguments else None
        text = shell.read(path) if path is not None else ""
        file, shell.file = shell.file, path or shell.file
        try:
            self.follow(parse_shell(text).root_node, shell)
        except Returned:
            pass
        finally:
            shell.file = file

    def execute(self, words: list[str], given: dict[str, str], shell: Shell, where: str) -> None:
        """Follow a command: into a shell or a script of the job, or note that it is executed."""
        words, given = _without_wrappers(words, given)
        if not words:
            return
        name = posixpath.basename(words[0])
        if name in SHELLS:
            self._start_shell(words[1:], given, shell, where)
            return
        if (path := shell.path(words[0])) is not None and path.endswith(".sh") and (text := shell.read(path)):
            self._run(text, _inner(shell, given, words[0], words[1:], path))
            return
        launch = parse_launch(words)
        program = list(launch.program)
        starts_shells = launch.launcher in OF_SCHEDULERS or launch.options.get("no_python")
        if starts_shells and program and _is_shell(program[0], shell):
            outer = (*shell.outer, *words[: len(words) - len(program)])
            inside = _inner(shell, given, "", [])
            inside.outer, inside.unset = outer, set()
            for name in (*_OF_TASKS, *OF_PROCESSES):
                inside.variables.pop(name, None)
            self.execute(program, {}, inside, where)
            return
        self._note(words, given, shell, where)

    def _note(self, words: list[str], given: dict[str, str], shell: Shell, where: str) -> None:
        environment = {**shell.environment(), **given}
        folder = path_in(shell.folder, ".")
        self.executed.append(
            Executed((*shell.outer, *words), environment, folder, where, shell.is_sure, shell.in_background)
        )

    def _start_shell(self, words: list[str], given: dict[str, str], shell: Shell, where: str) -> None:
        rest = list(itertools.dropwhile(lambda word: re.fullmatch(r"[-+][a-bd-zA-Z]+|--\w+", word), words))
        if rest and re.fullmatch(r"-[a-zA-Z]*c[a-zA-Z]*", rest[0]):
            text, arguments = "".join(rest[1:2]), rest[2:]
            inner = _inner(shell, given, arguments[0] if arguments else shell.script, arguments[1:])
            inner.place = shell.place or where
            self._run(text, inner)
            return
        path = shell.path(rest[0]) if rest else None
        if path is not None and (text := shell.read(path)):
            self._run(text, _inner(shell, given, rest[0], rest[1:], path))

    def _run(self, text: str, shell: Shell) -> None:
        """Follow a text in a shell of its own, whose end is not that of the outer one."""
        if self._depth >= _MOST_SHELLS:
            return
        self._depth += 1
        shell.will_assign(_ASSIGNED.findall(text))
        with suppress(Left):
            self.follow(parse_shell(text).root_node, shell)
        self._depth -= 1


def _without_wrappers(words: list[str], given: dict[str, str]) -> tuple[list[str], dict[str, str]]:
    """Return a command without those around it, such as nohup, and the variables that env gives it."""
    given = dict(given)
    while words and (name := posixpath.basename(words[0])) in _AROUND:
        words = words[1:]
        while words and words[0].startswith("-"):
            words = words[2 if words[0] in _AROUND[name] else 1 :]
        words = words[1:] if name in _WITH_NUMBER else words
        while words and (found := _SETS.fullmatch(words[0])):
            given[found[1]] = found[2]
            words = words[1:]
    return words, given


def _is_shell(word: str, shell: Shell) -> bool:
    path = shell.path(word)
    return posixpath.basename(word) in SHELLS or (path is not None and path.endswith(".sh") and bool(shell.read(path)))


def _inner(shell: Shell, given: dict[str, str], script: str, arguments: list[str], file: str = "") -> Shell:
    """Return the shell that another one starts: it has the variables that are exported."""
    inner = shell.copy()
    inner.variables = {name: value for name, value in inner.variables.items() if name in inner.exported}
    inner.unset |= set(shell.variables) - set(inner.variables)
    for name, value in given.items():
        inner.assign(name, value)
        inner.exported.add(name)
    return replace(inner, script=script, file=file, arguments=arguments, functions={}, place="")
