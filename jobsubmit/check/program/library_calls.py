"""What functions of Python, of torch and of configuration libraries return, as far as a job decides it."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

from jobsubmit.check.program.configuration import OPENERS, READERS, OpenFile, read_configuration
from jobsubmit.check.program.facts import ASK_FOR_GPUS, ONLY_ON_MACS, named_as_in_torch
from jobsubmit.check.program.module import Module, spelled
from jobsubmit.check.program.omegaconf import value_of_omegaconf
from jobsubmit.check.program.operations import (
    CONVERT,
    LONGEST_RANGE,
    PATH_FUNCTIONS,
    PATH_METHODS,
    TEXT_METHODS,
    UNKNOWN,
    Several,
    is_instance,
    lifted,
)
from jobsubmit.check.program.program import CONFIGURATION
from jobsubmit.check.program.python_configuration import read_python_configuration
from jobsubmit.check.program.tree import walk

if TYPE_CHECKING:
    from jobsubmit.check.program.values import Values

_PLAIN_FORMAT = re.compile(r"(?:[^{}]|\{\d?(?::\w{0,3})?\})*")  # neither fields of objects nor wide columns
_OMEGACONF = ("omegaconf.OmegaConf.", "OmegaConf.")
_PARSES = ("parse_args", "parse_intermixed_args")
# rootutils, by both of its names: it also adds the folder to the places of modules.
FINDS_ROOT = tuple(f"{name}.{what}_root" for name in ("rootutils", "pyrootutils") for what in ("setup", "find"))
_ROOT_SIGNS = ("setup.cfg", "setup.py", "pyproject.toml")
_MAPPINGS = frozenset(
    ["dict", "Namespace", "SimpleNamespace", "EasyDict", "edict", "AttrDict", "Munch", "Box", "DotDict", "ConfigDict"]
)


def value_of_call(values: Values, name: str, node: ast.Call, module: Module) -> Any:
    """Return what a function returns, by its whole name; UNKNOWN for one that is not known. May raise any error."""
    if name.rpartition(".")[2] in _MAPPINGS:
        return _mapping(values, node, module)
    name = named_as_in_torch(name)
    if name.startswith("torch.") and (value := _of_torch(values, name, node)) is not None:
        return value
    if name in ("os.environ.get", "os.getenv") and node.args:
        value = values.variable(values.of(node.args[0], module))
        if value is None:
            return values.of(node.args[1], module) if len(node.args) > 1 else None
        return value
    if name in PATH_FUNCTIONS and not node.keywords:
        return PATH_FUNCTIONS[name](*(values.required(item, module) for item in node.args))
    if name in ("os.path.exists", "os.path.isfile", "os.path.isdir"):
        return False if node.args and values.of(node.args[0], module) == "" else UNKNOWN
    if name in FINDS_ROOT:
        return _root_of(values, module)
    if name in ("copy.deepcopy", "copy.copy") and len(node.args) == 1:
        return values.of(node.args[0], module)
    if name == "tempfile.gettempdir":
        return "/tmp"  # noqa: S108 - it is what the function returns on the nodes
    if name in OPENERS:
        return OpenFile(str(values.required(node.args[0], module)))
    if name.startswith(_OMEGACONF):
        return value_of_omegaconf(values, name.rpartition(".")[2], node, module)
    if (spelled(node.func).endswith("Config.fromfile") or name == "runpy.run_path") and node.args:
        return read_python_configuration(values.program, str(values.required(node.args[0], module)))
    if name in READERS:
        file = values.of(node.args[0], module)
        file = _read_by_lines(values, node.args[0], module) if file is UNKNOWN else file
        return UNKNOWN if file is None else read_configuration(values.program, file, READERS[name])
    if name == "range" and not node.keywords:
        bounds = [values.of(item, module) for item in node.args]
        is_short = UNKNOWN not in bounds and len(range(*bounds)) < LONGEST_RANGE
        return list(range(*bounds)) if is_short else UNKNOWN
    if name == "min" and _has_no_less_than_0(values, node, module):
        return 0
    if name in ("hasattr", "getattr") and len(node.args) > 1:
        return _field_by_name(values, name, node, module)
    if name == "vars" and len(node.args) == 1:
        return arguments_as_mapping(values, node.args[0], module)
    if name == "isinstance" and len(node.args) > 1:
        return is_instance(values.required(node.args[0], module), node.args[1])
    if name in CONVERT and not node.keywords:
        return lifted(CONVERT[name], *(values.required(item, module) for item in node.args))
    return _method(values, node.func, node, module) if isinstance(node.func, ast.Attribute) else UNKNOWN


def _root_of(values: Values, module: Module) -> PurePosixPath:
    """Return the folder that rootutils finds from a module: the nearest with a sign of a project, else that of all."""
    known = {*values.program.paths, *values.program.configurations}
    folders = PurePosixPath(module.path).parents
    return next((one for one in folders if any(str(one / sign) in known for sign in _ROOT_SIGNS)), PurePosixPath())


def _field_by_name(values: Values, function: str, node: ast.Call, module: Module) -> Any:
    """Return what `hasattr(args, "fast")` or `getattr(args, "fast", False)` is, of parsed arguments or a mapping."""
    key, held = values.required(node.args[1], module), values.namespaces.hold(node.args[0], module)
    if not held and not CONFIGURATION.search(spelled(node.args[0]).rpartition(".")[2]):
        return UNKNOWN  # of a model or the like: it has more than its code says
    fields = values.arguments if held else values.of(node.args[0], module)
    is_set = key in values.program.attribute_stores
    if not isinstance(fields, Mapping) or (key not in fields and (not held or is_set or _may_be_option(values, key))):
        return UNKNOWN
    if function == "hasattr":
        return key in fields
    if is_set:
        return UNKNOWN
    return fields[key] if key in fields else values.of(node.args[2], module) if node.args[2:] else UNKNOWN


def _may_be_option(values: Values, name: str) -> bool:
    """Return whether the program may declare an argument of a name: a text in it is this name, or not all are known."""
    return values.leftover is None or not {name, f"-{name}", f"--{name}", f"--{name.replace('_', '-')}"}.isdisjoint(
        values.program.texts
    )


def _read_by_lines(values: Values, node: ast.expr, module: Module) -> OpenFile | None:
    """Return the file whose lines a loop adds to a text: `for line in file: text += line.split("//")[0]`."""
    for loop in walk(module.scope_of(node)) if isinstance(node, ast.Name) else ():
        if isinstance(loop, ast.For):
            added = (one.target for one in walk(loop) if isinstance(one, ast.AugAssign))
            file = values.of(loop.iter, module) if any(spelled(one) == spelled(node) for one in added) else None
            if isinstance(file, OpenFile):
                return file
    return None


def arguments_as_mapping(values: Values, node: ast.expr, module: Module) -> Any:
    """Return the parsed arguments by name, if an expression is them; what the program sets later is not known."""
    is_parsed = isinstance(node, ast.Call) and spelled(node.func).rpartition(".")[2] in _PARSES
    is_kept = values.namespaces.hold(node, module)
    may_have_defaults = is_parsed and "set_defaults" in values.program.attribute_loads
    if not (is_parsed or is_kept) or may_have_defaults:
        return UNKNOWN
    places = values.program.attribute_stores
    changed = {name for name in places if any(spelled(place.value) != "self" for _, place in places[name])}
    return {name: UNKNOWN if name in changed else value for name, value in values.arguments.items()} or UNKNOWN


def _has_no_less_than_0(values: Values, node: ast.Call, module: Module) -> bool:
    """Return whether the least of some numbers is 0: it is among them, and the others are lengths."""
    others = [item for item in node.args if values.of(item, module) != 0]
    return len(others) < len(node.args) and all(
        isinstance(item, ast.Call) and spelled(item.func) == "len" for item in others
    )


def _of_torch(values: Values, name: str, node: ast.Call) -> Any:
    """Return what torch says of GPUs and of the process group; None for another function."""
    facts = values.facts
    if name in ASK_FOR_GPUS:
        gpus = facts.gpus_seen
        return gpus if gpus is UNKNOWN or name.endswith("count") else gpus > 0
    if name == "torch.distributed.is_available":
        return True
    if name in ONLY_ON_MACS:
        return False
    if name == "torch.distributed.is_nccl_available":
        return facts.has_nccl
    if name == "torch.distributed.is_initialized" and values.has_group:
        return True
    if node.args or node.keywords:
        return None
    if name == "torch.distributed.get_rank":
        return facts.rank
    if name == "torch.distributed.get_world_size":
        return facts.world_size
    return None


def _mapping(values: Values, node: ast.Call, module: Module) -> Any:
    """Return the mapping that is made of another one, or of keywords: `Namespace(**settings)`."""
    found: dict[Any, Any] = {}
    for item in node.args:
        found |= values.required(item, module)
    for keyword in node.keywords:
        if keyword.arg is None:
            found |= values.required(keyword.value, module)
        else:
            found[keyword.arg] = values.of(keyword.value, module)
    return found


def _method(values: Values, method: ast.Attribute, node: ast.Call, module: Module) -> Any:
    """Return what a method of a path, a file, a text or a mapping returns."""
    name, owner = method.attr, values.of(method.value, module)
    if owner is UNKNOWN or node.keywords:
        return UNKNOWN
    if name in PATH_METHODS and not node.args and isinstance(owner, (str, PurePosixPath)):
        return PATH_METHODS[name](owner)
    if name == "joinpath" and isinstance(owner, PurePosixPath):
        return owner.joinpath(*(values.required(item, module) for item in node.args))
    if name in ("open", "read_text", "read") and isinstance(owner, (PurePosixPath, OpenFile)):
        return owner if isinstance(owner, OpenFile) else OpenFile(str(owner))
    if isinstance(owner, dict) and name == "keys":
        return list(owner)
    if isinstance(owner, dict) and name in ("get", "pop") and node.args:
        key = values.required(node.args[0], module)
        return owner[key] if key in owner else values.of(node.args[1], module) if node.args[1:] else None
    if name == "join" and isinstance(owner, str) and len(node.args) == 1:
        return lifted(lambda *parts: owner.join(parts), *values.required(node.args[0], module))
    if name == "is_integer" and isinstance(owner, float):
        return owner.is_integer()
    if name == "format" and isinstance(owner, str) and _PLAIN_FORMAT.fullmatch(owner):
        return lifted(owner.format, *(values.required(item, module) for item in node.args))
    if name in TEXT_METHODS and isinstance(owner, (str, Several)):
        given = [values.required(item, module) for item in node.args]
        return lifted(lambda text, *rest: getattr(text, name)(*rest), owner, *given)
    return UNKNOWN
