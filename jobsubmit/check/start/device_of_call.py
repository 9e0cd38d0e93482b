"""Which device a call places something on, as it is written."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from jobsubmit.check.code import Code
from jobsubmit.check.program.calls import argument
from jobsubmit.check.program.module import Module, class_around, returned_values, spelled
from jobsubmit.check.program.objects import made
from jobsubmit.check.program.tree import walk
from jobsubmit.check.program.variables import assigned_to

DEEPEST = 6
_TYPES = re.compile(r"(?:^|\.)dtype$|^torch\.(?:b?float\d*|double|half|u?int\d*|long|short|bool)$")
_NUMBERS = ("device_id", "output_device")  # arguments of FSDP, DistributedDataParallel and init_process_group


def device_text(code: Code, node: ast.AST | None, module: Module, depth: int = 0) -> str:
    """Return a device as text, as far as it is known: `cuda`, `cuda:0`, `cuda:` with a number that is not."""
    value = code.values.of(node, module)
    if isinstance(value, str):
        return value
    if isinstance(node, ast.JoinedStr) and node.values and isinstance(node.values[0], ast.Constant):
        return str(node.values[0].value)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "format":
        pattern = node.func.value
        return str(pattern.value).partition("{")[0] if isinstance(pattern, ast.Constant) else ""
    if isinstance(node, ast.Attribute) and depth < DEEPEST:
        texts = {device_text(code, one, home, depth + 1) for home, one in values_of_own_field(code, node, module)}
        return texts.pop() if len(texts) == 1 else ""
    source = _source_of_device(code, node, module)
    if source is not None and depth < DEEPEST:
        text = device_text(code, source, module, depth + 1)
        has_number = isinstance(node, ast.Call) and (len(node.args) > 1 or argument(node, "index") is not None)
        return f"{text}:" if has_number and text in ("cpu", "cuda") else text
    is_call = isinstance(node, ast.Call) and depth < DEEPEST
    return _returned_device(code, code.program.name_of(node.func, module), depth) if is_call else ""  # type: ignore[union-attr]


def values_of_own_field(code: Code, node: ast.Attribute, module: Module) -> list[tuple[Module, ast.expr | None]]:
    """Return what the class of an object sets a field to, in this job: `self.device = torch.device("cuda", rank)`."""
    found = None if spelled(node.value) == "self" else made(code.program, node.value, module)
    owner = class_around(node, module) if spelled(node.value) == "self" else found.owner if found is not None else None
    stores = code.program.attribute_stores.get(node.attr, ()) if owner is not None else ()
    own = [(home, one) for home, one in stores if spelled(one.value) == "self" and class_around(one, home) is owner]
    return [(home, assigned_to(one, home)) for home, one in own if code.reached.of(one, home)]


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
    returned = values_returned_by(code, name)
    texts = {device_text(code, value, home, depth + 1) for home, value in returned if code.reached.of(value, home)}
    known = texts - {"cpu"}
    return known.pop() if len(known) == 1 else ""


def device_of(call: ast.Call, name: str) -> ast.expr | None:
    """Return the expression that chooses a device, if a call has one."""
    if name in ("torch.device", "torch.cuda.set_device"):
        return call.args[1] if len(call.args) > 1 else (call.args[0] if call.args else None)
    if isinstance(call.func, ast.Attribute) and call.func.attr in ("to", "cuda") and not name.startswith("torch."):
        given = call.args[0] if call.args else argument(call, "device")
        return None if _TYPES.search(spelled(given) if given is not None else "") else given
    return None


def mapped_device(code: Code, call: ast.Call, module: Module) -> ast.expr | None:
    """Return the device that a whole model is put on by `device_map={"": …}`."""
    given = argument(call, "device_map")
    choices = set_in_this_job(code, given, module) if isinstance(given, ast.Name) else [given]
    for choice in choices:
        if isinstance(choice, ast.Dict) and len(choice.keys) == 1 and code.values.of(choice.keys[0], module) == "":
            return choice.values[0]
    return None


def set_in_this_job(code: Code, name: ast.Name, module: Module) -> list[ast.expr]:
    """Return what a variable is set to by the assignments of its function that are reached."""
    stores = module.stores.get((module.function_of(name) or module.tree, name.id), ())
    parents = (module.parents.get(store) for store in stores)
    return [node.value for node in parents if isinstance(node, ast.Assign) and code.reached.of(node, module)]


def numbers_of_devices(call: ast.Call, name: str) -> Iterator[ast.expr]:
    """Yield the expressions that a call takes as the number of a device."""
    chosen = device_of(call, name)
    if chosen is not None:
        yield number_in_text(chosen) or chosen
    for keyword in call.keywords:
        if keyword.arg in _NUMBERS and name.startswith("torch."):
            yield keyword.value
        if keyword.arg == "device_ids" and isinstance(keyword.value, ast.List):
            yield from keyword.value.elts[:1]
        if keyword.arg == "device_map" and isinstance(keyword.value, ast.Dict) and len(keyword.value.values) == 1:
            yield keyword.value.values[0]
        if keyword.arg == "map_location" and name == "torch.load":
            places = keyword.value.values if isinstance(keyword.value, ast.Dict) else [keyword.value]
            yield from (number for place in places if (number := number_in_text(place)) is not None)


def number_in_text(node: ast.expr) -> ast.expr | None:
    """Return what is put into the name of a device: `rank` of f"cuda:{rank}", "cuda:%d" % rank, "cuda:" + str(rank)."""
    match node:
        case ast.JoinedStr(values=[*_, ast.FormattedValue(value=number)]):
            return number
        case ast.BinOp(left=ast.Constant(), right=number):
            return number
        case ast.Call(func=ast.Attribute(value=ast.Constant(), attr="format"), args=[number]):
            return number
    return None


def begins_with_cuda(node: ast.expr) -> bool:
    """Return whether the name of a device that a number is put into is that of a GPU: `"cuda:{}".format(rank)`."""
    texts = (one.value for one in walk(node) if isinstance(one, ast.Constant) and isinstance(one.value, str))
    return next(texts, "").startswith("cuda:")


def values_returned_by(code: Code, name: str) -> list[tuple[Module, ast.expr]]:
    """Return what a function of the program returns."""
    found = code.program.definition(name)
    if found is None or isinstance(found[1], ast.ClassDef):
        return []
    return [(found[0], value) for value in returned_values(found[1])]
