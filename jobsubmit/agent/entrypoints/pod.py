"""A node in a pod: its lines go to the pod's log and in pieces to the store, and its outcome to the pod's status.

log_forwarder.py defines the lines of the pod's log. Pieces of the same lines are stored, because the log of a pod is
lost when the pod is removed or restarted. So are its outcome, as status.json, and the timing files and the stacks of
its ranks.
"""

from __future__ import annotations

import gzip
import http.client
import json
import os
import sys
import time
import urllib.parse
import uuid

from .. import run as agent, sigv4, status_file
from ..authorities import make_context
from ..log_forwarder import LogForwarder, shorten_status
from ..protocol import COLLECT, AgentRequest, Collect
from ..recovery.outcome import KILLED, STOPPED
from ..retry import pause_before
from ..supervisor.hang_detector import read_stacks
from ..timing import recorder

TYPE_CHECKING = False  # importing typing would cost more than all the rest
if TYPE_CHECKING:
    import ssl

PIECE, STATUS, TIMING, STACKS = ".gz", "status.json", ".timing", ".stacks"  # ends of the keys
_TERMINATION_LOG = "/dev/termination-log"
_PIECE_SECONDS, _PIECE_BYTES = 60.0, 4 << 20
_TRIES, _ANSWER_SECONDS = 2, 10
_REFUSED = 300  # and higher: statuses of an answer that is no success


def run(folder: str, job: str, request: AgentRequest) -> int:
    """Run this node of the job, and report its outcome; return the exit code for the platform."""
    job_dir = agent.own_directory(folder).path
    with open(os.path.join(job, COLLECT), encoding="utf-8") as stream:
        forwarder = _PodLogForwarder(job_dir, _Collector(json.load(stream)))
    forwarder.start()
    outcome = agent.run_node(folder, request, None)
    status = shorten_status(status_file.read_status(job_dir) or status_file.NO_STATUS)
    forwarder.finish_with(status)
    _write_termination_message(status)
    code = agent.final_code(outcome, request, agent.place_from_environment()["attempt"])
    # These two mean to Volcano that the pod was taken away; the rank's own code stands in the status.
    return 1 if outcome.state == "FAILED" and code in (STOPPED, KILLED) else code


class _PodLogForwarder(LogForwarder):
    """Forward each line, and collect pieces of them."""

    def __init__(self, job_dir: str, collector: _Collector) -> None:
        super().__init__(job_dir)
        self.collector = collector

    def on_line(self, data: bytes) -> None:
        """Collect the line, too."""
        self.collector.add(data, self.number)

    def pause(self) -> None:
        """Send a piece if one is due."""
        if self.collector.is_due():
            self._collect()

    def _collect(self) -> None:
        self.collector.send()
        for name, data in recorder.read_files(self.job_dir):
            self.collector.store(name + TIMING, gzip.compress(data, 1))

    def finish_with(self, status: bytes) -> None:
        """Forward the rest, and store the status; return when all is done."""
        self.finish()
        self._collect()
        for rank, stacks in read_stacks(self.job_dir):
            self.collector.store("%d%s" % (rank, STACKS), gzip.compress(stacks, 1))
        self.collector.store(STATUS, status)


class _Collector:
    """Store pieces of the lines: with a signed form that allows nothing else, {"url", "fields", "prefix"}, or with the
    node's own keys, {"url", "region", "prefix"}."""

    def __init__(self, form: Collect) -> None:
        self.form = form
        self.context = make_context(form.get("certificates", "")) if form["url"].startswith("https:") else None
        place = agent.place_from_environment()
        self.prefix = "%s%d/%d/" % (form["prefix"], place["attempt"], place["node"])
        self.lines: list[bytes] = []
        self.size, self.first, self.began = 0, 1, time.monotonic()

    def add(self, line: bytes, number: int) -> None:
        """Take a line."""
        if not self.lines:
            self.first = number
        self.lines.append(line)
        self.size += len(line)
        if self.size > _PIECE_BYTES:
            self.send()

    def is_due(self) -> bool:
        """Return whether the next piece is due."""
        return time.monotonic() - self.began > _PIECE_SECONDS

    def send(self) -> None:
        """Send the collected lines; if the store does not accept them, they are lost, but the job continues."""
        self.began = time.monotonic()
        if not self.lines:
            return
        data, self.lines, self.size = gzip.compress(b"".join(self.lines), 1), [], 0
        self.store("%012d%s" % (self.first, PIECE), data)

    def store(self, name: str, data: bytes) -> None:
        """Store one object; report an error on stderr."""
        key, problem = self.prefix + name, ""
        for attempt in range(1, _TRIES + 1):
            try:
                if "region" in self.form:
                    url = "%s/%s" % (self.form["url"].rstrip("/"), urllib.parse.quote(key))
                    put(sigv4.sign_url(url, "PUT", self.form["region"]), data, self.context)
                else:
                    post(self.form["url"], {**self.form["fields"], "key": key}, data, self.context)
                return
            except (OSError, ValueError, http.client.HTTPException) as error:
                problem = str(error)
                time.sleep(pause_before(attempt))
        sys.stderr.write("jobsubmit: %s could not be stored: %s\n" % (name, problem))


def post(url: str, fields: dict[str, str], data: bytes, context: ssl.SSLContext | None = None) -> None:
    """Send a form with a file, as browsers do; raise OSError unless it was accepted."""
    boundary = uuid.uuid4().hex
    parts = [
        '--%s\r\nContent-Disposition: form-data; name="%s"\r\n\r\n%s\r\n' % (boundary, name, value)
        for name, value in fields.items()
    ]
    head = "".join(parts) + '--%s\r\nContent-Disposition: form-data; name="file"; filename="f"\r\n\r\n' % boundary
    body = head.encode() + data + ("\r\n--%s--\r\n" % boundary).encode()
    _send("POST", url, body, {"Content-Type": "multipart/form-data; boundary=%s" % boundary}, context)


def put(url: str, data: bytes, context: ssl.SSLContext | None = None) -> None:
    """Store an object at a signed address; raise OSError unless it was accepted."""
    _send("PUT", url, data, {}, context)


def _send(method: str, url: str, body: bytes, headers: dict[str, str], context: ssl.SSLContext | None) -> None:
    address = urllib.parse.urlsplit(url)
    connection = http.client.HTTPConnection(address.netloc, timeout=_ANSWER_SECONDS)
    if address.scheme == "https":
        connection = http.client.HTTPSConnection(address.netloc, timeout=_ANSWER_SECONDS, context=context)
    try:
        connection.request(
            method, (address.path or "/") + ("?" + address.query if address.query else ""), body, headers
        )
        answer = connection.getresponse()
        text = answer.read(500).decode("utf-8", "replace")
    finally:
        connection.close()
    if answer.status >= _REFUSED:
        raise OSError("the store answered %d: %s" % (answer.status, text))


def _write_termination_message(data: bytes) -> None:
    """Write the status to the file that Kubernetes copies into the pod's status."""
    try:
        with open(_TERMINATION_LOG, "wb") as stream:
            stream.write(data)
    except OSError as error:
        sys.stderr.write("jobsubmit: the pod's status could not be written: %s\n" % error)
