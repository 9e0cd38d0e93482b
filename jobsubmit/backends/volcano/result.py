"""A Volcano job and its pods → the status of the job."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

from jobsubmit.agent.protocol import NodeStatus
from jobsubmit.agent.recovery.outcome import find_outcome
from jobsubmit.backends.models import JobStatus, State
from jobsubmit.backends.shared.agent_status import parse_status, with_words
from jobsubmit.backends.volcano.job_objects import CANCELLED, UNTIL
from jobsubmit.backends.volcano.pods import Pod, parse_moment, steps_of
from jobsubmit.common.durations import time_text

Stored: TypeAlias = Callable[[int, Iterable[int]], Mapping[int, NodeStatus]]

# By Volcano's word for the phase of a job (its API, batch/v1alpha1).
PHASES = {
    "": State.QUEUED,
    "Pending": State.QUEUED,
    "Running": State.RUNNING,
    "Restarting": State.RECOVERING,
    "Completing": State.RUNNING,
    "Completed": State.SUCCEEDED,
    "Terminating": State.RUNNING,
    "Terminated": State.FAILED,
    "Aborting": State.CANCELLING,
    "Aborted": State.CANCELLED,
    "Failed": State.FAILED,
}


def parse_job_status(
    job: Mapping[str, Any], pods: Sequence[Pod], why_queued: tuple[str, str], stored: Stored
) -> JobStatus:
    """Return the status of a job.

    `why_queued` is why a pod group is not scheduled yet; `stored` returns by attempt and nodes how those
    nodes ended, if their pods are gone.
    """
    phase = str(job.get("status", {}).get("state", {}).get("phase", ""))
    notes = job["metadata"].get("annotations", {})
    attempt = int(job.get("status", {}).get("retryCount") or 0)
    nodes = int(job["spec"]["minAvailable"])
    created = parse_moment(job["metadata"]["creationTimestamp"])
    first = [pod for pod in pods if pod.node == 0]
    base = JobStatus(
        PHASES.get(phase, State.RUNNING),
        steps=steps_of(first[0], created) if first else (),
        details={
            "volcano": phase,
            "attempt": attempt,
            "machines": {pod.node: pod.machine for pod in sorted(pods, key=lambda pod: pod.node)},
        },
    )
    is_cancelled = CANCELLED in notes
    if base.state.is_final:
        return _ended(base, pods, nodes, stored, is_cancelled=is_cancelled)
    if is_cancelled:
        return replace(base, state=State.CANCELLING)
    if lost := [pod for pod in pods if pod.lost[0]]:
        pod = lost[0]
        message = f"node {pod.node} on {pod.machine}: {pod.lost[1]}"
        if pod.is_gone:  # Volcano waits for the word of a machine that is not there
            message += "; the rest of the job still runs: end it with `jobsubmit cancel JOB`"
            return replace(base, state=State.LOST, reason=pod.lost[0], message=message)
        return replace(base, message=message)
    return _under_way(base, pods, nodes, why_queued, notes.get(UNTIL, ""))


def _under_way(base: JobStatus, pods: Sequence[Pod], nodes: int, why_queued: tuple[str, str], until: str) -> JobStatus:
    waiting = [pod for pod in pods if not pod.has_started]
    if base.state is State.RUNNING and not waiting and len(pods) == nodes:
        return base
    if base.details["attempt"]:
        base = replace(base, state=State.RECOVERING, message=f"restart {base.details['attempt']}")
    for pod in waiting:
        if pod.waits[0] and pod.waits[0] != "UNSCHEDULABLE":
            return replace(base, state=State.QUEUED, reason=pod.waits[0], message=f"node {pod.node}: {pod.waits[1]}")
    if base.state is State.RUNNING or (pods and all(pod.machine for pod in pods)):
        if why_queued[0] and why_queued[0] != "UNSCHEDULABLE":
            return replace(base, state=State.QUEUED, reason=why_queued[0], message=why_queued[1])
        return replace(base, state=State.STARTING if base.state is not State.RECOVERING else base.state)
    if until and float(until) < time.time():
        return replace(base, reason="EXPIRED", message="the signed addresses of its code have expired: submit it again")
    unscheduled = next((pod.waits for pod in waiting if pod.waits[0]), why_queued)
    message = unscheduled[1] or "waiting for Volcano"
    if until:
        message += f"; its code can be fetched until {time_text(float(until))}"
    return replace(base, reason=unscheduled[0], message=message)


def _ended(base: JobStatus, pods: Sequence[Pod], nodes: int, stored: Stored, *, is_cancelled: bool) -> JobStatus:
    if is_cancelled and base.state is not State.SUCCEEDED:
        return replace(base, state=State.CANCELLED)
    if base.state is State.SUCCEEDED:
        return base
    if base.state is State.CANCELLED:
        return replace(base, reason="ABORTED", message="the job was aborted with Volcano's own tools")
    statuses = {pod.node: pod.status for pod in pods if pod.status}
    silent = [node for node in range(nodes) if node not in statuses]
    statuses.update(stored(base.details["attempt"], silent))
    outcome = find_outcome([with_words(status) for status in statuses.values()], nodes)
    if outcome is not None and outcome.state == "FAILED":
        reported = parse_status(outcome.as_status())
        return replace(reported, steps=base.steps, details={**base.details, **reported.details})
    if lost := [pod for pod in pods if pod.lost[0]]:
        message = f"node {lost[0].node} on {lost[0].machine}: {lost[0].lost[1]}"
        return replace(base, reason=lost[0].lost[0], message=message)
    return replace(
        base, reason="POD_LOST", message="a pod of the job was removed: its machine is lost, or the pod was deleted"
    )
