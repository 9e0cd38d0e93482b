"""Lines of logs that others write: each once, in order of time, whole, whatever they hold."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from jobsubmit.agent import events
from jobsubmit.agent.job_directory import JobDirectory
from jobsubmit.agent.logs.reading import LineReader, last_lines
from jobsubmit.agent.logs.writing import IndexWriter
from jobsubmit.backends.models import LogQuery
from jobsubmit.backends.shared.log_reader import read_lines

SOURCES = [(0, None, "stdout"), (0, 0, "stdout"), (0, 0, "stderr"), (1, 1, "stdout")]


class Job:
    """A job's log folder with a writer of its index."""

    def __init__(self, folder: Path, limit: int = 1 << 30) -> None:
        (folder / "logs").mkdir()
        self.folder, self.index = folder, IndexWriter(str(folder), limit)

    def write(
        self, node: int, rank: int | None, text: str | bytes, stream: str = "stdout", *, note: bool = True
    ) -> None:
        with Path(JobDirectory(str(self.folder)).log_of(node, rank, stream)).open("ab") as log:
            log.write(text if isinstance(text, bytes) else text.encode())
        if note:
            self.index.note(SOURCES)

    def read(self, query: LogQuery | None = None) -> list[str]:
        return [line.text for line in read_lines(lambda: [self.folder], query or LogQuery(), lambda: False)]


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return Job(tmp_path)


@pytest.fixture
def reader(job: Job) -> Iterator[LineReader]:
    found = LineReader(str(job.folder))
    yield found
    found.close()


def test_lines_of_several_files_come_in_the_order_of_time(job: Job) -> None:
    job.write(0, 0, "a\n")
    job.write(1, 1, "b\nc\n")
    job.write(0, None, "d\n")
    job.write(0, 0, "e\n", "stderr")
    job.write(0, 0, "f\n")
    assert job.read() == ["a", "b", "c", "d", "e", "f"]
    found = list(read_lines(lambda: [job.folder], LogQuery(), lambda: False))
    assert [(line.node, line.rank, line.stream) for line in found[3:5]] == [(0, None, "stdout"), (0, 0, "stderr")]
    assert all(abs(line.time - time.time()) < 5 for line in found)


def test_choosing(job: Job) -> None:
    job.write(0, 0, "zero\n")
    job.write(0, 0, "zero err\n", "stderr")
    job.write(1, 1, "one\n")
    job.write(0, None, "node\n")
    assert job.read(LogQuery(node=0)) == ["zero", "zero err", "node"]
    assert job.read(LogQuery(rank=1)) == ["one"]
    assert job.read(LogQuery(stream="stderr")) == ["zero err"]
    assert job.read(LogQuery(rank=7)) == []


def test_since_begins_with_whole_lines(job: Job) -> None:
    job.write(0, 0, "old\nbegun ")
    time.sleep(0.02)
    moment = time.time()
    job.write(0, 0, "and ended\nnew\n")
    assert job.read(LogQuery(since=moment)) == ["begun and ended", "new"]


def test_tail_is_the_last_lines_of_all_or_of_the_chosen(job: Job) -> None:
    for number in range(3000):
        job.write(0, 0, f"line {number} {'x' * 60}\n", note=number % 7 == 0)
        if number % 1000 == 0:
            job.write(1, 1, f"other {number}\n")
    job.index.note(SOURCES)
    lines = [line.split(" x")[0] for line in job.read(LogQuery(tail=5, rank=0))]
    assert lines == [f"line {number}" for number in range(2995, 3000)]
    assert job.read(LogQuery(tail=0)) == []
    assert job.read(LogQuery(tail=2, rank=1)) == ["other 1000", "other 2000"]
    assert len(job.read(LogQuery(tail=99999))) == 3003
    job.write(0, 0, "unfinished")
    job.write(1, 1, "unfinished too")
    assert job.read(LogQuery(tail=1)) == ["unfinished too"]


def test_an_unfinished_last_line_comes_at_the_end_and_once(job: Job, reader: LineReader) -> None:
    job.write(0, 0, "whole\npart")
    assert [line for *_, line in reader.new()] == [b"whole"]
    assert [line for *_, line in reader.new()] == []
    job.write(0, 0, "ly\nrest")
    assert [line for *_, line in reader.new()] == [b"partly"]
    assert [line for *_, line in reader.rest()] == [b"rest"]
    assert [line for *_, line in reader.rest()] == []


def test_what_was_never_noted_is_read_at_the_end(job: Job) -> None:
    job.write(0, 0, "noted\n")
    job.write(0, 0, "written after the supervisor was killed\n", note=False)
    job.write(1, 1, "so was this\n", note=False)
    events.append_event(str(job.folder), "rank_start", rank=1, node=1, pid=1)
    found = list(read_lines(lambda: [job.folder], LogQuery(), lambda: False))
    assert [line.text for line in found] == ["noted", "written after the supervisor was killed", "so was this"]
    assert found[-1].node == 1


def test_progress_bars_are_shown_as_a_terminal_would(job: Job) -> None:
    job.write(0, 0, "\r 10%\r 20%\r 30%\ndone\r\n")
    assert job.read() == [" 30%", "done"]


def test_a_progress_bar_that_never_ends_its_line_is_shown_now_and_then(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1000.0
    monkeypatch.setattr(time, "time", lambda: now)
    for percent in range(100):
        now += 0.25
        job.write(0, 0, f"\r{percent:3}%")
    shown = job.read()
    assert 20 <= len(shown) <= 27
    assert shown[-1] == " 99%"


def test_binary_bytes_and_very_long_lines_survive(job: Job) -> None:
    long = "y" * 3_000_000
    for start in range(0, len(long), 100_000):
        job.write(0, 0, long[start : start + 100_000])
    job.write(0, 0, b"\nbad \xff\xfe bytes \x00 here\n")
    assert job.read() == [long, "bad \ufffd\ufffd bytes \x00 here"]


def test_following_neither_misses_nor_doubles(job: Job, reader: LineReader) -> None:
    seen: list[bytes] = []
    for number in range(2000):
        job.write(0, 0, f"{number}\n"[: 1 + number % 3], note=False)
        job.write(0, 0, f"{number}\n"[1 + number % 3 :], note=number % 3 == 0)
        if number % 17 == 0:
            seen += [line for *_, line in reader.new()]
    seen += [line for *_, line in reader.rest()]
    assert seen == [str(number).encode() for number in range(2000)]


def test_a_rank_that_moves_to_another_node_keeps_one_log(job: Job) -> None:
    job.write(0, 0, "on node 0\n")
    job.write(1, 0, "on node 1\n", note=False)
    job.index.note([(1, 0, "stdout")])
    found = list(read_lines(lambda: [job.folder], LogQuery(), lambda: False))
    assert [(line.node, line.text) for line in found] == [(0, "on node 0"), (1, "on node 1")]
    assert job.read(LogQuery(node=1)) == ["on node 1"]


def test_a_log_keeps_its_newest_part_and_says_so(tmp_path: Path) -> None:
    job = Job(tmp_path, limit=1 << 20)
    log = Path(JobDirectory(str(tmp_path)).log_of(0, 0, "stdout"))
    for number in range(3000):
        job.write(0, 0, f"{number:06} {'z' * 992}\n")
    assert log.stat().st_size == 3_000_000
    assert log.stat().st_blocks * 512 < 1.2 * (1 << 20)
    lines = job.read()
    assert lines[0].startswith("jobsubmit: ") and "bytes are missing here" in lines[0]
    numbers = [int(line[:6]) for line in lines[1:]]
    assert numbers == list(range(numbers[0], 3000))
    assert 500 <= len(numbers) <= 1100
    assert job.read(LogQuery(tail=3))[-1].startswith("002999")


def test_the_last_lines_of_a_rank_are_those_of_both_streams(job: Job) -> None:
    job.write(0, 0, "1\n\n2\n")
    job.write(0, 0, "3\n", "stderr")
    job.write(1, 1, "other\n")
    job.write(0, None, "node\n")
    assert last_lines(str(job.folder), 0, 0, 2) == ["2", "3"]
    assert last_lines(str(job.folder), 0, None, 5) == ["node"]
    assert last_lines(str(job.folder), 3, 9, 5) == []


def test_a_burst_is_read_at_a_decent_rate(job: Job, reader: LineReader) -> None:
    line = b"x" * 99 + b"\n"
    for _ in range(10):
        job.write(0, 0, line * 50_000)
    begun = time.process_time()
    count = sum(1 for _ in reader.new())
    assert count == 500_000
    assert 50e6 / (time.process_time() - begun) > 10e6
