"""What a node finds in its environment: the platform's contract, and nothing stray of the user's shell."""

from __future__ import annotations

import glob
import os
import re

from . import network

TYPE_CHECKING = False  # importing typing would cost more than all the rest
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

HOOK_FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "hook")

# Set by a launcher, a platform or a shell around us, these would steer the job's own launcher.
_STRAY = re.compile(
    r"(PET|TORCHELASTIC|MA|VC|JOBSUBMIT)_.*|BASH_FUNC_.*|BASH_ENV|ENV|SHELLOPTS|BASHOPTS|CDPATH|IFS|PS4"
    r"|(LOCAL_|GROUP_|ROLE_)?(RANK|WORLD_SIZE)|NNODES|NODE_RANK|NPROC_PER_NODE|NODE_ADDR|MASTER_(ADDR|PORT)|RDZV_ID"
)


def visible_gpus(environment: Mapping[str, str]) -> list[str]:
    """Return the ids of the GPUs this job may use, in order."""
    told = environment.get("CUDA_VISIBLE_DEVICES")
    if told is not None:
        return [gpu for gpu in told.split(",") if gpu and gpu != "-1"]
    return sorted((path[len("/dev/nvidia") :] for path in glob.glob("/dev/nvidia[0-9]*")), key=int)


def share_gpus(gpus: list[str], nodes: int, nproc: int | None) -> list[list[str]]:
    """Return the GPUs of each node: disjoint and equally many, or none at all where they do not suffice."""
    each = nproc or len(gpus) // nodes
    if each < 1 or each * nodes > len(gpus):
        return [[] for _ in range(nodes)]
    return [gpus[node * each : (node + 1) * each] for node in range(nodes)]


class NodeEnvironments:
    """Make the environment of each node of one job."""

    def __init__(self, order: dict[str, Any], job_dir: str, addresses: list[str], port: int) -> None:
        self.order, self.job_dir = order, job_dir
        self.addresses, self.port = addresses, port
        self.base = {name: value for name, value in os.environ.items() if not _STRAY.fullmatch(name)}
        request = order["request"]
        self.gpus = share_gpus(visible_gpus(os.environ), request["nodes"], request["nproc_per_node"])

    @property
    def nproc(self) -> int:
        """Return how many processes a node starts."""
        return self.order["request"]["nproc_per_node"] or len(self.gpus[0]) or 1

    def of(self, node: int, attempt: int) -> dict[str, str]:
        """Return the whole environment of a node, as a new mapping."""
        request = self.order["request"]
        nproc = self.nproc
        environment = {
            **self.base,
            "OMP_NUM_THREADS": self.base.get("OMP_NUM_THREADS")
            or str(max(1, (os.cpu_count() or 1) // (request["nodes"] * nproc))),
            "CUDA_VISIBLE_DEVICES": ",".join(self.gpus[node]),
            **request["env"],
            **self.order["secrets"],
            "VC_WORKER_HOSTS": ",".join(self.addresses),
            "VC_WORKER_NUM": str(request["nodes"]),
            "VC_TASK_INDEX": str(node),
            "MA_NUM_HOSTS": str(request["nodes"]),
            "MA_NUM_GPUS": str(nproc),
            "MA_TASK_NAME": "worker",
            "MA_CURRENT_IP": self.addresses[node],
            "MA_CURRENT_INSTANCE_NAME": "worker-%d" % node,
            "MA_JOB_DIR": self.job_folder(node),
            "MA_LOG_DIR": os.path.join(self.job_dir, "logs"),
            "JOBSUBMIT_JOB_ID": request["job_id"],
            "JOBSUBMIT_RESTART_COUNT": str(attempt),
            "JOBSUBMIT_MASTER_PORT": str(self.port),
            "JOBSUBMIT_LOCAL_JOB_DIR": self.job_dir,
            "JOBSUBMIT_LOCAL_NODE": str(node),
            "JOBSUBMIT_LOCAL_MODE": request["mode"],
            **{mount["variable"]: mount_path(request, self.job_dir, mount) for mount in request["mounts"]},
        }
        interface = network.loopback_interface()
        if interface:
            environment.setdefault("GLOO_SOCKET_IFNAME", interface)
        environment["PYTHONPATH"] = _joined(HOOK_FOLDER, environment.get("PYTHONPATH"))
        environment["PATH"] = _joined(self.order["python_folder"], environment.get("PATH"))
        return environment

    def job_folder(self, node: int) -> str:
        """Return MA_JOB_DIR of a node: the parent of its code folder."""
        return os.path.join(self.job_dir, "nodes", str(node))


def mount_path(request: dict[str, Any], job_dir: str, mount: dict[str, Any]) -> str:
    """Return where an input, an output or the checkpoints of a job are; its nodes share them."""
    if mount["kind"] != "checkpoint":
        return os.path.join(job_dir, "%ss" % mount["kind"], str(mount["name"]))
    if "://" in mount["uri"]:
        return os.path.join(job_dir, "checkpoints")
    return os.path.join(str(mount["uri"]), str(request["checkpoints_of"]))


def _joined(first: str, rest: str | None) -> str:
    return first + os.pathsep + rest if first and rest else first or rest or ""
