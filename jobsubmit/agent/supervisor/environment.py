"""What a node finds in its environment: the platform's contract, and nothing stray of the user's shell."""

from __future__ import annotations

import glob
import os

from ..node_contract import RESERVED
from . import network

TYPE_CHECKING = False  # importing typing would cost more than all the rest
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

HOOK_FOLDER = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "hook")

# What an engine knows better than we; one that lays the code itself is the platform, and knows all of it.
_KEPT = ("MA_CURRENT_IP", "MA_CURRENT_INSTANCE_NAME", "MA_TASK_NAME")
_PLATFORM = ("MA_", "VC_")
_LONGEST_VARIABLE = 100_000  # characters; the kernel's limit is 131,071


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
        self.shared_dir: str = order.get("shared_dir") or job_dir
        self.addresses, self.port = addresses, port
        self.base = {name: value for name, value in os.environ.items() if not RESERVED.fullmatch(name)}
        request, gpus = order["request"], visible_gpus(os.environ)
        self.place: dict[str, Any] = order.get("place") or {}
        self.is_alone = bool(self.place)  # one node of the job on this machine, not all
        self.given = _given(self.place)
        if self.is_alone:
            self.gpus = [gpus] * request["nodes"]
        else:
            self.gpus = share_gpus(gpus, request["nodes"], request["nproc_per_node"])

    @property
    def nproc(self) -> int:
        """Return how many processes a node starts."""
        told = int(self.given.get("MA_NUM_GPUS") or 0)
        return self.order["request"]["nproc_per_node"] or told or len(self.gpus[0]) or 1

    def of(self, node: int, attempt: int) -> dict[str, str]:
        """Return the whole environment of a node, as a new mapping."""
        request = self.order["request"]
        nproc = self.nproc
        environment = {
            **self.base,
            **({} if self.is_alone else self._share(node)),
            **request["env"],
            **self.order["secrets"],
            **self._hosts(),
            "VC_WORKER_NUM": str(request["nodes"]),
            "VC_TASK_INDEX": str(node),
            "MA_NUM_HOSTS": str(request["nodes"]),
            "MA_NUM_GPUS": str(nproc),
            "MA_TASK_NAME": "worker",
            "MA_CURRENT_IP": self.addresses[node],
            "MA_CURRENT_INSTANCE_NAME": "worker-%d" % node,
            "MA_JOB_DIR": self.job_folder(node),
            "MA_LOG_DIR": os.path.join(self.job_dir, "logs"),
            **self.given,
            "JOBSUBMIT_JOB_ID": request["job_id"],
            "JOBSUBMIT_RESTART_COUNT": str(attempt),
            "JOBSUBMIT_MASTER_PORT": str(self.port),
            "JOBSUBMIT_GANG_DIR": self.job_dir,
            "JOBSUBMIT_GANG_NODE": str(node),
            "JOBSUBMIT_GANG_MODE": request["mode"],
            **{mount["variable"]: mount_path(request, self.shared_dir, mount) for mount in request["mounts"]},
        }
        environment["PYTHONPATH"] = _joined(HOOK_FOLDER, environment.get("PYTHONPATH"))
        environment["PATH"] = _joined(self.order["python_folder"], environment.get("PATH"))
        return environment

    def _share(self, node: int) -> dict[str, str]:
        """Return what gives a node its share of a machine that it has not for itself."""
        cpus = max(1, (os.cpu_count() or 1) // (self.order["request"]["nodes"] * self.nproc))
        interface = network.loopback_interface()
        return {
            "OMP_NUM_THREADS": self.base.get("OMP_NUM_THREADS") or str(cpus),
            "CUDA_VISIBLE_DEVICES": ",".join(self.gpus[node]),
            **({"GLOO_SOCKET_IFNAME": self.base.get("GLOO_SOCKET_IFNAME", interface)} if interface else {}),
        }

    def _hosts(self) -> dict[str, str]:
        """Return the addresses of all nodes, or the file that holds them: the kernel bounds a variable's length."""
        text = ",".join(self.addresses)
        if len(text) <= _LONGEST_VARIABLE:
            return {"VC_WORKER_HOSTS": text}
        path = os.path.join(self.job_dir, "hosts")
        with open(path, "w", encoding="utf-8") as stream:
            stream.write(text)
        return {"JOBSUBMIT_HOSTS_FILE": path}

    def job_folder(self, node: int) -> str:
        """Return MA_JOB_DIR of a node: the parent of its code folder."""
        return str(self.place.get("job_folder") or os.path.join(self.job_dir, "nodes", str(node)))

    def script(self, node: int) -> str:
        """Return where a node's start script is."""
        return str(self.place.get("script") or os.path.join(self.job_folder(node), "start.sh"))


def _given(place: dict[str, Any]) -> dict[str, str]:
    """Return the part of the node contract that whoever started us gives, and we only pass on."""
    if "job_folder" in place:
        return {name: value for name, value in os.environ.items() if name.startswith(_PLATFORM)}
    return {name: os.environ[name] for name in _KEPT if place and name in os.environ}


def mount_path(request: dict[str, Any], job_dir: str, mount: dict[str, Any]) -> str:
    """Return where an input, an output or the checkpoints of a job are; its nodes share them."""
    if "path" in mount:  # it is there already, where all nodes see it
        return str(mount["path"])
    if mount["kind"] != "checkpoint":
        return os.path.join(job_dir, "%ss" % mount["kind"], str(mount["name"]))
    if "://" in mount["uri"]:
        return os.path.join(job_dir, "checkpoints")
    return os.path.join(str(mount["uri"]), str(request["checkpoints_of"]))


def _joined(first: str, rest: str | None) -> str:
    return first + os.pathsep + rest if first and rest else first or rest or ""
