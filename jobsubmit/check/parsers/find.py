"""Find out which parser a program has."""

from __future__ import annotations

import ast

from jobsubmit.check.parsers import (
    absl_flags,
    click,
    configurator,
    fire,
    hf_argument_parser,
    jsonargparse_cli,
    lightning_cli,
    typer,
    tyro,
)
from jobsubmit.check.parsers.accepted import CommandLine, Gap
from jobsubmit.check.parsers.argparse import parser as argparse
from jobsubmit.check.program.module import Module
from jobsubmit.check.program.program import Program
from jobsubmit.check.program.reach import Reached
from jobsubmit.check.program.values import Values

# They read the command line by rules of their own.
_READERS = {
    "hydra": "hydra takes NAME=VALUE without dashes: give them in `args`",
    "fastcore": "fastcore derives options from functions",
    "jsonargparse": "jsonargparse derives options from signatures",
    "tap": "its options are the fields of a class",
    "simple_parsing": "simple_parsing derives options from dataclasses",
    "configargparse": "configargparse also reads files and variables",
    "draccus": "draccus derives options from dataclasses",
    "pyrallis": "pyrallis derives options from dataclasses",
    "docopt": "docopt reads its options from the help text",
    "plac": "plac derives options from signatures",
    "sacred": "sacred takes `with NAME=VALUE`",
    "gin": "gin binds parameters by name",
    "optparse": "optparse is not checked",
    "getopt": "getopt is not checked",
    "mmengine": "mmengine defines its own options",
}


def find_command_line(program: Program, reached: Reached, values: Values) -> CommandLine:
    """Return what the program accepts, with a gap if that is not fully known."""
    found = (
        hf_argument_parser.command_line(program, reached, values)
        or argparse.command_line(program, reached, values)
        or click.command_line(program, reached, values)
        or typer.command_line(program, reached, values)
        or absl_flags.command_line(program, reached, values)
        or fire.command_line(program, reached, values)
        or tyro.command_line(program, reached, values)
        or jsonargparse_cli.command_line(program, reached, values)
        or lightning_cli.command_line(program, reached, values)
        or configurator.command_line(program)
    )
    if found is not None:
        return found
    if values.composed is not None:
        why = "the configuration of Hydra is not only in files of the code"
        return CommandLine("hydra", gaps=() if values.composed.is_complete else (Gap(program.boot.path, why),))
    if any(name.endswith("OmegaConf.from_cli") for _, _, name in reached.calls):
        return CommandLine("omegaconf")
    return _read_otherwise(program, reached)


def _read_otherwise(program: Program, reached: Reached) -> CommandLine:
    """Return a command line with the reason why it is not known what it accepts; of kind `none` if nothing reads it."""
    for package, why in _READERS.items():
        if program.imports(package):
            return CommandLine("unknown", gaps=(Gap(program.boot.path, why),))
    for module, node in program.of(ast.Attribute, ast.Name):
        is_read = program.name_of(node, module) == "sys.argv" and not _is_own_path(node, module)
        if is_read and reached.of(node, module):
            return CommandLine("unknown", gaps=(Gap(module.where(node), "sys.argv is read directly"),))
    for module, call, name in reached.calls:
        if name == "exec":
            return CommandLine("unknown", gaps=(Gap(module.where(call), "another file is executed here"),))
    return CommandLine("none")


def _is_own_path(node: ast.AST, module: Module) -> bool:
    """Return whether a program only asks for its own path: `sys.argv[0]`."""
    match module.parents.get(node):
        case ast.Subscript(slice=ast.Constant(value=0)):
            return True
    return False
