"""Functions of Python and of libraries whose results the job decides: they read its arguments, files, environment."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

from jobsubmit.check.interpreter.asked import (
    fields_of,
    get_attribute,
    has_attribute,
    is_instance,
    set_attribute,
    type_of,
)
from jobsubmit.check.interpreter.fields import FIELDS
from jobsubmit.check.interpreter.files import OF_FOLDERS, read_file, read_hyperpyyaml
from jobsubmit.check.interpreter.mappings import MAPPINGS, mapping_of
from jobsubmit.check.interpreter.memory import (
    MOMENT,
    NAMESPACE,
    ClassValue,
    Container,
    External,
    FunctionValue,
    Method,
    Own,
    Partial,
    Record,
    boxed,
    plain,
)
from jobsubmit.check.interpreter.methods import deep_copied
from jobsubmit.check.interpreter.of_absl import OF_ABSL
from jobsubmit.check.interpreter.of_configparser import OF_CONFIGPARSER
from jobsubmit.check.interpreter.of_omegaconf import as_dict, value_of_omegaconf
from jobsubmit.check.interpreter.of_re import OF_RE
from jobsubmit.check.interpreter.of_timm import created_model, joined_group
from jobsubmit.check.interpreter.of_torch import start_process, value_of_torch
from jobsubmit.check.interpreter.own import counting, item_of, zipped
from jobsubmit.check.interpreter.parsers import PARSERS, extend, is_parser
from jobsubmit.check.interpreter.scaling import carrier_in
from jobsubmit.check.interpreter.signals import Ended
from jobsubmit.check.interpreter.special import OF_FILES
from jobsubmit.check.program.configuration import OPENERS, READERS, OpenFile, parse_text
from jobsubmit.check.program.facts import named_as_in_torch
from jobsubmit.check.program.module import EXITS
from jobsubmit.check.program.operations import CONVERT, PATH_FUNCTIONS, UNKNOWN, lifted
from jobsubmit.check.program.python_configuration import read_python_configuration
from jobsubmit.check.program.reading import find_module

if TYPE_CHECKING:
    from jobsubmit.check.interpreter.calls import Calls

_MOMENTS = (
    *("time.strftime", "time.ctime", "time.asctime", "datetime.datetime.now.strftime", "datetime.now.strftime"),
    *("datetime.datetime.now.isoformat", "datetime.datetime.today.strftime", "datetime.datetime.utcnow.strftime"),
)
_LONGEST_RANGE, _LONGEST_CHOICE = 10_000, 1000
_Known = Callable[["Calls", list[Any], dict[str, Any]], Any]


def value_of_external(run: Calls, name: str, args: list[Any], keywords: dict[str, Any]) -> tuple[Any] | None:
    """Return what a function of a library returns, by its whole name, in a tuple; None if it is not known."""
    last = name.rpartition(".")[2]
    if name in EXITS:
        raise Ended
    if name in PATH_FUNCTIONS and not keywords:
        given = [plain(one) for one in args]
        return (UNKNOWN if UNKNOWN in given else boxed(lifted(PATH_FUNCTIONS[name], *given)),)
    if name in OPENERS:
        path = plain(args[0] if args else keywords.get("file", UNKNOWN))
        return (OpenFile(str(path)) if isinstance(path, (str, PurePosixPath)) else UNKNOWN,)
    if name in READERS:
        held = args[0] if args else UNKNOWN
        is_text = isinstance(held, str) and held not in run.program.paths
        return (boxed(parse_text(held, READERS[name])) if is_text else read_file(run, held, READERS[name]),)
    if name.endswith("multiprocessing.Process"):
        return (start_process(run, args, keywords),)
    if last in MAPPINGS and name not in ("typing.Dict",):
        return (mapping_of(run, args, keywords),)
    if last in ("fromfile", "from_file") and "Config" in name and args:
        held = plain(args[0])
        found = read_python_configuration(run.program, str(held)) if isinstance(held, str) else UNKNOWN
        return (boxed(found, by_attribute=True),)
    if (of_torch := named_as_in_torch(name)).startswith("torch."):
        return value_of_torch(run, of_torch, args, keywords)
    if name.startswith(("omegaconf.OmegaConf.", "OmegaConf.")):
        return (value_of_omegaconf(run, last, args),)
    if name.startswith("timm.") and last == "create_model":
        return created_model(run, args, keywords)
    if name.startswith("timm.") and last == "init_distributed_device" and run.facts.has_launcher:
        return joined_group(run, args)
    if name in CONVERT and not keywords:
        return (_converted(run, name, args),)
    return (extend(run, name, args[0]),) if args and is_parser(args[0]) else None


def _converted(run: Calls, name: str, args: list[Any]) -> Any:
    if name in ("list", "tuple", "sorted") and len(args) == 1:
        items = run.items(args[0])
        if items is None:
            made = Container([], is_open=True)
            made.own = carrier_in(args[0])
            return made if name != "tuple" else UNKNOWN
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


def _environment_get(run: Calls, args: list[Any], keywords: dict[str, Any]) -> Any:
    name = args[0]
    default = args[1] if len(args) > 1 else keywords.get("default")
    if name is UNKNOWN:
        return UNKNOWN
    return default if run.contains(External("os.environ"), name) is False else run.variable(name)


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
    if items is None or type(start) is not int:
        return counting(args[0])
    return Container(list(enumerate(items, start)))


def _zip(run: Calls, args: list[Any], keywords: dict[str, Any]) -> Any:
    every = [run.items(one) for one in args]
    return zipped(args) if None in every else Container(list(zip(*every, strict=False)))


def _map(run: Calls, args: list[Any], keywords: dict[str, Any]) -> Any:
    every = [run.items(one) for one in args[1:]]
    if None in every:
        return UNKNOWN
    return Container([run.call(args[0], list(one), {}) for one in zip(*every, strict=False)])


def _dict(run: Calls, args: list[Any], keywords: dict[str, Any]) -> Any:
    made = Container({})
    for one in args:
        run.update(made, one)
    made.content.update(keywords)
    return made


def _namespace(run: Calls, args: list[Any], keywords: dict[str, Any]) -> Any:
    made = Record(NAMESPACE)
    made.content.update(keywords)
    return made


def _import_module(run: Calls, args: list[Any], keywords: dict[str, Any]) -> Any:
    name = args[0]
    if not isinstance(name, str):
        run.import_what_is_named()
        return UNKNOWN
    package = args[1] if len(args) > 1 else keywords.get("package")
    if name.startswith("."):
        name = f"{package}{name}" if isinstance(package, str) else ""
    if name in run.program.modules:
        return run.imported(name)
    run.imports_unread |= not name or find_module(name, run.program.roots, run.program.paths) is not None
    return External(name) if name else UNKNOWN


def _reduced(run: Calls, args: list[Any], keywords: dict[str, Any]) -> Any:
    """Return what `functools.reduce` does: `reduce(getitem, keys, tree)` is an entry of an entry."""
    items = run.items(args[1])
    rest = [*args[2:], *(items or ())]
    if items is None or not rest:
        run.forget(args[2:])
        return UNKNOWN
    value = rest[0]
    for one in rest[1:]:
        value = run.item(value, one) if args[0] == _GET_ITEM else run.call(args[0], [value, one], {})
    return value


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


def _load(run: Calls, args: list[Any]) -> Any:
    return read_file(run, args[1], "yaml")


def _literal(run: Calls, args: list[Any], keywords: dict[str, Any]) -> Any:
    return boxed(ast.literal_eval(args[0])) if isinstance(args[0], str) else UNKNOWN


def _min_or_max(choose: Callable[..., Any]) -> _Known:
    def found(run: Calls, args: list[Any], keywords: dict[str, Any]) -> Any:
        items = run.items(args[0]) if len(args) == 1 else args
        if not items or any(one is UNKNOWN or isinstance(one, (Record, Container, Own)) for one in items):
            return UNKNOWN
        return UNKNOWN if keywords else lifted(choose, *items) if len(items) > 1 else items[0]

    return found


_GET_ITEM = External("operator.getitem")


def _filter(run: Calls, args: list[Any], keywords: dict[str, Any]) -> Any:
    """Return the items that a function lets through, or those that are true; all must be known."""
    test, given = args
    items = run.items(given)
    if items is None:
        return UNKNOWN
    truths = [run.truth_of(one if test is None else run.call(test, [one], {})) for one in items]
    kept = [one for one, truth in zip(items, truths, strict=True) if truth]
    return UNKNOWN if None in truths else Container(kept)


def _nothing(run: Calls, args: list[Any], keywords: dict[str, Any]) -> None:
    return None


# They return the model that they are given, or one that stands for it.
_GIVE_BACK = (
    "compile",
    "torch.compile",
    "torch.nn.SyncBatchNorm.convert_sync_batchnorm",
    "apex.parallel.convert_syncbn_model",
)

FUNCTIONS: Mapping[str, _Known] = {
    **dict.fromkeys(("print", "random.seed", "torch.manual_seed", "numpy.random.seed", "warnings.warn"), _nothing),
    **dict.fromkeys(("torch.cuda.manual_seed_all", "torch.cuda.manual_seed"), _nothing),
    **dict.fromkeys(("os.makedirs", "torch.cuda.empty_cache", "warnings.filterwarnings", "time.sleep"), _nothing),
    "isinstance": is_instance,
    "getattr": get_attribute,
    "hasattr": lambda run, args, keywords: has_attribute(run, args[0], args[1]),
    "setattr": set_attribute,
    **dict.fromkeys(("os.environ.get", "os.getenv"), _environment_get),
    "os.environ.setdefault": _environment_default,
    "os.environ.update": _environment_update,
    "range": _range,
    "enumerate": _enumerate,
    "zip": _zip,
    **dict.fromkeys(_MOMENTS, lambda run, args, keywords: MOMENT),
    **dict.fromkeys(_GIVE_BACK, lambda run, args, keywords: args[0] if args else UNKNOWN),
    "next": lambda run, args, keywords: item_of(args[0]),
    "map": _map,
    "filter": _filter,
    "dict": _dict,
    "collections.OrderedDict": _dict,
    "set": lambda run, args, keywords: Container([]) if not args else boxed(plain(args[0])),
    "reversed": lambda run, args, keywords: (
        UNKNOWN if (items := run.items(args[0])) is None else Container(items[::-1])
    ),
    "vars": fields_of,
    "type": type_of,
    "max": _min_or_max(max),
    "min": _min_or_max(min),
    "argparse.Namespace": _namespace,
    "types.SimpleNamespace": _namespace,
    "importlib.import_module": _import_module,
    "__import__": _import_module,
    "functools.partial": _partial,
    "functools.reduce": _reduced,
    "dataclasses.field": _field,
    "dataclasses.replace": _replace,
    "dataclasses.asdict": as_dict,
    **dict.fromkeys(("copy.copy", "copy.deepcopy"), _copy),
    **dict.fromkeys(("os.path.exists", "os.path.isfile", "os.path.isdir"), _exists),
    "json.loads": _loads,
    **dict.fromkeys(("hyperpyyaml.load_hyperpyyaml", "hyperpyyaml.core.load_hyperpyyaml"), read_hyperpyyaml),
    **dict.fromkeys(("ruamel.yaml.YAML.load", "ruamel_yaml.YAML.load"), lambda run, args, keywords: _load(run, args)),
    "ast.literal_eval": _literal,
    "numpy.random.choice": _chosen,
    **dict.fromkeys(("numpy.array", "numpy.asarray"), _array),
    "tempfile.gettempdir": lambda run, args, keywords: "/tmp",  # noqa: S108 - it is what it returns on the nodes
    "callable": lambda run, args, keywords: (
        True if isinstance(args[0], (FunctionValue, ClassValue, Method, Partial, External)) else UNKNOWN
    ),
    **PARSERS,
    **FIELDS,
    **OF_ABSL,
    **OF_CONFIGPARSER,
    **OF_FOLDERS,
    **OF_FILES,
    **OF_RE,
}
