"""The commands that decide and act: create, run, rerun, validate."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated

import typer

from jobsubmit.cli import console, formatting
from jobsubmit.cli.console import LATER, out
from jobsubmit.cli.job_file_options import (
    DEFAULT_JOB_FILE,
    BackendKind,
    Check,
    DryRun,
    Env,
    Faults,
    Follow,
    JobFile,
    JobId,
    ModeChoice,
    Nodes,
    Profile,
    Recheck,
    RequireClean,
    Set,
    StoreUri,
    Templates,
    overrides,
    read_job,
)
from jobsubmit.cli.options import JobName, Propagate
from jobsubmit.cli.status import follow_to_the_end
from jobsubmit.common.finding import Finding, Level
from jobsubmit.config import Settings, load_settings
from jobsubmit.errors import INTERRUPTED, CheckError
from jobsubmit.jobs import monitor as following, prepare, submit
from jobsubmit.jobs.prepare import Demands, Prepared
from jobsubmit.jobs.records import find_job
from jobsubmit.jobs.rerun import prepare_rerun
from jobsubmit.plan.fault_injection import Fault
from jobsubmit.spec.loader import LoadedSpec, load_mapping

_LONGEST_LINE = 4000
_READING = "reading the code …"
# In the order in which they are shown.
_SAID: Mapping[Level, str] = {"error": "error", "warning": "warning", "unknown": "cannot tell", "hint": "hint"}


def create(
    job: JobFile = DEFAULT_JOB_FILE,
    set_: Set = None,
    nodes: Nodes = None,
    mode: ModeChoice = None,
    backend: BackendKind = None,
    store: StoreUri = None,
    env: Env = None,
    templates: Templates = None,
    profile: Profile = None,
    dry_run: DryRun = False,
    follow: Follow = None,
    job_id: JobId = None,
    idempotency_key: Annotated[
        str | None,
        typer.Option("--idempotency-key", metavar="KEY", help="Submitted before under this key? Then it is that job."),
    ] = None,
    fault: Faults = None,
    check: Check = True,
    require_clean: RequireClean = False,
    recheck: Recheck = False,
    propagate: Propagate = False,
) -> None:
    """Submit a job and follow it.

    The first line on stdout is the job's handle; what the job says while it is followed goes to stderr. Exit codes:
    0 the job succeeded (or was submitted), 2 the job file is wrong, 3 a check failed, 4 the store refused, 5 the
    backend refused, 100 the job failed, 103 it was cancelled, 130 you pressed Ctrl-C (the job goes on).

    Examples: jobsubmit create job.yaml --dry-run · jobsubmit create job.yaml --nodes 2 --set hyperparameters.lr=0.1
    """
    settings = load_settings()
    changes = overrides(
        assignments=set_, nodes=nodes, backend=backend, store=store, env=env, profile=profile, templates=templates
    )
    faults = tuple(Fault.parse(text) for text in fault or ())
    demands = Demands(job_id, check, require_clean, faults, recheck)
    prepared = _prepare(read_job(job, mode, changes), settings, demands)
    if dry_run:
        _show_dry_run(prepared)
        return
    _submit(prepared, settings, follow=follow, propagate=propagate, key=idempotency_key)


def run(
    command: Annotated[list[str], typer.Argument(help="The command, as you would type it.", metavar="-- COMMAND...")],
    name: Annotated[
        str | None, typer.Option("--name", metavar="NAME", help="Name of the job.", show_default="of the program")
    ] = None,
    set_: Set = None,
    nodes: Nodes = None,
    backend: BackendKind = None,
    store: StoreUri = None,
    env: Env = None,
    templates: Templates = None,
    profile: Profile = None,
    dry_run: DryRun = False,
    follow: Follow = None,
    job_id: JobId = None,
    fault: Faults = None,
    check: Check = True,
    require_clean: RequireClean = False,
    recheck: Recheck = False,
    propagate: Propagate = False,
) -> None:
    """Submit a command as a job, without a job file.

    The directory you are in is uploaded. The command is that of python, torchrun, accelerate launch, deepspeed, srun,
    mpirun, or any other: it becomes the job file that `jobsubmit init --from` would write, which is kept with the job.

    Examples: jobsubmit run -- torchrun --nproc_per_node=2 train.py --lr 0.1 · jobsubmit run --nodes 2 --backend slurm
    -- python -u train.py · see also: jobsubmit init --from, to keep the job file
    """
    from jobsubmit.scaffold.choice import choose_draft

    settings = load_settings()
    draft = choose_draft(shlex.join(command), Path(), settings)
    changes = overrides(
        assignments=set_, nodes=nodes, backend=backend, store=store, env=env, profile=profile, templates=templates
    )
    faults = tuple(Fault.parse(text) for text in fault or ())
    demands = Demands(job_id, check, require_clean, faults, recheck)
    loaded = load_mapping({**draft.fields, "name": name or draft.fields["name"]}, changes)
    prepared = _prepare(replace(loaded, notes=draft.notes), settings, demands)
    if dry_run:
        _show_dry_run(prepared)
        return
    _submit(prepared, settings, follow=follow, propagate=propagate)


def rerun(
    job: JobName,
    set_: Set = None,
    nodes: Nodes = None,
    env: Env = None,
    profile: Profile = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", "--dryrun", help="Print script and request, and touch nothing.")
    ] = False,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on from the last checkpoint of the earlier job.")
    ] = False,
    follow: Follow = None,
    job_id: JobId = None,
    fault: Faults = None,
    propagate: Propagate = False,
) -> None:
    """Submit an earlier job again, exactly as it was.

    Same start script, and the same code: it is taken from the store, whatever lies in your code directory now. What
    you change with --set, --nodes or -e is changed, and nothing else.

    Examples: jobsubmit rerun my-job --resume · jobsubmit rerun my-job-abc123 --set hyperparameters.lr=0.1
    """
    record, settings = find_job(job)
    faults = [Fault.parse(text) for text in fault or ()]
    changes = overrides(assignments=set_, nodes=nodes, env=env, profile=profile)
    prepared = prepare_rerun(record, settings, changes, job_id=job_id, resume=resume, faults=faults)
    _show_notes(prepared.notes, prepared.findings)
    if dry_run:
        _show_dry_run(prepared)
        return
    _submit(prepared, settings, follow=follow, propagate=propagate)


def _submit(
    prepared: Prepared, settings: Settings, *, follow: bool | None, propagate: bool, key: str | None = None
) -> None:
    try:
        with console.transfer_progress() as progress:
            if key is None:
                submission = submit.submit(prepared, settings, progress=progress)
            else:
                submission = submit.submit_once(prepared, settings, key, progress=progress)
    except KeyboardInterrupt:
        out.talk("interrupted: the job was not submitted")
        raise typer.Exit(INTERRUPTED) from None
    if not out.json:
        out.data(str(submission.handle))
    if submission.is_earlier:
        state = following.status(submission.record, settings).state.value
        out.talk(f"submitted before, and is {state}: {submission.record.id}, {submission.record.created_at}")
    if submission.summary.skipped:
        files = console.counted(submission.summary.skipped, "file")
        is_or_are = "is" if submission.summary.skipped == 1 else "are"
        out.talk(f"code unchanged: {files} {is_or_are} in the store already")
    if submission.summary.copied:
        out.talk(
            f"{console.counted(submission.summary.copied, 'large file')} copied on the server, from the last upload"
        )
    if prepared.python:
        out.talk(f"python of the nodes: {prepared.python}")
    if prepared.plan.profile:
        out.talk(f"its steps are timed: jobsubmit report {submission.record.id}")
    if sys.stdout.isatty() if follow is None else follow:
        follow_to_the_end(submission.record, settings, propagate=propagate)
    elif out.json:
        out.document(formatting.job_document(submission.record, following.status(submission.record, settings)))
    else:
        out.talk(f"follow it: jobsubmit logs -f {submission.record.id}")


def _prepare(loaded: LoadedSpec, settings: Settings, demands: Demands) -> Prepared:
    """Decide everything about a job, and show the notes on it."""
    with console.said_if_slow(_READING):
        prepared = prepare.prepare(loaded, settings, demands)
    _show_notes(prepared.notes, prepared.findings)
    return prepared


def _show_notes(
    notes: Sequence[str], findings: Sequence[Finding], levels: Collection[Level] = ("error", "warning")
) -> None:
    """Show what was found: a submission is not the moment for hints, nor for what nobody can tell."""
    for note in notes:
        out.talk(f"note: {note}")
    for finding in findings:
        if finding.level in levels:
            out.talk(f"{_SAID[finding.level]}: {finding}", "yellow" if finding.level == "warning" else "")
            if finding.hint:
                out.talk(f"  hint: {finding.hint}")


def _show_dry_run(prepared: Prepared) -> None:
    files = prepared.bundle.files if prepared.bundle else ()
    left_out = [(left.path, left.reason) for left in prepared.bundle.left_out] if prepared.bundle else []
    if out.json:
        bundle = {"left_out": [{"path": path, "reason": reason} for path, reason in left_out]}
        out.long_document(
            {
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
        out.data("the code is in the bucket already; nothing is uploaded")
    for path, reason in left_out:
        out.data(f"left out: {json.dumps(path, ensure_ascii=False)} ({reason})")
    out.data(f"# ── script, sha256 {prepared.script.sha256}")
    out.script(prepared.script.text)
    for name, text in prepared.request.documents.items():
        out.data(f"# ── request {name}")
        out.data("\n".join(_cut(line) for line in text.rstrip("\n").split("\n")))


def _cut(line: str) -> str:
    """Return a line as a person can read it: a program in a document is one of many thousand letters."""
    rest = len(line) - _LONGEST_LINE
    return line if rest <= 0 else f"{line[:_LONGEST_LINE]}… ({rest:,} more letters: -o json shows all)"


def validate(
    job: JobFile = DEFAULT_JOB_FILE,
    set_: Set = None,
    nodes: Nodes = None,
    mode: ModeChoice = None,
    backend: BackendKind = None,
    store: StoreUri = None,
    env: Env = None,
    profile: Profile = None,
    templates: Templates = None,
) -> None:
    """Check a job file and its code, and tell what cannot work.

    Reads your code and never runs it: its arguments against the hyperparameters, its imports against what is uploaded,
    its use of ranks, devices and collectives against the mode. What cannot be told is said so. Touches nothing.

    Exit codes: 0 nothing wrong (warnings and hints do not count), 2 the job file is wrong, 3 the code cannot work.

    Example: jobsubmit validate job.yaml
    """
    changes = overrides(
        assignments=set_, nodes=nodes, backend=backend, store=store, env=env, profile=profile, templates=templates
    )
    with console.said_if_slow(_READING):
        found = prepare.examine(read_job(job, mode, changes), load_settings())
    errors = [finding for finding in found.findings if finding.level == "error"]
    if out.json:
        findings = [asdict(finding) for finding in found.findings]
        out.document({"valid": not errors, "notes": list(found.notes), "findings": findings})
        if errors:
            raise typer.Exit(CheckError.code)
        return
    rest = sorted((f for f in found.findings if f.level != "error"), key=lambda f: tuple(_SAID).index(f.level))
    _show_notes(found.notes, rest, _SAID)
    if errors:
        raise prepare.check_error(errors)
    files = "code that is uploaded already"
    if found.bundle:
        files = f"{console.counted(len(found.bundle.files), 'file')}, {found.bundle.size:,} bytes"
    start = "a command" if found.plan.mode == "command" else f"mode {found.plan.mode}"
    out.data(f"{job} is valid: {start}, {console.counted(found.plan.nodes, 'node')}, {files}")
    out.talk(f"next: jobsubmit create {job}" + (", with the same options" if changes or mode else ""))
