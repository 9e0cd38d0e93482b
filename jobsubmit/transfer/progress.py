"""How far a transfer is."""

from __future__ import annotations


class Progress:
    """Is called with how far a transfer is, from several threads; this one shows nothing."""

    def begin(self, what: str, size: int, files: int) -> None:
        """Note that so many bytes and files are to be done from now on."""

    def advance(self, size: int, files: int = 0) -> None:
        """Note that so many more of them are done."""

    def say(self, text: str) -> None:
        """Tell the person something, at once."""
