"""The command that converts jobs of ModelArts' own tools: import."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from jobsubmit.cli.console import out
from jobsubmit.errors import UsageError

_LONGEST_IMPORT = 4 << 20  # characters


def import_(
    file: Annotated[Path, typer.Argument(help="JSON of a training job, or a YAML file for ma-cli.", metavar="FILE")],
) -> None:
    """Convert a job of ModelArts' own tools into a job file.

    Reads the JSON of a training job, as the console and the API show it, or a
    YAML file for `ma-cli ma-job submit`. Reports what has no counterpart.
    """
    from jobsubmit.scaffold.from_modelarts import draft_from_modelarts, read_document

    try:
        with file.open(encoding="utf-8-sig") as stream:
            document = read_document(stream.read(_LONGEST_IMPORT), str(file))
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(
            f"{file} cannot be read: {getattr(error, 'strerror', None) or error}",
            "give a JSON or YAML file of ModelArts' own tools",
        ) from error
    if not isinstance(document, dict):
        raise UsageError(f"{file}: does not describe a training job", "give a JSON object, or a YAML mapping")
    draft = draft_from_modelarts(document)
    text = draft.text()
    for note in draft.notes:
        out.talk(f"note: {note}")
    if out.json:
        out.document(draft.fields)
        return
    out.data(f"# From {file.name}.\n{text.rstrip()}")
