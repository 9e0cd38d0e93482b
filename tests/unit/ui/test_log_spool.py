"""The copy of a log that a page reads from: each line has a number, and is there once."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from jobsubmit.backends.models import LogLine
from jobsubmit.ui import log_spool
from jobsubmit.ui.log_spool import LogSpool, Selection


@pytest.fixture
def spool() -> Iterator[LogSpool]:
    found = LogSpool()
    yield found
    found.close()


def line(number: int, rank: int | None = 0, text: str = "") -> LogLine:
    return LogLine(0, rank, "stderr" if number % 2 else "stdout", float(number), text or f"line {number}")


def test_lines_are_found_by_their_numbers(spool: LogSpool) -> None:
    for number in range(1000):
        spool.add(line(number))
    after, goes_on = spool.after(123, Selection(), 500)
    assert [one.number for one in after] == list(range(123, 623))
    assert goes_on == 623
    assert [one.line.text for one in spool.before(130, Selection(), 3)] == ["line 127", "line 128", "line 129"]
    assert spool.after(1000, Selection(), 10) == ([], 1000)
    assert spool.before(0, Selection(), 10) == []


def test_a_selection_is_searched_for_in_all_lines(spool: LogSpool) -> None:
    for number in range(3000):
        spool.add(line(number, rank=number % 4, text="Loss is NaN" if number == 7 else ""))
    wanted = Selection(text="loss is nan")
    assert [one.number for one in spool.before(3000, wanted, 10)] == [7]
    assert [one.number for one in spool.after(0, wanted, 10)[0]] == [7]
    assert {one.line.rank for one in spool.before(3000, Selection(rank=2), 100)} == {2}
    assert {one.line.stream for one in spool.before(3000, Selection(stream="stderr"), 100)} == {"stderr"}
    assert spool.sources == {(0, 0), (0, 1), (0, 2), (0, 3)}


def test_a_node_itself_is_not_its_ranks(spool: LogSpool) -> None:
    spool.add(line(0, rank=None))
    spool.add(line(1, rank=0))
    assert [one.number for one in spool.after(0, Selection(node=0), 10)[0]] == [0]


def test_a_reader_beside_the_writer_gets_each_line_once(spool: LogSpool) -> None:
    count = 20_000

    def write() -> None:
        for number in range(count):
            spool.add(line(number))

    writer = threading.Thread(target=write)
    writer.start()
    seen: list[str] = []
    number = 0
    while len(seen) < count:
        found, number = spool.after(number, Selection(), 700)
        seen += [one.line.text for one in found]
    writer.join()
    assert seen == [f"line {number}" for number in range(count)]


def test_the_file_has_an_end(spool: LogSpool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_spool, "_MOST_BYTES", 5000)
    for number in range(1000):
        spool.add(line(number))
    assert spool.lost == 1000 - spool.count > 0
    assert spool.before(10**6, Selection(), 1)[0].number == spool.count - 1


def test_a_line_of_a_megabyte_is_cut(spool: LogSpool) -> None:
    spool.add(line(0, text="x" * 1_000_000))
    assert len(spool.before(1, Selection(), 1)[0].line.text) < 21_000


def test_a_full_disk_loses_lines_and_nothing_else(spool: LogSpool, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(100):
        spool.add(line(number))

    class Full:
        def __getattr__(self, name: str) -> object:
            return getattr(file, name)

        def write(self, data: bytes) -> int:
            raise OSError(28, "No space left on device")

    file = spool._file
    monkeypatch.setattr(spool, "_file", Full())
    spool.add(line(100))
    monkeypatch.setattr(spool, "_file", file)
    spool.add(line(101))
    assert (spool.count, spool.lost) == (100, 2)
    assert spool.before(1000, Selection(), 1)[0].number == 99
