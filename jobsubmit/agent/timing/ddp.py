"""Read the measurements of DistributedDataParallel, once per step.

torch keeps the times of each step in its reducer and makes them readable when the forward of the next step begins. Both
are private (torch 2.1 to 2.15), so the timing stops if anything is not as expected.
"""

from __future__ import annotations

import functools
import sys
import time
import weakref

from . import buckets

TYPE_CHECKING = False  # importing typing would cost more than all the rest
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any

    from .recorder import Recorder, Series

# On a GPU torch must wait for its events to read them: not in every step.
_SAMPLE_RATES = {"cpu": 1, "cuda": 10}
_NEVER = 2**31 - 1
_TIMES = (
    "forward_compute_time",
    "backward_compute_time",
    "backward_comm_time",
    "backward_compute_comm_overlap_time",
)


def measure(module: ModuleType, recorder: Recorder) -> None:
    """Measure every DistributedDataParallel that is created from now on."""
    kind: Any = module.DistributedDataParallel
    make, no_sync = kind.__init__, kind.no_sync
    if recorder.kind == "buckets":
        buckets.time_hooks(kind)

    @functools.wraps(make)
    def making(self: Any, *args: Any, **kwargs: Any) -> None:
        make(self, *args, **kwargs)
        try:
            _watch(self, recorder)
        except Exception as error:
            recorder.off(_unlike(error))

    @functools.wraps(no_sync)
    def not_syncing(self: Any) -> Any:
        if isinstance(self.logger, _Logger):
            self.logger.note_no_sync()
        return no_sync(self)

    kind.__init__, kind.no_sync = making, not_syncing


def _unlike(error: Exception) -> str:
    version = getattr(sys.modules.get("torch"), "__version__", "?")
    return "DistributedDataParallel of torch %s is not as expected (%s: %s)" % (version, type(error).__name__, error)


def _watch(model: Any, recorder: Recorder) -> None:
    if not recorder.is_on or model.logger is None:
        return
    device = next(model.parameters()).device.type
    rate = _SAMPLE_RATES.get(device, max(_SAMPLE_RATES.values()))
    model._set_ddp_runtime_logging_sample_rate(rate)
    logged = _logged(model.logger)
    series = recorder.new_series(
        what="ddp",
        name=logged["module_name"],
        bytes=logged["total_parameter_size_bytes"],
        buckets=_sizes(logged["bucket_sizes"]),
        backend=logged["backend_name"],
        world=logged["world_size"],
        ranks=_ranks(model.process_group),
        device=device,
        sampled=rate,
        buffers=bool(logged["broadcast_buffers"]) and any(True for _ in model.buffers()),
    )
    _Logger.keep_uncompiled()
    model.logger = _Logger(model, model.logger, series, device)


def _logged(logger: Any) -> dict[str, Any]:
    data = logger._get_ddp_logging_data()
    return {**data.strs_map, **data.ints_map}


def _sizes(text: str) -> list[int]:
    return [int(size) for size in text.split(",") if size.strip()]


def _ranks(group: Any) -> list[int] | None:
    """Return the ranks of a group, or None for the group of all ranks."""
    import torch.distributed as dist

    ranks: list[int] = dist.get_process_group_ranks(group)
    return None if len(ranks) == dist.get_world_size() else ranks


class _Logger:
    """Wraps the logger of a DistributedDataParallel, which is called when the forward of a step begins."""

    def __init__(self, model: Any, logger: Any, series: Series, device: str) -> None:
        self._logger, self._series, self._device = logger, series, device
        self._model = weakref.ref(model)  # it must go when the user lets it go
        self._step, self._sampled = 0, 0
        self._measured_ns, self._measured_step = 0, 0  # when and at which step there was something to read
        self._has_rebuilt = self._has_no_sync = False
        self.buckets = buckets.Buckets(model, series) if series.recorder.kind == "buckets" else None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._logger, name)

    @classmethod
    def keep_uncompiled(cls) -> None:
        """Exclude our code, which is not part of the model, from torch.compile."""
        compiler: Any = getattr(sys.modules["torch"], "compiler", None)
        if hasattr(compiler, "disable") and not hasattr(cls, "_is_uncompiled"):
            cls.set_runtime_stats_and_log = compiler.disable(cls.set_runtime_stats_and_log)  # type: ignore[method-assign]
            cls._is_uncompiled = True  # type: ignore[attr-defined]

    def set_runtime_stats_and_log(self) -> None:
        """Call the logger, and read its measurements of the previous step."""
        if not self._series.recorder.is_on:
            self._logger.set_runtime_stats_and_log()
            return
        self._end_if_captured()
        begun = time.perf_counter_ns()
        self._logger.set_runtime_stats_and_log()
        if self._device != "cpu":  # there torch waits for work that must be done anyway: that is no cost of ours
            begun = time.perf_counter_ns()
        try:
            self._note_last_step()
        except Exception as error:
            self._series.recorder.off(_unlike(error))
        self._series.own_ns += time.perf_counter_ns() - begun

    def note_no_sync(self) -> None:
        """Record that gradients are accumulated: not every forward reaches the logger."""
        if not self._has_no_sync:
            self._has_no_sync = True
            self._series.recorder.event("no_sync", series=self._series.number)

    def _end_if_captured(self) -> None:
        """End the timing if a CUDA graph is captured: torch must not read its clocks then."""
        if self._device != "cuda" or not sys.modules["torch"].cuda.is_current_stream_capturing():
            return
        model = self._model()
        if model is not None:
            model._set_ddp_runtime_logging_sample_rate(_NEVER)
        self._series.recorder.off("nothing can be timed while a CUDA graph is captured")

    def _note_last_step(self) -> None:
        now = time.perf_counter_ns()
        if self.buckets:
            self.buckets.begin_step(self._step)
        logged = self._logger._get_ddp_logging_data().ints_map
        if self._step == 0:
            self._measured_ns = now
        elif logged["iteration"] != self._sampled:
            self._sampled = logged["iteration"]
            if logged["has_rebuilt_buckets"] and not self._has_rebuilt:
                self._note_buckets()
            times = [logged[name] // 1000 for name in _TIMES]
            steps = self._step - self._measured_step
            step = (now - self._measured_ns) // 1000 // steps
            self._measured_ns, self._measured_step = now, self._step
            if logged["backward_compute_time"] and logged["backward_comm_time"]:  # else it had no backward of its own
                self._series.row(self._step, step, *times)
        self._step += 1

    def _note_buckets(self) -> None:
        self._has_rebuilt = True
        sizes = _sizes(str(_logged(self._logger)["rebuilt_bucket_sizes"]))
        self._series.recorder.event("buckets", series=self._series.number, sizes=sizes)
