"""The command that prints the JSON Schema of a job file: schema."""

from __future__ import annotations

from jobsubmit.cli.console import out


def schema() -> None:
    """Print the JSON Schema of a job file.

    An editor that knows YAML schemas completes and checks a job file whose first line names it:
    # yaml-language-server: $schema=job.schema.json
    """
    from jobsubmit.spec.json_schema import json_schema

    out.document(json_schema())
