"""What a program asks of objects by name: their class, and their attributes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

from jobsubmit.check.interpreter.mappings import MAPPINGS
from jobsubmit.check.interpreter.memory import (
    NAMESPACE,
    ClassValue,
    Container,
    External,
    FunctionValue,
    Method,
    ModuleValue,
    Own,
    Record,
    joined,
)
from jobsubmit.check.program.operations import UNKNOWN, Several

if TYPE_CHECKING:
    from jobsubmit.check.interpreter.calls import Calls

_OF_TYPING = {f"typing.{kind.capitalize()}": kind for kind in ("list", "dict", "tuple", "set")}
_TYPES: Mapping[str, type | tuple[type, ...]] = {
    "str": str,
    "int": int,
    "float": float,
    "bool": bool,
    "pathlib.Path": PurePosixPath,
    "pathlib.PurePath": PurePosixPath,
}


_OF_DDP = ("module", "no_sync")
_CONTENTS: Mapping[str, type] = {"dict": dict, "list": list, "set": set}


def is_instance(run: Calls, args: list[Any], keywords: dict[str, Any]) -> Any:
    value, kinds = args
    every = kinds if isinstance(kinds, tuple) else (kinds,)
    found = [_is_of(value, kind) for kind in every]
    return True if True in found else UNKNOWN if UNKNOWN in found else False


def _is_of(value: Any, kind: Any) -> Any:
    """Return whether a value is of a class, as far as that is known."""
    if value is UNKNOWN or isinstance(value, (Several, Own)) or kind is UNKNOWN:
        return UNKNOWN
    if isinstance(kind, ClassValue):
        if isinstance(value, Record):
            return (isinstance(value.kind, ClassValue) and kind in value.kind.line()) or (
                UNKNOWN if isinstance(value.kind, External) else False
            )
        return False
    if not isinstance(kind, External):
        return UNKNOWN
    if kind.name in _OF_TYPING:
        kind = External(_OF_TYPING[kind.name])
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
        if any(_are_same_class(one, kind.name) for one in own) or (
            last == "dict" and value.entries is not None and isinstance(value.entries.content, dict)
        ):
            return True
        is_result = isinstance(value.kind, External) and not value.kind.name.rpartition(".")[2][:1].isupper()
        is_other = not is_result and kind.name in ("str", "int", "float", "bool", "list", "tuple")
        return False if is_other else UNKNOWN
    if isinstance(value, Container):
        if last in _CONTENTS:
            return isinstance(value.content, _CONTENTS[last])
        if last in ("Mapping", "MutableMapping", *MAPPINGS):
            return isinstance(value.content, dict)
        return UNKNOWN if last in ("Sequence", "Iterable", "ListConfig") else False
    return False if kind.name in ("dict", "list", "set") else UNKNOWN


def _are_same_class(one: str, other: str) -> bool:
    """Return whether two whole names are of one class: packages have many in several of their modules."""
    ends = [(name.partition(".")[0], name.rpartition(".")[2]) for name in (one, other)]
    return one == other or (ends[0] == ends[1] and ends[0][1][:1].isupper())


def get_attribute(run: Calls, args: list[Any], keywords: dict[str, Any]) -> Any:
    owner, name = args[0], args[1]
    if not isinstance(name, str) or owner is UNKNOWN:
        return UNKNOWN
    if len(args) > 2 and has_attribute(run, owner, name) is False:  # noqa: PLR2004
        return args[2]
    value = run.attribute(owner, name)
    return UNKNOWN if isinstance(value, Method) and isinstance(value.function, str) and len(args) > 2 else value  # noqa: PLR2004


def has_attribute(run: Calls, owner: Any, name: Any) -> Any:
    """Return whether a value has an attribute."""
    if not isinstance(name, str) or owner is UNKNOWN:
        return UNKNOWN
    if name in dir(object):
        return True
    if isinstance(owner, Record):
        if name in owner.content or (owner.entries is not None and name in owner.entries.content):
            return True
        if isinstance(owner.kind, ClassValue):
            if owner.kind.find(name) is not None:
                return True
            is_open = owner.is_open or (owner.entries is not None and owner.entries.is_open)
            return UNKNOWN if is_open or owner.kind.find("__getattr__") is not None else False
        if owner.kind.name.endswith("DistributedDataParallel") and name in _OF_DDP:
            return True
        return UNKNOWN if owner.is_open or owner.kind != NAMESPACE else False
    if isinstance(owner, Container) and name in dir(type(owner.content)):
        return True
    if isinstance(owner, Container) and owner.by_attribute:
        return name in owner.content or (UNKNOWN if owner.is_open else False)
    if isinstance(owner, ModuleValue):
        return name in owner.scope.names or UNKNOWN
    if isinstance(owner, ClassValue):
        return owner.find(name) is not None or UNKNOWN
    return UNKNOWN


def set_attribute(run: Calls, args: list[Any], keywords: dict[str, Any]) -> None:
    """Set an attribute by its name; one that is not known may be any, but a value that is not known is no object.

    As programs do that load their settings and counters: models and optimizers stay.
    """
    owner, name, value = args
    if isinstance(name, str):
        run.set_attribute(owner, name, value)
    elif isinstance(owner, (Record, Container)):
        run.memory.touch(owner)
        owner.is_open = True
        if isinstance(owner.content, dict):
            kept = (Record, FunctionValue, ClassValue) if value is UNKNOWN else ()
            others = ((key, one) for key, one in owner.content.items() if not isinstance(one, kept))
            owner.content.update({key: joined(one, value) for key, one in others})


def fields_of(run: Calls, args: list[Any], keywords: dict[str, Any]) -> Any:
    return run.attribute(args[0], "__dict__") if args else UNKNOWN


def type_of(run: Calls, args: list[Any], keywords: dict[str, Any]) -> Any:
    value = args[0]
    if isinstance(value, Record):
        return value.kind
    if isinstance(value, Container):
        return External(type(value.content).__name__)
    is_known = value is None or isinstance(value, (bool, int, float, str))
    return External(type(value).__name__) if is_known else UNKNOWN
