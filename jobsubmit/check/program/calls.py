"""Which functions of a program a call leads to, and how surely."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from functools import lru_cache
from itertools import islice
from typing import NamedTuple, TypeAlias

from jobsubmit.check.program.module import Function, Module, class_around
from jobsubmit.check.program.program import Program

_DEEPEST_CLASS = 20
SPAWNS = ("torch.multiprocessing.spawn", "torch.multiprocessing.start_processes")
PROCESSES = ("torch.multiprocessing.Process", "multiprocessing.Process", "multiprocessing.process.Process")
RUNNERS = ("typer.run", "absl.app.run", "fire.Fire", "torch.distributed.elastic.multiprocessing.errors.record")
_CALLS_WHAT_IT_GETS = (
    *SPAWNS,
    *RUNNERS,
    *(f"torch.distributed.rpc.{name}" for name in ("remote", "rpc_sync", "rpc_async")),
)
_BLOCKS = (ast.If, ast.For, ast.While, ast.With, ast.Try)
_CALLED_LATER = ("__call__", "forward")

Owner: TypeAlias = tuple[Module, ast.ClassDef]


class Reach(IntEnum):
    """How sure it is that something is executed."""

    NEVER = 0
    PERHAPS = 1
    SURELY = 2


class Callee(NamedTuple):
    """A function that is called, the module it is in, and how surely it is."""

    function: Function
    module: Module
    level: Reach


@dataclass
class Callees:
    """Find what calls lead to; it remembers which functions are given as arguments, and whose methods are at work.

    `names` are those of calls of a parameter that holds a function; of a method in `spread` all were found already.
    `given` has the functions that calls give for a parameter, with how surely they are executed.
    """

    program: Program
    names: dict[ast.Call, str] = field(default_factory=dict)
    owners: dict[ast.AST, Owner] = field(default_factory=dict)
    given: dict[tuple[ast.AST, str], dict[str, Reach]] = field(default_factory=dict)
    spread: set[str] = field(default_factory=set)

    def of(self, call: ast.Call, module: Module, level: Reach) -> list[Callee]:
        """Return the functions that a call enters, those that it is given, too."""
        name = self._name(call.func, call, module)
        self._remember_functions(name, call, module, level)
        self._remember_of_process(name, call, module, level)
        found = self._meant(call.func, name, call, module, level)
        found += self._given_too(call.func, call, module, level)
        is_sure = name in _CALLS_WHAT_IT_GETS or name.endswith(".Process")
        passed = level if is_sure else min(level, Reach.PERHAPS)
        for item in (*call.args, *(keyword.value for keyword in call.keywords)):
            found += self._meant(item, self._name(item, call, module), call, module, passed)
            found += self._given_too(item, call, module, passed)
        return found

    def named(self, node: ast.Name, module: Module, level: Reach) -> list[Callee]:
        """Return the functions that a stored or returned name refers to: they may be called later."""
        perhaps = min(level, Reach.PERHAPS)
        return [*self.by_name(self.program.name_of(node, module), perhaps), *_inner(node.id, node, module, perhaps)]

    def entered(self, node: ast.AST, module: Module, level: Reach) -> list[Callee]:
        """Return the methods of an object that a `with` statement calls."""
        owner = self._class(self._class_of(node, module))
        if owner is None:
            return []
        return [*self._method(owner, "__enter__", level), *self._method(owner, "__exit__", level)]

    def read(self, node: ast.Attribute, module: Module, level: Reach) -> list[Callee]:
        """Return the properties that an attribute may be: surely one of the same object, perhaps one of another."""
        own = class_around(node, module)
        is_self = isinstance(node.value, ast.Name) and node.value.id == "self"
        return [
            Callee(function, home, level if is_self and owner is own else min(level, Reach.PERHAPS))
            for home, owner, function in self.program.properties.get(node.attr, ())
        ]

    def _meant(self, node: ast.AST, name: str, call: ast.Call, module: Module, level: Reach) -> list[Callee]:
        """Return the functions that an expression may mean, which a call calls or is given."""
        names = self.program.imported(node, module) if isinstance(node, ast.Name) and node.id in module.imports else []
        found = [callee for other in names for callee in self.by_name(other, min(level, Reach.PERHAPS))]
        if not names or names == [name]:
            found = self.by_name(name, level)
        if isinstance(node, ast.Attribute):
            found += self._by_object(node, module, level)
        elif isinstance(node, ast.Name):
            found += _inner(node.id, call, module, level)
        return found

    def _given_too(self, node: ast.AST, call: ast.Call, module: Module, level: Reach) -> list[Callee]:
        """Return the other functions that a parameter was given: `run(basic)`, `run(sharded)`."""
        others = self._given(node, call, module)[:-1]
        return [callee for name, given in others for callee in self.by_name(name, min(level, given))]

    def _given(self, node: ast.AST, call: ast.Call, module: Module) -> list[tuple[str, Reach]]:
        """Return the functions that a parameter was given, the last one at the end."""
        if not isinstance(node, ast.Name):
            return []
        found = (self.given[scope, node.id] for scope in module.above(call) if (scope, node.id) in self.given)
        return list(next(found, {}).items())

    def _name(self, node: ast.AST, call: ast.Call, module: Module) -> str:
        """Return the whole name of what is called; of a parameter, that of the function it was given last."""
        if given := self._given(node, call, module):
            self.names[call] = given[-1][0]
            return self.names[call]
        return self.program.name_of(node, module)

    def _remember(self, function: ast.AST, parameter: str, name: str, level: Reach) -> None:
        known = self.given.setdefault((function, parameter), {})
        known[name] = max(level, known.pop(name, Reach.NEVER))

    def _remember_functions(self, name: str, call: ast.Call, module: Module, level: Reach) -> None:
        found = self.program.definition(name)
        if found is None or isinstance(found[1], ast.ClassDef):
            return
        own = [*found[1].args.posonlyargs, *found[1].args.args]
        by_name = dict(zip((arg.arg for arg in own), call.args, strict=False))
        by_name |= {keyword.arg: keyword.value for keyword in call.keywords if keyword.arg}
        for parameter, node in by_name.items():
            if isinstance(node, ast.Name) and self.program.definition(self._name(node, call, module)):
                self._remember(found[1], parameter, self._name(node, call, module), level)

    def _remember_of_process(self, name: str, call: ast.Call, module: Module, level: Reach) -> None:
        """Remember the functions that a process gets: the `args` of Process, and those of mp.spawn after the first."""
        keywords = {keyword.arg: keyword.value for keyword in call.keywords}
        is_process = name.endswith(".Process")
        if not is_process and name not in SPAWNS:
            return
        target = keywords.get("target") if is_process else keywords.get("fn", call.args[0] if call.args else None)
        given = keywords.get("args", call.args[1] if not is_process and len(call.args) > 1 else None)
        found = self.program.definition(self._name(target, call, module)) if target is not None else None
        if found is None or isinstance(found[1], ast.ClassDef) or not isinstance(given, (ast.Tuple, ast.List)):
            return
        own = [*found[1].args.posonlyargs, *found[1].args.args][0 if is_process else 1 :]
        for parameter, node in zip(own, given.elts, strict=False):
            if isinstance(node, ast.Name) and self.program.definition(self._name(node, call, module)):
                self._remember(found[1], parameter.arg, self._name(node, call, module), level)

    def by_name(self, name: str, level: Reach) -> list[Callee]:
        """Return the function that a whole name means, or the methods that are called where it makes an object."""
        found = self.program.definition(name)
        if found is None:
            owner, _, method = name.rpartition(".")
            of_class = self._class(owner)
            called = self._method(of_class, method, level) if of_class else []
            if of_class and not called and method == "apply":  # of a torch.autograd.Function
                called = self._method(of_class, "forward", level)
            return called
        module, definition = found
        if not isinstance(definition, ast.ClassDef):
            return [Callee(definition, module, level)]
        made = self._method((module, definition), "__init__", level)
        after = min(level, Reach.PERHAPS) if made else level  # only a dataclass without __init__ surely calls it
        made += self._method((module, definition), "__post_init__", after)
        for method in _CALLED_LATER:
            made += self._method((module, definition), method, min(level, Reach.PERHAPS))
        return made

    def _by_object(self, target: ast.Attribute, module: Module, level: Reach) -> list[Callee]:
        """Return the method of an object; where its class is not known, perhaps every method of that name."""
        found: list[Callee] = []
        owner = self._owner(target, module)
        if owner and isinstance(target.value, ast.Name) and target.value.id in ("self", "cls"):
            found = self._method(owner, target.attr, level)
        elif owner and _is_super(target.value):
            lexical = next((n for n in module.above(target) if isinstance(n, ast.ClassDef)), owner[1])
            found = self._method((module, lexical), target.attr, level, of=owner)
        if not found and (of_class := self._class(self._class_of(target.value, module))):
            found = self._method(of_class, target.attr, level)
        if found or level is Reach.NEVER or target.attr in self.spread:
            return found
        self.spread.add(target.attr)
        for home, definition, method in self.program.methods.get(target.attr, ()):
            self.owners.setdefault(method, (home, definition))
            found.append(Callee(method, home, min(level, Reach.PERHAPS)))
        return found

    def _owner(self, node: ast.AST, module: Module) -> Owner | None:
        """Return the class that `self` is of: the one whose object is at work, not the one that is read."""
        for above in module.above(node):
            if above in self.owners:
                return self.owners[above]
            if isinstance(above, ast.ClassDef):
                return module, above
        return None

    def _class(self, name: str) -> Owner | None:
        found = self.program.definition(name) if name else None
        return (found[0], found[1]) if found and isinstance(found[1], ast.ClassDef) else None

    def _class_of(self, node: ast.AST, module: Module) -> str:
        """Return the name of the class that a variable holds an object of."""
        if isinstance(node, ast.Call):
            return self.program.name_of(node.func, module)
        made = module.assigned_calls.get(node.id, ()) if isinstance(node, ast.Name) else ()
        return self.program.name_of(made[0].func, module) if len(made) == 1 else ""

    def _method(self, owner: Owner, name: str, level: Reach, of: Owner | None = None) -> list[Callee]:
        """Return the method that a class has or inherits; for super() in an object `of` a class what it inherits."""
        for home, definition in islice(self._line(owner), 1 if of else 0, None):
            for node in definition.body:
                if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.name == name:
                    self.owners.setdefault(node, of or owner)
                    return [Callee(node, home, level)]
        return []

    def _line(self, owner: Owner, depth: int = 0) -> Iterator[Owner]:
        """Yield a class, and then those above it."""
        yield owner
        module, definition = owner
        for base in definition.bases if depth < _DEEPEST_CLASS else ():
            if above := self._class(self.program.name_of(base, module)):
                yield from self._line(above, depth + 1)


def argument(call: ast.Call, name: str, position: int | None = None) -> ast.expr | None:
    """Return an argument of a call, by name or by position."""
    for keyword in call.keywords:
        if keyword.arg == name:
            return keyword.value
    if position is not None and len(call.args) > position and not any(isinstance(a, ast.Starred) for a in call.args):
        return call.args[position]
    return None


def parameters_with_defaults(function: Function) -> list[tuple[ast.arg, ast.expr | None]]:
    """Return the parameters of a function, each with its default; without `*args` and `**kwargs`."""
    own = function.args
    positional = [*own.posonlyargs, *own.args]
    defaults: list[ast.expr | None] = [None] * (len(positional) - len(own.defaults)) + list(own.defaults)
    return [*zip(positional, defaults, strict=True), *zip(own.kwonlyargs, own.kw_defaults, strict=True)]


def given_for(call: ast.Call, function: Function, parameter: str) -> ast.expr | None:
    """Return what a call gives for a parameter of the function that it calls."""
    return argument(call, parameter, _positions(function).get(parameter))


@lru_cache(maxsize=10_000)
def _positions(function: Function) -> Mapping[str, int]:
    """Return the place of each parameter that a call may give by position."""
    names = [one.arg for one in (*function.args.posonlyargs, *function.args.args)]
    is_of_class = bool(function.decorator_list) or function.name.startswith("__")
    if names[:1] == ["self"] or (names[:1] == ["cls"] and is_of_class):
        names = names[1:]
    return {name: place for place, name in enumerate(names)}


def default_of(function: Function, name: str) -> ast.expr | None:
    """Return the default of a parameter, if it has one."""
    own = [arg.arg for arg in (*function.args.posonlyargs, *function.args.args)]
    defaults: dict[str, ast.expr | None] = dict(zip(own[::-1], function.args.defaults[::-1], strict=False))
    only = zip(function.args.kwonlyargs, function.args.kw_defaults, strict=True)
    return (defaults | {arg.arg: value for arg, value in only}).get(name)


def hides_arguments(call: ast.Call) -> bool:
    """Return whether a call has `*args` or `**kwargs`: then any argument may be given."""
    return any(isinstance(item, ast.Starred) for item in call.args) or any(k.arg is None for k in call.keywords)


def _is_super(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "super"


def _inner(name: str, use: ast.AST, module: Module, level: Reach) -> Iterator[Callee]:
    """Yield the function that is defined inside the one that uses it."""
    for function in module.functions.get(name, ()):
        inside = next((n for n in module.above(function) if not isinstance(n, _BLOCKS)), None)
        if isinstance(inside, (ast.FunctionDef, ast.AsyncFunctionDef)) and inside in set(module.above(use)):
            yield Callee(function, module, level)
