"""The Volcano backend: it submits one Kubernetes object, whose pods give the status."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Protocol, cast

from ruamel.yaml import YAML

from jobsubmit.agent.protocol import COLLECT, ORDER
from jobsubmit.backends.models import EVERYTHING, JobHandle, JobStatus, LogLine, LogQuery, State
from jobsubmit.backends.protocol import Delivery, Request
from jobsubmit.backends.shared.agent_request import build_node_request
from jobsubmit.backends.shared.limits import far_data_limits, order_limit, word_limits
from jobsubmit.backends.shared.polling import tolerate_errors
from jobsubmit.backends.volcano.api import CONFLICT, CORE, JOBS, Kubernetes, RefusedError
from jobsubmit.backends.volcano.job import Job, log_prefix, reference_to, store_of
from jobsubmit.backends.volcano.job_objects import (
    CANCELLED,
    CONFIG_MAP,
    CONTEXT,
    JOB,
    SECRET,
    SECRET_PREFIX,
    UNTIL,
    build_documents,
)
from jobsubmit.backends.volcano.limits import LARGEST_DATA, cluster_limits
from jobsubmit.backends.volcano.result import PHASES, parse_job_status
from jobsubmit.backends.volcano.spec import VolcanoBackendSpec
from jobsubmit.errors import BackendError, JobNotFoundError, JobSubmitError
from jobsubmit.spec.yaml_document import to_yaml
from jobsubmit.transfer.fetch_plan import VALID_SECONDS

if TYPE_CHECKING:
    from jobsubmit.bundle.model import Bundle
    from jobsubmit.common.finding import Finding
    from jobsubmit.config import Settings
    from jobsubmit.plan.launch_plan import LaunchPlan
    from jobsubmit.plan.script import Script
    from jobsubmit.spec.job_spec import Layout
    from jobsubmit.transfer.code_ref import CodeRef


class ConflictError(BackendError):
    """An object of this name exists already."""


class PostForms(Protocol):
    """A store that issues forms: with one, anybody may put objects below a prefix, and nothing else."""

    def post_form(self, prefix: str, expires: int) -> dict[str, Any]:
        """Return {"url", "fields", "prefix"}, valid for `expires` seconds. It must be treated as a secret."""


class VolcanoBackend:
    """Run each job as a Volcano job: one pod per node, all started together or not at all."""

    layout: Layout = "archive"
    ignored_because = ""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings

    def request(self, plan: LaunchPlan, script: Script, code: CodeRef, job_id: str) -> Request:
        """Return job, ConfigMap and Secret (see Backend)."""
        objects = build_documents(plan, build_node_request(plan, script, code, job_id), job_id)
        return Request(job_id, {name: to_yaml(value) for name, value in objects.items()}, plan.backend)

    def limits(self, plan: LaunchPlan, request: Request, code: CodeRef, bundle: Bundle | None) -> Iterator[Finding]:
        """Yield what Kubernetes and Volcano cannot do (see Backend)."""
        yield from word_limits(plan)
        yield from far_data_limits(plan, "on a volume of backend.volumes")
        yield from order_limit(bundle, code, LARGEST_DATA)
        yield from cluster_limits(plan, request)

    def preflight(self, plan: LaunchPlan, request: Request) -> None:
        """Have the server check all three objects without creating them (see Backend)."""
        spec = VolcanoBackendSpec.of(plan.backend)
        api = Kubernetes(spec.context)
        for name, path in _PATHS:
            body = _loaded(request, name)
            namespace = body["metadata"].get("namespace") or api.namespace
            _create(api, path.format(namespace=namespace), body, request.job_id, dry_run=True)

    def submit(self, request: Request, delivery: Delivery) -> JobHandle:
        """Create what the pods read, then the job, which becomes its owner (see Backend)."""
        spec = VolcanoBackendSpec.of(request.backend)
        api = Kubernetes(spec.context)
        objects = {name: _loaded(request, name) for name, _ in _PATHS}
        namespace = objects[JOB]["metadata"].get("namespace") or api.namespace
        name = objects[JOB]["metadata"]["name"]
        until = int(time.time()) + VALID_SECONDS
        objects[JOB]["metadata"]["annotations"][UNTIL] = "" if spec.credentials_secret else str(until)
        own_keys = spec.credentials_secret is not None
        objects[SECRET]["stringData"] = _secrets(request.job_id, delivery, 0 if own_keys else until)
        begun: list[str] = []
        try:
            for document, path in _PATHS:
                place = path.format(namespace=namespace)
                begun.append(f"{place}/{objects[document]['metadata']['name']}")
                found = _create(api, place, objects[document], request.job_id)
            for own in begun[:-1]:
                api.patch(own, {"metadata": {"ownerReferences": [reference_to(found)]}})
        except BaseException as error:
            if isinstance(error, ConflictError):
                begun.pop()  # that one is somebody else's
            for own in reversed(begun):
                with suppress(JobSubmitError):
                    api.delete(own)
            raise
        return _handle(spec.context, namespace, name)

    def find(self, job_id: str) -> JobHandle | None:
        """Return the handle of the job with this id, found by its stored request (see Backend)."""
        asked = self.settings.job_dir(job_id) / JOB
        if not asked.exists():
            return None
        metadata = YAML(typ="safe").load(asked.read_text(encoding="utf-8"))["metadata"]
        context = metadata["annotations"].get(CONTEXT)
        api = Kubernetes(context)
        namespace = metadata.get("namespace") or api.namespace
        if api.find(JOBS.format(namespace=namespace) + f"/{metadata['name']}") is None:
            return None
        return _handle(context, namespace, metadata["name"])

    # ── watching ────────────────────────────────────────────────────────────────────────────────────────────────

    def status(self, handle: JobHandle) -> JobStatus:
        """Return the status of Volcano, with details from the pods (see Backend)."""
        job = Job(handle)
        pods = job.pods()
        return parse_job_status(job.found, pods, job.why_it_waits(pods), job.collected().statuses)

    def logs(self, handle: JobHandle, query: LogQuery = EVERYTHING, *, follow: bool = False) -> Iterator[LogLine]:
        """Yield the lines of all pods, also of those that are gone (see Backend)."""
        look = tolerate_errors(lambda: follow and self.status(handle).state.may_change)
        return Job(handle).collected().lines(query, look)

    def events(self, handle: JobHandle) -> Iterator[Mapping[str, Any]]:
        """Yield the Kubernetes events of the job, its pod group and its pods, in order of time (see Backend)."""
        return iter(Job(handle).events())

    def timings(self, handle: JobHandle) -> Iterator[bytes]:
        """Yield what the pods put into the store, every minute and at their end (see Backend)."""
        return Job(handle).collected().timings()

    def stacks(self, handle: JobHandle) -> Mapping[int, bytes]:
        """Return what the pods put into the store at their end (see Backend)."""
        return Job(handle).collected().stacks()

    def cancel(self, handle: JobHandle, grace: float | None = None) -> None:
        """Have Volcano end all pods (see Backend)."""
        job = Job(handle)
        if PHASES.get(job.phase, State.RUNNING).is_final:
            return
        if CANCELLED not in job.found["metadata"].get("annotations", {}):
            job.api.patch(job.path, {"metadata": {"annotations": {CANCELLED: str(int(time.time()))}}})
        job.terminate()
        if grace is not None:
            job.hurry(grace)

    def delete(self, handle: JobHandle) -> None:
        """Remove the job, with all that it owns, and the collected lines (see Backend)."""
        try:
            job = Job(handle)
        except JobNotFoundError:
            return
        store, prefix = store_of(job.found)
        if store is None:
            raise JobNotFoundError(
                f"{handle}: jobsubmit did not submit this job",
                f"run `kubectl delete vcjob {job.name} -n {job.namespace}`",
            )
        for item in list(store.list(prefix)):
            store.delete(item.key)
        job.api.delete(job.path, {"propagationPolicy": "Foreground"})


_PATHS = ((SECRET, CORE + "secrets"), (CONFIG_MAP, CORE + "configmaps"), (JOB, JOBS))


def _handle(context: str | None, namespace: str, name: str) -> JobHandle:
    return JobHandle("volcano", (f"{context}@" if context else "") + f"{namespace}/{name}")


def _create(
    api: Kubernetes, path: str, body: Mapping[str, Any], job_id: str, *, dry_run: bool = False
) -> dict[str, Any]:
    try:
        return api.create(path, body, dry_run=dry_run)
    except RefusedError as error:
        if error.status != CONFLICT:
            raise
        text = f"--job-id {job_id} was already submitted, or its name {body['metadata']['name']} is taken"
        raise ConflictError(text, "use another id, or omit it") from error


def _loaded(request: Request, name: str) -> dict[str, Any]:
    found: dict[str, Any] = YAML(typ="safe").load(request.documents[name])
    return found


def _secrets(job_id: str, delivery: Delivery, until: int) -> dict[str, str]:
    """Return what only the pods may see; `until` is when its signatures end, 0 where the pods sign themselves."""
    form = cast("PostForms", delivery.store).post_form(log_prefix(job_id), VALID_SECONDS)
    order: dict[str, Any] = {**delivery.order, "expires": until}
    if not until:
        region = form["fields"]["x-amz-credential"].split("/")[2]
        order = {**_unsigned(delivery.order), "region": region}
        form = {"url": form["url"], "region": region, "prefix": form["prefix"]}
    if certificates := delivery.order.get("certificates"):
        form["certificates"] = certificates
    secrets = {SECRET_PREFIX + name: value for name, value in delivery.secrets.items()}
    return {ORDER: json.dumps(order), COLLECT: json.dumps(form), **secrets}


def _unsigned(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _unsigned(inner) for name, inner in value.items()}
    return value.partition("?")[0] if isinstance(value, str) and value.startswith(("http://", "https://")) else value
