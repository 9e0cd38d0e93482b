"""Collective calls that only rank 0 reaches: it waits for the other ranks, and the job hangs."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import TypeGuard

from jobsubmit.check.code import Code, is_ddp
from jobsubmit.check.program.calls import argument, hides_arguments
from jobsubmit.check.program.modules import EXITS, Function, Module, spelled
from jobsubmit.check.program.values import Several
from jobsubmit.common.finding import Finding

_NAMES = frozenset(
    [
        *("all_gather", "all_gather_into_tensor", "all_gather_object", "all_reduce", "all_to_all", "barrier"),
        *("broadcast", "broadcast_object_list", "gather", "gather_object", "monitored_barrier", "new_group", "reduce"),
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
_STATE_DICTS = tuple(
    f"torch.distributed.checkpoint.state_dict.{name}"
    for name in ("get_state_dict", "get_model_state_dict", "get_optimizer_state_dict")
)
_FSDP_METHODS = ("full_optim_state_dict", "optim_state_dict", "summon_full_params")
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
_NO_NUMBER = re.compile(r"isnan|isfinite|isinf|is_nan|is_finite")
_DDP = "DistributedDataParallel"
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
        if _has_counterpart(finder, scope, module, body, found) or (_leaves(body) and not _leaves(others)):
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


def check_some_ranks(code: Code) -> Iterator[Finding]:
    """Yield a warning for a collective that only some ranks reach, and for a loop that only rank 0 leaves."""
    yield from _reached_by_some(code)
    yield from _left_by_one(code)
    yield from _skipped_by_some(code)


def _reached_by_some(code: Code) -> Iterator[Finding]:
    finder = _Finder(code)
    for module, node in code.program.of(ast.If):
        found = next(finder.collectives(node.body, module), None) if _differs(code, node, module) else None
        if found is None or _zero_side(node.test, code, module) is not None:
            continue
        scope = module.function_of(node) or module.tree
        others = [*node.orelse, *(_after(node, module) if _leaves(node.body) else [])]
        if not _has_counterpart(finder, scope, module, node.body, found) and not finder.may_meet(others, module):
            yield Finding(
                "warning",
                "rank-0-collective",
                found.module.where(found.call),
                f"only some ranks reach this {found.name}(), which waits for all ranks: the job would hang",
                "let all ranks call it; new_group, too, must be called by all of them"
                if found.name == "new_group"
                else "move it out of the branch, or give it the group of these ranks",
            )
            return


def _differs(code: Code, node: ast.If, module: Module) -> bool:
    """Return whether a condition surely holds on some ranks and not on others."""
    value = code.values.of(node.test, module)
    return isinstance(value, Several) and len(set(map(bool, value.values))) > 1 and bool(code.reached.of(node, module))


def _left_by_one(code: Code) -> Iterator[Finding]:
    for module, node in code.program.of(ast.Break):
        if not code.reached.of(node, module):
            continue
        above = list(module.above(node))
        loop = next((one for one in above if isinstance(one, (ast.For, ast.While))), None)
        tests = [one for one in above[: above.index(loop)] if isinstance(one, ast.If)] if loop else []
        is_of_zero = any(
            _zero_side(one.test, code, module) is True and node not in _inside(one.orelse) for one in tests
        )
        if loop is not None and is_of_zero and _synchronizes(code, loop, module):
            yield Finding(
                "warning",
                "left-by-one",
                module.where(node),
                "only rank 0 leaves this loop: the others wait for it in the next step, and the job would hang",
                "let rank 0 decide for all: broadcast the decision, and leave the loop on every rank",
            )
            return


def _skipped_by_some(code: Code) -> Iterator[Finding]:
    """Yield a warning where a rank whose own loss is no number skips the step that the others synchronize in."""
    for module, node in code.program.of(ast.If):
        leaves = node.body and isinstance(node.body[-1], (ast.Continue, ast.Break))
        if not leaves or not _NO_NUMBER.search(ast.unparse(node.test)) or not code.reached.of(node, module):
            continue
        loop = next((one for one in module.above(node) if isinstance(one, (ast.For, ast.While))), None)
        if loop is None or any(
            _Finder(code).name_of(call, module) for call in ast.walk(loop) if _is_before(call, node)
        ):
            continue
        if _synchronizes(code, ast.Module(body=_after(node, module), type_ignores=[]), module):
            yield Finding(
                "warning",
                "left-by-one",
                module.where(node),
                "a rank whose own loss is not finite skips this step, and the others wait for its gradients: the job "
                "would hang",
                "decide for all ranks: all_reduce whether any loss is not finite, then skip the step everywhere",
            )
            return


def _is_before(call: ast.AST, node: ast.If) -> TypeGuard[ast.Call]:
    return isinstance(call, ast.Call) and call.lineno < node.lineno


def _inside(body: Iterable[ast.AST]) -> set[ast.AST]:
    return {inner for statement in body for inner in ast.walk(statement)}


def _synchronizes(code: Code, loop: ast.AST, module: Module) -> bool:
    """Return whether each pass of a loop waits for all ranks: it trains, or calls a collective."""
    calls = [node for node in ast.walk(loop) if isinstance(node, ast.Call)]
    found = [code.program.definition(code.program.name_of(call.func, module)) for call in calls]
    trees = [loop, *(one[1] for one in found if one)]
    trains = any(isinstance(n, ast.Attribute) and n.attr == "backward" for tree in trees for n in ast.walk(tree))
    is_wrapped = any(is_ddp(name) for _, _, name in code.reached.calls)
    return (trains and is_wrapped) or any(_Finder(code).name_of(call, module) for call in calls)


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
        if is_ddp(name) or name in _CHECKPOINTS:
            is_of_some = argument(call, "process_group") or argument(call, "no_dist")
            return "" if is_of_some else last if is_ddp(name) else f"checkpoint.{last}"
        if name in _STATE_DICTS or (last in _FSDP_METHODS and name.startswith("torch.")):
            return last
        return self._name_of_method(call, module) if isinstance(call.func, ast.Attribute) else ""

    def _name_of_method(self, call: ast.Call, module: Module) -> str:
        target = call.func
        assert isinstance(target, ast.Attribute)
        if target.attr == "state_dict" and any(map(_gathers_state, module.above(call))):
            return target.attr
        owner = ast.unparse(target.value)
        for package, (receiver, methods) in _METHODS.items():
            if target.attr in methods and receiver.search(owner) and self.code.program.imports(package):
                return target.attr
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


def _gathers_state(node: ast.AST) -> bool:
    """Return whether a state dict that is asked for here is gathered from all ranks, as FSDP does."""
    return isinstance(node, ast.With) and any(
        "state_dict_type" in ast.unparse(item.context_expr) for item in node.items
    )


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
        elif side is False and _leaves_at_last(node.body):
            yield module, [*node.orelse, *_after(node, module)], node.body, scope


def _leaves_at_last(body: list[ast.stmt]) -> bool:
    """Return whether nothing after a block is executed once the block was."""
    last = body[-1]
    if isinstance(last, ast.Expr) and isinstance(last.value, ast.Call):
        return spelled(last.value.func) in EXITS
    return isinstance(last, (ast.Return, ast.Continue))


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


def _has_counterpart(finder: _Finder, scope: ast.AST, module: Module, own: list[ast.stmt], found: _Collective) -> bool:
    """Return whether the other ranks come to a collective in a branch of their own in the same function.

    The wrapping of a model is the counterpart of another one only.
    """
    wraps = found.name == _DDP
    inside = set(own)
    for node in ast.walk(scope):
        if not isinstance(node, ast.If) or node.body is own or inside & set(module.above(node)):
            continue
        if _zero_side(node.test, finder.code, module) is not True and _mentions_rank(node.test):
            if any((one.name == _DDP) is wraps for one in finder.collectives(node.body, module)):
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
