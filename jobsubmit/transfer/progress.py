"""The progress of a transfer."""

from __future__ import annotations


class Progress:
    """Receives the progress of a transfer, from several threads; this one shows nothing."""

    def begin(self, what: str, size: int, files: int) -> None:
        """Begin a phase that transfers this many bytes and files."""

    def advance(self, size: int, files: int = 0) -> None:
        """Add bytes and files that were transferred."""

    def say(self, text: str) -> None:
        """Show a text to the user at once."""
