"""What a job leaves on this machine, and what becomes of it there: rights, full disks, copies, kills, other users."""

from __future__ import annotations

import json
import os
import pty
import shutil
import signal
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from command import PATIENCE, Command, job_dir, wait_for_line
from other_user import NOBODY, needs_root
from pace import Pace

from jobsubmit.agent import processes
from jobsubmit.common.file_lock import is_locked

RUNS = ("STARTING", "RUNNING")
BOOT = "import time\nprint('begun', flush=True)\nwhile True:\n    time.sleep(0.1)\n"


def write_job(folder: Path, boot: str = "print('trained')\n", extra: str = "") -> Path:
    (folder / "code").mkdir(exist_ok=True)
    (folder / "code/boot.py").write_text(boot)
    (folder / "job.yaml").write_text(f"name: t\nmode: spawn\ncode_dir: code\nboot_file: boot.py\n{extra}")
    return folder / "job.yaml"


def started(jobsubmit: Command, folder: Path, boot: str = BOOT) -> str:
    """Start a job that goes on until it is ended; return its id."""
    found: str = jobsubmit.json("create", write_job(folder, boot))["id"]
    wait_for_line(jobsubmit, found, "begun")
    return found


def until(is_so: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not is_so():
        assert time.monotonic() < deadline, "it never came true"
        time.sleep(0.05)


def state_of(jobsubmit: Command, job: str) -> str:
    return str(jobsubmit.json("status", job)["state"])


def pids_of(job: str) -> tuple[int, int]:
    """Return the pids of a job's supervisor and of its guardian."""
    supervisor = json.loads((job_dir(job) / "status.json").read_text())["pid"]
    return supervisor, int(Path(f"/proc/{supervisor}/stat").read_text().rpartition(")")[2].split()[1])


# ── who may read it ─────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
def test_state_is_for_its_owner_only_whatever_the_umask(umask: int, jobsubmit: Command, tmp_path: Path) -> None:
    boot = "open('made', 'w').close()\nimport os\nprint('mode', oct(os.stat('made').st_mode & 0o777))\n"
    write_job(tmp_path, boot, "env: {PLANTED: 'value-of-env'}\n")
    done = subprocess.run(
        [sys.executable, "-m", "jobsubmit", "create", "job.yaml", "--follow"],
        cwd=tmp_path,
        umask=umask,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert done.returncode == 0, done.stderr
    assert f"mode {oct(0o666 & ~umask)}" in done.stderr  # the user's own files are as they would be without us
    state = tmp_path / "state"
    open_ones = [
        f"{path.relative_to(tmp_path)} {stat.S_IMODE(path.lstat().st_mode):o}"
        for path in (state, *state.rglob("*"))
        if not path.is_symlink() and path.lstat().st_mode & 0o077 and path.name != "made"
    ]
    assert open_ones == []


def test_the_default_store_is_private_in_an_open_state_directory(jobsubmit: Command, tmp_path: Path) -> None:
    (tmp_path / "state").mkdir()
    (tmp_path / "state").chmod(0o755)
    jobsubmit("create", write_job(tmp_path), "--follow")
    assert stat.S_IMODE((tmp_path / "state" / "store").stat().st_mode) == 0o700


def test_an_older_state_directory_is_tightened(jobsubmit: Command, tmp_path: Path) -> None:
    (tmp_path / "state" / "jobs").mkdir(parents=True)
    (tmp_path / "state").chmod(0o755)
    (tmp_path / "state" / "jobs").chmod(0o755)
    jobsubmit("create", write_job(tmp_path), "--follow")
    assert stat.S_IMODE((tmp_path / "state" / "jobs").stat().st_mode) == 0o700


@needs_root
def test_another_user_sees_nothing_and_holds_no_lock(jobsubmit: Command, tmp_path: Path) -> None:
    job = jobsubmit.json("create", write_job(tmp_path))["id"]
    jobsubmit("wait", job)
    for folder in (tmp_path, *tmp_path.parents):
        if folder.stat().st_uid == 0 and folder != Path("/"):
            folder.chmod(folder.stat().st_mode | 0o055)
    done = subprocess.run(
        ["find", tmp_path / "state"], user=NOBODY, group=NOBODY, extra_groups=[], capture_output=True, text=True
    )
    assert "Permission denied" in done.stderr
    assert done.stdout.splitlines() == [str(tmp_path / "state")]


# ── a full disk ─────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def small_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Mount a disk of a few megabytes where the state is kept."""
    place = tmp_path / "small"
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=3m,nr_inodes=300", "tmpfs", place], check=True)
    monkeypatch.setenv("JOBSUBMIT_STATE_DIR", str(place / "state"))
    yield place
    subprocess.run(["umount", "--lazy", place], check=True)


def fill(disk: Path) -> None:
    with (disk / "filler").open("wb", buffering=0) as stream:
        try:
            while True:
                stream.write(bytes(65536))
        except OSError:
            pass
        try:
            while True:
                stream.write(b"x")
        except OSError:
            return


@needs_root
@pytest.mark.parametrize(
    ("end", "state"), [("sys.exit(0)", "SUCCEEDED"), ("sys.exit(3)", "FAILED"), ("time.sleep(600)", "CANCELLED")]
)
def test_a_disk_that_fills_up_changes_no_result(
    end: str, state: str, small_disk: Path, jobsubmit: Command, tmp_path: Path
) -> None:
    boot = "import os, sys, time\nprint('begun', flush=True)\n"
    boot += f"while not os.path.exists('{tmp_path}/go'):\n    time.sleep(0.05)\n"
    job = jobsubmit.json("create", write_job(tmp_path, boot + end))["id"]
    wait_for_line(jobsubmit, job, "begun")
    fill(small_disk)
    (tmp_path / "go").touch()
    if state == "CANCELLED":
        (small_disk / "state/jobs" / job / "cancel").unlink(missing_ok=True)
        with (small_disk / "filler").open("r+b") as stream:
            stream.truncate(stream.seek(0, 2) - 65536)  # to ask for it takes a little room
        jobsubmit("cancel", job, "--grace", "1")
    code = {"SUCCEEDED": 0, "FAILED": 100, "CANCELLED": 103}[state]
    jobsubmit("wait", job, "--timeout", "30", code=code)
    assert state_of(jobsubmit, job) == state


def use_up_inodes(disk: Path) -> None:
    (disk / "filler").mkdir()
    try:
        for number in range(10_000):
            (disk / "filler" / str(number)).touch()
    except OSError:
        return


@needs_root
@pytest.mark.parametrize("how", [fill, use_up_inodes])
def test_create_on_a_full_disk_names_it_and_leaves_nothing(
    how: Callable[[Path], None], small_disk: Path, jobsubmit: Command, tmp_path: Path
) -> None:
    how(small_disk)
    done = jobsubmit("create", write_job(tmp_path), code=None)
    assert done.returncode in (4, 5), done.stderr
    assert "No space left on device" in done.stderr
    assert str(small_disk) in done.stderr
    subprocess.run(["rm", "-r", small_disk / "filler"], check=True)
    assert jobsubmit.json("list") == []
    jobsubmit("create", "job.yaml", "--follow")


# ── copies, other machines, missing locks ───────────────────────────────────────────────────────────────────────────


def test_a_copy_of_a_running_job_is_not_lost_and_not_deleted(
    jobsubmit: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = started(jobsubmit, tmp_path)
    shutil.copytree(tmp_path / "state", tmp_path / "copy")
    with monkeypatch.context() as elsewhere:
        elsewhere.setenv("JOBSUBMIT_STATE_DIR", str(tmp_path / "copy"))
        found = jobsubmit.json("status", job)
        assert found["state"] in RUNS
        assert "this is a copy" in found["message"]
        assert "delete --force" in jobsubmit("delete", job, code=2).stderr
        jobsubmit("prune", "--older-than", "0s")
        assert job_dir(job).exists()
        jobsubmit("delete", "--force", job)
    assert state_of(jobsubmit, job) in RUNS
    jobsubmit("cancel", job, "--grace", "1")


def test_a_job_of_another_machine_is_running_there(jobsubmit: Command, tmp_path: Path) -> None:
    job = jobsubmit.json("create", write_job(tmp_path))["id"]
    jobsubmit("wait", job)
    until(lambda: not is_locked(job_dir(job) / "lock"))  # its supervisor is exiting
    file = job_dir(job) / "status.json"
    status = json.loads(file.read_text())
    status["watcher"].update(host="gpu7", boot="another")
    status.update(state="RUNNING", message="")
    del status["ended"]
    file.write_text(json.dumps(status))
    found = jobsubmit.json("status", job)
    assert (found["state"], found["details"]["host"]) == ("RUNNING", "gpu7")
    assert found["message"].startswith("it runs on gpu7, as of ")
    assert "is RUNNING" in jobsubmit("delete", job, code=2).stderr
    assert job not in jobsubmit("prune", "--older-than", "0s").stdout
    jobsubmit("delete", "--force", job)


def test_without_locks_a_heartbeat_decides(jobsubmit: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The client and the guardian are told that the file system has no locks."""
    from jobsubmit.backends.local import liveness
    from jobsubmit.backends.local.backend import LocalBackend
    from jobsubmit.config import load_settings

    job = started(jobsubmit, tmp_path)
    monkeypatch.setattr(liveness, "is_locked", lambda file: None)
    backend = LocalBackend(load_settings())
    found = backend.find(job)
    assert found is not None
    assert backend.status(found).state.value in RUNS
    supervisor, guardian = pids_of(job)
    for pid in (guardian, supervisor):
        os.kill(pid, signal.SIGKILL)
    os.utime(job_dir(job) / "lock", (1, 1))
    assert backend.status(found).state.value == "LOST"
    monkeypatch.undo()
    monkeypatch.setenv("JOBSUBMIT_STATE_DIR", str(tmp_path / "state"))
    jobsubmit("cancel", job)


# ── kills ───────────────────────────────────────────────────────────────────────────────────────────────────────────

DAEMON = """
import os, sys, time
if os.fork() == 0:
    os.setsid()
    if os.fork():
        os._exit(0)
    os.execve("/bin/sleep", ["sleep", "SECONDS"], {})
print("begun", flush=True)
time.sleep(600)
"""


def daemons(seconds: str) -> list[int]:
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if seconds.encode() in (folder / "cmdline").read_bytes():
                found.append(int(folder.name))
        except OSError:
            continue
    return found


@pytest.mark.parametrize("has_group", [True, False])
def test_daemons_do_not_outlive_a_job_whose_watchers_were_killed(
    has_group: bool, jobsubmit: Command, tmp_path: Path
) -> None:
    """Their environment is empty, and their parent is the first process."""
    seconds = f"300.{os.getpid()}{int(has_group)}"  # the other one may run beside it
    job = started(jobsubmit, tmp_path, DAEMON.replace("SECONDS", seconds))
    until(lambda: len(daemons(seconds)) == 1)
    group = job_dir(job) / "control-group"
    if has_group and not group.exists():
        pytest.skip("this machine lets us make no control group")
    if not has_group:
        group.unlink(missing_ok=True)
        seen = job_dir(job) / "processes.json"
        until(lambda: seen.exists() and f"[{daemons(seconds)[0]}," in seen.read_text())
    watchers = pids_of(job)[::-1]
    for number in (signal.SIGSTOP, signal.SIGKILL):  # neither is to see the other one's end
        for pid in watchers:
            os.kill(pid, number)
    until(lambda: state_of(jobsubmit, job) == "LOST")
    assert str(daemons(seconds)[0]) in jobsubmit("delete", job, code=5).stderr
    jobsubmit("cancel", job, code=None)
    until(lambda: not daemons(seconds))
    jobsubmit("delete", job)


@pytest.mark.parametrize("stopped", ["supervisor", "both"])
def test_a_stopped_supervisor_does_not_keep_a_job_from_being_cancelled(
    stopped: str, jobsubmit: Command, tmp_path: Path, pace: Pace
) -> None:
    job = started(jobsubmit, tmp_path)
    supervisor, guardian = pids_of(job)
    for pid in (supervisor, guardian)[: 1 if stopped == "supervisor" else 2]:
        os.kill(pid, signal.SIGSTOP)
    began = time.monotonic()
    jobsubmit("cancel", job, "--grace", "1")
    assert state_of(jobsubmit, job) == "CANCELLED"
    assert time.monotonic() - began < pace.stretched(20)
    assert not processes.start_time_of(supervisor)


def test_a_changed_start_script_is_not_started_again(jobsubmit: Command, tmp_path: Path) -> None:
    boot = "import os\nfrom pathlib import Path\nscript = Path(os.environ['MA_JOB_DIR'], 'start.sh')\n"
    boot += "script.write_text('echo somebody else >&2')\nraise SystemExit(7)\n"
    extra = "restarts: {max: 1, backoff: 0s}\n"
    done = jobsubmit("create", write_job(tmp_path, boot, extra), "--follow", code=100)
    assert "differs from the start script that was submitted" in done.stderr
    assert "somebody else" not in done.stderr.replace("somebody else has", "")


# ── what nobody reads ───────────────────────────────────────────────────────────────────────────────────────────────


def run_shell(folder: Path, text: str) -> subprocess.CompletedProcess[str]:
    line = text.replace("JOBSUBMIT", f"{sys.executable} -m jobsubmit")
    return subprocess.run(["bash", "-c", line], cwd=folder, capture_output=True, text=True, timeout=PATIENCE)


@pytest.mark.parametrize("where", [">&-", "2>&-", ">&- 2>&-", ">/dev/full", "2>/dev/full", "| true"])
def test_a_submission_is_done_though_nobody_reads_what_it_says(where: str, jobsubmit: Command, tmp_path: Path) -> None:
    write_job(tmp_path)
    done = run_shell(tmp_path, f"JOBSUBMIT create job.yaml --job-id here {where}; exit ${{PIPESTATUS[0]}}")
    assert done.returncode == 0, done.stderr
    jobsubmit("wait", "here")
    assert jobsubmit.json("status", "here")["handle"] == "local://here"


def test_the_exit_code_of_a_followed_job_is_kept_where_nobody_reads(jobsubmit: Command, tmp_path: Path) -> None:
    write_job(tmp_path, "import sys\nsys.exit(4)\n")
    done = run_shell(
        tmp_path, "JOBSUBMIT create job.yaml --follow --propagate-exit-code >/dev/full 2>/dev/full; exit $?"
    )
    assert done.returncode == 4


@pytest.mark.parametrize("command", ["logs many", "events many", "render --mode torchrun", "schema"])
def test_a_reading_command_ends_by_sigpipe(command: str, jobsubmit: Command, tmp_path: Path) -> None:
    write_job(tmp_path, "for i in range(20000):\n    print('line', i)\n")
    jobsubmit("create", "job.yaml", "--job-id", "many")
    jobsubmit("wait", "many")
    done = run_shell(tmp_path, f"JOBSUBMIT {command} | :; exit ${{PIPESTATUS[0]}}")
    assert done.returncode == 141
    assert done.stderr == ""


def test_a_reading_command_says_that_its_output_is_lost(jobsubmit: Command, tmp_path: Path) -> None:
    done = run_shell(tmp_path, "JOBSUBMIT schema >/dev/full")
    assert done.returncode == 5
    assert "the output cannot be written: No space left on device" in done.stderr


@pytest.mark.parametrize("command", [("status", "nothing"), ("create", "nothing.yaml"), ("logs", "x", "--rank", "a")])
def test_debug_changes_no_exit_code(command: tuple[str, ...], jobsubmit: Command) -> None:
    plain = jobsubmit(*command, code=None).returncode
    shown = subprocess.run(
        [sys.executable, "-m", "jobsubmit", *command, "--debug"], cwd=jobsubmit.folder, capture_output=True, text=True
    )
    assert shown.returncode == plain
    assert "error: " in shown.stderr


def on_a_terminal(folder: Path, *command: str, columns: int = 80) -> str:
    """Return what a command writes to a terminal."""
    ours, theirs = pty.openpty()
    environment = {**os.environ, "COLUMNS": str(columns), "TERM": "xterm"}
    running = subprocess.Popen(
        [sys.executable, "-m", "jobsubmit", *command],
        cwd=folder,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env=environment,
    )
    os.close(theirs)
    seen: list[bytes] = []

    def read() -> None:
        try:
            while block := os.read(ours, 65536):
                seen.append(block)
        except OSError:
            return

    reader = threading.Thread(target=read)
    reader.start()
    assert running.wait(timeout=PATIENCE) in (0, 100)
    reader.join(timeout=PATIENCE)
    os.close(ours)
    return b"".join(seen).decode("utf-8", "replace")


STEERING = "\x1b]52;c;ZXZpbA==\x07\x1b[2J\x9b31mred\x1b[32mgreen\x1b[0m"


def test_what_would_steer_a_terminal_is_spelled_out(jobsubmit: Command, tmp_path: Path) -> None:
    boot = f"print({STEERING!r}, flush=True)\nraise SystemExit(3)\n"
    job = jobsubmit.json("create", write_job(tmp_path, boot))["id"]
    jobsubmit("wait", job, code=100)
    for command in (("status", job), ("describe", job), ("logs", job), ("wait", job)):
        shown = on_a_terminal(tmp_path, *command)
        assert "\x1b]52" not in shown, command
        assert "\x1b[2J" not in shown, command
        assert "\x9b" not in shown, command
        assert "\\x1b]52" in shown, command
    with (job_dir(job) / "events.jsonl").open("a") as events:  # as the job's own code could
        events.write(json.dumps({"t": 1, "event": "step", "step": STEERING, "edge": "start", "attempt": 0}) + "\n")
    for words in (("status", job), ("report", job), ("describe", job), ("events", job), ("list",)):
        shown = on_a_terminal(tmp_path, *words)
        assert "\x1b]52" not in shown, words
        assert "\x1b[2J" not in shown, words
    assert "\x1b[32mgreen" in on_a_terminal(tmp_path, "logs", job)
    assert "\x1b]52;c;" in on_a_terminal(tmp_path, "logs", job, "--raw")
    assert STEERING in jobsubmit("logs", job).stdout


def test_a_script_that_would_steer_a_terminal_is_spelled_out(jobsubmit: Command, tmp_path: Path) -> None:
    text = json.dumps(
        {"name": "t", "mode": "torchrun", "image": "i", "code_dir": "code", "boot_file": "b.py", "args": [STEERING]}
    )
    (tmp_path / "job.yaml").write_text(text)
    for command in (("render", "job.yaml"), ("render", "job.yaml", "--expand")):
        shown = on_a_terminal(tmp_path, *command)
        assert "\x1b]52" not in shown
        assert "\x1b[2J" not in shown


@pytest.mark.parametrize("columns", [20, 80])
def test_a_narrow_terminal_is_no_reason_to_fail(columns: int, jobsubmit: Command, tmp_path: Path) -> None:
    job = jobsubmit.json("create", write_job(tmp_path))["id"]
    jobsubmit("wait", job)
    for command in (("status", job), ("describe", job), ("list",), ("report", job), ("logs", job)):
        assert on_a_terminal(tmp_path, *command, columns=columns)


@pytest.mark.needs("namespaces")
def test_reading_commands_need_no_right_to_write(jobsubmit: Command, tmp_path: Path) -> None:
    job = jobsubmit.json("create", write_job(tmp_path))["id"]
    jobsubmit("wait", job)
    reading = f"list; JOBSUBMIT status {job}; JOBSUBMIT logs {job}; JOBSUBMIT report {job}; JOBSUBMIT describe {job}"
    mount = "mount --bind state state && mount -o remount,bind,ro state && ! touch state/x 2>/dev/null"
    script = f"set -e; {mount}; JOBSUBMIT {reading}; JOBSUBMIT wait {job}"
    done = run_shell(tmp_path, f"unshare --mount bash -c '{script}'")
    assert done.returncode == 0, done.stderr
    assert "trained" in done.stdout


def test_two_prunes_at_once(jobsubmit: Command, tmp_path: Path) -> None:
    write_job(tmp_path)
    jobs = [jobsubmit.json("create", "job.yaml")["id"] for _ in range(4)]
    for job in jobs:
        jobsubmit("wait", job)
    running = [jobsubmit.start("prune", "--older-than", "0s") for _ in range(3)]
    outputs = [one.communicate(timeout=PATIENCE) for one in running]
    assert [one.returncode for one in running] == [0, 0, 0], outputs
    assert sorted(line for out, _ in outputs for line in out.splitlines()) == sorted(jobs)
    assert jobsubmit.json("list") == []
