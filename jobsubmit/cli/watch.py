"""The commands that watch: status, logs, list, wait, cancel."""

from __future__ import annotations

import json
import sys
from typing import Annotated

import typer
from rich.table import Table

from jobsubmit import pipeline
from jobsubmit.backends import LogLine, LogQuery
from jobsubmit.cli import output, report
from jobsubmit.cli.options import Debug, Format, JobName, OutputFormat
from jobsubmit.cli.output import out
from jobsubmit.errors import INTERRUPTED, NOT_FINISHED, UsageError
from jobsubmit.jobs import JobRecord, JobRecords
from jobsubmit.settings import Settings, load_settings

_CANCEL_SECONDS = 30.0


def follow_to_the_end(record: JobRecord, settings: Settings, *, propagate: bool) -> None:
    """Show a job's output on stderr until it has ended, report how, and exit with the code that says so."""
    try:
        for line in pipeline.logs(record, settings, follow=True):
            out.stderr.print(report.log_text(line))
        status = pipeline.wait(record, settings)
    except KeyboardInterrupt:
        out.talk(
            f"\ndetached: the job goes on. Attach again: jobsubmit logs -f {record.id} · end it: "
            f"jobsubmit cancel {record.id}"
        )
        if out.json:
            out.document(report.job_document(record, pipeline.status(record, settings)))
        raise typer.Exit(INTERRUPTED) from None
    report.show_report(out.stderr, record, status)
    if out.json:
        out.document(report.job_document(record, status))
    raise typer.Exit(report.exit_code(status, propagate=propagate))


def status(job: JobName, format_: Format = OutputFormat.text, debug: Debug = False) -> None:
    """Show how a job is, and who failed first.

    How long each step took, and if the job failed which node and rank did first, and its last lines.

    Example: jobsubmit status my-job
    """
    settings = load_settings()
    records = JobRecords(settings)
    record = records.find(job)
    now = pipeline.status(record, settings)
    if out.json:
        out.document(report.job_document(record, now))
        return
    report.show_report(out.stdout, record, now)
    facts = {
        "handle": record.handle or "none",
        "mode": f"{record.mode}, {output.counted(record.nodes, 'node')}",
        "created": record.created_at,
        "code": record.code,
        "folder": str(records.directory(record.id)),
    }
    for name, fact in facts.items():
        out.stdout.print(f"{name:<8} {fact}")
    timeline = Table("step", box=None, pad_edge=False, header_style="bold")
    timeline.add_column("began after", justify="right")
    timeline.add_column("took", justify="right")
    for row in report.step_rows(record, now):
        timeline.add_row(*row)
    out.stdout.print(timeline)


def logs(
    job: JobName,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until the job has ended.")] = False,
    node: Annotated[
        int | None, typer.Option("--node", metavar="N", min=0, help="Only this node and its ranks.")
    ] = None,
    rank: Annotated[int | None, typer.Option("--rank", metavar="R", min=0, help="Only this rank.")] = None,
    format_: Format = OutputFormat.text,
    debug: Debug = False,
) -> None:
    """Print what the nodes and ranks said.

    Each line with its origin; with -o json one document per line.

    Examples: jobsubmit logs my-job -f · jobsubmit logs my-job --rank 3
    """
    settings = load_settings()
    record = JobRecords(settings).find(job)
    if node is not None and node >= record.nodes:
        raise UsageError(f"--node {node}: {record.id} has {output.counted(record.nodes, 'node')}, counted from 0")
    show = _show_json if out.json else _show_text
    lines = 0
    try:
        for line in pipeline.logs(record, settings, LogQuery(node, rank), follow=follow):
            show(line)
            lines += 1
    except KeyboardInterrupt:
        raise typer.Exit(INTERRUPTED) from None
    if not lines:
        out.talk(
            "nothing was said" + ("" if rank is None else f" by rank {rank}: `jobsubmit logs {record.id}` shows all")
        )


def _show_json(line: LogLine) -> None:
    out.data(json.dumps({"node": line.node, "rank": line.rank, "text": line.text}, ensure_ascii=False))


def _show_text(line: LogLine) -> None:
    if sys.stdout.isatty():
        out.stdout.print(report.log_text(line))
    else:
        out.data(f"{report.log_prefix(line)} {line.text}")


def list_(format_: Format = OutputFormat.text, debug: Debug = False) -> None:
    """List the jobs of this machine, newest first.

    Example: jobsubmit list -o json
    """
    settings = load_settings()
    jobs = [(record, pipeline.status(record, settings)) for record in JobRecords(settings).all()]
    if out.json:
        out.document([report.job_document(record, now) for record, now in jobs])
        return
    if not jobs:
        out.talk("no jobs yet: jobsubmit init writes a first job file, jobsubmit create submits it")
        return
    table = Table("id", "state", "mode", "nodes", "backend", "created", box=None, pad_edge=False, header_style="bold")
    for record, now in jobs:
        table.add_row(
            record.id, report.state_text(now), record.mode, str(record.nodes), record.backend, record.created_at
        )
    out.stdout.print(table)


def wait(
    job: JobName,
    timeout: Annotated[
        float | None, typer.Option("--timeout", metavar="SECONDS", min=0, help="Give up after this long (exit 101).")
    ] = None,
    propagate: Annotated[
        bool, typer.Option("--propagate-exit-code", help="If the job failed, exit as its first failing process did.")
    ] = False,
    format_: Format = OutputFormat.text,
    debug: Debug = False,
) -> None:
    """Wait until a job has ended.

    Exits as the job did: 0, 100 failed, 103 cancelled; 101 when it has not finished in time.

    Example: jobsubmit wait my-job --timeout 3600
    """
    settings = load_settings()
    record = JobRecords(settings).find(job)
    try:
        now = pipeline.wait(record, settings, timeout)
    except KeyboardInterrupt:
        out.talk(f"stopped waiting: {record.id} goes on")
        raise typer.Exit(INTERRUPTED) from None
    if out.json:
        out.document(report.job_document(record, now))
    else:
        report.show_report(out.stdout, record, now)
    raise typer.Exit(report.exit_code(now, propagate=propagate))


def cancel(job: JobName, format_: Format = OutputFormat.text, debug: Debug = False) -> None:
    """End a job.

    Its processes get SIGTERM, time to save, then SIGKILL. On a job that has ended this does nothing.

    Example: jobsubmit cancel my-job
    """
    settings = load_settings()
    record = JobRecords(settings).find(job)
    before = pipeline.status(record, settings)
    if not before.state.is_final:
        pipeline.cancel(record, settings)
        out.talk(f"asked {record.id} to end")
    now = pipeline.wait(record, settings, _CANCEL_SECONDS)
    if out.json:
        out.document(report.job_document(record, now))
    else:
        report.show_report(out.stdout, record, now)
    if not now.state.is_final:
        raise typer.Exit(NOT_FINISHED)
