"""The command that tries out what a submission needs: doctor."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from jobsubmit.cli.console import out
from jobsubmit.cli.job_file_options import DEFAULT_JOB_FILE, BackendKind, Set, StoreUri
from jobsubmit.config import load_settings
from jobsubmit.errors import CheckError


def doctor(
    job: Annotated[
        Path | None,
        typer.Argument(
            help="A job file: then its store, backend and code.", metavar="JOB_FILE", show_default="./job.yaml, or none"
        ),
    ] = None,
    set_: Set = None,
    backend: BackendKind = None,
    store: StoreUri = None,
) -> None:
    """Test what a submission needs: Python, tools, ports, store, backend.

    Python and torch, shell tools, ports, the store (one object is written, read and deleted), the clock, the backend
    with your credentials. No job is started.

    Exit codes: 0 all is well (or worth a warning), 3 something is not.
    """
    from jobsubmit import doctor as examination
    from jobsubmit.cli.job_file import overrides, read_job

    file = job or (DEFAULT_JOB_FILE if DEFAULT_JOB_FILE.exists() else None)
    loaded = read_job(file, None, overrides(assignments=set_, backend=backend, store=store)) if file else None
    lines = []
    for line in examination.examine(load_settings(), loaded):
        lines.append(line)
        if not out.json:
            out.data(f"{line.verdict:<5} {line.subject:<8} {line.text}")
            if line.next_step:
                out.data(f"{'':<5} {'':<8} → {line.next_step}")
    if out.json:
        out.document([line._asdict() for line in lines])
    if any(line.verdict == "fail" for line in lines):
        raise typer.Exit(CheckError.code)
