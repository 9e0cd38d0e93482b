"""How far a training is, as short texts: for tables, for a line, for a page."""

from __future__ import annotations

from jobsubmit.jobs.progress import TrainingState

_DIGITS = 4
_MINUTE, _HOUR, _DAY = 60, 3600, 86400


def step_cell(training: TrainingState) -> str:
    """Return `4,120/10,000`, or `epoch 3/90`; empty if the output shows neither."""
    is_global = training.step is not None and not training.is_step_of_epoch
    if training.step is not None and (
        (is_global and (training.steps or not training.epochs)) or training.epoch is None
    ):
        return _of(training.step, training.steps)
    return f"epoch {_of(training.epoch, training.epochs)}" if training.epoch is not None else ""


def loss_cell(training: TrainingState) -> str:
    """Return the newest loss with four digits; empty if there is none."""
    return "" if training.loss is None else f"{training.loss:.{_DIGITS}g}"


def left_cell(training: TrainingState, now: float) -> str:
    """Return how long the training still takes, as `1h 12m`; empty if that is unknown."""
    return "" if training.end is None else duration_text(max(0.0, training.end - now))


def duration_text(seconds: float) -> str:
    """Return `45s`, `12m 30s`, `1h 12m`, `3d 4h`."""
    whole = int(seconds)
    if whole < _MINUTE:
        return f"{whole}s"
    if whole < _HOUR:
        return f"{whole // _MINUTE}m {whole % _MINUTE:02}s"
    if whole < _DAY:
        return f"{whole // _HOUR}h {whole % _HOUR // _MINUTE:02}m"
    return f"{whole // _DAY}d {whole % _DAY // _HOUR}h"


def training_text(training: TrainingState, now: float | None) -> str:
    """Return `epoch 3/90, step 120/391, loss 2.31, 1h 12m left`; `now` is None once the job has ended."""
    parts = []
    if training.epoch is not None:
        parts.append(f"epoch {_of(training.epoch, training.epochs)}")
    if training.step is not None:
        parts.append(f"step {_of(training.step, training.steps)}")
    if training.loss is not None:
        parts.append(f"{training.loss_name} {loss_cell(training)}")
    if now is not None and training.end is not None:
        parts.append(f"{left_cell(training, now)} left")
    return ", ".join(parts)


def _of(number: float, total: int | None) -> str:
    shown = f"{number:,.2f}".rstrip("0").rstrip(".") if number != int(number) else f"{int(number):,}"
    return shown + (f"/{total:,}" if total else "")
