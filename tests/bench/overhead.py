"""What jobsubmit costs: the time of a job on this machine, with it and by hand, in pairs.

`python tests/bench/overhead.py [--pairs 15]` runs a program on 2 nodes with 1 process each, once as `jobsubmit create
--follow`, once as the two commands a person would type, with the same rendezvous. It prints two figures: how long it
takes to the first step of the sample training, and how long a whole job takes that reduces one number and ends.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

CODE = Path(__file__).parents[2] / "code"
BOUNDS = {"first_step.py": 1.10, "whole_job.py": 1.08}
DEADLINE = 120.0

# The sample, but for a sign of its first step.
FIRST_STEP = """
import os, runpy, sys, time
import torch.distributed as dist
from torch.optim import SGD
step = SGD.step
def first_step(*args, **kwargs):
    result = step(*args, **kwargs)
    SGD.step = step
    if dist.get_rank() == 0:
        with open(os.environ["BENCH_SIGN"] + ".new", "w") as sign:
            sign.write(repr(time.time()))
        os.rename(os.environ["BENCH_SIGN"] + ".new", os.environ["BENCH_SIGN"])
    return result
SGD.step = first_step
runpy.run_path(os.path.join(os.path.dirname(os.path.abspath(__file__)), "torch_ddp.py"), run_name="__main__")
"""
WHOLE_JOB = """
import torch, torch.distributed as dist
dist.init_process_group("gloo")
number = torch.ones(1)
dist.all_reduce(number)
assert number.item() == dist.get_world_size()
dist.destroy_process_group()
"""


def main() -> int:
    """Measure, and print ratio and interval; exit 1 if the median is over the bound."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--pairs", type=int, default=15)
    options = parser.parse_args()
    is_over = False
    for boot, bound in BOUNDS.items():
        with tempfile.TemporaryDirectory() as folder:
            ratios = _measure(Path(folder), boot, options.pairs)
        low, high = interval(ratios)
        median = statistics.median(ratios)
        shown = f"median {median:.3f}, 95% interval {low:.3f} to {high:.3f}, {len(ratios)} pairs; bound {bound}"
        print(f"{boot}: jobsubmit / by hand: {shown}")
        is_over = is_over or median > bound
    return int(is_over)


def _measure(folder: Path, boot: str, pairs: int) -> list[float]:
    code = folder / "code"
    code.mkdir()
    for file in CODE.glob("*.py"):
        (code / file.name).write_bytes(file.read_bytes())
    (code / "first_step.py").write_text(FIRST_STEP)
    (code / "whole_job.py").write_text(WHOLE_JOB)
    (folder / "job.yaml").write_text(
        f"name: bench\nmode: torchrun\ncode_dir: code\nboot_file: {boot}\nresources: {{nodes: 2, nproc_per_node: 1}}\n"
    )
    os.environ["JOBSUBMIT_STATE_DIR"] = str(folder / "state")
    ways = {"by hand": _by_hand, "jobsubmit": _with_jobsubmit}
    for way in ways.values():
        way(folder, boot)  # what is cached, is cached for both
    ratios = []
    for number in range(pairs):
        names = sorted(ways, reverse=number % 2 == 1)
        taken = {name: ways[name](folder, boot) for name in names}
        ratios.append(taken["jobsubmit"] / taken["by hand"])
        print(f"{number + 1:2}: by hand {taken['by hand']:.2f} s, jobsubmit {taken['jobsubmit']:.2f} s", flush=True)
    return ratios


def _with_jobsubmit(folder: Path, _: str) -> float:
    jobsubmit = str(Path(sys.executable).with_name("jobsubmit"))
    return _seconds(folder, [[jobsubmit, "create", "job.yaml", "--follow", "-e", f"BENCH_SIGN={folder}/sign"]])


def _by_hand(folder: Path, boot: str) -> float:
    port = _free_port()
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nnodes=2", "--nproc_per_node=1"]
    torchrun += ["--rdzv_backend=static", "--master_addr=127.0.0.1", f"--master_port={port}"]
    return _seconds(folder, [[*torchrun, f"--node_rank={node}", f"code/{boot}"] for node in range(2)])


def _free_port() -> int:
    while True:
        port = random.randrange(20000, 30000)
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)):
                return port


def _seconds(folder: Path, commands: list[list[str]]) -> float:
    """Return the seconds from the start of the commands to the sign of the first step, else to their end."""
    sign = folder / "sign"
    sign.unlink(missing_ok=True)
    environment = {**os.environ, "BENCH_SIGN": str(sign)}
    with (folder / "output").open("wb") as output:
        begun = time.time()
        started = [
            subprocess.Popen(command, cwd=folder, stdout=output, stderr=output, env=environment) for command in commands
        ]
        try:
            for process in started:
                if process.wait(timeout=DEADLINE) != 0:
                    raise SystemExit((folder / "output").read_text(errors="replace"))
        finally:
            for process in started:
                if process.poll() is None:
                    process.send_signal(signal.SIGTERM)
    return (float(sign.read_text()) if sign.exists() else time.time()) - begun


def interval(ratios: list[float]) -> tuple[float, float]:
    """Return the 95% interval of the median, by drawing anew from what was measured."""
    dice = random.Random(0)
    medians = sorted(statistics.median(dice.choices(ratios, k=len(ratios))) for _ in range(10_000))
    return medians[250], medians[-250]


if __name__ == "__main__":
    sys.exit(main())
