"""Remember what a process does: calls of libraries, models and their states, and how gradients are scaled."""

from __future__ import annotations

import ast
from pathlib import PurePosixPath
from typing import Any

from jobsubmit.check.interpreter.attributes import Attributes
from jobsubmit.check.interpreter.memory import (
    DEVICE,
    GROUP,
    MORE,
    NAMESPACE,
    ClassValue,
    Container,
    External,
    FunctionValue,
    Method,
    Own,
    Partial,
    Record,
    Scope,
    plain,
)
from jobsubmit.check.interpreter.own import derived, is_wrapping, own_in
from jobsubmit.check.interpreter.process import (
    NOTED,
    NOTED_BY_ARGUMENT,
    READS,
    WRITES,
    WRITING_METHODS,
    is_optimizer,
    is_waiting,
)
from jobsubmit.check.interpreter.rehearsal import Rehearsal, Update, is_update
from jobsubmit.check.interpreter.scaling import (
    Scaled,
    adds_up,
    carrier_in,
    is_in_place,
    operator_of,
    power_of_number,
    power_of_product,
)
from jobsubmit.check.interpreter.trace import Event, Group, Inner, Made
from jobsubmit.check.interpreter.wrappers import Use, is_state
from jobsubmit.check.program.operations import UNKNOWN


class Noting(Attributes):
    """Remember what calls do beside what they return; what that is, is defined in the classes below."""

    def note_call(
        self, node: ast.Call, callee: Any, args: list[Any], keywords: dict[str, Any], *, is_open: bool
    ) -> None:
        """Remember a call of something that a library has."""
        if isinstance(callee, External):
            name = callee.name
        elif isinstance(callee, Method) and isinstance(callee.function, str) and isinstance(callee.owner, Record):
            kind = callee.owner.kind
            name = f"{kind.name if isinstance(kind, External) else '?'}.{callee.function}"
        elif isinstance(callee, Method) and isinstance(callee.owner, PurePosixPath):
            name, args = f"pathlib.Path.{callee.function}", [callee.owner, *args]
        elif isinstance(node.func, ast.Attribute) and not isinstance(callee, (FunctionValue, ClassValue, Method)):
            name = f"?.{node.func.attr}"
        else:
            return
        self._note_waiting(node, name, callee, args, keywords)
        last = name.rpartition(".")[2]
        is_noted = last in NOTED or last in WRITING_METHODS or name in READS or name in WRITES or is_optimizer(name)
        if not is_noted and not NOTED_BY_ARGUMENT & keywords.keys():
            return
        given = {key: _noted(value) for key, value in keywords.items()}
        if is_open:
            given[MORE] = UNKNOWN
        visible = plain(self.environment.content.get("CUDA_VISIBLE_DEVICES"))
        held = tuple(_noted(one) for one in args)
        self.happened += 1
        is_sure = not self.doubts and not self.handlers
        times = 2 if self.unknown_loops else 1
        path = tuple(self.path)
        owner = callee.owner if isinstance(callee, Method) else None
        self.trace.owners.setdefault(path, set()).add(owner.born if isinstance(owner, Record) else 0)
        self.trace.happen(Event(node, self.here, name, held, given, path, is_sure, visible, times))

    def _note_waiting(self, node: ast.Call, name: str, callee: Any, args: list[Any], keywords: dict[str, Any]) -> None:
        """Remember a call that waits for all processes, or changes the weights of a model."""
        last = name.rpartition(".")[2]
        if self.rehearsal is not None:
            self._note_gradients(self.rehearsal, node, last, args)
        self.is_wrapped = self.is_wrapped or is_wrapping(name)
        if last == "backward":
            self.scales.order.append(None)
            loss = carrier_in(callee) or carrier_in(tuple(args))
            self.scales.note(self.scales.losses, node, self.here, 0 if loss is None else loss.power)
        if last == "step" and is_update(node):
            self.scales.order.append(Update(node, self.here))
        is_collective = is_waiting(name) and keywords.get("group") is None
        is_step = last == "step" and name.startswith("torch.optim.") and "lr_scheduler" not in name
        if is_collective or last == "save" or (self.is_wrapped and (last == "backward" or is_step)):
            self.waits.names.append(last)
        if name.endswith("ReduceLROnPlateau.step") and own_in((*args, *keywords.values())):
            self.waits.decide(node, self.here, "step", ["step"])

    def note_model(self, node: ast.Call, callee: Any, args: list[Any], keywords: dict[str, Any], scope: Scope) -> None:
        """Remember a call of a model with gradients, or of its state."""
        called = node.func.attr if isinstance(node.func, ast.Attribute) else ""
        if is_state(called) and isinstance(node.func, ast.Attribute):
            owner = node.func.value
            is_inner = isinstance(owner, ast.Attribute) and owner.attr == "module"
            model = self.peek(owner.value if is_inner and isinstance(owner, ast.Attribute) else owner, scope)
            is_strict = keywords.get("strict", True) is True
            self.wrappers.use(model, is_inner, Use(called, node, self.here, is_strict, args[0] if args else None))
        elif not self.without_gradients:
            is_inner = called == "module" and isinstance(node.func, ast.Attribute)
            model = self.peek(node.func.value, scope) if is_inner and isinstance(node.func, ast.Attribute) else callee
            self.wrappers.use(model, is_inner, Use("", node, self.here))

    def _note_gradients(self, rehearsal: Rehearsal, node: ast.Call, last: str, args: list[Any]) -> None:
        if last == "backward":
            rehearsal.compute(node, self.here)
        elif last == "set_requires_gradient_sync" and args:
            rehearsal.is_switched = args[0] if isinstance(args[0], bool) else None
        elif is_update(node):
            rehearsal.update(node, self.here)

    def put_aside(self, node: ast.Call, name: str, args: list[Any], scope: Scope) -> None:
        """Remember what is added to an entry that is not known: `parts[kind].append(gradient)`."""
        is_entry = isinstance(node.func, ast.Attribute) and isinstance(node.func.value, ast.Subscript)
        if name in ("append", "extend", "add") and args and is_entry and isinstance(node.func, ast.Attribute):
            entry = node.func.value
            held = self.peek(entry.value, scope) if isinstance(entry, ast.Subscript) else UNKNOWN
            if isinstance(held, Container):
                held.own = held.own or carrier_in(args[0])

    def scaled_by_call(
        self, node: ast.Call, made: Any, callee: Any, call: tuple[str, list[Any], dict[str, Any]], scope: Scope
    ) -> Any:
        """Return what a call makes with its scale; note sums over all processes, and factors of gradients."""
        name, args, keywords = call
        last = name.rpartition(".")[2]
        if (last == "all_reduce" or last.startswith("all_reduce_")) and args:
            is_of_all = keywords.get("group", args[2] if len(args) > 2 else None) is None  # noqa: PLR2004
            self._sum(node, args[0], _operation(args, keywords) if is_of_all else "?", scope)
            return made
        op = operator_of(last)
        if op is None or not (args or keywords):
            return made
        own = callee if isinstance(callee, Own) else carrier_in(args[0])
        number = args[-1] if args else next(iter(keywords.values()))
        given = node.args[-1] if node.args else node.keywords[0].value
        factor = carrier_in(number) if number is not own else None
        is_exact = own is not None and own.is_gradient
        known = power_of_number(number, given, self.process, is_exact=is_exact)
        power = factor.power if factor is not None else known
        if own is None or power == 0:
            return made
        after = power_of_product(op, (own.power, power))
        if own.is_gradient:
            self.note_factor(node, own.power, after, scope)
        if is_in_place(last):
            for one in own.line():
                one.power = after
        return derived(UNKNOWN, own, power=after) if made is UNKNOWN or isinstance(made, Own) else made

    def _sum(self, node: ast.Call, summed: Any, operation: str, scope: Scope) -> None:
        """Remember that all processes add up what they have; from then on it is too large by their number."""
        power = adds_up("all_reduce", operation)
        own = carrier_in(summed)
        if own is not None and own.is_gradient:
            self.scales.order.append(Scaled(node, scope.module, power))
            self.scales.note(self.scales.sums, node, scope.module, power)
        held = summed.content if isinstance(summed, Container) and isinstance(summed.content, list) else [summed]
        for part in (part for one in held if isinstance(one, Own) for part in one.line()):
            part.power = None if part.power is None or power is None else part.power + power
        if own is None and node.args and isinstance(node.args[0], (ast.Name, ast.Attribute)):
            self.assign(node.args[0], Own(is_common=True, power=power), scope)


def _operation(args: list[Any], keywords: dict[str, Any]) -> str:
    """Return the name of the operation of a collective; empty for its default, a sum."""
    given = keywords.get("op", args[1] if len(args) > 1 else None)
    if given is None:
        return ""
    return given.name.rpartition(".")[2] if isinstance(given, External) else "?"


def _noted(value: Any) -> Any:
    """Return an argument as it is remembered: an object by the name of its class, and what a group of processes is."""
    if isinstance(value, FunctionValue) and value.scope.function is not None and value.kind != "wraps":
        return Inner(getattr(value.node, "name", "<lambda>"))
    if isinstance(value, Record) and value.entries is None and value.kind not in (NAMESPACE, DEVICE):
        if GROUP in value.content:
            return Group(tuple(value.content[GROUP]))
        return Made(value.kind.name if isinstance(value.kind, External) else value.kind.node.name)
    return plain(value)


def is_followed(callee: Any) -> bool:
    """Return whether a call is followed, so that what it returns is known as well as it can be."""
    if isinstance(callee, (Method, Partial)):
        return is_followed(callee.function)
    is_callable = isinstance(callee, Record) and isinstance(callee.kind, ClassValue) and callee.kind.find("__call__")
    return isinstance(callee, (FunctionValue, ClassValue)) or bool(is_callable)
