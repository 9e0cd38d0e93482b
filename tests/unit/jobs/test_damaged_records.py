"""Records that are damaged, torn, empty or newer: one job is UNKNOWN, all others are as they were, nothing crashes.

JOBSUBMIT_FUZZ=long is the long form.
"""

from __future__ import annotations

import errno
import json
import os
import random
import shutil
import subprocess
from pathlib import Path

import pytest
from command import Command
from damage import copy_of, damage, files_of

from jobsubmit.agent import processes, status_file
from jobsubmit.agent.protocol import NodeStatus
from jobsubmit.agent.supervisor import process_group
from jobsubmit.agent.supervisor.machine_identity import describe_watcher
from jobsubmit.backends.slurm import clients
from jobsubmit.cli.console import printable, visible
from jobsubmit.spec import yaml_document as documents

LATEST = max((Path(__file__).parents[2] / "corpus/records").iterdir())
RECORDS = LATEST / "local"
RUNS = 2_500 if os.environ.get("JOBSUBMIT_FUZZ") == "long" else 60
COMMANDS = [
    ("list",),
    ("status", "JOB"),
    ("describe", "JOB"),
    ("logs", "JOB"),
    ("logs", "JOB", "--tail", "3", "-o", "json"),
    ("logs", "JOB", "--since", "2026-01-01", "--rank", "0"),
    ("events", "JOB"),
    ("events", "JOB", "-o", "json"),
    ("report", "JOB"),
    ("report", "JOB", "-o", "json"),
    ("report", "JOB", "--html", "page.html"),
    ("wait", "JOB", "--timeout", "0"),
    ("rerun", "JOB", "--dry-run"),
    ("cancel", "JOB"),
    ("prune", "--older-than", "2020-01-01"),
    ("list", "-o", "json"),
    ("delete", "JOB"),
    ("delete", "--force", "JOB"),
]


@pytest.fixture
def state(tmp_path: Path) -> Path:
    return copy_of(RECORDS, tmp_path / "state")


def states(jobsubmit: Command) -> dict[str, str]:
    return {job["id"]: job["state"] for job in jobsubmit.json("list")}


def owner(place: Path, file: Path) -> str:
    """Return the job that a file belongs to, or nothing where it is of all."""
    room, *rest = file.relative_to(place).parts
    if room == "slurm-jobs":  # the folder of a job, by its number
        return Path(file.read_text()).name
    return rest[0] if room in ("jobs", "slurm") else ""


@pytest.mark.timeout(7200)
@pytest.mark.parametrize("kind", ["local", "slurm"])
def test_nothing_crashes_whatever_became_of_a_file(
    kind: str, jobsubmit: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clients, "cluster_name", lambda: "jobsubmit")
    monkeypatch.setattr(clients, "look", lambda number: None)  # Slurm forgets a job within minutes
    chance = random.Random(kind if RUNS < 1000 else None)
    place = tmp_path / "state"
    before = None
    for run in range(RUNS // 2):
        copy_of(LATEST / kind, place)
        for note in place.glob("slurm-jobs/*"):  # where the folder of a job is
            note.write_text(str(place / "slurm" / Path(note.read_text()).name))
        before = before or states(jobsubmit)
        file = chance.choice([path for path in files_of(place) if path.name != "expected.json"])
        job = owner(place, file) or chance.choice(sorted(before))
        told = f"{kind}, run {run}: {file.relative_to(place)}, {damage(file, chance)}"
        (place / "ended-jobs.json").unlink(missing_ok=True)
        for command in COMMANDS if run % 5 == 0 else chance.sample(COMMANDS, 4):
            arguments = [job if word == "JOB" else word for word in command]
            try:
                done = jobsubmit(*arguments, code=None)
            except Exception as error:
                raise AssertionError(f"{told}: {arguments}") from error
            assert done.returncode != 1, f"{told}: {arguments}: {done.stderr}"
        others = {one: state for one, state in states(jobsubmit).items() if one != job}
        assert others == {one: state for one, state in before.items() if one != job}, told


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (b"", "cannot be used"),
        (b'{"id": "failed-aaaaaa", "na', "cannot be used"),
        (b"[]", "not a JSON object"),
        (b'{"format": 2}', "newer version"),
        (b'{"id": "failed-aaaaaa"}', "`name` is missing"),
        (None, "is missing"),
    ],
)
def test_one_damaged_record_is_unknown_and_the_others_are_as_they_were(
    text: bytes | None, why: str, state: Path, jobsubmit: Command
) -> None:
    before = states(jobsubmit)
    record = state / "jobs/failed-aaaaaa/record.json"
    (state / "ended-jobs.json").unlink(missing_ok=True)
    if text is None:
        record.unlink()
        os.utime(record.parent, (0, 0))
    else:
        record.write_bytes(text)
    assert states(jobsubmit) == {**before, "failed-aaaaaa": "UNKNOWN"}
    status = jobsubmit.json("status", "failed-aaaaaa")
    assert status["state"] == "UNKNOWN"
    assert why in status["message"]
    assert "delete --force failed-aaaaaa" in jobsubmit("delete", "failed-aaaaaa", code=2).stderr
    pruned = jobsubmit("prune", "--older-than", "0s")
    assert "kept failed-aaaaaa" in pruned.stderr
    assert states(jobsubmit) == {"failed-aaaaaa": "UNKNOWN"}
    jobsubmit("delete", "--force", "failed-aaaaaa")
    assert states(jobsubmit) == {}


def test_a_copied_directory_is_not_taken_for_its_original(state: Path, jobsubmit: Command) -> None:
    shutil.copytree(state / "jobs/failed-aaaaaa", state / "jobs/copied-aaaaaa")
    status = jobsubmit.json("status", "copied-aaaaaa")
    assert (status["id"], status["state"]) == ("copied-aaaaaa", "UNKNOWN")
    jobsubmit("delete", "--force", "copied-aaaaaa")
    assert (state / "jobs/failed-aaaaaa/record.json").exists()


def test_a_record_of_a_newer_version_is_not_changed(state: Path, jobsubmit: Command) -> None:
    file = state / "jobs/failed-aaaaaa/record.json"
    newer = json.dumps({**json.loads(file.read_text()), "format": 2, "backend": "moon"})
    file.write_text(newer)
    for command in (("cancel", "failed-aaaaaa"), ("wait", "failed-aaaaaa"), ("rerun", "failed-aaaaaa")):
        jobsubmit(*command, code=None)
    assert file.read_text() == newer


@pytest.mark.parametrize("target", ["home", "."])
def test_a_damaged_note_of_slurms_deletes_nothing_of_the_users(
    target: str, jobsubmit: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clients, "cluster_name", lambda: "jobsubmit")
    monkeypatch.setattr(clients, "look", lambda number: None)
    place = copy_of(LATEST / "slurm", tmp_path / "state")
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "thesis.tex").write_text("mine")
    for note in place.glob("slurm-jobs/*"):
        note.write_text(str(tmp_path / target))
    for job in states(jobsubmit):
        jobsubmit("delete", "--force", job, code=None)
    assert (tmp_path / "home" / "thesis.tex").read_text() == "mine"


def test_half_a_sign_in_a_record_hides_no_job(state: Path, jobsubmit: Command) -> None:
    file = state / "jobs/failed-aaaaaa/record.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "name": "half \ud800", "mode": "\ud801"}))
    (state / "ended-jobs.json").unlink(missing_ok=True)
    for command in (("list",), ("status", "failed-aaaaaa"), ("list", "-o", "json")):
        assert "failed-aaaaaa" in jobsubmit(*command).stdout
    for text in ("half \ud800", "\udcff byte"):
        assert visible(text).encode()
        assert printable(text).encode()


def test_a_damaged_job_of_an_engine_cannot_be_cancelled_and_says_so(state: Path, jobsubmit: Command) -> None:
    (state / "jobs/failed-aaaaaa/lock").unlink()
    (state / "jobs/failed-aaaaaa/record.json").write_text("{")
    assert "cannot find out where failed-aaaaaa runs" in jobsubmit("cancel", "failed-aaaaaa", code=2).stderr


def test_a_machine_that_is_silent_for_an_hour_is_not_waited_for(state: Path, jobsubmit: Command) -> None:
    file = state / "jobs/failed-aaaaaa/status.json"
    status = json.loads(file.read_text())
    describe_watcher = {"host": "gpu7", "boot": "another", "pid_namespace": "", "dir": "/x"}
    file.write_text(json.dumps({**status, "state": "RUNNING", "watcher": describe_watcher}))
    (state / "ended-jobs.json").unlink(missing_ok=True)
    os.utime(state / "jobs/failed-aaaaaa/lock", (1_700_000_000, 1_700_000_000))
    found = jobsubmit("wait", "failed-aaaaaa", code=101)
    assert "gpu7, whose last heartbeat was at 2023-11-14" in found.stdout
    jobsubmit("delete", "failed-aaaaaa", code=2)
    jobsubmit("delete", "--force", "failed-aaaaaa")


def test_what_is_not_read_for_a_moment_is_no_damage(
    state: Path, jobsubmit: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file server that comes back: `wait` goes on."""
    told, load = iter(["running", "running", "nothing", "nothing"]), status_file.load_status

    def sometimes(job_dir: str) -> NodeStatus:
        found = next(told, "all")
        if found == "nothing":
            raise OSError(errno.ESTALE, "Stale file handle")
        status = load(job_dir)
        assert status
        return {**status, "state": "RUNNING"} if found == "running" else status

    monkeypatch.setattr(status_file, "load_status", sometimes)
    monkeypatch.setattr("jobsubmit.backends.local.backend.find_watcher", lambda files, status: (True, None))
    jobsubmit("wait", "failed-aaaaaa", code=100)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a\tb\x1b[2J", "a\tb\\x1b[2J"),
        ("C:\\temp\tx\x07", "C:\\temp\tx\\x07"),
        ("全角\u3000空白\xa0…", "全角\u3000空白\xa0…"),
        ("\u202eright", "\\u202eright"),
        ("\x9b31m", "\\x9b31m"),
    ],
)
def test_only_what_steers_a_terminal_is_spelled_out(text: str, shown: str) -> None:
    assert visible(text) == shown


PIPED = ["record.json", "status.json", "control-group", "processes.json", "lock", "start.sh", "events.jsonl", "cancel"]
PIPED += ["submitting", "plan.json", "resolved.yaml", "logs/index", "logs/rank-0.stdout.log", "timing/rank-0.1.jsonl"]


@pytest.mark.timeout(120)
@pytest.mark.parametrize("name", PIPED)
def test_a_pipe_in_a_job_directory_keeps_nobody(
    name: str, state: Path, jobsubmit: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job's own code can put one there."""
    monkeypatch.setattr(documents, "_READ_SECONDS", 0.2)
    file = state / "jobs/failed-aaaaaa" / name
    file.unlink(missing_ok=True)
    file.parent.mkdir(exist_ok=True)
    os.mkfifo(file)
    for command in COMMANDS:
        arguments = ["failed-aaaaaa" if word == "JOB" else word for word in command]
        assert jobsubmit(*arguments, code=None).returncode != 1


def test_the_processes_of_a_copied_directory_are_not_ended(state: Path, jobsubmit: Command) -> None:
    job = state / "jobs/failed-aaaaaa"
    other = subprocess.Popen(["sleep", "60"])
    try:
        seen = [[other.pid, processes.start_time_of(other.pid)]]
        for text in (seen, {"watcher": {**describe_watcher(str(job)), "dir": "/elsewhere"}, "seen": seen}):
            (job / "processes.json").write_text(json.dumps(text))
            (job / "status.json").write_text('{"sta')
            jobsubmit("cancel", "failed-aaaaaa", code=None)
            assert other.poll() is None
        assert process_group.find_registered(str(job)) == set()
        (job / "processes.json").write_text(json.dumps({"watcher": describe_watcher(str(job)), "seen": seen}))
        assert process_group.find_registered(str(job)) == {other.pid}
    finally:
        other.kill()
        other.wait()


@pytest.mark.parametrize("handle", ["local://..", "local://well-aaaaaa", "garbage"])
def test_a_record_cannot_name_another_job(handle: str, state: Path, jobsubmit: Command) -> None:
    file = state / "jobs/failed-aaaaaa/record.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "handle": handle}))
    assert jobsubmit.json("status", "failed-aaaaaa")["state"] == "UNKNOWN"
    jobsubmit("delete", "--force", "failed-aaaaaa")
    assert (state / "jobs/well-aaaaaa/record.json").exists()
