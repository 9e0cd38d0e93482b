"""LaunchPlan → the document that sbatch reads."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import TYPE_CHECKING

from jobsubmit.backends.shared.agent_archive import agent_archive
from jobsubmit.backends.slurm.spec import SlurmBackendSpec
from jobsubmit.plan.script import render_document

if TYPE_CHECKING:
    from jobsubmit.agent.protocol import AgentRequest
    from jobsubmit.plan.launch_plan import LaunchPlan

NAME = "job.sbatch"
MARK = "jobsubmit:"  # begins the comment of a Slurm job of ours
LOG = "slurm.log"  # what Slurm and the document itself say, in the job's folder
_TEMPLATE = "slurm/job.sbatch.j2"
_SPARE_MINUTES = 2  # beyond the job's own timeout, so that it ends by itself and says so


def agent_path(shared: Path) -> Path:
    """Return the path of the agent archive below the shared folder: each version has its own name."""
    return shared / f"agent-{hashlib.sha256(agent_archive()).hexdigest()[:16]}.pyz"


def build_document(plan: LaunchPlan, request: AgentRequest, shared: Path, job_id: str) -> str:
    """Return the document; equal arguments give equal bytes."""
    folder = shared / job_id
    return render_document(
        _TEMPLATE,
        job_id=job_id,
        options=_options(plan, folder, job_id),
        folder=folder,
        agent=agent_path(shared),
        request=json.dumps(request, ensure_ascii=True, sort_keys=True),
    )


def _options(plan: LaunchPlan, folder: Path, job_id: str) -> list[str]:
    spec = SlurmBackendSpec.of(plan.backend)
    given = {
        "job-name": job_id,
        "comment": MARK + job_id,
        "nodes": plan.nodes,
        "ntasks-per-node": 1,
        "output": str(folder / LOG).replace("%", "%%"),
        "open-mode": "append",
        "partition": spec.partition,
        "account": spec.account,
        "qos": spec.qos,
        "time": _minutes(plan, spec),
        "constraint": spec.constraint,
        "exclude": spec.exclude,
        "gpus-per-node": spec.gpus_per_node,
        "cpus-per-task": spec.cpus_per_task,
        "mem": spec.mem,
    }
    options = [f"--{name}={value}" for name, value in given.items() if value is not None]
    return [*options, "--requeue" if plan.restarts else "--no-requeue", *spec.extra_sbatch]


def _minutes(plan: LaunchPlan, spec: SlurmBackendSpec) -> int | None:
    """Return the allocation's limit in minutes, which is how Slurm counts."""
    if spec.time is not None:
        return -(-spec.time // 60)
    return None if plan.timeout is None else -(-plan.timeout // 60) + _SPARE_MINUTES
