"""The folder that the nodes of a job share with the client: a job directory per attempt and node."""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from jobsubmit.agent import events, status_file
from jobsubmit.agent.job_directory import JobDirectory
from jobsubmit.agent.json_form import read_fields
from jobsubmit.agent.protocol import REQUEST, Event, NodeStatus
from jobsubmit.agent.recovery.outcome import Outcome, find_outcome
from jobsubmit.agent.supervisor.hang_detector import read_stacks
from jobsubmit.agent.supervisor.job import USUAL_GRACE_SECONDS
from jobsubmit.backends.models import LogLine, LogQuery
from jobsubmit.backends.shared.agent_status import read_timing_files
from jobsubmit.backends.shared.log_reader import read_lines

_OVERDUE_SECONDS = 5.0
_ASK_SECONDS = 0.3  # the platform is asked then


def _numbered(paths: Iterable[Path]) -> dict[int, Path]:
    """Return paths like run-0 and node-12 by their numbers."""
    named = ((path.name.partition("-")[2], path) for path in paths)
    return dict(sorted((int(number), path) for number, path in named if number.isascii() and number.isdigit()))


class SharedFolder:
    """The files that the nodes of a job write; `platform_log` is the name of the platform's own log among them."""

    def __init__(self, directory: Path, platform_log: str = "engine.log") -> None:
        self.directory, self.platform_log = directory, platform_log
        self.files = JobDirectory(directory)

    def attempts(self) -> range:
        """Return the numbers of the attempts that have begun, the first being 0."""
        return range(max(_numbered(self.directory.glob("run-*")), default=-1) + 1)

    def node_dirs(self, attempt: int) -> dict[int, Path]:
        """Return the directory of each node that has begun an attempt."""
        return _numbered(Path(self.files.node_of(attempt, 0).path).parent.glob("node-*"))

    def statuses(self, attempt: int) -> list[NodeStatus]:
        """Return the status of each node that has begun an attempt."""
        statuses = (status_file.read_status(str(path)) for path in self.node_dirs(attempt).values())
        return [status for status in statuses if status]

    def outcome(self, attempt: int) -> Outcome | None:
        """Return the outcome of an attempt, or None if the nodes' statuses do not determine it."""
        return find_outcome(self.statuses(attempt), self._nodes())

    def _nodes(self) -> int:
        try:
            return int(read_fields((self.directory / REQUEST).read_bytes(), {"nodes": int})["nodes"])
        except (OSError, ValueError):
            return 0

    def is_job(self) -> bool:
        """Return whether the directory belongs to a job; a damaged record may name any other directory."""
        try:
            names = {path.name for path in self.directory.iterdir()}
            request = (self.directory / REQUEST).read_bytes() if REQUEST in names else b""
            status = self.directory.lstat()
        except OSError:
            return False
        if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid():
            return False
        try:
            return bool(read_fields(request, {"job_id": str})["job_id"] == self.directory.name)
        except ValueError:
            return names <= {self.platform_log, "cancel"}  # it never started

    def is_cancel_asked(self) -> bool:
        """Return whether the job was asked to end."""
        return Path(self.files.cancel).exists()

    def is_cancel_overdue(self) -> bool:
        """Return whether the nodes have not ended although their grace time after a cancellation is over."""
        try:
            asked_at = Path(self.files.cancel).stat().st_mtime
        except OSError:
            return False
        grace = status_file.cancel_grace(str(self.directory), USUAL_GRACE_SECONDS) or 0.0
        return time.time() - asked_at > grace + _OVERDUE_SECONDS

    def last_words(self, count: int) -> list[str]:
        """Return the last lines of the platform's log."""
        try:
            text = (self.directory / self.platform_log).read_text(encoding="utf-8", errors="replace")
        except OSError:
            return []
        return [line for line in text.splitlines() if line.strip()][-count:]

    def events(self) -> list[Event]:
        """Return the events of the nodes of all attempts, in order of time."""
        found = (event for path in self._all_dirs() for event in events.EventReader(str(path)).new())
        return sorted(found, key=lambda event: event["t"])

    def lines(self, query: LogQuery, goes_on: Callable[[], bool]) -> Iterator[LogLine]:
        """Yield the lines that match a query; while the job runs, wait for more."""
        yield from read_lines(lambda: self._all_dirs(query.node), query, goes_on, _ASK_SECONDS)

    def timings(self) -> Iterator[bytes]:
        """Yield the timing files of all attempts."""
        return read_timing_files(self._all_dirs())

    def stacks(self) -> dict[int, bytes]:
        """Return the stacks of each rank, of the last attempt in which it hung."""
        return {rank: text for path in self._all_dirs() for rank, text in read_stacks(str(path))}

    def _all_dirs(self, node: int | None = None) -> list[Path]:
        found = [item for attempt in self.attempts() for item in self.node_dirs(attempt).items()]
        return [path for number, path in found if node in (None, number)]
