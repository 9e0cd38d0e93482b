"""The request for the agent of a node: the same for every backend that runs one."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from jobsubmit.agent.protocol import VERSION, AgentRequest, Fault, Mount, RestartPolicy, Server
from jobsubmit.common.store_address import REMOTE_SCHEMES

if TYPE_CHECKING:
    from jobsubmit.plan.launch_plan import LaunchPlan
    from jobsubmit.plan.script import Script
    from jobsubmit.transfer.code_ref import CodeRef


def build_request(plan: LaunchPlan, script: Script, code: CodeRef, job_id: str) -> AgentRequest:
    """Return the request of a whole job, all nodes of which run on this machine."""
    request: AgentRequest = {
        "version": VERSION,
        "job_id": job_id,
        "name": plan.name,
        "mode": plan.start,
        "nodes": plan.nodes,
        "nproc_per_node": plan.nproc_per_node,
        "code": {"uri": code.uri, "layout": code.layout, "digest": code.digest, "name": code.name},
        "script": {"sha256": script.sha256},
        "env": dict(plan.env),
        "secrets": {name: f"env:{source}" for name, source in plan.secrets},
        "timeout": plan.timeout,
        "min_nodes": plan.min_nodes,
        "checkpoints_of": plan.checkpoints_of or job_id,
        "mounts": [cast("Mount", mount._asdict()) for mount in plan.mounts],
        "server": cast("Server", plan.store._replace(uri="")._asdict()),
        "restarts": cast("RestartPolicy", plan.restarts.model_dump(mode="json")) if plan.restarts else None,
        "hang_after": plan.hang_after,
        "faults": [cast("Fault", fault._asdict()) for fault in plan.faults],
        # A start command of the user's own may restart its ranks: there only the end of the command counts.
        "rank_exit_ends_job": plan.command is None,
    }
    if plan.tracking:
        request["tracking"] = list(plan.tracking)
    python = getattr(plan.backend, "python", None)
    return {**request, "python": python} if python else request


def build_node_request(
    plan: LaunchPlan, script: Script, code: CodeRef, job_id: str, *, copies_data: bool = False
) -> AgentRequest:
    """Return the request for the agent of one node: its data is in folders that the node sees.

    With `copies_data` the agent itself copies what is in buckets.
    """
    request = build_request(plan, script, code, job_id)
    # Each node sees only its own ranks, and a node may well wait for another for long: only who says so is watched.
    hang_after = plan.hang_after if plan.is_hang_chosen or plan.nodes == 1 else 0
    mounts = [
        mount if copies_data and mount["uri"].startswith(REMOTE_SCHEMES) else _seen_by_node(mount)
        for mount in request["mounts"]
    ]
    return {**request, "mounts": mounts, "faults": [], "hang_after": hang_after}


def _seen_by_node(mount: Mount) -> Mount:
    seen: Mount = {**mount, "every": 0}
    return seen if mount["kind"] == "checkpoint" else {**seen, "path": mount["uri"]}
