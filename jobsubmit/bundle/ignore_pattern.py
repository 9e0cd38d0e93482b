"""One line of a .gitignore file as a regular expression that takes bounded time, whatever is in the line.

Semantics: git's documentation of gitignore, and what git does (`git check-ignore`). Git compares bytes, so names are
compared in a form that has one character a byte. The first match of what stands between two stars is as good as any
later one, so none of these groups is ever tried again: that is what keeps the time bounded.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

_CLASSES = {
    "alnum": "0-9A-Za-z",
    "alpha": "A-Za-z",
    "blank": r" \t",
    "cntrl": r"\x00-\x1f\x7f",
    "digit": "0-9",
    "graph": "!-~",
    "lower": "a-z",
    "print": " -~",
    "punct": r"!-/:-@\[-`{-~",
    "space": r" \t\n\r\f\v",
    "upper": "A-Z",
    "xdigit": "0-9A-Fa-f",
}
_NOTHING = r"(?!)"
_SPECIAL = re.compile(r"[*?\[\\]")
_FOLDERS, _NAME = "**", "*"  # any number of folders; any part of a name


class _UnusableError(Exception):
    """A pattern matches nothing: git takes it so, too."""


@dataclass(frozen=True)
class Pattern:
    """One pattern: of names if it has no slash, else of paths below the folder of its file.

    `line` is the text in the file, and `number` the number of that line.
    """

    text: str
    is_exception: bool
    is_for_folders: bool
    is_for_names: bool
    line: str = ""
    number: int = 0

    def fits(self, path: str, *, is_dir: bool) -> bool:
        """Return whether a path below the folder of the file matches; folders above the path are not checked."""
        if self.is_for_folders and not is_dir:
            return False
        text = path.rpartition("/")[2] if self.is_for_names else path
        return self._expression.fullmatch(_as_bytes(text)) is not None

    def names_below(self, folder: str) -> bool:
        """Return whether the pattern spells out a path that begins with this folder."""
        plain = _SPECIAL.split(self.text, maxsplit=1)[0]
        return not self.is_for_names and plain.startswith(_as_bytes(folder) + "/")

    @cached_property
    def _expression(self) -> re.Pattern[str]:
        try:
            return re.compile(_Translation(self.text, has_folders=not self.is_for_names).expression(), re.DOTALL)
        except _UnusableError:
            return re.compile(_NOTHING)


def escape(path: str) -> str:
    """Return the pattern of exactly this path, which is below the folder of the ignore file."""
    text = re.sub(r"([*?\[\\])", r"\\\1", path)
    end = len(text.rstrip(" "))
    return text[:end] + text[end:].replace(" ", "\\ ")


def parse_pattern(line: str, number: int = 0) -> Pattern | None:
    """Return the pattern that a line of an ignore file holds, or None for an empty line and for a comment."""
    text = _without_trailing_spaces(line)
    if not text or text.startswith("#"):
        return None
    is_exception = text.startswith("!")
    text = text[is_exception:]
    is_for_folders = text.endswith("/")
    text = text[: len(text) - is_for_folders]
    if not text:
        return None
    shape = _as_bytes(text.removeprefix("/")), is_exception, is_for_folders, "/" not in text
    return Pattern(*shape, line, number)


def _as_bytes(text: str) -> str:
    return text if text.isascii() else text.encode("utf-8", "surrogateescape").decode("latin-1")


def _without_trailing_spaces(line: str) -> str:
    """Return a line without the spaces at its end, but for one that follows a backslash."""
    end, place = 0, 0
    while place < len(line):
        place += 2 if line[place] == "\\" else 1
        if line[place - 1 : place] != " " or line[place - 2 : place - 1] == "\\":
            end = min(place, len(line))
    return line[:end]


def _split(parts: list[str], star: str) -> list[list[str]]:
    """Split a list at each star of a kind."""
    found: list[list[str]] = [[]]
    for part in parts:
        if part == star:
            found.append([])
        else:
            found[-1].append(part)
    return found


class _Translation:
    """Translate one pattern, from its start to its end."""

    def __init__(self, text: str, *, has_folders: bool) -> None:
        self.text, self.has_folders = text, has_folders
        self.groups = 0

    def expression(self) -> str:
        first, *others = _split(list(self._parts()), _FOLDERS)
        if not others:
            return self._sequence(first, is_last=True)
        text = self._sequence(first, is_last=False)
        for part in others[:-1]:
            text += self._kept("(?:[^/]*/)*?" + self._sequence(part, is_last=False))
        return text + "(?:[^/]*/)*" + self._sequence(others[-1], is_last=True)

    def _sequence(self, parts: list[str], *, is_last: bool) -> str:
        """Translate what stands between two `**`."""
        first, *others = ("".join(part) for part in _split(parts, _NAME))
        kept = [self._kept("[^/]*?" + part) for part in (others[:-1] if is_last else others)]
        return first + "".join(kept) + ("[^/]*" + others[-1] if is_last and others else "")

    def _kept(self, expression: str) -> str:
        """Return a group that keeps its first match; Python 3.10 has no other way to say so."""
        self.groups += 1
        return f"(?=(?P<kept{self.groups}>{expression}))(?P=kept{self.groups})"

    def _parts(self) -> Iterator[str]:
        """Yield stars, `**` with the slash that follows it, and the expressions of single characters."""
        place = 0
        while place < len(self.text):
            sign = self.text[place]
            if sign == "*":
                end = len(self.text) - len(self.text[place:].lstrip("*"))
                is_wide = self._begins_path(place) and end - place > 1 and self.text[end : end + 1] in ("", "/")
                yield _FOLDERS if is_wide else _NAME
                if is_wide and end == len(self.text):
                    yield ".*"
                place = end + is_wide
            elif sign == "?":
                yield "[^/]"
                place += 1
            elif sign == "[":
                expression, place = self._class(place + 1)
                yield expression
            elif sign == "\\":
                if place + 1 == len(self.text):
                    raise _UnusableError
                yield re.escape(self.text[place + 1])
                place += 2
            else:
                yield re.escape(sign)
                place += 1

    def _begins_path(self, place: int) -> bool:
        """Return whether stars may stand for folders; git also says so of those that follow plain text (`a**/b`)."""
        before = self.text[:place]
        return self.has_folders and (before.endswith("/") or _SPECIAL.search(before) is None)

    def _class(self, place: int) -> tuple[str, int]:
        """Return the expression of a bracket, and the place after it."""
        is_negated = self.text[place : place + 1] in ("!", "^")
        place += is_negated
        items, begins = [], place
        while place == begins or self.text[place : place + 1] != "]":
            item, place = self._item(place)
            items.append(item)
        inside = "".join(items)
        if is_negated:
            return (f"[^/{inside}]" if inside else "[^/]"), place + 1
        return (f"(?!/)[{inside}]" if inside else _NOTHING), place + 1

    def _item(self, place: int) -> tuple[str, int]:
        """Return one range, class or character of a bracket, and the place after it."""
        if self.text.startswith("[:", place):
            end = self.text.find(":]", place)
            if end < 0 or self.text[place + 2 : end] not in _CLASSES:
                raise _UnusableError
            return _CLASSES[self.text[place + 2 : end]], end + 2
        first, place = self._character(place)
        if self.text[place : place + 1] != "-" or self.text[place + 1 : place + 2] in ("]", ""):
            return re.escape(first), place
        last, place = self._character(place + 1)
        return (f"{re.escape(first)}-{re.escape(last)}" if first <= last else re.escape(first)), place

    def _character(self, place: int) -> tuple[str, int]:
        if self.text[place : place + 1] == "\\":
            place += 1
        if place >= len(self.text):
            raise _UnusableError
        return self.text[place], place + 1
