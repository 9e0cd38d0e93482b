"""What the timing of the gradient synchronisation costs, and whether it is right.

`python tests/bench/sync.py [--pairs 15] [--stragglers 10]` trains a model of 10 million parameters as 2 processes, with
and without `--profile-sync`, in interleaved pairs, and compares the wall-clock time of the same steps; compares the
exposed communication with what a communication hook of the training's own measured; and slows one rank, another one
each time, to see whether the report names it.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).parents[1] / "support"), str(Path(__file__).parent)]

from overhead import interval

TIMED = Path(__file__).parents[1] / "support/timed"
JOBSUBMIT = str(Path(sys.executable).with_name("jobsubmit"))
JOB = """name: timed
mode: torchrun
code_dir: {code}
boot_file: train.py
hyperparameters: {{steps: {steps}, out: "{out}"}}
resources: {{nodes: {nodes}, nproc_per_node: {nproc}}}
"""
OVERHEAD_BOUND = 1.02


def main() -> int:
    """Measure, and print ratios and intervals; exit 1 if a bound does not hold."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--pairs", type=int, default=15)
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--stragglers", type=int, default=10)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        os.environ["JOBSUBMIT_STATE_DIR"] = str(folder / "state")
        is_dear = _overhead(folder, options.pairs, options.steps) if options.pairs else False
        unnamed = sum(_straggler(folder, number, number % 4) != number % 4 for number in range(options.stragglers))
        accused = sum(_straggler(folder, number, -1) is not None for number in range(100, 100 + options.stragglers))
    print(f"stragglers named: {options.stragglers - unnamed} of {options.stragglers}; where there was none: {accused}")
    return int(is_dear or unnamed + accused > 0)


def _overhead(folder: Path, pairs: int, steps: int) -> bool:
    _train(folder, steps, profiled=True)
    ratios = []
    for number in range(pairs):
        taken = {way: _train(folder, steps, profiled=way) for way in sorted((True, False), reverse=number % 2 == 1)}
        ratios.append(taken[True] / taken[False])
        print(f"{number + 1:2}: without {taken[False]:.2f} s, with {taken[True]:.2f} s", flush=True)
    low, high = interval(ratios)
    median = statistics.median(ratios)
    print(
        f"timed / not timed: median {median:.4f}, 95% interval {low:.4f} to {high:.4f}, {pairs} pairs of {steps} steps"
    )
    return median > OVERHEAD_BOUND


def _train(folder: Path, steps: int, *, profiled: bool) -> float:
    """Return how long the slowest rank took for the steps after the fifth."""
    out = folder / "out"
    out.mkdir(exist_ok=True)
    (folder / "job.yaml").write_text(JOB.format(code=TIMED, steps=steps, out=out, nodes=2, nproc=1))
    _create(folder, *(["--profile-sync"] if profiled else []))
    return max(float(json.loads(file.read_text())["seconds"]) for file in out.glob("rank-*.json"))


def _straggler(folder: Path, number: int, rank: int) -> int | None:
    """Return the rank that the report names where this one is slow, or none with -1."""
    where = ("data", "backward")[number // 4 % 2]
    (folder / "job.yaml").write_text(JOB.format(code=TIMED, steps=25, out="", nodes=2, nproc=2))
    slow = [f"hyperparameters.slow_rank={rank}", f"hyperparameters.slow_where={where}", "hyperparameters.width=256"]
    job = f"straggler-{number}"
    words = [word for assignment in slow for word in ("--set", assignment)]
    _create(folder, "--profile-sync", "--job-id", job, *words)
    report: Any = json.loads(subprocess.run([JOBSUBMIT, "report", job, "-o", "json"], capture_output=True).stdout)
    found = report["syncs"][0]["straggler"]
    print(f"slow rank {rank}, in its {where}: {found}", flush=True)
    return None if found is None else int(found["rank"])


def _create(folder: Path, *words: str) -> None:
    command = [JOBSUBMIT, "create", str(folder / "job.yaml"), "--follow", "--no-check", *words]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(done.stderr)


if __name__ == "__main__":
    sys.exit(main())
