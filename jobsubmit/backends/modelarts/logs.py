"""The lines of a job's tasks, read by pages: each once, whatever breaks in between."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from jobsubmit.backends import LogLine, LogQuery
from jobsubmit.backends.modelarts.client import MOST_LINES, ModelArts
from jobsubmit.backends.modelarts.states import node_of

_LOOK_SECONDS = 2.0
_MOST_LOOKS_WHEN_OVER = 15


@dataclass
class _Task:
    """Hold up to which line the log of a task is read."""

    name: str
    last: int = 0
    is_ready: bool = False  # the service needs a while until it has a log to show


class Logs:
    """Read the logs of one job."""

    def __init__(self, api: ModelArts, job: str, tasks: Sequence[str]) -> None:
        self.api, self.job, self.tasks = api, job, tasks
        self.known: dict[str, _Task] = {}

    def lines(self, query: LogQuery, goes_on: Callable[[], bool]) -> Iterator[LogLine]:
        """Yield the lines that a query chooses; while the job goes on wait for more of them.

        `tasks` are those of the last look whether it goes on.
        """
        if query.tail is not None:
            goes_on()
            yield from deque(self._new(query), maxlen=query.tail)
        looks_when_over = 0
        while True:
            is_over = not goes_on()
            yield from self._new(query)
            looks_when_over += is_over
            if is_over and (self._is_ready(query) or looks_when_over > _MOST_LOOKS_WHEN_OVER):
                return
            time.sleep(_LOOK_SECONDS)

    def _new(self, query: LogQuery) -> Iterator[LogLine]:
        for name in self.tasks:
            self.known.setdefault(name, _Task(name))
        for task in self.known.values():
            if _wants(query, task):
                yield from (line for line in self._of(task) if query.wants(line))

    def _is_ready(self, query: LogQuery) -> bool:
        return all(task.is_ready for task in self.known.values() if _wants(query, task))

    def _of(self, task: _Task) -> Iterator[LogLine]:
        """Yield what a task's log has more; a page may begin with lines that were read, for it is asked by number."""
        while True:
            page = self.api.log_page(self.job, task.name, task.last)
            if page is None:
                return
            task.is_ready = True
            end, content = page
            lines = content.splitlines()
            new = lines[max(0, len(lines) - (end - task.last)) :] if end > task.last else []
            task.last = max(task.last, end)
            now = time.time()
            for text in new:
                yield LogLine(node_of(task.name), None, "stdout", now, text)
            if len(lines) < MOST_LINES or not new:
                return


def _wants(query: LogQuery, task: _Task) -> bool:
    """Tell whether any line of a task can be among the chosen: it has no ranks, and one stream."""
    return query.rank is None and query.wants_source(node_of(task.name), None, "stdout")
