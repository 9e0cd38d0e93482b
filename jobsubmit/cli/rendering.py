"""The outputs of `render`: the script, the processes, commands to paste, the request, the differences."""

from __future__ import annotations

import random
from dataclasses import asdict

from jobsubmit.cli.console import out, printable
from jobsubmit.config import BUILT_IN, load_settings
from jobsubmit.errors import UsageError
from jobsubmit.plan.launch_plan import LaunchPlan, build_plan
from jobsubmit.plan.script import build_paste_commands, render as render_script
from jobsubmit.spec.loader import LoadedSpec


def show_script(loaded: LoadedSpec) -> None:
    """Show the script that every node runs."""
    plan = _planned(loaded)
    script = render_script(plan)
    if not out.json:
        out.script(script.text)
        return
    notes = [*loaded.notes, *plan.notes]
    named = {"name": plan.name, "mode": plan.mode}
    out.document({**named, "script": script.text, "sha256": script.sha256, "notes": notes})


def show_processes(loaded: LoadedSpec, node: str) -> None:
    """Show the arguments and the environment of each process."""
    from jobsubmit.cli.render_expand import show_expansion

    show_expansion(_planned(loaded), node)


def show_commands(loaded: LoadedSpec, machines: list[str], job_id: str | None) -> None:
    """Show the command to paste on each machine. Raises UsageError for what only a backend can do."""
    from jobsubmit.jobs.records import new_job_id

    plan = _planned(loaded)
    if plan.mounts:
        names = ", ".join(mount.name for mount in plan.mounts)
        raise UsageError(
            f"--hosts: the job file asks for directories that only a backend creates: {names}",
            "remove them from the job file, or submit it with `jobsubmit create`",
        )
    shared_id = job_id or new_job_id(plan.name)
    port = random.Random(shared_id).randrange(20000, 30000)
    commands = list(build_paste_commands(plan, render_script(plan), machines, shared_id, port))
    _show_for_each(machines, commands, plan.code_name)


def _planned(loaded: LoadedSpec) -> LaunchPlan:
    plan = build_plan(loaded.spec, BUILT_IN)  # a script holds nothing of a configuration
    for note in (*loaded.notes, *plan.notes):
        out.talk(f"note: {note}")
    return plan


def show_request(loaded: LoadedSpec, job_id: str | None) -> None:
    """Show what would be sent to the backend."""
    from jobsubmit.jobs.prepare import Demands, examine

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


def show_difference(loaded: LoadedSpec, job: str) -> None:
    """Show the differences from an earlier job."""
    from jobsubmit.jobs.difference import compare_with_job
    from jobsubmit.jobs.prepare import Demands, prepare
    from jobsubmit.jobs.records import find_job

    record, settings = find_job(job)
    prepared = prepare(loaded, settings, Demands(record.id, checks=False))
    found = compare_with_job(record, prepared, settings)
    if out.json:
        out.document({"job": record.id, "same": found.is_empty, **asdict(found)})
        return
    for text in found.documents.values():
        out.data(text.rstrip("\n"))
    for word, paths in (("new", found.added), ("removed", found.removed), ("changed", found.changed)):
        for path in paths:
            out.data(f"{word}: {printable(path)}")
    if found.unknown:
        out.talk(f"note: {found.unknown}")
    if found.is_empty:
        out.talk(f"no differences from {record.id}")


def machines_of(hosts: str) -> list[str]:
    """Return the machines that --hosts names; raises UsageError."""
    machines = [host.strip() for host in hosts.split(",")]
    if not all(machines) or any(c.isspace() for host in machines for c in host):
        raise UsageError(
            f"--hosts {hosts!r}: must be names or addresses, separated by commas", "e.g. --hosts gpu1,gpu2"
        )
    return machines


def _show_for_each(machines: list[str], commands: list[str], code_name: str) -> None:
    if out.json:
        out.document([{"host": host, "command": command} for host, command in zip(machines, commands, strict=True)])
        return
    for node_rank, (host, command) in enumerate(zip(machines, commands, strict=True)):
        out.data(
            f"# ── node {node_rank}: paste on {host}, in the folder that has your code as {code_name}/ (copy it first)"
        )
        out.script(command)
