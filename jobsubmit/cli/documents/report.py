"""The report of a job, and the comparison of two."""

from __future__ import annotations

from jobsubmit.backends.models import State
from jobsubmit.cli.documents.base import Document


class ReportPhase(Document):
    """A phase of a job, with its parts."""

    name: str
    spans: list[tuple[float, float | None]]
    """Begin and end of each part, in seconds since the epoch."""
    attempt: int
    seconds: float | None


class Mark(Document):
    """A moment of a job's life: a failure, a restart."""

    kind: str
    t: float
    text: str


class Spread(Document):
    """How a figure is distributed over ranks and steps."""

    median: float
    p95: float
    least_rank: float
    """The smallest median of a rank."""
    greatest_rank: float


class RankTimes(Document):
    """The figures of a rank."""

    rank: int
    node: int
    steps: int
    medians: dict[str, float]
    last: float
    """The share of the steps in which this rank arrived last."""


class Straggler(Document):
    """A rank, or all ranks of a node (`rank` is null), that the others wait for."""

    rank: int | None
    node: int
    share: float
    """The share of the steps in which it arrives last."""
    cost: float
    """How long the others wait for it in these steps, in seconds (median)."""


class BucketTime(Document):
    """How long the all-reduce of a gradient bucket takes (median)."""

    bucket: int
    bytes: int
    seconds: float


class Training(Document):
    """How one model was trained: times in seconds, sizes in bytes."""

    what: str
    name: str
    backend: str
    device: str
    world: int
    sampled: int
    size: int
    buckets: list[int]
    steps: int
    spreads: dict[str, Spread]
    overlap: float | None
    wire: float | None
    bandwidth: float | None
    own: float
    has_buffers: bool
    accumulates: bool
    ranks: list[RankTimes]
    straggler: Straggler | None
    bucket_medians: list[BucketTime]


class GoodputDocument(Document):
    """Which share of the wall time of a job was training steps that counted, and where the rest went."""

    share: float | None
    """From 0 to 1; null if the job took no time."""
    seconds: dict[str, float]
    """The wall time by what it was spent on; `training steps` are those that no restart did again."""
    knows_steps: bool
    """Whether the output shows steps. If not, the whole training phase counts as `training steps`."""


class RankUse(Document):
    """What a rank and the processes that it started used of their machine."""

    name: str
    """The number of the rank, or `node N` for a job without ranks."""
    node: int
    cores: float | None
    """The mean number of busy CPU cores."""
    memory: float
    """The peak, in bytes."""
    read: float
    """Bytes read from storage."""
    written: float


class NodeUse(Document):
    """The memory of a node, in bytes."""

    node: int
    cores: int
    """The CPU cores that the job may use."""
    peak: float
    limit: float
    memory: list[tuple[float, float]]
    """How it changed: seconds since the epoch, and bytes in use."""


class AcceleratorUse(Document):
    """What a GPU or NPU did; null for what its driver does not report."""

    node: int
    index: int
    percent: float | None
    """How busy it was, on average."""
    peak: float | None
    """The peak of its memory, in bytes."""
    memory: float | None
    watts: float | None
    degrees: float | None
    readings: int


class MachinesDocument(Document):
    """What a job used of its machines; empty lists if its backend keeps no figures."""

    ranks: list[RankUse]
    nodes: list[NodeUse]
    accelerators: list[AcceleratorUse]


class ReportDocument(Document):
    """Where the time of a job went."""

    id: str
    name: str
    backend: str
    state: State
    reason: str
    phases: list[ReportPhase]
    marks: list[Mark]
    syncs: list[Training]
    goodput: GoodputDocument
    machines: MachinesDocument
    notes: list[str]


class RatioDocument(Document):
    """The second job's figure divided by the first's, with the 95% interval."""

    value: float
    low: float
    high: float


class ModelComparison(Document):
    """How the training of a model compares between two jobs."""

    first: str
    second: str
    ratios: dict[str, RatioDocument]


class ReportComparison(Document):
    """Two reports: `report JOB OTHER`."""

    first: ReportDocument
    second: ReportDocument
    comparisons: list[ModelComparison]
