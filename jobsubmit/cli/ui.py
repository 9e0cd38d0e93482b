"""The command that serves the pages: ui."""

from __future__ import annotations

import os
from contextlib import ExitStack
from typing import Annotated

import typer

import jobsubmit
from jobsubmit.cli.console import out
from jobsubmit.cli.options import job_names
from jobsubmit.config import load_settings
from jobsubmit.errors import UsageError
from jobsubmit.jobs.records import JobRecords


def ui(
    job: Annotated[
        str | None, typer.Argument(help="Begin with the page of this job.", metavar="[JOB]", autocompletion=job_names)
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(
            "--port", metavar="N", min=0, max=65535, help="Port to listen on.", show_default="6070, or a free one"
        ),
    ] = None,
    opens: Annotated[bool, typer.Option("--open", help="Open the page in your browser.")] = False,
) -> None:
    """Show all jobs on a live page: progress, curves, ranks, logs, failures.

    Serves the page on 127.0.0.1 until Ctrl-C. The address contains a token:
    nobody else on this machine can read the page. It works through an SSH
    forward (ssh -L 6070:127.0.0.1:6070 HOST) and in the port view of an editor.
    Needs the extra `ui`: pip install 'jobsubmit[ui]'.
    """
    settings = load_settings()
    record = JobRecords(settings).find(job) if job is not None else None
    try:
        from jobsubmit.ui import guard, server
    except ModuleNotFoundError as error:
        if error.name not in ("starlette", "uvicorn", "anyio"):
            raise
        text = f"the page needs the package {error.name}, which is not installed"
        raise UsageError(text, "pip install 'jobsubmit[ui]'") from None
    token = guard.new_token()
    with ExitStack() as open_things:
        listening = open_things.enter_context(server.listen(port))
        address = server.address_of(listening, token, record.id if record is not None else "")
        if out.json:
            out.document({"url": address, "pid": os.getpid()})
        else:
            out.data(address)
            number = listening.getsockname()[1]
            out.talk(f"press Ctrl-C to stop; from another machine: ssh -L {number}:127.0.0.1:{number} THIS-HOST")
        if opens:
            open_things.enter_context(server.opened(address))
        server.serve(listening, settings, token, version=jobsubmit.__version__)
