"""Failures of files that the code reads or writes."""

from __future__ import annotations

from jobsubmit.backends.shared.known_failures.known_failure import KnownFailure

ROWS = (
    KnownFailure(
        r"FileNotFoundError: (?!Couldn't find)[^\n]*?(?<![A-Za-z]{2})['\"]([^'\"\n]+)['\"]",
        "the file {0}, or its folder, is not on the node",
        "if the code writes the file, create its folder first: os.makedirs(FOLDER, exist_ok=True); if it reads the "
        "file, put it into the code directory, where relative paths start, or name its folder in `inputs`; if only "
        "rank 0 writes it, let the first process of each node do so: if local_rank == 0",
    ),
    KnownFailure(
        r"FileExistsError: [^\n]*?(?<![A-Za-z]{2})['\"]([^'\"\n]+)['\"]",
        "{0} exists already: perhaps another process made it",
        "call os.makedirs(FOLDER, exist_ok=True), or let only rank 0 make it",
    ),
    KnownFailure(
        r"PermissionError: [^\n]*?(?<![A-Za-z]{2})['\"]([^'\"\n]+)['\"]",
        "the process may not use {0}",
        "check on the node who owns it (ls -ld), or write to a folder of the job: outputs",
    ),
    KnownFailure(
        r"Read-only file system",
        "the code writes to a file system that is read-only on the node",
        "write to a folder of the job: outputs",
    ),
)
