"""Time a synchronisation that the training code does by hand."""

from __future__ import annotations

import sys
import time

from . import recorder as recording

TYPE_CHECKING = False  # importing typing would cost more than all the rest
if TYPE_CHECKING:
    from typing import Any

    from .recorder import Recorder, Series


class sync:  # noqa: N801 - it is used like a function
    """Time the block of code that synchronises the gradients, for `jobsubmit report`.

    `name` distinguishes several blocks, `nbytes` is how many bytes of its own a process sends. All ranks must run the
    block equally often, and leave it only when the communication is over: wait for handles inside. If the job file has
    no `profile`, or jobsubmit did not start the process, the block runs without timing.
    """

    def __init__(self, name: str = "gradients", nbytes: int = 0) -> None:
        self.name, self.nbytes = name, max(0, nbytes)
        self.timed: _ByHand | None = None

    def __enter__(self) -> sync:
        recorder = recording.current_recorder()
        if recorder is not None:
            try:
                self.timed = _ByHand.of(recorder, self.name, self.nbytes)
                self.timed.enter()
            except Exception as error:
                self._end(recorder, error)
        return self

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        recorder = recording.current_recorder()
        if self.timed is not None and recorder is not None and kind is None:
            try:
                self.timed.leave()
            except Exception as problem:
                self._end(recorder, problem)

    def _end(self, recorder: Recorder, error: Exception) -> None:
        self.timed = None
        recorder.off("sync(%r) could not be timed (%s: %s)" % (self.name, type(error).__name__, error))


class _ByHand:
    """The series of one name, and when its block was last entered and left."""

    known: dict[str, _ByHand] = {}  # noqa: RUF012 - one a process

    @classmethod
    def of(cls, recorder: Recorder, name: str, nbytes: int) -> _ByHand:
        if name not in cls.known:
            series = recorder.new_series(
                what="by_hand", name=name, bytes=nbytes, world=_world(), device=_device(), sampled=1
            )
            cls.known[name] = cls(series)
        return cls.known[name]

    def __init__(self, series: Series) -> None:
        self.series = series
        self.step = 0
        self.entered = self.left = 0

    def enter(self) -> None:
        _wait_for_gpu()
        self.entered = time.perf_counter_ns()

    def leave(self) -> None:
        _wait_for_gpu()
        now = time.perf_counter_ns()
        self.step += 1
        if self.left:
            step, compute, communication = (
                nanoseconds // 1000 for nanoseconds in (now - self.left, self.entered - self.left, now - self.entered)
            )
            self.series.row(self.step - 1, step, compute, None, communication, 0)
        self.left = now
        self.series.own_ns += time.perf_counter_ns() - now


def _torch() -> Any:
    return sys.modules.get("torch")


def _device() -> str:
    torch = _torch()
    return "cuda" if torch is not None and torch.cuda.is_available() and torch.cuda.is_initialized() else "cpu"


def _wait_for_gpu() -> None:
    """Wait until the GPU has finished earlier work, which would otherwise count for the wrong part."""
    if _device() == "cuda":
        _torch().cuda.synchronize()


def _world() -> int:
    torch = _torch()
    if torch is not None and torch.distributed.is_available() and torch.distributed.is_initialized():
        return int(torch.distributed.get_world_size())
    return 1
