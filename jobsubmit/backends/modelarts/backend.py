"""The ModelArts backend: one training job of the platform per job."""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jobsubmit.agent.atomic_write import make_private
from jobsubmit.agent.node_contract import AGENT_REQUEST
from jobsubmit.backends.modelarts.client import ModelArts, RefusedError, open_service
from jobsubmit.backends.modelarts.credentials import Identity, identity
from jobsubmit.backends.modelarts.limits import LONGEST_VALUE, platform_limits
from jobsubmit.backends.modelarts.logs import Logs, Look
from jobsubmit.backends.modelarts.request import NAME, build_training_job, files_for_nodes, flavor, platform_name
from jobsubmit.backends.modelarts.spec import ModelArtsBackendSpec
from jobsubmit.backends.modelarts.states import apply_ends, explain_failure, parse_job_status, parse_moment, tasks_of
from jobsubmit.backends.models import EVERYTHING, JobHandle, JobStatus, LogLine, LogQuery, State
from jobsubmit.backends.protocol import Delivery, Request
from jobsubmit.backends.shared.limits import word_limits
from jobsubmit.backends.shared.polling import TolerantPoll
from jobsubmit.common.finding import Finding
from jobsubmit.errors import BackendError, JobNotFoundError, did_you_mean
from jobsubmit.plan.plan_file import read_plan
from jobsubmit.stores.opening import open_store
from jobsubmit.stores.protocol import ObjectStore

if TYPE_CHECKING:
    from jobsubmit.bundle.model import Bundle
    from jobsubmit.config import Settings
    from jobsubmit.plan.launch_plan import LaunchPlan
    from jobsubmit.plan.script import Script
    from jobsubmit.spec.job_spec import Layout
    from jobsubmit.transfer.code_ref import CodeRef

_CONNECTIONS = 16
_HANDLE_PARTS = 3
_NO_REGION = "-"  # in a handle: the service was named by its address
_WHERE = {"region", "project_id", "endpoint", "profile"}


class ModelArtsBackend:
    """Run each job as a training job of ModelArts."""

    layout: Layout = "tree"
    ignored_because = ""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings

    def request(self, plan: LaunchPlan, script: Script, code: CodeRef, job_id: str) -> Request:
        """Return the body of the API request (see Backend)."""
        body = build_training_job(plan, script, code, job_id)
        return Request(job_id, {NAME: json.dumps(body, ensure_ascii=False, indent=2) + "\n"}, plan.backend)

    def limits(self, plan: LaunchPlan, request: Request, code: CodeRef, bundle: Bundle | None) -> Iterator[Finding]:
        """Yield what the platform does not accept (see Backend)."""
        yield from word_limits(plan)
        yield from platform_limits(plan, request, code, bundle)

    def preflight(self, plan: LaunchPlan, request: Request) -> None:
        """Ask the platform whether it has the machine type (see Backend)."""
        spec = ModelArtsBackendSpec.of(request.backend)
        _refuse_long_secrets(plan)
        api = open_service(identity(spec))
        if spec.pool_id:
            return  # a pool of one's own has machines of its own
        known = [str(one.get("flavor_id")) for one in api.flavors()]
        wanted = flavor(plan) or ""
        if wanted not in known:
            hint = did_you_mean(wanted, known) + "run `jobsubmit flavors` to list them"
            raise BackendError(f"the machine type {wanted} does not exist in this project", hint)

    def submit(self, request: Request, delivery: Delivery) -> JobHandle:
        """Put the start script beside the code, and create the training job, once (see Backend)."""
        spec = ModelArtsBackendSpec.of(request.backend)
        who = identity(spec)
        body = json.loads(request.documents[NAME])
        algorithm = body["algorithm"]
        if delivery.secrets:
            algorithm["environments"] = {**algorithm.get("environments", {}), **delivery.secrets}
        if "command" in algorithm:
            for path, data in files_for_nodes(delivery.script).items():
                delivery.code_store.put(f"{delivery.code.key}/{path}", data, hashlib.sha256(data).hexdigest())
        try:
            created = open_service(who).create(body)
        except BackendError as error:
            raise error.without(delivery.secrets.values()) from None
        return self._handle(created, who, request.job_id, spec)

    def find(self, job_id: str) -> JobHandle | None:
        """Return the handle of the training job that has this name (see Backend)."""
        plan = read_plan(self.settings.job_dir(job_id))
        if plan is None:
            return None
        spec = ModelArtsBackendSpec(**plan.backend)
        who = identity(spec)
        found = open_service(who).find(platform_name(job_id))
        return self._handle(found, who, job_id, spec) if found else None

    def _handle(self, job: Mapping[str, Any], who: Identity, job_id: str, spec: ModelArtsBackendSpec) -> JobHandle:
        """Return the handle of a training job; note what leads to it besides."""
        handle = JobHandle("modelarts", f"{who.region or _NO_REGION}/{who.project_id}/{job['metadata']['id']}")
        with suppress(OSError):  # without it only what the configuration says leads to the job
            make_private(str(self._note(handle).parent))
            note = {"job_id": job_id, "where": spec.model_dump(include=_WHERE)}
            self._note(handle).write_text(json.dumps(note), encoding="utf-8")
        return handle

    # ── watching ────────────────────────────────────────────────────────────────────────────────────────────────

    def status(self, handle: JobHandle) -> JobStatus:
        """Return the status of the platform; a failure with the last lines of its task (see Backend)."""
        api, job = self._open(handle)
        found = api.look(job)
        reported, tasks = parse_job_status(found), tasks_of(found)
        if reported.state is not State.FAILED:
            return reported
        logs = self._logs(api, handle, found)
        if logs.is_tagged:
            with ThreadPoolExecutor(_CONNECTIONS) as pool:
                reported = apply_ends(reported, dict(zip(tasks, pool.map(logs.end_of, tasks), strict=True)))
        if reported.failure is None or reported.failure.last_lines:
            return reported
        return explain_failure(reported, logs.last_words(reported.failure.node, tasks))

    def logs(self, handle: JobHandle, query: LogQuery = EVERYTHING, *, follow: bool = False) -> Iterator[LogLine]:
        """Yield the lines of all tasks (see Backend); for a preset framework the platform does not separate ranks."""
        api, job = self._open(handle)
        found = api.look(job)
        seen = [_look(found, follow=follow)]

        def look() -> Look:
            seen[0] = poll.ask(lambda: _look(api.look(job), follow=follow)) or seen[0]
            return seen[0]

        poll = TolerantPoll(has_answered=True)
        return self._logs(api, handle, found).lines(query, look)

    def _logs(self, api: ModelArts, handle: JobHandle, found: Mapping[str, Any]) -> Logs:
        algorithm, reported = found.get("algorithm") or {}, (found.get("spec") or {}).get("log_export_path") or {}

        def export() -> tuple[ObjectStore, str] | None:
            plan = read_plan(self.settings.job_dir(self._noted(handle).get("job_id", "")))
            bucket, _, prefix = str(reported.get("obs_url", "")).strip("/").partition("/")
            if not bucket or plan is None:
                return None
            scheme = plan.store.uri.partition("://")[0]
            return open_store(plan.store._replace(uri=f"{scheme}://{bucket}")), f"{prefix}/" if prefix else ""

        is_tagged = AGENT_REQUEST in (algorithm.get("environments") or {})
        return Logs(api, str(found["metadata"]["id"]), is_tagged=is_tagged, export=export)

    def events(self, handle: JobHandle) -> Iterator[Mapping[str, Any]]:
        """Yield the events of the platform (see Backend)."""
        api, job = self._open(handle)
        for event in api.events(job):
            yield {"t": parse_moment(event.get("time")), "event": str(event.get("level") or "event"), **event}

    def timings(self, handle: JobHandle) -> Iterator[bytes]:
        """Yield nothing: the measurements of ranks cannot be read back from the platform (see Backend)."""
        return iter(())

    def stacks(self, handle: JobHandle) -> Mapping[int, bytes]:
        """Return nothing: the stacks of ranks cannot be read back from the platform (see Backend)."""
        return {}

    def cancel(self, handle: JobHandle, grace: float | None = None) -> None:
        """Ask the platform to end the job; the platform decides how long it waits (see Backend)."""
        api, job = self._open(handle)

        def is_ending() -> bool:
            state = parse_job_status(api.get(job)).state
            return state.is_final or state is State.CANCELLING

        if is_ending():
            return
        try:
            api.stop(job)
        except RefusedError:
            if not is_ending():  # it did not end in between
                raise

    def delete(self, handle: JobHandle) -> None:
        """Remove the job from the platform (see Backend)."""
        api, job = self._open(handle)
        api.delete(job)

    def _open(self, handle: JobHandle) -> tuple[ModelArts, str]:
        parts = handle.path.split("/")
        if len(parts) != _HANDLE_PARTS or not all(parts):
            hint = "run `jobsubmit list` to see all jobs"
            raise JobNotFoundError(f"{handle} is not a valid handle: expected modelarts://region/project/id", hint)
        region, project_id, job = parts
        ours = self.settings.default_backend
        base = ours if isinstance(ours, ModelArtsBackendSpec) else ModelArtsBackendSpec(kind="modelarts")
        chosen = {"project_id": project_id, **({"region": region} if region != _NO_REGION else {})}
        where = {**self._noted(handle).get("where", {}), **chosen}
        return open_service(identity(base.model_copy(update=where))), job

    def _note(self, handle: JobHandle) -> Path:
        """Return the file that remembers a job's id, where its service is, and with which profile it was asked."""
        return self.settings.state_dir / "modelarts-jobs" / handle.path.replace("/", "-")

    def _noted(self, handle: JobHandle) -> dict[str, Any]:
        note = self._note(handle)
        found: dict[str, Any] = json.loads(note.read_bytes()) if note.exists() else {}
        return found


def _refuse_long_secrets(plan: LaunchPlan) -> None:
    """Raise BackendError for a value that no variable may have; only here they are known."""
    for name, source in plan.secrets:
        size = len(os.environ.get(source, ""))
        if size > LONGEST_VALUE:
            text = f"secrets.{name}: {size:,} characters, but the limit of ModelArts is {LONGEST_VALUE:,}"
            raise BackendError(text, "keep it in a file that the nodes see")


def _look(found: Mapping[str, Any], *, follow: bool) -> Look:
    reported = parse_job_status(found)
    ended = reported.steps[-1].end if reported.steps else None
    is_final = reported.state.is_final
    return Look(tasks_of(found), follow and not is_final, (ended or time.time()) if is_final else None)
