"""The state of a shell while its text is followed, and the commands that it has executed so far."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from jobsubmit.check.shell.texts import HERE, computed, is_open

if TYPE_CHECKING:
    from tree_sitter import Node

# Launchers set these for their processes, and jobsubmit removes strays: a shell that starts a launcher has none.
OF_PROCESSES = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK")
# Names that a node may have although nothing in the job sets them.
_OF_NODES = re.compile(r"(?:MA|VC|JOBSUBMIT|SLURM|OMPI|CUDA|NCCL)_\w+|HOME|USER|\w*PATH|TMPDIR|HOSTNAME|RANDOM|\d+")
_CHANGES = re.compile(r"([A-Za-z_]\w*)\s*(?:\+\+|--|[-+*/%]?=(?!=))")
_SUM = re.compile(r"\s*([A-Za-z_]\w*)\s*=\s*([^=,]+)")
_STEP = re.compile(r"\s*(?:(\+\+|--)\s*([A-Za-z_]\w*)|([A-Za-z_]\w*)\s*(?:(\+\+|--)|([-+*/%])=(?!=)(.*)))\s*")
_LONGEST = 64 << 10
_SPECIAL = ("#", "@", "*", "PWD", "BASH_SOURCE")
_ELSEWHERE = "$ELSEWHERE"


@dataclass(frozen=True)
class Executed:
    """A command that a shell executes.

    `words` are its words, with those of launchers around the shell before them; `environment` are the variables that
    shells give it, beside those of the node. It is executed in a `folder` of the code directory ("" for itself), or
    in one that is not known (None). `where` is its place in a script of the job. `is_sure` says whether it depends on
    no condition that is not known, `in_background` whether the shell goes on at once (`… &`).
    """

    words: tuple[str, ...]
    environment: Mapping[str, str]
    folder: str | None
    where: str
    is_sure: bool
    in_background: bool = False


@dataclass
class Shell:
    """What a shell knows at a place of its text.

    A variable that is a list is an array. `unset` are the names of which it is known that nobody has set them;
    `supposes_unset` says to suppose it of all that nothing in the job sets. `file` is the path of the script, as
    `script` is its $0, and `place` is where a text stands that is not a script.
    """

    variables: dict[str, str | list[str]]
    exported: set[str]
    unset: set[str]
    read: Callable[[str], str]
    script: str = ""
    file: str = ""
    arguments: list[str] = field(default_factory=list)
    folder: str = HERE
    functions: dict[str, Node] = field(default_factory=dict)
    outer: tuple[str, ...] = ()  # the words of a launcher that starts this shell
    is_sure: bool = True
    supposes_unset: bool = False
    place: str = ""
    in_background: bool = False

    def copy(self) -> Shell:
        variables = {name: list(value) if isinstance(value, list) else value for name, value in self.variables.items()}
        return replace(
            self,
            variables=variables,
            exported=set(self.exported),
            unset=set(self.unset),
            arguments=list(self.arguments),
            functions=dict(self.functions),
        )

    def take(self, other: Shell) -> None:
        """Go on with the state of a copy."""
        self.variables, self.exported, self.unset = other.variables, other.exported, other.unset
        self.arguments, self.folder, self.functions = other.arguments, other.folder, other.functions

    def merge(self, ends: Iterable[Shell]) -> None:
        """Go on with what is the same at the ends of all branches, of which one was taken."""
        first, *others = ends
        self.take(first)
        for other in others:
            for name in {*self.variables, *other.variables}:
                if self.variables.get(name) != other.variables.get(name):
                    self.variables[name] = f"${name}"
            self.unset &= other.unset
            self.exported |= other.exported
            self.functions |= other.functions
            self.folder = self.folder if self.folder == other.folder else _ELSEWHERE
            if self.arguments != other.arguments:
                self.arguments = ["$@"]

    def will_assign(self, names: Iterable[str]) -> None:
        """Suppose that variables are not set before a text sets them."""
        self.unset |= {name for name in names if self.is_likely_unset(name)}

    def assign(self, name: str, value: str | list[str]) -> None:
        self.variables[name] = value if sum(map(len, value)) <= _LONGEST else f"${name}"
        self.unset.discard(name)

    def compute(self, text: str) -> None:
        """Follow a sum that sets a variable: `n=n+1`; those that it sets in other ways are not known after it."""
        step = _STEP.fullmatch(text)
        found = _SUM.fullmatch(text if step is None else _as_sum(step))
        for name in _CHANGES.findall(text) if found is None else ():
            self.assign(name, f"${name}")
        if found is not None:
            self.assign(found[1], computed(found[2], self.value))

    def shift(self, count: int) -> None:
        if "$@" not in self.arguments:
            self.arguments = self.arguments[count:]

    def value(self, name: str) -> str:
        """Return the value of a variable, `$NAME` if it is not known; that of an array is its first element."""
        if name.isdecimal():
            return self._argument(int(name))
        if name in _SPECIAL:
            return self._special(name)
        if name in self.unset and name not in OF_PROCESSES:
            return ""
        value = self.variables.get(name, f"${name}")
        return value if isinstance(value, str) else next(iter(value), "")

    def elements(self, name: str) -> list[str]:
        """Return the elements of an array, or the arguments for `@` and `*`."""
        if name in ("@", "*"):
            return list(self.arguments)
        value = self.variables.get(name)
        return list(value) if isinstance(value, list) else [self.value(name)]

    def is_unset(self, name: str) -> bool:
        """Return whether a variable is known not to be set, or to be empty."""
        if name.isdecimal():
            return not self._argument(int(name))
        is_supposed = self.supposes_unset and self.is_likely_unset(name)
        return is_supposed or name in self.unset or self.variables.get(name) in ("", [])

    def is_likely_unset(self, name: str) -> bool:
        """Return whether nothing in the job sets a variable, and nodes do not usually have it."""
        return name.isidentifier() and name not in self.variables and not _OF_NODES.fullmatch(name)

    def environment(self) -> dict[str, str]:
        return {name: self.value(name) for name in self.exported if name in self.variables}

    def path(self, text: str) -> str | None:
        """Return the path of a file below the code directory that a text names; None for one elsewhere."""
        return path_in(self.folder, text)

    def go_to(self, text: str) -> None:
        path = self.path(text)
        self.folder = _ELSEWHERE if path is None else posixpath.join(HERE, path).rstrip("/")

    def _special(self, name: str) -> str:
        match name:
            case "#":
                return str(len(self.arguments))
            case "PWD":
                return self.folder
            case "BASH_SOURCE":
                return self._source()
        return " ".join(self.arguments)

    def _source(self) -> str:
        """Return the path of the file that is executed, as it was given; that of the job if it is sourced."""
        is_sourced = self.file and self.path(self.script) != self.file
        return posixpath.join(HERE, self.file) if is_sourced else self.script

    def _argument(self, number: int) -> str:
        if number == 0:
            return self.script
        if "$@" in self.arguments[:number]:
            return f"${number}"
        return self.arguments[number - 1] if number <= len(self.arguments) else ""


def _as_sum(step: re.Match[str]) -> str:
    """Return what `i++` or `i += 2` sets, as a sum: `i = i + (1)`."""
    name, sign = step[2] or step[3], (step[1] or step[4] or step[5])[0]
    return f"{name} = {name} {sign} ({step[6] or 1})"


def path_in(folder: str, text: str) -> str | None:
    """Return the path below the code directory of what a text names in a folder ("" for the directory itself)."""
    joined = text if text.startswith(HERE) else posixpath.join(folder, text)
    path = posixpath.normpath(joined)
    if is_open(path) or (path != HERE and not path.startswith(f"{HERE}/")):
        return None
    return path.removeprefix(HERE).lstrip("/")
