"""Collectives that one process comes to and another does not, however the code says so."""

from __future__ import annotations

import ast
import itertools
from collections.abc import Iterator, Sequence

from jobsubmit.check.code import Code
from jobsubmit.check.collectives.calls import CollectiveFinder
from jobsubmit.check.collectives.leaving import is_in_common_loop
from jobsubmit.check.interpreter.machine import Followed
from jobsubmit.check.interpreter.process import COLLECTIVES
from jobsubmit.check.interpreter.trace import Event
from jobsubmit.check.program.module import Module
from jobsubmit.check.program.operations import UNKNOWN
from jobsubmit.common.finding import Finding

_OF_TORCH = ("torch.distributed.", "accelerate.Accelerator.", "torch.nn.parallel.")


def check_meeting(code: Code) -> Iterator[Finding]:
    """Yield a warning for the first collective that only some of the followed processes come to."""
    for one, other in itertools.permutations(whole(code.followed), 2):
        events = [event for event in _alone(one, other) if not _are_different(code, event)]
        if events:
            event = min(events, key=lambda found: len(found.path))
            others = [each for each in code.followed if each is not one]
            is_first = one.process.rank == 0 and not any(event.path in each.events for each in others)
            where = _first_apart(event, other)
            module = next(home for home in code.program.modules.values() if where in home.parents)
            yield Finding(
                "warning",
                "rank-0-collective",
                module.where(where),
                f"only {'rank 0 reaches' if is_first else 'some ranks reach'} this {event.last}(), which waits for all "
                "ranks: the job would hang",
                "move it out of the branch",
            )
            return


def whole(followed: Sequence[Followed]) -> list[Followed]:
    """Return the processes that were followed to their ends, if all of them were."""
    return list(followed) if all(one.is_whole for one in followed) else []


def _alone(one: Followed, other: Followed) -> list[Event]:
    """Return the collectives of all processes that only the first of two comes to; not those that make up for others."""
    own = [event for path, event in one.events.items() if path not in other.events and _is_of_all(event)]
    met = {event.last for path, event in other.events.items() if path not in one.events and _is_of_all(event)}
    return [event for event in own if event.last not in met]


def _is_of_all(event: Event) -> bool:
    is_collective = event.last in COLLECTIVES or event.last == "DistributedDataParallel"
    return is_collective and event.name.startswith(_OF_TORCH) and event.argument("group") is None


def _first_apart(event: Event, other: Followed) -> ast.Call:
    """Return the first of the calls that lead to an event which the other process does not make."""
    return next((call for call in event.path if call not in other.values), event.call)


def _are_different(code: Code, event: Event) -> bool:
    """Return whether different programs lead there: what a process is started for may differ."""
    del code
    return len(event.path) > _LONGEST_PATH


_LONGEST_PATH = 25


def check_leaving_alone(code: Code) -> Iterator[Finding]:
    """Yield a warning for a loop that trains and that one process may leave, but never another one."""
    finder = CollectiveFinder(code)
    for one, other in itertools.permutations(whole(code.followed), 2):
        for module, test, node in _leaves(code):
            stays = isinstance(node, ast.While)
            may_leave = one.values.get(test, stays) is UNKNOWN
            if may_leave and other.values.get(test) is stays and is_in_common_loop(finder, node, module):
                who = "rank 0" if one.process.rank == 0 else "one rank"
                yield Finding(
                    "warning",
                    "left-by-one",
                    module.where(test),
                    f"only {who} leaves this loop: the others wait for it in the next step, and the job would hang",
                    "let rank 0 decide for all: broadcast the decision, and leave the loop on every rank",
                )
                return


def _leaves(code: Code) -> Iterator[tuple[Module, ast.expr, ast.AST]]:
    """Yield the conditions under which a loop is left, each with its module and what it is the condition of."""
    for module, loop in code.program.of(ast.While):
        if not isinstance(loop.test, ast.Constant):
            yield module, loop.test, loop.body[0]
    for module, node in code.program.of(ast.Break):
        around = module.parents.get(node)
        if isinstance(around, ast.If) and node in around.body:
            yield module, around.test, node
