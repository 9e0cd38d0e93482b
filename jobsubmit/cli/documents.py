"""What each command prints with `-o json`, as models: their JSON Schemas are the promise to programs.

A later version may add fields; it does not remove or rename one without an entry in the changelog.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, RootModel, TypeAdapter
from pydantic.json_schema import GenerateJsonSchema

from jobsubmit.backends.models import State, Stream
from jobsubmit.common.finding import Level


class _Document(BaseModel):
    model_config = ConfigDict(use_attribute_docstrings=True, extra="forbid", frozen=True)


class _Open(_Document):
    """A document whose further fields depend on the case."""

    model_config = ConfigDict(extra="allow")


class ErrorDocument(_Document):
    """What a command prints instead of its document when it fails; the exit code of the process is `code`."""

    code: int
    """The exit code: `jobsubmit help exit-codes` lists them."""
    message: str
    """What is wrong, in English. One line for each problem."""
    hint: str
    """What to do next; empty if nothing is known to help."""
    where: str
    """Where it is wrong: `FILE:LINE`, an option or a path; empty if that is in the message."""


class Revision(_Document):
    """The git revision of a code directory."""

    commit: str
    branch: str
    uncommitted: list[str]
    """Files that differ from the commit, relative to the code directory."""
    diff_sha256: str
    """The SHA-256 of the differences; empty if there are none."""


class CodeDocument(_Document):
    """The code of a job in its store."""

    uri: str
    digest: str | None
    """The digest of all files; null if the code was in the bucket already."""
    git: Revision | None


class PhaseDocument(_Document):
    """A phase of a job's life. Times are in seconds since the epoch."""

    name: str
    start: float
    end: float | None
    """Null while the phase lasts."""
    attempt: int
    """0 before the first restart."""


class RecoveryDocument(_Document):
    """A restart, or a node that was lost or came back. Times are in seconds since the epoch."""

    what: str
    fault: str
    """The fault that `--fault` caused; empty if it was not one."""
    struck_at: float
    detected_at: float
    back_at: float | None
    """When training went on; null if it has not."""
    steps_lost: int | None
    """How many training steps were done again; null if the job prints no steps."""


class FailureDocument(_Document):
    """The process that failed first."""

    node: int
    rank: int | None
    """Null if it is not known which rank it was."""
    exit_code: int | None
    signal: int | None
    message: str
    quoted: str
    """Whose lines `last_lines` are: `rank 3` or `node 1`."""
    last_lines: list[str]
    meaning: str
    """What the last lines or the signal mean, where that is known."""
    hint: str
    victims: list[int]
    """The ranks that failed because of it."""
    alike: list[int]
    """The ranks that failed by themselves, with the same kind of exception."""


class JobDocument(_Document):
    """A job: what was submitted, its state, and how it failed."""

    id: str
    handle: str
    """`BACKEND://…`: any machine with the same settings can watch the job by it. Empty if nothing was submitted."""
    name: str
    mode: str
    backend: str
    nodes: int
    created: str
    """When it was submitted: ISO 8601 in UTC."""
    state: State
    reason: str
    """One upper-case word for why the job is in this state, for example HANG; empty if there is none."""
    message: str
    code: CodeDocument
    script_sha256: str
    steps: list[PhaseDocument]
    """The phases of the job, in their order."""
    recoveries: list[RecoveryDocument]
    failure: FailureDocument | None
    """Null unless a process failed."""
    details: dict[str, Any]
    """What only this backend knows of the job."""
    warnings: list[str]


class TrainingProgress(_Document):
    """How far a training is, by its output; null for what the output does not show."""

    step: int | None
    steps: int | None
    """The total beside the step: of the whole training, or of one epoch if the steps start again in each."""
    epoch: float | None
    epochs: int | None
    loss: float | Literal["nan", "inf", "-inf"] | None
    """The newest value of the loss."""
    loss_name: str
    """The name of the loss as printed, in lower case; empty if there is none."""
    done: float | None
    """The share of the training that is done, from 0 to 1."""
    ends: str | None
    """When the training will end at its pace so far: ISO 8601 in UTC."""


class StatusDocument(JobDocument):
    """A job, and how far its training is."""

    training: TrainingProgress | None
    """Null if the output shows no training."""


class Process(_Document):
    """Where a rank runs."""

    node: int
    pid: int


class Description(StatusDocument):
    """A job with all that its directory holds."""

    directory: str
    files: list[str]
    ranks: dict[str, Process]
    """The processes by their rank."""
    rerun_of: str | None


class Summary(_Document):
    """A job in a list."""

    id: str
    name: str
    mode: str
    backend: str
    nodes: int
    created: str
    """When it was submitted: ISO 8601 in UTC."""
    handle: str
    state: State
    reason: str
    message: str
    ended: str | None
    """When it ended: ISO 8601 in UTC; null while it runs, or if that is unknown."""
    training: TrainingProgress | None
    """Null if the output shows no training, or if there are many jobs and this one was not read yet."""


class Event(_Open):
    """Something that happened to a job, with fields of its own."""

    t: str
    """When: ISO 8601 in UTC, to the millisecond."""
    event: str


class Line(_Document):
    """A line of output."""

    node: int
    rank: int | None
    """Null for what a node prints before and around its ranks."""
    stream: Stream
    time: str
    """When it was written: ISO 8601 in UTC, to the millisecond."""
    text: str


class MetricPoint(_Document):
    """A value that a rank printed."""

    time: str
    """When it was printed: ISO 8601 in UTC, to the millisecond."""
    epoch: float | None
    """The epoch on the same line; null if the line shows none."""
    step: int | None
    """The step on the same line: of the whole training, or within the epoch if the program counts that way."""
    value: float | Literal["nan", "inf", "-inf"]


class MetricSeries(_Document):
    """The values of one name that one rank printed."""

    node: int
    rank: int | None
    """Null for what a node prints before and around its ranks."""
    name: str
    """The name as printed, in lower case; `val_` or the like before it if the line is about validation."""
    count: int
    """How many values were printed."""
    every: int
    """1, or more if the series is so long that only each such value is listed."""
    points: list[MetricPoint]


class MetricProgress(_Document):
    """How far a rank is, by the counters that it prints."""

    node: int
    rank: int | None
    time: str
    """When the counters were printed last."""
    step: int | None
    steps: int | None
    """The total beside the step: of the training, or of one epoch if the counter starts again in each."""
    epoch: float | None
    epochs: int | None


class MetricsDocument(_Document):
    """What a training prints about itself."""

    id: str
    progress: list[MetricProgress]
    series: list[MetricSeries]
    ends: str | None
    """When the training will end at its pace so far: ISO 8601 in UTC; null if that is unknown, or the job has ended."""
    notes: list[str]
    """What is wrong: a loss that is not a number or does not move, steps that went back."""


class FindingDocument(_Document):
    """What a check found."""

    level: Level
    """error: `create` refuses the job. unknown: the check could not decide, and `text` says why."""
    check: str
    """The name of the check, for `--no-check NAME`."""
    where: str
    text: str
    hint: str


class Validation(_Document):
    """The result of `validate`."""

    valid: bool
    notes: list[str]
    findings: list[FindingDocument]


class CodePlan(_Document):
    """Where the code would be uploaded to."""

    uri: str
    layout: str
    digest: str | None


class File(_Document):
    """A file of a code directory."""

    path: str
    mode: str
    size: int
    """In bytes."""
    sha256: str


class LeftOut(_Document):
    """A path that is not uploaded, and why."""

    path: str
    reason: str


class LeftOutByRule(LeftOut):
    """A path that is not uploaded, and the rule that leaves it out."""

    rule: str
    """`FILE:LINE` of an ignore file; empty for the default rules."""


class BundlePlan(_Document):
    """What would be uploaded."""

    files: list[File]
    left_out: list[LeftOut]


class Script(_Document):
    """The start script of a job."""

    text: str
    sha256: str


class DryRun(_Document):
    """What `create --dry-run` would submit."""

    digest: str
    """The digest of everything that would be submitted: `create --expect DIGEST` submits nothing else."""
    job_id: str
    code: CodePlan
    bundle: BundlePlan
    git: Revision | None
    script: Script
    request: dict[str, str]
    """What the platform would receive, as named texts."""
    notes: list[str]
    findings: list[FindingDocument]


class Rendering(_Document):
    """The start script that `render` shows."""

    name: str
    mode: str
    script: str
    sha256: str
    notes: list[str]


class Value(_Document):
    """A word of a command line, or the value of a variable."""

    value: str
    origin: str
    """Who sets it."""
    open: bool = False
    """True if it is known on the node only; `value` then describes it."""
    field: str = ""
    """The field of the job file that it comes from, if any."""


class RankPlan(_Document):
    """A process of the training."""

    rank: int | None
    local_rank: int | None
    environment: dict[str, Value]
    argv: list[Value] | None = None
    """Given only if it differs from the `argv` that all processes share."""


class NodePlan(_Document):
    """A node and its processes."""

    node: int
    environment: dict[str, Value]
    processes: list[RankPlan]


class Expansion(_Document):
    """What every process gets: `render --expand`."""

    name: str
    mode: str
    argv: list[Value]
    environment: dict[str, Value]
    nodes: list[NodePlan]
    notes: list[str]


class HostCommand(_Document):
    """What to run on a machine: `render --hosts`."""

    host: str
    command: str


class Comparison(_Document):
    """What would change against an earlier job: `render --diff JOB`."""

    job: str
    same: bool
    documents: dict[str, str]
    """Unified diffs of the start script and of what the platform receives."""
    added: list[str]
    removed: list[str]
    changed: list[str]
    unknown: str
    """Why the files could not be compared; empty if they were."""


class Place(_Document):
    """Something wrong in a bundle."""

    where: str
    text: str


class BundleDocument(_Document):
    """The files that would be uploaded."""

    root: str
    digest: str
    git: Revision | None
    files: int
    bytes: int
    largest: list[File]
    """The largest files; with `--list` all."""
    left_out: list[LeftOutByRule]
    empty_directories: list[str]
    secrets: list[Place]
    limits: list[Place]


class Test(_Document):
    """What `doctor` tested."""

    subject: str
    verdict: Literal["ok", "warn", "fail"]
    text: str
    next_step: str


class Upload(_Document):
    """What an upload did."""

    uri: str
    digest: str
    files: int
    bytes: int
    skipped: int
    """Files that were in the store already."""
    deleted: list[str]
    left_out: list[LeftOutByRule]
    empty_directories: list[str]
    seconds: float
    requests: int
    """Requests sent to the store."""


class UploadPlan(_Document):
    """What `upload --dry-run` would do."""

    uri: str
    send: list[File]
    delete: list[str]
    left_out: list[LeftOutByRule]


class Download(_Document):
    """What a download did."""

    uri: str
    directory: str
    digest: str
    """Empty if the directory in the store has no manifest."""
    files: int
    bytes: int
    skipped: int
    seconds: float
    requests: int


class FirstJob(_Document):
    """What `init` wrote."""

    job_file: str
    code_dir: str


class Sample(_Document):
    """A sample: `init --sample` lists them."""

    name: str
    about: str


class ReportPhase(_Document):
    """A phase of a job, with its parts."""

    name: str
    spans: list[tuple[float, float | None]]
    """Begin and end of each part, in seconds since the epoch."""
    attempt: int
    seconds: float | None


class Mark(_Document):
    """A moment of a job's life: a failure, a restart."""

    kind: str
    t: float
    text: str


class Spread(_Document):
    """How a figure is distributed over ranks and steps."""

    median: float
    p95: float
    least_rank: float
    """The smallest median of a rank."""
    greatest_rank: float


class RankTimes(_Document):
    """The figures of a rank."""

    rank: int
    node: int
    steps: int
    medians: dict[str, float]
    last: float
    """The share of the steps in which this rank arrived last."""


class Straggler(_Document):
    """A rank, or all ranks of a node (`rank` is null), that the others wait for."""

    rank: int | None
    node: int
    share: float
    """The share of the steps in which it arrives last."""
    cost: float
    """How long the others wait for it in these steps, in seconds (median)."""


class BucketTime(_Document):
    """How long the all-reduce of a gradient bucket takes (median)."""

    bucket: int
    bytes: int
    seconds: float


class Training(_Document):
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


class GoodputDocument(_Document):
    """Which share of the wall time of a job was training steps that counted, and where the rest went."""

    share: float | None
    """From 0 to 1; null if the job took no time."""
    seconds: dict[str, float]
    """The wall time by what it was spent on; `training steps` are those that no restart did again."""
    knows_steps: bool
    """Whether the output shows steps. If not, the whole training phase counts as `training steps`."""


class RankUse(_Document):
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


class NodeUse(_Document):
    """The memory of a node, in bytes."""

    node: int
    cores: int
    """The CPU cores that the job may use."""
    peak: float
    limit: float
    memory: list[tuple[float, float]]
    """How it changed: seconds since the epoch, and bytes in use."""


class AcceleratorUse(_Document):
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


class MachinesDocument(_Document):
    """What a job used of its machines; empty lists if its backend keeps no figures."""

    ranks: list[RankUse]
    nodes: list[NodeUse]
    accelerators: list[AcceleratorUse]


class ReportDocument(_Document):
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


class RatioDocument(_Document):
    """The second job's figure divided by the first's, with the 95% interval."""

    value: float
    low: float
    high: float


class ModelComparison(_Document):
    """How the training of a model compares between two jobs."""

    first: str
    second: str
    ratios: dict[str, RatioDocument]


class ReportComparison(_Document):
    """Two reports: `report JOB OTHER`."""

    first: ReportDocument
    second: ReportDocument
    comparisons: list[ModelComparison]


class HelpTopic(_Document):
    """A topic that `help` explains."""

    topic: str
    about: str


class HelpText(_Document):
    """The explanation of a topic."""

    topic: str
    text: str


class PageAddress(_Document):
    """Where the live page is served."""

    url: str
    """The address, with the token that whoever opens it must know."""
    pid: int
    """The process that serves it until it gets SIGINT or SIGTERM."""


class AnyJson(RootModel[dict[str, Any]]):
    """A JSON object whose form is that of another document: a job file, or a JSON Schema."""


class PlatformObject(_Open):
    """An object as the platform's API returns it."""


# A list of types where a command prints different documents for different options.
DOCUMENTS: dict[str, Any] = {
    "create": JobDocument | DryRun,
    "run": JobDocument | DryRun,
    "rerun": JobDocument | DryRun,
    "status": StatusDocument,
    "describe": Description,
    "wait": JobDocument,
    "cancel": JobDocument,
    "list": list[Summary],
    "delete": list[str],
    "prune": list[str],
    "events": Event,
    "logs": Line,
    "metrics": MetricsDocument,
    "ui": PageAddress,
    "report": ReportDocument | ReportComparison,
    "validate": Validation,
    "render": Rendering | Expansion | list[HostCommand] | Comparison | dict[str, str],
    "bundle": BundleDocument,
    "doctor": list[Test],
    "upload": Upload | UploadPlan,
    "download": Download,
    "flavors": list[PlatformObject],
    "engines": list[PlatformObject],
    "import": AnyJson,
    "init": FirstJob | list[Sample],
    "help": HelpText | list[HelpTopic],
    "docs": HelpText,
    "schema": AnyJson,
    "error": ErrorDocument,
}
A_DOCUMENT_PER_LINE = ("events", "logs")


class _WithoutTitles(GenerateJsonSchema):
    def field_title_should_be_set(self, schema: Any) -> bool:
        """Return no: a title would only repeat the name of its field."""
        return False


def document_schema(name: str) -> dict[str, Any]:
    """Return the JSON Schema of what a command prints with `-o json` (`error`: of what each prints when it fails)."""
    schema = TypeAdapter(DOCUMENTS[name]).json_schema(mode="serialization", schema_generator=_WithoutTitles)
    for model in (schema, *schema.get("$defs", {}).values()):
        if model.get("additionalProperties") is False:  # a later version may add a field
            del model["additionalProperties"]
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}
