"""What all modules of the supervisor share: assignment, directory, status, and the reasons to end early."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from contextlib import suppress

from .. import events, node_contract, processes, protocol, status_file
from ..atomic_write import is_full, make_private, when_there_is_room
from ..job_directory import STREAMS, JobDirectory
from ..logs.writing import IndexWriter
from ..python_folder import folder_of
from ..recovery.outcome import Outcome
from . import process_group
from .environment import NodeEnvironments
from .forked import ForkedProcess
from .job_phases import PhaseRecorder
from .machine_identity import describe_watcher
from .node_scope import find_scope

TYPE_CHECKING = False  # importing typing would cost more than all the rest
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import BinaryIO

    from typing_extensions import Unpack

    from ..protocol import Assignment, NodeStatus, StatusChange

POLL_SECONDS = 0.03
_INDEX_SECONDS = 0.1
_LOG_LIMIT = 1 << 30  # bytes
_SHORTEST_SECRET = 4  # a shorter one would strike out half of any text
USUAL_GRACE_SECONDS = 10.0
_RESERVED_BYTES = 1 << 16
_ROOM_LOOK_SECONDS = 1.0
_BEAT_SECONDS = 1.0


class Job:
    """One job, or one node of it, while it runs."""

    def __init__(self, job_dir: str, assignment: Assignment) -> None:
        self.dir, self.files, self.assignment = job_dir, JobDirectory(job_dir), assignment
        self.request = assignment["request"]
        self.scope = find_scope(assignment)
        self.nodes = self.scope.nodes
        self.shared = JobDirectory(assignment.get("shared_dir") or job_dir)  # what all nodes of the job see
        self.events = events.EventReader(job_dir)
        self.phases = PhaseRecorder(job_dir)
        self.logs = IndexWriter(job_dir, int(os.environ.get(node_contract.LOG_LIMIT) or _LOG_LIMIT))
        self.node_of_rank: dict[int, int] = {}
        self.started: list[subprocess.Popen[bytes] | ForkedProcess] = []
        self.locks: list[int] = []  # descriptors that hold the cached inputs
        self.sizes_before: dict[str, int] = {}  # of the logs, when this attempt began
        self.began = time.monotonic()  # whatever becomes of the clock on the wall
        self.attempt_began = 0.0
        self.told_to_end = False
        self.index_due = 0.0
        self.is_status_unwritten = False
        self.write_due = 0.0
        self.beat_due = 0.0
        self.register = process_group.Register(job_dir)
        self.status: NodeStatus = {
            "version": protocol.VERSION,
            "state": "STARTING",
            "reason": "",
            "message": "",
            "failure": None,
            "started": time.time(),
            "attempt": self.scope.attempt,
            "restarts": [],
            "resizes": [],
        }

    def prepare(self) -> None:
        """Find port and addresses, and create the directories; errors here are reported to the submitter."""
        port, addresses = self.scope.find_peers()
        self.environments = NodeEnvironments(self.assignment, self.files, self.scope, addresses, port)
        python = self.request.get("python")
        if python and not self.assignment["python_folder"]:
            try:
                self.assignment["python_folder"] = folder_of(python, self.dir)
            except OSError as error:
                text = "backend.python: %s: %s" % (error.filename or python, error.strerror)
                raise Outcome("FAILED", "START_FAILED", text) from error
        self.phases.begin_attempt(self.status["attempt"])
        for folder in (self.files.logs, self.files.stacks):
            make_private(folder)
        with open(self.files.reserve, "wb") as reserve:
            reserve.write(bytes(_RESERVED_BYTES))
        signal.signal(signal.SIGTERM, self._on_sigterm)
        for mount in self.request["mounts"]:
            if mount["kind"] == "checkpoint":
                self.status["checkpoint_dir"] = self.environments.mount_path(mount)
        self.write_status(
            watcher=describe_watcher(self.dir),
            pid=os.getpid(),
            port=port,
            addresses=addresses,
            notes=self.scope.notes(),
        )

    def _on_sigterm(self, number: int, frame: object) -> None:
        self.told_to_end = True

    def write_status(self, **fields: Unpack[StatusChange]) -> None:
        """Change some fields of the status, and write it; a new state is also an event.

        If the disk is full, it is written once there is room (see `write_again`).
        """
        if "ended" not in fields and fields.get("state", self.status["state"]) != self.status["state"]:
            events.append_event(self.dir, "state", state=fields["state"], message=fields.get("message", ""))
        self.status.update(fields)
        self._write()

    def _write(self) -> None:
        self.write_due = time.monotonic() + _ROOM_LOOK_SECONDS
        try:
            status_file.write_status(self.dir, self.status)
            self.is_status_unwritten = False
        except OSError as error:
            if not is_full(error):
                raise
            self.is_status_unwritten = True
            text = "the disk of %s was full during the job (%s): its log may be incomplete" % (self.dir, error.strerror)
            if text not in self.status.get("notes", ()):
                self.status["notes"] = [*self.status.get("notes", ()), text]

    def write_again(self) -> bool:
        """Retry the writes that failed because the disk was full, once a second; return whether none is left."""
        self._beat()
        if self.is_status_unwritten and time.monotonic() >= self.write_due:
            self._write()
        return events.write_events(self.dir) and not self.is_status_unwritten

    def write_at_last(self) -> None:
        """Write what is left after the end of the job; if the disk is full, wait for room."""
        with suppress(OSError):
            os.unlink(self.files.reserve)
        self.write_due = 0.0
        when_there_is_room(self.write_again)

    def add_note(self, text: str) -> None:
        """Add a note to the status, once."""
        if text not in self.status["notes"]:
            self.write_status(notes=[*self.status["notes"], text])

    def pause(self, process: subprocess.Popen[bytes] | ForkedProcess | None = None) -> None:
        """Wait a moment, or until a process ends; raise Outcome if the job must end."""
        self.note_logs()
        self.write_again()
        if self.told_to_end:
            raise self.scope.stopped()
        if self.cancel_grace() is not None:
            raise Outcome("CANCELLED")
        timeout = self.request["timeout"]
        if timeout and time.monotonic() - self.began > timeout:
            raise Outcome("FAILED", "TIMEOUT", "the job ran longer than its timeout of %d s" % timeout)
        if process is None:
            time.sleep(POLL_SECONDS)
        else:
            with suppress(subprocess.TimeoutExpired):
                process.wait(POLL_SECONDS)

    def cancel_grace(self) -> float | None:
        """Return the grace time of a cancellation in seconds, or None if the job is not cancelled."""
        return status_file.cancel_grace(self.shared.path, USUAL_GRACE_SECONDS)

    def stop_grace(self) -> float | None:
        """Return the grace time in seconds that is left to the processes, if it is not the usual one."""
        cancelled = self.cancel_grace()
        return status_file.read_grace(self.files.stop, USUAL_GRACE_SECONDS) if cancelled is None else cancelled

    def begin_attempt(self, number: int) -> None:
        """Reset what is counted per attempt."""
        self.phases.begin_attempt(number)
        self.sizes_before = self.logs.ends.copy()
        self.attempt_began = time.time()
        self.write_status(attempt=number)

    @property
    def is_command(self) -> bool:
        """Return whether nodes run a command of the user, which may or may not start ranks."""
        return self.request["mode"] == "command"

    def sources(self) -> list[tuple[int, int | None]]:
        """Return (node, rank) of each log that may show the progress of the training."""
        ranks = [(node, rank) for rank, node in self.node_of_rank.items()]  # type: list[tuple[int, int | None]]
        return ranks + [(node, None) for node in self.nodes] if self.is_command else ranks

    def note_logs(self, *, now: bool = False) -> None:
        """Record which logs have grown, now or at intervals, and update the heartbeat."""
        self._beat()
        if not now and time.monotonic() < self.index_due:
            return
        self.index_due = time.monotonic() + _INDEX_SECONDS
        owners = [(node, None) for node in self.nodes]  # type: list[tuple[int, int | None]]
        owners += [(node, rank) for rank, node in self.node_of_rank.items()]
        self.logs.note((node, rank, stream) for node, rank in owners for stream in STREAMS)

    def _beat(self) -> None:
        """Update the heartbeat, for file systems without locks; record the running processes."""
        if time.monotonic() < self.beat_due:
            return
        self.beat_due = time.monotonic() + _BEAT_SECONDS
        try:
            os.utime(self.files.lock)
        except OSError:
            return  # an engine watches this node
        if not process_group.find_group(self.dir):
            self.register.note()

    def start(
        self,
        argv: list[str],
        node: int,
        *,
        is_ours: bool = False,
        stdin: int = subprocess.DEVNULL,
        stdout: int | None = None,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
    ) -> subprocess.Popen[bytes]:
        """Start a process of a node, which ends with the supervisor; its output goes to the node's logs.

        Our own processes write files for their owner only; the user's processes have the umask of the user.
        """

        def begin() -> None:
            processes.die_with_parent(signal.SIGKILL)
            if not is_ours and "umask" in self.assignment:
                os.umask(self.assignment["umask"])

        with self.node_log(node, "stdout") as out, self.node_log(node, "stderr") as err:
            process = subprocess.Popen(
                argv,
                stdin=stdin,
                stdout=out if stdout is None else stdout,
                stderr=err,
                cwd=cwd,
                env=env,
                start_new_session=True,
                preexec_fn=begin,
            )
        self.started.append(process)
        return process

    def fork(self, function: Callable[[], int], node: int) -> ForkedProcess:
        """Run a function of ours in a process of its own; like one that was started, it ends with the supervisor."""
        with self.node_log(node, "stdout") as out, self.node_log(node, "stderr") as err:
            process = ForkedProcess(function, out.fileno(), err.fileno())
        self.started.append(process)
        return process

    def node_log(self, node: int, stream: str) -> BinaryIO:
        """Open a log of a node to append to it."""
        return open(self.files.log_of(node, None, stream), "ab")

    def say(self, node: int, text: str) -> None:
        """Write a line of jobsubmit to the log of a node, unless the disk is full."""
        try:
            with self.node_log(node, "stderr") as log:
                log.write(("jobsubmit: %s\n" % text).encode())
        except OSError as error:
            if not is_full(error):
                raise

    def without_secrets(self, text: str) -> str:
        """Return a text with every secret value replaced by its name, the longest first: one may contain another."""
        parts = {part: name for name, value in self.assignment["secrets"].items() for part in secret_forms(value)}
        for part in sorted(parts, key=len, reverse=True):
            if len(part) >= _SHORTEST_SECRET:
                text = text.replace(part, "<%s>" % parts[part])
        return text


def secret_forms(secret: str) -> set[str]:
    """Return the forms in which a secret may occur in a line: each of its lines, also URL-quoted."""
    from urllib.parse import quote, quote_plus

    lines = secret.splitlines()
    return {form for line in lines for form in (line, quote(line), quote(line, safe=""), quote_plus(line))}
