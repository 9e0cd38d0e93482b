"""The agents of SSH hosts: messages that prove their sender, a host's queue and cache, what is wrong with hosts."""

from __future__ import annotations

import fcntl
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from jobsubmit.agent.hosts import code_cache
from jobsubmit.agent.hosts.channel import Channel
from jobsubmit.agent.hosts.host_queue import HostQueue
from jobsubmit.agent.protocol import HostMessage, NodeStatus
from jobsubmit.backends.models import EVERYTHING, JobHandle, LogLine
from jobsubmit.backends.ssh.backend import SshBackend
from jobsubmit.backends.ssh.connection import Answer
from jobsubmit.backends.ssh.logs import HostLines, follow
from jobsubmit.backends.ssh.mirror import Mirror
from jobsubmit.backends.ssh.preflight import HostFacts, _of_all, _of_each
from jobsubmit.backends.ssh.spec import SshBackendSpec
from jobsubmit.common.store_address import StoreAddress
from jobsubmit.config import Settings
from jobsubmit.errors import BackendError

# ── messages ────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    one, other = socket.socketpair(socket.AF_UNIX)
    yield one, other
    one.close()
    other.close()


class _Plain:
    """A socket of a pair, which has no options of TCP."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection

    def setsockopt(self, *_: object) -> None:
        pass

    def __getattr__(self, name: str) -> Any:
        return getattr(self.connection, name)


def channel(connection: socket.socket, key: str, *, is_listener: bool) -> Channel:
    return Channel(_Plain(connection), key, is_listener=is_listener)  # type: ignore[arg-type]


def exchange(listener: Channel, caller: Channel) -> list[HostMessage]:
    """Let both sides read; return what the listener got."""
    found: list[HostMessage] = []
    for _ in range(5):
        listener.flush()
        caller.receive()
        found += listener.receive()
    return found


def test_messages_arrive_in_order_both_ways(ends: tuple[socket.socket, socket.socket]) -> None:
    listener, caller = channel(ends[0], "k", is_listener=True), channel(ends[1], "k", is_listener=False)
    caller.send({"what": "hello", "index": 1})  # before the random line is here
    caller.send({"what": "beat"})
    assert [message["what"] for message in exchange(listener, caller)] == ["hello", "beat"]
    listener.send({"what": "take"})
    assert [message["what"] for message in caller.receive()] == ["take"]
    assert not listener.is_over
    assert not caller.is_over


def test_without_the_key_nothing_is_believed(ends: tuple[socket.socket, socket.socket]) -> None:
    listener, caller = channel(ends[0], "k", is_listener=True), channel(ends[1], "another", is_listener=False)
    caller.send({"what": "hello", "index": 1})
    assert exchange(listener, caller) == []
    assert listener.is_over


def test_a_message_that_was_sent_before_is_not_believed_again(ends: tuple[socket.socket, socket.socket]) -> None:
    listener, caller = channel(ends[0], "k", is_listener=True), channel(ends[1], "k", is_listener=False)
    listener.flush()
    caller.receive()
    caller.send({"what": "stop"})
    recorded = ends[0].recv(4096, socket.MSG_PEEK)
    assert [message["what"] for message in listener.receive()] == ["stop"]
    ends[1].setblocking(True)
    ends[1].sendall(recorded)
    assert listener.receive() == []
    assert listener.is_over


def test_a_stranger_cannot_fill_the_memory(
    ends: tuple[socket.socket, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("jobsubmit.agent.hosts.channel._LONGEST_FROM_STRANGER", 1000)
    listener = channel(ends[0], "k", is_listener=True)
    ends[1].sendall(b"x" * 5000)
    assert listener.receive() == []
    assert listener.is_over


# ── the queue ───────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_first_that_was_submitted_is_the_first_to_have_the_host(tmp_path: Path) -> None:
    late, early = HostQueue(str(tmp_path), "late", 2.0), HostQueue(str(tmp_path), "early", 1.0)
    assert late.take() == "job early is before this one in its queue"
    assert early.take() == ""
    assert early.take() == ""  # twice is fine
    early.release()
    assert late.take() == "job early is before this one in its queue"
    early.leave()
    assert late.take() == ""
    after = HostQueue(str(tmp_path), "after", 3.0)
    assert after.take() == "job late is before this one in its queue"
    late.leave()
    assert after.take() == ""
    assert after.died == ""


HOLD = """
import sys, time
from jobsubmit.agent.hosts.host_queue import HostQueue
queue = HostQueue(sys.argv[1], "dead", 1.0)
assert queue.take() == ""
print("has it", flush=True)
time.sleep(60)
"""


def test_a_job_that_was_killed_has_lost_the_host(tmp_path: Path) -> None:
    words = [sys.executable, "-c", HOLD, str(tmp_path)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "has it\n"
        waiting = HostQueue(str(tmp_path), "next", 2.0)
        assert waiting.take() == "job dead is before this one in its queue"
        holder.kill()
        holder.wait()
    assert waiting.take() == ""
    assert waiting.died == "dead"
    waiting.leave()
    (left,) = (tmp_path / "queue" / socket.gethostname()).iterdir()
    assert left.name == "taken"


# ── the cache ───────────────────────────────────────────────────────────────────────────────────────────────────────


def entry(root: Path, name: str, size: int, age: float) -> Path:
    path = root / "cache" / name
    path.mkdir(parents=True)
    (path / "archive").write_bytes(b"x" * size)
    os.utime(path, (time.time() - age, time.time() - age))
    return path


def test_what_was_not_used_for_the_longest_time_goes_first(tmp_path: Path) -> None:
    old, middle, new = (entry(tmp_path, f"code/{n}", 100, age) for n, age in (("a", 300), ("b", 200), ("c", 100)))
    needed = entry(tmp_path, "inputs/d", 100, 400)
    with (tmp_path / "cache/inputs/d.lock").open("ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_SH)
        code_cache.trim(str(tmp_path), 250)
        assert [path.exists() for path in (needed, old, middle, new)] == [True, False, True, True]
    code_cache.trim(str(tmp_path), 250)
    assert [path.exists() for path in (needed, middle, new)] == [False, True, True]


@pytest.mark.parametrize("name", ["../x", "code/../../x", "other/x", "code/a/..", ""])
def test_a_name_cannot_leave_the_cache(name: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="not a name in the cache"):
        code_cache.missing(str(tmp_path), [name])


# ── what hosts say of a job ─────────────────────────────────────────────────────────────────────────────────────────

RUNNING: NodeStatus = {"state": "RUNNING", "reason": "", "message": ""}
GIVEN_UP: NodeStatus = {"state": "FAILED", "reason": "NODE_FAILED", "message": "node 0 was lost", "ended": 1.0}
SILENT = BackendError("gpu1 did not answer", may_pass=True)


def told(*, is_alive: bool) -> Answer:
    return Answer({"is_known": True, "is_alive": is_alive, "is_cancelled": False}, b"")


@pytest.mark.parametrize(
    ("answers", "state", "is_kept"),
    [
        ((told(is_alive=True), told(is_alive=False), told(is_alive=True)), "RUNNING", False),
        ((SILENT, told(is_alive=False), told(is_alive=True)), "RUNNING", False),  # gpu2 was cut off and has given up
        ((SILENT, told(is_alive=False), told(is_alive=False)), "FAILED", False),
        ((told(is_alive=False), told(is_alive=False), told(is_alive=False)), "FAILED", True),
    ],
)
def test_what_one_host_has_concluded_counts_only_if_none_runs_the_job(
    answers: tuple[Answer | BackendError, ...],
    state: str,
    is_kept: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    backend = SshBackend(Settings(StoreAddress(), None, tmp_path))
    mirror = Mirror(tmp_path / "ssh/j")
    mirror.remember(("gpu1", "gpu2", "gpu3"), "~/.jobsubmit")
    for index, status in ((0, RUNNING), (1, GIVEN_UP)):
        (mirror.folder / "hosts" / str(index)).mkdir(parents=True)
        (mirror.folder / "hosts" / str(index) / "status.json").write_text(json.dumps(status))
    monkeypatch.setattr("jobsubmit.backends.ssh.backend._refresh", lambda job: list(answers))
    found = backend.status(JobHandle("ssh", "gpu1,gpu2,gpu3/j")).state
    assert found in (state, "STARTING" if state == "RUNNING" else state)
    assert (mirror.conclusion is not None) == is_kept


def test_a_host_that_was_cut_off_does_not_blame_the_others_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = SshBackend(Settings(StoreAddress(), None, tmp_path))
    mirror, job = Mirror(tmp_path / "ssh/j"), JobHandle("ssh", "gpu1,gpu2/j")
    mirror.remember(("gpu1", "gpu2"), "~/.jobsubmit")
    answers: list[list[Answer | BackendError]] = [[SILENT, told(is_alive=False)], [told(is_alive=False)] * 2]
    monkeypatch.setattr("jobsubmit.backends.ssh.backend._refresh", lambda job: answers.pop(0))
    for index, status in ((0, RUNNING), (1, GIVEN_UP)):
        (mirror.folder / "hosts" / str(index)).mkdir(parents=True)
        (mirror.folder / "hosts" / str(index) / "status.json").write_text(json.dumps(status))
    assert backend.status(job).message == "node 0 was lost"
    blaming = {**GIVEN_UP, "message": "node 1 was lost: gpu2 did not answer for 8 s"}
    (mirror.folder / "hosts/0/status.json").write_text(json.dumps(blaming))
    assert backend.status(job).message == "node 0 was lost"
    assert backend.status(job).message == "node 0 was lost"


class _Source(HostLines):
    def __init__(self, problem: Exception) -> None:
        super().__init__("gpu1", 0, "~", "j", EVERYTHING)
        self.problem = problem

    def read(self, *, follow: bool) -> Iterator[LogLine]:
        raise self.problem
        yield


@pytest.mark.parametrize("problem", [RuntimeError("broken"), BackendError("gone", may_pass=False)])
def test_what_breaks_while_a_job_is_followed_ends_it(problem: Exception) -> None:
    lines = follow([_Source(problem)], lambda: True)
    if isinstance(problem, BackendError):
        assert "gone" in next(lines).text
        assert next(lines, None) is None
    else:
        with pytest.raises(RuntimeError):
            next(lines)


def test_a_line_that_was_cut_off_does_not_count() -> None:
    source = HostLines("gpu1", 0, "~", "j", EVERYTHING)
    assert source._parse(b"1.000 1 [rank 3] hello") is None
    line = source._parse(b"1.000 1 [rank 3] hello\n")
    assert line is not None
    assert (line.rank, line.text) == (3, "hello")


# ── what is wrong with hosts ────────────────────────────────────────────────────────────────────────────────────────

GOOD: dict[str, Any] = {
    "python": {"program": "/usr/bin/python3", "version": "3.11", "torch": "2.9.1", "nccl": "2.27.5"},
    "missing_tools": [],
    "is_writable": True,
    "gpus": ["/dev/nvidia0"],
    "gpu_users": [],
    "driver": "580.1",
    "disk": 1 << 40,
    "shared_memory": 1 << 34,
    "address": "10.0.0.1",
}
SPEC = SshBackendSpec(kind="ssh", hosts=("gpu1", "gpu2"))


def problems(other: dict[str, Any], skew: float = 0.0) -> list[str]:
    found = {
        "gpu1": HostFacts({**GOOD, "identity": "one"}, 0.0),
        "gpu2": HostFacts({**GOOD, "identity": "two", **other}, skew),
    }
    return [problem.text for problem in (*_of_each(SPEC, found, needs_torch=True), *_of_all(found))]


@pytest.mark.parametrize(
    ("other", "skew", "said"),
    [
        ({}, 31.0, "the clock of gpu2 is 31 s ahead of that of gpu1"),
        ({}, -100.0, "the clock of gpu1 is 100 s ahead of that of gpu2"),
        (
            {"python": {**GOOD["python"], "nccl": "2.21.5"}},
            0.0,
            "the versions of NCCL differ: gpu1: 2.27.5, gpu2: 2.21.5",
        ),
        ({"python": {**GOOD["python"], "version": "3.9"}}, 0.0, "the versions of Python differ: gpu1: 3.11, gpu2: 3.9"),
        ({"python": {"problem": "`python` is not on its PATH"}}, 0.0, "gpu2: `python` is not on its PATH"),
        ({"shared_memory": 1 << 20}, 0.0, "gpu2: /dev/shm has only 1 MiB left"),
        ({"disk": 100 << 20}, 0.0, "gpu2: the disk of ~/.jobsubmit has only 100 MiB left"),
        ({"driver": ""}, 0.0, "gpu2 has GPUs, but NVIDIA's driver is not loaded"),
        ({"missing_tools": ["bash"]}, 0.0, "gpu2: not on its PATH: bash"),
        ({"gpu_users": ["GPU 0 is used by process 7 (python, user bob)"]}, 0.0, "gpu2: GPU 0 is used by process 7"),
        ({"is_writable": False}, 0.0, "gpu2: ~/.jobsubmit cannot be written"),
    ],
)
def test_what_is_certain_to_go_wrong_is_said(other: dict[str, Any], skew: float, said: str) -> None:
    assert said in problems(other, skew)[0]


@pytest.mark.parametrize(
    ("other", "skew"),
    [
        ({}, 0.0),
        ({}, 29.0),
        ({"driver": "570.1"}, 0.0),  # a small difference of drivers breaks nothing
        ({"gpus": [], "driver": "", "shared_memory": 1 << 20}, 0.0),
        ({"disk": None, "shared_memory": None}, 0.0),
        ({"gpu_users": ["GPU 0 is used by process 7 (python, user me, job mine-x1)"]}, 0.0),  # that waits in the queue
    ],
)
def test_what_is_not_certain_refuses_nothing(other: dict[str, Any], skew: float) -> None:
    assert problems(other, skew) == []
