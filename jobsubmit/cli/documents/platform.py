"""What is about the tool and its platforms: tests, help, addresses, and objects of others."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import RootModel

from jobsubmit.cli.documents.base import Document, OpenDocument


class Test(Document):
    """What `doctor` tested."""

    subject: str
    verdict: Literal["ok", "warn", "fail"]
    text: str
    next_step: str


class HelpTopic(Document):
    """A topic that `help` explains."""

    topic: str
    about: str


class HelpText(Document):
    """The explanation of a topic."""

    topic: str
    text: str


class PageAddress(Document):
    """Where the live page is served."""

    url: str
    """The address, with the token that whoever opens it must know."""
    pid: int
    """The process that serves it until it gets SIGINT or SIGTERM."""


class AnyJson(RootModel[dict[str, Any]]):
    """A JSON object whose form is that of another document: a job file, or a JSON Schema."""


class PlatformObject(OpenDocument):
    """An object as the platform's API returns it."""
