"""The agent archive: the agent as one file that any Python from 3.8 runs."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from jobsubmit import agent as agent_package

_FOR_USERS = ("__init__.py", "node.py", "profiling.py")  # what training code may import
_LONG_AGO = (1980, 1, 1, 0, 0, 0)


@cache
def agent_archive() -> bytes:
    """Return the agent archive: the same bytes wherever this version of jobsubmit is installed."""
    import io
    import zipfile  # its digest alone is needed more often

    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as program:
        for name, content in _files():
            program.writestr(zipfile.ZipInfo(name, _LONG_AGO), content, zipfile.ZIP_DEFLATED)
    return made.getvalue()


@cache
def agent_digest() -> str:
    """Return what differs for every agent archive; found in a fifth of the time that making it takes."""
    found = hashlib.sha256()
    for name, content in _files():
        found.update(b"%s\0%d\0%s" % (name.encode(), len(content), content))
    return found.hexdigest()[:16]


def _files() -> Iterator[tuple[str, bytes]]:
    """Yield name and content of each file of the archive."""
    root = Path(agent_package.__path__[0]).parent
    for file in [*(root / name for name in _FOR_USERS), *sorted((root / "agent").rglob("*.py"))]:
        path = file.relative_to(root).as_posix()
        yield "__main__.py" if path == "agent/__main__.py" else f"jobsubmit/{path}", file.read_bytes()
