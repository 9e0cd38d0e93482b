"""Follow the statements of a program, from module to module and from function to function."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache, partial
from typing import Any

from jobsubmit.check.interpreter.branches import Frame
from jobsubmit.check.interpreter.calls import name_of_decorator
from jobsubmit.check.interpreter.loops import Loops
from jobsubmit.check.interpreter.memory import (
    MANAGER,
    ClassValue,
    Container,
    External,
    FunctionValue,
    ModuleValue,
    Record,
    Scope,
)
from jobsubmit.check.interpreter.rehearsal import is_off
from jobsubmit.check.interpreter.signals import BREAK, CONTINUE, LEFT, Ended, OutOfTimeError, Raised, Return
from jobsubmit.check.interpreter.storing import names_stored
from jobsubmit.check.program.module import FUNCTIONS, Module, origin, unparsed
from jobsubmit.check.program.operations import UNKNOWN
from jobsubmit.check.program.tree import children

_DEEPEST = 40  # calls inside each other
_MOST_AGAIN, _MOST_AGAIN_PERHAPS = 8, 2  # calls of the same function inside each other, and if they may not be made
_MOST_CALLS, _MOST_STEPS_OF_ONE = 24, 8_000
_MOST_CALLS_IN_LOOP, _MOST_STEPS_IN_LOOP = 6, 600  # of one without events, in a loop with an unknown number of passes


class Machine(Loops):
    """Follow the statements of a program; see `run`."""

    ended_by = ""

    def run(self) -> None:
        """Follow the boot file from its first line on, as far as the steps that are allowed lead."""
        try:
            self.module_value(self.program.boot)
            self.follow_what_libraries_call()
        except (Raised, Ended) as error:
            self.ended_by = type(error).__name__
        except (OutOfTimeError, RecursionError):
            self.ended_by = "time"
            self.trace.forget_after(self.trace.size if self.lost_after is None else self.lost_after)

    def module_value(self, module: Module) -> ModuleValue:
        """Return a module; the first time, follow it."""
        if module.name not in self.modules:
            value = ModuleValue(module, Scope(module))
            self.modules[module.name] = value
            value.scope.names.update({"__name__": module.name, "__file__": module.path})
            self.functions.append(Frame([], [], [], []))
            self.waits.leaving.append([])
            try:
                self.block(module.tree.body, value.scope)
            except Raised:
                if module is self.program.boot:
                    raise
            finally:
                self.functions.pop()
                self.waits.leaving.pop()
        return self.modules[module.name]

    def block(self, body: Sequence[ast.stmt], scope: Scope) -> Any:
        """Follow statements; return how they are left before their end, if they are."""
        for number, statement in enumerate(body, 1):
            self.step()
            yielded = self._yielded()
            signal = self._statements[type(statement)](self, statement, scope)
            if signal is not None:
                return signal
            if self._yielded() > yielded and is_manager(self.stack[-1]):
                self._later(body[number:], scope)
                return None
        return None

    def _yielded(self) -> int:
        """Return how often the function that is followed has yielded."""
        return len(self.functions[-1].yielded) if self.stack else 0

    def _later(self, body: Sequence[ast.stmt], scope: Scope) -> None:
        """Follow what a context manager does at its end: what it changes does not hold before."""
        has_group = self.has_group
        with suppress(Raised, Ended):
            self.memory.branch(partial(self.block, body, scope))
        self.has_group = has_group

    def invoke(self, function: FunctionValue, args: list[Any], keywords: dict[str, Any], *, is_open: bool) -> Any:
        """Follow a call of a function of the program; return what it returns."""
        again = sum(1 for one in self.stack if one is function.node)
        most_again = _MOST_AGAIN_PERHAPS if self.doubts else _MOST_AGAIN
        if len(self.stack) >= _DEEPEST or again >= most_again or self._is_costly(function.node):
            self._forget_what_is_stored(function, [*args, *keywords.values()])
            return UNKNOWN
        before, happened = self.steps, self.happened
        scope = Scope(function.module, function.scope, function.owner)
        scope.function = function
        self._bind(function, scope, args, keywords, is_open=is_open)
        if isinstance(function.node, ast.Lambda):
            return self.value(function.node.body, scope)
        self.trace.entered.add(function.node)
        self.stack.append(function.node)
        frame = Frame([], [], [], [])
        self.functions.append(frame)
        self.waits.leaving.append([])
        without = has_no_gradients(function.node)
        self.without_gradients += without
        try:
            signal = self.unless_left(frame, partial(self.block, function.node.body, scope))
        except RecursionError:
            self.trace.skipped.add(function.node)
            return UNKNOWN
        finally:
            self.stack.pop()
            self.functions.pop()
            self.waits.leave(self.waits.leaving.pop())
            self.without_gradients -= without
            self.doubts -= len(frame.doubts)
            calls, steps = self.costs.get(function.node, (0, 0))
            self.costs[function.node] = (calls + 1, steps + self.steps - before)
            if self.happened > happened:
                self.eventful.add(function.node)
        return self._returned(signal, frame, function.node)

    def _forget_what_is_stored(self, function: FunctionValue, given: list[Any]) -> None:
        """Forget what a call that is not followed may change of the objects that it gets."""
        if function.node not in self.stored:
            self.stored[function.node] = names_stored(self.program, function.node)
        names = self.stored[function.node]
        for one in given:
            if names is None or not isinstance(one, Record) or one.entries is not None:
                self.forget([one])
                continue
            self.memory.touch(one)
            line = one.kind.line() if isinstance(one.kind, ClassValue) else []
            inherited = {name: value for kind in line for name, value in kind.scope.names.items()}
            held = {name: value for name, value in inherited.items() if not isinstance(value, FunctionValue)}
            one.content.update((name, UNKNOWN) for name in names & {*one.content, *held})

    def _is_costly(self, function: ast.AST) -> bool:
        """Return whether a function was followed so often, and for so long, that it is not followed again."""
        calls, steps = self.costs.get(function, (0, 0))
        is_costly = calls > _MOST_CALLS and steps > _MOST_STEPS_OF_ONE
        if self.unknown_loops and function not in self.eventful:
            is_costly = is_costly or (calls > _MOST_CALLS_IN_LOOP and steps > _MOST_STEPS_IN_LOOP)
        if is_costly:
            self.trace.skipped.add(function)
        return is_costly

    def _returned(self, signal: Any, frame: Frame, function: ast.AST) -> Any:
        ends = [(one.value, changes) for one, changes in frame.left if isinstance(one, Return)]
        goes_on = signal is not LEFT
        values = [value for value, _ in ends]
        if goes_on:
            values.append(signal.value if isinstance(signal, Return) else None)
        if ends:
            self.memory.join([changes for _, changes in ends], with_current=goes_on, otherwise=frame.otherwise)
        if not values:
            raise Ended
        if is_generating(function):
            made = Record(MANAGER, is_open=True)
            values = [one.value for one in frame.yielded]
            made.content["entered"] = self.either_value(values) if values else UNKNOWN
            here = (self.doubts, self.unknown_loops)
            if all((one.doubts, one.unknown_loops) == here for one in frame.yielded) and not frame.left:
                made.entries = Container(values)
            if self.rehearsal is not None and frame.yielded:
                is_one = len(frame.yielded) == 1
                made.content["off"] = self.rehearsal.yielded_without[-1] if is_one else None
            return made
        return self.either_value(values, frame.otherwise)

    def _bind(
        self, function: FunctionValue, scope: Scope, args: list[Any], keywords: dict[str, Any], *, is_open: bool
    ) -> None:
        """Give the parameters of a function their values."""
        given = function.node.args
        own = [one.arg for one in (*given.posonlyargs, *given.args)]
        names = scope.names
        for name in (*own, *(one.arg for one in given.kwonlyargs)):
            names[name] = UNKNOWN if is_open else function.defaults.get(name, UNKNOWN)
        names.update(zip(own, args, strict=False))
        rest = {name: value for name, value in keywords.items() if name not in names}
        names.update((name, value) for name, value in keywords.items() if name in names)
        if given.vararg is not None:
            extra = args[len(own) :]
            names[given.vararg.arg] = UNKNOWN if is_open else tuple(extra)
        if given.kwarg is not None:
            names[given.kwarg.arg] = Container(rest, is_open=is_open)

    def _try(self, node: ast.Try, scope: Scope) -> Any:
        before = self.unknown_calls

        def body() -> Any:
            signal = self.block(node.body, scope)
            return self.block(node.orelse, scope) if signal is None else signal

        yielded = self._yielded()
        try:
            signal = self._tried(node, body, scope, before)
        finally:
            last = None
            if self._yielded() > yielded and is_manager(self.stack[-1]):
                self._later(node.finalbody, scope)
            else:
                last = self.block(node.finalbody, scope)
        return signal if last is None else last

    def _tried(self, node: ast.Try, body: Callable[[], Any], scope: Scope, before: int) -> Any:
        handlers = [partial(self._handle, one, scope) for one in node.handlers]
        own = [self._imports_own(one, scope.module) for one in (node.body, *(one.body for one in node.handlers))]
        if own[0]:
            handlers = []
        elif True in own:
            return handlers[own.index(True) - 1]()
        self.tries += 1
        try:
            signal, changes = self.memory.branch(body)
        except Raised as error:
            fitting = [one for one in node.handlers if self._catches(one, error, scope)]
            if not fitting:
                raise
            return self._handle(fitting[0], scope)
        finally:
            self.tries -= 1
        if self.unknown_calls == before or not handlers:
            self.memory.join([changes])
            return signal

        def again() -> Any:
            self.memory.join([changes])
            return signal

        return self.either(again, *handlers)

    def _imports_own(self, body: Sequence[ast.stmt], module: Module) -> bool:
        """Return whether statements only import, and a module of the program is there: then they do not fail."""
        imports = [one for one in body if isinstance(one, ast.ImportFrom)]
        return len(imports) == len(body) and any(origin(one, module) in self.program.modules for one in imports)

    def _handle(self, handler: ast.ExceptHandler, scope: Scope) -> Any:
        if handler.name:
            self.set_name(handler.name, UNKNOWN, scope)
        self.handlers += 1
        try:
            return self.block(handler.body, scope)
        finally:
            self.handlers -= 1

    def _catches(self, handler: ast.ExceptHandler, error: Raised, scope: Scope) -> bool:
        """Return whether a handler is for an error, by its name; one of an unknown class is."""
        if handler.type is None:
            return True
        named = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
        kinds = [self.value(one, scope) for one in named]
        names = {one.name.rpartition(".")[2] if isinstance(one, External) else "?" for one in kinds}
        return bool(names & {error.kind, "Exception", "BaseException", "?"}) or (
            error.kind in ("KeyError", "IndexError") and "LookupError" in names
        )

    def _with(self, node: ast.With | ast.AsyncWith, scope: Scope) -> Any:
        contexts = []
        for item in node.items:
            entered = self.value(item.context_expr, scope)
            contexts.append(entered)
            if isinstance(entered, Record) and entered.kind == MANAGER:
                entered = entered.content["entered"]
            if isinstance(entered, Record) and isinstance(entered.kind, ClassValue) and entered.kind.find("__enter__"):
                entered = self.call(self.attribute(entered, "__enter__"), [], {})
            if item.optional_vars is not None:
                self.assign(item.optional_vars, entered, scope)
        without = any(self._switches_gradients_off(item.context_expr, scope) for item in node.items)
        self.without_gradients += without
        off = [is_off(one) for one in contexts]
        if self.rehearsal is not None:
            self.rehearsal.without.append(None if None in off else any(off))
        try:
            return self.block(node.body, scope)
        finally:
            self.without_gradients -= without
            if self.rehearsal is not None:
                self.rehearsal.without.pop()

    def _switches_gradients_off(self, node: ast.expr, scope: Scope) -> bool:
        if isinstance(node, ast.Call) and node.args and name_of_decorator(node) == "set_grad_enabled":
            return self.truth(node.args[0], scope) is False
        return is_without_gradients(node)

    def _assign(self, node: ast.Assign, scope: Scope) -> None:
        value = self.value(node.value, scope)
        for target in node.targets:
            self.assign(target, value, scope)

    def _annotated(self, node: ast.AnnAssign, scope: Scope) -> None:
        if node.value is not None:
            self.assign(node.target, self.value(node.value, scope), scope)

    def _augmented(self, node: ast.AugAssign, scope: Scope) -> None:
        before = self.loaded(node.target, scope)
        values = before, self.value(node.value, scope)
        self.assign(node.target, self.scaled(node, values, (node.target, node.value), scope), scope)

    def _delete(self, node: ast.Delete, scope: Scope) -> None:
        for target in node.targets:
            self.delete(target, scope)

    def _return(self, node: ast.Return, scope: Scope) -> Return:
        return Return(None if node.value is None else self.value(node.value, scope))

    def _raise(self, node: ast.Raise, scope: Scope) -> Return | None:
        raised = node.exc.func if isinstance(node.exc, ast.Call) else node.exc
        if isinstance(node.exc, ast.Call):
            self.value(node.exc, scope)
        if isinstance(raised, ast.Name) and raised.id == "NotImplementedError":
            return Return(UNKNOWN)  # of a class above the one that the object has
        if self.is_surely_executed():
            self.failed[node] = scope.module
        if self.is_lenient and not self.tries:
            return None
        raise Raised(unparsed(raised).rpartition(".")[2] if raised is not None else "Exception")

    def _assert(self, node: ast.Assert, scope: Scope) -> None:
        if self.truth(node.test, scope) is not False:
            return
        if self.is_surely_executed():
            self.failed[node] = scope.module
        if self.tries or not self.is_lenient:
            raise Raised("AssertionError")

    def _expression(self, node: ast.Expr, scope: Scope) -> None:
        self.value(node.value, scope)

    def _global(self, node: ast.Global | ast.Nonlocal, scope: Scope) -> None:
        pass  # functions know their own; see `globals_of`

    def _function(self, node: ast.FunctionDef | ast.AsyncFunctionDef, scope: Scope) -> None:
        made: Any = self.function_value(node, scope)
        for decorator in reversed(node.decorator_list):
            made = self.decorated(made, decorator, scope)
        self.set_name(node.name, made, scope)

    def _class(self, node: ast.ClassDef, scope: Scope) -> None:
        bases = tuple(self.value(one, scope) for one in node.bases)
        own = Scope(scope.module, scope)
        made = ClassValue(node, scope.module, bases, own)
        own.owner = made
        own.names["__name__"] = node.name
        self.block(node.body, own)
        self.finish_class(made)
        held: Any = made
        for decorator in reversed(node.decorator_list):
            held = self.decorated(held, decorator, scope)
        self.set_name(node.name, held, scope)

    def _import(self, node: ast.Import, scope: Scope) -> None:
        for alias in node.names:
            if alias.asname:
                self.set_name(alias.asname, self.imported(alias.name), scope)
            else:
                top = alias.name.partition(".")[0]
                self.imported(alias.name)
                self.set_name(top, self.imported(top), scope)

    def _import_from(self, node: ast.ImportFrom, scope: Scope) -> None:
        base = origin(node, scope.module)
        held = self.imported(base)
        for alias in node.names:
            if alias.name == "*":
                if isinstance(held, ModuleValue):
                    for name, value in list(held.scope.names.items()):
                        if not name.startswith("_"):
                            self.set_name(name, value, scope)
                continue
            self.set_name(alias.asname or alias.name, self.member(held, base, alias.name), scope)

    def _nothing(self, node: ast.stmt, scope: Scope) -> None:
        pass

    _statements: Mapping[type, Callable[[Any, Any, Scope], Any]] = {
        ast.If: Loops.follow_if,
        ast.For: Loops.follow_for,
        ast.AsyncFor: Loops.follow_for,
        ast.While: Loops.follow_while,
        ast.Try: _try,
        ast.With: _with,
        ast.AsyncWith: _with,
        ast.Match: Loops.follow_match,
        ast.Assign: _assign,
        ast.AnnAssign: _annotated,
        ast.AugAssign: _augmented,
        ast.Delete: _delete,
        ast.Return: _return,
        ast.Raise: _raise,
        ast.Assert: _assert,
        ast.Expr: _expression,
        ast.Global: _global,
        ast.Nonlocal: _global,
        ast.FunctionDef: _function,
        ast.AsyncFunctionDef: _function,
        ast.ClassDef: _class,
        ast.Import: _import,
        ast.ImportFrom: _import_from,
        ast.Pass: _nothing,
        ast.Break: lambda self, node, scope: BREAK,
        ast.Continue: lambda self, node, scope: CONTINUE,
        **({ast.TryStar: _try} if hasattr(ast, "TryStar") else {}),
    }


@lru_cache(maxsize=10_000)
def is_manager(function: ast.AST) -> bool:
    """Return whether a function that yields makes a context manager: it goes on at the end of `with`."""
    names = (unparsed(one) for one in getattr(function, "decorator_list", ()))
    return any(name.rpartition(".")[2] in ("contextmanager", "asynccontextmanager") for name in names)


@lru_cache(maxsize=10_000)
def is_generating(function: ast.AST) -> bool:
    """Return whether a function itself yields."""
    waiting: list[ast.AST] = list(getattr(function, "body", ()))
    while waiting:
        node = waiting.pop()
        if isinstance(node, (ast.Yield, ast.YieldFrom)):
            return True
        if not isinstance(node, (*FUNCTIONS, ast.ClassDef, ast.Lambda)):
            waiting += children(node)
    return False


def is_without_gradients(node: ast.expr) -> bool:
    """Return whether a decorator or a context switches gradients off."""
    return name_of_decorator(node) in ("no_grad", "inference_mode")


@lru_cache(maxsize=10_000)
def has_no_gradients(function: ast.AST) -> bool:
    """Return whether a function is decorated so."""
    return any(map(is_without_gradients, getattr(function, "decorator_list", ())))
