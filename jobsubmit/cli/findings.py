"""What was found in a job and its code, as people see it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from jobsubmit.cli.console import out
from jobsubmit.common.finding import Finding, Level

READING = "reading the code …"
# In the order in which they are shown.
SAID: Mapping[Level, str] = {"error": "error", "warning": "warning", "unknown": "cannot tell", "hint": "hint"}


def show_notes(
    notes: Sequence[str], findings: Sequence[Finding], levels: Collection[Level] = ("error", "warning")
) -> None:
    """Show what was found: a submission is not the moment for hints, nor for what nobody can tell."""
    for note in notes:
        out.talk(f"note: {note}")
    for finding in findings:
        if finding.level in levels:
            out.talk(f"{SAID[finding.level]}: {finding}", "yellow" if finding.level == "warning" else "")
            if finding.hint:
                out.talk(f"  hint: {finding.hint}")
