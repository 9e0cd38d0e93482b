"""Checkpoints that all processes write to one file, or that only rank 0 loads."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import PurePosixPath

from jobsubmit.agent import node_contract as contract
from jobsubmit.check.checkpoints.paths import saving_calls
from jobsubmit.check.code import ACCELERATOR, Code, trains
from jobsubmit.check.collectives.all_ranks import is_for_all, is_of_one_process
from jobsubmit.check.collectives.rank_conditions import (
    is_for_main_process_only,
    is_guarded_by_rank,
    is_in_branch_of_zero,
    zero_side,
)
from jobsubmit.check.collectives.rank_zero import zero_branches
from jobsubmit.check.origins import is_sent, origins, words_of
from jobsubmit.check.program.calls import argument, default_of, given_for, hides_arguments
from jobsubmit.check.program.module import FUNCTIONS, Module, returned_values, spelled, unparsed
from jobsubmit.check.program.tree import walk
from jobsubmit.check.program.variables import assigned_to, parameters
from jobsubmit.check.wrapper import is_wrapped
from jobsubmit.common.finding import Finding

_NOWHERE = ("os.devnull", "'/dev/null'")
_SAVES = ("torch.save",)
_WRITERS = ("numpy.save", "numpy.savez", "numpy.savez_compressed", "numpy.savetxt", "matplotlib.pyplot.savefig")
_WRITING_METHODS = ("to_csv", "to_json", "to_parquet", "savefig", "save_pretrained", "save_to_disk")
_SHARDS = re.compile(r"deepspeed|fsdp|zero3", re.IGNORECASE)
_OF_RESULTS = re.compile(r"output|save|ckpt|checkpoint|result|exp|work_dir")
_OF_LOGS = re.compile(r"log|history|trace", re.IGNORECASE)
_FIRST = re.compile(r"\w*(?:process|zero)_first\b")  # in it, one process writes before the others look
_STEP = re.compile(r"epoch|step|iter")
_SETTINGS = re.compile(r"_?(?:args?|opts?|opt|flags|cfg|conf|config|hparams|params|a|o)", re.IGNORECASE)
_DEEPEST = 3
_LOCAL_RANK = re.compile(r"local_rank|LOCAL_RANK")
_RANK_OF_ALL = re.compile(r"\bRANK\b|\brank\b|get_rank|global_rank")
_AVERAGE = re.compile(r"(?:^|[._])ema(?:[._]|$)")
_LOADS = re.compile(r"load|resume|restore|restart")
_POSITION = re.compile(r"epoch|step|iter")
_BEGINNING = re.compile(r"epoch|step|iter|start|begin|resume")
_SHARES = re.compile(r"set_model_state_dict|set_state_dict|sync_params|broadcast_\w*(?:state|param|buffer|model)")
_OPTIMIZER = re.compile(r"optim|\bopt\b")
_OF_PARAMETERS = re.compile(r"^(?!.*(?:optim|\bopt\b)).*param")  # sync_params(model.parameters())
_SHARED = re.compile(r"state|param|epoch|step|optim|ckpt|checkpoint|list|obj|load")


def check_saving(code: Code) -> Iterator[Finding]:
    """Yield a warning for a file that every process writes, and for a state that only rank 0 loads."""
    if any(code.calls(ACCELERATOR)) and code.is_parallel:
        yield from _written_by_all(code)
        yield from _loaded_by_one(code)
        return
    if code.has_only_trainer and code.is_parallel and not _is_sharded(code):
        yield from _model_written_by_all(code)
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
        if {"is_main_process", "save_function"} & {one.arg for one in call.keywords}:
            continue  # the library lets one process write
        if _is_first_in_one(code, call, module) or _is_for_one_otherwise(code, call, module):
            continue
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


def _is_for_one_otherwise(code: Code, call: ast.Call, module: Module) -> bool:
    """Return whether the same call is made by one rank in a branch of a condition around: `if distributed: if …`."""
    for above in module.above(call):
        calls = [one for one in walk(above) if isinstance(one, ast.Call)] if isinstance(above, ast.If) else []
        others = (one for one in calls if one is not call and unparsed(one) == unparsed(call))
        if any(is_guarded_by_rank(code, one, module) for one in others):
            return True
    return False


def _is_sharded(code: Code) -> bool:
    """Return whether something may cut the model into parts, of which each process has one."""
    return any(_SHARDS.search(word) for word in (*code.facts.argv, *code.names_in_use))


def _model_written_by_all(code: Code) -> Iterator[Finding]:
    """Yield a warning for a model that all processes save beside a Trainer.

    Source: `PreTrainedModel.save_pretrained` of transformers 4.57: each process that calls it writes, unless it is
    given is_main_process=False.
    """
    for module, call, path in _written(code):
        owner = call.func.value if isinstance(call.func, ast.Attribute) else None
        is_model = owner is not None and call.func.attr == "save_pretrained" and "model" in unparsed(owner)  # type: ignore[attr-defined] # it is an attribute
        is_said = {"is_main_process", "save_function"} & {one.arg for one in call.keywords}
        if not is_model or is_said or not is_for_all(code, call, module) or is_of_one_process(code, path, module):
            continue
        yield Finding(
            "warning",
            "saved-by-all",
            module.where(call),
            "each process writes the same file: it may be damaged",
            "let one process write it: trainer.save_model(…)",
        )
        return


def _is_first_in_one(code: Code, node: ast.AST, module: Module, depth: int = 0) -> bool:
    """Return whether one process comes to a node, and to its end, before the others: `with main_process_first():`."""
    around = (item for above in module.above(node) if isinstance(above, ast.With) for item in above.items)
    if any(_FIRST.search(unparsed(item)) for item in around):
        return True
    function = module.function_of(node)
    callers = list(code.program.calls_to(function, module)) if function is not None and depth < _DEEPEST else []
    return bool(callers) and all(_is_first_in_one(code, call, home, depth + 1) for home, call in callers)


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
    if not makers or "consolidate_state_dict" in code.names_in_use:
        return
    for module, call, _ in code.reached.calls:
        owner = call.func.value if isinstance(call.func, ast.Attribute) and call.func.attr == "state_dict" else None
        if owner is not None and _OPTIMIZER.search(unparsed(owner)):
            yield Finding(
                code.level_of(call, module),
                "not-consolidated",
                module.where(call),
                f"{unparsed(call)} fails: each rank has a part of the state of a ZeroRedundancyOptimizer, and "
                "nothing gathers them",
                f"call {unparsed(owner)}.consolidate_state_dict(to=0) on every rank first",
            )
            return


def _written(code: Code) -> Iterator[tuple[Module, ast.Call, ast.expr]]:
    """Yield what writes a file, with its path: one that is the same for all data, except for checkpoints."""
    for module, call, name in code.reached.calls:
        method = call.func.attr if isinstance(call.func, ast.Attribute) else ""
        path: ast.expr | None = None
        if name in _SAVES:
            path = argument(call, "f", 1)
            if path is None and not is_guarded_by_rank(code, call, module):
                yield from _passed_on(code, call, module)
        elif name == "open":
            mode = code.values.of(argument(call, "mode", 1) or ast.Constant("r"), module)
            writes = set("wx") if _OF_LOGS.search(unparsed(call)) else set("wxa")  # a log may have lines of all
            path = argument(call, "file", 0) if isinstance(mode, str) and set(mode) & writes else None
        elif name in _WRITERS or method in _WRITING_METHODS:
            path = call.args[0] if call.args else None
        elif method in ("write_text", "write_bytes"):
            path = call.func.value  # type: ignore[attr-defined] # it is an attribute
        is_checkpoint = name in _SAVES
        if path is not None and unparsed(path) in _NOWHERE:
            continue
        if path is not None and (is_checkpoint or _is_same_for_all_data(code, path, module)):
            if is_checkpoint or not _depends_on_option(code, call, module):
                yield module, call, path


def _passed_on(code: Code, call: ast.Call, module: Module) -> Iterator[tuple[Module, ast.Call, ast.expr]]:
    """Yield the calls of a function that hands on all of its arguments to a call that saves, with their paths."""
    function = module.function_of(call)
    if function is not None and not is_for_main_process_only(code, function, module):
        for home, outer, path in saving_calls(code, call, module):
            if outer is not call and path is not None:
                yield home, outer, path


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
    for home, call, path in _saved(code):
        tests = [above.test for above in home.above(call) if isinstance(above, ast.If)]
        if not any(_is_first_of_node(code, test, home) for test in tests):
            continue
        for module, place, given in [(home, call, path)] if path is not None else saving_calls(code, call, home):
            value = code.values.of(given, module)
            is_of_node = isinstance(value, str) and (not value.startswith("/") or code.facts.is_on_node(value))
            if given is None or is_of_node or is_of_one_process(code, given, module):
                continue
            yield Finding(
                "warning",
                "saved-by-all",
                module.where(place),
                f"the first process of each of the {code.facts.nodes} nodes writes the same file, if they share the "
                "folder: it may be damaged",
                "save it on rank 0 only: if dist.get_rank() == 0: torch.save(…)",
            )
            return


def _saved(code: Code) -> Iterator[tuple[Module, ast.Call, ast.expr | None]]:
    """Yield what saves checkpoints or results, with its path; without one where its arguments are handed on."""
    for module, call, name in code.reached.calls:
        mode = argument(call, "mode", 1) if name == "open" else None
        path = argument(call, "file", 0) if mode is not None and code.values.of(mode, module) in ("w", "wb") else None
        if name.startswith("timm.") and name.endswith("CheckpointSaver"):
            path = argument(call, "checkpoint_dir")
        if name in _SAVES or (path is not None and _OF_RESULTS.search(unparsed(path))):
            yield module, call, path


def _is_first_of_node(code: Code, test: ast.expr, module: Module) -> bool:
    """Return whether a condition compares the local rank with 0, and nothing else, itself or in what it calls."""
    found = code.program.called(test, module) if isinstance(test, ast.Call) else None
    if found is not None and isinstance(found[1], FUNCTIONS):
        returned = returned_values(found[1])
        return len(returned) == 1 and _is_first_of_node(code, returned[0], found[0])
    if not isinstance(test, ast.Compare) or not isinstance(test.ops[0], ast.Eq) or isinstance(test.left, ast.BinOp):
        return False
    sides = (test.left, test.comparators[0])
    is_zero = any(isinstance(side, ast.Constant) and side.value == 0 for side in sides)
    if is_zero and any(_reads_local_rank(code, part, module) for side in sides for part in walk(side)):
        return True
    words = " ".join(words_of(code, side, module) for side in sides)
    return is_zero and _LOCAL_RANK.search(words) is not None and not _RANK_OF_ALL.search(words)


def _reads_local_rank(code: Code, node: ast.AST, module: Module) -> bool:
    """Return whether a call reads LOCAL_RANK, which a launcher sets, whatever its default is."""
    is_read = isinstance(node, ast.Call) and code.program.name_of(node.func, module) in ("os.environ.get", "os.getenv")
    return is_read and getattr(node.args[0] if node.args else None, "value", "") == contract.LOCAL_RANK  # type: ignore[attr-defined]


def _loaded_by_one(code: Code) -> Iterator[Finding]:
    """Yield a warning where only rank 0 loads what DistributedDataParallel does not share when it gets the model."""
    calls = [call for _, call, _ in code.reached.calls if _shares(call)]
    shares_optimizer = any(not _OF_PARAMETERS.search(unparsed(call)) for call in calls)
    for module, branch in zero_branches(code):
        body = [(module, statement) for statement in branch] + list(_entered(code, branch, module))
        for home, loaded in ((home, node) for home, statement in body for node in _loaded(statement)):
            is_optimizer = _OPTIMIZER.search(unparsed(loaded)) is not None
            is_optimizer |= _is_of_any(loaded, home) and any(map(_gives_optimizer, branch))
            is_inside = _is_inside(code, loaded, home)
            is_inside |= _is_of_any(loaded, home) and any(_gives_wrapper(code, one, module) for one in branch)
            if not code.reached.of(loaded, home) or _is_after_training(code, loaded):
                continue
            if shares_optimizer or (calls and not is_optimizer):
                continue
            if is_optimizer or is_inside or _sets_position([node for _, node in body]):
                yield _only_on_zero(home.where(loaded))
                return
        counted = next(_counted_by_one(code, branch, module), None) if not calls else None
        if counted is not None:
            yield _only_on_zero(module.where(counted))
            return
        resumed = next(_resumed_by_library(code, branch, module), None) if not shares_optimizer else None
        if resumed is not None:
            yield _only_on_zero(module.where(resumed))
            return
    for module, call, _ in () if shares_optimizer else code.reached.calls:
        is_load = getattr(call.func, "attr", "") == "load_state_dict" and bool(call.args)
        owner = call.func.value if is_load and isinstance(call.func, ast.Attribute) else None
        if owner is None or not (_OPTIMIZER.search(unparsed(owner)) or _is_inside(code, owner, module)):
            continue
        if _is_read_by_one(code, call.args[0], module) or _is_found_by_one(code, call, module):
            yield _only_on_zero(module.where(call))
            return


def _counted_by_one(code: Code, body: list[ast.stmt], module: Module) -> Iterator[ast.Assign]:
    """Yield the assignments that set where a loop over epochs or steps begins to what a checkpoint says."""
    for node in (inner for statement in body for inner in walk(statement) if isinstance(inner, ast.Assign)):
        target = node.targets[0]
        if not isinstance(target, ast.Name) or not _BEGINNING.search(target.id):
            continue
        is_read = any(_is_load(part) for _, one in origins(code, node.value, module) for part in walk(one))
        scope = module.scope_of(node)
        loops = [one for one in walk(scope) if isinstance(one, ast.For) and one.lineno > node.lineno and trains(one)]
        begins = any(isinstance(part, ast.Name) and part.id == target.id for one in loops for part in walk(one.iter))
        if is_read and begins and code.reached.of(node, module) and not is_sent(code, target, module):
            yield node


def _resumed_by_library(code: Code, body: list[ast.stmt], module: Module) -> Iterator[ast.Call]:
    """Yield the calls that let a library load an optimizer: timm's `resume_checkpoint(model, path, optimizer)`."""
    for call in (node for statement in body for node in walk(statement) if isinstance(node, ast.Call)):
        name = code.program.name_of(call.func, module)
        is_of_timm = name.startswith("timm.models.") and name.endswith(".resume_checkpoint")
        given = (*call.args, *(keyword.value for keyword in call.keywords)) if is_of_timm else ()
        if any(_OPTIMIZER.search(unparsed(one)) for one in given) and code.reached.of(call, module):
            yield call


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


def _gives_wrapper(code: Code, statement: ast.stmt, module: Module) -> bool:
    calls = (node for node in walk(statement) if isinstance(node, ast.Call))
    given = (one for call in calls for one in (*call.args, *(keyword.value for keyword in call.keywords)))
    return any(is_wrapped(code, one, module) is True for one in given if isinstance(one, (ast.Name, ast.Attribute)))


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
    return isinstance(root, ast.Name) and _is_set_by_one(code, root, module)


def _is_found_by_one(code: Code, load: ast.Call, module: Module) -> bool:
    """Return whether a state is loaded only if a path is set that rank 0 alone looks for: `if resume_path:`."""
    tests = (above.test for above in module.above(load) if isinstance(above, ast.If))
    names = [node for test in tests for node in _asked_whether_set(test)]
    return any(_is_set_by_one(code, name, module) and not is_sent(code, name, module) for name in names)


def _asked_whether_set(test: ast.expr) -> Iterator[ast.Name]:
    """Yield the variables that a condition asks whether they hold anything: `path`, `path is not None`."""
    match test:
        case ast.Name():
            yield test
        case ast.Compare(left=ast.Name() as name, ops=[ast.IsNot() | ast.NotEq()], comparators=[ast.Constant()]):
            yield name
        case ast.BoolOp(op=ast.And(), values=values):
            yield from (name for value in values for name in _asked_whether_set(value))


def _is_set_by_one(code: Code, name: ast.Name, module: Module) -> bool:
    """Return whether only rank 0 sets a variable to anything: itself, or through a function that does so."""
    stores = module.stores.get((module.scope_of(name), name.id), ())
    reached = ((store, assigned_to(store, module)) for store in stores if code.reached.of(store, module))
    others = [(store, value) for store, value in reached if value is None or code.values.of(value, module) is not None]
    return bool(others) and all(
        is_in_branch_of_zero(code, store, module) or _is_made_by_one(code, value, module) for store, value in others
    )


def _is_empty(node: ast.expr) -> bool:
    return unparsed(node) in ("None", "{}", "dict()", "[]", "''")


def _is_made_by_one(code: Code, value: ast.expr | None, module: Module) -> bool:
    """Return whether only rank 0 gets something: by `torch.load(path) if rank == 0 else None`, or from a function.

    The function of the program returns something there only: `load_on_master(path)`.
    """
    if isinstance(value, ast.IfExp):
        return zero_side(value.test, code, module) is True and _is_empty(value.orelse)
    found = code.program.called(value, module) if isinstance(value, ast.Call) else None
    if found is None or not isinstance(found[1], FUNCTIONS):
        return False
    returned = [one for one in returned_values(found[1]) if not (isinstance(one, ast.Constant) and one.value is None)]
    return bool(returned) and all(is_in_branch_of_zero(code, one, found[0]) for one in returned)


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
        if is_read and _POSITION.search(unparsed(node)):
            return True
    return False


def _is_load(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and spelled(node.func) == "torch.load"


def _shares(call: ast.Call) -> bool:
    """Return whether a call may give the other ranks what rank 0 has loaded."""
    name = unparsed(call.func).rpartition(".")[2]
    if _SHARES.search(name):
        return True
    given = " ".join(map(unparsed, (*call.args, *(keyword.value for keyword in call.keywords))))
    return "broadcast" in name and _SHARED.search(given) is not None
