"""Time the all-reduce of each bucket of gradients, with a communication hook: on request, for the hook costs time."""

from __future__ import annotations

import functools
import time
from importlib import import_module

TYPE_CHECKING = False  # importing typing would cost more than all the rest
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from .recorder import Series


class Buckets:
    """Take the times of one model's buckets, and write them a step: ["buckets", series, step, [[index, bytes, start,
    end], …]], start and end in microseconds as in a row."""

    def __init__(self, model: Any, series: Series) -> None:
        self.model, self.series = model, series
        self.is_hooked = False
        self.taken: list[list[Any]] = []

    def begin_step(self, last_step: int) -> None:
        """Write what the last step's buckets took; time all from the first step on."""
        if not self.is_hooked:  # whoever wants a hook of their own has said so by now
            from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

            self.model.register_comm_hook(None, allreduce_hook)
        taken, self.taken = self.taken, []
        if taken and last_step % self.series.stride == 0:
            self.series.recorder.row(["buckets", self.series.number, last_step, [_timed(*item) for item in taken]])

    def timing(self, hook: Callable[..., Any]) -> Callable[..., Any]:
        """Return a communication hook that does the same and notes when each bucket began and ended."""
        self.is_hooked = True

        def timed(state: Any, bucket: Any) -> Any:
            begun = time.perf_counter_ns()
            clock = _GpuClock(bucket.buffer()) if bucket.buffer().is_cuda else None
            entry = [bucket.index(), bucket.buffer().nbytes, self.series.recorder.now(), None, clock]
            self.taken.append(entry)
            self.series.own_ns += time.perf_counter_ns() - begun
            future = hook(state, bucket)

            def done(ended: Any) -> Any:
                entry[3] = self.series.recorder.now()
                if clock:
                    clock.stop()
                return ended.value()

            return future.then(done)

        functools.update_wrapper(timed, hook, updated=())
        del timed.__wrapped__  # type: ignore[attr-defined] # torch would look through it
        timed.__annotations__ = {}  # torch wants its own types there, or nothing
        return timed


class _GpuClock:
    """Time what a GPU does between two moments of its stream."""

    def __init__(self, tensor: Any) -> None:
        cuda: Any = import_module("torch.cuda")
        self.begun, self.ended = (cuda.Event(enable_timing=True) for _ in range(2))
        self.begun.record(cuda.current_stream(tensor.device))

    def stop(self) -> None:
        """Note the end; torch runs a future's callback on a stream that waits for what it stands for."""
        self.ended.record()

    def microseconds(self) -> int | None:
        """Return how long it was, or None while it is not over."""
        return int(self.begun.elapsed_time(self.ended) * 1000) if self.ended.query() else None


def _timed(index: int, size: int, begun: int, ended: int | None, clock: _GpuClock | None) -> list[int | None]:
    if clock is None:
        return [index, size, begun, ended]
    took = clock.microseconds()
    return [index, size, begun, None if took is None else begun + took]


def time_hooks(kind: Any) -> None:
    """Have the communication hooks that users register timed, too."""
    register = kind.register_comm_hook

    @functools.wraps(register)
    def registering(self: Any, state: object, hook: Callable[..., Any]) -> Any:
        taker: Buckets | None = getattr(self.logger, "hook_buckets", None)
        return register(self, state, taker.timing(hook) if taker else hook)

    kind.register_comm_hook = registering
    builtin = kind._register_builtin_comm_hook

    @functools.wraps(builtin)
    def registering_builtin(self: Any, *args: Any) -> Any:
        taker: Buckets | None = getattr(self.logger, "hook_buckets", None)
        if taker:
            taker.is_hooked = True  # it is torch's own, in C++: nothing of it can be timed
        return builtin(self, *args)

    kind._register_builtin_comm_hook = registering_builtin
