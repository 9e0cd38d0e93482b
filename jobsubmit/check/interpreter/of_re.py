"""Regular expressions that a program applies to texts that are known."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from jobsubmit.check.interpreter.memory import MATCH, External, Record, boxed
from jobsubmit.check.program.operations import UNKNOWN

if TYPE_CHECKING:
    from jobsubmit.check.interpreter.calls import Calls

_PATTERN = External("re.Pattern")
_HELD = "[held]"
_LONGEST_PATTERN, _LONGEST_TEXT = 120, 400
_MAY_TAKE_LONG = re.compile(r"[*+}]\??\)\??[*+{]|\\\d")  # repeated repetitions, and references to groups


def _compile(run: Calls, args: list[Any], keywords: dict[str, Any]) -> Any:
    if not _is_harmless(args[0]) or len(args) > 1 or keywords:
        return UNKNOWN
    made = Record(_PATTERN)
    made.content[_HELD] = args[0]
    return made


def _is_harmless(pattern: Any) -> bool:
    is_short = isinstance(pattern, str) and len(pattern) <= _LONGEST_PATTERN
    return is_short and not _MAY_TAKE_LONG.search(pattern)


def _applied(name: str) -> Callable[[Any, list[Any], dict[str, Any]], Any]:
    def apply(run: Calls, args: list[Any], keywords: dict[str, Any]) -> Any:
        given = [one.content.get(_HELD) if isinstance(one, Record) and one.kind == _PATTERN else one for one in args]
        is_known = all(isinstance(one, str) and len(one) <= _LONGEST_TEXT for one in given)
        if not given or not is_known or keywords or not _is_harmless(given[0]):
            return UNKNOWN
        return _held(getattr(re, name)(*given))

    return apply


def _held(result: Any) -> Any:
    if not isinstance(result, re.Match):
        return boxed(result) if isinstance(result, list) else result
    made = Record(MATCH)
    made.content[_HELD] = result
    return made


def _of_match(name: str) -> Callable[[Any, list[Any], dict[str, Any]], Any]:
    def ask(run: Calls, args: list[Any], keywords: dict[str, Any]) -> Any:
        is_known = all(isinstance(one, (int, str)) for one in args[1:])
        return boxed(getattr(args[0].content[_HELD], name)(*args[1:])) if is_known else UNKNOWN

    return ask


_NAMES = ("match", "fullmatch", "search", "findall", "split", "sub")
OF_RE: Mapping[str, Callable[[Any, list[Any], dict[str, Any]], Any]] = {
    "re.compile": _compile,
    **{f"re.{name}": _applied(name) for name in _NAMES},
    **{f"re.Pattern.{name}": _applied(name) for name in _NAMES},
    **{f"re.Match.{name}": _of_match(name) for name in ("group", "groups", "groupdict", "start", "end")},
}
