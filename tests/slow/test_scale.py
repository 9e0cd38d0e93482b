"""Many nodes, many jobs at once, and a job that idles: none of it costs much, none disturbs another."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from command import JOBSUBMIT, Command, events, job_dir, job_id, processes_left

NODES = 64
RANK = """
import argparse, os
parser = argparse.ArgumentParser()
parser.add_argument("--rank", type=int)
parser.add_argument("--world_size", type=int)
parser.add_argument("--init_method")
args, _ = parser.parse_known_args()
print("node", args.rank, "of", args.world_size, os.environ["MA_CURRENT_IP"], args.init_method, flush=True)
"""


def write_job(folder: Path, boot: str, extra: str = "") -> Path:
    (folder / "code").mkdir(parents=True)
    (folder / "code/boot.py").write_text(boot)
    (folder / "job.yaml").write_text(f"name: scale\nmode: spawn\ncode_dir: code\nboot_file: boot.py\n{extra}")
    return folder / "job.yaml"


def test_64_nodes(jobsubmit: Command, tmp_path: Path) -> None:
    done = jobsubmit("create", write_job(tmp_path, RANK), "--follow", "--nodes", str(NODES))
    job = job_id(done.stdout)
    said = [line.split() for line in jobsubmit("logs", job, "--grep", "^node ").stdout.splitlines()]
    assert sorted(int(words[3]) for words in said) == list(range(NODES))
    assert {words[5] for words in said} == {str(NODES)}
    assert len({words[6] for words in said}) == NODES
    assert len({words[7] for words in said}) == 1
    assert processes_left(job) == []


def test_eight_jobs_at_once_do_not_disturb_each_other(jobsubmit: Command, tmp_path: Path) -> None:
    boot = RANK + "import time\ntime.sleep(3)\nprint('job', os.environ['JOBSUBMIT_JOB_ID'], os.getcwd(), flush=True)\n"
    job_file = write_job(tmp_path, boot)

    def create(number: int) -> str:
        return job_id(jobsubmit("create", job_file, "--follow", "--nodes", "2").stdout)

    with ThreadPoolExecutor(8) as pool:
        jobs = list(pool.map(create, range(8)))
    assert len(set(jobs)) == 8
    ports = {json.loads((job_dir(job) / "status.json").read_text())["port"] for job in jobs}
    assert len(ports) == 8
    for job in jobs:
        said = jobsubmit("logs", job, "--grep", "^job ").stdout
        assert said.count(f"job {job} {job_dir(job)}/nodes/") == 2
        assert processes_left(job) == []
    starts = [max(event["t"] for event in events(job) if event["event"] == "node_start") for job in jobs]
    ends = [min(event["t"] for event in events(job) if event["event"] == "node_exit") for job in jobs]
    assert max(starts) < min(ends) or len([end for end in ends if end > max(starts)]) >= 4  # they ran together


def test_following_an_idle_job_costs_next_to_nothing(jobsubmit: Command, tmp_path: Path) -> None:
    boot = "import time\nprint('up', flush=True)\ntime.sleep(60)\n"
    client = jobsubmit.start("create", write_job(tmp_path, boot), "--follow", "--nodes", "8")
    assert client.stdout is not None and client.stderr is not None
    job = job_id(client.stdout.readline())
    for _ in range(16):
        client.stderr.readline()
    supervisor = json.loads((job_dir(job) / "status.json").read_text())["pid"]
    time.sleep(1)
    before, begun = {pid: cpu_seconds(pid) for pid in (client.pid, supervisor)}, time.monotonic()
    time.sleep(8)
    window = time.monotonic() - begun
    shares = {pid: (cpu_seconds(pid) - used) / window for pid, used in before.items()}
    jobsubmit("cancel", job)
    client.communicate(timeout=20)
    assert shares[client.pid] < 0.01
    assert shares[supervisor] < 0.02


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def test_following_a_burst_misses_and_doubles_nothing(jobsubmit: Command, tmp_path: Path) -> None:
    boot = """
import sys, time
for block in range(10):
    sys.stdout.write("".join(f"line {number} {'x' * 80}\\n" for number in range(block * 30000, (block + 1) * 30000)))
    sys.stdout.flush()
    time.sleep(0.1)
"""
    done = jobsubmit("create", write_job(tmp_path, boot), "--follow")
    numbers = [int(line.split()[3]) for line in done.stderr.splitlines() if line.startswith("[node 0] line ")]
    assert numbers == list(range(300_000))
    tail = jobsubmit("logs", job_id(done.stdout), "--tail", "3").stdout.splitlines()
    assert [line.split()[3] for line in tail] == ["299997", "299998", "299999"]


def test_a_dry_run_of_200_000_files(jobsubmit: Command, tmp_path: Path) -> None:
    """It takes 200 MB at most; the bounds of its CPU time are twice what it takes on a quiet machine of two cores."""
    for folder in range(400):
        (tmp_path / f"code/d{folder}").mkdir(parents=True)
        for number in range(500):
            (tmp_path / f"code/d{folder}/f{number}.txt").write_text(f"{folder} {number}\n")
    (tmp_path / "code/train.py").write_text("print('x')\n")
    (tmp_path / "job.yaml").write_text("name: many\nmode: spawn\ncode_dir: code\nboot_file: train.py\n")
    time.sleep(2.5)  # a file that changed just now may change again without a new time stamp
    first = usage(tmp_path)
    assert first.memory < 200_000
    assert first.seconds < 40
    jobsubmit("create", "job.yaml", "--detach", "--job-id", "many", timeout=300)
    second = usage(tmp_path)
    assert second.memory < 200_000
    assert second.seconds < 8
    jobsubmit("wait", "many", timeout=300)


# A child counts the memory of who started it, until it is another program: a small one must start it.
STARTER = """
import resource, subprocess, sys
with open("plan.json", "wb") as sink:
    subprocess.run(sys.argv[1:], stdout=sink, stderr=sink, check=True)
used = resource.getrusage(resource.RUSAGE_CHILDREN)
print(used.ru_maxrss, used.ru_utime + used.ru_stime)
"""


class Usage(NamedTuple):
    """The largest memory in KiB, and seconds of the processor."""

    memory: int
    seconds: float


def usage(folder: Path) -> Usage:
    """Return what a dry run uses."""
    command = [*JOBSUBMIT, "create", "job.yaml", "--dry-run", "-o", "json"]
    starter = [sys.executable, "-I", "-S", "-c", STARTER, *command]
    memory, seconds = subprocess.run(starter, cwd=folder, capture_output=True, text=True, check=True).stdout.split()
    return Usage(int(memory), float(seconds))
