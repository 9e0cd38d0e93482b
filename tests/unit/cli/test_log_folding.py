"""What is shown of a job's lines, and what is not."""

from __future__ import annotations

import pytest

from jobsubmit.backends.models import LogLine
from jobsubmit.cli.log_folding import lines_to_show

TOLD = "W1123 08:42:49.310 3366 torch/distributed/elastic/agent/server/api.py:752] Received 15 death signal, shutting"
OLD_TOLD = (
    "WARNING:torch.distributed.elastic.agent.server.api:Received Signals.SIGTERM death signal, shutting down workers"
)
TRACEBACK = ["Traceback (most recent call last):", '  File "x.py", line 1', "    main()"]
LAST = "torch.distributed.elastic.multiprocessing.api.SignalException: Process 3366 got signal: 15"
ERROR = "torch.distributed.DistNetworkError: Failed to recv"
BETWEEN = ["", "During handling of the above exception, another exception occurred:", ""]


def shown(texts: list[str], *, folded: bool = True, rank: int | None = None) -> list[str]:
    lines = [LogLine(1, rank, "stderr", 0.0, text) for text in texts]
    return [line.text for line in lines_to_show(lines, folded=folded)]


@pytest.mark.parametrize("told", [[TOLD], [OLD_TOLD], []])
def test_what_a_launcher_says_when_it_is_told_to_end_is_one_line(told: list[str]) -> None:
    noise = [*told, *TRACEBACK, ERROR, *BETWEEN, *TRACEBACK, LAST] if told else [*TRACEBACK, LAST]
    found = shown(["before", *noise, "after"])
    assert found[0] == "before"
    assert (
        found[1]
        == f"jobsubmit: the launcher of this node was stopped by a signal; {len(noise)} of its lines are not shown"
    )
    assert found[2:] == ["after"]
    assert shown(noise, folded=False) == noise
    assert shown(noise, rank=3) == noise


def test_other_tracebacks_are_shown_whole() -> None:
    texts = [*TRACEBACK, ERROR, *BETWEEN, *TRACEBACK, "ValueError: bad", *TRACEBACK]
    assert shown(texts) == texts


def test_a_launcher_that_ends_amid_its_words_is_folded_too() -> None:
    assert shown([TOLD, *TRACEBACK]) == [
        "jobsubmit: the launcher of this node was stopped by a signal; 4 of its lines are not shown"
    ]


def test_paths_begin_at_the_code_directory() -> None:
    text = '  File "/home/u/.local/state/jobsubmit/jobs/a-1/nodes/0/code/sub/train.py", line 7, in <module>'
    assert shown([text, "see /nodes/ and code/x"]) == [
        '  File "code/sub/train.py", line 7, in <module>',
        "see /nodes/ and code/x",
    ]
