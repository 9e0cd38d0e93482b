"""Paths of a node, as people read them."""

from __future__ import annotations

import re

_CODE_PATH = re.compile(r"/[^\s\"'():,;=]*/nodes/\d+/(?=[^/\s]+/)")


def short_paths(text: str) -> str:
    """Return a text in which paths of a node's code begin with the name of the code directory."""
    return _CODE_PATH.sub("", text) if "/nodes/" in text else text
