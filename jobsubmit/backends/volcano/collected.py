"""The log lines of a job: from its pods while they exist, from the pieces in the store afterwards."""

from __future__ import annotations

import gzip
import heapq
import time
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from jobsubmit.agent.entrypoints.pod import PIECE, STACKS, STATUS, TIMING
from jobsubmit.agent.log_forwarder import TAGGED
from jobsubmit.agent.protocol import NodeStatus, read_status_text
from jobsubmit.backends.models import LogLine, LogQuery, Stream
from jobsubmit.backends.volcano.api import CORE, Kubernetes
from jobsubmit.common.durations import parse_time
from jobsubmit.common.scratch import scratch_folder
from jobsubmit.errors import BackendError, StoreError

if TYPE_CHECKING:
    from jobsubmit.backends.volcano.pods import Pod
    from jobsubmit.stores.protocol import ObjectStore

_CONNECTIONS = 16
_LOOK_SECONDS, _PODS_A_SECOND = 0.5, 64  # so that many pods are asked less often
_MOST_LOOKS_AT_GONE = 10
_NODE_PARTS = 2  # of a key: attempt and node


@dataclass
class _Source:
    """How far the lines of one node in one attempt are read: up to line `count`, which the pod had `since`."""

    attempt: int
    node: int
    count: int = 0
    since: float = 0.0
    is_read: bool = False
    looks_when_gone: int = 0


class Collected:
    """Read the lines of one job, each once, with a bounded number of connections; long logs are spooled to disk."""

    def __init__(
        self, api: Kubernetes, namespace: str, pods: Callable[[], list[Pod]], store: ObjectStore | None, prefix: str
    ) -> None:
        self.api, self.namespace, self.pods = api, namespace, pods
        self.store, self.prefix = store, prefix
        self.sources: dict[tuple[int, int], _Source] = {}
        self.has_looked = False  # into the store

    def lines(self, query: LogQuery, goes_on: Callable[[], bool]) -> Iterator[LogLine]:
        """Yield the lines that a query selects; wait for more while the job runs."""
        found = (line for line in self._all(query, goes_on) if query.wants(line))
        if query.tail is None:
            yield from found
            return
        follows = goes_on()
        last = deque((line for line in self._round(query) if query.wants(line)), maxlen=query.tail)
        yield from last
        if follows:
            yield from found

    def _all(self, query: LogQuery, goes_on: Callable[[], bool]) -> Iterator[LogLine]:
        while True:
            is_over = not goes_on()
            yield from self._round(query)
            if is_over:
                return
            time.sleep(max(_LOOK_SECONDS, len(self.sources) / _PODS_A_SECOND))

    def _round(self, query: LogQuery) -> Iterator[LogLine]:
        """Yield what is new, in order of time."""
        pods = {(pod.attempt, pod.node): pod for pod in self.pods()}
        for key in pods:
            self.sources.setdefault(key, _Source(*key))
        is_gone = any(key not in pods and not source.is_read for key, source in self.sources.items())
        if is_gone or not self.has_looked:  # a look into the store costs money
            self.has_looked = True
            for key in self._stored():
                self.sources.setdefault(key, _Source(*key))
        unread = [s for s in self.sources.values() if not s.is_read and query.node in (None, s.node)]
        with scratch_folder() as folder, ThreadPoolExecutor(_CONNECTIONS) as pool:
            files = [folder / str(number) for number in range(len(unread))]
            list(pool.map(lambda pair: self._spool(pair[0], pair[1], pods), zip(unread, files, strict=True)))
            spooled = [_read(file) for file in files if file.exists()]
            yield from heapq.merge(*spooled, key=lambda line: line.time)

    def _spool(self, source: _Source, file: Path, pods: dict[tuple[int, int], Pod]) -> None:
        pod = pods.get((source.attempt, source.node))
        with file.open("wb") as sink:
            if pod is None:
                source.looks_when_gone += 1
                source.is_read = source.looks_when_gone > _MOST_LOOKS_AT_GONE
                self._from_store(source, sink.write)
            elif pod.has_started:
                is_whole = self._from_pod(source, pod, sink.write)
                source.is_read = is_whole and pod.is_over
                if not is_whole and pod.lost[0]:
                    self._from_store(source, sink.write)

    def _from_pod(self, source: _Source, pod: Pod, write: Callable[[bytes], object]) -> bool:
        """Read what the pod's log has more; return whether that was all, for now."""
        query = {"container": "worker", "timestamps": "true"}
        if source.since:
            query["sinceTime"] = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(source.since))
        path = CORE.format(namespace=self.namespace) + f"pods/{pod.name}/log"
        try:
            with self.api.lines(path, query) as lines:
                for line in lines:
                    stamp, _, text = line.partition(b" ")
                    moment = parse_time(stamp.decode("ascii", "replace")) or 0.0  # in whichever zone its machine is
                    if not TAGGED.fullmatch(text) and moment <= source.since:
                        continue  # it has no number to know it by
                    source.since = max(source.since, moment)
                    self._take(source, text, moment, write)
        except BackendError:
            return False  # it is not there yet, or not any more, or the connection broke: the next read shows
        return True

    def _take(self, source: _Source, text: bytes, moment: float, write: Callable[[bytes], object]) -> None:
        """Spool a line that was not read before, and first what the pod's log does not hold any more."""
        found = TAGGED.fullmatch(text)
        if found is None:
            write(b"%d %.3f 0 [node %d!] " % (source.node, moment, source.node) + text + b"\n")
            return
        number = int(found[2])
        if number > source.count + 1:
            self._from_store(source, write, before=number)
        if number > source.count:
            source.count = number
            write(b"%d " % source.node + text + b"\n")

    def _from_store(self, source: _Source, write: Callable[[bytes], object], before: int | None = None) -> None:
        """Spool the lines that are only in the store, up to a number if one is given."""
        for text in self._pieces(source):
            found = TAGGED.fullmatch(text)
            number = int(found[2]) if found else 0
            if before is not None and number >= before:
                return
            if number > source.count:
                source.count = number
                write(b"%d " % source.node + text + b"\n")

    def _pieces(self, source: _Source) -> Iterator[bytes]:
        if self.store is None:
            return
        try:
            keys = [item.key for item in self.store.list(f"{self.prefix}{source.attempt}/{source.node}/")]
            keys = [key for key in keys if key.endswith(PIECE)]
            for key, following in zip(keys, [*keys[1:], ""], strict=True):
                if not following or _first_of(following) > source.count + 1:
                    yield from gzip.decompress(self.store.get(key)).splitlines()
        except (StoreError, OSError, ValueError, zlib.error, EOFError):
            return

    def _stored(self) -> Iterable[tuple[int, int]]:
        """Return attempt and node of what the store holds."""
        if self.store is None:
            return set()
        try:
            keys = [item.key.removeprefix(self.prefix).split("/") for item in self.store.list(self.prefix)]
        except StoreError:
            return set()
        return {(int(parts[0]), int(parts[1])) for parts in keys if len(parts) > _NODE_PARTS}

    def timings(self) -> Iterator[bytes]:
        """Yield the timing files that the pods of all attempts put into the store."""
        return (data for _, data in self._stored_files(TIMING))

    def stacks(self) -> dict[int, bytes]:
        """Return the stacks that the pods put into the store, by rank: those of the last attempt in which it hung."""
        found = {}
        for key, text in self._stored_files(STACKS):
            with suppress(ValueError):
                found[int(key.rpartition("/")[2].removesuffix(STACKS))] = text
        return found

    def _stored_files(self, end: str) -> Iterator[tuple[str, bytes]]:
        """Yield the key and the content of the compressed files whose names have an end."""
        if self.store is None:
            return
        for item in list(self.store.list(self.prefix)):
            if item.key.endswith(end):
                with suppress(StoreError, OSError, ValueError, zlib.error, EOFError):
                    yield item.key, gzip.decompress(self.store.get(item.key))

    def statuses(self, attempt: int, nodes: Iterable[int]) -> dict[int, NodeStatus]:
        """Return how nodes ended whose pods are gone, if they stored their status."""
        if self.store is None:
            return {}
        found = {}
        for node in nodes:
            with suppress(StoreError, ValueError):
                found[node] = read_status_text(self.store.get(f"{self.prefix}{attempt}/{node}/{STATUS}"))
        return found


def _first_of(key: str) -> int:
    """Return the number of the first line of a piece."""
    return int(key.rpartition("/")[2].removesuffix(PIECE))


def _read(file: Path) -> Iterator[LogLine]:
    with file.open("rb") as stream:
        for data in stream:
            node, _, text = data.rstrip(b"\n").partition(b" ")
            found = TAGGED.fullmatch(text)
            assert found
            moment, _, kind, number, mark, words = found.groups()
            stream_name: Stream = "stderr" if mark else "stdout"
            rank = int(number) if kind == b"rank" else None
            yield LogLine(int(node), rank, stream_name, float(moment), words.decode("utf-8", "replace"))
