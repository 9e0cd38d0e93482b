"""Programs whose parser has subcommands: which options belong to the program, and which to each of its commands."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple, TypeAlias

from jobsubmit.check.parsers.argparse.search import GROUPS, Search
from jobsubmit.check.program.calls import argument, given_for
from jobsubmit.check.program.module import Function, Module
from jobsubmit.check.program.operations import UNKNOWN
from jobsubmit.check.program.variables import parameters

Made: TypeAlias = tuple[Module, ast.Call]
_LONGEST_WAY = 8  # from where a parser is made to where it gets an option, through functions and variables


class Subcommand(NamedTuple):
    """A command: its names, and the calls that add its options."""

    names: tuple[str, ...]
    adds: tuple[Made, ...]


class Commands(NamedTuple):
    """The program's own options, and its commands."""

    adds: tuple[Made, ...]
    is_required: bool
    commands: tuple[Subcommand, ...]


class _UnclearError(Exception):
    """It is not clear which parser is meant."""


def find_commands(search: Search) -> Commands | None:
    """Return the commands of a program; None where it is not clear which options each of them has."""
    try:
        return _Owners(search).commands()
    except _UnclearError:
        return None


@dataclass
class _Owners:
    search: Search
    _seen: dict[tuple[ast.AST, Module], frozenset[Made]] = field(default_factory=dict)

    def commands(self) -> Commands:
        makers = self.search.subparsers
        added = self.search.methods("add_parser")
        roots = {root for module, call in makers for root in self._receivers(call, module)}
        if len(roots) != 1 or not added or len(makers) != 1:
            raise _UnclearError  # commands of commands, or of two programs
        (root,) = roots
        return Commands(
            tuple(self._adds_of(root)),
            self.search.values.of(argument(makers[0][1], "required"), makers[0][0]) is True,
            tuple(Subcommand(tuple(self._names(*made)), tuple(self._adds_of(made))) for made in added),
        )

    def _names(self, module: Module, call: ast.Call) -> Iterator[str]:
        given = [self.search.values.of(argument(call, "name", 0), module)]
        if aliases := argument(call, "aliases"):
            others = self.search.values.of(aliases, module)
            given += others if isinstance(others, (list, tuple)) else [UNKNOWN]
        for name in given:
            if not isinstance(name, str):
                raise _UnclearError
            yield name

    def _adds_of(self, made: Made) -> Iterator[Made]:
        """Yield the calls that add the options of a parser, those of its parents first."""
        module, call = made
        parents = argument(call, "parents")
        if parents is not None:
            if not isinstance(parents, (ast.List, ast.Tuple)):
                raise _UnclearError
            for parent in parents.elts:
                for other in self._of(parent, module, _LONGEST_WAY):
                    yield from self._adds_of(other)
        yield from self._own_adds.get(made, ())

    @cached_property
    def _own_adds(self) -> Mapping[Made, list[Made]]:
        found: dict[Made, list[Made]] = {}
        for module, call in self.search.adds:
            for made in self._receivers(call, module):
                found.setdefault(made, []).append((module, call))
        return found

    def _receivers(self, call: ast.Call, module: Module) -> frozenset[Made]:
        """Return the calls that made the parsers of which a method is called."""
        if not isinstance(call.func, ast.Attribute):
            raise _UnclearError
        return self._of(call.func.value, module, _LONGEST_WAY)

    def _of(self, node: ast.AST, module: Module, depth: int) -> frozenset[Made]:
        """Return the calls that made the parser which an expression may be."""
        if (node, module) not in self._seen:
            found = frozenset(self._search(node, module, depth)) if depth else frozenset()
            if not found:
                raise _UnclearError
            self._seen[node, module] = found
        return self._seen[node, module]

    def _search(self, node: ast.AST, module: Module, depth: int) -> Iterable[Made]:
        if isinstance(node, ast.Call):
            return self._of_call(node, module, depth - 1)
        if isinstance(node, ast.Name):
            return self._of_name(node, module, depth - 1)
        if isinstance(node, ast.Attribute):
            stores = self.search.program.attribute_stores.get(node.attr, ())
            return self._of_any(((_assigned(store, where), where) for where, store in stores), depth - 1)
        raise _UnclearError

    def _of_call(self, call: ast.Call, module: Module, depth: int) -> Iterable[Made]:
        name = self.search.program.name_of(call.func, module)
        if self.search.makes_parser(name):
            return [(module, call)]
        found = self.search.program.definition(name)
        if found and not isinstance(found[1], ast.ClassDef):
            return self._of_returned(call, module, found[1], found[0], depth)
        if isinstance(call.func, ast.Attribute) and call.func.attr == "add_parser":
            return [(module, call)]
        if isinstance(call.func, ast.Attribute) and call.func.attr in GROUPS:
            return self._of(call.func.value, module, depth)
        raise _UnclearError

    def _of_returned(
        self, call: ast.Call, module: Module, function: Function, home: Module, depth: int
    ) -> Iterable[Made]:
        """Return what made the parser that a function returns; what it returns as it got it, this call has given."""
        returned = [node.value for node in home.of(ast.Return) if home.function_of(node) is function]
        own = parameters(function)
        nodes: list[tuple[ast.AST | None, Module]] = []
        for value in returned:
            is_given = isinstance(value, ast.Name) and value.id in own and not home.stores.get((function, value.id))
            if isinstance(value, ast.Name) and is_given:
                nodes.append((given_for(call, function, value.id), module))
            else:
                nodes.append((value, home))
        return self._of_any(nodes, depth)

    def _of_name(self, node: ast.Name, module: Module, depth: int) -> Iterable[Made]:
        function = module.function_of(node)
        stores = module.stores.get((function or module.tree, node.id), ())
        before = [store for store in stores if store.lineno < node.lineno]
        if before:
            last = max(before, key=lambda store: store.lineno)
            return self._of_any(((value, module) for value in _values(last, module)), depth)
        if function is not None and node.id in parameters(function):
            return self._of_parameter(function, node.id, module, depth)
        if function is not None:
            outer = [store for store in module.stores.get((module.tree, node.id), ()) if store not in stores]
            return self._of_any(((_assigned(store, module), module) for store in outer), depth)
        raise _UnclearError

    def _of_parameter(self, function: Function, name: str, module: Module, depth: int) -> Iterable[Made]:
        calls = self.search.program.calls_of.get(f"{module.name}.{function.name}", ())
        return self._of_any(((given_for(call, function, name), where) for where, call in calls), depth)

    def _of_any(self, nodes: Iterable[tuple[ast.AST | None, Module]], depth: int) -> Iterable[Made]:
        found = set[Made]()
        for node, module in nodes:
            if node is None:
                raise _UnclearError
            found |= self._of(node, module, depth)
        return found


def _assigned(store: ast.AST, module: Module) -> ast.AST | None:
    """Return what a plain assignment gives a variable."""
    parent = module.parents.get(store)
    return parent.value if isinstance(parent, ast.Assign) else None


def _values(store: ast.Name, module: Module) -> list[ast.AST | None]:
    """Return what a variable is given: by an assignment, or by each pass of a loop over some parsers."""
    parent = module.parents.get(store)
    if isinstance(parent, ast.For) and isinstance(parent.iter, (ast.Tuple, ast.List)):
        return list(parent.iter.elts)
    return [_assigned(store, module)]
