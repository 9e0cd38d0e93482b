"""Host 0 of a job: it waits for the other hosts, takes all of them or none, runs the attempts, and decides how it ends.

The other hosts send a beat every second. A host that is silent for LOST_SECONDS is lost: its node counts as failed, and
a spare host takes its place if the job's policy allows a restart.
"""

from __future__ import annotations

import selectors
import socket
import time
import traceback

from .. import events, status_file
from ..atomic_write import is_full, when_there_is_room
from ..protocol import VERSION, HostAssignment, HostMessage, NodeStatus, Restart
from ..recovery.outcome import Outcome, find_outcome
from ..recovery.restart_policy import wants_restart
from ..retry import pause_before
from ..supervisor.job import USUAL_GRACE_SECONDS
from .channel import Channel
from .member import LOST_GRACE_SECONDS, Member
from .shared_folder import describe_unshared, leave_mark, remove_mark

BEAT_SECONDS, LOST_SECONDS = 1.0, 8.0
_LOOK_SECONDS = 0.05
_GATHER_SECONDS = 30.0  # for all hosts to connect
_GREETING_SECONDS = 5.0
_QUEUE_SECONDS = 1.0
_FAREWELL_SECONDS = 2.0
_MOST_STRANGERS = 64
_SEVERAL = 2  # hosts that fall silent within _ABOUT seconds
_ABOUT = 3 * BEAT_SECONDS


class _Host:
    """A host as host 0 sees it: host 0 itself (`member`), or one at the other end of a channel."""

    def __init__(self, index: int, name: str) -> None:
        self.index, self.name, self.address = index, name, ""
        self.channel: Channel | None = None
        self.member: Member | None = None
        self.is_lost, self.lost_because = False, ""

    def send(self, message: HostMessage) -> None:
        if self.member is not None:
            self.member.handle(message)
        elif self.channel is not None:
            self.channel.send(message)

    def receive(self) -> list[HostMessage]:
        if self.member is not None:
            return self.member.poll()
        return self.channel.receive() if self.channel is not None else []


class Leader:
    """Runs the job on all its hosts; the result is in the status file of `folder`."""

    def __init__(
        self, folder: str, assignment: HostAssignment, member: Member, listener: socket.socket, port: int
    ) -> None:
        self.folder, self.assignment, self.member, self.listener, self.port = folder, assignment, member, listener, port
        self.request = assignment["request"]
        self.hosts = [_Host(index, name) for index, name in enumerate(assignment["hosts"])]
        self.hosts[0].member, self.hosts[0].address = member, member.address
        self.strangers = []  # type: list[Channel] # that have not said who they are
        self.selector = selectors.DefaultSelector()
        listener.setblocking(False)
        self.selector.register(listener, selectors.EVENT_READ)
        self.answers = {}  # type: dict[int, HostMessage] # to `take`, by host
        self.ended = {}  # type: dict[int, NodeStatus] # of the running attempt, by node
        self.place = {}  # type: dict[int, _Host] # of each node of the running attempt
        self.attempt = 0
        self.is_unwritten = False
        self.mark = ""  # by which the hosts see whether they share the folder of the checkpoints
        self.cut_off_because = ""  # this host, which is not the fault of the others
        self.beat_due = self.began = 0.0
        self.grace: float | None = None  # of a cancellation that was passed on
        self.status: NodeStatus = {
            "version": VERSION,
            "state": "PENDING",
            "reason": "",
            "message": "",
            "failure": None,
            "started": time.time(),
            "attempt": 0,
            "restarts": [],
            "notes": [],
            "port": port,
        }

    def run(self) -> None:
        """Run the job to its end."""
        self._write()
        try:
            self._gather()
            self._take_all()
            outcome = self._attempts()
        except Outcome as early:
            outcome = early
        except Exception as error:
            traceback.print_exc()
            outcome = Outcome("FAILED", "AGENT_FAILED", "the agent of %s failed: %s" % (self.hosts[0].name, error))
        self._finish(outcome)

    # ── before the start ────────────────────────────────────────────────────────────────────────────────────────────

    def _gather(self) -> None:
        deadline = time.monotonic() + _GATHER_SECONDS
        while missing := [host for host in self.hosts if not host.address]:
            self._tick()
            if time.monotonic() > deadline:
                text = "%s did not connect to %s within %d s" % (missing[0].name, self.member.address, _GATHER_SECONDS)
                raise Outcome("FAILED", "START_FAILED", text)

    def _take_all(self) -> None:
        """Wait until all hosts are free, and take them: in the order of their names, and all or none."""
        self._event("step", step="queue", edge="start", attempt=0)
        while True:
            busy = self._take_in_order()
            if not busy:
                break
            for host in self.hosts:
                host.send({"what": "release"})
            if self.status["message"] != busy:
                self._write(message=busy)
            self._wait(_QUEUE_SECONDS)
        self._event("step", step="queue", edge="end", attempt=0)

    def _take_in_order(self) -> str:
        """Take host after host; return why one is not free, empty if all are taken."""
        for host in sorted(self.hosts, key=lambda host: host.name):
            self.answers.pop(host.index, None)
            host.send({"what": "take"})
            while host.index not in self.answers:
                self._tick()
                self._require(host)
            answer = self.answers[host.index]
            if answer["what"] == "busy":
                return "waiting for %s: %s" % (host.name, answer["text"])
            if answer.get("text"):
                self._note("the agent of job %s on %s died: the host is free again" % (answer["text"], host.name))
        return ""

    def _require(self, host: _Host) -> None:
        if host.is_lost:
            raise Outcome("FAILED", "NODE_FAILED", "before the job started, %s" % host.lost_because)

    # ── the attempts ────────────────────────────────────────────────────────────────────────────────────────────────

    def _attempts(self) -> Outcome:
        self.began = time.monotonic()
        while True:
            self._begin()
            outcome, detected_at = self._watch()
            if self._is_cancelled() or not wants_restart(self.request["restarts"], outcome, self.attempt):
                return outcome
            if len(self._usable()) < self.request["nodes"]:
                text = "%s; no spare host is left for a restart" % outcome.message
                return Outcome(outcome.state, outcome.reason, text, outcome.failure)
            self._prepare_restart(outcome, detected_at)

    def _usable(self) -> list[_Host]:
        return [host for host in self.hosts if not host.is_lost]

    def _begin(self) -> None:
        self._settle()
        self.ended = {}
        self.mark = "" if self.attempt else leave_mark(self.request)
        addresses = [self.place[node].address for node in range(self.request["nodes"])]
        self._write(state="STARTING", message="", attempt=self.attempt, addresses=addresses)
        for node, host in self.place.items():
            begin: HostMessage = {"what": "begin", "attempt": self.attempt, "node": node, "addresses": addresses}
            host.send({**begin, "port": self.port, "timeout": self._time_left(), "mark": self.mark})

    def _settle(self) -> None:
        """Give each node a host: the one it had, or a spare one if that is lost."""
        kept = {node: host for node, host in self.place.items() if not host.is_lost}
        spare = [host for host in self._usable() if host not in kept.values()]
        if len(kept) + len(spare) < self.request["nodes"]:
            lost = next(host for host in self.hosts if host.is_lost)
            raise Outcome("FAILED", "NODE_FAILED", "%s; no spare host is left" % lost.lost_because)
        for node in range(self.request["nodes"]):
            if node not in kept:
                kept[node] = spare.pop(0)
                if self.attempt:
                    self._note("restart %d: %s runs node %d" % (self.attempt, kept[node].name, node))
        self.place = dict(sorted(kept.items()))

    def _time_left(self) -> float | None:
        timeout = self.request["timeout"]
        return max(1.0, timeout - (time.monotonic() - self.began)) if timeout else None

    def _watch(self) -> tuple[Outcome, float]:
        """Return the outcome of the attempt, and when it was clear; all nodes have ended then."""
        while True:
            self._tick()
            if self.status["state"] == "STARTING":
                self._write(state="RUNNING")
            lost = [(node, host) for node, host in self.place.items() if host.is_lost and node not in self.ended]
            if lost:
                detected_at = time.time()
                self._stop_others(LOST_GRACE_SECONDS)
                return self._outcome_of_loss(*lost[0]), detected_at
            outcome = find_outcome(list(self.ended.values()), self.request["nodes"])
            if outcome is not None and (outcome.state != "SUCCEEDED" or len(self.ended) == len(self.place)):
                detected_at = time.time()
                self._stop_others(None)
                return find_outcome(list(self.ended.values()), self.request["nodes"]) or outcome, detected_at
            if len(self.ended) == len(self.place):
                return Outcome("CANCELLED"), time.time()

    def _outcome_of_loss(self, node: int, host: _Host) -> Outcome:
        found = find_outcome(list(self.ended.values()), self.request["nodes"])
        if found is not None and found.failure and not found.failure.get("evidence", {}).get("is_victim"):
            return found  # it failed before the loss
        lost = (0, self.cut_off_because) if self.cut_off_because else (node, host.lost_because)
        return Outcome("FAILED", "NODE_FAILED", "node %d was lost: %s" % lost)

    def _stop_others(self, grace: float | None) -> None:
        """Ask the nodes that still run to end, and wait until they have."""
        for node, host in self.place.items():
            if node not in self.ended:
                host.send({"what": "stop", "grace": grace})
        while any(node not in self.ended and not host.is_lost for node, host in self.place.items()):
            self._tick()  # each host sees to it that its node ends, or is lost

    def _prepare_restart(self, outcome: Outcome, detected_at: float) -> None:
        policy = self.request["restarts"]
        assert policy
        number = self.attempt + 1
        pause = pause_before(number, policy["backoff"])
        evidence = outcome.failure.get("evidence", {}) if outcome.failure else {}
        entry: Restart = {
            "attempt": number,
            "failed_at": evidence.get("t") or detected_at,
            "detected_at": detected_at,
            "reason": outcome.reason,
            "message": outcome.message,
            "fault": None,
            "back_at": None,
            "steps_lost": None,
        }
        text = "restart %d of %d in %d s: %s" % (number, policy["max"], pause, outcome.message)
        self._write(state="RECOVERING", message=text, restarts=[*self.status["restarts"], entry])
        self._wait(pause)
        if self._is_cancelled():
            raise Outcome("CANCELLED")
        self.attempt = number

    # ── the end ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def _finish(self, outcome: Outcome) -> None:
        remove_mark(self.mark)
        self._event("end", state=outcome.state, reason=outcome.reason)
        self.status.update({"state": outcome.state, "reason": outcome.reason, "message": outcome.message})
        self.status.update({"failure": outcome.failure, "ended": time.time()})
        for host in self.hosts:  # first: this host may have no room to write it down now
            host.send({"what": "end", "status": self.status})
        self.member.queue.leave()
        deadline = time.monotonic() + _FAREWELL_SECONDS
        while time.monotonic() < deadline and any(host.channel and not host.channel.is_over for host in self.hosts):
            self._pump()  # they close the connection once they have read it
        when_there_is_room(self._write)

    # ── all the time ────────────────────────────────────────────────────────────────────────────────────────────────

    def _wait(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            self._tick()

    def _tick(self) -> None:
        """Exchange messages for a moment; raise Outcome if the job was cancelled before a node runs."""
        self._pump()
        grace = status_file.cancel_grace(self.folder, USUAL_GRACE_SECONDS)
        if grace is None or self.status["state"] in ("SUCCEEDED", "FAILED", "CANCELLED"):
            return
        if not any(node not in self.ended for node in self.place):
            raise Outcome("CANCELLED")
        if grace != self.grace:
            self.grace = grace
            self._write(state="CANCELLING")
            for host in self.hosts[1:]:
                host.send({"what": "cancel", "grace": grace})

    def _is_cancelled(self) -> bool:
        return self.grace is not None or status_file.cancel_grace(self.folder, 0) is not None

    def _pump(self) -> None:
        self.selector.select(0 if self.member.answers else _LOOK_SECONDS)
        self._accept()
        if self.is_unwritten:
            self._write()
        now = time.monotonic()
        is_beat = now >= self.beat_due
        self.beat_due = now + BEAT_SECONDS if is_beat else self.beat_due
        for host in self.hosts:
            for message in host.receive():
                self._take(host, message)
            channel = host.channel
            if channel is None or host.is_lost:
                continue
            if is_beat:
                channel.send({"what": "beat"})
            if channel.is_over or now - channel.heard_at > LOST_SECONDS:
                host.is_lost = True
                ended = "the agent on %s ended" % host.name
                host.lost_because = (
                    ended if channel.is_over else "%s did not answer for %d s" % (host.name, LOST_SECONDS)
                )
                if not channel.is_over:
                    self.cut_off_because = self.cut_off_because or self._why_cut_off(host, now)
                self._forget(channel)
                if "ended" not in self.status:
                    self._event("host_lost", message=host.name)

    def _why_cut_off(self, lost: _Host, now: float) -> str:
        """Return why it is this host that is cut off, and not the one that is silent; an empty string if it is not."""
        known = self.member.why_cut_off()
        if known:
            return known
        others = [host for host in self.hosts if host.channel and (host is lost or not host.is_lost)]
        silent = [host for host in others if host.channel and now - host.channel.heard_at > LOST_SECONDS - _ABOUT]
        is_alone = len(silent) == len(others) >= _SEVERAL
        return "%s lost the connection to all other hosts" % self.hosts[0].name if is_alone else ""

    def _accept(self) -> None:
        try:
            while True:
                connection, _ = self.listener.accept()
                if len(self.strangers) >= _MOST_STRANGERS:
                    self._forget(self.strangers.pop(0))
                channel = Channel(connection, self.assignment["key"], is_listener=True)
                self.selector.register(connection, selectors.EVENT_READ)
                self.strangers.append(channel)
        except OSError:
            pass  # there is none, or it is gone already
        for channel in self.strangers[:]:
            host: _Host | None = None
            for message in channel.receive():
                if host is None:
                    host = self._welcome(channel, message)
                else:
                    self._take(host, message)
            is_late = time.monotonic() - channel.heard_at > _GREETING_SECONDS
            if host is not None or channel.is_over or is_late:
                self.strangers.remove(channel)
            if host is None and channel not in self.strangers:
                self._forget(channel)

    def _welcome(self, channel: Channel, message: HostMessage) -> _Host | None:
        """Return the host that says hello; None, and the end of the channel, if it is none that is still missing."""
        index = message.get("index", 0)
        host = self.hosts[index] if message["what"] == "hello" and 0 < index < len(self.hosts) else self.hosts[0]
        if host.member is not None or host.channel is not None:
            channel.is_over = True
            return None
        host.channel, host.address = channel, message["address"]
        return host

    def _forget(self, channel: Channel) -> None:
        self.selector.unregister(channel.socket)
        channel.close()

    def _take(self, host: _Host, message: HostMessage) -> None:
        if message["what"] in ("taken", "busy"):
            self.answers[host.index] = message
        elif message["what"] == "looked" and not message["is_seen"]:
            self._note(describe_unshared(self.mark, host.name, self.hosts[0].name))
        elif message["what"] == "ended" and message["attempt"] == self.attempt:
            self.ended[message["node"]] = message["status"]

    def _event(self, event: str, **fields: object) -> None:
        events.append_event(self.folder, event, **fields)  # type: ignore[arg-type]

    def _note(self, text: str) -> None:
        if text not in self.status["notes"]:
            self._write(notes=[*self.status["notes"], text])

    def _write(self, **fields: object) -> None:
        if fields.get("state", self.status["state"]) != self.status["state"] and "ended" not in fields:
            self._event("state", state=fields["state"], message=fields.get("message", ""))
        self.status.update(fields)  # type: ignore[typeddict-item]
        try:
            status_file.write_status(self.folder, self.status)
            self.is_unwritten = False
        except OSError as error:
            if not is_full(error) or "ended" in self.status:
                raise
            self.is_unwritten = True  # until there is room
