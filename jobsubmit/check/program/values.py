"""The value of an expression on a node of this job, as far as it is known without running code."""

from __future__ import annotations

import ast
import itertools
import operator
import posixpath
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any, Final, NamedTuple

from jobsubmit.check.program.calls import SPAWNS, argument
from jobsubmit.check.program.modules import Function, Module, Program, spelled
from jobsubmit.spec.modes import Start


class _Unknown:
    def __repr__(self) -> str:
        return "UNKNOWN"


UNKNOWN: Final[Any] = _Unknown()


class Several(NamedTuple):
    """Values that an expression has in one process or another, as a rank does: the first, one amid, the last."""

    values: tuple[Any, ...]


def several(values: Iterable[Any]) -> Any:
    """Return values as one where they are equal; UNKNOWN where one is not known, or they are too many."""
    found = list(values)
    if any(value is UNKNOWN for value in found):
        return UNKNOWN
    different = [value for index, value in enumerate(found) if value not in found[:index]]
    if len(different) == 1:
        return different[0]
    return Several(tuple(different)) if 0 < len(different) <= _MOST_VALUES else UNKNOWN


_DEEPEST = 12
_MOST_VALUES = 9
_LONGEST_RANGE = 10_000
_LONGEST_TEXT = 1_000
_LARGEST_NUMBER = 1 << 60
_BINARY: Mapping[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: lambda left, right: UNKNOWN if str in (type(left), type(right)) else left * right,
    ast.FloorDiv: operator.floordiv,
    ast.Div: operator.truediv,
}
_COMPARE: Mapping[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Is: operator.is_,
    ast.IsNot: operator.is_not,
    ast.In: lambda item, items: item in items,
    ast.NotIn: lambda item, items: item not in items,
}
_CONVERT: Mapping[str, Callable[[Any], Any]] = {
    "int": int,
    "float": float,
    "str": str,
    "bool": bool,
    "len": len,
    "list": list,
    "tuple": list,
    "sorted": sorted,
}


def _as_path(value: Any) -> PurePosixPath:
    """Return a path, seen from the code directory: there a program starts, and its files are."""
    return PurePosixPath(value)


# `__file__` is a path below the code directory, and so is every path that is made of it.
_PATH_FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    "os.path.join": posixpath.join,
    "os.path.dirname": posixpath.dirname,
    "os.path.normpath": posixpath.normpath,
    **dict.fromkeys(("os.path.abspath", "os.path.realpath", "os.path.expanduser", "os.fspath"), str),
    **dict.fromkeys(("pathlib.Path", "pathlib.PurePath"), PurePosixPath),
    "os.getcwd": lambda: "",
    "pathlib.Path.cwd": PurePosixPath,
}
_PATH_METHODS = ("resolve", "absolute", "expanduser", "as_posix")
_TYPES = {kind.__name__: kind for kind in (bool, int, float, str, list, tuple, dict)}
_TEXT_METHODS = ("startswith", "endswith", "lower", "upper", "strip")


@dataclass(frozen=True)
class Facts:
    """What the processes of a job get from it.

    `environment` maps a variable to its value, to UNKNOWN where that is not known, to Several where it differs, and to
    None where it is not set; `argv` are the words after the boot file. `gpus` is per node, None if it is not known.
    `rank` is that of a process among all.
    """

    mode: Start
    nodes: int
    nproc: int | None
    gpus: int | None
    environment: Mapping[str, Any]
    argv: tuple[str, ...]
    rank: Any = UNKNOWN

    @property
    def has_launcher(self) -> bool:
        """Return whether one of torch's launchers starts the processes, and gives each its ranks."""
        return self.mode in ("launch", "torchrun")


@dataclass(frozen=True)
class Values:
    """Evaluate expressions; `arguments` are parsed ones, held by variables of these `namespaces`.

    `bound` are variables of a loop, in one pass of it; `dead` are calls that are never reached.
    """

    program: Program
    facts: Facts
    arguments: Mapping[str, Any] = field(default_factory=dict)
    namespaces: frozenset[str] = frozenset()
    bound: Mapping[str, ast.expr] = field(default_factory=dict)
    dead: frozenset[ast.Call] = frozenset()

    def of(self, node: ast.AST | None, module: Module, depth: int = 0) -> Any:
        """Return the value of an expression, or UNKNOWN."""
        if node is None or depth > _DEEPEST:
            return UNKNOWN
        try:
            return self._of(node, module, depth + 1)
        except Exception:  # whatever an operation on a user's literals may raise: then the program would raise it, too
            return UNKNOWN

    def truth(self, node: ast.AST, module: Module) -> bool | None:
        """Return whether a condition holds; None if that is not known."""
        if isinstance(node, ast.BoolOp):
            truths = [self.truth(item, module) for item in node.values]
            decisive = isinstance(node.op, ast.Or)
            return decisive if decisive in truths else None if None in truths else not decisive
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            inner = self.truth(node.operand, module)
            return None if inner is None else not inner
        value = self.of(node, module)
        if isinstance(value, Several):
            value = several(map(bool, value.values))
        return None if value is UNKNOWN or isinstance(value, Several) else bool(value)

    def _of(self, node: ast.AST, module: Module, depth: int) -> Any:
        match node:
            case ast.Constant():
                return node.value
            case ast.Name():
                return self._name(node, module, depth)
            case ast.Attribute():
                return self._attribute(node, module)
            case ast.Dict():
                keys = [self.of(key, module, depth) for key in node.keys]
                return UNKNOWN if UNKNOWN in keys else dict.fromkeys(keys, UNKNOWN)
            case ast.Tuple() | ast.List() | ast.Set():
                items = [self.of(item, module, depth) for item in node.elts]
                return UNKNOWN if any(_is_open(item) for item in items) else items
            case ast.UnaryOp():
                return self._unary(node, module, depth)
            case ast.BoolOp():
                return self._bool(node, module, depth)
            case ast.BinOp():
                values = [self.of(side, module, depth) for side in (node.left, node.right)]
                return _lifted(_BINARY[type(node.op)], *values) if type(node.op) in _BINARY else UNKNOWN
            case ast.Compare():
                return self._compare(node, module, depth)
            case ast.IfExp():
                test = self.truth(node.test, module)
                return UNKNOWN if test is None else self.of(node.body if test else node.orelse, module, depth)
            case ast.Call():
                return self._call(node, module, depth)
            case ast.Subscript():
                return self._subscript(node, module, depth)
            case ast.JoinedStr():
                parts = [self.of(part, module, depth) for part in node.values]
                return UNKNOWN if any(_is_open(part) for part in parts) else "".join(map(str, parts))
            case ast.FormattedValue():
                return self.of(node.value, module, depth)
        return UNKNOWN

    def _known(self, node: ast.AST, module: Module, depth: int) -> Any:
        """Return a value; raise ValueError where it is not known."""
        value = self.of(node, module, depth)
        if value is UNKNOWN:
            raise ValueError
        return value

    def assigned(self, node: ast.Name, module: Module) -> ast.expr | None:
        """Return the expression that a variable is set to, in one place only; other files may set it, too."""
        for scope in (*module.above(node), module.tree):
            if isinstance(scope, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.id in parameters(scope):
                return None
            places = module.stores.get((scope, node.id), ())
            if places:
                return assigned_to(places[0], module) if len(places) == 1 else None
        return None

    def _unary(self, node: ast.UnaryOp, module: Module, depth: int) -> Any:
        value = self.of(node.operand, module, depth)
        operation = {ast.Not: operator.not_, ast.USub: operator.neg}.get(type(node.op))
        return UNKNOWN if value is UNKNOWN or operation is None else _lifted(operation, value)

    def _bool(self, node: ast.BoolOp, module: Module, depth: int) -> Any:
        value = UNKNOWN
        for item in node.values:
            value = self.of(item, module, depth)
            truth = several(map(bool, value.values)) if isinstance(value, Several) else bool(value)
            if _is_open(truth):
                return UNKNOWN
            if value is UNKNOWN or truth is isinstance(node.op, ast.Or):
                return value
        return value

    def _compare(self, node: ast.Compare, module: Module, depth: int) -> Any:
        if len(node.ops) != 1:
            return UNKNOWN
        op, right_node = node.ops[0], node.comparators[0]
        if isinstance(op, (ast.In, ast.NotIn)) and self.program.name_of(right_node, module) == "os.environ":
            value = self._variable(node.left, module, depth)
            return value if value is UNKNOWN else (value is not None) is isinstance(op, ast.In)
        if isinstance(node.left, ast.Attribute) and node.left.attr == "grad" and isinstance(op, (ast.Is, ast.IsNot)):
            return isinstance(op, ast.IsNot)  # a parameter is taken to be trained
        left, right = self.of(node.left, module, depth), self.of(right_node, module, depth)
        if left is UNKNOWN or right is UNKNOWN:
            return UNKNOWN
        return _lifted(_COMPARE[type(op)], left, right)

    def _variable(self, node: ast.AST, module: Module, depth: int) -> Any:
        """Return whether a variable of the environment is set: None where it is not, something else where it is."""
        name = self.of(node, module, depth)
        if name not in self.facts.environment:
            return UNKNOWN
        return None if self.facts.environment[name] is None else name

    def _call(self, node: ast.Call, module: Module, depth: int) -> Any:
        name = self.program.name_of(node.func, module)
        if name in ("torch.cuda.device_count", "torch.cuda.is_available"):
            gpus = UNKNOWN if self.facts.gpus is None else self.facts.gpus
            return gpus if gpus is UNKNOWN or name.endswith("count") else gpus > 0
        if name in ("os.environ.get", "os.getenv") and node.args:
            value = self.facts.environment.get(self.of(node.args[0], module, depth), UNKNOWN)
            if value is None:
                return self.of(node.args[1], module, depth) if len(node.args) > 1 else None
            return value
        if name == "torch.distributed.is_available":
            return True
        if name == "torch.distributed.get_rank" and not node.args and not node.keywords:
            return self.facts.rank
        if name == "torch.distributed.get_world_size" and not node.args and not node.keywords:
            nproc = self.facts.nproc if self.facts.has_launcher else None
            return UNKNOWN if nproc is None else self.facts.nodes * nproc
        if name in _PATH_FUNCTIONS and not node.keywords:
            return _PATH_FUNCTIONS[name](*(self._known(item, module, depth) for item in node.args))
        if isinstance(node.func, ast.Attribute) and node.func.attr in _PATH_METHODS and not node.args:
            return _as_path(self._known(node.func.value, module, depth))
        if name == "range" and not node.keywords:
            bounds = [self.of(item, module, depth) for item in node.args]
            is_short = UNKNOWN not in bounds and len(range(*bounds)) < _LONGEST_RANGE
            return list(range(*bounds)) if is_short else UNKNOWN
        values = [self.of(item, module, depth) for item in (node.args[:1] if name == "isinstance" else node.args)]
        if any(value is UNKNOWN for value in values) or node.keywords:
            return UNKNOWN
        if name == "isinstance" and len(node.args) > 1:
            return _is_instance(values[0], node.args[1])
        if name in _CONVERT and len(values) == 1:
            return _lifted(_CONVERT[name], *values)
        if any(_is_open(value) for value in values):
            return UNKNOWN
        if isinstance(node.func, ast.Attribute) and node.func.attr == "keys":
            mapping = self.of(node.func.value, module, depth)
            return list(mapping) if isinstance(mapping, dict) else UNKNOWN
        if isinstance(node.func, ast.Attribute) and node.func.attr in _TEXT_METHODS:
            text = self.of(node.func.value, module, depth)
            return getattr(text, node.func.attr)(*values) if isinstance(text, str) else UNKNOWN
        return UNKNOWN

    def _subscript(self, node: ast.Subscript, module: Module, depth: int) -> Any:
        if self.program.name_of(node.value, module) == "os.environ":
            value = self.facts.environment.get(self.of(node.slice, module, depth), UNKNOWN)
            return UNKNOWN if value is None else value
        items, index = self.of(node.value, module, depth), self.of(node.slice, module, depth)
        return UNKNOWN if UNKNOWN in (items, index) else items[index]

    def _attribute(self, node: ast.Attribute, module: Module) -> Any:
        if spelled(node.value) in self.namespaces:
            return self.arguments.get(node.attr, UNKNOWN)
        if node.attr == "requires_grad":
            return True
        if node.attr == "parent" and isinstance(path := self.of(node.value, module), PurePosixPath):
            return path.parent
        name = self.program.name_of(node, module)
        if name == "sys.argv":
            return ["", *self.facts.argv]
        return UNKNOWN if node.attr in self.program.stored_attributes else self._at_top(name)

    def _name(self, node: ast.Name, module: Module, depth: int) -> Any:
        if node.id == "__name__":
            return module.name
        if node.id == "__file__":
            return module.path
        if node.id in self.bound:
            return self.of(self.bound[node.id], module, depth)
        for scope in module.above(node):
            if isinstance(scope, ast.Lambda) and any(arg.arg == node.id for arg in scope.args.args):
                return UNKNOWN
            if isinstance(scope, (ast.FunctionDef, ast.AsyncFunctionDef)):
                if node.id in parameters(scope) or (scope, node.id) in module.stores:
                    return self._once(node.id, scope, module, depth)
        if node.id in module.aliases:
            return self._at_top(self.program.name_of(node, module))
        return self._once(node.id, module.tree, module, depth)

    def _at_top(self, name: str) -> Any:
        """Return the value of a variable at the top of a local module, by its whole name."""
        owner, _, last = name.rpartition(".")
        module = self.program.modules.get(owner)
        return self._once(last, module.tree, module, 1) if module else UNKNOWN

    def _once(self, name: str, scope: ast.Module | Function, module: Module, depth: int) -> Any:
        """Return the value of a variable that is set in one place only, and not in a branch or a loop."""
        if not isinstance(scope, ast.Module) and name in parameters(scope):
            return self._parameter(name, scope, module, depth)
        places = module.stores.get((scope, name), ())
        if len(places) != 1 or (isinstance(scope, ast.Module) and self.program.is_dynamic):
            return UNKNOWN
        statement = next(node for node in module.above(places[0]) if isinstance(node, ast.stmt))
        assigned = assigned_to(places[0], module)
        if statement not in scope.body or assigned is None:
            return UNKNOWN
        value = self.of(assigned, module, depth)
        return UNKNOWN if isinstance(value, (list, dict)) and name in self.program.filled else value

    def _given_by_spawn(self, name: str, function: Function, module: Module) -> tuple[Module, ast.expr] | None:
        """Return what mp.spawn gives for a parameter of the function that it starts: not for the first, a number."""
        own = [arg.arg for arg in (*function.args.posonlyargs, *function.args.args)]
        calls = [
            place for spawn in SPAWNS for place in self.program.calls_of.get(spawn, ()) if place[1] not in self.dead
        ]
        if len(calls) != 1 or (function, name) in module.stores or name not in own[1:]:
            return None
        home, call = calls[0]
        started = argument(call, "fn", 0)
        is_this = started is not None and self.program.name_of(started, home) == f"{module.name}.{function.name}"
        given = _elements(argument(call, "args", 1)) if is_this else []
        return (home, given[own.index(name) - 1]) if len(given) >= own.index(name) else None

    def _parameter(self, name: str, function: Function, module: Module, depth: int) -> Any:
        """Return the value of a parameter of a function that is called in one place only."""
        owner = module.parents.get(function)
        is_maker = function.name == "__init__" and getattr(owner, "name", "") not in self.program.inherited
        calls = self.program.calls_of.get(module.called_as(function), ())
        calls = [place for place in calls if place[1] not in self.dead]
        if not calls and (spawned := self._given_by_spawn(name, function, module)) is not None:
            return self.of(spawned[1], spawned[0], depth)
        if (
            len(calls) != 1
            or (function, name) in module.stores
            or (module.definitions.get(function.name) is not function and not is_maker)
        ):
            return UNKNOWN
        home, call = calls[0]
        own = [arg.arg for arg in (*function.args.posonlyargs, *function.args.args)][1 if is_maker else 0 :]
        if any(isinstance(arg, ast.Starred) for arg in call.args) or any(k.arg is None for k in call.keywords):
            return UNKNOWN
        given = dict(zip(own, call.args, strict=False)) | {k.arg: k.value for k in call.keywords}
        if name in given:
            return self.of(given[name], home, depth)
        defaults = dict(zip(own[::-1], function.args.defaults[::-1], strict=False))
        return self.of(defaults[name], module, depth) if name in defaults else UNKNOWN


def _elements(node: ast.AST | None) -> list[ast.expr]:
    return node.elts if isinstance(node, (ast.Tuple, ast.List)) else []


def _is_instance(value: Any, kinds: ast.expr) -> Any:
    """Return whether a value is of one of the built-in types that are named."""
    named = {ast.unparse(kind) for kind in (kinds.elts if isinstance(kinds, ast.Tuple) else [kinds])}
    if not named <= set(_TYPES) or _is_open(value):
        return UNKNOWN
    return isinstance(value, tuple(_TYPES[name] for name in named))


def _is_open(value: Any) -> bool:
    """Return whether a value is not one, and known."""
    return value is UNKNOWN or isinstance(value, Several)


def _lifted(operation: Callable[..., Any], *values: Any) -> Any:
    """Return what an operation makes of values, each of which may be several."""
    each = [value.values if isinstance(value, Several) else (value,) for value in values]
    if any(not _is_small(item) for items in each for item in items if not isinstance(item, (list, dict, bool))):
        return UNKNOWN
    return several(operation(*chosen) for chosen in itertools.product(*each))


def assigned_to(target: ast.expr, module: Module) -> ast.expr | None:
    """Return the expression that is assigned to a variable or an attribute here, alone or as one of several."""
    parent = module.parents.get(target)
    if isinstance(parent, ast.Tuple):
        above = module.parents.get(parent)
        if isinstance(above, ast.Assign) and isinstance(above.value, ast.Tuple):
            if len(parent.elts) == len(above.value.elts):
                return above.value.elts[parent.elts.index(target)]
        return None
    return parent.value if isinstance(parent, (ast.Assign, ast.AnnAssign)) else None


def _is_small(value: Any) -> bool:
    """Return whether a value is small enough to compute here."""
    if isinstance(value, (str, PurePosixPath)):
        return len(str(value)) < _LONGEST_TEXT
    return value is None or (isinstance(value, (int, float)) and abs(value) < _LARGEST_NUMBER)


def parameters(function: Function) -> set[str]:
    """Return the names of a function's parameters."""
    return {node.arg for node in ast.iter_child_nodes(function.args) if isinstance(node, ast.arg)}
