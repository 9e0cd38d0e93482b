"""Collective calls that only rank 0 reaches: it waits for the other ranks, and the job hangs."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from jobsubmit.check.code import Code
from jobsubmit.check.program.calls import argument, hides_arguments
from jobsubmit.check.program.modules import Function, Module
from jobsubmit.common.finding import Finding

_NAMES = frozenset(
    [
        *("all_gather", "all_gather_into_tensor", "all_gather_object", "all_reduce", "all_to_all", "barrier"),
        *("broadcast", "broadcast_object_list", "gather", "gather_object", "monitored_barrier", "reduce"),
        *("reduce_scatter", "scatter"),
    ]
)
_PACKAGES = (
    *("torch.distributed.", "torch.distributed.distributed_c10d."),
    *("deepspeed.comm.", "composer.utils.dist.", "ignite.distributed."),
)
# Methods of a library's own objects, by what these objects are called.
_METHODS = {
    "accelerate": (
        re.compile(r"(^|\.)_?accelerator$"),
        ("wait_for_everyone", "gather", "gather_for_metrics", "reduce", "pad_across_processes"),
    ),
    "lightning": (
        re.compile(r"(^|\.)(_?fabric|strategy)$|^self$"),
        ("barrier", "all_gather", "all_reduce", "broadcast"),
    ),
    "deepspeed": (re.compile(r"engine|model"), ("save_checkpoint", "load_checkpoint")),
    "pytorch_lightning": (re.compile(r"(^|\.)strategy$|^self$"), ("barrier", "all_gather", "all_reduce", "broadcast")),
}
_CHECKPOINTS = tuple(f"torch.distributed.checkpoint.{name}" for name in ("save", "async_save", "load"))
# Whether a step is one of every so many, which rank 0 does not decide alone.
_PERIOD = re.compile(r"step|epoch|iter|interval|period|freq|every|enable|force|last|save")
_PLAIN_ARGUMENTS = 2  # what comes after may be a group of some processes
_RANK = re.compile(r"^(?:ddp_|dist_|distributed_|global_|local_|world_|node_)*rank$|^process_index$")
_MAIN = re.compile(
    r"^_?(is_)?(main|master|primary|chief|lead)(_process|_rank|_node|_worker|_proc)?$"
    r"|^_?is_(local_|world_)?(main_process|master|rank_?(zero|0)|process_zero|global_zero|rank0)$"
    r"|^_?(is_)?(rank_?(zero|0)|global_zero)$|^_?is_local_main_process$|^if_main_process$"
)
_DECORATORS = re.compile(r"(rank_?zero|rank_?0|main_process|master|main)_only$|^on_(local_)?main_process$")
_DEEPEST = 3
_INITIALIZED = ("is_initialized", "world_size", "distributed", "ddp", "is_available")


def check_rank_zero(code: Code) -> Iterator[Finding]:
    """Yield a warning for each collective that only rank 0 reaches."""
    finder = _Finder(code)
    seen: set[ast.AST] = set()
    for module, body, others, scope in _branches(finder):
        found = next(finder.collectives(body, module), None)
        if found is None or found.call in seen or finder.may_meet(others, module):
            continue
        if _has_counterpart(finder, scope, module, body) or _leaves(body):
            continue
        seen.add(found.call)
        yield Finding(
            "warning",
            "rank-0-collective",
            found.module.where(found.call),
            f"only rank 0 reaches this {found.name}(), which waits for all ranks: the job would hang",
            "move it out of the branch"
            if found.module is module
            else f"move the call that leads to it out of the branch: {module.where(body[0])}",
        )


def zero_branches(code: Code) -> Iterator[tuple[Module, list[ast.stmt]]]:
    """Yield what only rank 0 executes."""
    for module, body, _, _ in _branches(_Finder(code)):
        yield module, body


def is_guarded_by_rank(code: Code, node: ast.AST, module: Module) -> bool:
    """Return whether the rank decides in the same function whether a node is executed."""
    inner: ast.AST = node
    for above in module.above(node):
        if isinstance(above, (ast.If, ast.IfExp)) and _asks_for_rank(code, above.test, module):
            return True
        for block in (getattr(above, "body", None), getattr(above, "orelse", None)):
            if isinstance(block, list) and inner in block:
                before = block[: block.index(inner)]
                if any(
                    isinstance(one, ast.If) and _leaves(one.body) and _asks_for_rank(code, one.test, module)
                    for one in before
                ):
                    return True
        if isinstance(above, (ast.FunctionDef, ast.AsyncFunctionDef)):
            return False
        inner = above
    return False


def _asks_for_rank(code: Code, test: ast.expr, module: Module) -> bool:
    if _zero_side(test, code, module) is not None or _mentions_rank(test):
        return True
    if any(isinstance(node, ast.Compare) and _is_zero(node.comparators[-1]) for node in ast.walk(test)):
        return True  # `gpu_id == 0`, whatever it is called
    for name in (node for node in ast.walk(test) if isinstance(node, ast.Name)):
        stores = module.stores.get((module.function_of(name) or module.tree, name.id), ())
        for store in stores:
            values = (above.value for above in module.above(store) if isinstance(above, ast.Assign))
            if any(map(_mentions_rank, values)) or _is_in_branch_of_rank(code, store, module):
                return True
    return False


def _is_zero(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and node.value == 0


def _is_in_branch_of_rank(code: Code, node: ast.AST, module: Module) -> bool:
    tests = (above.test for above in module.above(node) if isinstance(above, ast.If))
    return any(_zero_side(test, code, module) is not None or _mentions_rank(test) for test in tests)


def is_for_main_process_only(function: ast.AST) -> bool:
    """Return whether a decorator lets only rank 0 execute a function."""
    decorators = getattr(function, "decorator_list", ())
    return any(_DECORATORS.search(_last_name(decorator)) for decorator in decorators)


@dataclass(frozen=True)
class _Collective:
    call: ast.Call
    module: Module
    name: str


@dataclass
class _Finder:
    """Find the collectives that statements come to, also by functions of the program."""

    code: Code
    known: dict[ast.AST, _Collective | None] = field(default_factory=dict)

    def collectives(self, body: Iterable[ast.AST], module: Module, depth: int = 0) -> Iterator[_Collective]:
        """Yield those that are surely executed with these statements."""
        for statement in body:
            for call in _calls(statement, self, module):
                name = self.name_of(call, module)
                if name:
                    yield _Collective(call, module, name)
                elif depth < _DEEPEST and (inner := self._inside(call, module, depth)):
                    yield inner

    def may_meet(self, body: list[ast.stmt], module: Module) -> bool:
        """Return whether the other ranks come to a collective of their own."""
        return next(self.collectives(body, module), None) is not None

    def name_of(self, call: ast.Call, module: Module) -> str:
        """Return the name of the collective that a call is, of all processes; empty for any other call."""
        name = self.code.program.name_of(call.func, module)
        owner, _, last = name.rpartition(".")
        if last in _NAMES and f"{owner}." in _PACKAGES:
            is_of_all = argument(call, "group") is None and not hides_arguments(call)
            return last if is_of_all and len(call.args) <= _PLAIN_ARGUMENTS else ""
        if name in _CHECKPOINTS:
            return "" if argument(call, "process_group") or argument(call, "no_dist") else f"checkpoint.{last}"
        if isinstance(call.func, ast.Attribute):
            owner = ast.unparse(call.func.value)
            for package, (receiver, methods) in _METHODS.items():
                if call.func.attr in methods and receiver.search(owner) and self.code.program.imports(package):
                    return call.func.attr
        return ""

    def _inside(self, call: ast.Call, module: Module, depth: int) -> _Collective | None:
        found = self.code.program.definition(self.code.program.name_of(call.func, module))
        if found is None and isinstance(call.func, ast.Attribute) and ast.unparse(call.func.value) == "self":
            methods = self.code.program.methods.get(call.func.attr, ())
            found = (methods[0][0], methods[0][2]) if len(methods) == 1 else None
        elif found is None and isinstance(call.func, ast.Attribute) and isinstance(call.func.value, ast.Name):
            found = self._method(call.func, call.func.value.id, module)
        if found is None or isinstance(found[1], ast.ClassDef):
            return None
        home, function = found
        if function not in self.known:
            self.known[function] = None  # it may call itself
            self.known[function] = next(self.collectives(function.body, home, depth + 1), None)
        return self.known[function]

    def _method(self, target: ast.Attribute, variable: str, module: Module) -> tuple[Module, Function] | None:
        """Return the method that a variable's object has, where the class of the object is known."""
        made = module.assigned_calls.get(variable, ())
        found = (
            self.code.program.definition(self.code.program.name_of(made[0].func, module)) if len(made) == 1 else None
        )
        if found is None or not isinstance(found[1], ast.ClassDef):
            return None
        own = (node for node in found[1].body if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)))
        return next(((found[0], node) for node in own if node.name == target.attr), None)


def _calls(node: ast.AST, finder: _Finder, module: Module) -> Iterator[ast.Call]:
    """Yield the calls that are surely executed with a statement: not those of functions that it defines."""
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)):
        return
    if isinstance(node, ast.If):
        truth = finder.code.values.truth(node.test, module)
        test = ast.unparse(node.test)
        is_about_all = any(word in test for word in _INITIALIZED) or _PERIOD.search(test) is not None
        if _zero_side(node.test, finder.code, module) is None and (truth or (truth is None and is_about_all)):
            for statement in node.body:
                yield from _calls(statement, finder, module)
        elif truth is False:
            for statement in node.orelse:
                yield from _calls(statement, finder, module)
        return
    if isinstance(node, ast.Call):
        yield node
    for child in ast.iter_child_nodes(node):
        yield from _calls(child, finder, module)


# ── what only rank 0 executes ───────────────────────────────────────────────────────────────────────────────────────


def _branches(finder: _Finder) -> Iterator[tuple[Module, list[ast.stmt], list[ast.stmt], ast.AST]]:
    """Yield what only rank 0 executes, what the others do instead, and the function around both."""
    code = finder.code
    for module, node in code.program.of(ast.FunctionDef, ast.AsyncFunctionDef, ast.If):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            if is_for_main_process_only(node):
                yield module, node.body, [], node
        if not isinstance(node, ast.If) or not _is_executed(node, code, module):
            continue
        side = _zero_side(node.test, code, module)
        scope = module.function_of(node) or module.tree
        if side is True:
            yield module, node.body, node.orelse, scope
        elif side is False and isinstance(node.body[-1], (ast.Return, ast.Continue)):
            yield module, [*node.orelse, *_after(node, module)], node.body, scope


def _is_executed(node: ast.AST, code: Code, module: Module) -> bool:
    """Return whether a node may be executed; what a library calls by itself, no look at the program shows."""
    if code.reached.of(node, module):
        return True
    return code.has_framework and any(isinstance(above, ast.ClassDef) for above in module.above(node))


def _after(node: ast.If, module: Module) -> list[ast.stmt]:
    """Return the statements that follow one in its block."""
    parent = module.parents[node]
    for name in ("body", "orelse", "finalbody"):
        block = getattr(parent, name, None)
        if isinstance(block, list) and node in block:
            return block[block.index(node) + 1 :]
    return []


def _zero_side(test: ast.AST, code: Code, module: Module, depth: int = 0) -> bool | None:
    """Return whether a condition holds on rank 0 alone (True), on all others (False), or is about something else."""
    if depth > _DEEPEST:
        return None
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        inner = _zero_side(test.operand, code, module, depth)
        return True if _is_rank(test.operand, code, module) else None if inner is None else not inner
    if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And):
        return True if any(_zero_side(item, code, module, depth) for item in test.values) else None
    if isinstance(test, ast.IfExp):
        sides = {_zero_side(item, code, module, depth) for item in (test.body, test.orelse)}
        return sides.pop() if len(sides) == 1 else None
    if isinstance(test, ast.Compare) and len(test.ops) == 1:
        return _compared(test.left, test.ops[0], test.comparators[0], code, module)
    return _side_of_name(test, code, module, depth)


def _side_of_name(test: ast.AST, code: Code, module: Module, depth: int) -> bool | None:
    """Return the same for a variable, by what it is set to, and for a function, by what it returns."""
    if isinstance(test, ast.Name) and (assigned := code.values.assigned(test, module)) is not None:
        return _zero_side(assigned, code, module, depth + 1)
    takes_nothing = not isinstance(test, ast.Call) or not test.args
    if takes_nothing and _MAIN.match(_last_name(test)):
        return True
    return _answered(test, code, module, depth) if isinstance(test, ast.Call) else None


def _answered(call: ast.Call, code: Code, module: Module, depth: int) -> bool | None:
    """Return what a function of the program that only returns a condition says of rank 0."""
    found = code.program.definition(code.program.name_of(call.func, module))
    if found is None or isinstance(found[1], ast.ClassDef):
        return None
    body = [node for node in found[1].body if not isinstance(node, ast.Expr)]
    returned = body[0].value if len(body) == 1 and isinstance(body[0], ast.Return) else None
    return None if returned is None else _zero_side(returned, code, found[0], depth + 1)


def _compared(left: ast.expr, op: ast.cmpop, right: ast.expr, code: Code, module: Module) -> bool | None:
    if _is_rank(right, code, module):
        left, right = right, left
    if not _is_rank(left, code, module):
        return None
    if isinstance(op, (ast.In, ast.NotIn)) and isinstance(right, (ast.List, ast.Tuple, ast.Set)):
        values = {code.values.of(item, module) for item in right.elts}
        return isinstance(op, ast.In) if 0 in values and values <= {0, -1} else None
    if code.values.of(right, module) != 0 or not isinstance(right, ast.Constant):
        return None
    return {ast.Eq: True, ast.LtE: True, ast.NotEq: False, ast.Gt: False}.get(type(op))


def _is_rank(node: ast.AST, code: Code, module: Module) -> bool:
    if isinstance(node, ast.Call):
        return (
            _last_name(node.func) in ("get_rank", "get_global_rank", "get_local_rank", "local_rank") and not node.args
        )
    name = node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
    return _RANK.match(name.lower().lstrip("_")) is not None


def _last_name(node: ast.AST) -> str:
    target = node.func if isinstance(node, ast.Call) else node
    return ast.unparse(target).rpartition(".")[2] if isinstance(target, (ast.Name, ast.Attribute)) else ""


# ── what the others do ──────────────────────────────────────────────────────────────────────────────────────────────


def _has_counterpart(finder: _Finder, scope: ast.AST, module: Module, own: list[ast.stmt]) -> bool:
    """Return whether the other ranks come to a collective in a branch of their own in the same function."""
    inside = set(own)
    for node in ast.walk(scope):
        if not isinstance(node, ast.If) or node.body is own or inside & set(module.above(node)):
            continue
        if _zero_side(node.test, finder.code, module) is not True and _mentions_rank(node.test):
            if next(finder.collectives(node.body, module), None):
                return True
    return False


def _mentions_rank(test: ast.AST) -> bool:
    names = [
        n.attr if isinstance(n, ast.Attribute) else n.id
        for n in ast.walk(test)
        if isinstance(n, (ast.Name, ast.Attribute))
    ]
    return any(_RANK.match(name.lower().lstrip("_")) or name == "get_rank" or _MAIN.match(name) for name in names)


def _leaves(body: list[ast.stmt]) -> bool:
    """Return whether rank 0 goes its own way from here."""
    return any(_leaves_by(statement) for statement in body)


def _leaves_by(node: ast.AST) -> bool:
    if isinstance(node, (ast.Return, ast.Raise, ast.Break, ast.Continue)):
        return True
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)):
        return False
    inner = ast.iter_child_nodes(node)
    if isinstance(node, (ast.For, ast.While)):
        return any(isinstance(child, ast.stmt) and _returns(child) for child in inner)
    return any(_leaves_by(child) for child in inner)


def _returns(node: ast.AST) -> bool:
    return any(isinstance(inner, (ast.Return, ast.Raise)) for inner in ast.walk(node))
