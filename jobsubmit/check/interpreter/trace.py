"""What was seen while a program was followed."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, NamedTuple

from jobsubmit.check.interpreter.memory import MORE
from jobsubmit.check.program.module import Module
from jobsubmit.check.program.operations import UNKNOWN
from jobsubmit.check.program.tree import walk


@dataclass(frozen=True)
class Observed:
    """The values of expressions, UNKNOWN where they differ, and the whole names of what calls call.

    It took so many `steps`; `started` are the processes that it starts itself, on each node. It
    `is_whole` if it was followed to its end. `parsed` are the command lines, `made` the classes
    of which it makes objects.
    """

    values: Mapping[ast.AST, Any] = field(default_factory=lambda: MappingProxyType({}))
    names: Mapping[ast.AST, str] = field(default_factory=lambda: MappingProxyType({}))
    steps: int = 0
    started: int = 0
    made: frozenset[ast.ClassDef] = frozenset()
    parsed: tuple[Parsed, ...] = ()
    is_whole: bool = False


class Made(NamedTuple):
    """An object among the arguments of a call, by the name of its class."""

    name: str


class Place(NamedTuple):
    """A place in a list of a certain length."""

    module: Module
    number: int
    length: int


class Inner(NamedTuple):
    """A function inside another one among the arguments of a call."""

    name: str


class Group(NamedTuple):
    """A group of processes among the arguments of a call, by their ranks."""

    ranks: tuple[int, ...]


@dataclass(frozen=True)
class Event:
    """A call of something that a library has: its whole name, or `?.method` of an object that is not known.

    `path` are the calls that lead to it, itself at last. It `is_sure` unless it depends on what is not known.
    `visible` is the value of CUDA_VISIBLE_DEVICES then, None if it is not set; it happened so many `times`, 2 in a loop
    with an unknown number of passes.
    """

    call: ast.Call
    module: Module
    name: str
    args: tuple[Any, ...]
    keywords: Mapping[str, Any]
    path: tuple[ast.Call, ...]
    is_sure: bool
    visible: Any = None
    times: int = 1

    @property
    def last(self) -> str:
        return self.name.rpartition(".")[2]

    def argument(self, name: str, position: int | None = None, default: Any = None) -> Any:
        """Return an argument, UNKNOWN if it may be there, or the default."""
        if name in self.keywords:
            return self.keywords[name]
        if position is not None and position < len(self.args):
            return self.args[position]
        return UNKNOWN if MORE in self.keywords else default


class Declared(NamedTuple):
    """An option of a parser: its names, the call that declares it, and what it is given; `kind` names its type."""

    names: tuple[str, ...]
    call: ast.Call
    module: Module
    keywords: Mapping[str, Any]
    kind: str
    is_sure: bool


class Parsed(NamedTuple):
    """The words of the job are parsed: what is declared until then, unless it `is_open` and there may be more."""

    call: ast.Call
    module: Module
    declared: tuple[Declared, ...]
    is_strict: bool
    is_open: bool


@dataclass
class Trace:
    """The same while it grows; `size` says how much was seen."""

    values: dict[ast.AST, Any] = field(default_factory=dict)
    callees: dict[ast.AST, set[str]] = field(default_factory=dict)
    entered: set[ast.AST] = field(default_factory=set)
    skipped: set[ast.AST] = field(default_factory=set)  # functions of which not all calls were followed
    parsed: dict[ast.AST, Parsed] = field(default_factory=dict)
    events: dict[tuple[ast.Call, ...], Event] = field(default_factory=dict)
    owners: dict[tuple[ast.Call, ...], set[int]] = field(default_factory=dict)  # objects whose methods are called
    results: dict[tuple[ast.Call, ...], set[int]] = field(default_factory=dict)  # and those that calls make
    made: set[ast.ClassDef] = field(default_factory=set)  # the classes of which there were objects

    @property
    def size(self) -> int:
        return len(self.values)

    def see(self, node: ast.AST, value: Any) -> None:
        """Remember the value that an expression has once more."""
        if node not in self.values:
            self.values[node] = value
            return
        before = self.values[node]
        if before is not UNKNOWN and not (type(before) is type(value) and before == value):
            self.values[node] = UNKNOWN

    def call(self, node: ast.AST, name: str) -> None:
        """Remember what an expression calls."""
        self.callees.setdefault(node, set()).add(name)

    def happen(self, event: Event) -> None:
        """Remember an event; one that happens again with other arguments keeps those that are the same."""
        before = self.events.get(event.path)
        if before is not None and before.name == event.name and len(before.args) == len(event.args):
            args = tuple(map(_same, before.args, event.args))
            names = before.keywords.keys() & event.keywords.keys()
            keywords = {name: _same(before.keywords[name], event.keywords[name]) for name in names}
            is_sure, times = before.is_sure or event.is_sure, before.times + 1
            event = replace(event, args=args, keywords=keywords, is_sure=is_sure, times=times)
        self.events[event.path] = event

    def forget_after(self, size: int) -> None:
        """Forget the values of expressions that were not seen before the trace had a size."""
        for node in list(self.values)[size:]:
            del self.values[node]

    def finished(self, steps: int, started: int, *, is_whole: bool) -> Observed:
        """Return all that is clear: one value of an expression, one name for what is called."""
        unsure = {node for function in self.skipped for node in walk(function)}
        known = {node: value for node, value in self.values.items() if value is not UNKNOWN and node not in unsure}
        names = {node: next(iter(found)) for node, found in self.callees.items() if len(found) == 1}
        return Observed(known, names, steps, started, frozenset(self.made), tuple(self.parsed.values()), is_whole)


def _same(one: Any, other: Any) -> Any:
    return one if type(one) is type(other) and one == other else UNKNOWN
