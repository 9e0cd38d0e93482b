"""What a submission would be: findings, plans, scripts, and the files of the code."""

from __future__ import annotations

from jobsubmit.cli.documents.base import Document
from jobsubmit.cli.documents.jobs import Revision
from jobsubmit.common.finding import Level


class FindingDocument(Document):
    """What a check found."""

    level: Level
    """error: `create` refuses the job. unknown: the check could not decide, and `text` says why."""
    check: str
    """The name of the check, for `--no-check NAME`."""
    where: str
    text: str
    hint: str


class Validation(Document):
    """The result of `validate`."""

    valid: bool
    notes: list[str]
    findings: list[FindingDocument]


class CodePlan(Document):
    """Where the code would be uploaded to."""

    uri: str
    layout: str
    digest: str | None


class File(Document):
    """A file of a code directory."""

    path: str
    mode: str
    size: int
    """In bytes."""
    sha256: str


class LeftOut(Document):
    """A path that is not uploaded, and why."""

    path: str
    reason: str


class LeftOutByRule(LeftOut):
    """A path that is not uploaded, and the rule that leaves it out."""

    rule: str
    """`FILE:LINE` of an ignore file; empty for the default rules."""


class BundlePlan(Document):
    """What would be uploaded."""

    files: list[File]
    left_out: list[LeftOut]


class Script(Document):
    """The start script of a job."""

    text: str
    sha256: str


class DryRun(Document):
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


class Rendering(Document):
    """The start script that `render` shows."""

    name: str
    mode: str
    script: str
    sha256: str
    notes: list[str]


class Value(Document):
    """A word of a command line, or the value of a variable."""

    value: str
    origin: str
    """Who sets it."""
    open: bool = False
    """True if it is known on the node only; `value` then describes it."""
    field: str = ""
    """The field of the job file that it comes from, if any."""


class RankPlan(Document):
    """A process of the training."""

    rank: int | None
    local_rank: int | None
    environment: dict[str, Value]
    argv: list[Value] | None = None
    """Given only if it differs from the `argv` that all processes share."""


class NodePlan(Document):
    """A node and its processes."""

    node: int
    environment: dict[str, Value]
    processes: list[RankPlan]


class Expansion(Document):
    """What every process gets: `render --expand`."""

    name: str
    mode: str
    argv: list[Value]
    environment: dict[str, Value]
    nodes: list[NodePlan]
    notes: list[str]


class HostCommand(Document):
    """What to run on a machine: `render --hosts`."""

    host: str
    command: str


class Comparison(Document):
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


class Place(Document):
    """Something wrong in a bundle."""

    where: str
    text: str


class BundleDocument(Document):
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


class FirstJob(Document):
    """What `init` wrote."""

    job_file: str
    code_dir: str


class Sample(Document):
    """A sample: `init --sample` lists them."""

    name: str
    about: str
