"""The value of an expression on a node of this job, as far as it is known without running code."""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import PurePosixPath
from typing import Any

from jobsubmit.check.program import yacs
from jobsubmit.check.program.calls import PROCESSES, SPAWNS, argument, default_of, given_for, hides_arguments
from jobsubmit.check.program.hydra import MISSING, Composed
from jobsubmit.check.program.library_calls import value_of_call
from jobsubmit.check.program.modules import FUNCTIONS, Function, Module, Program, class_around, spelled
from jobsubmit.check.program.objects import field_of
from jobsubmit.check.program.operations import (
    BINARY,
    COMPARE,
    UNKNOWN,
    Several,
    has_gaps,
    is_open,
    lifted,
    several,
)
from jobsubmit.check.program.variables import (
    UnclearError,
    assigned_to,
    is_executed,
    last_place,
    own_returns,
    parameters,
    position,
)
from jobsubmit.spec.modes import Start

_MOST_OPEN = 60  # expressions that wait for each other's values
_MOST_PLACES = 8  # that set an attribute
_MOST_SAME = 3  # that give it the same value
_MOST_CALLS = 5  # functions of the program inside each other
_LONGEST_WAY = 5  # of calls that lead to a place
_HARMLESS_DECORATORS = (
    *("staticmethod", "classmethod", "property", "cached_property", "cache", "lru_cache", "record"),
    *("no_grad", "inference_mode", "enable_grad"),
)
_GROUP = "torch.distributed.init_process_group"


@dataclass(frozen=True)
class Facts:
    """What the processes of a job get from it.

    `environment` maps a variable to its value, to UNKNOWN where that is not known, to Several where it differs, and to
    None where it is not set; `argv` are the words after the boot file. `gpus` is per node, None if it is not known.
    `rank` is that of a process among all; `options_of_node` are options that a command gives the number of the node.
    """

    mode: Start
    nodes: int
    nproc: int | None
    gpus: int | None
    environment: Mapping[str, Any]
    argv: tuple[str, ...]
    rank: Any = UNKNOWN
    options_of_node: frozenset[str] = frozenset()

    @property
    def has_launcher(self) -> bool:
        """Return whether one of torch's launchers starts the processes, and gives each its ranks."""
        return self.mode in ("launch", "torchrun")


@dataclass(frozen=True)
class Values:
    """Evaluate expressions; `arguments` are parsed ones, held by variables of these `namespaces`.

    `bound` are variables of a loop, in one pass of it; `dead` are calls that are never reached. `given` are the values
    of the parameters of functions that are being evaluated, and `has_group` says that these have a process group. If it
    `is_strict`, the fields of objects are not known, but those of parsed arguments: something may change them.
    `opened` are the expressions whose values are being found. `composed` is Hydra's configuration, if there is one.
    """

    program: Program
    facts: Facts
    arguments: Mapping[str, Any] = field(default_factory=dict)
    namespaces: frozenset[str] = frozenset()
    bound: Mapping[str, ast.expr] = field(default_factory=dict)
    dead: frozenset[ast.Call] = frozenset()
    given: Mapping[tuple[Function, str], Any] = field(default_factory=dict)
    has_group: bool = False
    composed: Composed | None = None
    is_strict: bool = False
    opened: set[ast.AST] = field(default_factory=set, repr=False)
    _known: dict[ast.AST, Any] = field(default_factory=dict, init=False, repr=False)
    _merged: list[Mapping[str, Any] | None] = field(default_factory=list, init=False, repr=False)

    def of(self, node: ast.AST | None, module: Module) -> Any:
        """Return the value of an expression, or UNKNOWN."""
        if node is None:
            return UNKNOWN
        if isinstance(node, ast.Constant):
            return node.value
        if node in self._known:
            return self._known[node]
        if node in self.opened or len(self.opened) > _MOST_OPEN:
            return UNKNOWN  # its own value would be needed first
        self.opened.add(node)
        try:
            value = self._of(node, module)
        except Exception:  # whatever an operation on a user's literals may raise: then the program would raise it, too
            value = UNKNOWN
        finally:
            self.opened.discard(node)
        if not self.bound:
            self._known[node] = value
        return value

    def truth(self, node: ast.AST, module: Module) -> bool | None:
        """Return whether a condition holds, or nothing fails in a `try`; None if that is not known."""
        if isinstance(node, ast.BoolOp):
            truths = [self.truth(item, module) for item in node.values]
            decisive = isinstance(node.op, ast.Or)
            return decisive if decisive in truths else None if None in truths else not decisive
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            inner = self.truth(node.operand, module)
            return None if inner is None else not inner
        if isinstance(node, ast.Try):
            return self._finds_its_variables(node, module)
        value = self.of(node, module)
        if isinstance(value, Several):
            value = several(map(bool, value.values))
        return None if value is UNKNOWN or isinstance(value, Several) else bool(value)

    def _finds_its_variables(self, node: ast.Try, module: Module) -> bool | None:
        """Return whether all variables of the environment are set that a block needs, if only their lack is caught."""
        caught = {spelled(handler.type) for handler in node.handlers if handler.type is not None}
        needed = [
            self.variable(self.of(inner.slice, module))
            for statement in node.body
            for inner in ast.walk(statement)
            if isinstance(inner, ast.Subscript) and self.program.name_of(inner.value, module) == "os.environ"
        ]
        if caught != {"KeyError"} or not needed or any(value is UNKNOWN for value in needed):
            return None
        return all(value is not None for value in needed)

    def assigned(self, node: ast.Name, module: Module) -> ast.expr | None:
        """Return the expression that a variable is set to, in one place only; other files may set it, too."""
        for scope in (*module.above(node), module.tree):
            if isinstance(scope, FUNCTIONS) and node.id in parameters(scope):
                return None
            places = module.stores.get((scope, node.id), ())
            if places:
                return assigned_to(places[0], module) if len(places) == 1 else None
        return None

    def _of(self, node: ast.AST, module: Module) -> Any:
        match node:
            case ast.Name():
                return self._name(node, module)
            case ast.Attribute():
                return self._attribute(node, module)
            case ast.Dict():
                return self._dict(node, module)
            case ast.Tuple() | ast.List() | ast.Set():
                items = [self.of(item, module) for item in node.elts]
                return UNKNOWN if any(is_open(item) for item in items) else items
            case ast.UnaryOp():
                value = self.of(node.operand, module)
                operation = {ast.Not: operator.not_, ast.USub: operator.neg}.get(type(node.op))
                return UNKNOWN if value is UNKNOWN or operation is None else lifted(operation, value)
            case ast.BoolOp():
                return self._bool(node, module)
            case ast.BinOp():
                return self._operated(node.op, self.of(node.left, module), self.of(node.right, module))
            case ast.Compare():
                return self._compare(node, module)
            case ast.IfExp():
                test = self.truth(node.test, module)
                return UNKNOWN if test is None else self.of(node.body if test else node.orelse, module)
            case ast.Call():
                return self._call(node, module)
            case ast.Subscript():
                return self._subscript(node, module)
            case ast.JoinedStr():
                return lifted(lambda *parts: "".join(map(str, parts)), *(self.required(p, module) for p in node.values))
            case ast.FormattedValue():
                spec = self.required(node.format_spec, module) if node.format_spec is not None else ""
                return lifted(format, self.required(node.value, module), spec)
            case ast.NamedExpr():
                return self.of(node.value, module)
        return UNKNOWN

    def required(self, node: ast.AST, module: Module) -> Any:
        """Return a value; raise ValueError where it is not known."""
        value = self.of(node, module)
        if value is UNKNOWN:
            raise ValueError
        return value

    def _dict(self, node: ast.Dict, module: Module) -> Any:
        found: dict[Any, Any] = {}
        for key, value in zip(node.keys, node.values, strict=True):
            if key is None:
                found |= self.required(value, module)
            else:
                found[self.required(key, module)] = self.of(value, module)
        return found

    def _operated(self, op: ast.operator, left: Any, right: Any) -> Any:
        if type(op) not in BINARY or left is UNKNOWN or right is UNKNOWN:
            return UNKNOWN
        return lifted(BINARY[type(op)], left, right)

    def _bool(self, node: ast.BoolOp, module: Module) -> Any:
        value = UNKNOWN
        for item in node.values:
            value = self.of(item, module)
            truth = several(map(bool, value.values)) if isinstance(value, Several) else bool(value)
            if is_open(truth):
                return UNKNOWN
            if value is UNKNOWN or truth is isinstance(node.op, ast.Or):
                return value
        return value

    def _compare(self, node: ast.Compare, module: Module) -> Any:
        if len(node.ops) != 1:
            return UNKNOWN
        op, right_node = node.ops[0], node.comparators[0]
        if isinstance(op, (ast.In, ast.NotIn)) and self.program.name_of(right_node, module) == "os.environ":
            value = self._variable_of_environment(node.left, module)
            return value if value is UNKNOWN else (value is not None) is isinstance(op, ast.In)
        if isinstance(node.left, ast.Attribute) and node.left.attr == "grad" and isinstance(op, (ast.Is, ast.IsNot)):
            return isinstance(op, ast.IsNot)  # a parameter is taken to be trained
        left, right = self.of(node.left, module), self.of(right_node, module)
        if left is UNKNOWN and isinstance(right, int) and self._is_set_to_truths(node.left):
            results = {lifted(COMPARE[type(op)], truth, right) for truth in (True, False)}
            return results.pop() if len(results) == 1 else UNKNOWN  # `is_distributed > 1` never holds
        if left is UNKNOWN or has_gaps(right):
            return UNKNOWN
        return lifted(COMPARE[type(op)], left, right)

    def _is_set_to_truths(self, node: ast.expr) -> bool:
        """Return whether a node is an attribute that is set to True and False only, wherever it is set."""
        places = self.program.attribute_stores.get(node.attr, ()) if isinstance(node, ast.Attribute) else ()
        values = [getattr(assigned_to(place, home), "value", None) for home, place in places]
        return bool(values) and all(isinstance(value, bool) for value in values)

    def _variable_of_environment(self, node: ast.AST, module: Module) -> Any:
        """Return whether a variable of the environment is set: None where it is not, something else where it is."""
        name = self.of(node, module)
        value = self.variable(name)
        return name if value is not None and name in self.facts.environment else value

    def variable(self, name: Any) -> Any:
        """Return the value of a variable of the environment, None if nothing sets it."""
        value = self.facts.environment.get(name, UNKNOWN)
        return UNKNOWN if value is None and name in self.program.variables_set else value

    def _subscript(self, node: ast.Subscript, module: Module) -> Any:
        if self.program.name_of(node.value, module) == "os.environ":
            value = self.variable(self.of(node.slice, module))
            return UNKNOWN if value is None else value
        items, index = self.of(node.value, module), self.of(node.slice, module)
        return UNKNOWN if items is UNKNOWN or index is UNKNOWN else items[index]

    def _call(self, node: ast.Call, module: Module) -> Any:
        name = self.program.name_of(node.func, module)
        found = self.program.definition(name)
        is_mapping = found is not None and isinstance(found[1], ast.ClassDef) and "dict" in map(spelled, found[1].bases)
        if not is_mapping and (found is not None or _is_own_method(node.func)):
            return self._returned(node, module)
        return value_of_call(self, "dict" if is_mapping else name, node, module)

    def _returned(self, call: ast.Call, module: Module) -> Any:
        """Return the value that a function of the program returns to a call."""
        entered = self._entered(call, module)
        if entered is None:
            return UNKNOWN
        frame, home, function = entered
        returned = frame._returned_expression(function, home)
        return UNKNOWN if returned is None else frame.of(returned, home)

    def _entered(self, call: ast.Call, module: Module) -> tuple[Values, Module, Function] | None:
        """Return a function that a call enters, with the values of its parameters; None where it is not clear."""
        found = self._called(call, module)
        outer = {function for function, _ in self.given}
        if found is None or found[1] in outer or len(outer) > _MOST_CALLS or hides_arguments(call):
            return None
        home, function = found
        if not _is_called_as_written(function):
            return None
        # The entry without a name shows that the function is being evaluated, even if it has no parameters.
        given: dict[tuple[Function, str], Any] = {(function, ""): None}
        for name in parameters(function) - {"self", "cls"}:
            expression = given_for(call, function, name)
            is_given = expression is not None
            value = self.of(expression if is_given else default_of(function, name), module if is_given else home)
            given[function, name] = value
        joins = any(
            isinstance(one, ast.Call) and self.program.name_of(one.func, home) == _GROUP for one in ast.walk(function)
        )
        has_group = self.facts.has_launcher and not joins and _GROUP in self.program.calls_of
        return replace(self, bound={}, given={**self.given, **given}, has_group=has_group), home, function

    def of_each_call(self, node: ast.expr, module: Module) -> Iterator[Any]:
        """Yield the value of an expression in each call of the function that it is in, where that is clear."""
        function = module.function_of(node)
        calls = self.program.calls_of.get(module.called_as(function), ()) if function is not None else ()
        for home, call in calls[:_MOST_PLACES]:
            entered = self._entered(call, home) if call not in self.dead else None
            if entered is not None and entered[2] is function:
                yield entered[0].of(node, module)

    def _called(self, call: ast.Call, module: Module) -> tuple[Module, Function] | None:
        """Return the function of the program, or the method of the same object, that a call calls."""
        if _is_own_method(call.func):
            return self._own_method(call, module)
        found = self.program.definition(self.program.name_of(call.func, module))
        return (found[0], found[1]) if found is not None and isinstance(found[1], ast.FunctionDef) else None

    def _own_method(self, call: ast.Call, module: Module) -> tuple[Module, Function] | None:
        """Return the method of the same class that `self.method()` calls."""
        owner = class_around(call, module)
        name = call.func.attr  # type: ignore[attr-defined] # it is an attribute
        methods = [one for one in owner.body if isinstance(one, ast.FunctionDef) and one.name == name] if owner else []
        is_final = owner is not None and owner.name not in self.program.inherited
        return (module, methods[0]) if len(methods) == 1 and is_final else None

    def _returned_expression(self, function: Function, module: Module) -> ast.expr | None:
        """Return the expression that a function returns first, where that is clear."""
        if any(isinstance(one, (ast.Yield, ast.YieldFrom)) for one in ast.walk(function)):
            return None
        for returned in own_returns(function):
            runs = is_executed(returned, function, module, self.truth)
            if runs is not False:
                return returned.value if runs else None
        return None

    def _item(self, node: ast.AST, index: int, size: int, module: Module) -> Any:
        """Return one of the values that several variables are set to at once."""
        if isinstance(node, (ast.Tuple, ast.List)):
            has_star = any(isinstance(item, ast.Starred) for item in node.elts)
            return UNKNOWN if has_star or len(node.elts) != size else self.of(node.elts[index], module)
        if isinstance(node, ast.IfExp) and (test := self.truth(node.test, module)) is not None:
            return self._item(node.body if test else node.orelse, index, size, module)
        if isinstance(node, ast.Call) and (entered := self._entered(node, module)) is not None:
            frame, home, function = entered
            returned = frame._returned_expression(function, home)
            return UNKNOWN if returned is None else frame._item(returned, index, size, home)
        values = self.of(node, module)
        return values[index] if isinstance(values, list) and len(values) == size else UNKNOWN

    def _name(self, node: ast.Name, module: Module) -> Any:
        if node.id == "__name__":
            return module.name
        if node.id == "__file__":
            return module.path
        if node.id in self.bound:
            return self.of(self.bound[node.id], module)
        for scope in module.above(node):
            if _binds(scope, node.id):
                return UNKNOWN
            if isinstance(scope, FUNCTIONS):
                if node.id in parameters(scope) or (scope, node.id) in module.own_stores:
                    return self._variable(node.id, scope, module, node)
        if node.id in module.aliases:
            return self._at_top(self.program.name_of(node, module))
        return self._variable(node.id, module.tree, module, node)

    def _at_top(self, name: str) -> Any:
        """Return the value of a variable at the top of a local module, by its whole name."""
        owner, _, last = name.rpartition(".")
        module = self.program.modules.get(owner)
        return self._variable(last, module.tree, module, None) if module else UNKNOWN

    def _variable(self, name: str, scope: ast.Module | Function, module: Module, use: ast.AST | None) -> Any:
        """Return the value that a variable has where it is used: the last one that is surely given to it."""
        places = module.own_stores.get((scope, name), ())
        is_shared = isinstance(scope, ast.Module) and any(module.scope_of(place) is not scope for place in places)
        is_dynamic = isinstance(scope, ast.Module) and module.name in self.program.dynamic
        if is_dynamic or (self.is_strict and is_shared):
            return UNKNOWN
        try:
            place = last_place(places, use, scope, module, self.truth)
        except UnclearError:
            return UNKNOWN
        if place is not None:
            value = self._set_here(place, module)
        elif isinstance(scope, ast.Module):
            value = UNKNOWN
        elif (scope, name) in self.given:
            value = self.given[scope, name]
        else:
            value = self._parameter(name, scope, module)
        return UNKNOWN if isinstance(value, (list, dict)) and name in self.program.filled else value

    def _set_here(self, place: ast.expr, module: Module) -> Any:
        """Return the value that one place gives to a variable or an attribute."""
        parent = module.parents.get(place)
        match parent:
            case ast.Assign() | ast.AnnAssign() | ast.NamedExpr():
                return self.of(parent.value, module)
            case ast.withitem():
                return self.of(parent.context_expr, module)
            case ast.For(target=target) if target is place:
                entries = self.of(parent.iter, module)
                return entries[0] if isinstance(entries, list) and len(entries) == 1 else UNKNOWN
            case ast.AugAssign(target=ast.Name(id=name)):
                scope = module.scope_of(place)
                before = self._variable(name, scope, module, place)
                return self._operated(parent.op, before, self.of(parent.value, module))
            case ast.Tuple() | ast.List():
                above = module.parents.get(parent)
                if isinstance(above, ast.Assign) and not any(isinstance(one, ast.Starred) for one in parent.elts):
                    return self._item(above.value, parent.elts.index(place), len(parent.elts), module)
        return UNKNOWN

    def given_by_spawn(self, name: str, function: Function, module: Module) -> tuple[Module, ast.expr | None] | None:
        """Return what mp.spawn or Process gives for a parameter of the function that it starts: None for its default.

        Not for the first one that mp.spawn gives, which is the number of a process.
        """
        own = [arg.arg for arg in (*function.args.posonlyargs, *function.args.args)]
        calls = [place for starts in (*SPAWNS, *PROCESSES) for place in self.program.calls_of.get(starts, ())]
        calls = [place for place in calls if place[1] not in self.dead]
        if len(calls) != 1 or name not in own:
            return None
        home, call = calls[0]
        is_process = self.program.name_of(call.func, home) in PROCESSES
        started = argument(call, "target", 1) if is_process else argument(call, "fn", 0)
        if started is None or self.program.name_of(started, home) != f"{module.name}.{function.name}":
            return None
        given = argument(call, "args", 3 if is_process else 1)
        place = own.index(name) if is_process else own.index(name) - 1
        if place < 0 or (given is not None and not isinstance(given, (ast.Tuple, ast.List))):
            return None
        items = given.elts if given is not None else []
        return (home, items[place]) if place < len(items) else (module, default_of(function, name))

    def _parameter(self, name: str, function: Function, module: Module) -> Any:
        """Return the value of a parameter that all calls of its function give the same, or Hydra."""
        if self.composed is not None and self.composed.function is function:
            return self.composed.values if self.composed.is_complete else UNKNOWN
        if self.is_strict and not _is_called_as_written(function):
            return UNKNOWN
        owner = module.parents.get(function)
        is_maker = function.name == "__init__" and getattr(owner, "name", "") not in self.program.inherited
        calls = self.program.calls_of.get(module.called_as(function), ())
        calls = [place for place in calls if place[1] not in self.dead]
        if not calls and (spawned := self.given_by_spawn(name, function, module)) is not None:
            return self.of(spawned[1], spawned[0])
        is_known = module.definitions.get(function.name) is function or is_maker
        if isinstance(owner, ast.ClassDef) and _is_of_class(function):
            calls = self.program.calls_of.get(f"{module.name}.{owner.name}.{function.name}", ())
            is_known = len(self.program.attribute_loads.get(function.name, ())) == 1
        if not 0 < len(calls) <= _MOST_PLACES or not is_known:
            return UNKNOWN
        values = [self._given(name, function, module, *place) for place in calls]
        return values[0] if all(value == values[0] for value in values) else UNKNOWN

    def _given(self, name: str, function: Function, module: Module, home: Module, call: ast.Call) -> Any:
        """Return the value that one call gives to a parameter, or that it has by default."""
        given = given_for(call, function, name)
        if given is not None:
            return self.of(given, home)
        settings = [self.of(keyword.value, home) for keyword in call.keywords if keyword.arg is None]
        if any(isinstance(one, ast.Starred) for one in call.args) or not all(isinstance(one, dict) for one in settings):
            return UNKNOWN
        known = next((one for one in settings if name in one), None)
        return self.of(default_of(function, name), module) if known is None else known[name]

    def _attribute(self, node: ast.Attribute, module: Module) -> Any:
        if self.is_strict and not self._is_surely_found(node, module):
            return UNKNOWN
        if node.attr == "requires_grad":
            return True
        if spelled(node.value) not in self.namespaces and self._may_be_set(node.attr):
            return UNKNOWN
        name = self.program.name_of(node, module)
        if name == "sys.argv":
            return ["", *self.facts.argv]
        if node.attr in self.program.attribute_stores:
            return self._stored(node, module)
        if spelled(node.value) in self.namespaces:
            return self.arguments.get(node.attr, UNKNOWN)
        owner = self.of(node.value, module)
        if isinstance(owner, PurePosixPath):
            return {"parent": owner.parent, "name": owner.name, "stem": owner.stem}.get(node.attr, UNKNOWN)
        if isinstance(owner, dict):
            value = owner.get(node.attr, UNKNOWN)
            return UNKNOWN if value == MISSING else value
        value = self._at_top(name)
        return self._field(node, module) if value is UNKNOWN else value

    def _is_surely_found(self, node: ast.Attribute, module: Module) -> bool:
        """Return whether an attribute is one of the arguments, a module or the settings of yacs."""
        is_setting = self._has_settings and yacs.key_of(node)
        return bool(is_setting) or spelled(node.value) in self.namespaces or self._is_of_module(node, module)

    @property
    def _has_settings(self) -> bool:
        """Return whether the program has settings of yacs, into which it merges others."""
        return not yacs.MERGES.isdisjoint(self.program.attribute_loads)

    def _may_be_set(self, name: str) -> bool:
        """Return whether the arguments or a configuration may set a field that is set by a computed name."""
        if name not in self.program.set_by_name:
            return False
        is_given = any(re.search(rf"\b{name}\b", word) for word in self.facts.argv)
        return is_given or name in self.program.configured_names

    def _is_of_module(self, node: ast.Attribute, module: Module) -> bool:
        """Return whether an attribute is a variable of a module, or of something that the program only imports."""
        owner = self.program.name_of(node, module).rpartition(".")[0]
        is_imported = spelled(node).partition(".")[0] in module.aliases
        return is_imported and (owner in self.program.modules or owner.partition(".")[0] not in self.program.tops)

    def _field(self, node: ast.Attribute, module: Module) -> Any:
        """Return the value of a field of an object whose class the program defines."""
        found = field_of(self.program, node, module)
        if found is None:
            return UNKNOWN
        home, source = found
        returned = self._returned_expression(source, home) if isinstance(source, ast.FunctionDef) else source
        return UNKNOWN if returned is None else self.of(returned, home)

    def _stored(self, node: ast.Attribute, module: Module) -> Any:
        """Return the value of an attribute that is set in one place that counts, where it is used."""
        is_argument = spelled(node.value) in self.namespaces
        before = self.arguments.get(node.attr, UNKNOWN) if is_argument else UNKNOWN
        all_places = list(self._places_of(node, module))
        if self._has_settings and any(yacs.is_default(place, home) for home, place in all_places):
            return self._setting(node, all_places)
        if len(all_places) > _MOST_PLACES:
            return UNKNOWN
        places = [
            (home, place, runs)
            for home, place in all_places
            if not (is_argument and self._comes_later(place, home, node, module))
            and (runs := is_executed(place, home.scope_of(place), home, self.truth)) is not False
            and self._is_entered(place, home)
        ]
        if not places:
            return before
        if len(places) > 1 and not self._are_same(places):
            return UNKNOWN
        home, place, runs = places[0]
        is_same = home is module and home.scope_of(place) is module.scope_of(node)
        if (is_same and not _is_after(node, place)) or self._is_given_to(home.function_of(place), home, node, module):
            return before
        if runs is None:
            return UNKNOWN
        value = self._set_here(place, home)
        if isinstance(value, (list, dict)) and node.attr in self.program.filled:
            return UNKNOWN
        return value if is_same or before in (UNKNOWN, None, value) else UNKNOWN

    def _are_same(self, places: Sequence[tuple[Module, ast.Attribute, bool | None]]) -> bool:
        """Return whether each of several places surely gives an attribute the same value."""
        if len(places) > _MOST_SAME or not all(runs for _, _, runs in places):
            return False
        values = (self._set_here(place, home) for home, place, _ in places)
        first = next(values)
        return first is not UNKNOWN and all(value == first for value in values)

    def _comes_later(self, place: ast.AST, home: Module, node: ast.AST, module: Module, depth: int = 0) -> bool:
        """Return whether something surely is executed after a node: further below, or by what is called there only."""
        scope = module.scope_of(node)
        if home is module and home.scope_of(place) is scope:
            is_looped = any(isinstance(above, (ast.For, ast.While)) for above in module.above(node))
            return not is_looped and position(place) > position(node)
        function = home.function_of(place)
        calls = self.program.calls_of.get(home.called_as(function), ()) if function is not None else ()
        live = [(other, call) for other, call in calls if call not in self.dead]
        is_named_only_so = function is not None and home.definitions.get(function.name) is function
        is_maker = function is not None and function.name == "__init__"
        if not live or depth > _LONGEST_WAY or len(live) > _MOST_PLACES or not (is_named_only_so or is_maker):
            return False
        return all(self._comes_later(call, other, node, module, depth + 1) for other, call in live)

    def _setting(self, node: ast.Attribute, places: Sequence[tuple[Module, ast.Attribute]]) -> Any:
        """Return the value of a setting of yacs: what files and words give, or else its only default."""
        key, root = yacs.key_of(node), self.program.boot.tree
        if not key or root in self.opened:
            return UNKNOWN
        own = [(home, place) for home, place in places if yacs.key_of(place) == key]
        if not self._merged:
            self.opened.add(root)  # what the arguments give is needed, and no setting
            self._merged.append(yacs.overrides(self))
            self.opened.discard(root)
        if self._merged[0] is None or not all(yacs.is_default(place, home) for home, place in own):
            return UNKNOWN
        if key in self._merged[0]:
            return self._merged[0][key]
        return self._set_here(own[0][1], own[0][0]) if len(own) == 1 else UNKNOWN

    def _is_given_to(self, function: Function | None, home: Module, node: ast.AST, module: Module) -> bool:
        """Return whether an expression is an argument of the only call of a function: before its body is executed."""
        calls = self.program.calls_of.get(home.called_as(function), ()) if function is not None else ()
        entering = [call for _, call in calls if call not in self.dead]
        if len(entering) != 1 or entering[0] not in module.above(node):
            return False
        return is_executed(entering[0], module.scope_of(node), module, self.truth) is True

    def _places_of(self, node: ast.Attribute, module: Module) -> Iterator[tuple[Module, ast.Attribute]]:
        """Yield the places that set an attribute of what seems to be the same object; all where that is not clear."""
        places = self.program.attribute_stores[node.attr]
        if spelled(node.value) in self.namespaces:
            yield from (pair for pair in places if spelled(pair[1].value) != "self" or _is_of_dataclass(*pair))
            return
        owner = class_around(node, module) if spelled(node.value) == "self" else None
        own = [(home, place) for home, place in places if owner and class_around(place, home) is owner]
        outside = [pair for pair in places if owner and pair not in own and _is_named_after(pair[1].value, owner)]
        yield from [*own, *outside] if own else places

    def _is_entered(self, node: ast.AST, module: Module) -> bool:
        """Return whether the function that a node is in may be called."""
        function = module.function_of(node)
        if function is None or module.definitions.get(function.name) is not function:
            return True
        calls = self.program.calls_of.get(module.called_as(function), ())
        return not calls or any(call not in self.dead for _, call in calls)


def _is_called_as_written(function: Function) -> bool:
    """Return whether no decorator may give a function other arguments than its calls do."""
    decorators = (spelled(one.func if isinstance(one, ast.Call) else one) for one in function.decorator_list)
    return all(one.rpartition(".")[2] in _HARMLESS_DECORATORS for one in decorators)


def _is_of_class(function: Function) -> bool:
    return any(spelled(one) in ("classmethod", "staticmethod") for one in function.decorator_list)


def _is_named_after(node: ast.expr, owner: ast.ClassDef) -> bool:
    """Return whether an object seems to be one of a class, by its name: `trainer` or `self.trainer` of Trainer."""
    name = spelled(node).rpartition(".")[2].replace("_", "").lower()
    return name not in ("", "self") and name in owner.name.lower()


def _is_own_method(node: ast.expr) -> bool:
    return isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "self"


def _is_of_dataclass(module: Module, place: ast.AST) -> bool:
    """Return whether a dataclass sets a field again once it has all of them."""
    return getattr(module.function_of(place), "name", "") == "__post_init__"


def _is_after(node: ast.AST, place: ast.AST) -> bool:
    return getattr(node, "lineno", 0) > getattr(place, "lineno", 0)


def _binds(scope: ast.AST, name: str) -> bool:
    """Return whether a lambda or a comprehension has a variable of its own by a name."""
    if isinstance(scope, ast.Lambda):
        return any(arg.arg == name for arg in scope.args.args)
    return any(
        isinstance(one, ast.Name) and one.id == name
        for generator in getattr(scope, "generators", ())
        for one in ast.walk(generator.target)
    )
