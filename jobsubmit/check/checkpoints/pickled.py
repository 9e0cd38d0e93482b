"""Objects in a checkpoint that torch.load refuses since torch 2.6, which loads nothing but tensors and plain values."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator

from jobsubmit.check.checkpoints.paths import saving_calls
from jobsubmit.check.code import Code
from jobsubmit.check.origins import last_value, origins, seen_through, set_to, words_of
from jobsubmit.check.program.calls import argument, given_for, hides_arguments
from jobsubmit.check.program.module import (
    FUNCTIONS,
    Module,
    class_around,
    is_of_self,
    own_method,
    returned_values,
    spelled,
    unparsed,
)
from jobsubmit.check.program.objects import SAME_MODEL, fields_of, is_torch_module, made
from jobsubmit.check.program.tree import walk
from jobsubmit.check.program.variables import assigned_to, parameters
from jobsubmit.check.program.yacs import MERGES
from jobsubmit.check.wrapper import is_wrapped
from jobsubmit.common.finding import Finding

_DEEPEST = 4  # functions that hand on a value
_FIRST_STRICT = (2, 6)  # torch.load(weights_only=True) is the default from here on
_OF_RESULTS = re.compile(r"result|predict|feature|embedding|stat[s.]")
_ENDINGS = {"pth", "ckpt", "tar", "bin", "tmp", "pkl", "model"}
_NUMBERS_OF_NUMPY = frozenset(
    [
        *("mean", "nanmean", "median", "average", "sum", "std", "var", "max", "min", "nanmax", "nanmin", "round"),
        *("array", "asarray", "zeros", "ones", "full", "concatenate", "stack", "arange", "float32", "float64"),
    ]
)
_BEGINNING = re.compile(r"None|-?(?:[\d.e+-]+|float\(['\"]-?inf['\"]\)|(?:np|numpy|math|torch)\.inf)")
_BEGINS_WITH = re.compile(r"pre_?trained|backbone")
_OWN = re.compile(r"resume|restart|last|latest")
_PATHS = ("Path", "PosixPath", "PurePath")
_MAKE_CONFIGURATIONS = tuple(f"omegaconf.OmegaConf.{name}" for name in ("load", "create", "merge", "structured"))
_ALLOWS = frozenset(["add_safe_globals", "safe_globals", "TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD"])


def check_pickled(code: Code, torch_version: str | None, requirements: str) -> Iterator[Finding]:
    """Yield a warning where a checkpoint holds an object, and it is loaded as if it held none.

    Of an unknown version of torch it is assumed that it refuses objects; `requirements` is a text that may say more.
    """
    is_old = _version(torch_version) < _FIRST_STRICT or (torch_version is None and _is_pinned(requirements))
    if is_old or _ALLOWS & code.names_in_use:
        return
    loads = [
        (module, call)
        for module, call in code.calls("torch.load")
        if argument(call, "weights_only") is None and not hides_arguments(call)
        if not _is_of_data(call, module) and not _is_of_model(code, call, module)
        if not _is_of_backbone(code, call, module)
        if not code.is_of_no_object(call, module)
    ]
    loads.sort(key=lambda load: "pretrained" in unparsed(load[1]))  # another file, most likely
    for module, call in code.calls("torch.save") if loads else ():
        for home, outer, path in saving_calls(code, call, module):
            own_loads = [load for load in loads if path is None or _may_load(code, load, path, home)]
            texts = [one.value for one in walk(path) if isinstance(one, ast.Constant)] if path is not None else []
            is_of_results = any(_OF_RESULTS.search(str(text)) for text in texts)
            objects = () if is_of_results else _objects(code, argument(outer, "obj", 0), home)
            for place, value, kind in objects if own_loads else ():
                yield Finding(
                    "warning",
                    "pickled-object",
                    own_loads[0][0].where(own_loads[0][1]),
                    f"torch 2.6 and later refuse to load this checkpoint: {place.where(value)} puts {kind} into it",
                    "save plain values instead, such as vars(args) or model.state_dict(), or load it with "
                    "weights_only=False",
                )
                return


def _may_load(code: Code, load: tuple[Module, ast.Call], path: ast.expr, module: Module) -> bool:
    """Return whether a call may load the file of a path: not where it names another one in place."""
    loaded = _names_in(load[1].args[:1])
    saved = _names_in([part for _, part in origins(code, path, module)])
    return not loaded or not saved or bool(loaded & saved)


def _names_in(parts: Iterable[ast.AST]) -> set[str]:
    """Return the words in the texts of some expressions, but for the endings of files."""
    constants = (one for part in parts for one in walk(part) if isinstance(one, ast.Constant))
    texts = [one.value for one in constants if isinstance(one.value, str)]
    return {word for text in texts for word in re.findall(r"[A-Za-z]{3,}", text)} - _ENDINGS


def _version(text: str | None) -> tuple[int, ...]:
    parts = [int(part) for part in (text or "").split(".")[:2] if part.isdigit()]
    return tuple(parts) if parts else _FIRST_STRICT


def _is_pinned(requirements: str) -> bool:
    """Return whether requirements ask for a torch that loads objects: `torch==1.13`, `torch<2.6`."""
    for pinned in re.finditer(r"^torch\s*[^#\n]*?(==|<=|<|~=)\s*(\d+)\.(\d+)", requirements, re.MULTILINE):
        version = (int(pinned[2]), int(pinned[3]))
        if version < _FIRST_STRICT or (pinned[1] == "<" and version == _FIRST_STRICT):
            return True
    return False


def _objects(
    code: Code, saved: ast.expr | None, module: Module, depth: int = 0
) -> Iterator[tuple[Module, ast.expr, str]]:
    """Yield the objects in what is saved, with what they are and where."""
    function = module.function_of(saved) if isinstance(saved, ast.Name) else None
    if isinstance(saved, ast.Name) and function is not None and saved.id in parameters(function) and depth < _DEEPEST:
        for home, call in code.program.calls_to(function, module):
            given = given_for(call, function, saved.id)
            if code.reached.of(call, home) and given is not None and given is not saved:
                yield from _objects(code, given, home, depth + 1)
    values = [(module, one) for one in _entries_of(code, saved, module)] if isinstance(saved, ast.Name) else []
    held = seen_through(saved, module)
    if isinstance(held, ast.Call) and (found := code.program.called(held, module)) is not None:
        returned = returned_values(found[1]) if isinstance(found[1], FUNCTIONS) else []
        if len(returned) == 1:
            module, held = found[0], seen_through(returned[0], found[0])
    if isinstance(held, ast.Dict):
        values += [(module, one) for one in held.values]
    elif isinstance(held, ast.Call) and unparsed(held.func) == "dict":
        values += [(module, keyword.value) for keyword in held.keywords]
    elif not values and isinstance(saved, ast.Name) and is_wrapped(code, saved, module) is not None:
        yield module, saved, "the whole model"
    for home, value in values:
        kind = "a whole model" if _is_whole_model(code, value, home) else _kind(code, value, home)
        if kind:
            yield home, value, kind


def _entries_of(code: Code, name: ast.Name, module: Module) -> Iterator[ast.expr]:
    """Yield what the function of a variable puts into it: `state["args"] = args`."""
    for home, node in code.program.changes.get(name.id, ()):
        parent = home.parents.get(node)
        is_entry = isinstance(node, ast.Subscript) and spelled(node.value) == name.id
        if is_entry and isinstance(parent, ast.Assign) and home.scope_of(node) is module.scope_of(name):
            yield from [parent.value] if code.reached.of(parent, home) else []


def _is_whole_model(code: Code, value: ast.expr, module: Module) -> bool:
    """Return whether a value is a model, or a copy of one: `deepcopy(model.module).half()`."""
    while isinstance(value, ast.Call):
        if spelled(value.func).rpartition(".")[2] == "deepcopy" and len(value.args) == 1:
            value = value.args[0]
        elif isinstance(value.func, ast.Attribute) and value.func.attr in SAME_MODEL:
            value = value.func.value
        else:
            return False
    if isinstance(value, ast.IfExp):
        return any(_is_whole_model(code, one, module) for one in (value.body, value.orelse))
    is_model = isinstance(value, (ast.Name, ast.Attribute)) and spelled(value).rpartition(".")[2] != "args"
    known = made(code.program, value, module)
    is_other = known is not None and not _is_model(known.owner)
    return is_model and not is_other and is_wrapped(code, value, module) is not None


def _kind(code: Code, value: ast.expr, module: Module) -> str:
    """Return what object a value is; empty for one that is plain, or not known."""
    if code.values.namespaces.hold(value, module):
        return "an argparse.Namespace" if code.line.kind == "argparse" else ""
    if kind := _kind_of_library(code, value, module) or _kind_of_optimizer(code, value, module):
        return kind
    if isinstance(value, ast.Call) and code.program.name_of(value.func, module) in ("dataclasses.asdict", "vars"):
        return "a pathlib.Path" if value.args and _holds_path(code, value.args[0], module) else ""
    maker: ast.AST | None = None
    if isinstance(value, ast.Name):
        maker = last_value(value, module)
        parts = [(home, part) for home, part in origins(code, value, module) if isinstance(part, ast.Call)]
        if any(code.program.name_of(part.func, home) == "argparse.Namespace" for home, part in parts):
            return "an argparse.Namespace"
    elif isinstance(value, ast.Attribute) and spelled(value.value) == "self":
        makers = [(home, one) for home, one in _values_of(code, value, module) if _class_of(code, one, home)]
        if len({_class_of(code, one, home) for home, one in makers}) == 1:
            module, maker = makers[0]
    known = made(code.program, value, module) if maker is None else None
    owner = known.owner if known is not None else _class_of(code, maker, module)
    if owner is None or "torch" in unparsed(owner).partition(":")[0]:
        return ""
    is_plain = any(unparsed(base) in ("dict", "list", "str", "int", "float", "tuple") for base in owner.bases)
    return "" if is_plain or _is_model(owner) else f"an object of {owner.name}"


def _values_of(code: Code, node: ast.expr, module: Module, depth: int = 0) -> Iterator[tuple[Module, ast.expr]]:
    """Yield what a variable, parameter or field may be set to, and not what it is only a part of."""
    given: list[tuple[Module, ast.expr | None]] = []
    function = module.function_of(node)
    match node:
        case ast.Call():
            yield module, node
        case ast.IfExp():
            given = [(module, node.body), (module, node.orelse)]
        case ast.Name() if function is not None and node.id in parameters(function):
            calls = code.program.calls_to(function, module)
            given = [(home, given_for(call, function, node.id)) for home, call in calls]
        case ast.Name() | ast.Attribute():
            given = set_to(code, node, module)
        case ast.Subscript():  # one of a mapping that is written down: `PRESETS[args.preset]`
            held = origins(code, node.value, module)
            given = [(home, one) for home, part in held for one in _entries_in(part)]
    for home, one in given if depth < _DEEPEST else ():
        if one is not None:
            yield from _values_of(code, one, home, depth + 1)


def _entries_in(node: ast.AST) -> list[ast.expr]:
    return node.values if isinstance(node, ast.Dict) else []


def _kind_of_library(code: Code, value: ast.expr, module: Module) -> str:
    """Return what object of a library a value is, if it is one."""
    if isinstance(value, ast.Call) and code.program.name_of(value.func, module) == "numpy.random.get_state":
        return "an array of NumPy"
    if isinstance(value, (ast.Name, ast.Attribute)) and _is_of_numpy(code, value, module):
        return "a number or an array of NumPy"
    if isinstance(value, (ast.Name, ast.Attribute)) and _is_of_omegaconf(code, value, module):
        return "a DictConfig"
    return "a CfgNode" if _is_config_node(code, value) else ""


def _kind_of_optimizer(code: Code, value: ast.expr, module: Module) -> str:
    """Return what the state of an optimizer of the program is that keeps a function in its groups, by their defaults.

    It is empty for other values.
    """
    if not isinstance(value, ast.Call) or getattr(value.func, "attr", "") != "state_dict":
        return ""
    owner = value.func.value if isinstance(value.func, ast.Attribute) else value
    for home, part in origins(code, owner, module):
        found = _class_of(code, part, home)
        maker = own_method(found, "__init__") if found is not None else None
        if found is None or maker is None or not any(spelled(base).endswith("Optimizer") for base in found.bases):
            continue
        if own_method(found, "state_dict") is not None:
            return ""
        kept = {one.id for node in walk(maker) for one in _defaults_in(node) if isinstance(one, ast.Name)}
        for name in sorted(kept & parameters(maker)):
            given = given_for(part, maker, name) if isinstance(part, ast.Call) else None
            defined = code.program.definition(code.program.name_of(given, home)) if given is not None else None
            if isinstance(given, ast.Lambda) or (defined is not None and isinstance(defined[1], FUNCTIONS)):
                return f"an optimizer whose groups hold the function {unparsed(given)}"
    return ""


def _defaults_in(node: ast.AST) -> list[ast.expr]:
    """Return what the settings of groups hold: `defaults = dict(lr=lr)`, or `super().__init__(params, dict(lr=lr))`."""
    held: list[ast.expr] = []
    match node:
        case ast.Assign(targets=[ast.Name(id="defaults")], value=value):
            held = [value]
        case ast.Call(func=ast.Attribute(attr="__init__"), args=args):
            held = args
    found: list[ast.expr] = []
    for one in held:
        match one:
            case ast.Dict(values=values):
                found += values
            case ast.Call(func=ast.Name(id="dict"), keywords=keywords):
                found += [keyword.value for keyword in keywords]
    return found


def _is_of_numpy(code: Code, value: ast.Name | ast.Attribute, module: Module) -> bool:
    """Return whether a variable or a field is set to what NumPy computes, such as `np.mean(scores)`."""
    stores = module.own_stores.get((module.scope_of(value), value.id), ()) if isinstance(value, ast.Name) else ()
    places = [(module, assigned_to(store, module)) for store in stores] or set_to(code, value, module)
    made = [(home, one) for home, one in places if one is not None]
    computed = [one for home, one in made if isinstance(one, ast.Call) and _computes(code, one, home)]
    others = [one for _, one in made if one not in computed and not _BEGINNING.fullmatch(unparsed(one))]
    return bool(computed) and not others


def _computes(code: Code, call: ast.Call, module: Module) -> bool:
    owner, _, name = code.program.name_of(call.func, module).rpartition(".")
    return owner == "numpy" and name in _NUMBERS_OF_NUMPY


def _is_of_omegaconf(code: Code, value: ast.expr, module: Module, depth: int = 0) -> bool:
    """Return whether a value is the configuration that Hydra gives to a function, or one that OmegaConf makes."""
    if isinstance(value, ast.Call):
        return code.program.name_of(value.func, module) in _MAKE_CONFIGURATIONS
    is_variable = isinstance(value, ast.Name) or (isinstance(value, ast.Attribute) and is_of_self(value))
    if not is_variable or depth > _DEEPEST:
        return False
    composed = code.values.composed
    function = module.function_of(value)
    if isinstance(value, ast.Name) and function is not None and value.id in parameters(function):
        if composed is not None and composed.function is function:
            return True
        calls = code.program.calls_to(function, module)
        given = [(home, given_for(call, function, value.id)) for home, call in calls]
    else:
        given = set_to(code, value, module)
    return bool(given) and all(one is not None and _is_of_omegaconf(code, one, home, depth + 1) for home, one in given)


def _is_config_node(code: Code, value: ast.expr) -> bool:
    """Return whether a value is the settings of yacs or fvcore, which their files and their code call `cfg`."""
    is_named = spelled(value).rpartition(".")[2] in ("cfg", "_cfg")
    makers = ("yacs.config", "fvcore.common.config", "detectron2.config")
    return is_named and code.program.imports(*makers) and not MERGES.isdisjoint(code.names_in_use)


def _holds_path(code: Code, node: ast.expr, module: Module) -> bool:
    """Return whether settings that are saved as a dictionary have a path among them, as parsed or in a dataclass."""
    if code.values.namespaces.hold(node, module):
        return any(option.type.rpartition(".")[2] in _PATHS for option in code.line.options)
    owners = {found for home, part in origins(code, node, module) if (found := _class_of(code, part, home))}
    fields = [field for owner in owners for field in fields_of(owner).values()]
    return any(spelled(field.annotation).rpartition(".")[2] in _PATHS for field in fields)


def _class_of(code: Code, node: ast.AST | None, module: Module) -> ast.ClassDef | None:
    """Return the class of the program that a call makes an object of."""
    found = code.program.definition(code.program.name_of(node.func, module)) if isinstance(node, ast.Call) else None
    return found[1] if found is not None and isinstance(found[1], ast.ClassDef) else None


def _is_model(definition: ast.ClassDef) -> bool:
    return any(unparsed(base).endswith("Module") for base in definition.bases)


def _is_of_model(code: Code, load: ast.Call, module: Module) -> bool:
    """Return whether a model loads its own weights when it is made."""
    owner = class_around(load, module)
    return owner is not None and is_torch_module(code.program, owner, module)


def _is_of_backbone(code: Code, load: ast.Call, module: Module) -> bool:
    """Return whether what is loaded is given as the weights that a part of the model begins with."""
    words = words_of(code, load.args[0], module) if load.args else ""
    words += getattr(module.function_of(load), "name", "")
    return _BEGINS_WITH.search(words) is not None and _OWN.search(words) is None


def _is_of_data(load: ast.Call, module: Module) -> bool:
    """Return whether what is loaded seems to be no checkpoint of this training: data, or another model."""
    text = f"{getattr(module.function_of(load), 'name', '')} {unparsed(load)}".lower()
    is_own = any(word in text for word in ("ckpt", "checkpoint", "resume", "last", "state"))
    is_other = any(word in text for word in ("teacher", "finetune", "fine_tune", "init_ckpt", "init_from"))
    return is_other or ("data" in text and not is_own)
