"""The Typer application, and the one place where an error becomes an exit code."""

from __future__ import annotations

import io
import os
import sys
from itertools import pairwise
from typing import Annotated

import typer
from typer.exceptions import TyperException

import jobsubmit
from jobsubmit.cli import start, submit, transfer, watch
from jobsubmit.cli.options import Debug
from jobsubmit.cli.output import out, show_error
from jobsubmit.errors import INTERRUPTED, JobSubmitError, UsageError

app = typer.Typer(
    name="jobsubmit",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Begin with: jobsubmit init demo, then jobsubmit create demo/job.yaml --follow",
)


def _version(value: bool) -> None:
    if value:
        out.data(jobsubmit.__version__)
        raise typer.Exit


@app.callback()
def root(
    debug: Debug = False,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Submit PyTorch distributed training jobs, and know before and after what goes wrong."""


app.command("create")(submit.create)
app.command("submit", hidden=True)(submit.create)
app.command("render")(submit.render)
app.command("validate")(submit.validate)
app.command("upload")(transfer.upload)
app.command("status")(watch.status)
app.command("logs")(watch.logs)
app.command("list")(watch.list_)
app.command("ls", hidden=True)(watch.list_)
app.command("wait")(watch.wait)
app.command("cancel")(watch.cancel)
app.command("stop", hidden=True)(watch.cancel)
app.command("init")(start.init)
app.command("schema")(start.schema)


def main() -> None:
    """Run the command line and exit with its code."""
    # An error may come before the option is parsed, and is JSON then too.
    out.json = any(pair in (("-o", "json"), ("--output", "json")) for pair in pairwise(sys.argv))
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal that cannot show a sign must not hide the exit code
    sys.exit(_run())


def _run() -> int:
    try:
        return app(standalone_mode=False) or 0
    except typer.Exit as done:
        return done.exit_code
    except (KeyboardInterrupt, typer.Abort):
        out.talk("interrupted")
        return INTERRUPTED
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception as error:
        if out.debug:
            raise
        known = _known(error)
        show_error(known)
        return known.code


def _known(error: Exception) -> JobSubmitError:
    if isinstance(error, JobSubmitError):
        return error
    if isinstance(error, TyperException):
        return UsageError(error.format_message(), "`jobsubmit COMMAND --help` shows what there is")
    return JobSubmitError(f"this is a bug in jobsubmit: {type(error).__name__}: {error}", "run it again with --debug")
