"""Kill whatever a training consists of, at random moments, and see that it ends as if nothing had happened.

`chaos.py --kills 100` prints what was killed and what was found. The training goes on from checkpoint to
checkpoint through as many attempts, and after a kill of what watches it through as many jobs, as it takes.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from command import JOBSUBMIT, events, job_dir, processes_left

CODE = Path(__file__).parents[2] / "code"
TARGETS = ("client", "supervisor", "guardian", "agent", "rank", "node")
MODES = {"spawn": "main.py", "launch": "torch_ddp.py", "torchrun": "torch_ddp.py"}
STEPS = 100
LATEST_KILL_SECONDS = 9.0  # after the last (re)start: some strike before the training begins, most while it runs
END_SECONDS = 240.0


class Chain:
    """Follow one training from job to job."""

    def __init__(self, folder: Path, mode: str, dice: random.Random) -> None:
        self.folder, self.mode, self.dice = folder, mode, dice
        self.killed: Counter[str] = Counter()
        self.jobs: list[str] = []
        self.last_step: int | None = None  # that rank 0 told, in whichever job
        (folder / "job.yaml").write_text(
            f"name: chaos\nmode: {mode}\ncode_dir: {CODE}\nboot_file: {MODES[mode]}\ncheckpoint_dir: checkpoints\n"
            f"hyperparameters: {{steps: {STEPS}, step_seconds: 0.05}}\n"
            "resources: {nodes: 2, nproc_per_node: 1}\nrestarts: {max: 1000, backoff: 0}\n"
        )

    def run(self, kills: int) -> None:
        """Strike so many times, then let it end."""
        self.submit()
        targets: list[str] = []
        while self.killed.total() < kills:
            targets = targets or self.dice.sample(TARGETS, len(TARGETS))
            time.sleep(self.dice.uniform(0, LATEST_KILL_SECONDS))
            if self.state() in ("SUCCEEDED", "LOST"):
                self.go_on()
            elif self.strike(targets[-1]):
                targets.pop()
        deadline = time.monotonic() + END_SECONDS
        while self.state() != "SUCCEEDED":
            assert time.monotonic() < deadline, self.status()
            if self.state() == "LOST":
                self.go_on()
            time.sleep(0.5)
        self.client.wait(timeout=30)
        assert processes_left(self.job) == []

    def submit(self, *again: str) -> None:
        command = ("rerun", *again) if again else ("create", str(self.folder / "job.yaml"))
        self.job = f"{self.folder.name}-{len(self.jobs)}"
        self.jobs.append(self.job)
        self.start_client(*command, "--follow", "--job-id", self.job)

    def start_client(self, *arguments: str) -> None:
        with (self.folder / "client.log").open("ab") as log:
            self.client = subprocess.Popen([*JOBSUBMIT, *arguments], stdout=log, stderr=log, cwd=self.folder)

    def go_on(self) -> None:
        """After a job that is over: check it, and go on where it was, or begin anew if it was done."""
        state = self.state()
        self.client.kill()
        self.client.wait()
        assert processes_left(self.job, 10) == [], f"{self.job} is {state} and has left processes"
        assert self.state() == state, "a final state has changed"
        self.check_logs()
        ran = [job for job in self.jobs if (job_dir(job) / "events.jsonl").exists()]
        if state == "SUCCEEDED" or not ran:
            self.last_step = None
            self.submit()
        else:
            self.submit(ran[-1], "--resume")

    def strike(self, target: str) -> bool:
        """Kill a target, if it is there; return whether it was."""
        pids = self.pids(target)
        for pid in pids:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        if pids:
            self.killed[target] += 1
            if target == "client":
                self.after_client()
        return bool(pids)

    def after_client(self) -> None:
        """Attach another client, if the job was submitted; else submit it again."""
        self.client.wait(timeout=10)
        if self.state() != "LOST":
            self.start_client("logs", "-f", self.job)

    def pids(self, target: str) -> list[int]:
        if target == "client":
            return [self.client.pid] if self.client.poll() is None else []
        status = told(job_dir(self.job) / "status.json")
        if target == "supervisor":
            return [status["pid"]] if status.get("pid") else []
        if target == "guardian":
            return parent_of(status["pid"]) if status.get("pid") else []
        found = events(self.job) if (job_dir(self.job) / "events.jsonl").exists() else []
        leaders = {event["node"]: event["pid"] for event in found if event["event"] == "node_start"}
        ranks = {event["rank"]: event["pid"] for event in found if event["event"] == "rank_start"}
        number = self.dice.randrange(2)
        of_rank, of_leader = [ranks[number]] if number in ranks else [], [leaders[number]] if number in leaders else []
        pids = {"rank": of_rank, "agent": of_leader, "node": of_leader + of_rank}[target]
        return [pid for pid in pids if self.job.encode() in environment_of(pid)]

    def status(self) -> dict[str, Any]:
        done = subprocess.run([*JOBSUBMIT, "status", self.job, "-o", "json"], capture_output=True, text=True)
        found: dict[str, Any] = json.loads(done.stdout)
        return found

    def state(self) -> str:
        found = self.status()
        if found.get("code") == 102:  # killed before it wrote anything down
            return "LOST" if self.client.poll() is not None else "PENDING"
        assert found["state"] not in ("FAILED", "CANCELLED"), found
        return str(found["state"])

    def check_logs(self) -> None:
        """Every line that a process wrote is shown, once; every attempt resumed from the last checkpoint."""
        shown = Counter(
            re.sub(r"^\[\w+ \d+\] ", "", line)
            for line in subprocess.run(
                [*JOBSUBMIT, "logs", self.job], capture_output=True, text=True, errors="replace"
            ).stdout.splitlines()
        )
        written: Counter[str] = Counter()
        for log in (job_dir(self.job) / "logs").glob("*.log"):
            written.update(log.read_text(errors="replace").splitlines())
        assert shown == written, (shown - written, written - shown)
        log = job_dir(self.job) / "logs/rank-0.stdout.log"
        last = self.last_step
        for line in log.read_text().splitlines() if log.exists() else ():
            if resumed := re.search(r"goes on after (\d+) steps", line):
                assert last is None or int(resumed[1]) in (last - 1, last), (last, line)
                last = int(resumed[1])
            elif step := re.match(r"step (\d+) ", line):
                assert last is None or int(step[1]) == last + 1, (last, line)
                last = int(step[1])
            elif "is ready" in line and last is not None and last <= 1:
                last = None  # nothing was saved yet: it begins anew
        self.last_step = last

    def models(self) -> list[dict[str, Any]]:
        """Return the parameters that the training ended with, and those of trainings before it that came to an end."""
        import torch

        files = list((self.folder / "checkpoints").glob(f"*/step-{STEPS:09}.pt"))
        assert files
        states = [torch.load(file, weights_only=True)["model"] for file in files]
        return [{name: tensor.tolist() for name, tensor in state.items()} for state in states]


def told(file: Path) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads(file.read_text())
    except (FileNotFoundError, ValueError):
        return {}
    return found


def parent_of(pid: int) -> list[int]:
    try:
        return [int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])]
    except (FileNotFoundError, ProcessLookupError):
        return []


def environment_of(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return b""


def chaos(kills: int, seed: int, folder: Path) -> Counter[str]:
    """Run trainings in all modes under so many kills in all; return what was killed. Raises AssertionError."""
    dice = random.Random(seed)
    killed: Counter[str] = Counter()
    calm = Chain(folder_of(folder, "calm"), "torchrun", dice)
    calm.run(0)
    (expected,) = calm.models()
    while killed.total() < kills:
        mode = tuple(MODES)[len(killed) % len(MODES)] if killed.total() < len(MODES) else dice.choice(tuple(MODES))
        chain = Chain(folder_of(folder, f"chain-{killed.total()}"), mode, dice)
        chain.run(min(2 * len(TARGETS), kills - killed.total()))
        chain.check_logs()
        assert all(model == expected for model in chain.models()), "the training ended with another model"
        killed += chain.killed
        print(f"{mode}: {dict(chain.killed)} in {len(chain.jobs)} jobs, the same model, bit for bit", flush=True)
    return killed


def folder_of(folder: Path, name: str) -> Path:
    (folder / name).mkdir()
    return folder / name


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 30))
    options = parser.parse_args()
    print(f"seed {options.seed}", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        os.environ["JOBSUBMIT_STATE_DIR"] = str(Path(folder) / "state")
        killed = chaos(options.kills, options.seed, Path(folder))
    print(f"{killed.total()} kills: {dict(killed)}; no orphan, no wrong state, no line lost, always the same model")
    return 0


if __name__ == "__main__":
    sys.exit(main())
