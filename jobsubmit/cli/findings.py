"""Show the findings about a job and its code."""

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
    """Show notes, and the findings of some levels: by default not the hints, nor what could not be decided."""
    for note in notes:
        out.talk(f"note: {note}")
    for finding in findings:
        if finding.level in levels:
            out.talk(f"{SAID[finding.level]}: {finding}", "yellow" if finding.level == "warning" else "")
            if finding.hint:
                out.talk(f"  hint: {finding.hint}")
