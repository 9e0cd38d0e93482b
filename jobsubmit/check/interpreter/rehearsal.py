"""The first passes of a training loop, one by one: which of them exchange gradients, and which step the optimizer."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from jobsubmit.check.interpreter.memory import External, Record
from jobsubmit.check.program.module import Function, Module, spelled, unparsed
from jobsubmit.check.program.operations import UNKNOWN
from jobsubmit.check.program.program import Program
from jobsubmit.check.program.tree import walk

PARTS = 3  # of a step, where it is not known how many there are
MOST_PASSES, MOST_STEPS, MOST_UPDATES = 40, 12_000, 3  # of a rehearsal: passes, steps of ours, steps of the optimizer
LONG = 10_000  # passes of a loop of which only the first are followed
NO_EXCHANGE = ("no_sync", "no_backward_sync")  # contexts of a model in which gradients stay on each process
_SWITCHES = (*NO_EXCHANGE, "require_backward_grad_sync", "set_requires_gradient_sync")
_STEPS = re.compile(r"(?:optim|\bopt\b|opt_|_opt\b|scaler|solver)[\w.\[\]()'\"]*\.step$", re.IGNORECASE)
_OF_TORCH = ("backward", "step", "train", "eval", "forward", "update", "to", "items", "get", "load", "save")
_DEEPEST, _MOST_NAMED_ALIKE = 4, 3  # functions that call each other, and those with the same name


class Gradients(NamedTuple):
    """Gradients are computed in a call, and exchanged between the processes or not; None if it is not known."""

    call: ast.Call
    module: Module
    are_exchanged: bool | None


class Update(NamedTuple):
    """An optimizer steps in a call."""

    call: ast.Call
    module: Module


class Lost(NamedTuple):
    """Gradients that stay on each process although a step uses them.

    `some`: earlier ones of the step are exchanged. `is_at_end`: only the last step is so, at the end of the data.
    """

    gradients: Gradients
    some: bool
    is_at_end: bool = False


@dataclass
class Rehearsal:
    """What happens in the passes so far; `is_switched` is what the program has set, `without` are blocks around."""

    depth: int  # loops around whose number of passes is not known
    parts: int = 0  # loops around over the parts of a step
    happened: list[Gradients | Update] = field(default_factory=list)
    is_switched: bool | None = True
    lengths: dict[str, int] = field(default_factory=dict)  # of what loops go through, by its words
    without: list[bool | None] = field(default_factory=list)  # for each block: whether it switches the exchange off
    yielded_without: list[bool | None] = field(default_factory=list)  # for each `yield`: whether a block does

    @property
    def updates(self) -> int:
        return sum(isinstance(one, Update) for one in self.happened)

    @property
    def is_without(self) -> bool | None:
        """Return whether a block around switches the exchange off."""
        return None if None in self.without else any(self.without)

    @contextmanager
    def unclear(self) -> Iterator[None]:
        """Follow branches of which only one is taken: of the gradients in them, it is not known what happens."""
        start = len(self.happened)
        yield
        for index, one in enumerate(self.happened[start:], start):
            if isinstance(one, Gradients):
                self.happened[index] = one._replace(are_exchanged=None)

    def compute(self, call: ast.Call, module: Module) -> None:
        off = self.is_without
        known = None if off is None or self.is_switched is None else self.is_switched and not off
        self.happened.append(Gradients(call, module, known))

    def update(self, call: ast.Call, module: Module) -> None:
        self.happened.append(Update(call, module))

    @property
    def parts_of_step(self) -> int:
        """Return how many times gradients are computed before the first step of the optimizer; 0 without a step."""
        return next((place for place, one in enumerate(self.happened) if isinstance(one, Update)), 0)

    def lost_at_end(self) -> Lost | None:
        """Return what the last step loses, if it is at the end of the data."""
        places = [place for place, one in enumerate(self.happened) if isinstance(one, Update)]
        if len(places) < 2 or places[-1] != len(self.happened) - 1:  # noqa: PLR2004
            return None
        parts = [one for one in self.happened[places[-2] + 1 : -1] if isinstance(one, Gradients)]
        some = any(one.are_exchanged for one in parts)
        return Lost(parts[-1], some, is_at_end=True) if parts and parts[-1].are_exchanged is False else None

    def lost(self) -> Lost | None:
        """Return what each step loses."""
        found: list[Lost | None] = []
        waiting: list[Gradients] = []
        for one in self.happened:
            if isinstance(one, Gradients):
                waiting.append(one)
            elif waiting:
                last = waiting[-1]
                some = any(each.are_exchanged for each in waiting)
                if last.are_exchanged is not None or not found:
                    found.append(Lost(last, some) if last.are_exchanged is False else None)
                waiting = []
        return found[-1] if found and None not in found else None


def is_update(call: ast.Call) -> bool:
    """Return whether a call is a step of an optimizer, by its words."""
    return _STEPS.search(unparsed(call.func)) is not None


def switches_exchange(program: Program) -> bool:
    """Return whether a program may compute gradients without exchanging them."""
    names = {node.attr for _, node in program.of(ast.Attribute)}
    return not names.isdisjoint(_SWITCHES)


def context_of(node: ast.Call, callee: Any, args: list[Any], keywords: dict[str, Any]) -> Record | None:
    """Return the context that a call makes, in which gradients are not exchanged; None for another call."""
    name = _name_of(node, callee)
    if name not in NO_EXCHANGE:
        return None
    made = Record(External(name), is_open=True)
    place = 1 if name == "no_backward_sync" else None
    made.content["off"] = keywords.get("enabled", args[place] if place is not None and len(args) > place else True)
    return made


def _name_of(node: ast.Call, callee: Any) -> str:
    if isinstance(node.func, ast.Attribute):
        return node.func.attr
    return callee.name.rpartition(".")[2] if isinstance(callee, External) else getattr(callee, "function", "")


def is_off(entered: Any) -> bool | None:
    """Return whether a context switches the exchange of gradients off."""
    if entered is UNKNOWN:
        return None
    if not isinstance(entered, Record) or not isinstance(entered.kind, External) or "off" not in entered.content:
        return False
    value = entered.content["off"]
    return value if isinstance(value, bool) else None


def is_training_loop(program: Program, loop: ast.For | ast.AsyncFor | ast.While) -> bool:
    """Return whether a loop computes gradients and steps an optimizer, and no loop in it does both."""
    return _trains(program, loop.body, 0) and not any(
        _trains(program, one.body, 0) for one in _loops_in(program, loop.body, 0)
    )


def computes_gradients(program: Program, loop: ast.For | ast.AsyncFor) -> bool:
    found: set[str] = set()
    for statement in loop.body:
        _look_for(program, statement, 0, found, set())
    return found == {"backward"}


def looped(iterated: ast.expr) -> str:
    """Return the words of what a loop goes through, without `enumerate` and its like around."""
    while isinstance(iterated, ast.Call) and iterated.args:
        iterated = iterated.args[0]
    return unparsed(iterated)


def same_as_looped(loop: ast.For | ast.AsyncFor, module: Module) -> tuple[frozenset[str], frozenset[str]]:
    """Return the words of what a loop goes through, and the variables that are set to its length.

    `bar = tqdm(loader)` is as long as `loader`, and `count = len(loader)` is its length.
    """
    set_once = {
        one.targets[0].id: one.value
        for one in walk(module.scope_of(loop))
        if isinstance(one, ast.Assign) and isinstance(one.targets[0], ast.Name) and isinstance(one.value, ast.Call)
    }
    words = {looped(loop.iter)}
    words |= {looped(set_once[word]) for word in words if word in set_once and set_once[word].args}
    lengths = {name for name, value in set_once.items() if unparsed(value) in {f"len({word})" for word in words}}
    return frozenset(words), frozenset(lengths)


def _trains(program: Program, body: Sequence[ast.stmt], depth: int) -> bool:
    found: set[str] = set()
    for statement in body:
        _look_for(program, statement, depth, found, set())
    return found == {"backward", "step"}


def _look_for(program: Program, node: ast.AST, depth: int, found: set[str], seen: set[ast.AST]) -> None:
    for one in walk(node):
        if isinstance(one, ast.Call):
            if isinstance(one.func, ast.Attribute) and one.func.attr == "backward":
                found.add("backward")
            elif is_update(one):
                found.add("step")
            for function in _functions(program, one) if depth < _DEEPEST else ():
                if function not in seen:
                    seen.add(function)
                    _look_for(program, function, depth + 1, found, seen)


def _loops_in(program: Program, body: Sequence[ast.AST], depth: int) -> list[ast.For | ast.While]:
    found: list[ast.For | ast.While] = []
    for one in (one for statement in body for one in walk(statement)):
        if isinstance(one, (ast.For, ast.While)):
            found.append(one)
        elif isinstance(one, ast.Call) and depth < _DEEPEST:
            for function in _functions(program, one):
                found += _loops_in(program, function.body, depth + 1)
    return found


def _functions(program: Program, call: ast.Call) -> Sequence[Function]:
    """Return the functions of a program that a call may call, by the name alone."""
    name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    if name in _OF_TORCH and isinstance(call.func, ast.Attribute) and spelled(call.func.value) != "self":
        return ()
    found = program.functions.get(name, ())
    return found if len(found) <= _MOST_NAMED_ALIKE else ()


def item_of_pass(loop: ast.For | ast.AsyncFor, item: Any, number: int) -> Any:
    """Return what a pass gets from a loop: `enumerate` and `range` count the passes."""
    match loop.iter:
        case ast.Call(func=ast.Name(id="range"), args=[_]):
            return number
        case ast.Call(func=ast.Name(id="range"), args=[ast.Constant(value=int(start)), _]):
            return start + number
    first = _counts_from(loop.iter)
    if first is None:
        return item
    return (first + number, item[1] if type(item) is tuple and len(item) == 2 else UNKNOWN)  # noqa: PLR2004


def _counts_from(iterated: ast.expr) -> int | None:
    """Return where `enumerate(loader)`, or `tqdm(enumerate(loader))`, begins to count; None if nothing is counted."""
    while isinstance(iterated, ast.Call) and iterated.args:
        if isinstance(iterated.func, ast.Name) and iterated.func.id == "enumerate":
            given = [*iterated.args[1:], *(keyword.value for keyword in iterated.keywords)]
            start = given[0].value if given and isinstance(given[0], ast.Constant) else 0
            return start if isinstance(start, int) else None
        iterated = iterated.args[0]
    return None
