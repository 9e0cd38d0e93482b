"""The environment of a node: the node contract, without reserved variables of the user's shell."""

from __future__ import annotations

import os

from .. import node_contract as contract
from ..job_directory import JobDirectory
from ..protocol import AgentRequest, Assignment, Mount
from ..tracking import tracking_variables
from .node_scope import AllNodes, OneNode

HOOK_FOLDER = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "hook")


class NodeEnvironments:
    """The environments of the nodes of one job."""

    def __init__(
        self, assignment: Assignment, files: JobDirectory, scope: AllNodes | OneNode, addresses: list[str], port: int
    ) -> None:
        self.assignment, self.request = assignment, assignment["request"]
        self.files, self.scope, self.addresses, self.port = files, scope, addresses, port
        self.shared = JobDirectory(assignment.get("shared_dir") or files.path)
        self.base = {name: value for name, value in os.environ.items() if not contract.is_reserved(name)}

    @property
    def nproc(self) -> int:
        """Return how many processes a node starts."""
        given = int(self.scope.given.get(contract.GPU_COUNT) or 0)
        return self.request["nproc_per_node"] or given or len(self.scope.gpus[self.scope.nodes[0]]) or 1

    def of(self, node: int, attempt: int) -> dict[str, str]:
        """Return the whole environment of a node, as a new mapping."""
        request = self.request
        environment = {
            **self.base,
            **self.scope.share_of(node, self.nproc, self.base),
            **tracking_variables(request.get("tracking", ()), request["job_id"], attempt),
            **request["env"],
            **self.assignment["secrets"],
            **self._hosts(),
            contract.NODE_COUNT: str(request["nodes"]),
            contract.NODE_INDEX: str(node),
            contract.HOST_COUNT: str(request["nodes"]),
            contract.GPU_COUNT: str(self.nproc),
            contract.TASK_NAME: "worker",
            contract.OWN_ADDRESS: self.addresses[node],
            contract.OWN_NAME: "worker-%d" % node,
            contract.JOB_FOLDER: self.scope.job_folder(self.files, node),
            contract.LOG_FOLDER: self.files.logs,
            **self.scope.given,
            contract.JOB_ID: request["job_id"],
            contract.RESTART_COUNT: str(attempt),
            contract.PORT: str(self.port),
            contract.AGENT_DIR: self.files.path,
            contract.AGENT_NODE: str(node),
            contract.AGENT_MODE: request["mode"],
            contract.AGENT_HANG_AFTER: str(request["hang_after"]),
            **{mount["variable"]: self.mount_path(mount) for mount in request["mounts"]},
        }
        environment["PYTHONPATH"] = _joined(HOOK_FOLDER, environment.get("PYTHONPATH"))
        environment["PATH"] = _joined(self.assignment["python_folder"], environment.get("PATH"))
        return environment

    def _hosts(self) -> dict[str, str]:
        """Return the addresses of all nodes, or the file that contains them: the kernel limits a variable's length."""
        text = ",".join(self.addresses)
        if len(text) <= contract.LONGEST_VALUE:
            return {contract.HOSTS: text}
        with open(self.files.hosts, "w", encoding="utf-8") as stream:
            stream.write(text)
        return {contract.HOSTS_FILE: self.files.hosts}

    def mount_path(self, mount: Mount) -> str:
        """Return the path of an input, an output or the checkpoints of the job; its nodes share them."""
        return mount_path(self.request, self.shared, mount)


def mount_path(request: AgentRequest, files: JobDirectory, mount: Mount) -> str:
    """Return the path of an input, an output or the checkpoints of a job."""
    if "path" in mount:  # it is there already, where all nodes see it
        return mount["path"]
    if mount["kind"] != "checkpoint":
        return files.data_of(mount["kind"], mount["name"])
    if "://" in mount["uri"]:
        return files.checkpoints
    return os.path.join(mount["uri"], request["checkpoints_of"])


def _joined(first: str, rest: str | None) -> str:
    return first + os.pathsep + rest if first and rest else first or rest or ""
