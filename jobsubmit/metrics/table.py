"""Tables in the output of a training: a line of column names, then a row of numbers for each step or epoch."""

from __future__ import annotations

import re
from typing import NamedTuple

from jobsubmit.metrics import words
from jobsubmit.metrics.template import strip_colours

_RULE = re.compile(r"[\s|+=_─━┃│┏┓┗┛┡┩├┤┬┴┼╇╪═║╔╗╚╝╭╮╰╯:-]+")
_CELL = re.compile(
    r"([-+]?(?:\d[\d,]*\.?\d*|\.\d+)(?:[eE][-+]?\d+)?|nan|-?inf)(?:/(\d+))?\s?(?:%|[KMG]i?B?|[mµu]?s)?[:,;]?",
    re.IGNORECASE,
)
_BAR = re.compile(r"\s\d+%(?:\|[^|]*\||\s*[━╸╺─]+)\s*(\d+)/(\d+)\b.*")
NO_FIGURE = re.compile(
    r"class|images?|instances|labels|targets|size|img_?size|time|date|dur|wall|#|e|best|elapsed\w*|total_\w+"
)
_NUMBER = re.compile(r"(?<![A-Za-z0-9@-])\d")
_CLOCK = re.compile(r"\d+:\d\d(?::\d\d)?|(?:\d+\s?[dhm]\s?)+(?:[\d.]+\s?s)?")
_LOGGED = re.compile(r".*\d:\d\d(?:[:.,]\d+)*\W.*[-\]:>]$")  # what a logger writes before a row
_BARS = ("|", "│", "┃", "\t")
_MARK = "cp"  # a column that has a sign or nothing; skorch calls it so
_SIGNS = ("", "+", "*", "-")
_FEWEST_COLUMNS, _MOST_COLUMNS, _MOST_WORDS, _LONGEST = 3, 30, 3, 400


class Row(NamedTuple):
    """A row of a table: the counters and their totals, and the other cells by the names of their columns."""

    epoch: float | None
    epochs: float | None
    step: float | None
    steps: float | None
    figures: dict[str, float]
    is_counted: bool = False


def read_header(text: str) -> tuple[str, ...]:
    """Return the names of the columns if a line is the head of a table with figures, else nothing."""
    if len(text) > _LONGEST:
        return ()
    text = _BAR.sub("", text)
    cells = _cells(text)
    if len(wide := re.split(r"\s{2,}", text.strip())) < len(cells) and not any(bar in text for bar in (*_BARS, ",")):
        cells = wide
    if cells and not cells[-1]:
        cells = [*cells[:-1], _MARK]
    names = tuple(words.plain_name(cell) or cell for cell in cells)
    if not _FEWEST_COLUMNS <= len(names) <= _MOST_COLUMNS or len(set(names)) < len(names):
        return ()
    if any(not name or _NUMBER.search(cell) for name, cell in zip(names, cells, strict=True)):
        return ()
    counts = sum(words.is_epoch(cell) or words.is_step(cell) for cell in cells)
    results = sum(words.is_result(name) for name in names)
    is_head = all(len(cell.split()) <= _MOST_WORDS for cell in cells) and (results > 1 or (counts and results))
    return names if is_head else ()


def read_row(columns: tuple[str, ...], text: str) -> Row | None:
    """Return the row in a line, or None if the line has other cells than the table has columns."""
    if len(text) > _LONGEST:
        return None
    bar = _BAR.search(text)
    cells = _cells(text[: bar.start()] if bar else text)
    if len(cells) == len(columns) - 1 and _MARK in columns:
        columns = tuple(name for name in columns if name != _MARK)
    if len(cells) != len(columns):
        return None
    row = Row(None, None, float(bar.group(1)) if bar else None, float(bar.group(2)) if bar else None, {})
    matches = [_CELL.fullmatch(cell) for cell in cells]
    known = [match or cell in _SIGNS or _CLOCK.fullmatch(cell) for match, cell in zip(matches, cells, strict=True)]
    if not all(known[1:]) or (matches[0] is None and len(cells) < _FEWEST_COLUMNS + 1):
        return None
    for name, match in zip(columns, matches, strict=True):
        if match is None:
            continue
        value, total = float(match.group(1).replace(",", "")), float(match.group(2)) if match.group(2) else None
        if words.is_epoch(name) or name == "e":
            row = row._replace(epoch=value, epochs=total, is_counted=True)
        elif words.is_step(name):
            row = row._replace(step=value, steps=total, is_counted=True)
        elif not NO_FIGURE.fullmatch(name) and not words.is_setting(name) and total is None:
            row.figures[name] = value
    return row


def _cells(text: str) -> list[str]:
    text = strip_colours(text).strip()
    if _RULE.fullmatch(text):
        return []
    for bar in _BARS:
        if text.count(bar) >= _FEWEST_COLUMNS - 1:
            cells = [cell.strip() for cell in text.strip(bar).split(bar)]
            return cells[1:] if text.endswith(bar) and _LOGGED.match(cells[0]) else cells
    if text.count(",") >= _FEWEST_COLUMNS - 1 and "  " not in text:
        return [cell.strip() for cell in text.split(",")]
    return text.replace("--", "nan").split() if "  " in text else []
