"""Command lines that a program parses: argparse itself parses the words of the job."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from jobsubmit.check.interpreter.memory import (
    MORE,
    NAMESPACE,
    ClassValue,
    Container,
    External,
    FunctionValue,
    Method,
    Partial,
    Record,
    boxed,
    plain,
)
from jobsubmit.check.interpreter.signals import Ended
from jobsubmit.check.interpreter.trace import Declared, Parsed
from jobsubmit.check.program.configuration import read_text
from jobsubmit.check.program.known_parsers import ADDERS
from jobsubmit.check.program.operations import UNKNOWN, lifted
from jobsubmit.check.program.refusals import RefusingParser, evaluated

if TYPE_CHECKING:
    from jobsubmit.check.interpreter.calls import Calls

_PARSER, _GROUP = "argparse.ArgumentParser", "argparse._ArgumentGroup"
_DECLARED = "declared"
_FILES = "files"
# `name = value  # comment`, `name: value`, `name value`, `name`, but no comment and no section.
_SETTING = re.compile(r"\s*(?:--)?([^:=;#\s\[]+)\s*(?:[:=\s]\s*(.+?)?)?\s*(?:\s[;#].*)?$")
_SUBPARSERS = "argparse._SubParsersAction"
_NO_BREAK = "\N{NO-BREAK SPACE}"
_ACTIONS = (
    *("store", "store_true", "store_false", "store_const", "append", "append_const", "count", "extend"),
    *("help", "version"),
)


_CONVERTERS: Mapping[str, Callable[[str], Any]] = {
    "int": int,
    "float": float,
    "str": str,
    "bool": bool,
    "eval": evaluated,
}


def _made(run: Calls, args: list[Any], keywords: dict[str, Any]) -> Record:
    parents = _parents(run, keywords)
    abbrev = keywords.get("allow_abbrev", True) is not False
    parser = RefusingParser(
        prog="", conflict_handler="resolve", parents=[*map(_held, parents)], allow_abbrev=abbrev, add_help=False
    )
    record = Record(External(_PARSER))
    record.content["="] = parser
    record.content[_DECLARED] = [one for parent in parents for one in parent.content[_DECLARED]]
    record.is_open = "parents" in keywords and run.items(keywords["parents"]) is None
    record.is_open = record.is_open or any(parent.is_open for parent in parents)
    return record


def _made_with_files(run: Calls, args: list[Any], keywords: dict[str, Any]) -> Record:
    """Return a parser of configargparse, which reads words from files as well."""
    record = _made(run, args, keywords)
    record.content[_FILES] = "config_file_parser_class" not in keywords
    record.is_open = record.is_open or not record.content[_FILES]
    return record


def _words_of_files(run: Calls, owner: Record, words: list[str]) -> list[str]:
    """Return the words that a configuration file adds; source: `DefaultConfigFileParser` of configargparse 1.7."""
    options = owner.content.get(_DECLARED, ()) if owner.content.get(_FILES) else ()
    found: list[list[str]] = []
    for option in (one for one in options if one.keywords.get("is_config_file") is True):
        given = [word.partition("=")[2] for word in words if word.partition("=")[0] in option.names and "=" in word]
        given += [following for word, following in pairwise(words) if word in option.names]
        path = given[-1] if given else option.keywords.get("default")
        for setting in filter(None, map(_SETTING.match, read_text(run.program, str(path)).splitlines())):
            found += _words_of_setting(setting[1], (setting[2] or "").strip("'\""), options)
    own = {word.partition("=")[0] for word in words}
    return [word for group in found for word in group if group[0].partition("=")[0] not in own]


def _words_of_setting(name: str, value: str, options: Iterable[Declared]) -> list[list[str]]:
    """Return the words of a line of a configuration file."""
    option = next((one for one in options if f"--{name}" in one.names), None)
    if option is None:
        return []
    if str(option.keywords.get("action", "")).startswith("store_"):
        return [[f"--{name}"]] if value.lower() in ("true", "yes", "1", "") else []
    if value.startswith("[") and value.endswith("]"):
        return [[f"--{name}", *(part.strip() for part in value[1:-1].split(","))]]
    return [[f"--{name}={value}"]]


def _parents(run: Calls, keywords: dict[str, Any]) -> list[Record]:
    """Return the known parsers whose options another one has as well."""
    return [one for one in run.items(keywords.get("parents", ())) or [] if _held(one) is not None]


def _held(record: Any) -> Any:
    return record.content.get("=") if isinstance(record, Record) else None


def _wrapped(kind: str, held: Any, parser: Record) -> Record:
    record = Record(External(kind))
    record.content.update({"=": held, "parser": parser})
    return record


def _group(run: Calls, args: list[Any], keywords: dict[str, Any]) -> Record:
    owner: Record = args[0]
    if "parser" in owner.content:
        return owner  # a group in a group is the same to argparse
    held = _held(owner)
    made = held.add_argument_group() if held is not None else None
    return _wrapped(_GROUP, made, owner)


def _add_argument(run: Calls, args: list[Any], keywords: dict[str, Any]) -> Any:
    """Declare an option; where a part of its declaration is not known, take any word for it."""
    owner, *names = args
    held, parser = _held(owner), owner.content.get("parser", owner)
    if held is None or not names or not all(isinstance(name, str) for name in names):
        parser.is_open = True
        return UNKNOWN
    _declare(run, parser, tuple(names), keywords)
    if MORE in keywords:
        keywords = {"default": UNKNOWN, "type": UNKNOWN, **keywords}
    settings: dict[str, Any] = {"default": keywords["default"]} if "default" in keywords else {}
    action = keywords.get("action", "store")
    if isinstance(action, External) and action.name.endswith("BooleanOptionalAction"):
        settings["action"] = argparse.BooleanOptionalAction
    elif action in ("help", "version"):
        settings.update(action="store_true")
    elif action in _ACTIONS:
        settings["action"] = action
    else:  # of a class of its own: what it makes of its words is not known
        settings.update(default=UNKNOWN, nargs="*", type=lambda _: UNKNOWN)
        keywords = {key: value for key, value in keywords.items() if key == "dest"}
    for name in ("nargs", "const", "dest"):
        value = plain(keywords.get(name, UNKNOWN))
        if value is not UNKNOWN:
            settings[name] = value
    if settings.get("action", "store") in ("store", "append", "extend"):
        if "type" in keywords:
            settings["type"] = _converter(run, keywords["type"])
        choices = plain(keywords.get("choices", UNKNOWN))
        if isinstance(choices, list) and UNKNOWN not in choices and _keeps_words(keywords.get("type")):
            settings["choices"] = choices
        if not names[0].startswith("-") and settings.get("nargs") in (None, "+"):
            settings["nargs"] = "?" if settings.get("nargs") is None else "*"
    with suppress(Exception):
        held.add_argument(*names, **settings)
    return UNKNOWN


def _add_signature(run: Calls, args: list[Any], keywords: dict[str, Any]) -> Any:
    """Add the options that jsonargparse derives from a class or a function: which ones is not known."""
    run.memory.touch(args[0])
    args[0].is_open = True
    return UNKNOWN


def is_parser(value: Any) -> bool:
    return isinstance(value, Record) and value.kind in (External(_PARSER), External(_GROUP))


def extend(run: Calls, name: str, parser: Record) -> Record:
    """Follow a function of a library that adds options to a parser, and returns it; others are not known."""
    run.memory.touch(parser)
    for option in ADDERS.get(name, ()):
        _add_argument(run, [parser, option.name], dict(option.settings))
    parser.is_open = parser.is_open or name not in ADDERS
    return parser


def _converter(run: Calls, kind: Any) -> Callable[[str], Any]:
    if isinstance(kind, External) and kind.name in _CONVERTERS:
        return _CONVERTERS[kind.name]
    if isinstance(kind, (FunctionValue, External, Partial, ClassValue, Method)):
        return lambda text: run.call(kind, [text], {})
    return lambda text: UNKNOWN


def _declare(run: Calls, parser: Record, names: tuple[str, ...], keywords: dict[str, Any]) -> None:
    """Remember an option as it is declared."""
    kind = keywords.get("type")
    name = ""
    if isinstance(kind, External):
        name = kind.name
    elif isinstance(kind, FunctionValue):
        name = f"{kind.module.name}.{getattr(kind.node, 'name', '?')}"
    elif kind is not None:
        name = "?"
    given = {key: plain(value) for key, value in keywords.items() if key not in ("type", "help", "metavar")}
    if isinstance(keywords.get("action"), External):
        given["action"] = keywords["action"].name
    elif isinstance(keywords.get("action"), ClassValue):
        given["action"] = UNKNOWN
    option = Declared(names, run.path[-1], run.here, given, name, not run.doubts)
    held = parser.content.setdefault(_DECLARED, [])
    parser.content[_DECLARED] = [*held, option]


def _keeps_words(kind: Any) -> bool:
    """Return whether choices can be compared with what a converter makes."""
    return kind is None or (isinstance(kind, External) and kind.name in _CONVERTERS)


def _set_defaults(run: Calls, args: list[Any], keywords: dict[str, Any]) -> None:
    held = _held(args[0])
    if held is not None and MORE in keywords:
        run.memory.touch(args[0])
        args[0].is_open = True
        args[0].content["="] = None  # any of its options may have another default
    elif held is not None:
        held.set_defaults(**keywords)


def _subparsers(run: Calls, args: list[Any], keywords: dict[str, Any]) -> Any:
    held = _held(args[0])
    if held is None:
        return UNKNOWN
    dest = keywords.get("dest")
    args[0].content[_SUBPARSERS] = True
    made = held.add_subparsers(**({"dest": dest} if isinstance(dest, str) else {}), parser_class=RefusingParser)
    return _wrapped(_SUBPARSERS, made, args[0])


def _add_parser(run: Calls, args: list[Any], keywords: dict[str, Any]) -> Any:
    held = _held(args[0])
    if held is None or not isinstance(args[1], str):
        return UNKNOWN
    parents = [*map(_held, _parents(run, keywords))]
    record = Record(External(_PARSER))
    record.content["="] = held.add_parser(args[1], add_help=False, parents=parents)
    return record


def _parse(run: Calls, args: list[Any], keywords: dict[str, Any]) -> Any:
    return _parsed(run, args, keywords, takes_rest=False)[0]


def _parse_known(run: Calls, args: list[Any], keywords: dict[str, Any]) -> Any:
    return _parsed(run, args, keywords, takes_rest=True)


def _open_parsed_before(run: Calls) -> None:
    """Remember that what parsers have left is accepted by one of which not all options are known."""
    run.trace.parsed.update({path: one._replace(is_open=True) for path, one in run.trace.parsed.items()})


def _parsed(run: Calls, args: list[Any], keywords: dict[str, Any], *, takes_rest: bool) -> tuple[Any, Any]:
    """Return the namespace that the words make, and those that are left; if they are refused, nothing is known."""
    owner = args[0]
    held = _held(owner)
    given = args[1] if len(args) > 1 else keywords.get("args")
    words = [*run.facts.argv] if given is None else plain(given)
    is_of_job = words == [*run.facts.argv]
    if isinstance(words, list) and all(isinstance(word, str) for word in words):
        words = [*_words_of_files(run, owner, words), *words]
    into = args[2] if len(args) > 2 else keywords.get("namespace")  # noqa: PLR2004
    made = into if isinstance(into, Record) else Record(NAMESPACE)
    made.is_open = made.is_open or owner.is_open
    if held is None or not isinstance(words, list) or not all(isinstance(word, str) for word in words):
        made.is_open = True
        return made, Container([], is_open=True)
    is_refused = False
    try:
        found, rest = held.parse_known_args([_without_spaces(word) for word in words])
    except Exception:  # words that the program refuses: that is another check's
        found, rest = argparse.Namespace(), []
        made.is_open = is_refused = True
    if is_of_job and run.path:
        declared = tuple(owner.content.get(_DECLARED, ()))
        is_open = owner.is_open or _SUBPARSERS in owner.content or (is_refused and takes_rest)
        run.trace.parsed[run.path[-1]] = Parsed(run.path[-1], run.here, declared, not takes_rest, is_open)
    elif owner.is_open and words and set(words) <= {*run.facts.argv}:
        _open_parsed_before(run)
    is_refused = is_refused or (bool(rest) and not takes_rest) or _lacks_required(owner, found)
    if is_refused and not takes_rest and not owner.is_open and _SUBPARSERS not in owner.content and not run.doubts:
        raise Ended
    if rest and not takes_rest and not owner.is_open:
        found, made.is_open = argparse.Namespace(), True
    run.memory.touch(made)
    for name, value in vars(found).items():
        is_native = isinstance(value, (list, dict)) and not isinstance(value, Container)
        held_value = boxed(value) if is_native else value
        if name not in made.content or into is None:
            made.content[name] = held_value
    for name, value in run.given.items():
        action = held._option_string_actions.get(name)
        if action is not None and action.dest in made.content:
            made.content[action.dest] = lifted(int, value) if action.type is int else value
    return made, Container(rest)


def _lacks_required(owner: Record, found: argparse.Namespace) -> bool:
    """Return whether an option is not given that must be."""
    names = [one.names for one in owner.content.get(_DECLARED, ()) if one.keywords.get("required") is True]
    fields = (max(own, key=len).lstrip("-").replace("-", "_") for own in names)
    return any(getattr(found, field, UNKNOWN) is None for field in fields)


def _without_spaces(word: str) -> str:
    """Return a word that argparse takes for an option, also if a placeholder in its value has spaces."""
    name, sign, value = word.partition("=")
    return f"{name}={value.replace(' ', _NO_BREAK)}" if sign and name.startswith("--") and "<" in value else word


def _get_default(run: Calls, args: list[Any], keywords: dict[str, Any]) -> Any:
    held = _held(args[0])
    return UNKNOWN if held is None or not isinstance(args[1], str) else held.get_default(args[1])


_OF_SIGNATURES = (
    *("add_class_arguments", "add_function_arguments", "add_method_arguments", "add_subclass_arguments"),
    *("add_subcommands", "add_lightning_class_args", "add_optimizer_args", "add_lr_scheduler_args"),
)
_OF_ADDERS = {
    "add_argument": _add_argument,
    **dict.fromkeys(("add_argument_group", "add_mutually_exclusive_group"), _group),
}
PARSERS: Mapping[str, Callable[[Any, list[Any], dict[str, Any]], Any]] = {
    **dict.fromkeys((_PARSER, "ArgumentParser", "jsonargparse.ArgumentParser"), _made),
    **dict.fromkeys(
        tuple(f"configargparse.{name}" for name in ("ArgumentParser", "ArgParser", "ConfigArgumentParser")),
        _made_with_files,
    ),
    **{f"{kind}.{name}": known for kind in (_PARSER, _GROUP) for name, known in _OF_ADDERS.items()},
    f"{_GROUP}.set_defaults": _set_defaults,
    f"{_PARSER}.set_defaults": _set_defaults,
    f"{_PARSER}.add_subparsers": _subparsers,
    **dict.fromkeys(tuple(f"{_PARSER}.{name}" for name in _OF_SIGNATURES), _add_signature),
    f"{_PARSER}.get_default": _get_default,
    f"{_SUBPARSERS}.add_parser": _add_parser,
    **dict.fromkeys((f"{_PARSER}.parse_args", f"{_PARSER}.parse_intermixed_args"), _parse),
    f"{_PARSER}.parse_known_args": _parse_known,
}
