"""The ModelArts backend: a training job of the platform per job of ours."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jobsubmit.backends import EVERYTHING, Delivery, JobHandle, JobStatus, LogLine, LogQuery, Request
from jobsubmit.backends.gang import refuse_faults
from jobsubmit.backends.limits import word_limits
from jobsubmit.backends.modelarts.client import ModelArts
from jobsubmit.backends.modelarts.credentials import Identity, identity
from jobsubmit.backends.modelarts.limits import platform_limits
from jobsubmit.backends.modelarts.logs import Logs
from jobsubmit.backends.modelarts.request import NAME, flavor, own, script_path, training_job
from jobsubmit.backends.modelarts.states import status_of
from jobsubmit.backends.patience import patiently
from jobsubmit.diagnosis import diagnose
from jobsubmit.errors import BackendError, JobNotFoundError, did_you_mean
from jobsubmit.finding import Finding
from jobsubmit.settings import PLAN_NAME
from jobsubmit.spec.backends import ModelArtsBackendSpec

if TYPE_CHECKING:
    from jobsubmit.bundle import Bundle
    from jobsubmit.plan import LaunchPlan
    from jobsubmit.render import Script
    from jobsubmit.settings import Settings
    from jobsubmit.spec.model import Layout
    from jobsubmit.transfer.reference import CodeRef

_LAST_LINES = 20
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
        """Return the body of the API's request (see Backend)."""
        body = training_job(plan, script, code, job_id)
        return Request(job_id, {NAME: json.dumps(body, ensure_ascii=False, indent=2) + "\n"}, plan.backend)

    def limits(self, plan: LaunchPlan, request: Request, code: CodeRef, bundle: Bundle | None) -> Iterator[Finding]:
        """Yield what the platform does not take (see Backend)."""
        yield from word_limits(plan)
        yield from platform_limits(plan, request.job_id, code, bundle)

    def preflight(self, plan: LaunchPlan, request: Request) -> None:
        """Have the platform say whether it has the machine type (see Backend)."""
        refuse_faults(plan)
        spec = own(request.backend)
        api = ModelArts(identity(spec))
        if spec.pool_id:
            return  # a pool of one's own has machines of its own
        known = [str(one.get("flavor_id")) for one in api.flavors()]
        wanted = flavor(plan) or ""
        if wanted not in known:
            hint = did_you_mean(wanted, known) + "`jobsubmit flavors` lists them"
            raise BackendError(f"there is no machine type {wanted} here", hint)

    def submit(self, request: Request, delivery: Delivery) -> JobHandle:
        """Put the start script beside the code, and create the training job, once (see Backend)."""
        spec = own(request.backend)
        who = identity(spec)
        body = json.loads(request.documents[NAME])
        algorithm = body["algorithm"]
        if delivery.secrets:
            algorithm["environments"] = {**algorithm.get("environments", {}), **delivery.secrets}
        if "command" in algorithm:
            key = f"{delivery.code.key}/{script_path(delivery.script)}"
            delivery.code_store.put(key, delivery.script.data, delivery.script.sha256)
        created = ModelArts(who).create(body)
        handle = _handle(who, created)
        with suppress(OSError):  # without it only what the configuration says leads to the job
            self._note(handle).parent.mkdir(parents=True, exist_ok=True)
            self._note(handle).write_text(spec.model_dump_json(include=_WHERE), encoding="utf-8")
        return handle

    def find(self, job_id: str) -> JobHandle | None:
        """Return the handle of the training job that has this name (see Backend)."""
        plan = self.settings.job_dir(job_id) / PLAN_NAME
        if not plan.exists():
            return None
        who = identity(ModelArtsBackendSpec(**json.loads(plan.read_bytes())["backend"]))
        found = ModelArts(who).find(job_id)
        return _handle(who, found) if found else None

    # ── watching ────────────────────────────────────────────────────────────────────────────────────────────────

    def status(self, handle: JobHandle) -> JobStatus:
        """Return what the platform says; of a failure with the last lines of its task (see Backend)."""
        api, job = self._open(handle)
        told = status_of(api.get(job))
        if told.failure is None:
            return told
        query = LogQuery(node=told.failure.node, tail=_LAST_LINES)
        words = [line.text for line in Logs(api, job, told.details["tasks"]).lines(query, lambda: False)]
        known = diagnose(words, signal=told.failure.signal, reason=told.reason)
        return replace(
            told, failure=replace(told.failure, last_lines=tuple(words), **(known._asdict() if known else {}))
        )

    def logs(self, handle: JobHandle, query: LogQuery = EVERYTHING, *, follow: bool = False) -> Iterator[LogLine]:
        """Yield the lines of all tasks (see Backend); the platform keeps no ranks apart, nor stderr, nor times."""
        api, job = self._open(handle)
        tasks: list[str] = []

        def goes_on() -> bool:
            told = status_of(api.get(job))
            tasks[:] = told.details["tasks"]
            return follow and not told.state.is_final

        return Logs(api, job, tasks).lines(query, patiently(goes_on))

    def events(self, handle: JobHandle) -> Iterator[Mapping[str, Any]]:
        """Yield what the platform noted (see Backend)."""
        api, job = self._open(handle)
        for event in api.events(job):
            moment = float(event.get("time") or 0) / 1000
            yield {"t": moment, "event": str(event.get("level", "event")), **event}

    def timings(self, handle: JobHandle) -> Iterator[bytes]:
        """Yield nothing: nothing of ours runs beside the training there (see Backend)."""
        return iter(())

    def cancel(self, handle: JobHandle, grace: float | None = None) -> None:
        """Ask the platform to end the job; how long it waits is its own to say (see Backend)."""
        api, job = self._open(handle)
        if not status_of(api.get(job)).state.is_final:
            api.stop(job)

    def delete(self, handle: JobHandle) -> None:
        """Remove the job from the platform (see Backend)."""
        api, job = self._open(handle)
        api.delete(job)

    def _open(self, handle: JobHandle) -> tuple[ModelArts, str]:
        parts = handle.path.split("/")
        if len(parts) != _HANDLE_PARTS or not all(parts):
            hint = "`jobsubmit list` shows all"
            raise JobNotFoundError(f"{handle}: a handle looks like modelarts://region/project/id", hint)
        region, project_id, job = parts
        if self._note(handle).exists():
            told = json.loads(self._note(handle).read_bytes())
            return ModelArts(identity(ModelArtsBackendSpec(kind="modelarts", **told))), job
        ours = self.settings.default_backend
        base = ours if isinstance(ours, ModelArtsBackendSpec) else ModelArtsBackendSpec(kind="modelarts")
        chosen = {"project_id": project_id, **({"region": region} if region != _NO_REGION else {})}
        return ModelArts(identity(base.model_copy(update=chosen))), job

    def _note(self, handle: JobHandle) -> Path:
        """Return the file that remembers where a job's service is, and with which profile it was asked."""
        return self.settings.state_dir / "modelarts-jobs" / handle.path.replace("/", "-")


def _handle(who: Identity, job: Mapping[str, Any]) -> JobHandle:
    return JobHandle("modelarts", f"{who.region or _NO_REGION}/{who.project_id}/{job['metadata']['id']}")
