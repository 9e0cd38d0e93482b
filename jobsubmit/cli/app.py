"""The Typer application: which commands there are."""

from __future__ import annotations

import importlib
import inspect
import os
from collections.abc import Callable
from functools import wraps
from typing import Annotated, Any, NamedTuple

import typer
from typer.exceptions import TyperException

import jobsubmit
from jobsubmit.cli.console import out
from jobsubmit.cli.options import Debug, Format
from jobsubmit.errors import UsageError

# What comes after the first word is the user's command, options and all.
_ENDS_IN_A_COMMAND: dict[str, Any] = {"context_settings": {"allow_interspersed_args": False}}
# See upload.py for why.
_OWN_PARSER: dict[str, Any] = {
    "add_help_option": False,
    "context_settings": {"ignore_unknown_options": True, "allow_extra_args": True, "help_option_names": []},
}


class _Command(NamedTuple):
    """Which file of this folder and which function in it is a command, and what it does, in a line."""

    file: str
    function: str
    about: str


# Only what is called is loaded, and to show what there is nothing is, for start-up time.
COMMANDS = {
    "create": _Command("create", "create", "Submit a job and follow it."),
    "run": _Command("create", "run", "Submit a command as a job, without a job file."),
    "render": _Command("render", "render", "Print the start script of a job."),
    "validate": _Command("create", "validate", "Check a job file and its code, and tell what cannot work."),
    "bundle": _Command("bundle", "bundle", "Show what of the code directory would be uploaded."),
    "upload": _Command("app", "upload", "Upload a directory, whole or what changed of it."),
    "download": _Command("app", "download", "Download what was uploaded, proven file by file."),
    "rerun": _Command("create", "rerun", "Submit an earlier job again, exactly as it was."),
    "status": _Command("status", "status", "Show how a job is, and who failed first."),
    "describe": _Command("status", "describe", "Show everything that is known of a job."),
    "logs": _Command("logs", "logs", "Print what the nodes and ranks said, in the order of time."),
    "events": _Command(
        "status", "events", "Print what happened to a job, with times: steps, processes, failures, restarts."
    ),
    "report": _Command(
        "report", "report", "Show what became of a job's time: its phases, and what each training step spent on what."
    ),
    "list": _Command("list", "list_", "List the jobs of this machine, newest first."),
    "wait": _Command("status", "wait", "Wait until a job has ended."),
    "cancel": _Command("status", "cancel", "End a job."),
    "delete": _Command(
        "list", "delete", "Remove jobs that have ended: their logs and all else this machine keeps of them."
    ),
    "prune": _Command("list", "prune", "Remove the jobs that were submitted before a time and have ended."),
    "doctor": _Command("doctor", "doctor", "Try out what a submission from here needs."),
    "flavors": _Command("modelarts", "flavors", "List the machine types that ModelArts has for training jobs."),
    "engines": _Command("modelarts", "engines", "List the preset frameworks that ModelArts has for mode spawn."),
    "init": _Command("init", "init", "Write a first job.yaml."),
    "import": _Command("import_", "import_", "Print the job file that says what a job of ModelArts' own tools says."),
    "schema": _Command("schema", "schema", "Print the JSON Schema of a job file."),
}
_ALIASES = {"submit": "create", "ls": "list", "stop": "cancel"}
COMMANDS |= {alias: COMMANDS[name] for alias, name in _ALIASES.items()}

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
    from jobsubmit.cli import upload as transfer

    return transfer.run("upload", context.args)


def download(context: typer.Context) -> int:
    """Download what was uploaded, proven file by file."""
    from jobsubmit.cli import upload as transfer

    return transfer.run("download", context.args)


def _register(called: str) -> None:
    """Make the command known that is called, or, to show them, what all of them are for."""
    app.registered_commands.clear()
    completes = "_JOBSUBMIT_COMPLETE" in os.environ  # a shell asks for the options of one of them
    for name in [called] if called in COMMANDS else COMMANDS:
        file, function, about = COMMANDS[name]
        own = _OWN_PARSER if name in ("upload", "download") else {}
        settings = _ENDS_IN_A_COMMAND if name == "run" else own
        is_needed = name == called or completes
        command = getattr(importlib.import_module(f"jobsubmit.cli.{file}"), function) if is_needed else _only_shown
        app.command(name, hidden=name in _ALIASES, short_help=about, **settings)(
            _with_shared(command) if is_needed and not own else command
        )


def _shared(format_: Format = "text", debug: Debug = False) -> None:
    """Have the options that every command has; they act where they are parsed (options.py)."""


def _with_shared(command: Callable[..., int | None]) -> Callable[..., int | None]:
    """Return a command that takes the shared options, too."""
    own, shared = (inspect.signature(one, eval_str=True).parameters for one in (command, _shared))

    @wraps(command)
    def run(**values: Any) -> int | None:
        return command(**{name: value for name, value in values.items() if name in own})

    run.__signature__ = inspect.Signature([*own.values(), *shared.values()])  # type: ignore[attr-defined]
    return run


def _only_shown() -> None:
    raise AssertionError("a command that is called is loaded")


def run(arguments: list[str]) -> int:
    """Run one command and return its exit code."""
    _register(next((word for word in arguments if not word.startswith("-")), ""))
    # Its value may be left out, which Typer has no way to say.
    end = arguments.index("--") if "--" in arguments else len(arguments)  # what follows is a user's command
    ours = ["--profile-sync=sync" if word == "--profile-sync" else word for word in arguments[:end]]
    words = ours + arguments[end:]
    try:
        return app(words or ["--help"], standalone_mode=False) or 0
    except typer.Exit as done:
        return done.exit_code
    except typer.Abort:
        raise KeyboardInterrupt from None
    except TyperException as error:
        command = f"{arguments[0]} " if arguments and arguments[0] in COMMANDS else ""
        raise UsageError(error.format_message(), f"`jobsubmit {command}--help` shows what there is") from error
