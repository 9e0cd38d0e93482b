"""What a rank writes down of its waiting in NCCL, and what is read from it: on what torch 2.11 said on a real GPU."""

from __future__ import annotations

import atexit
import json
import os
import pickle
import sys
import time
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
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
        self.said = json.loads(json.dumps(RECORDED[case][str(rank)]))
        self.asked: list[tuple[bool, bool, bool]] = []

    def __call__(self, collectives: bool, stacks: bool, active: bool) -> bytes:
        self.asked.append((collectives, stacks, active))
        said = {**self.said, "entries": [{**entry} for entry in self.said["entries"]]}
        for entry in said["entries"] if not stacks else []:
            entry.pop("frames")
        if not collectives:
            said.pop("entries")
        return pickle.dumps(said)

    def move(self) -> None:
        """Start a collective."""
        counts = self.said["pg_status"][min(self.said["pg_status"])]
        counts["last_enqueued_collective"] += 1


def standing(name: str = "train", file: str = "/job/train.py", tensor: object = None) -> FrameType:
    """Return the frame of a function that stands still: of a generator that is not asked for more."""
    names: dict[str, Any] = {}
    exec(compile(f"def {name}(tensor):\n    yield 1\n    yield 2\n", file, "exec"), names)
    generator = names[name](tensor)
    next(generator)
    FRAMES.append(generator)
    frame: FrameType = generator.gi_frame
    return frame


FRAMES: list[Any] = []
HERE = standing()
Watching = tuple[nccl_watch.Watch, Recorder, Path]


@pytest.fixture
def watching(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str, int], Watching]]:
    (tmp_path / "stacks").mkdir()
    one_gpu = types.SimpleNamespace(device_count=lambda: 1)
    monkeypatch.setitem(sys.modules, "torch", types.SimpleNamespace(cuda=one_gpu))

    def watch(case: str, rank: int) -> Watching:
        recorder = Recorder(case, rank)
        file = Path(JobDirectory(tmp_path).standstill_of(rank))
        return nccl_watch.Watch(str(file), recorder, seconds=60.0), recorder, file

    yield watch
    assert not list(tmp_path.glob("stacks/*.[0-9]*"))  # nothing is left half-written


def noted(folder: Path, *ranks: int) -> dict[int, Standstill]:
    return standstill.read_standstills(str(folder), {rank: os.getpid() for rank in ranks or (0, 1)})


def look(watch: nccl_watch.Watch, *moments: float, frame: FrameType = HERE) -> None:
    for moment in moments:
        watch.look(moment, frame)


def test_a_rank_that_waits_says_so_when_nothing_has_moved_for_some_seconds(watching: Any, tmp_path: Path) -> None:
    watch, _, file = watching("sync", 0)
    look(watch, *range(100, 110))
    assert not file.exists()  # 5 s at one place, then 5 s with the same counts
    look(watch, 110)
    (found,) = noted(tmp_path).values()
    assert (found["pid"], found["since"], found["waits"], found["waits_in"]) == (os.getpid(), 105, True, None)
    assert standstill.find_waiting(noted(tmp_path), since=105) == [0]
    assert standstill.find_waiting(noted(tmp_path), since=104) == []
    assert standstill.describe_waits(noted(tmp_path)) == {0: "a collective of NCCL"}


@pytest.mark.parametrize("what", ["the counts", "the main thread"])
def test_what_moves_again_is_taken_back(what: str, watching: Any, tmp_path: Path) -> None:
    watch, recorder, file = watching("sync", 0)
    look(watch, *range(100, 111))
    assert file.exists()
    if what == "the counts":
        recorder.move()
    look(watch, 111, frame=standing("other") if what == "the main thread" else HERE)
    assert not file.exists()
    look(watch, *range(112, 125))
    assert noted(tmp_path)[0]["since"] >= 111


def test_the_collectives_are_asked_for_once_and_late(watching: Any, tmp_path: Path) -> None:
    watch, recorder, _ = watching("sync", 0)
    for entry in recorder.said["entries"]:
        entry["frames"] = []  # as of a collective that DistributedDataParallel starts in C++
    look(watch, *range(100, 135))
    assert set(recorder.asked) == {(False, False, False)}
    look(watch, *range(135, 200))
    assert recorder.asked.count((True, True, False)) == len(set(recorder.asked) - {(False, False, False)}) == 1
    waits_in = noted(tmp_path)[0]["waits_in"]
    assert waits_in is not None
    assert standstill.describe_collective(waits_in) == "all_reduce (collective 6, 1024 float)"


def test_the_line_that_called_is_known(watching: Any, tmp_path: Path) -> None:
    look(watching("sync", 0)[0], *range(100, 140))
    waits_in = noted(tmp_path)[0]["waits_in"]
    assert waits_in is not None
    assert hang_detector.find_call(waits_in["frames"]) == "raw.py:46 in <module>"


def test_torch_is_not_asked_while_the_main_thread_moves(watching: Any) -> None:
    watch, recorder, file = watching("sync", 0)
    for moment in range(100):
        look(watch, moment, frame=standing(("one", "two")[moment % 2]))
    assert recorder.asked == []
    for moment in range(100, 200):
        recorder.move()
        look(watch, moment)
    assert set(recorder.asked) == {(False, False, False)}
    assert not file.exists()


def test_a_rank_that_waits_elsewhere_says_how_far_it_got(watching: Any, tmp_path: Path) -> None:
    look(watching("sync", 1)[0], *range(100, 140))
    (found,) = noted(tmp_path).values()
    assert (found["started"], found["waits"], found["waits_in"], found["call"]) == ({"0": 5}, False, None, "")


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
        look(watching(case, rank)[0], *range(100, 140))
    assert standstill.describe_waits(noted(tmp_path)) == {0: text}
    assert standstill.find_missing_rank(noted(tmp_path)) == 1
    assert standstill.describe_wait(0, noted(tmp_path)) == f"; it waited in {text}, which rank 1 did not call"
    assert standstill.describe_wait(1, noted(tmp_path)) == ""


def test_groups_are_told_apart_by_the_name_that_all_ranks_know(watching: Any, tmp_path: Path) -> None:
    for rank, number in ((0, 7), (1, 3)):  # torch counts the groups of each process by itself
        watch, recorder, _ = watching("group", rank)
        recorder.said["pg_status"] = {str(number): recorder.said["pg_status"]["1"]}
        for entry in recorder.said["entries"]:
            entry["pg_id"] = number
        look(watch, *range(100, 140))
    assert standstill.find_missing_rank(noted(tmp_path)) == 1


def test_who_waits_in_the_same_collective_has_called_it(watching: Any, tmp_path: Path) -> None:
    for rank in (0, 1):
        watch = watching("sync", 0)[0]
        watch.path = JobDirectory(tmp_path).standstill_of(rank)
        look(watch, *range(100, 140))
    assert standstill.find_missing_rank(noted(tmp_path)) is None


def test_send_and_recv_are_no_collectives_that_others_lack(watching: Any, tmp_path: Path) -> None:
    for rank in (0, 1):
        watch, recorder, _ = watching("sync", rank)
        last = recorder.said["entries"][-1]
        recorder.said["entries"].append({**last, "record_id": 9, "profiling_name": "nccl:coalesced", "retired": False})
        recorder.said["entries"].append({**last, "record_id": 10, "is_p2p": True, "retired": False, "p2p_seq_id": 40})
        last["retired"] = True
        look(watch, *range(100, 140))
    assert standstill.find_collectives(noted(tmp_path)) == {}
    assert standstill.find_missing_rank(noted(tmp_path)) is None


def test_counts_that_differ_although_all_has_ended_are_no_wait(watching: Any, tmp_path: Path) -> None:
    watch, recorder, _ = watching("sync", 0)  # torch keeps one count for collectives, send and recv
    recorder.said["pg_status"]["0"]["last_completed_collective"] = 400
    for entry in recorder.said["entries"]:
        entry["retired"] = True
    look(watch, *range(100, 120))
    assert standstill.find_waiting(noted(tmp_path), since=200) == [0]
    look(watch, *range(120, 140))
    assert standstill.find_waiting(noted(tmp_path), since=200) == []


def test_a_collective_that_hangs_after_many_sends_is_a_wait(watching: Any, tmp_path: Path) -> None:
    watch, recorder, _ = watching("sync", 0)
    recorder.said["pg_status"]["0"]["last_completed_collective"] = 400
    look(watch, *range(100, 140))
    assert standstill.describe_waits(noted(tmp_path)) == {0: "all_reduce (collective 6, 1024 float)"}


def test_a_rank_that_waits_for_another_one_is_not_the_cause(watching: Any, tmp_path: Path) -> None:
    for rank, group in ((0, "A"), (1, "B")):
        watch, recorder, _ = watching("sync", rank)
        watch.path = JobDirectory(tmp_path).standstill_of(rank)
        last = recorder.said["entries"][-1]
        if rank == 1:  # it waits in a group of its own, for a rank on another node
            other = {"process_group": [group, "x"], "pg_id": 1, "record_id": 9, "collective_seq_id": 20}
            recorder.said["entries"].append({**last, **other, "retired": False, "state": "scheduled"})
            counts = {"last_enqueued_collective": 20, "last_started_collective": -1, "last_completed_collective": 19}
            recorder.said["pg_status"]["1"] = counts
        look(watch, *range(100, 140))
    assert sorted(standstill.find_collectives(noted(tmp_path))) == [0, 1]
    assert standstill.find_missing_rank(noted(tmp_path)) is None


def test_the_details_come_before_torch_or_the_end_of_another_rank_ends_the_job(tmp_path: Path) -> None:
    for seconds, details in ((60.0, 30.0), (600.0, 150.0), (86400.0, 150.0)):
        assert nccl_watch.Watch(str(tmp_path / "x"), Recorder("sync", 0), seconds).details == details


def test_a_rank_that_does_not_wait_is_not_asked_for_stacks(watching: Any) -> None:
    watch, recorder, _ = watching("sync", 1)
    look(watch, *range(100, 140))
    assert set(recorder.asked) == {(False, False, False), (True, False, False)}  # stacks would cost seconds


def test_a_thread_that_has_ended_does_not_stand_still(watching: Any) -> None:
    watch, recorder, file = watching("sync", 0)
    for moment in range(100, 200):
        watch.look(moment, None)
    assert recorder.asked == []
    assert not file.exists()


@pytest.mark.parametrize(("asked", "expected"), [("1", "nccl2"), ("0", "legacy"), (None, "nccl2")])
def test_since_torch_2_15_nccl_has_a_recorder_of_its_own(
    asked: str | None, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[nccl_watch.Watch] = []
    monkeypatch.setattr(nccl_watch, "_start", started.append)
    monkeypatch.setenv("JOBSUBMIT_GANG_HANG_AFTER", "600")
    if asked is not None:
        monkeypatch.setenv("TORCH_DIST_USE_NCCL2", asked)
    monkeypatch.setitem(sys.modules, "torch", types.SimpleNamespace(__version__="2.15.0"))
    c10d = types.SimpleNamespace(_dump_nccl_trace=lambda *how: b"legacy", _dump_fr_trace=lambda *how: how[-1].encode())
    monkeypatch.setitem(sys.modules, "torch._C._distributed_c10d", c10d)
    assert nccl_watch.watch_collectives("/job/stacks/rank-0.nccl.json", "nccl")
    assert started[0].dump(False, False, False) == expected.encode()


def test_a_rank_that_has_started_nothing_is_missing_in_the_first_collective(watching: Any, tmp_path: Path) -> None:
    look(watching("sync", 0)[0], *range(100, 140))
    watch, recorder, _ = watching("sync", 1)
    recorder.said.update(pg_status={}, entries=[])
    look(watch, *range(100, 140))
    assert standstill.find_missing_rank(noted(tmp_path)) == 1


@pytest.mark.parametrize(
    "text",
    [
        "{",
        '{"pid": 1, "since": 0, "waits": true, "call": "", "started": {}, "waits_in": null}',
        '{"pid": %d, "since": 0, "waits": true, "call": "", "started": {"0": null}, "waits_in": null}',
        '{"pid": %d, "since": 0, "waits": true, "call": "", "started": null, "waits_in": {"group": "0", "ranks": [], '
        '"name": "x", "number": 1, "sizes": [], "types": [], "frames": [{}]}}',
    ],
)
def test_what_is_damaged_or_of_another_process_does_not_count(text: str, watching: Any, tmp_path: Path) -> None:
    look(watching("sync", 0)[0], *range(100, 140))
    watching("sync", 1)[2].write_text(text % os.getpid() if "%d" in text else text)
    assert list(noted(tmp_path, 0, 1, 2)) == [0]


class OnGpu:
    is_cuda = True


C10D = "/lib/torch/distributed/distributed_c10d.py"


@pytest.mark.parametrize(
    ("frame", "says"),
    [
        (standing("all_reduce", C10D, OnGpu()), "all_reduce, which has not returned"),
        (standing("all_gather", C10D, [OnGpu()]), "all_gather, which has not returned"),
        (standing("_new_process_group_helper", C10D), "new_process_group_helper, which has not returned"),
        (standing("all_reduce", C10D, object()), None),  # on the CPU: Gloo's, which uses CPU time to work
        (standing("_object_to_tensor", C10D), None),
        (standing("all_reduce", "/job/comm.py", OnGpu()), None),
    ],
)
def test_a_rank_whose_call_of_torch_does_not_return_waits_too(
    frame: FrameType, says: str | None, watching: Any, tmp_path: Path
) -> None:
    watch, recorder, _ = watching("sync", 0)
    recorder.said.update(pg_status={}, entries=[])
    look(watch, *range(100, 140), frame=frame)
    assert standstill.describe_waits(noted(tmp_path)) == ({0: says} if says else {})
    assert standstill.find_waiting(noted(tmp_path), since=200) == ([0] if says else [])


def test_the_thread_ends_with_python_and_leaves_no_file(watching: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    at_exit: list[Callable[[], None]] = []
    monkeypatch.setattr(atexit, "register", at_exit.append)
    monkeypatch.setattr(nccl_watch, "_LOOK_SECONDS", 0.01)
    watch, _, file = watching("sync", 0)
    looks: list[float] = []
    monkeypatch.setattr(watch, "look", lambda now, frame: looks.append(now))
    nccl_watch._start(watch)
    wait_for(lambda: len(looks) > 3)
    at_exit[0]()
    seen = len(looks)
    time.sleep(0.1)
    assert len(looks) == seen

    def fail(now: float, frame: object) -> None:
        raise AttributeError("another torch")

    look(watching("sync", 0)[0], *range(100, 111))
    watch.written = noted(file.parent.parent)[0]
    monkeypatch.setattr(watch, "look", fail)
    nccl_watch._start(watch)
    wait_for(lambda: not file.exists())


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert condition()


class Cuda:
    """Stand in for torch.cuda on a machine with four GPUs."""

    def __init__(self, used: int | None) -> None:
        self.used, self.chosen = used, -1
        self.cuda = self._C = self

    def device_count(self) -> int:
        return 4

    def _cuda_hasPrimaryContext(self, number: int) -> bool:  # noqa: N802 - torch's name
        return number == self.used

    def _cuda_setDevice(self, number: int) -> None:  # noqa: N802 - torch's name
        self.chosen = number


def test_our_thread_reserves_no_memory_on_a_gpu_that_the_process_does_not_use(monkeypatch: pytest.MonkeyPatch) -> None:
    for used in (3, None):
        torch = Cuda(used)
        monkeypatch.setitem(sys.modules, "torch", torch)
        assert nccl_watch._use_own_device() == (used is not None)
        assert torch.chosen == (3 if used else -1)


@pytest.mark.parametrize(
    ("backend", "hang_after", "version", "is_watched"),
    [
        ("nccl", "600", "2.11.0", True),
        (None, "600", "2.11.0", True),
        ("cpu:gloo,cuda:nccl", "600", "2.11.0", True),
        ("gloo", "600", "2.11.0", False),
        ("nccl", "0", "2.11.0", False),
        ("nccl", "600", "2.3.1+cu121", False),
    ],
)
def test_only_jobs_whose_hangs_are_watched_and_that_may_use_nccl_get_the_thread(
    backend: str | None, hang_after: str, version: str, is_watched: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[nccl_watch.Watch] = []
    monkeypatch.setattr(nccl_watch, "_start", started.append)
    monkeypatch.setenv("JOBSUBMIT_GANG_HANG_AFTER", hang_after)
    monkeypatch.setitem(sys.modules, "torch", types.SimpleNamespace(__version__=version))
    c10d = types.SimpleNamespace(_dump_nccl_trace=Recorder("sync", 0))
    monkeypatch.setitem(sys.modules, "torch._C._distributed_c10d", c10d)
    assert nccl_watch.watch_collectives("/job/stacks/rank-0.nccl.json", backend) == is_watched
    assert len(started) == is_watched


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
    nccl_watch._switch_on_recorder(tuple(map(int, version.split(".")[:2])))
    assert dict(os.environ) == expected


def test_ranks_at_one_place_are_told_together() -> None:
    wait = ("train.py:9 in step", "all_reduce (collective 6, 10 float)", True)
    other = ("train.py:9 in step", "all_reduce (collective 6, 12 float)", True)
    away = ("data.py:3 in load", "", False)
    assert hang_detector.find_odd_one_out({0: wait, 1: wait, 2: other}) is None
    assert hang_detector.find_odd_one_out({0: wait, 1: wait, 2: away}) == 2
    assert hang_detector.describe_places({0: wait, 1: wait}, None) == (
        "ranks 0, 1: train.py:9 in step → all_reduce (collective 6, 10 float)"
    )
    assert hang_detector.describe_places({0: wait, 1: other, 2: away}, 2, is_missing=True) == (
        "rank 0: train.py:9 in step → all_reduce (collective 6, 10 float); "
        "rank 1: train.py:9 in step → all_reduce (collective 6, 12 float); "
        "rank 2, which did not call it: data.py:3 in load"
    )
    assert hang_detector.name_ranks(list(range(20))) == "ranks 0, 1, 2, 3, 4, 5, 6, 7, …"
