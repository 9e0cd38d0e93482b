"""The JSON documents that client, agent and ranks exchange: one definition for the types and for the checks.

    request.json    AgentRequest   client → agent   the job
    order.json      FetchOrder     client → agent   where its code is, with signed addresses
    status.json     NodeStatus     agent → client   the status of a node, or of a whole local job
    events.jsonl    Event          agent, ranks → agent, client   what happened, one event per line

VERSION increases when an older reader would misread what is written; new fields do not increase it. A client reads
what older agents wrote (tests/corpus/records), and reports UNKNOWN for a newer version.
"""

from __future__ import annotations

from .json_form import TypedDict, read_fields, read_object

TYPE_CHECKING = False  # importing typing would cost more than all the rest
if TYPE_CHECKING:
    from typing import Any

    from typing_extensions import NotRequired

    from .json_form import Time

VERSION = 1

REQUEST, ORDER, COLLECT = "request.json", "order.json", "collect.json"  # beside the agent, on a node


# ── the request ─────────────────────────────────────────────────────────────────────────────────────────────────────


class CodeInfo(TypedDict):
    """Where the code is stored, as information; a node uses the FetchOrder."""

    uri: str
    layout: str
    digest: str | None
    name: str


class ScriptInfo(TypedDict):
    """The start script, by its digest."""

    sha256: str


class Server(TypedDict):
    """The S3 server of the job's data."""

    uri: str
    endpoint_url: str | None
    region: str | None
    profile: str | None
    addressing: str | None
    ca_bundle: NotRequired[str | None]


class Mount(TypedDict):
    """An input, an output or the checkpoints of a job; `every` is in seconds, 0 for never.

    `path` is where all nodes already see it; without it the agent creates a folder in the job directory.
    """

    kind: str
    name: str
    uri: str
    variable: str
    passed_as: str | None
    every: int
    path: NotRequired[str]


class Collective(TypedDict):
    """A collective of NCCL: `number` counts those of its process group, whose ranks are `ranks`.

    `sizes` and `types` are those of the inputs. The frames have `filename`, `line` and `name`, the innermost first.
    """

    group: str
    ranks: list[int]
    name: str
    number: int
    sizes: list[list[int]]
    types: list[str]
    frames: list[dict[str, Any]]


class Standstill(TypedDict):
    """A rank of which nothing has moved since a moment of time.monotonic(); `waits` tells whether it waits in NCCL.

    `call` is the function of torch.distributed that has not returned, if no collective has been started there: NCCL
    connects the ranks first. The rest is known later: `started` maps process groups to the number of collectives that
    this rank has started, and `waits_in` is the first one that has not ended.
    """

    pid: int
    since: float
    waits: bool
    call: str
    started: dict[str, int] | None
    waits_in: Collective | None


class RestartPolicy(TypedDict):
    """The failures after which a job is restarted; `backoff` is in seconds."""

    max: int
    on: list[str]
    backoff: float


class Fault(TypedDict):
    """A fault that is triggered once: `after` and `by` are in seconds, after all ranks have started."""

    text: str
    action: str
    target: str
    number: int
    signal: int
    at_step: int | None
    after: float
    by: float


class AgentRequest(TypedDict):
    """The request of a job to the agent. `timeout` and `hang_after` are in seconds, 0 for none.

    `secrets` says where each value comes from; the values are passed separately.
    """

    version: NotRequired[int]
    job_id: str
    name: NotRequired[str]
    mode: str
    nodes: int
    nproc_per_node: int | None
    code: NotRequired[CodeInfo]
    script: ScriptInfo
    env: dict[str, str]
    secrets: dict[str, str]
    timeout: float | None
    min_nodes: int
    checkpoints_of: str
    mounts: list[Mount]
    server: NotRequired[Server]
    restarts: RestartPolicy | None
    hang_after: float
    faults: list[Fault]
    rank_exit_ends_job: bool
    python: NotRequired[str]
    tracking: NotRequired[list[str]]


class FetchScript(TypedDict):
    """The start script to fetch."""

    url: str
    sha256: str


class FetchCode(TypedDict):
    """The code to fetch: an archive, or files by path; `sizes` if only the sizes are known."""

    layout: str
    manifest: NotRequired[str]
    digest: NotRequired[str]
    archive: NotRequired[str]
    files: NotRequired[dict[str, str]]
    sizes: NotRequired[dict[str, int]]


class ManifestEntry(TypedDict):
    """A file of a manifest; `mode` is 644 or 755, `size` is in bytes."""

    path: str
    mode: str
    sha256: str
    size: int


class FetchOrder(TypedDict):
    """What a node fetches, and from where. The addresses are signed: never write them down.

    With `region` they are plain, and the node signs them with its own keys. They expire at `expires`. `certificates`
    are those of private authorities, in PEM form.
    """

    script: FetchScript
    code: FetchCode
    code_name: str
    expires: NotRequired[Time]
    region: NotRequired[str]
    certificates: NotRequired[str]


class Collect(TypedDict):
    """Where a pod stores its lines: by a signed form (`fields`), or with the node's own keys (`region`)."""

    url: str
    prefix: str
    fields: NotRequired[dict[str, str]]
    region: NotRequired[str]
    certificates: NotRequired[str]


class DataAccess(TypedDict):
    """How a node reads and writes the buckets of a job's data. The keys are secrets: never write them down.

    `buckets` has the address below which the objects of each bucket are; `certificates` are those of private
    authorities, in PEM form.
    """

    buckets: dict[str, str]
    region: str
    key: str
    secret: str
    token: str
    certificates: str


class Place(TypedDict):
    """Which node of the job this is, and how the nodes find each other.

    `job_folder` and `script` are set if the platform itself delivers the code and the start script.
    """

    node: int
    addresses: list[str]
    port: int
    attempt: int
    job_folder: NotRequired[str]
    script: NotRequired[str]


class Assignment(TypedDict):
    """Everything that a supervisor receives: a whole local job, or with `place` one node of a job.

    `data_staging` is the command that copies inputs and outputs, `umask` is for the user's processes. With `data` the
    node copies them itself, and keeps inputs in the folder `cache`.
    """

    request: AgentRequest
    order: FetchOrder | None
    secrets: dict[str, str]
    client_folder: str
    python_folder: str
    data_staging: NotRequired[list[str]]
    shared_dir: NotRequired[str]
    umask: NotRequired[int]
    place: NotRequired[Place]
    data: NotRequired[DataAccess | None]
    cache: NotRequired[str]


class HostAssignment(TypedDict):
    """What the agent of one host receives from the client: the job, and its part in it.

    The hosts follow each other as in the job file: `hosts[0]` decides, and `index` is this one. `key` proves messages
    between them. `decider` is the address and the port at which host 0 listens; host 0 itself has none. `submitted` is
    in seconds since the epoch.
    """

    job_id: str
    index: int
    hosts: list[str]
    submitted: Time
    key: str
    interface: str | None
    share_gpus: bool
    request: AgentRequest
    order: FetchOrder
    secrets: dict[str, str]
    data: DataAccess | None
    decider: NotRequired[list[Any]]


class HostMessage(TypedDict, total=False):
    """A message between the agents of two hosts; `what` says which of the other fields it has.

    From host 0: take, release, begin (attempt, node, addresses, port, timeout, mark), stop (grace), cancel (grace), end
    (status). To host 0: hello (index, address), taken, busy (text), looked (is_seen: the mark), ended (attempt, node,
    status). Both: beat.
    """

    what: str
    index: int
    address: str
    text: str
    attempt: int
    node: int
    addresses: list[str]
    port: int
    timeout: float | None
    grace: float | None
    mark: str
    is_seen: bool
    status: NodeStatus


# ── the status ──────────────────────────────────────────────────────────────────────────────────────────────────────


class StruckFault(TypedDict):
    """A fault, and when it was triggered."""

    text: str
    t: Time


class Evidence(TypedDict, total=False):
    """What is used to compare failures of several nodes: see recovery/first_failure.py."""

    was_told: bool | None
    is_victim: bool | None
    is_leader: bool | None
    t: Time | None
    kinds: list[str]


class Failure(TypedDict):
    """The process that failed first. `last_lines` are those of `quoted`; `words` are more of them, to diagnose it.

    `victims` are the ranks that failed as a result, `alike` those that failed by themselves in the same way. `fault` is
    the fault that the user asked for, if it sent the signal.
    """

    node: int
    rank: int | None
    exit_code: int | None
    signal: int | None
    message: str
    quoted: str
    last_lines: list[str]
    words: NotRequired[list[str]]
    victims: NotRequired[list[int]]
    alike: NotRequired[list[int]]
    fault: NotRequired[str]
    evidence: NotRequired[Evidence]


class Restart(TypedDict):
    """A restart of the job, and what it cost."""

    attempt: int
    reason: str
    message: NotRequired[str]
    fault: StruckFault | None
    failed_at: Time
    detected_at: Time
    back_at: Time | None
    last_step: NotRequired[int | None]
    steps_lost: int | None


class Resize(TypedDict):
    """A node that an elastic job lost or gained, and the number of nodes with which it continued."""

    t: Time
    what: str
    node: int | None
    fault: StruckFault | None
    before: NotRequired[int]
    nodes: int | None
    back_at: Time | None


class Watcher(TypedDict):
    """The machine that runs the supervisor: `boot` is its running kernel, `dir` where the job's lock is held."""

    host: str
    boot: str
    pid_namespace: str
    dir: str


class _StatusFields(TypedDict, total=False):
    """The fields of a NodeStatus that may not exist yet."""

    version: int
    watcher: Watcher
    failure: Failure | None
    restarts: list[Restart]
    resizes: list[Resize]
    started: Time
    ended: Time
    attempt: int
    last_step: int | None
    pid: int
    port: int
    checkpoint_dir: str
    notes: list[str]
    addresses: list[str]


class NodeStatus(_StatusFields):
    """The status of a node, or of a whole local job; `reason` is one upper-case word, `message` a sentence."""

    state: str
    reason: str
    message: str


class StatusChange(_StatusFields, total=False):
    """The fields of a NodeStatus that change."""

    state: str
    reason: str
    message: str


def read_status_text(data: bytes) -> NodeStatus:
    """Return the status in a text; UNKNOWN if a newer version wrote it. Raises ValueError if it is damaged."""
    if read_fields(data, {"version?": int}).get("version", 0) > VERSION:
        message = "a newer version of jobsubmit wrote the status: use that version"
        return {"state": "UNKNOWN", "reason": "NEWER", "message": message}
    return read_object(data, NodeStatus)


# ── events ──────────────────────────────────────────────────────────────────────────────────────────────────────────


class EventFields(TypedDict, total=False):
    """The fields of events; `code` is an exit code, or a signal as a negative number."""

    node: int
    rank: int
    pid: int
    code: int
    step: str
    edge: str
    attempt: int
    state: str
    reason: str
    message: str
    text: str
    script: str
    file: str
    is_assumed: bool
    is_victim: bool
    has_exchanged: bool | None
    world: int
    kinds: list[str]
    error_file: str | None
    stderr_size: int


class Event(EventFields):
    """One line of events.jsonl: what happened, and when."""

    t: Time
    event: str


_NEEDED = {
    "step": ("step", "edge", "attempt"),
    "state": ("state",),
    "node_start": ("node", "pid"),
    "node_exit": ("node", "code"),
    "rank_start": ("node", "rank", "pid"),
    "rank_exception": ("pid",),
    "rank_asked_exit": ("pid", "code"),
    "rank_joined": ("pid",),
    "rank_end": ("pid",),
    "child_exit": ("pid", "code"),
}


def read_event(line: bytes) -> Event | None:
    """Return the event in a line, or None if it is incomplete, damaged, or lacks a field of its kind."""
    try:
        found = read_object(line, Event)
    except ValueError:
        return None
    return found if all(name in found for name in _NEEDED.get(found["event"], ())) else None
