"""Read and set the variables of a program, and whatever else stands on the left of an assignment."""

from __future__ import annotations

import ast
import builtins
import itertools
from functools import lru_cache
from typing import Any

from jobsubmit.check.interpreter.memory import Container, External, Record, Scope, plain
from jobsubmit.check.interpreter.operators import Operators
from jobsubmit.check.interpreter.own import derived, derived_attribute
from jobsubmit.check.interpreter.rehearsal import Rehearsal
from jobsubmit.check.program.operations import UNKNOWN
from jobsubmit.check.program.program import Program
from jobsubmit.check.program.tree import walk


class Variables(Operators):
    """Read and set variables; what attributes and items are is defined in the classes below."""

    program: Program
    rehearsal: Rehearsal | None

    def set_name(self, name: str, value: Any, scope: Scope) -> None:
        """Set a variable of a scope, or the one that it declares global."""
        home = scope
        if scope.function is not None and name in globals_of(scope.function.node):
            home = self.global_scope(scope)
        elif scope.function is not None and name in nonlocals_of(scope.function.node):
            home = next((one for one in scope.chain() if one is not scope and name in one.names), scope)
        self.memory.touch(home)
        home.names[name] = value

    def global_scope(self, scope: Scope) -> Scope:
        """Return the scope of the module around."""
        for one in scope.chain():
            scope = one
        return scope

    def name(self, name: str, scope: Scope) -> Any:
        """Return the value of a variable, or what Python has under its name."""
        is_inner = False
        for one in scope.chain():
            if name in one.names and not (is_inner and one.owner is not None and one.function is None):
                return one.names[name]
            is_inner = is_inner or one.function is not None
        if hasattr(builtins, name):
            return External(name)
        for star in scope.module.stars:
            if star not in self.program.modules:
                return External(f"{star}.{name}")
        return UNKNOWN

    def assign(self, target: ast.expr, value: Any, scope: Scope) -> None:
        """Set what stands on the left of an assignment."""
        match target:
            case ast.Name(id=name):
                self.set_name(name, value, scope)
            case ast.Attribute(value=owner, attr=name):
                self.set_attribute(self.value(owner, scope), name, value)
                if self.rehearsal is not None and name == "require_backward_grad_sync":
                    self.rehearsal.is_switched = value if isinstance(value, bool) else None
            case ast.Subscript(value=owner, slice=key):
                held = self.value(owner, scope)
                if held is UNKNOWN and isinstance(owner, ast.Subscript):
                    if plain(self.value(owner.slice, scope)) is UNKNOWN:  # it may be any of the entries
                        self.set_item(self.value(owner.value, scope), UNKNOWN, UNKNOWN)
                    return
                self.set_item(held, self.value(key, scope), value)
            case ast.Starred(value=inner):
                self.assign(inner, value, scope)
            case ast.Tuple(elts=parts) | ast.List(elts=parts):
                items = self.items(value)
                stars = [index for index, part in enumerate(parts) if isinstance(part, ast.Starred)]
                if items is not None and stars and len(items) >= len(parts) - 1:
                    end = len(items) - (len(parts) - stars[0] - 1)
                    items = [*items[: stars[0]], Container(items[stars[0] : end]), *items[end:]]
                if items is None or len(items) != len(parts):
                    items = [derived(UNKNOWN, value)] * len(parts)
                for part, item in zip(parts, items, strict=True):
                    self.assign(part, item, scope)

    def loaded(self, target: ast.expr, scope: Scope) -> Any:
        """Return what stands on the left of an assignment had before."""
        match target:
            case ast.Name(id=name):
                return self.name(name, scope)
            case ast.Attribute(value=owner, attr=name):
                held = self.value(owner, scope)
                return derived_attribute(self.attribute(held, name), held, name)
            case ast.Subscript(value=owner, slice=key):
                return self.item(self.value(owner, scope), self.value(key, scope))
        return UNKNOWN

    def delete(self, target: ast.expr, scope: Scope) -> None:
        if isinstance(target, ast.Name):
            self.memory.touch(scope)
            scope.names.pop(target.id, None)
        elif isinstance(target, (ast.Attribute, ast.Subscript)):
            owner = self.value(target.value, scope)
            key = target.attr if isinstance(target, ast.Attribute) else plain(self.value(target.slice, scope))
            held = owner.entries if isinstance(owner, Record) and owner.entries is not None else owner
            if isinstance(held, (Record, Container)):
                self.memory.touch(held)
                if isinstance(held.content, dict) and key is not UNKNOWN:
                    held.content.pop(key, None)
                elif isinstance(held.content, list) and type(key) is int and 0 <= key < len(held.content):
                    del held.content[key]
                else:
                    held.is_open = True

    def value(self, node: ast.expr, scope: Scope) -> Any:
        raise NotImplementedError

    def attribute(self, owner: Any, name: str) -> Any:
        raise NotImplementedError

    def set_attribute(self, owner: Any, name: str, value: Any) -> None:
        raise NotImplementedError

    def item(self, owner: Any, key: Any) -> Any:
        raise NotImplementedError


@lru_cache(maxsize=10_000)
def globals_of(function: ast.AST) -> frozenset[str]:
    """Return the variables of its module that a function sets."""
    return _declared(function, ast.Global)


@lru_cache(maxsize=10_000)
def nonlocals_of(function: ast.AST) -> frozenset[str]:
    """Return the variables of the function around that a function sets."""
    return _declared(function, ast.Nonlocal)


def _declared(function: ast.AST, kind: type[ast.Global] | type[ast.Nonlocal]) -> frozenset[str]:
    statements = getattr(function, "body", ())
    inner = (node for one in statements for node in walk(one)) if isinstance(statements, list) else ()
    return frozenset(itertools.chain.from_iterable(node.names for node in inner if isinstance(node, kind)))
