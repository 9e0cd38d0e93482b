"""The program that sees a node through, as one file that any Python from 3.8 runs."""

from __future__ import annotations

import hashlib
import io
import zipfile
from functools import cache
from pathlib import Path

from jobsubmit import node

_LONG_AGO = (1980, 1, 1, 0, 0, 0)


@cache
def nodeware() -> bytes:
    """Return the program: the same bytes wherever this version of jobsubmit is installed."""
    root = Path(node.__path__[0])
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as program:
        for file in sorted(root.rglob("*.py")):
            path = file.relative_to(root).as_posix()
            name = path if path == "__main__.py" else f"node/{path}"
            program.writestr(zipfile.ZipInfo(name, _LONG_AGO), file.read_bytes(), zipfile.ZIP_DEFLATED)
    return made.getvalue()


def nodeware_sha256() -> str:
    """Return the hex digest of the program."""
    return hashlib.sha256(nodeware()).hexdigest()
