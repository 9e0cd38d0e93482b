"""Flags of absl, and the configurations of ml_collections that a flag names."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from jobsubmit.check.interpreter.memory import Container, FunctionValue, boxed
from jobsubmit.check.interpreter.special import follow_file
from jobsubmit.check.program.operations import UNKNOWN, lifted

if TYPE_CHECKING:
    from jobsubmit.check.interpreter.machine import Machine

_CONVERT: Mapping[str, Callable[[str], Any]] = {"integer": int, "float": float}
_BOOLEANS = {"true": True, "false": False, "1": True, "0": False}


def _defined(kind: str) -> Callable[[Any, list[Any], dict[str, Any]], Any]:
    def define(run: Machine, args: list[Any], keywords: dict[str, Any]) -> None:
        name = args[0] if args else keywords.get("name", UNKNOWN)
        default = args[1] if len(args) > 1 else keywords.get("default")
        words = _words(run)
        if isinstance(name, str):
            given = words.get(name)
            is_switch = kind == "boolean" and f"--{name}" in (run.items(run.argv) or ())
            given = "" if is_switch else given  # the next word is not its value
            run.flags[name] = default if given is None else _converted(given, kind)
            if kind == "boolean" and f"no{name}" in words:
                run.flags[name] = False
            if (passed := run.given.get(f"--{name}")) is not None:  # by the launcher, to each process its own
                run.flags[name] = lifted(int, passed) if kind == "integer" else passed

    return define


def _words(run: Machine) -> dict[str, str]:
    """Return what the words of the job give to flags, by their names; a switch has an empty text."""
    held = run.items(run.argv)
    words = [word for word in held or () if isinstance(word, str)]
    found: dict[str, str] = {}
    for word, after in pairwise([*words, ""]):
        if word.startswith("-"):
            name, sign, value = word.lstrip("-").partition("=")
            found[name] = value if sign else "" if after.startswith("-") else after
    return found


def _converted(text: str, kind: str) -> Any:
    if kind == "boolean":
        return _BOOLEANS.get(text.lower(), True if text == "" else UNKNOWN)
    return _CONVERT[kind](text) if kind in _CONVERT else text


def _configured(run: Machine, args: list[Any], keywords: dict[str, Any]) -> None:
    """Follow the file that a flag names: what `get_config` returns there is the configuration; the words change it."""
    name = args[0] if args else keywords.get("name", "config")
    default = args[1] if len(args) > 1 else keywords.get("default")
    words = _words(run)
    path = words.get(name, default)
    if not isinstance(name, str) or not isinstance(path, str):
        return
    path, _, text = path.partition(":")
    module = follow_file(run, path)
    maker = module.content.get("get_config") if module is not None else None
    held = run.call(maker, [text] if text else [], {}) if isinstance(maker, FunctionValue) else UNKNOWN
    for given, value in words.items():
        if given.startswith(f"{name}."):
            _set(run, held, given.split(".")[1:], value)
    run.flags[name] = held


def _set(run: Machine, held: Any, names: list[str], value: str) -> None:
    for name in names[:-1]:
        held = run.attribute(held, name)
    if isinstance(held, Container):
        run.set_item(held, names[-1], _literal(value, held.content.get(names[-1])))


def _literal(value: str, before: Any) -> Any:
    """Return a word in the type of the value that it replaces."""
    if isinstance(before, str):
        return value
    try:
        return boxed(ast.literal_eval(value))
    except (ValueError, SyntaxError):
        return _BOOLEANS.get(value.lower(), value)


def _run_main(run: Machine, args: list[Any], keywords: dict[str, Any]) -> None:
    if args:
        run.call(args[0], [UNKNOWN], {})


_KINDS = ("string", "integer", "float", "boolean", "enum")
OF_ABSL: Mapping[str, Callable[[Any, list[Any], dict[str, Any]], Any]] = {
    **{f"absl.flags.DEFINE_{kind}": _defined(kind) for kind in _KINDS},
    "absl.flags.DEFINE_bool": _defined("boolean"),
    "ml_collections.config_flags.DEFINE_config_file": _configured,
    "ml_collections.config_flags.config_flags.DEFINE_config_file": _configured,
    "absl.app.run": _run_main,
}
