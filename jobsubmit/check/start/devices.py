"""Devices: all processes on one GPU, a GPU that a node does not have, GPUs where there are none."""

from __future__ import annotations

import ast
import itertools
import re
from collections.abc import Iterator
from itertools import takewhile
from typing import Any

from jobsubmit.agent import node_contract as contract
from jobsubmit.check.code import INIT, Code, is_ddp
from jobsubmit.check.program.calls import argument, given_for, hides_arguments
from jobsubmit.check.program.modules import Module, returned_values
from jobsubmit.check.program.operations import UNKNOWN, Several
from jobsubmit.check.program.variables import parameters
from jobsubmit.common.finding import Finding

_DEVICE = re.compile(r"cuda:\d+")
_FREE_DEVICE = re.compile(r"cuda:?({|%|$)")
_NEEDS_GPU = frozenset(
    f"torch.cuda.{name}"
    for name in ("set_device", "synchronize", "current_device", "get_device_name", "get_device_properties")
)
_GET_RANK = ("torch.distributed.get_rank", "deepspeed.comm.get_rank")
_DEEPEST = 6
_USE_CPU = "ACCELERATE_USE_CPU"
_VISIBLE = "CUDA_VISIBLE_DEVICES"
_HF_PARSER = "transformers.HfArgumentParser"
_ON_CPU = frozenset(["use_cpu", "no_cuda", _USE_CPU])


def check_devices(code: Code) -> Iterator[Finding]:
    """Yield what would put processes on the wrong device, the first of each kind."""
    if code.facts.gpus == 0:
        yield from _without_gpus(code)
        yield from _each_for_itself(code)
        return
    yield from itertools.islice(
        itertools.chain(_fixed(code), _always_set(code), _wrapped_for_one(code), _unplaced(code)), 1
    )
    yield from _hidden(code)
    yield from _by_global_rank(code)
    yield from _more_processes(code)


# ── nodes without GPUs ──────────────────────────────────────────────────────────────────────────────────────────────


def check_gpu_request(code: Code, field: str) -> Iterator[Finding]:
    """Yield a warning where the code surely uses a GPU, and the job does not request one by a field of its backend."""
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


def _without_gpus(code: Code) -> Iterator[Finding]:
    for module, call, name in code.reached.calls:
        used = _gpu_use(code, call, name, module)
        is_sure = code.reached.is_sure(call, module)
        if used and (is_sure or _is_unconditional(call, module)):
            yield Finding(
                "error" if is_sure else "warning",
                "cuda-on-cpu",
                module.where(call),
                f"{used} needs a GPU, but these nodes have none",
                "on the local backend the nodes are this machine: add --backend to check the job for another one; else "
                "request GPUs in `backend`, or put it under `if torch.cuda.is_available():`",
            )
            return


def _each_for_itself(code: Code) -> Iterator[Finding]:
    """Yield a warning where accelerate, which Trainer uses, would not find out that it is to train together on CPUs.

    Source: `PartialState._prepare_backend` of accelerate 1.15: it asks for LOCAL_RANK only with a GPU, or with `cpu`.
    """
    is_said = bool(_ON_CPU & code.names) or any(word.lstrip("-").startswith(tuple(_ON_CPU)) for word in code.facts.argv)
    if code.world_size == 1 or not code.facts.has_launcher or is_said or code.facts.environment.get(_USE_CPU):
        return
    for module, call, name in code.reached.calls:
        hint = f"set {_USE_CPU}=true in `env`"
        if name == "accelerate.Accelerator":
            cpu = argument(call, "cpu")
            if hides_arguments(call) or (cpu is not None and code.values.of(cpu, module) not in (None, False)):
                continue
        elif not _is_training_arguments(code, call, name, module):
            continue
        elif name == _HF_PARSER:
            hint = "set use_cpu: {flag: true} in `hyperparameters`"
        yield Finding(
            "warning",
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
    return any(one.startswith("transformers.") and one.endswith("TrainingArguments") for one in names)


def _is_unconditional(call: ast.Call, module: Module) -> bool:
    """Return whether a call is always executed where the method that it is in is."""
    above = list(takewhile(lambda node: not isinstance(node, ast.FunctionDef), module.above(call)))
    in_method = any(isinstance(node, ast.ClassDef) for node in module.above(call))
    return in_method and not any(isinstance(node, (ast.If, ast.IfExp, ast.Try, ast.BoolOp)) for node in above)


def _gpu_use(code: Code, call: ast.Call, name: str, module: Module) -> str:
    """Return the words that need a GPU, if a call does."""
    if name in _NEEDS_GPU:
        return f"{name}()"
    if isinstance(call.func, ast.Attribute) and not name.startswith("torch."):
        if call.func.attr == "cuda" and "cuda" not in code.program.methods:
            return ".cuda()"
        if call.func.attr == "to" and (call.args or argument(call, "device")):
            device = _device_text(code, call.args[0] if call.args else argument(call, "device"), module)
            return f'.to("{device}")' if device.startswith("cuda") else ""
    if is_ddp(name):
        ids = argument(call, "device_ids", 1)
        while isinstance(ids, ast.IfExp) and (truth := code.values.truth(ids.test, module)) is not None:
            ids = ids.body if truth else ids.orelse
        if isinstance(ids, ast.List) and ids.elts and code.values.of(ids.elts[0], module) is not None:
            return f"device_ids={ast.unparse(ids)}"
    return ""


def _device_text(code: Code, node: ast.AST | None, module: Module, depth: int = 0) -> str:
    """Return a device as text, as far as it is known: `cuda`, `cuda:0`, `cuda:` with a number that is not."""
    value = code.values.of(node, module)
    if isinstance(value, str):
        return value
    if isinstance(node, ast.JoinedStr) and node.values and isinstance(node.values[0], ast.Constant):
        return str(node.values[0].value)
    source = _source_of_device(code, node, module)
    if source is not None and depth < _DEEPEST:
        return _device_text(code, source, module, depth + 1)
    is_call = isinstance(node, ast.Call) and depth < _DEEPEST
    return _returned_device(code, code.program.name_of(node.func, module), depth) if is_call else ""  # type: ignore[union-attr]


def _source_of_device(code: Code, node: ast.AST | None, module: Module) -> ast.expr | None:
    """Return the expression that a device is taken from, if there is one."""
    if isinstance(node, ast.IfExp):
        truth = code.values.truth(node.test, module)
        return None if truth is None else node.body if truth else node.orelse
    if isinstance(node, ast.Call) and code.program.name_of(node.func, module) == "torch.device" and node.args:
        return node.args[0]
    return code.values.assigned(node, module) if isinstance(node, ast.Name) else None


def _returned_device(code: Code, name: str, depth: int) -> str:
    """Return the GPU that a function of the program returns, if it is written down and the only one."""
    returned = _returned(code, name)
    texts = {_device_text(code, value, home, depth + 1) for home, value in returned if code.reached.of(value, home)}
    known = texts - {"cpu"}
    return known.pop() if len(known) == 1 else ""


# ── one device for all ──────────────────────────────────────────────────────────────────────────────────────────────


def _fixed(code: Code) -> Iterator[Finding]:
    if (code.processes or 0) <= 1 or code.has_framework or not (code.is_distributed or code.facts.has_launcher):
        return
    if _limits_visible(code):
        return
    calls = _only_devices(code) if _places_by_rank(code) else code.reached.calls
    placed = [(module, call, _device_of(call, name)) for module, call, name in calls]
    mapped = [(module, call, _mapped_device(code, call, module)) for module, call, _ in code.reached.calls]
    for module, call, node in (*placed, *mapped):
        is_rank = node is not None and "rank" in ast.unparse(node)  # the launcher gives it, whatever its default is
        value = code.values.of(node, module) if node is not None and not is_rank else UNKNOWN
        if node is not None and _is_one_device(value):
            yield Finding(
                code.level_of(call, module),
                "fixed-device",
                module.where(node),
                f"every process uses {value if isinstance(value, str) else f'cuda:{value}'}, so the "
                f"{code.processes} processes of a node share one GPU",
                "select the GPU by the local rank: torch.cuda.set_device(local_rank)",
            )
            return


def _limits_visible(code: Code) -> bool:
    """Return whether the code may hide GPUs from a process: then number 0 may be another one in each."""
    return any("VISIBLE_DEVICES" in name for name in code.names)


def _wrapped_for_one(code: Code) -> Iterator[Finding]:
    """Yield an error where every process wraps its model for the same GPU, or puts it there for that."""
    if (code.processes or 0) <= 1 or _limits_visible(code):
        return
    for module, call, name in code.reached.calls:
        if not is_ddp(name) or hides_arguments(call):
            continue
        ids, model = argument(call, "device_ids", 1), argument(call, "module", 0)
        places = ids.elts if isinstance(ids, ast.List) and len(ids.elts) == 1 else []
        if isinstance(model, ast.Call) and (chosen := _device_of(model, "")) is not None:
            places = [*places, chosen]
        one = next((node for node in places if isinstance(node, ast.Constant) and _is_one_device(node.value)), None)
        if one is not None:
            yield Finding(
                code.level_of(call, module),
                "fixed-device",
                module.where(one),
                f"every process wraps its model for GPU {ast.unparse(one)}: the {code.processes} processes of a node "
                "share it, or fail with another GPU selected",
                "use the local rank: device_ids=[local_rank]",
            )
            return


def _always_set(code: Code) -> Iterator[Finding]:
    """Yield a warning where every torch.cuda.set_device names one GPU, whatever else is placed by rank."""
    calls = list(code.calls("torch.cuda.set_device"))
    if (code.processes or 0) <= 1 or code.has_framework or not calls:
        return
    if all(call.args and isinstance(call.args[0], ast.Constant) for _, call in calls):
        module, call = calls[0]
        if not _limits_visible(code):
            yield Finding(
                "warning",
                "fixed-device",
                module.where(call),
                f"every process uses GPU {ast.unparse(call.args[0])}, so the {code.processes} processes of a node "
                "share one GPU",
                "select the GPU by the local rank: torch.cuda.set_device(local_rank)",
            )


def _unplaced(code: Code) -> Iterator[Finding]:
    """Yield a warning where the GPU is used and nothing chooses one: then it is the first one, for each process."""
    trains_together = any(name == INIT or is_ddp(name) for _, _, name in code.reached.calls)
    if (code.processes or 0) <= 1 or code.has_framework or not trains_together or _chooses(code):
        return
    for module, call, name in code.reached.calls:
        is_default = (
            isinstance(call.func, ast.Attribute) and call.func.attr == "cuda" and not (call.args or call.keywords)
        )
        chosen = _device_of(call, name)
        if (is_default and not name.startswith("torch.")) or (chosen is not None and _is_any_gpu(code, chosen, module)):
            yield Finding(
                "warning",
                "fixed-device",
                module.where(call),
                f"no process selects its GPU: all {code.processes} processes of a node use the first one, cuda:0",
                'select it by the local rank: torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))',
            )
            return


def _chooses(code: Code) -> bool:
    """Return whether anything may choose a GPU."""
    sets = any(name.startswith(("set_device", "set_default_device", "init_device_mesh")) for name in code.names)
    names_one = any("cuda:" in text for text in code.texts) or _limits_visible(code)
    return sets or names_one or bool(code.program.broken or code.program.unread) or _takes_number(code)


def _takes_number(code: Code) -> bool:
    """Return whether a device is chosen by anything but a written name of no number."""
    for module, call, name in code.program.calls:
        chosen = _device_of(call, name)
        several = name == "torch.device" and len(call.args) > 1
        if several or (chosen is not None and code.values.of(chosen, module) is UNKNOWN and not _is_named(chosen)):
            return True
    return any(keyword.arg == "device_id" for _, keyword in code.program.of(ast.keyword))


def _is_named(node: ast.expr) -> bool:
    """Return whether a device is given by a variable, whose value is looked at where it is made."""
    return isinstance(node, (ast.Name, ast.Attribute)) and "device" in ast.unparse(node)


def _is_any_gpu(code: Code, chosen: ast.expr, module: Module) -> bool:
    return code.values.of(chosen, module) == "cuda" and not isinstance(chosen, ast.Name)


def _hidden(code: Code) -> Iterator[Finding]:
    """Yield a warning where the processes see fewer GPUs than there are processes on a node."""
    where, visible = "env", code.facts.environment.get(_VISIBLE, UNKNOWN)
    for module, node in code.program.of(ast.Subscript):
        is_variable = code.program.name_of(node.value, module) == "os.environ"
        if is_variable and isinstance(node.ctx, ast.Store) and code.values.of(node.slice, module) == _VISIBLE:
            parent = module.parents.get(node)
            value = code.values.of(parent.value, module) if isinstance(parent, ast.Assign) else UNKNOWN
            where, visible = module.where(node), value if code.reached.is_sure(node, module) else UNKNOWN
    seen = [number for number in visible.split(",") if number.strip()] if isinstance(visible, str) else []
    if seen and seen != ["-1"] and len(seen) < (code.processes or 0):
        yield Finding(
            "warning",
            "hidden-gpus",
            where,
            f"{_VISIBLE} is {visible}: the {code.processes} processes of a node see only {len(seen)} of its GPUs",
            "leave the variable alone: the local rank selects the GPU",
        )


def _more_processes(code: Code) -> Iterator[Finding]:
    """Yield a warning where a node has more processes than GPUs."""
    gpus, processes = code.facts.gpus or 0, code.facts.nproc or 0
    if 0 < gpus < processes and "cuda" in code.names:
        yield Finding(
            "warning",
            "more-processes",
            "resources.nproc_per_node",
            f"{processes} processes on nodes with {gpus} GPUs: the others have no GPU of their own",
            f"set resources.nproc_per_node: {gpus}",
        )


def _is_one_device(value: Any) -> bool:
    """Return whether a value is the number of a GPU, or its name."""
    is_number = isinstance(value, int) and not isinstance(value, bool) and value >= 0
    return is_number or (value is not UNKNOWN and _DEVICE.fullmatch(str(value)) is not None)


def _only_devices(code: Code) -> Iterator[tuple[Module, ast.Call, str]]:
    """Yield what surely makes the device that things are sent to, whatever else is placed by rank."""
    for module, call, name in code.reached.calls:
        is_written = all(isinstance(value, ast.Constant) for value in call.args)
        if name == "torch.device" and is_written and code.reached.is_sure(call, module):
            statement = module.parents.get(call)
            target = statement.targets[0] if isinstance(statement, ast.Assign) else None
            if isinstance(target, ast.Name) and len(module.stores[module.tree, target.id]) == 1:
                if any(_is_sent_to(other, target.id) for other in module.of(ast.Call)):
                    yield module, call, name


def _is_sent_to(call: ast.Call, device: str) -> bool:
    is_send = isinstance(call.func, ast.Attribute) and call.func.attr in ("to", "set_device")
    return is_send and bool(call.args) and isinstance(call.args[0], ast.Name) and call.args[0].id == device


def _device_of(call: ast.Call, name: str) -> ast.expr | None:
    """Return the expression that chooses a device, if a call has one."""
    if name in ("torch.device", "torch.cuda.set_device"):
        return call.args[1] if len(call.args) > 1 else (call.args[0] if call.args else None)
    if isinstance(call.func, ast.Attribute) and call.func.attr in ("to", "cuda") and not name.startswith("torch."):
        return call.args[0] if call.args else argument(call, "device")
    return None


def _mapped_device(code: Code, call: ast.Call, module: Module) -> ast.expr | None:
    """Return the device that a whole model is put on by `device_map={"": …}`."""
    given = argument(call, "device_map")
    choices = _assigned(code, given, module) if isinstance(given, ast.Name) else [given]
    for choice in choices:
        if isinstance(choice, ast.Dict) and len(choice.keys) == 1 and code.values.of(choice.keys[0], module) == "":
            return choice.values[0]
    return None


def _assigned(code: Code, name: ast.Name, module: Module) -> list[ast.expr]:
    """Return what a variable is set to by the assignments of its function that are reached."""
    stores = module.stores.get((module.function_of(name) or module.tree, name.id), ())
    parents = (module.parents.get(store) for store in stores)
    return [node.value for node in parents if isinstance(node, ast.Assign) and code.reached.of(node, module)]


def _places_by_rank(code: Code) -> bool:
    """Return whether any line chooses a device by something that is not written down."""
    for module, node in code.program.of(ast.JoinedStr, ast.BinOp, ast.keyword, ast.Call):
        if isinstance(node, ast.JoinedStr) and "cuda:" in ast.unparse(node):
            return True
        if isinstance(node, ast.BinOp) and isinstance(node.left, ast.Constant):
            if isinstance(node.left.value, str) and _FREE_DEVICE.match(node.left.value):
                return True
        if isinstance(node, ast.keyword) and node.arg in ("device_ids", "output_device"):
            items = node.value.elts if isinstance(node.value, ast.List) else [node.value]
            if not all(isinstance(item, ast.Constant) for item in items):
                known = [code.values.of(item, module) for item in items]
                texts = [_device_text(code, item, module) for item in items]
                is_open = any(value is UNKNOWN or isinstance(value, Several) for value in known)
                is_written = all(_DEVICE.fullmatch(text) for text in texts)
                if is_open and not is_written and not all(ast.unparse(item) == "device" for item in items):
                    return True
        if isinstance(node, ast.Call):
            chosen = _device_of(node, code.program.name_of(node.func, module))
            name = ast.unparse(chosen) if chosen is not None else ""
            is_written = isinstance(chosen, ast.Constant) or chosen is None
            is_written = is_written or _DEVICE.fullmatch(_device_text(code, chosen, module)) is not None
            is_written = is_written or ("rank" not in name and _is_one_device(code.values.of(chosen, module)))
            is_rank = "rank" in name or "gpu" in name or "device_id" in name or "local" in name
            is_set = isinstance(node.func, ast.Attribute) and node.func.attr == "set_device" and name != "device"
            if not is_written and (is_rank or (is_set and code.values.of(chosen, module) is UNKNOWN)):
                return True
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod) and "rank" in ast.unparse(node.left).lower():
            return True
    return False


# ── the rank of all nodes as the number of a device of one ──────────────────────────────────────────────────────────


def _by_global_rank(code: Code) -> Iterator[Finding]:
    if code.facts.nodes == 1 or code.processes == 1:
        return
    if not code.facts.has_launcher:
        yield from _by_rank_of_spawned(code)
        return
    if (code.processes or 0) <= 1:
        return
    yield from _named_by_global_rank(code)
    for module, call, name in code.reached.calls:
        mapped = _mapped_device(code, call, module)
        for chosen in (*_numbers_of_devices(call, name), *([mapped] if mapped is not None else [])):
            if _is_global_rank(code, chosen, module):
                last = code.facts.nodes * (code.processes or 1) - 1
                yield Finding(
                    code.level_of(call, module),
                    "rank-as-device",
                    module.where(chosen),
                    f"{ast.unparse(chosen)} is the rank among all processes but is used as the GPU number on one node: "
                    f"rank {last} would use cuda:{last}, but a node has {code.facts.gpus or code.processes}",
                    'use the local rank: int(os.environ["LOCAL_RANK"])',
                )
                return


def _by_rank_of_spawned(code: Code) -> Iterator[Finding]:
    """Yield a warning for `node_rank * n + local_rank` as the number of a device, where processes are spawned."""
    for module, call, name in code.reached.calls:
        for chosen in _numbers_of_devices(call, name):
            made = code.values.assigned(chosen, module) if isinstance(chosen, ast.Name) else None
            is_sum = isinstance(made, ast.BinOp) and isinstance(made.op, ast.Add)
            if is_sum and re.search(r"(?:node_)?rank \* |\* (?:\w+\.)?(?:node_)?rank\b", ast.unparse(made)):  # type: ignore[arg-type]
                yield Finding(
                    "warning",
                    "rank-as-device",
                    module.where(chosen),
                    f"{ast.unparse(chosen)} is the rank among all processes but is used as the GPU number on one node",
                    "use the number of the process on its node, which mp.spawn passes first",
                )
                return


def _named_by_global_rank(code: Code) -> Iterator[Finding]:
    """Yield a warning for a name such as f"cuda:{rank}" that is put together where its use is not seen."""
    for module, node in code.program.of(ast.JoinedStr):
        parent = module.parents.get(node)
        is_device = len(node.values) == 2 and ast.unparse(node.values[0]) == "'cuda:'"  # noqa: PLR2004
        number = node.values[-1].value if is_device and isinstance(node.values[-1], ast.FormattedValue) else None
        if number is None or not isinstance(parent, ast.Assign) or not code.reached.of(parent, module):
            continue
        if _is_global_rank(code, number, module) and not _is_taken_once(code, parent, module):
            yield Finding(
                "warning",
                "rank-as-device",
                module.where(node),
                f"{ast.unparse(number)} is the rank among all processes but is used as the GPU number on one node",
                'use the local rank: int(os.environ["LOCAL_RANK"])',
            )
            return


def _is_taken_once(code: Code, statement: ast.Assign, module: Module) -> bool:
    """Return whether the variable is set here only: then what uses it is judged."""
    target = statement.targets[0]
    return isinstance(target, ast.Name) and code.values.assigned(target, module) is not None


def _numbers_of_devices(call: ast.Call, name: str) -> Iterator[ast.expr]:
    """Yield the expressions that a call takes as the number of a device."""
    chosen = _device_of(call, name)
    if isinstance(chosen, ast.JoinedStr) and chosen.values and isinstance(chosen.values[-1], ast.FormattedValue):
        yield chosen.values[-1].value
    elif isinstance(chosen, ast.BinOp) and isinstance(chosen.left, ast.Constant):
        yield chosen.right
    elif chosen is not None:
        yield chosen
    for keyword in call.keywords:
        if keyword.arg == "device_ids" and isinstance(keyword.value, ast.List):
            yield from keyword.value.elts[:1]


def _is_global_rank(code: Code, node: ast.AST, module: Module, depth: int = 0) -> bool:
    """Return whether an expression is the rank among the processes of all nodes."""
    value = code.values.of(node, module)
    if isinstance(value, Several) and value == code.facts.rank:
        return True
    if isinstance(node, ast.Subscript) and code.program.name_of(node.value, module) == "os.environ":
        return bool(code.values.of(node.slice, module) == contract.RANK)
    if isinstance(node, ast.Call):
        name = code.program.name_of(node.func, module)
        if name in ("os.environ.get", "os.getenv") and node.args:
            return bool(code.values.of(node.args[0], module) == contract.RANK)
        if name in _GET_RANK:
            return not node.args and not node.keywords
    sources = _sources_of_rank(code, node, module) if depth < _DEEPEST else []
    return bool(sources) and all(_is_global_rank(code, source, home, depth + 1) for home, source in sources)


def _sources_of_rank(code: Code, node: ast.AST, module: Module) -> list[tuple[Module, ast.expr]]:
    """Return the expressions that a number is taken from: what it is converted from, set to, given or returned by."""
    if isinstance(node, ast.Call):
        name = code.program.name_of(node.func, module)
        is_conversion = name in ("int", "str") and len(node.args) == 1
        returned = [(home, value) for home, value in _returned(code, name) if not isinstance(value, ast.Constant)]
        return [(module, node.args[0])] if is_conversion else returned
    if isinstance(node, ast.BoolOp):
        return [(module, node.values[0])]
    if isinstance(node, ast.Attribute):
        return _stored(code, node.attr)
    if not isinstance(node, ast.Name):
        return []
    assigned = code.values.assigned(node, module)
    given = _given(code, node, module) if assigned is None else (module, assigned)
    return [given] if given else []


def _returned(code: Code, name: str) -> list[tuple[Module, ast.expr]]:
    """Return what a function of the program returns."""
    found = code.program.definition(name)
    if found is None or isinstance(found[1], ast.ClassDef):
        return []
    return [(found[0], value) for value in returned_values(found[1])]


def _stored(code: Code, attribute: str) -> list[tuple[Module, ast.expr]]:
    """Return the values that an attribute is set to, wherever that is, constants left out."""
    found: list[tuple[Module, ast.expr]] = []
    for module, node in code.program.attribute_stores.get(attribute, ()):
        parent = module.parents.get(node)
        if not isinstance(parent, ast.Assign) or node not in parent.targets:
            return []
        if code.reached.of(parent, module) and not isinstance(parent.value, ast.Constant):
            found.append((module, parent.value))
    return found


def _given(code: Code, name: ast.Name, module: Module) -> tuple[Module, ast.expr] | None:
    """Return what a parameter is given, of a function that is called in one place."""
    for scope in module.above(name):
        if isinstance(scope, (ast.FunctionDef, ast.AsyncFunctionDef)):
            if name.id not in parameters(scope):
                continue
            calls = code.program.calls_of.get(module.called_as(scope), ())
            value = given_for(calls[0][1], scope, name.id) if len(calls) == 1 else None
            return (calls[0][0], value) if value is not None else None
    return None
