"""The log lines of a job, as its hosts send them."""

from __future__ import annotations

import heapq
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress

from jobsubmit.agent.log_forwarder import TAGGED
from jobsubmit.backends.models import LogLine, LogQuery, Stream
from jobsubmit.backends.ssh.connection import ask, open_stream, reported_error
from jobsubmit.errors import BackendError

_ANSWER_SECONDS = 5.0
_HELD_SECONDS = 0.5  # a line waits that long for an earlier one of another host
_AGAIN_SECONDS = 2.0
_LOOK_SECONDS = 0.1
_MOST_QUEUED = 20_000


class HostLines:
    """The lines that a query selects on one host, each once, even if the connection breaks meanwhile."""

    def __init__(self, host: str, index: int, root: str, job_id: str, query: LogQuery) -> None:
        self.host, self.index, self.root, self.job_id, self.query = host, index, root, job_id, query
        self.after = (0.0, 0)  # the time of the last line, and how many lines of that time were read
        self.close: Callable[[], None] = lambda: None

    def read(self, *, follow: bool) -> Iterator[LogLine]:
        """Yield the lines; with `follow`, until the agent has ended. Raises BackendError."""
        question = self._question(follow=follow)
        stream, (document, _) = open_stream(self.host, self.root, "lines", question, _ANSWER_SECONDS)
        self.close = stream.process.kill
        try:
            if document.get("needs_agent"):  # of this version
                ask(self.host, self.root, "missing", {"names": []})
                yield from self.read(follow=follow)
                return
            if "error" in document:
                raise reported_error(self.host, document)
            for data in stream.lines():
                line = self._parse(data)
                if line is not None:
                    self.after = (line.time, self.after[1] + 1 if line.time == self.after[0] else 1)
                    yield line
        finally:
            stream.close()

    def _question(self, *, follow: bool) -> dict[str, object]:
        query = self.query
        fields = {"node": query.node, "rank": query.rank, "stream": query.stream, "since": query.since}
        is_first = self.after == (0.0, 0)
        grep = query.grep.pattern if query.grep else None
        chosen = {**fields, "tail": query.tail if is_first else None, "grep": grep, "after": self.after}
        return {"job_id": self.job_id, "index": self.index, "query": chosen, "follow": follow}

    def _parse(self, data: bytes) -> LogLine | None:
        found = TAGGED.fullmatch(data[:-1]) if data.endswith(b"\n") else None  # the connection broke within a line
        if found is None:
            return None
        moment, _, kind, number, mark, text = found.groups()
        stream: Stream = "stderr" if mark else "stdout"
        is_rank = kind == b"rank"
        node = self.index if is_rank else int(number)
        return LogLine(node, int(number) if is_rank else None, stream, float(moment), text.decode("utf-8", "replace"))


def read(sources: list[HostLines], query: LogQuery) -> Iterator[LogLine]:
    """Yield what the hosts have now, in order of time; a line says so where a host does not answer."""
    problems: list[BackendError] = []

    def tried(source: HostLines) -> Iterator[LogLine]:
        try:
            yield from source.read(follow=False)
        except BackendError as error:
            problems.append(error)
            yield _gap(source, error)

    lines = heapq.merge(*map(tried, sources), key=lambda line: line.time)
    chosen = lines if query.tail is None else iter(deque(lines, maxlen=query.tail))
    for line in chosen:
        if len(problems) == len(sources):
            raise problems[0]
        yield line


def _gap(source: HostLines, error: BackendError) -> LogLine:
    text = f"jobsubmit: the lines of {source.host} are missing here: {error.message}"
    return LogLine(source.index, None, "stderr", time.time(), text)


def follow(sources: list[HostLines], goes_on: Callable[[], bool]) -> Iterator[LogLine]:
    """Yield the lines of running agents as they come, in order of time as far as that is known."""
    arrived: queue.Queue[tuple[int, LogLine | Exception | None]] = queue.Queue(_MOST_QUEUED)
    over = threading.Event()
    for number, source in enumerate(sources):
        threading.Thread(target=_pump, args=(number, source, arrived, over, goes_on), daemon=True).start()
    waiting: list[deque[tuple[float, LogLine]]] = [deque() for _ in sources]
    running = set(range(len(sources)))
    try:
        while running or any(waiting):
            with suppress(queue.Empty):
                while True:
                    number, line = arrived.get(timeout=0 if any(waiting) else _LOOK_SECONDS)
                    if line is None:
                        running.discard(number)
                    elif isinstance(line, Exception):
                        raise line
                    else:
                        waiting[number].append((time.monotonic(), line))
                    if len(waiting[number]) > _MOST_QUEUED:
                        break
            yield from _ripe(waiting, running)
            if any(waiting):
                time.sleep(_LOOK_SECONDS)
    finally:
        over.set()
        for source in sources:
            source.close()


def _ripe(waiting: list[deque[tuple[float, LogLine]]], running: set[int]) -> Iterator[LogLine]:
    """Yield the lines that no host can precede any more, or that have waited long enough."""
    while True:
        heads = [(lines[0][1].time, number) for number, lines in enumerate(waiting) if lines]
        if not heads:
            return
        _, number = min(heads)
        since, line = waiting[number][0]
        all_have_one = all(waiting[other] for other in running)
        if not all_have_one and time.monotonic() - since < _HELD_SECONDS:
            return
        waiting[number].popleft()
        yield line


def _pump(
    number: int,
    source: HostLines,
    arrived: queue.Queue[tuple[int, LogLine | Exception | None]],
    over: threading.Event,
    goes_on: Callable[[], bool],
) -> None:
    """Read the lines of one host to the end; where the connection breaks, go on after it as long as the job runs."""
    try:
        for line in _read_again(source, over, goes_on):
            arrived.put((number, line))
            if over.is_set():
                return
    except Exception as error:
        arrived.put((number, error))
    arrived.put((number, None))


def _read_again(source: HostLines, over: threading.Event, goes_on: Callable[[], bool]) -> Iterator[LogLine]:
    last: BackendError | None = None
    while not over.is_set():
        try:
            for line in source.read(follow=True):
                last = None
                yield line
            return
        except BackendError as error:
            if over.is_set():
                return
            if not error.may_pass or (last is not None and not goes_on()):
                yield _gap(source, error)
                return
            last = error
            over.wait(_AGAIN_SECONDS)
