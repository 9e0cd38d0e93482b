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
PEER = "torchx --help"
COMMANDS = {
    "python -c pass": [sys.executable, "-c", "pass"],
    PEER: ["torchx", "--help"],
    "aws --version": ["aws", "--version"],
    "jobsubmit --help": ["jobsubmit", "--help"],
    "jobsubmit create --help": ["jobsubmit", "create", "--help"],
    "jobsubmit status --help": ["jobsubmit", "status", "--help"],
    "jobsubmit list": ["jobsubmit", "list"],
    "jobsubmit status JOB": ["jobsubmit", "status", "hello"],
    "jobsubmit render JOB_FILE": ["jobsubmit", "render", JOB],
    "jobsubmit validate JOB_FILE": ["jobsubmit", "validate", JOB],
    "jobsubmit create --dry-run": ["jobsubmit", "create", JOB, "--dry-run"],
}
BOUNDS = {"jobsubmit --help": 0.55}


def main() -> int:
    """Measure, and print medians and ratios; exit 1 if a command is over its bound."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args()
    commands = {name: _found(words) for name, words in COMMANDS.items()}
    taken: dict[str, list[float]] = {name: [] for name in commands}
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "JOBSUBMIT_STATE_DIR": folder, "AWS_EC2_METADATA_DISABLED": "true"}
        _run(_submission(Path(folder)), environment)
        for number in range(options.rounds + 1):
            for name in commands if number % 2 else reversed(commands):
                seconds = _run(commands[name], environment)
                if number:  # the first round only fills the caches
                    taken[name].append(seconds)
    is_over = False
    for name, times in taken.items():
        ratios = [one / two for one, two in zip(times, taken[PEER], strict=True)]
        low, high = interval(ratios)
        median = statistics.median(ratios)
        shown = f"{median:.2f} of `{PEER}` ({low:.2f} to {high:.2f})"
        print(f"{name:28} {statistics.median(times) * 1000:5.0f} ms, {shown}")
        is_over = is_over or median > BOUNDS.get(name, median)
    return int(is_over)


def _submission(folder: Path) -> list[str]:
    """Return the command that submits a first job, so that there is one to ask about."""
    (folder / "code").mkdir()
    (folder / "code/train.py").write_text("print('hello')\n")
    (folder / "job.yaml").write_text("name: hello\nmode: spawn\ncode_dir: code\nboot_file: train.py\n")
    return _found(["jobsubmit", "create", str(folder / "job.yaml"), "--follow"])


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
