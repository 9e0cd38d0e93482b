"""Which process failed first: the one that broke the job, not those that broke because of it."""

import signal


class Gang:
    """Collect what is known of the ranks and leaders of a job."""

    def __init__(self):
        self.ranks = {}
        self.by_pid = {}
        self.leaders = {}
        self.stopped_at = None  # when we told everybody to end

    def take(self, event):
        """Take one event of the hook."""
        kind = event["event"]
        if kind == "rank_start":
            rank = {"node": event["node"], "rank": event["rank"], "pid": event["pid"], "started": event["t"]}
            self.ranks[event["rank"]] = self.by_pid[event["pid"]] = rank
        elif kind == "rank_exception" and event["pid"] in self.by_pid:
            self.by_pid[event["pid"]].setdefault("exception", event)
        elif kind == "child_exit" and event["pid"] in self.by_pid:
            self.by_pid[event["pid"]].setdefault("exit", event)

    def leader_exited(self, node, code, moment):
        """Take the end of a node's start script or launcher."""
        self.leaders[node] = {"node": node, "code": code, "t": moment}

    def failures(self, ranks_count=True):
        """Return every failure, the most likely first cause first."""
        found = [self._rank_failure(rank) for rank in self.ranks.values()] if ranks_count else []
        found += [self._leader_failure(leader) for leader in self.leaders.values()]
        return sorted((failure for failure in found if failure), key=_order)

    def _rank_failure(self, rank):
        exception, ended = rank.get("exception"), rank.get("exit")
        code = ended["code"] if ended else None
        if exception and code in (None, 0, -signal.SIGTERM, -signal.SIGKILL):
            code = 1  # it was on its way out with a traceback; a slow end is no other cause
        if not code:
            return None
        return {
            "node": rank["node"],
            "rank": rank["rank"],
            "code": code,
            "t": min(event["t"] for event in (exception, ended) if event),
            "is_victim": bool(exception and exception["is_victim"]),
            "is_leader": False,
            "was_told": self._was_told(code, exception or ended),
        }

    def _leader_failure(self, leader):
        if not leader["code"]:
            return None
        return {
            "node": leader["node"],
            "rank": None,
            "code": leader["code"],
            "t": leader["t"],
            "is_victim": False,
            "is_leader": True,
            "was_told": self._was_told(leader["code"], leader),
        }

    def _was_told(self, code, event):
        return code == -signal.SIGTERM or (self.stopped_at is not None and event["t"] > self.stopped_at)


def _order(failure):
    explained_by_ranks = failure["is_leader"] and failure["code"] > 0
    return (failure["was_told"], failure["is_victim"], explained_by_ranks, failure["t"])


def is_clear(failure):
    """Tell whether a failure is surely a cause: nobody told it to end, and nobody else's end explains it."""
    return not (failure["was_told"] or failure["is_victim"] or failure["is_leader"])
