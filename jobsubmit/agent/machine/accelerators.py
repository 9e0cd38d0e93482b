"""What the accelerators of a machine do: from nvidia-smi, or from npu-smi on Ascend machines.

A program that takes long, or hangs with its driver, delays nothing: it runs beside us, and is read when it has ended.
"""

from __future__ import annotations

import math
import os
import re
import shutil
import signal
import subprocess
import tempfile
import time

from .. import processes

TYPE_CHECKING = False  # importing typing would cost more than all the rest
if TYPE_CHECKING:
    from typing import BinaryIO

FIELDS = ("index", "utilization.gpu", "memory.used", "memory.total", "power.draw", "temperature.gpu")
_NVIDIA = ("nvidia-smi", "--query-gpu=" + ",".join(FIELDS), "--format=csv,noheader,nounits")
_NPU = ("npu-smi", "info")
_LONGEST_SECONDS = 30.0
_MEGA = 1 << 20
_MOST_BYTES = 1 << 18
_NPU_FIRST = re.compile(r"\|\s*(\d+)\s+\S+\s*\|\s*\S+\s*\|\s*([\d.]+|-|NA)\s+(\d+|-|NA)\s")
_NPU_SECOND = re.compile(r"\|\s*\d+(?:\s+\d+)?\s*\|\s*\S+\s*\|\s*(\d+|-|NA)\s+(.*)\|")
_OF = re.compile(r"(\d+)\s*/\s*(\d+)")


class Accelerators:
    """Reads the state of the accelerators, again and again.

    A reading is a list: index, use in percent, bytes of memory in use and in total, watts, degrees Celsius; None for
    what is not reported.
    """

    def __init__(self) -> None:
        self.command = next((command for command in (_NVIDIA, _NPU) if shutil.which(command[0])), None)
        self.process: subprocess.Popen[bytes] | None = None
        self.output: BinaryIO | None = None
        self.began = 0.0

    def pids(self) -> list[int]:
        """Return the pid of the program that runs now, if any."""
        return [self.process.pid] if self.process else []

    def start(self) -> None:
        """Start to read, unless that goes on already, or there is nothing to read."""
        if self.command is None or self.process is not None:
            return
        try:
            self.output = tempfile.TemporaryFile()  # noqa: SIM115 - it is read when the program has ended
            self.process = subprocess.Popen(
                self.command,
                stdin=subprocess.DEVNULL,
                stdout=self.output,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
                preexec_fn=_die_with_us,
                env={**os.environ, "LC_ALL": "C"},
            )
            self.began = time.monotonic()
        except OSError:
            self.command = None

    def stop(self) -> None:
        """End the program that runs now, if any."""
        if self.process is not None and self.output is not None:
            processes.send(self.process.pid, signal.SIGKILL)
            self.process.poll()
            self.output.close()
        self.command = self.process = self.output = None

    def read(self) -> list[list[float | None]]:
        """Return what was read since `start`, once it is complete; else nothing."""
        if self.process is None or self.output is None:
            return []
        if self.process.poll() is None:
            if time.monotonic() - self.began > _LONGEST_SECONDS:
                processes.send(self.process.pid, signal.SIGKILL)
            return []
        is_good, self.process = self.process.returncode == 0, None
        with self.output:
            self.output.seek(0)
            text = self.output.read(_MOST_BYTES).decode("utf-8", "replace")
        found = (parse_nvidia(text) if self.command == _NVIDIA else parse_npu(text)) if is_good else []
        if not found:
            self.command = None  # there is no accelerator, or no driver
        return found


def _die_with_us() -> None:
    processes.die_with_parent(signal.SIGKILL)


def parse_nvidia(text: str) -> list[list[float | None]]:
    """Return the readings of nvidia-smi: one line for each GPU, or for each instance of one."""
    found = []
    for line in text.splitlines():
        cells = [_number(cell) for cell in line.split(",")]
        if len(cells) == len(FIELDS) and cells[0] is not None:
            index, use, used, total, watts, degrees = cells
            found.append([index, use, _bytes(used), _bytes(total), watts, degrees])
    return found


def parse_npu(text: str) -> list[list[float | None]]:
    """Return the readings of `npu-smi info`: two lines for each NPU; the memory is that of the HBM, if it has one."""
    found: list[list[float | None]] = []
    first: re.Match[str] | None = None
    for line in text.splitlines():
        second = _NPU_SECOND.match(line) if first else None
        if second is None:
            first = _NPU_FIRST.match(line) or first
        if first and second:
            memories = _OF.findall(second.group(2))
            used, total = memories[-1] if memories else ("", "")
            if memories and float(total) == 0:
                used, total = memories[0]
            index, watts, degrees = (_number(cell) for cell in first.groups())
            sizes = [_bytes(_number(size)) for size in (used, total)]
            found.append([index, _number(second.group(1)), *sizes, watts, degrees])
            first = None
    return found


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def _bytes(megabytes: float | None) -> float | None:
    return None if megabytes is None else megabytes * _MEGA
