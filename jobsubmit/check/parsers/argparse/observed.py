"""The options that were seen to be declared while the program was followed, also by names that it computes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from jobsubmit.check.interpreter.trace import Declared, Observed
from jobsubmit.check.parsers.accepted import CommandLine, Option
from jobsubmit.check.parsers.argparse.options import known_kind, translate_action
from jobsubmit.check.program.operations import UNKNOWN

_SETTINGS = ("nargs", "choices", "required", "dest")


def with_observed(line: CommandLine, observed: Observed) -> CommandLine:
    """Return a command line without gaps, if one parser was seen that gets all words, and all of its options."""
    strict = [one for one in observed.parsed if one.is_strict]
    parsed = strict[0] if len(strict) == 1 else observed.parsed[0] if len(observed.parsed) == 1 else None
    is_clear = not line.gaps and (line.is_strict or not strict)
    if parsed is None or is_clear or line.kind not in ("argparse", "unknown") or line.commands:
        return line
    is_parsed_again = not parsed.is_strict and any(gap.is_given_away for gap in line.gaps)
    is_known = (
        not (parsed.is_open or is_parsed_again)
        and (parsed.is_strict or observed.is_whole)
        and all(option.is_sure for option in parsed.declared)
    )
    if not is_known or not parsed.declared:
        return line
    options = tuple(_option(declared) for declared in parsed.declared)
    where = parsed.module.where(parsed.call)
    return replace(line, kind="argparse", options=options, is_strict=parsed.is_strict, parsed_at=where, gaps=())


def _option(declared: Declared) -> Option:
    given: Mapping[str, Any] = declared.keywords
    settings = {name: given[name] for name in _SETTINGS if given.get(name, UNKNOWN) is not UNKNOWN}
    is_sure = True
    if "action" in given:
        action = given["action"]
        is_boolean = isinstance(action, str) and action.endswith("BooleanOptionalAction")
        settings["action"] = "boolean" if is_boolean else action
        is_sure = translate_action(settings)
    implied = {"store_true": False, "store_false": True}.get(str(settings.get("action")))
    default = given.get("default", implied)
    kind = known_kind(declared.kind) if declared.kind else ""
    return Option(declared.names, declared.module.where(declared.call), settings, kind, default, is_sure)
