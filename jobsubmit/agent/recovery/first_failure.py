"""Which process failed first: the one that broke the job, not those that broke because of it."""

from __future__ import annotations

import signal

TYPE_CHECKING = False  # importing typing would cost more than all the rest
if TYPE_CHECKING:
    from typing import Any

_SHUTDOWN_CRASHES = (-signal.SIGABRT, -signal.SIGSEGV)


class Gang:
    """Collect what is known of the ranks and leaders of a job."""

    def __init__(self) -> None:
        self.ranks: dict[int, dict[str, Any]] = {}
        self.by_pid: dict[int, dict[str, Any]] = {}
        self.leaders: dict[int, dict[str, Any]] = {}
        self.stopped_at: float | None = None  # when we told everybody to end

    def take(self, event: dict[str, Any]) -> None:
        """Take one event of the hook."""
        kind = event["event"]
        if kind == "rank_start":
            rank = {
                "node": event["node"],
                "rank": event["rank"],
                "pid": event["pid"],
                "is_assumed": event["is_assumed"],
                "error_file": event.get("error_file"),
            }
            self.ranks[event["rank"]] = self.by_pid[event["pid"]] = rank
        elif kind == "rank_exception" and event["pid"] in self.by_pid:
            self.by_pid[event["pid"]].setdefault("exception", event)
        elif kind == "rank_asked_exit" and event["pid"] in self.by_pid:
            self.by_pid[event["pid"]]["asked"] = event
        elif kind == "child_exit" and event["pid"] in self.by_pid:
            self.by_pid[event["pid"]].setdefault("exit", event)

    def running(self) -> dict[int, int]:
        """Return rank → pid of those whose end nobody has reported; with its leader a rank ends, too."""
        return {
            number: rank["pid"]
            for number, rank in self.ranks.items()
            if "exit" not in rank and rank["node"] not in self.leaders
        }

    def ranks_of(self, node: int) -> list[dict[str, Any]]:
        """Return the ranks of a node."""
        return [rank for rank in self.ranks.values() if rank["node"] == node]

    def forget_node(self, node: int) -> list[dict[str, Any]]:
        """Forget the ranks of a node that was lost, and return them."""
        lost = self.ranks_of(node)
        self.ranks = {number: rank for number, rank in self.ranks.items() if rank["node"] != node}
        return lost

    def forget_ranks_from(self, world_size: int) -> list[int]:
        """Forget the ranks that a smaller world no longer has, and return their numbers."""
        gone = [number for number in self.ranks if number >= world_size]
        for number in gone:
            del self.ranks[number]
        return gone

    def leader_exited(self, node: int, code: int, moment: float) -> None:
        """Take the end of a node's start script or launcher."""
        self.leaders[node] = {"node": node, "code": code, "t": moment}

    def failures(self, *, ranks_count: bool = True) -> list[dict[str, Any]]:
        """Return every failure, the most likely first cause first."""
        found = [self._rank_failure(rank) for rank in self.ranks.values()] if ranks_count else []
        found += [self._leader_failure(leader) for leader in self.leaders.values()]
        return sorted((failure for failure in found if failure), key=_order)

    def _rank_failure(self, rank: dict[str, Any]) -> dict[str, Any] | None:
        leader = self.leaders.get(rank["node"])
        if rank["is_assumed"] and not (leader and leader["code"]):
            return None  # it may be a helper whose end the boot file copes with: only a failed boot file tells
        exception, ended = rank.get("exception"), rank.get("exit")
        signs = [event for event in (exception, ended) if event]
        status = ended["code"] if ended else None
        code = _intended_code(rank, status)
        if not code:
            return None
        return {
            "node": rank["node"],
            "rank": rank["rank"],
            "code": code,
            "crashed_by": -status if status in _SHUTDOWN_CRASHES and code > 0 else None,
            "t": min(event["t"] for event in signs),
            "is_victim": bool(exception and exception["is_victim"]),
            "is_leader": False,
            "was_told": self._was_told(code, signs[0]),
        }

    def _leader_failure(self, leader: dict[str, Any]) -> dict[str, Any] | None:
        if not leader["code"]:
            return None
        return {
            "node": leader["node"],
            "rank": None,
            "code": leader["code"],
            "crashed_by": None,
            "t": leader["t"],
            "is_victim": False,
            "is_leader": True,
            "was_told": self._was_told(leader["code"], leader),
        }

    def _was_told(self, code: int, event: dict[str, Any]) -> bool:
        return code == -signal.SIGTERM or (self.stopped_at is not None and event["t"] > self.stopped_at)


def _intended_code(rank: dict[str, Any], status: int | None) -> int | None:
    """Return the exit code a rank meant: one on its way out may still be stopped by us, or crash while torch ends."""
    if "exception" in rank and (status is None or status <= 0):
        return 1
    if "asked" in rank and status in _SHUTDOWN_CRASHES:
        return int(rank["asked"]["code"])
    return status


def _order(failure: dict[str, Any]) -> tuple[bool, bool, bool, float]:
    explained_by_ranks = failure["is_leader"] and failure["code"] > 0
    return (failure["was_told"], failure["is_victim"], explained_by_ranks, failure["t"])


def is_clear(failure: dict[str, Any]) -> bool:
    """Tell whether a failure is surely a cause: nobody told it to end, and nobody else's end explains it."""
    explained = failure["is_leader"] and failure["code"] != -signal.SIGKILL
    return not (failure["was_told"] or failure["is_victim"] or explained)
