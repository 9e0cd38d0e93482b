"""ModelArts, as its documentation describes it: jobs are created, run, followed and ended through a stand-in."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path
from typing import Any

import pytest
from command import Command, handle, job_dir, wait_for_line, wait_until
from hostile import HOSTILE
from minio_server import Server
from modelarts_server import ENGINE, PROJECT, SK, TOKEN, Fault, Service
from ruamel.yaml import YAML

from jobsubmit.assets import SAMPLE_CODE

MODES = ("spawn", "launch", "torchrun")

pytestmark = pytest.mark.needs("minio")


@pytest.fixture
def service(modelarts: Service) -> Service:
    """Run the stand-in."""
    return modelarts


@pytest.fixture
def write(service: Service, s3: tuple[str, Server], tmp_path: Path) -> Any:
    """Return what writes a job file for the stand-in."""

    def written(**fields: Any) -> Path:
        mode = fields.get("mode", "torchrun")
        backend = {"kind": "modelarts", "endpoint": service.endpoint, "project_id": PROJECT, "flavor": "cpu.1"}
        framework = {"name": ENGINE["engine_name"], "version": ENGINE["engine_version"]}
        whole = {
            "name": "on-platform",
            "mode": mode,
            "code_dir": "code",
            "boot_file": "train.py",
            "store": {"uri": f"s3://{s3[0]}/jobs", "endpoint_url": s3[1].endpoint},
            **({"framework": framework} if mode == "spawn" else {"image": "team/pytorch:2.9"}),
            **fields,
            "backend": {**backend, **fields.get("backend", {})},
        }
        path = tmp_path / "job.yaml"
        with path.open("w", encoding="utf-8") as stream:
            YAML(typ="safe").dump(whole, stream)
        return path

    return written


def code(tmp_path: Path, text: str) -> dict[str, Any]:
    """Write a start command of its own, that needs no torch; return the fields that name it."""
    (tmp_path / "code").mkdir(exist_ok=True)
    (tmp_path / "code/run.sh").write_text(text)
    return {"boot_file": None, "command": ["bash", "run.sh"], "resources": {"nproc_per_node": 1}}


def clean(fields: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}


@pytest.mark.needs("torch")
@pytest.mark.parametrize("nodes", [1, 2])
@pytest.mark.parametrize("mode", MODES)
def test_training(mode: str, nodes: int, write: Any, jobsubmit: Command, service: Service) -> None:
    boot = "main.py" if mode == "spawn" else "torch_ddp.py"
    flavor = {"flavor": "cpu.2"} if nodes == 1 else {}
    job = write(
        mode=mode,
        code_dir=str(SAMPLE_CODE),
        boot_file=boot,
        hyperparameters={"lr": 0.001},
        resources={"nodes": nodes},
        backend=flavor,
    )
    done = jobsubmit("create", job, "--follow", timeout=240)
    losses = re.findall(r"step \d+ loss (\d\.\d{6})", done.stderr)  # ranks of a node share its log, letter by letter
    assert len(losses) == 2 * 5 and len(set(losses)) == 5, done.stderr
    for rank in range(2):
        assert f"rank {rank} done: all 2 ranks hold equal parameters" in done.stderr
    status = jobsubmit.json("status", handle(done.stdout))
    assert status["state"] == "SUCCEEDED"
    (created,) = service.jobs.values()
    shown = jobsubmit.json("create", job, "--dry-run", "--job-id", status["id"])
    assert json.loads(shown["request"]["training-job.json"]) == created.body


RECORDER = """
import json, os, sys
print("RECORD " + json.dumps({"argv": sys.argv[1:], "env": dict(os.environ)}), flush=True)
"""


@pytest.mark.parametrize("mode", ["spawn", "torchrun"])
def test_hostile_values_arrive_unmodified(
    mode: str, write: Any, jobsubmit: Command, tmp_path: Path, service: Service
) -> None:
    fields = code(tmp_path, "") if mode == "torchrun" else {}
    (tmp_path / "code").mkdir(exist_ok=True)
    (tmp_path / "code/train.py").write_text(RECORDER)
    values = [value for value in HOSTILE if len(value) < 4096]
    env = {f"H{number}": value for number, value in enumerate(values)}
    own = {f"h{number}": value for number, value in enumerate(values)}
    if mode == "torchrun":
        fields = {**fields, "command": ["python", "train.py"], "args": values}
    job = write(mode=mode, **{**fields, "env": env, "hyperparameters": own, "resources": {"nproc_per_node": 1}})
    done = jobsubmit("create", job, "--follow", "--no-check", timeout=60)
    record = json.loads(next(line for line in done.stderr.splitlines() if "RECORD " in line).partition("RECORD ")[2])
    assert {name: record["env"].get(name) for name in env} == env
    assert sorted(f"--{name}={value}" for name, value in own.items()) == sorted(record["argv"][: len(own)])
    if mode == "torchrun":
        assert record["argv"][len(own) :] == values
    else:
        assert record["argv"][len(own) :][:2] == ["--world_size=1", "--rank=0"]


def test_the_first_failure_is_reported(write: Any, jobsubmit: Command, tmp_path: Path) -> None:
    fields = code(
        tmp_path, "echo node $NODE_RANK is here\n[ $NODE_RANK = 1 ] && { echo last words; exit 7; }\nsleep 60\n"
    )
    job = write(**{**fields, "resources": {"nodes": 2, "nproc_per_node": 1}})
    begun = time.monotonic()
    done = jobsubmit("create", job, "--follow", "--propagate-exit-code", code=7, timeout=60)
    assert time.monotonic() - begun < 30
    assert "FAILED (EXIT_CODE): node 1 failed first: its start script ended with exit code 7" in done.stderr
    assert "│ last words" in done.stderr


def test_cancel_twice(write: Any, jobsubmit: Command, tmp_path: Path) -> None:
    job = write(**code(tmp_path, "echo begun\nsleep 300\n"))
    found = handle(jobsubmit("create", job).stdout)
    assert found.startswith(f"modelarts://-/{PROJECT}/")
    wait_for_line(jobsubmit, found, "begun")
    jobsubmit("cancel", found)
    jobsubmit("cancel", found)
    wait_until(jobsubmit, found, ("CANCELLED",))
    jobsubmit("wait", found, code=103)
    jobsubmit("delete", found)
    jobsubmit("status", found, code=102)


def test_ten_thousand_lines_under_faults(write: Any, jobsubmit: Command, service: Service, tmp_path: Path) -> None:
    fields = code(tmp_path, "for i in $(seq 10000); do echo line $i; done\n")
    job = write(**{**fields, "resources": {"nodes": 2, "nproc_per_node": 1}})
    service.not_ready = 3
    service.faults = [Fault("/logs/", 429, 2), Fault("/logs/", 500, 2), Fault("GET .*/training-jobs/[^/]*$", 502, 2)]
    found = handle(jobsubmit("create", job).stdout)
    lines = jobsubmit("logs", "-f", found, timeout=120).stdout.splitlines()
    for node in range(2):
        own = [line.partition("] ")[2] for line in lines if line.startswith(f"[node {node}] line ")]
        assert own == [f"line {number}" for number in range(1, 10001)]


@pytest.mark.parametrize(
    "fault",
    [
        Fault("POST .*/training-jobs$", 502, after=True),
        Fault("POST .*/training-jobs$", silence=10, after=True, status=504),
    ],
)
def test_an_answer_that_was_lost_makes_no_second_job(
    fault: Fault, write: Any, jobsubmit: Command, service: Service, tmp_path: Path
) -> None:
    service.faults = [fault]
    job = write(**code(tmp_path, "echo once\n"))
    done = jobsubmit("create", job, "--follow", timeout=90)
    assert "SUCCEEDED" in done.stderr
    assert len(service.jobs) == 1


def test_a_busy_service_is_asked_again(write: Any, jobsubmit: Command, service: Service, tmp_path: Path) -> None:
    service.faults = [Fault("POST .*/training-jobs$", 429, 2), Fault("flavors", 503, 1)]
    done = jobsubmit("create", write(**code(tmp_path, "echo once\n")), "--follow", timeout=90)
    assert "SUCCEEDED" in done.stderr
    assert len(service.jobs) == 1


def test_what_is_wrong_is_told_before_anything_is_uploaded(
    write: Any, jobsubmit: Command, service: Service, bucket: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fields = code(tmp_path, "echo x\n")
    done = jobsubmit("create", write(**fields, backend={"flavor": "cpu.22"}), code=5)
    assert "there is no machine type cpu.22 here" in done.stderr
    assert "did you mean `cpu.2`?" in done.stderr
    service.faults = [Fault("flavors", 403)]
    assert "ask for the permissions" in jobsubmit("create", write(**fields), code=5).stderr
    monkeypatch.setenv("HUAWEICLOUD_SDK_SK", "wrong")
    assert "the signature does not match" in jobsubmit("create", write(**fields), code=5).stderr
    monkeypatch.delenv("HUAWEICLOUD_SDK_SK")
    assert "there are no credentials for ModelArts" in jobsubmit("create", write(**fields), code=5).stderr
    monkeypatch.setenv("HUAWEICLOUD_SDK_SK", SK)
    before = len(service.requests)
    assert (
        "the id of the project is not known"
        in jobsubmit("create", write(**fields, backend={"project_id": None}), code=5).stderr
    )
    assert len(service.requests) == before
    assert service.jobs == {}
    assert bucket.objects() == {}


def test_a_service_that_is_not_there_is_told_within_ten_seconds(write: Any, jobsubmit: Command, tmp_path: Path) -> None:
    job = write(**code(tmp_path, "echo x\n"), backend={"endpoint": "http://127.0.0.1:9"})
    begun = time.monotonic()
    assert "cannot be reached" in jobsubmit("create", job, code=5).stderr
    assert time.monotonic() - begun < 10
    assert "a handle looks like modelarts://" in jobsubmit("status", "modelarts://x/y", code=102).stderr


def test_no_secret_is_shown_or_kept(
    write: Any, jobsubmit: Command, service: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HUAWEICLOUD_SDK_SECURITY_TOKEN", TOKEN)
    monkeypatch.setenv("MY_KEY", "planted-0123456789")
    job = write(**code(tmp_path, "[ $KEY = planted-0123456789 ] && echo it is there\n"), secrets={"KEY": "env:MY_KEY"})
    dry = jobsubmit("create", job, "--dry-run", "-o", "json")
    done = jobsubmit("create", job, "--follow", timeout=60)
    assert "it is there" in done.stderr
    found = handle(done.stdout)
    said = [dry.stdout, dry.stderr, done.stdout, done.stderr, jobsubmit("status", found, "-o", "json").stdout]
    said += [jobsubmit("describe", found).stdout, jobsubmit("events", found).stdout]
    record = job_dir(jobsubmit.json("status", found)["id"])
    said += [path.read_text(errors="replace") for path in record.rglob("*") if path.is_file()]
    said += [path.read_text(errors="replace") for path in (record.parents[1] / "modelarts-jobs").iterdir()]
    for secret in (SK, TOKEN, "planted-0123456789"):
        assert not any(secret in text for text in said)
