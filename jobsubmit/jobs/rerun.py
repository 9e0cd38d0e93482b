"""Submit a job again with the same script and code, byte for byte, even if the local files have changed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from jobsubmit.agent.atomic_write import read_file
from jobsubmit.agent.job_directory import SCRIPT_NAME, JobDirectory
from jobsubmit.backends.registry import open_backend
from jobsubmit.common.store_address import REMOTE_SCHEMES, StoreAddress
from jobsubmit.config import Settings
from jobsubmit.errors import UsageError
from jobsubmit.jobs.monitor import status
from jobsubmit.jobs.prepare import Prepared, stop_at_errors
from jobsubmit.jobs.records import JobRecord, JobRecords, job_id_for
from jobsubmit.plan import launch_plan as planning
from jobsubmit.plan.fault_injection import Fault
from jobsubmit.plan.script import Script, render
from jobsubmit.spec.loader import Override, load
from jobsubmit.transfer.code_ref import CodeRef, place_ref

_SUBMIT_AGAIN = "submit its job file: jobsubmit create job.yaml"
_TAKEN_FROM_THE_STORE = ("code_dir", "layout", "store")


def prepare_rerun(
    record: JobRecord,
    settings: Settings,
    changes: Sequence[Override] = (),
    *,
    job_id: str | None = None,
    resume: bool = False,
    faults: Sequence[Fault] = (),
) -> Prepared:
    """Prepare an earlier job again, with the given changes; its code is taken from the store.

    Without changes the stored start script is used. With `resume` the job continues from the earlier job's
    checkpoints. Raises UsageError if the record is incomplete, if a change concerns where the code is, and with
    `resume` if the earlier job still runs or has no checkpoint_dir.
    """
    directory = JobRecords(settings).directory(record.id)
    resolved = Path(JobDirectory(directory).resolved)
    if record.damage or not resolved.is_file() or not record.store:
        why = record.damage or "it was written by an older version, or on another machine"
        raise UsageError(f"cannot rerun {record.id}: its record is incomplete ({why})", _SUBMIT_AGAIN)
    loaded = load(resolved, changes, directory=Path.cwd())  # its own paths are absolute, those of changes are typed
    for change in changes:
        if change.path[0] in _TAKEN_FROM_THE_STORE:
            field = ".".join(change.path)
            raise UsageError(
                f"{change.source}: a rerun cannot change {field}", "submit the job file with this change instead"
            )
    if resume and not (state := status(record, settings).state).is_final:
        hint = f"see jobsubmit status {record.id}; to end it: jobsubmit cancel {record.id}"
        raise UsageError(f"--resume: {record.id} has not ended: it is {state.value}", hint)
    if resume and loaded.spec.checkpoint_dir is None:
        hint = "omit --resume to run the job from its start"
        raise UsageError(f"--resume: {record.id} has no checkpoint_dir", hint)
    checkpoints_of = (record.checkpoints_of or record.id) if resume else ""
    store = StoreAddress(**{name: value for name, value in record.store.items() if name in StoreAddress._fields})
    plan = planning.build_plan(loaded.spec, settings, tuple(faults), checkpoints_of)
    plan = replace(plan, store=store, layout=record.layout)
    backend = open_backend(plan.backend.kind, settings)
    script = render(plan) if changes else _kept_script(record, directory / SCRIPT_NAME)
    code = code_of(record)
    request = backend.request(plan, script, code, job_id_for(plan.name, job_id))
    findings = tuple(backend.limits(plan, request, code, None))
    stop_at_errors(findings)
    notes = (*loaded.notes, *plan.notes)
    return Prepared(loaded, plan, None, findings, script, code, request, (), notes, record.revision, record.id)


def _kept_script(record: JobRecord, file: Path) -> Script:
    """Return the start script as it was submitted; raise UsageError where it is not there as it was."""
    try:
        script = Script(read_file(str(file)).decode())
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot rerun {record.id}: {file} cannot be read: {error}", _SUBMIT_AGAIN) from error
    if script.sha256 != record.script_sha256:
        raise UsageError(f"cannot rerun {record.id}: {file} differs from the script that was submitted", _SUBMIT_AGAIN)
    return script


def code_of(record: JobRecord) -> CodeRef:
    """Return where the code of a job is."""
    if record.digest is None and record.code.startswith(REMOTE_SCHEMES):
        return place_ref(record.code, record.code_name)
    key = record.code.removeprefix(f"{record.store['uri']}/")
    return CodeRef(record.code, key, record.layout, record.code_name, record.digest, fixed=True)
