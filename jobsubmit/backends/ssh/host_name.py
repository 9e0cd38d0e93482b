"""What a host may be called, and how many a job may have."""

from __future__ import annotations

import re

HOST = r"[A-Za-z0-9_\[][A-Za-z0-9_.@:%\[\]-]*"  # as the ssh command takes it
MOST_HOSTS = 64


def is_host(text: str) -> bool:
    """Return whether a text can name a host; never one that ssh would take for an option."""
    return re.fullmatch(HOST, text) is not None
