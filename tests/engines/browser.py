"""Chromium, for the pages that people look at: from Debian's packages."""

from __future__ import annotations

import shutil

import packages

PROGRAM = "chromium"
# What it would look up on its own is nothing for a test.
QUIET = ("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking")


def is_there() -> bool:
    """Tell whether there is one."""
    return shutil.which(PROGRAM) is not None


if __name__ == "__main__":
    if not is_there():
        packages.install([PROGRAM])
