"""What each option of the command line does: to a job before it is submitted, and to what is shown of jobs that ended.

The jobs are those that an earlier version left (corpus/records); nothing is started.
"""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path
from typing import Any

import pytest
from command import Command

RECORDS = Path(__file__).parents[2] / "corpus/records/2026-11-22/local"
FAILED, WELL, RESTARTED, REFUSED = "failed-aaaaaa", "well-aaaaaa", "restarted-aaaaaa", "refused-aaaaaa"
BOOT = "import argparse\np = argparse.ArgumentParser()\np.add_argument('--lr')\np.parse_known_args()\n"


@pytest.fixture
def job(tmp_path: Path) -> str:
    (tmp_path / "code").mkdir()
    (tmp_path / "code/train.py").write_text(BOOT)
    (tmp_path / "job.yaml").write_text(
        "name: options\nmode: torchrun\ncode_dir: code\nboot_file: train.py\nhyperparameters: {lr: 0.1}\n"
        "resources: {nodes: 2, nproc_per_node: 2}\nenv: {A: old}\n"
    )
    return "job.yaml"


@pytest.fixture
def jobs(tmp_path: Path) -> Path:
    """Return a state directory with jobs that have ended."""
    return Path(shutil.copytree(RECORDS, tmp_path / "state")) / "jobs"


def dry(jobsubmit: Command, job: str, *flags: str) -> dict[str, Any]:
    found: dict[str, Any] = jobsubmit.json("create", job, "--dry-run", *flags)
    return {**found, "local": json.loads(next(iter(found["request"].values())))}


# ── a job before it is submitted ────────────────────────────────────────────────────────────────────────────────────


def test_set_changes_any_field_and_the_last_one_counts(job: str, jobsubmit: Command) -> None:
    found = dry(jobsubmit, job, "--set", "hyperparameters.lr=1", "--set", "hyperparameters.lr=2.50", "--set", "name=n")
    assert "--lr=2.50" in found["script"]["text"]
    assert found["job_id"].startswith("n-")


def test_nodes_and_processes(job: str, jobsubmit: Command) -> None:
    found = dry(jobsubmit, job, "--nodes", "3", "--set", "resources.nproc_per_node=1")
    assert (found["local"]["nodes"], found["local"]["nproc_per_node"]) == (3, 1)
    elastic = dry(jobsubmit, job, "--nodes", "1:3")["local"]
    assert (elastic["min_nodes"], elastic["nodes"]) == (1, 3)


def test_env_adds_and_replaces_and_keeps_what_follows_the_first_equals_sign(job: str, jobsubmit: Command) -> None:
    found = dry(jobsubmit, job, "-e", "A=new", "--env", "B=x=y z", "-e", "C=")
    assert found["local"]["env"] == {"A": "new", "B": "x=y z", "C": ""}


def test_the_id_of_a_job_is_ours_unless_it_is_given(job: str, jobsubmit: Command) -> None:
    assert dry(jobsubmit, job)["job_id"] != dry(jobsubmit, job)["job_id"]
    assert dry(jobsubmit, job, "--job-id", "Mine_1")["job_id"] == "Mine_1"


def test_the_store_and_where_the_code_will_be(job: str, jobsubmit: Command, tmp_path: Path) -> None:
    assert dry(jobsubmit, job)["code"]["uri"].startswith(str(tmp_path / "state/store/options/"))
    assert dry(jobsubmit, job, "--store", "s3://bucket/x")["code"]["uri"].startswith("s3://bucket/x/options/")


def test_the_mode_and_what_it_drops(job: str, jobsubmit: Command) -> None:
    found = dry(jobsubmit, job, "--mode", "launch", "--set", "image=i:1")
    assert "torch.distributed.launch" in found["script"]["text"]
    assert found["local"]["mode"] == "launch"


@pytest.mark.parametrize(("flag", "kind"), [("--profile-sync", "sync"), ("--profile-sync=buckets", "buckets")])
def test_the_timing_of_steps(flag: str, kind: str, job: str, jobsubmit: Command) -> None:
    assert f"JOBSUBMIT_PROFILE={kind}" in dry(jobsubmit, job, flag)["script"]["text"].replace("'", "")
    assert "JOBSUBMIT_PROFILE" not in dry(jobsubmit, job)["script"]["text"]


def test_templates_of_ones_own(job: str, jobsubmit: Command, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/startup.sh.j2").write_text("echo mine\n")
    assert jobsubmit("render", job, "--templates", "mine").stdout == "echo mine\n"


@pytest.mark.parametrize("backend", ["slurm", "volcano"])
def test_the_backend(backend: str, job: str, jobsubmit: Command) -> None:
    flags = ("--backend", backend, "--store", "s3://bucket/x", "--set", "image=i:1")
    documents = jobsubmit.json("create", job, "--dry-run", *flags)["request"]
    assert (
        sorted(documents)
        == {"slurm": ["job.sbatch"], "volcano": ["configmap.yaml", "secret.yaml", "vcjob.yaml"]}[backend]
    )


def test_faults_are_part_of_the_request(job: str, jobsubmit: Command) -> None:
    faults = dry(jobsubmit, job, "--fault", "kill rank 3 at step 5", "--fault", "delay node 1 by 2s")["local"]["faults"]
    assert [(fault["action"], fault["number"]) for fault in faults] == [("kill", 3), ("delay", 1)]


def test_checks_of_the_code_can_be_left_out(job: str, jobsubmit: Command, tmp_path: Path) -> None:
    (tmp_path / "code/train.py").write_text("import argparse\nargparse.ArgumentParser().parse_args()\n")
    assert "--lr" in jobsubmit("create", job, "--dry-run", code=3).stderr
    jobsubmit("create", job, "--dry-run", "--no-check")
    assert jobsubmit.json("validate", job, code=3)["valid"] is False


def test_bundle_shows_what_would_be_sent(job: str, jobsubmit: Command, tmp_path: Path) -> None:
    (tmp_path / "code/big.bin").write_bytes(b"x" * 5000)
    (tmp_path / "code/.jobignore").write_text("*.log\n")
    (tmp_path / "code/a.log").write_text("x")
    text = jobsubmit("bundle", job, "--top", "1").stdout
    assert "big.bin" in text and "train.py" not in text
    text = jobsubmit("bundle", job, "--list").stdout
    assert "train.py" in text and "a.log" in text
    left_out = {one["path"]: one["reason"] for one in jobsubmit.json("bundle", job, "--list")["left_out"]}
    assert ".jobignore" in left_out["a.log"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["create", "job.yaml", "--set", "hyperparameters.lr"], "--set"),
        (["create", "job.yaml", "--set", "nosuch.field=1"], "nosuch"),
        (["create", "job.yaml", "--nodes", "0"], "nodes"),
        (["create", "job.yaml", "--nodes", "3:1"], "nodes"),
        (["create", "job.yaml", "-e", "NOVALUE"], "NOVALUE"),
        (["create", "job.yaml", "--mode", "ddp"], "mode"),
        (["create", "job.yaml", "--backend", "sge"], "backend"),
        (["create", "job.yaml", "--job-id", "a b"], "--job-id"),
        (["create", "job.yaml", "--fault", "explode"], "explode"),
        (["create", "job.yaml", "--nonsense"], "--nonsense"),
        (["create", "nowhere.yaml"], "nowhere.yaml"),
        (["render", "job.yaml", "--node", "1"], "--expand"),
        (["logs", WELL, "--rank", "-1"], "rank"),
        (["logs", WELL, "--grep", "("], "--grep"),
        (["logs", WELL, "--since", "soon"], "--since"),
        (["list", "--state", "nosuch"], "nosuch"),
        (["list", "--since", "soon"], "--since"),
        (["wait", WELL, "--timeout", "soon"], "--timeout"),
        (["cancel", WELL, "--grace", "-1"], "--grace"),
        (["prune"], "--older-than"),
        (["nosuchcommand"], "nosuchcommand"),
    ],
)
def test_what_cannot_be_meant_is_refused_with_exit_code_2(
    words: list[str], said: str, job: str, jobs: Path, jobsubmit: Command
) -> None:
    before = sorted(path.name for path in jobs.iterdir())
    refused = jobsubmit(*words, code=2)
    assert said in refused.stderr
    assert refused.stdout == ""
    assert sorted(path.name for path in jobs.iterdir()) == before
    assert json.loads(jobsubmit(*words, "-o", "json", code=2).stdout)["code"] == 2


# ── jobs that have ended ────────────────────────────────────────────────────────────────────────────────────────────


def listed(jobsubmit: Command, *flags: str) -> set[str]:
    return {found["id"].removesuffix("-aaaaaa") for found in jobsubmit.json("list", *flags)}


def test_which_jobs_are_listed(jobs: Path, jobsubmit: Command) -> None:
    everything = {path.name.removesuffix("-aaaaaa") for path in jobs.iterdir()}
    assert listed(jobsubmit) == everything
    assert listed(jobsubmit, "--state", "lost", "--state", "CANCELLED") == {"lost", "cancelled"}
    assert listed(jobsubmit, "--name", "*ed") == {name for name in everything if name.endswith("ed")}
    assert listed(jobsubmit, "--since", "2099-01-01") == set()
    assert len(listed(jobsubmit, "-n", "2")) == 2
    assert len(jobsubmit("ls", "-n", "3").stdout.splitlines()) == 4
    assert f"{len(everything) - 3} more" in jobsubmit("list", "-n", "3").stderr


@pytest.mark.parametrize("name", [FAILED, "failed", f"local://{FAILED}", f"local://{FAILED}/"])
def test_a_job_is_found_by_handle_id_and_name(name: str, jobs: Path, jobsubmit: Command) -> None:
    assert jobsubmit.json("status", name)["id"] == FAILED


def test_the_newest_job_of_a_name_that_was_submitted_is_meant(jobs: Path, jobsubmit: Command) -> None:
    def again(job: str, created: float, problem: str = "") -> None:
        shutil.copytree(jobs / WELL, jobs / job)
        record = json.loads((jobs / job / "record.json").read_text())
        told = {
            **record,
            "id": job,
            "created": created,
            "problem": problem,
            "handle": "" if problem else f"local://{job}",
        }
        (jobs / job / "record.json").write_text(json.dumps(told))

    again("well-older", 1.0)
    again("well-newer", 9e9)
    again("well-refused", 9.1e9, "the store refused")
    assert jobsubmit.json("status", "well")["id"] == "well-newer"


@pytest.mark.parametrize(
    "command", ["status", "describe", "logs", "events", "report", "wait", "cancel", "delete", "rerun"]
)
def test_a_job_that_is_not_there_is_exit_code_102_with_the_nearest_name(
    command: str, jobs: Path, jobsubmit: Command
) -> None:
    refused = jobsubmit(command, "faled", code=102)
    assert "did you mean `failed`" in refused.stderr
    assert json.loads(jobsubmit(command, "faled", "-o", "json", code=102).stdout)["code"] == 102


@pytest.mark.parametrize(
    ("name", "code", "propagated"),
    [
        (WELL, 0, 0),
        (FAILED, 100, 7),
        ("late", 100, 100),
        ("lost", 100, 100),
        ("cancelled", 103, 103),
        (REFUSED, 100, 100),
    ],
)
def test_exit_codes_of_jobs(name: str, code: int, propagated: int, jobs: Path, jobsubmit: Command) -> None:
    jobsubmit("wait", name, code=code)
    jobsubmit("wait", name, "--timeout", "1m", code=code)
    jobsubmit("wait", name, "--propagate-exit-code", code=propagated)
    jobsubmit("status", name)


def test_which_lines_are_printed(jobs: Path, jobsubmit: Command) -> None:
    every = jobsubmit("logs", RESTARTED).stdout.splitlines()
    errors = jobsubmit("logs", RESTARTED, "--stream", "stderr", "--rank", "1").stdout.splitlines()
    assert "[rank 1] last words of rank 1" in errors
    assert all(line.startswith("[rank 1]") for line in errors)
    node = jobsubmit("logs", RESTARTED, "--node", "1").stdout.splitlines()
    assert node == [line for line in every if line.startswith(("[rank 1]", "[node 1]"))]
    assert jobsubmit("logs", RESTARTED, "--tail", "0").stdout == ""
    assert jobsubmit("logs", RESTARTED, "--grep", "attempt [1]").stdout.count("begins attempt 1") == 2
    stamped = jobsubmit("logs", RESTARTED, "-t", "--tail", "1").stdout
    assert stamped.startswith("2026-11-2")
    assert jobsubmit("logs", RESTARTED, "--since", "2099-01-01").stdout == ""
    assert "has ranks 0 to 1" in jobsubmit("logs", RESTARTED, "--rank", "9", code=2).stderr
    record = json.loads(jobsubmit("logs", RESTARTED, "--tail", "1", "-o", "json").stdout)
    assert record["text"] == every[-1].partition("] ")[2]


def test_lines_can_be_written_to_files(jobs: Path, jobsubmit: Command, tmp_path: Path) -> None:
    jobsubmit("logs", RESTARTED, "--download", "mine")
    text = (tmp_path / "mine/rank-1.stdout.log").read_text()
    assert text.count("begins attempt") == 2


def test_a_report_compares_timed_jobs_and_writes_a_page(jobs: Path, jobsubmit: Command, tmp_path: Path) -> None:
    assert "metric, last value" in jobsubmit("report", WELL, "timed").stdout
    both = jobsubmit("report", "timed", "timed", "--html", "page.html")
    assert "ToyModel" in both.stdout
    assert (tmp_path / "page.html").read_text().startswith("<!doctype html>")


def test_a_job_that_ended_is_cancelled_no_more(jobs: Path, jobsubmit: Command) -> None:
    assert "FAILED" in jobsubmit("cancel", FAILED, "--grace", "1").stdout
    assert not (jobs / FAILED / "cancel").exists()


def test_several_jobs_are_deleted(jobs: Path, jobsubmit: Command) -> None:
    jobsubmit("delete", WELL, FAILED)
    assert {WELL, FAILED} & {path.name for path in jobs.iterdir()} == set()
    jobsubmit("delete", WELL, RESTARTED, code=102)


def test_old_jobs_are_pruned(jobs: Path, jobsubmit: Command) -> None:
    for folder in jobs.iterdir():
        record = json.loads((folder / "record.json").read_text())
        days = 40 if folder.name in (WELL, FAILED) else 1
        (folder / "record.json").write_text(json.dumps({**record, "created": time.time() - days * 86400}))
    assert WELL in jobsubmit("prune", "--older-than", "30d", "--dry-run").stdout
    assert (jobs / WELL).exists()
    jobsubmit("prune", "--older-than", "30d", "--state", "failed")
    assert ((jobs / WELL).exists(), (jobs / FAILED).exists()) == (True, False)
    jobsubmit("prune", "--older-than", "30d")
    assert sorted(path.name for path in jobs.iterdir()).count(WELL) == 0
    assert (jobs / RESTARTED).exists()


def test_what_would_change_against_an_earlier_job(job: str, jobs: Path, jobsubmit: Command) -> None:
    found = jobsubmit("render", job, "--diff", WELL)
    assert '-    "GREETING": "hello"' in found.stdout
    assert '+    "A": "old"' in found.stdout
