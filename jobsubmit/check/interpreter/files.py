"""Files of the code that a program reads and lists."""

from __future__ import annotations

import fnmatch
import posixpath
from collections.abc import Callable, Mapping
from pathlib import PurePosixPath
from types import NoneType
from typing import TYPE_CHECKING, Any

from jobsubmit.check.interpreter.memory import Container, External, Record, boxed, plain
from jobsubmit.check.program.configuration import OpenFile, parse_text, read_configuration, read_text
from jobsubmit.check.program.hyperpyyaml import parse_hyperpyyaml
from jobsubmit.check.program.operations import UNKNOWN

if TYPE_CHECKING:
    from jobsubmit.check.interpreter.calls import Calls


_IS_FILE = "?file"  # of an entry of a folder


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
    if posixpath.normpath(str(folder)) == ".":
        return UNKNOWN  # a node has more there
    for start in (run.program.located(str(folder)), posixpath.normpath(str(folder))):
        inside = [path.removeprefix(f"{start}/") for path in run.program.paths if path.startswith(f"{start}/")]
        if inside:
            return Container(sorted({path.partition("/")[0] for path in inside}))
    return UNKNOWN


def scan_folder(run: Calls, args: list[Any], keywords: dict[str, Any]) -> Any:
    """Return what `os.scandir` says of a folder of the code: objects with a name and a path."""
    names = list_folder(run, args, keywords)
    if names is UNKNOWN:
        return UNKNOWN
    folder, entries = str(plain(args[0])), []
    for name in names.content:
        entry = Record(External("os.DirEntry"), is_open=True)
        path = posixpath.join(folder, name)
        entry.content.update(name=name, path=path, **{_IS_FILE: bool(run.program.file(path, run.program.sources))})
        entries.append(entry)
    return Container(entries)


def _is_file(run: Calls, args: list[Any], keywords: dict[str, Any]) -> bool:
    return bool(args[0].content[_IS_FILE])


def _is_folder(run: Calls, args: list[Any], keywords: dict[str, Any]) -> bool:
    return not args[0].content[_IS_FILE]


def find_files(run: Calls, args: list[Any], keywords: dict[str, Any]) -> Any:
    """Return the files of the code that fit a pattern."""
    pattern = plain(args[0])
    if keywords.keys() - {"recursive"}:
        return UNKNOWN  # it begins elsewhere: `root_dir`
    if not isinstance(pattern, (str, PurePosixPath)) or str(pattern).startswith(("/", "..")):
        return UNKNOWN
    wanted = posixpath.normpath(str(pattern))
    depth = wanted.count("/")
    found = [
        one for one in run.program.paths if fnmatch.fnmatch(one, wanted) and ("**" in wanted or one.count("/") == depth)
    ]
    return Container(sorted(found)) if found else UNKNOWN


OF_FOLDERS: Mapping[str, Callable[[Any, list[Any], dict[str, Any]], Any]] = {
    "os.listdir": list_folder,
    "os.scandir": scan_folder,
    "os.DirEntry.is_file": _is_file,
    "os.DirEntry.is_dir": _is_folder,
    "glob.glob": find_files,
}
