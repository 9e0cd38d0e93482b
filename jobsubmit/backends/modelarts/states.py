"""The service's description of a job → its status in jobsubmit."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from jobsubmit.agent.protocol import NodeStatus
from jobsubmit.agent.recovery.outcome import Outcome, find_outcome, shell_code
from jobsubmit.backends.models import Failure, JobPhase, JobStatus, State
from jobsubmit.backends.shared.agent_status import parse_status, with_words
from jobsubmit.backends.shared.failure_hints import diagnose
from jobsubmit.common.durations import parse_time

# The service's word for the phase of a job (API v2); the secondary phase is not documented well enough to depend on.
PHASES = {
    "Creating": State.PENDING,
    "Pending": State.QUEUED,
    "Running": State.RUNNING,
    "Terminating": State.CANCELLING,
    "Completed": State.SUCCEEDED,
    "Failed": State.FAILED,
    "Terminated": State.CANCELLED,
    "Abnormal": State.FAILED,
}
# What torch.multiprocessing.spawn says of the process that ended it, in torch 2.1 to 2.15.
_SPAWNED = re.compile(
    r"-- Process (\d+) terminated with the following error|process (\d+) (terminated with (?:exit code|signal) \w+)"
)
_LAST_LINES = 20
_SIGNAL_BASE = 128
_MILLI = 1e-3


def apply_ends(reported: JobStatus, ends: Mapping[str, NodeStatus | None]) -> JobStatus:
    """Return the status of a failed job by the last reports of its tasks' agents, if they name the failure.

    A report does not count if the platform saw another exit code: the log of a task that was restarted, and then
    killed with its agent, has only the report of an earlier attempt.
    """
    statuses = [
        with_words(end)
        for task, end in ends.items()
        if end is not None and reported.details["exit_codes"].get(task) in (None, _agents_code(end))
    ]
    outcome = find_outcome(statuses, len(ends))
    if outcome is None or outcome.state != "FAILED":
        return reported
    status = parse_status(outcome.as_status())
    return replace(status, steps=reported.steps, details={**reported.details, **status.details})


def _agents_code(end: NodeStatus) -> int:
    """Return the exit code of an agent that said this at its end."""
    return shell_code(find_outcome([end], 1) or Outcome("CANCELLED"))


def explain_failure(reported: JobStatus, words: Sequence[str]) -> JobStatus:
    """Return the status of a failed job, explained by the last lines of the failed node: mp.spawn names a process."""
    assert reported.failure
    known = diagnose(words, signal=reported.failure.signal, reason=reported.reason)
    message = reported.failure.message
    if found := _SPAWNED.search("\n".join(words)):
        message += f"; its process {found[1] or found[2]} {found[3] or 'raised an exception'}"
    failure = replace(reported.failure, message=message, last_lines=tuple(words[-_LAST_LINES:]))
    return replace(reported, message=message, failure=replace(failure, **(known._asdict() if known else {})))


def parse_job_status(job: Mapping[str, Any]) -> JobStatus:
    """Return the status of a job, without its last lines."""
    reported = job.get("status") or {}
    phase = str(reported.get("phase", ""))
    state = PHASES.get(phase, State.RUNNING)
    failure = _failure(reported.get("task_statuses") or []) if state is State.FAILED else None
    reason = {"Abnormal": "ABNORMAL", "Failed": "SIGNAL" if failure and failure.signal else "EXIT_CODE"}.get(phase, "")
    message = failure.message if failure else {"Abnormal": "the platform could not run the job"}.get(phase, "")
    codes = {
        one["task"]: _number(one.get("exit_code")) for one in reported.get("task_statuses") or [] if one.get("task")
    }
    details = {"modelarts": phase, "tasks": tasks_of(job), "exit_codes": codes}
    return JobStatus(state, reason, message, failure, _steps(job, reported, state), details=details)


def tasks_of(job: Mapping[str, Any]) -> list[str]:
    """Return the names of a job's tasks, one per node."""
    return list((job.get("status") or {}).get("tasks") or [])


def _steps(job: Mapping[str, Any], reported: Mapping[str, Any], state: State) -> tuple[JobPhase, ...]:
    """Return how long it waited, and how long it ran; the service reports milliseconds."""
    created, started = _number((job.get("metadata") or {}).get("create_time")), _number(reported.get("start_time"))
    if not created:
        return ()
    if not started:
        return (JobPhase("queue", created * _MILLI),)
    ended = started + _number(reported.get("duration"))
    end = ended * _MILLI if state.is_final else None
    return (JobPhase("queue", created * _MILLI, started * _MILLI), JobPhase("training", started * _MILLI, end))


def _number(reported: object) -> int:
    try:
        return int(str(reported))
    except ValueError:
        return 0


def parse_moment(reported: object) -> float:
    """Return a time of the service, milliseconds or ISO 8601, in seconds since the epoch; 0 for anything else."""
    if number := _number(reported):
        return number * _MILLI
    return parse_time(str(reported)) or 0.0


def node_of(task: str) -> int:
    """Return the node of a task: `worker-1` is node 1."""
    number = task.rpartition("-")[2]
    return int(number) if number.isdigit() else 0


def _failure(tasks: list[Mapping[str, Any]]) -> Failure | None:
    """Return the task that failed; of several the one that was not ended by a signal, for that came from outside."""
    failed = [task for task in tasks if _number(task.get("exit_code")) and task.get("task")]
    if not failed:
        return None
    first = min(failed, key=lambda task: (int(task["exit_code"]) > _SIGNAL_BASE, node_of(str(task["task"]))))
    node, code = node_of(str(first["task"])), int(first["exit_code"])
    signal = code - _SIGNAL_BASE if code > _SIGNAL_BASE else None
    how = f"signal {signal}" if signal else f"exit code {code}"
    said = str(first.get("message") or "").strip()
    message = f"node {node} failed: {how}" + (f" ({said})" if said else "")
    return Failure(node, None, None if signal else code, signal, message, f"node {node}", ())
