"""A summary, in one line, of what the ignore files leave out of a code directory."""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import islice

from jobsubmit.bundle.model import DANGLING, Bundle
from jobsubmit.common.sizes import bytes_text

_SHOWN = 3
_MOST_FILES = 20_000  # of a folder that is left out


def left_out_notes(bundle: Bundle) -> Iterator[str]:
    """Yield a line about what the ignore files leave out, largest first, and one about links that lead to nothing."""
    entries = [(left, *_measure(os.path.join(bundle.root, left.path))) for left in bundle.left_out if left.rule]
    if entries:
        entries.sort(key=lambda entry: -entry[2])
        files, size = sum(entry[1] for entry in entries), sum(entry[2] for entry in entries)
        shown = [f"{left.path} ({bytes_text(own)}, {_rule_text(left.rule)})" for left, _, own in entries[:_SHOWN]]
        more = ", … (run `jobsubmit bundle --list` to see all)" if len(entries) > _SHOWN else ""
        is_cut = any(entry[1] == _MOST_FILES for entry in entries)
        number = f"{files:,} file{'s' * (files != 1)}"
        if is_cut:
            number = f"more than {number}"
        yield f"not uploaded: {number}, {bytes_text(size)}: {', '.join(shown)}{more}"
    dangling = [left.path for left in bundle.left_out if left.reason == DANGLING]
    if dangling:
        more = f", and {len(dangling) - _SHOWN:,} more" if len(dangling) > _SHOWN else ""
        yield f"not uploaded: {', '.join(dangling[:_SHOWN])}{more}: a broken link"


def _rule_text(rule: str) -> str:
    file, _, line = rule.rpartition(":")
    return f"{file} line {line}"


def _measure(path: str) -> tuple[int, int]:
    """Return how many files a path is or holds, and their size in bytes, of so many files."""
    files = 0
    size = 0
    for file in islice(_files(path), _MOST_FILES):
        files += 1
        try:
            size += os.lstat(file).st_size
        except OSError:
            continue
    return files, size


def _files(path: str) -> Iterator[str]:
    if not path.endswith("/"):
        yield path
    for folder, _, names in os.walk(path):
        yield from (os.path.join(folder, name) for name in names)
