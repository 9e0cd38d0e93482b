"""The nodes of an elastic job: it continues without a node that was lost, and with it once it is back."""

from __future__ import annotations

import signal
import time

from .. import processes

TYPE_CHECKING = False  # importing typing would cost more than all the rest
if TYPE_CHECKING:
    from ..protocol import Event, Resize, StruckFault
    from ..supervisor.job import Job
    from .first_failure import RankTable
    from .step_parser import StepParser

_LOST, _BACK, _RESTARTED = "lost", "came back", "restarted by torchrun"


class Membership:
    """Record which nodes were lost and came back, and when training continued with how many nodes."""

    def __init__(self, job: Job, table: RankTable, progress: StepParser) -> None:
        self.job, self.table, self.progress = job, table, progress
        self.is_elastic = job.scope.is_elastic
        self.world = 0  # processes that met last
        self.met: set[int] = set()  # their ranks so far

    def can_lose(self, node: int, exit_code: int, alive: int) -> bool:
        """Return whether the job continues without a node whose leader has ended; node 0 hosts the rendezvous."""
        losses = sum(resize["what"] == _LOST for resize in self.job.status["resizes"])
        policy = self.job.scope.restarts
        return (
            self.is_elastic
            and policy is not None
            and node != 0
            and exit_code < 0
            and alive >= self.job.request["min_nodes"]
            and losses < policy["max"]
        )

    def lose(self, node: int, fault: StruckFault | None) -> float:
        """Continue without a node; return the seconds after which it restarts."""
        policy = self.job.scope.restarts
        assert policy
        backoff = policy["backoff"]
        for rank in self.table.forget_node(node):
            processes.send(rank.pid, signal.SIGKILL)
        self._note(_LOST, node, self._nodes(self.world), fault)
        self.job.say(node, "this node was lost; the others continue, and it restarts in %d s" % backoff)
        return backoff

    def take(self, event: Event) -> None:
        """Take the start of a rank: the first of a new rendezvous has the new number of processes."""
        rank, world = event["rank"], event["world"]
        if not self.is_elastic or (world == self.world and rank not in self.met):
            self.met.add(rank)
            return
        before, self.world, self.met = self.world, world, {rank}
        for gone in self.table.forget_ranks_from(world):
            self.job.node_of_rank.pop(gone, None)
        if not before:
            return
        resizes = self.job.status["resizes"]
        if not resizes or resizes[-1]["nodes"] is not None:
            has_grown = world > before and resizes
            what, node = (_BACK, resizes[-1]["node"]) if has_grown else (_RESTARTED, None)
            self._note(what, node, self._nodes(before))
        self.job.status["resizes"][-1]["nodes"] = self._nodes(world)
        self.job.write_status()
        self.progress.begin_attempt()

    def note_training(self) -> None:
        """Record that the training continues, if it had stopped because a node was lost or came back."""
        resizes = self.job.status["resizes"]
        if resizes and resizes[-1]["nodes"] is not None and resizes[-1]["back_at"] is None:
            resizes[-1]["back_at"] = time.time()
            self.job.write_status()

    def _nodes(self, world: int) -> int:
        return world // self.job.environments.nproc

    def _note(self, what: str, node: int | None, before: int, fault: StruckFault | None = None) -> None:
        """Record a change of the nodes, and their number before it; their number afterwards follows later."""
        resize: Resize = {
            "t": time.time(),
            "what": what,
            "node": node,
            "fault": fault,
            "before": before,
            "nodes": None,
            "back_at": None,
        }
        self.job.write_status(resizes=[*self.job.status["resizes"], resize])
