"""Follow a program as all of its processes have it, or as one of them does."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any

from jobsubmit.check.interpreter.machine import Machine
from jobsubmit.check.interpreter.own import Decision
from jobsubmit.check.interpreter.placing import OnCpu
from jobsubmit.check.interpreter.process import Process, some_processes
from jobsubmit.check.interpreter.rehearsal import Lost
from jobsubmit.check.interpreter.scaling import Scales
from jobsubmit.check.interpreter.trace import Event, Observed, Place
from jobsubmit.check.interpreter.wrappers import Wrappers
from jobsubmit.check.program.facts import Facts
from jobsubmit.check.program.hydra import Composed
from jobsubmit.check.program.module import Module
from jobsubmit.check.program.program import Program

_MOST_STEPS = 100_000


def observe(program: Program, facts: Facts, given: Mapping[str, Any], composed: Composed | None) -> Observed:
    """Follow a program; `given` are parsed arguments that differ from what their words say.

    Whatever goes wrong, what was seen until then is returned.
    """
    machine = Machine(program, facts, _MOST_STEPS, given, composed)
    machine.run()
    return machine.trace.finished(machine.steps, machine.started, is_whole=machine.ended_by in ("", "Ended"))


@dataclass(frozen=True)
class Followed:
    """A process that was followed: its calls of libraries by the calls that lead to them, and what conditions were.

    It `is_whole` unless it was not followed to its end; it `is_nested` if a launcher starts it, and it starts others.
    `decisions` are what it decides by its own data, `unaveraged` are gradients that it keeps for itself, and `scales`
    say by which numbers losses and gradients are multiplied. Of `skipped` functions, some calls were not followed.
    `beyond` are places that it surely asks for, and that lists do not have, `on_cpu` wrappers for GPUs of models
    that are on the CPU, and `by_zero` divisions by zero to which it surely comes. `unset` are variables and fields that
    it surely reads before it has set them, `failed` assertions and errors that surely end it.
    By the paths of events, `owners` are the objects whose methods are called, 0 for one that is not known, and
    `results` those that are made.
    """

    process: Process
    events: Mapping[tuple[ast.Call, ...], Event]
    values: Mapping[ast.AST, Any]
    is_whole: bool
    is_nested: bool = False
    decisions: Mapping[ast.expr, Decision] = field(default_factory=dict)
    unaveraged: Sequence[Lost] = ()
    wrappers: Wrappers = field(default_factory=Wrappers)
    scales: Scales = field(default_factory=Scales)
    is_wrapped: bool = False
    skipped: Set[ast.AST] = frozenset()
    beyond: Mapping[ast.Subscript, Place] = field(default_factory=dict)
    on_cpu: Sequence[OnCpu] = ()
    by_zero: Mapping[ast.BinOp | ast.AugAssign, Module] = field(default_factory=dict)
    unset: Mapping[ast.Name | ast.Attribute, Module] = field(default_factory=dict)
    failed: Mapping[ast.Assert | ast.Raise, Module] = field(default_factory=dict)
    owners: Mapping[tuple[ast.Call, ...], Set[int]] = field(default_factory=dict)
    results: Mapping[tuple[ast.Call, ...], Set[int]] = field(default_factory=dict)


def follow_processes(
    program: Program, facts: Facts, given: Mapping[str, Any], composed: Composed | None, each: int | None
) -> list[Followed]:
    """Follow some processes of a job one by one; none if it is not known how many `each` node has."""
    found: list[Followed] = []
    for process in some_processes(facts.nodes, each) if each else ():
        own = {name: str(process.local_rank) for name in given}
        machine = Machine(program, process.facts(facts), _MOST_STEPS, own, composed)
        machine.process = process
        machine.is_lenient = True
        machine.run()
        if not machine.exists:
            continue
        is_nested = facts.has_launcher and machine.started > 0
        is_whole = machine.ended_by == ""
        trace = machine.trace
        known = (
            machine.waits.decisions,
            machine.unaveraged,
            machine.wrappers,
            machine.scales,
            machine.is_wrapped,
            trace.skipped,
            machine.beyond,
            machine.places.on_cpu,
            machine.by_zero,
            machine.unset,
            machine.failed,
            trace.owners,
            trace.results,
        )
        found.append(Followed(process, trace.events, trace.values, is_whole, is_nested, *known))
    return found
