"""What of a code directory nobody wants on a node: the default rules, and the user's ignore files."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from jobsubmit.bundle.ignore_pattern import Pattern, parse_pattern
from jobsubmit.errors import BundleError

# The first that the code directory has is the one that counts, in every folder.
IGNORE_FILES = (".jobignore", ".gitignore")

# A `!pattern` in an ignore file brings any of these back.
_NAMES = frozenset([".git", ".hg", ".svn", ".DS_Store"])
_FOLDERS = frozenset(
    [
        "__pycache__",
        ".venv",
        "venv",
        "node_modules",
        ".mypy_cache",
        ".ruff_cache",
        ".pytest_cache",
        ".ipynb_checkpoints",
        ".tox",
        ".nox",
    ]
)
_COMPILED = (".pyc", ".pyo")
_FOLDER_ENDING = ".egg-info"
_UNFINISHED = ".jobsubmit-unfinished"  # what a killed upload or download of ours may leave


class Rules(NamedTuple):
    """The patterns of one ignore file and the folder they are relative to."""

    base: str
    name: str
    patterns: tuple[Pattern, ...]


def match_defaults(name: str, *, is_dir: bool) -> bool:
    """Return whether a name is left out unless the user's rules say otherwise."""
    if name in _NAMES or name.endswith(_COMPILED) or name.startswith(_UNFINISHED):
        return True
    return is_dir and (name in _FOLDERS or name.endswith(_FOLDER_ENDING))


def read_rules(folder: str, prefix: str, name: str) -> tuple[Rules, ...]:
    """Return the rules in a folder's ignore file, if it has one; raise BundleError where they cannot be used."""
    file = os.path.join(folder, name)
    if not os.path.isfile(file):
        return ()
    try:
        with open(file, encoding="utf-8-sig", newline="\n") as stream:
            text = stream.read()
    except (OSError, ValueError) as error:
        raise BundleError(f"{prefix}{name} cannot be used: {error}", "it must be UTF-8 text") from error
    return (Rules(prefix, prefix + name, parse_patterns(text.split("\n"))),)


def parse_patterns(lines: Iterable[str]) -> tuple[Pattern, ...]:
    """Return the patterns of an ignore file's lines, in their order."""
    found = (parse_pattern(line.removesuffix("\r")) for line in lines)
    return tuple(pattern for pattern in found if pattern is not None)


def last_opinion(patterns: Sequence[Pattern], path: str, *, is_dir: bool) -> bool | None:
    """Return whether the last pattern that fits leaves a path out, or None where none fits."""
    fitting = (not pattern.is_exception for pattern in reversed(patterns) if pattern.fits(path, is_dir=is_dir))
    return next(fitting, None)


def covers(patterns: Sequence[Pattern], path: str) -> bool:
    """Return whether the patterns of one file leave out a path, or a folder above it."""
    above = (path[:place] for place, sign in enumerate(path) if sign == "/")
    return any(last_opinion(patterns, folder, is_dir=True) for folder in above) or bool(
        last_opinion(patterns, path, is_dir=False)
    )
