"""The common part of create, run and rerun, after their options are read."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict

import typer

from jobsubmit.cli import console, formatting
from jobsubmit.cli.console import LATER, out
from jobsubmit.cli.findings import READING, show_notes
from jobsubmit.config import Settings
from jobsubmit.errors import INTERRUPTED
from jobsubmit.jobs import monitor as following, prepare, submit
from jobsubmit.jobs.prepare import Demands, Prepared
from jobsubmit.jobs.records import JobRecords
from jobsubmit.plan.fault_injection import Fault
from jobsubmit.spec.loader import LoadedSpec

_LONGEST_LINE = 4000


def demands_of(
    job_id: str | None,
    faults: Sequence[str] | None,
    *,
    checks: bool,
    is_clean: bool,
    rechecks: bool,
    expected: str | None = None,
) -> Demands:
    """Return what the options ask for in addition to the job file."""
    parsed = tuple(Fault.parse(text) for text in faults or ())
    return Demands(job_id, checks, is_clean, parsed, rechecks, expected or "")


def act(
    loaded: LoadedSpec,
    settings: Settings,
    demands: Demands,
    *,
    dry_run: bool,
    follow: bool | None,
    propagate: bool,
    key: str | None = None,
) -> None:
    """Prepare a job, show the notes on it, and submit it, or show what would be submitted."""
    with console.said_if_slow(READING):
        found = prepare.examine(loaded, settings, demands)
    if any(finding.level == "error" for finding in found.findings):
        show_notes((), [finding for finding in found.findings if finding.level == "warning"])
    prepared = prepare.accept(found, demands)
    act_on(prepared, settings, dry_run=dry_run, follow=follow, propagate=propagate, key=key)


def act_on(
    prepared: Prepared,
    settings: Settings,
    *,
    dry_run: bool,
    follow: bool | None,
    propagate: bool,
    key: str | None = None,
) -> None:
    """Show the notes on a prepared job, and submit it, or show what would be submitted."""
    show_notes(prepared.notes, prepared.findings)
    if dry_run:
        _show_dry_run(prepared)
    else:
        _submit(prepared, settings, follow=follow, propagate=propagate, key=key)


def _interrupted(prepared: Prepared, settings: Settings) -> str:
    """Return what became of a submission that the user interrupted."""
    record = JobRecords(settings).read(prepared.request.job_id)
    if record is None or not record.is_unsure:
        return "interrupted: the job was not submitted"
    hint = f"check before you submit it again: jobsubmit status {record.id}"
    return f"interrupted while the job was handed over: it may run; {hint}"


def _submit(prepared: Prepared, settings: Settings, *, follow: bool | None, propagate: bool, key: str | None) -> None:
    try:
        with console.transfer_progress() as progress:
            if key is None:
                submission = submit.submit(prepared, settings, progress=progress)
            else:
                submission = submit.submit_once(prepared, settings, key, progress=progress)
    except KeyboardInterrupt:
        out.talk(_interrupted(prepared, settings))
        raise typer.Exit(INTERRUPTED) from None
    if not out.json:
        out.data(str(submission.handle))
    if submission.is_earlier:
        state = following.status(submission.record, settings).state.value
        out.talk(
            f"a job with this key exists: {submission.record.id}, submitted {submission.record.created_at}, now {state}"
        )
    if submission.summary.skipped:
        out.talk(f"code unchanged: {console.counted(submission.summary.skipped, 'file')} already in the store")
    if submission.summary.copied:
        out.talk(
            f"{console.counted(submission.summary.copied, 'large file')} copied from the last upload, within the store"
        )
    if prepared.python:
        out.talk(f"python of the nodes: {prepared.python}")
    if prepared.plan.profile:
        out.talk(f"training steps are timed: jobsubmit report {submission.record.id}")
    if sys.stdout.isatty() if follow is None else follow:
        from jobsubmit.cli.status import follow_to_the_end

        follow_to_the_end(submission.record, settings, propagate=propagate)
    elif out.json:
        out.document(formatting.job_document(submission.record, following.status(submission.record, settings)))
    else:
        out.talk(f"follow it: jobsubmit logs -f {submission.record.id}")


def _show_dry_run(prepared: Prepared) -> None:
    files = prepared.bundle.files if prepared.bundle else ()
    left_out = [(left.path, left.reason) for left in prepared.bundle.left_out] if prepared.bundle else []
    if out.json:
        bundle = {"left_out": [{"path": path, "reason": reason} for path, reason in left_out]}
        out.long_document(
            {
                "digest": prepared.digest,
                "job_id": prepared.request.job_id,
                "code": {"uri": prepared.code.uri, "layout": prepared.code.layout, "digest": prepared.code.digest},
                "bundle": {"files": LATER, **bundle},
                "git": prepared.revision,
                "script": {"text": prepared.script.text, "sha256": prepared.script.sha256},
                "request": dict(prepared.request.documents),
                "notes": list(prepared.notes),
                "findings": [asdict(finding) for finding in prepared.findings],
            },
            (file.entry() for file in files),
        )
        return
    out.data(f"# ── bundle → {prepared.code.uri} ({prepared.code.layout})")
    for file in files:
        out.data(f"{file.mode} {file.size:>12,}  {json.dumps(file.path, ensure_ascii=False)}")
    if prepared.bundle is None:
        out.data("the code is already in the bucket; nothing is uploaded")
    for path, reason in left_out:
        out.data(f"left out: {json.dumps(path, ensure_ascii=False)} ({reason})")
    out.data(f"# ── script, sha256 {prepared.script.sha256}")
    out.script(prepared.script.text)
    for name, text in prepared.request.documents.items():
        out.data(f"# ── request {name}")
        out.data("\n".join(_cut(line) for line in text.rstrip("\n").split("\n")))
    only = "" if prepared.rerun_of else "; the same command with --expect DIGEST instead of --dry-run submits only this"
    out.data(f"# ── digest {prepared.digest}{only}")


def _cut(line: str) -> str:
    """Return a line, cut if it is too long to read: an embedded program is one line of many thousand characters."""
    rest = len(line) - _LONGEST_LINE
    return line if rest <= 0 else f"{line[:_LONGEST_LINE]}… ({rest:,} more characters; -o json shows all)"
