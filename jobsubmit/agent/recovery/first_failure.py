"""Which process failed first: the one that broke the job, not those that broke because of it."""

from __future__ import annotations

import signal

from ..protocol import Event, Evidence

_EXIT_SECONDS = 0.5  # from when a rank leaves its process group to its end
_SHUTDOWN_CRASHES = (-signal.SIGABRT, -signal.SIGSEGV)


class Rank:
    """What the rank reporter and the launcher have reported about a rank."""

    def __init__(self, event: Event) -> None:
        self.node, self.rank, self.pid = event["node"], event["rank"], event["pid"]
        self.is_assumed = event.get("is_assumed", False)  # it may be a helper of the boot file's
        self.error_file = event.get("error_file")
        self.exception: Event | None = None
        self.asked_exit: Event | None = None
        self.exit: Event | None = None
        self.has_joined = False  # a process group
        self.group_size = 0  # of the first one; 0 if it is not known
        self.has_exchanged: bool | None = None  # in a group, by its own account at its end
        self.ended_at: float | None = None  # by its own account

    def end_time(self) -> float:
        """Return when the rank ended: by its own report, unless it was killed; 0 while it runs."""
        return self.ended_at or (self.exit["t"] if self.exit else 0.0)

    def intended_code(self) -> int | None:
        """Return the exit code that the rank intended: while it exits we may stop it, or torch may crash."""
        status = self.exit["code"] if self.exit else None
        if self.exception and (status is None or status <= 0):
            return 1
        if self.asked_exit and status in _SHUTDOWN_CRASHES:
            return self.asked_exit["code"]
        return status


class ProcessFailure:
    """A rank or a node's leader that did not succeed; `code` is negative for a signal."""

    def __init__(self, node: int, rank: int | None, code: int, t: float) -> None:
        self.node, self.rank, self.code, self.t = node, rank, code, t
        self.crashed_by: int | None = None  # a signal while it shut down
        self.is_victim = self.is_leader = self.was_told = False
        self.kinds: list[str] = []  # of its exception and those behind it

    def evidence(self) -> Evidence:
        """Return what is compared with other failures, also with those of other nodes."""
        return {
            "was_told": self.was_told,
            "is_victim": self.is_victim,
            "is_leader": self.is_leader,
            "t": self.t,
            "kinds": self.kinds,
        }

    def order(self) -> tuple[bool, bool, bool, float]:
        """Return a key by which the most likely cause comes first."""
        return self.was_told, self.is_victim, self.is_leader and self.code > 0, self.t

    def is_clear(self) -> bool:
        """Return whether this certainly is a cause: it was not asked to end, and no other failure explains it."""
        is_explained = self.is_leader and self.code != -signal.SIGKILL
        return not (self.was_told or self.is_victim or is_explained)


def are_alike(one: Evidence, two: Evidence) -> bool:
    """Return whether two processes failed by themselves, with the same kind of exception."""
    is_result = one.get("is_victim") or two.get("is_victim")
    return bool(one.get("kinds")) and one.get("kinds") == two.get("kinds") and not is_result


class RankTable:
    """The known ranks and leaders of a job."""

    def __init__(self) -> None:
        self.ranks: dict[int, Rank] = {}
        self.by_pid: dict[int, Rank] = {}
        self.leaders: dict[int, tuple[int, float]] = {}  # node → exit code, when
        self.others_have_joined = False  # processes that a rank has started, and that are none
        self.stopped_at: float | None = None  # when all processes were asked to end

    def take(self, event: Event) -> None:
        """Take one event of the rank reporter."""
        kind = event["event"]
        if kind == "rank_start":
            self.ranks[event["rank"]] = self.by_pid[event["pid"]] = Rank(event)
        elif event.get("pid") in self.by_pid:
            rank = self.by_pid[event["pid"]]
            if kind == "rank_joined":
                rank.has_joined, rank.group_size = True, event.get("world", 0)
            elif kind == "rank_end":
                rank.ended_at, rank.has_exchanged = event["t"], event.get("has_exchanged")
            elif kind == "rank_exception":
                rank.exception = rank.exception or event
            elif kind == "rank_asked_exit":
                rank.asked_exit = event
            elif kind == "child_exit":
                rank.exit = rank.exit or event
        elif kind == "rank_joined":
            self.others_have_joined = True

    def running(self) -> dict[int, int]:
        """Return rank → pid of the ranks whose end was not reported; a rank ends with its leader, too."""
        return {
            number: rank.pid
            for number, rank in self.ranks.items()
            if rank.exit is None and rank.node not in self.leaders
        }

    def succeeded(self) -> list[int]:
        """Return the ranks that ended with exit code 0."""
        return sorted(number for number, rank in self.ranks.items() if rank.exit and rank.exit["code"] == 0)

    def unfailed(self) -> list[Rank]:
        """Return the ranks that did not fail; those of two launchers may have the same numbers."""
        return list(
            {(rank.node, rank.rank): rank for rank in self.by_pid.values() if not rank.intended_code()}.values()
        )

    def ended_before(self, failure: ProcessFailure) -> Rank | None:
        """Return the first rank that ended with exit code 0 before others failed without it, or None."""
        ended = [rank for rank in self.ranks.values() if rank.exit and rank.exit["code"] == 0]
        if not failure.is_victim or not ended:
            return None
        first = min(ended, key=Rank.end_time)
        return first if first.end_time() < failure.t + _EXIT_SECONDS else None

    def ranks_of(self, node: int) -> list[Rank]:
        """Return the ranks of a node."""
        return [rank for rank in self.ranks.values() if rank.node == node]

    def forget_node(self, node: int) -> list[Rank]:
        """Forget the ranks of a node that was lost, and return them."""
        lost = self.ranks_of(node)
        self.ranks = {number: rank for number, rank in self.ranks.items() if rank.node != node}
        return lost

    def forget_ranks_from(self, world_size: int) -> list[int]:
        """Forget the ranks that a smaller world no longer has, and return their numbers."""
        gone = [number for number in self.ranks if number >= world_size]
        for number in gone:
            del self.ranks[number]
        return gone

    def leader_exited(self, node: int, code: int, moment: float) -> None:
        """Take the end of a node's start script or launcher."""
        self.leaders[node] = (code, moment)

    def failures(self, *, ranks_count: bool = True) -> list[ProcessFailure]:
        """Return every failure, the most likely first cause first."""
        found = [self._rank_failure(rank) for rank in self.ranks.values()] if ranks_count else []
        found += [self._leader_failure(node) for node in self.leaders]
        return sorted((failure for failure in found if failure), key=ProcessFailure.order)

    def _rank_failure(self, rank: Rank) -> ProcessFailure | None:
        if rank.is_assumed and not self.leaders.get(rank.node, (0, 0.0))[0]:
            return None  # the boot file may cope with its end: only a failed boot file is proof
        signs = [event for event in (rank.exception, rank.exit) if event]
        code = rank.intended_code()
        if not code:
            return None
        failure = ProcessFailure(rank.node, rank.rank, code, min(event["t"] for event in signs))
        status = rank.exit["code"] if rank.exit else None
        failure.crashed_by = -status if status in _SHUTDOWN_CRASHES and code > 0 else None
        failure.is_victim = bool(rank.exception and rank.exception.get("is_victim"))
        failure.kinds = list(rank.exception.get("kinds", ())) if rank.exception else []
        failure.was_told = self._was_told(code, signs[0]["t"])
        return failure

    def _leader_failure(self, node: int) -> ProcessFailure | None:
        code, moment = self.leaders[node]
        if not code:
            return None
        failure = ProcessFailure(node, None, code, moment)
        failure.is_leader, failure.was_told = True, self._was_told(code, moment)
        return failure

    def _was_told(self, code: int, moment: float) -> bool:
        return code == -signal.SIGTERM or (self.stopped_at is not None and moment > self.stopped_at)
