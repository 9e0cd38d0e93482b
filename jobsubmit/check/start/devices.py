"""Devices: all processes on one GPU, a GPU that a node does not have, GPUs where there are none."""

from __future__ import annotations

import ast
import itertools
import re
from collections.abc import Iterator
from typing import Any

from jobsubmit.check.code import INIT, Code, is_count, is_ddp
from jobsubmit.check.program.calls import Reach, argument, hides_arguments
from jobsubmit.check.program.module import Module, unparsed
from jobsubmit.check.program.operations import UNKNOWN, Several
from jobsubmit.check.program.tree import walk
from jobsubmit.check.program.variables import assigned_to, values_of_field
from jobsubmit.check.start.current_gpu import on_current_gpu
from jobsubmit.check.start.device_by_rank import by_global_rank
from jobsubmit.check.start.device_of_call import device_of, device_text, mapped_device, numbers_of_devices
from jobsubmit.check.start.no_gpus import each_for_itself, without_gpus
from jobsubmit.common.finding import Finding

_DEVICE = re.compile(r"cuda:\d+")
_FREE_DEVICE = re.compile(r"cuda:?({|%|$)")
_NUMBER_OF_GPU = re.compile(r"(?:^|\.)(?:local_rank|gpu|gpu_id|gpu_rank|device_id|device_index|local_gpu)$")
_VISIBLE = "CUDA_VISIBLE_DEVICES"


def check_devices(code: Code) -> Iterator[Finding]:
    """Yield what would put processes on the wrong device, the first of each kind."""
    if code.facts.gpus == 0:
        yield from without_gpus(code)
        yield from each_for_itself(code)
        return
    yield from itertools.islice(
        itertools.chain(_fixed(code), _always_set(code), _wrapped_for_one(code), _unplaced(code), on_current_gpu(code)),
        1,
    )
    yield from _hidden(code)
    yield from _hidden_from_each_other(code)
    yield from by_global_rank(code)
    yield from _counted_by_few(code)
    yield from _more_processes(code)


def _counted_by_few(code: Code) -> Iterator[Finding]:
    """Yield a warning for `rank % 2` as the number of a GPU, on nodes with more processes than two."""
    for module, number in _numbers(code) if code.facts.gpus and (code.processes or 0) > 1 else ():
        if not isinstance(number, ast.BinOp) or not isinstance(number.op, ast.Mod):
            continue
        few, most = code.values.of(number.right, module), min(code.processes or 0, code.facts.gpus or 0)
        if is_count(few) and 0 < few < most and _is_rank(code, number.left):
            yield Finding(
                "warning",
                "fixed-device",
                module.where(number),
                f"{unparsed(number)} chooses among {few} GPUs only: several of the {code.processes} processes of a "
                "node share one",
                "select the GPU by the local rank: torch.cuda.set_device(local_rank)",
            )
            return


def _numbers(code: Code) -> Iterator[tuple[Module, ast.expr]]:
    """Yield what is the number of a GPU, where it is used or where a variable of such a name is set."""
    for module, call, name in code.reached.calls:
        yield from ((module, number) for number in numbers_of_devices(call, name))
    for module, node in code.program.of(ast.Assign):
        if _NUMBER_OF_GPU.search(unparsed(node.targets[0])) and code.reached.of(node, module):
            yield module, node.value


def _fixed(code: Code) -> Iterator[Finding]:
    if (code.processes or 0) <= 1 or code.has_framework or not (code.is_distributed or code.facts.has_launcher):
        return
    if _limits_visible(code):
        return
    calls = _only_devices(code) if _places_by_rank(code) else code.reached.calls
    placed = [(module, call, device_of(call, name)) for module, call, name in calls]
    mapped = [(module, call, mapped_device(code, call, module)) for module, call, _ in code.reached.calls]
    for module, call, node in (*placed, *mapped):
        is_rank = node is not None and _is_rank(code, node)  # the launcher gives it, whatever its default is
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


def _is_rank(code: Code, node: ast.expr) -> bool:
    """Return whether an expression is named a rank, or a field that is set to one: `args.gpu = args.local_rank`."""
    set_to = values_of_field(code.program, node.attr) if isinstance(node, ast.Attribute) else ()
    return any("rank" in unparsed(one) for one in (node, *(value for _, value in set_to)) if one is not None)


def _limits_visible(code: Code) -> bool:
    """Return whether the code may hide GPUs from a process: then number 0 may be another one in each."""
    return any("VISIBLE_DEVICES" in name for name in code.names_in_use)


def _wrapped_for_one(code: Code) -> Iterator[Finding]:
    """Yield an error where every process wraps its model for the same GPU, or puts it there for that."""
    if (code.processes or 0) <= 1 or _limits_visible(code):
        return
    for module, call, name in code.reached.calls:
        if not is_ddp(name) or hides_arguments(call):
            continue
        ids, model = argument(call, "device_ids", 1), argument(call, "module", 0)
        places = ids.elts if isinstance(ids, ast.List) and len(ids.elts) == 1 else []
        if isinstance(model, ast.Call) and (chosen := device_of(model, "")) is not None:
            places = [*places, chosen]
        one = next((node for node in places if isinstance(node, ast.Constant) and _is_one_device(node.value)), None)
        if one is not None:
            yield Finding(
                code.level_of(call, module),
                "fixed-device",
                module.where(one),
                f"every process wraps its model for GPU {unparsed(one)}: the {code.processes} processes of a node "
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
                f"every process uses GPU {unparsed(call.args[0])}, so the {code.processes} processes of a node "
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
        chosen = device_of(call, name)
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
    """Return whether anything that may be executed chooses a GPU."""
    names = {name.rpartition(".")[2] for _, _, name in code.reached.calls}
    names |= {
        node.attr
        for module, node in code.program.of(ast.Attribute)
        if code.reached.of(node, module) or code.is_for_library(node, module)
    }
    sets = any(name.startswith(("set_device", "set_default_device", "init_device_mesh")) for name in names)
    texts = ((module, node) for module, node in code.program.of(ast.Constant) if "cuda:" in str(node.value))
    names_one = _limits_visible(code) or any(code.reached.of(node, module) for module, node in texts)
    is_whole = bool(code.followed) and all(one.is_whole for one in code.followed)
    is_known = not (code.program.broken or code.program.unread) and (is_whole or not code.looks_up_names)
    return sets or names_one or not is_known or _takes_number(code)


def _takes_number(code: Code) -> bool:
    """Return whether a device is chosen by anything but a written name of no number."""
    for module, call, name in code.reached.calls:
        if name == "torch.device" and isinstance(module.parents.get(call), ast.Expr):
            continue  # it selects nothing: it makes an object, which nothing keeps
        chosen = device_of(call, name)
        several = name == "torch.device" and len(call.args) > 1
        is_open = chosen is not None and any(code.values.of(one, module) is UNKNOWN for one in _choices(chosen))
        if several or (chosen is not None and is_open and not _is_named(chosen)):
            return True
    keywords = (pair for pair in code.program.of(ast.keyword) if pair[1].arg == "device_id")
    return any(code.reached.of(keyword, module) for module, keyword in keywords)


def _is_named(node: ast.expr) -> bool:
    """Return whether a device is given by a variable, whose value is looked at where it is made."""
    return isinstance(node, (ast.Name, ast.Attribute)) and "device" in unparsed(node)


def _is_any_gpu(code: Code, chosen: ast.expr, module: Module) -> bool:
    if isinstance(chosen, ast.IfExp) and not any(code.calls(INIT, least=Reach.SURELY)):
        return False
    return not isinstance(chosen, ast.Name) and any(code.values.of(one, module) == "cuda" for one in _choices(chosen))


def _choices(chosen: ast.expr) -> list[ast.expr]:
    """Return the devices that an expression may be: both of `"cuda" if … else "cpu"`."""
    return [chosen.body, chosen.orelse] if isinstance(chosen, ast.IfExp) else [chosen]


def _hidden(code: Code) -> Iterator[Finding]:
    """Yield a warning where the processes see fewer GPUs than there are processes on a node."""
    where, visible = "env", code.facts.environment.get(_VISIBLE, UNKNOWN)
    for module, node in _visible_set(code):
        made, reach = assigned_to(node, module), code.reached.of(node, module)
        value = code.values.of(made, module) if made is not None else UNKNOWN
        if reach:
            where, visible = module.where(node), value if reach is Reach.SURELY else UNKNOWN
    if isinstance(visible, str):
        yield from hidden_gpus(where, visible, code.processes or 0)


def _visible_set(code: Code) -> Iterator[tuple[Module, ast.Subscript]]:
    """Yield where the program sets which GPUs are visible: `os.environ["CUDA_VISIBLE_DEVICES"] = …`."""
    for module, node in code.program.of(ast.Subscript):
        is_variable = code.program.name_of(node.value, module) == "os.environ"
        if is_variable and isinstance(node.ctx, ast.Store) and code.values.of(node.slice, module) == _VISIBLE:
            yield module, node


def _hidden_from_each_other(code: Code) -> Iterator[Finding]:
    """Yield a warning where each process hides all GPUs but its own, and then selects that by its old number."""
    for module, node in _visible_set(code):
        made = assigned_to(node, module)
        own = re.sub(r"^str\((.*)\)$", r"\1", unparsed(made)) if made is not None else ""
        if "local_rank" not in own.lower() or not code.reached.of(node, module):
            continue
        for call in (one for one in walk(module.scope_of(node)) if isinstance(one, ast.Call)):
            is_set = code.program.name_of(call.func, module) == "torch.cuda.set_device" and call.lineno > node.lineno
            if is_set and call.args and unparsed(call.args[0]) == own and (code.processes or 0) > 1:
                yield Finding(
                    "warning",
                    "hidden-gpus",
                    module.where(call),
                    f"line {node.lineno} hides all GPUs but one from each process, so that this one is number 0: "
                    f"{unparsed(call)} fails",
                    f"leave {_VISIBLE} alone: the local rank selects the GPU",
                )
                return


def hidden_gpus(where: str, visible: str, processes: int) -> Iterator[Finding]:
    """Yield a warning if a value of CUDA_VISIBLE_DEVICES names fewer GPUs than there are processes on a node."""
    seen = [number for number in visible.split(",") if number.strip()]
    if seen and seen != ["-1"] and len(seen) < processes:
        yield Finding(
            "warning",
            "hidden-gpus",
            where,
            f"{_VISIBLE} is {visible}: the {processes} processes of a node see only {len(seen)} of its GPUs",
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


def _places_by_rank(code: Code) -> bool:
    """Return whether any line chooses a device by something that is not written down."""
    for module, node in code.program.of(ast.JoinedStr, ast.BinOp, ast.keyword, ast.Call):
        if isinstance(node, ast.JoinedStr) and "cuda:" in unparsed(node):
            return True
        if isinstance(node, ast.BinOp) and isinstance(node.left, ast.Constant):
            if isinstance(node.left.value, str) and _FREE_DEVICE.match(node.left.value):
                return True
        if isinstance(node, ast.keyword) and node.arg in ("device_ids", "output_device"):
            items = node.value.elts if isinstance(node.value, ast.List) else [node.value]
            if not all(isinstance(item, ast.Constant) for item in items):
                known = [code.values.of(item, module) for item in items]
                texts = [device_text(code, item, module) for item in items]
                is_open = any(value is UNKNOWN or isinstance(value, Several) for value in known)
                is_written = all(_DEVICE.fullmatch(text) for text in texts)
                if is_open and not is_written and not all(unparsed(item) == "device" for item in items):
                    return True
        if isinstance(node, ast.Call):
            chosen = device_of(node, code.program.name_of(node.func, module))
            name = unparsed(chosen) if chosen is not None else ""
            is_written = isinstance(chosen, ast.Constant) or chosen is None
            is_written = is_written or _DEVICE.fullmatch(device_text(code, chosen, module)) is not None
            is_written = is_written or ("rank" not in name and _is_one_device(code.values.of(chosen, module)))
            is_rank = "rank" in name or "gpu" in name or "device_id" in name or "local" in name
            is_set = isinstance(node.func, ast.Attribute) and node.func.attr == "set_device" and name != "device"
            if not is_written and (is_rank or (is_set and code.values.of(chosen, module) is UNKNOWN)):
                return True
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod) and "rank" in unparsed(node.left).lower():
            return True
    return False
