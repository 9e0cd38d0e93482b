"""The phases of a job: what its record, its backend and its processes tell, as one line of time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from jobsubmit.backends import JobStatus, State, Step
from jobsubmit.report.measured import Process

_FIRST, _TRAINING = "first_output", "training"  # as backends call them
FIRST_STEP, TRAINING, CHECKPOINT = "first step", "training", "checkpoint"


class Phase(NamedTuple):
    """Say when a phase of an attempt was under way, in seconds since the epoch: (start, end), perhaps several times.

    An end is None while it lasts.
    """

    name: str
    spans: tuple[tuple[float, float | None], ...]
    attempt: int

    @property
    def start(self) -> float:
        """Return when it began first."""
        return self.spans[0][0]

    @property
    def end(self) -> float | None:
        """Return when it ended last."""
        return self.spans[-1][1]

    @property
    def seconds(self) -> float | None:
        """Return how long it took in all."""
        return None if self.end is None else sum((end or start) - start for start, end in self.spans)


class Mark(NamedTuple):
    """Say that something struck the job, or that it recovered; `kind` is fault, restart or failure."""

    kind: str
    t: float
    text: str


def phases(steps: Iterable[Step], processes: Sequence[Process]) -> tuple[Phase, ...]:
    """Return the phases in order of time; what the processes measured says more exactly when training began."""
    steps = tuple(steps)
    found: list[Phase] = []
    for attempt in sorted({step.attempt for step in steps} | {process.attempt for process in processes}):
        own = [step for step in steps if step.attempt == attempt]
        moments = _Moments([process for process in processes if process.attempt == attempt])
        found += [
            Phase(step.name.replace("_", " "), ((step.start, step.end),), attempt)
            for step in own
            if not moments.is_whole or step.name not in (_FIRST, _TRAINING)
        ]
        found += moments.phases(attempt, next((step.end for step in own if step.name == _TRAINING), None))
    return tuple(sorted(found, key=lambda phase: phase.start))


class _Moments:
    """Hold when the processes of an attempt began, joined their group, ended their first step, and their last."""

    def __init__(self, processes: Sequence[Process]) -> None:
        rows = [row for process in processes for series in process.series.values() for row in series.rows]
        joins = [process.joined for process in processes if process.joined]
        self.began = min((process.began for process in processes), default=0.0)
        self.joining = max((join.end - join.seconds for join in joins), default=0.0)
        self.joined = max((join.end for join in joins), default=0.0)
        self.first = max((row.end for row in rows if row.number == 1), default=0.0)
        self.last = max((row.end for row in rows), default=0.0)
        saves = max(
            (process.saves for process in processes), key=lambda saves: sum(s.seconds for s in saves), default=[]
        )
        self.saves = tuple((save.end - save.seconds, save.end) for save in saves)

    @property
    def is_whole(self) -> bool:
        """Tell whether the processes say all of when training began."""
        return bool(self.joined and self.first)

    def phases(self, attempt: int, training_end: float | None) -> Iterator[Phase]:
        """Yield what the processes know; the backend says when training ends: there is work after the last step."""
        if self.is_whole:
            yield Phase("start-up", ((self.began, self.joining),), attempt)
            yield Phase("process group", ((self.joining, self.joined),), attempt)
            yield Phase(FIRST_STEP, ((self.joined, self.first),), attempt)
            yield Phase(TRAINING, ((self.first, max(self.last, training_end or 0.0)),), attempt)
        if self.saves:
            yield Phase(CHECKPOINT, self.saves, attempt)


def marks(status: JobStatus) -> tuple[Mark, ...]:
    """Return what struck the job, and its restarts, in order of time."""
    found = []
    for recovery in status.recoveries:
        if recovery.fault:
            found.append(Mark("fault", recovery.struck_at, recovery.fault))
        found.append(Mark("restart", recovery.detected_at, recovery.what))
    ended = status.details.get("ended")
    if status.state in (State.FAILED, State.LOST) and isinstance(ended, float):
        found.append(Mark("failure", ended, f"{status.state.value} ({status.reason}): {status.message}"))
    return tuple(sorted(found, key=lambda mark: mark.t))
