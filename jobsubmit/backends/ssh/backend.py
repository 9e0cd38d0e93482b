"""The SSH backend: an agent on each host runs the job, with or without this machine; it is asked over SSH."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from jobsubmit.agent.events import EventReader
from jobsubmit.agent.hosts import code_cache
from jobsubmit.agent.job_directory import USUAL_ROOT
from jobsubmit.backends.models import EVERYTHING, JobHandle, JobStatus, LogLine, LogQuery, State
from jobsubmit.backends.protocol import Delivery, Request
from jobsubmit.backends.shared.agent_request import build_node_request
from jobsubmit.backends.shared.agent_status import parse_status, parse_steps
from jobsubmit.backends.shared.limits import word_limits
from jobsubmit.backends.shared.node_results import first_node_events
from jobsubmit.backends.shared.polling import tolerate_errors
from jobsubmit.backends.ssh import logs, preflight
from jobsubmit.backends.ssh.connection import Answer, ask, ask_all
from jobsubmit.backends.ssh.host_name import is_host
from jobsubmit.backends.ssh.mirror import Mirror
from jobsubmit.common.finding import Finding
from jobsubmit.common.store_address import REMOTE_SCHEMES, StoreAddress
from jobsubmit.errors import BackendError, JobNotFoundError, list_problems

if TYPE_CHECKING:
    from jobsubmit.agent.protocol import AgentRequest, DataAccess, FetchOrder, HostAssignment, NodeStatus
    from jobsubmit.backends.ssh.spec import SshBackendSpec
    from jobsubmit.bundle.model import Bundle
    from jobsubmit.config import Settings
    from jobsubmit.plan.launch_plan import LaunchPlan
    from jobsubmit.plan.script import Script
    from jobsubmit.spec.backend import BackendSpec
    from jobsubmit.spec.job_spec import Layout
    from jobsubmit.transfer.code_ref import CodeRef

NAME = "ssh.json"  # the document of a request
_LOOK_SECONDS, _LOOK_AT_OTHERS_SECONDS = 8.0, 4.0
_CLEAN_UP_SECONDS = 10.0
_SEND_SECONDS = 24 * 3600.0  # a connection that is dead ends earlier


class _Job(NamedTuple):
    """A job and where it is."""

    id: str
    hosts: tuple[str, ...]
    root: str
    mirror: Mirror

    def place(self, index: int) -> dict[str, Any]:
        return {"job_id": self.id, "index": index}


class SshBackend:
    """Run each job with one agent per host; the agents watch each other, and the one of host 0 decides."""

    layout: Layout = "archive"
    ignored_because = "which uses the software of its hosts"

    def __init__(self, settings: Settings) -> None:
        self.settings = settings

    def request(self, plan: LaunchPlan, script: Script, code: CodeRef, job_id: str) -> Request:
        """Return hosts and job as one JSON document (see Backend)."""
        spec = _fields(plan.backend)
        document = {
            "hosts": list(spec.hosts),
            "workdir": spec.workdir,
            "interface": spec.interface,
            "share_gpus": spec.share_gpus,
            "request": build_node_request(plan, script, code, job_id, copies_data=True),
        }
        return Request(job_id, {NAME: json.dumps(document, ensure_ascii=False, indent=2) + "\n"}, plan.backend)

    def limits(self, plan: LaunchPlan, request: Request, code: CodeRef, bundle: Bundle | None) -> Iterator[Finding]:
        """Yield what cannot run on these hosts (see Backend)."""
        spec = _fields(plan.backend)
        if plan.nodes != spec.nodes:
            text = f"is {plan.nodes}, but backend.hosts has {spec.nodes}, not counting spares"
            hint = f"set it to {spec.nodes}, or change backend.hosts or backend.spares"
            yield Finding("error", "limit", "resources.nodes", text, hint)
        if code.uri.startswith("file:") and code.layout != "archive":
            text = "without a bucket the code goes to the hosts as one archive"
            yield Finding("error", "limit", "layout", text, "remove `layout`, or set `store` to a bucket")
        yield from word_limits(plan)

    def preflight(self, plan: LaunchPlan, request: Request) -> None:
        """Ask all hosts whether they are ready, and try the connections between them (see Backend)."""
        spec = _fields(plan.backend)
        problems = preflight.examine(spec, request.job_id, dict(plan.env), needs_torch=plan.has_launcher)
        if problems:
            raise BackendError(*list_problems((problem.text, problem.hint) for problem in problems))

    # ── submission ──────────────────────────────────────────────────────────────────────────────────────────────────

    def submit(self, request: Request, delivery: Delivery) -> JobHandle:
        """Start the agent of host 0, and then those of the others, which connect to it (see Backend)."""
        document = json.loads(request.documents[NAME])
        hosts = tuple(document["hosts"])
        job = _Job(request.job_id, hosts, document["workdir"], self._mirror(request.job_id))
        order = _deliver(job, delivery)
        job.mirror.remember(hosts, job.root)
        assignment: HostAssignment = {
            "job_id": job.id,
            "index": 0,
            "hosts": list(hosts),
            "submitted": time.time(),
            "key": os.urandom(32).hex(),
            "interface": document["interface"],
            "share_gpus": document["share_gpus"],
            "request": document["request"],
            "order": order,
            "secrets": dict(delivery.secrets),
            "data": _data_access(document["request"]),
        }
        started: list[int] = []
        try:
            first = self._start(job, assignment)
            started.append(0)
            assignment["decider"] = [first["address"], first["watch"]]
            self._start_others(job, assignment, started)
        except BaseException as error:
            _clean_up(job, started)
            if not (isinstance(error, BackendError) and error.is_unsure):
                job.mirror.remove()
            raise
        return JobHandle("ssh", f"{','.join(hosts)}/{job.id}")

    def _start(self, job: _Job, assignment: HostAssignment) -> dict[str, Any]:
        host = job.hosts[assignment["index"]]
        try:
            return ask(host, job.root, "start", {}, json.dumps(assignment).encode()).document
        except BackendError as error:
            raise BackendError(error.message, error.hint, is_unsure=error.may_pass) from error

    def _start_others(self, job: _Job, assignment: HostAssignment, started: list[int]) -> None:
        others = job.hosts[1:]
        answers = ask_all(others, lambda host: self._start(job, {**assignment, "index": job.hosts.index(host)}))
        for host, answer in answers.items():
            if not isinstance(answer, BackendError) or answer.is_unsure:
                started.append(job.hosts.index(host))
        problem = next((answer for answer in answers.values() if isinstance(answer, BackendError)), None)
        if problem is not None:
            raise BackendError(problem.message, problem.hint)

    def find(self, job_id: str) -> JobHandle | None:
        """Return the handle of a job that this machine has started (see Backend)."""
        known = self._mirror(job_id).recall()
        if known is None:
            return None
        hosts, root = known
        question = {"job_id": job_id, "index": 0, "known": {}, "measured": False}
        if not ask(hosts[0], root, "look", question).document["is_known"]:
            return None
        return JobHandle("ssh", f"{','.join(hosts)}/{job_id}")

    # ── watching ────────────────────────────────────────────────────────────────────────────────────────────────────

    def status(self, handle: JobHandle) -> JobStatus:
        """Return what host 0 says, or what the other hosts have concluded without it (see Backend)."""
        job = self._job(handle)
        concluded = job.mirror.conclusion
        if concluded is not None:
            return _complete(job, concluded)
        answers = _refresh(job)
        own = job.mirror.status_of(0)
        if own is not None and _is_over(own):
            seen = job.mirror.without_host_0
            if seen is not None and own["reason"] == seen["reason"] == "NODE_FAILED":
                own = {**own, "message": seen["message"]}  # it did not answer us either: it was the one cut off
            job.mirror.conclude(own)
            return _complete(job, own)
        return self._unfinished(job, answers, own or _NOT_YET)

    def _unfinished(self, job: _Job, answers: list[Answer | BackendError], known: NodeStatus) -> JobStatus:
        """Return the status of a job of which host 0 does not say how it ended; `known` is what it said last.

        What another host has concluded counts only if no host runs the job: a host that was cut off has given up
        although the others may continue. It is kept only if host 0 itself says that its agent is gone.
        """
        first = answers[0]
        alive = [not isinstance(answer, BackendError) and answer.document.get("is_alive") is True for answer in answers]
        if not isinstance(first, BackendError) and alive[0]:
            return _complete(job, known, is_cancelled=first.document["is_cancelled"])
        if any(alive):
            text = f"{job.hosts[0]} does not answer, and other hosts still run the job"
            return replace(_complete(job, known), message=text)
        others = (job.mirror.status_of(index) for index in range(1, len(job.hosts)))
        concluded = next((status for status in others if status and _is_over(status)), None)
        if concluded is not None:
            if isinstance(first, BackendError):
                job.mirror.remember_without_host_0(concluded)
            else:
                job.mirror.conclude(concluded)
            return _complete(job, concluded)
        if isinstance(first, BackendError) and all(isinstance(answer, BackendError) for answer in answers):
            raise first
        if not any(not isinstance(answer, BackendError) and answer.document["is_known"] for answer in answers):
            raise JobNotFoundError(
                f"ssh://{','.join(job.hosts)}/{job.id}: its hosts have no such job",
                "run `jobsubmit list` to see all jobs of this machine",
            )
        text = first.message if isinstance(first, BackendError) else f"the agent on {job.hosts[0]} died"
        return _complete(job, {**known, "state": "LOST", "reason": "AGENT_DIED", "message": text})

    def logs(self, handle: JobHandle, query: LogQuery = EVERYTHING, *, follow: bool = False) -> Iterator[LogLine]:
        """Yield the lines that the hosts send (see Backend)."""
        job = self._job(handle)
        nodes = _nodes_of_ranks(job)
        sources = [logs.HostLines(host, index, job.root, job.id, query) for index, host in enumerate(job.hosts)]
        may_change = follow and self.status(handle).state.may_change
        if may_change:
            look = tolerate_errors(lambda: self.status(handle).state.may_change)
            lines = logs.follow(sources, look)
        else:
            lines = logs.read(sources, query)
        for line in lines:
            if line.rank is not None and line.node in nodes:
                line = replace(line, node=nodes[line.node])  # noqa: PLW2901 - a host knows its index only
            yield line

    def events(self, handle: JobHandle) -> Iterator[Mapping[str, Any]]:
        """Yield the events of the agents, in order of time (see Backend)."""
        job = self._job(handle)
        _refresh(job)
        own = EventReader(str(job.mirror.folder / "hosts" / "0")).new()
        return iter(sorted([*own, *job.mirror.joined(len(job.hosts)).events()], key=lambda event: event["t"]))

    def timings(self, handle: JobHandle) -> Iterator[bytes]:
        """Yield the files of the ranks, as far as hosts answer (see Backend)."""
        job = self._job(handle)
        _refresh(job, measured=True)
        return job.mirror.joined(len(job.hosts)).timings()

    def stacks(self, handle: JobHandle) -> Mapping[int, bytes]:
        """Return what the ranks wrote when the job hung, as far as hosts answer (see Backend)."""
        job = self._job(handle)
        _refresh(job, measured=True)
        return job.mirror.joined(len(job.hosts)).stacks()

    def cancel(self, handle: JobHandle, grace: float | None = None) -> None:
        """Ask host 0 to end the job, or all other hosts if it does not answer (see Backend)."""
        job = self._job(handle)
        question = {**job.place(0), "grace": grace}
        try:
            answer = ask(job.hosts[0], job.root, "cancel", question).document
        except BackendError as error:
            answers = _ask_each(job, "cancel", {"grace": grace}, range(1, len(job.hosts)))
            if all(isinstance(other, BackendError) for other in answers):
                raise
            if error.may_pass:
                return
            raise
        if not answer["is_known"]:
            raise JobNotFoundError(f"{handle}: {job.hosts[0]} has no such job", "run `jobsubmit list` to see all jobs")

    def delete(self, handle: JobHandle) -> None:
        """Remove the job's folder on each host (see Backend)."""
        job = self._job(handle)
        for answer in _ask_each(job, "delete", {}, range(len(job.hosts))):
            if isinstance(answer, BackendError):
                raise answer
            if answer.document["is_alive"]:
                raise BackendError(f"{job.id} is still running", f"end it first: jobsubmit cancel {job.id}")
        job.mirror.remove()

    def _mirror(self, job_id: str) -> Mirror:
        return Mirror(self.settings.state_dir / "ssh" / job_id)

    def _job(self, handle: JobHandle) -> _Job:
        names, _, job_id = handle.path.rpartition("/")
        hosts = tuple(names.split(","))
        if not job_id or job_id in (".", "..") or not all(map(is_host, hosts)):
            raise JobNotFoundError(
                f"{handle} is not a valid handle: expected ssh://HOST,HOST/JOB-ID", "run `jobsubmit list`"
            )
        mirror = self._mirror(job_id)
        known = mirror.recall()
        root = known[1] if known and known[0] == hosts else USUAL_ROOT
        return _Job(job_id, hosts, root, mirror)


def _fields(backend: BackendSpec) -> SshBackendSpec:
    from jobsubmit.backends.ssh.spec import SshBackendSpec  # only when a job is submitted

    return SshBackendSpec.of(backend)


_NOT_YET: NodeStatus = {"state": "PENDING", "reason": "", "message": ""}


def _is_over(status: NodeStatus) -> bool:
    return status["state"] in State.__members__ and not State(status["state"]).may_change


def _data_access(request: AgentRequest) -> DataAccess | None:
    """Return how the hosts reach the buckets of the job's data; None if it has none there. Raises StoreError."""
    remote = [mount["uri"] for mount in request["mounts"] if mount["uri"].startswith(REMOTE_SCHEMES)]
    if not remote:
        return None
    from jobsubmit.stores.bucket_access import find_bucket_access  # most jobs do not need its client library

    return find_bucket_access(StoreAddress(**request["server"]), remote)  # type: ignore[arg-type] # as the job file has


def _deliver(job: _Job, delivery: Delivery) -> FetchOrder:
    """Return the order for the hosts. What is in files of this machine goes to each host that lacks it."""
    files = code_cache.local_files(delivery.order)

    def send(host: str) -> None:
        missing = ask(host, job.root, "missing", {"names": list(files)}).document["missing"]
        if missing:
            paths = [Path(files[name]) for name in missing]
            entries = [[name, path.stat().st_size] for name, path in zip(missing, paths, strict=True)]
            ask(host, job.root, "put", {"entries": entries}, paths, seconds=_SEND_SECONDS)

    for answer in ask_all(job.hosts, send).values() if files else ():
        if isinstance(answer, BackendError):
            raise answer
    return code_cache.as_cached(delivery.order)


def _clean_up(job: _Job, started: list[int]) -> None:
    """End what was started of a job that cannot be submitted, and remove it from its hosts."""
    _ask_each(job, "cancel", {"grace": 0}, started)
    deadline = time.monotonic() + _CLEAN_UP_SECONDS
    while started and time.monotonic() < deadline:
        answers = _ask_each(job, "delete", {}, started)
        started = [
            index
            for index, answer in zip(started, answers, strict=True)
            if not isinstance(answer, BackendError) and answer.document["is_alive"]
        ]
        time.sleep(0.2)


def _ask_each(
    job: _Job, command: str, question: Mapping[str, Any], indexes: range | list[int]
) -> list[Answer | BackendError]:
    """Ask some hosts of a job, at the same time."""
    hosts = [job.hosts[index] for index in indexes]
    found = ask_all(hosts, lambda host: ask(host, job.root, command, {**job.place(job.hosts.index(host)), **question}))
    return [found[host] for host in hosts]


def _refresh(job: _Job, *, measured: bool = False) -> list[Answer | BackendError]:
    """Bring the copies of a job's files up to date; return what each host answered."""

    def look(host: str) -> Answer:
        index = job.hosts.index(host)
        question = {**job.place(index), "known": job.mirror.known(index), "measured": measured}
        answer = ask(host, job.root, "look", question, seconds=_LOOK_AT_OTHERS_SECONDS if index else _LOOK_SECONDS)
        if answer.document["is_known"]:
            job.mirror.take(index, answer.document["parts"], answer.data)
        return answer

    answers = ask_all(job.hosts, look)
    return [answers[host] for host in job.hosts]


def _nodes_of_ranks(job: _Job) -> dict[int, int]:
    """Return the node that each host runs, where it is not the host's index: spares take the place of others."""
    found = {}
    for index in range(len(job.hosts)):
        nodes = [
            int(path.name[len("node-") :]) for path in (job.mirror.folder / "hosts" / str(index)).glob("run-*/node-*")
        ]
        if nodes:
            found[index] = nodes[-1]
    return found


def _complete(job: _Job, status: NodeStatus, *, is_cancelled: bool = False) -> JobStatus:
    """Return the status of a job with the phases of its nodes, and what its restarts have cost."""
    folder = job.mirror.joined(len(job.hosts))
    own = EventReader(str(job.mirror.folder / "hosts" / "0")).new()
    steps = (*parse_steps(own), *parse_steps(first_node_events(folder)))
    parsed = replace(parse_status(status), steps=steps)
    back = {step.attempt: step.start for step in steps if step.name == "training"}
    numbered = zip(parsed.recoveries, status.get("restarts", ()), strict=True)
    recoveries = (replace(recovery, back_at=back.get(restart["attempt"])) for recovery, restart in numbered)
    parsed = replace(parsed, recoveries=tuple(recoveries))
    if parsed.state.is_final:
        return parsed
    nodes = folder.statuses(status.get("attempt", 0))
    notes = [note for node in nodes for note in node.get("notes", ())]
    details = {**parsed.details, "notes": [*parsed.details.get("notes", ()), *notes]}
    state = State.CANCELLING if is_cancelled else parsed.state
    if state is State.RUNNING and {node["state"] for node in nodes} <= {"STARTING"}:
        state = State.STARTING
    return replace(parsed, state=state, details=details)
