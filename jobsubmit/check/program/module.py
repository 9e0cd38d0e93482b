"""One file of a program, as a syntax tree, and what can be read from the tree alone."""

from __future__ import annotations

import ast
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any, TypeAlias, TypeGuard

from jobsubmit.check.program.tree import walk

Function: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef
Definition: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
MAIN = "__main__"
EXITS = ("sys.exit", "exit", "quit", "os._exit")
_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)
COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
_NAMESPACES = (*_SCOPES, *COMPREHENSIONS)
_NAMES_WHAT = ("class_name", "func_name")  # of construct_class_by_name() and call_func_by_name(), as in StyleGAN


@dataclass(frozen=True, eq=False)
class Module:
    """One file: its tree, what its imports call things, and what it defines at its top.

    `imports` has the names that several imports give, with each import and what it means by the name. Of one that is
    `skimmed` the tree has its imports only, and `words` is every name in it.
    """

    path: str
    name: str
    tree: ast.Module
    is_package: bool
    aliases: Mapping[str, str] = field(repr=False)
    stars: tuple[str, ...] = field(repr=False)
    definitions: Mapping[str, Definition] = field(repr=False)
    by_type: Mapping[type, Sequence[ast.AST]] = field(repr=False)
    parents: Mapping[ast.AST, ast.AST] = field(repr=False)
    imports: Mapping[str, Sequence[tuple[ast.AST, str]]] = field(default_factory=dict, repr=False)
    words: frozenset[str] = field(default=frozenset(), repr=False)
    home: str = ""  # of the boot file, the package that `python -m` starts it in

    @property
    def is_skimmed(self) -> bool:
        """Return whether only its imports were read."""
        return bool(self.words)

    @cached_property
    def of_own_start(self) -> frozenset[ast.AST]:
        """Return what is executed only if the file itself is started: `if __name__ == "__main__": …`."""
        starts = (one for one in self.tree.body if isinstance(one, ast.If) and _asks_for_start(one.test))
        return frozenset(node for start in starts for one in start.body for node in walk(one))

    @cached_property
    def names(self) -> frozenset[str]:
        """Return every variable and function that it names."""
        return frozenset(node.id for node in self.of(ast.Name))

    @cached_property
    def with_calls(self) -> frozenset[ast.AST]:
        """Return the expressions in which something is called, or chosen between."""
        found: set[ast.AST] = set()
        for inner in self.of(ast.Call, ast.IfExp, ast.BoolOp):
            for node in itertools.chain([inner], self.above(inner)):
                if node in found or isinstance(node, ast.stmt):
                    break
                found.add(node)
        return frozenset(found)

    def of(self, *types: type[ast.AST]) -> Iterator[Any]:
        """Yield every node of some types, and of these only."""
        for kind in types:
            yield from self.by_type.get(kind, ())

    def function_of(self, node: ast.AST) -> Function | None:
        """Return the innermost function that a node is in."""
        if node not in self._functions_around:
            found = next((above for above in self.above(node) if isinstance(above, FUNCTIONS)), None)
            self._functions_around[node] = found
        return self._functions_around[node]

    @cached_property
    def _functions_around(self) -> dict[ast.AST, Function | None]:
        """Return the results of `function_of` so far."""
        return {}

    def scope_of(self, node: ast.AST) -> Function | ast.Module:
        """Return the innermost function that a node is in, or else the module."""
        return self.function_of(node) or self.tree

    def inner_function(self, name: ast.Name) -> Function | None:
        """Return the function that a name means inside the function which defines it."""
        named = self.functions.get(name.id, ())
        around = set(self.above(name)) if named else set()
        found = [one for one in named if self.function_of(one) in around]
        return found[0] if len(found) == 1 else None

    @cached_property
    def named_calls(self) -> Mapping[str, Sequence[ast.Call]]:
        """Return the calls of functions by plain names."""
        found: dict[str, list[ast.Call]] = {}
        for call in self.of(ast.Call):
            if isinstance(call.func, ast.Name):
                found.setdefault(call.func.id, []).append(call)
        return found

    @cached_property
    def own_calls(self) -> Mapping[tuple[ast.ClassDef, str], Sequence[tuple[Module, ast.Call]]]:
        """Return the calls of methods of the same object, by class and name: `self.save()`."""
        found: dict[tuple[ast.ClassDef, str], list[tuple[Module, ast.Call]]] = {}
        for call in self.of(ast.Call):
            owner = class_around(call, self) if is_of_self(call.func) else None
            if owner is not None and isinstance(call.func, ast.Attribute):
                found.setdefault((owner, call.func.attr), []).append((self, call))
        return found

    def excludes(self, one: ast.AST, other: ast.AST) -> bool:
        """Return whether two nodes are in the two branches of one condition: only one of them is executed."""
        branches = {above: inner for inner, above in itertools.pairwise((one, *self.above(one)))}
        for inner, above in itertools.pairwise((other, *self.above(other))):
            if isinstance(above, ast.If) and (first := branches.get(above)) is not None and first is not inner:
                return (first in above.body) != (inner in above.body) and above.test not in (first, inner)
        return False

    def called_as(self, function: Function) -> str:
        """Return the whole name by which a function is called: for what makes objects, the name of its class."""
        owner = self.parents.get(function)
        if not isinstance(owner, ast.ClassDef):
            return f"{self.name}.{function.name}"
        if function.name == "__init__":
            return f"{self.name}.{owner.name}"
        within = f"{owner.name}." if is_of_class(function) else ""
        return f"{self.name}.{within}{function.name}"

    @cached_property
    def stores(self) -> Mapping[tuple[ast.AST, str], Sequence[ast.Name]]:
        """Return the places that set each variable, by function (or the module's tree) and name."""
        found: dict[tuple[ast.AST, str], list[ast.Name]] = {}
        for node in self.of(ast.Name):
            if isinstance(node.ctx, (ast.Store, ast.Del)):
                functions = [above for above in self.above(node) if isinstance(above, FUNCTIONS)]
                for scope in (*functions, self.tree):
                    found.setdefault((scope, node.id), []).append(node)
        return found

    @cached_property
    def own_stores(self) -> Mapping[tuple[ast.AST, str], Sequence[ast.Name]]:
        """Return the places that set each variable of a function, or of the module's tree: none of inner scopes."""
        found: dict[tuple[ast.AST, str], list[ast.Name]] = {}
        elsewhere = {(self.function_of(node), name) for node in self.of(ast.Global) for name in node.names}
        for node in self.of(ast.Name):
            if isinstance(node.ctx, ast.Load):
                continue
            scope = next((above for above in self.above(node) if isinstance(above, _NAMESPACES)), self.tree)
            if not isinstance(scope, COMPREHENSIONS):
                home = self.tree if (scope, node.id) in elsewhere else scope
                found.setdefault((home, node.id), []).append(node)
        return found

    @cached_property
    def functions(self) -> Mapping[str, Sequence[Function]]:
        """Return all functions by name, those inside others included."""
        found: dict[str, list[Function]] = {}
        for node in self.of(ast.FunctionDef, ast.AsyncFunctionDef):
            found.setdefault(node.name, []).append(node)
        return found

    @cached_property
    def assigned_calls(self) -> Mapping[str, Sequence[ast.Call]]:
        """Return the calls whose results are assigned to each variable."""
        found: dict[str, list[ast.Call]] = {}
        for node in self.of(ast.Assign, ast.AnnAssign):
            if isinstance(node.value, ast.Call):
                for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                    if isinstance(target, ast.Name):
                        found.setdefault(target.id, []).append(node.value)
        return found

    @cached_property
    def returning(self) -> frozenset[ast.AST]:
        """Return the nodes that may leave the function they are in."""
        found: set[ast.AST] = set()
        for node in self.of(ast.Return):
            found.add(node)
            found.update(itertools.takewhile(lambda above: not isinstance(above, _SCOPES), self.above(node)))
        return frozenset(found)

    @cached_property
    def exiting(self) -> frozenset[ast.AST]:
        """Return the nodes that may end the program."""
        exits = [call for call in self.of(ast.Call) if spelled(call.func) in EXITS]
        return frozenset(node for call in exits for node in (call, *self.above(call)))

    @cached_property
    def succeeding(self) -> frozenset[ast.AST]:
        """Return the nodes that may end the program without an error: not `sys.exit(1)`, and not with a message."""
        exits = [call for call in self.of(ast.Call) if spelled(call.func) in EXITS and not _says_error(call)]
        return frozenset(node for call in exits for node in (call, *self.above(call)))

    @cached_property
    def leaving(self) -> frozenset[ast.AST]:
        """Return the nodes that may leave the block they are in, each with those around it in the same function."""
        found: set[ast.AST] = set()
        exits = (call for call in self.of(ast.Call) if spelled(call.func) in EXITS)
        for node in itertools.chain(self.of(ast.Return, ast.Raise, ast.Break, ast.Continue), exits):
            found.add(node)
            found.update(itertools.takewhile(lambda above: not isinstance(above, _SCOPES), self.above(node)))
        return frozenset(found)

    @cached_property
    def mentioned(self) -> Mapping[ast.AST, Sequence[ast.Name]]:
        """Return the functions and classes that each statement names without calling them there."""
        found: dict[ast.AST, list[ast.Name]] = {}
        for node in self.of(ast.Name):
            parent = self.parents.get(node)
            is_used = (
                isinstance(parent, (ast.Attribute, ast.ClassDef, *FUNCTIONS)) or getattr(parent, "func", 0) is node
            )
            if (
                isinstance(node.ctx, ast.Load)
                and not is_used
                and (node.id in self.definitions or node.id in self.aliases or node.id in self.functions)
            ):
                statement = next(above for above in self.above(node) if isinstance(above, ast.stmt))
                found.setdefault(statement, []).append(node)
        return found

    def where(self, node: ast.AST) -> str:
        """Return `train.py:12`."""
        return f"{self.path}:{getattr(node, 'lineno', 1)}"

    def above(self, node: ast.AST) -> tuple[ast.AST, ...]:
        """Return what a node is in, from the inside out."""
        found = self._above.get(node)
        if found is None:
            found = self._above[node] = tuple(self._found_above(node))
        return found

    @cached_property
    def _above(self) -> dict[ast.AST, tuple[ast.AST, ...]]:
        """Return the results of `above` so far: most nodes are asked for a dozen times."""
        return {}

    def _found_above(self, node: ast.AST) -> Iterator[ast.AST]:
        while (parent := self.parents.get(node)) is not None:
            yield parent
            node = parent

    def package_of(self, level: int) -> str:
        """Return the package that so many dots of a relative import mean; empty where there is none."""
        parts = [*filter(None, self.home.split(".")), MAIN] if self.name == MAIN else self.name.split(".")
        up = level - 1 if self.is_package else level
        return ".".join(parts[: len(parts) - up]) if up < len(parts) else ""


def _says_error(call: ast.Call) -> bool:
    """Return whether an exit gets a text, or a number other than 0."""
    match call.args:
        case [ast.Constant(value=status)]:
            return status not in (None, 0)
        case [ast.UnaryOp(op=ast.USub()) | ast.JoinedStr()]:
            return True
    return False


def class_around(node: ast.AST, module: Module) -> ast.ClassDef | None:
    """Return the innermost class that a node is in."""
    return next((above for above in module.above(node) if isinstance(above, ast.ClassDef)), None)


def own_method(owner: ast.ClassDef, name: str) -> Function | None:
    """Return the method of a name that a class defines itself."""
    return next((one for one in owner.body if isinstance(one, FUNCTIONS) and one.name == name), None)


def _asks_for_start(test: ast.expr) -> bool:
    return isinstance(test, ast.Compare) and spelled(test.left) == "__name__" and isinstance(test.ops[0], ast.Eq)


def classes_named(node: ast.Call | ast.Assign) -> Iterator[str]:
    """Yield the whole names that a call or an assignment gives by text: `class_name="models.net.Net"`."""
    if isinstance(node, ast.Assign):
        given = [(getattr(node.targets[0], "attr", ""), node.value)]
    else:
        given = [(keyword.arg or "", keyword.value) for keyword in node.keywords]
    for name, value in given:
        if name in _NAMES_WHAT and isinstance(value, ast.Constant):
            yield str(value.value)


@lru_cache(maxsize=100_000)
def imported_names(node: ast.Import | ast.ImportFrom, module: Module) -> tuple[str, ...]:
    """Return the dotted names of every module that an import may mean, packages above them first."""
    names = [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        base = origin(node, module)
        names = [base, *(f"{base}.{name}" for name in names)] if base else []
    parted = (name.split(".") for name in names)
    return tuple(".".join(parts[: end + 1]) for parts in parted for end in range(len(parts)))


def origin(node: ast.ImportFrom, module: Module) -> str:
    """Return the module that names are imported from, relative ones resolved; empty where that is nowhere."""
    if not node.level:
        return node.module or ""
    package = module.package_of(node.level)
    return ".".join(filter(None, [package, node.module])) if package else ""


def is_of_self(node: ast.AST) -> TypeGuard[ast.Attribute]:
    """Return whether a node is `self.name`."""
    return isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "self"


def is_of_class(function: Function) -> bool:
    """Return whether a method is called by the name of its class: `Trainer.run()`."""
    return any(spelled(one) in ("classmethod", "staticmethod") for one in function.decorator_list)


@lru_cache(maxsize=10_000)
def returned_values(function: Function) -> tuple[ast.expr, ...]:
    """Return the expressions that a function returns, with those of functions inside it."""
    returns = (node for node in walk(function) if isinstance(node, ast.Return))
    return tuple(node.value for node in returns if node.value is not None)


@lru_cache(maxsize=10_000)
def is_generator(function: Function) -> bool:
    """Return whether a function, or one inside it, yields."""
    return any(isinstance(node, (ast.Yield, ast.YieldFrom)) for node in walk(function))


@lru_cache(maxsize=1 << 17)
def spelled(node: ast.AST) -> str:
    """Return a dotted name as it is written, or nothing for what is none; ast.unparse takes a hundred times as long."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return ".".join([node.id, *reversed(parts)]) if isinstance(node, ast.Name) else ""


@lru_cache(maxsize=1 << 16)
def unparsed(node: ast.AST) -> str:
    """Return an expression or a statement as text, as ast.unparse() does: of each that is asked for again, once."""
    return spelled(node) or ast.unparse(node)


def defined(body: list[ast.stmt]) -> Iterator[tuple[str, Definition]]:
    """Yield the functions and classes of a module, those in its branches and loops included."""
    for node in body:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            yield node.name, node
        elif isinstance(node, (ast.If, ast.Try, ast.With, ast.For, ast.While)):
            for name in ("body", "orelse", "finalbody"):
                yield from defined(getattr(node, name, []))
            for handler in getattr(node, "handlers", []):
                yield from defined(handler.body)


def is_property(node: Function) -> bool:
    """Return whether a method is read like an attribute."""
    return any(spelled(one).rpartition(".")[2] in ("property", "cached_property") for one in node.decorator_list)
