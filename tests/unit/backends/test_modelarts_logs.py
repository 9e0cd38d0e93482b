"""The lines of a job on ModelArts, read from a service that gives them in pieces: each once, and whose they are."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from jobsubmit.backends.modelarts import logs as module
from jobsubmit.backends.modelarts.client import ModelArts, RefusedError
from jobsubmit.backends.modelarts.logs import Logs, Look
from jobsubmit.backends.models import EVERYTHING, LogLine, LogQuery

LONG_AGO = 1.0
END = '{"state":"FAILED","reason":"EXIT_CODE","message":"m","failure":null}'


@dataclass
class Service:
    """Answer as the service would; `logs` holds the text of each task's log, `overlap` how many lines come twice."""

    logs: dict[str, str] = field(default_factory=dict)
    overlap: int = 0
    has_pages: bool = True
    preview: int = 5 << 20

    def log_page(self, job: str, task: str, after: int) -> tuple[int, str] | None:
        if not self.has_pages:
            raise RefusedError(403, "no", "ask")
        lines = self.logs[task].split("\n")[:-1]
        first = max(0, after - self.overlap)
        page = lines[first : first + 500]
        return first + len(page), "".join(line + "\n" for line in page)

    def log_preview(self, job: str, task: str) -> tuple[str, int] | None:
        data = self.logs[task].encode()
        return data[-self.preview :].decode("utf-8", "replace"), len(data)

    def last_lines(self, job: str, task: str) -> list[str]:
        return self.logs[task].split("\n")[:-1][::-1][:50]


def of(service: Service, *, is_tagged: bool = False) -> Logs:
    return Logs(cast("ModelArts", service), "job", is_tagged=is_tagged)


def look(service: Service, *, goes_on: bool = False) -> Look:
    return Look(list(service.logs), goes_on, None if goes_on else LONG_AGO)


def read(service: Service, query: LogQuery = EVERYTHING, *, is_tagged: bool = False) -> list[LogLine]:
    return list(of(service, is_tagged=is_tagged).lines(query, lambda: look(service)))


@pytest.fixture(autouse=True)
def no_sleep(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let looks follow each other at once."""
    monkeypatch.setattr(module, "_LOOK_SECONDS", 0.0)


def tag(moment: int, number: int, whose: str, text: str) -> str:
    return f"{moment}.000 {number} [{whose}] {text}\n"


TWO = {
    "worker-0": tag(1, 1, "node 0", "starts") + tag(3, 2, "rank 0", "zero") + tag(9, 3, "end 0", END),
    "worker-1": tag(2, 1, "node 1!", "warns") + tag(4, 2, "rank 3!", "three") + tag(8, 3, "end 1", END),
}


def test_tags_say_whose_a_line_is_and_when_it_was_written() -> None:
    told = [(line.time, line.node, line.rank, line.stream, line.text) for line in read(Service(TWO), is_tagged=True)]
    assert told == [
        (1.0, 0, None, "stdout", "starts"),
        (2.0, 1, None, "stderr", "warns"),
        (3.0, 0, 0, "stdout", "zero"),
        (4.0, 1, 3, "stderr", "three"),
    ]
    assert [line.text for line in read(Service(TWO), LogQuery(rank=3), is_tagged=True)] == ["three"]
    assert [line.text for line in read(Service(TWO), LogQuery(tail=1), is_tagged=True)] == ["three"]


def test_without_tags_a_line_that_looks_like_one_is_a_line() -> None:
    assert read(Service({"worker-0": TWO["worker-0"]}))[1].text == "3.000 2 [rank 0] zero"
    assert read(Service(TWO), LogQuery(rank=0)) == []


@pytest.mark.parametrize("overlap", [0, 1, 499])
def test_no_line_is_lost_or_doubled(overlap: int) -> None:
    text = "".join(f"line {number}\n" for number in range(1700))
    found = [line.text for line in read(Service({"worker-0": text}, overlap))]
    assert found == [f"line {number}" for number in range(1700)]


def test_what_is_no_newline_ends_no_line() -> None:
    texts = ["10%\r20%\r30%", "a\x0cb", "c\x0bd", "e\x85f", "g\u2028h", "", "last"]
    assert [line.text for line in read(Service({"worker-0": "".join(text + "\n" for text in texts)}))] == texts


def follow(service: Service, parts: list[str], *, is_tagged: bool) -> Iterator[LogLine]:
    """Follow a log that grows by one part a look."""

    def grown() -> Look:
        service.logs["worker-0"] = service.logs.get("worker-0", "") + (parts.pop(0) if parts else "")
        return look(service, goes_on=bool(parts))

    return of(service, is_tagged=is_tagged).lines(EVERYTHING, grown)


@pytest.mark.parametrize("is_tagged", [True, False])
def test_a_preview_that_reaches_back_shows_each_line_once(*, is_tagged: bool) -> None:
    whole = "".join(tag(number, number, "rank 0", f"é {number}") for number in range(1, 9))
    cuts = (0, 50, 90, 91, 170, len(whole))
    parts = [whole[start:end] for start, end in itertools.pairwise(cuts)]
    found = [line.text for line in follow(Service(has_pages=False), parts, is_tagged=is_tagged)]
    assert [text[-3:] for text in found] == [f"é {number}" for number in range(1, 9)]


@pytest.mark.parametrize("is_tagged", [True, False])
def test_a_preview_that_does_not_reach_back_loses_what_is_not_in_it_and_doubles_nothing(
    monkeypatch: pytest.MonkeyPatch, *, is_tagged: bool
) -> None:
    monkeypatch.setattr(module, "_LONGEST_PREVIEW", 100)
    spans = itertools.pairwise((10, 14, 18, 19, 20, 26))
    parts = ["".join(tag(n, n, "rank 0", f"line {n}") for n in range(*span)) for span in spans]
    service = Service(has_pages=False, preview=100)
    found = [line.text for line in follow(service, parts, is_tagged=is_tagged)]
    numbers = [int(text.rpartition(" ")[2]) for text in found if "line" in text]
    assert numbers == sorted(set(numbers))
    assert numbers[-1] == 25
    assert is_tagged or any("bytes of this log are not in its preview" in text for text in found)


def test_a_task_that_is_started_again_has_not_ended() -> None:
    again = tag(10, 1, "rank 0", "second")
    late = tag(12, 2, "rank 0", "late") + tag(13, 3, "end 0", END)
    service = Service({"worker-0": TWO["worker-0"] + again})
    looks = iter([look(service), None, None])

    def now() -> Look:
        if next(looks) is None and not service.logs["worker-0"].endswith(late):
            service.logs["worker-0"] += late
        return Look(["worker-0"], goes_on=False, ended=time.time())

    assert [line.text for line in of(service, is_tagged=True).lines(EVERYTHING, now)][-2:] == ["second", "late"]


@pytest.mark.parametrize(
    ("more", "is_there"), [("", True), ("the platform's own word\n", True), (tag(10, 1, "rank 0", "again"), False)]
)
def test_an_end_counts_as_long_as_it_is_the_last_word(more: str, *, is_there: bool) -> None:
    service = Service({"worker-0": TWO["worker-0"] + more})
    end: Any = of(service, is_tagged=True).end_of("worker-0")
    assert (end is not None and end["state"] == "FAILED") is is_there


def test_an_end_that_was_cut_is_none() -> None:
    cut = TWO["worker-0"][:-10] + "\n"
    assert of(Service({"worker-0": cut}), is_tagged=True).end_of("worker-0") is None
