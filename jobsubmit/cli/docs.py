"""The command that shows the documentation: docs."""

from __future__ import annotations

from importlib.metadata import metadata
from typing import Annotated

import typer

from jobsubmit.cli.console import out
from jobsubmit.common.resources import FOR_ASSISTANTS


def docs(
    for_assistants: Annotated[
        bool,
        typer.Option(
            "--for-assistants", help="Print the page for programs and coding assistants (Markdown), without a network."
        ),
    ] = False,
) -> None:
    """Show where the documentation is, or print the page for programs and assistants.

    That page says what to call, in which order, and what each exit code means.
    """
    if for_assistants:
        text = FOR_ASSISTANTS.read_text(encoding="utf-8").rstrip()
        if out.json:
            out.document({"topic": "for-assistants", "text": text})
        else:
            out.data(text)
        return
    urls = dict(url.split(", ", 1) for url in metadata("jobsubmit").get_all("Project-URL", []))
    address = f"{urls['Repository']}/tree/main/docs"
    if out.json:
        out.document({"topic": "documentation", "text": address})
        return
    out.data(address)
    out.talk("next: jobsubmit help lists the topics that you can read in the terminal")
