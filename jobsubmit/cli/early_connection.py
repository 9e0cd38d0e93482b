"""What `create` does before its options are parsed: it connects to the machines that the job file names."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from jobsubmit.spec.backend_registry import KINDS

_FILE = "job.yaml"
# They change what the file says, or that the job is submitted at all.
_OTHERWISE = ("--help", "-h", "--set", "--mode", "--backend", "--env", "-e", "--templates", "--dry")
_MOST_BYTES = 1 << 20
_KINDS = {kind: kind.encode() for kind, own in KINDS.items() if own.connects_by}


def connect_to_machines(words: Sequence[str]) -> None:
    """Begin to connect, if the words of `create` name one job file and leave its fields as they are.

    Whoever reads the file next says what is wrong with it.
    """
    if any(word.startswith(_OTHERWISE) for word in words):
        return
    with suppress(Exception):
        files = [word for word in words if not word.startswith("-") and Path(word).is_file()]
        if len(files) <= 1:
            _connect(Path(files[0] if files else _FILE))


def _connect(job: Path) -> None:
    if not job.is_file():
        return  # a pipe, for example, which can be read only once
    with job.open("rb") as stream:
        text = stream.read(_MOST_BYTES)
    if not any(kind in text for kind in _KINDS.values()):
        return
    from jobsubmit.backends.registry import connect_early
    from jobsubmit.spec.yaml_document import read_document

    fields = read_document(job, str(job), "").values.get("backend")
    if isinstance(fields, dict) and fields.get("kind") in _KINDS:
        connect_early(fields["kind"], fields)
