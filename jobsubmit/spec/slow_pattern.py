"""Regular expressions that can take exponential time: a repetition whose text can be divided in more than one way.

`(a+)+b` tries all ways to divide a long `aaa…` into groups before it gives up. Python's `re` has no time limit.
"""

from __future__ import annotations

import itertools
import re
import warnings
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)
    try:
        from re import _constants as ops, _parser as parser  # type: ignore[attr-defined] # Python 3.11 and later
    except ImportError:
        import sre_constants as ops
        import sre_parse as parser

_ALPHABET = frozenset(map(chr, (*range(256), 0x4E00)))  # one character stands for all others
_MANY = 10  # repetitions from which the ways multiply
_CATEGORIES = {
    ops.CATEGORY_DIGIT: r"\d",
    ops.CATEGORY_NOT_DIGIT: r"\D",
    ops.CATEGORY_SPACE: r"\s",
    ops.CATEGORY_NOT_SPACE: r"\S",
    ops.CATEGORY_WORD: r"\w",
    ops.CATEGORY_NOT_WORD: r"\W",
}
_Items = Sequence[tuple[Any, Any]]


class _Begin(NamedTuple):
    """The characters that a part of a pattern can begin with, and whether it can be empty."""

    characters: frozenset[str]
    may_be_empty: bool


def can_take_exponential_time(pattern: str) -> bool:
    """Return whether a repetition contains a choice that the text does not decide: inner repetitions or alternatives
    that can match the same characters as what follows them. Raises re.error."""
    return any(_is_ambiguous(body, _begin(body)) for body in _repeated(parser.parse(pattern).data))


def _repeated(items: _Items) -> Iterator[_Items]:
    """Yield what is repeated without a limit, at any depth."""
    for op, argument in items:
        if op in (ops.MAX_REPEAT, ops.MIN_REPEAT) and argument[1] >= _MANY:
            yield argument[2].data
        for inner in _inner(op, argument):
            yield from _repeated(inner)


def _is_ambiguous(items: _Items, after: _Begin) -> bool:
    """Return whether a part of a repetition can be matched in two ways; `after` is what can follow the part."""
    for place, (op, argument) in enumerate(items):
        rest = _begin(items[place + 1 :])
        follow = _Begin(
            rest.characters | (after.characters if rest.may_be_empty else frozenset()),
            rest.may_be_empty and after.may_be_empty,
        )
        if op in (ops.MAX_REPEAT, ops.MIN_REPEAT):
            own = _begin(argument[2].data)
            if argument[1] >= _MANY and _characters(argument[2].data) & follow.characters:
                return True
            if _is_ambiguous(argument[2].data, _Begin(own.characters | follow.characters, follow.may_be_empty)):
                return True
        else:
            parts = [_is_ambiguous(inner, follow) for inner in _inner(op, argument)]
            if any(parts) or _has_same_beginnings(op, argument, follow):
                return True
    return False


def _has_same_beginnings(op: Any, argument: Any, follow: _Begin) -> bool:
    """Return whether the same text can begin two alternatives."""
    alternatives: list[_Items] = [one.data for one in argument[1]] if op is ops.BRANCH else []
    return any(_overlap(one, other, follow) for one, other in itertools.combinations(alternatives, 2))


def _overlap(one: _Items, other: _Items, follow: _Begin) -> bool:
    if one and other and all(op is ops.LITERAL for op, _ in (*one, *other)):
        shorter = min(len(one), len(other))
        return list(one[:shorter]) == list(other[:shorter])
    first, second = _begin(one), _begin(other)
    begins = [begin.characters | (follow.characters if begin.may_be_empty else set()) for begin in (first, second)]
    return bool(begins[0] & begins[1]) or (first.may_be_empty and second.may_be_empty)


def _begin(items: _Items) -> _Begin:
    found: frozenset[str] = frozenset()
    for op, argument in items:
        if op in (ops.MAX_REPEAT, ops.MIN_REPEAT):
            inner = _begin(argument[2].data)
            one = _Begin(inner.characters, inner.may_be_empty or argument[0] == 0)
        elif op is ops.BRANCH:
            parts = [_begin(alternative.data) for alternative in argument[1]]
            one = _Begin(frozenset().union(*(part.characters for part in parts)), any(p.may_be_empty for p in parts))
        elif op is ops.SUBPATTERN:
            one = _begin(argument[-1].data)
        else:
            one = _single(op, argument)
        found |= one.characters
        if not one.may_be_empty:
            return _Begin(found, may_be_empty=False)
    return _Begin(found, may_be_empty=True)


def _single(op: Any, argument: Any) -> _Begin:
    """Return the same for what is no group: a character, a set of characters, or a position."""
    if op is ops.LITERAL:
        return _Begin(frozenset((chr(argument),)), may_be_empty=False)
    if op is ops.NOT_LITERAL:
        return _Begin(_ALPHABET - {chr(argument)}, may_be_empty=False)
    if op is ops.ANY:
        return _Begin(_ALPHABET - {"\n"}, may_be_empty=False)
    if op is ops.IN:
        return _Begin(_set(argument), may_be_empty=False)
    if op in (ops.AT, ops.ASSERT, ops.ASSERT_NOT):
        return _Begin(frozenset(), may_be_empty=True)
    return _Begin(_ALPHABET, may_be_empty=True)  # a reference to a group, or what a newer Python has


def _set(parts: _Items) -> frozenset[str]:
    found: set[str] = set()
    for op, argument in parts:
        if op is ops.LITERAL:
            found.add(chr(argument))
        elif op is ops.RANGE:
            first, last = argument
            found.update(char for char in _ALPHABET if first <= ord(char) <= last)
        elif op is ops.CATEGORY:
            found.update(char for char in _ALPHABET if re.match(_CATEGORIES[argument], char))
    is_negated = bool(parts) and parts[0][0] is ops.NEGATE
    return _ALPHABET - found if is_negated else frozenset(found)


def _characters(items: _Items) -> frozenset[str]:
    """Return all characters that a part of a pattern can contain."""
    found: frozenset[str] = frozenset()
    for op, argument in items:
        inner = list(_inner(op, argument))
        found |= frozenset().union(*map(_characters, inner)) if inner else _single(op, argument).characters
    return found


def _inner(op: Any, argument: Any) -> Iterator[_Items]:
    """Yield the parts that an item of a pattern consists of, if it is a group."""
    if op in (ops.MAX_REPEAT, ops.MIN_REPEAT):
        yield argument[2].data
    elif op is ops.SUBPATTERN:
        yield argument[-1].data
    elif op is ops.BRANCH:
        yield from (alternative.data for alternative in argument[1])
    elif op in (ops.ASSERT, ops.ASSERT_NOT):
        yield argument[1].data
