"""The Typer application: which commands there are."""

from __future__ import annotations

import importlib
from typing import Annotated, Any

import typer
from typer.exceptions import TyperException

import jobsubmit
from jobsubmit.cli import transfer
from jobsubmit.cli.options import Debug
from jobsubmit.cli.output import out
from jobsubmit.errors import UsageError

# See transfer.py for why.
_OWN_PARSER: dict[str, Any] = {
    "add_help_option": False,
    "context_settings": {"ignore_unknown_options": True, "allow_extra_args": True, "help_option_names": []},
}

# Command → the file of this folder and the function in it; only what is called is loaded, for start-up time.
_COMMANDS = {
    "create": ("submit", "create"),
    "submit": ("submit", "create"),
    "render": ("preview", "render"),
    "validate": ("submit", "validate"),
    "bundle": ("bundle", "bundle"),
    "upload": ("app", "upload"),
    "download": ("app", "download"),
    "rerun": ("submit", "rerun"),
    "status": ("watch", "status"),
    "describe": ("watch", "describe"),
    "logs": ("logs", "logs"),
    "events": ("watch", "events"),
    "report": ("report", "report"),
    "list": ("records", "list_"),
    "ls": ("records", "list_"),
    "wait": ("watch", "wait"),
    "cancel": ("watch", "cancel"),
    "stop": ("watch", "cancel"),
    "delete": ("records", "delete"),
    "prune": ("records", "prune"),
    "doctor": ("doctor", "doctor"),
    "init": ("start", "init"),
    "schema": ("start", "schema"),
}
_ALIASES = ("submit", "ls", "stop")

app = typer.Typer(
    name="jobsubmit",
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


def upload(context: typer.Context) -> int:
    """Upload a directory, whole or what changed of it."""
    return transfer.run("upload", context.args)


def download(context: typer.Context) -> int:
    """Download what was uploaded, proven file by file."""
    return transfer.run("download", context.args)


def _register(called: str) -> None:
    """Make the command known that is called, or all where none of them is."""
    for name in [called] if called in _COMMANDS else _COMMANDS:
        module, function = _COMMANDS[name]
        command = getattr(importlib.import_module(f"jobsubmit.cli.{module}"), function)
        own = _OWN_PARSER if name in ("upload", "download") else {}
        app.command(name, hidden=name in _ALIASES, **own)(command)


def run(arguments: list[str]) -> int:
    """Run one command and return its exit code."""
    _register(arguments[0] if arguments else "")
    # Its value may be left out, which Typer has no way to say.
    words = ["--profile-sync=sync" if word == "--profile-sync" else word for word in arguments]
    try:
        return app(words or ["--help"], standalone_mode=False) or 0
    except typer.Exit as done:
        return done.exit_code
    except typer.Abort:
        raise KeyboardInterrupt from None
    except TyperException as error:
        command = f"{arguments[0]} " if arguments and arguments[0] in _COMMANDS else ""
        raise UsageError(error.format_message(), f"`jobsubmit {command}--help` shows what there is") from error
