"""Code that needs GPUs on nodes without them, or in a job that requests none."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import replace
from itertools import takewhile

from jobsubmit.check.code import Code, is_ddp
from jobsubmit.check.libraries.lightning_settings import TRAINERS, trainer_composed
from jobsubmit.check.origins import seen_through
from jobsubmit.check.program.calls import argument, hides_arguments
from jobsubmit.check.program.facts import COUNT_GPUS
from jobsubmit.check.program.module import FUNCTIONS, Function, Module, spelled, unparsed
from jobsubmit.check.program.operations import Several
from jobsubmit.check.program.registries import registered
from jobsubmit.check.program.tree import walk
from jobsubmit.check.start.device_of_call import device_text, values_of_own_field
from jobsubmit.common.finding import Finding

_NEEDS_GPU = frozenset(
    f"torch.cuda.{name}"
    for name in (
        *("set_device", "synchronize", "current_device", "get_device_name", "get_device_properties"),
        *("get_device_capability", "mem_get_info", "current_stream", "Stream", "reset_peak_memory_stats"),
    )
) | frozenset(
    f"torch.accelerator.{name}"
    for name in (
        *("set_device_index", "set_device_idx", "current_device_index", "current_device_idx", "synchronize"),
        *("current_stream", "set_stream", "device_index"),
    )
)
_MAKES = re.compile(
    r"torch\.(?:nn\.|(?:zeros|ones|empty|full|rand|randn|randint)(?:_like)?$|(?:as_)?tensor$|randperm$|arange$|eye$|normal$"
    r"|(?:lin|log)space$|Generator$)"
)
_OTHER_NODES = (
    "on the local backend the nodes are this machine: add --backend to check the job for another one; else request "
    'GPUs in `backend`, or let the code choose: `device = torch.device("cuda", local_rank) if '
    'torch.cuda.is_available() else torch.device("cpu")`, and device_ids=None on CPUs'
)
_OTHER_NODES_BY_TEXT = (
    "on the local backend the nodes are this machine: add --backend to check the job for another one; else request "
    'GPUs in `backend`, or let the code choose: `device = f"cuda:{local_rank}" if torch.cuda.is_available() else '
    '"cpu"`, and device_ids=None on CPUs'
)
_OTHER_NODES_OF_LIGHTNING = (
    "on the local backend the nodes are this machine: add --backend to check the job for another one; else request "
    'GPUs in `backend`, or let Lightning choose: accelerator="auto"'
)
_OTHER_NODES_OF_TRAINER = (
    "on the local backend the nodes are this machine: add --backend to check the job for another one; else request "
    "GPUs in `backend`, or leave it out"
)
_PRECISIONS = ("bf16", "tf32")
_DEEPEST = 6  # calls above each other
_NUMBER = re.compile(r"(?:^|_)(?:rank|gpu|index|idx|id)$")
_ASKS_WHETHER = re.compile(r"is_available\(|device_count\(")
_SAYS = re.compile(r"(?:^|\.)(?:print|info|debug|warning|log)$")
_HANDS_ON = re.compile(r"distribut|ddp|parallel|wrap", re.IGNORECASE)
_SCALER = re.compile(r"^(?:loss_|grad_|amp_|_)?scaler$")
DIVISIONS = (ast.Div, ast.FloorDiv, ast.Mod)
_FEWER = (
    "on the local backend the nodes are this machine: start fewer processes (--nodes 1, resources.nproc_per_node), or "
    "add --backend to check the job for other nodes"
)
_GPUS_OF_LIGHTNING = ("gpu", "cuda")
_MOST_PLACES = 8  # that a message names
_NORMED = re.compile(r"BatchNorm|resne|densenet|mobilenet|efficientnet|regnet|_bn$|inception|shufflenet", re.IGNORECASE)
_MAKE_MODELS = ("torchvision", "timm", "monai", "segmentation_models_pytorch", "torch_geometric")
_ASKS_IN_ANY_CASE = re.compile(r"0\.|1\.(?:\d|1[0-2])(?:\.|$)")  # versions of accelerate
_USE_CPU = "ACCELERATE_USE_CPU"
_HF_PARSER = "transformers.HfArgumentParser"
_ON_CPU = frozenset(["use_cpu", "no_cuda", _USE_CPU])


def check_gpu_request(code: Code, field: str) -> Iterator[Finding]:
    """Yield a warning where the code surely uses a GPU, and the job does not request one by a field of its backend.

    Accelerate may do without, but then its processes may train alone.
    """
    for module, call, name in code.reached.calls if field and code.facts.gpus is None else ():
        used = _gpu_use(code, call, name, module)
        if used and code.reached.is_sure(call, module):
            yield Finding(
                "warning",
                "no-gpu-request",
                module.where(call),
                f"{used} needs a GPU, and the job requests none: the nodes have GPUs only if a job requests them",
                f"add it to `backend`, for example {field}",
            )
            return
    if field and code.facts.gpus is None:
        for finding in each_for_itself(code):
            hint = f'request GPUs in `backend`, for example {field}, or set env: {{{_USE_CPU}: "true"}}'
            yield replace(finding, level="warning", hint=hint)


def without_gpus(code: Code) -> Iterator[Finding]:
    """Yield one finding for all places that need a GPU, an error if one of them is surely reached."""
    yield from _asked_by_configuration(code)
    uses, perhaps = dict[str, tuple[str, bool]](), dict[str, tuple[str, bool]]()
    for module, call, name in code.reached.calls:
        used, is_sure = _gpu_use(code, call, name, module), code.reached.is_sure(call, module)
        if used and not is_sure and code.is_of_unused_class(call, module):
            continue
        is_sure = is_sure and not (used == "SyncBatchNorm" and not _names_batch_norms(code))
        if used and (is_sure or _is_unconditional(call, module) or _is_of_a_step(call, module)):
            where, used = _chosen_at(code, call, module) or (_line_of(call, module), used)
            uses[where] = used, is_sure or uses.get(where, ("", False))[1]
        elif used and (_is_for_gpus(call, module) or _depends_on_nothing(code, call, module)):
            perhaps[_line_of(call, module)] = used, False
    if not uses:
        return
    uses = {**perhaps, **uses} if any(is_sure for _, is_sure in uses.values()) else uses
    first = next((where for where, (_, is_sure) in uses.items() if is_sure), next(iter(uses)))
    used, is_sure = uses.pop(first)
    text = f"{used} needs a GPU, but {code.facts.no_gpus}"
    if uses:
        others = [f"{where} {used}" for where, (used, _) in uses.items()]
        places = ", ".join(others[:_MOST_PLACES])
        text = f"{used} needs a GPU, but {code.facts.no_gpus}. These need one, too: {places}"
        if len(others) > _MOST_PLACES:
            more = len(others) - _MOST_PLACES
            text = f"{used} needs a GPU, but {code.facts.no_gpus}. These need one, too: {places}, and {more} more"
    other_nodes = _OTHER_NODES_BY_TEXT if _has_device_as_text(code) else _OTHER_NODES
    other_nodes = _OTHER_NODES_OF_LIGHTNING if used.startswith("accelerator=") else other_nodes
    other_nodes = _OTHER_NODES_OF_TRAINER if used.removeprefix("--").startswith(_PRECISIONS) else other_nodes
    hint = _FEWER if code.facts.why_no_gpus else other_nodes
    yield Finding("error" if is_sure else "warning", "cuda-on-cpu", first, text, hint)


def _line_of(call: ast.Call, module: Module) -> str:
    """Return the line of a method's name, which may be below the beginning of its statement."""
    return f"{module.path}:{call.func.end_lineno}"


def _chosen_at(code: Code, call: ast.Call, module: Module) -> tuple[str, str] | None:
    """Return where the device is chosen that `x.to(device)` or `x.to(self.device)` names, and the words there."""
    is_move = isinstance(call.func, ast.Attribute) and call.func.attr == "to" and len(call.args) == 1
    device = call.args[0] if is_move else None
    home, made = module, code.values.assigned(device, module) if isinstance(device, ast.Name) else None
    if isinstance(device, ast.Attribute) and len(values := values_of_own_field(code, device, module)) == 1:
        home, made = values[0]
    if not isinstance(made, ast.Call) or code.program.name_of(made.func, home) != "torch.device":
        return None
    return home.where(made), unparsed(made)


def _has_device_as_text(code: Code) -> bool:
    """Return whether the program uses a device as text: `device.startswith("cuda")`, `"cuda" in device`."""
    methods = (call.func for _, call in code.program.calls_of_attribute.get("startswith", ()))
    owners = [spelled(one.value) for one in methods if isinstance(one, ast.Attribute)]
    compared = [node for _, node in code.program.of(ast.Compare) if isinstance(node.ops[0], (ast.In, ast.NotIn))]
    owners += [spelled(node.comparators[0]) for node in compared if isinstance(node.left, ast.Constant)]
    return any(owner.rpartition(".")[2] == "device" for owner in owners)


def _asked_by_configuration(code: Code) -> Iterator[Finding]:
    """Yield an error for each setting of Lightning's Trainer in Hydra's configuration that needs GPUs."""
    name, settings = trainer_composed(code) or ("", {})
    asked = {"accelerator": "cpu"} if settings.get("accelerator") in _GPUS_OF_LIGHTNING else {}
    if settings.get("sync_batchnorm") is True and _may_have_batch_norms(code):
        asked["sync_batchnorm"] = "False"
    for setting, other in asked.items() if any(code.calls("hydra.utils.instantiate")) else ():
        text = f"{name}.{setting} is {settings[setting]!r}, which needs a GPU, but {code.facts.no_gpus}"
        hint = f"pass {name}.{setting}={other}, or request GPUs in `backend`"
        yield Finding("error", "cuda-on-cpu", "args", text, hint)


def each_for_itself(code: Code) -> Iterator[Finding]:
    """Yield an error where accelerate, which Trainer uses, would not find out that it is to train together on CPUs.

    Where its version is not known, it is a warning. Source: `PartialState._prepare_backend` of accelerate 1.13 to 1.15
    asks for LOCAL_RANK only with a GPU, or with `cpu`; that of 0.34 to 1.12 asks for it in any case.
    """
    version = code.facts.libraries.version("accelerate")
    if _ASKS_IN_ANY_CASE.match(version):
        return
    is_said = bool(_ON_CPU & code.names_in_use) or any(
        word.lstrip("-").startswith(tuple(_ON_CPU)) for word in code.facts.argv
    )
    settings = registered(code.program, code.facts.argv).settings
    is_said = is_said or any(name in settings for name in _ON_CPU)
    states = [call for _, call, name in code.reached.calls if name.endswith((".PartialState", ".AcceleratorState"))]
    is_said = is_said or any(call.args or call.keywords for call in states)
    if code.world_size == 1 or not code.facts.has_launcher or is_said or code.facts.environment.get(_USE_CPU):
        return
    for module, call, name in code.reached.calls:
        hint = f'add `-e {_USE_CPU}=true` to `create` or `run`, or in the job file env: {{{_USE_CPU}: "true"}}'
        if name == "accelerate.Accelerator":
            cpu = argument(call, "cpu")
            if hides_arguments(call) or (cpu is not None and code.values.of(cpu, module) not in (None, False)):
                continue
        elif not _is_training_arguments(code, call, name, module):
            continue
        elif name == _HF_PARSER:
            hint = (
                "set use_cpu: {flag: true} in `hyperparameters`, or add `--set 'hyperparameters.use_cpu={flag: true}'`"
            )
        yield Finding(
            code.level_of(call, module) if version else "warning",
            "no-init",
            module.where(call),
            "on nodes without GPUs each process would train alone: accelerate connects processes on CPUs only if CPU "
            "use is requested",
            hint,
        )
        return


def _is_training_arguments(code: Code, call: ast.Call, name: str, module: Module) -> bool:
    """Return whether a call makes the arguments of transformers' Trainer, or the parser of them."""
    names = [name]
    if name == _HF_PARSER and call.args:
        classes = call.args[0].elts if isinstance(call.args[0], (ast.Tuple, ast.List)) else call.args[:1]
        names = [code.program.name_of(one, module) for one in classes]
    kinds = [kind for one in names for kind in _with_bases(code, one)]
    return any(one.startswith("transformers.") and one.endswith("TrainingArguments") for one in kinds)


def _with_bases(code: Code, name: str, depth: int = 0) -> Iterator[str]:
    """Yield the name of a class, and those of the classes that it is based on."""
    yield name
    found = code.program.definition(name)
    if found is not None and isinstance(found[1], ast.ClassDef) and depth < _DEEPEST:
        for base in found[1].bases:
            yield from _with_bases(code, code.program.name_of(base, found[0]), depth + 1)


def _is_unconditional(call: ast.Call, module: Module) -> bool:
    """Return whether a call is always executed where the method that it is in is."""
    if getattr(module.function_of(call), "name", "") == "__enter__":
        return False  # whether a `with` statement is reached is known
    in_method = any(isinstance(node, ast.ClassDef) for node in module.above(call))
    return in_method and not _tests_above(call, module)


def _is_for_gpus(call: ast.Call, module: Module) -> bool:
    """Return whether a call depends only on whether a process is given a GPU: `if args.gpu is not None:`."""
    above = _tests_above(call, module)
    return bool(above) and isinstance(above[0], (ast.If, ast.IfExp)) and "gpu" in unparsed(above[0].test).lower()


def _depends_on_nothing(code: Code, node: ast.AST, module: Module, depth: int = 0) -> bool:
    """Return whether no condition decides whether a node is executed, nor the calls of its function: only loops."""
    tests = [one for one in _tests_above(node, module) if "__main__" not in unparsed(one)]
    function = module.function_of(node)
    if tests or function is None:
        return not tests
    callers = code.program.calls_to(function, module)
    return (
        depth < _DEEPEST
        and bool(callers)
        and all(_depends_on_nothing(code, call, home, depth + 1) for home, call in callers)
    )


def _tests_above(node: ast.AST, module: Module) -> list[ast.AST]:
    """Return what decides in its function whether a node is executed."""
    above = takewhile(lambda one: not isinstance(one, ast.FunctionDef), module.above(node))
    return [one for one in above if isinstance(one, (ast.If, ast.IfExp, ast.Try, ast.BoolOp))]


def _is_of_a_step(call: ast.Call, module: Module) -> bool:
    """Return whether a call is made in some steps of a loop, and depends on nothing else: `if step % n == 0:`."""
    above = list(takewhile(lambda node: not isinstance(node, ast.FunctionDef), module.above(call)))
    tests = [node.test for node in above if isinstance(node, (ast.If, ast.IfExp))]
    is_looped = any(isinstance(node, (ast.For, ast.While)) for node in above)
    counts = (isinstance(test, ast.Compare) and isinstance(test.left, ast.BinOp) for test in tests)
    is_tried = any(isinstance(node, (ast.Try, ast.BoolOp)) for node in above)
    return is_looped and bool(tests) and not is_tried and all(counts) and all("%" in unparsed(one) for one in tests)


def _gpu_use(code: Code, call: ast.Call, name: str, module: Module) -> str:
    """Return the words that need a GPU, if a call does."""
    if name.startswith("torch.") and (asked := _asked_of_torch(code, call, name, module)):
        return asked
    if isinstance(call.func, ast.Attribute) and not name.startswith("torch."):
        of_object = _asked_of_object(code, call, call.func, module)
        if of_object is not None:
            return of_object
    if name.endswith(".convert_sync_batchnorm"):
        return "SyncBatchNorm" if _may_have_batch_norms(code) else ""
    if is_ddp(name) or _hands_devices_to_ddp(code, call):
        return _devices_of_ddp(code, call, module)
    return _asked_of_library(code, call, name, module)


def _asked_of_object(code: Code, call: ast.Call, method: ast.Attribute, module: Module) -> str | None:
    """Return what a method of an object needs a GPU for; None for a method that has nothing to do with devices."""
    if method.attr == "state_dict" and _SCALER.match(spelled(method.value).rpartition(".")[2]):
        return _scale_of_scaler(call, module) if _has_scaler_of_gpus(code) else ""
    if method.attr == "cuda" and "cuda" not in code.program.methods:
        return ".cuda()"
    if method.attr == "to" and (call.args or argument(call, "device")):
        return _moved_to(code, call.args[0] if call.args else argument(call, "device"), module)
    return None


def _has_scaler_of_gpus(code: Code) -> bool:
    """Return whether all that scales losses in the program are torch's scalers for GPUs, or wrap them."""
    devices = {
        unparsed(call.args[0]) if name == "torch.amp.GradScaler" and call.args else "'cuda'"
        for _, call, name in code.program.calls
        if name.endswith("GradScaler") and name.startswith("torch.")
    }
    classes = (node for _, node in code.program.of(ast.ClassDef) if "scaler" in node.name.lower())
    return devices == {"'cuda'"} and all("GradScaler" in unparsed(node) for node in classes)


def _scale_of_scaler(call: ast.Call, module: Module) -> str:
    """Return `scaler.state_dict()["scale"]`, if a call is part of it: without GPUs a GradScaler has no state."""
    above = module.parents.get(call)
    is_scale = (
        isinstance(above, ast.Subscript) and isinstance(above.slice, ast.Constant) and above.slice.value == "scale"
    )
    return f"`{unparsed(above)}`" if is_scale and above is not None else ""


def _hands_devices_to_ddp(code: Code, call: ast.Call) -> bool:
    """Return whether a method that a call may mean hands its `device_ids` on to DistributedDataParallel."""
    if argument(call, "device_ids") is None or not isinstance(call.func, ast.Attribute):
        return False
    methods = [(home, method) for home, _, method in code.program.methods.get(call.func.attr, ())]
    handing = [method for home, method in methods if _hands_on(code, method, home)]
    return bool(handing) and (len(handing) == len(methods) or _HANDS_ON.search(call.func.attr) is not None)


def _hands_on(code: Code, method: Function, module: Module) -> bool:
    """Return whether a method surely gives its `device_ids` to DistributedDataParallel as they are."""
    if (method, "device_ids") in module.own_stores:
        return False
    return any(
        isinstance(inner, ast.Call)
        and is_ddp(code.program.name_of(inner.func, module))
        and spelled(argument(inner, "device_ids") or inner) == "device_ids"
        and not _tests_above(inner, module)
        for inner in walk(method)
    )


def _asked_of_torch(code: Code, call: ast.Call, name: str, module: Module) -> str:
    """Return what a call of torch needs a GPU for.

    Without `check_available`, `current_accelerator` gives the accelerator that torch was built for, also where there
    is none (torch 2.6 to 2.15).
    """
    if name in _NEEDS_GPU:
        return f"{name}()"
    if name == "torch.accelerator.current_accelerator":
        is_used = code.facts.has_nccl is True and not (call.args or call.keywords) and _is_used(call, module)
        return f"the device of {name}()" if is_used else ""
    made_on = argument(call, "device") if _MAKES.match(name) else None
    if made_on is not None:
        text = device_text(code, made_on, module)
        return f'{name}(device="{text}")' if text.startswith("cuda") else ""
    return divided_by_gpus(call, module) if name in COUNT_GPUS else ""


def _is_used(call: ast.Call, module: Module) -> bool:
    """Return whether a program uses what a call gives, and nothing in its scope asks whether that is there."""
    scope = module.scope_of(call)
    own = [node for node in scope.body if not isinstance(node, (*FUNCTIONS, ast.ClassDef))]
    above = module.parents.get(call)
    calls = (one for one in module.above(call) if isinstance(one, ast.Call))
    is_said = spelled(above.func) == "str" if isinstance(above, ast.Call) else False
    is_said = is_said or any(_SAYS.search(spelled(one.func)) for one in calls)
    held = [spelled(one) for one in above.targets] if isinstance(above, ast.Assign) else []
    asked = [*map(re.escape, held), re.escape(unparsed(call))]
    names = "|".join(asked)
    asks = re.compile(rf"{_ASKS_WHETHER.pattern}|\b(?:{names}) is (?:not )?None|(?:if|not|and|or) (?:{names})\b")
    return not is_said and not any(asks.search(unparsed(node)) for node in own)


def divided_by_gpus(call: ast.expr, module: Module) -> str:
    """Return the division of a number by what a call gives: `rank % torch.cuda.device_count()`."""
    above = module.parents.get(call)
    if not isinstance(above, ast.BinOp) or above.right is not call or not isinstance(above.op, DIVISIONS):
        return ""
    left, made = above.left, seen_through(above.left, module)
    is_named_so = _NUMBER.search(spelled(left).rpartition(".")[2]) is not None
    is_computed = isinstance(made, ast.Call) and spelled(made.func).rpartition(".")[2] in ("int", "get_rank", "len")
    is_number = is_named_so or is_computed or not isinstance(above.op, ast.Mod)  # else it may put a value into a text
    return f"`{unparsed(above)}`" if is_number else ""


def _asked_of_library(code: Code, call: ast.Call, name: str, module: Module) -> str:
    """Return what a call asks Lightning or transformers for that needs a GPU."""
    if _is_training_arguments(code, call, name, module):
        return _precision_of_gpus(code, call, name, module)
    if name not in TRAINERS:
        return ""
    if code.values.of(argument(call, "sync_batchnorm"), module) is True:
        return "sync_batchnorm=True" if _may_have_batch_norms(code) else ""
    accelerator = code.values.of(argument(call, "accelerator"), module)
    return f'accelerator="{accelerator}"' if accelerator in _GPUS_OF_LIGHTNING else ""


def _precision_of_gpus(code: Code, call: ast.Call, name: str, module: Module) -> str:
    """Return a precision that TrainingArguments refuses on CPUs, unless `use_cpu` or its like is set.

    Source: `TrainingArguments.__post_init__` and `_validate_args` of transformers 5.
    """
    words = {word.lstrip("-").partition("=")[0]: word.partition("=")[2] for word in code.facts.argv}
    for field in _PRECISIONS:
        if name == _HF_PARSER:
            is_asked = field in words and words[field].lower() not in ("false", "0", "no")
            is_on_cpu = bool(_ON_CPU & words.keys())
        else:
            is_asked = code.values.of(argument(call, field), module) is True
            is_on_cpu = any(argument(call, one) is not None for one in _ON_CPU)
        if is_asked and (field == "tf32" or not is_on_cpu):
            return f"--{field}" if name == _HF_PARSER else f"{field}=True"
    return ""


def _devices_of_ddp(code: Code, call: ast.Call, module: Module) -> str:
    ids = argument(call, "device_ids", 1)
    while isinstance(ids, ast.IfExp) and (truth := code.values.truth(ids.test, module)) is not None:
        ids = ids.body if truth else ids.orelse
    is_given = isinstance(ids, ast.List) and ids.elts and code.values.of(ids.elts[0], module) is not None
    return f"device_ids={unparsed(ids)}" if ids is not None and is_given else ""


def _moved_to(code: Code, device: ast.expr | None, module: Module) -> str:
    text = device_text(code, device, module)
    is_number = device is not None and (_is_number(code, device, module) or _is_given_to_ddp(code, device, module))
    if device is not None and (text == "cuda:" or is_number):
        return f".to({unparsed(device)})"
    return f'.to("{text}")' if text.startswith("cuda") else ""


def _is_given_to_ddp(code: Code, device: ast.expr, module: Module) -> bool:
    """Return whether DistributedDataParallel gets the same variable in the same function: `device_ids=[rank]`.

    A field is what its only place sets it to.
    """
    if isinstance(device, ast.Attribute):
        values = [(home, one) for home, one in values_of_own_field(code, device, module) if one is not None]
        return (
            len(values) == 1
            and isinstance(values[0][1], ast.Name)
            and _is_given_to_ddp(code, values[0][1], values[0][0])
        )
    function = module.function_of(device)
    wraps = ((home, call) for home, call, name in code.reached.calls if home is module and is_ddp(name))
    return isinstance(device, ast.Name) and any(
        module.function_of(call) is function and _first_of(argument(call, "device_ids", 1)) == device.id
        for _, call in wraps
    )


def _first_of(ids: ast.expr | None) -> str:
    return spelled(ids.elts[0]) if isinstance(ids, ast.List) and ids.elts else ""


def _is_number(code: Code, device: ast.expr, module: Module) -> bool:
    """Return whether a device is given by its number, in each process if these differ."""
    value = code.values.of(device, module)
    values = value.values if isinstance(value, Several) else (value,)
    return all(type(one) is int for one in values)


def _names_batch_norms(code: Code) -> bool:
    """Return whether the program names layers of BatchNorm, or a model that is known to have some."""
    return any(_NORMED.search(name) for name in code.names if "sync" not in name.lower())


def _may_have_batch_norms(code: Code) -> bool:
    """Return whether a model may have layers that SyncBatchNorm, which is for GPUs, replaces; else it does nothing."""
    own = {name for name in code.names if "BatchNorm" in name} - {"SyncBatchNorm"}
    return bool(own) or code.program.imports(*_MAKE_MODELS) or bool(code.program.unread)
