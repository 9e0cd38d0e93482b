"""The contents of a report: about one job, or about two jobs that are compared."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from jobsubmit.backends.models import JobStatus
from jobsubmit.jobs.progress import NOTHING_SHOWN, TrainingState
from jobsubmit.jobs.records import JobRecord
from jobsubmit.metrics.model import Progress
from jobsubmit.metrics.source_reader import Source
from jobsubmit.report.curves import Curve
from jobsubmit.report.goodput import Goodput
from jobsubmit.report.job_phases import Mark, Phase
from jobsubmit.report.machine_use import NO_MACHINES, MachineUse
from jobsubmit.report.statistics import Ratio
from jobsubmit.report.steps import Sync


class Paper(NamedTuple):
    """A text file of a job that the page shows unchanged."""

    name: str
    text: str


@dataclass(frozen=True)
class Report:
    """How a job spent its time, and what its training printed; moments are in seconds since the epoch, all else is in
    seconds and bytes. `progress` is how far each rank is that shows it; `nodes_of_ranks` has the node of each rank.
    """

    record: JobRecord
    status: JobStatus
    phases: tuple[Phase, ...]
    marks: tuple[Mark, ...]
    syncs: tuple[Sync, ...]
    notes: tuple[str, ...]
    goodput: Goodput
    curves: tuple[Curve, ...] = ()
    machines: MachineUse = NO_MACHINES
    papers: tuple[Paper, ...] = ()
    training: TrainingState = NOTHING_SHOWN
    progress: tuple[tuple[Source, Progress], ...] = ()
    nodes_of_ranks: Mapping[str, int] = field(default_factory=dict)

    @property
    def begin(self) -> float:
        """Return when the first phase began."""
        return min((phase.start for phase in self.phases), default=self.record.created)

    @property
    def end(self) -> float:
        """Return when the last ended phase ended."""
        ends = [end or start for phase in self.phases for start, end in phase.spans] + [mark.t for mark in self.marks]
        return max(ends, default=self.begin)


@dataclass(frozen=True)
class Comparison:
    """How the median step of a job compares with that of an earlier one: the ratio second to first, per metric."""

    first: Sync
    second: Sync
    ratios: Mapping[str, Ratio]
