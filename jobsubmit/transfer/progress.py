"""How far a transfer is."""

from __future__ import annotations


class Progress:
    """Be told how far a transfer is, from several threads; this one keeps it to itself."""

    def begin(self, what: str, size: int, files: int) -> None:
        """Note that so many bytes and files are to be done from now on."""

    def advance(self, size: int, files: int = 0) -> None:
        """Note that so many more of them are done."""

    def say(self, text: str) -> None:
        """Tell the person something, at once."""
