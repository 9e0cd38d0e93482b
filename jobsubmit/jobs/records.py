"""The record of each submitted job on this machine: one directory, readable by people."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import secrets
import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from jobsubmit.agent import json_form
from jobsubmit.agent.atomic_write import make_private, read_file, replace_file
from jobsubmit.agent.job_directory import JobDirectory
from jobsubmit.backends.models import JobPhase
from jobsubmit.backends.registry import kind_of_handle
from jobsubmit.common.durations import time_text
from jobsubmit.common.file_lock import hold_lock, is_locked
from jobsubmit.config import STATE_VARIABLE, Settings, load_settings
from jobsubmit.errors import BackendError, JobNotFoundError, UsageError, did_you_mean

if TYPE_CHECKING:
    from jobsubmit.spec.job_spec import Layout

_ID = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]{0,79}")
_FORMAT = 1  # of record.json
_LONGEST_SUBMISSION_SECONDS = 3600.0
_BEGINNING_SECONDS = 60.0  # a directory that is younger and has no record is being made
_STEP = {"name": str, "start": json_form.TIME, "end": (json_form.TIME, None), "attempt": int}
_FORM = {
    "format?": int,
    "id": str,
    "name": str,
    "mode": str,
    "backend": str,
    "nodes": int,
    "created": json_form.TIME,
    "code": str,
    "digest": (str, None),
    "script_sha256": str,
    "steps": [_STEP],
    "handle?": str,
    "problem?": str,
    "is_unsure?": bool,
    "layout?": str,
    "code_name?": str,
    "store?": {"uri?": str, **dict.fromkeys(("endpoint_url?", "region?", "profile?", "ca_bundle?"), (str, None))},
    "revision?": (dict, None),
    "rerun_of?": str,
    "checkpoints_of?": str,
    "warnings?": [str],
    "python?": str,
}
_SUFFIX_LETTERS = "abcdefghjkmnpqrstuvwxyz23456789"


@dataclass(frozen=True)
class JobRecord:
    """A job: what was submitted, and where to. `handle` is empty until a backend has accepted the job.

    `problem` is the reason why none has; `is_unsure` means that one may have accepted it without confirming.
    `warnings` are those that apply to the whole job; `python` is the Python of its nodes, if known. `damage` is the
    reason why the record cannot be read: all other fields are then guesses.
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
    steps: tuple[JobPhase, ...] = ()
    handle: str = ""
    problem: str = ""
    is_unsure: bool = False
    layout: Layout = "tree"
    code_name: str = ""
    store: Mapping[str, Any] = field(default_factory=dict)
    revision: Mapping[str, Any] | None = None
    rerun_of: str = ""
    checkpoints_of: str = ""
    warnings: tuple[str, ...] = ()
    python: str = ""
    damage: str = ""

    @property
    def created_at(self) -> str:
        """Return the time of submission, to the second, with its offset."""
        return time_text(self.created)


def new_job_id(name: str) -> str:
    """Return a name with a random suffix, so that no other job has it."""
    return f"{name}-{''.join(secrets.choice(_SUFFIX_LETTERS) for _ in range(6))}"


def job_id_for(name: str, text: str | None) -> str:
    """Return the id that the user has chosen, else a new one; raise UsageError for an invalid id."""
    if not text:
        return new_job_id(name)
    if not _ID.fullmatch(text):
        raise UsageError(f"--job-id {text}: must be at most 80 letters, digits, `_` or `-`, and not start with `-`")
    return text


class KeyedSubmission(NamedTuple):
    """The job that was submitted under an idempotency key, if any, and the file that stores the next one."""

    file: Path
    earlier: JobRecord | None

    def begin(self, job_id: str) -> None:
        """Store the id of the job before it is submitted."""
        replace_file(str(self.file), job_id)


def find_job(job: str) -> tuple[JobRecord, Settings]:
    """Return the record of a job by its handle, id or name, and the settings it was found with."""
    settings = load_settings()
    return JobRecords(settings).find(job), settings


class JobRecords:
    """The records of all jobs, below the state directory."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings

    def directory(self, job_id: str) -> Path:
        """Return the one directory of a job."""
        return self.settings.job_dir(job_id)

    def files(self, job_id: str) -> JobDirectory:
        """Return the files in the directory of a job."""
        return JobDirectory(self.directory(job_id))

    @contextmanager
    def submitting(self, record: JobRecord, documents: Mapping[str, str | bytes]) -> Iterator[None]:
        """Store a job and its documents (name → text) before it is submitted; in this context it counts as PENDING."""
        directory = self.directory(record.id)
        try:
            make_private(str(directory.parent))
            directory.mkdir(mode=0o700)
            lock = os.fdopen(os.open(self.files(record.id).submitting, os.O_WRONLY | os.O_CREAT, 0o600), "wb")
        except FileExistsError as error:
            raise UsageError(
                f"--job-id {record.id}: a job with this id exists already", "choose another id, or omit --job-id"
            ) from error
        except OSError as error:
            with suppress(OSError):
                directory.rmdir()
            raise self._unwritable(directory, error) from error
        with lock:
            with suppress(OSError):  # a file system without locks
                fcntl.flock(lock, fcntl.LOCK_EX)
            try:
                for name, text in documents.items():
                    replace_file(str(directory / name), text)
                self.save(record)
            except OSError as error:
                self.remove(record)
                raise self._unwritable(directory, error) from error
            yield

    def _unwritable(self, path: Path, error: OSError) -> BackendError:
        hint = f"free space, make the folder writable, or set {STATE_VARIABLE} to another folder"
        return BackendError(f"{path} cannot be written: {error.strerror}", hint)

    def ask_cancel(self, record: JobRecord) -> None:
        """Mark a job as cancelled, for the process that is submitting it."""
        with suppress(FileNotFoundError):  # nobody here is
            Path(self.files(record.id).cancel_asked).touch()

    def is_cancel_asked(self, record: JobRecord) -> bool:
        """Return whether the job is to be cancelled."""
        return Path(self.files(record.id).cancel_asked).exists()

    def remove(self, record: JobRecord) -> bool:
        """Remove the directory of a job. It is moved away as a whole first, so no command ever finds half of it.

        Returns False if it did not exist, or if another process removed it at the same time.
        """
        directory = self.directory(record.id)
        going = self.settings.state_dir / "removed" / f"{record.id}.{os.getpid()}"
        try:
            make_private(str(going.parent))
            directory.rename(going)
        except FileNotFoundError:
            return False
        shutil.rmtree(going, ignore_errors=True)
        return True

    def save(self, record: JobRecord) -> None:
        """Replace the record atomically."""
        values = {"format": _FORMAT, **{name: value for name, value in asdict(record).items() if name != "damage"}}
        replace_file(self.files(record.id).record, json.dumps(values, ensure_ascii=False, indent=1) + "\n")

    def is_submitting(self, record: JobRecord) -> bool:
        """Return whether a client is still submitting the job."""
        file = Path(self.files(record.id).submitting)
        is_held = is_locked(file)
        if is_held is not None:
            return is_held
        with suppress(OSError):  # without locks: only for as long as a submission may take
            return time.time() - file.stat().st_mtime < _LONGEST_SUBMISSION_SECONDS
        return False

    @contextmanager
    def once(self, key: str) -> Iterator[KeyedSubmission]:
        """Hold an idempotency key: another submission with the same key waits, and then finds the job of this one."""
        name = hashlib.sha256(key.encode("utf-8", "surrogateescape")).hexdigest()[:32]
        file = self.settings.state_dir / "keys" / name
        with hold_lock(file.with_suffix(".lock"), waiting=lambda: None):
            earlier = file.read_text(encoding="utf-8", errors="replace") if file.exists() else ""
            yield KeyedSubmission(file, self.read(earlier) if earlier else None)

    def read(self, job_id: str) -> JobRecord | None:
        """Return the record of the job with this id, or None; if it cannot be read, `damage` says why."""
        return self._read(job_id) if _ID.fullmatch(job_id) else None

    def _read(self, job_id: str) -> JobRecord | None:
        try:
            data = read_file(self.files(job_id).record)
        except FileNotFoundError:
            return self._without_record(job_id)
        except NotADirectoryError:
            return None
        except OSError as error:
            return self._damaged(job_id, f"record.json cannot be read: {error.strerror}")
        try:
            return _record_of(data, job_id)
        except ValueError as error:
            return self._damaged(job_id, f"record.json cannot be used: {error}")

    def _without_record(self, job_id: str) -> JobRecord | None:
        """Return None where there is no such job (yet), else what can be said of a directory that has no record."""
        directory = self.directory(job_id)
        try:
            age = time.time() - directory.stat().st_mtime
        except OSError:
            return None
        if age < _BEGINNING_SECONDS or is_locked(Path(self.files(job_id).submitting)):
            return None
        return self._damaged(job_id, "record.json is missing")

    def _damaged(self, job_id: str, damage: str) -> JobRecord:
        """Return what is known without a record: a local job can still be cancelled."""
        directory = self.directory(job_id)
        is_local = Path(self.files(job_id).lock).exists()
        try:
            created = directory.stat().st_mtime
        except OSError:
            created = 0.0
        handle = f"local://{job_id}" if is_local else ""
        return _unknown(job_id, "local" if is_local else "unknown", handle, created, damage)

    def all(self) -> list[JobRecord]:
        """Return every record, the newest first."""
        try:
            names = [path.name for path in self.directory("").iterdir()]
        except OSError:
            names = []
        records = [record for name in names if (record := self.read(name))]
        return sorted(records, key=lambda record: record.created, reverse=True)

    def newest_first(self) -> Iterator[JobRecord]:
        """Yield the records one by one, the one whose directory was last modified first."""
        try:
            paths = [(path.stat().st_mtime, path.name) for path in self.directory("").iterdir()]
        except OSError:
            return
        for _, name in sorted(paths, reverse=True):
            if record := self.read(name):
                yield record

    def find(self, text: str) -> JobRecord:
        """Return the job with a handle, an id or a name; for a name, the newest job that was submitted.

        For the handle of a job that was submitted from another machine, the record holds only what the handle says.
        """
        wanted = text.rstrip("/")
        if record := self.read(wanted):
            return record
        records = self.all()
        named = [record for record in records if wanted and wanted in (record.handle, record.name)]
        for record in [record for record in named if not record.problem] or named:
            return record
        if kind := kind_of_handle(wanted):
            return _unknown(wanted.rpartition("/")[2], kind, wanted)
        hint = did_you_mean(wanted, {record.name for record in records} | {record.id for record in records})
        raise JobNotFoundError(
            f"{text}: this machine has submitted no such job",
            hint + "run `jobsubmit list` to see its jobs; a job of another machine needs its handle (slurm://…)",
        )


def _unknown(name: str, backend: str, handle: str, created: float = 0.0, damage: str = "") -> JobRecord:
    """Return a record that says no more than where a job is."""
    return JobRecord(
        id=name,
        name=name,
        mode="unknown",
        backend=backend,
        nodes=0,
        created=created,
        code="unknown",
        digest=None,
        script_sha256="",
        handle=handle,
        damage=damage,
    )


def _record_of(data: bytes, job_id: str) -> JobRecord:
    """Return the record that a file holds; raise ValueError where it does not hold the one of this job."""
    values = json_form.read_fields(data, {"format?": int})
    if values.get("format", _FORMAT) > _FORMAT:
        raise ValueError("it was written by a newer version of jobsubmit")
    if wrong := json_form.find_misfit(values, _FORM):
        raise ValueError(f"its field `{wrong}` is missing or wrong")
    if values["id"] != job_id:
        raise ValueError(f"it belongs to the job {values['id']!r}")
    if values["backend"] == "local" and values.get("handle") not in (None, "", f"local://{job_id}"):
        raise ValueError(f"its handle {values['handle']!r} belongs to another job")
    known = {name: value for name, value in values.items() if f"{name}?" in _FORM or name in _FORM}
    known.pop("format", None)
    steps = tuple(JobPhase(step["name"], step["start"], step["end"], step["attempt"]) for step in values["steps"])
    return JobRecord(**{**known, "steps": steps, "warnings": tuple(values.get("warnings", ()))})
