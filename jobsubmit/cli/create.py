"""The commands that check and submit a job: create, run, rerun, validate.

Their modules are loaded when they run: their help needs none of them.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from jobsubmit.cli import console
from jobsubmit.cli.console import out
from jobsubmit.cli.job_file_options import (
    DEFAULT_JOB_FILE,
    BackendKind,
    Check,
    DryRun,
    Env,
    Expect,
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
)
from jobsubmit.cli.options import JobName, Propagate
from jobsubmit.common.language import translate
from jobsubmit.config import Settings, load_settings
from jobsubmit.errors import CheckError, UsageError

if TYPE_CHECKING:
    from jobsubmit.spec.loader import LoadedSpec


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
        typer.Option("--idempotency-key", metavar="KEY", help="Use the job that was submitted with this key, if any."),
    ] = None,
    fault: Faults = None,
    check: Check = True,
    require_clean: RequireClean = False,
    recheck: Recheck = False,
    expect: Expect = None,
    propagate: Propagate = False,
) -> None:
    """Submit a job and follow it.

    The first line on stdout is the handle of the job. While the job is
    followed, its output goes to stderr.

    Exit codes: 0 the job succeeded (or was submitted), 2 the job file is
    invalid, 3 a check found an error, 4 the store refused, 5 the backend refused,
    100 the job failed, 101 its state is unknown, 103 it was cancelled, 130 you
    pressed Ctrl-C (a job that was already submitted continues).
    """
    from jobsubmit.cli.job_file import overrides, read_job

    settings = load_settings()
    changes = overrides(
        assignments=set_, nodes=nodes, backend=backend, store=store, env=env, profile=profile, templates=templates
    )
    loaded = read_job(job, mode, changes)
    if not dry_run:
        _connect(loaded, settings)
    from jobsubmit.cli import submission  # while the machines answer

    demands = submission.demands_of(
        job_id, fault, checks=check, is_clean=require_clean, rechecks=recheck, expected=expect
    )
    submission.act(loaded, settings, demands, dry_run=dry_run, follow=follow, propagate=propagate, key=idempotency_key)


def run(
    command: Annotated[
        list[str],
        typer.Argument(
            help="The command, as you would type it. Options of jobsubmit, such as --dry-run, stand before `--`.",
            metavar="-- COMMAND...",
        ),
    ],
    name: Annotated[
        str | None, typer.Option("--name", metavar="NAME", help="Name of the job.", show_default="name of the program")
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
    expect: Expect = None,
    propagate: Propagate = False,
) -> None:
    """Submit a command as a job, without a job file.

    Uploads the current directory. The command may start python, torchrun,
    accelerate launch, deepspeed, srun, mpirun or any other program. It is
    converted into a job file as by `jobsubmit init --from`, but without
    `requirements`: add --set requirements=FILE. The file is kept with the job.
    """
    from jobsubmit.cli.job_file import overrides
    from jobsubmit.scaffold.choice import choose_draft
    from jobsubmit.spec.loader import load_mapping

    settings = load_settings()
    _require_words(command)
    changes = overrides(
        assignments=set_, nodes=nodes, backend=backend, store=store, env=env, profile=profile, templates=templates
    )
    draft = choose_draft(shlex.join(command), Path(), settings)
    loaded = load_mapping({**draft.fields, "name": name or draft.fields["name"]}, changes, source="the command")
    loaded = replace(loaded, notes=draft.with_changes(changes).notes)
    if not dry_run:
        _connect(loaded, settings)
    from jobsubmit.cli import submission  # while the machines answer

    demands = submission.demands_of(
        job_id, fault, checks=check, is_clean=require_clean, rechecks=recheck, expected=expect
    )
    submission.act(loaded, settings, demands, dry_run=dry_run, follow=follow, propagate=propagate)


def _connect(loaded: LoadedSpec, settings: Settings) -> None:
    """Begin to connect to the machines of a job that will probably be submitted."""
    from jobsubmit.backends.registry import connect_early

    own = settings.backend(loaded.spec)
    connect_early(own.kind, own.model_dump())


def _require_words(command: Sequence[str]) -> None:
    """Raise UsageError for a whole command line in quotes, which would be taken for the name of a program."""
    first = command[0] if len(command) == 1 else ""
    if len(first.split()) > 1 and not Path(first).exists():
        raise UsageError(
            f"the command is a single word: {first!r}",
            f"remove the quotes: jobsubmit run -- {first}; for shell syntax: jobsubmit run -- bash -c 'COMMAND'",
        )


def rerun(
    job: JobName,
    set_: Set = None,
    nodes: Nodes = None,
    env: Env = None,
    profile: Profile = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", "--dryrun", help="Print script and request; change nothing.")
    ] = False,
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue from the last checkpoint of the earlier job.")
    ] = False,
    follow: Follow = None,
    job_id: JobId = None,
    fault: Faults = None,
    propagate: Propagate = False,
) -> None:
    """Submit an earlier job again, exactly as it was.

    Uses the same start script and the same code: the code comes from the
    store, not from your code directory. Only what you change with options
    (--set, --nodes, -e, …) is different.
    """
    from jobsubmit.cli import submission
    from jobsubmit.cli.job_file import overrides
    from jobsubmit.jobs.records import find_job
    from jobsubmit.jobs.rerun import prepare_rerun
    from jobsubmit.plan.fault_injection import Fault

    record, settings = find_job(job)
    faults = [Fault.parse(text) for text in fault or ()]
    changes = overrides(assignments=set_, nodes=nodes, env=env, profile=profile)
    prepared = prepare_rerun(record, settings, changes, job_id=job_id, resume=resume, faults=faults)
    submission.act_on(prepared, settings, dry_run=dry_run, follow=follow, propagate=propagate)


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
    """Check a job file and its code, and report errors.

    Reads your code, and never runs it. Compares its arguments with the
    hyperparameters, its imports with the uploaded files, and its use of ranks,
    devices and collectives with the mode. Also reports what it cannot decide.
    Sends nothing.

    Exit codes: 0 no errors (warnings and hints are allowed), 2 the job file is
    invalid, 3 a check found an error.
    """
    from jobsubmit.cli.findings import READING, SAID, show_notes
    from jobsubmit.cli.job_file import overrides, read_job
    from jobsubmit.jobs.prepare import check_error, examine, remember

    settings = load_settings()
    changes = overrides(
        assignments=set_, nodes=nodes, backend=backend, store=store, env=env, profile=profile, templates=templates
    )
    with console.said_if_slow(READING):
        found = examine(read_job(job, mode, changes), settings)
    remember(found, settings)
    errors = [finding for finding in found.findings if finding.level == "error"]
    if out.json:
        findings = [asdict(finding) for finding in found.findings]
        out.document({"valid": not errors, "notes": list(found.notes), "findings": findings})
        if errors:
            raise typer.Exit(CheckError.code)
        return
    rest = sorted((f for f in found.findings if f.level != "error"), key=lambda f: tuple(SAID).index(f.level))
    show_notes(found.notes, rest, SAID)
    if errors:
        raise check_error(errors)
    files = "code already uploaded"
    if found.bundle:
        files = f"{console.counted(len(found.bundle.files), 'file')}, {found.bundle.size:,} bytes"
    start = "a command" if found.plan.mode == "command" else f"mode {found.plan.mode}"
    out.data(translate(f"{job} is valid: {start}, {console.counted(found.plan.nodes, 'node')}, {files}"))
    out.talk(f"next: jobsubmit create {job}" + (", with the same options" if changes or mode else ""))
