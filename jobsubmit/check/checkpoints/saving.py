"""Checkpoints that all processes write to one file, or that only rank 0 loads."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import PurePosixPath

from jobsubmit.check.code import ACCELERATOR, Code
from jobsubmit.check.collectives.all_ranks import is_for_all, is_of_one_process
from jobsubmit.check.collectives.rank_conditions import is_guarded_by_rank, is_in_branch_of_zero
from jobsubmit.check.collectives.rank_zero import zero_branches
from jobsubmit.check.origins import words_of
from jobsubmit.check.program.calls import argument, default_of, given_for, hides_arguments
from jobsubmit.check.program.module import Module, spelled
from jobsubmit.check.program.tree import walk
from jobsubmit.check.program.variables import assigned_to, parameters
from jobsubmit.check.wrapper import is_wrapped
from jobsubmit.common.finding import Finding

_SAVES = ("torch.save",)
_WRITERS = ("numpy.save", "numpy.savez", "numpy.savez_compressed", "numpy.savetxt", "matplotlib.pyplot.savefig")
_WRITING_METHODS = ("to_csv", "to_json", "to_parquet", "savefig", "save_pretrained")
_STEP = re.compile(r"epoch|step|iter")
_SETTINGS = re.compile(r"_?(?:args?|opts?|opt|flags|cfg|conf|config|hparams|params|a|o)", re.IGNORECASE)
_DEEPEST = 3
_LOCAL_RANK = re.compile(r"local_rank|LOCAL_RANK")
_RANK_OF_ALL = re.compile(r"\bRANK\b|\brank\b|get_rank|global_rank")
LOCAL_FOLDERS = ("/tmp", "/dev/shm", "/scratch", "/local", "/raid", "/mnt/local")  # noqa: S108 - a user's
_AVERAGE = re.compile(r"(?:^|[._])ema(?:[._]|$)")
_LOADS = re.compile(r"load|resume|restore|restart")
_POSITION = re.compile(r"epoch|step|iter")
_SHARES = re.compile(r"set_model_state_dict|set_state_dict|sync_params|broadcast_\w*(?:state|param|buffer|model)")
_OPTIMIZER = re.compile(r"optim|\bopt\b")
_OF_PARAMETERS = re.compile(r"^(?!.*(?:optim|\bopt\b)).*param")  # sync_params(model.parameters())
_SHARED = re.compile(r"state|param|epoch|step|optim|ckpt|checkpoint|list|obj|load")


def check_saving(code: Code) -> Iterator[Finding]:
    """Yield a warning for a file that every process writes, and for a state that only rank 0 loads."""
    if any(code.calls(ACCELERATOR)) and code.is_parallel:
        yield from _loaded_by_one(code)
        return
    if code.has_framework or not code.is_parallel or not code.is_distributed:
        return
    yield from _written_by_all(code)
    yield from _written_by_nodes(code)
    yield from _loaded_by_one(code)
    yield from _unconsolidated(code)


def _written_by_all(code: Code) -> Iterator[Finding]:
    if (code.processes or 0) <= 1:
        return
    for module, call, path in _written(code):
        if isinstance(path, ast.Name) and len(path.id) == 1:
            continue  # a file that is open
        if is_for_all(code, call, module) and not is_of_one_process(code, path, module) and not code.is_of_one(call):
            yield Finding(
                "warning",
                "saved-by-all",
                module.where(call),
                "each process writes the same file: it may be damaged",
                "write it on rank 0 only: if dist.get_rank() == 0: …; or put the rank into the name",
            )
            return
    yield from _saved_without_rank(code)


def _saved_without_rank(code: Code) -> Iterator[Finding]:
    """Yield a warning for a call without the rank of a function that saves on rank 0, which it takes itself for."""
    for module, call, path in _written(code):
        function = module.function_of(call)
        is_own = function is not None and (function, "rank") in module.own_stores  # it finds the rank out by itself
        if function is None or is_own or "rank" not in parameters(function):
            continue
        default = default_of(function, "rank")
        if not isinstance(default, ast.Constant) or default.value != 0:
            continue
        if not is_guarded_by_rank(code, call, module):
            continue
        for home, caller in code.program.calls_to(function, module):
            given = given_for(caller, function, path.id) if isinstance(path, ast.Name) else path
            is_default = given_for(caller, function, "rank") is None and not hides_arguments(caller)
            if not is_default or given is None or not is_for_all(code, caller, home):
                continue
            if not is_of_one_process(code, given, home):
                yield Finding(
                    "warning",
                    "saved-by-all",
                    home.where(caller),
                    f"each process writes the same file, which may be damaged: {function.name}() is called without the "
                    "rank, and its default is 0",
                    "pass the rank: rank=rank",
                )
                return


def _unconsolidated(code: Code) -> Iterator[Finding]:
    """Yield an error for the state of a ZeroRedundancyOptimizer that was not gathered on the rank that saves it."""
    makers = [name for _, _, name in code.reached.calls if name.endswith("ZeroRedundancyOptimizer")]
    if not makers or "consolidate_state_dict" in code.names:
        return
    for module, call, _ in code.reached.calls:
        owner = call.func.value if isinstance(call.func, ast.Attribute) and call.func.attr == "state_dict" else None
        if owner is not None and _OPTIMIZER.search(ast.unparse(owner)):
            yield Finding(
                code.level_of(call, module),
                "not-consolidated",
                module.where(call),
                f"{ast.unparse(call)} fails: each rank has a part of the state of a ZeroRedundancyOptimizer, and "
                "nothing gathers them",
                f"call {ast.unparse(owner)}.consolidate_state_dict(to=0) on every rank first",
            )
            return


def _written(code: Code) -> Iterator[tuple[Module, ast.Call, ast.expr]]:
    """Yield what writes a file, with its path: one that is the same for all data, except for checkpoints."""
    for module, call, name in code.reached.calls:
        method = call.func.attr if isinstance(call.func, ast.Attribute) else ""
        path: ast.expr | None = None
        if name in _SAVES:
            path = argument(call, "f", 1)
        elif name == "open":
            mode = code.values.of(argument(call, "mode", 1) or ast.Constant("r"), module)
            path = argument(call, "file", 0) if isinstance(mode, str) and set(mode) & set("wx") else None
        elif name in _WRITERS or method in _WRITING_METHODS:
            path = call.args[0] if call.args else None
        elif method in ("write_text", "write_bytes"):
            path = call.func.value  # type: ignore[attr-defined] # it is an attribute
        is_checkpoint = name in _SAVES
        if path is not None and (is_checkpoint or _is_same_for_all_data(code, path, module)):
            if is_checkpoint or not _depends_on_option(code, call, module):
                yield module, call, path


def _depends_on_option(code: Code, node: ast.AST, module: Module) -> bool:
    """Return whether an option that may not be given decides whether a node is executed."""
    return any(
        code.values.truth(above.test, module) is None
        and any(
            code.values.namespaces.hold(one.value, module) for one in walk(above.test) if isinstance(one, ast.Attribute)
        )
        for above in module.above(node)
        if isinstance(above, ast.If)
    )


def _is_same_for_all_data(code: Code, path: ast.expr, module: Module, depth: int = 0) -> bool:
    """Return whether a path depends on arguments, epochs and steps only: not on the data that a process has."""
    for name in (node for node in walk(path) if isinstance(node, ast.Name)):
        is_of_step = _STEP.search(name.id) is not None or _SETTINGS.fullmatch(name.id) is not None
        if is_of_step or name.id in module.aliases or name.id in ("str", "int", "self", "open"):
            continue
        if isinstance(code.values.of(name, module), (str, int, PurePosixPath)):
            continue
        made = code.values.assigned(name, module) if depth < _DEEPEST else None
        if made is None or not _is_same_for_all_data(code, made, module, depth + 1):
            return False
    return True


def _written_by_nodes(code: Code) -> Iterator[Finding]:
    """Yield a warning where the first process of each node writes a file that all nodes may share."""
    if code.facts.nodes == 1 or not code.facts.has_launcher:
        return
    for module, call in code.calls(*_SAVES):
        path = argument(call, "f", 1)
        tests = [above.test for above in module.above(call) if isinstance(above, ast.If)]
        if path is None or not any(_is_first_of_node(code, test, module) for test in tests):
            continue
        value = code.values.of(path, module)
        is_of_node = isinstance(value, str) and (not value.startswith("/") or value.startswith(LOCAL_FOLDERS))
        if not is_of_node and not is_of_one_process(code, path, module):
            yield Finding(
                "warning",
                "saved-by-all",
                module.where(call),
                f"the first process of each of the {code.facts.nodes} nodes writes the same file, if they share the "
                "folder: it may be damaged",
                "save it on rank 0 only: if dist.get_rank() == 0: torch.save(…)",
            )
            return


def _is_first_of_node(code: Code, test: ast.expr, module: Module) -> bool:
    """Return whether a condition compares the local rank with 0, and nothing else."""
    if not isinstance(test, ast.Compare) or not isinstance(test.ops[0], ast.Eq) or isinstance(test.left, ast.BinOp):
        return False
    sides = (test.left, test.comparators[0])
    is_zero = any(isinstance(side, ast.Constant) and side.value == 0 for side in sides)
    words = " ".join(words_of(code, side, module) for side in sides)
    return is_zero and _LOCAL_RANK.search(words) is not None and not _RANK_OF_ALL.search(words)


def _loaded_by_one(code: Code) -> Iterator[Finding]:
    """Yield a warning where only rank 0 loads what DistributedDataParallel does not share when it gets the model."""
    calls = [call for _, call, _ in code.reached.calls if _shares(call)]
    shares_optimizer = any(not _OF_PARAMETERS.search(ast.unparse(call)) for call in calls)
    for module, branch in zero_branches(code):
        body = [(module, statement) for statement in branch] + list(_entered(code, branch, module))
        for home, loaded in ((home, node) for home, statement in body for node in _loaded(statement)):
            is_optimizer = _OPTIMIZER.search(ast.unparse(loaded)) is not None
            is_optimizer |= _is_of_any(loaded, home) and any(map(_gives_optimizer, branch))
            if not code.reached.of(loaded, home) or _is_after_training(code, loaded):
                continue
            if shares_optimizer or (calls and not is_optimizer):
                continue
            if is_optimizer or _is_inside(code, loaded, home) or _sets_position([node for _, node in body]):
                yield _only_on_zero(home.where(loaded))
                return
    for module, call, _ in () if shares_optimizer else code.reached.calls:
        is_load = isinstance(call.func, ast.Attribute) and call.func.attr == "load_state_dict" and call.args
        if is_load and _OPTIMIZER.search(ast.unparse(call.func)) and _is_read_by_one(code, call.args[0], module):
            yield _only_on_zero(module.where(call))
            return


def _is_after_training(code: Code, loaded: ast.expr) -> bool:
    """Return whether the first process loads a state after its last step: to evaluate the best model."""
    events = [event for one in code.followed[:1] for event in one.events.values()]
    steps = [number for number, event in enumerate(events) if event.last == "backward"]
    loads = [number for number, event in enumerate(events) if getattr(event.call.func, "value", None) is loaded]
    is_in_loop = any(code.loops_around(events[number]) for number in loads)
    return bool(steps and loads) and min(loads) > max(steps) and not is_in_loop


def _is_of_any(loaded: ast.expr, module: Module) -> bool:
    """Return whether a state is loaded into each of some objects: `for name, value in kwargs.items(): value.load…`."""
    loops = (above for above in module.above(loaded) if isinstance(above, ast.For))
    return any(spelled(one) == spelled(loaded) for loop in loops for one in walk(loop.target))


def _gives_optimizer(statement: ast.stmt) -> bool:
    calls = (node for node in walk(statement) if isinstance(node, ast.Call))
    given = (one for call in calls for one in (*call.args, *(keyword.value for keyword in call.keywords)))
    return any(_OPTIMIZER.search(spelled(one)) for one in given)


def _only_on_zero(where: str) -> Finding:
    return Finding(
        "warning",
        "loaded-by-one",
        where,
        "only rank 0 loads this state: the other ranks begin anew, and may run other numbers of steps",
        "load the checkpoint on every rank (map_location), or broadcast it",
    )


def _is_read_by_one(code: Code, state: ast.expr, module: Module) -> bool:
    """Return whether a state is part of a variable that holds something on rank 0 only."""
    root = state.value if isinstance(state, ast.Subscript) else state
    stores = module.stores.get((module.scope_of(state), root.id), ()) if isinstance(root, ast.Name) else ()
    others = [store for store in stores if not _is_none(assigned_to(store, module))]
    return bool(others) and all(is_in_branch_of_zero(code, store, module) for store in others)


def _is_none(node: ast.AST | None) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def _entered(code: Code, body: list[ast.stmt], module: Module, depth: int = 0) -> Iterator[tuple[Module, ast.stmt]]:
    """Yield the statements of the methods and functions that load something, of those that some statements call."""
    for call in (node for statement in body for node in walk(statement) if isinstance(node, ast.Call)):
        found = code.program.called(call, module) if _LOADS.search(spelled(call.func)) else None
        if found is not None and not isinstance(found[1], ast.ClassDef):
            yield from ((found[0], statement) for statement in found[1].body)
            yield from _entered(code, found[1].body, found[0], depth + 1) if depth < _DEEPEST else ()


def _loaded(statement: ast.stmt) -> Iterator[ast.expr]:
    """Yield what a statement loads a state into, but for averaged weights, which only rank 0 may need."""
    for node in walk(statement):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "load_state_dict":
            if not _AVERAGE.search(spelled(node.func.value)):
                yield node.func.value


def _is_inside(code: Code, loaded: ast.expr, module: Module) -> bool:
    """Return whether a model is inside a wrapper already: `model.module`, or the wrapper itself."""
    inner = loaded.value if isinstance(loaded, ast.Attribute) and loaded.attr == "module" else loaded
    return is_wrapped(code, inner, module) is True


def _sets_position(body: list[ast.stmt]) -> bool:
    """Return whether statements take over from a checkpoint where the training is."""
    for node in (inner for statement in body for inner in walk(statement) if isinstance(inner, ast.Assign)):
        is_read = any(isinstance(part, ast.Subscript) or _is_load(part) for part in walk(node.value))
        if is_read and _POSITION.search(ast.unparse(node)):
            return True
    return False


def _is_load(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and spelled(node.func) == "torch.load"


def _shares(call: ast.Call) -> bool:
    """Return whether a call may give the other ranks what rank 0 has loaded."""
    name = ast.unparse(call.func).rpartition(".")[2]
    if _SHARES.search(name):
        return True
    given = " ".join(map(ast.unparse, (*call.args, *(keyword.value for keyword in call.keywords))))
    return "broadcast" in name and _SHARED.search(given) is not None
