"""Keep the jobs of this version, so that tests show that later versions can read them.

    python tests/support/write_records.py [local] [slurm] [volcano] [modelarts]

They go to corpus/records/DATE, one state directory a backend, as a user has it, with jobs in every final state. Its
expected.json is what the version that wrote them said of them. Paths and names of this machine are replaced.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

TESTS = Path(__file__).resolve().parents[1]
RECORDS = TESTS / "corpus/records" / time.strftime("%Y-%m-%d")
sys.path[:0] = [str(TESTS / "support"), str(TESTS / "engines")]

import boto3
import kubernetes_cluster
import minio_server
import modelarts_server
import slurm
from command import JOBSUBMIT
from engine import Engine, modelarts_engine, volcano_fields
from minio_server import Server

LARGEST = 20_000  # bytes of a file that is kept

RANKS = """
import os, sys, time
rank, attempt = int(os.environ["RANK"]), int(os.environ.get("JOBSUBMIT_RESTART_COUNT", 0))
print("rank", rank, "of", os.environ["WORLD_SIZE"], "begins attempt", attempt, flush=True)
how = sys.argv[1]
for step in range(1, 4):
    print("step %d loss 0.%d" % (step, 9 - step), flush=True)
    time.sleep(0.05)
if rank == 1 and (how == "fails" or how == "restarts" and attempt == 0):
    print("last words of rank 1", file=sys.stderr, flush=True)
    sys.exit(7)
if how in ("sleeps", "fails"):
    time.sleep(300)
print("done", flush=True)
"""


class Writer:
    """Run jobs on one engine, each with the state directory of them all."""

    def __init__(self, engine: Engine, folder: Path) -> None:
        self.engine, self.folder = engine, folder
        self.state = folder / "state"
        (folder / "code").mkdir(parents=True)
        (folder / "code/train.py").write_text(RANKS)
        os.environ["JOBSUBMIT_STATE_DIR"] = str(self.state)

    def job(self, name: str, how: str, **fields: Any) -> Path:
        """Write a job file of two nodes with one process each; return its path."""
        shape = {"resources": {"nodes": 2, "nproc_per_node": 1}, "args": [how], "env": {"GREETING": "hello"}}
        words = {"mode": "torchrun", "boot_file": "train.py", "name": name, **shape, **fields}
        return self.engine.job(self.folder, **words)

    def run(self, *words: str | Path) -> str:
        """Run jobsubmit to its end, whatever that is; return what it wrote on stdout."""
        done = subprocess.run([*JOBSUBMIT, *map(str, words)], cwd=self.folder, capture_output=True, text=True)
        print(f"  {' '.join(map(str, words[:4]))}: {done.returncode}", flush=True)
        return done.stdout

    def create(self, name: str, how: str, **fields: Any) -> None:
        """Run a job to its end."""
        self.run("create", self.job(name, how, **fields), "--follow", "--job-id", f"{name}-aaaaaa")

    def interrupted(self, name: str, act: Any) -> None:
        """Submit a job that sleeps, and do something to it once it has begun."""
        self.run("create", self.job(name, "sleeps"), "--detach", "--job-id", f"{name}-aaaaaa")
        deadline = time.monotonic() + 90
        while self.run("logs", f"{name}-aaaaaa").count("step 3") < 2 and time.monotonic() < deadline:
            time.sleep(0.5)
        act()

    def everywhere(self) -> None:
        """Have the jobs that there are on every engine."""
        self.create("well", "ends")
        self.create("failed", "fails")
        self.create("restarted", "restarts", restarts={"max": 1, "backoff": "0s"})
        self.interrupted("cancelled", lambda: self.run("cancel", "cancelled-aaaaaa"))

    def keep(self, target: Path) -> None:
        """Copy what the jobs left, and what is said of it."""
        expected = {}
        for job in sorted(path.name for path in (self.state / "jobs").iterdir()):
            status = json.loads(self.run("status", job, "-o", "json"))
            logs = self.run("logs", job).splitlines()
            expected[job] = {
                **{name: status[name] for name in ("name", "mode", "backend", "nodes", "handle", "state", "reason")},
                "failure": {name: status["failure"][name] for name in ("node", "rank", "exit_code", "signal")}
                if status["failure"]
                else None,
                "restarts": len(status["recoveries"]),
                "logs": logs,
            }
        shutil.rmtree(target, ignore_errors=True)
        for part in ("jobs", "slurm", "slurm-jobs"):
            for file in sorted((self.state / part).rglob("*")):
                if file.is_file() and file.stat().st_size <= LARGEST and file.suffix != ".pyz":
                    kept = target / part / file.relative_to(self.state / part)
                    kept.parent.mkdir(parents=True, exist_ok=True)
                    if "code" not in kept.relative_to(target).parts:
                        kept.write_bytes(self.anonymous(file.read_bytes()))
        for folder in sorted(target.rglob("*"), reverse=True):
            if folder.is_dir() and not any(folder.iterdir()):
                folder.rmdir()
        text = json.dumps(expected, indent=1, ensure_ascii=False, sort_keys=True) + "\n"
        (target / "expected.json").write_bytes(self.anonymous(text.encode()))

    def anonymous(self, data: bytes) -> bytes:
        """Replace what is of this machine."""
        places = [str(self.folder), str(TESTS.parent), sys.base_prefix, str(Path.home())]
        words = {**dict.fromkeys(places, "/home/user/project"), socket.gethostname(): "machine"}
        for ours, theirs in words.items():
            pattern = re.escape(ours.encode()) + rb"(?![\w-])"
            data = re.sub(pattern, _as_long(theirs, len(ours)).encode(), data)
        return data


def _as_long(text: str, length: int) -> str:
    """Return a text of this length: the index of the logs counts bytes."""
    return text[:length].ljust(length, text[-1])


def local(folder: Path) -> None:
    """Write the jobs of this machine, in each state that a job can end in."""
    writer = Writer(Engine("local", {"backend": {"kind": "local"}}), folder)
    writer.everywhere()
    writer.create("hanging", "sleeps", hang_after="3s")
    writer.create("late", "sleeps", timeout="8s")
    writer.interrupted("lost", lambda: _kill_supervisor(writer.state / "jobs/lost-aaaaaa/status.json"))
    writer.create("refused", "ends", store={"uri": "s3://bucket/jobs", "endpoint_url": "http://127.0.0.1:9"})
    sample = TESTS.parent / "code"
    code = {"code_dir": str(sample), "boot_file": "torch_ddp.py", "args": [], "profile": "sync"}
    writer.create("timed", "", **code, resources={"nodes": 2, "nproc_per_node": 2})
    writer.keep(RECORDS / "local")


def _kill_supervisor(status: Path) -> None:
    os.kill(json.loads(status.read_text())["pid"], signal.SIGKILL)
    time.sleep(3)


def on_slurm(folder: Path) -> None:
    """Write the jobs of a Slurm, with the folder that its nodes share."""
    folder.mkdir()
    os.environ["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    with slurm.running(folder / "cluster", nodes=2) as cluster:
        os.environ.update(cluster.environment)
        writer = Writer(Engine("slurm", {"backend": {"kind": "slurm"}}), folder / "project")
        writer.everywhere()
        writer.keep(RECORDS / "slurm")


def on_volcano(folder: Path) -> None:
    """Write the jobs of a Kubernetes with Volcano."""
    with contextlib.ExitStack() as stack:
        folder.mkdir()
        cluster = stack.enter_context(kubernetes_cluster.running(folder / "k", nodes=2))
        (folder / "minio").mkdir()
        server = stack.enter_context(minio_server.running(folder / "minio", host=kubernetes_cluster.GATEWAY))
        _bucket(server, "pods")
        os.environ["KUBECONFIG"] = str(cluster.kubeconfig)
        writer = Writer(Engine("volcano", volcano_fields(server, "pods")), folder / "project")
        writer.everywhere()
        writer.keep(RECORDS / "volcano")


def on_modelarts(folder: Path) -> None:
    """Write the jobs of the stand-in for ModelArts."""
    with contextlib.ExitStack() as stack:
        (folder / "minio").mkdir(parents=True)
        server = stack.enter_context(minio_server.running(folder / "minio"))
        _bucket(server, "jobs")
        os.environ.update(HUAWEICLOUD_SDK_AK=modelarts_server.AK, HUAWEICLOUD_SDK_SK=modelarts_server.SK)
        service = stack.enter_context(modelarts_server.running(folder / "platform", server))
        os.environ["XDG_CONFIG_HOME"] = str(folder / "config")
        engine = modelarts_engine(service, "jobs", server, folder / "config")
        writer = Writer(engine, folder / "project")
        writer.everywhere()
        writer.keep(RECORDS / "modelarts")


def _bucket(server: Server, name: str) -> None:
    os.environ.update(AWS_ACCESS_KEY_ID=server.key, AWS_SECRET_ACCESS_KEY=server.secret)
    client = boto3.client("s3", endpoint_url=server.endpoint, region_name="us-east-1")
    client.create_bucket(Bucket=name)
    client.close()


ENGINES = {"local": local, "slurm": on_slurm, "volcano": on_volcano, "modelarts": on_modelarts}

if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="records-") as scratch:
        for name in sys.argv[1:] or ENGINES:
            print(name, flush=True)
            ENGINES[name](Path(scratch) / name)
