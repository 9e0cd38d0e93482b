"""Gradients that are averaged twice or not at all, and ranks that begin with other parameters."""

from __future__ import annotations

import ast
import itertools
import re
from collections.abc import Iterator, Sequence

from jobsubmit.check.code import Code, is_ddp
from jobsubmit.check.origins import is_seed_of_rank, set_to, words_of
from jobsubmit.check.program.calls import argument
from jobsubmit.check.program.module import FUNCTIONS, Module, class_around, spelled, unparsed
from jobsubmit.check.program.objects import is_torch_module, made
from jobsubmit.check.program.tree import walk
from jobsubmit.common.finding import Finding

_DEEPEST = 3
_SIZES = r"world|\bsize\b|num_(?:proc|gpu|rank|worker|replica)|n_?gpus|nprocs"
_IS_SIZE = re.compile(_SIZES)
_CHOICE = re.compile(r"ddp|dist|parallel|manual|averag|sync|accum|mode|backend|strategy|reduce|wrap|local|step|iter")
_NO_GRADIENT = re.compile(r"grad\w*_?accum\w*|accum\w*_?grad\w*|(?:max_)?grad_?(?:norm|clip)\w*|clip_grad\w*")
_GRADIENT = re.compile(r"(?:^|_)grad(?:s|ients?)?(?:$|_(?!scale|clip|norm|acc|steps?$|check|fn|func|enabled|max))")
_SEEDS = ("manual_seed", "manual_seed_all", "seed_everything", "set_seed", "seed_all", "fix_seed", "setup_seed")
_WORLD = re.compile(r"get_world_size\(\)|WORLD_SIZE|\bworld_size\b")
_KEEPS_NUMBER = ("int", "float", "max", "get", "getenv", "tensor", "as_tensor")
_ALL_REDUCE = "torch.distributed.all_reduce"
_STARTS_ALIKE = frozenset(["zeros_", "ones_", "fill_", "constant_", "set_rng_state", "Generator", "copy_"])
_SENDS = ("torch.distributed.send", "torch.distributed.isend")
_OF_PARAMETERS = re.compile(r"param|weight|state|model|net|flat|tensor|module|buffer|\bp\b|data|coalesced")
_NORMS = ("norm", "pow", "square", "dot", "isfinite", "isnan", "isinf", "item", "max", "abs")
_DIVIDES = ("div", "div_", "mul_", "mul", "true_divide", "true_divide_", "_foreach_div_", "_foreach_mul_")
# Parameters that DistributedDataParallel does not average.
_LEFT_TO_OTHERS = frozenset(["_set_params_and_buffers_to_ignore_for_model", "_ddp_params_and_buffers_to_ignore"])
_ASKED = ("size", "shape", "device", "dtype")  # of a tensor, where its values do not matter


def check_gradients(code: Code) -> Iterator[Finding]:
    """Yield gradients that are averaged twice, divided again, or never divided, and ranks that begin unequal."""
    reduced = reduced_gradients(code)
    wrapped = [(m, call) for m, call, name in code.reached.calls if is_ddp(name)]
    if not reduced:
        if any(code.reached.is_sure(call, module) for module, call in wrapped):
            yield from _divided_again(code, wrapped, "DistributedDataParallel")
        if not wrapped and not code.has_framework and not _STARTS_ALIKE & code.names_in_use:
            loads = any(True for _ in code.calls("torch.load"))
            sent = (
                one for one in code.calls(*_SENDS) if not loads and _is_gradient(argument(one[1], "tensor", 0), one[0])
            )
            yield from itertools.islice((found for one in sent for found in _unequal_start(code, one[1], one[0])), 1)
        return
    module, call = reduced[0]
    is_left_to_us = bool({"no_sync", "require_backward_grad_sync"} & code.names_in_use)
    is_chosen = any(_CHOICE.search(test) for test in _conditions(code, call, module))
    is_every_time = any(code.reached.is_sure(c, m) for m, c in wrapped) and not is_chosen
    is_for_others = _is_of_another_model(code, call, module, wrapped) or _is_past_wrapper(code, call, module)
    if is_every_time and not is_left_to_us and not is_for_others:
        yield Finding(
            "warning",
            "double-averaging",
            module.where(call),
            "DistributedDataParallel already averages the gradients: this all_reduce sends each of them a second time",
            "remove one of the two",
        )
    is_of_groups = argument(call, "group") is not None  # then ranks of other groups may begin with other parameters
    if not wrapped and not code.has_framework and not is_of_groups:
        yield from _unequal_start(code, call, module)
    op = argument(call, "op", 1)
    is_sum = op is None or unparsed(op).endswith("SUM")
    is_divided = not is_sum or _divides_gradients(code, call, module)
    is_average = is_divided or _divides_losses(code)
    if is_divided and not wrapped and not code.has_framework and len(reduced) == 1:
        yield from _divided_again(code, wrapped, f"the all_reduce() at {module.where(call)}")
    if not is_average and not adds_samples(code):
        yield Finding(
            "warning",
            "sum-not-divided",
            module.where(call),
            "the gradients are summed over all processes and never divided: they are world_size times too large",
            "divide by dist.get_world_size(), or use op=dist.ReduceOp.AVG (NCCL)",
        )


def adds_samples(code: Code) -> bool:
    """Return whether a loss is the sum over its samples, so that the sum over the processes is one as well."""
    given = (one for _, call, _ in code.reached.calls for one in call.keywords if one.arg == "reduction")
    return any(isinstance(one.value, ast.Constant) and one.value.value == "sum" for one in given)


def reduced_gradients(code: Code) -> list[tuple[Module, ast.Call]]:
    """Return the calls by which the program itself sums gradients over the processes."""
    return [
        (module, call)
        for module, call in code.calls(_ALL_REDUCE)
        if _is_gradient(argument(call, "tensor", 0), module) and not _is_of_function(call, module)
    ]


def _divided_again(code: Code, wrapped: Sequence[tuple[Module, ast.Call]], averaged_by: str) -> Iterator[Finding]:
    """Yield a warning where averaged gradients, or the loss, are divided by the number of processes as well."""
    if not _LEFT_TO_OTHERS.isdisjoint(code.names_in_use):
        return
    for module, node in code.program.of(ast.Call, ast.AugAssign, ast.BinOp):
        divided, by = division(node)
        if divided is None or by is None or not code.reached.of(node, module):
            continue
        is_gradient = bool(wrapped) and isinstance(divided, ast.Attribute) and divided.attr == "grad"
        if is_gradient and _is_of_another_part(code, node, module, wrapped):
            continue  # its parameters are divided among the processes
        if (is_gradient or _is_backward(code, node, module)) and is_world_size(code, by, module):
            yield Finding(
                "warning",
                "divided-again",
                module.where(node),
                f"{averaged_by} already divides the gradients by the number of processes: "
                f"{unparsed(node)} makes them too small",
                "remove the division",
            )
            return


def _is_of_another_part(code: Code, node: ast.AST, module: Module, wrapped: Sequence[tuple[Module, ast.Call]]) -> bool:
    """Return whether a node is in the class of a layer that no wrapped model is."""
    owner = class_around(node, module)
    if owner is None or not is_torch_module(code.program, owner, module):
        return False
    models = ((argument(call, "module", 0), home) for home, call in wrapped)
    all_made = (made(code.program, model, home) for model, home in models if model is not None)
    return not any(one is not None and one.owner is owner for one in all_made)


def is_world_size(code: Code, node: ast.AST, module: Module, depth: int = 0) -> bool:
    """Return whether an expression is the number of all processes, and is not computed from it."""
    if depth > _DEEPEST:
        return False
    if _WORLD.search(unparsed(node)):
        return not any(isinstance(inner, ast.BinOp) or _is_given_world(inner) for inner in walk(node))
    if isinstance(node, ast.Call) and unparsed(node.func) in ("int", "float") and node.args:
        return is_world_size(code, node.args[0], module, depth + 1)
    values = [(home, one) for home, one in set_to(code, node, module) if not _is_number(one)]
    if bool(values) and all(one is not None and is_world_size(code, one, home, depth + 1) for home, one in values):
        return True
    is_as_many = isinstance(node, ast.Name) and code.values.of(node, module) == code.world_size
    words = words_of(code, node, module) if is_as_many else ""
    return "get_world_size" in words and "//" not in words


def _is_number(node: ast.expr | None) -> bool:
    return isinstance(node.operand if isinstance(node, ast.UnaryOp) else node, ast.Constant)


def _is_given_world(node: ast.AST) -> bool:
    """Return whether a call may compute something from the number of processes: `settings.steps(world_size)`."""
    name = spelled(node.func).rpartition(".")[2] if isinstance(node, ast.Call) else ""
    is_plain = name in _KEEPS_NUMBER or "env" in name
    return isinstance(node, ast.Call) and not is_plain and any(_WORLD.search(unparsed(one)) for one in node.args)


def division(node: ast.AST) -> tuple[ast.expr | None, ast.expr | None]:
    """Return what is divided by what: `a / b`, `a /= b`, `a.div_(b)`."""
    match node:
        case ast.BinOp(op=ast.Div()):
            return node.left, node.right
        case ast.AugAssign(op=ast.Div()):
            return node.target, node.value
        case ast.Call(func=ast.Attribute(attr="div_" | "div", value=divided), args=[by]):
            return divided, by
    return None, None


def _is_backward(code: Code, node: ast.AST, module: Module) -> bool:
    """Return whether backward() is called on a node, or on the variable that it is assigned to in this function.

    Also if that is given to a function or an object of the program that calls backward() on it.
    """
    parent = module.parents.get(node)
    if isinstance(parent, ast.Attribute):
        return parent.attr == "backward"
    if isinstance(node, ast.AugAssign):
        parent = node
    target: ast.expr | None = parent.target if isinstance(parent, ast.AugAssign) else None
    if isinstance(parent, ast.Assign) and len(parent.targets) == 1:
        target = parent.targets[0]
    if not isinstance(target, ast.Name):
        return False
    nodes = list(walk(module.scope_of(node)))
    calls = (one for one in nodes if isinstance(one, ast.Call) and one.args and unparsed(one.args[0]) == target.id)
    return any(
        isinstance(one, ast.Attribute)
        and one.attr == "backward"
        and unparsed(one.value) == target.id
        and _may_follow(one, node, target, module)
        for one in nodes
    ) or any(_calls_backward(code, call, module) for call in calls)


def _may_follow(later: ast.expr, node: ast.AST, target: ast.Name, module: Module) -> bool:
    """Return whether what a variable holds after a node may still be there at a later one of its function.

    That is below it, or in the same loop, where the next pass does not set the variable again.
    """
    if later.lineno >= getattr(node, "lineno", 0):
        return True
    stores = module.stores.get((module.scope_of(target), target.id), ())
    set_again = [one.lineno for one in stores if not isinstance(module.parents.get(one), ast.AugAssign)]
    loops = (above for above in module.above(node) if isinstance(above, (ast.For, ast.While)))
    shared = (loop for loop in loops if loop in module.above(later))
    return any(not any(loop.lineno <= line <= later.lineno for line in set_again) for loop in shared)


def _calls_backward(code: Code, call: ast.Call, module: Module) -> bool:
    """Return whether a function, or the `__call__` of an object, calls backward() on its first argument."""
    found = code.program.definition(code.program.name_of(call.func, module))
    function: ast.stmt | None = found[1] if found is not None else None
    if function is None and (owner := made(code.program, call.func, module)) is not None:
        function = next((one for one in owner.owner.body if getattr(one, "name", "") == "__call__"), None)
    if not isinstance(function, FUNCTIONS):
        return False
    own = [one.arg for one in function.args.args if one.arg != "self"]
    return any(
        isinstance(one, ast.Attribute) and one.attr == "backward" and own[0] in _names_in(one.value)
        for one in walk(function)
        if own
    )


def _is_of_function(node: ast.AST, module: Module) -> bool:
    """Return whether a node is in a torch.autograd.Function: the gradients there are those of activations."""
    owners = (above for above in module.above(node) if isinstance(above, ast.ClassDef))
    return any(unparsed(base).endswith("Function") for owner in owners for base in owner.bases)


def _sends_parameters(code: Code) -> bool:
    """Return whether a broadcast may make the parameters of all ranks equal."""
    calls = (call for _, call, _ in code.reached.calls if "broadcast" in spelled(call.func))
    return any(_OF_PARAMETERS.search(unparsed(call)) for call in calls)


def _unequal_start(code: Code, call: ast.Call, module: Module) -> Iterator[Finding]:
    """Yield a warning where only gradients are averaged, and each rank begins with parameters of its own."""
    seeds = [(home, one) for home, one, name in code.reached.calls if name.rpartition(".")[2] in _SEEDS and one.args]
    is_same = not all(is_seed_of_rank(code, one.args[0], home) for home, one in seeds)
    if not is_same and not _sends_parameters(code) and not _loads(code):
        yield Finding(
            "warning",
            "unequal-start",
            module.where(call),
            "the gradients are averaged, but nothing makes the parameters of all ranks equal at the start",
            "broadcast the parameters from rank 0, or seed every rank alike before the model is made",
        )


def _loads(code: Code) -> bool:
    """Return whether a state may be loaded: not that of another model of the same process."""
    calls = [call for _, call, _ in code.reached.calls if unparsed(call.func).endswith("load_state_dict")]
    return any("state_dict()" not in unparsed(one) for call in calls for one in call.args)


def _conditions(code: Code, node: ast.AST, module: Module, depth: int = 0) -> Iterator[str]:
    """Yield the conditions under which a node is executed, also those around the calls of its function."""
    for above in module.above(node):
        if isinstance(above, (ast.If, ast.IfExp, ast.While)):
            if code.values.truth(above.test, module) is None:
                yield unparsed(above.test)
        if isinstance(above, (ast.FunctionDef, ast.AsyncFunctionDef)):
            if depth < _DEEPEST:
                for home, call, _ in code.reached.calls:
                    if unparsed(call.func).rpartition(".")[2] == above.name:
                        yield from _conditions(code, call, home, depth + 1)
            return


def _is_of_another_model(
    code: Code, call: ast.Call, module: Module, wrapped: Sequence[tuple[Module, ast.Call]]
) -> bool:
    """Return whether the gradients are those of a variable which is neither a wrapped model nor the model inside."""
    function = module.function_of(call)
    if function is None:
        return False
    models = {call.args[0].id for _, call in wrapped if call.args and isinstance(call.args[0], ast.Name)}
    for _, node in code.program.of(ast.Assign):
        if any(node.value is one for _, one in wrapped):
            models |= {target.id for target in node.targets if isinstance(target, ast.Name)}
    users = [use for _, use, name in code.reached.calls if name.rpartition(".")[2] == function.name]
    given = {arg.id for use in users for arg in use.args if isinstance(arg, ast.Name)}
    return bool(given) and not given & models and all(_is_model_of(code, name) for name in given)


def _is_past_wrapper(code: Code, call: ast.Call, module: Module) -> bool:
    """Return whether the function that reduces gradients, or one that calls it, trains the model inside the wrapper.

    It sets a variable to `model.module`, and calls that or gives it to a function in a loop.
    """
    function = module.function_of(call)
    callers = code.program.calls_to(function, module) if function is not None else ()
    for home, node in ((module, call), *callers):
        scope = home.scope_of(node)
        set_to: dict[str, list[ast.expr]] = {}
        for one in (one for one in walk(scope) if isinstance(one, ast.Assign)):
            if isinstance(one.targets[0], ast.Name):
                set_to.setdefault(one.targets[0].id, []).append(one.value)
        inner = {name for name, values in set_to.items() if all(map(_names_inner, values))}
        loops = (one for one in walk(scope) if isinstance(one, (ast.For, ast.While)))
        calls = [one for loop in loops for one in walk(loop) if isinstance(one, ast.Call)]
        wrappers = {spelled(part.value) for name in inner for value in set_to[name] for part in _inner_parts(value)}
        if not any(spelled(one.func) in wrappers for one in calls) and any(
            getattr(part, "id", "") in inner for one in calls for part in (one.func, *one.args)
        ):
            return True
    return False


def _names_inner(value: ast.expr) -> bool:
    return any(True for _ in _inner_parts(value))


def _inner_parts(value: ast.expr) -> Iterator[ast.Attribute]:
    return (part for part in walk(value) if isinstance(part, ast.Attribute) and part.attr == "module")


def averages_all(code: Code) -> bool:
    """Return whether the program sums the gradients of all parameters over the processes, in a loop over these."""
    loops = (
        above for module, call in reduced_gradients(code) for above in module.above(call) if isinstance(above, ast.For)
    )
    return any("parameters" in unparsed(loop.iter) for loop in loops)


def _is_model_of(code: Code, name: str) -> bool:
    """Return whether a variable is set in the program, and to no other variable."""
    values = [
        node.value
        for _, node in code.program.of(ast.Assign)
        for target in node.targets
        for item in (target.elts if isinstance(target, ast.Tuple) else [target])
        if isinstance(item, ast.Name) and item.id == name
    ]
    return bool(values) and not any(isinstance(value, (ast.Name, ast.Attribute)) for value in values)


def _is_gradient(node: ast.AST | None, module: Module, depth: int = 0) -> bool:
    """Return whether a tensor is a gradient, or is put together from gradients in the same function."""
    inner = node
    while isinstance(inner, ast.Attribute):
        if inner.attr == "grad":
            return True
        inner = inner.value
    if not isinstance(node, ast.Name) or depth > _DEEPEST:
        return False
    if _GRADIENT.search(node.id):
        return True
    for store in module.stores.get((module.scope_of(node), node.id), ()):
        statement = module.parents[store]
        if isinstance(statement, ast.Assign):
            parts = list(walk(statement.value))
            if any(isinstance(part, ast.Attribute) and part.attr in _NORMS for part in parts):
                continue
            if any(isinstance(part, ast.Attribute) and part.attr == "grad" for part in parts):
                return True
            asked = {part.value for part in parts if isinstance(part, ast.Attribute) and part.attr in _ASKED}
            others = [p for p in parts if isinstance(p, ast.Name) and p.id != node.id and p not in asked]
            if any(_is_gradient(part, module, depth + 1) for part in others):
                return True
    return False


def _divides_gradients(code: Code, call: ast.Call, module: Module) -> bool:
    """Return whether gradients may be divided: beside the call, or anywhere by their name."""
    scope = module.function_of(call) or module.tree
    tensor = argument(call, "tensor", 0)
    names = _names_in(tensor) if tensor is not None else set()
    for node in walk(scope):
        text = _NO_GRADIENT.sub("", unparsed(node)) if _is_division(node) else ""
        if text and ("grad" in text.lower() or _IS_SIZE.search(_divisor(node).lower()) or names & _names_in(node)):
            return True
    return any("grad" in text for _, _, text in _divisions(code))


def _divisions(code: Code) -> Iterator[tuple[Module, ast.AST, str]]:
    """Yield the divisions of a program, with their words."""
    for module, node in code.program.of(ast.AugAssign, ast.BinOp, ast.Call):
        if _is_division(node):
            yield module, node, _NO_GRADIENT.sub("", unparsed(node))


def _divides_losses(code: Code) -> bool:
    """Return whether losses or step sizes are divided by the number of processes anywhere."""
    for home, node, text in _divisions(code):
        is_by_size = _IS_SIZE.search(text) is not None
        is_of_training = is_by_size and not re.search(r"log(?!p)|item\(|meter|print", text)
        is_returned = is_of_training and any(isinstance(above, ast.Return) for above in home.above(node))
        around = home.function_of(node) if is_returned else None
        is_of_loss = around is not None and "loss" in around.name and "all_reduce" not in unparsed(around)
        if is_of_training and (is_of_loss or re.search(r"loss|lr|learning_rate", text)):
            return True
    return False


def _divisor(node: ast.AST) -> str:
    """Return what a division divides by, as text: the whole of a call, which may do so in many ways."""
    return unparsed(node.right if isinstance(node, ast.BinOp) else node)


def _names_in(node: ast.AST) -> set[str]:
    return {inner.id for inner in walk(node) if isinstance(inner, ast.Name)}


def _is_division(node: ast.AST) -> bool:
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
        return "grad" in unparsed(node)
    if isinstance(node, (ast.AugAssign, ast.BinOp)):
        return isinstance(node.op, (ast.Div, ast.Mult))
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _DIVIDES
