"""A job that shows no sign of life any more ends, and the report says where each rank was."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from command import Command, events, job_dir, job_id, processes_left
from pace import Pace
from tiers import slow

WATCH = 6
CORPUS = Path(__file__).parents[1] / "corpus"

BOOT = """
import argparse, os, sys, time
import torch, torch.distributed as dist, torch.multiprocessing as mp

def wait_for_nothing():
    time.sleep(1000)

def train(how):
    tensor = torch.ones(10)
    for step in range(1, 6):
        dist.all_reduce(tensor)
        print("step", step, flush=True)
    if how == "one rank is elsewhere" and dist.get_rank() == 2:
        wait_for_nothing()
    if how == "at exit":
        if dist.get_rank() == 1:
            wait_for_nothing()
        os._exit(0)
    dist.all_reduce(tensor)
    wait_for_nothing()

def spawned(local_rank, args):
    dist.init_process_group("gloo", init_method=args.init_method, world_size=4, rank=args.rank * 2 + local_rank)
    train(args.how)

if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--how")
    parser.add_argument("--rank", type=int)
    parser.add_argument("--init_method")
    args, _ = parser.parse_known_args()
    if "RANK" in os.environ:
        dist.init_process_group("gloo")
        train(args.how)
    else:
        mp.spawn(spawned, args=(args,), nprocs=2)
"""


def hanging(folder: Path, mode: str, how: str, extra: str = "") -> Path:
    (folder / "code").mkdir()
    (folder / "code/boot.py").write_text(BOOT)
    (folder / "job.yaml").write_text(
        f"name: hanging\nmode: {mode}\ncode_dir: code\nboot_file: boot.py\nhyperparameters: {{how: {how}}}\n"
        f"resources: {{nodes: 2, nproc_per_node: 2}}\nhang_after: {WATCH}s\n{extra}"
    )
    return folder / "job.yaml"


@pytest.mark.needs("torch")
@pytest.mark.parametrize("mode", [slow("spawn"), slow("launch"), "torchrun"])
def test_the_rank_that_is_elsewhere_is_named(mode: str, jobsubmit: Command, tmp_path: Path, pace: Pace) -> None:
    done = jobsubmit("create", hanging(tmp_path, mode, "one rank is elsewhere"), "--follow", code=100)
    job = job_id(done.stdout)
    status = jobsubmit.json("status", job)
    assert (status["state"], status["reason"]) == ("FAILED", "HANG")
    assert (status["failure"]["node"], status["failure"]["rank"]) == (1, 2)
    assert "rank 2: boot.py:6 in wait_for_nothing" in status["message"]
    assert "the others: boot.py:19 in train → all_reduce" in status["message"]
    assert any("in wait_for_nothing" in line for line in status["failure"]["last_lines"])
    assert "stack of rank 2" in done.stderr
    assert {file.name for file in (job_dir(job) / "stacks").iterdir()} == {f"rank-{rank}.txt" for rank in range(4)}
    assert WATCH <= seconds_from_the_last_step(jobsubmit, job) < pace.stretched(WATCH + 8)
    assert processes_left(job) == []


WITH_NCCL = """
import hashlib, json, os, pickle, time
import torch, torch.distributed as dist

rank = int(os.environ["RANK"])
recorded = json.load(open(os.path.join(os.path.dirname(__file__), "flight_recorder.json")))["sync"][str(rank)]

def say_what_a_real_one_said(collectives, stacks, active, backend=""):
    told = [{**entry, "frames": entry["frames"] if stacks else []} for entry in recorded["entries"]]
    return pickle.dumps({**recorded, "entries": told if collectives else []})

def fetch_batch():
    time.sleep(1000)

for name in ("_dump_nccl_trace", "_dump_fr_trace"):
    setattr(torch._C._distributed_c10d, name, say_what_a_real_one_said)
dist.init_process_group()
print("step 1", flush=True)
if rank == 1:
    fetch_batch()
hashlib.pbkdf2_hmac("sha256", b"", b"", 2**31 - 1)  # computes without Python, as does what waits in NCCL
"""


@pytest.mark.needs("torch")
def test_a_rank_that_waits_in_nccl_uses_cpu_time_and_hangs_all_the_same(jobsubmit: Command, tmp_path: Path) -> None:
    job_file = hanging(tmp_path, "torchrun", "in NCCL")
    (tmp_path / "code/boot.py").write_text(WITH_NCCL)
    shutil.copy(CORPUS / "nccl/flight_recorder.json", tmp_path / "code")
    asked = ("--set", "resources.nproc_per_node=1", "--set", "hyperparameters={}", "--no-check")
    done = jobsubmit("create", job_file, "--follow", *asked, code=100)
    status = jobsubmit.json("status", job_id(done.stdout))
    assert (status["state"], status["reason"]) == ("FAILED", "HANG")
    assert (status["failure"]["node"], status["failure"]["rank"]) == (1, 1)
    assert "no CPU time except to wait in NCCL; rank 0: raw.py:46 in <module> → " in status["message"]
    assert "→ all_reduce (collective 6, 1024 float); rank 1, which did not call it: boot.py:" in status["message"]
    assert "in fetch_batch" in status["failure"]["last_lines"][0]


def seconds_from_the_last_step(jobsubmit: Command, job: str) -> float:
    (end,) = [event["t"] for event in events(job) if event["event"] == "end"]
    index = job_dir(job) / "logs/rank-0.stdout.log"
    return float(end - index.stat().st_mtime)


@pytest.mark.slow
@pytest.mark.needs("torch")
def test_a_hang_at_exit_is_told_as_such_and_restarted(jobsubmit: Command, tmp_path: Path) -> None:
    extra = "restarts: {max: 1, on: [hang], backoff: 0}\n"
    done = jobsubmit("create", hanging(tmp_path, "torchrun", "at exit", extra), "--follow", code=100)
    assert "after rank 0 had ended with exit code 0; rank 1: boot.py:6 in wait_for_nothing" in done.stderr
    assert "restart 1 after HANG" in done.stderr


def test_a_silent_job_that_computes_does_not_hang(jobsubmit: Command, tmp_path: Path) -> None:
    (tmp_path / "code").mkdir()
    (tmp_path / "code/boot.py").write_text("import time\nend = time.time() + 7\nwhile time.time() < end: pass\n")
    (tmp_path / "job.yaml").write_text("name: busy\nmode: spawn\ncode_dir: code\nboot_file: boot.py\nhang_after: 3s\n")
    jobsubmit("create", "job.yaml", "--follow")


def test_without_a_watch_nothing_is_ended(jobsubmit: Command, tmp_path: Path) -> None:
    (tmp_path / "code").mkdir()
    (tmp_path / "code/boot.py").write_text("import time\ntime.sleep(4)\n")
    (tmp_path / "job.yaml").write_text("name: idle\nmode: spawn\ncode_dir: code\nboot_file: boot.py\n")
    jobsubmit("create", "job.yaml", "--follow", "--set", "hang_after=0")
    jobsubmit("create", "job.yaml", "--follow", "--set", "hang_after=2", code=100)
