"""The state of a job's pods, in words that a user understands."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from jobsubmit.agent.job_directory import SIGNAL_BASE
from jobsubmit.agent.protocol import Failure, NodeStatus, read_status_text
from jobsubmit.agent.recovery.outcome import FETCH_FAILED
from jobsubmit.backends.models import JobPhase
from jobsubmit.common.durations import parse_time

# Why a container does not start, by Kubernetes' word; the reason and what it means.
_WAITING = {
    "ImagePullBackOff": ("IMAGE", "the image cannot be pulled: correct `image`, or set backend.image_pull_secrets"),
    "ErrImagePull": ("IMAGE", "the image cannot be pulled: correct `image`, or set backend.image_pull_secrets"),
    "ErrImageNeverPull": ("IMAGE", "the image is not on the machine, and backend.image_pull_policy is Never"),
    "InvalidImageName": ("IMAGE", "the name of the image is invalid: correct `image`"),
    "CreateContainerConfigError": (
        "CONFIG",
        "Kubernetes refuses the container's configuration, for example because a Secret does not exist",
    ),
    "CreateContainerError": ("CONTAINER", "the container cannot be created"),
    "RunContainerError": ("CONTAINER", "the container cannot be started; the image must have a `python3`"),
    "StartError": ("CONTAINER", "the container cannot be started; the image must have a `python3`"),
}
# Why a pod was ended from outside, by Kubernetes' word.
_ENDED = {
    "Evicted": ("EVICTED", "its machine ran out of a resource, and evicted it"),
    "Preempted": ("PREEMPTED", "a job of higher priority preempted it"),
    "PreemptionByScheduler": ("PREEMPTED", "a job of higher priority preempted it"),
    "TerminationByKubelet": ("EVICTED", "the kubelet of its machine terminated it"),
    "DeletionByTaintManager": ("NODE_FAILED", "its machine is lost"),
    "NodeLost": ("NODE_FAILED", "its machine is lost"),
    "NodeShutdown": ("NODE_FAILED", "its machine was shut down"),
    "Terminated": ("NODE_FAILED", "its machine was shut down"),
    "DeadlineExceeded": ("TIMEOUT", "it reached its time limit"),
    "UnexpectedAdmissionError": ("NODE_FAILED", "its machine did not have the requested resources"),
    "OutOf": ("NODE_FAILED", "its machine did not have the requested resources"),
}
_OUT_OF = re.compile(r"^OutOf.+")  # OutOfcpu, OutOfmemory, OutOfpods, OutOfnvidia.com/gpu …
_OOM = "OOMKilled"
_OVERDUE_SECONDS = 5.0
_FETCH, _WORKER = "fetch", "worker"


@dataclass(frozen=True)
class Pod:
    """One node of a job as Kubernetes reports it; times are in seconds since the epoch, None if not known yet."""

    name: str
    node: int
    attempt: int
    machine: str
    has_started: bool
    is_over: bool
    waits: tuple[str, str]
    lost: tuple[str, str]
    is_gone: bool
    status: NodeStatus | None
    times: Mapping[str, float | None]

    @classmethod
    def of(cls, item: Mapping[str, Any]) -> Pod:
        """Read a pod of the API."""
        meta, status = item["metadata"], item.get("status", {})
        notes = meta.get("annotations", {})
        worker = _container(status.get("containerStatuses", ()), _WORKER)
        node = int(meta["name"].rpartition("-")[2])
        return cls(
            name=meta["name"],
            node=node,
            attempt=int(notes.get("volcano.sh/job-retry-count") or 0),
            machine=item["spec"].get("nodeName", ""),
            has_started="running" in worker.get("state", {}) or "terminated" in worker.get("state", {}),
            is_over=status.get("phase") in ("Succeeded", "Failed"),
            waits=_why_it_waits(status),
            lost=_why_it_is_lost(meta, status),
            is_gone=_is_overdue(meta),
            status=_status(node, status, worker),
            times=_times(meta, status, worker),
        )


def _container(statuses: Sequence[Mapping[str, Any]], name: str) -> Mapping[str, Any]:
    return next((status for status in statuses if status["name"] == name), {})


def _why_it_waits(status: Mapping[str, Any]) -> tuple[str, str]:
    """Return reason and message of a pod that has not started, or two empty texts."""
    for container in (*status.get("initContainerStatuses", ()), *status.get("containerStatuses", ())):
        waiting = container.get("state", {}).get("waiting", {})
        if known := _WAITING.get(waiting.get("reason", "")):
            return known[0], f"{known[1]} ({waiting['reason']}: {_short(waiting.get('message', ''))})"
    for condition in status.get("conditions", ()):
        if condition["type"] == "PodScheduled" and condition["status"] == "False":
            return "UNSCHEDULABLE", f"it cannot be scheduled yet: {_short(condition.get('message', ''))}"
    return "", ""


def noted_reason(reason: str, message: str) -> tuple[str, str] | None:
    """Return reason and message of an event of a job, its pod group or a pod, None if it explains nothing."""
    if reason in ("FailedMount", "FailedAttachVolume"):
        return "VOLUME", f"a volume cannot be mounted: {_short(message)}"
    if reason == "FailedCreatePodSandBox":
        return "SANDBOX", f"its machine cannot create the pod: {_short(message)}"
    if reason == "FailedCreate":
        said = re.findall(r'Message:"((?:[^"\\]|\\.)*)"', message) or [message]
        text = said[0].replace('\\"', '"')
        return "REFUSED", f"the cluster refuses its pods: {_short(text)}"
    if reason == "Unschedulable":
        return "UNSCHEDULABLE", f"it cannot be scheduled yet: {_short(message)}"
    return None


def _why_it_is_lost(meta: Mapping[str, Any], status: Mapping[str, Any]) -> tuple[str, str]:
    """Return reason and message of a pod that something outside of the job has ended, or two empty texts."""
    if known := _ENDED.get(_OUT_OF.sub("OutOf", status.get("reason", ""))):
        return known[0], f"{known[1]}: {_short(status.get('message', ''))}".rstrip(": ")
    for condition in status.get("conditions", ()):
        if condition["type"] == "DisruptionTarget" and condition["status"] == "True":
            reason, text = _ENDED.get(condition.get("reason", ""), ("EVICTED", "it was evicted"))
            return reason, f"{text}: {_short(condition.get('message', ''))}"
    if _is_overdue(meta):
        return "NODE_FAILED", "its machine did not delete it in time"
    return "", ""


def _is_overdue(meta: Mapping[str, Any]) -> bool:
    """Return whether a pod should have been gone for a while: nobody on its machine removes it."""
    due = parse_moment(meta.get("deletionTimestamp"))
    return due is not None and due + _OVERDUE_SECONDS < time.time()


def _status(node: int, status: Mapping[str, Any], worker: Mapping[str, Any]) -> NodeStatus | None:
    """Return the status that a pod's agent left, or what Kubernetes knows of a container that ended without one."""
    ended = worker.get("state", {}).get("terminated")
    if ended is None:
        fetch = _container(status.get("initContainerStatuses", ()), _FETCH).get("state", {}).get("terminated")
        if not fetch or fetch.get("exitCode") == 0:
            return None
        message = f"node {node} could not fetch the code: {_last_line(fetch.get('message', ''))}"
        return {"state": "FAILED", "reason": FETCH_FAILED, "message": message, "failure": None}
    with suppress(ValueError):
        return read_status_text(str(ended.get("message") or "").encode())
    if ended.get("exitCode") == 0:
        return {"state": "SUCCEEDED", "reason": "", "message": "", "failure": None}
    return _without_agent(node, ended)


def _without_agent(node: int, ended: Mapping[str, Any]) -> NodeStatus:
    code = int(ended.get("exitCode") or 1)
    lines = [line for line in str(ended.get("message") or "").splitlines() if line.strip()]
    reason = "OOM" if ended.get("reason") == _OOM else "SIGNAL" if code > SIGNAL_BASE else "EXIT_CODE"
    failure: Failure = {
        "node": node,
        "rank": None,
        "exit_code": code if code < SIGNAL_BASE else None,
        "signal": code - SIGNAL_BASE if code > SIGNAL_BASE else None,
        "message": f"node {node} failed first: its container ended with exit code {code} ({ended.get('reason', '')})",
        "quoted": f"node {node}",
        "last_lines": lines[-20:],
        "words": lines,
        "evidence": {"t": parse_moment(ended.get("finishedAt")), "is_leader": True},
    }
    return {"state": "FAILED", "reason": reason, "message": failure["message"], "failure": failure}


def _times(meta: Mapping[str, Any], status: Mapping[str, Any], worker: Mapping[str, Any]) -> dict[str, float | None]:
    fetch = _container(status.get("initContainerStatuses", ()), _FETCH).get("state", {})
    state = worker.get("state", {})
    conditions = {condition["type"]: condition for condition in status.get("conditions", ())}
    scheduled = conditions.get("PodScheduled", {})
    return {
        "created": parse_moment(meta.get("creationTimestamp")),
        "scheduled": parse_moment(scheduled.get("lastTransitionTime")) if scheduled.get("status") == "True" else None,
        "fetching": parse_moment((fetch.get("running") or fetch.get("terminated") or {}).get("startedAt")),
        "fetched": parse_moment(fetch.get("terminated", {}).get("finishedAt")),
        "started": parse_moment((state.get("running") or state.get("terminated") or {}).get("startedAt")),
        "ended": parse_moment(state.get("terminated", {}).get("finishedAt")),
    }


def steps_of(pod: Pod, created: float | None) -> tuple[JobPhase, ...]:
    """Return the phases of a job, from the times of its first pod: Kubernetes counts whole seconds."""
    times = pod.times
    queued = created if pod.attempt == 0 and created else times["created"]
    spans = (
        ("queue", queued, times["scheduled"]),
        ("start", times["scheduled"], times["fetching"]),
        ("fetch", times["fetching"], times["fetched"]),
        ("training", times["started"], times["ended"]),
    )
    return tuple(JobPhase(name, start, end, pod.attempt) for name, start, end in spans if start is not None)


def parse_moment(text: str | None) -> float | None:
    """Return a time of the API in seconds since the epoch."""
    return parse_time(text) if text else None


def _short(text: str) -> str:
    return re.sub(r"\s+", " ", text).strip()[:300]


def _last_line(text: str) -> str:
    lines = [line for line in text.splitlines() if line.strip()] or [""]
    return lines[-1].removeprefix("jobsubmit: ").removeprefix("the code could not be fetched: ")
