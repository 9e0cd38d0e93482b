"""What argparse does with the words of a job, where it would end the program, and what a word means as Python."""

from __future__ import annotations

import argparse
import ast
from contextlib import suppress
from typing import Any, NoReturn

from jobsubmit.check.program.operations import UNKNOWN


class RefusedError(Exception):
    """A parser refuses its words."""


class RefusingParser(argparse.ArgumentParser):
    """A parser that raises RefusedError where argparse ends the program."""

    def error(self, message: str) -> NoReturn:
        raise RefusedError(message)

    def print_help(self, file: object = None) -> None:
        """Print nothing: `--help` is one of the user's words."""

    def exit(self, status: int = 0, message: str | None = None) -> NoReturn:
        raise RefusedError(message or "")


def evaluated(text: str) -> Any:
    """Return what Python takes a text for, if it is a literal; UNKNOWN for any other, which may be an expression."""
    with suppress(ValueError, SyntaxError):
        return ast.literal_eval(text)
    return UNKNOWN
