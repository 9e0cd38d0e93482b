"""What is shown of a job's lines, and what is not."""

from __future__ import annotations

import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from jobsubmit.backends.models import LogLine
from jobsubmit.cli.log_folding import lines_to_show
from jobsubmit.cli.logs import say_when_silent

TOLD = "W1123 08:42:49.310 3366 torch/distributed/elastic/agent/server/api.py:752] Received 15 death signal, shutting"
OLD_TOLD = (
    "WARNING:torch.distributed.elastic.agent.server.api:Received Signals.SIGTERM death signal, shutting down workers"
)
TRACEBACK = ["Traceback (most recent call last):", '  File "x.py", line 1', "    main()"]
LAST = "torch.distributed.elastic.multiprocessing.api.SignalException: Process 3366 got signal: 15"
ERROR = "torch.distributed.DistNetworkError: Failed to recv"
HOW = " (`jobsubmit logs` shows all)"
BETWEEN = ["", "During handling of the above exception, another exception occurred:", ""]


def shown(texts: list[str], *, folded: bool = True, rank: int | None = None) -> list[str]:
    lines = [LogLine(1, rank, "stderr", 0.0, text) for text in texts]
    return [line.text for line in lines_to_show(lines, folded=folded)]


@pytest.mark.parametrize("told", [[TOLD], [OLD_TOLD], []])
def test_what_a_launcher_says_when_it_is_told_to_end_is_one_line(told: list[str]) -> None:
    noise = [*told, *TRACEBACK, ERROR, *BETWEEN, *TRACEBACK, LAST] if told else [*TRACEBACK, LAST]
    found = shown(["before", *noise, "after"])
    assert found[0] == "before"
    assert found[1] == f"jobsubmit: the launcher of this node was stopped; {len(noise)} of its lines are not shown{HOW}"
    assert found[2:] == ["after"]
    assert shown(noise, folded=False) == noise
    assert shown(noise, rank=3) == noise


def test_other_tracebacks_are_shown_whole() -> None:
    texts = [*TRACEBACK, ERROR, *BETWEEN, *TRACEBACK, "ValueError: bad", *TRACEBACK]
    assert shown(texts) == texts


def test_a_launcher_that_ends_amid_its_words_is_folded_too() -> None:
    assert shown([TOLD, *TRACEBACK]) == [
        f"jobsubmit: the launcher of this node was stopped; 4 of its lines are not shown{HOW}"
    ]


def test_paths_begin_at_the_code_directory() -> None:
    text = '  File "/home/u/.local/state/jobsubmit/jobs/a-1/nodes/0/code/sub/train.py", line 7, in <module>'
    assert shown([text, "see /nodes/ and code/x"]) == [
        '  File "code/sub/train.py", line 7, in <module>',
        "see /nodes/ and code/x",
    ]


def test_several_tracebacks_of_one_stop_are_one_line() -> None:
    noise = [TOLD, *TRACEBACK, LAST, "", *BETWEEN, *TRACEBACK, LAST, ""]
    count = f"{len(noise)} of its lines are"
    expected = f"jobsubmit: the launcher of this node was stopped; {count} not shown{HOW}"
    assert shown([*noise, "after", *BETWEEN]) == [expected, "after", *BETWEEN]


def test_a_job_that_is_silent_while_it_is_followed_is_mentioned_once(capsys: pytest.CaptureFixture[str]) -> None:
    def lines() -> Iterator[LogLine]:
        yield LogLine(0, 0, "stdout", 0.0, "step 1")
        time.sleep(0.4)
        yield LogLine(0, 0, "stdout", 0.0, "step 2")

    record: Any = SimpleNamespace(id="job-1")
    assert len(list(say_when_silent(lines(), record, seconds=0.1))) == 2
    time.sleep(0.3)
    assert capsys.readouterr().err.count("no output for") == 1


def lines_of(*told: tuple[int | None, str]) -> list[str]:
    lines = [LogLine(0 if rank is None else rank // 2, rank, "stderr", 0.0, text) for rank, text in told]
    return [line.text for line in lines_to_show(lines, folded=True)]


def test_a_traceback_that_another_rank_printed_is_one_line() -> None:
    def traceback(rank: int, last: str) -> list[tuple[int | None, str]]:
        return [(rank, f"[rank{rank}]: {text}") for text in (*TRACEBACK, last)]

    same = [traceback(rank, f"ValueError: bad batch {rank}") for rank in (0, 3)]
    both = [line for pair in zip(*same, strict=True) for line in pair]  # as they come: one line of each
    found = lines_of(*both, *traceback(1, "KeyError: 'x'"))
    assert [text for text in found if "rank0" in text] == [text for _, text in same[0]]
    assert [text for text in found if "rank1" in text] == [text for _, text in traceback(1, "KeyError: 'x'")]
    assert f"jobsubmit: the same traceback as rank 0, 4 lines{HOW}: ValueError: bad batch 3" in found
    assert len(found) == 9


def test_a_traceback_that_one_rank_prints_again_is_shown_again() -> None:
    again = [(2, text) for text in (*TRACEBACK, "ValueError: retried")] * 2
    assert lines_of(*again) == [text for _, text in again]


def test_a_traceback_without_an_end_is_shown() -> None:
    assert lines_of(*((0, text) for text in TRACEBACK)) == TRACEBACK


def test_the_launcher_that_ends_last_takes_two_lines() -> None:
    place = "E1130 01:18:30.892000 31171 torch/distributed/elastic/agent/server/api.py:1007] "
    told = [
        "[W1130 01:18:30 TCPStore.cpp:125] recvValue failed",
        "frame #0: c10::Error + 0x8",
        "frame #1: start + 0x85",
    ]
    told += ["", f"{place}Error waiting on exit barrier. Elapsed: 0.03", f"{place}Traceback (most recent call last):"]
    assert lines_of(*((None, text) for text in [*told, "after"])) == [
        told[0],
        "jobsubmit: frames of C++; lines not shown: 2 (`jobsubmit logs`)",
        "",
        "jobsubmit: the launcher of this node ended after the one that holds the store, which does no harm; lines not "
        "shown: 2 (`jobsubmit logs`)",
        "after",
    ]


def test_tracebacks_of_different_lines_are_different() -> None:
    told = [
        (rank, text.replace("line 1", f"line {rank + 3}")) for rank in (0, 1) for text in (*TRACEBACK, "KeyError: 3")
    ]
    assert lines_of(*told) == [text for _, text in told]


def test_what_only_looks_like_a_frame_is_shown() -> None:
    assert lines_of((0, "frame #1: psnr 30.1"), (0, "frame #2: psnr 31.0")) == [
        "frame #1: psnr 30.1",
        "frame #2: psnr 31.0",
    ]
