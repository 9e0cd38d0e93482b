"""What Slurm's clients print → how a job is; the clients are stand-ins, what they print was recorded (22.05)."""

from __future__ import annotations

import os
import re
import stat
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from memory_store import MemoryStore
from node_status import ended, failed

from jobsubmit.agent import status_file
from jobsubmit.agent.job_directory import JobDirectory
from jobsubmit.agent.protocol import FetchOrder, NodeStatus
from jobsubmit.backends.models import JobHandle, State
from jobsubmit.backends.protocol import Delivery, Request
from jobsubmit.backends.shared.agent_archive import agent_archive
from jobsubmit.backends.slurm import clients
from jobsubmit.backends.slurm.backend import SlurmBackend, _write_agent
from jobsubmit.backends.slurm.spec import SlurmBackendSpec
from jobsubmit.config import load_settings
from jobsubmit.errors import BackendError, JobNotFoundError
from jobsubmit.plan.script import Script
from jobsubmit.transfer.code_ref import CodeRef

HANDLE = JobHandle("slurm", "test/4711")
SHOWN = (
    "JobId=4711 JobName=wrap UserId=root(0) GroupId=root(0) MCS_label=N/A Priority=0 Nice=0 Account=(null) QOS=(null) "
    "JobState={state} Reason={reason} Dependency=(null) Requeue=1 Restarts={restarts} BatchFlag=1 ExitCode=0:0 "
    "RunTime=00:00:00 TimeLimit=UNLIMITED TimeMin=N/A SubmitTime=2026-11-22T22:23:30 EligibleTime=Unknown "
    "AccrueTime=Unknown StartTime={start} EndTime=Unknown Deadline=N/A SuspendTime=None SecsPreSuspend=0 "
    "LastSchedEval=2026-11-22T22:23:30 Scheduler=Main Partition=main AllocNode:Sid=localhost:1457 ReqNodeList=(null) "
    "ExcNodeList=(null) NodeList={nodes} NumNodes=2 NumCPUs=2 NumTasks=2 CPUs/Task=1 ReqB:S:C:T=0:0:*:* "
    "TRES=cpu=2,mem=8000M,node=2,billing=2 Command=(null) WorkDir=/home/user Comment={comment} "
    " StdErr={folder}/slurm.log StdIn=/dev/null StdOut={folder}/slurm.log Power= \n"
)
UNKNOWN = "slurm_load_jobs error: Invalid job id specified\n"
NO_ACCOUNTING = "Slurm accounting storage is disabled\n"
DOWN = "slurm_load_jobs error: Unable to contact slurm controller (connect failure)\n"


class Clients:
    """Stand in for Slurm's clients: the first words of a command → exit code and what is printed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.asked: list[str] = []
        self.sent = ""
        self.answers: dict[str, tuple[int, str]] = {
            "scontrol show config": (0, "ClusterName             = test\n"),
            "sacct": (1, NO_ACCOUNTING),
            "scancel": (0, ""),
        }

    def ask(self, command: Sequence[str], *, stdin: str = "", **_: Any) -> subprocess.CompletedProcess[str]:
        text = " ".join(command)
        self.asked.append(text)
        self.sent = stdin or self.sent
        code, said = next((self.answers[start] for start in self.answers if text.startswith(start)), (1, "no such"))
        return subprocess.CompletedProcess(command, code, said if code == 0 else "", "" if code == 0 else said)

    def job(self, state: str, reason: str = "None", restarts: int = 0, **fields: Any) -> None:
        """Say how the job is; its nodes have begun unless there is no start."""
        usual = {"start": "2026-11-22T22:24:00", "nodes": "slurm[1-2]", "comment": "jobsubmit:my-job"}
        words = {"folder": self.folder, **usual, **fields}
        text = SHOWN.format(state=state, reason=reason, restarts=restarts, **words)
        self.answers["scontrol --oneliner show job"] = 0, text
        clients._seen.clear()


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Clients:
    """Return the clients of a Slurm that knows one job of ours, whose folder is there."""
    (tmp_path / "my-job").mkdir()
    (tmp_path / "my-job/request.json").write_text('{"nodes": 2}')
    found = Clients(tmp_path / "my-job")
    monkeypatch.setattr(clients, "run_client", found.ask)
    clients._seen.clear()
    clients.cluster_name.cache_clear()
    return found


@pytest.fixture
def backend() -> SlurmBackend:
    return SlurmBackend(load_settings())


def node_said(slurm: Clients, node: int, status: NodeStatus, attempt: int = 0) -> None:
    """Have a node leave its status."""
    folder = slurm.folder / f"run-{attempt}/node-{node}"
    folder.mkdir(parents=True, exist_ok=True)
    status_file.write_status(str(folder), status)


@pytest.mark.parametrize(
    ("word", "state", "reason"),
    [
        ("PENDING", State.QUEUED, ""),
        ("CONFIGURING", State.STARTING, ""),
        ("RUNNING", State.STARTING, ""),
        ("COMPLETING", State.STARTING, ""),
        ("SUSPENDED", State.QUEUED, "SUSPENDED"),
        ("REQUEUE_HOLD", State.QUEUED, "HELD"),
        ("COMPLETED", State.SUCCEEDED, ""),
        ("FAILED", State.FAILED, "EXIT_CODE"),
        ("CANCELLED", State.CANCELLED, ""),
        ("TIMEOUT", State.FAILED, "TIMEOUT"),
        ("NODE_FAIL", State.FAILED, "NODE_FAILED"),
        ("OUT_OF_MEMORY", State.FAILED, "OOM"),
        ("PREEMPTED", State.FAILED, "PREEMPTED"),
        ("A_STATE_OF_TOMORROW", State.STARTING, "A_STATE_OF_TOMORROW"),
    ],
)
def test_words_of_slurm(word: str, state: State, reason: str, slurm: Clients, backend: SlurmBackend) -> None:
    """No node has said anything yet: a job that runs is starting then."""
    slurm.job(word)
    status = backend.status(HANDLE)
    assert (status.state, status.reason) == (state, reason)
    assert status.details["slurm"] == word
    assert status.details["slurm_nodes"] == "slurm[1-2]"


@pytest.mark.parametrize(
    ("reason", "text"),
    [
        ("Resources", "waiting for free nodes"),
        ("Priority", "other jobs have higher priority"),
        ("JobHeldUser", "you hold the job"),
        ("QOSMaxJobsPerUserLimit", "a limit of your account or QOS is reached (QOSMaxJobsPerUserLimit)"),
        ("ReqNodeNotAvail,_UnavailableNodes:n1", "down, drained or reserved"),
        ("SomethingNew", "Slurm's reason: SomethingNew"),
    ],
)
def test_why_a_job_waits(reason: str, text: str, slurm: Clients, backend: SlurmBackend) -> None:
    slurm.job("PENDING", reason, start="Unknown", nodes="")
    assert text in backend.status(HANDLE).message


def test_how_long_it_waited(slurm: Clients, backend: SlurmBackend) -> None:
    slurm.job("RUNNING")
    (queue,) = [step for step in backend.status(HANDLE).steps if step.name == "queue"]
    assert queue.start == time.mktime(time.strptime("2026-11-22 22:23:30", "%Y-%m-%d %H:%M:%S"))
    assert queue.end == queue.start + 30


def test_nodes_that_prepare_are_starting(slurm: Clients, backend: SlurmBackend) -> None:
    slurm.job("RUNNING")
    node_said(slurm, 0, ended("STARTING"))
    assert backend.status(HANDLE).state is State.STARTING
    node_said(slurm, 1, ended("RUNNING"))
    assert backend.status(HANDLE).state is State.RUNNING
    status_file.ask_cancel(str(slurm.folder), None)
    assert backend.status(HANDLE).state is State.CANCELLING


def test_the_node_that_failed_first_is_named_not_its_victim(slurm: Clients, backend: SlurmBackend) -> None:
    slurm.job("FAILED")
    node_said(slurm, 0, failed(0, 10.0, is_victim=True))
    node_said(slurm, 1, failed(1, 10.5))
    status = backend.status(HANDLE)
    assert status.failure is not None
    assert (status.failure.node, status.failure.rank, status.failure.exit_code) == (1, 1, 7)
    assert status.failure.victims == (0,)


def test_of_a_job_that_slurm_ended_its_own_reason_counts(slurm: Clients, backend: SlurmBackend) -> None:
    slurm.job("TIMEOUT")
    node_said(slurm, 1, failed(1, 10.5))
    status = backend.status(HANDLE)
    assert (status.reason, status.message) == ("TIMEOUT", "Slurm ended the job at its time limit")


def test_only_the_last_attempt_decides(slurm: Clients, backend: SlurmBackend) -> None:
    slurm.job("COMPLETED", restarts=1)
    for node in (0, 1):
        node_said(slurm, node, failed(node, 10.0 + node))
        node_said(slurm, node, ended("SUCCEEDED"), attempt=1)
    status = backend.status(HANDLE)
    assert (status.state, status.failure) == (State.SUCCEEDED, None)
    (recovery,) = status.recoveries
    assert (recovery.what, recovery.struck_at) == ("restart 1 after EXIT_CODE", 10.0)


def test_a_requeued_job_is_recovering(slurm: Clients, backend: SlurmBackend) -> None:
    slurm.job("PENDING", "BeginTime", restarts=2)
    status = backend.status(HANDLE)
    assert status.state is State.RECOVERING
    assert status.message.startswith("restart 2: its begin time is in the future")


def test_a_job_that_failed_before_its_nodes_began_is_explained_by_its_log(
    slurm: Clients, backend: SlurmBackend
) -> None:
    slurm.job("FAILED")
    (slurm.folder / "slurm.log").write_text("one\n\nsrun: error: no such file\n")
    assert backend.status(HANDLE).message == "one; srun: error: no such file"


# ── whose job it is ─────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("fields", [{"comment": "(null)"}, {"comment": "jobsubmit:other"}, {"folder": "/tmp"}])
def test_a_job_of_somebody_elses_is_not_ours(fields: dict[str, Any], slurm: Clients, backend: SlurmBackend) -> None:
    slurm.job("RUNNING", **fields)
    for act in (backend.status, backend.cancel, backend.delete):
        with pytest.raises(JobNotFoundError):
            act(HANDLE)
    assert "scancel 4711" not in slurm.asked
    assert slurm.folder.is_dir()


def test_a_job_of_another_cluster(slurm: Clients, backend: SlurmBackend) -> None:
    with pytest.raises(JobNotFoundError, match="elsewhere"):
        backend.status(JobHandle("slurm", "elsewhere/1"))


def test_what_slurm_has_forgotten_is_told_by_its_folder(slurm: Clients, backend: SlurmBackend) -> None:
    slurm.answers["scontrol --oneliner show job"] = 1, UNKNOWN
    with pytest.raises(JobNotFoundError):
        backend.status(HANDLE)
    note = load_settings().state_dir / "slurm-jobs/test-4711"
    note.parent.mkdir(parents=True)
    note.write_text(str(slurm.folder))
    assert (backend.status(HANDLE).state, backend.status(HANDLE).reason) == (State.LOST, "FORGOTTEN")
    for node in (0, 1):
        node_said(slurm, node, ended("SUCCEEDED"))
    assert backend.status(HANDLE).state is State.SUCCEEDED


def test_the_accounting_knows_older_jobs(slurm: Clients, backend: SlurmBackend) -> None:
    slurm.answers["scontrol --oneliner show job"] = 1, UNKNOWN
    slurm.answers["sacct"] = 0, "CANCELLED by 0|2026-11-22T22:23:30|2026-11-22T22:24:00|slurm[1-2]|1\n"
    found = clients.look("4711")
    assert found is not None
    assert (found.state, found.restarts, found.nodes, found.folder) == ("CANCELLED", 1, "slurm[1-2]", None)


def test_a_controller_that_does_not_answer_is_no_reason_to_call_a_job_lost(
    slurm: Clients, backend: SlurmBackend
) -> None:
    slurm.answers["scontrol --oneliner show job"] = 1, DOWN
    with pytest.raises(BackendError, match="Unable to contact") as refused:
        backend.status(HANDLE)
    assert refused.value.may_pass
    assert "sinfo" in refused.value.hint


# ── what is sent ────────────────────────────────────────────────────────────────────────────────────────────────────


def delivery() -> Delivery:
    order: FetchOrder = {"code": {"layout": "archive"}, "script": {"url": "", "sha256": ""}, "code_name": "code"}
    store, code = MemoryStore(), CodeRef("memory://store/x", "x", "archive", "code", "d" * 64)
    return Delivery({"TOKEN": "value"}, order, store, store, code, Script("true\n"))


def submitted(backend: SlurmBackend, folder: Path) -> Request:
    spec = SlurmBackendSpec(kind="slurm", shared_dir=str(folder))
    return Request("a-job", {"job.sbatch": "#!/bin/bash\n"}, spec)


def test_the_document_goes_to_sbatch_as_it_was_shown(slurm: Clients, backend: SlurmBackend, tmp_path: Path) -> None:
    slurm.answers["sbatch"] = 0, "815;test\n"
    assert str(backend.submit(submitted(backend, tmp_path), delivery())) == "slurm://test/815"
    assert slurm.sent == "#!/bin/bash\n"
    assert (tmp_path / "a-job").is_dir()
    with pytest.raises(BackendError, match="was already submitted"):
        backend.submit(submitted(backend, tmp_path), delivery())


def test_a_job_whose_number_was_lost_on_the_way_is_found(slurm: Clients, backend: SlurmBackend, tmp_path: Path) -> None:
    slurm.answers["sbatch"] = 1, "sbatch: error: Batch job submission failed: Socket timed out"
    slurm.answers["squeue"] = 0, "2 jobsubmit:my-job\n815 jobsubmit:a-job\n9 jobsubmit:a-job\n"
    assert str(backend.submit(submitted(backend, tmp_path), delivery())) == "slurm://test/815"


@pytest.mark.parametrize(
    ("said", "field"),
    [
        ("invalid partition specified: nosuch", "backend.partition"),
        ("Invalid account or account/partition combination specified", "backend.account"),
        ("Invalid qos specification", "backend.qos"),
        ("Requested time limit is invalid (missing or exceeds some limit)", "backend.time"),
    ],
)
def test_a_refused_job_leaves_nothing(
    said: str, field: str, slurm: Clients, backend: SlurmBackend, tmp_path: Path
) -> None:
    slurm.answers["sbatch"] = 1, f"sbatch: error: {said}"
    slurm.answers["squeue"] = 0, ""
    with pytest.raises(BackendError, match=re.escape(f"Slurm refuses the job: {said}")) as refused:
        backend.submit(submitted(backend, tmp_path), delivery())
    assert field in refused.value.hint
    assert not (tmp_path / "a-job").exists()


# ── the end ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(("word", "by_slurm"), [("PENDING", True), ("RUNNING", False), ("COMPLETED", False)])
def test_nodes_that_run_end_their_part_themselves(
    word: str, by_slurm: bool, slurm: Clients, backend: SlurmBackend
) -> None:
    slurm.job(word)
    if word == "RUNNING":
        node_said(slurm, 0, ended("RUNNING"))
    backend.cancel(HANDLE, 5)
    assert ("scancel 4711" in slurm.asked) == by_slurm
    assert status_file.cancel_grace(str(slurm.folder), 10) == (None if word == "COMPLETED" else 5)


def test_nodes_that_do_not_end_are_ended_by_slurm(slurm: Clients, backend: SlurmBackend) -> None:
    slurm.job("RUNNING")
    node_said(slurm, 0, ended("RUNNING"))
    backend.cancel(HANDLE, 5)
    long_ago = time.time() - 60
    os.utime(JobDirectory(slurm.folder).cancel, (long_ago, long_ago))
    backend.cancel(HANDLE, 5)
    assert "scancel 4711" in slurm.asked


def test_the_agent_below_a_folder_of_several_users_serves_all_of_them(tmp_path: Path) -> None:
    umask = os.umask(0o077)
    try:
        _write_agent(tmp_path / "agent.pyz")
    finally:
        os.umask(umask)
    assert (tmp_path / "agent.pyz").read_bytes() == agent_archive()
    assert stat.S_IMODE((tmp_path / "agent.pyz").stat().st_mode) == 0o644


def test_no_key_of_a_cloud_reaches_a_job_unasked(monkeypatch: pytest.MonkeyPatch) -> None:
    keys = ("AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "OBS_AK", "HUAWEICLOUD_SDK_AK", "HUAWEICLOUD_SDK_SK")
    for name in (*keys, "AWS_REGION", "HUAWEICLOUD_SDK_PROJECT_ID"):
        monkeypatch.setenv(name, "x")
    kept = clients.clean_environment()
    assert not set(keys) & set(kept)
    assert {"AWS_REGION", "HUAWEICLOUD_SDK_PROJECT_ID", "PATH"} <= set(kept)
