"""One job that someone looks at: a thread reads its log once, and its report again while it runs."""

from __future__ import annotations

import threading
import time
from contextlib import suppress

from jobsubmit.common.waiting import rest_after
from jobsubmit.config import Settings
from jobsubmit.errors import JobSubmitError
from jobsubmit.jobs import monitor
from jobsubmit.jobs.event_files import read_event_files
from jobsubmit.jobs.progress import open_metrics
from jobsubmit.jobs.records import JobRecord, JobRecords
from jobsubmit.report.model import Report
from jobsubmit.report.report import report
from jobsubmit.ui.log_spool import LogSpool

_REPORT_SECONDS, _SLOWEST_SECONDS = 2.0, 30.0
_PLATFORM_SECONDS, _WAIT_TIMES = 5.0, 4.0
_COST_SHARE = 0.01  # of a core may be spent on reports
_REST_SECONDS = 60.0  # without a reader
_FIRST_SECONDS, _FIRST_LINES_SECONDS = 2.0, 0.25
_TIDY_SECONDS = 15.0


class JobWatch:
    """The newest report of a job, and its log."""

    def __init__(self, record: JobRecord, settings: Settings) -> None:
        self.record, self.settings = record, settings
        self.spool = LogSpool()
        self.metrics = open_metrics(record, settings)
        self.report: Report | None = None
        self.problem = ""
        self.version = 0
        self.read_all = self.has_event_files = self.is_complete = False
        self.readers = 0  # streams
        self.is_over = threading.Event()
        self._changed = threading.Condition()
        self._wanted = time.monotonic()
        self._lock = threading.Lock()
        threading.Thread(target=self._follow, daemon=True, name=f"log {record.id}").start()
        threading.Thread(target=self._watch, daemon=True, name=f"job {record.id}").start()

    def first_report(self) -> tuple[Report | None, int]:
        """Return the report, once there is one, and its version; no report if that takes long."""
        self.touch()
        with self._changed:
            self._changed.wait_for(lambda: self.report is not None or bool(self.problem), _FIRST_SECONDS)
            return self.report, self.version

    def wait_for_log(self, lines: int) -> None:
        """Wait for the log of a job that has ended, or for so many lines of it, at most some seconds."""
        with self._changed:
            self._changed.wait_for(lambda: self.read_all or self.spool.count >= lines, _FIRST_SECONDS)

    def wait(self, version: int, lines: int, seconds: float) -> None:
        """Wait for another version of the report, or for more lines, at most some seconds."""
        self.touch()
        with self._changed:
            self._changed.wait_for(
                lambda: self.version != version or self.spool.count > lines or self.is_complete, seconds
            )

    def touch(self) -> None:
        """Note that someone looks at the job."""
        self._wanted = time.monotonic()

    @property
    def is_unused(self) -> bool:
        """Return whether nobody has looked for a while."""
        return not self.readers and time.monotonic() - self._wanted > _REST_SECONDS

    @property
    def may_go(self) -> bool:
        """Return whether it can be forgotten: nobody looks, and no thread of it reads a log that goes on."""
        return self.is_unused and self.read_all

    def close(self) -> None:
        """End the reports and remove the log's copy."""
        self.is_over.set()
        self.is_complete = True
        self._notify()
        if self.read_all:
            self.spool.close()

    def _follow(self) -> None:
        """Read the log to its end; the metrics are those of the lines so far."""
        last = 0.0
        with suppress(JobSubmitError, OSError):
            for line in monitor.logs(self.record, self.settings, follow=True):
                if self.is_over.is_set():
                    break
                self.spool.add(line)
                with self._lock:
                    self.metrics.take(line.node, line.rank, line.time, line.text)
                if time.monotonic() - last > 0.05:  # noqa: PLR2004 - readers need not wake for every line
                    last = time.monotonic()
                    self._notify()
        self.read_all = True
        if self.is_over.is_set():
            self.spool.close()
        self._notify()

    def _notify(self) -> None:
        with self._changed:
            self._changed.notify_all()

    def _watch(self) -> None:
        """Make the report again and again while the job may change."""
        lines, pause = -1, 0.0
        with self._changed:  # the first report of a short log has all of it
            self._changed.wait_for(lambda: self.read_all, _FIRST_LINES_SECONDS)
        while not self.is_over.wait(pause):
            if self.is_unused:  # the report can wait until someone looks again
                pause = _REPORT_SECONDS
                continue
            begun, began = time.thread_time(), time.monotonic()
            was_whole = self.read_all
            may_change = self._make_report()
            if not may_change and was_whole and lines == self.spool.count:
                self.is_complete = True
                self._notify()
                return
            lines = self.spool.count
            usual = _REPORT_SECONDS if self.record.backend == "local" else _PLATFORM_SECONDS
            waited = _WAIT_TIMES * (time.monotonic() - began)  # for a platform, or a bucket
            least = usual if self.version > 1 else 0.3
            pause = min(_SLOWEST_SECONDS, max(least, rest_after(begun, _COST_SHARE), waited))
            if not may_change:
                pause = min(pause, 0.3)

    def _make_report(self) -> bool:
        """Read the report; return whether a later one may differ."""
        found: Report | None
        known = JobRecords(self.settings).read(self.record.id)
        record = known if known is not None else self.record
        try:
            with self._lock:
                if self.read_all and not self.has_event_files:
                    self.has_event_files = True
                    read_event_files(record, self.settings, self.metrics)
                found = report(record, self.settings, self.metrics)
            problem = ""
        except (JobSubmitError, OSError) as error:
            found, problem = self.report, str(error)
        with self._changed:
            is_new = found != self.report or problem != self.problem
            self.report, self.problem = found, problem
            self.version += is_new or not self.version
            self._changed.notify_all()
        return found.status.state.may_change if found is not None else True


class Watches:
    """The jobs that someone looks at; those that nobody looks at any more are forgotten."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._watches: dict[str, JobWatch] = {}
        self._lock = threading.Lock()
        threading.Thread(target=self._tidy, daemon=True, name="tidy").start()

    def of(self, record: JobRecord) -> JobWatch:
        """Return the watch of a job."""
        with self._lock:
            watch = self._watches.get(record.id)
            if watch is not None and watch.record.created != record.created:  # the id was given to another job
                watch.close()
                watch = None
            if watch is None:
                watch = self._watches[record.id] = JobWatch(record, self.settings)
            watch.touch()
            return watch

    def _tidy(self) -> None:
        """Forget the jobs that nobody looks at any more."""
        while True:
            time.sleep(_TIDY_SECONDS)
            with self._lock:
                for job_id in [job_id for job_id, watch in self._watches.items() if watch.may_go]:
                    self._watches.pop(job_id).close()
