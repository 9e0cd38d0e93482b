"""Programs that use absl: their options are the flags that modules define when they are imported.

Source: absl.flags of absl-py 2: no flag may be shortened, one dash is as good as two, and a boolean takes
true, t, 1, false, f or 0.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Any

from jobsubmit.check.parsers.accepted import CommandLine, Gap, Option
from jobsubmit.check.parsers.config_flags import options_of_file
from jobsubmit.check.program.calls import argument
from jobsubmit.check.program.module import Module, spelled
from jobsubmit.check.program.namespaces import Namespaces
from jobsubmit.check.program.operations import UNKNOWN
from jobsubmit.check.program.program import Program
from jobsubmit.check.program.reach import Reached
from jobsubmit.check.program.values import Values

_DEFINES = "absl.flags.DEFINE_"
_OF_FILE = ".config_flags.DEFINE_config_file"
_TYPES = {"integer": "absl_int", "float": "float", "string": "str"}
_NOT_JUDGED = (
    "list",
    "spaceseplist",
    "multi_string",
    "multi_integer",
    "multi_float",
    "multi_enum",
    "alias",
    "enum_class",
)
_BOOLEANS = ("bool", "boolean")
_OF_ABSL = (  # of absl.app, absl.flags and absl.logging
    *("v", "verbosity", "logger_levels", "stderrthreshold", "log_dir", "flagfile", "undefok", "profile_file"),
    *("logtostderr", "alsologtostderr", "showprefixforinfo", "run_with_pdb", "pdb_post_mortem", "pdb"),
    *("run_with_profiling", "use_cprofile_for_profiling", "only_check_args", "help", "helpfull", "helpshort"),
)
_DEFINE_MORE = ("tensorflow", "tensorflow_datasets", "jax", "torch_xla", "clu", "xmanager", "launchpad", "t5x")


def command_line(program: Program, reached: Reached, values: Values) -> CommandLine | None:
    """Return the flags of a program that lets absl parse its words; None if it does not."""
    parses = list(_parses(program, reached))
    if not parses:
        return None
    module, call = parses[0]
    where = module.where(call)
    if not _is_of_argv(call, module, program):
        return CommandLine("absl", gaps=(Gap(where, "it parses something other than the command line"),))
    given = {name.lstrip("-") for name in values.facts.options_given}
    required = set[object]() if _may_set(reached) or "flagfile" in given else _required(reached, values)
    options: list[Option] = [Option(("WORDS",), where, {"nargs": "*"})]
    gaps: list[Gap] = []
    for home, define, name in reached.calls:
        kind = name.removeprefix(_DEFINES) if name.startswith(_DEFINES) else ""
        flag = values.of(argument(define, "name", 0), home)
        if kind and not isinstance(flag, str):
            gaps.append(Gap(home.where(define), "the name of a flag is computed here"))
        elif kind:
            options += _options(kind, str(flag), define, home, values, is_required=flag in required)
        elif name.endswith(_OF_FILE) and isinstance(flag, str):
            own = options_of_file(flag, define, home, values)
            options += own or []
            gaps += [] if own else [Gap(home.where(define), "the fields of the configuration are not known")]
        elif ".DEFINE_" in name or name == "absl.flags.DEFINE":
            gaps.append(Gap(home.where(define), f"{name.rpartition('.')[2]} makes a flag of a kind of its own"))
    options += [option for name in _OF_ABSL for option in _own(name, where)]
    is_lenient = any(argument(one, "known_only") or argument(one, "flags_parser") for _, one in parses)
    return CommandLine(
        "absl",
        tuple(options),
        not (is_lenient or given & {"flagfile", "undefok"}),
        where,
        tuple(gaps),
        {"allow_abbrev": False},
        Namespaces(frozenset(_held(program))),
        may_have_more=program.imports(*_DEFINE_MORE),
    )


def _parses(program: Program, reached: Reached) -> Iterator[tuple[Module, ast.Call]]:
    """Yield the calls that parse the words: `app.run(main)`, or `FLAGS(sys.argv)`."""
    held = _held(program)
    for module, call, name in reached.calls:
        if name == "absl.app.run" or (spelled(call.func) in held and call.args):
            yield module, call


def _is_of_argv(call: ast.Call, module: Module, program: Program) -> bool:
    """Return whether a call parses the words of the job: `app.run(main)`, `FLAGS(sys.argv)`."""
    if program.name_of(call.func, module) == "absl.app.run":
        return argument(call, "argv", 1) is None
    return program.name_of(call.args[0], module) == "sys.argv"


def _may_set(reached: Reached) -> bool:
    """Return whether the program gives a flag a default later, or another name."""
    return any(
        name == f"{_DEFINES}alias" or getattr(call.func, "attr", "") == "set_default" for _, call, name in reached.calls
    )


def _held(program: Program) -> set[str]:
    """Return the names of the variables that hold the flags."""
    names = {
        target.id
        for module, node in program.of(ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name) and program.name_of(node.value, module) == "absl.flags.FLAGS"
    }
    return {*names, "FLAGS", "flags.FLAGS"}


def _required(reached: Reached, values: Values) -> set[object]:
    """Return the names of the flags that are required: as they are defined, or marked so later."""
    found: set[object] = set()
    for module, call, name in reached.calls:
        if name.startswith(_DEFINES) and values.of(argument(call, "required"), module) is True:
            found.add(values.of(argument(call, "name", 0), module))
        if name in ("absl.flags.mark_flag_as_required", "absl.flags.mark_flags_as_required") and call.args:
            marked = values.of(call.args[0], module)
            found |= {marked} if isinstance(marked, str) else set(marked if isinstance(marked, list) else ())
    return found


def _options(
    kind: str, flag: str, define: ast.Call, module: Module, values: Values, *, is_required: bool
) -> Iterator[Option]:
    where = module.where(define)
    default = values.of(argument(define, "default", 1), module)
    short = values.of(argument(define, "short_name"), module)
    names = (*_spellings(flag), *(_spellings(short) if isinstance(short, str) else ()))
    settings: dict[str, Any] = {"required": is_required and default in (None, UNKNOWN)}
    if kind in _BOOLEANS:
        yield Option(names, where, {"nargs": "?", "const": True, **settings}, "absl_bool", default)
        yield Option(_spellings(f"no{flag}"), where, {"action": "store_false", "dest": flag}, default=default)
        return
    choices = values.of(argument(define, "enum_values", 2), module) if kind == "enum" else None
    if isinstance(choices, list) and all(isinstance(choice, str) for choice in choices):
        is_exact = (given := argument(define, "case_sensitive")) is None or values.of(given, module) is True
        yield Option(names, where, {"choices": choices, **settings}, "" if is_exact else "str.lower", default)
        return
    if kind in _NOT_JUDGED:
        yield Option(names, where, settings, "?")
    else:
        yield Option(names, where, settings, _TYPES.get(kind, ""), default, is_sure=kind in (*_TYPES, "enum"))


def _spellings(flag: str) -> tuple[str, str]:
    return f"--{flag}", f"-{flag}"


def _own(flag: str, where: str) -> Iterator[Option]:
    """Yield a flag of absl's own, which may be a switch."""
    yield Option(_spellings(flag), where, {"nargs": "?"}, is_sure=False)
    yield Option(_spellings(f"no{flag}"), where, {"action": "store_false", "dest": flag}, is_sure=False)
