"""What a program holds while it is followed: objects, containers, variables; and how changes are taken back."""

from __future__ import annotations

import ast
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from jobsubmit.check.program.module import Function, Module
from jobsubmit.check.program.operations import UNKNOWN, Several

_births = itertools.count()  # in which order objects are made
_LARGEST, _DEEPEST = 60, 6  # of containers whose values are kept
_DEEPEST_JOINED = 1  # objects inside each other that are joined field by field


class Scope:
    """The variables of a module, a class or a call, with the scope around it."""

    __slots__ = ("above", "born", "function", "module", "names", "owner")

    def __init__(self, module: Module, above: Scope | None = None, owner: ClassValue | None = None) -> None:
        self.names: dict[str, Any] = {}
        self.born = next(_births)
        self.module, self.above, self.owner = module, above, owner
        self.function: FunctionValue | None = None

    @property
    def content(self) -> dict[str, Any]:
        return self.names

    def chain(self) -> Iterator[Scope]:
        """Yield a scope, and then those around it."""
        one: Scope | None = self
        while one is not None:
            yield one
            one = one.above

    is_open = True  # a variable that only one branch sets is there where it is read


class Container:
    """A list, a mapping or a set; with `is_open`, it may hold more. `by_attribute`, entries are fields, too."""

    __slots__ = ("born", "by_attribute", "content", "is_open", "own")

    def __init__(self, content: Any, *, is_open: bool = False, by_attribute: bool = False) -> None:
        self.own: Own | None = None  # what may be in it beside its content
        self.content, self.is_open, self.by_attribute = content, is_open, by_attribute
        self.born = next(_births)

    @property
    def held(self) -> Iterable[Any]:
        """Return the items, of a mapping the values."""
        return self.content.values() if isinstance(self.content, dict) else self.content


class Own:
    """A value that is not known, and that each process has for itself: it comes from its own part of the data.

    It `is_judged` if a model has computed it without gradients, and `is_common` since processes have exchanged it, or
    if it never was of one process, and only says how it is scaled: by this `power` of the number of processes, None if
    that is not clear. It `is_gradient`, or one's part. `base` is the value of which it is an attribute.
    """

    __slots__ = ("base", "is_common", "is_gradient", "is_judged", "power")

    def __init__(
        self,
        *,
        is_judged: bool = False,
        is_common: bool = False,
        is_gradient: bool = False,
        power: int | None = 0,
        base: Own | None = None,
    ) -> None:
        self.is_judged, self.is_common, self.is_gradient = is_judged, is_common, is_gradient
        self.power, self.base = power, base

    def line(self) -> Iterator[Own]:
        """Yield a value, and then those of which it is an attribute."""
        one: Own | None = self
        while one is not None:
            yield one
            one = one.base


class Record:
    """An object of a class of the program, or of a library; one of a mapping's class has `entries`, too.

    It `is_moved` if any branch has put it on a GPU.
    """

    __slots__ = ("born", "content", "entries", "is_moved", "is_open", "kind")

    def __init__(self, kind: ClassValue | External, *, is_open: bool = False, entries: Container | None = None) -> None:
        self.kind, self.is_open, self.entries = kind, is_open, entries
        self.content: dict[str, Any] = {}
        self.is_moved = False
        self.born = next(_births)


@dataclass(frozen=True)
class External:
    """Something of a library, or of Python itself, by its whole name."""

    name: str


@dataclass(frozen=True, eq=False)
class FunctionValue:
    """A function of the program, where it was defined; `kind` is the name of the decorator that binds it."""

    node: Function | ast.Lambda
    scope: Scope
    defaults: Mapping[str, Any]
    owner: ClassValue | None = None
    kind: str = ""

    @property
    def module(self) -> Module:
        return self.scope.module


@dataclass(frozen=True, eq=False)
class ClassValue:
    """A class of the program, with those that it is based on."""

    node: ast.ClassDef
    module: Module
    bases: tuple[Any, ...]
    scope: Scope

    def line(self, depth: int = 0) -> Iterator[ClassValue]:
        """Yield a class, and then those above it that the program defines."""
        yield self
        for base in self.bases if depth < _DEEPEST else ():
            if isinstance(base, ClassValue):
                yield from base.line(depth + 1)

    def find(self, name: str) -> Any:
        """Return what a class has, or inherits, under a name; None if nothing."""
        return next((one.scope.names[name] for one in self.line() if name in one.scope.names), None)

    @property
    def libraries(self) -> frozenset[str]:
        """Return the names of the libraries' classes that it is based on; `?` for what is not known."""
        return frozenset(
            base.name if isinstance(base, External) else "?"
            for one in self.line()
            for base in one.bases
            if not isinstance(base, ClassValue)
        )


@dataclass(frozen=True)
class ModuleValue:
    """A module of the program."""

    module: Module
    scope: Scope


@dataclass(frozen=True, eq=False)
class Method:
    """A function, or a method of a value of Python by its name, bound to what it is called of."""

    function: Any
    owner: Any


@dataclass(frozen=True, eq=False)
class Partial:
    """A call that is not made yet."""

    function: Any
    args: tuple[Any, ...] = ()
    keywords: Mapping[str, Any] = field(default_factory=dict)


class Super:
    """What `super()` is in a method of a class, called of an object."""

    __slots__ = ("instance", "owner")

    def __init__(self, owner: ClassValue, instance: Any) -> None:
        self.owner, self.instance = owner, instance


Heap: TypeAlias = Scope | Container | Record


class Memory:
    """Every change while branches are followed, so that each of them begins with what was there before."""

    def __init__(self) -> None:
        self._levels: list[dict[int, tuple[Heap, Any, bool]]] = []
        self._starts: list[int] = []

    def touch(self, changed: Heap) -> None:
        """Remember what an object holds that was there before the branch: it is about to be changed."""
        if self._levels and changed.born < self._starts[-1] and id(changed) not in self._levels[-1]:
            self._levels[-1][id(changed)] = (changed, changed.content.copy(), changed.is_open)

    def branch(self, run: Callable[[], Any]) -> tuple[Any, Changes]:
        """Run one branch; return what it returns, and its changes, which are taken back."""
        self._levels.append({})
        self._starts.append(next(_births))
        try:
            result = run()
        finally:
            level = self._levels.pop()
            self._starts.pop()
            changes = {key: (one, one.content.copy(), one.is_open) for key, (one, _, _) in level.items()}
            for one, before, was_open in level.values():
                _put(one, before, is_open=was_open)
        return result, changes

    def join(self, branches: Iterable[Changes], *, with_current: bool = False, otherwise: Any = UNKNOWN) -> bool:
        """Continue with what several branches leave behind, and with what is there now if that is one of them.

        What differs is `otherwise`. Return whether anything is another than it was, except for variables that are new.
        """
        every = list(branches)
        is_changed = False
        for key, (one, _, _) in {key: entry for changes in every for key, entry in changes.items()}.items():
            states = [changes[key][1:] if key in changes else (one.content.copy(), one.is_open) for changes in every]
            states += [(one.content.copy(), one.is_open)] if with_current else []
            self.touch(one)
            content, is_open = states[0]
            for other, other_open in states[1:]:
                content, differs = _joined_content(content, other, otherwise, is_kept=not isinstance(one, Container))
                is_open = is_open or other_open or (differs and not isinstance(one, Scope))
            if is_open == one.is_open and _are_alike(content, one.content):
                continue
            is_opened = isinstance(one, Container) and is_open and not one.is_open
            is_changed = is_changed or is_opened or not _are_alike(_known_to(one, content), one.content)
            _put(one, content, is_open=is_open)
        return is_changed


Changes: TypeAlias = dict[int, tuple[Heap, Any, bool]]


def _known_to(one: Heap, content: Any) -> Any:
    """Return a new content, of a scope without the variables that it does not have yet."""
    return {name: value for name, value in content.items() if name in one.names} if isinstance(one, Scope) else content


def _put(one: Heap, content: Any, *, is_open: bool) -> None:
    if isinstance(one.content, list):
        one.content[:] = content
    else:
        one.content.clear()
        one.content.update(content)
    if not isinstance(one, Scope):
        one.is_open = is_open


def _joined_content(one: Any, other: Any, otherwise: Any, *, is_kept: bool, depth: int = 0) -> tuple[Any, bool]:
    """Return what two contents have in common, and whether one of them has more.

    What only one has is kept if it is a variable or a field: a program that reads it has set it.
    """
    if isinstance(one, dict) and isinstance(other, dict):
        found = {
            key: value
            if (second := other.get(key, value if is_kept else UNKNOWN)) is value
            else joined(value, second, otherwise, depth)
            for key, value in one.items()
        }
        found.update((key, value if is_kept else UNKNOWN) for key, value in other.items() if key not in one)
        return found, one.keys() != other.keys()
    if isinstance(one, list) and isinstance(other, list):
        found_items = [joined(left, right, otherwise, depth) for left, right in zip(one, other, strict=False)]
        return found_items, len(one) != len(other)
    if isinstance(one, set) and isinstance(other, set):
        return one & other, one != other
    return one, True


def joined(one: Any, other: Any, otherwise: Any = UNKNOWN, depth: int = 0) -> Any:
    """Return the value that is one or the other: `otherwise` unless they are the same.

    What surely is a process's own in one case is so, too, if it has a known value in the other. Of two objects of the
    same class, an object of it is left, with what they have in common.
    """
    if isinstance(one, Own) or isinstance(other, Own):
        if _are_alike(one, other):
            return one
        own, second = (one, other) if isinstance(one, Own) else (other, one)
        is_common = own.is_common or second is UNKNOWN or (isinstance(second, Own) and second.is_common)
        return UNKNOWN if is_common else own
    if _are_alike(one, other):
        return one
    is_object = isinstance(one, Record) and isinstance(one.kind, ClassValue) and one.entries is None
    if is_object and isinstance(other, Record) and one.kind == other.kind and depth < _DEEPEST_JOINED:
        made = Record(one.kind, is_open=True)
        made.is_moved = one.is_moved or other.is_moved
        made.content, _ = _joined_content(one.content, other.content, otherwise, is_kept=True, depth=depth + 1)
        return made
    return UNKNOWN if one is UNKNOWN or other is UNKNOWN else otherwise


def _are_alike(one: Any, other: Any, depth: int = 0) -> bool:
    """Return whether two values are equal: objects are, if their classes and what they hold are."""
    if one is other:
        return True
    if type(one) is not type(other) or depth > _DEEPEST:
        return False
    if isinstance(one, Own):
        return all(getattr(one, name) == getattr(other, name) for name in ("is_common", "is_gradient", "power"))
    if isinstance(one, (Container, Record)):
        is_same = one.is_open == other.is_open and _are_alike(one.content, other.content, depth + 1)
        return is_same and (isinstance(one, Container) or _are_same_kind(one, other, depth))
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(
            left is other[key] or _are_alike(left, other[key], depth + 1) for key, left in one.items()
        )
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(
            left is right or _are_alike(left, right, depth + 1) for left, right in zip(one, other, strict=True)
        )
    return bool(one == other)


def _are_same_kind(one: Record, other: Record, depth: int) -> bool:
    is_same = one.kind == other.kind and one.is_moved == other.is_moved
    return is_same and _are_alike(one.entries, other.entries, depth + 1)


def plain(value: Any, depth: int = 0) -> Any:
    """Return a value as Python has it, tuples as lists; UNKNOWN for what is no text, number or container of them."""
    if value is None or isinstance(value, (bool, int, float, str, bytes, Several)):
        return value
    if isinstance(value, Record) and value.entries is not None:
        value = value.entries
    if isinstance(value, Record) and value.kind == DEVICE and type(value.content["index"]) is int:
        return f"{value.content['type']}:{value.content['index']}"
    if isinstance(value, Record) and value.kind == NAMESPACE and not value.is_open:
        return {name: plain(one, depth + 1) for name, one in value.content.items()}
    if type(value) is tuple:
        return [plain(one, depth + 1) for one in value]
    if isinstance(value, Container):
        if value.is_open or depth > _DEEPEST or len(value.content) > _LARGEST:
            return UNKNOWN
        if isinstance(value.content, dict):
            return {key: plain(one, depth + 1) for key, one in value.content.items()}
        return [plain(one, depth + 1) for one in value.content]
    return UNKNOWN if isinstance(value, _OWN) else value


def boxed(value: Any, *, by_attribute: bool = False) -> Any:
    """Return a value of Python as the program holds it."""
    if isinstance(value, Several):
        return value
    if isinstance(value, dict):
        held = {key: boxed(one, by_attribute=by_attribute) for key, one in value.items()}
        return Container(held, by_attribute=by_attribute)
    if isinstance(value, (list, set)):
        return Container([boxed(one, by_attribute=by_attribute) for one in value])
    return value


GROUP = "[ranks]"  # a field of what new_group returns
MOMENT = "\ue000"  # in a text: the time at which the program runs
MORE = "**"  # among keywords: there may be others
MANAGER = External("generator")  # what a function that yields returns; of one for `with`, what it yields
MATCH = External("re.Match")
NAMESPACE, DEVICE = External("argparse.Namespace"), External("torch.device")
_OWN = (External, FunctionValue, ClassValue, ModuleValue, Method, Partial, Record, Scope, Own)
