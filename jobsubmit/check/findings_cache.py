"""A cache of the findings in code, so that it need not be checked again."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

import jobsubmit
from jobsubmit.agent.atomic_write import make_private, replace_file
from jobsubmit.bundle.model import OWN_FILE, Bundle
from jobsubmit.common.finding import Finding
from jobsubmit.plan.launch_plan import LaunchPlan
from jobsubmit.plan.plan_file import plan_text

_FORMAT = "jobsubmit-findings-1"
_MOST = 200  # entries; the oldest go first


def cache_key(plan: LaunchPlan, bundle: Bundle, python: str) -> str:
    """Return a digest of all that findings depend on.

    That is the plan, the code, Python, GPUs, the names of the shell's variables, and the checks themselves.
    """
    own = Path(__file__).parent
    stamps = sorted(f"{file.name} {file.stat().st_size} {file.stat().st_mtime_ns}" for file in own.rglob("*.py"))
    parts = [
        _FORMAT,
        jobsubmit.__version__,
        *stamps,
        plan_text(plan),
        bundle.digest,
        repr([one for one in bundle.left_out if one.reason != OWN_FILE]),
        *_packages(python),
        str(plan.backend.gpus_of_node(plan.nodes, plan.nproc_per_node)),
        plan.backend.why_no_gpus(plan.nodes, plan.nproc_per_node),
        *(sorted(os.environ) if plan.backend.is_this_machine else ()),
    ]
    return hashlib.sha256("\0".join(parts).encode("utf-8", "backslashreplace")).hexdigest()


def _packages(python: str) -> Iterable[str]:
    """Yield a Python, and when something was last installed for it."""
    yield python
    for folder in sorted(Path(python.partition(" (")[0]).parent.parent.glob("lib/python*/site-packages")):
        yield str(folder.stat().st_mtime_ns)


def load_findings(folder: Path, key: str) -> list[Finding] | None:
    """Return the stored findings, or None if there are none."""
    try:
        values = json.loads((folder / "findings" / key).read_bytes())
        return [Finding(**value) for value in values]
    except (OSError, ValueError, TypeError, RecursionError):
        return None


def save_findings(folder: Path, key: str, findings: Sequence[Finding]) -> None:
    """Store findings; if they cannot be written, do nothing."""
    own = folder / "findings"
    with suppress(OSError):
        make_private(str(own))
        replace_file(str(own / key), json.dumps([asdict(finding) for finding in findings]), is_durable=False)
        entries = sorted(own.iterdir(), key=lambda file: file.stat().st_mtime)
        for old in entries[:-_MOST]:
            old.unlink(missing_ok=True)
