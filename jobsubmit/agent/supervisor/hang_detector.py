"""Detect that a job hangs, and where each rank is then."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress

from .. import job_directory, processes
from ..atomic_write import read_file
from ..job_directory import JobDirectory

TYPE_CHECKING = False  # importing typing would cost more than all the rest
if TYPE_CHECKING:
    from typing import Any

EXIT_SECONDS = 300.0  # once a rank has ended well, the others have that long without a sign of life
_BUSY = 0.01  # of one core; threads that only wait use less
_SAMPLES = 10
_SHORTEST_SAMPLE, _LONGEST_SAMPLE = 0.5, 15.0
_DUMP_SECONDS, _LOOK_SECONDS = 2.0, 0.1
_MOST_STACK = 1 << 20  # bytes
_MOST_NAMES = 8  # ranks that are named
_FRAME = re.compile(r'  File "(?P<file>[^"]+)", line (?P<line>\d+) in (?P<function>.+)')
_TICK = os.sysconf("SC_CLK_TCK")


class HangWatch:
    """Detect that for some time no output was written and no process used CPU time."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.alive_at = self.sampled_at = time.monotonic()
        self.used: dict[int, float] = {}

    def silent_for(self, wrote_at: float, workers: Callable[[], Iterable[int]]) -> float:
        """Return the seconds since the last activity; `wrote_at` is when a log last grew (time.monotonic()).

        `workers` returns the pids whose CPU time counts; it is called periodically.
        """
        now = time.monotonic()
        self.alive_at = max(self.alive_at, min(now, wrote_at))
        window = now - self.sampled_at
        if window >= min(max(self.seconds / _SAMPLES, _SHORTEST_SAMPLE), _LONGEST_SAMPLE):
            used = {pid: seconds for pid in workers() for seconds in _cpu_seconds(pid)}
            least = _BUSY * window + 1.5 / _TICK  # time is counted in ticks: one alone says nothing
            if any(seconds - self.used.get(pid, 0.0) > least for pid, seconds in used.items()):
                self.alive_at = now
            self.used, self.sampled_at = used, now
        return now - self.alive_at


def _cpu_seconds(pid: int) -> list[float]:
    """Return the CPU time that a process has used, or nothing if it is unknown."""
    fields = processes.read_stat(pid)
    return [(int(fields[11]) + int(fields[12])) / _TICK] if fields else []


def dump_stacks(job_dir: str, ranks: Mapping[int, int]) -> dict[int, list[str]]:
    """Ask each rank (rank → pid) for its stacks, which replace older ones; return the lines of those that answer."""
    files = {rank: JobDirectory(job_dir).stacks_of(rank) for rank in ranks}
    for rank, pid in ranks.items():
        if _catches(pid):
            with suppress(OSError):
                os.truncate(files[rank], 0)  # ranks append to it
            processes.send(pid, job_directory.STACK_SIGNAL)
    deadline = time.monotonic() + _DUMP_SECONDS
    seen: dict[int, int] = {}
    while time.monotonic() < deadline:
        time.sleep(_LOOK_SECONDS)
        sizes = {rank: _size(file) for rank, file in files.items()}
        if all(sizes.values()) and sizes == seen:  # a dump is many small writes
            break
        seen = sizes
    return {rank: lines for rank, file in files.items() if (lines := _lines(file))}


def read_stacks(job_dir: str) -> Iterator[tuple[int, bytes]]:
    """Yield each rank that has written its stacks, and its stacks."""
    folder = JobDirectory(job_dir).stacks
    for name in sorted(os.listdir(folder)) if os.path.isdir(folder) else []:
        found = re.fullmatch(r"rank-([0-9]+)\.txt", name)
        if found:
            with suppress(OSError):
                if text := _without_our_thread(read_file(os.path.join(folder, name), _MOST_STACK)):
                    yield int(found.group(1)), text


def _without_our_thread(stacks: bytes) -> bytes:
    """Leave out the thread of nccl_watch.py, which is not the user's."""
    threads = re.split(rb"(?m)^(?=(?:Current thread|Thread) 0x)", stacks)
    return b"".join(thread for thread in threads if b"/agent/nccl_watch.py" not in thread)


def _catches(pid: int) -> bool:
    """Return whether a process handles the signal, which would otherwise end it."""
    try:
        with open("/proc/%d/status" % pid) as stream:
            caught = next(line for line in stream if line.startswith("SigCgt:"))
    except (OSError, StopIteration):
        return not os.path.isdir("/proc/self")
    return bool(int(caught.split()[1], 16) >> (job_directory.STACK_SIGNAL - 1) & 1)


def _size(path: str) -> int:
    try:
        return os.stat(path).st_size
    except FileNotFoundError:
        return 0


def _lines(path: str) -> list[str]:
    try:
        return read_file(path).decode("utf-8", "replace").splitlines()
    except FileNotFoundError:
        return []


def main_thread(lines: list[str]) -> list[str]:
    """Return the frames of the main thread, which is listed last, innermost first; without those of this package."""
    starts = [index for index, line in enumerate(lines) if "most recent call first" in line]
    return [line for line in lines[starts[-1] + 1 :] if _PACKAGE not in line] if starts else []


def find_place(lines: list[str]) -> tuple[str, str, bool]:
    """Return where a rank is in the user's own code, what it calls there, and whether it waits in torch for others.

    The first is `file:line in function`; unknown values are empty.
    """
    frames = [found for line in main_thread(lines) if (found := _FRAME.match(line))]
    if not frames:
        return "", "", False
    own = next((frame for frame in frames if not _is_library(frame["file"])), frames[0])
    where = _place(own["file"], own["line"], own["function"])
    inner = [frame["function"] for frame in frames[: frames.index(own)] if frame["function"] != "wrapper"]
    return where, inner[-1] if inner else "", own is not frames[0] and "/torch/" in frames[0]["file"]


def find_call(frames: Iterable[Mapping[str, Any]]) -> str:
    """Return the place in the user's own code from which a collective was called, or an empty text if it is unknown."""
    for frame in frames:
        if not _is_library(frame["filename"]):
            return _place(frame["filename"], frame["line"], frame["name"])
    return ""


def _place(file: str, line: object, function: str) -> str:
    return "%s:%s in %s" % (os.path.basename(file), line, function)


def _is_library(file: str) -> bool:
    return "site-packages" in file or "dist-packages" in file or file.startswith(("<", _STDLIB, _PACKAGE))


_STDLIB = os.path.dirname(os.__file__) + os.sep
_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep


def find_odd_one_out(places: Mapping[int, tuple[str, str, bool]]) -> int | None:
    """Return the only rank that does not wait, or that is at another place than all others, or None."""
    busy = [rank for rank, (_, _, waits) in places.items() if not waits]
    if len(busy) == 1 and len(places) > 1:
        return busy[0]
    where: dict[tuple[str, str], list[int]] = {}
    for rank, (own, called, _) in places.items():
        what = called.partition(",")[0].rstrip(")")  # without its tensors: the root of a scatter() may have others
        where.setdefault((own, what), []).append(rank)
    if [len(ranks) == 1 for ranks in sorted(where.values(), key=len)] != [True, False]:
        return None
    return min(where.values(), key=len)[0]


def describe_places(places: Mapping[int, tuple[str, str, bool]], odd: int | None, *, is_missing: bool = False) -> str:
    """Return where the ranks are, those at one place together, and last the one that is named as the cause, if any.

    With `is_missing`, that one is known not to have called what the others wait in.
    """
    together: dict[tuple[str, str], list[int]] = {}
    for rank, (where, called, _) in sorted(places.items()):
        if rank != odd:
            together.setdefault((where, called), []).append(rank)
    named = []
    for (where, called), ranks in together.items():
        name = "the others" if odd is not None and len(together) == 1 and len(ranks) > 1 else name_ranks(ranks)
        named.append((name, where, called))
    if odd is not None:
        where, called, _ = places.get(odd, ("", "", False))
        named.append(("rank %d, which did not call it" % odd if is_missing else "rank %d" % odd, where, called))
    return "; ".join(
        "%s: %s%s" % (name, where or "unknown", " → " + called if called else "") for name, where, called in named
    )


def name_ranks(ranks: list[int]) -> str:
    """Return the names of some ranks; of many only the first."""
    names = ", ".join(map(str, ranks[:_MOST_NAMES])) + (", …" if len(ranks) > _MOST_NAMES else "")
    return "rank %s" % names if len(ranks) == 1 else "ranks %s" % names
