"""Uploads and downloads."""

from __future__ import annotations

from jobsubmit.cli.documents.base import Document
from jobsubmit.cli.documents.submission import File, LeftOutByRule


class Upload(Document):
    """What an upload did."""

    uri: str
    digest: str
    files: int
    bytes: int
    skipped: int
    """Files that were in the store already."""
    deleted: list[str]
    left_out: list[LeftOutByRule]
    empty_directories: list[str]
    seconds: float
    requests: int
    """Requests sent to the store."""


class UploadPlan(Document):
    """What `upload --dry-run` would do."""

    uri: str
    send: list[File]
    delete: list[str]
    left_out: list[LeftOutByRule]


class Download(Document):
    """What a download did."""

    uri: str
    directory: str
    digest: str
    """Empty if the directory in the store has no manifest."""
    files: int
    bytes: int
    skipped: int
    seconds: float
    requests: int
