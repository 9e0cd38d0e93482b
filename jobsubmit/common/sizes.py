"""Sizes in bytes, as people read them."""

from __future__ import annotations

_SCALE = 1000


def bytes_text(size: float) -> str:
    """Return a size: `660 B`, `39.3 MB`."""
    units = ["TB", "GB", "MB", "kB", "B"]
    while size >= _SCALE and len(units) > 1:
        size /= _SCALE
        units.pop()
    return f"{size:.3g} {units[-1]}"
