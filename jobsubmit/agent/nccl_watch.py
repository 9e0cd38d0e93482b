"""Write down in which collective of NCCL this rank waits, if it waits long.

A rank that waits in NCCL keeps a core busy (measured with torch 2.11 and NCCL 2.28), so its CPU time does not show
whether it works. torch's flight recorder does: for each process group, it counts the collectives that this rank has
started, and those that have ended. A thread looks at the counts every second, and at what the main thread calls: while
NCCL connects the ranks, nothing is counted yet. If all stands still, it writes what it sees into a file, once; when
something moves again, it removes the file.
"""

from __future__ import annotations

import os
import sys
import time

from .atomic_write import replace_file

TYPE_CHECKING = False  # importing typing would cost more than all the rest
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, TypeAlias

    from .protocol import Collective, Standstill

    Dump: TypeAlias = Callable[[bool, bool, bool], bytes]  # include collectives, include stacks, only active ones

_LOOK_SECONDS, _STILL_SECONDS = 1.0, 5.0
_STACKS_SECONDS = 30.0  # until it asks for the stacks of the calls: the first time takes seconds of CPU time
_JOIN_SECONDS = 1.0
_MOST_FRAMES, _MOST_SIZES = 50, 4
_OPERATORS = "/torch/_ops.py"
_CALLERS = tuple(
    "/torch/distributed/%s.py" % name for name in ("distributed_c10d", "_functional_collectives", "utils")
)  # the files whose functions call NCCL
# torch's FlightRecorder.hpp: the size is 0 before 2.11, and 2.8 has a new name for it, with a warning about the old one.
_BUFFER_SIZES = ("TORCH_NCCL_TRACE_BUFFER_SIZE", "TORCH_FR_BUFFER_SIZE")
_NEW_NAME, _RECORDS_BY_ITSELF = (2, 8), (2, 11)
_USUAL_BUFFER_SIZE = "2000"
_WITHOUT_NCCL = ("gloo", "mpi", "ucc")


def watch_collectives(path: str, backend: object) -> None:
    """Start the thread in a process that joins a process group, if the group's backend may be NCCL."""
    c10d = sys.modules.get("torch._C._distributed_c10d")
    dump = getattr(c10d, "_dump_nccl_trace", None)
    if dump is None or str(backend).lower() in _WITHOUT_NCCL:
        return
    _switch_on_recorder(sys.modules["torch"].__version__)
    import atexit
    import threading  # torch has loaded it

    ended = threading.Event()
    watch = Watch(path, dump)

    def look_again_and_again() -> None:
        while not ended.wait(_LOOK_SECONDS):
            try:
                watch.look(time.monotonic())
            except Exception:
                return  # another torch than expected, or a full disk: the job runs without it

    def end() -> None:
        ended.set()
        thread.join(_JOIN_SECONDS)  # torch's recorder must not be asked while Python ends

    thread = threading.Thread(target=look_again_and_again, name="jobsubmit", daemon=True)
    thread.start()
    atexit.register(end)


def _switch_on_recorder(version: str) -> None:
    """Have torch record collectives, unless the user decides about it; from 2.11 on, torch does so by itself."""
    numbers = tuple(int(part) for part in version.split(".")[:2])
    if numbers < _RECORDS_BY_ITSELF and not any(name in os.environ for name in _BUFFER_SIZES):
        os.environ[_BUFFER_SIZES[numbers >= _NEW_NAME]] = _USUAL_BUFFER_SIZE


class Watch:
    """Compares what it sees with its last look."""

    def __init__(self, path: str, dump: Dump) -> None:
        self.path, self.dump = path, dump
        self.seen: object = None
        self.since = 0.0  # when that last changed
        self.written: Standstill | None = None

    def look(self, now: float) -> None:
        """Look at the counts, and at what the main thread calls; `now` is in seconds of time.monotonic()."""
        call = _find_call()
        seen = self._ask(False, False, False)["pg_status"], call
        still = now - self.since
        if seen != self.seen:
            self.seen, self.since = seen, now
            self._take_back()
        elif self.written is None and still >= _STILL_SECONDS:
            self._write(call, has_stacks=False)
        elif self.written is not None and self.written["waits_in"] is not None:
            if not self._still_waits(self.written["waits_in"]):
                self._write(call, has_stacks=False)
            elif not self.written["waits_in"]["frames"] and still >= _STACKS_SECONDS:
                self._write(call, has_stacks=True)

    def _ask(self, *how: bool) -> dict[str, Any]:
        import pickle  # torch has loaded it; this process itself wrote the data

        answer: dict[str, Any] = pickle.loads(self.dump(*how))  # noqa: S301 - see above
        return answer

    def _still_waits(self, collective: Collective) -> bool:
        active = self._ask(True, False, True).get("entries", [])
        return any(entry["record_id"] == collective["record"] for entry in active)

    def _write(self, call: tuple[str, int] | None, *, has_stacks: bool) -> None:
        import json  # torch has loaded it

        found = self._ask(True, has_stacks, False)
        self.written = {
            "pid": os.getpid(),
            "since": self.since,
            "started": {group: int(counts["last_enqueued_collective"]) for group, counts in found["pg_status"].items()},
            "waits_in": _find_wait(found),
            "call": call[0] if call else "",
        }
        replace_file(self.path, json.dumps(self.written), is_durable=False)

    def _take_back(self) -> None:
        if self.written is not None:
            self.written = None
            os.unlink(self.path)


def _find_call() -> tuple[str, int] | None:
    """Return the function of torch.distributed that the main thread is in, and where in it; None if it is elsewhere."""
    import threading

    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    if frame is not None and frame.f_code.co_filename.endswith(_OPERATORS):
        frame = frame.f_back
    if frame is None or not frame.f_code.co_filename.endswith(_CALLERS):
        return None
    return frame.f_code.co_name, frame.f_lasti


def _find_wait(found: dict[str, Any]) -> Collective | None:
    """Return the first collective that has not ended, if the one that was started last has not."""
    entries = sorted(found.get("entries", []), key=lambda entry: entry["record_id"])
    if not entries or entries[-1]["retired"]:
        return None
    entry = next((entry for entry in entries if _is_pending(entry, found["pg_status"])), entries[-1])
    group = entry["process_group"][0]
    ranks = str(found.get("pg_config", {}).get(group, {}).get("ranks", ""))  # as text: [0, 1]
    return {
        "record": entry["record_id"],
        "group": group,
        "ranks": [int(rank) for rank in ranks.strip("[]").split(",") if rank],
        "name": entry["profiling_name"].rpartition(":")[2].strip("_"),
        "number": entry["p2p_seq_id" if entry.get("is_p2p") else "collective_seq_id"],
        "is_p2p": bool(entry.get("is_p2p")),
        "sizes": entry["input_sizes"][:_MOST_SIZES],
        "types": entry.get("input_dtypes", [])[:_MOST_SIZES],
        "frames": entry.get("frames", [])[:_MOST_FRAMES],
    }


def _is_pending(entry: dict[str, Any], status: dict[str, Any]) -> bool:
    """Return whether a collective has not ended; torch never says that of the parts of a coalesced one, nor of p2p."""
    counts = status.get(entry["process_group"][0])
    if counts is None or entry["retired"] or entry.get("is_p2p"):
        return False
    return bool(entry["collective_seq_id"] > int(counts["last_completed_collective"]))
