"""The command that previews what a node runs: render."""

from __future__ import annotations

import random
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from jobsubmit.cli.console import out, printable
from jobsubmit.cli.job_file_options import (
    DEFAULT_JOB_FILE,
    BackendKind,
    Env,
    ModeChoice,
    Nodes,
    Profile,
    Set,
    Templates,
    overrides,
    read_job,
)
from jobsubmit.cli.render_expand import show_expansion
from jobsubmit.common.resources import starter_job
from jobsubmit.config import BUILT_IN, load_settings
from jobsubmit.errors import UsageError
from jobsubmit.jobs.prepare import Demands, examine, prepare
from jobsubmit.jobs.records import find_job, new_job_id
from jobsubmit.plan.launch_plan import build_plan
from jobsubmit.plan.script import build_paste_commands, render as render_script
from jobsubmit.spec.job_spec import Mode
from jobsubmit.spec.loader import LoadedSpec


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
        typer.Option("--job-id", metavar="ID", help="With --hosts: the rendezvous id, with --request: the job's."),
    ] = None,
    expand: Annotated[
        bool,
        typer.Option("--expand", help="Print what each process is given instead: its words and its environment."),
    ] = False,
    node: Annotated[
        str | None,
        typer.Option("--node", metavar="all|K", help="With --expand: of all nodes, or of one.", show_default="all"),
    ] = None,
    diff: Annotated[
        str | None,
        typer.Option(
            "--diff", metavar="JOB", help="Print what would change against an earlier job: script, request, code."
        ),
    ] = None,
    request: Annotated[
        bool,
        typer.Option("--request", help="Print what would be sent to the backend instead; reads the code directory."),
    ] = False,
    set_: Set = None,
    nodes: Nodes = None,
    backend: BackendKind = None,
    env: Env = None,
    profile: Profile = None,
    templates: Templates = None,
) -> None:
    """Print the start script of a job.

    It is exactly what every node will run. With --expand, what each of its processes will see: argv, RANK, MASTER_ADDR
    and the rest, and who gives each value. With --request, what the backend is sent.
    Needs no network, credentials or state (but for --diff). Without a file it takes ./job.yaml, else the starter job of
    --mode.

    Examples: jobsubmit render --mode torchrun · jobsubmit render job.yaml --expand --node 1 · jobsubmit render
    job.yaml --hosts gpu1,gpu2
    """
    if expand and hosts is not None:
        raise UsageError("--expand --hosts: one shows processes, the other prints commands", "leave out one of them")
    if node is not None and not expand:
        raise UsageError("--node: every node runs the same script", "add --expand: it shows what each process is given")
    if request and (expand or hosts is not None or diff is not None):
        raise UsageError("--request: shows what a backend is sent, and nothing else", "leave out the other option")
    if request:
        changes = overrides(
            assignments=set_, nodes=nodes, backend=backend, env=env, profile=profile, templates=templates
        )
        _show_request(read_job(job or DEFAULT_JOB_FILE, mode, changes), job_id)
        return
    if diff is not None:
        if expand or hosts is not None:
            raise UsageError(
                "--diff: compares with an earlier job, and shows nothing else", "leave out the other option"
            )
        changes = overrides(assignments=set_, nodes=nodes, env=env, profile=profile, templates=templates)
        _show_difference(read_job(job or DEFAULT_JOB_FILE, mode, changes), diff)
        return
    machines = _machines(hosts) if hosts is not None else []
    count = len(machines) or nodes
    changes = overrides(assignments=set_, nodes=count, env=env, profile=profile, templates=templates)
    loaded = read_job(_file_to_render(job, mode), mode, changes)
    job_plan = build_plan(loaded.spec, BUILT_IN)  # a script holds nothing of a configuration
    for note in (*loaded.notes, *job_plan.notes):
        out.talk(f"note: {note}")
    if expand:
        show_expansion(job_plan, node or "all")
        return
    script = render_script(job_plan)
    if hosts is not None and job_plan.mounts:
        names = ", ".join(mount.name for mount in job_plan.mounts)
        raise UsageError(f"--hosts: the directories {names} are made by a backend", "take them out, or use create")
    if hosts is not None:
        shared_id = job_id or new_job_id(job_plan.name)
        port = random.Random(shared_id).randrange(20000, 30000)
        commands = list(build_paste_commands(job_plan, script, machines, shared_id, port))
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


def _show_request(loaded: LoadedSpec, job_id: str | None) -> None:
    prepared = examine(loaded, load_settings(), Demands(job_id, checks=False))
    for finding in prepared.findings:
        out.talk(f"note: {finding}")
    if out.json:
        out.document(dict(prepared.request.documents))
        return
    for name, text in prepared.request.documents.items():
        if len(prepared.request.documents) > 1:
            out.data(f"# ── {name}")
        out.data(text.rstrip("\n"))


def _show_difference(loaded: LoadedSpec, job: str) -> None:
    from jobsubmit.jobs.difference import compare_with_job

    record, settings = find_job(job)
    prepared = prepare(loaded, settings, Demands(record.id, checks=False))
    found = compare_with_job(record, prepared, settings)
    if out.json:
        out.document({"job": record.id, "same": found.is_empty, **asdict(found)})
        return
    for text in found.documents.values():
        out.data(text.rstrip("\n"))
    for word, paths in (("new", found.added), ("gone", found.removed), ("changed", found.changed)):
        for path in paths:
            out.data(f"{word}: {printable(path)}")
    if found.unknown:
        out.talk(f"note: {found.unknown}")
    if found.is_empty:
        out.talk(f"nothing would change against {record.id}")


def _file_to_render(job: Path | None, mode: Mode | None) -> Path:
    if job is not None or DEFAULT_JOB_FILE.exists():
        return job or DEFAULT_JOB_FILE
    if mode is None:
        raise UsageError("there is no ./job.yaml", "give a job file, or a mode: jobsubmit render --mode torchrun")
    return starter_job(mode)


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
