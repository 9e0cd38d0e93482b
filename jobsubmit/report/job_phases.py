"""The phases of a job: what its record, its backend and its processes tell, as one line of time."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from jobsubmit.backends.models import JobPhase, JobStatus, State
from jobsubmit.report.timing_files import Process

_FIRST, _TRAINING, _EXIT = "first_output", "training", "exit"  # as backends call them
FIRST_STEP, TRAINING, CHECKPOINT = "first step", "training", "checkpoint"


class Phase(NamedTuple):
    """When a phase of an attempt was under way, in seconds since the epoch: (start, end), perhaps several times.

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
    """Something struck the job, or that it recovered; `kind` is fault, restart or failure."""

    kind: str
    t: float
    text: str


def find_phases(
    steps: Iterable[JobPhase], processes: Sequence[Process], ended: float | None = None
) -> tuple[Phase, ...]:
    """Return the phases in order of time; what the processes measured says more exactly when training was.

    `ended` is when the job did, if it has.
    """
    steps = tuple(steps)
    found: list[Phase] = []
    for attempt in sorted({step.attempt for step in steps} | {process.attempt for process in processes}):
        own = [step for step in steps if step.attempt == attempt]
        lives = _lives([process for process in processes if process.attempt == attempt])
        if lives and all(life.is_whole for life in lives):
            own = [_from(step, lives[-1].last) for step in own if step.name not in (_FIRST, _TRAINING)]
        found += [_phase(step, own, ended) for step in own]
        found += _of_lives(lives, attempt)
    return tuple(sorted(found, key=lambda phase: phase.start))


def _from(step: JobPhase, last_step: float) -> JobPhase:
    """Return a step as it is; the one that ends a job begins where its last training step ended."""
    return replace(step, start=min(step.start, last_step)) if step.name == _EXIT else step


def _phase(step: JobPhase, steps: Sequence[JobPhase], ended: float | None) -> Phase:
    """Return a step as a phase; of a job that has ended all have: where the next one began, if nobody said when."""
    end = step.end
    if end is None and ended is not None:
        end = min([later.start for later in steps if later.start > step.start], default=max(ended, step.start))
    return Phase(step.title, ((step.start, end),), step.attempt)


class _Life:
    """When processes that began together joined their group, ended their first step, and their last."""

    def __init__(self, processes: Sequence[Process]) -> None:
        rows = [row for process in processes for series in process.series.values() for row in series.rows]
        joins = [process.joined for process in processes if process.joined]
        self.began = min(process.began for process in processes)
        self.joining = max((join.end - join.seconds for join in joins), default=0.0)
        self.joined = max((join.end for join in joins), default=0.0)
        self.first = max((row.end for row in rows if row.number == 1), default=0.0)
        self.last = max((row.end for row in rows), default=0.0)
        busiest = max(processes, key=lambda process: sum(save.seconds for save in process.saves))
        self.saves = [(save.end - save.seconds, save.end) for save in busiest.saves]

    @property
    def is_whole(self) -> bool:
        """Return whether the processes say all of when training began."""
        return bool(self.joined and self.first)


def _lives(processes: Sequence[Process]) -> list[_Life]:
    """Return the processes of an attempt, those together that torch's launcher started together."""
    by_restart: dict[int, list[Process]] = defaultdict(list)
    for process in processes:
        by_restart[process.restart].append(process)
    return [_Life(together) for _, together in sorted(by_restart.items())]


def _of_lives(lives: Sequence[_Life], attempt: int) -> Iterator[Phase]:
    """Yield what the processes know: training is from the end of the first step to that of the last one."""
    if lives and all(life.is_whole for life in lives):
        yield Phase("start-up", tuple((life.began, life.joining) for life in lives), attempt)
        yield Phase("process group", tuple((life.joining, life.joined) for life in lives), attempt)
        yield Phase(FIRST_STEP, tuple((life.joined, life.first) for life in lives), attempt)
        yield Phase(TRAINING, tuple((life.first, life.last) for life in lives), attempt)
    if saves := [save for life in lives for save in life.saves]:
        yield Phase(CHECKPOINT, tuple(saves), attempt)


def find_marks(status: JobStatus) -> tuple[Mark, ...]:
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
