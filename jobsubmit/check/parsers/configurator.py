"""Scripts whose arguments set their variables: those that execute a configurator, as nanoGPT does."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Any

from jobsubmit.check.parsers.accepted import CommandLine, Option
from jobsubmit.check.program.configurator import configurator_of
from jobsubmit.check.program.module import Module
from jobsubmit.check.program.program import Program
from jobsubmit.check.program.variables import position

_TYPES = {int: "int_literal", float: "float_literal", str: "str_literal"}


def command_line(program: Program) -> CommandLine | None:
    """Return the variables that a script has before its configurator, as options; None if it executes none.

    Source: configurator.py of nanoGPT: a value must have the type of the variable, and a word without `=` is a file.
    """
    configures = configurator_of(program, program.boot)
    if configures is None:
        return None
    files = Option(("FILES",), program.boot.where(configures), {"nargs": "*"})
    options = tuple(_options(program.boot, configures))
    where = program.boot.where(configures)
    return CommandLine("configurator", (files, *options), True, where, settings={"allow_abbrev": False})


def _options(module: Module, configures: ast.Call) -> Iterator[Option]:
    for (scope, name), stores in module.own_stores.items():
        places = [store for store in stores if position(store) < position(configures)]
        statement = module.parents.get(places[-1]) if places else None
        if scope is not module.tree or not isinstance(statement, (ast.Assign, ast.AnnAssign)):
            continue
        value = statement.value.value if isinstance(statement.value, ast.Constant) else None
        settings: dict[str, Any] = {"choices": ["True", "False"]} if isinstance(value, bool) else {}
        kind = "" if isinstance(value, bool) else _TYPES.get(type(value), "")
        yield Option((f"--{name}",), module.where(statement), settings, kind, value)
