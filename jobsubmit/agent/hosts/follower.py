"""Every other host of a job: it does what host 0 says, and ends its node when host 0 is gone."""

from __future__ import annotations

import select
import socket
import time

from .. import status_file
from ..atomic_write import when_there_is_room
from ..protocol import VERSION, HostAssignment, NodeStatus
from .channel import Channel
from .leader import BEAT_SECONDS, LOST_SECONDS
from .member import Member

_LOOK_SECONDS = 0.05
_CONNECT_SECONDS = 20.0


class Follower:
    """Serves host 0 until the job ends, or host 0 is lost; the result is in the status file of `folder`."""

    def __init__(self, folder: str, assignment: HostAssignment, member: Member) -> None:
        self.folder, self.assignment, self.member = folder, assignment, member

    def run(self) -> None:
        """Serve host 0 to the end."""
        try:
            self._serve()
        finally:
            self.member.queue.leave()

    def _serve(self) -> None:
        address, port = self.assignment["decider"]
        leader = self.assignment["hosts"][0]
        try:
            connection = socket.create_connection((address, port), timeout=_CONNECT_SECONDS)
        except OSError as error:
            text = "%s cannot be reached at %s, port %d: %s" % (leader, address, port, error.strerror or error)
            self._write_own("START_FAILED", text)
            return
        channel = Channel(connection, self.assignment["key"], is_listener=False)
        channel.send({"what": "hello", "index": self.assignment["index"], "address": self.member.address})
        beat_due = 0.0
        while True:
            select.select([] if channel.is_over else [connection], [], [], _LOOK_SECONDS)
            messages = channel.receive()
            is_silent = time.monotonic() - channel.heard_at > LOST_SECONDS
            for message in messages:
                if message["what"] == "end":
                    channel.close()
                    self._write(message["status"])
                    return
                self.member.handle(message)
            for answer in self.member.poll():
                channel.send(answer)
            if time.monotonic() >= beat_due:
                beat_due = time.monotonic() + BEAT_SECONDS
                channel.send({"what": "beat"})
            if channel.is_over or is_silent:
                how = "the connection to its agent ended" if channel.is_over else "no answer for %d s" % LOST_SECONDS
                channel.close()
                node, because = 0, "%s is gone (%s)" % (leader, how)
                if own := self.member.why_cut_off():
                    node, because = self.member.running.get("node", self.assignment["index"]), own
                self._end_alone("node %d was lost: %s" % (node, because))
                return

    def _end_alone(self, text: str) -> None:
        """End the node of this host, and write what is known here: host 0 cannot any more."""
        self.member.stop_now()
        self._write_own("NODE_FAILED", text)

    def _write_own(self, reason: str, text: str) -> None:
        status: NodeStatus = {"version": VERSION, "state": "FAILED", "reason": reason, "message": text, "failure": None}
        if status_file.cancel_grace(self.folder, 0) is not None:
            status.update({"state": "CANCELLED", "reason": "", "message": ""})
        self._write({**status, "ended": time.time()})

    def _write(self, status: NodeStatus) -> None:
        when_there_is_room(lambda: status_file.write_status(self.folder, status))
