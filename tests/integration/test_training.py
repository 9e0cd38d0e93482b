"""Real DDP training in every mode, shape and store; the script that ran is the script that was shown."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path

import boto3
import pytest
from command import Command, events, job_dir, job_id, processes_left
from minio_server import Server

from jobsubmit.assets import SAMPLE_CODE, starter_job
from jobsubmit.scan import scan

ONE_PROCESS = "resources.nproc_per_node=1"
MODES = ("spawn", "launch", "torchrun")

pytestmark = pytest.mark.needs("torch")


def losses(text: str) -> dict[int, list[str]]:
    """Return what each rank printed as its losses."""
    found: dict[int, list[str]] = {}
    for rank, loss in re.findall(r"^\[rank (\d+)\] step \d+ loss (\S+)$", text, re.MULTILINE):
        found.setdefault(int(rank), []).append(loss)
    return found


def assert_trained(log: str, ranks: int) -> list[str]:
    by_rank = losses(log)
    assert sorted(by_rank) == list(range(ranks)), log
    assert all(line == by_rank[0] and len(line) == 5 for line in by_rank.values()), log
    for rank in range(ranks):
        assert f"[rank {rank}] rank {rank} done: all {ranks} ranks hold equal parameters" in log
    return by_rank[0]


@pytest.mark.parametrize("nproc", [1, 2])
@pytest.mark.parametrize("mode", MODES)
def test_training_through_the_folder_store(mode: str, nproc: int, jobsubmit: Command) -> None:
    """Up to two nodes, on every engine: see the contract suite."""
    nodes = 3
    layout = "tree" if (nodes + nproc) % 2 else "archive"
    flags = ("--nodes", str(nodes), "--set", f"resources.nproc_per_node={nproc}", "--set", f"layout={layout}")
    done = jobsubmit("create", starter_job(mode), *flags, "--follow", timeout=180)
    assert_trained(done.stderr, nodes * nproc)
    job = job_id(done.stdout)
    assert processes_left(job) == []
    shown = jobsubmit("render", starter_job(mode), *flags[:4]).stdout
    executed = {event["script"] for event in events(job) if event["event"] == "node_start"}
    assert executed == {hashlib.sha256(shown.encode()).hexdigest()}
    for node in range(nodes):
        assert (job_dir(job) / f"nodes/{node}/start.sh").read_text() == shown


@pytest.mark.needs("minio")
@pytest.mark.parametrize("nproc", [1, 2])
@pytest.mark.parametrize("nodes", [1, 2, 3])
def test_training_through_a_bucket(nodes: int, nproc: int, jobsubmit: Command, s3: tuple[str, Server]) -> None:
    trained = {mode: train_through_a_bucket(mode, nodes, nproc, jobsubmit, s3) for mode in MODES}
    assert trained["spawn"] == trained["launch"] == trained["torchrun"]


def train_through_a_bucket(mode: str, nodes: int, nproc: int, jobsubmit: Command, s3: tuple[str, Server]) -> list[str]:
    """Train, look at every object in the bucket, empty it, and return the losses."""
    bucket, server = s3
    layout = "archive" if (nodes + nproc) % 2 else "tree"
    flags = ("--nodes", str(nodes), "--set", f"resources.nproc_per_node={nproc}", "--set", f"layout={layout}")
    store = ("--store", f"s3://{bucket}/jobs", "--set", f"store.endpoint_url={server.endpoint}")
    done = jobsubmit("create", starter_job(mode), *flags, *store, "--follow", timeout=180)
    found = assert_trained(done.stderr, nodes * nproc)
    client = boto3.client("s3", endpoint_url=server.endpoint, region_name="us-east-1")
    contents = {
        item["Key"]: client.get_object(Bucket=bucket, Key=item["Key"])["Body"].read()
        for item in client.list_objects(Bucket=bucket)["Contents"]
    }
    for key in contents:
        client.delete_object(Bucket=bucket, Key=key)
    client.close()
    bundle = scan(SAMPLE_CODE)
    script = jobsubmit("render", starter_job(mode), *flags[:4]).stdout.encode()
    base = f"jobs/ddp-toy/{bundle.digest}/code"
    expected = {f"jobs/ddp-toy/scripts/{hashlib.sha256(script).hexdigest()}.sh": script}
    if layout == "tree":
        expected |= {f"{base}/{file.path}": Path(file.source).read_bytes() for file in bundle.files}
        manifest = contents.pop(f"{base}.manifest.json")
    else:
        manifest = contents.pop(f"{base}.tar.gz.manifest.json")
        assert contents.pop(f"{base}.tar.gz")[:2] == b"\x1f\x8b"
    assert contents == expected
    assert json.loads(manifest)["digest"] == bundle.digest
    return found


def test_torchrun_with_the_static_rendezvous(jobsubmit: Command) -> None:
    done = jobsubmit("create", starter_job("torchrun"), "--set", "torch_version='2.1'", "--follow", timeout=180)
    assert_trained(done.stderr, 4)
    assert "--rdzv_backend=static" in done.stderr
    chosen = jobsubmit("render", starter_job("torchrun"), "--set", "rdzv_backend=static").stdout
    assert "--rdzv_backend=static" in chosen


def test_several_jobs_at_once_do_not_mix(jobsubmit: Command) -> None:
    running = [
        jobsubmit.start(
            "create", starter_job(mode), "--follow", "--set", f"hyperparameters.lr={lr}", *("--set", ONE_PROCESS)
        )
        for mode, lr in (("torchrun", 0.1), ("torchrun", 0.2), ("launch", 0.3))
    ]
    results = [process.communicate(timeout=240) for process in running]
    assert [process.returncode for process in running] == [0, 0, 0], results
    assert len({tuple(assert_trained(talk, 2)) for _, talk in results}) == 3
    assert len({job_id(data) for data, _ in results}) == 3


def test_every_step_is_recorded_in_order(jobsubmit: Command) -> None:
    done = jobsubmit("create", starter_job("torchrun"), "--nodes", "1", "--follow", timeout=120)
    status = jobsubmit.json("status", job_id(done.stdout))
    assert status["state"] == "SUCCEEDED"
    steps = {step["name"]: step for step in status["steps"]}
    order = ["bundle", "check", "upload", "fetch", "rendezvous", "first_output", "training", "exit"]
    assert set(steps) == set(order)
    assert all(step["start"] <= step["end"] for step in steps.values())
    assert [step["name"] for step in status["steps"]] == order


def test_code_uploaded_before_needs_no_bundle(jobsubmit: Command, tmp_path: Path, s3: tuple[str, Server]) -> None:
    bucket, server = s3
    jobsubmit("upload", SAMPLE_CODE, f"s3://{bucket}/team/demo-code", "--endpoint-url", server.endpoint)
    text = starter_job("torchrun").read_text().replace("../../code", f"s3://{bucket}/team/demo-code")
    (tmp_path / "job.yaml").write_text(f"{text}store: {{uri: ./scripts, endpoint_url: null}}\n")
    flags = ("--set", f"store.uri=s3://{bucket}/jobs", "--set", f"store.endpoint_url={server.endpoint}")
    done = jobsubmit("create", "job.yaml", *flags, "--follow", *("--set", ONE_PROCESS), timeout=120)
    assert_trained(done.stderr, 2)
    assert "/demo-code/torch_ddp.py" in done.stderr
    assert not (job_dir(job_id(done.stdout)) / "nodes/0/code").exists()
    missing = jobsubmit("create", "job.yaml", *flags, "--set", "boot_file=nowhere.py", code=3)
    assert "nowhere.py is not in" in missing.stderr


def test_two_identical_submissions_upload_once(jobsubmit: Command) -> None:
    flags = ("--nodes", "1", "--set", "resources.nproc_per_node=1", "--follow")
    first = jobsubmit("create", starter_job("torchrun"), *flags)
    second = jobsubmit("create", starter_job("torchrun"), *flags)
    assert "code unchanged" not in first.stderr
    assert f"code unchanged: {len(scan(SAMPLE_CODE).files)} files are in the store already" in second.stderr
