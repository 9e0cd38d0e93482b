"""Read what DistributedDataParallel measures of itself, once a step.

torch keeps the times of each step in its reducer and makes them readable when the forward of the next step begins; both
are private (torch 2.1 to 2.15), so anything that is not as expected ends the timing.
"""

from __future__ import annotations

import functools
import time

from . import buckets

TYPE_CHECKING = False  # importing typing would cost more than all the rest
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType
    from typing import Any

    from .recorder import Recorder, Series

# On a GPU torch must wait for its events to read them: not in every step.
_SAMPLE_RATES = {"cpu": 1, "cuda": 10}
_TIMES = (
    "forward_compute_time",
    "backward_compute_time",
    "backward_comm_time",
    "backward_compute_comm_overlap_time",
)


def measure(module: ModuleType, recorder: Recorder) -> None:
    """Have every DistributedDataParallel that is made from now on measured."""
    kind: Any = getattr(module, "DistributedDataParallel", None)
    if kind is None:
        recorder.off("torch has no DistributedDataParallel where it was")
        return
    make = kind.__init__

    @functools.wraps(make)
    def making(self: Any, *args: Any, **kwargs: Any) -> None:
        make(self, *args, **kwargs)
        try:
            _watch(self, recorder)
        except Exception as error:
            recorder.off(_unlike(error))

    kind.__init__ = making
    if recorder.kind == "buckets":
        buckets.time_hooks(kind)


def _unlike(error: Exception) -> str:
    import torch

    return "DistributedDataParallel of torch %s is not as expected (%s: %s)" % (
        torch.__version__,
        type(error).__name__,
        error,
    )


def _watch(model: Any, recorder: Recorder) -> None:
    if not recorder.is_on or model.logger is None:
        return
    device = next(model.parameters()).device.type
    rate = _SAMPLE_RATES.get(device, max(_SAMPLE_RATES.values()))
    model._set_ddp_runtime_logging_sample_rate(rate)
    told = _told(model.logger)
    series = recorder.new_series(
        what="ddp",
        name=told["module_name"],
        bytes=told["total_parameter_size_bytes"],
        backend=told["backend_name"],
        world=told["world_size"],
        device=device,
        sampled=rate,
    )
    model.logger = _Logger(model, model.logger, series)


def _told(logger: Any) -> dict[str, Any]:
    data = logger._get_ddp_logging_data()
    return {**data.strs_map, **data.ints_map}


class _Logger:
    """Stand for the logger of a DistributedDataParallel, which is told when the forward of a step begins."""

    def __init__(self, model: Any, logger: Any, series: Series) -> None:
        self._logger, self._series = logger, series
        self._last_ns, self._step, self._sampled = 0, 0, 0
        self._has_buckets = False
        self._buckets = buckets.Buckets(model, series) if series.recorder.kind == "buckets" else None
        self.set_runtime_stats_and_log = _uncompiled(self._begin_step)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._logger, name)

    @property
    def hook_buckets(self) -> buckets.Buckets | None:
        """Return what times each bucket, if that is wanted."""
        return self._buckets

    def _begin_step(self) -> None:
        self._logger.set_runtime_stats_and_log()
        if not self._series.recorder.is_on:
            return
        begun = time.perf_counter_ns()
        try:
            self._note_last_step(begun)
        except Exception as error:
            self._series.recorder.off(_unlike(error))
        self._series.own_ns += time.perf_counter_ns() - begun

    def _note_last_step(self, now: int) -> None:
        last, self._last_ns = self._last_ns, now
        if self._buckets:
            self._buckets.begin_step(self._step)
        if last:
            told = self._logger._get_ddp_logging_data().ints_map
            times: list[int | None] = [None] * len(_TIMES)
            if told["iteration"] != self._sampled:
                self._sampled = told["iteration"]
                times = [told[name] // 1000 for name in _TIMES]
            if told["has_rebuilt_buckets"] and not self._has_buckets:
                self._note_buckets()
            self._series.row(self._step, (now - last) // 1000, *times)
        self._step += 1

    def _note_buckets(self) -> None:
        self._has_buckets = True
        text = str(_told(self._logger)["rebuilt_bucket_sizes"])
        sizes = [int(size) for size in text.split(",")]
        self._series.recorder.event("buckets", series=self._series.number, sizes=sizes)


def _uncompiled(function: Callable[[], None]) -> Callable[[], None]:
    """Keep torch.compile from following us into what is no part of the model."""
    import torch

    compiler: Any = getattr(torch, "compiler", None)
    disable = getattr(compiler, "disable", None)
    found: Callable[[], None] = disable(function) if disable else function
    return found
