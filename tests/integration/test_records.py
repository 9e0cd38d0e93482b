"""What this machine keeps of jobs: found, listed, run again, removed, and true whoever was killed."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import select
import signal
import subprocess
import sys
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from command import (
    JOBSUBMIT,
    PATIENCE,
    Command,
    events,
    job_dir,
    job_id,
    processes_left,
    processes_of,
    read_until,
    wait_for_line,
    wait_until,
)
from pace import Pace

from jobsubmit.cli import logs
from jobsubmit.config import load_settings
from jobsubmit.jobs import monitor
from jobsubmit.jobs.records import JobRecords


def write_job(folder: Path, boot: str = "print('hello')\n", name: str = "kept", extra: str = "") -> Path:
    (folder / "code").mkdir(exist_ok=True)
    (folder / "code/boot.py").write_text(boot)
    (folder / "job.yaml").write_text(f"name: {name}\nmode: spawn\ncode_dir: code\nboot_file: boot.py\n{extra}")
    return folder / "job.yaml"


def submit(jobsubmit: Command, folder: Path, boot: str = "print('hello')\n", name: str = "kept", code: int = 0) -> str:
    return job_id(jobsubmit("create", write_job(folder, boot, name), "--follow", code=code).stdout)


def listed(jobsubmit: Command, *flags: str) -> list[str]:
    return [job["id"] for job in jobsubmit.json("list", *flags)]


def test_a_list_can_be_filtered(jobsubmit: Command, tmp_path: Path) -> None:
    good = submit(jobsubmit, tmp_path)
    bad = submit(jobsubmit, tmp_path, "raise SystemExit(3)\n", "broken", code=100)
    assert listed(jobsubmit) == [bad, good]
    assert listed(jobsubmit, "--state", "FAILED") == [bad]
    assert listed(jobsubmit, "--state", "failed", "--state", "succeeded", "-n", "1") == [bad]
    assert listed(jobsubmit, "--name", "ke*") == [good]
    assert listed(jobsubmit, "--since", "1h") == [bad, good]
    assert listed(jobsubmit, "--since", "2099-01-01") == []
    assert "no job matches" in jobsubmit("list", "--name", "nothing").stderr
    assert "is not a time" in jobsubmit("list", "--since", "soon", code=2).stderr
    assert "--watch needs a terminal" in jobsubmit("list", "-w", code=2).stderr
    lines = jobsubmit("list").stdout.splitlines()
    assert [line.split()[:2] for line in lines] == [["id", "state"], [bad, "FAILED"], [good, "SUCCEEDED"]]


def test_what_is_remembered_of_ended_jobs_is_only_the_faster_way(jobsubmit: Command, tmp_path: Path) -> None:
    first = submit(jobsubmit, tmp_path)
    remembered = job_dir(first).parents[1] / "ended-jobs.json"
    assert listed(jobsubmit) == [first]
    for damage in (b"", b"[]", b'{"x": 1}', b'{"x": [1, [2]]}', b"\xff"):
        remembered.write_bytes(damage)
        assert listed(jobsubmit) == [first]
    assert json.loads(remembered.read_bytes())
    jobsubmit("delete", first)
    assert listed(jobsubmit) == []
    jobsubmit("create", write_job(tmp_path), "--job-id", first, "--follow", "--set", "name=other")
    assert jobsubmit.json("list")[0]["name"] == "other"


@pytest.mark.slow  # what it bounds is a wall time
def test_ten_thousand_jobs_are_listed_in_half_a_second(jobsubmit: Command, pace: Pace) -> None:
    jobs = Path(os.environ["JOBSUBMIT_STATE_DIR"]) / "jobs"
    record = {"mode": "torchrun", "backend": "local", "nodes": 2, "code": "x", "digest": "d", "script_sha256": "s"}
    status = json.dumps({"state": "SUCCEEDED", "reason": "", "message": "", "failure": None})
    for number in range(10_000):
        job = f"job-{number:05}"
        (jobs / job).mkdir(parents=True)
        told = {**record, "id": job, "name": "job", "created": 1e9 + number, "steps": [], "handle": f"local://{job}"}
        (jobs / job / "record.json").write_text(json.dumps(told))
        (jobs / job / "status.json").write_text(status)
    taken = []
    for _ in range(7):
        begun = time.monotonic()
        done = jobsubmit("list")
        taken.append(time.monotonic() - begun)
    assert done.stdout.splitlines()[1].startswith("job-09999")
    assert "9,950 more" in done.stderr
    assert len(jobsubmit.json("list")) == 10_000
    assert min(taken[1:]) < pace.stretched(0.5)


def test_watching_the_list_on_a_terminal(jobsubmit: Command, tmp_path: Path) -> None:
    job = submit(jobsubmit, tmp_path)
    ours, theirs = pty.openpty()
    watching = subprocess.Popen(
        [*JOBSUBMIT, "list", "-w"],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    os.close(theirs)
    seen, deadline = b"", time.monotonic() + 20
    while seen.count(job.encode()) < 2 and time.monotonic() < deadline:
        if select.select([ours], [], [], 0.2)[0]:
            seen += os.read(ours, 65536)
    watching.send_signal(signal.SIGINT)
    assert watching.wait(timeout=PATIENCE) == 130
    os.close(ours)
    assert seen.count(job.encode()) >= 2


def test_deleting_and_pruning(jobsubmit: Command, tmp_path: Path) -> None:
    running = job_id(jobsubmit("create", write_job(tmp_path, "import time\ntime.sleep(60)\n"), "--detach").stdout)
    refused = jobsubmit("delete", running, code=2)
    assert f"end it first: jobsubmit cancel {running}" in refused.stderr
    jobsubmit("cancel", running)
    jobsubmit("delete", running)
    assert not job_dir(running).exists()
    jobsubmit("status", running, code=102)
    old, new = submit(jobsubmit, tmp_path), submit(jobsubmit, tmp_path)
    record = json.loads((job_dir(old) / "record.json").read_text())
    (job_dir(old) / "record.json").write_text(json.dumps({**record, "created": time.time() - 40 * 86400}))
    assert jobsubmit("prune", "--older-than", "30d", "--dry-run").stdout.split() == [old]
    assert jobsubmit("prune", "--older-than", "30d", "--state", "FAILED").stdout.split() == []
    assert jobsubmit("prune", "--older-than", "30d").stdout.split() == [old]
    assert listed(jobsubmit) == [new]


def test_one_key_is_one_job_even_for_clients_at_once(jobsubmit: Command, tmp_path: Path) -> None:
    job_file = write_job(tmp_path)

    def create(number: int) -> str:
        return jobsubmit("create", job_file, "--detach", "--idempotency-key", "night 1").stdout

    with ThreadPoolExecutor(4) as pool:
        handles = set(pool.map(create, range(4)))
    (handle,) = handles
    assert len(listed(jobsubmit)) == 1
    again = jobsubmit("create", job_file, "--detach", "--idempotency-key", "night 1")
    assert again.stdout == handle
    assert "a job with this key exists: " in again.stderr
    assert jobsubmit("create", job_file, "--detach", "--idempotency-key", "night 2").stdout != handle
    other = jobsubmit("create", job_file, "--detach", "--idempotency-key", "night 1", "-e", "A=2", code=2)
    assert "is a different job" in other.stderr
    (tmp_path / "code/boot.py").write_text("print('changed')\n")
    refused = jobsubmit("create", job_file, "--detach", "--idempotency-key", "night 1", code=2)
    assert "is a different job" in refused.stderr


def test_a_key_whose_submission_failed_is_free(jobsubmit: Command, tmp_path: Path) -> None:
    job_file = write_job(tmp_path)
    jobsubmit("create", job_file, "--idempotency-key", "k", "--store", "s3://some-bucket/x", code=4)
    jobsubmit("create", job_file, "--idempotency-key", "k", "--follow")


def test_a_rerun_is_the_same_whatever_has_become_of_the_code(jobsubmit: Command, tmp_path: Path) -> None:
    job_file = write_job(
        tmp_path, "import sys\nprint('first', sys.argv[1])\n", extra='hyperparameters: {lr: 1e-3, amp: "yes"}\n'
    )
    first = job_id(jobsubmit("create", job_file, "--follow", "--set", "hyperparameters.lr=2.50e-3").stdout)
    (tmp_path / "code/boot.py").write_text("print('second')\n")
    job_file.unlink()
    done = jobsubmit("rerun", first, "--follow")
    assert "first --lr=2.50e-3" in done.stderr
    again = job_id(done.stdout)
    before, after = jobsubmit.json("status", first), jobsubmit.json("status", again)
    assert (before["script_sha256"], before["code"]) == (after["script_sha256"], after["code"])
    assert jobsubmit.json("describe", again)["rerun_of"] == first
    changed = jobsubmit("rerun", again, "--follow", "--set", "hyperparameters.lr=0.5")
    assert "first --lr=0.5" in changed.stderr
    assert jobsubmit.json("status", job_id(changed.stdout))["code"] == before["code"]
    dry = jobsubmit.json("rerun", first, "--dry-run")
    assert dry["script"]["sha256"] == before["script_sha256"]


def test_a_rerun_of_code_that_is_gone_says_so(jobsubmit: Command, tmp_path: Path) -> None:
    job = submit(jobsubmit, tmp_path)
    store = Path(os.environ["JOBSUBMIT_STATE_DIR"]) / "store"
    for file in store.rglob("*.manifest.json"):
        file.unlink()
    assert "its manifest is missing" in jobsubmit("rerun", job, code=4).stderr


def test_describe_and_events_show_what_is_known(jobsubmit: Command, tmp_path: Path) -> None:
    job = submit(jobsubmit, tmp_path)
    text = jobsubmit("describe", job).stdout
    for part in ("SUCCEEDED", "sha256", "start.sh", "logs/node-0.stdout.log", "node 0", "127.0.0.", "jobsubmit rerun"):
        assert part in text
    told = jobsubmit("events", job).stdout.splitlines()
    assert len(told) == len(events(job))
    assert told[-1].endswith("end state=SUCCEEDED")
    assert json.loads(jobsubmit("events", job, "-o", "json").stdout.splitlines()[-1])["event"] == "end"


@pytest.mark.parametrize("delay", [0.3, 0.6, 0.7, 0.8, 0.9, 1.0, 1.2])
def test_a_client_killed_at_any_moment_leaves_the_truth(delay: float, jobsubmit: Command, tmp_path: Path) -> None:
    early = f"early-{uuid.uuid4().hex[:8]}"  # its processes are looked for on the whole machine
    client = jobsubmit.start("create", write_job(tmp_path), "--job-id", early, "--detach")
    time.sleep(delay)
    client.kill()
    client.communicate(timeout=PATIENCE)
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        found = {job["id"]: job["state"] for job in jobsubmit.json("list")}
        if found.get(early, "LOST") in ("LOST", "SUCCEEDED"):
            break
    assert found.get(early, "LOST") in ("LOST", "SUCCEEDED")
    ran = [event["state"] for event in events(early) if event["event"] == "end"] if has_events(early) else []
    assert found.get(early, "LOST") == (ran[0] if ran else "LOST")
    assert processes_left(early) == []


def has_events(job: str) -> bool:
    return (job_dir(job) / "events.jsonl").exists()


def test_a_second_ctrl_c_ends_the_job_and_one_does_not(jobsubmit: Command, tmp_path: Path) -> None:
    job_file = write_job(tmp_path, "import time\nprint('up', flush=True)\ntime.sleep(60)\n")
    for presses, code in ((1, 130), (2, 103)):
        client = jobsubmit.start(
            "create",
            job_file,
            "--follow",
            start_new_session=True,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )
        assert client.stdout is not None and client.stderr is not None
        job = job_id(client.stdout.readline())
        read_until(client.stderr, "up")
        for _ in range(presses):
            os.killpg(client.pid, signal.SIGINT)
            time.sleep(0.5)
        _, talk = client.communicate(timeout=PATIENCE)
        assert client.returncode == code
        assert f"jobsubmit logs -f {job}" in talk
        assert bool(processes_of(job)) == (presses == 1)
        jobsubmit("cancel", job)
        assert processes_left(job) == []


STUBBORN = (
    "import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nprint('up', flush=True)\ntime.sleep(60)\n"
)


def test_the_grace_of_a_cancel_and_a_second_one_with_less(jobsubmit: Command, tmp_path: Path, pace: Pace) -> None:
    for first, second in (("2", None), ("50", "1"), ("50", "0")):
        job = job_id(jobsubmit("create", write_job(tmp_path, STUBBORN), "--detach").stdout)
        wait_for_line(jobsubmit, job, "up")
        cancelling = jobsubmit.start("cancel", job, "--grace", first)
        if second:
            wait_until(jobsubmit, job, ("CANCELLING",))
            assert "CANCELLED" in jobsubmit("cancel", job, "--grace", second).stdout
        assert cancelling.wait(timeout=PATIENCE) == 0
        cancelling.communicate()
        asked = min(event["t"] for event in events(job) if event.get("step") == "exit")
        (end,) = [event["t"] for event in events(job) if event["event"] == "end"]
        assert (0 if second else 2) <= end - asked < pace.stretched(6)
        jobsubmit("cancel", job)
        assert processes_left(job) == []


def test_what_survives_its_watchers_is_told_and_can_be_ended(jobsubmit: Command, tmp_path: Path) -> None:
    """Nothing should, but a process may have left its group and its parents, and been killed at no moment of ours."""
    job = submit(jobsubmit, tmp_path)
    stray = subprocess.Popen(
        ["sleep", "60"], env={**os.environ, "JOBSUBMIT_GANG_DIR": str(job_dir(job))}, start_new_session=True
    )
    try:
        status = json.loads((job_dir(job) / "status.json").read_text())
        del status["ended"]
        (job_dir(job) / "status.json").write_text(json.dumps({**status, "state": "RUNNING"}))
        found = jobsubmit.json("status", job)
        assert found["state"] == "LOST"
        assert f"still running ({stray.pid})" in jobsubmit("delete", job, code=5).stderr
        assert f"still running ({stray.pid}): jobsubmit cancel {job}" in found["message"]
        jobsubmit("cancel", job)
        assert stray.wait(timeout=PATIENCE) == -signal.SIGKILL
    finally:
        stray.kill()
        stray.wait()


def test_why_a_job_waits_is_told_after_a_while(
    jobsubmit: Command, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logs, "_PENDING_SECONDS", 0.5)
    job = submit(jobsubmit, tmp_path)
    record = JobRecords(load_settings()).find(job)
    (job_dir(job) / "status.json").rename(job_dir(job) / "hidden")
    (job_dir(job) / "record.json").write_text(
        json.dumps({**json.loads((job_dir(job) / "record.json").read_text()), "handle": ""})
    )
    record = replace(record, handle="")
    with (job_dir(job) / "submitting").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        now = monitor.wait(record, load_settings(), 1.5, on_wait=logs.say_why_it_waits(record))
    assert now.state.value == "PENDING"
    assert capsys.readouterr().err.count("PENDING for 1 s: it is being submitted") == 1


def test_the_shell_completes_commands_options_and_jobs(jobsubmit: Command, tmp_path: Path) -> None:
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "main.py").write_text("print('done')\n")
    (tmp_path / "job.yaml").write_text("name: tabbed\nmode: spawn\ncode_dir: code\nboot_file: main.py\n")
    job = job_id(jobsubmit("create", "job.yaml", "--follow").stdout)

    def completed(line: str) -> set[str]:
        words = {"COMP_WORDS": f"jobsubmit {line}", "COMP_CWORD": str(len(line.split(" ")))}
        environment = {**os.environ, "_JOBSUBMIT_COMPLETE": "complete_bash", **words}
        return set(subprocess.check_output([program], env=environment, text=True).split())

    program = Path(sys.executable).parent / "jobsubmit"  # a shell completes the words of a program, by its name

    assert completed("re") == {"render", "report", "rerun"}
    assert "--backend" in completed("create --ba")
    assert completed("logs ta") == {"tabbed", job}
    source = {**os.environ, "_JOBSUBMIT_COMPLETE": "source_bash"}
    shown = subprocess.check_output([program], env=source, text=True)
    assert "_jobsubmit_completion" in shown


def test_what_would_change_against_an_earlier_job(jobsubmit: Command, tmp_path: Path) -> None:
    (tmp_path / "code").mkdir()
    for name, text in (("main.py", "print('one')\n"), ("old.py", ""), ("same.py", "")):
        (tmp_path / "code" / name).write_text(text)
    (tmp_path / "job.yaml").write_text("name: diffed\nmode: spawn\ncode_dir: code\nboot_file: main.py\n")
    job = job_id(jobsubmit("create", "job.yaml", "--follow").stdout)
    assert jobsubmit.json("render", "job.yaml", "--diff", job)["same"]
    (tmp_path / "code" / "main.py").write_text("print('two')\n")
    (tmp_path / "code" / "old.py").unlink()
    (tmp_path / "code" / "new.py").touch()
    changed = jobsubmit.json("render", "job.yaml", "--diff", "diffed", "--set", "hyperparameters.lr=0.1")
    assert (changed["added"], changed["removed"], changed["changed"]) == (["new.py"], ["old.py"], ["main.py"])
    assert "--lr=0.1" in changed["documents"]["start.sh"]
    text = jobsubmit("render", "job.yaml", "--diff", job, "--set", "hyperparameters.lr=0.1").stdout
    assert "changed: main.py" in text
    assert [line for line in text.splitlines() if line.startswith("+") and "--lr=0.1" in line]
    assert len(jobsubmit.json("list")) == 1
