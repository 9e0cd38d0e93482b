"""The parsers of a program: where they are created, get options, and parse."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any

from jobsubmit.check.parsers.argparse.loops import Pass, names_of_option, passes
from jobsubmit.check.program.known_parsers import MAKERS
from jobsubmit.check.program.module import Module, spelled
from jobsubmit.check.program.operations import UNKNOWN
from jobsubmit.check.program.program import Program
from jobsubmit.check.program.reach import Reached
from jobsubmit.check.program.values import Values

CREATES = "argparse.ArgumentParser"
ADDS = ("add_argument",)
STRICT = ("parse_args", "parse_intermixed_args")
GROUPS = ("add_argument_group", "add_mutually_exclusive_group")
LENIENT = ("parse_known_args", "parse_known_intermixed_args")
_PARSER_SETTINGS = ("allow_abbrev", "prefix_chars", "add_help")


class Search:
    """The calls of a program that create parsers and use them."""

    def __init__(self, program: Program, reached: Reached, values: Values) -> None:
        self.program, self.reached, self.values = program, reached, values
        self.calls = reached.calls
        self._parser_names: dict[Module, frozenset[str]] = {}
        made = [(m, call) for m, call, name in self.calls if name and self.makes_parser(name)]
        unused = {call: place for m, call in made if (place := self._unused_variable(call, m)) is not None}
        self._unused = frozenset(unused.values())
        self.creations = [(m, call) for m, call in made if call not in unused]

    def _unused_variable(self, call: ast.Call, module: Module) -> tuple[str, str] | None:
        """Return the variable of a module that a parser is kept in, if it only gets options there: nothing parses."""
        statement = module.parents.get(call)
        target = statement.targets[0] if isinstance(statement, ast.Assign) else None
        if not isinstance(target, ast.Name) or module is self.program.boot or module.function_of(call) is not None:
            return None
        name = target.id
        uses = [node for node in module.of(ast.Name) if node.id == name and isinstance(node.ctx, ast.Load)]
        others = (node for node in uses if getattr(module.parents.get(node), "attr", "") not in ADDS)
        is_used = any(self.reached.of(node, module) for node in others)
        is_imported = any(f"{module.name}.{name}" in other.aliases.values() for other in self.program.modules.values())
        return None if is_used or is_imported else (module.path, name)

    def makes_parser(self, name: str, depth: int = 0) -> bool:
        """Return whether a name is that of a class of parsers, or of a function of a library that makes one."""
        if name == CREATES or name in MAKERS:
            return True
        found = self.program.definition(name)
        if found is None or not isinstance(found[1], ast.ClassDef) or depth > len(self.program.modules):
            return False
        return any(self.makes_parser(self.program.name_of(base, found[0]), depth + 1) for base in found[1].bases)

    @cached_property
    def lifting(self) -> frozenset[Module]:
        """Return the modules that change what is required of options that they have declared."""
        stores = self.program.attribute_stores.get("required", ())
        return frozenset(module for module, _ in stores)

    @cached_property
    def defaults(self) -> dict[str, Any]:
        """Return the defaults that are set apart from the options: `parser.set_defaults(fast=True)`."""
        return {
            keyword.arg: self.values.of(keyword.value, module)
            for module, call, _ in self.calls
            for keyword in (call.keywords if getattr(call.func, "attr", "") == "set_defaults" else ())
            if keyword.arg is not None
        }

    @cached_property
    def parses(self) -> Sequence[tuple[Module, ast.Call, str]]:
        """Return the calls that parse, with the name of the method."""
        return list(self._parses())

    def _parses(self) -> Iterator[tuple[Module, ast.Call, str]]:
        for module, call, name in self.calls:
            if not isinstance(call.func, ast.Attribute) or call.func.attr not in (*STRICT, *LENIENT):
                continue
            is_local = self.program.definition(name) is not None
            if (
                not is_local
                and not self._is_own_method(call.func, module)
                and not self._is_of_object(call.func, module)
            ):
                yield module, call, call.func.attr

    @cached_property
    def adds(self) -> Sequence[tuple[Module, ast.Call]]:
        """Return the calls that add an option."""
        return list(self._adds())

    def _adds(self) -> Iterator[tuple[Module, ast.Call]]:
        short = {
            (module.path, target.id)
            for module in self.program.modules.values()
            for node in module.of(ast.Assign)
            if isinstance(node.value, ast.Attribute) and node.value.attr in ADDS
            for target in node.targets
            if isinstance(target, ast.Name)
        }
        for module, call, name in self.calls:
            owner = call.func.value if isinstance(call.func, ast.Attribute) and call.func.attr in ADDS else None
            if owner is not None and (module.path, spelled(owner)) in self._unused:
                continue
            is_short = isinstance(call.func, ast.Name) and (module.path, call.func.id) in short
            if (owner is not None or is_short) and self.program.definition(name) is None:
                yield module, call

    def parser_names(self, module: Module) -> frozenset[str]:
        """Return the variables of a module that hold parsers and groups of them."""
        if module not in self._parser_names:
            self._parser_names[module] = frozenset(self._named(module)) - {"self", "cls"}
        return self._parser_names[module]

    def _named(self, module: Module) -> Iterator[str]:
        for node in module.of(ast.Attribute):
            if node.attr in ADDS and isinstance(node.value, ast.Name):
                yield node.value.id
        for node in module.of(ast.Assign):
            if isinstance(node.value, ast.Call):
                if self.makes_parser(self.program.name_of(node.value.func, module)):
                    yield from (target.id for target in node.targets if isinstance(target, ast.Name))

    def has_plain_name(self, call: ast.Call, module: Module) -> bool:
        """Return whether the names of an option are known."""
        names = names_of_option(self.values, call, module)
        return bool(names) and all(isinstance(name, str) for name in names)

    def loops(self, call: ast.Call, module: Module) -> list[Pass] | None:
        """Return each pass of a loop in which a call adds an option; None if it is in no loop that is known."""
        if self.has_plain_name(call, module):
            return None
        found = passes(self.values, call, module)
        named = (name for one in found or () for name in names_of_option(one.values, call, module))
        return found if found and call.args and all(isinstance(name, str) for name in named) else None

    def settings(self) -> dict[str, Any]:
        """Return the settings of the parser; of several, what they have in common."""
        each = [
            {
                keyword.arg: value
                for keyword in call.keywords
                if keyword.arg in _PARSER_SETTINGS and (value := self.values.of(keyword.value, module)) is not UNKNOWN
            }
            for module, call in self.creations
        ]
        return {name: value for name, value in (each or [{}])[0].items() if all(o.get(name) == value for o in each)}

    @cached_property
    def is_one_parser(self) -> bool:
        """Return whether all options are of one parser: the only one, with parents, or one that gets what is left."""
        has_parents = any(keyword.arg == "parents" for _, call in self.creations for keyword in call.keywords)
        is_passed_on = any(how in LENIENT for _, _, how in self.parses)
        return len(self.creations) == 1 or has_parents or is_passed_on

    @cached_property
    def subparsers(self) -> Sequence[tuple[Module, ast.Call]]:
        """Return the calls that begin the subcommands of a parser."""
        return self.methods("add_subparsers")

    def methods(self, name: str) -> Sequence[tuple[Module, ast.Call]]:
        """Return the calls of a method, of any object."""
        return [
            (module, call)
            for module, call, _ in self.calls
            if isinstance(call.func, ast.Attribute) and call.func.attr == name
        ]

    def _is_of_object(self, target: ast.Attribute, module: Module) -> bool:
        """Return whether `x.parse_args` is a method that a class of the program has, and x no parser."""
        is_name = isinstance(target.value, ast.Name) and target.value.id not in self.parser_names(module)
        return is_name and target.attr in self.program.methods

    def _is_own_method(self, target: ast.Attribute, module: Module) -> bool:
        """Return whether `x.parse_args` is a method of a class of the program, and not a parser's."""
        owners = [node for node in module.above(target) if isinstance(node, ast.ClassDef)]
        is_self = isinstance(target.value, ast.Name) and target.value.id == "self"
        return is_self and any(
            isinstance(item, (ast.FunctionDef, ast.AsyncFunctionDef)) and item.name == target.attr
            for owner in owners
            for item in owner.body
        )
