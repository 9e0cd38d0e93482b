"""Programs that use argparse."""

from __future__ import annotations

from jobsubmit.check.parsers.accepted import CommandLine, Gap
from jobsubmit.check.parsers.argparse.gaps import gaps
from jobsubmit.check.parsers.argparse.namespaces import namespaces
from jobsubmit.check.parsers.argparse.options import options
from jobsubmit.check.parsers.argparse.search import STRICT, Search
from jobsubmit.check.parsers.argparse.words import is_argv
from jobsubmit.check.program.modules import Program
from jobsubmit.check.program.reach import Reached
from jobsubmit.check.program.values import Values


def command_line(program: Program, reached: Reached, values: Values) -> CommandLine | None:
    """Return what a program with argparse accepts; None if it has no parser of that kind."""
    search = Search(program, reached, values)
    if not search.parses and not search.creations:
        return None
    of_argv = [(module, call, how) for module, call, how in search.parses if is_argv(search, call, module)]
    if not of_argv:
        module, call = search.parses[0][:2] if search.parses else search.creations[0]
        return CommandLine("argparse", gaps=(Gap(module.where(call), "it does not parse the command line as it is"),))
    sure = [(module, call) for module, call, how in of_argv if how in STRICT and search.reached.is_sure(call, module)]
    module, call = sure[0] if sure else of_argv[0][:2]
    return CommandLine(
        "argparse",
        tuple(options(search)),
        is_strict=bool(sure),
        parsed_at=module.where(call),
        gaps=tuple(gaps(search)),
        settings=search.settings(),
        namespaces=frozenset(namespaces(search)),
    )
