"""Submit a prepared job: upload its code, and pass it to its backend."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from jobsubmit.agent.atomic_write import make_private
from jobsubmit.agent.job_directory import DIFFERENCE, LEFT_OUT, PLAN, RESOLVED, SCRIPT_NAME
from jobsubmit.agent.recovery.outcome import FETCH_FAILED
from jobsubmit.backends.models import JobHandle, JobPhase
from jobsubmit.backends.protocol import Backend, Delivery, Request
from jobsubmit.backends.registry import open_backend
from jobsubmit.backends.shared.limits import secret_limits
from jobsubmit.common.finding import IGNORED
from jobsubmit.config import Settings
from jobsubmit.errors import BackendError, CancelledError, JobSubmitError, SpecError, UsageError
from jobsubmit.jobs.missing import left_out_text
from jobsubmit.jobs.monitor import status, with_handle
from jobsubmit.jobs.prepare import Prepared, missing_secrets, remember, stop_at_errors
from jobsubmit.jobs.records import JobRecord, JobRecords
from jobsubmit.plan.plan_file import plan_text
from jobsubmit.stores.opening import open_store
from jobsubmit.stores.protocol import ObjectStore
from jobsubmit.transfer.fetch_plan import fetch_order, require_boot_file
from jobsubmit.transfer.progress import Progress
from jobsubmit.transfer.upload import UploadSummary, upload, upload_script

_QUIET = Progress()


@dataclass(frozen=True)
class Submission:
    """The result of a submission."""

    record: JobRecord
    handle: JobHandle
    summary: UploadSummary
    is_earlier: bool = False


def submit(prepared: Prepared, settings: Settings, *, progress: Progress = _QUIET) -> Submission:
    """Upload code and start script, and pass the job to its backend; if this fails, the job counts as not submitted."""
    plan = prepared.plan
    backend = open_backend(plan.backend.kind, settings)
    secrets = _resolve_secrets(prepared)
    backend.preflight(plan, prepared.request)
    store = code_store = open_store(plan.store)
    if isinstance(plan.code_dir, str):
        code_store = open_store(plan.store._replace(uri=plan.code_dir.rpartition("/")[0]))
    records, pending = JobRecords(settings), _Pending(_record(prepared))
    with pending.kept(records, _documents(prepared)):
        if plan.store.uri == str(settings.own_store):
            make_private(plan.store.uri)
        summary = _upload_bundle(prepared, store, settings, progress)
        upload_script(store, plan.name, prepared.script)
        pending.end_upload()
        order = fetch_order(store, code_store, prepared.code, plan.name, prepared.script, prepared.bundle)
        require_boot_file(order, plan.boot_file, prepared.code)
        delivery = Delivery(secrets, order, store, code_store, prepared.code, prepared.script)
        if records.is_cancel_asked(pending.record):
            raise CancelledError(f"{pending.record.id} was cancelled before it was submitted")
        handle = pending.send(backend, prepared.request, delivery)
    if records.is_cancel_asked(pending.record):
        backend.cancel(handle)
    return Submission(pending.record, handle, summary)


class _Pending:
    """The record of a job while it is submitted: how far that came, and what went wrong."""

    def __init__(self, record: JobRecord) -> None:
        self.record = record
        self.is_sent = False

    @contextmanager
    def kept(self, records: JobRecords, documents: Mapping[str, str | bytes]) -> Iterator[None]:
        """Write the record before the submission, and at its end, however that comes."""
        with records.submitting(self.record, documents):
            try:
                yield
            except BaseException as error:
                self._note(error)
                raise
            finally:
                records.save(self.record)

    def _note(self, error: BaseException) -> None:
        problem = error.message if isinstance(error, JobSubmitError) else "the submission was interrupted"
        is_unsure = error.is_unsure if isinstance(error, BackendError) else not isinstance(error, JobSubmitError)
        self.record = replace(self.record, problem=problem, is_unsure=self.is_sent and is_unsure)

    def end_upload(self) -> None:
        """Note when the upload ended."""
        *before, uploading = self.record.steps
        self.record = replace(self.record, steps=(*before, replace(uploading, end=time.time())))

    def send(self, backend: Backend, request: Request, delivery: Delivery) -> JobHandle:
        """Hand the job to its backend; from now on nobody knows whether it runs unless the backend says so."""
        self.is_sent = True
        handle = backend.submit(request, delivery)
        self.record = replace(self.record, handle=str(handle))
        return handle


def submit_once(prepared: Prepared, settings: Settings, key: str, *, progress: Progress) -> Submission:
    """Submit a job, or return the one that was submitted under the same key before.

    Raises UsageError if that one differs in code, start script or job file.
    """
    with JobRecords(settings).once(key) as submission:
        earlier = submission.earlier
        if earlier is not None:
            earlier = with_handle(earlier, settings)
        if earlier is None or not earlier.handle:
            submission.begin(prepared.request.job_id)
            return submit(prepared, settings, progress=progress)
    written = Path(JobRecords(settings).files(earlier.id).resolved)
    is_other = written.exists() and written.read_bytes() != prepared.loaded.resolved_text().encode()
    if is_other or (earlier.digest, earlier.script_sha256) != (prepared.code.digest, prepared.script.sha256):
        text = f"--idempotency-key {key}: {earlier.id} was submitted under this key, and is a different job"
        raise UsageError(text, "use another key: code, start script or job file differ")
    return Submission(earlier, JobHandle.parse(earlier.handle), UploadSummary(), is_earlier=True)


def _documents(prepared: Prepared) -> dict[str, str | bytes]:
    """Return what is kept of a job beside its record, for people and for `rerun`."""
    revision = prepared.bundle.revision if prepared.bundle else None
    return {
        "job.yaml": prepared.loaded.document.text,
        RESOLVED: prepared.loaded.resolved_text(),
        PLAN: plan_text(prepared.plan),
        SCRIPT_NAME: prepared.script.text,
        **({DIFFERENCE: revision.diff} if revision and revision.diff else {}),
        **({LEFT_OUT: left_out_text(prepared.bundle)} if prepared.bundle else {}),
        **prepared.request.documents,
    }


def _upload_bundle(prepared: Prepared, store: ObjectStore, settings: Settings, progress: Progress) -> UploadSummary:
    """Make the store hold the code: a node must not be the first to miss a part of it."""
    if prepared.bundle is None:
        return UploadSummary()
    doubts = partial(_was_damaged, prepared, settings)
    summary = upload(
        store,
        prepared.bundle,
        prepared.code,
        settings.transfer_dir,
        progress=progress,
        recheck=prepared.rechecks,
        force=prepared.rechecks,
        is_doubted=doubts,
    )
    remember(prepared, settings)
    return summary


def _was_damaged(prepared: Prepared, settings: Settings) -> bool:
    """Return whether the last job with this code could not fetch it: then what lies in the store is sent again."""
    code = prepared.code
    records = JobRecords(settings).newest_first()
    same = (r for r in records if (r.code, r.digest) == (code.uri, code.digest) and r.handle)
    last = next(same, None)
    with suppress(JobSubmitError):
        return last is not None and status(last, settings).reason == FETCH_FAILED
    return False


def _resolve_secrets(prepared: Prepared) -> dict[str, str]:
    missing = missing_secrets(prepared.loaded, prepared.plan)
    if missing:
        raise SpecError(missing, "export it before you submit; jobsubmit itself writes its value to no file")
    values = {name: os.environ[source] for name, source in prepared.plan.secrets}
    stop_at_errors(secret_limits(values))
    return values


def _record(prepared: Prepared) -> JobRecord:
    return JobRecord(
        id=prepared.request.job_id,
        name=prepared.plan.name,
        mode=prepared.plan.start,
        backend=prepared.plan.backend.kind,
        nodes=prepared.plan.nodes,
        created=time.time(),
        steps=(*prepared.steps, JobPhase("upload", time.time())),
        code=prepared.code.uri,
        digest=prepared.code.digest,
        script_sha256=prepared.script.sha256,
        layout=prepared.code.layout,
        code_name=prepared.code.name,
        store=prepared.plan.store._asdict(),
        rerun_of=prepared.rerun_of,
        revision=prepared.revision,
        checkpoints_of=prepared.plan.checkpoints_of,
        python=prepared.python,
        warnings=tuple(str(finding) for finding in prepared.findings if finding.check == IGNORED),
    )
