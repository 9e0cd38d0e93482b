"""Lines of pods: each once, whatever the pod's log has lost, the line breaks, or the machine's time zone is."""

from __future__ import annotations

import gzip
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from jobsubmit.backends.models import LogQuery
from jobsubmit.backends.volcano.collected import Collected
from jobsubmit.backends.volcano.pods import Pod
from jobsubmit.errors import BackendError
from jobsubmit.stores.folder import FolderStore

POD = Pod.of(
    {
        "metadata": {"name": "j-worker-0", "annotations": {"volcano.sh/job-retry-count": "0"}},
        "spec": {"nodeName": "m"},
        "status": {"phase": "Running", "containerStatuses": [{"name": "worker", "state": {"running": {}}}]},
    }
)


def said(number: int) -> bytes:
    return b"%d.000 %d [rank 0] line %d" % (number, number, number)


class Api:
    """Stand in for the API server: answers with the lines that `log` holds, kubelet's times before them."""

    def __init__(self, zone: str = "Z") -> None:
        self.zone, self.log, self.breaks_after = zone, [], None  # type: str, list[int], int | None
        self.asked: list[Mapping[str, str]] = []

    @contextmanager
    def lines(self, path: str, query: Mapping[str, str]) -> Iterator[Iterator[bytes]]:
        self.asked.append(dict(query))
        yield self._lines()

    def _lines(self) -> Iterator[bytes]:
        for place, number in enumerate(self.log):
            if place == self.breaks_after:
                raise BackendError("the line broke")
            yield b"2026-11-21T20:00:%02d.5%s " % (number % 60, self.zone.encode()) + said(number)


def collected(api: Api, pods: list[Pod], folder: Path) -> Collected:
    return Collected(api, "default", lambda: list(pods), FolderStore(folder), "logs/j/")  # type: ignore[arg-type]


def store_pieces(folder: Path, *pieces: range) -> None:
    place = folder / "logs" / "j" / "0" / "0"
    place.mkdir(parents=True, exist_ok=True)
    for piece in pieces:
        data = b"".join(said(number) + b"\n" for number in piece)
        (place / f"{piece[0]:012d}.gz").write_bytes(gzip.compress(data))


def texts(found: Any) -> list[int]:
    return [int(line.text.rpartition(" ")[2]) for line in found]


def looks(count: int) -> Any:
    left = [True] * count
    return lambda: bool(left and left.pop())


def test_what_the_pods_log_lost_comes_from_the_store(tmp_path: Path) -> None:
    """The kubelet shows only the newest of its files."""
    api = Api()
    api.log = [8, 9, 10]
    store_pieces(tmp_path, range(1, 4), range(4, 9))
    assert texts(collected(api, [POD], tmp_path).lines(LogQuery(), looks(0))) == list(range(1, 11))


def test_a_pod_that_goes_while_it_is_followed(tmp_path: Path) -> None:
    api, pods = Api(), [POD]
    api.log = [1, 2, 3]
    store_pieces(tmp_path, range(1, 3), range(3, 6))
    reader = collected(api, pods, tmp_path).lines(LogQuery(), looks(2))
    first = [next(reader) for _ in range(3)]
    pods.clear()
    assert texts([*first, *reader]) == [1, 2, 3, 4, 5]


def test_a_line_that_breaks_is_gone_on_with(tmp_path: Path) -> None:
    api = Api()
    api.log, api.breaks_after = list(range(1, 7)), 4
    reader = collected(api, [POD], tmp_path).lines(LogQuery(), looks(2))
    first = [next(reader) for _ in range(4)]
    api.breaks_after = None
    assert texts([*first, *reader]) == [1, 2, 3, 4, 5, 6]


def test_the_end_of_a_pod_is_read_again_when_the_line_broke(tmp_path: Path) -> None:
    api = Api()
    api.log, api.breaks_after = [1, 2, 3], 1
    over = replace(POD, is_over=True)
    reader = collected(api, [over], tmp_path).lines(LogQuery(), looks(2))
    first = next(reader)
    api.breaks_after = None
    assert texts([first, *reader]) == [1, 2, 3]


@pytest.mark.parametrize(("zone", "since"), [("Z", "20:00:02Z"), ("+08:00", "12:00:02Z"), ("-05:30", "01:30:02Z")])
def test_machines_in_any_time_zone(zone: str, since: str, tmp_path: Path) -> None:
    api = Api(zone)
    api.log = [1, 2]
    reader = collected(api, [POD], tmp_path).lines(LogQuery(), looks(1))
    assert texts(reader) == [1, 2]
    assert api.asked[0].get("sinceTime") is None
    assert api.asked[1]["sinceTime"].endswith(since)
