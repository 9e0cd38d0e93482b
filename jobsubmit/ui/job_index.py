"""All jobs of this machine, kept in memory: what cannot have changed is not read again."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from jobsubmit.backends.models import State
from jobsubmit.common.waiting import rest_after
from jobsubmit.config import Settings
from jobsubmit.jobs.listing import Summary, summarize_jobs
from jobsubmit.jobs.progress import NOTHING_SHOWN, TrainingState, read_trainings

_LOOK_SECONDS, _OFTEN_SECONDS, _PLATFORM_SECONDS = 2.0, 1.0, 5.0
_COST_SHARE, _SLOWEST_SECONDS = 0.004, 3.0  # looks take this share of a core, unless they would be rarer
_REST_SECONDS = 30.0  # without a reader
_TRAININGS = 100  # of the newest jobs
_RUNNING_LOOKS = 2  # a running job's training is read at every such look


class JobIndex:
    """The jobs of this machine, and how far the newest ones are; a thread keeps them current while someone looks."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.jobs: Sequence[Summary] = ()
        self.trainings: Mapping[str, TrainingState] = {}
        self.version = 0
        self._changed = threading.Condition()
        self._wanted = 0.0
        self._is_running = False
        self._stamp: object = None
        self._has_all = False  # of the directories at that time, each was that of a job
        self._looks = 0
        self._read_when_ended: set[str] = set()
        self._looking = threading.Lock()

    def refresh(self) -> None:
        """Read the jobs now, and start the thread if it does not run."""
        self._look()
        with self._changed:
            self._wanted = time.monotonic()
            if self._is_running:
                return
            self._is_running = True
        threading.Thread(target=self._run, daemon=True, name="jobs").start()

    def wait(self, version: int, seconds: float) -> int:
        """Return the version of the jobs once it differs from one that is known, at most after some seconds."""
        with self._changed:
            self._wanted = time.monotonic()
            self._changed.wait_for(lambda: self.version != version, seconds)
            return self.version

    def training(self, job_id: str) -> TrainingState:
        """Return how far a job is, as far as it was read."""
        return self.trainings.get(job_id, NOTHING_SHOWN)

    def _run(self) -> None:
        self._read_trainings()
        pause = self._pause()
        while True:
            time.sleep(pause)
            with self._changed:
                if time.monotonic() - self._wanted > _REST_SECONDS:
                    self._is_running = False
                    return
            began = time.thread_time()
            self._look()
            self._read_trainings()
            pause = max(self._pause(), min(rest_after(began, _COST_SHARE), _SLOWEST_SECONDS))

    def _pause(self) -> float:
        """Return how long to wait: a platform is asked less often than this machine."""
        running = self._running()
        if any(job.backend != "local" for job in running):
            return _PLATFORM_SECONDS
        return _OFTEN_SECONDS if running else _LOOK_SECONDS

    def _running(self) -> list[Summary]:
        return [job for job in self.jobs if not State(job.state).is_final]

    def _look(self) -> None:
        """Read the jobs if a directory of one has come or gone, or if one is being submitted or has not ended."""
        with self._looking:
            self._look_again()

    def _look_again(self) -> None:
        directory = self.settings.job_dir("")
        try:
            stamp: object = directory.stat().st_mtime_ns
        except OSError:
            stamp = None
        if stamp == self._stamp and self._has_all and self.version and not self._running():
            return
        self._stamp = stamp
        count = _count_entries(directory)
        jobs = summarize_jobs(self.settings)
        self._has_all = len(jobs) == count
        if jobs != self.jobs or not self.version:
            self._set(jobs=jobs)

    def _read_trainings(self) -> None:
        newest = list(self.jobs[:_TRAININGS])
        self._looks += 1
        has_news = self._looks % _RUNNING_LOOKS == 0
        running = [job for job in newest if not State(job.state).is_final]
        wanted = [job for job in running if has_news or job.id not in self.trainings]
        ended = [job for job in newest if State(job.state).is_final and job.id not in self._read_when_ended]
        self._read_when_ended.update(job.id for job in ended)
        self._read_when_ended.difference_update(job.id for job in running)
        wanted += ended
        if wanted:
            found = {
                **self.trainings,
                **{job.id: NOTHING_SHOWN for job in wanted},
                **read_trainings(wanted, self.settings),
            }
            if found != self.trainings:
                self._set(trainings=found)

    def _set(self, jobs: Sequence[Summary] | None = None, trainings: Mapping[str, TrainingState] | None = None) -> None:
        with self._changed:
            self.jobs = self.jobs if jobs is None else jobs
            self.trainings = self.trainings if trainings is None else trainings
            self.version += 1
            self._changed.notify_all()


def _count_entries(directory: Path) -> int:
    """Return how many directories there are, also those without a record: a submission makes the directory before."""
    try:
        return sum(1 for _ in directory.iterdir())
    except OSError:
        return 0
