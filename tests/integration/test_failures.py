"""When a rank fails, the whole job ends within seconds, and the report names the culprit and not its victims."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import product
from pathlib import Path

import boto3
import pytest
from command import PATIENCE, Command, events, job_dir, job_id, processes_left, processes_of, read_until
from minio_server import Server
from pace import Pace
from tiers import slow

MODES = ("spawn", "launch", "torchrun")
SECONDS = 10  # promised; a tried design needs under 2

BOOT = """
import argparse, os, signal, sys, time
import torch, torch.distributed as dist
import torch.multiprocessing as mp

def train(how):
    rank, tensor = dist.get_rank(), torch.ones(1000)
    print("rank", rank, "trains", flush=True)
    for step in range(100000):
        if rank == 3 and step == 20:
            print("last words of rank 3", flush=True)
            if how == "exit":
                sys.exit(7)
            if how == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            if how == "raise":
                raise ValueError("the data is bad: " + os.environ.get("TOKEN", ""))
            if how == "os-exit":
                os._exit(3)
        dist.all_reduce(tensor)

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


def write_job(folder: Path, mode: str, boot: str, extra: str = "") -> Path:
    (folder / "code").mkdir(exist_ok=True)
    (folder / "code/boot.py").write_text(boot)
    (folder / "job.yaml").write_text(
        f"name: failing\nmode: {mode}\ncode_dir: code\nboot_file: boot.py\n"
        f"resources: {{nodes: 2, nproc_per_node: 2}}\n{extra}"
    )
    return folder / "job.yaml"


def seconds_to_the_end(job: str, rank: int) -> float:
    """Return the time from the first sign of a rank's failure to the end of the job, by the job's own events."""
    found = events(job)
    pid = next(e["pid"] for e in found if e["event"] == "rank_start" and e["rank"] == rank)
    signs = [e["t"] for e in found if e["event"] in ("child_exit", "rank_exception") and e["pid"] == pid]
    (end,) = [e["t"] for e in found if e["event"] == "end"]
    return float(end - min(signs))


WAYS = {"exit": (7, None), "kill": (None, 9), "raise": (1, None), "os-exit": (3, None)}
# Each mode and each way to fail once, the others in `make test-all`.
CHOSEN = (("spawn", "exit"), ("launch", "kill"), ("torchrun", "raise"), ("spawn", "os-exit"))
OTHERS = [slow(mode, how) for mode, how in product(MODES, WAYS) if (mode, how) not in CHOSEN]


@pytest.mark.needs("torch")
@pytest.mark.parametrize(("mode", "how"), [*CHOSEN, *OTHERS])
def test_rank_3_fails(mode: str, how: str, jobsubmit: Command, tmp_path: Path, pace: Pace) -> None:
    code, number = WAYS[how]
    job_file = write_job(tmp_path, mode, BOOT, f"hyperparameters: {{how: {how}}}\n")
    done = jobsubmit("create", job_file, "--follow", code=100)
    job = job_id(done.stdout)
    assert processes_left(job) == []
    assert seconds_to_the_end(job, 3) < pace.stretched(SECONDS)
    status = jobsubmit.json("status", job)
    failure = status["failure"]
    assert status["state"] == "FAILED"
    assert (failure["node"], failure["rank"], failure["exit_code"], failure["signal"]) == (1, 3, code, number)
    assert any("last words of rank 3" in line for line in failure["last_lines"])
    assert failure["quoted"] == "rank 3"
    assert f"node 1, rank 3 failed first: {f'exit code {code}' if code else 'signal 9 (SIGKILL)'}" in done.stderr
    if how == "raise":
        assert any("ValueError: the data is bad" in line for line in failure["last_lines"])
    jobsubmit("wait", job, code=100)
    jobsubmit("wait", job, "--propagate-exit-code", code=code or 128 + 9)


@pytest.mark.needs("torch")
@pytest.mark.parametrize("mode", [slow("spawn"), slow("launch"), "torchrun"])
def test_a_worker_killed_from_outside(mode: str, jobsubmit: Command, tmp_path: Path, pace: Pace) -> None:
    job_file = write_job(tmp_path, mode, BOOT, "hyperparameters: {how: never}\n")
    job = job_id(jobsubmit("create", job_file, "--detach").stdout)
    pid = wait_for_rank(jobsubmit, job, 3)
    os.kill(pid, signal.SIGKILL)
    jobsubmit("wait", job, code=100)
    failure = jobsubmit.json("status", job)["failure"]
    assert (failure["node"], failure["rank"], failure["signal"]) == (1, 3, 9)
    assert seconds_to_the_end(job, 3) < pace.stretched(SECONDS)
    assert processes_left(job) == []


def wait_for_rank(jobsubmit: Command, job: str, rank: int) -> int:
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        log = job_dir(job) / f"logs/rank-{rank}.stdout.log"
        if log.exists() and "trains" in log.read_text():
            return int(next(e["pid"] for e in events(job) if e["event"] == "rank_start" and e["rank"] == rank))
        time.sleep(0.05)
    raise AssertionError(jobsubmit("logs", job).stdout)


def test_a_secret_is_struck_out_of_the_report_and_stands_nowhere(
    jobsubmit: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_TOKEN", "s3cr3t-value-9f")
    boot = "import os, sys\nprint('length', len(os.environ['TOKEN']))\nprint(os.environ['TOKEN'])\nsys.exit(4)\n"
    job_file = write_job(tmp_path, "spawn", boot, "secrets: {TOKEN: env:MY_TOKEN}\n")
    shown = jobsubmit("create", job_file, "--dry-run").stdout
    assert "s3cr3t" not in shown
    done = jobsubmit("create", job_file, "--follow", code=100)
    job = job_id(done.stdout)
    report = jobsubmit("status", job).stdout
    assert "length 15" in report
    assert "<TOKEN>" in report
    assert "s3cr3t" not in report
    logs = job_dir(job) / "logs"
    for file in Path(os.environ["JOBSUBMIT_STATE_DIR"]).rglob("*"):
        if file.is_file() and logs not in file.parents:  # what the user's own code prints is the user's
            assert b"s3cr3t" not in file.read_bytes(), file


def test_a_secret_of_several_lines_is_struck_out_too(
    jobsubmit: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KEY", "-----BEGIN-----\nmiddle-of-the-key\n-----END-----\n")
    boot = "import os, sys\nprint(os.environ['KEY'])\nsys.exit(4)\n"
    done = jobsubmit("create", write_job(tmp_path, "spawn", boot, "secrets: {KEY: env:KEY}\n"), "--follow", code=100)
    report = jobsubmit("status", job_id(done.stdout)).stdout
    assert "<KEY>" in report
    assert "middle" not in report


@contextmanager
def another_upload(uri: str) -> Iterator[None]:
    """Hold the place that code is uploaded to, as another client of this machine would."""
    lock = Path(os.environ["JOBSUBMIT_STATE_DIR"]) / f"transfer/{hashlib.sha256(uri.encode()).hexdigest()[:32]}.lock"
    lock.parent.mkdir(parents=True)
    with lock.open("wb") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        yield


def wait_for_file(file: Path) -> None:
    deadline = time.monotonic() + PATIENCE
    while not file.exists():
        assert time.monotonic() < deadline, file
        time.sleep(0.01)


def test_a_job_cancelled_while_it_is_being_submitted_never_starts(jobsubmit: Command, tmp_path: Path) -> None:
    job_file = write_job(tmp_path, "spawn", "print('never')\n")
    with another_upload(jobsubmit.json("create", job_file, "--dry-run")["code"]["uri"]):
        client = jobsubmit.start("create", job_file, "--job-id", "early", "--detach")
        wait_for_file(job_dir("early") / "record.json")
        cancelling = jobsubmit.start("cancel", "early")
        wait_for_file(job_dir("early") / "cancel-asked")
    said, _ = cancelling.communicate(timeout=PATIENCE)
    _, talk = client.communicate(timeout=PATIENCE)
    assert cancelling.returncode == 0
    assert "CANCELLED" in said
    assert client.returncode == 103, talk
    assert not (job_dir("early") / "logs").exists()
    jobsubmit("wait", "early", code=103)


@pytest.mark.slow  # it counts on packing to take longer than the start of a client
def test_a_job_cancelled_while_its_code_is_packed_never_starts(jobsubmit: Command, tmp_path: Path) -> None:
    job_file = write_job(tmp_path, "spawn", "print('never')\n")
    (tmp_path / "code/large.bin").write_bytes(os.urandom(150_000_000))
    client = jobsubmit.start("create", job_file, "--job-id", "packing", "--detach")
    wait_for_file(job_dir("packing") / "record.json")
    assert "CANCELLED" in jobsubmit("cancel", "packing").stdout
    _, talk = client.communicate(timeout=PATIENCE)
    assert client.returncode == 103, talk
    assert not (job_dir("packing") / "logs").exists()


def test_a_missing_secret_stops_before_anything_is_sent(jobsubmit: Command, tmp_path: Path) -> None:
    job_file = write_job(tmp_path, "spawn", "pass\n", "secrets: {A: env:NOT_SET_1, B: env:NOT_SET_2}\n")
    done = jobsubmit("create", job_file, code=2)
    assert f"{job_file}:6  secrets.A: the environment variable NOT_SET_1 is not set" in done.stderr
    assert "NOT_SET_2 is not set" in done.stderr
    assert not (tmp_path / "state").exists()
    assert "NOT_SET_1 is not set" in jobsubmit("validate", job_file).stderr


def test_a_script_that_fails_before_any_rank(jobsubmit: Command, tmp_path: Path) -> None:
    job_file = write_job(tmp_path, "spawn", "raise SystemExit('no data here')\n")
    done = jobsubmit("create", job_file, "--follow", code=100)
    assert "failed first: exit code 1" in done.stderr
    assert "│ no data here" in done.stderr
    assert jobsubmit.json("status", job_id(done.stdout))["failure"]["rank"] is None


def test_code_that_vanished_from_the_store(jobsubmit: Command, tmp_path: Path) -> None:
    job_file = write_job(tmp_path, "spawn", "print('never')\n")
    (tmp_path / "state/store").mkdir(parents=True)
    jobsubmit("create", job_file, "--follow")
    (archive,) = (tmp_path / "state/store").rglob("code.tar.gz")
    archive.write_bytes(archive.read_bytes()[: archive.stat().st_size // 2])
    done = jobsubmit("create", job_file, "--follow", code=100)
    assert "FETCH_FAILED" in done.stderr
    assert "the code could not be fetched" in done.stderr
    assert "[node 0] never" not in done.stderr
    assert "which uploads every file again (rerun does not)" in done.stderr
    again = jobsubmit("create", job_file, "--follow")
    assert "the last job could not fetch" in again.stderr
    assert "[node 0] never" in again.stderr
    assert "code unchanged" in jobsubmit("create", job_file, "--follow").stderr


@pytest.mark.needs("minio")
@pytest.mark.parametrize("flags", [(), ("--recheck",)])
def test_an_object_that_was_damaged_in_the_store(
    flags: tuple[str, ...], jobsubmit: Command, tmp_path: Path, s3: tuple[str, Server]
) -> None:
    bucket, server = s3
    client = boto3.client("s3", endpoint_url=server.endpoint, region_name="us-east-1")
    job_file = write_job(tmp_path, "spawn", "print('whole')\n")
    where = ("--store", f"s3://{bucket}/jobs", "--set", f"store.endpoint_url={server.endpoint}", "--set", "layout=tree")
    jobsubmit("create", job_file, *where, "--follow")
    keys = [item["Key"] for item in client.list_objects(Bucket=bucket)["Contents"]]
    (key,) = [key for key in keys if key.endswith("/boot.py")]
    client.put_object(Bucket=bucket, Key=key, Body=b"print('other')\n")
    if not flags:
        assert "FETCH_FAILED" in jobsubmit("create", job_file, *where, "--follow", code=100).stderr
    done = jobsubmit("create", job_file, *where, *flags, "--follow")
    assert "[node 0] whole" in done.stderr


def seconds_of_cancelling(job: str) -> float:
    found = events(job)
    (begun,) = [event["t"] for event in found if event.get("state") == "CANCELLING"]
    (end,) = [event["t"] for event in found if event["event"] == "end"]
    return float(end - begun)


SLEEPER = "import signal, sys, time\nprint('up', flush=True)\ntime.sleep(600)\n"
STUBBORN = (
    "import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nprint('up', flush=True)\ntime.sleep(600)\n"
)


def started(jobsubmit: Command, job_file: Path) -> str:
    job = job_id(jobsubmit("create", job_file, "--detach").stdout)
    deadline = time.monotonic() + PATIENCE
    while "up" not in jobsubmit("logs", job).stdout and time.monotonic() < deadline:
        time.sleep(0.05)
    return job


@pytest.mark.parametrize("boot", [SLEEPER, STUBBORN])
def test_cancel_leaves_nothing(boot: str, jobsubmit: Command, tmp_path: Path, pace: Pace) -> None:
    job = started(jobsubmit, write_job(tmp_path, "spawn", boot))
    assert processes_of(job) != []
    jobsubmit("wait", job, "--timeout", "0", code=101)
    done = jobsubmit("cancel", job)
    assert "CANCELLED" in done.stdout
    assert processes_left(job) == []
    if boot is SLEEPER:
        assert seconds_of_cancelling(job) < pace.stretched(8)
    jobsubmit("wait", job, code=103)
    assert "CANCELLED" in jobsubmit("cancel", job).stdout
    jobsubmit("logs", job, "-f")


def test_a_timeout_ends_the_job(jobsubmit: Command, tmp_path: Path) -> None:
    done = jobsubmit("create", write_job(tmp_path, "spawn", SLEEPER, "timeout: 2s\n"), "--follow", code=100)
    assert "TIMEOUT" in done.stderr
    assert processes_left(job_id(done.stdout)) == []


def test_ctrl_c_detaches_and_the_job_goes_on(jobsubmit: Command, tmp_path: Path) -> None:
    job_file = write_job(tmp_path, "spawn", SLEEPER.replace("600", "3") + "print('finished')\n")
    # Whoever runs the tests in the background has SIGINT ignored; a user at a terminal has not.
    client = jobsubmit.start(
        "create",
        job_file,
        "--follow",
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    assert client.stdout is not None and client.stderr is not None
    handle = client.stdout.readline()
    read_until(client.stderr, "] up")
    os.killpg(client.pid, signal.SIGINT)
    _, talk = client.communicate(timeout=PATIENCE)
    assert client.returncode == 130
    assert "detaching: the job continues" in talk
    assert f"jobsubmit logs -f {job_id(handle)}" in talk
    jobsubmit("wait", job_id(handle))
    assert "finished" in jobsubmit("logs", job_id(handle)).stdout


def test_a_client_killed_while_it_follows_does_not_matter(jobsubmit: Command, tmp_path: Path) -> None:
    job_file = write_job(tmp_path, "spawn", SLEEPER.replace("600", "2"))
    client = jobsubmit.start("create", job_file, "--follow")
    assert client.stdout is not None
    job = job_id(client.stdout.readline())
    client.kill()
    client.communicate()
    jobsubmit("wait", job)


def gang_pids(job: str) -> tuple[int, int]:
    """Return the pids of guardian and supervisor."""
    supervisor = int(json.loads((job_dir(job) / "status.json").read_text())["pid"])
    guardian = int(Path(f"/proc/{supervisor}/stat").read_text().rpartition(")")[2].split()[1])
    return guardian, supervisor


WITH_DAEMON = """
import os, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        time.sleep(600)
    os._exit(0)
print("up", flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize("victims", [("supervisor",), ("guardian",), ("guardian", "supervisor")])
def test_a_killed_gang_leaves_no_process_and_is_never_running_for_ever(
    victims: tuple[str, ...], jobsubmit: Command, tmp_path: Path
) -> None:
    boot = WITH_DAEMON if len(victims) == 1 else SLEEPER  # without both there is nobody to end a daemon
    job = started(jobsubmit, write_job(tmp_path, "spawn", boot))
    pids = dict(zip(("guardian", "supervisor"), gang_pids(job), strict=True))
    for victim in victims:
        os.kill(pids[victim], signal.SIGKILL)
    assert processes_left(job, 10) == []
    done = jobsubmit("wait", job, code=100)
    assert "LOST" in done.stdout


def test_a_name_means_the_newest_job_that_was_submitted(jobsubmit: Command, tmp_path: Path) -> None:
    job_file = write_job(tmp_path, "spawn", "print('x')\n")
    job = job_id(jobsubmit("create", job_file, "--follow").stdout)
    jobsubmit("create", job_file, "--store", "s3://some-bucket/x", code=4)
    assert jobsubmit.json("status", "failing")["id"] == job
    assert "did you mean `failing`" in jobsubmit("status", "faling", code=102).stderr
    assert "has nodes 0 to" in jobsubmit("logs", job, "--node", "7", code=2).stderr
    assert "no output of rank 9" in jobsubmit("logs", job, "--rank", "9").stderr


def test_an_unknown_job(jobsubmit: Command) -> None:
    for command in (("status",), ("logs",), ("wait",), ("cancel",)):
        done = jobsubmit(*command, "nobody", code=102)
        assert "jobsubmit list" in done.stderr


def test_the_same_job_id_twice_is_refused(jobsubmit: Command, tmp_path: Path) -> None:
    job_file = write_job(tmp_path, "spawn", "print('x')\n")
    assert jobsubmit("create", job_file, "--job-id", "mine", "--follow").stdout == "local://mine\n"
    assert "a job with this id exists already" in jobsubmit("create", job_file, "--job-id", "mine", code=2).stderr
    assert "must be at most 80 letters" in jobsubmit("create", job_file, "--job-id", "../x", code=2).stderr


def test_a_secret_does_not_come_back_in_what_a_failure_means(
    jobsubmit: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHORT", "hunter2")
    monkeypatch.setenv("LONG", "hunter2-and-more")
    boot = "import os, sys\nsys.exit('boot.py: error: unrecognized arguments: --token=' + os.environ['LONG'])\n"
    job_file = write_job(tmp_path, "spawn", boot, "secrets: {SHORT: env:SHORT, LONG: env:LONG}\n")
    job = job_id(jobsubmit("create", job_file, "--follow", code=100).stdout)
    status = jobsubmit("status", job, "-o", "json").stdout
    assert "does not accept the arguments --token=<LONG>" in status
    assert "hunter2" not in status
    assert "and-more" not in status + (job_dir(job) / "status.json").read_text()
