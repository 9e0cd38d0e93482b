"""The command that tests what a submission needs: doctor."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from jobsubmit.cli.console import out
from jobsubmit.cli.job_file_options import DEFAULT_JOB_FILE, BackendKind, Set, StoreUri
from jobsubmit.common.language import translate
from jobsubmit.config import load_settings
from jobsubmit.errors import CheckError, UsageError


def doctor(
    job: Annotated[
        Path | None,
        typer.Argument(
            help="Also test the store, backend and code of this job file.",
            metavar="JOB_FILE",
            show_default="./job.yaml if it exists",
        ),
    ] = None,
    set_: Set = None,
    backend: BackendKind = None,
    store: StoreUri = None,
) -> None:
    """Test what a submission needs: Python, tools, ports, store, backend.

    Tests Python and torch, shell tools, ports, the store (writes, reads and
    deletes one object), the clock, and the backend with your credentials.
    Starts no job. The options change the job file, and need one.

    Exit codes: 0 no test failed (warnings are allowed), 3 a test failed.
    """
    from jobsubmit import doctor as examination
    from jobsubmit.cli.job_file import overrides, read_job

    file = job or (DEFAULT_JOB_FILE if DEFAULT_JOB_FILE.exists() else None)
    changes = overrides(assignments=set_, backend=backend, store=store)
    if changes and file is None:
        raise UsageError(
            f"{changes[0].source} changes a job file, and there is no {DEFAULT_JOB_FILE} here",
            "name a job file: jobsubmit doctor JOB_FILE, then the options",
        )
    loaded = read_job(file, None, changes) if file else None
    lines = []
    for line in examination.examine(load_settings(), loaded):
        lines.append(line)
        if not out.json:
            out.data(f"{line.verdict:<5} {line.subject:<8} {translate(line.text)}")
            if line.next_step:
                out.data(f"{'':<5} {'':<8} → {translate(line.next_step)}")
    if out.json:
        out.document([line._asdict() for line in lines])
    if any(line.verdict == "fail" for line in lines):
        raise typer.Exit(CheckError.code)
