"""The parts of the local gang that decide without processes: who failed first, ports, addresses, environments."""

from __future__ import annotations

import errno
import signal
import socket
from pathlib import Path
from typing import Any
from urllib.parse import quote, quote_plus

import pytest

from jobsubmit.agent import events
from jobsubmit.agent.job_directory import JobDirectory
from jobsubmit.agent.protocol import Assignment, Event
from jobsubmit.agent.recovery.first_failure import RankTable, are_alike
from jobsubmit.agent.recovery.rank_failure import LINES, choose_lines, without_own_frames
from jobsubmit.agent.supervisor import network
from jobsubmit.agent.supervisor.environment import NodeEnvironments
from jobsubmit.agent.supervisor.job import Job
from jobsubmit.agent.supervisor.node_scope import AllNodes, share_gpus
from jobsubmit.spec.field_types import env_name_problem


def gang(*events: Event, ranks: int = 4, assumed: bool = False) -> RankTable:
    found = RankTable()
    for rank in range(ranks):
        found.take(
            {"event": "rank_start", "t": 0.0, "node": rank // 2, "rank": rank, "pid": 100 + rank, "is_assumed": assumed}
        )
    for event in events:
        found.take(event)
    return found


def ended(rank: int, code: int, t: float) -> Event:
    return {"event": "child_exit", "pid": 100 + rank, "code": code, "t": t}


def raised(rank: int, t: float, *, victim: bool) -> Event:
    return {"event": "rank_exception", "pid": 100 + rank, "is_victim": victim, "t": t}


def first(found: RankTable) -> tuple[int | None, int]:
    failure = found.failures()[0]
    return failure.rank, failure.code


def left(rank: int, t: float) -> Event:
    return {"event": "rank_end", "pid": 100 + rank, "t": t}


def test_a_rank_that_ended_well_while_others_trained_is_the_cause() -> None:
    found = gang(left(1, 1.0), raised(0, 1.2, victim=True), ended(1, 0, 3.0), ended(0, 1, 1.3))
    gone = found.ended_before(found.failures()[0])
    assert gone
    assert (gone.rank, gone.end_time()) == (1, 1.0)


@pytest.mark.parametrize(
    "events",
    [
        (raised(0, 1.0, victim=False), ended(1, 0, 0.5)),  # it has an error of its own
        (raised(0, 1.0, victim=True), left(1, 2.0), ended(1, 0, 2.0)),  # it was told to end, and could
        (raised(0, 1.0, victim=True), ended(1, 3, 1.1)),
    ],
)
def test_a_rank_that_ended_for_a_reason_is_no_cause(events: tuple[Event, ...]) -> None:
    found = gang(*events)
    assert found.ended_before(found.failures()[0]) is None


def test_nothing_failed() -> None:
    assert gang(ended(0, 0, 1.0)).failures() == []


def test_the_first_in_time() -> None:
    assert first(gang(ended(1, 5, 2.0), ended(2, 7, 1.0))) == (2, 7)


def test_a_victim_that_raises_before_the_cause_is_collected_is_not_the_first() -> None:
    found = gang(raised(0, 1.0, victim=True), ended(3, 7, 1.03), ended(0, 1, 1.04))
    assert first(found) == (3, 7)
    assert found.failures()[0].is_clear()


def test_only_victims_are_not_clear() -> None:
    assert not gang(raised(0, 1.0, victim=True)).failures()[0].is_clear()


def test_a_sigterm_of_ours_is_no_cause() -> None:
    found = gang(ended(1, -15, 1.0), ended(3, -9, 2.0))
    assert first(found) == (3, -9)


def test_what_ends_after_we_stopped_the_gang_is_no_cause() -> None:
    found = gang(ended(3, 7, 1.0))
    found.stopped_at = 1.2
    found.take(ended(0, 3, 1.1 + 0.5))
    assert first(found) == (3, 7)


def test_a_leader_is_explained_by_its_ranks_unless_a_signal_killed_it() -> None:
    found = gang(ended(3, 7, 1.0))
    found.leader_exited(1, 1, 0.9)
    assert first(found) == (3, 7)
    found.leader_exited(0, -signal.SIGKILL, 0.8)
    assert first(found) == (None, -signal.SIGKILL)


def test_a_recorded_exception_means_exit_code_1_however_the_process_ended() -> None:
    for code in (-15, -9, -6, 0):
        assert first(gang(raised(2, 1.0, victim=False), ended(2, code, 1.5))) == (2, 1)


def test_a_crash_on_the_way_out_does_not_hide_what_the_rank_asked_for() -> None:
    asked: Event = {"event": "rank_asked_exit", "pid": 103, "code": 7, "t": 1.0}
    failure = gang(asked, ended(3, -signal.SIGABRT, 1.1)).failures()[0]
    assert (failure.rank, failure.code, failure.crashed_by) == (3, 7, signal.SIGABRT)
    assert first(gang(ended(3, -signal.SIGABRT, 1.1))) == (3, -signal.SIGABRT)


def test_a_process_that_may_be_a_helper_counts_only_where_the_boot_file_failed() -> None:
    found = gang(ended(3, 7, 1.0), assumed=True)
    assert found.failures() == []
    found.leader_exited(1, 1, 1.1)
    assert first(found) == (3, 7)


def test_where_ranks_may_be_restarted_only_leaders_count() -> None:
    found = gang(ended(3, 7, 1.0))
    assert found.failures(ranks_count=False) == []
    found.leader_exited(1, 1, 2.0)
    assert found.failures(ranks_count=False)[0].node == 1


def test_a_leased_port_is_refused_to_the_next_lease_but_not_to_the_job() -> None:
    port, held = network.lease_port("job")
    with held:
        other, other_held = network.lease_port("job")
        other_held.close()
        assert other != port
        assert 20000 <= port < 30000
        with socket.socket() as store:
            store.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            store.bind(("0.0.0.0", port))
            store.listen()
        with socket.socket() as stranger, pytest.raises(OSError) as caught:
            stranger.bind(("0.0.0.0", port))
        assert caught.value.errno == errno.EADDRINUSE


def test_every_node_has_an_address_and_their_order_is_that_of_text() -> None:
    addresses = network.node_addresses(250, usable=lambda _: True)
    assert addresses[:2] == ["127.0.0.101", "127.0.0.102"]
    assert len(set(addresses)) == 250
    assert addresses == sorted(addresses)
    assert all(max(map(int, address.split("."))) < 256 for address in addresses)


def test_where_only_one_loopback_address_exists_the_nodes_share_it() -> None:
    assert network.node_addresses(3, usable=lambda address: address == "127.0.0.1") == ["127.0.0.1"] * 3


@pytest.mark.parametrize(
    ("gpus", "nodes", "nproc", "shares"),
    [
        (8, 2, 2, [["0", "1"], ["2", "3"]]),
        (8, 2, None, [["0", "1", "2", "3"], ["4", "5", "6", "7"]]),
        (1, 1, None, [["0"]]),
        (1, 2, None, [[], []]),
        (2, 2, 2, [[], []]),
        (0, 2, 1, [[], []]),
    ],
)
def test_gpus_are_shared_out_evenly_or_not_at_all(
    gpus: int, nodes: int, nproc: int | None, shares: list[list[str]]
) -> None:
    assert share_gpus([str(gpu) for gpu in range(gpus)], nodes, nproc) == shares


def environment(node: int, **request: Any) -> dict[str, str]:
    found = assignment({"nodes": 2, "nproc_per_node": 2, **request}, {"TOKEN": "hush"})
    addresses = ["127.0.0.101", "127.0.0.102"]
    return NodeEnvironments(found, JobDirectory("/jobs/j"), AllNodes(found["request"]), addresses, 23456).of(node, 0)


def assignment(request: dict[str, Any], secrets: dict[str, str]) -> Assignment:
    usual = {
        "job_id": "j",
        "mode": "torchrun",
        "hang_after": 0,
        "env": {},
        "mounts": [],
        "restarts": None,
        "min_nodes": request["nodes"],
    }
    whole: Any = {**usual, "nproc_per_node": None, **request}
    return {"request": whole, "secrets": secrets, "python_folder": "/py", "order": None, "client_folder": "/"}


def test_a_node_finds_the_whole_contract() -> None:
    found = environment(1, env={"MINE": "x"})
    expected = {
        "VC_WORKER_HOSTS": "127.0.0.101,127.0.0.102",
        "VC_WORKER_NUM": "2",
        "VC_TASK_INDEX": "1",
        "MA_NUM_HOSTS": "2",
        "MA_NUM_GPUS": "2",
        "MA_TASK_NAME": "worker",
        "MA_CURRENT_IP": "127.0.0.102",
        "MA_CURRENT_INSTANCE_NAME": "worker-1",
        "MA_JOB_DIR": "/jobs/j/nodes/1",
        "JOBSUBMIT_JOB_ID": "j",
        "JOBSUBMIT_MASTER_PORT": "23456",
        "MINE": "x",
        "TOKEN": "hush",
    }
    assert {name: found[name] for name in expected} == expected


def test_nothing_stray_of_the_shell_reaches_a_node(monkeypatch: pytest.MonkeyPatch) -> None:
    stray = {"RANK", "WORLD_SIZE", "LOCAL_RANK", "NODE_RANK", "MASTER_ADDR", "MASTER_PORT"}
    stray |= {"PET_NNODES", "PET_LOG_DIR", "BASH_ENV", "MA_X", "CDPATH"}
    for name in stray:
        monkeypatch.setenv(name, "stray")
    monkeypatch.setenv("KEPT", "yes")
    monkeypatch.setenv("PYTHONPATH", "/mine")
    found = environment(0)
    assert not stray & set(found)
    assert found["KEPT"] == "yes"
    assert found["PYTHONPATH"].endswith(":/mine")


@pytest.mark.parametrize(
    "name",
    ["PET_STANDALONE", "TORCHELASTIC_X", "NNODES", "MA_X", "VC_X", "JOBSUBMIT_X", "BASH_FUNC_x", "CDPATH", "RANK"],
)
def test_what_a_job_must_not_set_is_what_does_not_reach_it(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert env_name_problem(name)
    monkeypatch.setenv(name, "stray")
    assert environment(0).get(name) != "stray"


def test_what_a_job_may_set_reaches_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """One list decides both: nothing is refused that the shell may leave to a job, and the other way round."""
    for name in ("OMP_NUM_THREADS", "NCCL_DEBUG", "ENV", "TORCH_LOGS", "PETS", "MAIN", "RANKS"):
        assert not env_name_problem(name)
        monkeypatch.setenv(name, "7")
        assert environment(0)[name] == "7"


def test_an_explicit_setting_of_the_job_is_kept() -> None:
    assert environment(0, env={"GLOO_SOCKET_IFNAME": "eth9"})["GLOO_SOCKET_IFNAME"] == "eth9"


def test_without_gpus_and_nproc_a_node_says_one() -> None:
    assert environment(0, nproc_per_node=None)["MA_NUM_GPUS"] == "1"


def test_events_are_read_once_and_whole(tmp_path: Path) -> None:
    reader = events.EventReader(str(tmp_path))
    assert reader.new() == []
    events.append_event(str(tmp_path), "one", text="é\n")
    with Path(JobDirectory(tmp_path).events).open("a") as stream:
        stream.write('{"t": 1, "event": "ha')
    assert [event["event"] for event in reader.new()] == ["one"]
    with Path(JobDirectory(tmp_path).events).open("a") as stream:
        stream.write('lf"}\n')
    assert [event["event"] for event in reader.new()] == ["half"]


def test_a_secret_is_struck_out_as_a_part_of_an_address_too(tmp_path: Path) -> None:
    secret = "p@ss/w:rd ü"
    job = Job(str(tmp_path), assignment({"nodes": 1}, {"TOKEN": secret}))
    line = f"GET http://me:{quote(secret, safe='')}@host/{quote(secret)}?q={quote_plus(secret)} {secret}"
    assert job.without_secrets(line) == "GET http://me:<TOKEN>@host/<TOKEN>?q=<TOKEN> <TOKEN>"


def test_ranks_that_fail_by_themselves_in_the_same_way_are_no_results() -> None:
    def missing(rank: int, t: float) -> Event:
        return {
            "event": "rank_exception",
            "pid": 100 + rank,
            "kinds": ["FileNotFoundError"],
            "is_victim": False,
            "t": t,
        }

    one, two, three = gang(
        missing(3, 1.0),
        missing(0, 1.1),
        raised(1, 1.2, victim=True),
        ended(3, 1, 1.3),
        ended(0, 1, 1.3),
        ended(1, 1, 1.4),
    ).failures()
    assert (one.rank, two.rank, are_alike(two.evidence(), one.evidence())) == (3, 0, True)
    assert (three.rank, are_alike(three.evidence(), one.evidence())) == (1, False)


def test_the_beginning_of_a_long_exception_is_quoted() -> None:
    place = ['  File "train.py", line 4, in load', "    model.load_state_dict(state)"]
    error = ["RuntimeError: Error(s) in loading state_dict for Net:", *(f"\tsize mismatch for {n}" for n in range(60))]
    lines = choose_lines(["step 1", "Traceback (most recent call last):", *place, *error])
    assert lines[:3] == [*place, error[0]]
    assert lines[7:] == ["… (44 lines)", *error[-12:]]
    assert len(lines) == LINES
    short = ["step 1", "Traceback (most recent call last):", *place, *error[:5]]
    assert choose_lines(short) == short
    assert choose_lines(error) == error[-LINES:]


def test_the_last_frame_of_the_jobs_own_code_is_quoted() -> None:
    own = ['  File "/jobs/1/code/main.py", line 47, in main', '    names = torch.hub.list("xcit")']
    library = [
        part
        for n in range(30)
        for part in (f'  File "/usr/lib/python3.11/urllib/request.py", line {n}, in open', "    return open()")
    ]
    lines = choose_lines(["step 1", "Traceback (most recent call last):", *own, *library, "URLError: no route"])
    assert lines[:3] == [*own, "… (44 lines)"]
    assert lines[-1] == "URLError: no route"
    assert len(lines) == LINES
    alone = ["Traceback (most recent call last):", *library, "URLError: no route"]
    assert choose_lines(alone) == alone[-LINES:]


def test_an_exception_before_a_crash_in_compiled_code_is_quoted() -> None:
    said = ["Traceback (most recent call last):", '  File "code/train.py", line 40, in main', "    loss.item()"]
    error = ["torch.AcceleratorError: CUDA error: misaligned address", "CUDA kernel errors might be reported later"]
    crash = [
        f"frame #{n}: c10d::ProcessGroupNCCL::Watchdog::run() + 0x157 (0x7f in libtorch_cuda.so)" for n in range(9)
    ]
    after = ["terminate called after throwing an instance of 'c10::DistBackendError'"] + [
        f"  what {n}" for n in range(30)
    ]
    lines = without_own_frames([f"[rank0]: {line}" for line in (*said, *error)] + crash + after)
    assert not any("frame #" in line for line in lines)
    assert f"[rank0]: {error[0]}" in choose_lines(lines)


def test_frames_of_our_own_are_not_shown() -> None:
    ours = f'  File "{Path(events.__file__).parent}/rank_reporter.py", line 297, in dying'
    lines = [
        "Traceback (most recent call last):",
        ours,
        "    return function(*args)",
        "           ^^^^^^^^^^^^^^^",
        '  File "code/train.py", line 3, in work',
        "    raise ValueError(1)",
        "ValueError: 1",
        "Extension modules: numpy._core._multiarray_umath, torch._C (total: 2)",
    ]
    assert without_own_frames(lines) == [lines[0], *lines[4:7]]
    assert without_own_frames(lines[4:7]) == lines[4:7]
