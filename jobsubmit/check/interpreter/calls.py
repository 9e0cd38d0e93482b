"""What the calls of a program lead to: its functions and classes, those of Python, and those of libraries."""

from __future__ import annotations

import ast
from pathlib import PurePosixPath
from typing import Any

from jobsubmit.check.interpreter.attributes import GIVES_BACK
from jobsubmit.check.interpreter.library import FUNCTIONS as OF_LIBRARIES, value_of_external
from jobsubmit.check.interpreter.mappings import is_mapping
from jobsubmit.check.interpreter.memory import (
    MORE,
    NAMESPACE,
    ClassValue,
    Container,
    External,
    FunctionValue,
    Method,
    ModuleValue,
    Partial,
    Record,
    Scope,
    boxed,
)
from jobsubmit.check.interpreter.methods import method_of_container, method_of_text
from jobsubmit.check.interpreter.noting import Noting, is_followed
from jobsubmit.check.interpreter.of_torch import start_process
from jobsubmit.check.interpreter.own import derived_call, mark_part, parts_of_loader, prepared
from jobsubmit.check.interpreter.placing import MOVES
from jobsubmit.check.interpreter.rehearsal import context_of
from jobsubmit.check.interpreter.special import SPECIAL
from jobsubmit.check.interpreter.wrappers import OWNER, STATE
from jobsubmit.check.program.configuration import OpenFile
from jobsubmit.check.program.hydra import HYDRA
from jobsubmit.check.program.module import unparsed
from jobsubmit.check.program.objects import changed_later, is_record, reads_environment
from jobsubmit.check.program.operations import PATH_METHODS, UNKNOWN, Several

_COMMANDS = ("click.", "typer.", "sacred.")
_LATER = ("signal.", "atexit.")  # they call what they are given where the program is interrupted
_OF_FIELDS = frozenset(["types.SimpleNamespace", "argparse.Namespace"])  # they have what they are given by name
_DEFINED = (FunctionValue, ClassValue, ModuleValue, External)
_HARMLESS = frozenset(
    [
        *("wraps", "lru_cache", "cache", "contextmanager", "dataclass", "no_grad", "inference_mode", "enable_grad"),
        *("record", "main", "command", "group", "option", "argument", "jit", "njit", "script", "compile", "custom_fwd"),
        *("custom_bwd", "total_ordering", "abstractmethod", "overload", "runtime_checkable", "unique", "disable"),
        *("staticmethod", "classmethod", "property", "cached_property", "pass_context", "callback", "rank_zero_only"),
        *("register", "register_module", "register_model", "define", "frozen", "s", "timeit", "retry", "typechecked"),
    ]
)
_BINDERS = ("property", "cached_property", "staticmethod", "classmethod")


class Calls(Noting):
    """Follow the calls of the program's functions and classes, of Python's, and of libraries' that are known."""

    def call_of(self, node: ast.Call, scope: Scope) -> Any:
        if isinstance(node.func, ast.Name) and node.func.id in SPECIAL:
            return SPECIAL[node.func.id](self, node, scope)
        callee = self.value(node.func, scope)
        args, keywords, is_open = self.arguments(node, scope)
        self._see_callee(node, callee)
        self.here = scope.module
        self.path.append(node)
        try:
            if self.process is not None:
                self.note_call(node, callee, args, keywords, is_open=is_open)
                self.note_model(node, callee, args, keywords, scope)
            context = context_of(node, callee, args, keywords) if not is_followed(callee) else None
            result = context or self.call(callee, args, keywords, is_open=is_open)
            if isinstance(result, Record) and (path := tuple(self.path)) in self.trace.events:
                self.trace.results.setdefault(path, set()).add(result.born)
        finally:
            self.path.pop()
        if result is UNKNOWN and callee == External("int") and self._is_product_with_zero(node, scope):
            return 0
        if self.process is None or is_followed(callee):
            return result
        if self.rehearsal is not None and callee == External("len") and node.args and result is UNKNOWN:
            return self.rehearsal.lengths.get(unparsed(node.args[0]), UNKNOWN)
        name = callee.name if isinstance(callee, External) else getattr(node.func, "attr", "?")
        if name == "state_dict" and isinstance(node.func, ast.Attribute) and not args and result is UNKNOWN:
            made = Record(STATE, is_open=True)
            made.content[OWNER] = self.peek(node.func.value, scope)
            return made
        source = callee.owner if isinstance(callee, Method) else callee
        given = [*args, *keywords.values()]
        self.put_aside(node, name, args, scope)
        made = derived_call(result, source, name, given, is_judged=self.without_gradients > 0)
        return self.scaled_by_call(node, made, callee, (name, args, keywords), scope)

    def _is_product_with_zero(self, node: ast.Call, scope: Scope) -> bool:
        """Return whether a number is 0 whatever one of its factors is: `int(steps * 0)`."""
        match node.args:
            case [ast.BinOp(op=ast.Mult(), left=left, right=right)]:
                factors = [self.peek(left, scope), self.peek(right, scope)]
                return any(type(one) in (int, float) and one == 0 for one in factors)
        return False

    def arguments(self, node: ast.Call, scope: Scope) -> tuple[list[Any], dict[str, Any], bool]:
        """Return the arguments of a call, and whether there may be others."""
        args: list[Any] = []
        keywords: dict[str, Any] = {}
        is_open = False
        for item in node.args:
            if isinstance(item, ast.Starred):
                items = self.items(self.value(item.value, scope))
                args += items or []
                is_open = is_open or items is None
            else:
                args.append(self.value(item, scope))
        for keyword in node.keywords:
            value = self.value(keyword.value, scope)
            if keyword.arg is not None:
                keywords[keyword.arg] = value
                continue
            held = value.entries if isinstance(value, Record) and value.entries is not None else value
            if isinstance(held, Container) and isinstance(held.content, dict):
                keywords.update((key, one) for key, one in held.content.items() if isinstance(key, str))
                is_open = is_open or held.is_open
            else:
                is_open = True
        return args, keywords, is_open

    def _see_callee(self, node: ast.Call, callee: Any) -> None:
        """Remember the whole name of what a call calls, if the program defines it."""
        if isinstance(callee, Method):
            callee = callee.function
        if isinstance(callee, FunctionValue) and not isinstance(callee.node, ast.Lambda):
            within = f"{callee.owner.node.name}." if callee.owner is not None else ""
            self.trace.call(node.func, f"{callee.module.name}.{within}{callee.node.name}")
        elif isinstance(callee, ClassValue):
            self.trace.call(node.func, f"{callee.module.name}.{callee.node.name}")
        else:
            self.trace.call(node.func, "")

    def call(self, callee: Any, args: list[Any], keywords: dict[str, Any], *, is_open: bool = False) -> Any:
        """Return what a call returns."""
        match callee:
            case FunctionValue(kind="hydra") if not args and self.composed is not None:
                held = boxed(self.composed.values, by_attribute=True)
                held.is_open = not self.composed.is_complete
                return self.invoke(callee, [held], {}, is_open=False)
            case FunctionValue():
                is_started = callee.kind in ("hydra", "command") and not args
                return self.invoke(callee, args, keywords, is_open=is_open or is_started)
            case Method(function=FunctionValue() as function, owner=owner):
                return self.invoke(function, [owner, *args], keywords, is_open=is_open)
            case Method(function=str() as name, owner=owner):
                return self._of_python(name, owner, args, keywords, is_open=is_open)
            case Partial(function=inner):
                return self.call(inner, [*callee.args, *args], {**callee.keywords, **keywords}, is_open=is_open)
            case ClassValue():
                return self.made(callee, args, keywords, is_open=is_open)
            case External():
                return self._of_library(callee.name, args, keywords, is_open=is_open)
            case Record(kind=ClassValue() as kind) if isinstance(kind.find("__call__"), FunctionValue):
                return self.invoke(kind.find("__call__"), [callee, *args], keywords, is_open=is_open)
        self._call_back(args, keywords)
        given = [*args, *keywords.values()]
        if self.path and isinstance(getattr(self.path[-1], "func", None), (ast.Subscript, ast.Call)):
            # It is one of several classes or builders: they read the arguments of the program.
            given = [one for one in given if not isinstance(one, Record) or one.kind != NAMESPACE]
        self.forget(given)
        self.unknown_calls += 1
        return UNKNOWN

    def forget(self, objects: list[Any]) -> None:
        """Forget what objects hold that something unknown is given: it may change them."""
        for one in objects:
            held = one.scope if isinstance(one, (ClassValue, ModuleValue)) else one
            if isinstance(held, (Container, Record, Scope)):
                self.memory.touch(held)
                if not isinstance(held, Scope):
                    held.is_open = True
                content = held.content
                if isinstance(held, Record) and isinstance(held.kind, ClassValue):
                    names = {name: value for one in held.kind.line() for name, value in one.scope.names.items()}
                    for name, value in names.items():
                        if not isinstance(value, _DEFINED):
                            content.setdefault(name, value)
                if isinstance(content, dict):
                    content.update(
                        (key, UNKNOWN) for key, value in list(content.items()) if not isinstance(value, _DEFINED)
                    )
                else:
                    content.clear()

    def _forget_counts(self, objects: list[Any]) -> None:
        """Forget the numbers that methods of an object change which a library may call, such as a callback's."""
        for one in objects:
            if isinstance(one, Container) and isinstance(one.content, list):
                self._forget_counts([item for item in one.content if isinstance(item, Record)])
            if isinstance(one, Record) and isinstance(one.kind, ClassValue) and one.kind in self.of_libraries:
                changed = {name for kind in one.kind.line() for name in changed_later(kind.node)}
                counts = {name for name in changed if isinstance(one.content.get(name), (int, float))}
                if counts:
                    self.memory.touch(one)
                    one.content.update(dict.fromkeys(counts, UNKNOWN))

    def import_what_is_named(self) -> None:
        """Follow the modules that a module may import by a name that is computed."""
        for name in self.program.imported_by_text.get(self.here.name, ()):
            if name in self.program.modules:
                self.imported(name)

    def made(self, kind: ClassValue, args: list[Any], keywords: dict[str, Any], *, is_open: bool) -> Any:
        """Return a new object of a class of the program."""
        self.trace.made.add(kind.node)
        libraries = kind.libraries
        is_dict = any(is_mapping(name) for name in libraries)
        entries = Container({}) if is_dict else Container([]) if "list" in libraries else None
        record = Record(kind, is_open=bool(libraries - {"object", "abc.ABC", "dict", "list"}), entries=entries)
        if record.is_open:
            self.of_libraries.setdefault(kind, record)
        maker = kind.find("__init__")
        if isinstance(maker, FunctionValue):
            self.invoke(maker, [record, *args], keywords, is_open=is_open)
        elif entries is not None and is_dict:
            for one in args:
                self.update(entries, one)
            entries.content.update(keywords)
            entries.is_open = entries.is_open or is_open
        elif libraries & _OF_FIELDS:
            record.content.update(keywords)
        elif any(reads_environment(one.node) for one in kind.line()):
            record.content.update({**dict.fromkeys(self.fields_of(kind), UNKNOWN), **keywords})
        elif self._is_record(kind):
            self._fill(record, kind, args, keywords, is_open=is_open)
        else:
            self._call_back(args, keywords)
        return record

    def _is_record(self, kind: ClassValue) -> bool:
        return any(is_record(one.node) for one in kind.line())

    def fields_of(self, kind: ClassValue) -> dict[str, Any]:
        """Return the fields of a dataclass with their defaults; those that have none are UNKNOWN."""
        found: dict[str, Any] = {}
        for one in reversed(list(kind.line())):
            for statement in one.node.body:
                if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
                    if "ClassVar" not in unparsed(statement.annotation):
                        found[statement.target.id] = one.scope.names.get(statement.target.id, UNKNOWN)
        return found

    def default_of_field(self, default: Any) -> Any:
        """Return the value that a field of a dataclass gets in a new object."""
        if isinstance(default, Partial) and default.function == External("dataclasses.field"):
            if "default_factory" in default.keywords:
                return self.call(default.keywords["default_factory"], [], {})
            return default.keywords.get("default", UNKNOWN)
        return default

    def _fill(
        self, record: Record, kind: ClassValue, args: list[Any], keywords: dict[str, Any], *, is_open: bool
    ) -> None:
        fields = self.fields_of(kind)
        given = {**dict(zip(fields, args, strict=False)), **keywords}
        for name, default in fields.items():
            if name in given:
                record.content[name] = given[name]
            else:
                record.content[name] = UNKNOWN if is_open else self.default_of_field(default)
        after = kind.find("__post_init__")
        if isinstance(after, FunctionValue):
            self.invoke(after, [record], {}, is_open=False)

    def _of_library(self, name: str, args: list[Any], keywords: dict[str, Any], *, is_open: bool) -> Any:
        known = OF_LIBRARIES.get(name)
        if known is not None:
            return UNKNOWN if is_open else known(self, args, keywords)
        found = value_of_external(self, name, args, keywords)
        if found is not None:
            return found[0]
        if not name.startswith(_LATER):
            self._call_back(args, keywords)
        self.unknown_calls += 1
        self._forget_counts([*args, *keywords.values()])
        made = mark_part(Record(External(name), is_open=True), [*args, *keywords.values()])
        if name.startswith("torch.utils.data.") and name.endswith(("DataLoader", "BatchSampler")):
            made.content.update(parts_of_loader(name, args, keywords))
        self.wrappers.wrap(made, name, args, keywords)
        if name.endswith("DistributedDataParallel") and self.path and not self.doubts:
            self.places.wrap(self.path[-1], self.here, args, keywords)
        return made

    def _call_back(self, args: list[Any], keywords: dict[str, Any]) -> None:
        """Follow the functions that something unknown is given: it may call them, with anything."""
        for one in (*args, *keywords.values()):
            function = one.function if isinstance(one, Method) else one
            if isinstance(function, FunctionValue) and function.node not in self.trace.entered:
                self.perhaps(function, [one.owner] if isinstance(one, Method) else [])

    def perhaps(self, function: FunctionValue, args: list[Any]) -> None:
        """Follow a call that may be made, whose other arguments are not known."""

        def run() -> None:
            self.invoke(function, args, {}, is_open=True)

        self.either(run, lambda: None)

    def either(self, *branches: Any) -> Any:
        raise NotImplementedError

    def follow_what_libraries_call(self) -> None:
        """Follow the methods that a library calls of the objects of this program: those of layers, data, modules."""
        for record in list(self.of_libraries.values()):
            kind = record.kind
            for one in kind.line() if isinstance(kind, ClassValue) else ():
                for method in list(one.scope.names.values()):
                    is_called = isinstance(method, FunctionValue) and method.node not in self.trace.entered
                    if is_called and method.kind not in ("staticmethod", "classmethod"):
                        self.perhaps(method, [record])

    def _of_python(self, name: str, owner: Any, args: list[Any], keywords: dict[str, Any], *, is_open: bool) -> Any:
        """Return what a method of a text, a path, a container or an object of a library returns."""
        if is_open and not isinstance(owner, (Container, Record)):
            return UNKNOWN
        if isinstance(owner, Container):
            return method_of_container(self, owner, name, args, keywords)
        if isinstance(owner, OpenFile):
            return owner if name in ("read", "__enter__", "open") else UNKNOWN
        if isinstance(owner, (str, Several)):
            return method_of_text(self, owner, name, args)
        if isinstance(owner, PurePosixPath):
            return _method_of_path(owner, name, args)
        if isinstance(owner, Record):
            if name in GIVES_BACK:
                if name in MOVES:
                    self.places.move(owner)
                return owner
            if name == "__getattribute__":
                return self.attribute(owner, args[0]) if isinstance(args[0], str) else UNKNOWN
            if name == "__setattr__" and isinstance(args[0], str):
                self.memory.touch(owner)
                owner.content[args[0]] = args[1]
                return None
            if name in ("prepare", "prepare_data_loader", "setup_dataloaders") and isinstance(owner.kind, External):
                return prepared(args[0]) if len(args) == 1 else tuple(map(prepared, args))
            if name == "Process" and isinstance(owner.kind, External) and "multiprocessing" in owner.kind.name:
                return start_process(self, args, keywords)
            known = OF_LIBRARIES.get(f"{owner.kind.name}.{name}") if isinstance(owner.kind, External) else None
            if known is not None:
                return known(self, [owner, *args], {**keywords, MORE: UNKNOWN} if is_open else keywords)
        elif isinstance(owner, (int, float)) and name == "is_integer":
            return float(owner).is_integer()
        self._call_back(args, keywords)
        self.unknown_calls += 1
        return UNKNOWN

    def decorated(self, made: Any, decorator: ast.expr, scope: Scope) -> Any:
        """Return what a decorator makes of a function or a class; one that is not known leaves it as it is."""
        name = name_of_decorator(decorator)
        called = decorator.func if isinstance(decorator, ast.Call) else decorator
        whole = self.program.name_of(called, scope.module)
        if isinstance(made, FunctionValue) and whole in HYDRA:
            return FunctionValue(made.node, made.scope, made.defaults, made.owner, "hydra")
        if isinstance(made, FunctionValue) and (whole.startswith(_COMMANDS) or name in ("command", "callback")):
            return FunctionValue(made.node, made.scope, made.defaults, made.owner, "command")
        if name in _BINDERS and isinstance(made, FunctionValue):
            return FunctionValue(made.node, made.scope, made.defaults, made.owner, name)
        if isinstance(decorator, ast.Attribute) and decorator.attr in ("setter", "getter", "deleter"):
            return scope.names.get(getattr(made.node, "name", ""), made) if isinstance(made, FunctionValue) else made
        if name == "wraps" and isinstance(made, FunctionValue):
            return FunctionValue(made.node, made.scope, made.defaults, made.owner, "wraps")
        held = self.value(decorator, scope)
        if isinstance(held, (FunctionValue, Method, Partial)):
            result = self.call(held, [made], {})
            return made if result is UNKNOWN or result is None else result
        if isinstance(made, FunctionValue) and name not in _HARMLESS:  # it may give its parameters other values
            return FunctionValue(made.node, made.scope, dict.fromkeys(made.defaults, UNKNOWN), made.owner, made.kind)
        return made

    def finish_class(self, made: ClassValue) -> None:
        """Make the members of an enumeration."""
        if not any(name.rpartition(".")[2] in ("Enum", "IntEnum", "StrEnum") for name in made.libraries):
            return
        for name, value in list(made.scope.names.items()):
            if not name.startswith("_") and not isinstance(value, FunctionValue):
                member = Record(made)
                member.content.update(name=name, value=value)
                made.scope.names[name] = member


def name_of_decorator(node: ast.expr) -> str:
    """Return the last part of the name of a decorator."""
    node = node.func if isinstance(node, ast.Call) else node
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def _method_of_path(owner: PurePosixPath, name: str, args: list[Any]) -> Any:
    if name in PATH_METHODS and not args:
        return PATH_METHODS[name](owner)
    if name == "joinpath" and all(isinstance(one, (str, PurePosixPath)) for one in args):
        return owner.joinpath(*args)
    if name in ("with_suffix", "with_name") and isinstance(args[0], str):
        return getattr(owner, name)(args[0])
    if name in ("open", "read_text", "read_bytes"):
        return OpenFile(str(owner))
    return UNKNOWN
