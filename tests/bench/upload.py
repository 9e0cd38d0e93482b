"""Compare our upload with the tools a user would take instead: whole processes, runs in turn, a real MinIO.

python tests/bench/upload.py            the whole table (an hour)
python tests/bench/upload.py --quick    a minute's look: W1, W4, W5, W6 on the disk, no slow line
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))
import minio_server

BUCKET = "bench"
ROUND_TRIP = 0.02
QUICK = ("W1", "W4", "W5", "W6")
LINES = b"".join(sorted(path.read_bytes() for path in Path(os.__file__).parent.glob("*.py"))).splitlines(keepends=True)


@dataclass(frozen=True)
class Workload:
    """Describe a directory by the sizes of its files; `again` uploads it a second time, `change` after one change.

    With `back` it is the download that is measured; what `is_noise` does not shrink.
    """

    name: str
    what: str
    sizes: Callable[[random.Random], list[int]]
    again: bool = False
    change: bool = False
    back: bool = False
    is_noise: bool = False


def _log_normal(count: int, total: int) -> Callable[[random.Random], list[int]]:
    def sizes(dice: random.Random) -> list[int]:
        raw = [dice.lognormvariate(0, 1.5) for _ in range(count)]
        return [max(1, int(size * total / sum(raw))) for size in raw]

    return sizes


W2 = _log_normal(5_000, 40_000_000)
WORKLOADS = [
    Workload("W1", "1,000 files of 4 KB", lambda _: [4096] * 1000),
    Workload("W2", "5,000 files, 40 MB", W2),
    Workload("W3", "20 files of 16 MB", lambda _: [16 << 20] * 20),
    Workload("W4", "10 files, 40 KB", lambda _: [4096] * 10),
    Workload("W5", "W2 again, unchanged", W2, again=True),
    Workload("W6", "W2 again, one file changed", W2, again=True, change=True),
    Workload("W7", "100,000 files, 200 MB", lambda _: [2000] * 100_000),
    Workload("W8", "20 files of 16 MB that do not shrink", lambda _: [16 << 20] * 20, is_noise=True),
    Workload("D2", "W2 downloaded", W2, back=True),
]


def make(workload: Workload, root: Path) -> Path:
    """Write the files of a workload: lines of Python, so that they pack as code does; every fourth is random bytes."""
    dice = random.Random(7)
    for number, size in enumerate(workload.sizes(dice)):
        folder = root / f"package{number % 50:02}"
        folder.mkdir(parents=True, exist_ok=True)
        content = dice.randbytes(size) if workload.is_noise or number % 4 == 0 else _code(dice, size)
        (folder / f"file{number:06}.py").write_bytes(content)
    return root


def _code(dice: random.Random, size: int) -> bytes:
    start, text = dice.randrange(len(LINES)), bytearray()
    while len(text) < size:
        text += LINES[start % len(LINES)]
        start += 1
    return bytes(text[:size])


# ── who takes part ──────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Tool:
    """Say how a tool uploads a directory, and downloads one; `sync` where it has another verb for what is there."""

    name: str
    upload: list[str]
    download: list[str]
    sync: list[str] = field(default_factory=list)

    def command(self, directory: Path, target: str, *, again: bool = False, back: bool = False) -> list[str]:
        """Return the command line."""
        words = self.download if back else self.sync if again and self.sync else self.upload
        return [word.format(dir=directory, to=target) for word in words]


# Name, then how to upload, to download, and to upload again.
PEERS = [
    ("s5cmd", "cp {dir}/ s3://bench/{to}/", "cp s3://bench/{to}/* {dir}/", "sync {dir}/ s3://bench/{to}/"),
    ("aws", "s3 sync --only-show-errors {dir} s3://bench/{to}", "s3 sync --only-show-errors s3://bench/{to} {dir}", ""),
    (
        "rclone",
        "copy {dir} bench:bench/{to} --transfers 16",
        "copy bench:bench/{to} {dir} --transfers 16",
        "sync {dir} bench:bench/{to} --transfers 16",
    ),
    ("mc", "mirror --quiet {dir} bench/bench/{to}", "mirror --quiet bench/bench/{to} {dir}", ""),
]


def tools(endpoint: str) -> list[Tool]:
    """Return our two ways and whatever peers are installed."""
    script = Path(sys.executable).parent / "jobsubmit"
    ours = [str(script)] if script.exists() else [sys.executable, "-m", "jobsubmit"]
    upload = [*ours, "upload", "{dir}", f"s3://{BUCKET}/{{to}}", "--endpoint-url", endpoint]
    download = [*ours, "download", f"s3://{BUCKET}/{{to}}", "{dir}", "--endpoint-url", endpoint]
    found = [Tool("ours, tree", upload, download), Tool("ours, archive", [*upload, "--archive"], download)]
    for name, *ways in PEERS:
        if binary := shutil.which(name, path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"):
            found.append(Tool(name, *([binary, *way.split()] if way else [] for way in ways)))
    return found


def environment(server: minio_server.Server, endpoint: str, home: Path) -> dict[str, str]:
    """Return what every tool needs to reach the server, and nothing of the user's own settings."""
    return {
        "PATH": os.environ["PATH"],
        "HOME": str(home),
        "AWS_ACCESS_KEY_ID": server.key,
        "AWS_SECRET_ACCESS_KEY": server.secret,
        "AWS_REGION": "us-east-1",
        "AWS_ENDPOINT_URL": endpoint,
        "S3_ENDPOINT_URL": endpoint,
        "MC_HOST_bench": endpoint.replace("://", f"://{server.key}:{server.secret}@"),
        "RCLONE_CONFIG_BENCH_TYPE": "s3",
        "RCLONE_CONFIG_BENCH_PROVIDER": "Minio",
        "RCLONE_CONFIG_BENCH_ENV_AUTH": "true",
        "RCLONE_CONFIG_BENCH_ENDPOINT": endpoint,
    }


# ── measuring ───────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass
class Figures:
    """Collect what a tool took: seconds of each run, and the largest memory of one, in MB."""

    seconds: list[float] = field(default_factory=list)
    memory: float = 0

    def note(self, seconds: float, memory: float) -> None:
        """Add a run."""
        self.seconds.append(seconds)
        self.memory = max(self.memory, memory)

    @property
    def median(self) -> float:
        """Return the median of the runs."""
        return statistics.median(self.seconds)


def timed(command: list[str], env: dict[str, str]) -> tuple[float, float]:
    """Return (seconds, MB) of a whole process; fail if it does."""
    started = time.perf_counter()
    with tempfile.TemporaryFile() as said:
        process = subprocess.Popen(command, env=env, stdout=said, stderr=said)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        seconds = time.perf_counter() - started
        if process.returncode:
            said.seek(0)
            raise SystemExit(f"{' '.join(command)}\n{said.read()[-2000:].decode(errors='replace')}")
    return seconds, usage.ru_maxrss / 1024


def measure(
    workload: Workload, directory: Path, competitors: list[Tool], env: dict[str, str], runs: int, prefix: str
) -> dict[str, Figures]:
    """Run every tool in turn, `runs` times over; each upload has a place of its own, a second one the first's."""
    figures = {tool.name: Figures() for tool in competitors}
    targets = {tool.name: f"{prefix}-{workload.name}-{number}" for number, tool in enumerate(competitors)}
    if workload.again:
        for tool in competitors:
            timed(tool.command(directory, targets[tool.name]), env)
        time.sleep(2.1)  # what is younger than that, a stat cache does not believe
        for tool in competitors:
            timed(tool.command(directory, targets[tool.name], again=True), env)
    victim = sorted(path for path in directory.rglob("*") if path.is_file())[0]
    for run in range(runs):
        for tool in competitors:
            if workload.back:
                if run == 0:
                    timed(tool.command(directory, targets[tool.name]), env)
                with tempfile.TemporaryDirectory(dir=directory.parent) as fetched:
                    command = tool.command(Path(fetched), targets[tool.name], back=True)
                    figures[tool.name].note(*timed(command, env))
                continue
            if workload.change:
                victim.write_bytes(victim.read_bytes() + b"#")
            target = targets[tool.name] if workload.again else f"{targets[tool.name]}-{run}"
            figures[tool.name].note(*timed(tool.command(directory, target, again=workload.again), env))
    return figures


def report(place: str, workload: Workload, figures: dict[str, Figures]) -> None:
    """Print a row: the median of each tool and its ratio to s5cmd's (to the first peer's where there is no s5cmd)."""
    base = figures.get("s5cmd") or next((f for name, f in figures.items() if not name.startswith("ours")), None)
    cells = []
    for name, figure in figures.items():
        ratio = f" ({figure.median / base.median:.2f})" if base else ""
        memory = f" {figure.memory:.0f} MB" if workload.name == "W7" else ""
        cells.append(f"{name} {figure.median:.3f} s{ratio}{memory}")
    print(f"| {place} | {workload.name} {workload.what} | " + " | ".join(cells) + " |", flush=True)


@contextmanager
def slow_line(port: str) -> Iterator[str]:
    """Carry to a server over a line with a round trip of 20 ms; yield its address."""
    command = [sys.executable, str(Path(__file__).parent / "slow_line.py"), port, str(ROUND_TRIP)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        yield f"http://127.0.0.1:{process.stdout.readline().strip()}"
        process.terminate()


def main() -> None:
    """Measure what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a minute's look")
    parser.add_argument("--runs", type=int, default=5, help="runs of each tool (W7: one)")
    parser.add_argument("--only", nargs="+", metavar="W", help="these workloads only, e.g. W1 W5")
    parser.add_argument("--places", nargs="+", choices=["disk", "memory"], default=["disk", "memory"])
    parser.add_argument("--lines", nargs="+", choices=["loopback", "20 ms"], default=["loopback", "20 ms"])
    options = parser.parse_args()
    wanted = options.only or list(QUICK if options.quick else [workload.name for workload in WORKLOADS])
    places = ["disk"] if options.quick else options.places
    lines = ["loopback"] if options.quick else options.lines
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-", dir=Path.home())))
        for place in places:
            where = Path("/dev/shm") if place == "memory" else scratch
            with (
                tempfile.TemporaryDirectory(prefix="bench-", dir=where) as data,
                minio_server.running(Path(data)) as server,
            ):
                make_bucket(server)
                for line in lines:
                    with ExitStack() as way:
                        endpoint = server.endpoint
                        if line != "loopback":
                            endpoint = way.enter_context(slow_line(endpoint.rpartition(":")[2]))
                        compare(f"{place}, {line}", endpoint, server, wanted, options.runs, scratch)


def make_bucket(server: minio_server.Server) -> None:
    """Make the bucket that everybody uploads to."""
    import boto3

    boto3.client(
        "s3",
        endpoint_url=server.endpoint,
        region_name="us-east-1",
        aws_access_key_id=server.key,
        aws_secret_access_key=server.secret,
    ).create_bucket(Bucket=BUCKET)


def compare(
    place: str, endpoint: str, server: minio_server.Server, wanted: list[str], runs: int, scratch: Path
) -> None:
    """Print a row for each workload."""
    for workload in WORKLOADS:
        if workload.name not in wanted:
            continue
        with tempfile.TemporaryDirectory(prefix="bench-", dir=scratch) as folder:
            directory = make(workload, Path(folder) / "code")
            home = Path(folder) / "home"
            home.mkdir()
            competitors = tools(endpoint)
            if workload.name == "W7":
                competitors = [tool for tool in competitors if tool.name.startswith(("ours", "s5cmd"))]
            env = environment(server, endpoint, home)
            count = 1 if workload.name == "W7" else runs
            report(place, workload, measure(workload, directory, competitors, env, count, endpoint.rpartition(":")[2]))


if __name__ == "__main__":
    main()
