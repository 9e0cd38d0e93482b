"""Write down that this rank waits in NCCL, and in which collective, if it waits long.

A rank that waits in NCCL keeps a core busy (measured with torch 2.11 and NCCL 2.28), so its CPU time does not show
whether it works. Where the main thread is shows more: a thread looks every second. If that has not moved for some
seconds, the thread asks torch's flight recorder, which counts for each process group the collectives that this rank has
started, and those that have ended. If these do not move either, and one has not ended, the rank waits. Later, if
nothing has moved until then, the thread asks once which collective that is, and from where it was called.
"""

from __future__ import annotations

import _thread
import os
import sys
import time

from . import node_contract as contract
from .atomic_write import replace_file

TYPE_CHECKING = False  # importing typing would cost more than all the rest
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType
    from typing import Any, TypeAlias

    from .protocol import Collective, Standstill

    Dump: TypeAlias = Callable[[bool, bool, bool], bytes]  # include collectives, include stacks, only active ones

_LOOK_SECONDS, _STILL_SECONDS, _JOIN_SECONDS = 1.0, 5.0, 1.0
_LONGEST_SECONDS = 300.0  # torch gives up after 600, and after the end of another rank the job is given up after 300
_MOST_DEPTH, _MOST_FRAMES, _MOST_SIZES = 200, 50, 4
_OPERATORS = "/torch/_ops.py"
_CALLERS = tuple("/torch/distributed/%s.py" % name for name in ("distributed_c10d", "_functional_collectives", "utils"))
_TENSORS = (
    *("tensor", "input", "input_tensor", "output_tensor", "tensor_list", "output", "object_tensor", "tensors"),
    *("input_tensor_list", "output_tensor_list", "self", "device"),
)
# Without a tensor in sight these connect or wait with NCCL, too; the second is init_process_group(device_id=…).
_WITHOUT_TENSOR = (
    *("barrier", "_new_process_group_helper", "_verify_param_shape_across_processes"),
    *("_create_nccl2_process_group",),
)
# torch's FlightRecorder.hpp: the size is 0 before 2.11; since 2.8 it has another name, and torch warns of the old one.
_BUFFER_SIZES = ("TORCH_NCCL_TRACE_BUFFER_SIZE", "TORCH_FR_BUFFER_SIZE")
_OLDEST, _NEW_NAME, _RECORDS_BY_ITSELF = (2, 4), (2, 8), (2, 11)
_USUAL_BUFFER_SIZE = "2000"
_NCCL2 = (2, 15)  # "nccl" is another implementation there, with a recorder of its own


def watch_collectives(path: str, backend: object) -> bool:
    """Start the thread if a process group that is being made may use NCCL; return whether it was started."""
    seconds = float(os.environ.get(contract.AGENT_HANG_AFTER) or 0)
    torch = sys.modules["torch"]
    dump = getattr(sys.modules.get("torch._C._distributed_c10d"), "_dump_nccl_trace", None)
    version = tuple(int(part) for part in torch.__version__.split(".")[:2])
    if version >= _NCCL2 and os.environ.get("TORCH_DIST_USE_NCCL2", "1") != "0":
        dump = _dump_of_nccl2()
    names_other = backend is not None and "nccl" not in str(backend).lower() and str(backend) != "undefined"
    if not seconds or dump is None or version < _OLDEST or names_other:
        return False
    _switch_on_recorder(version)
    _start(Watch(path, dump, seconds))
    return True


def _dump_of_nccl2() -> Dump | None:
    dump = getattr(sys.modules.get("torch._C._distributed_c10d"), "_dump_fr_trace", None)
    return None if dump is None else lambda *how: dump(*how, "nccl2")


def _switch_on_recorder(version: tuple[int, ...]) -> None:
    """Have torch record collectives, unless the user decides about it; from 2.11 on, torch does so by itself."""
    if version < _RECORDS_BY_ITSELF and not any(name in os.environ for name in _BUFFER_SIZES):
        os.environ[_BUFFER_SIZES[version >= _NEW_NAME]] = _USUAL_BUFFER_SIZE


def _start(watch: Watch) -> None:
    """Look again and again, until Python ends: torch must not be asked then. threading does not know the thread."""
    import atexit

    pid, main = os.getpid(), _thread.get_ident()
    told_to_end, has_ended = _thread.allocate_lock(), _thread.allocate_lock()
    told_to_end.acquire()
    has_ended.acquire()

    def look_again_and_again() -> None:
        try:
            while not told_to_end.acquire(timeout=_LOOK_SECONDS):
                watch.look(time.monotonic(), sys._current_frames().get(main))
        except Exception:
            watch.end()  # another torch than expected, or a full disk: the job runs without it
        finally:
            has_ended.release()

    def end() -> None:
        if os.getpid() == pid:  # else a fork, which has no such thread
            told_to_end.release()
            has_ended.acquire(timeout=_JOIN_SECONDS)

    _thread.start_new_thread(look_again_and_again, ())
    atexit.register(end)


class Watch:
    """Compares what it sees with its last looks; without a move for some `seconds`, the job counts as hung."""

    def __init__(self, path: str, dump: Dump, seconds: float) -> None:
        self.path, self.dump = path, dump
        self.still, self.details = min(_STILL_SECONDS, seconds / 4), min(seconds, _LONGEST_SECONDS) / 2
        self.place: object = None  # of the main thread
        self.at_place_since = self.since = 0.0  # since when it is there, and since when the counts have not moved, too
        self.counts: dict[str, Any] | None = None
        self.written: Standstill | None = None
        self.asked_at: float | None = None  # the value of `since` at which the details were asked for

    def look(self, now: float, frame: FrameType | None) -> None:
        """Look at the main thread, whose innermost frame is given; `now` is in seconds of time.monotonic()."""
        place = _place(frame)
        if not place or place != self.place:
            self.place, self.at_place_since, self.counts = place, now, None
            self._take_back()
        elif now - self.at_place_since >= self.still:
            self._look_at_counts(now, _find_call(frame))

    def end(self) -> None:
        """Leave no file behind that nobody takes back."""
        try:
            self._take_back()
        except OSError:
            pass

    def _look_at_counts(self, now: float, call: str) -> None:
        counts = self._ask(False, False, False)["pg_status"]
        if counts != self.counts:
            self.counts, self.since = counts, now
            self._take_back()
        elif now - self.since < self.still:
            return
        elif now - self.since >= self.details and self.asked_at != self.since:
            self.asked_at = self.since
            self._write(call, self._ask(True, self._is_pending(), False) if _use_own_device() else None)
        elif self.written is None:
            self._write(call, None)

    def _ask(self, *how: bool) -> dict[str, Any]:
        import pickle  # torch has loaded it; this process itself wrote the data

        answer: dict[str, Any] = pickle.loads(self.dump(*how))  # noqa: S301 - see above
        return answer

    def _is_pending(self) -> bool:
        """Return whether the operation that was started last in a group differs from the one that ended last."""
        counts = (self.counts or {}).values()
        return any(one["last_enqueued_collective"] != one["last_completed_collective"] for one in counts)

    def _write(self, call: str, found: dict[str, Any] | None) -> None:
        import json  # torch has loaded it

        pending = _find_pending(found) if found is not None and self._is_pending() else []
        is_pending = self._is_pending() if found is None else bool(pending)
        waits_in = next((entry for entry in pending if not _is_p2p(entry)), None)
        self.written = {
            "pid": os.getpid(),
            "since": self.since,
            "waits": is_pending or bool(call),
            "call": _name(pending[0]) if pending and waits_in is None else "" if is_pending else call,
            "started": _count_started(found) if found is not None else None,
            "waits_in": _describe(waits_in, found) if waits_in is not None and found is not None else None,
        }
        replace_file(self.path, json.dumps(self.written), is_durable=False)

    def _take_back(self) -> None:
        if self.written is not None:
            self.written = None
            try:
                os.unlink(self.path)
            except FileNotFoundError:
                pass


def _place(frame: FrameType | None) -> list[tuple[object, int]]:
    """Return where a thread is, in each of its functions."""
    place: list[tuple[object, int]] = []
    while frame is not None and len(place) < _MOST_DEPTH:
        place.append((frame.f_code, frame.f_lasti))
        frame = frame.f_back
    return place


def _find_call(frame: FrameType | None) -> str:
    """Return the function of torch.distributed in which a thread is, if it may wait in NCCL there; else nothing."""
    if frame is not None and frame.f_code.co_filename.endswith(_OPERATORS):
        frame = frame.f_back
    if frame is None or not frame.f_code.co_filename.endswith(_CALLERS):
        return ""
    name = frame.f_code.co_name
    given = (frame.f_locals.get(one) for one in _TENSORS)
    things = [one[0] if isinstance(one, (list, tuple)) and one else one for one in given]
    is_on_gpu = any(getattr(one, "is_cuda", False) or getattr(one, "type", None) == "cuda" for one in things)
    return name if is_on_gpu or name in _WITHOUT_TENSOR else ""


def _use_own_device() -> bool:
    """Have this thread use the GPU that the process uses; return whether it is safe to ask about its events then.

    CUDA would give this thread the first GPU, and reserve memory on it.
    """
    torch = sys.modules["torch"]
    count = torch.cuda.device_count()
    if count <= 1:
        return True
    used = [number for number in range(count) if torch._C._cuda_hasPrimaryContext(number)]
    if used:
        torch._C._cuda_setDevice(used[0])
    return bool(used)


def _count_started(found: dict[str, Any]) -> dict[str, int]:
    """Return how many collectives this rank has started in each process group, by the name that all ranks give it."""
    started: dict[str, int] = {}
    for entry in found.get("entries", []):
        if not _is_p2p(entry):
            group = entry["process_group"][0]
            started[group] = max(started.get(group, 0), entry["collective_seq_id"])
    return started


def _find_pending(found: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the operations that have not ended, the first one first. torch notes no end of the parts of several."""
    entries = sorted(found.get("entries", []), key=lambda entry: entry["record_id"])
    whole = {_numbers(entry): entry["record_id"] for entry in entries if _name(entry).endswith("coalesced")}
    return [
        entry
        for entry in entries
        if not (entry["retired"] or entry["state"] == "completed")
        and whole.get(_numbers(entry), entry["record_id"]) == entry["record_id"]
    ]


def _numbers(entry: dict[str, Any]) -> tuple[int, int, int]:
    """Return what the parts of a coalesced operation have in common with it."""
    return entry["pg_id"], entry["collective_seq_id"], entry["p2p_seq_id"]


def _is_p2p(entry: dict[str, Any]) -> bool:
    """Return whether others need not take part; several at once have the number of the collective before them."""
    return bool(entry.get("is_p2p")) or _name(entry) == "coalesced"


def _name(entry: dict[str, Any]) -> str:
    return str(entry["profiling_name"]).rpartition(":")[2].strip("_")


def _describe(entry: dict[str, Any], found: dict[str, Any]) -> Collective:
    group = entry["process_group"][0]
    ranks = str(found.get("pg_config", {}).get(group, {}).get("ranks", ""))  # as text: [0, 1]
    return {
        "group": group,
        "ranks": [int(rank) for rank in ranks.strip("[]").split(",") if rank],
        "name": _name(entry),
        "number": entry["collective_seq_id"],
        "sizes": entry["input_sizes"][:_MOST_SIZES],
        "types": entry.get("input_dtypes", [])[:_MOST_SIZES],
        "frames": entry.get("frames", [])[:_MOST_FRAMES],
    }
