"""How statements are left before their end."""

from __future__ import annotations

from typing import Any, NamedTuple


class Return(NamedTuple):
    """A function returns a value."""

    value: Any


class Yielded(NamedTuple):
    """What a generator yields; in how many doubtful branches, and loops with an unknown number of passes."""

    value: Any
    doubts: int
    unknown_loops: int


BREAK = "break"
CONTINUE = "continue"
LEFT = "left"  # in every branch, in one way or another


class Raised(Exception):  # noqa: N818 - it is no error of ours
    """The program raises an error; `kind` is the name of its class."""

    def __init__(self, kind: str) -> None:
        super().__init__(kind)
        self.kind = kind


class Ended(Exception):  # noqa: N818 - it is no error of ours
    """The program ends here."""


class OutOfTimeError(Exception):
    """The program is too long to be followed further."""
