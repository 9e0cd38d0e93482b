"""The command that shows what a node runs: render."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from jobsubmit.cli.job_file_options import (
    DEFAULT_JOB_FILE,
    BackendKind,
    Env,
    ModeChoice,
    Nodes,
    Profile,
    Set,
    Templates,
)
from jobsubmit.common.resources import starter_job
from jobsubmit.errors import UsageError
from jobsubmit.spec.modes import Mode


def render(
    job: Annotated[
        Path | None,
        typer.Argument(help="The job file.", metavar="JOB_FILE", show_default="./job.yaml; with --mode, else a sample"),
    ] = None,
    mode: ModeChoice = None,
    hosts: Annotated[
        str | None,
        typer.Option("--hosts", metavar="A,B", help="Print the command to paste on each machine; needs no platform."),
    ] = None,
    job_id: Annotated[
        str | None,
        typer.Option("--job-id", metavar="ID", help="With --hosts: the rendezvous id; with --request: the job id."),
    ] = None,
    expand: Annotated[
        bool,
        typer.Option("--expand", help="Print the arguments and the environment of each process instead."),
    ] = False,
    node: Annotated[
        str | None,
        typer.Option("--node", metavar="all|K", help="With --expand: show all nodes, or one.", show_default="all"),
    ] = None,
    diff: Annotated[
        str | None,
        typer.Option("--diff", metavar="JOB", help="Print the differences from an earlier job: script, request, code."),
    ] = None,
    request: Annotated[
        bool,
        typer.Option("--request", help="Print the request to the backend instead; reads the code directory."),
    ] = False,
    set_: Set = None,
    nodes: Nodes = None,
    backend: BackendKind = None,
    env: Env = None,
    profile: Profile = None,
    templates: Templates = None,
) -> None:
    """Print the start script of a job.

    Prints exactly what every node will run. With --expand, prints what each
    process will see: argv, RANK, MASTER_ADDR and so on, and what sets each
    value. With --request, prints what would be sent to the backend.

    Needs no network, credentials or state (except with --diff). Without a
    file, uses ./job.yaml. If there is none, --mode selects a sample job.
    """
    if expand and hosts is not None:
        raise UsageError(
            "--expand cannot be combined with --hosts: one shows processes, the other commands", "remove one of them"
        )
    if node is not None and not expand:
        raise UsageError("--node needs --expand: every node runs the same script", "add --expand, or remove --node")
    if request and (expand or hosts is not None or diff is not None):
        raise UsageError("--request cannot be combined with --expand, --hosts or --diff", "remove the other option")
    from jobsubmit.cli import rendering
    from jobsubmit.cli.job_file import overrides, read_job

    if request:
        changes = overrides(
            assignments=set_, nodes=nodes, backend=backend, env=env, profile=profile, templates=templates
        )
        rendering.show_request(read_job(job or DEFAULT_JOB_FILE, mode, changes), job_id)
        return
    if diff is not None:
        if expand or hosts is not None:
            raise UsageError("--diff cannot be combined with --expand or --hosts", "remove the other option")
        changes = overrides(assignments=set_, nodes=nodes, env=env, profile=profile, templates=templates)
        rendering.show_difference(read_job(job or DEFAULT_JOB_FILE, mode, changes), diff)
        return
    machines = rendering.machines_of(hosts) if hosts is not None else []
    changes = overrides(assignments=set_, nodes=len(machines) or nodes, env=env, profile=profile, templates=templates)
    loaded = read_job(_file_to_render(job, mode), mode, changes)
    if expand:
        rendering.show_processes(loaded, node or "all")
    elif machines:
        rendering.show_commands(loaded, machines, job_id)
    else:
        rendering.show_script(loaded)


def _file_to_render(job: Path | None, mode: Mode | None) -> Path:
    if job is not None or DEFAULT_JOB_FILE.exists():
        return job or DEFAULT_JOB_FILE
    if mode is None:
        raise UsageError("./job.yaml does not exist", "give a job file, or a mode: jobsubmit render --mode torchrun")
    return starter_job(mode)
