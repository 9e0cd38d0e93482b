"""The record of each submitted job on this machine: one directory, readable by people."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import secrets
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from jobsubmit.backends import Step
from jobsubmit.duration import time_text
from jobsubmit.errors import BackendError, JobNotFoundError, UsageError, did_you_mean
from jobsubmit.locks import held, is_locked
from jobsubmit.settings import STATE_VARIABLE, Settings

if TYPE_CHECKING:
    from jobsubmit.spec.model import Layout

RESOLVED_NAME = "resolved.yaml"
DIFF_NAME = "uncommitted.diff"
_RECORD = "record.json"
_SUBMITTING = "submitting"
_CANCEL = "cancel-asked"
_ID = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]{0,79}")
_FOREIGN = re.compile(r"(slurm|volcano|modelarts)://.+/.+")  # an engine's handle means the same on every machine
_SUFFIX_LETTERS = "abcdefghjkmnpqrstuvwxyz23456789"


@dataclass(frozen=True)
class JobRecord:
    """Describe a job: what it was, and where it went. `handle` is empty until a backend has accepted it.

    `problem` says why none has; `is_unsure` if one may have, and did not say so.
    """

    id: str
    name: str
    mode: str
    backend: str
    nodes: int
    created: float
    code: str
    digest: str | None
    script_sha256: str
    steps: tuple[Step, ...] = ()
    handle: str = ""
    problem: str = ""
    is_unsure: bool = False
    layout: Layout = "tree"
    code_name: str = ""
    store: Mapping[str, Any] = field(default_factory=dict)
    revision: Mapping[str, Any] | None = None
    rerun_of: str = ""
    checkpoints_of: str = ""

    @property
    def created_at(self) -> str:
        """Return the time of submission, to the second, with its offset."""
        return time_text(self.created)


def new_job_id(name: str) -> str:
    """Return a name with a suffix that no other job has."""
    return f"{name}-{''.join(secrets.choice(_SUFFIX_LETTERS) for _ in range(6))}"


def job_id_for(name: str, text: str | None) -> str:
    """Return the id that a user has chosen, else a new one; raise UsageError for one that cannot name a job."""
    if not text:
        return new_job_id(name)
    if not _ID.fullmatch(text):
        raise UsageError(f"--job-id {text}: must be letters, digits, `_` or `-`, at most 80")
    return text


class KeyedSubmission(NamedTuple):
    """Hold the job that was submitted under an idempotency key, if any, and where the next one is written down."""

    file: Path
    earlier: JobRecord | None

    def begin(self, job_id: str) -> None:
        """Write down which job it is, before it is submitted."""
        temporary = self.file.with_suffix(".new")
        temporary.write_text(job_id, encoding="utf-8")
        temporary.replace(self.file)


class JobRecords:
    """Keep the records of all jobs below the state directory."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings

    def directory(self, job_id: str) -> Path:
        """Return the one directory of a job."""
        return self.settings.job_dir(job_id)

    @contextmanager
    def submitting(self, record: JobRecord, documents: Mapping[str, str | bytes]) -> Iterator[None]:
        """Write a job and its documents (name → text) down before it is submitted; meanwhile it counts as PENDING."""
        directory = self.directory(record.id)
        try:
            directory.mkdir(parents=True)
            lock = (directory / _SUBMITTING).open("wb")
        except FileExistsError as error:
            raise UsageError(f"--job-id {record.id}: there is such a job already", "give another, or none") from error
        except OSError as error:
            hint = f"make {self.settings.state_dir} writable, or name another with {STATE_VARIABLE}"
            raise BackendError(f"{directory} cannot be written: {error.strerror}", hint) from error
        with lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            for name, text in documents.items():
                data = text if isinstance(text, bytes) else text.encode("utf-8", "backslashreplace")
                (directory / name).write_bytes(data)
            self.save(record)
            yield

    def ask_cancel(self, record: JobRecord) -> None:
        """Mark a job as one that shall end, for whoever is submitting it."""
        with suppress(FileNotFoundError):  # nobody here is
            (self.directory(record.id) / _CANCEL).touch()

    def is_cancel_asked(self, record: JobRecord) -> bool:
        """Tell whether somebody wants the job to end."""
        return (self.directory(record.id) / _CANCEL).exists()

    def remove(self, record: JobRecord) -> None:
        """Remove the directory of a job: first out of sight, whole, so that no half of it is ever found."""
        directory = self.directory(record.id)
        going = self.settings.state_dir / "removed" / f"{record.id}.{os.getpid()}"
        going.parent.mkdir(exist_ok=True)
        try:
            directory.rename(going)
        except FileNotFoundError:
            return
        shutil.rmtree(going, ignore_errors=True)

    def save(self, record: JobRecord) -> None:
        """Replace the record, whole."""
        directory = self.directory(record.id)
        temporary = directory / f".{_RECORD}.{os.getpid()}"
        temporary.write_text(json.dumps(asdict(record), ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
        temporary.replace(directory / _RECORD)

    def is_submitting(self, record: JobRecord) -> bool:
        """Tell whether the client that submits the job is still at it."""
        return is_locked(self.directory(record.id) / _SUBMITTING)

    @contextmanager
    def once(self, key: str) -> Iterator[KeyedSubmission]:
        """Hold an idempotency key: whoever else has it waits, and then finds the job that was submitted under it."""
        name = hashlib.sha256(key.encode("utf-8", "surrogateescape")).hexdigest()[:32]
        file = self.settings.state_dir / "keys" / name
        with held(file.with_suffix(".lock"), waiting=lambda: None):
            earlier = file.read_text(encoding="utf-8") if file.exists() else ""
            yield KeyedSubmission(file, self.read(earlier) if earlier else None)

    def read(self, job_id: str) -> JobRecord | None:
        """Return the record of exactly this job, or None."""
        return _read(self.directory(job_id) / _RECORD)

    def all(self) -> list[JobRecord]:
        """Return every record, the newest first."""
        files_found = (self.settings.state_dir / "jobs").glob(f"*/{_RECORD}")
        records = [record for file in files_found if (record := _read(file))]
        return sorted(records, key=lambda record: record.created, reverse=True)

    def find(self, text: str) -> JobRecord:
        """Return the job that a handle, an id or a name means; a name means its newest job that was submitted.

        An engine's handle that was submitted from elsewhere gets a record that says no more than the handle.
        """
        wanted = text.rstrip("/")
        if _ID.fullmatch(wanted) and (record := _read(self.directory(wanted) / _RECORD)):
            return record
        records = self.all()
        named = [record for record in records if wanted and wanted in (record.handle, record.name)]
        for record in [record for record in named if not record.problem] or named:
            return record
        if handle := _FOREIGN.fullmatch(wanted):
            return _foreign(wanted, handle[1])
        hint = did_you_mean(wanted, {record.name for record in records} | {record.id for record in records})
        raise JobNotFoundError(f"{text}: there is no such job on this machine", hint + "`jobsubmit list` shows all")


def _foreign(handle: str, backend: str) -> JobRecord:
    name = handle.rpartition("/")[2]
    return JobRecord(
        id=name,
        name=name,
        mode="unknown",
        backend=backend,
        nodes=0,
        created=0.0,
        code="unknown",
        digest=None,
        script_sha256="",
        handle=handle,
    )


def _read(file: Path) -> JobRecord | None:
    """Return a record, or None where there is none: being written, removed, or not ours."""
    try:
        values = json.loads(file.read_bytes())
        known = {name: value for name, value in values.items() if name in JobRecord.__dataclass_fields__}
        return JobRecord(**{**known, "steps": tuple(Step(**step) for step in known["steps"])})
    except (ValueError, TypeError, AttributeError, KeyError, OSError):
        return None
