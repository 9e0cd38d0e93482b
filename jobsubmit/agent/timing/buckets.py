"""Time the all-reduce of each bucket of gradients, with a communication hook: on request, as the hook costs time."""

from __future__ import annotations

import functools
import time
import weakref
from importlib import import_module

TYPE_CHECKING = False  # importing typing would cost more than all the rest
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeAlias

    from torch import Tensor
    from torch.distributed import GradBucket
    from torch.futures import Future
    from torch.nn.parallel import DistributedDataParallel

    from .recorder import Series

    Hook: TypeAlias = Callable[[object, GradBucket], Future[Tensor]]
    Register: TypeAlias = Callable[[DistributedDataParallel, object, Hook], None]


class Buckets:
    """Record the times of one model's buckets, and write them per step: ["buckets", series, step, [[index, bytes,
    start, end], …]], start and end in microseconds as in a row.

    torch accepts one hook per model, once. Ours wraps the hook of the user, even if that is registered later.
    """

    def __init__(self, model: DistributedDataParallel, series: Series) -> None:
        self.model, self.series = weakref.ref(model), series
        self.is_registered = bool(getattr(model, "_comm_hooks", None))  # by the model itself: mixed precision
        self.inner: tuple[object, Hook] | None = None
        self.taken: list[_Reduction] = []

    def begin_step(self, last_step: int) -> None:
        """Write the times of the last step's buckets; time all from the first step on."""
        if not self.is_registered:  # whoever wants a hook of their own has mostly said so by now
            self._register_usual()
        taken, self.taken = self.taken, []
        if taken and self.series.wants(last_step):
            self.series.recorder.write(["buckets", self.series.number, last_step, [item.times() for item in taken]])
            self.series.count(len(taken))

    def _register_usual(self) -> None:
        model = self.model()
        usual = import_module("torch.distributed.algorithms.ddp_comm_hooks.default_hooks")
        if model is not None:
            model.register_comm_hook(model.process_group, usual.allreduce_hook)

    def register(self, model: DistributedDataParallel, register: Register, state: object, hook: Hook) -> None:
        """Register a hook, or replace the one that ours wraps."""
        if self.is_registered and self.inner is not None:
            model._check_comm_hook(hook)
            self.inner = (state, hook)
            return
        self.inner = (state, hook)
        self.is_registered = True
        register(model, None, self._stand_in(hook))

    def _stand_in(self, hook: Hook) -> Hook:
        def timed(state: object, bucket: GradBucket) -> Future[Tensor]:
            assert self.inner is not None
            entry = self._begin(bucket)
            future = self.inner[1](self.inner[0], bucket)
            return future if entry is None else future.then(lambda ended: self._end(entry, ended))

        functools.update_wrapper(timed, hook, updated=())
        del timed.__wrapped__  # type: ignore[attr-defined] # torch would look through it
        timed.__annotations__ = {}  # torch wants its own types there, or nothing
        return timed

    def _begin(self, bucket: GradBucket) -> _Reduction | None:
        if not self.series.recorder.is_on:
            return None
        begun = time.perf_counter_ns()
        try:
            tensor = bucket.buffer()
            clock = _GpuClock(tensor) if tensor.is_cuda else None
            size = tensor.numel() * tensor.element_size()
            entry = _Reduction(bucket.index(), size, self.series.recorder.now(), clock)
        except Exception as error:  # sparse gradients, a reducer that is none
            self.series.recorder.off("buckets cannot be timed (%s: %s)" % (type(error).__name__, error))
            self.taken = []
            return None
        self.taken.append(entry)
        self.series.own_ns += time.perf_counter_ns() - begun
        return entry

    def _end(self, entry: _Reduction, ended: Future[Tensor]) -> Tensor:
        try:
            entry.ended = self.series.recorder.now()
            if entry.clock:
                entry.clock.stop()
        except Exception as error:
            self.series.recorder.off("buckets cannot be timed (%s: %s)" % (type(error).__name__, error))
        return ended.value()


class _GpuClock:
    """Time what a GPU does between two points of its stream."""

    def __init__(self, tensor: Tensor) -> None:
        cuda = import_module("torch.cuda")
        self.begun, self.ended = (cuda.Event(enable_timing=True) for _ in range(2))
        self.begun.record(cuda.current_stream(tensor.device))

    def stop(self) -> None:
        """Record the end; torch runs a future's callback on a stream that waits for the future's work."""
        self.ended.record()

    def microseconds(self) -> int | None:
        """Return the duration, or None while it is not over."""
        return int(self.begun.elapsed_time(self.ended) * 1000) if self.ended.query() else None


class _Reduction:
    """The all-reduce of one bucket; times are in microseconds."""

    def __init__(self, index: int, size: int, begun: int, clock: _GpuClock | None) -> None:
        self.index, self.size, self.begun, self.clock = index, size, begun, clock
        self.ended: int | None = None

    def times(self) -> list[int | None]:
        """Return the times to write: on a GPU those of its own clock."""
        if self.clock is None or self.ended is None:
            return [self.index, self.size, self.begun, self.ended]
        took = self.clock.microseconds()
        return [self.index, self.size, self.begun, None if took is None else self.begun + took]


def time_hooks(kind: type[DistributedDataParallel]) -> None:
    """Time the communication hooks that users register, too."""
    register, builtin = kind.register_comm_hook, kind._register_builtin_comm_hook

    @functools.wraps(register)
    def registering(self: DistributedDataParallel, state: object, hook: Hook) -> None:
        taker: Buckets | None = getattr(self.logger, "buckets", None)
        if taker:
            taker.register(self, register, state, hook)
        else:
            register(self, state, hook)

    @functools.wraps(builtin)
    def registering_builtin(self: DistributedDataParallel, *args: object) -> object:
        taker: Buckets | None = getattr(self.logger, "buckets", None)
        if taker:
            taker.is_registered = True  # it is torch's own, in C++: nothing of it can be timed
        return builtin(self, *args)

    kind.register_comm_hook, kind._register_builtin_comm_hook = registering, registering_builtin
