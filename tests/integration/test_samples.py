"""Each sample runs as it comes, on 2 nodes with 2 processes each, and does what it says."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from command import Command, job_id
from tiers import slow

from jobsubmit.scaffold.samples import list_samples
from jobsubmit.spec.modes import MODES

# By sample, what every rank must say: N is its number, and \\1 what all must say alike.
SAID = {
    "accelerate_ddp": r"rank N of 4 did 24 steps",
    "backend_choice": r"rank N takes (gloo|nccl): ",
    "data_parallel": r"rank N: from the model of rank 0, DataParallel 0\.\d+, DistributedDataParallel 0\.0000",
    "distributed_sampler": r"rank N of 4 saw 60 of 240 samples an epoch",
    "key_value": r"rank N read: ranks 0, 1, 2, 3 are on nodes 0, 0, 1, 1",
    "lightning_ddp": r"rank N of 4 did 24 steps",
    "manual_all_reduce": r"rank N: averaged by hand as DistributedDataParallel does, to \d\.\de-",
    "parameter_server": r"rank N(: loss .* before, .* after| of 4 served 300 updates)",
    "sharded_loader": r"rank N of 4 read 120 records; all 480 were read once",
}
ELSEWHERE = {*MODES, "elastic"}  # contract/test_training.py and slow/test_elastic.py
CHOSEN = ("key_value", "manual_all_reduce")


def test_every_sample_is_tested() -> None:
    assert {sample.name for sample in list_samples()} == {*SAID, *ELSEWHERE}


@pytest.mark.needs("torch")
@pytest.mark.parametrize("name", [name if name in CHOSEN else slow(name) for name in SAID])
def test_a_sample_does_what_it_says(name: str, jobsubmit: Command, tmp_path: Path) -> None:
    jobsubmit("init", "--sample", name, "here")
    assert "is valid" in jobsubmit("validate", "here/job.yaml").stdout
    done = jobsubmit("create", "here/job.yaml", "--follow")
    said = done.stderr
    for rank in range(4):
        pattern = rf"^\[rank {rank}\] " + SAID[name].replace("rank N", f"rank {rank}")
        assert re.search(pattern, said, re.MULTILINE), (pattern, said)
    if name in ("accelerate_ddp", "lightning_ddp", "manual_all_reduce"):
        report = jobsubmit.json("report", job_id(done.stdout))
        assert_timed(report, name)
        shown = jobsubmit("status", job_id(done.stdout)).stdout
        assert [phase["name"] for phase in report["phases"] if phase["name"] not in shown] == []


def assert_timed(report: dict[str, Any], name: str) -> None:
    """Nothing in these samples but `profile: sync` asks for it."""
    ways = [sync["what"] for sync in report["syncs"]]
    assert ways == (["ddp", "by_hand"] if name == "manual_all_reduce" else ["ddp"])
    for sync in report["syncs"]:
        assert [rank["rank"] for rank in sync["ranks"]] == [0, 1, 2, 3]
        assert sync["world"] == 4
        assert sync["steps"] >= 20
        assert 0 < sync["spreads"]["exposed"]["median"] < sync["spreads"]["step"]["median"]
    if name == "manual_all_reduce":
        ddp, by_hand = report["syncs"]
        assert ddp["size"] == by_hand["size"]
