"""Evaluate the expressions of a program with what its variables and objects hold."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Mapping
from pathlib import PurePosixPath
from typing import Any

from jobsubmit.check.interpreter.memory import (
    MOMENT,
    ClassValue,
    Container,
    FunctionValue,
    Memory,
    ModuleValue,
    Own,
    Record,
    Scope,
    joined,
    plain,
)
from jobsubmit.check.interpreter.operators import OBJECTS
from jobsubmit.check.interpreter.own import Waits, derived, derived_attribute, item_of, taken_from
from jobsubmit.check.interpreter.placing import Places
from jobsubmit.check.interpreter.process import Process
from jobsubmit.check.interpreter.rehearsal import Lost, Rehearsal
from jobsubmit.check.interpreter.scaling import Scales, carrier_in, power_of_number, power_of_product
from jobsubmit.check.interpreter.signals import OutOfTimeError, Yielded
from jobsubmit.check.interpreter.trace import Place, Trace
from jobsubmit.check.interpreter.variables import Variables
from jobsubmit.check.interpreter.wrappers import Wrappers
from jobsubmit.check.program.facts import Facts
from jobsubmit.check.program.hydra import Composed
from jobsubmit.check.program.module import Function, Module, unparsed
from jobsubmit.check.program.operations import UNKNOWN, Several, has_gaps, lifted
from jobsubmit.check.program.program import Program

_MOST_SEEN = 12  # entries of a container that is remembered as the value of an expression
_LONGEST_COMPREHENSION, _LONGEST_FORMAT = 64, 5
_COUNTER = re.compile(r"(?:^|[._])(?:steps?|iters?|iterations?|epochs?|batch(?:es)?|idx|count(?:er)?)$")
_NOT_SURE = (-1, -1)  # no place in a program is like it


class Expressions(Variables):
    """Evaluate expressions; what calls and attributes are is defined in the classes below."""

    def __init__(
        self,
        program: Program,
        facts: Facts,
        most_steps: int,
        given: Mapping[str, Any],
        composed: Composed | None = None,
    ) -> None:
        self.program, self.facts = program, facts
        self.memory, self.trace = Memory(), Trace()
        self.modules: dict[str, ModuleValue] = {}
        self.functions: list[Any] = []
        self.loops: list[Any] = []
        self.unfinished: list[int] = []  # how much was seen before each loop that is being followed
        self.stack: list[ast.AST] = []
        self.unknown_calls = 0  # of functions that may raise any error
        self.steps, self._most_steps = 0, most_steps
        known = {name: value for name, value in facts.environment.items() if value is not None}
        self.environment = Container(known, is_open=True)
        self.argv = Container([program.boot.path, *facts.argv])
        self.given: Mapping[str, Any] = given  # parsed arguments that differ from what their words say
        self.of_libraries: dict[Any, Record] = {}  # an object of each class that a library may call
        self.composed = composed  # Hydra's configuration
        self.process: Process | None = None  # the one that is followed, if it is one of them and not all
        self.started = 0  # processes that the program starts itself
        self.exists = facts.has_launcher  # whether anything starts the process that is followed
        self.path: list[ast.Call] = []
        self.joined_as: Any = None  # the rank that the process group was given
        self.costs: dict[ast.AST, tuple[int, int]] = {}  # calls of each function, and steps in them
        self.beyond: dict[ast.Subscript, Place] = {}  # places that lists do not have
        self.unset: dict[ast.Name | ast.Attribute, Module] = {}  # what is read before it is set
        self.by_zero: dict[ast.BinOp | ast.AugAssign, Module] = {}  # divisions by zero
        self.failed: dict[ast.Assert | ast.Raise, Module] = {}  # assertions that fail, and errors that are raised
        self.stored: dict[ast.AST, frozenset[str] | None] = {}  # attributes that functions may set
        self.happened = 0  # events until now
        self.eventful: set[ast.AST] = set()  # functions in which there were any
        self.lost_after: int | None = None  # how much was seen before the first loop that was not followed to its end
        self.unknown_loops = 0  # around, with an unknown number of passes
        self.tries = 0  # blocks around whose errors are caught
        self.imports_unread = False  # it imported modules of the code that were not read: they may register anything
        self.handlers = 0  # of errors, around
        self.doubts = 0  # branches around that may not be taken
        self.branches = 0  # of them, and those that are taken now and then, and loops with an unknown number of passes
        self.has_group = False
        self.current_gpu: Any = UNKNOWN
        self.waits = Waits()
        self.is_lenient = False  # whether an error that the program raises itself, and does not catch, is passed over
        self.rehearsal: Rehearsal | None = None  # of a loop that trains, while it is followed pass by pass
        self.unaveraged: list[Lost] = []  # gradients that stay on each process
        self.flags: dict[str, Any] = {}  # of absl
        self.wrappers = Wrappers()
        self.scales = Scales()
        self.places = Places()
        self.is_wrapped = False  # whether a model was made that averages its gradients
        self.without_gradients = 0  # blocks around
        self.has_changed = False  # in the branches that were followed last
        self.here = program.boot  # the module that calls

    def step(self) -> None:
        """Count a step; raise OutOfTimeError where there were too many."""
        self.steps += 1
        if self.steps > self._most_steps:
            if self.lost_after is None and self.unfinished:
                self.lost_after = self.unfinished[0]
            raise OutOfTimeError

    def value(self, node: ast.expr, scope: Scope) -> Any:
        """Return the value of an expression, and remember it."""
        if type(node) is ast.Constant:
            return node.value
        self.step()
        evaluate = self._kinds.get(type(node))
        if evaluate is None:
            return UNKNOWN
        try:
            value = evaluate(self, node, scope)
        except (ArithmeticError, AttributeError, LookupError, SyntaxError, TypeError, ValueError):
            value = UNKNOWN  # the program would raise it, too, or something is not as it was taken for
        self.trace.see(node, self._seen(value))
        return value

    def truth(self, node: ast.expr, scope: Scope) -> bool | None:
        """Return whether a condition holds; None if that is not known."""
        return self.truth_of(self.value(node, scope))

    def _seen(self, value: Any) -> Any:
        """Return what is remembered of a value: containers only if they are small, for they change."""
        if isinstance(value, str) and MOMENT in value:
            return UNKNOWN
        if isinstance(value, Container) or type(value) is tuple:
            size = len(value.content if isinstance(value, Container) else value)
            known = plain(value) if size <= _MOST_SEEN else UNKNOWN
            return UNKNOWN if isinstance(known, list) and has_gaps(known) else known
        return UNKNOWN if isinstance(value, (*OBJECTS, slice, range)) or not _is_plain(value) else value

    def _name(self, node: ast.Name, scope: Scope) -> Any:
        value = self.name(node.id, scope)
        if value is UNKNOWN and self._is_surely_here() and _is_unset(node.id, scope):
            self.unset[node] = scope.module
        return value

    def _attribute(self, node: ast.Attribute, scope: Scope) -> Any:
        owner = self.value(node.value, scope)
        value = self.attribute(owner, node.attr)
        if value is UNKNOWN and self._is_surely_here() and _has_no(owner, node.attr):
            self.unset[node] = scope.module
        return derived_attribute(value, owner, node.attr)

    def _subscript(self, node: ast.Subscript, scope: Scope) -> Any:
        owner = self.value(node.value, scope)
        if isinstance(node.slice, ast.Slice):
            bounds = [
                None if one is None else self.value(one, scope)
                for one in (node.slice.lower, node.slice.upper, node.slice.step)
            ]
            is_known = all(one is None or type(one) is int for one in bounds)
            if (taken := taken_from(owner, slice(*bounds))) is not None:
                return taken
            return derived(self.part(owner, slice(*bounds)) if is_known else UNKNOWN, owner)
        key = self.value(node.slice, scope)
        self._note_place(node, owner, key, scope)
        taken = taken_from(owner, key)
        return derived(self.item(owner, key), owner) if taken is None else taken

    def _note_place(self, node: ast.Subscript, owner: Any, key: Any, scope: Scope) -> None:
        """Remember a place that a list does not have, where the program surely asks for it."""
        if not isinstance(owner, Container) or owner.is_open or not isinstance(owner.content, list):
            return
        if not self._is_surely_here():
            return
        length = len(owner.content)
        if type(key) is int and length and not -length <= key < length:
            self.beyond[node] = Place(scope.module, key, length)

    def is_surely_executed(self) -> bool:
        """Return whether a process surely comes here, by no condition that is not known."""
        return self.branches == self.unknown_loops and self._is_surely_here()

    def _is_surely_here(self) -> bool:
        """Return whether a process surely comes to where it is followed now, and nothing catches an error there."""
        is_unsure = self.process is None or self.rehearsal is not None or self.doubts or self.handlers or self.tries
        return not is_unsure

    def _dict(self, node: ast.Dict, scope: Scope) -> Any:
        made = Container({})
        for key, value in zip(node.keys, node.values, strict=True):
            held = self.value(value, scope)
            if key is None:
                self.update(made, held)
            else:
                self.set_item(made, self.value(key, scope), held)
        return made

    def _sequence(self, node: ast.List | ast.Tuple | ast.Set, scope: Scope) -> Any:
        found: list[Any] = []
        is_open = False
        for one in node.elts:
            if isinstance(one, ast.Starred):
                items = self.items(self.value(one.value, scope))
                found += items or []
                is_open = is_open or items is None
            else:
                found.append(self.value(one, scope))
        if isinstance(node, ast.Tuple):
            return UNKNOWN if is_open else tuple(found)
        return Container(found, is_open=is_open)

    def scaled(
        self, node: ast.BinOp | ast.AugAssign, values: tuple[Any, Any], parts: tuple[ast.expr, ast.expr], scope: Scope
    ) -> Any:
        """Return the value of an operation; if it is not known, how it is scaled by the number of processes."""
        is_division = isinstance(node.op, (ast.Div, ast.FloorDiv)) or _is_remainder(node, values[0], parts[0])
        is_by_zero = is_division and type(values[1]) in (int, float) and values[1] == 0
        if is_by_zero and self.is_surely_executed():
            self.by_zero[node] = scope.module
        result = self.operate(node.op, *values, in_place=isinstance(node, ast.AugAssign))
        if self.process is None or not (result is UNKNOWN or isinstance(result, Own)):
            return result
        held = [carrier_in(value) for value in values]
        is_exact = any(own is not None and own.is_gradient for own in held)
        numbers = [
            power_of_number(value, part, self.process, is_exact=is_exact)
            for value, part in zip(values, parts, strict=True)
        ]
        if not (any(held) or 1 in numbers or -1 in numbers):
            return result
        powers = [number if own is None else own.power for own, number in zip(held, numbers, strict=True)]
        power = power_of_product(node.op, (powers[0], powers[1]))
        made = derived(UNKNOWN, *values, power=power)
        if isinstance(made, Own) and made.is_gradient and held[0] is not None:
            self.note_factor(node, held[0].power, power, scope)
        return made

    def note_factor(self, node: ast.AST, before: int | None, after: int | None, scope: Scope) -> None:
        """Remember that gradients were multiplied or divided by the number of processes."""
        if (before != after or before is None) and not self._is_of_other_model(node, scope):
            factor = None if before is None or after is None else after - before
            self.scales.note(self.scales.factors, node, scope.module, factor)

    def _is_of_other_model(self, node: ast.AST, scope: Scope) -> bool:
        """Return whether a node is in a loop over the parameters of a model that surely is in no wrapper."""
        for above in scope.module.above(node):
            match above:
                case ast.For(iter=ast.Call(func=ast.Attribute(value=owner, attr="parameters" | "named_parameters"))):
                    return self.wrappers.is_outside(self.peek(owner, scope))
        return False

    def peek(self, node: ast.expr, scope: Scope) -> Any:
        """Return the value of a variable or a field, without calling anything."""
        if isinstance(node, ast.Name):
            return self.name(node.id, scope)
        if not isinstance(node, ast.Attribute):
            return UNKNOWN
        owner = self.peek(node.value, scope)
        return owner.content.get(node.attr, UNKNOWN) if isinstance(owner, Record) else UNKNOWN

    def _unary(self, node: ast.UnaryOp, scope: Scope) -> Any:
        value = self.value(node.operand, scope)
        if isinstance(node.op, ast.Not):
            if isinstance(value, Several):
                return lifted(lambda one: not one, value)
            known = self.truth_of(value)
            return derived(UNKNOWN, value) if known is None else not known
        if value is UNKNOWN or isinstance(value, (*OBJECTS, Own)):
            return derived(UNKNOWN, value)
        operation = {ast.USub: lambda one: -one, ast.UAdd: lambda one: +one, ast.Invert: lambda one: ~one}
        return lifted(operation[type(node.op)], value)

    def _bool(self, node: ast.BoolOp, scope: Scope) -> Any:
        """Return the value of `a or b`; where one of them is not known, what the others are is asked all the same."""
        decisive = isinstance(node.op, ast.Or)
        is_clear, result = True, UNKNOWN
        unclear: list[Any] = []
        for one in node.values:
            value = self.value(one, scope)
            known = self.truth_of(value)
            if known is decisive:
                return value if is_clear else (UNKNOWN if not isinstance(value, bool) else decisive)
            if known is None:
                is_clear = False
                unclear.append(value)
            result = value
        return result if is_clear else derived(UNKNOWN, *unclear)

    def _compare(self, node: ast.Compare, scope: Scope) -> Any:
        left = self.value(node.left, scope)
        results: list[Any] = []
        for op, other in zip(node.ops, node.comparators, strict=True):
            right = self.value(other, scope)
            results.append(self.compare(op, left, right))
            left = right
        if len(results) == 1:
            return results[0]
        truths = [self.truth_of(one) for one in results]
        return False if False in truths else derived(UNKNOWN, *results) if None in truths else True

    def _if_else(self, node: ast.IfExp, scope: Scope) -> Any:
        known = self.truth(node.test, scope)
        if known is not None:
            return self.value(node.body if known else node.orelse, scope)
        return joined(self.value(node.body, scope), self.value(node.orelse, scope))

    def _joined_text(self, node: ast.JoinedStr, scope: Scope) -> Any:
        parts = [self.value(one, scope) for one in node.values]
        if any(one is UNKNOWN or isinstance(one, (*OBJECTS, Own)) for one in parts):
            return UNKNOWN
        return lifted(lambda *each: "".join(map(str, each)), *parts)

    def _formatted(self, node: ast.FormattedValue, scope: Scope) -> Any:
        value = self.value(node.value, scope)
        spec = "" if node.format_spec is None else self.value(node.format_spec, scope)
        if value is UNKNOWN or spec is UNKNOWN or isinstance(value, (*OBJECTS, Own)):
            return UNKNOWN
        if type(value) is tuple or len(str(spec)) > _LONGEST_FORMAT:
            return UNKNOWN
        return lifted(format, value, spec)

    def _lambda(self, node: ast.Lambda, scope: Scope) -> Any:
        return self.function_value(node, scope)

    def _named(self, node: ast.NamedExpr, scope: Scope) -> Any:
        value = self.value(node.value, scope)
        self.assign(node.target, value, scope)
        return value

    def _starred(self, node: ast.Starred, scope: Scope) -> Any:
        return self.value(node.value, scope)

    def _awaited(self, node: ast.Await | ast.Yield | ast.YieldFrom, scope: Scope) -> Any:
        value = None if node.value is None else self.value(node.value, scope)
        if isinstance(node, ast.Yield) and self.functions:
            self.functions[-1].yielded.append(Yielded(value, self.doubts, self.unknown_loops))
            if self.rehearsal is not None:
                self.rehearsal.yielded_without.append(self.rehearsal.is_without)
        elif isinstance(node, ast.YieldFrom) and self.functions:
            items = self.items(value)
            here = (self.doubts, self.unknown_loops) if items is not None else _NOT_SURE
            self.functions[-1].yielded.extend(Yielded(one, *here) for one in ([UNKNOWN] if items is None else items))
        return UNKNOWN

    def _comprehension(self, node: ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp, scope: Scope) -> Any:
        made = Container({} if isinstance(node, ast.DictComp) else [])
        inner = Scope(scope.module, scope, None)
        self._generate(node, 0, inner, made)
        return made

    def _generate(self, node: Any, index: int, scope: Scope, made: Container) -> None:
        if index == len(node.generators):
            if isinstance(node, ast.DictComp):
                self.set_item(made, self.value(node.key, scope), self.value(node.value, scope))
            else:
                made.content.append(self.value(node.elt, scope))
                made.own = made.own or carrier_in(made.content[-1])
            return
        loop = node.generators[index]
        held = self.value(loop.iter, scope)
        items = self.items(held)
        if items is None or len(items) > _LONGEST_COMPREHENSION:
            items = [item_of(held)]
            made.is_open = True
        for item in items:
            self.assign(loop.target, item, scope)
            known = [self.truth(test, scope) for test in loop.ifs]
            if False in known:
                continue
            made.is_open = made.is_open or None in known
            self._generate(node, index + 1, scope, made)
        if made.is_open and isinstance(made.content, list):
            made.content.clear()

    def call_of(self, node: ast.Call, scope: Scope) -> Any:
        raise NotImplementedError

    def function_value(self, node: Function | ast.Lambda, scope: Scope) -> FunctionValue:
        """Return a function where it is defined, with the defaults of its parameters."""
        given = node.args
        own = [one.arg for one in (*given.posonlyargs, *given.args)]
        held = [self.value(one, scope) for one in given.defaults]
        defaults = dict(zip(own[::-1], held[::-1], strict=False))
        for one, default in zip(given.kwonlyargs, given.kw_defaults, strict=True):
            if default is not None:
                defaults[one.arg] = self.value(default, scope)
        owner = scope.owner if scope.function is None else None
        return FunctionValue(node, scope, defaults, owner)

    _kinds: Mapping[type, Callable[[Any, Any, Scope], Any]] = {
        ast.Name: _name,
        ast.Attribute: _attribute,
        ast.Subscript: _subscript,
        ast.Dict: _dict,
        ast.List: _sequence,
        ast.Tuple: _sequence,
        ast.Set: _sequence,
        ast.UnaryOp: _unary,
        ast.BinOp: lambda self, node, scope: self.scaled(
            node, (self.value(node.left, scope), self.value(node.right, scope)), (node.left, node.right), scope
        ),
        ast.BoolOp: _bool,
        ast.Compare: _compare,
        ast.IfExp: _if_else,
        ast.JoinedStr: _joined_text,
        ast.FormattedValue: _formatted,
        ast.Lambda: _lambda,
        ast.NamedExpr: _named,
        ast.Starred: _starred,
        ast.Await: _awaited,
        ast.Yield: _awaited,
        ast.YieldFrom: _awaited,
        ast.ListComp: _comprehension,
        ast.SetComp: _comprehension,
        ast.GeneratorExp: _comprehension,
        ast.DictComp: _comprehension,
        ast.Call: lambda self, node, scope: self.call_of(node, scope),
    }


def _is_plain(value: Any) -> bool:
    return value is None or isinstance(value, (bool, int, float, str, Several, PurePosixPath, tuple))


def _is_unset(name: str, scope: Scope) -> bool:
    """Return whether a variable is not set, though the function around, or its module at the top, sets it somewhere."""
    if any(name in one.names for one in scope.chain()) or scope.module.stars:
        return False
    function = scope.function.node if scope.function is not None else None
    stores = scope.module.own_stores.get((function or scope.module.tree, name), ())
    return scope.owner is None and any(scope.module.function_of(one) is function for one in stores)


def _has_no(owner: Any, name: str) -> bool:
    """Return whether an object of a class of the program has no field of a name, and its class nothing."""
    if not isinstance(owner, Record) or not isinstance(owner.kind, ClassValue) or owner.is_open:
        return False
    is_plain = owner.entries is None and name not in owner.content and not name.startswith("__")
    return is_plain and all(owner.kind.find(one) is None for one in (name, "__getattr__", "__getattribute__"))


def _is_remainder(node: ast.BinOp | ast.AugAssign, value: Any, written: ast.expr) -> bool:
    """Return whether an operator gives the remainder of a number, and does not format a text."""
    is_number = type(value) in (int, float) or (value is UNKNOWN and _COUNTER.search(unparsed(written)) is not None)
    return isinstance(node.op, ast.Mod) and is_number
