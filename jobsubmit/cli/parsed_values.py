"""What the command line gives as text is left as it is where text is what the command wants.

Typer would load Pydantic to find that out, which takes longer than most commands do.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args, get_origin

import typer


def leave_text_alone(command: Any) -> None:
    """Have Typer convert only those values of a command that are not what they should be already."""
    for parameter in command.get_params(typer.Context(command)):
        converter = getattr(parameter, "get_runtime_param", None)
        if converter is not None:
            parameter.get_runtime_param = partial(_OnlyIfNeeded, parameter, converter)


class _OnlyIfNeeded(NamedTuple):
    """Converts a value as Typer does, but only where it has to."""

    parameter: Any
    converter: Callable[[], Any]

    def coerce(self, value: Any, param: Any, ctx: typer.Context) -> Any:
        """Return the value of a parameter; raises what Typer raises for one that is not valid."""
        is_list = self.parameter.multiple or self.parameter.nargs == -1
        if value is None:
            return () if is_list else None
        wanted = self.parameter.type_descriptor.annotation
        if wanted is str and isinstance(value, str):
            return value
        if get_origin(wanted) is Literal and value in get_args(wanted):
            return value
        if wanted == list[str] and isinstance(value, (list, tuple)) and all(isinstance(word, str) for word in value):
            return list(value)
        if wanted is Path and (path := _readable_path(value, self.parameter.type_descriptor.parameter_info)):
            return path
        return self.converter().coerce(value, param=param, ctx=ctx)


def _readable_path(value: Any, demands: Any) -> Path | None:
    """Return a path that only has to be readable, or not there; None for Typer to find out."""
    is_more = demands.exists or demands.writable or demands.resolve_path
    may_be_both = demands.file_okay and demands.dir_okay
    path = Path(value)
    return path if may_be_both and not is_more and (not path.exists() or os.access(path, os.R_OK)) else None
