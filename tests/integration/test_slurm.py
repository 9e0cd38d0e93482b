"""What is Slurm's own: its refusals and reasons, requeues, lost nodes, time limits, a controller that is down."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import slurm
from command import PATIENCE, Command, handle, wait_for_line, wait_until
from engine import Engine
from pace import Pace
from slurm import Slurm

pytestmark = pytest.mark.needs("slurm")

SLEEPING = "import time\nprint('sleeping', flush=True)\ntime.sleep(300)\n"


def job(on_slurm: Engine, folder: Path, text: str = "print('hello')\n", **fields: Any) -> Path:
    (folder / "code").mkdir(exist_ok=True)
    (folder / "code" / "main.py").write_text(text)
    backend = {**on_slurm.fields["backend"], **fields.pop("backend", {})}
    return on_slurm.job(folder, **{"mode": "spawn", "boot_file": "main.py", "backend": backend, **fields})


def scontrol(*args: str) -> str:
    return subprocess.run(["scontrol", *args], capture_output=True, text=True, check=True).stdout


def test_slurm_got_the_bytes_that_were_shown(on_slurm: Engine, jobsubmit: Command, tmp_path: Path) -> None:
    file = job(on_slurm, tmp_path, name="Shown_1", resources={"nodes": 2, "nproc_per_node": 1})
    shown = jobsubmit.json("create", file, "--dry-run", "--job-id", "shown-1")["request"]["job.sbatch"]
    done = jobsubmit("create", file, "--follow", "--job-id", "shown-1")
    number = handle(done.stdout).rpartition("/")[2]
    scontrol("write", "batch_script", number, str(tmp_path / "received"))
    assert (tmp_path / "received").read_text() == shown
    assert "[node 1] hello" in done.stderr


@pytest.mark.parametrize(
    ("backend", "resources", "hint"),
    [
        ({"partition": "nosuch"}, {}, "backend.partition"),
        ({}, {"nodes": 99, "nproc_per_node": 1}, "request less"),
        ({"partition": "short", "time": "2h"}, {}, "backend.time"),
        ({"constraint": "unobtainium"}, {}, "correct `backend`"),
        ({"mem": "900G"}, {}, "request less"),
    ],
)
def test_what_slurm_refuses_is_told_before_anything_is_sent(
    backend: dict[str, Any], resources: dict[str, Any], hint: str, on_slurm: Engine, jobsubmit: Command, tmp_path: Path
) -> None:
    file = job(on_slurm, tmp_path, backend=backend, resources=resources or {"nodes": 1, "nproc_per_node": 1})
    refused = jobsubmit("create", file, code=5)
    assert "Slurm refuses the job" in refused.stderr
    assert hint in refused.stderr
    assert not (tmp_path / "state" / "store").exists()
    assert jobsubmit.json("list") == []


def test_options_and_defaults_of_the_users_shell(on_slurm: Engine, jobsubmit: Command, tmp_path: Path) -> None:
    text = (
        "import os\nprint(sorted((k, v) for k, v in os.environ.items() if k in ('A', 'RANK', 'AWS_SECRET_ACCESS_KEY')))"
    )
    backend = {"cpus_per_task": 2, "mem": "500M", "gpus_per_node": 1, "extra_sbatch": ["--nice=5", "--mail-type=NONE"]}
    stray = {"SBATCH_PARTITION": "nosuch", "RANK": "7", "AWS_SECRET_ACCESS_KEY": "key", "A": "b", "SLURM_NNODES": "9"}
    done = jobsubmit("create", job(on_slurm, tmp_path, text, backend=backend), "--follow", env=stray)
    assert "[('A', 'b')]" in done.stderr
    shown = scontrol("show", "job", handle(done.stdout).rpartition("/")[2])
    assert "CPUs/Task=2" in shown
    assert "mem=500M" in shown
    assert "Nice=5" in shown


@pytest.mark.parametrize(
    ("option", "reason"), [("--hold", "you hold the job"), ("--begin=now+1hour", "begin time is in the future")]
)
def test_why_a_job_waits(option: str, reason: str, on_slurm: Engine, jobsubmit: Command, tmp_path: Path) -> None:
    file = job(on_slurm, tmp_path, backend={"extra_sbatch": [option]})
    name = handle(jobsubmit("create", file, "--detach").stdout)
    status = wait_until(jobsubmit, name, ("QUEUED",))
    assert reason in status["message"]
    jobsubmit("cancel", name)
    assert jobsubmit.json("status", name)["state"] == "CANCELLED"


def test_another_machine_of_the_same_user(on_slurm: Engine, jobsubmit: Command, tmp_path: Path) -> None:
    name = handle(jobsubmit("create", job(on_slurm, tmp_path, SLEEPING), "--detach").stdout)
    elsewhere = {"JOBSUBMIT_STATE_DIR": str(tmp_path / "another")}
    wait_for_line(jobsubmit, name, "sleeping")
    assert "STARTING" in jobsubmit("status", name, env=elsewhere).stdout
    assert "sleeping" in jobsubmit("logs", name, env=elsewhere).stdout
    jobsubmit("cancel", name, env=elsewhere)
    assert "CANCELLED" in jobsubmit("status", name, env=elsewhere).stdout


SAVING = """
import signal, sys, time

def save(*_):
    time.sleep(1)
    print("saved", flush=True)
    sys.exit(0)

signal.signal(signal.SIGTERM, save)
print("sleeping", flush=True)
time.sleep(300)
"""


def test_a_time_to_save_before_the_end(on_slurm: Engine, jobsubmit: Command, tmp_path: Path) -> None:
    name = handle(jobsubmit("create", job(on_slurm, tmp_path, SAVING), "--detach").stdout)
    wait_for_line(jobsubmit, name, "sleeping")
    jobsubmit("cancel", name, "--grace", "8")
    assert "saved" in jobsubmit("logs", name).stdout


def test_a_job_that_is_not_ours_is_left_alone(on_slurm: Engine, jobsubmit: Command, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    command = ["sbatch", "--parsable", f"--output={tmp_path}/mine/slurm.log", "--wrap=sleep 30"]
    number = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    for verb in ("status", "cancel", "delete", "logs"):
        jobsubmit(verb, f"slurm://jobsubmit/{number}", code=102)
    assert (tmp_path / "mine").is_dir()
    assert "JobState=RUNNING" in scontrol("show", "job", number)
    subprocess.run(["scancel", number], check=True)


def test_slurm_restarts_only_what_the_policy_names(on_slurm: Engine, jobsubmit: Command, tmp_path: Path) -> None:
    file = job(on_slurm, tmp_path, SLEEPING, restarts={"max": 3, "on": ["exit:75"]})
    name = handle(jobsubmit("create", file, "--detach").stdout)
    wait_for_line(jobsubmit, name, "sleeping")
    scontrol("requeue", name.rpartition("/")[2])
    status = wait_until(jobsubmit, name, ("FAILED", "SUCCEEDED", "CANCELLED"))
    assert status["state"] == "FAILED"
    assert "not restarted" in status["message"]
    assert jobsubmit("logs", name).stdout.count("sleeping") == 1


def test_a_preempted_job_says_so(on_slurm: Engine, jobsubmit: Command, tmp_path: Path) -> None:
    low = job(on_slurm, tmp_path, SLEEPING, resources={"nodes": 3, "nproc_per_node": 1}, backend={"mem": "8000M"})
    name = handle(jobsubmit("create", low, "--detach").stdout)
    wait_for_line(jobsubmit, name, "sleeping")
    urgent = {"partition": "urgent", "mem": "8000M"}
    done = jobsubmit("create", job(on_slurm, tmp_path, backend=urgent), "--follow")
    assert "hello" in done.stderr
    status = wait_until(jobsubmit, name, ("FAILED", "CANCELLED"))
    assert (status["state"], status["reason"]) == ("FAILED", "PREEMPTED")


@pytest.mark.slow  # Slurm's shortest limit is a minute
def test_slurms_own_time_limit(on_slurm: Engine, jobsubmit: Command, tmp_path: Path) -> None:
    name = handle(jobsubmit("create", job(on_slurm, tmp_path, SLEEPING, backend={"time": 60}), "--detach").stdout)
    wait_for_line(jobsubmit, name, "sleeping")
    status = wait_until(jobsubmit, name, ("FAILED",))
    assert status["reason"] == "TIMEOUT"
    assert "time limit" in status["message"]


@pytest.mark.slow  # what it bounds is a wall time
def test_a_controller_that_is_down(on_slurm: Engine, jobsubmit: Command, tmp_path: Path, pace: Pace) -> None:
    conf = Path(os.environ["SLURM_CONF"]).read_text()
    (tmp_path / "slurm.conf").write_text(conf.replace("SlurmctldPort=17000", "SlurmctldPort=17999"))
    down = {"SLURM_CONF": str(tmp_path / "slurm.conf")}
    file = job(on_slurm, tmp_path)
    for command in (("create", file), ("status", "slurm://jobsubmit/1"), ("cancel", "slurm://jobsubmit/1")):
        began = time.monotonic()
        refused = jobsubmit(*command, code=5, env=down)
        assert time.monotonic() - began < pace.stretched(10)
        assert "sinfo" in refused.stderr


def test_no_clients_of_slurm(on_slurm: Engine, jobsubmit: Command, tmp_path: Path) -> None:
    refused = jobsubmit("create", job(on_slurm, tmp_path), code=5, env={"PATH": str(tmp_path)})
    assert "there is no scontrol on PATH" in refused.stderr


@pytest.mark.slow  # what it bounds is a wall time
def test_no_right_to_speak_to_slurm(on_slurm: Engine, jobsubmit: Command, tmp_path: Path, pace: Pace) -> None:
    conf = Path(os.environ["SLURM_CONF"]).read_text()
    (tmp_path / "slurm.conf").write_text(re.sub(r"socket=[^,]*", f"socket={tmp_path}/no-munge.sock", conf))
    began = time.monotonic()
    refused = jobsubmit("create", job(on_slurm, tmp_path), code=5, env={"SLURM_CONF": str(tmp_path / "slurm.conf")})
    assert time.monotonic() - began < pace.stretched(10)
    assert "Slurm" in refused.stderr


def test_faults_and_data_in_buckets_are_refused(on_slurm: Engine, jobsubmit: Command, tmp_path: Path) -> None:
    refused = jobsubmit("create", job(on_slurm, tmp_path), "--fault", "kill node 0", code=2)
    assert "--backend local" in refused.stderr
    data = [{"name": "data", "uri": "s3://bucket/data"}]
    refused = jobsubmit("create", job(on_slurm, tmp_path, inputs=data), code=3)
    assert "inputs: data: s3://bucket/data is in a bucket, which a slurm job cannot use" in refused.stderr


COPYING = """
import argparse, pathlib

parser = argparse.ArgumentParser()
parser.add_argument("--data", type=pathlib.Path)
parser.add_argument("--out", type=pathlib.Path)
found, _ = parser.parse_known_args()
(found.out / "y").write_text((found.data / "x").read_text())
"""


def test_folders_that_the_nodes_see_are_used_as_they_are(on_slurm: Engine, jobsubmit: Command, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "x").write_text("data")
    data = {"inputs": [{"name": "data", "uri": "in"}], "outputs": [{"name": "out", "uri": "out"}]}
    jobsubmit("create", job(on_slurm, tmp_path, COPYING, **data), "--follow")
    assert (tmp_path / "out" / "y").read_text() == "data"


# ── a cluster that is broken on purpose ─────────────────────────────────────────────────────────────────────────


@pytest.fixture
def fragile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Slurm]:
    with slurm.running(tmp_path / "cluster", nodes=3, base_port=17200) as cluster:
        for name, value in cluster.environment.items():
            monkeypatch.setenv(name, value)
        yield cluster


RESUMING = """
import os, time
folder, node = os.environ["JOBSUBMIT_CHECKPOINT_DIR"], os.environ["NODE_RANK"]
print("attempt", os.environ["JOBSUBMIT_RESTART_COUNT"], flush=True)
if os.environ["JOBSUBMIT_RESTART_COUNT"] == "0":
    open(os.path.join(folder, node), "w").close()
    time.sleep(300)
print("goes on", sorted(os.listdir(folder)), flush=True)
"""


def test_a_lost_node_and_a_controller_that_forgets(
    fragile: Slurm, jobsubmit: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_slurm = Engine("slurm", {"backend": {"kind": "slurm"}})
    fields: dict[str, Any] = {"resources": {"nodes": 2, "nproc_per_node": 1}, "checkpoint_dir": "ckpt"}
    name = handle(jobsubmit("create", job(on_slurm, tmp_path, RESUMING, **fields, restarts=1), "--detach").stdout)
    deadline = time.monotonic() + PATIENCE
    while len(list((tmp_path / "ckpt").rglob("[01]"))) < 2:
        assert time.monotonic() < deadline
        time.sleep(0.2)
    fragile.kill("slurmd.2")
    status = wait_until(jobsubmit, name, ("SUCCEEDED", "FAILED"))
    assert status["state"] == "SUCCEEDED", status
    log = jobsubmit("logs", name).stdout
    assert log.count("attempt 0") == 2
    assert log.count("attempt 1") == 2
    assert log.count("goes on ['0', '1']") == 2

    single = handle(jobsubmit("create", job(on_slurm, tmp_path, SLEEPING, name="single"), "--detach").stdout)
    wait_for_line(jobsubmit, single, "sleeping")
    node = json.loads(jobsubmit("status", single, "-o", "json").stdout)["details"]["slurm_nodes"]
    fragile.kill(f"slurmd.{node.removeprefix('slurm')}")
    status = wait_until(jobsubmit, single, ("FAILED",))
    assert status["reason"] == "NODE_FAILED"

    fragile.kill("slurmctld")
    shutil.rmtree(tmp_path / "cluster" / "state")
    (tmp_path / "cluster" / "state").mkdir()
    slurm.start_controller(fragile, tmp_path / "cluster")
    assert jobsubmit.json("status", name)["state"] == "SUCCEEDED"
    assert jobsubmit("logs", name).stdout == log
    jobsubmit("delete", name)
    jobsubmit("status", name, code=102)
