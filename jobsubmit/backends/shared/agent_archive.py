"""The agent archive: the agent as one file that any Python from 3.8 runs."""

from __future__ import annotations

import io
import zipfile
from functools import cache
from pathlib import Path

from jobsubmit import agent as agent_package

_FOR_USERS = ("__init__.py", "node.py", "profiling.py")  # what training code may import
_LONG_AGO = (1980, 1, 1, 0, 0, 0)


@cache
def agent_archive() -> bytes:
    """Return the agent archive: the same bytes wherever this version of jobsubmit is installed."""
    root = Path(agent_package.__path__[0]).parent
    agent = sorted((root / "agent").rglob("*.py"))
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as program:
        for file in [*(root / name for name in _FOR_USERS), *agent]:
            path = file.relative_to(root).as_posix()
            name = "__main__.py" if path == "agent/__main__.py" else f"jobsubmit/{path}"
            program.writestr(zipfile.ZipInfo(name, _LONG_AGO), file.read_bytes(), zipfile.ZIP_DEFLATED)
    return made.getvalue()
