"""Create a job: five steps decide, two act; `follow` watches."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from pydantic import BaseModel

from jobsubmit import plan as planning
from jobsubmit.backends import (
    Backend,
    Delivery,
    JobHandle,
    Request,
    Step,
    open_backend,
)
from jobsubmit.bundle import Bundle, directory_problem
from jobsubmit.check import Finding, check_code, check_data, check_secrets
from jobsubmit.errors import CancelledError, CheckError, JobSubmitError, Problem, SpecError, UsageError
from jobsubmit.fault import Fault
from jobsubmit.follow import with_handle
from jobsubmit.jobs import JobRecord, JobRecords, job_id_for
from jobsubmit.plan import LaunchPlan
from jobsubmit.render import SCRIPT_NAME, Script, render
from jobsubmit.scan import scan
from jobsubmit.settings import Settings
from jobsubmit.spec.load import LoadedSpec
from jobsubmit.statcache import load_known, save_known
from jobsubmit.stores import ObjectStore, open_store
from jobsubmit.transfer.order import fetch_order, require_boot_file
from jobsubmit.transfer.progress import Progress
from jobsubmit.transfer.reference import CodeRef, code_ref, place_ref
from jobsubmit.transfer.upload import UploadSummary, upload, upload_script

RESOLVED_NAME = "resolved.yaml"


class StepClock:
    """Collect when each deciding step ran, before there is a job to write it to."""

    def __init__(self) -> None:
        self.steps: list[Step] = []

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        """Time one step."""
        start = time.time()
        yield
        self.steps.append(Step(name, start, time.time()))


@dataclass(frozen=True)
class Prepared:
    """Hold everything that was decided about a job, exactly as it would be sent."""

    loaded: LoadedSpec
    plan: LaunchPlan
    bundle: Bundle | None
    findings: tuple[Finding, ...]
    script: Script
    code: CodeRef
    request: Request
    steps: tuple[Step, ...]
    notes: tuple[str, ...]
    rerun_of: str = ""


def prepare(
    loaded: LoadedSpec,
    settings: Settings,
    *,
    job_id: str | None = None,
    checks: bool = True,
    faults: Sequence[Fault] = (),
) -> Prepared:
    """Decide everything about a job; read the code directory, touch nothing. Raises CheckError on an error found."""
    clock = StepClock()
    plan = planning.plan(loaded.spec, settings, tuple(faults))
    backend = open_backend(plan.backend.kind, settings)
    layout = plan.layout or backend.layout
    with clock.step("bundle"):
        bundle = _scanned(plan, loaded, settings)
    script = render(plan)
    with clock.step("check"):
        findings = _findings(plan, bundle, loaded, checks=checks)
    _stop_at_errors(findings)
    if bundle is not None:
        code = code_ref(plan.store.uri, plan.name, plan.code_name, bundle, layout)
    else:
        code = place_ref(str(plan.code_dir), plan.code_name)
    request = backend.request(plan, script, code, job_id_for(plan.name, job_id))
    notes = _notes(loaded, plan, backend)
    return Prepared(loaded, plan, bundle, findings, script, code, request, tuple(clock.steps), notes)


@dataclass(frozen=True)
class Examination:
    """Hold what was found out about a job without sending it: errors, too."""

    plan: LaunchPlan
    bundle: Bundle | None
    findings: tuple[Finding, ...]
    notes: tuple[str, ...]


def examine(loaded: LoadedSpec, settings: Settings) -> Examination:
    """Find out whether a job can work; touch nothing. Raises SpecError where it cannot even be rendered."""
    plan = planning.plan(loaded.spec, settings)
    backend = open_backend(plan.backend.kind, settings)
    bundle = _scanned(plan, loaded, settings)
    render(plan)
    return Examination(plan, bundle, _findings(plan, bundle, loaded), _notes(loaded, plan, backend))


def bundled(loaded: LoadedSpec, settings: Settings) -> tuple[Bundle | None, tuple[Finding, ...]]:
    """Return what would be uploaded, and the secrets in it; None where the code is in a bucket already."""
    plan = planning.plan(loaded.spec, settings)
    bundle = _scanned(plan, loaded, settings)
    return bundle, tuple(check_secrets(bundle, plan.allow_secrets)) if bundle else ()


def _findings(
    plan: LaunchPlan, bundle: Bundle | None, loaded: LoadedSpec, *, checks: bool = True
) -> tuple[Finding, ...]:
    """Return what was found; without `checks`, which may be wrong about code, the secrets only."""
    found = list(check_secrets(bundle, plan.allow_secrets)) if bundle else []
    if checks:
        found += [*check_data(plan), *(check_code(plan, bundle) if bundle else ())]
    return tuple(_placed(finding, loaded) for finding in found)


def _notes(loaded: LoadedSpec, plan: LaunchPlan, backend: Backend) -> tuple[str, ...]:
    return (*loaded.notes, *plan.notes, *_ignored(plan, backend), *map(str, _missing_secrets(loaded, plan)))


def _scanned(plan: LaunchPlan, loaded: LoadedSpec, settings: Settings) -> Bundle | None:
    code_dir = plan.code_dir
    if isinstance(code_dir, str):
        return None
    if problem := directory_problem(code_dir):
        where = loaded.document.where(("code_dir",))
        hint = "a relative path is relative to the job file"
        raise SpecError([Problem(where, "code_dir", f"{code_dir} {problem}")], hint)
    return scan(code_dir, _own_folders(plan, settings), load_known(settings.transfer_dir, code_dir))


def _placed(finding: Finding, loaded: LoadedSpec) -> Finding:
    """Return a finding about a field with the line where that field is written."""
    path = tuple(finding.where.split(".", 1))
    if path[0] not in loaded.document.values or ":" in finding.where:
        return finding
    return replace(finding, where=loaded.document.where(path), text=f"{finding.where}: {finding.text}")


def _own_folders(plan: LaunchPlan, settings: Settings) -> tuple[Path, ...]:
    """Return the folders we write to ourselves: a bundle that held them would differ at every submission."""
    written = [mount.uri for mount in plan.mounts if mount.kind != "input" and "://" not in mount.uri]
    return (settings.state_dir, *map(Path, written), *(() if plan.store.is_remote else (Path(plan.store.uri),)))


def _stop_at_errors(findings: tuple[Finding, ...]) -> None:
    errors = [finding for finding in findings if finding.level == "error"]
    if errors:
        raise check_error(errors)


def check_error(errors: Sequence[Finding]) -> CheckError:
    """Return the error that lists what was found wrong, each with what to do."""
    if len(errors) == 1:
        return CheckError(str(errors[0]), errors[0].hint, errors[0].where)
    lines = [f"{error}\n    {error.hint}" if error.hint else str(error) for error in errors]
    return CheckError("\n".join(lines), "", errors[0].where)


def _ignored(plan: LaunchPlan, backend: Backend) -> tuple[str, ...]:
    if not backend.ignored_because or not plan.ignored:
        return ()
    return (f"{' and '.join(plan.ignored)}: ignored by the {plan.backend.kind} backend, {backend.ignored_because}",)


@dataclass(frozen=True)
class Submission:
    """Hold what became of a submission."""

    record: JobRecord
    handle: JobHandle
    summary: UploadSummary
    is_earlier: bool = False


def submit(
    prepared: Prepared,
    settings: Settings,
    *,
    progress: Progress = Progress(),  # noqa: B008 - it holds nothing
    environment: Mapping[str, str] = os.environ,
) -> Submission:
    """Upload code and script and hand the job to its backend; a failure leaves nothing that counts as submitted."""
    plan = prepared.plan
    backend = open_backend(plan.backend.kind, settings)
    secrets = _resolve_secrets(prepared, environment)
    backend.preflight(plan, prepared.request)
    store = open_store(plan.store)
    code_store = _store_above(plan) if isinstance(plan.code_dir, str) else store
    records = JobRecords(settings)
    record = _record(prepared)
    with records.submitting(record, _documents(prepared)):
        try:
            summary = _upload_bundle(prepared, store, settings, progress)
            upload_script(store, plan.name, prepared.script)
            record = _with_upload_ended(record)
            order = fetch_order(store, code_store, prepared.code, plan.name, prepared.script, prepared.bundle)
            require_boot_file(order, plan.boot_file, prepared.code)
            if records.is_cancel_asked(record):
                raise CancelledError(f"{record.id} was cancelled before it was submitted")
            record = replace(record, handle=str(backend.submit(prepared.request, Delivery(secrets, order, store))))
        except BaseException as error:
            problem = error.message if isinstance(error, JobSubmitError) else f"interrupted ({type(error).__name__})"
            record = replace(record, problem=problem)
            raise
        finally:
            records.save(record)
    handle = JobHandle.parse(record.handle)
    if records.is_cancel_asked(record):
        backend.cancel(handle)
    return Submission(record, handle, summary)


def submit_once(
    prepared: Prepared,
    settings: Settings,
    key: str,
    *,
    progress: Progress = Progress(),  # noqa: B008 - it holds nothing
) -> Submission:
    """Submit a job unless one was submitted under the same key: then return that one.

    Raises UsageError if that one was another: other code, another script or another job file.
    """
    with JobRecords(settings).once(key) as submission:
        earlier = submission.earlier
        if earlier is not None:
            earlier = with_handle(earlier, settings)
        if earlier is None or not earlier.handle:
            submission.begin(prepared.request.job_id)
            return submit(prepared, settings, progress=progress)
    written = JobRecords(settings).directory(earlier.id) / RESOLVED_NAME
    is_other = written.exists() and written.read_bytes() != prepared.loaded.resolved_text().encode()
    if is_other or (earlier.digest, earlier.script_sha256) != (prepared.code.digest, prepared.script.sha256):
        raise UsageError(
            f"--idempotency-key {key}: {earlier.id} was submitted under it, and was another job",
            "give another key; code, start script or job file differ",
        )
    return Submission(earlier, JobHandle.parse(earlier.handle), UploadSummary(), is_earlier=True)


def _documents(prepared: Prepared) -> dict[str, str]:
    """Return what is kept of a job beside its record, for people and for `rerun`."""
    return {
        "job.yaml": prepared.loaded.document.text,
        RESOLVED_NAME: prepared.loaded.resolved_text(),
        "plan.json": json.dumps(asdict(prepared.plan), default=_jsonable, ensure_ascii=False, indent=1) + "\n",
        SCRIPT_NAME: prepared.script.text,
        **prepared.request.documents,
    }


def _jsonable(value: object) -> object:
    return value.model_dump() if isinstance(value, BaseModel) else str(value)


def _upload_bundle(prepared: Prepared, store: ObjectStore, settings: Settings, progress: Progress) -> UploadSummary:
    """Make the store hold the code: a node must not be the first to miss a part of it."""
    if prepared.bundle is None:
        return UploadSummary()
    folder = settings.transfer_dir
    summary = upload(store, prepared.bundle, prepared.code, folder, progress=progress)
    save_known(folder, prepared.bundle, len(load_known(folder, prepared.bundle.root)))
    return summary


def _resolve_secrets(prepared: Prepared, environment: Mapping[str, str]) -> dict[str, str]:
    missing = _missing_secrets(prepared.loaded, prepared.plan, environment)
    if missing:
        raise SpecError(missing, "export it before you submit; its value is never written down")
    return {name: environment[source] for name, source in prepared.plan.secrets}


def _missing_secrets(
    loaded: LoadedSpec, plan: LaunchPlan, environment: Mapping[str, str] = os.environ
) -> list[Problem]:
    return [
        Problem(
            loaded.document.where(("secrets", name)),
            f"secrets.{name}",
            f"the environment variable {source} is not set here",
        )
        for name, source in plan.secrets
        if source not in environment
    ]


def _store_above(plan: LaunchPlan) -> ObjectStore:
    """Return the store of code that is in a bucket already, opened at the folder above it."""
    return open_store(plan.store._replace(uri=str(plan.code_dir).rpartition("/")[0]))


def _record(prepared: Prepared) -> JobRecord:
    return JobRecord(
        id=prepared.request.job_id,
        name=prepared.plan.name,
        mode=prepared.plan.mode,
        backend=prepared.plan.backend.kind,
        nodes=prepared.plan.nodes,
        created=time.time(),
        steps=(*prepared.steps, Step("upload", time.time())),
        code=prepared.code.uri,
        digest=prepared.code.digest,
        script_sha256=prepared.script.sha256,
        layout=prepared.code.layout,
        code_name=prepared.code.name,
        store=prepared.plan.store._asdict(),
        rerun_of=prepared.rerun_of,
        checkpoints_of=prepared.plan.checkpoints_of,
    )


def _with_upload_ended(record: JobRecord) -> JobRecord:
    *before, uploading = record.steps
    return replace(record, steps=(*before, replace(uploading, end=time.time())))
