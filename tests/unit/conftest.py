"""Tests of this folder decide and say: they start no server, no job, and no process where one does not matter."""

from __future__ import annotations

from pathlib import Path

import pytest
from command import Command, CommandHere


@pytest.fixture
def jobsubmit(tmp_path: Path) -> Command:
    """Return the command line, run in this process."""
    return CommandHere(tmp_path)
