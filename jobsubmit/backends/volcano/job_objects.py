"""LaunchPlan → the Kubernetes objects: a Volcano job, a ConfigMap that its pods read, and a Secret."""

from __future__ import annotations

import base64
import json
import random
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from jobsubmit.agent import node_contract as contract
from jobsubmit.agent.protocol import COLLECT, ORDER, REQUEST
from jobsubmit.agent.recovery.outcome import KILLED, STOPPED
from jobsubmit.agent.run import RESTART
from jobsubmit.backends.shared.agent_archive import agent_archive
from jobsubmit.backends.volcano.names import TASK, object_name
from jobsubmit.backends.volcano.spec import VolcanoBackendSpec, VolumeSpec

if TYPE_CHECKING:
    from jobsubmit.plan.launch_plan import LaunchPlan

JOB, CONFIG_MAP, SECRET = "vcjob.yaml", "configmap.yaml", "secret.yaml"
JOB_ID, STORE, CONTEXT = "jobsubmit/job-id", "jobsubmit/store", "jobsubmit/context"
CANCELLED, UNTIL = "jobsubmit/cancelled", "jobsubmit/code-until"  # moments, in seconds since the epoch
MANAGED = {"app.kubernetes.io/managed-by": "jobsubmit"}
AGENT = "agent.pyz"
SECRET_PREFIX = "env."  # noqa: S105 - before the name of a variable
_FOLDER, _JOB = "/jobsubmit", "/jobsubmit-job"
_GRACE_SECONDS = 30  # the agent leaves the ranks 10, and collects the rest of the log after it
_PLACEHOLDER = "filled in at submission"


def build_documents(plan: LaunchPlan, request: Mapping[str, Any], job_id: str) -> dict[str, dict[str, Any]]:
    """Return the three objects by the names of their documents; equal arguments give equal objects."""
    spec = VolcanoBackendSpec.of(plan.backend)
    name = object_name(job_id, plan.nodes)
    metadata = {"name": name, **({"namespace": spec.namespace} if spec.namespace else {}), "labels": MANAGED}
    kept = {**metadata, "name": f"{name}-jobsubmit"}
    notes = {JOB_ID: job_id, STORE: json.dumps(plan.store._asdict()), UNTIL: _PLACEHOLDER}
    if spec.context:
        notes[CONTEXT] = spec.context
    secret = {ORDER: _PLACEHOLDER, COLLECT: _PLACEHOLDER, **{SECRET_PREFIX + n: _PLACEHOLDER for n, _ in plan.secrets}}
    return {
        JOB: {
            "apiVersion": "batch.volcano.sh/v1alpha1",
            "kind": "Job",
            "metadata": {**metadata, "annotations": notes},
            "spec": _job(plan, spec, name, job_id),
        },
        CONFIG_MAP: {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": kept,
            "data": {REQUEST: json.dumps(request, ensure_ascii=False, sort_keys=True)},
            "binaryData": {AGENT: base64.b64encode(agent_archive()).decode()},
        },
        SECRET: {"apiVersion": "v1", "kind": "Secret", "metadata": kept, "type": "Opaque", "stringData": secret},
    }


def _job(plan: LaunchPlan, spec: VolcanoBackendSpec, name: str, job_id: str) -> dict[str, Any]:
    job: dict[str, Any] = {
        "schedulerName": "volcano",
        "minAvailable": plan.nodes,
        "plugins": {"env": [], "svc": ["--publish-not-ready-addresses=true"]},
        "policies": _policies(plan),
        # Volcano counts attempts, and takes 0 for 3 (platform documentation, measured).
        "maxRetry": plan.restarts.max + 1 if plan.restarts else 1,
        "tasks": [
            {
                "name": TASK,
                "replicas": plan.nodes,
                "policies": [{"event": "TaskCompleted", "action": "CompleteJob"}],
                "template": {
                    "metadata": {"labels": MANAGED, "annotations": {JOB_ID: job_id}},
                    "spec": _pod(plan, spec, name, job_id),
                },
            }
        ],
    }
    if spec.queue:
        job["queue"] = spec.queue
    if spec.priority_class:
        job["priorityClassName"] = spec.priority_class
    return job


def _policies(plan: LaunchPlan) -> list[dict[str, Any]]:
    """Return when all pods start again: where an agent asks for it, or a pod was taken away."""
    if not plan.restarts:
        return [{"event": event, "action": "TerminateJob"} for event in ("PodEvicted", "PodFailed")]
    lost = "RestartJob" if "node_failure" in plan.restarts.on else "TerminateJob"
    killed = "RestartJob" if {"failure", "signal", "node_failure"} & set(plan.restarts.on) else "TerminateJob"
    return [
        {"exitCode": RESTART, "action": "RestartJob"},
        {"exitCode": STOPPED, "action": lost},  # taken away, and it had the time to say so
        {"exitCode": KILLED, "action": killed},  # with the agent in it, which could not ask for anything any more
        {"event": "PodEvicted", "action": lost},
        {"event": "PodFailed", "action": "TerminateJob"},
    ]


def _pod(plan: LaunchPlan, spec: VolcanoBackendSpec, name: str, job_id: str) -> dict[str, Any]:
    mounts = [{"name": "work", "mountPath": _FOLDER}]
    own = [{"name": "job", "mountPath": _JOB, "readOnly": True}]
    port = random.Random(job_id).randrange(20000, 30000) if spec.host_network else contract.DEFAULT_PORT
    container = {
        "image": plan.image or spec.image,
        **({"imagePullPolicy": spec.image_pull_policy} if spec.image_pull_policy else {}),
        "resources": {"requests": spec.resources, "limits": spec.resources} if spec.resources else {},
        **({"envFrom": [{"secretRef": {"name": spec.credentials_secret}}]} if spec.credentials_secret else {}),
        "env": _environment(plan, spec, port, job_id),
    }
    pod: dict[str, Any] = {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": _GRACE_SECONDS,
        "enableServiceLinks": False,
        "automountServiceAccountToken": spec.service_account is not None,
        "volumes": _volumes(plan, spec, name),
        "initContainers": [
            {
                **container,
                "name": "fetch",
                "command": ["python3", "-I", "-S", f"{_JOB}/{AGENT}", "fetch", _FOLDER, _JOB],
                "terminationMessagePolicy": "FallbackToLogsOnError",
                "volumeMounts": [*mounts, {"name": "order", "mountPath": _JOB, "readOnly": True}],
            }
        ],
        "containers": [
            {
                **container,
                "name": TASK,
                "command": ["python3", "-I", "-S", f"{_JOB}/{AGENT}", "pod", _FOLDER, _JOB],
                "ports": [{"name": "rendezvous", "containerPort": port}],
                "terminationMessagePolicy": "FallbackToLogsOnError",
                "volumeMounts": [*mounts, *own, {"name": "shm", "mountPath": "/dev/shm"}, *_mounts(spec)],  # noqa: S108
            }
        ],
        **_where(spec, name),
    }
    if spec.service_account:
        pod["serviceAccountName"] = spec.service_account
    if spec.image_pull_secrets:
        pod["imagePullSecrets"] = [{"name": secret} for secret in spec.image_pull_secrets]
    if spec.host_network:
        pod.update(hostNetwork=True, dnsPolicy="ClusterFirstWithHostNet")
    return pod


def _environment(plan: LaunchPlan, spec: VolcanoBackendSpec, port: int, job_id: str) -> list[dict[str, Any]]:
    """Return what Volcano's plugins do not give of the node contract, and the job's own variables.

    Kubernetes expands $(NAME) in values: a doubled $ is one $ (its API reference, EnvVar).
    """
    plain = {
        contract.HOST_COUNT: str(plan.nodes),
        contract.TASK_NAME: TASK,
        contract.JOB_ID: job_id,
        contract.PORT: str(port),
        **{name: value.replace("$", "$$") for name, value in plan.env},
    }
    fields = {
        contract.OWN_ADDRESS: "status.podIP",
        contract.OWN_NAME: "metadata.name",
        contract.RESTART_COUNT: "metadata.annotations['volcano.sh/job-retry-count']",
    }
    found: list[dict[str, Any]] = [{"name": str(name), "value": value} for name, value in plain.items()]
    found += [{"name": str(name), "valueFrom": {"fieldRef": {"fieldPath": path}}} for name, path in fields.items()]
    own = f"{object_name(job_id, plan.nodes)}-jobsubmit"
    for name, _ in plan.secrets:
        found.append({"name": name, "valueFrom": {"secretKeyRef": {"name": own, "key": SECRET_PREFIX + name}}})
    return found


def _volumes(plan: LaunchPlan, spec: VolcanoBackendSpec, name: str) -> list[dict[str, Any]]:
    own = f"{name}-jobsubmit"
    shared = {"configMap": {"name": own}}

    def projected(volume: str, key: str) -> dict[str, Any]:
        secret = {"secret": {"name": own, "items": [{"key": key, "path": key}]}}
        return {"name": volume, "projected": {"sources": [shared, secret]}}

    memory = {"medium": "Memory", **({"sizeLimit": spec.shm_size} if spec.shm_size else {})}
    found: list[dict[str, Any]] = [
        {"name": "work", "emptyDir": {}},
        {"name": "shm", "emptyDir": memory},
        projected("order", ORDER),
        projected("job", COLLECT),
    ]
    return found + [{"name": f"volume-{n}", **_source(volume)} for n, volume in enumerate(spec.volumes)]


def _source(volume: VolumeSpec) -> dict[str, Any]:
    if volume.claim:
        return {"persistentVolumeClaim": {"claimName": volume.claim}}
    return {"hostPath": {"path": volume.host_path or volume.path}}


def _mounts(spec: VolcanoBackendSpec) -> list[dict[str, Any]]:
    return [
        {"name": f"volume-{number}", "mountPath": volume.path, **({"readOnly": True} if volume.read_only else {})}
        for number, volume in enumerate(spec.volumes)
    ]


def _where(spec: VolcanoBackendSpec, name: str) -> dict[str, Any]:
    """Return which machines the pods may run on, and whether together."""
    where: dict[str, Any] = {}
    if spec.node_selector:
        where["nodeSelector"] = dict(spec.node_selector)
    if spec.tolerations:
        where["tolerations"] = [toleration.model_dump(exclude_none=True) for toleration in spec.tolerations]
    if spec.placement:
        term = {
            "labelSelector": {"matchLabels": {"volcano.sh/job-name": name}},
            "topologyKey": "kubernetes.io/hostname",
        }
        where["affinity"] = (
            {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
            if spec.placement == "spread"
            else {
                "podAffinity": {
                    "preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 100, "podAffinityTerm": term}]
                }
            }
        )
    return where
