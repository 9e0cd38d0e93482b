"""What the gang of a node is asked to do, and what it tells: the same for every engine that runs one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jobsubmit.agent.timing import recorder
from jobsubmit.backends.models import Failure, JobStatus, Recovery, State, Step
from jobsubmit.backends.shared.failure_hints import diagnose
from jobsubmit.errors import UsageError

if TYPE_CHECKING:
    from jobsubmit.plan.launch_plan import LaunchPlan
    from jobsubmit.plan.script import Script
    from jobsubmit.transfer.code_ref import CodeRef

_DETAILS = ("started", "ended", "attempt", "last_step", "checkpoint_dir", "port", "addresses", "notes")


def asked(plan: LaunchPlan, script: Script, code: CodeRef, job_id: str) -> dict[str, Any]:
    """Return what a gang must know of a job, as JSON can hold it."""
    return {
        "job_id": job_id,
        "name": plan.name,
        "mode": plan.mode,
        "nodes": plan.nodes,
        "nproc_per_node": plan.nproc_per_node,
        "code": {"uri": code.uri, "layout": code.layout, "digest": code.digest, "name": code.name},
        "script": {"sha256": script.sha256},
        "env": dict(plan.env),
        "secrets": {name: f"env:{source}" for name, source in plan.secrets},
        "timeout": plan.timeout,
        "min_nodes": plan.min_nodes,
        "checkpoints_of": plan.checkpoints_of or job_id,
        "mounts": [mount._asdict() for mount in plan.mounts],
        "server": plan.store._replace(uri="")._asdict(),
        "restarts": plan.restarts.model_dump() if plan.restarts else None,
        "hang_after": plan.hang_after,
        "faults": [fault._asdict() for fault in plan.faults],
        # A start command of the user's own may restart its ranks: there only the end of the command counts.
        "rank_exit_ends_job": plan.command is None,
    }


def asked_far(plan: LaunchPlan, script: Script, code: CodeRef, job_id: str) -> dict[str, Any]:
    """Return what a gang on machines of an engine must know: their data lies in folders that they see themselves."""
    mounts = [
        {**mount._asdict(), "every": 0, **({} if mount.kind == "checkpoint" else {"path": mount.uri})}
        for mount in plan.mounts
    ]
    # Each node sees only its own ranks, and a node may well wait for another for long: only who says so is watched.
    hang_after = plan.hang_after if plan.is_hang_chosen or plan.nodes == 1 else 0
    return {**asked(plan, script, code, job_id), "mounts": mounts, "faults": [], "hang_after": hang_after}


def refuse_faults(plan: LaunchPlan) -> None:
    """Raise UsageError where something shall be broken on purpose."""
    if plan.faults:
        raise UsageError("--fault: only the local backend breaks things on purpose", "rehearse it: --backend local")


def told_status(told: Mapping[str, Any], events: Iterable[Mapping[str, Any]]) -> JobStatus:
    """Return the status that a gang's status file and its events tell."""
    if told["state"] not in State.__members__:
        return JobStatus(
            State.UNKNOWN, "NEWER", f"its state {told['state']!r} is not known to this version of jobsubmit"
        )
    return JobStatus(
        State(told["state"]),
        told["reason"],
        told["message"],
        told_failure(told["failure"], told["reason"]) if told.get("failure") else None,
        told_steps(events),
        tuple(_recoveries(told)),
        {name: value for name, value in told.items() if name in _DETAILS},
    )


def with_words(told: dict[str, Any]) -> dict[str, Any]:
    """Return what a node told, its last lines being the words by which a failure is explained."""
    failure = told.get("failure")
    return {**told, "failure": failure and {"words": failure.get("last_lines", []), **failure}}


def timing_files(directories: Iterable[Path]) -> Iterator[bytes]:
    """Yield the timing files that ranks wrote below the directories of their nodes."""
    for directory in directories:
        for _, data in recorder.files_of(str(directory)):
            yield data


def _recoveries(told: Mapping[str, Any]) -> Iterator[Recovery]:
    for entry in told.get("restarts", ()):
        fault = entry["fault"] or {"text": "", "t": entry["failed_at"]}
        what = f"restart {entry['attempt']} after {entry['reason']}"
        times = (fault["t"], entry["detected_at"], entry["back_at"])
        yield Recovery(what, fault["text"], *times, entry["steps_lost"])
    for entry in told.get("resizes", ()):
        fault = entry["fault"] or {"text": "", "t": entry["t"]}
        what = f"node {entry['node']} {entry['what']}" if entry["node"] is not None else str(entry["what"])
        if entry["what"] == "lost" and entry["nodes"] == entry["before"]:
            what += f" and back before the others went on, with {entry['nodes']}"
        elif entry["nodes"] is not None:
            what += f", went on with {entry['nodes']}"
        yield Recovery(what, fault["text"], fault["t"], entry["t"], entry["back_at"], None)


def told_failure(told: Mapping[str, Any], reason: str) -> Failure:
    """Return the first failure, explained by its own last words: what others said may be about something else."""
    known = diagnose(told.get("words", ()), signal=told["signal"], reason=reason)
    lists = {"last_lines": tuple(told["last_lines"]), "victims": tuple(told.get("victims", ()))}
    fields = {name: value for name, value in told.items() if name in Failure.__dataclass_fields__}
    return Failure(**{**fields, **lists}, **(known._asdict() if known else {}))


def told_steps(events: Iterable[Mapping[str, Any]]) -> tuple[Step, ...]:
    """Return the steps that a gang's events tell of."""
    found: dict[tuple[int, str], Step] = {}
    for event in events:
        if event["event"] != "step":
            continue
        key = (event["attempt"], event["step"])
        if event["edge"] == "start":
            found[key] = Step(event["step"], event["t"], attempt=event["attempt"])
        elif key in found:
            found[key] = replace(found[key], end=event["t"])
    return tuple(found.values())
