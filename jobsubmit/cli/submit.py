"""The commands that decide and act: create, render, validate."""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path
from typing import Annotated

import typer

from jobsubmit import pipeline
from jobsubmit.assets import starter_job
from jobsubmit.cli import output, report
from jobsubmit.cli.options import (
    DEFAULT_JOB_FILE,
    BackendKind,
    Debug,
    Env,
    Format,
    JobFile,
    ModeChoice,
    ModeOption,
    Nodes,
    OutputFormat,
    Set,
    StoreUri,
    Templates,
    overrides,
    read_job,
)
from jobsubmit.cli.output import out
from jobsubmit.cli.watch import follow_to_the_end
from jobsubmit.errors import INTERRUPTED, UsageError
from jobsubmit.jobs import new_job_id
from jobsubmit.pipeline import Prepared
from jobsubmit.plan import plan
from jobsubmit.render import paste_commands
from jobsubmit.render import render as render_script
from jobsubmit.settings import BUILT_IN, load_settings


def create(
    job: JobFile = DEFAULT_JOB_FILE,
    set_: Set = None,
    nodes: Nodes = None,
    mode: ModeChoice = None,
    backend: BackendKind = None,
    store: StoreUri = None,
    env: Env = None,
    templates: Templates = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", "--dryrun", help="Print bundle, script and request, and touch nothing.")
    ] = False,
    follow: Annotated[
        bool | None,
        typer.Option(
            "--follow/--detach",
            help="Follow the job to its end, or return once it is submitted.",
            show_default="follow on a terminal",
        ),
    ] = None,
    job_id: Annotated[
        str | None,
        typer.Option("--job-id", metavar="ID", help="Name this submission yourself, instead of NAME-suffix."),
    ] = None,
    check: Annotated[bool, typer.Option("--check/--no-check", help="Check the code before anything is sent.")] = True,
    propagate: Annotated[
        bool, typer.Option("--propagate-exit-code", help="If the job fails, exit as its first failing process did.")
    ] = False,
    format_: Format = OutputFormat.text,
    debug: Debug = False,
) -> None:
    """Submit a job and follow it.

    The first line on stdout is the job's handle; what the job says while it is followed goes to stderr. Exit codes:
    0 the job succeeded (or was submitted), 2 the job file is wrong, 3 a check failed, 4 the store refused, 5 the
    backend refused, 100 the job failed, 103 it was cancelled, 130 you pressed Ctrl-C (the job goes on).

    Examples: jobsubmit create job.yaml --dry-run · jobsubmit create job.yaml --nodes 2 --set hyperparameters.lr=0.1
    """
    settings = load_settings()
    changes = overrides(assignments=set_, nodes=nodes, backend=backend, store=store, env=env, templates=templates)
    prepared = pipeline.prepare(read_job(job, mode, changes), settings, job_id=job_id, checks=check)
    _show_notes(prepared)
    if dry_run:
        _show_dry_run(prepared)
        return
    try:
        with output.transfer_progress() as progress:
            submission = pipeline.submit(prepared, settings, progress=progress)
    except KeyboardInterrupt:
        out.talk("interrupted: the job was not submitted")
        raise typer.Exit(INTERRUPTED) from None
    if not out.json:
        out.data(str(submission.handle))
    if submission.summary.skipped:
        out.talk(f"code unchanged: {submission.summary.skipped} files are in the store already")
    if submission.summary.copied:
        out.talk(
            f"{output.counted(submission.summary.copied, 'large file')} copied on the server, from the last upload"
        )
    if sys.stdout.isatty() if follow is None else follow:
        follow_to_the_end(submission.record, settings, propagate=propagate)
    elif out.json:
        out.document(report.job_document(submission.record, pipeline.status(submission.record, settings)))
    else:
        out.talk(f"follow it: jobsubmit logs -f {submission.record.id}")


def _show_notes(prepared: Prepared) -> None:
    for note in prepared.notes:
        out.talk(f"note: {note}")
    for finding in prepared.findings:
        out.talk(f"{finding.level}: {finding}")


def _show_dry_run(prepared: Prepared) -> None:
    files = [file.entry() for file in prepared.bundle.files] if prepared.bundle else []
    left_out = [(left.path, left.reason) for left in prepared.bundle.left_out] if prepared.bundle else []
    if out.json:
        out.document(
            {
                "job_id": prepared.request.job_id,
                "code": {"uri": prepared.code.uri, "layout": prepared.code.layout, "digest": prepared.code.digest},
                "bundle": {"files": files, "left_out": [{"path": path, "reason": reason} for path, reason in left_out]},
                "script": {"text": prepared.script.text, "sha256": prepared.script.sha256},
                "request": dict(prepared.request.documents),
                "notes": list(prepared.notes),
            }
        )
        return
    out.data(f"# ── bundle → {prepared.code.uri} ({prepared.code.layout})")
    for file in files:
        out.data(f"{file['mode']} {file['size']:>12,}  {json.dumps(file['path'], ensure_ascii=False)}")
    if prepared.bundle is None:
        out.data("the code is in the bucket already; nothing is uploaded")
    for path, reason in left_out:
        out.data(f"left out: {json.dumps(path, ensure_ascii=False)} ({reason})")
    out.data(f"# ── script, sha256 {prepared.script.sha256}")
    out.script(prepared.script.text)
    for name, text in prepared.request.documents.items():
        out.data(f"# ── request {name}")
        out.data(text.rstrip("\n"))


def render(
    job: Annotated[
        Path | None, typer.Argument(help="The job file.", metavar="JOB_FILE", show_default="./job.yaml, or the starter")
    ] = None,
    mode: ModeChoice = None,
    hosts: Annotated[
        str | None,
        typer.Option(
            "--hosts", metavar="A,B", help="Print, per machine, the command to paste there; no platform needed."
        ),
    ] = None,
    job_id: Annotated[
        str | None,
        typer.Option("--job-id", metavar="ID", help="With --hosts: the rendezvous id, instead of a new one."),
    ] = None,
    set_: Set = None,
    nodes: Nodes = None,
    env: Env = None,
    templates: Templates = None,
    format_: Format = OutputFormat.text,
    debug: Debug = False,
) -> None:
    """Print the start script of a job.

    It is exactly what every node will run.
    Needs no network, credentials or state. Without a file it takes ./job.yaml, else the starter job of --mode.

    Examples: jobsubmit render --mode torchrun · jobsubmit render job.yaml --hosts gpu1,gpu2
    """
    machines = _machines(hosts) if hosts is not None else []
    changes = overrides(assignments=set_, nodes=len(machines) or nodes, env=env, templates=templates)
    loaded = read_job(_file_to_render(job, mode), mode, changes)
    job_plan = plan(loaded.spec, BUILT_IN)  # a script holds nothing of a configuration
    for note in (*loaded.notes, *job_plan.notes):
        out.talk(f"note: {note}")
    script = render_script(job_plan)
    if hosts is not None:
        shared_id = job_id or new_job_id(job_plan.name)
        port = random.Random(shared_id).randrange(20000, 30000)
        commands = list(paste_commands(job_plan, script, machines, shared_id, port))
        _show_commands(machines, commands, job_plan.code_name)
    elif out.json:
        out.document(
            {
                "name": job_plan.name,
                "mode": job_plan.mode,
                "script": script.text,
                "sha256": script.sha256,
                "notes": [*loaded.notes, *job_plan.notes],
            }
        )
    else:
        out.script(script.text)


def _file_to_render(job: Path | None, mode: ModeOption | None) -> Path:
    if job is not None or DEFAULT_JOB_FILE.exists():
        return job or DEFAULT_JOB_FILE
    if mode is None:
        raise UsageError("there is no ./job.yaml", "give a job file, or a mode: jobsubmit render --mode torchrun")
    return starter_job(mode.value)


def _machines(hosts: str) -> list[str]:
    machines = [host.strip() for host in hosts.split(",")]
    if not all(machines) or any(c.isspace() for host in machines for c in host):
        raise UsageError(f"--hosts {hosts!r}: must be names or addresses with commas between", "e.g. --hosts gpu1,gpu2")
    return machines


def _show_commands(machines: list[str], commands: list[str], code_name: str) -> None:
    if out.json:
        out.document([{"host": host, "command": command} for host, command in zip(machines, commands, strict=True)])
        return
    for node_rank, (host, command) in enumerate(zip(machines, commands, strict=True)):
        out.data(
            f"# ── node {node_rank}: paste on {host}, in a folder where your code lies as {code_name}/ (copy it first)"
        )
        out.script(command)


def validate(
    job: JobFile = DEFAULT_JOB_FILE,
    set_: Set = None,
    nodes: Nodes = None,
    mode: ModeChoice = None,
    backend: BackendKind = None,
    store: StoreUri = None,
    env: Env = None,
    templates: Templates = None,
    format_: Format = OutputFormat.text,
    debug: Debug = False,
) -> None:
    """Check a job file and its code.

    Touches nothing.

    Exit codes: 0 nothing wrong, 2 the job file is wrong, 3 the code cannot work.

    Example: jobsubmit validate job.yaml
    """
    changes = overrides(assignments=set_, nodes=nodes, backend=backend, store=store, env=env, templates=templates)
    prepared = pipeline.prepare(read_job(job, mode, changes), load_settings())
    _show_notes(prepared)
    if out.json:
        findings = [{"level": f.level, "where": f.where, "text": f.text, "hint": f.hint} for f in prepared.findings]
        out.document({"valid": True, "notes": list(prepared.notes), "findings": findings})
    else:
        files = "code that is uploaded already"
        if prepared.bundle:
            files = f"{output.counted(len(prepared.bundle.files), 'file')}, {prepared.bundle.size:,} bytes"
        out.data(f"{job} is valid: mode {prepared.plan.mode}, {output.counted(prepared.plan.nodes, 'node')}, {files}")
        out.talk(f"next: jobsubmit create {job}" + (", with the same options" if changes or mode else ""))
