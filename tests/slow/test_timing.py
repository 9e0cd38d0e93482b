"""What `profile: sync` measures of real trainings: it is right, of the right rank and cause, and never in the way."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from command import Command, job_dir, job_id
from ruamel.yaml import YAML

from jobsubmit.agent.job_directory import JobDirectory
from jobsubmit.agent.protocol import REQUEST
from jobsubmit.backends.shared.agent_archive import agent_archive
from jobsubmit.backends.shared.agent_request import build_node_request
from jobsubmit.backends.shared.agent_status import read_timing_files
from jobsubmit.config import load_settings
from jobsubmit.jobs.prepare import Demands, prepare
from jobsubmit.report.steps import Sync, measure_syncs
from jobsubmit.report.timing_files import parse_processes
from jobsubmit.spec.loader import load
from jobsubmit.stores.opening import open_store
from jobsubmit.transfer.fetch_plan import fetch_order
from jobsubmit.transfer.upload import upload, upload_script

TIMED = Path(__file__).parents[1] / "support/timed"

pytestmark = pytest.mark.needs("torch")


def timed_job(folder: Path, *, nproc: int = 1, boot_file: str = "train.py", **more: Any) -> Path:
    """Write the job file of a training on two nodes that is timed; return its path."""
    fields = {
        "name": "timed",
        "mode": "torchrun",
        "code_dir": str(TIMED),
        "boot_file": boot_file,
        "profile": "sync",
        "resources": {"nodes": 2, "nproc_per_node": nproc},
        **more,
    }
    with (folder / "job.yaml").open("w", encoding="utf-8") as stream:
        YAML(typ="safe").dump(fields, stream)
    return folder / "job.yaml"


def trained(jobsubmit: Command, job: Path, *flags: str) -> tuple[str, dict[str, Any]]:
    """Run a training to its end; return its id and its report."""
    done = jobsubmit("create", job, "--follow", *flags, timeout=180)
    found = job_id(done.stdout)
    return found, jobsubmit.json("report", found)


def correlation(first: list[float], second: list[float]) -> float:
    """Return how much two lists go together (Pearson's r)."""
    one, other = statistics.fmean(first), statistics.fmean(second)
    both = sum((x - one) * (y - other) for x, y in zip(first, second, strict=True))
    return float(both / (sum((x - one) ** 2 for x in first) * sum((y - other) ** 2 for y in second)) ** 0.5)


def test_exposed_communication_is_what_a_hook_of_the_users_measures(jobsubmit: Command, tmp_path: Path) -> None:
    """10 million parameters, in several buckets, and other times in every step.

    The hook times from when the last bucket goes off until all are averaged. The gradients lie in the buckets, for
    DistributedDataParallel counts copying them from there, which no hook sees.
    """
    (tmp_path / "out").mkdir()
    own = {"own_hook": 1, "vary": 1, "view": 1, "out": str(tmp_path / "out")}
    job = timed_job(tmp_path, hyperparameters={"steps": 80, **own})
    found, report = trained(jobsubmit, job)
    assert len(report["syncs"][0]["buckets"]) > 1
    for process in parse_processes(read_timing_files([job_dir(found)])):
        own = json.loads((tmp_path / f"out/rank-{process.rank}.json").read_text())["exposed"]
        rows = {row.number: row for row in process.series[0].rows if row.number > 3}
        ours = [(row.communication or 0.0) - (row.overlap or 0.0) for row in rows.values()]
        theirs = [own[number - 1] for number in rows]
        print(process.rank, statistics.median(ours) / statistics.median(theirs), correlation(ours, theirs))
        assert statistics.median(ours) == pytest.approx(statistics.median(theirs), rel=0.05)
        assert correlation(ours, theirs) > 0.99
    assert report["syncs"][0]["own"] < 0.02


@pytest.mark.parametrize(("slow_rank", "where"), [(1, "data"), (2, "backward")])
def test_a_slow_rank_is_named(slow_rank: int, where: str, jobsubmit: Command, tmp_path: Path) -> None:
    slow = {"slow_rank": slow_rank, "slow_where": where, "slow_ms": 30, "width": 256, "steps": 25}
    job = timed_job(tmp_path, nproc=2, hyperparameters=slow)
    found, report = trained(jobsubmit, job)
    straggler = report["syncs"][0]["straggler"]
    assert straggler["rank"] == slow_rank
    assert straggler["share"] > 0.8
    assert straggler["cost"] == pytest.approx(0.03, rel=0.5)
    text = jobsubmit("report", found).stdout
    assert f"rank {slow_rank} (node {slow_rank // 2}) comes last in" in text


def test_what_was_measured_survives_a_kill_and_a_restart(jobsubmit: Command, tmp_path: Path) -> None:
    job = timed_job(tmp_path, restarts={"max": 1, "backoff": 0}, hyperparameters={"steps": 40, "width": 256})
    found, report = trained(jobsubmit, job, "--fault", "kill rank 1 at step 20")
    told = parse_processes(read_timing_files([job_dir(found)]))
    assert [(process.attempt, process.rank) for process in told] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    for process in told:
        numbers = [row.number for row in process.series[0].rows]
        assert numbers == list(range(1, len(numbers) + 1))
        assert len(numbers) == 39 if process.attempt else len(numbers) >= 18
    assert [mark["kind"] for mark in report["marks"]] == ["fault", "restart"]
    trainings = [phase for phase in report["phases"] if phase["name"] == "training"]
    assert [phase["attempt"] for phase in trainings] == [0, 1]
    page = tmp_path / "report.html"
    jobsubmit("report", found, "--html", page)
    assert "kill rank 1 at step 20" in page.read_text()


def test_another_torch_inside_ends_the_timing_and_not_the_training(jobsubmit: Command, tmp_path: Path) -> None:
    job = timed_job(tmp_path, hyperparameters={"steps": 6, "width": 64, "hide": 1})
    done = jobsubmit("create", job, "--follow")
    said = [line for line in done.stderr.splitlines() if "the timing is off" in line]
    assert len(said) == 2  # once a node
    assert "_set_ddp_runtime_logging_sample_rate" in said[0]
    notes = jobsubmit.json("report", job_id(done.stdout))["notes"]
    assert any("the timing was stopped: DistributedDataParallel of torch" in note for note in notes)


def test_each_bucket_is_timed_on_request(jobsubmit: Command, tmp_path: Path) -> None:
    job = timed_job(tmp_path, hyperparameters={"steps": 12, "own_hook": 1})
    _, report = trained(jobsubmit, job, "--profile-sync=buckets")
    sync = report["syncs"][0]
    assert 0 < sync["wire"] <= sync["spreads"]["communication"]["p95"]
    assert sum(bucket["bytes"] for bucket in sync["bucket_medians"]) == sync["size"]
    assert [bucket["bucket"] for bucket in sync["bucket_medians"]] == list(range(len(sync["buckets"])))
    assert all(0 < bucket["seconds"] < sync["spreads"]["communication"]["p95"] * 2 for bucket in sync["bucket_medians"])


@pytest.mark.parametrize("kind", ["sync", "buckets"])
def test_nothing_that_people_do_is_in_the_way(kind: str, jobsubmit: Command, tmp_path: Path) -> None:
    job = timed_job(tmp_path, nproc=2, boot_file="odd.py", profile=kind)
    done = jobsubmit("create", job, "--follow", timeout=180)
    assert done.stderr.count("trained as usual") == 4, done.stderr
    assert done.stderr.count("the timing is off: its file cannot be written") == 2  # once a node
    report = jobsubmit.json("report", job_id(done.stdout))
    halves = [sync for sync in report["syncs"] if sync["world"] == 2]
    assert [[rank["rank"] for rank in sync["ranks"]] for sync in halves] == [[0, 1], [2, 3]]
    assert sorted(sync["accumulates"] for sync in report["syncs"] if sync["world"] == 4) == [False, True]
    assert [phase["name"] for phase in report["phases"]].count("checkpoint") == 0  # that was a helper's


def test_fsdp_is_not_measured_and_said_so(jobsubmit: Command, tmp_path: Path) -> None:
    _, report = trained(jobsubmit, timed_job(tmp_path, boot_file="sharded.py"))
    assert report["syncs"] == []
    notes = report["notes"]
    assert any("the code uses fully_shard, which is not measured" in note for note in notes)


# ── a line between two nodes ────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def two_hosts() -> Iterator[tuple[tuple[str, str], ...]]:
    """Make two hosts of this machine with a line between them; return (namespace, address) of each."""
    mark = uuid.uuid4().hex[:6]
    hosts = tuple((f"js{mark}{number}", f"10.231.7.{number + 1}") for number in range(2))
    try:
        for name, _ in hosts:
            ip("netns", "add", name)
        ip("-n", hosts[0][0], "link", "add", "line", "type", "veth", "peer", "name", "line", "netns", hosts[1][0])
        for name, address in hosts:
            ip("-n", name, "address", "add", f"{address}/24", "dev", "line")
            ip("-n", name, "link", "set", "line", "up")
            ip("-n", name, "link", "set", "lo", "up")
        yield hosts
    finally:
        for name, _ in hosts:
            subprocess.run(["ip", "netns", "delete", name], check=False, capture_output=True)


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True)


def run_on(hosts: tuple[tuple[str, str], ...], job: Path, folder: Path) -> Sync:
    """Run a job with one node a host, as an engine's nodes do; return what was measured."""
    folder.mkdir()
    settings = load_settings()
    prepared = prepare(load(job, [], None), settings, Demands(folder.name))
    assert prepared.bundle
    store = open_store(prepared.plan.store)
    upload(store, prepared.bundle, prepared.code, settings.transfer_dir)
    upload_script(store, prepared.plan.name, prepared.script)
    order = fetch_order(store, store, prepared.code, prepared.plan.name, prepared.script, prepared.bundle)
    request = build_node_request(prepared.plan, prepared.script, prepared.code, folder.name)
    (folder / REQUEST).write_text(json.dumps(request))
    (folder / "agent.pyz").write_bytes(agent_archive())
    running = []
    for node, (name, _) in enumerate(hosts):
        environment = {
            **os.environ,
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "VC_WORKER_HOSTS": ",".join(address for _, address in hosts),
            "VC_TASK_INDEX": str(node),
            "JOBSUBMIT_MASTER_PORT": "29500",
            "JOBSUBMIT_ORDER": json.dumps(order),
            "GLOO_SOCKET_IFNAME": "line",
            "OMP_NUM_THREADS": "1",
        }
        command = ["ip", "netns", "exec", name, sys.executable, str(folder / "agent.pyz"), "node", str(folder)]
        running.append(subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
    codes = [process.wait(timeout=150) for process in running]
    nodes = [Path(JobDirectory(folder).node_of(0, node).path) for node in range(len(hosts))]
    assert codes == [0, 0], [(path / "logs/rank-0.stderr.log").read_text() for path in nodes[:1]]
    return measure_syncs(parse_processes(read_timing_files(nodes)))[0]


@pytest.mark.needs("namespaces")
def test_a_slow_line_shows_as_communication(two_hosts: tuple[tuple[str, str], ...], tmp_path: Path) -> None:
    size = {"steps": 20, "width": 512, "layers": 8}
    job = timed_job(tmp_path, hyperparameters=size, rdzv_backend="static", profile="buckets")
    fast = run_on(two_hosts, job, tmp_path / "fast")
    for name, _ in two_hosts:
        limit = ["rate", "200mbit", "burst", "64kb", "latency", "400ms"]
        subprocess.run(["tc", "-n", name, "qdisc", "add", "dev", "line", "root", "tbf", *limit], check=True)
    slow = run_on(two_hosts, job, tmp_path / "slow")
    medians = {name: (fast.spreads[name].median, slow.spreads[name].median) for name in fast.spreads}
    print(medians, fast.bandwidth, slow.bandwidth)
    assert medians["communication"][1] > 5 * medians["communication"][0]
    lost = medians["step"][1] - medians["step"][0]
    assert medians["exposed"][1] - medians["exposed"][0] == pytest.approx(lost, rel=0.25)
    assert medians["forward"][1] - medians["forward"][0] < 0.1 * lost
    assert medians["rest"][1] - medians["rest"][0] < 0.1 * lost
    assert slow.bandwidth == pytest.approx(25e6, rel=0.25)  # 200 Mbit/s
