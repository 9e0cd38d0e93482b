"""What the agent of a node leaves at its end, as backends read it."""

from __future__ import annotations

from jobsubmit.agent.protocol import Failure, NodeStatus


def failed(node: int, t: float, *, is_victim: bool = False) -> NodeStatus:
    """Return the status of a node whose rank of the same number exited with code 7 at a time."""
    message = f"node {node}, rank {node} failed first: exit code 7"
    failure: Failure = {
        "node": node,
        "rank": node,
        "exit_code": 7,
        "signal": None,
        "message": message,
        "quoted": f"rank {node}",
        "last_lines": ["last words"],
        "words": ["last words"],
        "evidence": {"t": t, "is_victim": is_victim, "was_told": False, "is_leader": False},
    }
    return {"state": "FAILED", "reason": "EXIT_CODE", "message": message, "ended": t, "failure": failure}


def ended(state: str) -> NodeStatus:
    """Return the status of a node on which nothing failed."""
    return {"state": state, "reason": "", "message": "", "failure": None}
