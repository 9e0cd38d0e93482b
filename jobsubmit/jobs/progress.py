"""How far the training of a job is, from the first and the last lines of its logs."""

from __future__ import annotations

import itertools
import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from jobsubmit.agent import json_form
from jobsubmit.agent.atomic_write import read_file, replace_file
from jobsubmit.backends.models import LogLine, LogQuery, State
from jobsubmit.config import Settings
from jobsubmit.errors import BackendError, JobNotFoundError
from jobsubmit.jobs import monitor
from jobsubmit.jobs.listing import Summary
from jobsubmit.jobs.records import JobRecord, JobRecords

if TYPE_CHECKING:
    from jobsubmit.metrics.collection import Metrics  # it loads much, and `list` seldom reads a log

_FIRST_LINES, _LAST_LINES = 300, 600
_REMEMBERED = "ended-trainings.json"
_MOST_READ, _MOST_REMEMBERED = 200, 20_000
_NUMBER = (float, None)
_FORM: dict[str, Any] = {
    "step": (int, None),
    "steps": (int, None),
    "epoch": _NUMBER,
    "epochs": (int, None),
    "loss": _NUMBER,
    "loss_name": str,
    "is_step_of_epoch": bool,
    "done": _NUMBER,
    "end": _NUMBER,
}


@dataclass(frozen=True)
class TrainingState:
    """How far a training is; None for what its output does not show.

    `steps` is the total beside the step: of the whole training, or of one epoch if the steps start again in each
    (`is_step_of_epoch`). `done` is the share of the training that is done, `end` is when it will end, in seconds since
    the epoch.
    """

    step: int | None = None
    steps: int | None = None
    epoch: float | None = None
    epochs: int | None = None
    loss: float | None = None
    loss_name: str = ""
    is_step_of_epoch: bool = False
    done: float | None = None
    end: float | None = None


NOTHING_SHOWN = TrainingState()


def open_metrics(record: JobRecord, settings: Settings) -> Metrics:
    """Return an empty collection, which reads the output of a job as its job file says, if that is on this machine."""
    from jobsubmit.metrics.collection import Metrics
    from jobsubmit.plan.plan_file import read_plan  # it loads what a plan consists of

    with suppress(BackendError):
        plan = read_plan(settings.job_dir(record.id))
        if plan is not None and plan.metrics:
            return Metrics(plan.metrics)
    return Metrics()


def read_training(record: JobRecord, settings: Settings) -> TrainingState:
    """Return how far a job is; nothing if its logs cannot be read now, or show no training.

    Reads only the first lines, which show totals, and the last ones: a job may have printed millions.
    """
    metrics = open_metrics(record, settings)
    try:
        first = list(itertools.islice(monitor.logs(record, settings), _FIRST_LINES))
        is_all = len(first) < _FIRST_LINES
        last = [] if is_all else list(monitor.logs(record, settings, LogQuery(tail=_LAST_LINES)))
    except (BackendError, JobNotFoundError, OSError):
        return NOTHING_SHOWN
    for line in [*first, *_not_among(first, last)]:
        metrics.take(line.node, line.rank, line.time, line.text)
    return summarize(metrics)


def training_of(record: JobRecord, state: State, settings: Settings) -> TrainingState:
    """Return how far a job is, which may be remembered of one that has ended; a loss that was NaN is read again."""
    if not state.is_final:
        return read_training(record, settings)
    remembered, key = _remembered(settings), _key(record.id, record.created)
    known = remembered.get(key)
    if known is None or (known.loss is None and known.loss_name):
        known = read_training(record, settings)
        _remember({**remembered, key: known}, settings)
    return known


def _not_among(first: Sequence[LogLine], last: Sequence[LogLine]) -> Iterator[LogLine]:
    """Yield the last lines without those that are among the first: many may have been written at the same time."""
    seen = Counter(first)
    newest = first[-1].time if first else -math.inf
    for line in last:
        if line.time > newest:
            yield line
        elif seen[line]:
            seen[line] -= 1
        elif line.time == newest:
            yield line


def summarize(metrics: Metrics) -> TrainingState:
    """Return how far a training is by what was read from its output: the progress of the rank that is furthest."""
    from jobsubmit.metrics.observations import find_loss

    positions = metrics.progress()
    furthest = max(positions.items(), key=lambda item: (item[1].epoch or 0, item[1].step or 0), default=None)
    loss = find_loss(metrics.series())
    found = TrainingState()
    if loss is not None:
        found = replace(found, loss=loss.last.value, loss_name=loss.name)
    if furthest is None:
        return found
    source, at = furthest
    found = replace(found, step=at.step, steps=at.steps, epoch=at.epoch, epochs=at.epochs, end=metrics.end())
    return replace(found, is_step_of_epoch=metrics.is_step_of_epoch(source), done=metrics.share_done(source))


def read_trainings(jobs: Sequence[Summary], settings: Settings) -> dict[str, TrainingState]:
    """Return how far jobs are, by id; of many jobs only the first ones are read, and those that were read before.

    What a job that has ended has shown is remembered.
    """
    remembered = _remembered(settings)
    found: dict[str, TrainingState] = {}
    read = 0
    for job in jobs:
        known = remembered.get(_key(job.id, job.created)) if State(job.state).is_final else None
        if known is not None:
            found[job.id] = known
        elif read < _MOST_READ and job.handle and job.state not in (State.PENDING, State.QUEUED):
            read += 1
            record = JobRecords(settings).read(job.id)
            found[job.id] = read_training(record, settings) if record is not None else NOTHING_SHOWN
    ended = {_key(job.id, job.created): found[job.id] for job in jobs if job.id in found and State(job.state).is_final}
    if ended.keys() - remembered.keys():
        _remember({**remembered, **ended}, settings)
    return found


def _key(job_id: str, created: float) -> str:
    """Return what is remembered of which job: another job may get the id of one that was deleted."""
    return f"{job_id} {created}"


def _remembered(settings: Settings) -> dict[str, TrainingState]:
    try:
        held = json_form.parse_json(read_file(str(settings.state_dir / _REMEMBERED)))
    except (OSError, ValueError):
        return {}
    if not isinstance(held, dict) or not all(json_form.fits(fields, _FORM) for fields in held.values()):
        return {}
    return {key: TrainingState(**{name: fields[name] for name in _FORM}) for key, fields in held.items()}


def _remember(trainings: Mapping[str, TrainingState], settings: Settings) -> None:
    newest = list(trainings.items())[-_MOST_REMEMBERED:]
    fields = {key: {name: getattr(one, name) for name in _FORM} for key, one in newest}
    for one in fields.values():
        if one["loss"] is not None and not math.isfinite(one["loss"]):
            one["loss"] = None
    with suppress(OSError):  # without it, the logs are read again
        replace_file(str(settings.state_dir / _REMEMBERED), json.dumps(fields))
