"""Models wrapped for several processes: on which device, in which order, and whether it is the wrapper that trains."""

from __future__ import annotations

import ast
import itertools
from collections.abc import Iterator

from jobsubmit.check.code import Code, is_ddp, trains
from jobsubmit.check.models.bypassing import called_by_name, inner_called
from jobsubmit.check.models.left_unwrapped import left_unwrapped
from jobsubmit.check.models.thawing import (
    thawed_by_argument,
    thawed_by_helper,
    thawed_in_loop,
    thawed_inside,
    thawed_later,
)
from jobsubmit.check.models.unused_wrapper import held_before, kept_aside, never_called
from jobsubmit.check.origins import last_value, seen_through
from jobsubmit.check.program.calls import argument, hides_arguments
from jobsubmit.check.program.module import Module, spelled, unparsed
from jobsubmit.check.program.objects import SAME_MODEL
from jobsubmit.check.program.tree import walk
from jobsubmit.check.program.variables import is_load
from jobsubmit.check.wrapper import Wrapped
from jobsubmit.common.finding import Finding

_DATA_PARALLEL = "torch.nn.DataParallel"
_ON_CPU = ("torch.nn.", "torchvision.models.")
_TO_DEVICE = ("to", "cuda", "to_empty")
_CONTAINERS = ("Sequential", "ModuleList", "ModuleDict")
_LOOKS = ("type", "print", "len", "isinstance", "id", "repr", "str")
_USES_INNER = ("forward", "__call__", "join", "no_sync", "train_batch")


def check_wrapping(code: Code) -> Iterator[Finding]:
    """Yield what makes a wrapped model fail, or train as if it were not wrapped; the first of each kind."""
    if code.world_size != 1 and code.has_only_framework("accelerate"):
        yield from inner_called(code)
    if code.world_size == 1 or code.has_framework:
        return
    found = list(_wrapped(code))
    for check in (_not_on_gpu, _bypassed, _two_wrappers, _norms_too_late):
        yield from next(([finding] for one in found for finding in check(code, one)), [])
    thawed = (finding for one in found for finding in thawed_later(code, one))
    others = (
        *(thawed_in_loop(code), thawed_inside(code), thawed_by_helper(code)),
        thawed_by_argument(code) if code.wraps_models else (),
    )
    yield from itertools.islice(itertools.chain(thawed, *others), 1)
    yield from itertools.islice(_made_on_cpu(code), 1)
    yield from itertools.islice(_nested(code), 1)
    yield from left_unwrapped(code)
    yield from itertools.islice(
        itertools.chain(
            inner_called(code), never_called(code), kept_aside(code), held_before(code), called_by_name(code)
        ),
        1,
    )


def _wrapped(code: Code) -> Iterator[Wrapped]:
    for module, call, name in code.reached.calls:
        if not is_ddp(name) or hides_arguments(call):
            continue
        model = argument(call, "module", 0)
        while isinstance(model, ast.Call) and isinstance(model.func, ast.Attribute) and model.func.attr in SAME_MODEL:
            model = model.func.value
        statement = module.parents.get(call)
        target = statement.targets[0] if isinstance(statement, ast.Assign) else None
        if isinstance(model, ast.Name):
            wrapper = target.id if isinstance(target, ast.Name) else ""
            yield Wrapped(call, module, module.scope_of(call), model, wrapper)


def _not_on_gpu(code: Code, one: Wrapped) -> Iterator[Finding]:
    yield from itertools.islice(itertools.chain(_on_cpu(code, one), _moved_too_late(code, one)), 1)


def _on_cpu(code: Code, one: Wrapped) -> Iterator[Finding]:
    """Yield an error where a model is wrapped for a GPU before it is moved there."""
    if not _is_for_gpu(code, one.call):
        return
    made = last_value(one.model, one.module)
    if made is not None and _is_on_cpu(code, made, one.module) and not _is_moved(one, made):
        yield Finding(
            code.level_of(one.call, one.module),
            "model-on-cpu",
            one.module.where(one.call),
            f"{one.model.id} is still on the CPU when DistributedDataParallel gets it, and the processes communicate "
            "on GPUs",
            f"move it first: {one.model.id}.to(local_rank)",
        )


def _moved_too_late(code: Code, one: Wrapped) -> Iterator[Finding]:
    """Yield a warning where a model gets device_ids, and is moved only after that."""
    devices = argument(one.call, "device_ids", 1)
    made = last_value(one.model, one.module)
    if not isinstance(devices, ast.List) or not isinstance(made, ast.Call) or not _is_for_gpu(code, one.call):
        return
    found = code.program.called(made, one.module)
    if _is_moved(one, made) or "device" in unparsed(made) or (found and "cuda" in unparsed(found[1])):
        return
    for node in walk(one.scope):
        is_moved = isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _TO_DEVICE
        if not is_moved or not code.reached.of(node, one.module):
            continue
        if node.lineno > one.call.lineno and is_load(node.func.value, one.wrapper):  # type: ignore[attr-defined]
            yield Finding(
                "warning",
                "model-on-cpu",
                one.module.where(one.call),
                f"DistributedDataParallel gets {one.model.id} and device_ids before line {node.lineno} moves it to the "  # type: ignore[attr-defined]
                "GPU: torch refuses a model on the CPU",
                "move it first, then wrap it",
            )
            return


def _is_for_gpu(code: Code, wrap: ast.Call) -> bool:
    """Return whether a model that is wrapped must be on a GPU, and nothing puts it there by default."""
    names_gpus = isinstance(argument(wrap, "device_ids", 1), ast.List)
    is_placed = code.places_by_default or "device_map" in code.names_in_use
    return code.facts.gpus != 0 and not is_placed and (names_gpus or code.is_on_nccl_only)


def _made_on_cpu(code: Code) -> Iterator[Finding]:
    """Yield an error where a model is made and wrapped at once: DDP(Net())."""
    for module, call, name in code.reached.calls:
        made = argument(call, "module", 0)
        is_at_once = is_ddp(name) and isinstance(made, ast.Call) and not hides_arguments(call)
        if is_at_once and _is_for_gpu(code, call) and _is_on_cpu(code, made, module):  # type: ignore[arg-type]
            yield Finding(
                code.level_of(call, module),
                "model-on-cpu",
                module.where(call),
                f"{unparsed(made)} is still on the CPU when DistributedDataParallel gets it, and the processes "
                "communicate on GPUs",
                f"move it first: {unparsed(made)}.to(local_rank)",
            )


def _nested(code: Code) -> Iterator[Finding]:
    """Yield a warning where DataParallel is around DistributedDataParallel, or made inside it."""
    for module, call, name in code.reached.calls:
        if name != _DATA_PARALLEL and not is_ddp(name):
            continue
        given = argument(call, "module", 0)
        inner = seen_through(given, module)
        inner_name = code.program.name_of(inner.func, module) if isinstance(inner, ast.Call) else ""
        is_around = name == _DATA_PARALLEL and is_ddp(inner_name)
        if is_around or (is_ddp(name) and inner_name == _DATA_PARALLEL and isinstance(given, ast.Call)):
            yield Finding(
                "warning",
                "two-wrappers",
                module.where(call),
                "DataParallel and DistributedDataParallel together: each process would use all GPUs of its node",
                "remove DataParallel",
            )


def _is_on_cpu(code: Code, made: ast.expr, module: Module) -> bool:
    """Return whether an expression makes a model, and nothing in it names a device."""
    if not isinstance(made, ast.Call) or any("device" in (keyword.arg or "device") for keyword in made.keywords):
        return False
    name = code.program.name_of(made.func, module)
    if name.endswith(".convert_sync_batchnorm"):
        given = argument(made, "module", 0)
        return given is not None and _is_on_cpu(code, given, module)
    if name.startswith(_ON_CPU):
        inner = (arg for arg in made.args if isinstance(arg, ast.Call))
        is_moved = any(
            isinstance(node, ast.Attribute) and node.attr in _TO_DEVICE for arg in inner for node in walk(arg)
        )
        return not is_moved and not (name.rpartition(".")[2] in _CONTAINERS and _holds_variables(made))
    found = code.program.definition(name)
    if found is None or not isinstance(found[1], ast.ClassDef):
        return False
    if any(code.program.definition(code.program.name_of(base, found[0])) for base in found[1].bases):
        return False  # what it inherits may move it
    text = unparsed(found[1])
    return not any(word in text for word in ("cuda", "device", ".to("))


def _holds_variables(made: ast.Call) -> bool:
    """Return whether a container of layers is made of variables: these may be on a GPU."""
    collections = (arg for arg in made.args if isinstance(arg, (ast.List, ast.Tuple, ast.Dict)))
    items = [item for one in collections for item in (one.values if isinstance(one, ast.Dict) else one.elts)]
    return any(isinstance(item, ast.Name) for item in (*made.args, *items))


def _is_moved(one: Wrapped, made: ast.expr) -> bool:
    """Return whether anything between the making of a model and its wrapping may move it."""
    for node in walk(one.scope):
        if not isinstance(node, ast.Call) or not made.lineno <= node.lineno <= one.call.lineno or node is one.call:
            continue
        target: ast.expr = node
        methods: list[str] = []
        while isinstance(target, ast.Call) and isinstance(target.func, ast.Attribute):
            methods.append(target.func.attr)
            target = target.func.value  # of `net.train().requires_grad_(True).to(device)`
        if isinstance(target, ast.Name) and target.id == one.model.id and not {*_TO_DEVICE}.isdisjoint(methods):
            return True
        is_handed = any(isinstance(arg, ast.Name) and arg.id == one.model.id for arg in node.args)
        if is_handed and spelled(node.func) not in _LOOKS:
            return True
    return any(isinstance(node, ast.With) and "device" in unparsed(node.items[0]) for node in walk(one.scope))


def _bypassed(code: Code, one: Wrapped) -> Iterator[Finding]:
    """Yield a warning where a model is trained by its own name, and its wrapper only gives parameters."""
    if not one.wrapper or one.wrapper == one.model.id:
        return
    loads = [n for n in walk(one.scope) if is_load(n, one.wrapper) and code.reached.of(n, one.module)]
    if any(_may_train_by(code, node, one.module) for node in loads):
        return
    for node in walk(one.scope):
        if isinstance(node, ast.Call) and node.lineno > one.call.lineno and is_load(node.func, one.model.id):
            if trains(one.module.scope_of(node)) and code.reached.of(node, one.module):
                yield Finding(
                    "warning",
                    "bypassed",
                    one.module.where(node),
                    f"{one.model.id} is called instead of {one.wrapper}, which wraps it: the gradients are not "
                    "averaged, and each process trains a model of its own",
                    f"call {one.wrapper}",
                )
                return


def _may_train_by(code: Code, name: ast.AST, module: Module) -> bool:
    """Return whether a use of a wrapper may train: it is called, or handed to what may call it in training."""
    above = module.parents.get(name)
    if isinstance(above, ast.Attribute):
        return above.attr in _USES_INNER
    call = module.parents.get(above) if isinstance(above, ast.keyword) else above
    found = None
    if isinstance(call, ast.Call) and call.func is not name:
        found = code.program.definition(code.program.name_of(call.func, module))
    return found is None or trains(found[1])


def _two_wrappers(code: Code, one: Wrapped) -> Iterator[Finding]:
    made = last_value(one.model, one.module)
    if isinstance(made, ast.Call) and code.program.name_of(made.func, one.module) == _DATA_PARALLEL:
        yield Finding(
            "warning",
            "two-wrappers",
            one.module.where(made),
            "DataParallel inside DistributedDataParallel: each process would use all GPUs of its node",
            "remove DataParallel",
        )


def _are_exclusive(first: ast.AST, second: ast.AST, module: Module) -> bool:
    """Return whether only one of two nodes is executed: they are in the two branches of one condition."""
    ways = [{id(one) for one in (node, *module.above(node))} for node in (first, second)]
    return any(
        isinstance(one, ast.If)
        and any(id(item) in ways[0] for item in one.body)
        and any(id(item) in ways[1] for item in one.orelse)
        for one in module.above(first)
    )


def _norms_too_late(code: Code, one: Wrapped) -> Iterator[Finding]:
    for module, call, name in code.reached.calls:
        if not name.endswith(".convert_sync_batchnorm") or module is not one.module or not call.args:
            continue
        if one.wrapper and is_load(call.args[0], one.wrapper) and call.lineno > one.call.lineno:
            if module.scope_of(call) is one.scope and not _are_exclusive(one.call, call, module):
                yield Finding(
                    "warning",
                    "two-wrappers",
                    module.where(call),
                    f"{one.wrapper} is wrapped already: its batch norms must be converted before "
                    "DistributedDataParallel gets the model",
                    f"convert {one.model.id} first, then wrap it",
                )
