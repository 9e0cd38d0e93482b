"""Programs that use Fire: their options are the parameters of a function.

Source: fire.core of fire 0.7: it calls the function first; words that are left over are an error only then.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import pairwise

from jobsubmit.check.parsers.accepted import CommandLine, Gap, Option
from jobsubmit.check.program.calls import argument, parameters_with_defaults
from jobsubmit.check.program.module import FUNCTIONS, Function, Module
from jobsubmit.check.program.operations import UNKNOWN
from jobsubmit.check.program.program import Program
from jobsubmit.check.program.reach import Reached
from jobsubmit.check.program.tree import walk
from jobsubmit.check.program.values import Values


def command_line(program: Program, reached: Reached, values: Values) -> CommandLine | None:
    """Return what the function accepts that Fire calls; None if Fire is not called."""
    found = next(((module, call) for module, call, name in reached.calls if name == "fire.Fire"), None)
    if found is None or argument(found[1], "command", 1) is not None:
        return None
    module, call = found
    given = argument(call, "component", 0)
    named = program.definition(program.name_of(given, module)) if given is not None else None
    home, function = named or (module, None)
    if not isinstance(function, FUNCTIONS):
        text = "Fire takes the name of a function or of a method here"
        return CommandLine("fire", gaps=(Gap(module.where(call), text),))
    parsed_at = home.where(function)
    if function.decorator_list:
        return CommandLine("fire", gaps=(Gap(parsed_at, "a decorator may change its options"),))
    plain = _plain_words(values.facts.argv)
    if "-" in values.facts.argv or (plain and any(isinstance(one, ast.Return) and one.value for one in walk(function))):
        return CommandLine("fire", gaps=(Gap(parsed_at, "some words may be for what the function returns"),))
    words = Option(("WORDS",), parsed_at, {"nargs": "*"})
    options = tuple(_options(function, len(plain), home, values))
    is_strict = function.args.kwarg is None
    return CommandLine("fire", (words, *options), is_strict, parsed_at, settings={"allow_abbrev": False})


def _plain_words(words: Sequence[str]) -> list[str]:
    """Return the words that are neither options nor their values: they are for the first parameters that lack one."""
    return [
        word
        for before, word in pairwise(("", *words))
        if not word.startswith("-") and not (before.startswith("-") and "=" not in before)
    ]


def _options(function: Function, plain: int, module: Module, values: Values) -> Iterator[Option]:
    parameters = parameters_with_defaults(function)
    by_name_only = {arg.arg for arg in function.args.kwonlyargs}
    initials = Counter(arg.arg[0] for arg, _ in parameters)
    for arg, default in parameters:
        name = arg.arg
        spelled = [name, name.replace("_", "-"), *([name[0]] if initials[name[0]] == 1 else [])]
        names = tuple(dict.fromkeys(f"{dashes}{one}" for one in spelled for dashes in ("--", "-")))
        is_required = default is None and (not plain or name in by_name_only)
        settings = {"nargs": "?", "const": True, "required": is_required, "dest": name}
        value = values.of(default, module) if default is not None else UNKNOWN
        yield Option(names, module.where(arg), settings, "python", value)
        no = {"action": "store_false", "dest": name, "default": value}
        negated = tuple(dict.fromkeys((f"--no{name}", f"--no{name.replace('_', '-')}")))
        yield Option(negated, module.where(arg), no, default=value, is_sure=False)
