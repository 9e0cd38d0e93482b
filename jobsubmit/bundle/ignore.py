"""Which files of a code directory are not uploaded: the default rules, and the ignore files of its folders.

Every folder may have a .gitignore and a .jobignore. The last pattern that fits decides, as in git: a deeper file counts
after the ones above it, and in one folder .jobignore counts after .gitignore. A file that git tracks is never left
out by .gitignore or a default rule; .jobignore may leave out anything. Unlike in git, a line of .jobignore that spells
out a path brings it back even from a folder that is left out.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from jobsubmit.bundle.ignore_pattern import Pattern, escape, parse_pattern
from jobsubmit.bundle.model import DANGLING, NOT_REGULAR, OWN_FILE, OWN_FOLDER, OWN_OUTPUT, LeftOut
from jobsubmit.errors import BundleError

GITIGNORE, JOBIGNORE = ".gitignore", ".jobignore"
IGNORE_FILES = (GITIGNORE, JOBIGNORE)  # in this order
ALL_BELOW = "/**"
_MOST_BELOW = 200  # entries of a folder that are looked at
DEFAULT = "ignored by the default rules"

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

    @property
    def is_jobignore(self) -> bool:
        """Return whether the file is a .jobignore."""
        return self.name.endswith(JOBIGNORE)


class Ignored(NamedTuple):
    """Why a path is left out: `rule` is FILE:LINE, or empty for a default rule.

    `order` is the position of the rule among all rules; a later one may bring the path back.
    """

    reason: str
    rule: str = ""
    order: tuple[int, int] = (-1, 0)
    is_by_jobignore: bool = False


def match_defaults(name: str, *, is_dir: bool) -> bool:
    """Return whether a name is left out unless the user's rules say otherwise."""
    if name in _NAMES or name.endswith(_COMPILED) or name.startswith(_UNFINISHED):
        return True
    return is_dir and (name in _FOLDERS or name.endswith(_FOLDER_ENDING))


def read_rules(folder: str, prefix: str) -> Iterator[Rules]:
    """Yield the rules in the ignore files of a folder; raise BundleError if they cannot be read."""
    for name in IGNORE_FILES:
        file = os.path.join(folder, name)
        if os.path.isfile(file):
            try:
                with open(file, encoding="utf-8-sig", newline="\n") as stream:
                    text = stream.read()
            except (OSError, ValueError) as error:
                raise BundleError(f"{prefix}{name} cannot be read: {error}", "make it readable UTF-8 text") from error
            yield Rules(prefix, prefix + name, parse_patterns(text.split("\n")))


def parse_patterns(lines: Iterable[str]) -> tuple[Pattern, ...]:
    """Return the patterns of an ignore file's lines, in their order."""
    found = (parse_pattern(line.removesuffix("\r"), number) for number, line in enumerate(lines, 1))
    return tuple(pattern for pattern in found if pattern is not None)


def find_ignoring(path: str, rules: Sequence[Rules], *, is_dir: bool) -> Ignored | None:
    """Return why a path is left out, or None; the folders above it are not checked."""
    for place in range(len(rules) - 1, -1, -1):
        rule = rules[place]
        pattern = _last_fit(rule.patterns, path[len(rule.base) :], is_dir=is_dir)
        if pattern is not None:
            if pattern.is_exception:
                return None
            reason = f"ignored by {rule.name} line {pattern.number}: {pattern.line.strip()}"
            order = (place, pattern.number)
            return Ignored(reason, f"{rule.name}:{pattern.number}", order, rule.is_jobignore)
    is_default = match_defaults(path.rpartition("/")[2], is_dir=is_dir)
    return Ignored(DEFAULT) if is_default else None


def is_brought_back(path: str, rules: Sequence[Rules], above: Ignored, *, is_dir: bool) -> bool:
    """Return whether a .jobignore brings back a path whose folder is left out."""
    for place in range(len(rules) - 1, -1, -1):
        rule = rules[place]
        pattern = _last_fit(rule.patterns, path[len(rule.base) :], is_dir=is_dir) if rule.is_jobignore else None
        if pattern is not None:
            return pattern.is_exception and not pattern.is_for_names and (place, pattern.number) > above.order
    return False


def may_bring_back_below(folder: str, rules: Sequence[Rules], above: Ignored) -> bool:
    """Return whether a .jobignore names a path in a folder that is left out."""
    return any(
        pattern.is_exception and (place, pattern.number) > above.order and pattern.names_below(folder[len(rule.base) :])
        for place, rule in enumerate(rules)
        if rule.is_jobignore
        for pattern in rule.patterns
    )


def how_to_bring_back(path: str, left_out: LeftOut, *others: str) -> str:
    """Return how to upload a file that is left out, itself or with a folder above it, and others of that folder.

    A path that ends with ALL_BELOW is all that is in a folder, whatever other rules say of it.
    """
    if left_out.reason in (DANGLING, NOT_REGULAR):
        return "replace it with a regular file"
    if left_out.reason in (OWN_FILE, OWN_FOLDER, OWN_OUTPUT):
        return "move it to another folder of the code directory: .jobignore cannot bring it back"
    file, _, line = left_out.rule.rpartition(":")
    folder, _, name = file.rpartition("/")
    if name == JOBIGNORE:
        return f"change line {line} of {file}"
    where = f"{folder}/{JOBIGNORE}" if folder else JOBIGNORE
    lines = [_exception_for(one[len(folder) + 1 :] if folder else one) for one in (path, *others)]
    if others:
        return f"if they belong to the code, add these lines to {where}: {', '.join(lines)}"
    return f"if it belongs to the code, add the line {lines[0]} to {where}"


def _exception_for(path: str) -> str:
    folder = path.removesuffix(ALL_BELOW)
    anchor = "" if "/" in folder else "/"
    return f"!{anchor}{escape(folder)}{path[len(folder) :]}"


def with_all_below(root: Path, path: str, left_out: LeftOut) -> str:
    """Return a path; for a folder in which the same ignore file leaves out files by other rules, with all below it."""
    file = left_out.rule.rpartition(":")[0]
    folder = f"{file.rpartition('/')[0]}/".lstrip("/")
    if not file or not (root / path).is_dir():
        return path
    try:
        patterns = parse_patterns((root / file).read_text("utf-8-sig").split("\n"))
    except (OSError, ValueError):
        return path
    for found in islice((root / path).rglob("*"), _MOST_BELOW):
        inside = found.relative_to(root).as_posix().removeprefix(folder)
        if last_opinion(patterns, inside, is_dir=found.is_dir()):
            return f"{path}{ALL_BELOW}"
    return path


def last_opinion(patterns: Sequence[Pattern], path: str, *, is_dir: bool) -> bool | None:
    """Return whether the last pattern that fits leaves a path out, or None where none fits."""
    pattern = _last_fit(patterns, path, is_dir=is_dir)
    return None if pattern is None else not pattern.is_exception


def covers(patterns: Sequence[Pattern], path: str) -> bool:
    """Return whether the patterns of one file leave out a path, or a folder above it."""
    above = (path[:place] for place, sign in enumerate(path) if sign == "/")
    return any(last_opinion(patterns, folder, is_dir=True) for folder in above) or bool(
        last_opinion(patterns, path, is_dir=False)
    )


def _last_fit(patterns: Sequence[Pattern], path: str, *, is_dir: bool) -> Pattern | None:
    return next((pattern for pattern in reversed(patterns) if pattern.fits(path, is_dir=is_dir)), None)
