"""What Kubernetes says of a job and its pods → how the job is."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping
from typing import Any

import pytest
from node_status import failed

from jobsubmit.agent.protocol import NodeStatus
from jobsubmit.backends.models import JobStatus, State
from jobsubmit.backends.volcano.job_objects import CANCELLED, UNTIL
from jobsubmit.backends.volcano.pods import Pod, noted_reason
from jobsubmit.backends.volcano.result import parse_job_status

RUNNING = {"running": {"startedAt": "2026-11-22T12:00:10Z"}}


def job(phase: str, notes: Mapping[str, str] | None = None, retries: int = 0) -> dict[str, Any]:
    """Return a job of two nodes as the API has it."""
    return {
        "metadata": {"name": "j", "creationTimestamp": "2026-11-22T12:00:00Z", "annotations": notes or {}},
        "spec": {"minAvailable": 2},
        "status": {"state": {"phase": phase}, "retryCount": retries},
    }


def pod(
    node: int,
    state: Mapping[str, Any] = RUNNING,
    fetch: Mapping[str, Any] | None = None,
    meta: Mapping[str, Any] | None = None,
    machine: str | None = None,
    **status: Any,
) -> Pod:
    """Return a pod whose container is in a state."""
    scheduled = {"type": "PodScheduled", "status": "True", "lastTransitionTime": "2026-11-22T12:00:02Z"}
    init = [{"name": "fetch", "state": fetch}] if fetch else []
    return Pod.of(
        {
            "metadata": {
                "name": f"j-worker-{node}",
                "creationTimestamp": "2026-11-22T12:00:01Z",
                "annotations": {"volcano.sh/job-retry-count": "0"},
                **(meta or {}),
            },
            "spec": {"nodeName": f"machine{node}" if machine is None else machine},
            "status": {
                "phase": "Running",
                "conditions": [scheduled],
                "initContainerStatuses": init,
                "containerStatuses": [{"name": "worker", "state": state}],
                **status,
            },
        }
    )


def ended(code: int, message: str = "", reason: str = "Error") -> dict[str, Any]:
    moment = {"startedAt": "2026-11-22T12:00:10Z", "finishedAt": "2026-11-22T12:01:10Z"}
    return {"terminated": {"exitCode": code, "message": message, "reason": reason, **moment}}


def nothing_stored(attempt: int, nodes: Iterable[int]) -> Mapping[int, NodeStatus]:
    return {}


def status(found: Mapping[str, Any], *pods: Pod, why: tuple[str, str] = ("", "")) -> JobStatus:
    return parse_job_status(found, pods, why, nothing_stored)


@pytest.mark.parametrize(
    ("phase", "state"),
    [
        ("", State.QUEUED),
        ("Pending", State.QUEUED),
        ("Completed", State.SUCCEEDED),
        ("Aborted", State.CANCELLED),
        ("Aborting", State.CANCELLING),
        ("Failed", State.FAILED),
        ("Terminated", State.FAILED),
    ],
)
def test_phases_of_volcano_without_pods(phase: str, state: State) -> None:
    assert status(job(phase)).state is state


def test_all_pods_run() -> None:
    found = status(job("Running"), pod(0), pod(1))
    assert found.state is State.RUNNING
    assert found.details["machines"] == {0: "machine0", 1: "machine1"}


def test_while_a_pod_is_missing_or_fetches_the_job_starts() -> None:
    assert status(job("Running"), pod(0)).state is State.STARTING
    waiting = {"waiting": {"reason": "PodInitializing"}}
    assert status(job("Running"), pod(0), pod(1, waiting)).state is State.STARTING


@pytest.mark.parametrize(
    ("word", "reason"),
    [
        ("ErrImagePull", "IMAGE"),
        ("ImagePullBackOff", "IMAGE"),
        ("ErrImageNeverPull", "IMAGE"),
        ("InvalidImageName", "IMAGE"),
        ("CreateContainerConfigError", "CONFIG"),
        ("RunContainerError", "CONTAINER"),
    ],
)
def test_why_a_container_does_not_start(word: str, reason: str) -> None:
    bad = pod(1, {"waiting": {"reason": word, "message": 'the image\n "x" is\tnot there'}})
    found = status(job("Running"), pod(0), bad)
    assert (found.state, found.reason) == (State.QUEUED, reason)
    assert found.message.startswith("node 1: ")
    assert found.message.endswith(f'({word}: the image "x" is not there)')


def test_why_a_gang_has_no_place() -> None:
    unscheduled = {"type": "PodScheduled", "status": "False", "message": "0/2 nodes: Insufficient cpu"}
    waiting = pod(0, {}, machine="", conditions=[unscheduled])
    found = status(job("Pending"), waiting)
    assert (found.state, found.reason) == (State.QUEUED, "UNSCHEDULABLE")
    assert found.message == "it cannot be scheduled yet: 0/2 nodes: Insufficient cpu"
    until = str(int(time.time()) + 3600)
    assert "its code can be fetched until" in status(job("Pending", {UNTIL: until}), waiting).message
    late = status(job("Pending", {UNTIL: "1000"}), waiting)
    assert (late.reason, "submit it again" in late.message) == ("EXPIRED", True)


@pytest.mark.parametrize(
    ("reason", "message", "expected"),
    [
        ("FailedMount", 'MountVolume.SetUp failed: "x"', ("VOLUME", "a volume cannot be mounted")),
        ("FailedCreatePodSandBox", "no ip", ("SANDBOX", "its machine cannot create the pod: no ip")),
        (
            "FailedCreate",
            'Error: [{"Message:"pods \\"j-worker-0\\" is forbidden: exceeded quota"}]',
            ("REFUSED", 'the cluster refuses its pods: pods "j-worker-0" is forbidden: exceeded quota'),
        ),
        ("Unschedulable", "2/2 tasks in gang unschedulable", ("UNSCHEDULABLE", "it cannot be scheduled yet")),
    ],
)
def test_what_is_noted_of_a_job_explains_it(reason: str, message: str, expected: tuple[str, str]) -> None:
    found = noted_reason(reason, message)
    assert found is not None
    assert (found[0], found[1].startswith(expected[1])) == (expected[0], True), found
    queued = status(job("Pending"), why=found)
    assert queued.message == found[1]


def test_what_explains_nothing_is_left_out() -> None:
    assert noted_reason("Scheduled", "Successfully assigned") is None


# ── the end ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_node_that_failed_first_is_named_not_its_victim() -> None:
    victim = pod(0, ended(7, json.dumps(failed(0, 10.0, is_victim=True))))
    cause = pod(1, ended(7, json.dumps(failed(1, 10.4))))
    found = status(job("Failed"), victim, cause)
    assert found.failure is not None
    assert (found.failure.node, found.failure.rank, found.failure.exit_code) == (1, 1, 7)
    assert found.failure.victims == (0,)


def test_what_a_pod_that_is_gone_had_said_is_asked_of_the_store() -> None:
    asked: list[tuple[int, list[int]]] = []

    def stored(attempt: int, nodes: Iterable[int]) -> Mapping[int, NodeStatus]:
        asked.append((attempt, list(nodes)))
        return {1: failed(1, 9.0)}

    found = parse_job_status(job("Failed", retries=2), [pod(0, ended(143))], ("", ""), stored)
    assert asked == [(2, [1])]
    assert found.failure is not None and found.failure.rank == 1


@pytest.mark.parametrize(
    ("terminated", "reason", "code", "signal"),
    [
        (ended(3, "line 1\nline 2"), "EXIT_CODE", 3, None),
        (ended(139), "SIGNAL", None, 11),
        (ended(137, reason="OOMKilled"), "OOM", None, 9),
    ],
)
def test_a_container_that_ended_without_our_agent(
    terminated: dict[str, Any], reason: str, code: int | None, signal: int | None
) -> None:
    found = status(job("Failed"), pod(0, terminated), pod(1, ended(0)))
    assert found.reason == reason
    assert found.failure is not None
    assert (found.failure.node, found.failure.exit_code, found.failure.signal) == (0, code, signal)


def test_what_explains_a_failure_may_stand_before_its_last_lines() -> None:
    text = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB\n" + "and more\n" * 25
    found = status(job("Failed"), pod(0, ended(1, text)), pod(1, ended(0)))
    assert found.failure is not None
    assert found.failure.meaning
    assert not any("CUDA" in line for line in found.failure.last_lines)


def test_code_that_could_not_be_fetched() -> None:
    fetch = {"terminated": {"exitCode": 1, "message": "x\njobsubmit: the code could not be fetched: HTTP 403\n"}}
    found = status(job("Failed"), pod(0, {"waiting": {}}, fetch), pod(1, {"waiting": {}}))
    assert (found.state, found.reason) == (State.FAILED, "FETCH_FAILED")
    assert found.message == "node 0 could not fetch the code: HTTP 403"


@pytest.mark.parametrize(
    ("status_", "reason"),
    [
        ({"reason": "Evicted", "message": "low on memory"}, "EVICTED"),
        ({"reason": "Preempting"}, "POD_LOST"),
        ({"reason": "OutOfcpu"}, "NODE_FAILED"),
        ({"reason": "OutOfmemory"}, "NODE_FAILED"),
        ({"reason": "OutOfnvidia.com/gpu"}, "NODE_FAILED"),
        (
            {"conditions": [{"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler"}]},
            "PREEMPTED",
        ),
        ({"conditions": [{"type": "DisruptionTarget", "status": "True", "reason": "New"}]}, "EVICTED"),
    ],
)
def test_who_took_a_pod_away(status_: dict[str, Any], reason: str) -> None:
    assert status(job("Failed"), pod(0), pod(1, {}, **status_)).reason == reason


def test_a_machine_that_removes_no_pod_makes_the_job_lost() -> None:
    overdue = pod(1, meta={"deletionTimestamp": "2026-11-22T12:00:00Z"})
    found = status(job("Running"), pod(0), overdue)
    assert (found.state, found.reason) == (State.LOST, "NODE_FAILED")
    assert "node 1 on machine1" in found.message
    assert "jobsubmit cancel" in found.message


@pytest.mark.parametrize(
    ("phase", "state"),
    [
        ("Running", State.CANCELLING),
        ("Terminated", State.CANCELLED),
        ("Failed", State.CANCELLED),
        ("Completed", State.SUCCEEDED),
    ],
)
def test_a_job_that_somebody_cancelled(phase: str, state: State) -> None:
    found = status(job(phase, {CANCELLED: "1"}), pod(0, ended(143)), pod(1, ended(143)))
    assert (found.state, found.failure) == (state, None)


def test_a_job_that_volcano_starts_again() -> None:
    found = status(job("Restarting", retries=1), pod(0))
    assert (found.state, found.message) == (State.RECOVERING, "restart 1")


def test_how_long_each_part_took() -> None:
    fetch = {"terminated": {"exitCode": 0, "startedAt": "2026-11-22T12:00:03Z", "finishedAt": "2026-11-22T12:00:08Z"}}
    found = status(job("Completed"), pod(0, ended(0), fetch), pod(1, ended(0), fetch))
    spans = {step.name: (step.end or 0) - step.start for step in found.steps}
    assert spans == {"queue": 2, "start": 1, "fetch": 5, "training": 60}
