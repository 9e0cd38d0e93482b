"""The settings that `configparser` reads from files of the code.

Source: "configparser" in the documentation of Python 3.13.
"""

from __future__ import annotations

import configparser
from collections.abc import Callable, Mapping
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

from jobsubmit.check.interpreter.memory import Container, External, Record, boxed, plain
from jobsubmit.check.program.configuration import OpenFile, read_text
from jobsubmit.check.program.operations import UNKNOWN

if TYPE_CHECKING:
    from jobsubmit.check.interpreter.calls import Calls

_PARSER = External("configparser.ConfigParser")
_CLASSES = ("ConfigParser", "RawConfigParser", "SafeConfigParser")
_REFERS = ("${", "%(")  # to another setting
_BOOLEANS = configparser.RawConfigParser.BOOLEAN_STATES


def _made(run: Calls, args: list[Any], keywords: dict[str, Any]) -> Record:
    return Record(_PARSER, is_open=True, entries=Container({}))


def _read(run: Calls, args: list[Any], keywords: dict[str, Any]) -> Any:
    """Read files of the code; return which of them are there, as `read` does."""
    parser, given = args[0], plain(args[1] if len(args) > 1 else keywords.get("filenames", UNKNOWN))
    paths = [given] if isinstance(given, (str, PurePosixPath, OpenFile)) else given
    if not isinstance(paths, (list, tuple)) or any(one is UNKNOWN for one in paths):
        parser.entries.is_open = True
        return UNKNOWN
    found = []
    for path in (one.path if isinstance(one, OpenFile) else str(one) for one in paths):
        text = read_text(run.program, path)
        if text and _take_over(run, parser, text):
            found.append(path)
    parser.entries.is_open |= not found
    return Container(found) if found else UNKNOWN


def _read_text(run: Calls, args: list[Any], keywords: dict[str, Any]) -> None:
    parser, text = args[0], args[1] if len(args) > 1 else UNKNOWN
    if not isinstance(text, str) or not _take_over(run, parser, text):
        parser.entries.is_open = True


def _take_over(run: Calls, parser: Record, text: str) -> bool:
    """Add the settings of a text to those that a parser has; return whether it can be read."""
    read = configparser.RawConfigParser(strict=False, allow_no_value=True)
    try:
        read.read_string(text)
    except configparser.Error:
        return False
    assert parser.entries is not None
    run.memory.touch(parser.entries)
    for section in read.sections():
        own = {name: _known(value) for name, value in read.items(section)}
        before = parser.entries.content.get(section)
        settings = dict(before.content) if isinstance(before, Container) else {}
        parser.entries.content[section] = boxed({**settings, **own})
    return True


def _known(value: str | None) -> Any:
    return UNKNOWN if value is not None and any(sign in value for sign in _REFERS) else value


def _got(convert: Callable[[str], Any]) -> Callable[[Any, list[Any], dict[str, Any]], Any]:
    def get(run: Calls, args: list[Any], keywords: dict[str, Any]) -> Any:
        parser, *names = args
        names += [keywords[name] for name in ("section", "option") if name in keywords]
        section = parser.entries.content.get(names[0]) if isinstance(names[0], str) else None
        option = names[1].lower() if len(names) > 1 and isinstance(names[1], str) else None
        if not isinstance(section, Container) or option not in section.content:
            return UNKNOWN if parser.entries.is_open else keywords.get("fallback", UNKNOWN)
        value = section.content[option]
        return convert(value) if isinstance(value, str) else value

    return get


def _sections(run: Calls, args: list[Any], keywords: dict[str, Any]) -> Any:
    entries = args[0].entries
    return UNKNOWN if entries.is_open else Container(list(entries.content))


def _has(run: Calls, args: list[Any], keywords: dict[str, Any]) -> Any:
    parser, *names = args
    if parser.entries.is_open or not all(isinstance(name, str) for name in names):
        return UNKNOWN
    section = parser.entries.content.get(names[0])
    return section is not None and (len(names) == 1 or names[1].lower() in section.content)


def _set(run: Calls, args: list[Any], keywords: dict[str, Any]) -> None:
    parser, section, option, *value = args
    held = parser.entries.content.get(section) if isinstance(section, str) else None
    if isinstance(held, Container) and isinstance(option, str) and value:
        run.set_item(held, option.lower(), value[0])
    else:
        parser.entries.is_open = True


OF_CONFIGPARSER: Mapping[str, Callable[[Any, list[Any], dict[str, Any]], Any]] = {
    **dict.fromkeys((f"configparser.{name}" for name in _CLASSES), _made),
    f"{_PARSER.name}.read": _read,
    f"{_PARSER.name}.read_file": _read,
    f"{_PARSER.name}.read_string": _read_text,
    f"{_PARSER.name}.get": _got(str),
    f"{_PARSER.name}.getint": _got(int),
    f"{_PARSER.name}.getfloat": _got(float),
    f"{_PARSER.name}.getboolean": _got(lambda text: _BOOLEANS.get(text.lower(), UNKNOWN)),
    f"{_PARSER.name}.sections": _sections,
    f"{_PARSER.name}.has_section": _has,
    f"{_PARSER.name}.has_option": _has,
    f"{_PARSER.name}.set": _set,
}
