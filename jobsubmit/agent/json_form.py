"""Read JSON that another process wrote, and check its form.

A form is a type (`float` is any finite number), a tuple of forms of which one fits, a list with the form of each item,
or a mapping of names to forms; a name that ends in `?` is optional, and other names are allowed. A TypedDict of
protocol.py is a form, too: its annotations are read, so that one definition serves types and checks.
"""

from __future__ import annotations

import json
import sys

TYPE_CHECKING = False  # importing typing would cost more than all the rest
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any, TypeAlias, TypeVar

    from typing_extensions import TypedDict as TypedDict  # noqa: PLC0414 - protocol.py takes it from here

    Form: TypeAlias = object
    T = TypeVar("T")
    Time: TypeAlias = float
else:

    class TypedDict(dict):
        """A TypedDict at run time: a class whose annotations are the fields of a JSON object."""

        is_total = True

        def __init_subclass__(cls, total: bool = True) -> None:
            cls.is_total = total


_LARGEST = 1 << 63
_LATEST = 250_000_000_000  # seconds since the epoch; the year 9892: every calendar still knows it
TIME = "a time"
_NAMES = {"int": int, "float": float, "str": str, "bool": bool, "dict": dict, "None": None, "Time": TIME}
_forms = {}  # type: dict[type, dict[str, Form]]


def parse_json(data: bytes) -> object:
    """Return the value of a JSON text. Raises ValueError if it is not JSON, or is nested too deeply."""
    try:
        return json.loads(data.decode("utf-8"))
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def read_object(data: bytes, form: type[T]) -> T:
    """Return a JSON object of a form. Raises a ValueError that names the first field that does not fit."""
    return read_fields(data, form)  # type: ignore[return-value] # its fields were checked


def read_fields(data: bytes, form: Form) -> dict[str, Any]:
    """Return a JSON object of a form that is not a class. Raises ValueError as read_object does."""
    value = parse_json(data)
    if not isinstance(value, dict):
        raise ValueError("it is not a JSON object")
    wrong = find_misfit(value, form)
    if wrong is not None:
        raise ValueError("its field `%s` is missing or wrong" % wrong)
    return value


def find_misfit(value: dict[str, Any], form: Form) -> str | None:
    """Return the name of a field that is missing or has another form, or None."""
    for name, wanted in _fields(form).items():
        key = name.rstrip("?")
        if key not in value:
            if key == name:
                return key
        elif not fits(value[key], wanted):
            return key
    return None


def fits(value: object, form: Form) -> bool:
    """Return whether a value has a form."""
    if isinstance(form, tuple):
        return any(fits(value, one) for one in form)
    if isinstance(form, dict) or hasattr(form, "is_total"):
        return isinstance(value, dict) and find_misfit(value, form) is None
    if isinstance(form, list):
        return isinstance(value, list) and all(fits(item, form[0]) for item in value)
    if form in (int, float, TIME):
        return _is_number(value, form)
    return value is None if form is None else isinstance(value, form)  # type: ignore[arg-type] # a type is left


def _is_number(value: object, form: Form) -> bool:
    if isinstance(value, bool) or not isinstance(value, int if form is int else (int, float)):
        return False
    return 0 <= value < _LATEST if form == TIME else -_LARGEST < value < _LARGEST  # NaN is neither


def _fields(form: Form) -> dict[str, Form]:
    """Return the fields of a form that is a mapping, or a TypedDict."""
    if isinstance(form, dict):
        return form
    assert isinstance(form, type)
    if form not in _forms:
        _forms[form] = {name: wanted for kind in reversed(form.__mro__) for name, wanted in _annotated(kind)}
    return _forms[form]


def _annotated(kind: type) -> Iterator[tuple[str, Form]]:
    """Yield the fields that a class adds to those of its bases, which get other names only."""
    is_total = getattr(kind, "is_total", True)
    for name, text in getattr(kind, "__annotations__", {}).items():
        inner = text[len("NotRequired[") : -1] if text.startswith("NotRequired[") else text
        yield name + "?" * (inner is not text or not is_total), _parse_annotation(inner, kind)


def _parse_annotation(text: str, owner: type) -> Form:
    """Return the form of an annotation, like `int | None`, `list[str]` or the name of another class."""
    parts = text.split(" | ")
    if len(parts) > 1:
        return tuple(_parse_annotation(part, owner) for part in parts)
    if text.startswith("list["):
        return [_parse_annotation(text[len("list[") : -1], owner)]
    if text.startswith("dict["):
        return dict
    return _NAMES[text] if text in _NAMES else getattr(sys.modules[owner.__module__], text)
