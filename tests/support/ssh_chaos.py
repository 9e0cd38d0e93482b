"""Kill whatever a job on SSH hosts consists of, at random moments: nothing is left, and its state and lines are true.

`ssh_chaos.py --kills 100` makes hosts of its own, and prints what was killed and how the jobs ended.
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

from command import JOBSUBMIT, processes_left

TARGETS = ("client", "connection", "agent", "node", "rank", "host")
STEPS, SECONDS_A_STEP, LATEST_KILL_SECONDS = 25, 0.1, 4.0
END_SECONDS = 90.0

TRAINING = f"""
import os, time
path = os.path.join(os.environ["JOBSUBMIT_CHECKPOINT_DIR"], "node-" + os.environ["NODE_RANK"])
step = int(open(path).read()) if os.path.exists(path) else 0
while step < {STEPS}:
    step += 1
    print("attempt", os.environ["JOBSUBMIT_RESTART_COUNT"], "step", step, flush=True)
    with open(path + ".new", "w") as file:
        file.write(str(step))
    os.replace(path + ".new", path)
    time.sleep({SECONDS_A_STEP})
"""


class Strikes:
    """Submit a job for each kill, on gpu1 and gpu2, and look what has become of it."""

    def __init__(self, hosts: Any, folder: Path, dice: random.Random) -> None:
        self.hosts, self.folder, self.dice = hosts, folder, dice
        self.ended: Counter[str] = Counter()
        (folder / "code").mkdir()
        (folder / "code/train.py").write_text(TRAINING)
        document = {
            "name": "chaos",
            "code_dir": "code",
            "command": "python train.py",
            "checkpoint_dir": str(folder / "shared"),
            "resources": {"nodes": 2},
            "restarts": {"max": 5, "backoff": 0, "on": ["failure", "node_failure"]},
            "backend": {"kind": "ssh", "hosts": ["gpu1", "gpu2"], "python": sys.executable},
        }
        (folder / "job.yaml").write_text(json.dumps(document))

    def strike(self, number: int, target: str) -> None:
        """Run one job, kill one target of it, and check how it ended."""
        job = f"strike-{number}-{target}"
        client = subprocess.Popen(
            [*JOBSUBMIT, "create", "job.yaml", "--follow", "--job-id", job],
            cwd=self.folder,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        time.sleep(self.dice.uniform(0.2, LATEST_KILL_SECONDS))
        host = self.dice.choice((1, 2))
        self.kill(target, job, host, client)
        try:
            status = self.wait(job, host if target == "host" else 0)
        finally:
            client.kill()
            client.wait()
        if target == "host" and host not in self.hosts.processes:
            self.hosts.start(host)  # its lines are asked for
        self.check(job, target, status)

    def kill(self, target: str, job: str, host: int, client: subprocess.Popen[bytes]) -> None:
        if target == "client":
            client.kill()
        elif target == "connection":
            self.hosts.break_connections()
        elif target == "host":
            self.hosts.power_off(host)
        else:
            for pid in self.pids(target, job, host):
                os.kill(pid, signal.SIGKILL)

    def pids(self, target: str, job: str, host: int) -> list[int]:
        """Return the agent of a host, the process that runs its node, or its training process."""
        of_host = {pid: words_of(pid) for pid in self.hosts.processes_of(host)}
        ranks = [pid for pid, words in of_host.items() if b"train.py" in words and b"bash" not in words[:6]]
        ours = {pid: parent_of(pid) for pid, words in of_host.items() if b"readline()))" in words}
        # Those below sshd's own processes answer questions of a client, or start an agent.
        agents = {pid for pid, parent in ours.items() if b"[listener]" in words_of(parent)}
        nodes = sorted(pid for pid, parent in ours.items() if parent in agents)
        chosen = {"rank": ranks[:1], "agent": [ours[pid] for pid in nodes[:1]], "node": nodes[:1]}
        return chosen[target]

    def wait(self, job: str, dead_host: int = 0) -> dict[str, Any]:
        """Return the last status; a host that died while the job was submitted may have to say whether it has it."""
        began = time.monotonic()
        deadline = began + END_SECONDS
        while True:
            done = subprocess.run([*JOBSUBMIT, "status", job, "-o", "json"], capture_output=True, text=True)
            status: dict[str, Any] = json.loads(done.stdout) if done.stdout else {"code": done.returncode}
            if status.get("state") in ("SUCCEEDED", "FAILED", "CANCELLED", "LOST") or status.get("code") == 102:
                return status
            if status.get("code") == 5 and dead_host and time.monotonic() - began > END_SECONDS / 3:
                self.hosts.start(dead_host)
                dead_host = 0
            assert time.monotonic() < deadline, (job, status, done.stderr)
            time.sleep(0.3)

    def check(self, job: str, target: str, status: dict[str, Any]) -> None:
        """Fail unless nothing is left on any host, the state is one that this kill may lead to, and the lines agree."""
        state, reason = status.get("state", "UNKNOWN JOB"), status.get("reason", "")
        self.ended[f"{target}: {state} {reason}".strip()] += 1
        allowed = {
            "client": ("SUCCEEDED", "LOST", "FAILED"),  # the last two: it struck while the job was submitted
            "connection": ("SUCCEEDED", "LOST", *(("FAILED",) if reason == "NOT_SUBMITTED" else ())),
            "rank": ("SUCCEEDED",),
            "node": ("SUCCEEDED",),
            "agent": ("SUCCEEDED", "FAILED", "LOST"),
            "host": ("SUCCEEDED", "FAILED", "LOST"),
        }
        is_unknown = state == "UNKNOWN JOB"  # it struck before there was a job
        assert is_unknown or state in allowed[target], (job, status)
        assert reason in ("", "NODE_FAILED", "START_FAILED", "AGENT_DIED", "NOT_SUBMITTED"), (job, status)
        assert processes_left(job, 20) == [], (job, status)
        again = self.wait(job)
        assert again.get("state", "UNKNOWN JOB") == state, (status, again)
        if state == "SUCCEEDED":
            self.check_lines(job)

    def check_lines(self, job: str) -> None:
        """Each line that a node wrote is shown once."""
        shown = subprocess.run([*JOBSUBMIT, "logs", job], capture_output=True, text=True).stdout.splitlines()
        for node in (0, 1):
            steps = [line for line in shown if re.match(rf"\[node {node}\] attempt \d+ step", line)]
            log = Path(f"jobs/{job}/{node}")
            files = sorted((self.hosts.home(node + 1) / ".jobsubmit" / log).glob(f"run-*/node-{node}/logs/*stdout.log"))
            written = [f"[node {node}] {line}" for file in files for line in file.read_text().splitlines()]
            assert steps == [line for line in written if "step" in line], (job, node)
            assert steps[-1].endswith(f"step {STEPS}")


def parent_of(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0


def words_of(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def strike_all(hosts: Any, folder: Path, kills: int, seed: int) -> Counter[str]:
    """Strike so many times, each target in turn; return how the jobs ended. Raises AssertionError."""
    strikes = Strikes(hosts, folder, random.Random(seed))
    for number in range(kills):
        strikes.strike(number, TARGETS[number % len(TARGETS)])
    return strikes.ended


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 30))
    options = parser.parse_args()
    print("seed", options.seed, flush=True)
    sys.path.insert(0, str(Path(__file__).parents[1] / "engines"))
    import ssh_hosts

    with tempfile.TemporaryDirectory(prefix="jobsubmit-chaos-") as name:
        folder = Path(name)
        for part in ("hosts", "jobs"):
            (folder / part).mkdir()
        os.environ["JOBSUBMIT_STATE_DIR"] = str(folder / "state")
        with ssh_hosts.running(folder / "hosts", 2) as hosts:
            os.environ.update(PATH=f"{hosts.bin}:{os.environ['PATH']}", XDG_RUNTIME_DIR=str(hosts.sockets))
            for ending, count in sorted(strike_all(hosts, folder / "jobs", options.kills, options.seed).items()):
                print(f"{count:4} {ending}")


if __name__ == "__main__":
    main()
