"""Boxes in the output of a training: `| loss | 0.5 |`, a figure on each line between two rules, as RL tools print."""

from __future__ import annotations

import re
from collections.abc import Iterable

from jobsubmit.metrics import words
from jobsubmit.metrics.table import NO_FIGURE, Row
from jobsubmit.metrics.template import strip_colours, value_of

_RULE = re.compile(r"[-=]{8,}|\+[-=+]+\+")
_LINE = re.compile(r"\|\s*([^|]*?)\s*\|\s*([^|]*?)\s*\|")
_NUMBER = re.compile(r"[-+]?(?:\d[\d,]*\.?\d*|\.\d+)(?:[eE][-+]?\d+)?\s?%?|nan|-?inf")
_FIRST = ("-", "=", "+", "|")
_LONGEST = 200
MOST_LINES = 100


def may_be_in_box(text: str) -> bool:
    """Return whether a line begins as the lines of a box do."""
    return text.startswith(_FIRST) and len(text) <= _LONGEST


def is_rule(text: str) -> bool:
    """Return whether a line is one that a box begins or ends with."""
    return _RULE.fullmatch(text.strip()) is not None


def is_line(text: str) -> bool:
    """Return whether a line has a name and a value, or a heading, as the lines in a box do."""
    return _LINE.fullmatch(text.strip()) is not None


def row_of(lines: Iterable[str]) -> Row | None:
    """Return what a whole box says; None without a counter and a result: then it may be about anything."""
    row = Row(None, None, None, None, {})
    room = ""
    for name, value in (_parts(line) for line in lines):
        plain = words.plain_name(name)
        if name.endswith("/") and not value:
            room = words.validation_word(plain)
        if not plain or not _NUMBER.fullmatch(value):
            continue
        if words.is_epoch(name):
            row = row._replace(epoch=value_of(value), is_counted=True)
        elif words.is_step(name):
            row = row._replace(step=max(row.step or 0, value_of(value)), is_counted=True)
        elif not NO_FIGURE.fullmatch(plain) and not words.is_setting(plain):
            row.figures[f"{room}_{plain}" if room else plain] = value_of(value.rstrip("% "))
    return row if row.is_counted and any(map(words.is_result, row.figures)) else None


def _parts(line: str) -> tuple[str, str]:
    found = _LINE.fullmatch(strip_colours(line).strip())
    return (found[1], found[2]) if found else ("", "")
