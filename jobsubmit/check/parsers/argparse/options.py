"""The options that a program adds to its parsers."""

from __future__ import annotations

import argparse
import ast
from collections.abc import Iterator, Sequence
from typing import Any

from jobsubmit.check.parsers.accepted import Option
from jobsubmit.check.parsers.argparse.loops import Pass, keywords_of, names_of_option, type_name
from jobsubmit.check.parsers.argparse.search import Search
from jobsubmit.check.program.known_parsers import ADDERS, MAKERS
from jobsubmit.check.program.module import Module
from jobsubmit.check.program.operations import UNKNOWN

_VALUES = {
    "argparse.REMAINDER": "...",
    "argparse.OPTIONAL": "?",
    "argparse.ZERO_OR_MORE": "*",
    "argparse.ONE_OR_MORE": "+",
    "argparse.BooleanOptionalAction": "boolean",
}
_YES_NO = (
    "str2bool",
    "str_to_bool",
    "strtobool",
    "string_to_bool",
    "boolean_string",
    "bool_flag",
    "strbool",
    "to_bool",
)
_ACTIONS = ("store", "store_const", "store_true", "store_false", "append", "append_const", "count", "extend")


def options(search: Search, adds: Sequence[tuple[Module, ast.Call]] | None = None) -> Iterator[Option]:
    """Yield the options whose names are known: those that some calls add, or all."""
    for module, call in search.adds if adds is None else adds:
        if search.has_plain_name(call, module):
            yield _option(search, call, module)
        for one in search.loops(call, module) or ():
            yield _option(search, call, module, one)
    for module, call, name in search.calls:
        for known in (*ADDERS.get(name, ()), *MAKERS.get(name, ())):
            yield Option((known.name,), module.where(call), known.settings, known.type, known.default)


def _option(search: Search, call: ast.Call, module: Module, one: Pass | None = None) -> Option:
    values = one.values if one else search.values
    names = names_of_option(values, call, module)
    settings: dict[str, Any] = {}
    kind, default = "", UNKNOWN
    is_sure = search.reached.is_sure(call, module) and (search.is_one_parser or bool(search.subparsers))
    keywords = keywords_of(values, call, module)
    for keyword in keywords:
        value = _VALUES.get(search.program.name_of(keyword.value, module)) or values.of(keyword.value, module)
        match keyword.arg:
            case "type":
                kind = type_name(one, keyword.value, module) if one else search.program.name_of(keyword.value, module)
                kind = known_kind(kind or "?")
            case "default":
                default = value
            case "action":
                settings["action"] = value
            case "nargs" | "choices" | "required" | "dest" if value is not UNKNOWN:
                settings[keyword.arg] = value
            case "nargs" | None:
                settings["nargs"], is_sure = "?", False
    if "action" in settings:
        is_sure = translate_action(settings) and is_sure
    if module in search.lifting:
        settings.pop("required", None)
    if "default" not in {k.arg for k in keywords}:
        default = {"store_true": False, "store_false": True}.get(settings.get("action", ""))
    return Option(names, module.where(call), settings, kind, default, is_sure)


def known_kind(name: str) -> str:
    """Return the name of a type; functions that read yes and no are all taken for one."""
    return "yes_no" if name.rpartition(".")[2].lower() in _YES_NO else name


def translate_action(settings: dict[str, Any]) -> bool:
    """Put argparse's own action in place; return whether it is one."""
    action = settings["action"]
    if action == "boolean":
        settings["action"] = argparse.BooleanOptionalAction
    elif action not in _ACTIONS:
        del settings["action"]
        settings["nargs"] = settings.get("nargs", "?")
        settings.pop("choices", None)
        settings.pop("required", None)
        return False
    if settings.get("action") in ("store_const", "append_const"):
        settings["const"] = UNKNOWN
    if settings.get("action") in ("store_true", "store_false", "store_const", "append_const", "count"):
        settings.pop("nargs", None)
        settings.pop("choices", None)
    return True
