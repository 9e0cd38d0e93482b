"""One Volcano job on the API server: its pods, its events, and how to end it."""

from __future__ import annotations

import json
import math
import re
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from jobsubmit.backends.volcano.api import COMMANDS, CORE, JOBS, Kubernetes
from jobsubmit.backends.volcano.collected import Collected
from jobsubmit.backends.volcano.job_objects import JOB_ID, STORE
from jobsubmit.backends.volcano.pods import Pod, noted_reason, parse_moment
from jobsubmit.common.store_address import StoreAddress
from jobsubmit.errors import JobNotFoundError
from jobsubmit.stores.opening import open_store
from jobsubmit.stores.protocol import ObjectStore

if TYPE_CHECKING:
    from jobsubmit.backends.models import JobHandle

_TERMINATING_SECONDS, _RESTARTING_SECONDS, _LOOK_SECONDS = 5.0, 20.0, 0.1


class Job:
    """One job in its state on the server now. Raises JobNotFoundError."""

    def __init__(self, handle: JobHandle) -> None:
        context, _, path = handle.path.rpartition("@")
        self.namespace, _, self.name = path.partition("/")
        if not self.name or "/" in self.name:
            raise JobNotFoundError(
                f"{handle} is not a valid handle: expected volcano://namespace/name",
                "run `jobsubmit list` to see all jobs",
            )
        self.api = Kubernetes(context or None)
        self.path = JOBS.format(namespace=self.namespace) + f"/{self.name}"
        found = self.api.find(self.path)
        if found is None:
            text = f"{handle}: the Volcano job does not exist, or was deleted"
            raise JobNotFoundError(text, f"check with `kubectl get vcjob -n {self.namespace}`")
        self.found = found

    @property
    def phase(self) -> str:
        """Return Volcano's word for the phase of the job."""
        return str(self.found.get("status", {}).get("state", {}).get("phase", ""))

    def pods(self) -> list[Pod]:
        """Return the pods that exist now."""
        query = {"labelSelector": f"volcano.sh/job-name={self.name}"}
        return [Pod.of(item) for item in self._core("pods", query)["items"]]

    def _core(self, kind: str, query: Mapping[str, str] | None = None) -> dict[str, Any]:
        return self.api.get(CORE.format(namespace=self.namespace) + kind, query)

    def why_it_waits(self, pods: Sequence[Pod]) -> tuple[str, str]:
        """Return why pods do not exist, cannot be scheduled or do not start, according to the last event."""
        waiting = [pod for pod in pods if not pod.has_started]
        if pods and not waiting:
            return "", ""
        has_place = bool(pods) and all(pod.machine for pod in pods)
        pod_group = (self.name, f"{self.name}-{self.found['metadata']['uid']}")
        for name in [pod.name for pod in waiting[:1]] if has_place else pod_group:
            noted = self._core("events", {"fieldSelector": f"involvedObject.name={name}"})["items"]
            for event in sorted(noted, key=_noted_at, reverse=True):
                if known := noted_reason(event.get("reason", ""), event.get("message", "")):
                    return known
        return "", ""

    def events(self) -> list[Mapping[str, Any]]:
        """Return the events of the job, its pod group and its pods, in order of time."""
        names = re.compile(rf"{re.escape(self.name)}(-.*)?")
        found = []
        for item in self._core("events")["items"]:
            about = item["involvedObject"]
            if names.fullmatch(about.get("name", "")):
                when = _noted_at(item)
                what = {"object": f"{about['kind']}/{about['name']}", "message": item.get("message", "")}
                found.append({"t": when, "event": item.get("reason", ""), **what})
        return sorted(found, key=lambda event: float(event["t"]))

    def collected(self) -> Collected:
        """Return the reader of the job's log lines."""
        return Collected(self.api, self.namespace, self.pods, *store_of(self.found))

    def terminate(self) -> None:
        """Ask Volcano to end the job: it would take deleted pods for lost ones."""
        deadline = time.monotonic() + _RESTARTING_SECONDS
        while self.phase == "Restarting" and time.monotonic() < deadline:  # in which it takes no orders
            self.look_again()
        if self.phase in ("Terminating", "Aborting"):
            return
        target = {**reference_to(self.found), "controller": True}
        self.api.create(
            COMMANDS.format(namespace=self.namespace),
            {
                "apiVersion": "bus.volcano.sh/v1alpha1",
                "kind": "Command",
                "metadata": {"generateName": f"{self.name}-", "ownerReferences": [target]},
                "action": "TerminateJob",
                "target": target,
            },
        )

    def look_again(self) -> None:
        """Wait a moment, then read the job again."""
        time.sleep(_LOOK_SECONDS)
        self.found = self.api.get(self.path)

    def hurry(self, grace: float) -> None:
        """Leave the pods of an ending job at most `grace` seconds."""
        deadline = time.monotonic() + _TERMINATING_SECONDS
        while (
            not (self.api.find(self.path) or {}).get("status", {}).get("state", {}).get("phase", "").startswith("Term")
        ):
            if time.monotonic() > deadline:
                return
            time.sleep(0.1)
        for pod in self.pods():
            if not pod.is_over:
                path = CORE.format(namespace=self.namespace) + f"pods/{pod.name}"
                self.api.delete(path, {"gracePeriodSeconds": max(1, math.ceil(grace))})


def _noted_at(event: Mapping[str, Any]) -> float:
    return parse_moment(event.get("lastTimestamp") or event.get("eventTime")) or 0.0


def reference_to(found: Mapping[str, Any]) -> dict[str, Any]:
    """Return the reference to a job that other objects hold."""
    meta = found["metadata"]
    return {"apiVersion": found["apiVersion"], "kind": "Job", "name": meta["name"], "uid": meta["uid"]}


def log_prefix(job_id: str) -> str:
    return f"logs/{job_id}/"


def store_of(found: Mapping[str, Any]) -> tuple[ObjectStore | None, str]:
    """Return the store that holds a job's log lines, and the prefix of their keys; None for a foreign job."""
    notes = found["metadata"].get("annotations", {})
    if STORE not in notes:
        return None, ""
    return open_store(StoreAddress(**json.loads(notes[STORE]))), log_prefix(notes[JOB_ID])
