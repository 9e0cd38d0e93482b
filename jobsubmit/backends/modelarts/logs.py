"""The log lines of a job's tasks, each once: by pages while the service has them, else by its preview or export."""

from __future__ import annotations

import heapq
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias, TypeVar

from jobsubmit.agent.log_forwarder import END, TAGGED
from jobsubmit.agent.protocol import NodeStatus, read_status_text
from jobsubmit.backends.modelarts.client import MOST_LINES, ModelArts, RefusedError
from jobsubmit.backends.modelarts.states import node_of
from jobsubmit.backends.models import LogLine, LogQuery
from jobsubmit.backends.shared.polling import TolerantPoll
from jobsubmit.errors import BackendError, StoreError

if TYPE_CHECKING:
    from jobsubmit.stores.protocol import ObjectStore

    Export: TypeAlias = Callable[[], tuple[ObjectStore, str] | None]

T = TypeVar("T")

_LOOK_SECONDS = 2.0
_LATE_SECONDS = 30.0  # so long after its end a job's log may still grow
_MOST_QUIET_LOOKS = 3
_LONGEST_PREVIEW = 5 << 20  # bytes (platform documentation)
_LAST_WORDS = 200  # lines in which a failure is looked for
_FILE = "modelarts-job-{job}-{task}.log"  # below log_export_path (platform documentation, training logs)


@dataclass(frozen=True)
class Look:
    """The state of a job at one poll: its tasks, whether to wait for more lines, and when it ended, if it has."""

    tasks: Sequence[str]
    goes_on: bool
    ended: float | None


@dataclass
class _Task:
    """How far the log of a task is read, and how."""

    name: str
    count: int = 0  # of lines
    size: int = 0  # in bytes
    last: tuple[float, int] = (0.0, 0)  # time and number of the last tagged line
    has_ended: bool = False  # its agent said so, after all other lines
    refusal: RefusedError | None = None  # of its pages

    @property
    def node(self) -> int:
        return node_of(self.name)


class Logs:
    """Read the logs of one job; `is_tagged` if the agent tags its lines, `export` returns where its log is stored."""

    def __init__(self, api: ModelArts, job: str, *, is_tagged: bool, export: Export = lambda: None) -> None:
        self.api, self.job, self.is_tagged, self.export = api, job, is_tagged, export
        self.tasks: dict[str, _Task] = {}
        self.poll = TolerantPoll(has_answered=True)

    def lines(self, query: LogQuery, look: Callable[[], Look]) -> Iterator[LogLine]:
        """Yield the lines that a query selects, while `look` reports that more may come."""
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
        quiet, ended = 0, None
        while True:
            seen, before = look(), self._count()
            ended = ended or seen.ended
            yield from self._round(query, seen)
            quiet = 0 if seen.goes_on or self._count() > before else quiet + 1
            if not seen.goes_on and self._is_whole(query, ended, quiet):
                break
            time.sleep(_LOOK_SECONDS)
        if seen.ended is not None:
            for task in self._asked(query):
                yield from self._kept(task)

    def _asked(self, query: LogQuery) -> list[_Task]:
        """Return the tasks that can hold a line of the chosen; without tags a task has no ranks, and one stream."""
        is_for_tags = query.rank is not None or query.stream == "stderr"
        if is_for_tags and not self.is_tagged:
            return []
        return [task for task in self.tasks.values() if query.node in (None, task.node)]

    def _count(self) -> int:
        return sum(task.count for task in self.tasks.values())

    def _is_whole(self, query: LogQuery, ended: float | None, quiet: int) -> bool:
        """Return whether no more lines will come; of a job that goes on only those so far are wanted."""
        if ended is None or time.time() - ended > _LATE_SECONDS:
            return True
        is_settled = quiet >= _MOST_QUIET_LOOKS and not self.is_tagged
        return all(task.has_ended or (is_settled and task.count) for task in self._asked(query))

    def _round(self, query: LogQuery, seen: Look) -> Iterator[LogLine]:
        """Yield what is new, in order of time."""
        for name in seen.tasks:
            self.tasks.setdefault(name, _Task(name))
        yield from heapq.merge(*(self._of(task, seen) for task in self._asked(query)), key=lambda line: line.time)

    def _of(self, task: _Task, seen: Look) -> Iterator[LogLine]:
        """Yield what a task's log has more."""
        if task.refusal is None:
            try:
                yield from self._by_pages(task, seen)
            except RefusedError as refusal:
                if refusal.may_pass:
                    raise
                task.refusal = refusal
        if task.refusal is not None and seen.ended is None:
            yield from self._by_preview(task, is_over=False)

    def _by_pages(self, task: _Task, seen: Look) -> Iterator[LogLine]:
        """Yield the rest page by page; a page may begin with lines that were read, for it is asked by number."""
        while True:
            page = self._asking(seen)(lambda: self.api.log_page(self.job, task.name, task.count))
            if page is None:
                return
            end, content = page
            lines = split(content)
            new = lines[max(0, len(lines) - (end - task.count)) :] if end > task.count else []
            yield from self._told(task, new)
            if not new or (len(lines) < MOST_LINES and seen.ended is None):
                return

    def _asking(self, seen: Look) -> Callable[[Callable[[], T]], T | None]:
        """Return how to ask: while there is a next look, a service that does not answer for once is tolerated."""
        return self.poll.ask if seen.goes_on else lambda question: question()

    def _by_preview(self, task: _Task, *, is_over: bool) -> Iterator[LogLine]:
        """Yield the rest of the newest megabytes; say so where they do not reach back to what was read before."""
        try:
            found = self.api.log_preview(self.job, task.name)
        except RefusedError:
            found = None  # it is not to be had this way, either
        if found is None:
            return
        content, whole = found
        data = _bytes(content)
        skipped = task.size - (whole - len(data))  # of these bytes
        if not is_over:  # its last line is still being written
            data = data[: data.rfind(b"\n") + 1]
        lines = split(data.decode("utf-8", "replace"))
        if whole <= _LONGEST_PREVIEW:
            yield from self._told(task, lines[task.count :])
        elif self.is_tagged:
            yield from self._told(task, [line for line in lines[1:] if (_place(line) or task.last) > task.last])
        elif skipped >= 0:
            yield from self._told(task, split(data[skipped:].decode("utf-8", "replace")))
        else:
            text = f"jobsubmit: {-skipped:,} bytes of this log are not in its preview, and were not read"
            yield LogLine(task.node, None, "stdout", time.time(), text)
            task.size += len(_bytes(lines[0])) + 1 - skipped
            yield from self._told(task, lines[1:])

    def _kept(self, task: _Task) -> Iterator[LogLine]:
        """Yield what the pages never had, by the export, else the preview; raise what they were refused for if neither
        has anything."""
        if task.count and task.refusal is None:
            return
        place = self.export() if not task.count else None
        if place is not None:
            store, prefix = place
            name = _FILE.format(job=self.job, task=task.name)
            with suppress(StoreError):
                for item in store.list(prefix):
                    if item.key.endswith(name):
                        yield from self._told(task, split(store.get(item.key).decode("utf-8", "replace")))
                        return
        yield from self._by_preview(task, is_over=True)
        if not task.count and task.refusal is not None:
            raise task.refusal

    def _told(self, task: _Task, lines: Sequence[str]) -> Iterator[LogLine]:
        now = time.time()
        for text in lines:
            data = _bytes(text)
            task.count += 1
            task.size += len(data) + 1
            found = TAGGED.fullmatch(data) if self.is_tagged else None
            task.has_ended = found is not None and found[3] == END  # a job that is started again goes on after it
            if found is None:
                yield LogLine(task.node, None, "stderr" if self.is_tagged else "stdout", now, text)
                continue
            task.last = float(found[1]), int(found[2])
            if not task.has_ended:
                yield _tagged(task.node, found[1], found[3], found[4], found[5], found[6])

    # ── ends ────────────────────────────────────────────────────────────────────────────────────────────────────

    def end_of(self, name: str) -> NodeStatus | None:
        """Return the status that the agent of a task wrote as its last line; None if other lines follow it."""
        with suppress(BackendError, ValueError):
            lines = [found for text in self.api.last_lines(self.job, name) if (found := TAGGED.fullmatch(_bytes(text)))]
            last = max(lines, key=lambda found: (float(found[1]), found[3] == END), default=None)
            if last and last[3] == END:
                return read_status_text(last[6])
        return None

    def last_words(self, node: int, tasks: Sequence[str]) -> list[str]:
        """Return the newest lines of a node's log that can be read."""
        name = next((name for name in tasks if node_of(name) == node), None)
        if name is None:
            return []
        with suppress(BackendError):
            if found := self.api.log_preview(self.job, name):
                return [self._text(line) for line in split(found[0])[-_LAST_WORDS:]]
        with suppress(BackendError):
            look = Look([name], goes_on=False, ended=None)
            return [line.text for line in self.lines(LogQuery(tail=_LAST_WORDS), lambda: look)]
        return []

    def _text(self, line: str) -> str:
        found = TAGGED.fullmatch(_bytes(line)) if self.is_tagged else None
        return found[6].decode("utf-8", "replace") if found else line


def _place(line: str) -> tuple[float, int] | None:
    found = TAGGED.fullmatch(_bytes(line))
    return (float(found[1]), int(found[2])) if found else None


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "replace")


def _tagged(node: int, moment: bytes, kind: bytes, number: bytes, mark: bytes, text: bytes) -> LogLine:
    rank = int(number) if kind == b"rank" else None
    return LogLine(node, rank, "stderr" if mark else "stdout", float(moment), text.decode("utf-8", "replace"))


def split(content: str) -> list[str]:
    """Return the lines of a log; a `\\r` of a progress bar, or a form feed, does not end a line."""
    lines = content.split("\n")
    return lines[:-1] if not lines[-1] else lines
