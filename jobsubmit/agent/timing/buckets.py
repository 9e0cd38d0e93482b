"""Time the all-reduce of each bucket of gradients, with a communication hook: on request, for the hook costs time."""

from __future__ import annotations

import functools
import time
import weakref
from importlib import import_module

TYPE_CHECKING = False  # importing typing would cost more than all the rest
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from .recorder import Series


class Buckets:
    """Take the times of one model's buckets, and write them a step: ["buckets", series, step, [[index, bytes, start,
    end], …]], start and end in microseconds as in a row.

    torch takes one hook a model, once. Ours stands for whichever the user wants, also of one who comes late.
    """

    def __init__(self, model: Any, series: Series) -> None:
        self.model, self.series = weakref.ref(model), series
        self.is_registered = bool(getattr(model, "_comm_hooks", None))  # by the model itself: mixed precision
        self.inner: tuple[Any, Callable[..., Any]] | None = None
        self.taken: list[list[Any]] = []

    def begin_step(self, last_step: int) -> None:
        """Write what the last step's buckets took; time all from the first step on."""
        if not self.is_registered:  # whoever wants a hook of their own has mostly said so by now
            self._register_usual()
        taken, self.taken = self.taken, []
        if taken and self.series.wants(last_step):
            self.series.recorder.row(["buckets", self.series.number, last_step, [_timed(*item) for item in taken]])
            self.series.count(len(taken))

    def _register_usual(self) -> None:
        model = self.model()
        usual = import_module("torch.distributed.algorithms.ddp_comm_hooks.default_hooks")
        if model is not None:
            model.register_comm_hook(model.process_group, usual.allreduce_hook)

    def register(self, model: Any, register: Callable[..., Any], state: Any, hook: Callable[..., Any]) -> None:
        """Register a hook, or put it in the place of the one that ours stands for."""
        if self.is_registered and self.inner is not None:
            model._check_comm_hook(hook)
            self.inner = (state, hook)
            return
        self.inner = (state, hook)
        self.is_registered = True
        register(model, None, self._stand_in(hook))

    def _stand_in(self, hook: Callable[..., Any]) -> Callable[..., Any]:
        def timed(state: Any, bucket: Any) -> Any:
            assert self.inner is not None
            entry = self._begin(bucket)
            future = self.inner[1](self.inner[0], bucket)
            return future if entry is None else future.then(lambda ended: self._end(entry, ended))

        functools.update_wrapper(timed, hook, updated=())
        del timed.__wrapped__  # type: ignore[attr-defined] # torch would look through it
        timed.__annotations__ = {}  # torch wants its own types there, or nothing
        return timed

    def _begin(self, bucket: Any) -> list[Any] | None:
        if not self.series.recorder.is_on:
            return None
        begun = time.perf_counter_ns()
        try:
            tensor = bucket.buffer()
            clock = _GpuClock(tensor) if tensor.is_cuda else None
            size = tensor.numel() * tensor.element_size()
            entry = [bucket.index(), size, self.series.recorder.now(), None, clock]
        except Exception as error:  # sparse gradients, a reducer that is none
            self.series.recorder.off("buckets cannot be timed here (%s: %s)" % (type(error).__name__, error))
            self.taken = []
            return None
        self.taken.append(entry)
        self.series.own_ns += time.perf_counter_ns() - begun
        return entry

    def _end(self, entry: list[Any], ended: Any) -> Any:
        try:
            entry[3] = self.series.recorder.now()
            if entry[4]:
                entry[4].stop()
        except Exception as error:
            self.series.recorder.off("buckets cannot be timed here (%s: %s)" % (type(error).__name__, error))
        return ended.value()


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
    if clock is None or ended is None:
        return [index, size, begun, ended]
    took = clock.microseconds()
    return [index, size, begun, None if took is None else begun + took]


def time_hooks(kind: Any) -> None:
    """Have the communication hooks that users register timed, too."""
    register, builtin = kind.register_comm_hook, kind._register_builtin_comm_hook

    @functools.wraps(register)
    def registering(self: Any, state: object, hook: Callable[..., Any]) -> Any:
        taker: Buckets | None = getattr(self.logger, "buckets", None)
        return taker.register(self, register, state, hook) if taker else register(self, state, hook)

    @functools.wraps(builtin)
    def registering_builtin(self: Any, *args: Any) -> Any:
        taker: Buckets | None = getattr(self.logger, "buckets", None)
        if taker:
            taker.is_registered = True  # it is torch's own, in C++: nothing of it can be timed
        return builtin(self, *args)

    kind.register_comm_hook, kind._register_builtin_comm_hook = registering, registering_builtin
