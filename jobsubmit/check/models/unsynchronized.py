"""Processes that join a group and train, each a model of its own."""

from __future__ import annotations

import ast
import itertools
import re
from collections.abc import Iterable, Iterator

from jobsubmit.check.code import INIT, Code, is_ddp, is_sharding, trains
from jobsubmit.check.collectives.all_ranks import is_for_all
from jobsubmit.check.collectives.calls import finder_of
from jobsubmit.check.models.bypassing import OPTIMIZER
from jobsubmit.check.models.gradients import reduced_gradients
from jobsubmit.check.program.calls import given_for
from jobsubmit.check.program.module import Module, class_around, own_method, spelled, unparsed
from jobsubmit.check.program.tree import walk
from jobsubmit.check.program.variables import parameters
from jobsubmit.common.finding import Finding

# What may average gradients or parameters, or share the model in another way, beside collectives of the program's own.
_SHARES = re.compile(
    r"FullySharded|fully_shard|parallelize|^(?:torch\.distributed[\w.]*\.)?replicate$|DTensor|DeviceMesh|device_mesh|Distributed\w*Optim"
    r"|LocalSGD|[Mm]odelAverag|register_(?!forward)\w*hook|\brpc\b|init_rpc|[Pp]ipelin(?:e_|ing)|PipelineStage|GPipe|horovod|\bhvd\b"
    r"|^apex$|SyncFunction|Join\b"
)
# Collectives that the program may share its model by in ways that are not looked at.
_SENDS = re.compile(r"(?:^|\.)(?:i?send|i?recv|all_to_all|reduce_scatter|batch_isend_irecv)|coalesced")
_OF_MODEL = re.compile(
    r"grad|param(?!s\.(?!data\b|grad\b|detach\b)\w)|weights|\.weight\b|flat(?!ten\b)|bucket|buffer|state_dict|\bmodel\b|\bp\b"
)
_OF_VALUE = re.compile(
    r"grad|param(?!s\.(?!data\b|grad\b|detach\b)\w)|weights|\.weight\b|flat(?!ten\b)|bucket|buffer|state_dict"
)
_OF_BYTES = re.compile(r"Byte(?:Tensor|Storage)|uint8|pickle")  # an object that is sent
_WRAPS_OTHERWISE = re.compile(
    r"parallel|ddp|fsdp|wrap|reduce|gather|broadcast|sync|prepare|horovod|hvd|distribut|with_|strategy|engine",
    re.IGNORECASE,
)
_OF_GPUS = re.compile(r"\bcuda\b|\buse_cuda\b|device\.type != ['\"]cpu|device\.type == ['\"]cuda")
_DEEPEST = 4
_COLLECTIVES = ("all_reduce", "reduce", "all_gather", "all_gather_into_tensor", "broadcast", "gather")


def check_unsynchronized(code: Code) -> Iterator[Finding]:
    """Yield a warning where every process trains and nothing that is read could average the gradients."""
    if code.has_framework or not code.is_parallel:
        return
    yield from itertools.islice(_wrapped_with_gpus_only(code), 1)
    yield from _averaged_too_late(code)
    if (code.looks_up_names and not code.followed_whole) or code.program.unread:
        return
    yield from _not_averaged_everywhere(code)
    if _may_wrap(code) or not any(True for _ in code.calls(INIT)):
        return
    unused = _averaging_that_is_not_called(code)
    if not unused and _may_share(code):
        return
    text = "nothing averages the gradients: each process trains a model of its own"
    hint = "wrap the model in DistributedDataParallel"
    if unused:
        text = f"no code calls {unused}, which averages the gradients: each process trains a model of its own"
        hint = "call it between backward() and step()"
    for module, call, _ in code.reached.calls:
        is_backward = isinstance(call.func, ast.Attribute) and call.func.attr == "backward" and not call.args
        is_step = (is_backward and _steps(code, call, module)) or _scales_and_steps(call)
        if is_step and _comes_from_all(code, call, module) and not _is_averaged_next(code, call, module):
            yield Finding("warning", "never-synchronized", module.where(call), text, hint)
            return


def _is_averaged_next(code: Code, backward: ast.Call, module: Module) -> bool:
    """Return whether a function gets gradients or parameters after `backward()`, and leads to a collective."""
    statement = module.parents.get(backward)
    if not isinstance(statement, ast.Expr):
        return False
    block, place = _block_around(statement, module)
    calls = (node for one in block[place + 1 :] for node in walk(one) if isinstance(node, ast.Call))
    finder = finder_of(code)
    return any(_OF_VALUE.search(unparsed(one)) and finder.may_combine(one, module) for one in calls)


def _scales_and_steps(call: ast.Call) -> bool:
    """Return whether a scaler computes gradients and steps, as that of timm does: `loss_scaler(loss, optimizer)`."""
    given = [spelled(one).lower() for one in call.args[:2]]
    return "scaler" in spelled(call.func) and len(given) > 1 and "loss" in given[0] and "optim" in given[1]


def _comes_from_all(code: Code, call: ast.Call, module: Module) -> bool:
    """Return whether all processes compute gradients by a call, or all that were followed to their ends do."""
    followed = code.followed_whole
    return is_for_all(code, call, module) or (bool(followed) and all(call in one.values for one in followed))


def _wrapped_with_gpus_only(code: Code) -> Iterator[Finding]:
    """Yield a warning where models are wrapped only if there are GPUs, in a job without them that trains all the same.

    `if cuda and RANK != -1: model = DDP(model)`
    """
    wraps = [(module, call) for module, call, name in code.program.calls if is_ddp(name)]
    is_joined = any(True for _ in code.calls(INIT)) and any(_is_backward(call) for _, call, _ in code.reached.calls)
    shares = _averages_gradients(code) or not code.names_in_use.isdisjoint(("register_hook", "replicate", "Join"))
    if code.facts.gpus != 0 or not wraps or not is_joined or shares:
        return
    tests = [_test_for_gpus(code, call, module) for module, call in wraps if not code.reached.is_sure(call, module)]
    if len(tests) < len(wraps) or None in tests:
        return
    for home, test in (one for one in tests if one is not None):
        yield Finding(
            "warning",
            "never-synchronized",
            home.where(test),
            f"the model is wrapped only with GPUs (`{unparsed(test)}`), and these nodes have none: each process "
            "would train a model of its own",
            "wrap it in DistributedDataParallel on CPUs, too, without device_ids",
        )


def _test_for_gpus(code: Code, node: ast.AST, module: Module, depth: int = 0) -> tuple[Module, ast.expr] | None:
    """Return the condition on GPUs that a node depends on, in its function or where that is called."""
    choices = (above for above in module.above(node) if isinstance(above, (ast.If, ast.IfExp)))
    own = next((one for one in choices if _OF_GPUS.search(unparsed(one.test))), None)
    if own is not None:
        otherwise = own.orelse if isinstance(own, ast.If) else [own.orelse]
        calls = (one for part in otherwise for one in walk(part) if isinstance(one, ast.Call))
        is_alone = not any(_WRAPS_OTHERWISE.search(unparsed(one.func)) for one in calls)
        return (module, own.test) if is_alone and code.values.truth(own.test, module) is not True else None
    function = module.function_of(node)
    callers = code.program.calls_to(function, module) if function is not None and depth < _DEEPEST else ()
    found = [_test_for_gpus(code, call, home, depth + 1) for home, call in callers]
    return found[0] if found and all(found) else None


def _is_backward(call: ast.Call) -> bool:
    return isinstance(call.func, ast.Attribute) and call.func.attr == "backward"


def _may_share(code: Code) -> bool:
    """Return whether the program may average gradients or parameters, or share the model in another way."""
    calls = code.program.calls if code.looks_up_names else code.reached.calls
    names: Iterable[str] = (name for name in code.names_in_use if " " not in name)
    if (executed := code.executed) is not None:
        calls = [one for one in code.program.calls if one[1] in executed]
        named = code.program.of(ast.Name, ast.Attribute)
        names = {code.program.name_of(node, module) or unparsed(node) for module, node in named if node in executed}
    sends = (name for _, _, name in calls if name.startswith("torch.distributed."))
    shares = any(_is_of_model(code, call, name, module) for module, call, name in calls)
    return shares or any(map(_SHARES.search, names)) or any(map(_SENDS.search, sends))


def _averages_gradients(code: Code) -> bool:
    """Return whether the program combines gradients or parameters of several processes, not only sends those of one."""
    return any(not name.endswith(".broadcast") for name in _collectives_of_model(code))


def averages_itself(code: Code) -> bool:
    """Return whether the program averages gradients or parameters by collectives of its own."""
    return any(True for _ in _collectives_of_model(code))


def _collectives_of_model(code: Code) -> Iterator[str]:
    return (name for module, call, name in code.reached.calls if _is_of_model(code, call, name, module))


def _averaging_that_is_not_called(code: Code) -> str:
    """Return the name of a function that averages gradients, if nothing names it and no other code averages them."""
    if any(map(_SHARES.search, code.names_in_use)):
        return ""
    collectives = [
        (module, call)
        for module, call, name in code.program.calls
        if name.startswith("torch.distributed.") and name.rpartition(".")[2] in _COLLECTIVES
        if any("grad" in unparsed(given) for given in call.args)
    ]
    functions = {module.function_of(call) for module, call in collectives}
    names = {"" if one is None else one.name for one in functions}
    return min(names) if names and not names & {"", *code.names_in_use} else ""


def _not_averaged_everywhere(code: Code) -> Iterator[Finding]:
    """Yield a warning for a step that applies gradients as they are, where the program averages those of another step.

    Both are steps of the same optimizer, in the same function, and nothing wraps the model.
    """
    if _may_wrap(code) or any(is_sharding(name) for _, _, name in code.reached.calls):
        return
    finder = finder_of(code)
    steps: dict[tuple[ast.AST, str], list[tuple[Module, ast.stmt, bool]]] = {}
    for module, call, _ in code.reached.calls:
        statement = module.parents.get(call)
        if not isinstance(statement, ast.Expr) or getattr(call.func, "attr", "") != "step":
            continue
        between = _since_backward(statement, module)
        if between is None or not isinstance(call.func, ast.Attribute):
            continue
        calls = (node for one in between for node in walk(one) if isinstance(node, ast.Call))
        is_averaged = any(finder.may_combine(one, module) for one in calls)
        key = module.scope_of(call), spelled(call.func.value)
        steps.setdefault(key, []).append((module, statement, is_averaged))
    for group in steps.values():
        bare = [(module, statement) for module, statement, is_averaged in group if not is_averaged]
        if bare and len(bare) < len(group):
            yield Finding(
                "warning",
                "never-synchronized",
                bare[0][0].where(bare[0][1]),
                "nothing averages the gradients of this step, as the code does for another step of the same optimizer: "
                "the models of the processes drift apart",
                "average them here, too",
            )
            return


def _averaged_too_late(code: Code) -> Iterator[Finding]:
    """Yield a warning for a step that applies gradients which the same block averages only after that."""
    if _may_wrap(code) or any(is_sharding(name) for _, _, name in code.reached.calls):
        return
    averages = reduced_gradients(code)
    for module, call, _ in code.reached.calls:
        statement = module.parents.get(call)
        if not isinstance(statement, ast.Expr) or getattr(call.func, "attr", "") != "step" or call.args:
            continue
        own = [one for home, one in averages if home is module and module.scope_of(one) is module.scope_of(call)]
        if not own or "sched" in unparsed(call.func):
            continue
        block, place = _block_around(statement, module)
        after = [node for one in block[place + 1 :] for node in walk(one)]
        before = [node for one in block[:place] for node in walk(one)]
        is_late = any(one in after for one in own) and not any(one in before for one in own)
        if is_late and not any(isinstance(one, ast.Call) and _is_backward(one) for one in after):
            yield Finding(
                "warning",
                "never-synchronized",
                module.where(call),
                "this step applies the gradients before they are averaged over the processes: each process trains a "
                "model of its own",
                "average them between backward() and step()",
            )
            return


def _block_around(statement: ast.stmt, module: Module) -> tuple[list[ast.stmt], int]:
    """Return the block that a statement is in, and its place in it."""
    fields = ast.iter_fields(module.parents[statement])
    block = next((one for _, one in fields if isinstance(one, list) and statement in one), [statement])
    return block, block.index(statement)


def _since_backward(step: ast.Expr, module: Module) -> list[ast.stmt] | None:
    """Return the statements between the last `backward()` of a block and a step in it; None if there is none."""
    block, place = _block_around(step, module)
    before = block[:place]
    places = [place for place, one in enumerate(before) if isinstance(one, ast.Expr) and trains(one)]
    return before[places[-1] + 1 :] if places else None


def _may_wrap(code: Code) -> bool:
    """Return whether the job may wrap a model: it calls DistributedDataParallel, hands it on or bases a class on it."""
    named = (
        (node, module)
        for module, node in code.program.of(ast.Name, ast.Attribute)
        if is_ddp(code.program.name_of(node, module))
    )
    return any(not _only_asks_for(node, module) for node, module in named if not _is_left_out(code, node, module))


def _is_left_out(code: Code, node: ast.AST, module: Module) -> bool:
    """Return whether the job does not come to a wrapper, but comes past it, or trains without it to the end."""
    call = module.parents.get(node)
    is_never_made = isinstance(call, ast.Call) and call.func is node and code.is_never_made(call)
    trains = all(any(event.last == "backward" for event in one.events.values()) for one in code.followed)
    return code.passes_by(node, module) or (is_never_made and trains and not code.reached.of(node, module))


def _only_asks_for(node: ast.AST, module: Module) -> bool:
    """Return whether a class is only compared with that of an object, or says what type something is."""
    around = list(module.above(node))
    calls = [spelled(one.func) for one in around if isinstance(one, ast.Call)]
    asks = "isinstance" in calls or "issubclass" in calls or any(isinstance(one, ast.Compare) for one in around)
    pairs = itertools.pairwise([node, *around[:3]])
    return asks or any(isinstance(one, (ast.arg, ast.AnnAssign)) and inner is one.annotation for inner, one in pairs)


def _is_of_model(code: Code, call: ast.Call, name: str, module: Module) -> bool:
    """Return whether a call is a collective that may be about gradients or parameters, more than at the start."""
    is_collective = name.startswith("torch.distributed.") and name.rpartition(".")[2] in _COLLECTIVES
    is_sum = name.rpartition(".")[2] in ("all_reduce", "reduce")
    if is_collective and _is_in_gathering_layer(call, module):
        return False
    is_of_model = is_collective and any(_may_be_of_model(code, given, module, is_sum=is_sum) for given in call.args)
    return is_of_model and not (name.endswith(".broadcast") and _is_before_training(code, call, module))


def _is_in_gathering_layer(call: ast.Call, module: Module) -> bool:
    """Return whether a collective sums the gradients of what an autograd function gathered: not those of parameters."""
    function, owner = module.function_of(call), class_around(call, module)
    if function is None or owner is None or function.name != "backward":
        return False
    forward = own_method(owner, "forward")
    calls = (node for node in walk(forward) if isinstance(node, ast.Call)) if forward is not None else ()
    return any(spelled(one.func).rpartition(".")[2] in ("all_gather", "all_gather_into_tensor") for one in calls)


def _may_be_of_model(code: Code, given: ast.expr, module: Module, depth: int = 0, *, is_sum: bool) -> bool:
    """Return whether a tensor may be a gradient or a parameter, by its name or by what it is made of.

    One of which nothing is known may be, if a collective adds it up.
    """
    if _OF_MODEL.search(unparsed(given)):
        return True
    if not isinstance(given, ast.Name) or depth >= _DEEPEST:
        return False
    function, name = module.function_of(given), given.id
    if function is not None and name in parameters(function):
        callers = [(home, given_for(call, function, name)) for home, call in code.program.calls_to(function, module)]
        is_known = callers and all(one is not None for _, one in callers)
        found = (_may_be_of_model(code, one, home, depth + 1, is_sum=is_sum) for home, one in callers if one)
        return any(found) if is_known else is_sum
    made = [_made_by(store, module) for store in module.own_stores.get((module.scope_of(given), name), ())]
    if any(_OF_BYTES.search(unparsed(one)) for one in made) and not (function and "grad" in unparsed(function)):
        return False
    return any(
        _OF_VALUE.search(unparsed(one))
        or (isinstance(one, ast.Name) and _may_be_of_model(code, one, module, depth + 1, is_sum=is_sum))
        for one in made
    )


def _made_by(store: ast.AST, module: Module) -> ast.AST:
    """Return the expression that a variable is set from, or that a loop goes through."""
    statement = next((above for above in module.above(store) if isinstance(above, ast.stmt)), store)
    return statement.iter if isinstance(statement, ast.For) else getattr(statement, "value", None) or statement


def _is_before_training(code: Code, node: ast.AST, module: Module, depth: int = 0) -> bool:
    """Return whether no loop around a node, or around the calls of its function, computes gradients."""
    if any(isinstance(above, (ast.For, ast.While)) and trains(above) for above in module.above(node)):
        return False
    function = module.function_of(node)
    calls = code.program.calls_to(function, module) if function is not None else ()
    return depth < _DEEPEST and all(_is_before_training(code, call, home, depth + 1) for home, call in calls)


def _steps(code: Code, call: ast.Call, module: Module, depth: int = 0) -> bool:
    """Return whether an optimizer takes a step in the function that computes gradients, or in one that calls it."""
    function = module.function_of(call)
    calls = (node.func for node in walk(function or module.tree) if isinstance(node, ast.Call))
    owners = [one.value for one in calls if isinstance(one, ast.Attribute) and one.attr == "step"]
    if any(depth == 0 or OPTIMIZER.search(unparsed(one).lower()) for one in owners):
        return True
    callers = code.program.calls_to(function, module) if function is not None and depth < _DEEPEST else ()
    return any(_steps(code, one, home, depth + 1) for home, one in callers)
