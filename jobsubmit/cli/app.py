"""The Typer application: which commands there are."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from typer.exceptions import TyperException

import jobsubmit
from jobsubmit.cli import logs, preview, records, start, submit, transfer, watch
from jobsubmit.cli.options import Debug
from jobsubmit.cli.output import out
from jobsubmit.errors import UsageError

# See transfer.py for why.
_OWN_PARSER: dict[str, Any] = {
    "add_help_option": False,
    "context_settings": {"ignore_unknown_options": True, "allow_extra_args": True, "help_option_names": []},
}

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
app.command("render")(preview.render)
app.command("validate")(submit.validate)
app.command("rerun")(submit.rerun)
app.command("status")(watch.status)
app.command("describe")(watch.describe)
app.command("logs")(logs.logs)
app.command("events")(watch.events)
app.command("list")(records.list_)
app.command("ls", hidden=True)(records.list_)
app.command("wait")(watch.wait)
app.command("cancel")(watch.cancel)
app.command("stop", hidden=True)(watch.cancel)
app.command("delete")(records.delete)
app.command("prune")(records.prune)
app.command("init")(start.init)
app.command("schema")(start.schema)


@app.command("upload", **_OWN_PARSER)
def upload(context: typer.Context) -> int:
    """Upload a directory, whole or what changed of it."""
    return transfer.run("upload", context.args)


@app.command("download", **_OWN_PARSER)
def download(context: typer.Context) -> int:
    """Download what was uploaded, proven file by file."""
    return transfer.run("download", context.args)


def run(arguments: list[str]) -> int:
    """Run one command and return its exit code."""
    try:
        return app(arguments, standalone_mode=False) or 0
    except typer.Exit as done:
        return done.exit_code
    except typer.Abort:
        raise KeyboardInterrupt from None
    except TyperException as error:
        raise UsageError(error.format_message(), "`jobsubmit COMMAND --help` shows what there is") from error
