"""Collectives that one process comes to and another does not, however the code says so."""

from __future__ import annotations

import ast
import itertools
import re
from collections.abc import Iterator, Sequence

from jobsubmit.check.code import Code
from jobsubmit.check.collectives.calls import finder_of
from jobsubmit.check.collectives.leaving import is_in_common_loop
from jobsubmit.check.interpreter.branches import asks_for_none, is_periodic
from jobsubmit.check.interpreter.follow import Followed
from jobsubmit.check.interpreter.process import COLLECTIVES
from jobsubmit.check.interpreter.trace import Event
from jobsubmit.check.processes.pairs import are_parted, tests_around
from jobsubmit.check.program.module import Module, unparsed
from jobsubmit.check.program.operations import UNKNOWN
from jobsubmit.common.finding import Finding

_ENDS_ALL = re.compile(r"isnan|isinf|isfinite")  # then the job is to fail
_OF_LIBRARIES = ("Fabric.save", "Fabric.barrier", "Fabric.all_reduce", "Fabric.all_gather")
_OF_TORCH = ("torch.distributed.", "accelerate.Accelerator.", "torch.nn.parallel.")


def check_meeting(code: Code) -> Iterator[Finding]:
    """Yield a warning for the first collective that only some of the followed processes come to."""
    for one, other in itertools.permutations(code.followed_whole, 2):
        events = [event for event in _alone(one, other) if _is_decided(code, event, one, other)]
        if events:
            event = min(events, key=lambda found: len(found.path))
            others = [each for each in code.followed if each is not one]
            is_first = one.process.rank == 0 and not any(event.path in each.events for each in others)
            where = _first_apart(event, other)
            yield Finding(
                "warning",
                "rank-0-collective",
                code.module_of(where, event).where(where),
                f"only rank 0 reaches this {event.last}(), which waits for all ranks: the job would hang"
                if is_first
                else f"only some ranks reach this {event.last}(), which waits for all ranks: the job would hang",
                "move it out of the branch",
            )
            return


def _alone(one: Followed, other: Followed) -> list[Event]:
    """Return the collectives of all processes that only the first of two comes to, unless others make up for them."""
    own = [event for path, event in one.events.items() if path not in other.events and _is_of_all(event)]
    met = [event for path, event in other.events.items() if path not in one.events and _is_of_all(event)]
    names = {event.last for event in met}
    return [event for event in own if event.last not in names] + [
        event for name in sorted(names) for event in _left_over(own, met, name)
    ]


def _left_over(own: Sequence[Event], met: Sequence[Event], name: str) -> Sequence[Event]:
    """Return the calls of a collective that one of two processes makes after the last one of the other.

    None unless each call is surely made, once.
    """
    first, second = ([event for event in events if event.last == name] for events in (own, met))
    is_counted = all(event.is_sure and event.times == 1 for event in (*first, *second))
    return first[len(second) :] if is_counted else []


def _is_of_all(event: Event) -> bool:
    if event.name.endswith(_OF_LIBRARIES):
        return True
    is_collective = event.last in COLLECTIVES or event.last == "DistributedDataParallel"
    return is_collective and event.name.startswith(_OF_TORCH) and event.argument("group") is None


def _is_decided(code: Code, event: Event, one: Followed, other: Followed) -> bool:
    """Return whether known values part two processes, not only that less is known of the one that comes to an event."""
    call = _first_apart(event, other)
    module = code.module_of(call, event)
    if any(code.module_of(one, event).function_of(one) in other.skipped for one in event.path):
        return False
    later = event.path[event.path.index(call) + 1 :]
    tests = [test for each in later for test in tests_around(each, code.module_of(each, event))]
    tests += filter(asks_for_none, tests_around(call, module))
    if any(one.values.get(test) is UNKNOWN for test in tests if not is_periodic(test)):
        return False  # it may not be made at all
    return are_parted(call, module, one, other)


def _first_apart(event: Event, other: Followed) -> ast.Call:
    """Return the first of the calls that lead to an event which the other process does not make."""
    return next((call for call in event.path if call not in other.values), event.call)


def check_leaving_alone(code: Code) -> Iterator[Finding]:
    """Yield a warning for a loop that trains and that one process may leave, but never another one."""
    finder = finder_of(code)
    for one, other in itertools.permutations(code.followed_whole, 2):
        for module, test, node in _leaves(code):
            stays = isinstance(node, ast.While)
            if _ENDS_ALL.search(unparsed(test)):
                continue
            may_leave = one.values.get(test, stays) is UNKNOWN
            if may_leave and other.values.get(test) is stays and is_in_common_loop(finder, node, module):
                yield Finding(
                    "warning",
                    "left-by-one",
                    module.where(test),
                    "only rank 0 leaves this loop: the others wait for it in the next step, and the job would hang"
                    if one.process.rank == 0
                    else "one rank leaves this loop alone: the others wait for it, and the job would hang",
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
