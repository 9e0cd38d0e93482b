"""What a program accepts on its command line, and which arguments it rejects: argparse itself decides."""

from __future__ import annotations

import argparse
import ast
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple

from jobsubmit.check.program.namespaces import Namespaces
from jobsubmit.check.program.operations import UNKNOWN, has_gaps
from jobsubmit.check.program.refusals import RefusedError, RefusingParser, evaluated


def _yes_no(text: str) -> bool:
    """Return what a word means to the functions that people write for this; raise ValueError for other words."""
    if text.lower() in ("yes", "true", "t", "y", "1", "on"):
        return True
    if text.lower() in ("no", "false", "f", "n", "0", "off", "none"):
        return False
    raise ValueError(text)


def _absl_int(text: str) -> int:
    """Return what absl reads in a word: an integer, also as 0x10 or 0o17."""
    try:
        return int(text, 16 if text.lower().startswith("0x") else 8 if text.lower().startswith("0o") else 10)
    except ValueError:
        raise argparse.ArgumentTypeError(f"invalid int value: {text!r}") from None


def _python(text: str) -> Any:
    """Return a word as Fire reads it: as Python where it is a literal, else as a text."""
    value = evaluated(text)
    return text if value is UNKNOWN else value


def _literal(kind: type) -> Callable[[str], Any]:
    """Return a converter that takes literals of one type only, as the configurator of nanoGPT does."""

    def convert(text: str) -> Any:
        value = _python(text)
        if type(value) is not kind:
            if kind is float and type(value) is int:
                raise argparse.ArgumentTypeError(f"{text} is of type int, not float: write {float(value)}")
            raise argparse.ArgumentTypeError(f"{text} is of type {type(value).__name__}, not {kind.__name__}")
        return value

    return convert


def _keeping(default: Any, convert: Callable[[str], Any]) -> Callable[[str], Any]:
    """Return a converter that leaves a default as it is: argparse converts texts, a configurator reads words only."""
    return lambda text: text if text == default else convert(text)


def _absl_bool(text: str) -> bool:
    """Return what absl reads in a word; raise ArgumentTypeError for other words."""
    if text.lower() not in ("true", "t", "1", "false", "f", "0"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a boolean for absl: write true or false")
    return text.lower() in ("true", "t", "1")


# What a `type` of the standard library does with a word; any other is taken to accept every word.
CONVERTERS: Mapping[str, Callable[[str], Any]] = {
    "int": int,
    "float": float,
    "str": str,
    "bool": bool,
    "complex": complex,
    "json.loads": json.loads,
    "ast.literal_eval": ast.literal_eval,
    "eval": evaluated,
    "yes_no": _yes_no,
    "absl_bool": _absl_bool,
    "absl_int": _absl_int,
    "python": _python,
    **{f"{kind.__name__}_literal": _literal(kind) for kind in (int, float, str)},
}
# Converters that leave a word what it is, but for its case; classes of enumerations by the names of their libraries.
_KEEP_WORDS = ("str.lower", "str.upper", "str.strip", "transformers.SchedulerType", "transformers.IntervalStrategy")
# What other libraries than argparse take for the value of the option before it, although it begins with a dash.
_NUMBER = re.compile(r"-(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?")
_KINDS = {"ambiguous": "unknown", "ignored explicit argument": "flag", "invalid choice": "choice"}


@dataclass(frozen=True)
class Option:
    """An option, or a positional argument, in argparse's terms; `is_sure` unless it may not be declared.

    `settings` are action, nargs, choices, required and dest; `type` is the name of a converter, empty for any.
    """

    names: tuple[str, ...]
    where: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    type: str = ""
    default: Any = UNKNOWN
    is_sure: bool = True

    @property
    def is_positional(self) -> bool:
        """Return whether it has no name on the command line."""
        return not self.names[0].startswith("-")

    @property
    def field(self) -> str:
        """Return the attribute of the parsed arguments that it sets."""
        long = next((name for name in self.names if name.startswith("--")), self.names[0])
        return str(self.settings.get("dest") or long.lstrip("-").replace("-", "_"))

    @property
    def takes_value(self) -> bool:
        """Return whether it is more than a switch."""
        return self.settings.get("action", "store") in ("store", "append", "extend")


class Gap(NamedTuple):
    """Where a program may accept more than was found, and why; `is_given_away` to code that is not here."""

    where: str
    why: str
    is_given_away: bool = False


class Refusal(NamedTuple):
    """Why a program rejects an argument."""

    kind: str
    text: str
    option: Option | None


_NONE = Refusal("", "", None)


@dataclass(frozen=True)
class CommandLine:
    """What a program accepts. With `gaps` it may accept more; if it is not `is_strict`, it accepts any other option.

    With `drops_rest`, no code reads such an option. If it `is_intermixed`, positionals may stand between options.

    `parsed_at` is where arguments are rejected. `namespaces` are the variables that hold the parsed arguments, and
    `supposed` those that do if nothing changes the arguments indirectly; `changed` are fields that are set indirectly.
    If it `may_fill_none`, the program gives fields that are None other values.
    With `may_have_more`, some options are those of a library, which may have others in another version. The arguments
    after the name of a subcommand belong to that entry of `commands`.
    """

    kind: str
    options: tuple[Option, ...] = ()
    is_strict: bool = False
    parsed_at: str = ""
    gaps: tuple[Gap, ...] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)
    namespaces: Namespaces = field(default_factory=Namespaces)
    supposed: Namespaces = field(default_factory=Namespaces)
    changed: frozenset[str] = frozenset()
    may_fill_none: bool = False
    may_have_more: bool = False
    commands: Mapping[str, CommandLine] = field(default_factory=dict)
    needs_command: bool = False
    drops_rest: bool = False
    is_intermixed: bool = False

    def command_at(self, words: Sequence[str]) -> int | None:
        """Return the position of the word that names a subcommand: the first besides options and values."""
        position = 0
        while position < len(words):
            if not words[position].startswith("-"):
                return position
            option = self.option(words[position])
            takes_one = option is not None and option.takes_value and "nargs" not in option.settings
            position += 2 if takes_one else 1
        return None

    def chosen(self, words: Sequence[str]) -> CommandLine | None:
        """Return what the subcommand accepts that the words name."""
        position = self.command_at(words) if self.commands else None
        return None if position is None else self.commands.get(words[position])

    def option(self, name: str) -> Option | None:
        """Return the option of a name."""
        return next((option for option in self.options if name in option.names), None)

    def meant(self, name: str) -> Option | None:
        """Return the option of a name, or the only one whose name begins so, where argparse takes it for that."""
        found = self.option(name)
        if found is not None or not name.startswith("--") or self.settings.get("allow_abbrev") is False:
            return found
        begun = [option for option in self.options if any(own.startswith(name) for own in option.names)]
        return begun[0] if len(begun) == 1 else None

    def joined(self, words: Sequence[str]) -> list[tuple[int, str]]:
        """Return each word with its position: an option with its value, where a library pairs them unlike argparse.

        In absl, a switch never takes the next word, and any other flag always does. Fire and tyro take any number.
        """
        found: list[tuple[int, str]] = []
        position = 0
        while position < len(words):
            word, after = words[position], words[position + 1 : position + 2]
            option = self.option(word) if self.kind in ("absl", "fire", "tyro") else None
            is_switch = option is not None and option.settings.get("nargs") == "?"
            if option is not None and self.kind == "absl" and is_switch:
                found.append((position, f"{word}=true"))
            elif option is not None and option.takes_value and after and self._takes(after[0]):
                found.append((position, f"{word}={after[0]}"))
                position += 1
            else:
                found.append((position, word))
            position += 1
        return found

    def _takes(self, word: str) -> bool:
        return self.kind == "absl" or _NUMBER.fullmatch(word) is not None

    def _read(self, words: Sequence[str]) -> list[str]:
        return [text for _, text in self.joined(words)]

    def refusal(self, word: str) -> Refusal | None:
        """Return why one word `--name=value` is refused, if it is; one that is not known is of kind `unknown`."""
        try:
            _, rest = self._parser_of_options.parse_known_args([word])
        except RefusedError as error:
            text = str(error)
            kind = next((kind for sign, kind in _KINDS.items() if sign in text), "type")
            return Refusal(kind, re.sub(r"^argument \S+: ", "", text), self.meant(word.partition("=")[0]))
        except Exception:  # a converter of ours met what it does not know
            return None
        return Refusal("unknown", f"unrecognized arguments: {word}", None) if rest else None

    @cached_property
    def _parser_of_options(self) -> _Parser:
        return self._parser([option for option in self._merged() if not option.is_positional], is_checked=True)

    def missing(self, words: Sequence[str]) -> tuple[Option, ...]:
        """Return the options and positionals that must be given and are not."""
        parser = self._parser(self._merged(), is_checked=False)
        try:
            self._parsed(parser, [word for word in self._read(words) if (self.refusal(word) or _NONE).kind != "flag"])
        except RefusedError as error:
            match = re.search(r"the following arguments are required: (.*)", str(error))
            names = set(re.split(", |/", match[1])) if match else set[str]()
            return tuple(option for option in self.options if names & set(option.names))
        except Exception:
            return ()
        return ()

    def leftover(self, words: Sequence[str]) -> list[str]:
        """Return the positional arguments that the program does not accept."""
        parser = self._parser(self._merged(), is_checked=False)
        try:
            return self._parsed(parser, self._read(words))[1]
        except Exception:
            return []

    def values(self, words: Sequence[str]) -> dict[str, Any]:
        """Return the values in the namespace of the program, as far as they are known."""
        chosen, position = self.chosen(words), self.command_at(words)
        if chosen is not None and position is not None:
            own = replace(self, commands={}).values(words[:position])
            return {**own, **chosen.values(words[position + 1 :])}
        takes_rest = any(option.is_positional and "nargs" in option.settings for option in self.options)
        if takes_rest and any(
            (self.refusal(word) or _NONE).kind == "unknown" for word in words if word.startswith("--")
        ):
            return {}  # what follows an unknown word may be taken for something else
        sure = [option for option in self._merged() if option.is_sure and option.type in ("", *CONVERTERS)]
        parser = self._parser(sure, is_checked=True, is_optional=True)
        try:
            found = vars(self._parsed(parser, self._read(words))[0])
        except Exception:
            return {}
        unknown = {name for name, value in found.items() if has_gaps(value) or (value is None and self.may_fill_none)}
        return {name: value for name, value in found.items() if name not in unknown | self.changed}

    def _parsed(self, parser: _Parser, words: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
        return parser.parse_known_intermixed_args(words) if self.is_intermixed else parser.parse_known_args(words)

    def _parser(self, options: Iterable[Option], *, is_checked: bool, is_optional: bool = False) -> _Parser:
        parser = _Parser(**self.settings)
        for option in options:
            _add(parser, option, is_checked=is_checked, is_optional=is_optional)
        return parser

    def _merged(self) -> Iterator[Option]:
        """Yield each option once; one that is declared in two ways accepts anything."""
        by_name: dict[str, Option] = {}
        for option in self.options:
            name = max(option.names, key=len)
            other = by_name.get(name)
            if other is None:
                by_name[name] = option
            elif (other.settings, other.type) != (option.settings, option.type):
                by_name[name] = Option(option.names, option.where, {"nargs": "?"}, is_sure=False)
        yield from by_name.values()


class _Parser(RefusingParser):
    def __init__(self, **settings: Any) -> None:
        super().__init__(prog="", conflict_handler="resolve", **settings)


def _allow_unknown(settings: dict[str, Any]) -> None:
    """Have an option take a word with a variable of a shell, whose value is not known."""
    convert = settings.get("type", str)
    settings["type"] = lambda text: UNKNOWN if "$" in text else convert(text)
    if "choices" in settings:
        settings["choices"] = [*settings["choices"], UNKNOWN]


def _add(parser: argparse.ArgumentParser, option: Option, *, is_checked: bool, is_optional: bool = False) -> None:
    settings = dict(option.settings)
    settings["default"] = option.default
    if option.takes_value:
        if is_checked and option.type in CONVERTERS:
            settings["type"] = CONVERTERS[option.type]
            if option.type.endswith("_literal"):
                settings["type"] = _keeping(option.default, settings["type"])
        choices = settings.pop("choices", None)
        if choices is not None and is_checked and option.type in ("", *CONVERTERS):
            settings["choices"] = choices
        elif choices is not None and is_checked and option.type in _KEEP_WORDS:
            settings["type"] = str.lower
            settings["choices"] = [str(choice).lower() for choice in choices]
        if is_optional:
            _allow_unknown(settings)
    if option.is_positional:
        settings.pop("required", None)
        settings.pop("dest", None)
        if is_optional and settings.get("nargs") in (None, "+"):
            settings["nargs"] = "?" if settings.get("nargs") is None else "*"
    elif is_optional or is_checked or not option.is_sure:
        settings["required"] = False
    names = option.names[:1] if option.is_positional else option.names
    try:
        parser.add_argument(*names, **settings)
    except Exception:  # settings that argparse refuses: the user's program would not come that far
        with suppress(Exception):
            parser.add_argument(*names, nargs="?", default=UNKNOWN)
