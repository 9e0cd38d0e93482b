"""The Typer application and its commands."""

from __future__ import annotations

import importlib
import inspect
import os
import sys
from collections.abc import Callable
from functools import wraps
from typing import Annotated, Any

import typer
from typer.exceptions import TyperException

import jobsubmit
from jobsubmit.cli.commands import ALIASES, BEGIN, COMMANDS
from jobsubmit.cli.console import out
from jobsubmit.cli.options import Debug, Format
from jobsubmit.cli.parsed_values import leave_text_alone
from jobsubmit.errors import UsageError

# What comes after the first word is the user's command, options and all.
_ENDS_IN_A_COMMAND: dict[str, Any] = {"context_settings": {"allow_interspersed_args": False}}
# See upload.py for why.
_OWN_PARSER: dict[str, Any] = {
    "add_help_option": False,
    "context_settings": {"ignore_unknown_options": True, "allow_extra_args": True, "help_option_names": []},
}
_HELP_OF_A_COMMAND = 2  # words

app = typer.Typer(
    name="jobsubmit",
    pretty_exceptions_enable=False,
    rich_markup_mode="rich" if sys.stdout.isatty() else None,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=BEGIN,
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
    """Submit PyTorch distributed training jobs, find mistakes before you pay for GPUs, and see why a job failed."""


def upload(context: typer.Context) -> int:
    """Upload a directory, or only what changed in it."""
    from jobsubmit.cli import upload as transfer

    return transfer.run("upload", context.args)


def download(context: typer.Context) -> int:
    """Download a directory and verify each file."""
    from jobsubmit.cli import upload as transfer

    return transfer.run("download", context.args)


def register(called: str) -> None:
    """Register the command that is called; if there is none, register the summaries of all commands."""
    app.registered_commands.clear()
    completes = "_JOBSUBMIT_COMPLETE" in os.environ  # a shell asks for the options of one of them
    for name in [called] if called in COMMANDS else COMMANDS:
        file, function, about, _, _ = COMMANDS[name]
        own = _OWN_PARSER if name in ("upload", "download") else {}
        settings = _ENDS_IN_A_COMMAND if name == "run" else own
        is_needed = name == called or completes
        command = getattr(importlib.import_module(f"jobsubmit.cli.{file}"), function) if is_needed else _only_shown
        app.command(name, hidden=name in ALIASES, short_help=about, epilog=_epilog(name), **settings)(
            _with_shared(command) if is_needed and not own else command
        )


def _epilog(name: str) -> str:
    """Return the text after the options of a command: rich breaks lines at empty ones, plain text at a mark."""
    lines = COMMANDS[name].epilog()
    return "\n\n".join(filter(None, lines)) if sys.stdout.isatty() else "\b\n" + "\n".join(lines)


def _shared(format_: Format = "text", debug: Debug = False) -> None:
    """Declare the options that every command has; they take effect when they are parsed (options.py)."""


def _with_shared(command: Callable[..., int | None]) -> Callable[..., int | None]:
    """Return a command that also takes the shared options."""
    own, shared = (dict(inspect.signature(one, eval_str=True).parameters) for one in (command, _shared))
    if "output" in own:
        del shared["format_"]

    @wraps(command)
    def run(**values: Any) -> int | None:
        return command(**{name: value for name, value in values.items() if name in own})

    run.__signature__ = inspect.Signature([*own.values(), *shared.values()])  # type: ignore[attr-defined]
    return run


def _only_shown() -> None:
    raise AssertionError("a command that is called is loaded")


def _show_help(name: str) -> None:
    """Print the help of a command. Typer would load Pydantic first, to parse the arguments."""
    group = typer.main.get_group(app)
    command = group.commands[name]
    above = typer.Context(group, info_name=app.info.name, **group.context_settings)
    text = command.get_help(typer.Context(command, parent=above, info_name=name, **command.context_settings))
    if text:  # rich prints by itself
        out.data(text)


def _root() -> typer.core.TyperGroup:
    """Return what parses the command line: the group of all registered commands."""
    root = typer.main.get_command(app)
    assert isinstance(root, typer.core.TyperGroup)
    for command in (root, *root.commands.values()):
        leave_text_alone(command)
    return root


def run(arguments: list[str]) -> int:
    """Run one command and return its exit code."""
    register(next((word for word in arguments if not word.startswith("-")), ""))
    # Its value may be left out, which Typer has no way to say.
    end = arguments.index("--") if "--" in arguments else len(arguments)  # what follows is a user's command
    ours = ["--profile-sync=sync" if word == "--profile-sync" else word for word in arguments[:end]]
    words = ours + arguments[end:]
    if len(words) == _HELP_OF_A_COMMAND and words[0] in COMMANDS and words[1] in ("--help", "-h"):
        _show_help(words[0])
        return 0
    try:
        return _root().main(words or ["--help"], standalone_mode=False) or 0
    except typer.Exit as done:
        return done.exit_code
    except typer.Abort:
        raise KeyboardInterrupt from None
    except TyperException as error:
        command = f"{arguments[0]} " if arguments and arguments[0] in COMMANDS else ""
        raise UsageError(
            error.format_message().replace("Value error, ", ""), f"run `jobsubmit {command}--help` for usage"
        ) from error
