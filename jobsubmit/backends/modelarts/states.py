"""What the service says of a job → how the job is, in our words."""

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


def apply_ends(told: JobStatus, ends: Mapping[str, NodeStatus | None]) -> JobStatus:
    """Return how a failed job is by what the agents of its tasks said at their ends, where they name the failure.

    What an agent said does not count where the platform saw another exit code: a task that was started again, and then
    killed with its agent, has only the end of an earlier attempt in its log.
    """
    statuses = [
        with_words(end)
        for task, end in ends.items()
        if end is not None and told.details["exit_codes"].get(task) in (None, _agents_code(end))
    ]
    outcome = find_outcome(statuses, len(ends))
    if outcome is None or outcome.state != "FAILED":
        return told
    status = parse_status(outcome.as_status())
    return replace(status, steps=told.steps, details={**told.details, **status.details})


def _agents_code(end: NodeStatus) -> int:
    """Return the exit code of an agent that said this at its end."""
    return shell_code(find_outcome([end], 1) or Outcome("CANCELLED"))


def explain_failure(told: JobStatus, words: Sequence[str]) -> JobStatus:
    """Return how a failed job is, explained by the last lines of the node that failed: mp.spawn names a process."""
    assert told.failure
    known = diagnose(words, signal=told.failure.signal, reason=told.reason)
    message = told.failure.message
    if found := _SPAWNED.search("\n".join(words)):
        message += f"; its process {found[1] or found[2]} {found[3] or 'raised an exception'}"
    failure = replace(told.failure, message=message, last_lines=tuple(words[-_LAST_LINES:]))
    return replace(told, message=message, failure=replace(failure, **(known._asdict() if known else {})))


def parse_job_status(job: Mapping[str, Any]) -> JobStatus:
    """Return how a job is, without its last words."""
    told = job.get("status") or {}
    phase = str(told.get("phase", ""))
    state = PHASES.get(phase, State.RUNNING)
    failure = _failure(told.get("task_statuses") or []) if state is State.FAILED else None
    reason = {"Abnormal": "ABNORMAL", "Failed": "SIGNAL" if failure and failure.signal else "EXIT_CODE"}.get(phase, "")
    message = failure.message if failure else {"Abnormal": "the platform could not run it"}.get(phase, "")
    codes = {one["task"]: _number(one.get("exit_code")) for one in told.get("task_statuses") or [] if one.get("task")}
    details = {"modelarts": phase, "tasks": tasks_of(job), "exit_codes": codes}
    return JobStatus(state, reason, message, failure, _steps(job, told, state), details=details)


def tasks_of(job: Mapping[str, Any]) -> list[str]:
    """Return the names of a job's tasks, one a node."""
    return list((job.get("status") or {}).get("tasks") or [])


def _steps(job: Mapping[str, Any], told: Mapping[str, Any], state: State) -> tuple[JobPhase, ...]:
    """Return how long it waited, and how long it ran; the service tells milliseconds."""
    created, started = _number((job.get("metadata") or {}).get("create_time")), _number(told.get("start_time"))
    if not created:
        return ()
    if not started:
        return (JobPhase("queue", created * _MILLI),)
    ended = started + _number(told.get("duration"))
    end = ended * _MILLI if state.is_final else None
    return (JobPhase("queue", created * _MILLI, started * _MILLI), JobPhase("training", started * _MILLI, end))


def _number(told: object) -> int:
    try:
        return int(str(told))
    except ValueError:
        return 0


def parse_moment(told: object) -> float:
    """Return a time of the service's, milliseconds or ISO 8601, in seconds since the epoch; 0 for what is neither."""
    if number := _number(told):
        return number * _MILLI
    return parse_time(str(told)) or 0.0


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
