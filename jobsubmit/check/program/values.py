"""The value of an expression on a node of this job, as far as it is known without running code."""

from __future__ import annotations

import ast
import operator
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from jobsubmit.check.program import yacs
from jobsubmit.check.program.attributes import value_of_attribute
from jobsubmit.check.program.facts import Facts
from jobsubmit.check.program.functions import is_method_of_program, value_returned
from jobsubmit.check.program.hydra import Composed
from jobsubmit.check.program.library_calls import value_of_call
from jobsubmit.check.program.module import FUNCTIONS, Function, Module, is_of_self, spelled
from jobsubmit.check.program.names import value_of_name
from jobsubmit.check.program.namespaces import Namespaces
from jobsubmit.check.program.operations import (
    COMPARE,
    UNKNOWN,
    Several,
    has_gaps,
    is_open,
    lifted,
    operated,
    several,
)
from jobsubmit.check.program.program import Program
from jobsubmit.check.program.tree import walk
from jobsubmit.check.program.variables import assigned_to, parameters

_LONGEST_LIST = 20  # that a comprehension goes through
_MOST_OPEN = 60  # expressions that wait for each other's values
_MOST_EVALUATED = 10_000  # expressions, to find the value of one: programs of 1 MB need some hundreds


@dataclass(frozen=True)
class Values:
    """Evaluate expressions; `arguments` are parsed ones, held by the variables of `namespaces`.

    `bound` are variables of a loop, in one pass of it; `dead` are calls that are never reached. `given` are the values
    of the parameters of functions that are being evaluated, and `has_group` says that these have a process group. If it
    `is_strict`, the fields of objects are not known, but those of parsed arguments: something may change them. If it
    `trusts_fields`, those that a class gives its objects at once are known all the same.
    `opened` are the expressions whose values are being found, `evaluated` all that were opened to find the first of
    these, and `cut_off` those that were given up because these are too many: what they lead to is not known for the
    moment only. `composed` is Hydra's
    configuration, if there is one. `leftover` are the words that `parse_known_args` does not know.
    """

    program: Program
    facts: Facts
    arguments: Mapping[str, Any] = field(default_factory=dict)
    namespaces: Namespaces = field(default_factory=Namespaces)
    bound: Mapping[str, ast.expr] = field(default_factory=dict)
    dead: frozenset[ast.Call] = frozenset()
    given: Mapping[tuple[Function, str], Any] = field(default_factory=dict)
    has_group: bool = False
    composed: Composed | None = None
    is_strict: bool = False
    trusts_fields: bool = False
    leftover: tuple[str, ...] | None = None
    observed: Mapping[ast.AST, Any] = field(default_factory=dict, repr=False)
    opened: set[ast.AST] = field(default_factory=set, repr=False)
    cut_off: list[ast.AST] = field(default_factory=list, repr=False)
    evaluated: list[ast.AST] = field(default_factory=list, repr=False)
    _known: dict[ast.AST, Any] = field(default_factory=dict, init=False, repr=False)
    _supposed: dict[ast.AST, Any] = field(default_factory=dict, init=False, repr=False)

    def of(self, node: ast.AST | None, module: Module) -> Any:
        """Return the value of an expression, or UNKNOWN."""
        if node is None:
            return UNKNOWN
        if isinstance(node, ast.Constant):
            return node.value
        if node in self.observed:
            return self.observed[node]
        if node in self._known:
            return self._known[node]
        if node in self.opened:
            return UNKNOWN  # its own value would be needed first
        if node in self._supposed or len(self.opened) > _MOST_OPEN or len(self.evaluated) > _MOST_EVALUATED:
            self.cut_off.append(node)
            return self._supposed.get(node, UNKNOWN)
        self.opened.add(node)
        self.evaluated.append(node)
        before = len(self.cut_off)
        try:
            value = self._of(node, module)
        except Exception:  # whatever an operation on a user's literals may raise: then the program would raise it, too
            value = UNKNOWN
        finally:
            self.opened.discard(node)
        if self.opened and len(self.cut_off) > before:
            self._supposed[node] = value
            return value
        self._known[node] = value
        if not self.opened:
            self._supposed.clear()
            self.cut_off.clear()
            self.evaluated.clear()
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
            for inner in walk(statement)
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
                return value_of_name(self, node, module)
            case ast.Attribute():
                return value_of_attribute(self, node, module)
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
                return operated(node.op, self.of(node.left, module), self.of(node.right, module))
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
            case (
                ast.ListComp(elt=result, generators=[ast.comprehension(target=ast.Name(id=name), ifs=[]) as loop])
                | ast.GeneratorExp(elt=result, generators=[ast.comprehension(target=ast.Name(id=name), ifs=[]) as loop])
            ):
                items = self.of(loop.iter, module)
                if not isinstance(items, list) or has_gaps(items) or len(items) > _LONGEST_LIST:
                    return UNKNOWN
                passes = (replace(self, bound={**self.bound, name: ast.Constant(item)}) for item in items)
                return [each.of(result, module) for each in passes]
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
        if isinstance(right, dict) and isinstance(op, (ast.In, ast.NotIn)):
            right = [*right]
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
        items, index = self.of(node.value, module), self._index(node.slice, module)
        return UNKNOWN if items is UNKNOWN or index is UNKNOWN else items[index]

    def _index(self, node: ast.expr, module: Module) -> Any:
        if not isinstance(node, ast.Slice):
            return self.of(node, module)
        bounds = [None if one is None else self.of(one, module) for one in (node.lower, node.upper, node.step)]
        return UNKNOWN if any(map(is_open, bounds)) else slice(*bounds)

    def _call(self, node: ast.Call, module: Module) -> Any:
        name = self.program.name_of(node.func, module)
        found = self.program.definition(name)
        is_mapping = found is not None and isinstance(found[1], ast.ClassDef) and "dict" in map(spelled, found[1].bases)
        if not is_mapping and (found is not None or is_of_self(node.func) or is_method_of_program(self, node, module)):
            return value_returned(self, node, module)
        return value_of_call(self, "dict" if is_mapping else name, node, module)

    @cached_property
    def has_settings(self) -> bool:
        """Return whether the program has settings of yacs, into which it merges others."""
        return not yacs.MERGES.isdisjoint(self.program.attribute_loads)

    @cached_property
    def overrides(self) -> Mapping[str, Any] | None:
        """Return the settings of yacs that files and words give; None if, or while, they are not known."""
        root = self.program.boot.tree
        if root in self.opened:
            return None
        self.opened.add(root)  # what the arguments give is needed, and no setting
        try:
            return yacs.overrides(self)
        finally:
            self.opened.discard(root)
