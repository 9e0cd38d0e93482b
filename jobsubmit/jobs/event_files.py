"""Find the TensorBoard event files of a job in its outputs and checkpoints, in folders and in buckets."""

from __future__ import annotations

import io
import itertools
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from jobsubmit.agent.job_directory import JobDirectory
from jobsubmit.config import Settings
from jobsubmit.errors import JobSubmitError
from jobsubmit.jobs.records import JobRecord
from jobsubmit.metrics.collection import Metrics
from jobsubmit.metrics.event_files import read_scalars
from jobsubmit.plan.plan_file import KeptPlan, read_plan
from jobsubmit.stores.opening import open_store

_MARK = ".tfevents."
_MOST_FILES, _MOST_LOOKED_AT = 100, 20_000
_LARGEST = 64 << 20  # bytes, of a file in a bucket


def read_event_files(record: JobRecord, settings: Settings, metrics: Metrics) -> int:
    """Add the scalars in a job's event files to its metrics; return how many files there are.

    A file or a bucket that cannot be read is left out: the output of the ranks has metrics, too.
    """
    count = 0
    with suppress(JobSubmitError):
        plan = read_plan(settings.job_dir(record.id))
        for stream in itertools.islice(_streams(record, settings, plan), _MOST_FILES) if plan else ():
            count += 1
            with stream, suppress(OSError):
                for name, time, step, value in read_scalars(stream):
                    metrics.add((0, None), name, time, step, value)
    return count


def _streams(record: JobRecord, settings: Settings, plan: KeptPlan) -> Iterator[BinaryIO]:
    seen: set[str] = set()
    for folder in _folders(record, settings, plan):
        if "://" in folder:
            yield from _in_bucket(folder, plan, seen)
        else:
            yield from _in_folder(Path(folder), seen)


def _folders(record: JobRecord, settings: Settings, plan: KeptPlan) -> Iterator[str]:
    files = JobDirectory(settings.job_dir(record.id))
    for mount in plan.mounts:
        uri = mount.uri.rstrip("/")
        if mount.kind == "output":
            yield uri
            yield files.data_of(mount.kind, mount.name)
        elif mount.kind == "checkpoint":
            yield f"{uri}/{plan.checkpoints_of or record.id}"
            yield files.checkpoints


def _in_folder(folder: Path, seen: set[str]) -> Iterator[BinaryIO]:
    with suppress(OSError):
        for file in sorted(itertools.islice(folder.rglob("*"), _MOST_LOOKED_AT)):
            if _MARK in file.name and file.name not in seen and file.is_file():
                seen.add(file.name)
                yield file.open("rb")


def _in_bucket(uri: str, plan: KeptPlan, seen: set[str]) -> Iterator[BinaryIO]:
    store = open_store(plan.store._replace(uri=uri))
    for item in itertools.islice(store.list(""), _MOST_LOOKED_AT):
        name = item.key.rpartition("/")[2]
        if _MARK in name and name not in seen and item.size <= _LARGEST:
            seen.add(name)
            yield io.BytesIO(store.get(item.key))
