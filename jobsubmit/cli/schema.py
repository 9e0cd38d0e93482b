"""The command that prints JSON Schemas: schema."""

from __future__ import annotations

from typing import Annotated

import typer

from jobsubmit.cli.commands import ALIASES, COMMANDS
from jobsubmit.cli.console import out
from jobsubmit.errors import UsageError, did_you_mean


def _commands(incomplete: str) -> list[str]:
    return [name for name in (*COMMANDS, "error") if name.startswith(incomplete)]


def schema(
    output: Annotated[
        list[str] | None,
        typer.Option(
            "--output",
            "-o",
            metavar="COMMAND",
            help="Print the schema of what COMMAND prints with -o json; `error`: of what every command prints if it "
            "fails.",
            autocompletion=_commands,
        ),
    ] = None,
) -> None:
    """Print the JSON Schema of a job file, or of a command's JSON output.

    Editors that support YAML schemas complete and check a job file whose first
    line names the schema:
    # yaml-language-server: $schema=job.schema.json
    """
    # As a format, which every command takes: a schema is JSON in any case.
    wanted = [word for word in output or () if word not in ("json", "text")]
    if not wanted:
        from jobsubmit.spec.json_schema import json_schema

        out.document(json_schema())
        return
    from jobsubmit.cli.documents.schemas import DOCUMENTS, document_schema

    name = ALIASES.get(wanted[-1], wanted[-1])
    if name not in DOCUMENTS:
        names = ", ".join(f"`{known}`" for known in DOCUMENTS)
        hint = did_you_mean(name, DOCUMENTS) + f"commands with JSON output: {names}"
        raise UsageError(f"--output {name}: there is no command of this name", hint)
    out.document(document_schema(name))
