"""LaunchPlan → the body that creates a training job (API v2, POST /training-jobs; platform documentation)."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

from jobsubmit.agent.node_contract import AGENT_REQUEST, JOB_FOLDER, JOB_ID, is_reserved
from jobsubmit.agent.tracking import tracking_variables
from jobsubmit.backends.modelarts.spec import ModelArtsBackendSpec
from jobsubmit.backends.shared.agent_archive import agent_archive
from jobsubmit.backends.shared.agent_request import build_node_request
from jobsubmit.common.resources import TEMPLATES

if TYPE_CHECKING:
    from jobsubmit.plan.launch_plan import LaunchPlan
    from jobsubmit.plan.mounts import Mount
    from jobsubmit.plan.script import Script
    from jobsubmit.transfer.code_ref import CodeRef

NAME = "training-job.json"
_FOLDER = ".jobsubmit"  # in the code directory, where no ignore rule of the user's reaches
_RUN, _AGENT = "run.sh", "agent.pyz"
_UNREAD = ("name", "code", "server")  # what a node need not know, for it finds its code and its data in place
_PLACEHOLDER = "<secret {}>"
_SECONDS_AN_HOUR = 3600
_LONGEST_NAME, _DIGEST = 64, 8  # characters


def build_training_job(plan: LaunchPlan, script: Script, code: CodeRef, job_id: str) -> dict[str, Any]:
    """Return the body; equal arguments give equal bodies, and secrets are placeholders."""
    spec = ModelArtsBackendSpec.of(plan.backend)
    metadata = {
        "name": platform_name(job_id),
        "workspace_id": spec.workspace_id,
        "description": spec.description,
        "annotations": _annotations(plan),
    }
    resource = {"flavor_id": flavor(plan), "node_count": plan.nodes, "pool_id": spec.pool_id}
    hours = auto_stop_hours(plan)
    return _filled(
        {
            "kind": "job",
            "metadata": _filled(metadata),
            "algorithm": _filled(_algorithm(plan, script, code, job_id)),
            "spec": _filled(
                {
                    "resource": _filled(resource),
                    "log_export_path": {"obs_url": api_path(spec.log_url)} if spec.log_url else None,
                    "auto_stop": {"time_unit": "HOURS", "duration": hours} if hours else None,
                    "schedule_policy": {"priority": spec.priority} if spec.priority else None,
                }
            ),
        }
    )


def _filled(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value not in (None, {}, [])}


def _algorithm(plan: LaunchPlan, script: Script, code: CodeRef, job_id: str) -> dict[str, Any]:
    folder = api_path(code.uri)
    environments = {
        **tracking_variables(plan.tracking, job_id, 0),
        **dict(plan.env),
        **{name: _PLACEHOLDER.format(source) for name, source in plan.secrets},
    }
    data = {
        "inputs": [_channel(plan, mount) for mount in plan.mounts if mount.kind == "input"],
        "outputs": [_channel(plan, mount) for mount in plan.mounts if mount.kind != "input"],
    }
    if plan.mode == "spawn":
        engine = plan.framework
        words = (word.removeprefix("--").partition("=") for word in plan.arguments)  # the platform adds the --
        return {
            "code_dir": folder,
            "boot_file": folder + (plan.boot_file or ""),
            "engine": {"engine_name": engine.name, "engine_version": engine.version} if engine else None,
            "parameters": [{"name": name, "value": value} for name, _, value in words],
            "environments": environments,
            **data,
        }
    spec = ModelArtsBackendSpec.of(plan.backend)
    return {
        "code_dir": folder,
        "boot_file": folder + plan.boot_file if spec.boot_file_of_image and plan.boot_file else None,
        "engine": {"image_url": plan.image},
        "command": f"bash ${{{JOB_FOLDER}}}/{code.name}/{_FOLDER}/{_agent_folder()}/{_RUN} {_script_name(script)}",
        "environments": {**environments, **node_variables(plan, script, code, job_id)},
        **data,
    }


def platform_name(job_id: str) -> str:
    """Return the name of a job on the platform: its id, or one derived from it if that is too long."""
    digest = hashlib.sha256(job_id.encode()).hexdigest()[:_DIGEST]
    return job_id if len(job_id) <= _LONGEST_NAME else f"{job_id[: _LONGEST_NAME - _DIGEST - 1]}-{digest}"


def node_variables(plan: LaunchPlan, script: Script, code: CodeRef, job_id: str) -> dict[str, str]:
    """Return the variables that describe the job to a node with an image."""
    asked = build_node_request(plan, script, code, job_id)
    names = [*(name for name, _ in plan.env), *(mount.variable for mount in plan.mounts)]
    kept = [name for name in names if is_reserved(name)]
    sent = {**{name: value for name, value in asked.items() if name not in _UNREAD}, "mounts": [], "env": kept}
    return {JOB_ID: job_id, AGENT_REQUEST: json.dumps(sent, separators=(",", ":"), sort_keys=True)}


def files_for_nodes(script: Script) -> dict[str, bytes]:
    """Return the files that jobsubmit adds to the code of a job in an image, each named by its content."""
    ours = f"{_FOLDER}/{_agent_folder()}"
    return {
        f"{ours}/{_AGENT}": agent_archive(),
        f"{ours}/{_RUN}": _run_script(),
        f"{_FOLDER}/{_script_name(script)}": script.data,
    }


@cache
def _run_script() -> bytes:
    return (TEMPLATES / "modelarts" / _RUN).read_bytes()


@cache
def _agent_folder() -> str:
    return hashlib.sha256(agent_archive() + _run_script()).hexdigest()[:16]


def _script_name(script: Script) -> str:
    return f"{script.sha256[:16]}.sh"


def _channel(plan: LaunchPlan, mount: Mount) -> dict[str, Any]:
    """Return an input or an output; a preset framework's script gets its path as an argument, ours as a variable."""
    is_argument = plan.mode == "spawn" and mount.passed_as != "env"
    return {
        "name": mount.name if plan.mode == "spawn" else mount.variable,
        "access_method": "parameter" if is_argument else "env",
        "remote": {"obs": {"obs_url": api_path(mount.uri)}},
    }


def api_path(uri: str) -> str:
    """Return a folder in a bucket as the API writes it: `/bucket/folder/`, without a scheme."""
    return "/" + uri.partition("://")[2].strip("/") + "/"


def flavor(plan: LaunchPlan) -> str | None:
    """Return the machine type of a job."""
    return plan.flavor or ModelArtsBackendSpec.of(plan.backend).flavor


def auto_stop_hours(plan: LaunchPlan) -> int | None:
    """Return the hours after which the platform ends the job: from the backend's fields, else the job's timeout."""
    spec = ModelArtsBackendSpec.of(plan.backend)
    if spec.auto_stop_hours is not None:
        return spec.auto_stop_hours
    return None if plan.timeout is None else -(-plan.timeout // _SECONDS_AN_HOUR)


def _annotations(plan: LaunchPlan) -> dict[str, str]:
    """Return what asks the platform for its own restarts, and what else the user wants (all of it is text)."""
    spec = ModelArtsBackendSpec.of(plan.backend)
    tolerance, after = spec.fault_tolerance, plan.restarts.on if plan.restarts and plan.restarts.max else ()
    times = tolerance.retry or (plan.restarts.max if plan.restarts else 0)
    asked = {
        "fault-tolerance/job-retry-num": str(times) if times else None,
        "fault-tolerance/job-unconditional-retry": tolerance.unconditional_retry or "failure" in after,
        "fault-tolerance/hang-retry": tolerance.hang_retry or "hang" in after,
    }
    return {
        **{name: "true" if value is True else str(value) for name, value in asked.items() if value},
        **spec.annotations,
    }
