"""Programs that use argparse."""

from __future__ import annotations

import argparse
import ast
from collections.abc import Iterator
from functools import cache, cached_property
from typing import Any

from jobsubmit.check.parsers.accepted import CommandLine, Gap, Option
from jobsubmit.check.program import UNKNOWN, Module, Program, Reach, Reached, Values

CREATES = "argparse.ArgumentParser"
_ADDS = ("add_argument",)
_STRICT = ("parse_args", "parse_intermixed_args")
_LENIENT = ("parse_known_args", "parse_known_intermixed_args")
_CHANGERS = {"set_defaults", "__dict__"}
_HARMLESS = ("print", "isinstance", "vars", "len", "str", "repr", "type", "id", "hasattr", "getattr")
_VALUES = {
    "argparse.REMAINDER": "...",
    "argparse.OPTIONAL": "?",
    "argparse.ZERO_OR_MORE": "*",
    "argparse.ONE_OR_MORE": "+",
    "argparse.BooleanOptionalAction": "boolean",
}
_ACTIONS = ("store", "store_const", "store_true", "store_false", "append", "append_const", "count", "extend")
_GROUPS = ("add_argument_group", "add_mutually_exclusive_group")
_PARSER_NAMES = ("parser", "argparser", "arg_parser", "_parser")
_PARSER_SETTINGS = ("allow_abbrev", "prefix_chars", "add_help")


def command_line(program: Program, reached: Reached, values: Values) -> CommandLine | None:
    """Return what a program with argparse accepts; None if it has no parser of that kind."""
    return _Search(program, reached, values).found()


class _Search:
    def __init__(self, program: Program, reached: Reached, values: Values) -> None:
        self.program, self.reached, self.values = program, reached, values
        self.calls = list(reached.calls())
        self.creations = [(m, call) for m, call, name in self.calls if name and self._makes_parser(name)]

    def found(self) -> CommandLine | None:
        parses = list(self._parses())
        if not parses and not self.creations:
            return None
        of_argv = [(m, call, how) for m, call, how in parses if self._is_argv(call, m)]
        if not of_argv:
            where = parses[0][0].where(parses[0][1]) if parses else self.creations[0][0].where(self.creations[0][1])
            return CommandLine("argparse", gaps=(Gap(where, "it does not parse the command line as it is"),))
        sure = [(m, call) for m, call, how in of_argv if how in _STRICT and self._is_sure(call, m)]
        place = sure[0] if sure else of_argv[0][:2]
        gaps = tuple(self._gaps(parses))
        return CommandLine(
            "argparse",
            tuple(self._options()),
            is_strict=bool(sure),
            parsed_at=place[0].where(place[1]),
            gaps=gaps,
            settings=self._settings(),
            namespaces=frozenset(self._namespaces(parses)),
        )

    # ── parsers ─────────────────────────────────────────────────────────────────────────────────────────────────

    def _makes_parser(self, name: str, depth: int = 0) -> bool:
        if name == CREATES:
            return True
        found = self.program.definition(name)
        if found is None or not isinstance(found[1], ast.ClassDef) or depth > len(self.program.modules):
            return False
        return any(self._makes_parser(self.program.name_of(base, found[0]), depth + 1) for base in found[1].bases)

    def _parses(self) -> Iterator[tuple[Module, ast.Call, str]]:
        for module, call, name in self.calls:
            if not isinstance(call.func, ast.Attribute) or call.func.attr not in (*_STRICT, *_LENIENT):
                continue
            is_local = self.program.definition(name) is not None
            if not is_local and not self._is_own_method(call.func, module):
                yield module, call, call.func.attr

    def _is_own_method(self, target: ast.Attribute, module: Module) -> bool:
        """Tell whether `x.parse_args` is a method of a class of the program, and not a parser's."""
        owners = [node for node in module.above(target) if isinstance(node, ast.ClassDef)]
        is_self = isinstance(target.value, ast.Name) and target.value.id == "self"
        return is_self and any(
            isinstance(item, (ast.FunctionDef, ast.AsyncFunctionDef)) and item.name == target.attr
            for owner in owners
            for item in owner.body
        )

    def _is_argv(self, call: ast.Call, module: Module) -> bool:
        """Tell whether a call parses the words of the command line, or those that another parser left."""
        given = call.args[0] if call.args else next((k.value for k in call.keywords if k.arg == "args"), None)
        if given is None or (isinstance(given, ast.Constant) and given.value is None):
            return True
        if isinstance(given, ast.Subscript):
            return ast.unparse(given) in ("sys.argv[1:]", "argv[1:]")
        return isinstance(given, ast.Name) and (
            self._is_none_by_default(given, module) or self._is_left_over(given, module)
        )

    def _is_none_by_default(self, name: ast.Name, module: Module) -> bool:
        for scope in module.above(name):
            if isinstance(scope, (ast.FunctionDef, ast.AsyncFunctionDef)):
                own = [*scope.args.posonlyargs, *scope.args.args]
                defaults = dict(zip([a.arg for a in own][::-1], scope.args.defaults[::-1], strict=False))
                defaults |= {a.arg: d for a, d in zip(scope.args.kwonlyargs, scope.args.kw_defaults, strict=True) if d}
                default = defaults.get(name.id)
                is_none = isinstance(default, ast.Constant) and default.value is None
                calls = self.program.calls_of.get(f"{module.name}.{scope.name}", ())
                return is_none and not any(_gives_words(call) for _, call in calls)
        return False

    def _is_left_over(self, name: ast.Name, module: Module) -> bool:
        return any(
            isinstance(node, ast.Assign)
            and isinstance(node.value, ast.Call)
            and isinstance(node.value.func, ast.Attribute)
            and node.value.func.attr in _LENIENT
            and any(
                isinstance(target, ast.Tuple) and ast.unparse(target.elts[-1]) == name.id for target in node.targets
            )
            for node in module.nodes
        )

    def _is_sure(self, node: ast.AST, module: Module) -> bool:
        return self.reached.of(node, module) is Reach.SURELY

    def _settings(self) -> dict[str, Any]:
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

    # ── options ─────────────────────────────────────────────────────────────────────────────────────────────────

    def _adds(self) -> Iterator[tuple[Module, ast.Call]]:
        short = {
            (module.path, target.id)
            for module in self.program.modules.values()
            for node in module.nodes
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Attribute) and node.value.attr in _ADDS
            for target in node.targets
            if isinstance(target, ast.Name)
        }
        for module, call, name in self.calls:
            is_method = isinstance(call.func, ast.Attribute) and call.func.attr in _ADDS
            is_short = isinstance(call.func, ast.Name) and (module.path, call.func.id) in short
            if (is_method or is_short) and self.program.definition(name) is None:
                yield module, call

    def _options(self) -> Iterator[Option]:
        for module, call in self._adds():
            names = [self.values.of(item, module) for item in call.args]
            if not names or not all(isinstance(name, str) for name in names):
                continue
            yield self._option(tuple(names), call, module)

    def _option(self, names: tuple[str, ...], call: ast.Call, module: Module) -> Option:
        settings: dict[str, Any] = {}
        kind, default = "", UNKNOWN
        is_sure = self._is_sure(call, module) and self._is_one_parser
        for keyword in call.keywords:
            value = _VALUES.get(self.program.name_of(keyword.value, module)) or self.values.of(keyword.value, module)
            match keyword.arg:
                case "type":
                    kind = self.program.name_of(keyword.value, module) or "?"
                case "default":
                    default = value
                case "action":
                    settings["action"] = value
                case "nargs" | "choices" | "required" | "dest" if value is not UNKNOWN:
                    settings[keyword.arg] = value
                case "nargs" | None:
                    settings["nargs"], is_sure = "?", False
        if "action" in settings:
            is_sure = _translate_action(settings) and is_sure
        if "default" not in {k.arg for k in call.keywords}:
            default = {"store_true": False, "store_false": True}.get(settings.get("action", ""))
        return Option(names, module.where(call), settings, kind, default, is_sure)

    @cached_property
    def _is_one_parser(self) -> bool:
        """Tell whether all options are of one parser: the only one, with parents, or one that gets what is left."""
        has_parents = any(keyword.arg == "parents" for _, call in self.creations for keyword in call.keywords)
        is_passed_on = any(how in _LENIENT for _, _, how in self._parses())
        return (len(self.creations) == 1 or has_parents or is_passed_on) and not self._has_subparsers

    @cached_property
    def _has_subparsers(self) -> bool:
        return any(isinstance(c.func, ast.Attribute) and c.func.attr == "add_subparsers" for _, c, _ in self.calls)

    # ── gaps ────────────────────────────────────────────────────────────────────────────────────────────────────

    def _gaps(self, parses: list[tuple[Module, ast.Call, str]]) -> Iterator[Gap]:
        if not self.creations:
            module, call, _ = parses[0]
            yield Gap(module.where(call), "the parser comes from elsewhere")
        yield from self._of_argv()
        for module, call in self._adds():
            names = [self.values.of(item, module) for item in call.args]
            if not names or not all(isinstance(name, str) for name in names):
                yield Gap(module.where(call), "the name of an option is put together here")
        for module, call, name in self.calls:
            if isinstance(call.func, ast.Attribute) and call.func.attr == "add_subparsers":
                yield Gap(module.where(call), "it has subcommands")
            if self._is_given_away(call, name, module):
                yield Gap(module.where(call), f"{name or 'a function'} may add options")
        for module, call, _ in parses:
            if why := self._foreign(call, module):
                yield Gap(module.where(call), why)
        for module, call in self.creations:
            yield from self._of_parser(module, call)
            settings = {keyword.arg for keyword in call.keywords}
            if "fromfile_prefix_chars" in settings:
                yield Gap(module.where(call), "it reads words from files")
            if "prefix_chars" in settings and len(self.creations) > 1:
                yield Gap(module.where(call), "one of its parsers has prefixes of its own")

    def _of_argv(self) -> Iterator[Gap]:
        for module, node in self.program.nodes:
            target = node.value if isinstance(node, ast.Subscript) else node
            if isinstance(getattr(node, "ctx", None), (ast.Store, ast.Del)) and self._is_sys_argv(target, module):
                yield Gap(module.where(node), "sys.argv is changed")
        for module, call, _ in self.calls:
            if isinstance(call.func, ast.Attribute) and self._is_sys_argv(call.func.value, module):
                if call.func.attr in ("append", "insert", "extend", "remove", "pop", "clear"):
                    yield Gap(module.where(call), "sys.argv is changed")

    def _is_sys_argv(self, node: ast.AST, module: Module) -> bool:
        return self.program.name_of(node, module) == "sys.argv"

    def _is_given_away(self, call: ast.Call, name: str, module: Module) -> bool:
        """Tell whether a parser is handed to code that is not here."""
        given = [*call.args, *(keyword.value for keyword in call.keywords if keyword.arg != "parents")]
        names = self._parser_names(module)
        if name in _HARMLESS or not any(self._is_parser(inner, names) for item in given for inner in _parts(item)):
            return False
        is_ours = self.program.definition(self.reached.names.get(call, name)) is not None
        if is_ours or self._is_inner(call, module):
            return False
        return not (isinstance(call.func, ast.Attribute) and call.func.attr in self._methods)

    def _is_parser(self, node: ast.AST, names: set[str]) -> bool:
        if isinstance(node, ast.Call):
            return isinstance(node.func, ast.Attribute) and node.func.attr in _GROUPS
        if isinstance(node, ast.Name):
            return node.id in names or node.id in _PARSER_NAMES
        return isinstance(node, ast.Attribute) and node.attr in _PARSER_NAMES

    def _is_inner(self, call: ast.Call, module: Module) -> bool:
        return isinstance(call.func, ast.Name) and call.func.id in module.functions

    @cached_property
    def _methods(self) -> frozenset[str]:
        """Return the names of all methods of all classes here."""
        return frozenset(self.program.methods)

    @cache  # noqa: B019 - of one search
    def _parser_names(self, module: Module) -> set[str]:
        """Return the variables of a module that hold parsers and groups of them."""
        names = {
            target.id
            for node in module.nodes
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call)
            if self._makes_parser(self.program.name_of(node.value.func, module))
            for target in node.targets
            if isinstance(target, ast.Name)
        }
        for node in module.nodes:
            if isinstance(node, ast.Attribute) and node.attr in _ADDS and isinstance(node.value, ast.Name):
                names.add(node.value.id)
        return names - {"self", "cls"}

    def _foreign(self, call: ast.Call, module: Module) -> str:
        """Return why a parser that parses is not known whole, or nothing."""
        assert isinstance(call.func, ast.Attribute)
        made_by: list[ast.AST] = [call.func.value]
        if isinstance(call.func.value, ast.Name):
            made_by = [
                node.value
                for node in module.nodes
                if isinstance(node, ast.Assign)
                and any(isinstance(t, ast.Name) and t.id == call.func.value.id for t in node.targets)
            ]
        for node in made_by:
            if isinstance(node, ast.Call):
                name = self.reached.names.get(node, self.program.name_of(node.func, module))
                is_ours = self.program.definition(name) is not None or self._is_inner(node, module)
                is_method = isinstance(node.func, ast.Attribute) and not self._is_package(node.func, module)
                if not is_ours and not is_method and not self._makes_parser(name):
                    return f"{name or 'something else'} makes the parser"
        return ""

    def _is_package(self, target: ast.Attribute, module: Module) -> bool:
        root: ast.AST = target
        while isinstance(root, ast.Attribute):
            root = root.value
        return isinstance(root, ast.Name) and root.id in module.aliases

    def _of_parser(self, module: Module, call: ast.Call) -> Iterator[Gap]:
        found = self.program.definition(self.program.name_of(call.func, module))
        if found and isinstance(found[1], ast.ClassDef):
            own = [item.name for item in found[1].body if isinstance(item, ast.FunctionDef) and item.name != "__init__"]
            changed = [name for name in own if name in (*_STRICT, *_LENIENT, *_ADDS, "_get_option_tuples", "error")]
            if changed:
                yield Gap(module.where(call), f"its class has a {changed[0]} of its own")
        for keyword in call.keywords:
            if keyword.arg == "parents":
                yield from self._of_parents(keyword.value, module)
            if keyword.arg is None:
                yield Gap(module.where(call), "the parser's settings are not literal")

    def _of_parents(self, node: ast.AST, module: Module) -> Iterator[Gap]:
        items = node.elts if isinstance(node, (ast.List, ast.Tuple)) else [node]
        for item in items:
            if isinstance(item, ast.Call):
                name = self.program.name_of(item.func, module)
                if self.program.definition(name) is None and not self._makes_parser(name):
                    yield Gap(module.where(item), f"{name or 'something else'} makes a parent of the parser")
            elif not isinstance(item, ast.Name) or item.id not in self._parser_names(module):
                yield Gap(module.where(item), "a parent of the parser comes from elsewhere")

    # ── what was parsed ─────────────────────────────────────────────────────────────────────────────────────────

    def _namespaces(self, parses: list[tuple[Module, ast.Call, str]]) -> Iterator[str]:
        """Yield the variables that hold the parsed arguments, unless somebody writes to them in hidden ways."""
        if self.program.stored_attributes & {"__dict__"} or _CHANGERS & {
            node.attr for _, node in self.program.nodes if isinstance(node, ast.Attribute)
        }:
            return
        hidden = ("setattr", "vars")
        if any(name in hidden and len(call.args) > (name == "setattr") for _, call, name in self.calls):
            for _, call, name in self.calls:
                if name == "setattr" or (name == "vars" and self._is_updated(call)):
                    return
        returning = {
            f"{module.name}.{scope.name}"
            for module, call, _ in parses
            for scope in module.above(call)
            if isinstance(scope, (ast.FunctionDef, ast.AsyncFunctionDef))
        }
        parsing = {id(call) for _, call, _ in parses if not any(k.arg == "namespace" for k in call.keywords)}
        kept, others = set[str](), set[str]()
        for module, node in self.program.nodes:
            if not isinstance(node, ast.Assign) or not isinstance(node.value, ast.Call):
                continue
            is_parsed = id(node.value) in parsing or self.program.name_of(node.value.func, module) in returning
            for target in node.targets:
                first = target.elts[0] if isinstance(target, ast.Tuple) and target.elts else target
                if isinstance(first, ast.Name):
                    (kept if is_parsed else others).add(first.id)
        yield from kept - others

    def _is_updated(self, call: ast.Call) -> bool:
        return any(
            isinstance(parent, ast.Attribute) and parent.attr == "update"
            for module in self.program.modules.values()
            if call in module.parents
            for parent in (module.parents[call],)
        )


def _parts(node: ast.AST) -> Iterator[ast.AST]:
    """Yield an argument and what is in it, if it is a plain container."""
    yield node
    if isinstance(node, (ast.List, ast.Tuple, ast.Dict, ast.Starred)):
        yield from ast.walk(node)


def _gives_words(call: ast.Call) -> bool:
    """Tell whether a call hands over anything but the words of the command line."""
    given = [*call.args, *(keyword.value for keyword in call.keywords)]
    return any(ast.unparse(item) not in ("None", "sys.argv[1:]", "argv[1:]") for item in given)


def _translate_action(settings: dict[str, Any]) -> bool:
    """Put argparse's own action in place; return whether it is one."""
    action = settings["action"]
    if action == "boolean":
        settings["action"] = argparse.BooleanOptionalAction
    elif action not in _ACTIONS:
        del settings["action"]
        settings["nargs"] = settings.get("nargs", "?")
        settings.pop("choices", None)
        settings.pop("required", None)
        return False
    if settings.get("action") in ("store_const", "append_const"):
        settings["const"] = UNKNOWN
    if settings.get("action") in ("store_true", "store_false", "store_const", "append_const", "count"):
        settings.pop("nargs", None)
        settings.pop("choices", None)
    return True
