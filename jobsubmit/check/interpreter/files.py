"""Files of the code that a program reads and lists."""

from __future__ import annotations

import fnmatch
import posixpath
from pathlib import PurePosixPath
from types import NoneType
from typing import TYPE_CHECKING, Any

from jobsubmit.check.interpreter.memory import Container, boxed, plain
from jobsubmit.check.program.configuration import OpenFile, parse_text, read_configuration, read_text
from jobsubmit.check.program.hyperpyyaml import parse_hyperpyyaml
from jobsubmit.check.program.operations import UNKNOWN

if TYPE_CHECKING:
    from jobsubmit.check.interpreter.calls import Calls


def read_file(run: Calls, file: Any, form: str) -> Any:
    """Return what a configuration file of the code says."""
    if not isinstance(file, (OpenFile, str, PurePosixPath)):
        return UNKNOWN
    return boxed(read_configuration(run.program, file, form))


def read_hyperpyyaml(run: Calls, args: list[Any], keywords: dict[str, Any]) -> Any:
    """Return what `load_hyperpyyaml(stream, overrides)` reads."""
    stream, *others = args
    overrides = plain(others[0] if others else keywords.get("overrides"))
    overrides = parse_text(overrides) if isinstance(overrides, str) else overrides
    text = read_text(run.program, stream.path) if isinstance(stream, OpenFile) else stream
    if not isinstance(text, str) or not text or not isinstance(overrides, (dict, NoneType)):
        return UNKNOWN
    return boxed(parse_hyperpyyaml(text, overrides))


def list_folder(run: Calls, args: list[Any], keywords: dict[str, Any]) -> Any:
    """Return the names in a folder of the code."""
    folder = plain(args[0]) if args else ""
    if not isinstance(folder, (str, PurePosixPath)) or str(folder).startswith(("/", "..")):
        return UNKNOWN
    start = posixpath.normpath(str(folder)).removeprefix(".")
    start = f"{start}/" if start else ""
    if not start:
        return UNKNOWN  # a node has more there
    names = {path.removeprefix(start).partition("/")[0] for path in run.program.paths if path.startswith(start)}
    return Container(sorted(names)) if names else UNKNOWN


def find_files(run: Calls, args: list[Any], keywords: dict[str, Any]) -> Any:
    """Return the files of the code that fit a pattern."""
    pattern = plain(args[0])
    if not isinstance(pattern, (str, PurePosixPath)) or str(pattern).startswith(("/", "..")):
        return UNKNOWN
    wanted = posixpath.normpath(str(pattern))
    depth = wanted.count("/")
    found = [
        one for one in run.program.paths if fnmatch.fnmatch(one, wanted) and ("**" in wanted or one.count("/") == depth)
    ]
    return Container(sorted(found)) if found else UNKNOWN
