"""Follow the loops of a program: pass by pass, or until a pass changes nothing that the one before it had."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cached_property, partial
from typing import Any

from jobsubmit.check.interpreter.branches import Branches, Frame, asks_for_none
from jobsubmit.check.interpreter.memory import ClassValue, FunctionValue, Record, Scope
from jobsubmit.check.interpreter.own import item_of, own_in
from jobsubmit.check.interpreter.rehearsal import (
    LONG,
    MOST_PASSES,
    MOST_STEPS,
    MOST_UPDATES,
    PARTS,
    Rehearsal,
    computes_gradients,
    is_training_loop,
    item_of_pass,
    looped,
    same_as_looped,
    switches_exchange,
)
from jobsubmit.check.interpreter.signals import BREAK, CONTINUE, LEFT, Ended, Raised
from jobsubmit.check.program.operations import UNKNOWN
from jobsubmit.check.program.tree import walk

_LONGEST_LOOP = 128  # passes that are followed one by one
_FIRST_PASSES, _MOST_STEPS_OF_PASS = 3, 400  # passes that are followed one by one in any case, and if they are short
_MOST_PASSES = (5, 3, 2)  # of a loop whose number of passes is not known, of one in it, and of any further inside


class Loops(Branches):
    """Follow loops; other statements are defined in the class below."""

    @cached_property
    def switches_exchange(self) -> bool:
        return switches_exchange(self.program)

    def follow_for(self, node: ast.For | ast.AsyncFor, scope: Scope) -> Any:
        held = self.value(node.iter, scope)
        items = self.items(held)
        if items is None or len(items) > _LONGEST_LOOP:
            item = item_of(self._gone_through(held))
            if self.rehearsal is not None and items is None and computes_gradients(self.program, node):
                return self._rehearse_parts(self.rehearsal, node, scope, item)
            if items is not None or type(held) is range:
                self._rehearse(node, scope, lambda number: (items or held)[number])
            else:
                self._rehearse(node, scope, lambda number: item_of_pass(node, item, number))
            return self._loop_of_unknown(node, scope, lambda: self.assign(node.target, item, scope))
        with self._loop():
            before, started = self.steps, self.started
            for count, item in enumerate(items):
                is_long = count >= _FIRST_PASSES and self.steps - before > count * _MOST_STEPS_OF_PASS
                if is_long and self.started == started:
                    return self._loop_of_unknown(node, scope, lambda: self.assign(node.target, UNKNOWN, scope))
                self.assign(node.target, item, scope)
                signal = self._pass(node.body, scope)
                if signal is not None:
                    return None if signal is BREAK else signal
        return self.block(node.orelse, scope)

    def _gone_through(self, held: Any) -> Any:
        """Return what a loop goes through where an object of the program says so."""
        begins = held.kind.find("__iter__") if isinstance(held, Record) and isinstance(held.kind, ClassValue) else None
        if self.process is None or not isinstance(begins, FunctionValue):
            return held
        found = self.invoke(begins, [held], {}, is_open=False)
        if found is held and isinstance(held.kind.find("__next__"), FunctionValue):
            return self.invoke(held.kind.find("__next__"), [held], {}, is_open=False)
        return found

    @contextmanager
    def _loop(self) -> Iterator[None]:
        """Follow a loop: until its end, what was seen in it may be otherwise in another pass."""
        self.unfinished.append(self.trace.size)
        self.waits.loops.append(len(self.waits.names))
        try:
            yield
        finally:
            self.unfinished.pop()
            self.waits.loops.pop()

    def _pass(self, body: Sequence[ast.stmt], scope: Scope) -> Any:
        """Follow one pass of a loop; what leaves it in one branch only is joined with what does not."""
        frame = Frame([], [], [], [])
        self.loops.append(frame)
        self.waits.leaving.append([])
        try:
            signal = self.unless_left(frame, partial(self.block, body, scope))
        finally:
            self.loops.pop()
            self.waits.leave(self.waits.leaving.pop())
            self.doubts -= len(frame.doubts)
        if frame.left:
            changes = [changes for _, changes in frame.left]
            self.memory.join(changes, with_current=signal is not LEFT, otherwise=frame.otherwise)
            if signal is LEFT:
                return BREAK if all(one is BREAK for one, _ in frame.left) else None
        return None if signal is CONTINUE else signal

    def _rehearse(
        self, loop: ast.For | ast.AsyncFor | ast.While, scope: Scope, item: Callable[[int], Any] | None
    ) -> None:
        """Follow the first passes of a loop that trains, to see which gradients are exchanged; take them back then."""
        is_asked = self.process is not None and self.process.rank == 0 and self.rehearsal is None
        if not is_asked or not self.switches_exchange or not is_training_loop(self.program, loop):
            return
        rehearsal = self._rehearsed(loop, scope, item, LONG)
        lost = rehearsal.lost()
        if lost is None and item is not None and rehearsal.parts_of_step > 1:
            # One more step with fewer parts, at the end of the data.
            lost = self._rehearsed(loop, scope, item, rehearsal.parts_of_step + 1).lost_at_end()
        if lost is not None:
            self.unaveraged.append(lost)

    def _rehearsed(
        self,
        loop: ast.For | ast.AsyncFor | ast.While,
        scope: Scope,
        item: Callable[[int], Any] | None,
        length: int,
    ) -> Rehearsal:
        """Follow the first passes of a loop that has `length` of them; return what happens in them."""
        rehearsal = self.rehearsal = Rehearsal(self.unknown_loops)
        words, lengths = ((), ()) if isinstance(loop, ast.While) else same_as_looped(loop, scope.module)
        rehearsal.lengths.update(dict.fromkeys(words, length))
        end = self.steps + MOST_STEPS

        def run() -> None:
            for name in lengths:
                self.set_name(name, length, scope)
            for number in range(min(length, MOST_PASSES)):
                if item is not None and isinstance(loop, (ast.For, ast.AsyncFor)):
                    self.assign(loop.target, item(number), scope)
                elif isinstance(loop, ast.While) and self.truth(loop.test, scope) is False:
                    return
                signal = self._pass(loop.body, scope)
                if signal is not None or self.steps > end or rehearsal.updates >= MOST_UPDATES:
                    return

        try:
            with suppress(Raised, Ended, LookupError):
                self.memory.branch(run)
        finally:
            self.rehearsal = None
        return rehearsal

    def _rehearse_parts(self, rehearsal: Rehearsal, loop: ast.For | ast.AsyncFor, scope: Scope, item: Any) -> Any:
        """Follow a loop over the parts of one step, as if these were three."""
        rehearsal.lengths[looped(loop.iter)] = PARTS
        rehearsal.parts += 1
        try:
            for number in range(PARTS):
                self.assign(loop.target, item_of_pass(loop, item, number), scope)
                signal = self._pass(loop.body, scope)
                if signal is not None:
                    return None if signal is BREAK else signal
        finally:
            rehearsal.parts -= 1
        return None

    def _loop_of_unknown(
        self, node: ast.For | ast.AsyncFor | ast.While, scope: Scope, begin: Callable[[], None]
    ) -> Any:
        """Follow a loop with an unknown number of passes, until a pass changes nothing that the one before it had."""

        def one_pass() -> Any:
            begin()
            signal = self._pass(node.body, scope)
            return None if signal is BREAK else signal

        passes = _MOST_PASSES[min(self.unknown_loops, len(_MOST_PASSES) - 1)]
        self.unknown_loops += 1
        try:
            with self._loop():
                for _ in range(passes):
                    self.either(one_pass, lambda: None, is_doubtful=False)
                    if not self.has_changed:
                        break
                else:
                    self._forget_numbers(node, scope)
        finally:
            self.unknown_loops -= 1
        return self.block(node.orelse, scope) if node.orelse else None

    def _forget_numbers(self, loop: ast.For | ast.AsyncFor | ast.While, scope: Scope) -> None:
        """Forget the numbers of variables that a loop sets: in a later pass, it may come to where it sets them."""
        stored = {
            node.id
            for one in loop.body
            for node in walk(one)
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
        }
        for name in stored & scope.names.keys():
            if type(scope.names[name]) in (int, float):
                self.set_name(name, UNKNOWN, scope)

    def follow_while(self, node: ast.While, scope: Scope) -> Any:
        with self._loop():
            for _ in range(_LONGEST_LOOP):
                value = self.value(node.test, scope)
                known = self.truth_of(value)
                if known is None or (known and isinstance(node.test, ast.Constant)):
                    break
                if not known:
                    return self.block(node.orelse, scope)
                signal = self._pass(node.body, scope)
                if signal is not None:
                    return None if signal is BREAK else signal
        self._rehearse(node, scope, None)
        start = len(self.waits.names)
        signal = self._loop_of_unknown(node, scope, lambda: None)
        if own_in(self.value(node.test, scope)) and not asks_for_none(node.test):
            self.waits.leave([(node.test, scope.module, "leave", start)])
        return signal
