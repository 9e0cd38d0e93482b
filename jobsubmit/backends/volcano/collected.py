"""The lines of a job: from the logs of its pods while these are there, from the pieces in the store afterwards."""

from __future__ import annotations

import gzip
import heapq
import itertools
import re
import tempfile
import time
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from jobsubmit.backends import LogLine, LogQuery, Stream
from jobsubmit.backends.volcano.api import CORE, Kubernetes, RefusedError
from jobsubmit.errors import BackendError, StoreError

if TYPE_CHECKING:
    from jobsubmit.backends.volcano.pods import Pod
    from jobsubmit.stores import ObjectStore

_TAGGED = re.compile(rb"(\d+\.\d+) \[(node|rank) (\d+)(!?)\] (.*)", re.DOTALL)
_CONNECTIONS = 16
_LOOK_SECONDS, _PODS_A_SECOND = 0.5, 64  # so that many pods are asked less often
_MOST_LOOKS_AT_GONE = 20


@dataclass
class _Source:
    """Hold how far the lines of one node in one attempt are read; `stamp` is Kubernetes' time of the last one."""

    attempt: int
    node: int
    pod: Pod | None = None
    count: int = 0
    stamp: bytes = b""
    is_read: bool = False
    looks_when_gone: int = 0
    lines: deque[LogLine] = field(default_factory=deque)


class Collected:
    """Read the lines of one job, each once, with a bounded number of connections; spools to disk what is long."""

    def __init__(
        self, api: Kubernetes, namespace: str, pods: Callable[[], list[Pod]], store: ObjectStore | None, prefix: str
    ) -> None:
        self.api, self.namespace, self.pods = api, namespace, pods
        self.store, self.prefix = store, prefix
        self.sources: dict[tuple[int, int], _Source] = {}

    def lines(self, query: LogQuery, goes_on: Callable[[], bool]) -> Iterator[LogLine]:
        """Yield the lines that a query chooses; while the job goes on wait for more of them."""
        found = (line for line in self._all(goes_on) if query.wants(line))
        if query.tail is None:
            yield from found
            return
        follows = goes_on()
        last = deque((line for line in self._round() if query.wants(line)), maxlen=query.tail)
        yield from last
        if follows:
            yield from found

    def _all(self, goes_on: Callable[[], bool]) -> Iterator[LogLine]:
        while True:
            is_over = not goes_on()
            yield from self._round()
            if is_over:
                return
            time.sleep(max(_LOOK_SECONDS, len(self.sources) / _PODS_A_SECOND))

    def _round(self) -> Iterator[LogLine]:
        """Yield what is new, in order of time."""
        pods = {(pod.attempt, pod.node): pod for pod in self.pods()}
        for key, pod in pods.items():
            self.sources.setdefault(key, _Source(*key)).pod = pod
        if not self.sources or any(key not in pods and not source.is_read for key, source in self.sources.items()):
            for key in self._stored():
                self.sources.setdefault(key, _Source(*key))
        unread = [source for source in self.sources.values() if not source.is_read]
        with tempfile.TemporaryDirectory(prefix="jobsubmit-") as folder, ThreadPoolExecutor(_CONNECTIONS) as pool:
            files = [Path(folder) / str(number) for number in range(len(unread))]
            list(pool.map(lambda pair: self._spool(pair[0], pair[1], pods), zip(unread, files, strict=True)))
            spooled = [_read(file) for file in files if file.exists()]
            yield from heapq.merge(*spooled, key=lambda line: line.time)

    def _spool(self, source: _Source, file: Path, pods: dict[tuple[int, int], Pod]) -> None:
        pod = pods.get((source.attempt, source.node))
        with file.open("wb") as sink:
            if pod is not None and pod.has_started:
                self._from_pod(source, pod, sink.write)
                source.is_read = pod.is_over
            elif pod is None:
                self._from_store(source, sink.write)

    def _from_pod(self, source: _Source, pod: Pod, write: Callable[[bytes], object]) -> None:
        query = {"container": "worker", "timestamps": "true"}
        if source.stamp:
            query["sinceTime"] = source.stamp.decode()[:19] + "Z"
        path = CORE.format(namespace=self.namespace) + f"pods/{pod.name}/log"
        try:
            with self.api.lines(path, query) as lines:
                for line in lines:
                    stamp, _, text = line.partition(b" ")
                    if stamp > source.stamp:
                        source.stamp = stamp
                        self._write(source, text, write)
        except RefusedError:
            return  # it is not there yet, or not any more: the next look tells
        except BackendError:
            return  # a line that breaks is tried again at the next look

    def _from_store(self, source: _Source, write: Callable[[bytes], object]) -> None:
        """Read what a pod that is gone had said after what was read of it."""
        source.looks_when_gone += 1
        if source.looks_when_gone > _MOST_LOOKS_AT_GONE:
            source.is_read = True
        if self.store is None:
            return
        for line in itertools.islice(self._pieces(source), source.count, None):
            self._write(source, line, write)

    def _pieces(self, source: _Source) -> Iterator[bytes]:
        assert self.store
        try:
            for item in self.store.list(f"{self.prefix}{source.attempt}/{source.node}/"):
                yield from gzip.decompress(self.store.get(item.key)).splitlines()
        except (StoreError, OSError, zlib.error, EOFError):
            return

    def _stored(self) -> Iterable[tuple[int, int]]:
        """Return attempt and node of what the store holds."""
        if self.store is None:
            return set()
        try:
            keys = [item.key.removeprefix(self.prefix).split("/") for item in self.store.list(self.prefix)]
        except StoreError:
            return set()
        return {(int(parts[0]), int(parts[1])) for parts in keys}

    def _write(self, source: _Source, text: bytes, write: Callable[[bytes], object]) -> None:
        """Spool a line with its node; what the agent did not say is of the node and of no known time."""
        if _TAGGED.fullmatch(text):
            source.count += 1
            write(b"%d " % source.node + text + b"\n")
        else:
            write(b"%d %.3f [node %d!] " % (source.node, time.time(), source.node) + text + b"\n")


def _read(file: Path) -> Iterator[LogLine]:
    with file.open("rb") as stream:
        for data in stream:
            node, _, text = data.rstrip(b"\n").partition(b" ")
            found = _TAGGED.fullmatch(text)
            assert found
            moment, kind, number, mark, words = found.groups()
            stream_name: Stream = "stderr" if mark else "stdout"
            rank = int(number) if kind == b"rank" else None
            yield LogLine(int(node), rank, stream_name, float(moment), words.decode("utf-8", "replace"))
