"""Follow the branches of a program: what they leave behind is joined where it is not known which one is executed."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import Any, NamedTuple

from jobsubmit.check.interpreter.calls import Calls
from jobsubmit.check.interpreter.memory import Changes, Own, Scope, plain
from jobsubmit.check.interpreter.signals import BREAK, CONTINUE, LEFT, Ended, Raised, Return, Yielded
from jobsubmit.check.program.module import Module, unparsed
from jobsubmit.check.program.operations import UNKNOWN

_RESULT = re.compile(r"loss|logit|output|pred")
_PERIOD = re.compile(r"step|epoch|iter|interval|period|freq|every|best|last|save")  # what holds now and then


class Frame(NamedTuple):
    """A call, or a loop, that is being followed: how it was left before its end, and with which changes.

    `doubts` has an entry for each condition under which it is left; `yielded` is what a generator yields.
    `owns` are the values of one process by which it is left.
    """

    left: list[tuple[Any, Changes]]
    doubts: list[int]
    yielded: list[Yielded]
    owns: list[Own]

    @property
    def otherwise(self) -> Any:
        """Return what differs between the ways in which it is left."""
        return Own(is_judged=self.owns[0].is_judged) if self.owns else UNKNOWN


class Branches(Calls):
    """Follow branches; loops and other statements are defined in the classes below."""

    def block(self, body: Sequence[ast.stmt], scope: Scope) -> Any:
        raise NotImplementedError

    def either(self, *branches: Callable[[], Any], is_doubtful: bool = True, otherwise: Any = UNKNOWN) -> Any:
        """Follow branches of which only one is executed; return how they are left, if all of them are.

        Unless it `is_doubtful`, the first one is executed, as the body of a loop is. What differs after them is
        `otherwise`.
        """
        self.doubts += is_doubtful
        self.branches += 1
        try:
            return self._either(branches, otherwise)
        finally:
            self.doubts -= is_doubtful
            self.branches -= 1

    def _either(self, branches: Sequence[Callable[[], Any]], otherwise: Any) -> Any:
        live: list[Changes] = []
        errors: list[Exception] = []
        signals: list[Any] = []
        for run in branches:
            try:
                signal, changes = self.memory.branch(run)
            except (Raised, Ended) as error:
                errors.append(error)
                continue
            if signal is None:
                live.append(changes)
            elif signal is not LEFT:
                frame = self.functions[-1] if isinstance(signal, Return) else self.loops[-1]
                frame.left.append((signal, changes))
                signals.append(signal)
            else:
                signals.append(signal)
        if live:
            if any(isinstance(signal, Return) for signal in signals) and self.stack:
                self.doubts += 1  # what follows in this function is executed only if it was not left
                self.functions[-1].doubts.append(1)
            if self.loops and any(signal in (BREAK, CONTINUE) for signal in signals):
                self.doubts += 1  # and in this pass of a loop only if that goes on
                self.loops[-1].doubts.append(1)
            self.has_changed = self.memory.join(live, otherwise=otherwise)
            return None
        if not signals:
            raise errors[0]
        return LEFT

    def follow_if(self, node: ast.If, scope: Scope) -> Any:
        value = self.value(node.test, scope)
        known = self.truth_of(value)
        if known is not None:
            return self.block(node.body if known else node.orelse, scope)
        branches = partial(self.block, node.body, scope), partial(self.block, node.orelse, scope)
        at = self.rehearsal
        is_rehearsed = at is not None and self.unknown_loops == at.depth and not at.parts
        if is_rehearsed and (likely := self._likely(node, scope)) is not None:
            return branches[0]() if likely else branches[1]()
        if isinstance(value, Own) and not value.is_common and not _asks_for_result(node.test):
            return self._decide(node.test, value, scope.module, *branches)
        is_doubtful = not self._is_periodic(node.test, scope)
        if self.rehearsal is None:
            return self.either(*branches, is_doubtful=is_doubtful)
        with self.rehearsal.unclear():
            return self.either(*branches, is_doubtful=is_doubtful)

    def _is_periodic(self, test: ast.expr, scope: Scope) -> bool:
        """Return whether a condition seems to hold now and then, as far as it is not known."""
        if isinstance(test, ast.BoolOp):
            return all(is_periodic(one) for one in test.values if self.truth(one, scope) is None)
        return is_periodic(test)

    def _likely(self, node: ast.If, scope: Scope) -> bool | None:
        """Return whether a condition that is not known holds in most passes of a loop; None if that is unclear."""
        if isinstance(node.body[-1], (ast.Continue, ast.Break, ast.Return, ast.Raise)):
            return False
        if isinstance(node.test, ast.BoolOp):
            known = [self.truth(one, scope) for one in node.test.values]
            if isinstance(node.test.op, ast.Or) and False in known:
                return False
            if isinstance(node.test.op, ast.And) and True in known:
                return True
        is_last = isinstance(node.test, ast.Compare) and "len(" in unparsed(node.test)
        return False if is_last else None

    def _decide(self, test: ast.expr, own: Own, module: Module, *branches: Callable[[], Any]) -> Any:
        """Follow the branches of a condition that each process decides by what only it knows."""
        waits = self.waits
        found: list[tuple[list[str], Any]] = []

        def noted(run: Callable[[], Any]) -> Any:
            start = len(waits.names)
            signal = run()
            found.append((list(waits.since(start)), signal))
            return signal

        result = self.either(*(partial(noted, run) for run in branches), otherwise=Own(is_judged=own.is_judged))
        if len(found) == len(branches):
            (names, signal), (others, other) = found
            apart = (Counter(names) - Counter(others)) + (Counter(others) - Counter(names))
            waits.decide(test, module, "only", (name for name in apart if name != "save"))
            if own.is_judged and "save" in apart:
                waits.decide(test, module, "save", ["save"])
            for one in (signal, other):
                if one is not None and one is not LEFT:
                    (self.functions if isinstance(one, Return) else self.loops)[-1].owns.append(own)
                if one is BREAK and waits.loops and not asks_for_none(test):
                    waits.leaving[-1].append((test, module, "leave", waits.loops[-1]))
                elif one is CONTINUE or isinstance(one, Return):
                    waits.leaving[-1].append((test, module, "skip", len(waits.names)))
        return result

    def follow_match(self, node: ast.Match, scope: Scope) -> Any:
        subject = plain(self.value(node.subject, scope))
        unclear: list[Callable[[], Any]] = []
        for case in node.cases:
            known = _matches(case.pattern, subject) if case.guard is None else None
            if known and not unclear:
                return self.block(case.body, scope)
            if known is not False:
                unclear.append(partial(self.block, case.body, scope))
        return self.either(*unclear, lambda: None) if unclear else None

    def unless_left(self, frame: Frame, run: Callable[[], Any]) -> Any:
        """Follow statements; where they end in an error, but may have been left before, suppose that they were."""
        try:
            return run()
        except (Raised, Ended):
            if not frame.left:
                raise
            return LEFT


def asks_for_none(test: ast.expr) -> bool:
    """Return whether a condition is that a loader has no more: all of them have as many batches."""
    return isinstance(test, ast.Compare) and isinstance(test.ops[0], (ast.Is, ast.IsNot))


def _asks_for_result(test: ast.expr) -> bool:
    """Return whether a condition is that a model returned a loss: whether it does is the same in all processes."""
    return asks_for_none(test) and _RESULT.search(unparsed(test)) is not None


@lru_cache(maxsize=10_000)
def is_periodic(test: ast.expr) -> bool:
    """Return whether a condition seems to hold now and then."""
    return _PERIOD.search(unparsed(test)) is not None


def _matches(pattern: ast.pattern, subject: Any) -> bool | None:
    """Return whether a value fits a pattern; None if that is not known."""
    match pattern:
        case ast.MatchAs(pattern=None):
            return True
        case ast.MatchValue(value=ast.Constant(value=value)):
            return None if subject is UNKNOWN else bool(subject == value)
        case ast.MatchSingleton(value=value):
            return None if subject is UNKNOWN else subject is value
        case ast.MatchOr(patterns=patterns):
            found = [_matches(one, subject) for one in patterns]
            return True if True in found else None if None in found else False
    return None
