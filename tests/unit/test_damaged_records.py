"""Records that are damaged, torn, empty or newer: one job is UNKNOWN, all others are as they were, nothing crashes.

JOBSUBMIT_FUZZ=long is the long form.
"""

from __future__ import annotations

import json
import os
import random
import shutil
from pathlib import Path

import pytest
from command import Command
from damage import copy_of, damage, files_of

RECORDS = sorted((Path(__file__).parents[1] / "corpus/records").glob("*/local"))[-1]
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


@pytest.mark.timeout(7200)
@pytest.mark.parametrize("seed", range(2))
def test_nothing_crashes_whatever_became_of_a_file(seed: int, jobsubmit: Command, tmp_path: Path) -> None:
    chance = random.Random(f"{seed}" if RUNS < 1000 else None)
    place = tmp_path / "state"
    before = None
    for run in range(RUNS // 2):
        copy_of(RECORDS, place)
        before = before or states(jobsubmit)
        file = chance.choice([path for path in files_of(place) if path.name != "expected.json"])
        job = file.relative_to(place).parts[1] if file.is_relative_to(place / "jobs") else chance.choice(sorted(before))
        told = f"seed {seed}, run {run}: {file.relative_to(place)}, {damage(file, chance)}"
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
        (b"", "damaged"),
        (b'{"id": "failed-aaaaaa", "na', "damaged"),
        (b"[]", "no JSON object"),
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
    (state / "ended-jobs.json").unlink()
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
