"""The metrics of real jobs: what their ranks print is shown, also while they run."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import pytest
from command import Command

TRAINING = """
import math, os, sys
rank = int(os.environ.get("RANK", os.environ["NODE_RANK"]))
for step in range(1, 21):
    loss = math.nan if step == 13 and rank == 1 else 2 / step + rank
    print(f"step {step}/20 loss {loss:.4f}", flush=True)
print(f"\\r 5%|5         | 1/20 [00:01<00:19, 1.0it/s]\\r", file=sys.stderr)
"""


@pytest.fixture
def job(tmp_path: Path) -> Path:
    (tmp_path / "code").mkdir()
    (tmp_path / "code/train.py").write_text(TRAINING)
    (tmp_path / "job.yaml").write_text(
        "name: measured\ncode_dir: code\ncommand: python train.py\nresources: {nodes: 2}\n"
    )
    return tmp_path


def test_metrics_of_a_job_on_two_nodes(job: Path, jobsubmit: Command) -> None:
    jobsubmit("create", "job.yaml", "--follow")
    shown = jobsubmit("metrics", "measured").stdout
    assert "node 0: step 20 of 20\nnode 1: step 20 of 20\n" in shown
    document = jobsubmit.json("metrics", "measured")
    assert [(one["node"], one["name"], one["count"]) for one in document["series"]] == [
        (0, "loss", 20),
        (1, "loss", 20),
    ]
    (first, second) = ([point["value"] for point in one["points"]] for one in document["series"])
    assert first == [round(2 / step, 4) for step in range(1, 21)]
    assert second[12] == "nan"
    rows = list(csv.DictReader(io.StringIO(jobsubmit("metrics", "measured", "-o", "csv").stdout)))
    assert [float(row["value"]) for row in rows if row["node"] == "0"] == first
    assert [row["step"] for row in rows if row["node"] == "1"] == [str(step) for step in range(1, 21)]


def test_metrics_of_a_job_that_starts_now_end_with_it(job: Path, jobsubmit: Command) -> None:
    jobsubmit("create", "job.yaml", "--detach")
    followed = jobsubmit("metrics", "measured", "-f").stdout.splitlines()
    assert len([line for line in followed if line.startswith("[node 0] step ")]) == 20
    assert "[node 1] step 20 loss 1.1" in followed


def test_a_job_that_prints_no_metrics_is_no_error(job: Path, jobsubmit: Command) -> None:
    (job / "code/train.py").write_text("print('lr 0.1, loss_weight 0.5')\n")
    jobsubmit("create", "job.yaml", "--follow")
    done = jobsubmit("metrics", "measured")
    assert done.stdout == ""
    assert "no metrics" in done.stderr
    assert jobsubmit.json("metrics", "measured")["series"] == []
