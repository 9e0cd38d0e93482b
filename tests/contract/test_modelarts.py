"""ModelArts, as its documentation describes it: jobs are created, run, followed and ended through a stand-in."""

from __future__ import annotations

import json
import os
import re
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import modelarts_server
import pytest
from command import Command, CommandHere, handle, job_dir, wait_for_line, wait_until
from hostile import HOSTILE
from minio_server import Server
from modelarts_server import AK, ENGINE, PROJECT, SK, TOKEN, Fault, Service
from obs import Domain, refusals
from pace import Pace
from proxy import Seen
from ruamel.yaml import YAML

from jobsubmit.backends.modelarts import client, logs

pytestmark = pytest.mark.needs("minio")


LATE_SECONDS = 4.0


class Anew(CommandHere):
    """Run the command line in this process, which knows of the service no more than a new one would."""

    def __call__(self, *args: Any, **options: Any) -> Any:
        client.open_service.cache_clear()
        return super().__call__(*args, **options)


@pytest.fixture
def jobsubmit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Command:
    """Return the command line, which waits 4 s for the late lines of a log and not 30."""
    monkeypatch.setattr(logs, "_LATE_SECONDS", LATE_SECONDS)
    return Anew(tmp_path)


@pytest.fixture
def service(modelarts: Service) -> Service:
    """Run the stand-in."""
    return modelarts


@pytest.fixture
def write(service: Service, s3: tuple[str, Server], tmp_path: Path) -> Any:
    """Return what writes a job file for the stand-in."""
    store = {"uri": f"s3://{s3[0]}/jobs", "endpoint_url": s3[1].endpoint}
    return lambda **fields: written(tmp_path, service, store, fields)


def written(folder: Path, service: Service, store: dict[str, str], fields: dict[str, Any]) -> Path:
    """Write a job file for a stand-in; return its path."""
    mode = fields.get("mode", "torchrun")
    backend = {"kind": "modelarts", "endpoint": service.endpoint, "project_id": PROJECT, "flavor": "cpu.1"}
    framework = {"name": ENGINE["engine_name"], "version": ENGINE["engine_version"]}
    whole = {
        "name": "on-platform",
        "mode": mode,
        "code_dir": "code",
        "boot_file": "train.py",
        "store": store,
        **({"framework": framework} if mode == "spawn" else {"image": "team/pytorch:2.9"}),
        **fields,
        "backend": {**backend, **fields.get("backend", {})},
    }
    path = folder / "job.yaml"
    with path.open("w", encoding="utf-8") as stream:
        YAML(typ="safe").dump(whole, stream)
    return path


def code(tmp_path: Path, text: str) -> dict[str, Any]:
    """Write a start command of its own, that needs no torch; return the fields that name it."""
    (tmp_path / "code").mkdir(exist_ok=True)
    (tmp_path / "code/run.sh").write_text(text)
    return {"boot_file": None, "command": ["bash", "run.sh"], "resources": {"nproc_per_node": 1}}


CARRIER = """
import argparse, os, pathlib
parser = argparse.ArgumentParser()
parser.add_argument("--data_url", default=os.environ.get("JOBSUBMIT_INPUT_DATA_URL"))
parser.add_argument("--train_url", default=os.environ.get("JOBSUBMIT_OUTPUT_TRAIN_URL"))
known, _ = parser.parse_known_args()
text = pathlib.Path(known.data_url, "numbers.txt").read_text()
pathlib.Path(known.train_url, "sum.txt").write_text(str(sum(map(int, text.split()))))
print("summed up", flush=True)
"""


@pytest.mark.parametrize("mode", ["spawn", "torchrun"])
def test_data_come_and_go_and_what_is_shown_is_what_is_sent(
    mode: str, write: Any, jobsubmit: Command, service: Service, s3: tuple[str, Server], bucket: Any, tmp_path: Path
) -> None:
    (tmp_path / "numbers").mkdir()
    (tmp_path / "numbers/numbers.txt").write_text("1 2 39")
    (tmp_path / "code").mkdir()
    (tmp_path / "code/train.py").write_text(CARRIER)
    own = {} if mode == "spawn" else {"boot_file": None, "command": ["python", "train.py"]}
    channels = {
        "inputs": [{"name": "data_url", "uri": f"s3://{s3[0]}/data"}],
        "outputs": [{"name": "train_url", "uri": f"s3://{s3[0]}/out"}],
    }
    job = write(mode=mode, resources={"nproc_per_node": 1}, **own, **channels)
    jobsubmit("upload", tmp_path / "numbers", f"s3://{s3[0]}/data", "--endpoint-url", s3[1].endpoint)
    done = jobsubmit("create", job, "--follow")
    assert "summed up" in done.stderr
    assert bucket.objects()["out/sum.txt"] == b"42"
    (created,) = service.jobs.values()
    status = jobsubmit.json("status", handle(done.stdout))
    shown = jobsubmit.json("create", job, "--dry-run", "--job-id", status["id"])
    assert json.loads(shown["request"]["training-job.json"]) == created.body
    assert json.loads(jobsubmit("render", "--request", job, "--job-id", status["id"]).stdout) == created.body


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
    done = jobsubmit("create", job, "--follow", "--no-check")
    record = json.loads(next(line for line in done.stderr.splitlines() if "RECORD " in line).partition("RECORD ")[2])
    assert {name: record["env"].get(name) for name in env} == env
    assert sorted(f"--{name}={value}" for name, value in own.items()) == sorted(record["argv"][: len(own)])
    if mode == "torchrun":
        assert record["argv"][len(own) :] == values
    else:
        assert record["argv"][len(own) :][:2] == ["--world_size=1", "--rank=0"]


def test_the_first_failure_is_reported(write: Any, jobsubmit: Command, tmp_path: Path, pace: Pace) -> None:
    fields = code(
        tmp_path, "echo node $NODE_RANK is here\n[ $NODE_RANK = 1 ] && { echo last words; exit 7; }\nsleep 60\n"
    )
    job = write(**{**fields, "resources": {"nodes": 2, "nproc_per_node": 1}})
    begun = time.monotonic()
    done = jobsubmit("create", job, "--follow", "--propagate-exit-code", code=7)
    assert time.monotonic() - begun < pace.stretched(30)
    assert "FAILED (EXIT_CODE): node 1 failed first: exit code 7" in done.stderr
    assert "│ last words" in done.stderr


SPAWNING = """
import os, sys, time
import torch.multiprocessing as mp

def work(local, node):
    if node == "1" and local == 1:
        HOW
    time.sleep(60)

if __name__ == "__main__":
    mp.spawn(work, args=(next(word for word in sys.argv if word.startswith("--rank="))[7:],), nprocs=2)
"""


@pytest.mark.needs("torch")
@pytest.mark.parametrize(
    ("how", "told"),
    [
        ("raise ValueError('the loss is nan')", "its process 1 raised an exception"),
        ("os._exit(7)", "its process 1 terminated with exit code 7"),
        ("os.kill(os.getpid(), 9)", "its process 1 terminated with signal SIGKILL"),
    ],
)
def test_the_process_of_a_preset_framework_that_failed(
    how: str, told: str, write: Any, jobsubmit: Command, tmp_path: Path
) -> None:
    (tmp_path / "code").mkdir()
    (tmp_path / "code/train.py").write_text(SPAWNING.replace("HOW", how))
    done = jobsubmit("create", write(mode="spawn", resources={"nodes": 2}), "--follow", "--no-check", code=100)
    assert f"node 1 failed: exit code 1; {told}" in done.stderr


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
    service.faults.append(Fault("/logs/", 504, silence=9))
    found = handle(jobsubmit("create", job).stdout)
    lines = jobsubmit("logs", "-f", found).stdout.splitlines()
    for node in range(2):
        own = [line.partition("] ")[2] for line in lines if line.startswith(f"[node {node}] line ")]
        assert own == [f"line {number}" for number in range(1, 10001)]


def test_a_job_through_a_store_as_strict_as_obs(
    jobsubmit: Command, domain: Domain, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    strict = refusals(domain)
    assert strict(Seen("PUT", "/virtual/k", {"host": domain.host}))
    assert strict(Seen("GET", "/?list-type=2", {"host": f"virtual.{domain.host}"}))
    domain.line.rule = strict
    monkeypatch.setenv("no_proxy", "127.0.0.1")  # where the service is
    monkeypatch.setenv("HUAWEICLOUD_SDK_AK", AK)
    monkeypatch.setenv("HUAWEICLOUD_SDK_SK", SK)
    keys = os.environ["AWS_ACCESS_KEY_ID"], os.environ["AWS_SECRET_ACCESS_KEY"]
    server = Server(f"http://127.0.0.1:{domain.line.port}", *keys)
    fields = {**code(tmp_path, "cat data/numbers.txt\n"), "mode": "torchrun"}
    (tmp_path / "code/data").mkdir()
    (tmp_path / "code/data/numbers.txt").write_text("42\n")
    store = {"uri": "obs://virtual/jobs", "endpoint_url": domain.endpoint}
    with modelarts_server.running(tmp_path / "platform", server) as service:
        job = written(tmp_path, service, store, fields)
        done = jobsubmit("create", job, "--follow")
    assert "] 42" in done.stderr
    assert [seen for seen in domain.line.seen if strict(seen)] == []
    assert any(seen.method == "PUT" for seen in domain.line.seen)


def test_lines_that_come_late_are_waited_for(write: Any, jobsubmit: Command, service: Service, tmp_path: Path) -> None:
    fields = code(tmp_path, "for i in $(seq 400); do echo line $i; done\n")
    service.late = LATE_SECONDS / 2
    done = jobsubmit("create", write(**fields), "--follow")
    assert re.findall(r"line (\d+)$", done.stderr, re.MULTILINE) == [str(number) for number in range(1, 401)]


LOGS_BY_PAGES, PREVIEWS = "GET .*/training-jobs/[^/]*/logs/", "/logs/preview"


@pytest.mark.parametrize("by", ["preview", "export"])
def test_logs_that_have_no_pages(
    by: str, write: Any, jobsubmit: Command, service: Service, s3: tuple[str, Server], tmp_path: Path
) -> None:
    fields = code(tmp_path, "printf 'a\\rb\\fc\\n'; for i in $(seq 3000); do echo line $i; done; sleep 3; echo done\n")
    service.faults = [Fault(LOGS_BY_PAGES, 403, 1000)]
    if by == "export":
        service.faults.append(Fault(PREVIEWS, 403, 1000))
    job = write(**fields, backend={"log_url": f"obs://{s3[0]}/logs"} if by == "export" else {})
    done = jobsubmit("create", job, "--follow")
    assert re.findall(r"line (\d+)$", done.stderr, re.MULTILINE) == [str(number) for number in range(1, 3001)]
    assert "[node 0] done" in done.stderr


def test_a_status_needs_no_logs(write: Any, jobsubmit: Command, service: Service, tmp_path: Path) -> None:
    service.faults = [Fault("/logs", 403, 1000)]
    found = handle(jobsubmit("create", write(**code(tmp_path, "exit 3\n"))).stdout)
    jobsubmit("wait", found, "--propagate-exit-code", code=3)


@pytest.mark.parametrize("pause", [0, 1])  # seconds in which an agent tells what it has seen, or cannot
def test_what_a_node_said_before_it_was_started_again_is_not_the_end(
    pause: int, write: Any, jobsubmit: Command, service: Service, tmp_path: Path
) -> None:
    again = f"echo second; sleep {pause}; kill -9 $PPID; sleep 9"
    text = f"if [ -e ../seen ]; then {again}; else touch ../seen; exit 3; fi\n"
    found = handle(jobsubmit("create", write(**code(tmp_path, text), restarts=1)).stdout)
    jobsubmit("wait", found, code=100)
    failure = jobsubmit.json("status", found)["failure"]
    assert (failure["exit_code"], failure["signal"]) == (None, 9)
    assert ("second" in jobsubmit("logs", found).stdout) is bool(pause)


@pytest.mark.parametrize("answer", [b"<html>sign in first</html>", b"null", b"[1]", b'{"metadata": null}', b"{}"])
def test_what_is_no_answer_of_the_service_is_told(
    answer: bytes, write: Any, jobsubmit: Command, service: Service, tmp_path: Path
) -> None:
    found = handle(jobsubmit("create", write(**code(tmp_path, "echo x\n"))).stdout)
    jobsubmit("wait", found)
    service.faults = [Fault("GET .*/training-jobs/[^/]*$", count=1000, answer=answer)]
    text = "job without an id" if answer.startswith(b"{") else "is not ModelArts"
    assert text in jobsubmit("status", found, code=5).stderr


def test_a_secret_that_is_too_long_is_told_before(
    write: Any, jobsubmit: Command, service: Service, bucket: Any, tmp_path: Path
) -> None:
    job = write(**code(tmp_path, "echo x\n"), secrets={"KEY": "env:LONG"})
    done = jobsubmit("create", job, env={"LONG": "s" * 5000}, code=5)
    assert "secrets.KEY: 5,000 characters, but the limit of ModelArts is 4,096" in done.stderr
    assert bucket.objects() == {}


def test_logs_that_nobody_has_are_an_error(write: Any, jobsubmit: Command, service: Service, tmp_path: Path) -> None:
    service.faults = [Fault("/logs/", 403, 1000)]
    found = handle(jobsubmit("create", write(**code(tmp_path, "echo x\n"))).stdout)
    jobsubmit("wait", found)
    assert "ask for the permissions" in jobsubmit("logs", found, code=5).stderr


@pytest.mark.parametrize("names_are_unique", [True, False])
@pytest.mark.parametrize(
    "fault",
    [
        Fault("POST .*/training-jobs$", silence=10, status=504, late=12),
        Fault("POST .*/training-jobs$", 502, after=True),
        Fault("POST .*/training-jobs$", silence=10, after=True, status=504),
    ],
)
def test_an_answer_that_was_lost_makes_no_second_job(
    fault: Fault, write: Any, jobsubmit: Command, service: Service, tmp_path: Path, *, names_are_unique: bool
) -> None:
    service.names_are_unique = names_are_unique
    service.faults = [replace(fault)]
    job = write(**code(tmp_path, "echo once\n"))
    done = jobsubmit("create", job, "--follow")
    assert "SUCCEEDED" in done.stderr
    assert len(service.jobs) == 1


def test_a_job_that_nobody_told_of_is_found_later(
    write: Any, jobsubmit: Command, service: Service, tmp_path: Path
) -> None:
    service.faults = [Fault("POST .*/training-jobs$", 502, after=True), Fault("job-searches", 403, 1000)]
    job = write(**code(tmp_path, "echo once\n"))
    done = jobsubmit("create", job, "--job-id", "unsure", "--idempotency-key", "k", code=5)
    assert "did not confirm that it created unsure" in done.stderr
    service.faults = []
    jobsubmit("wait", "unsure")
    assert "once" in jobsubmit("logs", "unsure").stdout
    jobsubmit("create", job, "--idempotency-key", "k")
    assert len(service.jobs) == 1


def test_a_handle_says_where_to_ask(
    write: Any, jobsubmit: Command, service: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HUAWEICLOUD_SDK_PROJECT_ID", PROJECT)
    found = handle(jobsubmit("create", write(**code(tmp_path, "echo x\n"), backend={"project_id": None})).stdout)
    monkeypatch.setenv("HUAWEICLOUD_SDK_PROJECT_ID", "another")
    jobsubmit("wait", found)


def test_a_busy_service_is_asked_again(write: Any, jobsubmit: Command, service: Service, tmp_path: Path) -> None:
    service.faults = [Fault("POST .*/training-jobs$", 429, 2), Fault("flavors", 503, 1)]
    done = jobsubmit("create", write(**code(tmp_path, "echo once\n")), "--follow")
    assert "SUCCEEDED" in done.stderr
    assert len(service.jobs) == 1


def test_a_quota_that_is_used_up_leaves_no_job(
    write: Any, jobsubmit: Command, service: Service, tmp_path: Path
) -> None:
    service.faults = [Fault("POST .*/training-jobs$", 400, text="the quota of the project is used up")]
    done = jobsubmit("create", write(**code(tmp_path, "echo x\n")), code=5)
    assert "the quota of the project is used up" in done.stderr
    assert service.jobs == {}


def test_a_job_is_listed_waited_for_and_made_again(
    write: Any, jobsubmit: Command, service: Service, tmp_path: Path
) -> None:
    first = handle(jobsubmit("create", write(**code(tmp_path, "echo once more\n"))).stdout)
    jobsubmit("wait", first)
    (row,) = jobsubmit.json("list")
    assert (row["state"], row["backend"]) == ("SUCCEEDED", "modelarts")
    done = jobsubmit("rerun", first, "--follow")
    assert "once more" in done.stderr
    assert len(service.jobs) == 2
    assert handle(done.stdout) != first


def test_what_is_wrong_is_told_before_anything_is_uploaded(
    write: Any, jobsubmit: Command, service: Service, bucket: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fields = code(tmp_path, "echo x\n")
    done = jobsubmit("create", write(**fields, backend={"flavor": "cpu.22"}), code=5)
    assert "the machine type cpu.22 does not exist in this project" in done.stderr
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
        "the project id is not set" in jobsubmit("create", write(**fields, backend={"project_id": None}), code=5).stderr
    )
    assert len(service.requests) == before
    assert service.jobs == {}
    assert bucket.objects() == {}


@pytest.mark.slow  # what it bounds is a wall time
def test_a_service_that_is_not_there_is_told_within_ten_seconds(
    write: Any, jobsubmit: Command, tmp_path: Path, pace: Pace
) -> None:
    job = write(**code(tmp_path, "echo x\n"), backend={"endpoint": "http://127.0.0.1:9"})
    begun = time.monotonic()
    assert "cannot be reached" in jobsubmit("create", job, code=5).stderr
    assert time.monotonic() - begun < pace.stretched(10)
    assert "expected modelarts://region/project/id" in jobsubmit("status", "modelarts://x/y", code=102).stderr


def test_no_secret_is_shown_or_kept(
    write: Any, jobsubmit: Command, service: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HUAWEICLOUD_SDK_SECURITY_TOKEN", TOKEN)
    monkeypatch.setenv("MY_KEY", "planted-0123456789")
    job = write(**code(tmp_path, "[ $KEY = planted-0123456789 ] && echo it is there\n"), secrets={"KEY": "env:MY_KEY"})
    dry = jobsubmit("create", job, "--dry-run", "-o", "json")
    done = jobsubmit("create", job, "--follow")
    assert "it is there" in done.stderr
    found = handle(done.stdout)
    said = [dry.stdout, dry.stderr, done.stdout, done.stderr, jobsubmit("status", found, "-o", "json").stdout]
    said += [jobsubmit("describe", found).stdout, jobsubmit("events", found).stdout]
    record = job_dir(jobsubmit.json("status", found)["id"])
    said += [path.read_text(errors="replace") for path in record.rglob("*") if path.is_file()]
    said += [path.read_text(errors="replace") for path in (record.parents[1] / "modelarts-jobs").iterdir()]
    for secret in (SK, TOKEN, "planted-0123456789"):
        assert not any(secret in text for text in said)
