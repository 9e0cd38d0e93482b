"""What a rank writes down of its waiting in NCCL, and what is read from it: on what torch 2.11 said on a real GPU."""

from __future__ import annotations

import json
import os
import pickle
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from jobsubmit.agent import nccl_watch
from jobsubmit.agent.job_directory import JobDirectory
from jobsubmit.agent.protocol import Standstill
from jobsubmit.agent.supervisor import hang_detector, standstill

RECORDED = json.loads((Path(__file__).parents[2] / "corpus/nccl/flight_recorder.json").read_text())


class Recorder:
    """Stand in for torch's flight recorder: it says what a real one has said."""

    def __init__(self, case: str, rank: int) -> None:
        self.said = RECORDED[case][str(rank)]
        self.asked: list[tuple[bool, bool, bool]] = []

    def __call__(self, collectives: bool, stacks: bool, active: bool) -> bytes:
        self.asked.append((collectives, stacks, active))
        said = json.loads(json.dumps(self.said))
        entries = [entry for entry in said.pop("entries") if not (active and entry["retired"])]
        for entry in entries:
            if not stacks:
                entry.pop("frames")
        return pickle.dumps({**said, "entries": entries} if collectives else said)

    def move(self) -> None:
        """Start a collective."""
        counts = self.said["pg_status"][min(self.said["pg_status"])]
        counts["last_enqueued_collective"] += 1


@pytest.fixture
def watching(tmp_path: Path) -> Iterator[Callable[[str, int], tuple[nccl_watch.Watch, Recorder, Path]]]:
    (tmp_path / "stacks").mkdir()

    def watch(case: str, rank: int) -> tuple[nccl_watch.Watch, Recorder, Path]:
        recorder = Recorder(case, rank)
        file = Path(JobDirectory(tmp_path).standstill_of(rank))
        return nccl_watch.Watch(str(file), recorder), recorder, file

    yield watch
    assert not list(tmp_path.glob("stacks/*.[0-9]*"))  # nothing is left half-written


def noted(folder: Path, *ranks: int) -> dict[int, Standstill]:
    return standstill.read_standstills(str(folder), {rank: os.getpid() for rank in ranks or (0, 1)})


def look(watch: nccl_watch.Watch, *moments: float) -> None:
    for moment in moments:
        watch.look(moment)


def test_a_rank_that_waits_says_so_once_nothing_has_moved_for_five_seconds(watching: Any, tmp_path: Path) -> None:
    watch, _, file = watching("sync", 0)
    look(watch, 100, 104)
    assert not file.exists()
    look(watch, 105)
    (found,) = noted(tmp_path).values()
    assert (found["pid"], found["since"], found["started"]) == (os.getpid(), 100, {"0": 6})
    assert found["waits_in"] is not None
    assert standstill.describe_collective(found["waits_in"]) == "all_reduce (collective 6, 1024 float)"
    assert standstill.find_waiting(noted(tmp_path)) == [0]


def test_what_moves_again_is_taken_back(watching: Any, tmp_path: Path) -> None:
    watch, recorder, file = watching("sync", 0)
    look(watch, 100, 105)
    recorder.move()
    look(watch, 106)
    assert not file.exists()
    look(watch, 107, 111)
    assert noted(tmp_path)[0]["since"] == 106


def test_the_stacks_of_the_calls_are_asked_for_once_and_late(watching: Any, tmp_path: Path) -> None:
    watch, recorder, _ = watching("sync", 0)
    look(watch, *range(100, 130))
    assert not any(stacks for _, stacks, _ in recorder.asked)
    look(watch, *range(130, 160))
    assert sum(stacks for _, stacks, _ in recorder.asked) == 1
    waits_in = noted(tmp_path)[0]["waits_in"]
    assert waits_in is not None
    assert hang_detector.find_call(waits_in["frames"]) == "raw.py:46 in <module>"


def test_a_healthy_rank_costs_one_short_question_a_second(watching: Any) -> None:
    watch, recorder, file = watching("sync", 0)
    for moment in range(100):
        recorder.move()
        look(watch, moment)
    assert recorder.asked == [(False, False, False)] * 100
    assert not file.exists()


def test_a_rank_that_waits_elsewhere_says_how_far_it_got(watching: Any, tmp_path: Path) -> None:
    look(watching("sync", 1)[0], 100, 105)
    (found,) = noted(tmp_path).values()
    assert (found["started"], found["waits_in"], found["call"]) == ({"0": 5}, None, "")
    assert standstill.find_waiting(noted(tmp_path)) == []


@pytest.mark.parametrize(
    ("case", "text"),
    [
        ("sync", "all_reduce (collective 6, 1024 float)"),
        ("queued", "all_reduce (collective 6, 1024 float)"),  # the first of the three that it has started since
        ("group", "all_reduce (collective 6 of process group 1, 1024 float)"),
        ("fsdp", "all_gather_base (collective 91, 131328 float)"),
    ],
)
def test_the_rank_that_did_not_call_is_named(case: str, text: str, watching: Any, tmp_path: Path) -> None:
    for rank in (0, 1):
        look(watching(case, rank)[0], 100, 105)
    assert standstill.describe_waits(noted(tmp_path)) == {0: text}
    assert standstill.find_missing_rank(noted(tmp_path)) == 1
    assert standstill.describe_wait(0, noted(tmp_path)) == f"; it waited in {text}, which rank 1 did not call"
    assert standstill.describe_wait(1, noted(tmp_path)) == ""


def test_what_another_process_noted_does_not_count(watching: Any, tmp_path: Path) -> None:
    _, _, file = watching("sync", 1)
    look(watching("sync", 0)[0], 100, 105)
    file.write_text('{"pid": 1, "since": 0, "started": {}, "waits_in": null, "call": ""}')
    assert list(noted(tmp_path)) == [0]
    file.write_text("{")
    assert list(noted(tmp_path, 0, 1, 2)) == [0]


def test_a_part_of_a_coalesced_collective_which_never_ends_is_no_wait(watching: Any, tmp_path: Path) -> None:
    watch, recorder, _ = watching("sync", 0)
    recorder.said["entries"][-1]["retired"] = True
    recorder.said["entries"][0]["retired"] = False
    look(watch, 100, 105)
    assert noted(tmp_path)[0]["waits_in"] is None


def test_a_wait_that_ends_without_a_change_of_the_counts_is_over(watching: Any, tmp_path: Path) -> None:
    watch, recorder, _ = watching("sync", 0)
    look(watch, 100, 105)
    recorder.said["entries"][-1]["retired"] = True
    look(watch, 106)
    assert noted(tmp_path)[0]["waits_in"] is None


@pytest.mark.parametrize(
    ("function", "says"),
    [("all_reduce", "all_reduce, while NCCL is connecting the ranks"), ("_store_based_barrier", "store_based_barrier")],
)
def test_a_rank_whose_call_of_torch_does_not_return_waits_too(
    function: str, says: str, watching: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    watch, recorder, _ = watching("sync", 0)
    recorder.said.update(pg_status={}, entries=[])
    monkeypatch.setattr(threading, "main_thread", threading.current_thread)
    here = threading.current_thread()
    monkeypatch.setattr(threading, "main_thread", lambda: here)
    names: dict[str, Any] = {}
    source = f"def {function}(release):\n    release.acquire()\n"
    exec(compile(source, "/lib/torch/distributed/distributed_c10d.py", "exec"), names)
    release = threading.Lock()
    release.acquire()

    def look_from_beside() -> None:
        look(watch, 100, 105)
        release.release()

    beside = threading.Timer(0.2, look_from_beside)
    beside.start()
    names[function](release)
    beside.join()
    assert standstill.describe_waits(noted(tmp_path)) == {0: says}
    assert standstill.find_waiting(noted(tmp_path)) == [0]


@pytest.mark.parametrize(
    ("version", "given", "expected"),
    [
        ("2.7.1+cu126", {}, {"TORCH_NCCL_TRACE_BUFFER_SIZE": "2000"}),
        ("2.10.0", {}, {"TORCH_FR_BUFFER_SIZE": "2000"}),
        ("2.11.0+cu130", {}, {}),
        ("2.9.0", {"TORCH_NCCL_TRACE_BUFFER_SIZE": "0"}, {"TORCH_NCCL_TRACE_BUFFER_SIZE": "0"}),
    ],
)
def test_older_versions_of_torch_record_collectives_too_unless_the_user_says_no(
    version: str, given: dict[str, str], expected: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "environ", dict(given))
    nccl_watch._switch_on_recorder(version)
    assert dict(os.environ) == expected


def test_ranks_at_one_place_are_told_together() -> None:
    wait = ("train.py:9 in step", "all_reduce (collective 6, 10 float)", True)
    other = ("train.py:9 in step", "all_reduce (collective 6, 12 float)", True)
    away = ("data.py:3 in load", "", False)
    assert hang_detector.find_odd_one_out({0: wait, 1: wait, 2: other}) == 2
    assert hang_detector.describe_places({0: wait, 1: wait}, None) == (
        "ranks 0, 1: train.py:9 in step → all_reduce (collective 6, 10 float)"
    )
    assert hang_detector.describe_places({0: wait, 1: other, 2: away}, 2, is_missing=True) == (
        "rank 0: train.py:9 in step → all_reduce (collective 6, 10 float); "
        "rank 1: train.py:9 in step → all_reduce (collective 6, 12 float); "
        "rank 2, which did not call it: data.py:3 in load"
    )
    assert hang_detector.name_ranks(list(range(20))) == "ranks 0, 1, 2, 3, 4, 5, 6, 7, …"
