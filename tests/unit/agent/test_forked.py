"""A function in a process of its own: its exit code, its output, its end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from jobsubmit.agent.supervisor.forked import ForkedProcess


@pytest.fixture
def fork(tmp_path: Path) -> Callable[[Callable[[], int]], ForkedProcess]:
    """Return what runs a function; what it prints goes to two files."""

    def run(function: Callable[[], int]) -> ForkedProcess:
        with (tmp_path / "out").open("wb") as out, (tmp_path / "err").open("wb") as err:
            return ForkedProcess(function, out.fileno(), err.fileno())

    return run


def test_its_result_is_the_exit_code_and_its_output_goes_to_the_files(
    fork: Callable[[Callable[[], int]], ForkedProcess], tmp_path: Path
) -> None:
    def work() -> int:
        sys.__stdout__.write("made\n")  # type: ignore[union-attr]
        os.write(2, b"a warning\n")
        sys.__stdout__.flush()  # type: ignore[union-attr]
        return 7

    assert fork(work).wait(10) == 7
    assert (tmp_path / "out").read_text() == "made\n"
    assert (tmp_path / "err").read_text() == "a warning\n"


def test_an_error_is_exit_code_1(fork: Callable[[Callable[[], int]], ForkedProcess]) -> None:
    def fails() -> int:
        raise OSError("the disk is full")

    assert fork(fails).wait(10) == 1


def test_a_signal_to_its_group_ends_it(fork: Callable[[Callable[[], int]], ForkedProcess]) -> None:
    def sleeps() -> int:
        time.sleep(60)
        return 0

    before = signal.signal(signal.SIGTERM, lambda number, frame: None)  # as the supervisor does
    try:
        process = fork(sleeps)
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.01)
        os.killpg(process.pid, signal.SIGTERM)
        assert process.wait(10) == -signal.SIGTERM
    finally:
        signal.signal(signal.SIGTERM, before)


def test_whoever_collected_it_before_is_no_error(fork: Callable[[Callable[[], int]], ForkedProcess]) -> None:
    process = fork(lambda: 0)
    os.waitpid(process.pid, 0)
    assert process.poll() == 0
