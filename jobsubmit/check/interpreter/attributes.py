"""What the attributes and entries of a program's objects are, and what its modules have."""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import Any

from jobsubmit.check.interpreter.constants import CONSTANTS
from jobsubmit.check.interpreter.expressions import Expressions
from jobsubmit.check.interpreter.memory import (
    NAMESPACE,
    ClassValue,
    Container,
    External,
    FunctionValue,
    Method,
    ModuleValue,
    Own,
    Partial,
    Record,
    Super,
    plain,
)
from jobsubmit.check.interpreter.process import numbers_of
from jobsubmit.check.interpreter.rehearsal import NO_EXCHANGE
from jobsubmit.check.interpreter.scaling import carrier_in
from jobsubmit.check.interpreter.signals import Raised
from jobsubmit.check.program.configuration import OpenFile
from jobsubmit.check.program.module import Module
from jobsubmit.check.program.operations import UNKNOWN, Several, lifted

_MOST_ABOVE = 6
_KNOW_THEIR_PROCESS = ("Accelerator", "PartialState", "AcceleratorState", "Fabric")


class Attributes(Expressions):
    """Look up attributes, entries and modules; what calls return is defined in the classes below."""

    def invoke(self, function: FunctionValue, args: list[Any], keywords: dict[str, Any], *, is_open: bool) -> Any:
        raise NotImplementedError

    def default_of_field(self, default: Any) -> Any:
        raise NotImplementedError

    def module_value(self, module: Module) -> ModuleValue:
        raise NotImplementedError

    def attribute(self, owner: Any, name: str) -> Any:
        """Return an attribute of a value."""
        if owner is UNKNOWN and name in NO_EXCHANGE:
            return External(name)
        match owner:
            case Record():
                return self._field(owner, name)
            case Container():
                if owner.by_attribute and name in owner.content:
                    return owner.content[name]
                return Method(name, owner)
            case ModuleValue():
                return self.member(owner, owner.module.name, name)
            case ClassValue():
                return self._of_class(owner, name)
            case External():
                return self._of_external(owner, name)
            case Super():
                return self._inherited(owner, name)
            case PurePosixPath():
                if name in ("name", "stem", "suffix", "parts"):
                    return getattr(owner, name)
                if name == "parent":
                    return _above(owner)
                return _all_above(owner) if name == "parents" else Method(name, owner)
            case OpenFile():
                return Method(name, owner)
            case FunctionValue() if name == "__name__":
                return getattr(owner.node, "name", "<lambda>")
            case str() | int() | float() | Several():
                return Method(name, owner)
        return UNKNOWN

    def _field(self, record: Record, name: str) -> Any:
        if name in record.content:
            return record.content[name]
        if name == "__dict__":
            if record.entries is not None and not record.content:
                return record.entries
            held = Container({}, is_open=record.is_open)
            held.content = record.content
            return held
        if name == "__class__":
            return record.kind
        if name in ("__getattribute__", "__setattr__"):
            return Method(name, record)
        if isinstance(record.kind, External):
            if self.process is not None and record.kind.name.rpartition(".")[2] in _KNOW_THEIR_PROCESS:
                numbers = numbers_of(self.process)
                if name in numbers:
                    return numbers[name]
            return UNKNOWN if record.kind == NAMESPACE and record.is_open else Method(name, record)
        found = record.kind.find(name)
        if found is not None:
            return self._bound(found, record)
        if record.entries is not None:
            looks_up = record.kind.find("__getattr__") or record.kind.find("__getattribute__")
            if looks_up is not None and name in record.entries.content:
                return record.entries.content[name]
            return Method(name, record.entries)
        looks_up = record.kind.find("__getattr__")
        if isinstance(looks_up, FunctionValue) and not name.startswith("__"):
            return self.invoke(looks_up, [record, name], {}, is_open=False)
        if name in NO_EXCHANGE:
            return External(name)
        return Method(name, record) if name in GIVES_BACK else UNKNOWN

    def _bound(self, found: Any, owner: Any) -> Any:
        """Return what an object has of its class: methods bound to it, the values of properties."""
        if not isinstance(found, FunctionValue):
            return self.default_of_field(found) if isinstance(found, Partial) else found
        if found.kind == "staticmethod":
            return found
        if found.kind == "classmethod":
            return Method(found, owner.kind if isinstance(owner, Record) else owner)
        if found.kind in ("property", "cached_property"):
            return self.invoke(found, [owner], {}, is_open=False) if isinstance(owner, Record) else UNKNOWN
        return Method(found, owner) if isinstance(owner, Record) else found

    def _of_class(self, owner: ClassValue, name: str) -> Any:
        found = owner.find(name)
        if found is not None:
            return self._bound(found, owner)
        if name == "__dict__":
            return Container({}, is_open=True)
        return UNKNOWN

    def _inherited(self, owner: Super, name: str) -> Any:
        instance = owner.instance
        kind = instance.kind if isinstance(instance, Record) else instance
        line = list(kind.line()) if isinstance(kind, ClassValue) else []
        start = line.index(owner.owner) + 1 if owner.owner in line else 0
        for one in line[start:]:
            if name in one.scope.names:
                return self._bound(one.scope.names[name], instance)
        if isinstance(instance, Record) and instance.entries is not None:
            return Method("update" if name == "__init__" else name, instance.entries)
        if name == "__setattr__" and isinstance(instance, Record):
            return Method("__setattr__", Container(instance.content))
        return External("?.super")

    def _of_external(self, owner: External, name: str) -> Any:
        whole = f"{owner.name}.{name}"
        if owner.name == "absl.flags.FLAGS":
            return self.flags.get(name, UNKNOWN)
        if whole == "sys.argv":
            return self.argv
        if whole == "sys.modules":
            return Container(dict(self.modules), is_open=True)
        if whole in self.program.modules:
            return self.imported(whole)  # of a folder without __init__.py
        return CONSTANTS.get(whole, External(whole))

    def set_attribute(self, owner: Any, name: str, value: Any) -> None:
        """Set an attribute of an object."""
        match owner:
            case Record():
                setter = owner.kind.find("__setattr__") if isinstance(owner.kind, ClassValue) else None
                if name == "__dict__":
                    held = value.entries if isinstance(value, Record) and value.entries is not None else value
                    if isinstance(held, Container) and isinstance(held.content, dict):
                        self.memory.touch(owner)
                        owner.content = held.content
                    return
                if isinstance(setter, FunctionValue) and setter.node not in self.stack:
                    self.invoke(setter, [owner, name, value], {}, is_open=False)
                    return
                if owner.entries is not None and setter is not None:
                    self.set_item(owner.entries, name, value)
                    return
                self.memory.touch(owner)
                owner.content[name] = value
            case Container() if owner.by_attribute:
                self.set_item(owner, name, value)
            case ClassValue() | ModuleValue():
                self.memory.touch(owner.scope)
                owner.scope.names[name] = value
            case External(name="absl.flags.FLAGS"):
                self.flags[name] = UNKNOWN if self.doubts else value

    def item(self, owner: Any, key: Any) -> Any:
        """Return an entry of a container."""
        if isinstance(key, Own):
            key = UNKNOWN
        if isinstance(owner, Record):
            getter = owner.kind.find("__getitem__") if isinstance(owner.kind, ClassValue) else None
            if isinstance(getter, FunctionValue):
                return self.invoke(getter, [owner, key], {}, is_open=False)
            if owner.entries is None:
                return UNKNOWN
            owner = owner.entries
        if owner == External("os.environ"):
            return self.variable(key)
        if isinstance(key, Several) and isinstance(owner, (Container, tuple)):
            held = plain(owner)
            return UNKNOWN if held is UNKNOWN else lifted(lambda one: held[one], key)
        if isinstance(owner, Container):
            if isinstance(owner.content, dict):
                if key is UNKNOWN or isinstance(key, (Container, Record)):
                    return UNKNOWN
                if key in owner.content:
                    return owner.content[key]
                if owner.is_open or not self.tries:
                    return UNKNOWN
                raise Raised("KeyError")
            if not isinstance(owner.content, list) or owner.is_open or type(key) is not int:
                return UNKNOWN
            return owner.content[key] if -len(owner.content) <= key < len(owner.content) else UNKNOWN
        if type(owner) in (str, tuple) and type(key) is int:
            return owner[key]
        return UNKNOWN

    def variable(self, name: Any) -> Any:
        """Return a variable of the environment; raise KeyError, as the program does, where nothing sets it."""
        if name in self.environment.content:
            return self.environment.content[name]
        if isinstance(name, str) and name in self.facts.environment and (self.tries or not self.is_lenient):
            raise Raised("KeyError")
        return UNKNOWN

    def set_item(self, owner: Any, key: Any, value: Any) -> None:
        """Set an entry of a container."""
        if isinstance(key, Own):
            key = UNKNOWN
        if isinstance(owner, Record):
            setter = owner.kind.find("__setitem__") if isinstance(owner.kind, ClassValue) else None
            if isinstance(setter, FunctionValue):
                self.invoke(setter, [owner, key, value], {}, is_open=False)
                return
            if owner.entries is None:
                return
            owner = owner.entries
        held = self.environment if owner == External("os.environ") else owner
        if not isinstance(held, Container):
            return
        self.memory.touch(held)
        if isinstance(held.content, dict):
            if key is UNKNOWN or isinstance(key, (Container, Record)):
                held.is_open = True
                held.content.update(dict.fromkeys(held.content, UNKNOWN))
                held.own = carrier_in(value)
            else:
                held.content[key] = value
        elif isinstance(held.content, list):
            if type(key) is int and -len(held.content) <= key < len(held.content):
                held.content[key] = value
            else:
                held.content[:] = []
                held.is_open = True

    def imported(self, name: str) -> Any:
        """Return a module by its whole name, followed if it is one of the program."""
        module = self.program.boot if name in self.program.boot_names else self.program.modules.get(name)
        if module is None:
            if name.partition(".")[0] not in self.program.tops:
                self.unknown_calls += 1
            return External(name)
        if module.is_skimmed:
            return External(name)
        parent, _, last = name.rpartition(".")
        package = self.imported(parent) if parent in self.program.modules else None
        found = self.module_value(module)
        if isinstance(package, ModuleValue) and last not in package.scope.names:
            self.memory.touch(package.scope)
            package.scope.names[last] = found
        return found

    def member(self, owner: Any, base: str, name: str) -> Any:
        """Return what a module has under a name: a variable, or a module inside it."""
        if not isinstance(owner, ModuleValue):
            whole = f"{base}.{name}"
            if whole in self.program.modules:
                return self.imported(whole)
            return self.attribute(owner, name) if isinstance(owner, External) else UNKNOWN
        if name in owner.scope.names:
            return owner.scope.names[name]
        if name == "__dict__":
            held = Container({})
            held.content = owner.scope.names
            return held
        inner = f"{owner.module.name}.{name}"
        if inner in self.program.modules:
            return self.imported(inner)
        star = next((one for one in owner.module.stars if one not in self.program.modules), None)
        return External(f"{star}.{name}") if star is not None else UNKNOWN


GIVES_BACK = ("to", "cuda", "cpu", "train", "eval", "float", "half", "double", "bfloat16", "requires_grad_", "compile")


def _above(path: PurePosixPath) -> PurePosixPath:
    """Return the folder of a path, seen from the code directory: above that are `..`, `../..`, and so on."""
    is_above = set(path.parts) <= {".."}
    return path / ".." if is_above else path.parent


def _all_above(path: PurePosixPath) -> tuple[PurePosixPath, ...]:
    found: list[PurePosixPath] = []
    for _ in range(_MOST_ABOVE):
        path = _above(path)
        found.append(path)
    return tuple(found)
