"""Functions of Python and of libraries whose results the job decides: they read its arguments, files and environment."""

from __future__ import annotations

import argparse
import ast
import fnmatch
import math
import posixpath
import sys
from collections.abc import Callable, Mapping
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

from jobsubmit.check.interpreter.memory import (
    DEVICE,
    GROUP,
    NAMESPACE,
    ClassValue,
    Container,
    External,
    FunctionValue,
    Method,
    ModuleValue,
    Partial,
    Record,
    Scope,
    boxed,
    joined,
    plain,
)
from jobsubmit.check.interpreter.methods import deep_copied, merge
from jobsubmit.check.interpreter.parsers import PARSERS
from jobsubmit.check.interpreter.process import COLLECTIVES
from jobsubmit.check.interpreter.signals import Ended, Raised
from jobsubmit.check.program.configuration import OPENERS, READERS, OpenFile, parse_text, read_configuration, read_text
from jobsubmit.check.program.module import EXITS
from jobsubmit.check.program.operations import CONVERT, PATH_FUNCTIONS, UNKNOWN, Several, lifted, several
from jobsubmit.check.program.python_configuration import read_python_configuration

if TYPE_CHECKING:
    from jobsubmit.check.interpreter.calls import Calls

_MAPPINGS = frozenset(
    [
        *("EasyDict", "edict", "AttrDict", "Munch", "DotDict", "ConfigDict", "CfgNode", "CN", "DictConfig", "Dict"),
        *("attrdict", "addict", "Config"),
    ]
)
_LONGEST_RANGE, _LONGEST_CHOICE = 10_000, 1000
_Known = Callable[["Calls", list[Any], dict[str, Any]], Any]
_TYPES: Mapping[str, type | tuple[type, ...]] = {
    "str": str,
    "int": int,
    "float": float,
    "bool": bool,
    "pathlib.Path": PurePosixPath,
    "pathlib.PurePath": PurePosixPath,
}
_CONTENTS: Mapping[str, type] = {"dict": dict, "list": list, "set": set}


def is_mapping(name: str) -> bool:
    """Return whether a class of a library is one of mappings."""
    last = name.rpartition(".")[2]
    return last in ("dict", "OrderedDict", "UserDict", "defaultdict") or last in _MAPPINGS


def value_of_external(run: Calls, name: str, args: list[Any], keywords: dict[str, Any]) -> tuple[Any] | None:
    """Return what a function of a library returns, by its whole name, in a tuple; None if it is not known."""
    last = name.rpartition(".")[2]
    if name in EXITS:
        raise Ended
    if name in PATH_FUNCTIONS and not keywords:
        given = [plain(one) for one in args]
        return (UNKNOWN if UNKNOWN in given else lifted(PATH_FUNCTIONS[name], *given),)
    if name in OPENERS:
        path = plain(args[0] if args else keywords.get("file", UNKNOWN))
        return (OpenFile(str(path)) if isinstance(path, (str, PurePosixPath)) else UNKNOWN,)
    if name in READERS:
        return (read_file(run, args[0] if args else UNKNOWN, READERS[name]),)
    if name.endswith("multiprocessing.Process"):
        return (_process(run, args, keywords),)
    if last in _MAPPINGS and name not in ("typing.Dict",):
        return (_mapping(run, args, keywords),)
    if last in ("fromfile", "from_file") and "Config" in name and args:
        held = plain(args[0])
        found = read_python_configuration(run.program, str(held)) if isinstance(held, str) else UNKNOWN
        return (boxed(found, by_attribute=True),)
    if name.startswith("torch."):
        return _of_torch(run, name, args, keywords)
    if name.startswith(("omegaconf.OmegaConf.", "OmegaConf.")):
        return (_of_omegaconf(run, last, args),)
    if name in CONVERT and not keywords:
        return (_converted(run, name, args),)
    return None


def read_file(run: Calls, file: Any, form: str) -> Any:
    """Return what a configuration file of the code says."""
    if not isinstance(file, (OpenFile, str, PurePosixPath)):
        return UNKNOWN
    return boxed(read_configuration(run.program, file, form))


def _converted(run: Calls, name: str, args: list[Any]) -> Any:
    if name in ("list", "tuple", "sorted") and len(args) == 1:
        items = run.items(args[0])
        if items is None:
            return Container([], is_open=True) if name != "tuple" else UNKNOWN
        items = sorted(items) if name == "sorted" else items
        return tuple(items) if name == "tuple" else Container(items)
    if name == "bool" and len(args) == 1:
        known = run.truth_of(args[0])
        return UNKNOWN if known is None else known
    if name == "len" and args:
        items = run.items(args[0])
        return UNKNOWN if items is None else len(items)
    if not args:
        return {"list": Container([]), "tuple": (), "str": "", "int": 0, "float": 0.0, "bool": False}.get(name, UNKNOWN)
    if name == "str" and isinstance(args[0], (Container, Record, ClassValue)):
        return UNKNOWN
    given = [plain(one) for one in args]
    if any(one is UNKNOWN for one in given) or any(isinstance(one, (list, dict)) and _has_gap(one) for one in given):
        return UNKNOWN
    result = lifted(CONVERT[name], *given)
    return boxed(result)


def _has_gap(value: Any) -> bool:
    return any(one is UNKNOWN for one in (value.values() if isinstance(value, dict) else value))


def _mapping(run: Calls, args: list[Any], keywords: dict[str, Any]) -> Container:
    made = Container({}, by_attribute=True)
    for one in args:
        run.update(made, one)
    made.content.update(keywords)
    return by_attribute(made)


def by_attribute(value: Any) -> Any:
    """Return a mapping whose entries are fields, as are those of the mappings in it."""
    if isinstance(value, Container) and isinstance(value.content, dict):
        held = {key: by_attribute(one) for key, one in value.content.items()}
        return Container(held, is_open=value.is_open, by_attribute=True)
    return value


def _of_torch(run: Calls, name: str, args: list[Any], keywords: dict[str, Any]) -> tuple[Any] | None:
    facts = run.facts
    if name in ("torch.cuda.device_count", "torch.cuda.is_available"):
        started = UNKNOWN if facts.has_launcher or not facts.nproc else facts.nproc
        gpus = started if facts.gpus is None else facts.gpus
        return (gpus if gpus is UNKNOWN or name.endswith("count") else gpus > 0,)
    if name == "torch.distributed.is_available":
        return (True,)
    if name == "torch.distributed.init_process_group":
        run.has_group = True
        run.joined_as = keywords.get("rank", args[4] if len(args) > 4 else None)  # noqa: PLR2004
        return (None,)
    if name == "torch.distributed.is_initialized":
        return (True if run.has_group else UNKNOWN,)
    if name == "torch.distributed.get_rank" and not args and not keywords:
        return (run.joined_as if type(run.joined_as) is int and run.process is not None else facts.rank,)
    if name == "torch.distributed.get_world_size" and not args and not keywords:
        if run.process is not None:
            return (run.process.world_size,)
        nproc = facts.nproc if facts.has_launcher else None
        return (UNKNOWN if nproc is None else facts.nodes * nproc,)
    if name in ("torch.multiprocessing.spawn", "torch.multiprocessing.start_processes"):
        function = args[0] if args else keywords.get("fn")
        given = keywords.get("args", args[1] if len(args) > 1 else ())
        count = keywords.get("nprocs", args[2] if len(args) > 2 else 1)  # noqa: PLR2004
        numbers = several(sorted({0, count // 2, count - 1})) if type(count) is int and count > 0 else UNKNOWN
        items = run.items(given)
        if run.process is not None:
            run.started += 1
            numbers = run.process.local_rank
            run.exists = run.exists or count is UNKNOWN or (type(count) is int and count > numbers)
            if type(count) is int and count <= numbers:
                return (None,)
        if count == 0:
            return (None,)
        run.call(function, [numbers, *(items or [])], {}, is_open=items is None)
        return (None,)
    if name == "torch.distributed.new_group":
        ranks = plain(args[0] if args else keywords.get("ranks"))
        made = Record(External("torch.distributed.ProcessGroup"), is_open=True)
        if isinstance(ranks, list) and all(type(rank) is int for rank in ranks):
            made.content[GROUP] = ranks
        return (made,)
    if name.startswith("torch.distributed.") and name.rpartition(".")[2] in COLLECTIVES:
        run.forget(args)  # they are filled with what other ranks have
    if name == "torch.distributed.destroy_process_group":
        run.has_group, run.joined_as = False, None
        return (None,)
    if name == "torch.device":
        return (_device(args, keywords),)
    return None


def _device(args: list[Any], keywords: dict[str, Any]) -> Record:
    """Return a device, with its type and index as far as they are known."""
    kind = args[0] if args else keywords.get("type", UNKNOWN)
    index = args[1] if len(args) > 1 else keywords.get("index")
    made = Record(DEVICE)
    if type(kind) is int:
        kind, index = "cuda", kind
    if isinstance(kind, str):
        kind, _, number = kind.partition(":")
        index = int(number) if number.isdigit() else index
    made.content.update(type=kind if isinstance(kind, str) else UNKNOWN, index=index)
    return made


def _of_omegaconf(run: Calls, method: str, args: list[Any]) -> Any:
    if method == "load":
        return _without_computed(by_attribute(read_file(run, args[0], "yaml")))
    if method == "create":
        held = args[0] if args else Container({})
        held = boxed(parse_text(held)) if isinstance(held, str) else held
        return _without_computed(by_attribute(deep_copied(_as_mapping(run, held))))
    if method == "structured":
        return by_attribute(_as_mapping(run, args[0]))
    if method in ("from_cli", "from_dotlist"):
        words = plain(args[0]) if args else [*run.facts.argv]
        return _of_words(words)
    if method == "merge":
        made = Container({}, by_attribute=True)
        for one in args:
            held = _as_mapping(run, one)
            if not isinstance(held, Container):
                return UNKNOWN
            merge(run, made, deep_copied(held))
        return by_attribute(made)
    if method in ("to_container", "to_object"):
        return deep_copied(args[0])
    if method == "is_missing":
        return UNKNOWN
    if method == "select" and isinstance(args[1], str):
        held = args[0]
        for part in args[1].split("."):
            held = run.attribute(held, part) if isinstance(held, Container) and part in held.content else UNKNOWN
        return held
    if method == "update" and isinstance(args[1], str):
        *above, last = args[1].split(".")
        held = args[0]
        for part in above:
            held = run.attribute(held, part)
        run.set_attribute(held, last, args[2])
    return None if method.startswith(("set_", "register", "resolve", "update")) else UNKNOWN


def _process(run: Calls, args: list[Any], keywords: dict[str, Any]) -> Record:
    """Follow what another process does; of several on a node, the one that is followed is one of them."""
    target, given = keywords.get("target"), run.items(keywords.get("args", ()))
    run.started += 1
    if run.process is None or run.started - 1 == run.process.local_rank:
        run.exists = True
        run.call(target, given or [], {}, is_open=given is None)
    return Record(External("multiprocessing.Process"), is_open=True)


def _as_mapping(run: Calls, value: Any) -> Any:
    """Return the fields of a dataclass, or of an object made of it, as a mapping."""
    if isinstance(value, ClassValue):
        value = run.call(value, [], {})
    if isinstance(value, Record) and isinstance(value.kind, ClassValue):
        return Container({name: _as_mapping(run, one) for name, one in value.content.items()}, by_attribute=True)
    return value


def _without_computed(value: Any) -> Any:
    if isinstance(value, Container) and isinstance(value.content, dict):
        value.content.update({key: _without_computed(one) for key, one in value.content.items()})
        return value
    return UNKNOWN if isinstance(value, str) and "${" in value else value


def _of_words(words: Any) -> Any:
    """Return the mapping that words such as `train.lr=0.1` make."""
    if words is UNKNOWN:
        return UNKNOWN
    found: dict[str, Any] = {}
    for word in words:
        name, sign, text = str(word).partition("=")
        *above, last = name.split(".")
        target = found
        for part in above:
            target = target.setdefault(part, {})
        target[last] = parse_text(text) if sign else None
    return boxed(found, by_attribute=True)


def _isinstance(run: Calls, args: list[Any], keywords: dict[str, Any]) -> Any:
    value, kinds = args
    every = kinds if isinstance(kinds, tuple) else (kinds,)
    found = [_is_of(value, kind) for kind in every]
    return True if True in found else UNKNOWN if UNKNOWN in found else False


def _is_of(value: Any, kind: Any) -> Any:
    """Return whether a value is of a class, as far as that is known."""
    if value is UNKNOWN or isinstance(value, Several) or kind is UNKNOWN:
        return UNKNOWN
    if isinstance(kind, ClassValue):
        if isinstance(value, Record):
            return isinstance(value.kind, ClassValue) and kind in value.kind.line() or (
                UNKNOWN if isinstance(value.kind, External) else False
            )
        return False
    if not isinstance(kind, External):
        return UNKNOWN
    if value is None:
        return kind.name in ("NoneType", "types.NoneType")
    if kind.name in _TYPES and not isinstance(value, Record):
        if isinstance(value, (Container, tuple)):
            return False
        return isinstance(value, _TYPES[kind.name])
    last = kind.name.rpartition(".")[2]
    if kind.name == "tuple":
        return isinstance(value, tuple)
    if isinstance(value, Record):
        own = value.kind.libraries if isinstance(value.kind, ClassValue) else {value.kind.name}
        if kind.name in own or (last == "dict" and value.entries is not None and isinstance(value.entries.content, dict)):
            return True
        return False if kind.name in ("str", "int", "float", "bool", "list", "tuple") else UNKNOWN
    if isinstance(value, Container):
        if last in _CONTENTS:
            return isinstance(value.content, _CONTENTS[last])
        if last in ("Mapping", "MutableMapping", *_MAPPINGS):
            return isinstance(value.content, dict)
        return UNKNOWN if last in ("Sequence", "Iterable", "ListConfig") else False
    return False if kind.name in ("dict", "list", "set") else UNKNOWN


def _getattr(run: Calls, args: list[Any], keywords: dict[str, Any]) -> Any:
    owner, name = args[0], args[1]
    if not isinstance(name, str) or owner is UNKNOWN:
        return UNKNOWN
    if len(args) > 2 and _has(run, owner, name) is False:  # noqa: PLR2004
        return args[2]
    value = run.attribute(owner, name)
    return UNKNOWN if isinstance(value, Method) and isinstance(value.function, str) and len(args) > 2 else value  # noqa: PLR2004


def _has(run: Calls, owner: Any, name: Any) -> Any:
    """Return whether a value has an attribute."""
    if not isinstance(name, str) or owner is UNKNOWN:
        return UNKNOWN
    if isinstance(owner, Record):
        if name in owner.content or (owner.entries is not None and name in owner.entries.content):
            return True
        if isinstance(owner.kind, ClassValue):
            if owner.kind.find(name) is not None:
                return True
            return UNKNOWN if owner.is_open or owner.kind.find("__getattr__") is not None else False
        return UNKNOWN if owner.is_open or owner.kind != NAMESPACE else False
    if isinstance(owner, Container) and owner.by_attribute:
        return name in owner.content or (UNKNOWN if owner.is_open else False)
    if isinstance(owner, ModuleValue):
        return name in owner.scope.names or UNKNOWN
    if isinstance(owner, ClassValue):
        return owner.find(name) is not None or UNKNOWN
    return UNKNOWN


def _setattr(run: Calls, args: list[Any], keywords: dict[str, Any]) -> None:
    owner, name, value = args
    if isinstance(name, str):
        run.set_attribute(owner, name, value)
    elif isinstance(owner, (Record, Container)):
        run.memory.touch(owner)
        owner.is_open = True
        if isinstance(owner.content, dict):
            owner.content.update({key: joined(one, value) for key, one in owner.content.items()})


def _environment_get(run: Calls, args: list[Any], keywords: dict[str, Any]) -> Any:
    name = args[0]
    default = args[1] if len(args) > 1 else keywords.get("default")
    if name is UNKNOWN:
        return UNKNOWN
    try:
        return run.variable(name)
    except Raised:
        return default


def _environment_default(run: Calls, args: list[Any], keywords: dict[str, Any]) -> Any:
    if run.contains(External("os.environ"), args[0]) is False:
        run.set_item(External("os.environ"), args[0], args[1])
    return _environment_get(run, args[:1], {})


def _environment_update(run: Calls, args: list[Any], keywords: dict[str, Any]) -> None:
    for one in args:
        run.update(run.environment, one)
    run.environment.is_open = True


def _range(run: Calls, args: list[Any], keywords: dict[str, Any]) -> Any:
    if not all(type(one) is int for one in args):
        return UNKNOWN
    made = range(*args)
    return made if len(made) <= _LONGEST_RANGE else UNKNOWN


def _enumerate(run: Calls, args: list[Any], keywords: dict[str, Any]) -> Any:
    items = run.items(args[0])
    start = args[1] if len(args) > 1 else keywords.get("start", 0)
    return UNKNOWN if items is None or type(start) is not int else Container(list(enumerate(items, start)))


def _zip(run: Calls, args: list[Any], keywords: dict[str, Any]) -> Any:
    every = [run.items(one) for one in args]
    return UNKNOWN if None in every else Container(list(zip(*every, strict=False)))  # type: ignore[arg-type]


def _map(run: Calls, args: list[Any], keywords: dict[str, Any]) -> Any:
    every = [run.items(one) for one in args[1:]]
    if None in every:
        return UNKNOWN
    return Container([run.call(args[0], list(one), {}) for one in zip(*every, strict=False)])  # type: ignore[arg-type]


def _dict(run: Calls, args: list[Any], keywords: dict[str, Any]) -> Any:
    made = Container({})
    for one in args:
        run.update(made, one)
    made.content.update(keywords)
    return made


def _vars(run: Calls, args: list[Any], keywords: dict[str, Any]) -> Any:
    return run.attribute(args[0], "__dict__") if args else UNKNOWN


def _namespace(run: Calls, args: list[Any], keywords: dict[str, Any]) -> Any:
    made = Record(NAMESPACE)
    made.content.update(keywords)
    return made


def _type(run: Calls, args: list[Any], keywords: dict[str, Any]) -> Any:
    value = args[0]
    if isinstance(value, Record):
        return value.kind
    if isinstance(value, Container):
        return External(type(value.content).__name__)
    is_known = value is None or isinstance(value, (bool, int, float, str))
    return External(type(value).__name__) if is_known else UNKNOWN


def _import_module(run: Calls, args: list[Any], keywords: dict[str, Any]) -> Any:
    name = args[0]
    if not isinstance(name, str):
        run.import_what_is_named()
        return UNKNOWN
    package = args[1] if len(args) > 1 else keywords.get("package")
    if name.startswith("."):
        name = f"{package}{name}" if isinstance(package, str) else ""
    return run.imported(name) if name in run.program.modules else External(name) if name else UNKNOWN


def _list_folder(run: Calls, args: list[Any], keywords: dict[str, Any]) -> Any:
    """Return the names in a folder of the code."""
    folder = plain(args[0]) if args else ""
    if not isinstance(folder, (str, PurePosixPath)) or str(folder).startswith(("/", "..")):
        return UNKNOWN
    start = posixpath.normpath(str(folder)).removeprefix(".")
    start = f"{start}/" if start else ""
    if not start:
        return UNKNOWN  # a node has more there
    names = {path.removeprefix(start).partition("/")[0] for path in run.program.paths if path.startswith(start)}
    return Container(sorted(names)) if names else UNKNOWN


def _glob(run: Calls, args: list[Any], keywords: dict[str, Any]) -> Any:
    """Return the files of the code that fit a pattern."""
    pattern = plain(args[0])
    if not isinstance(pattern, (str, PurePosixPath)) or str(pattern).startswith(("/", "..")):
        return UNKNOWN
    wanted = posixpath.normpath(str(pattern))
    depth = wanted.count("/")
    found = [one for one in run.program.paths if fnmatch.fnmatch(one, wanted) and ("**" in wanted or one.count("/") == depth)]
    return Container(sorted(found)) if found else UNKNOWN


def _partial(run: Calls, args: list[Any], keywords: dict[str, Any]) -> Any:
    return Partial(args[0], tuple(args[1:]), keywords)


def _field(run: Calls, args: list[Any], keywords: dict[str, Any]) -> Any:
    return Partial(External("dataclasses.field"), tuple(args), keywords)


def _replace(run: Calls, args: list[Any], keywords: dict[str, Any]) -> Any:
    if not isinstance(args[0], Record):
        return UNKNOWN
    made = Record(args[0].kind, is_open=args[0].is_open)
    made.content.update({**args[0].content, **keywords})
    return made


def _copy(run: Calls, args: list[Any], keywords: dict[str, Any]) -> Any:
    value = args[0]
    if isinstance(value, Record):
        made = Record(value.kind, is_open=value.is_open)
        made.content.update({key: deep_copied(one) for key, one in value.content.items()})
        made.entries = deep_copied(value.entries)
        return made
    return deep_copied(value)


def _as_dict(run: Calls, args: list[Any], keywords: dict[str, Any]) -> Any:
    held = _as_mapping(run, args[0])
    return deep_copied(held) if isinstance(held, Container) else UNKNOWN


def _exists(run: Calls, args: list[Any], keywords: dict[str, Any]) -> Any:
    return False if args and args[0] == "" else UNKNOWN


def _loads(run: Calls, args: list[Any], keywords: dict[str, Any]) -> Any:
    return boxed(parse_text(args[0], "json")) if isinstance(args[0], str) else read_file(run, args[0], "json")


def _chosen(run: Calls, args: list[Any], keywords: dict[str, Any]) -> Any:
    """Return what numpy chooses at random: so many items, which are not known."""
    size = args[1] if len(args) > 1 else keywords.get("size")
    return Container([UNKNOWN] * size) if type(size) is int and 0 <= size <= _LONGEST_CHOICE else UNKNOWN


def _array(run: Calls, args: list[Any], keywords: dict[str, Any]) -> Any:
    """Return an array that is made of a list, as that list."""
    return args[0] if args and isinstance(args[0], Container) and isinstance(args[0].content, list) else UNKNOWN


def _literal(run: Calls, args: list[Any], keywords: dict[str, Any]) -> Any:
    return boxed(ast.literal_eval(args[0])) if isinstance(args[0], str) else UNKNOWN


def _min_or_max(choose: Callable[..., Any]) -> _Known:
    def found(run: Calls, args: list[Any], keywords: dict[str, Any]) -> Any:
        items = run.items(args[0]) if len(args) == 1 else args
        if not items or any(one is UNKNOWN or isinstance(one, (Record, Container)) for one in items):
            return UNKNOWN
        return UNKNOWN if keywords else lifted(choose, *items) if len(items) > 1 else items[0]

    return found


def _nothing(run: Calls, args: list[Any], keywords: dict[str, Any]) -> None:
    return None


CONSTANTS: Mapping[str, Any] = {
    "argparse.REMAINDER": argparse.REMAINDER,
    "argparse.SUPPRESS": argparse.SUPPRESS,
    "argparse.ZERO_OR_MORE": "*",
    "argparse.ONE_OR_MORE": "+",
    "argparse.OPTIONAL": "?",
    "math.inf": math.inf,
    "math.pi": math.pi,
    "os.sep": "/",
    "os.path.sep": "/",
    "sys.maxsize": sys.maxsize,
    "sys.platform": "linux",
    "os.name": "posix",
}
FUNCTIONS: Mapping[str, _Known] = {
    **dict.fromkeys(("print", "random.seed", "torch.manual_seed", "numpy.random.seed", "warnings.warn"), _nothing),
    **dict.fromkeys(("torch.cuda.manual_seed_all", "torch.cuda.manual_seed", "torch.cuda.set_device"), _nothing),
    **dict.fromkeys(("os.makedirs", "torch.cuda.empty_cache", "warnings.filterwarnings", "time.sleep"), _nothing),
    "isinstance": _isinstance,
    "getattr": _getattr,
    "hasattr": lambda run, args, keywords: _has(run, args[0], args[1]),
    "setattr": _setattr,
    **dict.fromkeys(("os.environ.get", "os.getenv"), _environment_get),
    "os.environ.setdefault": _environment_default,
    "os.environ.update": _environment_update,
    "range": _range,
    "enumerate": _enumerate,
    "zip": _zip,
    "map": _map,
    "dict": _dict,
    "collections.OrderedDict": _dict,
    "set": lambda run, args, keywords: Container([]) if not args else boxed(plain(args[0])),
    "reversed": lambda run, args, keywords: (
        UNKNOWN if (items := run.items(args[0])) is None else Container(items[::-1])
    ),
    "vars": _vars,
    "type": _type,
    "max": _min_or_max(max),
    "min": _min_or_max(min),
    "argparse.Namespace": _namespace,
    "types.SimpleNamespace": _namespace,
    "importlib.import_module": _import_module,
    "__import__": _import_module,
    "os.listdir": _list_folder,
    "glob.glob": _glob,
    "functools.partial": _partial,
    "dataclasses.field": _field,
    "dataclasses.replace": _replace,
    "dataclasses.asdict": _as_dict,
    **dict.fromkeys(("copy.copy", "copy.deepcopy"), _copy),
    **dict.fromkeys(("os.path.exists", "os.path.isfile", "os.path.isdir"), _exists),
    "json.loads": _loads,
    "ast.literal_eval": _literal,
    "numpy.random.choice": _chosen,
    **dict.fromkeys(("numpy.array", "numpy.asarray"), _array),
    "tempfile.gettempdir": lambda run, args, keywords: "/tmp",  # noqa: S108 - it is what it returns on the nodes
    "callable": lambda run, args, keywords: (
        True if isinstance(args[0], (FunctionValue, ClassValue, Method, Partial, External)) else UNKNOWN
    ),
    **PARSERS,
}


def _super(run: Calls, node: ast.Call, scope: Scope) -> Any:
    from jobsubmit.check.interpreter.calls import Super

    function = next((one for one in _scopes(scope) if one.function is not None and one.function.owner), None)
    if function is None or function.function is None or function.function.owner is None:
        return UNKNOWN
    given = function.function.node.args
    own = [*given.posonlyargs, *given.args]
    return Super(function.function.owner, function.names.get(own[0].arg) if own else UNKNOWN)


def _globals(run: Calls, node: ast.Call, scope: Scope) -> Any:
    held = Container({})
    held.content = run.global_scope(scope).names
    return held


def _locals(run: Calls, node: ast.Call, scope: Scope) -> Any:
    return Container(dict(scope.names), is_open=True)


def _exec(run: Calls, node: ast.Call, scope: Scope) -> Any:
    """Follow the statements of a text: of a file, as a rule."""
    held = run.value(node.args[0], scope)
    text = read_source(run, held)
    if text is None:
        run.unknown_calls += 1
        run.forget([ModuleValue(scope.module, run.global_scope(scope))])
        return UNKNOWN
    try:
        tree = ast.parse(text)
    except SyntaxError:
        return UNKNOWN
    run.block(tree.body, run.global_scope(scope))
    return None


def read_source(run: Calls, held: Any) -> str | None:
    """Return the text that is executed: one that is written down, or that of a file of the code."""
    if isinstance(held, str):
        return held
    if not isinstance(held, OpenFile):
        return None
    source = run.program.sources.get(posixpath.normpath(held.path))
    if source is None:
        return read_text(run.program, held.path) or None
    with open(source, errors="replace") as stream:  # noqa: PTH123
        return stream.read(1 << 16)


def _eval(run: Calls, node: ast.Call, scope: Scope) -> Any:
    text = run.value(node.args[0], scope) if node.args else UNKNOWN
    if not isinstance(text, str):
        return UNKNOWN
    try:
        return run.value(ast.parse(text.strip(), mode="eval").body, scope)
    except SyntaxError:
        return UNKNOWN


def _scopes(scope: Scope) -> Any:
    one: Scope | None = scope
    while one is not None:
        yield one
        one = one.above


SPECIAL: Mapping[str, Callable[[Any, ast.Call, Scope], Any]] = {
    "super": _super,
    "globals": _globals,
    "locals": _locals,
    "exec": _exec,
    "eval": _eval,
}
