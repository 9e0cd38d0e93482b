"""What of a code directory nobody wants on a node: the default rules, and the user's ignore files."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, NamedTuple

from jobsubmit.errors import BundleError

if TYPE_CHECKING:
    from pathspec import GitIgnoreSpec

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
    """Hold the patterns of one ignore file and the folder they are relative to."""

    base: str
    name: str
    patterns: GitIgnoreSpec


def default_verdict(name: str, *, is_dir: bool) -> bool:
    """Tell whether a name is left out unless the user's rules say otherwise."""
    if name in _NAMES or name.endswith(_COMPILED) or name.startswith(_UNFINISHED):
        return True
    return is_dir and (name in _FOLDERS or name.endswith(_FOLDER_ENDING))


def read_rules(folder: str, prefix: str, name: str) -> Rules | None:
    """Return the rules in a folder's ignore file; raise BundleError where they cannot be used."""
    file = os.path.join(folder, name)
    if not os.path.isfile(file):
        return None
    from pathspec import GitIgnoreSpec  # loading it costs as much as scanning thousands of files

    try:
        with open(file, encoding="utf-8") as stream:
            return Rules(prefix, prefix + name, GitIgnoreSpec.from_lines(stream.read().splitlines()))
    except (OSError, ValueError) as error:
        raise BundleError(f"{prefix}{name} cannot be used: {error}", "it must be UTF-8 text") from error


def verdict(rules: Rules, path: str, *, is_dir: bool) -> bool | None:
    """Return whether the rules leave a path out, or None where they have no opinion."""
    relative = path[len(rules.base) :]
    return rules.patterns.check_file(relative + "/" if is_dir else relative).include
