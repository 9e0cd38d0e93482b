"""What operators and comparisons make of the values of a program."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from pathlib import PurePosixPath
from typing import Any

from jobsubmit.check.interpreter.memory import (
    MATCH,
    NAMESPACE,
    ClassValue,
    Container,
    External,
    FunctionValue,
    Memory,
    Method,
    ModuleValue,
    Own,
    Record,
    joined,
    plain,
)
from jobsubmit.check.interpreter.own import derived
from jobsubmit.check.program.facts import Facts
from jobsubmit.check.program.operations import COMPARE, UNKNOWN, Several, lifted, operated

_LONGEST = 10_000  # items of a list that is gone through
OBJECTS = (Record, FunctionValue, ClassValue, ModuleValue, Method, External, Container)


class Operators:
    """Apply operators; `environment` are the variables of the process as the program has set them."""

    facts: Facts
    memory: Memory
    environment: Container
    imports_unread: bool

    def set_item(self, owner: Any, key: Any, value: Any) -> None:
        raise NotImplementedError

    def truth_of(self, value: Any) -> bool | None:
        """Return whether a value counts as true; None if that is not known."""
        if value is UNKNOWN or isinstance(value, Own) or _is_of_library(value):
            return None
        if isinstance(value, Several):
            found = {bool(one) for one in value.values}
            return found.pop() if len(found) == 1 else None
        if isinstance(value, Container):
            return bool(value.content) or (None if value.is_open else False)
        if isinstance(value, Record):
            if value.entries is not None:
                return self.truth_of(value.entries)
            if value.kind == MATCH:
                return True
            is_counted = isinstance(value.kind, ClassValue) and (
                value.kind.find("__len__") is not None or value.kind.find("__bool__") is not None
            )
            return None if is_counted or isinstance(value.kind, External) else True
        return True if isinstance(value, OBJECTS) else bool(value)

    def either_value(self, values: Iterable[Any], otherwise: Any = UNKNOWN) -> Any:
        """Return the value that is one of several: `otherwise` unless they are the same."""
        found = list(values)
        result = found[0]
        for other in found[1:]:
            result = joined(result, other, otherwise)
        return result

    def items(self, value: Any) -> list[Any] | None:
        """Return what a loop goes through; None if that is not known."""
        if isinstance(value, Record) and value.entries is not None:
            value = value.entries
        if isinstance(value, Container):
            return None if value.is_open or len(value.content) > _LONGEST else list(value.content)
        if type(value) in (tuple, str, range):
            return list(value) if len(value) <= _LONGEST else None
        return None

    def operate(self, op: ast.operator, left: Any, right: Any, *, in_place: bool = False) -> Any:
        """Return the value of `left op right`; a list is extended where it is."""
        if isinstance(left, Own) or isinstance(right, Own):
            return derived(UNKNOWN, left, right)
        if isinstance(left, PurePosixPath) and isinstance(op, ast.Div) and isinstance(right, (str, PurePosixPath)):
            return left / right
        if isinstance(left, Container) and isinstance(op, ast.Add) and isinstance(left.content, list):
            added = self.items(right)
            if in_place:
                self.memory.touch(left)
                left.content += added or []
                left.is_open = left.is_open or added is None
                return left
            return Container([*left.content, *(added or [])], is_open=left.is_open or added is None)
        if isinstance(left, Container) and isinstance(op, ast.BitOr) and isinstance(right, Container):
            if isinstance(left.content, dict) and isinstance(right.content, dict):
                return Container({**left.content, **right.content}, is_open=left.is_open or right.is_open)
        if type(left) is tuple and type(right) is tuple and isinstance(op, ast.Add):
            return left + right if len(left) + len(right) <= _LONGEST else UNKNOWN
        if isinstance(left, OBJECTS) or (isinstance(right, OBJECTS) and not isinstance(left, str)):
            left, right = plain(left), plain(right)
        if type(right) is tuple:
            right = list(right)
        if isinstance(left, list) or type(left) is tuple:
            return UNKNOWN
        return operated(op, left, right)

    def part(self, owner: Any, bounds: slice) -> Any:
        if type(owner) in (str, tuple):
            return owner[bounds]
        if isinstance(owner, Container) and isinstance(owner.content, list) and not owner.is_open:
            return Container(owner.content[bounds])
        return UNKNOWN

    def update(self, target: Container, added: Any) -> None:
        """Add the entries of another mapping, or of pairs."""
        if isinstance(added, Record) and added.entries is not None:
            added = added.entries
        self.memory.touch(target)
        if isinstance(added, Container) and isinstance(added.content, dict):
            target.content.update(added.content)
            target.is_open = target.is_open or added.is_open
            return
        pairs = self.items(added)
        if pairs is None or not all(isinstance(one, tuple) and len(one) == 2 for one in pairs):  # noqa: PLR2004
            target.is_open = True
            if isinstance(target.content, dict):
                target.content.update(dict.fromkeys(target.content, UNKNOWN))
            return
        for key, value in pairs:
            self.set_item(target, key, value)

    def compare(self, op: ast.cmpop, left: Any, right: Any) -> Any:
        """Return the value of a comparison."""
        if isinstance(left, Own) or isinstance(right, Own):
            return derived(UNKNOWN, left, right)
        if isinstance(op, (ast.In, ast.NotIn)):
            found = self.contains(right, left)
            return (
                found
                if found is UNKNOWN or isinstance(op, ast.In)
                else (lifted(lambda one: not one, found) if isinstance(found, Several) else not found)
            )
        if isinstance(op, (ast.Is, ast.IsNot)):
            if left is UNKNOWN or right is UNKNOWN or _may_be_none(left) or _may_be_none(right):
                return UNKNOWN
            if left is None or right is None or isinstance(left, bool) or isinstance(right, bool):
                return (left is right) is isinstance(op, ast.Is)
            same = left is right or (isinstance(left, External) and left == right)
            return same is isinstance(op, ast.Is) if isinstance(left, OBJECTS) else UNKNOWN
        if left is UNKNOWN or right is UNKNOWN:
            return UNKNOWN
        if isinstance(op, (ast.Eq, ast.NotEq)) and (isinstance(left, OBJECTS) or isinstance(right, OBJECTS)):
            return self._equal(left, right, is_same=isinstance(op, ast.Eq))
        one, other = plain(left), plain(right)
        return UNKNOWN if one is UNKNOWN or other is UNKNOWN else lifted(COMPARE[type(op)], one, other)

    def _equal(self, left: Any, right: Any, *, is_same: bool) -> Any:
        if left is right:
            return is_same
        one, other = plain(left), plain(right)
        if one is UNKNOWN or other is UNKNOWN or "UNKNOWN" in f"{one}{other}":
            if left is None or right is None:
                return not is_same
            return UNKNOWN
        return (one == other) is is_same

    def contains(self, owner: Any, item: Any) -> Any:
        """Return whether a container has an item."""
        if isinstance(owner, Record) and owner.entries is not None:
            owner = owner.entries
        if owner == External("os.environ"):
            return self._is_set(item)
        if item is UNKNOWN or owner is UNKNOWN:
            return UNKNOWN
        if isinstance(owner, str):
            return lifted(lambda one: one in owner, item) if isinstance(item, (str, Several)) else UNKNOWN
        if isinstance(owner, Record) and owner.kind == NAMESPACE:
            return item in owner.content or (UNKNOWN if owner.is_open else False)
        content = owner.content if isinstance(owner, Container) else owner
        if isinstance(content, dict) and not isinstance(item, (Container, Record)):
            return item in content or (UNKNOWN if owner.is_open or self.imports_unread else False)
        if not isinstance(content, (list, tuple, set, range)):
            return UNKNOWN
        held = [plain(one) for one in content]
        wanted = plain(item)
        if isinstance(wanted, Several):
            is_known = UNKNOWN not in held and not (isinstance(owner, Container) and owner.is_open)
            return lifted(lambda one: one in held, wanted) if is_known else UNKNOWN
        if wanted is UNKNOWN:
            return True if any(one is item for one in content) else UNKNOWN
        if any(type(one) is type(wanted) and one == wanted for one in held):
            return True
        is_open = isinstance(owner, Container) and owner.is_open
        return UNKNOWN if is_open or any(one is UNKNOWN for one in held) else wanted in held

    def _is_set(self, name: Any) -> Any:
        """Return whether a variable of the environment is set."""
        if name in self.environment.content:
            return True
        return False if name in self.facts.environment else UNKNOWN


def _is_of_library(value: Any) -> bool:
    """Return whether a value is what an object of a library has under a name: a method, or anything else.

    So it is for a mapping whose entries may be attributes, as far as no method of `dict` has the name.
    """
    if not isinstance(value, Method) or not isinstance(value.function, str):
        return False
    if isinstance(value.owner, Container):
        return not hasattr(value.owner.content, value.function)
    return isinstance(value.owner, Record) and isinstance(value.owner.kind, External)


def _may_be_none(value: Any) -> bool:
    """Return whether a value is what an unknown function has returned: the name of a class begins with a capital."""
    if _is_of_library(value):
        return True
    is_made = isinstance(value, Record) and isinstance(value.kind, External)
    return is_made and not value.kind.name.rpartition(".")[2][:1].isupper()
