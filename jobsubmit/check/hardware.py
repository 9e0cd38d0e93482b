"""Whether the nodes of a job have accelerators."""

from __future__ import annotations

import os

from jobsubmit.agent.supervisor.environment import share_gpus, visible_gpus
from jobsubmit.plan.launch_plan import LaunchPlan
from jobsubmit.spec.backends import LocalBackendSpec, ModelArtsBackendSpec, SlurmBackendSpec, VolcanoBackendSpec


def gpus_per_node(plan: LaunchPlan) -> int | None:
    """Return how many GPUs each node of a job has; None where that cannot be told."""
    match plan.backend:
        case LocalBackendSpec():
            return len(share_gpus(visible_gpus(os.environ), plan.nodes, plan.nproc_per_node)[0])
        case SlurmBackendSpec():
            told = plan.backend.gpus_per_node
            return int(told.rpartition(":")[2]) if told else None
        case VolcanoBackendSpec():
            resources = plan.backend.resources
            counts = [count for name, count in resources.items() if "gpu" in name.rpartition("/")[2]]
            if counts:
                return int(counts[0]) if str(counts[0]).isdecimal() else None
            return 0 if resources and not any("/" in name for name in resources) else None
        case ModelArtsBackendSpec():
            return None  # what a flavor has only the platform knows
