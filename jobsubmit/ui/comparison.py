"""How the job files of compared jobs differ."""

from __future__ import annotations

import difflib
from collections.abc import Sequence

from jobsubmit.agent.job_directory import RESOLVED
from jobsubmit.report.model import Paper, Report


def differences(reports: Sequence[Report]) -> list[Paper]:
    """Return the differences of the job file of each job, as it was resolved, from that of the first."""
    files = [{paper.name: paper.text for paper in report.papers}.get(RESOLVED, "") for report in reports]
    found = []
    for report, text in zip(reports[1:], files[1:], strict=True):
        first, other = reports[0].record.id, report.record.id
        lines = difflib.unified_diff(files[0].splitlines(), text.splitlines(), first, other, lineterm="")
        if difference := "\n".join(lines):
            found.append(Paper(f"{first} → {other}", difference))
    return found
