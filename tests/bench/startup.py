"""How long a command takes before it does anything: jobsubmit beside the tools that a user would pick instead.

`python tests/bench/startup.py [--rounds 15]` runs each command once a round, in turn, as whole processes, and shows the
medians, and the ratios of the pairs of one round. Needs `pip install 'jobsubmit[bench]'`.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent)]

from overhead import interval

BIN = Path(sys.executable).parent
JOB = str(Path(__file__).parents[2] / "templates" / "jobs" / "torchrun.yaml")
COMMANDS = {
    "python -c pass": [sys.executable, "-c", "pass"],
    "jobsubmit --help": ["jobsubmit", "--help"],
    "jobsubmit render": ["jobsubmit", "render", JOB],
    "jobsubmit list": ["jobsubmit", "list"],
    "jobsubmit create --dry-run": ["jobsubmit", "create", JOB, "--dry-run"],
    "torchx --help": ["torchx", "--help"],
    "aws --version": ["aws", "--version"],
}
BOUNDS = {"torchx --help": 1.0, "aws --version": 0.5}
JUDGED = "jobsubmit --help"


def main() -> int:
    """Measure, and print medians and ratios; exit 1 if `jobsubmit --help` is over a bound."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args()
    commands = {name: _found(words) for name, words in COMMANDS.items()}
    taken: dict[str, list[float]] = {name: [] for name in commands}
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "JOBSUBMIT_STATE_DIR": folder, "AWS_EC2_METADATA_DISABLED": "true"}
        for number in range(options.rounds + 1):
            for name in commands if number % 2 else reversed(commands):
                seconds = _run(commands[name], environment)
                if number:  # the first round only fills the caches
                    taken[name].append(seconds)
    for name, times in taken.items():
        print(f"{name:28} {statistics.median(times) * 1000:7.0f} ms")
    return int(sum(_is_over(taken, other, bound) for other, bound in BOUNDS.items()) > 0)


def _is_over(taken: dict[str, list[float]], other: str, bound: float) -> bool:
    ratios = [one / two for one, two in zip(taken[JUDGED], taken[other], strict=True)]
    low, high = interval(ratios)
    median = statistics.median(ratios)
    print(f"{JUDGED} / {other}: median {median:.3f}, 95% interval {low:.3f} to {high:.3f}; bound {bound}")
    return median > bound


def _found(words: list[str]) -> list[str]:
    own = shutil.which(words[0], path=str(BIN)) or shutil.which(words[0])
    if own is None:
        raise SystemExit(f"there is no {words[0]}: pip install 'jobsubmit[bench]'")
    return [own, *words[1:]]


def _run(words: list[str], environment: dict[str, str]) -> float:
    begun = time.perf_counter()
    done = subprocess.run(words, env=environment, capture_output=True, check=False)
    seconds = time.perf_counter() - begun
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(words)}: {done.stderr.decode(errors='replace')}")
    return seconds


if __name__ == "__main__":
    sys.exit(main())
