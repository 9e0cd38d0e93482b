"""The collective calls that statements come to, also by functions of the program."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from jobsubmit.check.code import MESHES, Code, is_ddp
from jobsubmit.check.collectives.rank_conditions import mentions_rank, zero_side
from jobsubmit.check.interpreter.process import OF_TORCH_DISTRIBUTED
from jobsubmit.check.origins import set_to
from jobsubmit.check.program.calls import argument, given_for, hides_arguments
from jobsubmit.check.program.module import Function, Module, class_around, is_of_self, own_method, spelled, unparsed
from jobsubmit.check.program.program import may_be_of_model
from jobsubmit.check.program.tree import children, walk
from jobsubmit.check.program.variables import assigned_to, parameters

_PACKAGES = (
    *("torch.distributed.", "torch.distributed.distributed_c10d."),
    *("deepspeed.comm.", "composer.utils.dist.", "ignite.distributed."),
)
# Methods of a library's own objects, by what these objects are called.
_OBJECTS_OF_LIGHTNING = (
    (re.compile(r"(^|\.)(_?fabric|strategy)$|^self$"), ("barrier", "all_gather", "all_reduce", "broadcast")),
    (
        re.compile(r"(^|\.)_?(\w+_)?trainer$"),
        ("fit", "validate", "test", "predict", "save_checkpoint", "train", "evaluate"),
    ),
)
_ACCELERATOR = re.compile(r"(^|\.)_?accelerator$")
_METHODS: Mapping[str, tuple[tuple[re.Pattern[str], tuple[str, ...]], ...]] = {
    "accelerate": (
        (
            _ACCELERATOR,
            ("wait_for_everyone", "gather", "gather_for_metrics", "reduce", "pad_across_processes"),
        ),
    ),
    "lightning": _OBJECTS_OF_LIGHTNING,
    "pytorch_lightning": _OBJECTS_OF_LIGHTNING,
    "transformers.Trainer": (_OBJECTS_OF_LIGHTNING[1],),
    "icefall": ((re.compile(r"loss|info|metric|track"), ("reduce",)),),  # of a MetricsTracker
    "deepspeed": (
        (
            re.compile(r"engine|model"),
            ("save_checkpoint", "load_checkpoint", "save_16bit_model", "_zero3_consolidated_16bit_state_dict"),
        ),
    ),
}
_STATE_DICTS = tuple(
    f"torch.distributed.checkpoint.state_dict.{name}"
    for name in ("get_state_dict", "get_model_state_dict", "get_optimizer_state_dict")
)
_FSDP_METHODS = ("full_optim_state_dict", "optim_state_dict", "summon_full_params")
_CHECKPOINTS = tuple(f"torch.distributed.checkpoint.{name}" for name in ("save", "async_save", "load"))
# Whether a step is one of every so many, or what kind of object something is: rank 0 does not decide that alone.
_PERIOD = re.compile(r"step|epoch|iter|interval|period|freq|every|enable|force|last|save|isinstance")
# What comes after so many arguments may be a group of some processes.
_PLAIN_ARGUMENTS: Mapping[str, int] = {"reduce": 3, "gather": 3, "scatter": 3, "reduce_scatter": 3}
BARRIERS = ("barrier", "monitored_barrier", "wait_for_everyone")
_SEVERAL = re.compile(r"[\w.]*(?:gpu|proc|rank|node|world|device|replica)\w*(?:\(\))? (?:> 1|!= 1|>= 2)", re.IGNORECASE)
_OF_MODELS = ("train", "eval")  # methods of models that only change how these compute
_TRAINS = re.compile(r"train|solver|runner|engine|agent|learner|experiment|exp$")
_DEEPEST = 6
_FIGURES = re.compile(r"(?:\w*_)?(?:axe?s?|fig|figure|plt)\d*\.")  # of matplotlib, as all call them
_INITIALIZED = ("is_initialized", "world_size", "distributed", "ddp", "is_available", "multi_gpu")


@dataclass(frozen=True)
class Collective:
    """A collective call of all processes, where it is, and its name."""

    call: ast.Call
    module: Module
    name: str


@dataclass
class CollectiveFinder:
    """Find the collectives that statements come to, also by functions of the program.

    `known` and `combining` remember what was found in functions.
    """

    code: Code
    known: dict[ast.AST, Collective | None] = field(default_factory=dict)
    combining: dict[ast.AST, bool] = field(default_factory=dict)

    def collectives(self, body: Iterable[ast.AST], module: Module, depth: int = 0) -> Iterator[Collective]:
        """Yield those that are surely executed with these statements."""
        for statement in body:
            for node in _calls(statement, self, module):
                name = self.name_of(node, module) if isinstance(node, ast.Call) else ""
                if isinstance(node, ast.Call) and name:
                    yield Collective(node, module, name)
                elif depth < _DEEPEST and (inner := self._inside(node, module, depth)):
                    yield inner

    def may_meet(self, body: Iterable[ast.AST], module: Module) -> bool:
        """Return whether the other ranks come to a collective of their own."""
        return next(self.collectives(body, module), None) is not None

    def may_combine(self, call: ast.Call, module: Module) -> bool:
        """Return whether a call is a collective of any group, or leads to one."""
        owner, _, last = self.code.program.name_of(call.func, module).rpartition(".")
        if (last in OF_TORCH_DISTRIBUTED and f"{owner}." in _PACKAGES) or self.name_of(call, module):
            return True
        found = self.code.program.called(call, module)
        if found is None:
            return False
        if found[1] not in self.combining:
            self.combining[found[1]] = False  # while it is looked at
            entered = own_method(found[1], "__init__") if isinstance(found[1], ast.ClassDef) else found[1]
            calls = (inner for inner in walk(entered or ast.Pass()) if isinstance(inner, ast.Call))
            self.combining[found[1]] = any(self.may_combine(inner, found[0]) for inner in calls)
        return self.combining[found[1]]

    def name_of(self, call: ast.Call, module: Module) -> str:
        """Return the name of the collective that a call is, of all processes; empty for any other call."""
        name = self.code.program.name_of(call.func, module)
        owner, _, last = name.rpartition(".")
        if last in OF_TORCH_DISTRIBUTED and f"{owner}." in _PACKAGES:
            group = argument(call, "group")
            is_of_all = (group is None or self._is_of_all(group, module)) and not hides_arguments(call)
            return last if is_of_all and len(call.args) <= _PLAIN_ARGUMENTS.get(last, 2) else ""
        if is_ddp(name) or name in _CHECKPOINTS:
            is_of_some = argument(call, "process_group") or argument(call, "no_dist")
            return "" if is_of_some else last if is_ddp(name) else f"checkpoint.{last}"
        if name in _STATE_DICTS or (last in _FSDP_METHODS and name.startswith("torch.")):
            return last
        return self._name_of_method(call, module) if isinstance(call.func, ast.Attribute) else ""

    def _is_of_all(self, group: ast.expr, module: Module) -> bool:
        """Return whether a group is that of all processes: None, or made by `new_group()` without a list of ranks."""
        if self.code.values.of(group, module) is None or self._is_of_only_mesh(group):
            return True
        made = [one for _, one in set_to(self.code, group, module)] if isinstance(group, ast.Attribute) else []
        if isinstance(group, ast.Name):
            scope = module.scope_of(group)
            own = scope if (scope, group.id) in module.own_stores else module.tree
            made = [assigned_to(store, module) for store in module.own_stores.get((own, group.id), ())]
        calls = [one for one in made if not isinstance(one, ast.Constant)]
        return bool(calls) and all(
            isinstance(one, ast.Call)
            and self.code.program.name_of(one.func, module) == "torch.distributed.new_group"
            and argument(one, "ranks", 0) is None
            and not hides_arguments(one)
            for one in calls
        )

    def _is_of_only_mesh(self, group: ast.expr) -> bool:
        """Return whether a group is `mesh.get_group()`, and the only mesh has one dimension: all processes."""
        if not isinstance(group, ast.Call) or group.args or getattr(group.func, "attr", "") != "get_group":
            return False
        shapes = [argument(call, "mesh_shape", 1) for _, call in self.code.calls(*MESHES)]
        return len(shapes) == 1 and isinstance(shapes[0], ast.Tuple) and len(shapes[0].elts) == 1

    def _name_of_method(self, call: ast.Call, module: Module) -> str:
        target = call.func
        assert isinstance(target, ast.Attribute)
        if target.attr == "full_tensor" and self.code.program.imports("torch.distributed"):
            return target.attr  # of a DTensor, which all processes have parts of
        if target.attr == "consolidate_state_dict" and self.code.program.imports("torch.distributed.optim"):
            return target.attr  # of a ZeroRedundancyOptimizer, which all processes have parts of
        if target.attr == "state_dict" and any(map(_gathers_state, module.above(call))):
            return target.attr
        if target.attr == "compute" and self._is_metric(target.value, module):
            return target.attr
        owner = unparsed(target.value)
        for package, kinds in _METHODS.items():
            for receiver, methods in kinds:
                if target.attr in methods and receiver.search(owner) and self.code.program.imports(package):
                    return target.attr
        return ""

    def _is_metric(self, owner: ast.expr, module: Module) -> bool:
        """Return whether an object is a metric of torchmetrics: all processes combine its state when it computes."""
        if not self.code.program.imports("torchmetrics"):
            return False
        made = [one for _, one in set_to(self.code, owner, module)] if isinstance(owner, ast.Attribute) else [owner]
        made = [self.code.values.assigned(one, module) if isinstance(one, ast.Name) else one for one in made]
        calls = [call for one in made for call in _chained(one) if argument(call, "sync_on_compute") is None]
        names = [self.code.program.name_of(call.func, module) for call in calls]
        return any(name.startswith("torchmetrics.") and ".functional." not in name for name in names)

    def _inside(self, call: ast.Call | ast.Attribute, module: Module, depth: int) -> Collective | None:
        if isinstance(call, ast.Attribute):
            read = self.code.program.property_of(call)
            return self._inside_function(read[1], read[0], depth) if read is not None else None
        found = self.code.program.definition(self.code.program.name_of(call.func, module)) or self._applied(
            call, module
        )
        if found is None and is_of_self(call.func):
            owner = class_around(call, module)
            own = own_method(owner, call.func.attr) if owner is not None else None
            methods = self.code.program.methods.get(call.func.attr, ())
            found = (module, own) if own is not None else None
            found = (methods[0][0], methods[0][2]) if found is None and len(methods) == 1 else found
        elif found is None and _FIGURES.match(spelled(call.func)):
            return None
        elif found is None and isinstance(call.func, ast.Name):
            inner_function = module.inner_function(call.func)
            found = (module, inner_function) if inner_function is not None else None
        elif found is None and isinstance(call.func, ast.Attribute) and isinstance(call.func.value, ast.Name):
            found = self._method(call.func, call.func.value.id, module)
        if found is None and isinstance(call.func, ast.Attribute):
            return self._inside_all(call.func, module, depth)
        function = found[1] if found is not None else None
        if isinstance(function, ast.ClassDef):
            function = own_method(function, "__init__")
        return self._inside_function(function, found[0], depth) if found is not None and function is not None else None

    def _applied(self, call: ast.Call, module: Module) -> tuple[Module, Function] | None:
        """Return what `AllReduce.apply(x)` executes, of a torch.autograd.Function of the program: its forward()."""
        owner = call.func.value if isinstance(call.func, ast.Attribute) and call.func.attr == "apply" else None
        found = self.code.program.definition(self.code.program.name_of(owner, module)) if owner is not None else None
        forward = own_method(found[1], "forward") if found and isinstance(found[1], ast.ClassDef) else None
        return (found[0], forward) if found is not None and forward is not None else None

    def _inside_function(self, function: Function, home: Module, depth: int) -> Collective | None:
        if function not in self.known:
            self.known[function] = None  # it may call itself
            self.known[function] = next(self.collectives(function.body, home, depth + 1), None)
        return self.known[function]

    def _inside_all(self, target: ast.Attribute, module: Module, depth: int) -> Collective | None:
        """Return a collective if every other method of that name comes to one, whatever class the object is of."""
        is_of_model = target.attr in _OF_MODELS and not _TRAINS.search(unparsed(target.value))
        is_accelerator = _ACCELERATOR.search(unparsed(target.value)) and self.code.program.imports("accelerate")
        program, owner = self.code.program, target.value
        is_of_library = program.is_of_library(owner, module) or program.is_made_by_library(owner, module)
        if is_of_model or is_accelerator or is_of_library:
            return None
        own = module.function_of(target)
        methods = [one for one in self.code.program.methods.get(target.attr, ()) if one[2] is not own]
        if any(may_be_of_model(target, owner) for _, owner, _ in methods):
            return None
        found = [self._inside_function(method, home, depth) for home, _, method in methods]
        return found[0] if found and all(found) else None

    def _method(self, target: ast.Attribute, variable: str, module: Module) -> tuple[Module, Function] | None:
        """Return the method that a variable's object has, where the class of the object is known, or the only one."""
        function = module.function_of(target)
        methods = self.code.program.methods.get(target.attr, ())
        is_given = function is not None and variable in parameters(function)
        if is_given and len(methods) == 1 and not may_be_of_model(target, methods[0][1]):
            return methods[0][0], methods[0][2]  # the only class that has it
        made = module.assigned_calls.get(variable, ())
        found = (
            self.code.program.definition(self.code.program.name_of(made[0].func, module)) if len(made) == 1 else None
        )
        if found is None or not isinstance(found[1], ast.ClassDef):
            return None
        method = own_method(found[1], target.attr)
        return None if method is None else (found[0], method)


@lru_cache(maxsize=1)
def finder_of(code: Code) -> CollectiveFinder:
    """Return the finder of a program, which all checks of it share with what it remembers."""
    return CollectiveFinder(code)


def has_counterpart(
    finder: CollectiveFinder, scope: ast.AST, module: Module, own: Sequence[ast.AST], found: Collective
) -> bool:
    """Return whether the other ranks come to the same collective in a branch of their own in the same function.

    Of a function inside another one, the branch may be in that one, which calls it.
    """
    inside = set(own)
    above = module.parents.get(own[0]) if own else None
    is_local = _names_local_rank(above.test) if isinstance(above, ast.If) else None
    for node in walk(module.function_of(scope) or scope):
        if not isinstance(node, ast.If) or node.body is own or inside & set(module.above(node)):
            continue
        waits = [one for one in node.orelse if isinstance(one, ast.While)]  # for signals of rank 0
        if waits and zero_side(node.test, finder.code, module) and _comes_to(finder, waits, module, found):
            return True
        if isinstance(above, ast.If) and unparsed(node.test) == unparsed(above.test):
            continue  # the same ranks come to it
        is_opposite = isinstance(above, ast.If) and _are_opposite(node.test, above.test)
        if is_opposite and _comes_to(finder, node.body, module, found):
            return True
        if is_local is not None and finder.code.facts.nodes > 1 and _names_local_rank(node.test) is not is_local:
            continue  # on the other nodes, there is one rank that no branch is for
        if _is_for_others(finder.code, node.test, module) and _comes_to(finder, node.body, module, found):
            return True
    return False


def _comes_to(finder: CollectiveFinder, body: Sequence[ast.stmt], module: Module, found: Collective) -> bool:
    return any(_kind(one.name) == _kind(found.name) for one in finder.collectives(body, module))


def _names_local_rank(test: ast.expr) -> bool:
    return "local_rank" in unparsed(test).lower()


def _are_opposite(one: ast.expr, other: ast.expr) -> bool:
    """Return whether exactly one of two conditions holds on each process: `gpu > 0` and `gpu == 0`."""
    first, second = _asks_for_zero(one), _asks_for_zero(other)
    return bool(first[0]) and first[0] == second[0] and first[1] is not second[1]


def _asks_for_zero(test: ast.expr) -> tuple[str, bool]:
    """Return the number that a condition is about, and whether it holds for 0, or for all that are greater."""
    match test:
        case ast.Compare(left=left, ops=[ast.Eq()], comparators=[ast.Constant(value=0)]):
            return unparsed(left), True
        case ast.Compare(left=left, ops=[ast.NotEq() | ast.Gt()], comparators=[ast.Constant(value=0)]):
            return unparsed(left), False
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return spelled(operand), True
    return spelled(test), False


def _is_for_others(code: Code, test: ast.expr, module: Module) -> bool:
    """Return whether a condition may hold on other ranks than 0: `rank > 0`, `not is_leader and size > 1`."""
    if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And):
        sides = [zero_side(item, code, module) for item in test.values]
        return True not in sides and (False in sides or mentions_rank(test))
    side = zero_side(test, code, module)
    return side is False or (side is None and mentions_rank(test))


def _kind(name: str) -> str:
    return "barrier" if name in BARRIERS else name


def _gathers_state(node: ast.AST) -> bool:
    """Return whether a state dict that is asked for here is gathered from all ranks, as FSDP does."""
    return isinstance(node, ast.With) and any("state_dict_type" in unparsed(item.context_expr) for item in node.items)


def _calls(node: ast.AST, finder: CollectiveFinder, module: Module) -> Iterator[ast.Call | ast.Attribute]:
    """Yield the calls that are surely executed with a statement, and the attributes that it reads.

    Those of functions that it defines are not.
    """
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)):
        return
    if isinstance(node, ast.IfExp) and _is_given(node.test, finder, module):
        yield from _calls(node.orelse, finder, module)
        return
    if isinstance(node, ast.If):
        truth = finder.code.values.truth(node.test, module)
        test = unparsed(node.test)
        is_about_all = any(word in test for word in _INITIALIZED) or _PERIOD.search(test) is not None
        is_about_all = is_about_all or _SEVERAL.fullmatch(test) is not None
        is_either_way = truth is None and _has_collective(node.body) and _has_collective(node.orelse)
        is_executed = truth or (truth is None and is_about_all) or is_either_way
        if zero_side(node.test, finder.code, module) is None and is_executed:
            for statement in node.body:
                yield from _calls(statement, finder, module)
        elif truth is False:
            for statement in node.orelse:
                yield from _calls(statement, finder, module)
        return
    if isinstance(node, ast.Call) or (isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load)):
        yield node
    for child in children(node):
        yield from _calls(child, finder, module)


def _is_given(test: ast.expr, finder: CollectiveFinder, module: Module) -> bool:
    """Return whether a condition asks if a parameter is None, and every call of the function gives it something."""
    match test:
        case ast.Compare(left=ast.Name() as name, ops=[ast.Is()], comparators=[ast.Constant(value=None)]):
            function = module.function_of(name)
            calls = finder.code.program.calls_to(function, module) if function is not None else ()
            given = [given_for(call, function, name.id) for _, call in calls if function is not None]
            return bool(given) and all(one is not None and not isinstance(one, ast.Constant) for one in given)
    return False


def _has_collective(body: list[ast.stmt]) -> bool:
    """Return whether statements call something of the name of a collective, also of a group."""
    calls = (node for statement in body for node in walk(statement) if isinstance(node, ast.Call))
    return any(isinstance(call.func, ast.Attribute) and call.func.attr in OF_TORCH_DISTRIBUTED for call in calls)


def _chained(node: ast.AST | None) -> Iterator[ast.Call]:
    """Yield a call and those whose results it is a method of: `Metric()` of `Metric().to(device)`."""
    while isinstance(node, ast.Call):
        yield node
        node = node.func.value if isinstance(node.func, ast.Attribute) else None
