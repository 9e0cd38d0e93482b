"""The phases of a job: what its record, its backend and its processes report, as one timeline."""

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
    """A phase of an attempt, with one or several spans (start, end) in seconds since the epoch.

    An end is None while the phase runs.
    """

    name: str
    spans: tuple[tuple[float, float | None], ...]
    attempt: int

    @property
    def start(self) -> float:
        """Return when it first began."""
        return self.spans[0][0]

    @property
    def end(self) -> float | None:
        """Return when it last ended."""
        return self.spans[-1][1]

    @property
    def seconds(self) -> float | None:
        """Return how long it took in total."""
        return None if self.end is None else sum((end or start) - start for start, end in self.spans)


class Mark(NamedTuple):
    """A fault, a restart or a failure of the job; `kind` says which."""

    kind: str
    t: float
    text: str


def find_phases(
    steps: Iterable[JobPhase], processes: Sequence[Process], ended: float | None = None
) -> tuple[Phase, ...]:
    """Return the phases in order of time; timings of the processes give the training phases more exactly.

    `ended` is when the job ended, if it has.
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
    """Return a phase unchanged; the exit phase begins when the last training step ended."""
    return replace(step, start=min(step.start, last_step)) if step.name == _EXIT else step


def _phase(step: JobPhase, steps: Sequence[JobPhase], ended: float | None) -> Phase:
    """Return a phase of the report; in an ended job one without an end ends where the next one begins."""
    end = step.end
    if end is None and ended is not None:
        end = min([later.start for later in steps if later.start > step.start], default=max(ended, step.start))
    return Phase(step.title, ((step.start, end),), step.attempt)


class _Life:
    """When processes that started together joined their group, and ended their first and last step."""

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
        """Return whether the processes recorded everything that happened before the training began."""
        return bool(self.joined and self.first)


def _lives(processes: Sequence[Process]) -> list[_Life]:
    """Return the processes of an attempt, those together that torch's launcher started together."""
    by_restart: dict[int, list[Process]] = defaultdict(list)
    for process in processes:
        by_restart[process.restart].append(process)
    return [_Life(together) for _, together in sorted(by_restart.items())]


def _of_lives(lives: Sequence[_Life], attempt: int) -> Iterator[Phase]:
    """Yield the phases that the processes recorded: training lasts from the end of the first step to the last."""
    if lives and all(life.is_whole for life in lives):
        yield Phase("start-up", tuple((life.began, life.joining) for life in lives), attempt)
        yield Phase("process group", tuple((life.joining, life.joined) for life in lives), attempt)
        yield Phase(FIRST_STEP, tuple((life.joined, life.first) for life in lives), attempt)
        yield Phase(TRAINING, tuple((life.first, life.last) for life in lives), attempt)
    if saves := [save for life in lives for save in life.saves]:
        yield Phase(CHECKPOINT, tuple(saves), attempt)


def find_marks(status: JobStatus) -> tuple[Mark, ...]:
    """Return the faults, restarts and failures of the job, in order of time."""
    found = []
    for recovery in status.recoveries:
        if recovery.fault:
            found.append(Mark("fault", recovery.struck_at, recovery.fault))
        found.append(Mark("restart", recovery.detected_at, recovery.what))
    ended = status.details.get("ended")
    if status.state in (State.FAILED, State.LOST) and isinstance(ended, float):
        found.append(Mark("failure", ended, f"{status.state.value} ({status.reason}): {status.message}"))
    return tuple(sorted(found, key=lambda mark: mark.t))
