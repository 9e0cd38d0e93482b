"""The form that all documents have, and the document of an error."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Document(BaseModel):
    model_config = ConfigDict(use_attribute_docstrings=True, extra="forbid", frozen=True)


class OpenDocument(Document):
    """A document whose further fields depend on the case."""

    model_config = ConfigDict(extra="allow")


class ErrorDocument(Document):
    """What a command prints instead of its document when it fails; the exit code of the process is `code`."""

    code: int
    """The exit code: `jobsubmit help exit-codes` lists them."""
    message: str
    """What is wrong, in English. One line for each problem."""
    hint: str
    """What to do next; empty if nothing is known to help."""
    where: str
    """Where it is wrong: `FILE:LINE`, an option or a path; empty if that is in the message."""
