"""Which nodes a supervisor runs: all nodes of a job on this machine, or the one node of a platform's task."""

from __future__ import annotations

import glob
import os
import socket
from collections.abc import Mapping

from .. import node_contract as contract
from ..job_directory import JobDirectory
from ..protocol import AgentRequest, Assignment, Place, RestartPolicy
from ..recovery.outcome import Outcome
from ..status_file import STOPPED_BY_PLATFORM
from . import network

_OTHER_NODES_GRACE_SECONDS = 10.0


def find_scope(assignment: Assignment) -> AllNodes | OneNode:
    """Return the nodes that an assignment covers."""
    place = assignment.get("place")
    if place is None:
        return AllNodes(assignment["request"])
    return OneNode(assignment["request"], place, prepares_data=assignment.get("data") is not None)


def find_gpus(environment: Mapping[str, str]) -> list[str]:
    """Return the ids of the GPUs this job may use, in order."""
    chosen = environment.get("CUDA_VISIBLE_DEVICES")
    if chosen is not None:
        return [gpu for gpu in chosen.split(",") if gpu and gpu != "-1"]
    return sorted((path[len("/dev/nvidia") :] for path in glob.glob("/dev/nvidia[0-9]*")), key=int)


def share_gpus(gpus: list[str], nodes: int, nproc: int | None) -> list[list[str]]:
    """Return the GPUs of each node: disjoint and equally many, or none at all if there are too few."""
    each = nproc or len(gpus) // nodes
    if each < 1 or each * nodes > len(gpus):
        return [[] for _ in range(nodes)]
    return [gpus[node * each : (node + 1) * each] for node in range(nodes)]


class _Scope:
    """The common base of both scopes, with their defaults."""

    attempt = 0
    restarts: RestartPolicy | None = None
    is_elastic = prepares_data = False
    other_nodes_seconds = 0.0  # that the supervisor waits for what nodes elsewhere may explain

    def release(self) -> None:
        """Release what `find_peers` has leased."""

    def share_of(self, node: int, nproc: int, base: Mapping[str, str]) -> dict[str, str]:
        """Return the variables that give a node its share of the machine: none if it has the whole machine."""
        return {}

    def job_folder(self, files: JobDirectory, node: int) -> str:
        """Return MA_JOB_DIR of a node: the parent of its code folder."""
        return os.path.join(files.nodes, str(node))

    def script(self, files: JobDirectory, node: int) -> str:
        """Return where a node's start script is."""
        return os.path.join(self.job_folder(files, node), "start.sh")

    def notes(self) -> list[str]:
        """Return what the user should know before the nodes start."""
        return []


class AllNodes(_Scope):
    """All nodes of a local job: they share this machine, and the supervisor restarts the job."""

    prepares_data = True

    def __init__(self, request: AgentRequest) -> None:
        self.request = request
        self.nodes = list(range(request["nodes"]))
        self.restarts = request["restarts"]
        self.is_elastic = request["min_nodes"] < request["nodes"]
        self.found_gpus = find_gpus(os.environ)
        self.gpus = share_gpus(self.found_gpus, request["nodes"], request["nproc_per_node"])
        self.given: dict[str, str] = {}
        self.lease: socket.socket | None = None

    def find_peers(self) -> tuple[int, list[str]]:
        """Return a rendezvous port, leased until `release`, and an address for each node."""
        port, self.lease = network.lease_port(self.request["job_id"])
        return port, network.node_addresses(self.request["nodes"])

    def release(self) -> None:
        """Release the port."""
        if self.lease:
            self.lease.close()

    def share_of(self, node: int, nproc: int, base: Mapping[str, str]) -> dict[str, str]:
        """Return the variables that give a node its share of the machine."""
        cpus = max(1, (os.cpu_count() or 1) // (len(self.nodes) * nproc))
        interface = network.loopback_interface()
        return {
            contract.THREADS: base.get(contract.THREADS) or str(cpus),
            "CUDA_VISIBLE_DEVICES": ",".join(self.gpus[node]),
            **({"GLOO_SOCKET_IFNAME": base.get("GLOO_SOCKET_IFNAME", interface)} if interface else {}),
        }

    def notes(self) -> list[str]:
        """Return a note if the job gets no GPUs because it needs more than this machine has."""
        if not self.found_gpus or self.gpus[0] or self.request["env"].get("CUDA_VISIBLE_DEVICES"):
            return []
        wanted = len(self.nodes) * (self.request["nproc_per_node"] or 1)
        return ["the job runs on the CPU: it needs %d GPUs, and this machine has %d" % (wanted, len(self.found_gpus))]

    def stopped(self) -> Outcome:
        """Return how the job ends when this process gets SIGTERM."""
        return Outcome("LOST", "SUPERVISOR_ENDED", "the supervisor of the job received SIGTERM")


class OneNode(_Scope):
    """One node of a job: it has a machine for itself, and the platform restarts the job."""

    def __init__(self, request: AgentRequest, place: Place, *, prepares_data: bool = False) -> None:
        self.place, self.prepares_data = place, prepares_data
        self.nodes = [place["node"]]
        self.attempt = place["attempt"]
        self.gpus = {place["node"]: find_gpus(os.environ)}
        self.other_nodes_seconds = _OTHER_NODES_GRACE_SECONDS if request["nodes"] > 1 else 0.0
        is_platform = "job_folder" in place  # an engine that lays the code itself gives the whole contract
        self.given = {
            name: value
            for name, value in os.environ.items()
            if (name.startswith(contract.PLATFORM_PREFIXES) if is_platform else name in contract.PLATFORM_MAY_GIVE)
        }

    def find_peers(self) -> tuple[int, list[str]]:
        """Return the rendezvous port and the address of each node, as the platform gave them."""
        return self.place["port"], self.place["addresses"]

    def job_folder(self, files: JobDirectory, node: int) -> str:
        """Return MA_JOB_DIR of the node: the platform's, or our own."""
        return self.place.get("job_folder") or os.path.join(files.nodes, str(node))

    def script(self, files: JobDirectory, node: int) -> str:
        """Return where the node's start script is."""
        return self.place.get("script") or os.path.join(self.job_folder(files, node), "start.sh")

    def stopped(self) -> Outcome:
        """Return how the node ends when this process gets SIGTERM."""
        return Outcome("CANCELLED", STOPPED_BY_PLATFORM, "the platform stopped this node")
