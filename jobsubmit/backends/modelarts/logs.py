"""The lines of a job's tasks: each once, by pages while the service has them, else by its preview or its export."""

from __future__ import annotations

import heapq
import json
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from jobsubmit.backends import LogLine, LogQuery
from jobsubmit.backends.modelarts.client import MOST_LINES, ModelArts, RefusedError
from jobsubmit.backends.modelarts.states import node_of
from jobsubmit.errors import BackendError, StoreError
from jobsubmit.node.teller import END, TAGGED

if TYPE_CHECKING:
    from jobsubmit.stores import ObjectStore

_LOOK_SECONDS = 2.0
_LATE_SECONDS = 60.0  # so long after its end a job's log may still grow
_MOST_LOOKS_WHEN_OVER, _MOST_QUIET_LOOKS = 15, 3
_FILE = "modelarts-job-{job}-{task}.log"  # below log_export_path (platform documentation, training logs)


@dataclass(frozen=True)
class Look:
    """Hold what a job was like at one look: its tasks, whether to wait for more lines, and when it ended if it has."""

    tasks: Sequence[str]
    goes_on: bool
    ended: float | None


@dataclass
class _Task:
    """Hold how far the log of a task is read, in lines and in bytes, and how."""

    name: str
    lines: int = 0
    size: int = 0
    is_ready: bool = False  # the service needs a while until it has a log to show
    has_ended: bool = False  # its agent said so, after all other lines
    refusal: RefusedError | None = None  # of its pages

    @property
    def node(self) -> int:
        return node_of(self.name)


class Logs:
    """Read the logs of one job; `is_tagged` if an agent of ours tells its lines, `export` is where its log goes."""

    def __init__(
        self,
        api: ModelArts,
        job: str,
        *,
        is_tagged: bool,
        export: Callable[[], tuple[ObjectStore, str] | None] = lambda: None,
    ) -> None:
        self.api, self.job, self.is_tagged, self.export = api, job, is_tagged, export
        self.tasks: dict[str, _Task] = {}

    def lines(self, query: LogQuery, look: Callable[[], Look]) -> Iterator[LogLine]:
        """Yield the lines that a query chooses, as long as looks say that there may be more."""
        chosen = (line for line in self._all(query, look) if query.wants(line))
        if query.tail is None:
            yield from chosen
            return
        first = look()
        if first.goes_on:
            yield from deque((line for line in self._round(query, first) if query.wants(line)), maxlen=query.tail)
            yield from chosen
        else:
            yield from deque(chosen, maxlen=query.tail)

    def _all(self, query: LogQuery, look: Callable[[], Look]) -> Iterator[LogLine]:
        looks = quiet = 0
        while True:
            seen, before = look(), self._size()
            yield from self._round(query, seen)
            if not seen.goes_on:
                looks, quiet = looks + 1, 0 if self._size() > before else quiet + 1
                if seen.ended is None or self._is_whole(query, seen.ended, quiet) or looks > _MOST_LOOKS_WHEN_OVER:
                    break
            time.sleep(_LOOK_SECONDS)
        for task in self._asked(query):
            if not task.is_ready and seen.ended is not None:
                yield from self._kept(task)

    def _asked(self, query: LogQuery) -> list[_Task]:
        """Return the tasks that can hold a line of the chosen; without tags a task has no ranks, and one stream."""
        is_for_tags = query.rank is not None or query.stream == "stderr"
        if is_for_tags and not self.is_tagged:
            return []
        return [task for task in self.tasks.values() if query.node in (None, task.node)]

    def _size(self) -> int:
        return sum(task.size for task in self.tasks.values())

    def _is_whole(self, query: LogQuery, ended: float, quiet: int) -> bool:
        is_settled = quiet >= _MOST_QUIET_LOOKS or time.time() - ended > _LATE_SECONDS
        return all(task.has_ended or (task.is_ready and is_settled) for task in self._asked(query))

    def _round(self, query: LogQuery, seen: Look) -> Iterator[LogLine]:
        """Yield what is new, in order of time."""
        for name in seen.tasks:
            self.tasks.setdefault(name, _Task(name))
        yield from heapq.merge(*map(self._of, self._asked(query)), key=lambda line: line.time)

    def _of(self, task: _Task) -> Iterator[LogLine]:
        """Yield what a task's log has more."""
        if task.refusal is None:
            try:
                yield from self._by_pages(task)
            except RefusedError as refusal:
                if refusal.may_pass:
                    raise
                task.refusal = refusal
        if task.refusal is not None:
            yield from self._by_preview(task)

    def _by_pages(self, task: _Task) -> Iterator[LogLine]:
        """Yield the rest page by page; a page may begin with lines that were read, for it is asked by number."""
        while True:
            page = self.api.log_page(self.job, task.name, task.lines)
            if page is None:
                return
            end, content = page
            lines = split(content)
            new = lines[max(0, len(lines) - (end - task.lines)) :] if end > task.lines else []
            yield from self._told(task, new)
            if len(lines) < MOST_LINES or not new:
                return

    def _by_preview(self, task: _Task) -> Iterator[LogLine]:
        """Yield the rest of the newest bytes; what came before them is lost where they do not reach back far enough."""
        try:
            found = self.api.log_preview(self.job, task.name)
        except RefusedError:
            found = None  # it is not to be had this way, either
        if found is None:
            return
        content, whole = found
        data = content.encode()
        yield from self._told(task, split(data[max(0, len(data) - (whole - task.size)) :].decode("utf-8", "replace")))

    def _kept(self, task: _Task) -> Iterator[LogLine]:
        """Yield the lines of a log that the pages never had; raise what its pages were refused for if nobody has it."""
        yield from self._by_preview(task)
        place = self.export() if not task.is_ready else None
        if place is not None:
            store, prefix = place
            name = _FILE.format(job=self.job, task=task.name)
            with suppress(StoreError):
                for item in store.list(prefix):
                    if item.key.endswith(name):
                        yield from self._told(task, split(store.get(item.key).decode("utf-8", "replace")))
        if not task.is_ready and task.refusal is not None:
            raise task.refusal

    def _told(self, task: _Task, lines: Sequence[str]) -> Iterator[LogLine]:
        task.is_ready = True
        now = time.time()
        for text in lines:
            task.lines += 1
            task.size += len(text.encode()) + 1
            found = TAGGED.fullmatch(text.encode()) if self.is_tagged else None
            if found is None:
                yield LogLine(task.node, None, "stderr" if self.is_tagged else "stdout", now, text)
            elif found[3] == END:
                task.has_ended = True
            else:
                yield _tagged(task.node, found[1], found[3], found[4], found[5], found[6])

    # ── ends ────────────────────────────────────────────────────────────────────────────────────────────────────

    def end_of(self, name: str) -> dict[str, Any] | None:
        """Return the status that the agent of a task told at its end, as far as the newest lines hold it."""
        with suppress(BackendError, ValueError):
            for text in self.api.last_lines(self.job, name):
                found = TAGGED.fullmatch(text.encode())
                if found and found[3] == END:
                    status: dict[str, Any] = json.loads(found[6])
                    return status
        return None


def _tagged(node: int, moment: bytes, kind: bytes, number: bytes, mark: bytes, text: bytes) -> LogLine:
    rank = int(number) if kind == b"rank" else None
    return LogLine(node, rank, "stderr" if mark else "stdout", float(moment), text.decode("utf-8", "replace"))


def split(content: str) -> list[str]:
    """Return the lines of a log: a progress bar's `\\r`, or a form feed, ends none."""
    lines = content.split("\n")
    return lines[:-1] if not lines[-1] else lines
