"""Jobs that earlier versions have written are read: their directories are kept in corpus/records."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from command import Command

from jobsubmit.backends.slurm import clients

RECORDS = Path(__file__).parents[2] / "corpus/records"
KEPT = sorted(path.relative_to(RECORDS).as_posix() for path in RECORDS.glob("*/*"))
LOCAL = [kind for kind in KEPT if kind.endswith("/local")]
READABLE = [kind for kind in KEPT if kind.endswith(("/local", "/slurm"))]
ON_CLUSTERS = [kind for kind in KEPT if kind not in LOCAL]
EXIT_CODES = {"SUCCEEDED": 0, "FAILED": 100, "LOST": 100, "CANCELLED": 103}


def expected(kind: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((RECORDS / kind / "expected.json").read_text())
    return found


def jobs(kinds: list[str]) -> list[tuple[str, str]]:
    return [(kind, job) for kind in kinds for job in expected(kind)]


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Path:
    """Return a state directory that an earlier version has written, of the backend that the test's parameters name."""
    folder = tmp_path / "state"
    shutil.copytree(RECORDS / request.node.callspec.params["kind"], folder)
    for note in folder.glob("slurm-jobs/*"):  # where the folder of a job is
        note.write_text(str(folder / "slurm" / Path(note.read_text()).name))
    monkeypatch.setattr(clients, "cluster_name", lambda: "jobsubmit")
    monkeypatch.setattr(clients, "look", lambda number: None)  # Slurm forgets a job within minutes
    return folder


@pytest.mark.parametrize("kind", LOCAL)
def test_all_are_listed(kind: str, state: Path, jobsubmit: Command) -> None:
    listed = {job["id"]: job["state"] for job in jobsubmit.json("list")}
    assert listed == {job: told["state"] for job, told in expected(kind).items()}


@pytest.mark.parametrize("kind", ON_CLUSTERS)
def test_jobs_of_a_cluster_are_listed_and_described_by_what_is_known_here(
    kind: str, state: Path, jobsubmit: Command
) -> None:
    listed = {job["id"]: job for job in jobsubmit.json("list")}
    for job, told in expected(kind).items():
        assert {name: listed[job][name] for name in ("name", "mode", "backend", "nodes", "handle")} == {
            name: told[name] for name in ("name", "mode", "backend", "nodes", "handle")
        }
        shown = jobsubmit.json("rerun", job, "--dry-run", "--job-id", "again")
        assert shown["job_id"] == "again"
        assert shown["script"]["text"] == (state / "jobs" / job / "start.sh").read_text()
    assert not (state / "jobs/again").exists()


@pytest.mark.parametrize("kind", LOCAL)
def test_a_path_of_a_rerun_is_relative_to_where_it_is_typed(
    kind: str, state: Path, jobsubmit: Command, tmp_path: Path
) -> None:
    dry = jobsubmit.json("rerun", "well-aaaaaa", "--set", "checkpoint_dir=mine", "--dry-run", "--job-id", "again")
    assert str(tmp_path / "mine") in json.dumps(dry["request"])
    assert f"{state}/jobs/well-aaaaaa/mine" not in json.dumps(dry["request"])


@pytest.mark.parametrize(("kind", "job"), jobs(READABLE))
def test_a_job_is_what_it_was(kind: str, job: str, state: Path, jobsubmit: Command) -> None:
    told = expected(kind)[job]
    status = jobsubmit.json("status", job)
    failure = {name: status["failure"][name] for name in told["failure"]} if status["failure"] else None
    found = {**{name: status[name] for name in ("name", "mode", "backend", "nodes", "handle", "state", "reason")}}
    assert {**found, "failure": failure, "restarts": len(status["recoveries"])} == {
        name: value for name, value in told.items() if name != "logs"
    }
    assert jobsubmit("logs", job).stdout.splitlines() == told["logs"]
    jobsubmit("wait", job, code=EXIT_CODES[told["state"]])


@pytest.mark.parametrize(("kind", "job"), jobs(READABLE))
def test_everything_else_can_be_asked_of_a_job(kind: str, job: str, state: Path, jobsubmit: Command) -> None:
    told = expected(kind)[job]
    assert jobsubmit.json("describe", job)["state"] == told["state"]
    lines = jobsubmit("events", job, "-o", "json").stdout.splitlines()
    names = [json.loads(line)["event"] for line in lines]
    assert ("node_start" in names) == bool(told["logs"])
    report = jobsubmit.json("report", job)
    assert ("training" in [phase["name"] for phase in report["phases"]]) == bool(told["logs"])
    assert bool(report["syncs"]) == (job == "timed-aaaaaa")
    jobsubmit("delete", job)
    assert job not in {found["id"] for found in jobsubmit.json("list")}


@pytest.mark.parametrize("kind", LOCAL)
def test_logs_can_be_chosen(kind: str, state: Path, jobsubmit: Command) -> None:
    job = "restarted-aaaaaa"
    lines = expected(kind)[job]["logs"]
    rank_1 = [line for line in lines if line.startswith("[rank 1]")]
    assert jobsubmit("logs", job, "--rank", "1").stdout.splitlines() == rank_1
    assert jobsubmit("logs", job, "--grep", "loss").stdout.splitlines() == [line for line in lines if "loss" in line]
    assert jobsubmit("logs", job, "--tail", "3").stdout.splitlines() == lines[-3:]
    assert jobsubmit("logs", job, "--since", "2026-01-01").stdout.splitlines() == lines
