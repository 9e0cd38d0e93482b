"""An elastic job goes on with fewer nodes, grows again, and its loss curve shows nothing of it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from command import Command, job_id, processes_left

CODE = Path(__file__).resolve().parents[2] / "code"
STEPS = 300


def elastic(folder: Path, nodes: str) -> Path:
    (folder / "job.yaml").write_text(
        f"name: elastic\nmode: torchrun\ncode_dir: {CODE}\nboot_file: elastic.py\ncheckpoint_dir: checkpoints\n"
        f"hyperparameters: {{steps: {STEPS}, step_seconds: 0.1, lr: 0.01}}\n"
        f"restarts: {{max: 3, backoff: 24s}}\nresources: {{nodes: {nodes}, nproc_per_node: 1}}\n"
    )
    return folder / "job.yaml"


def curve(jobsubmit: Command, job: str) -> dict[int, tuple[float, int]]:
    """Return step → (loss, number of processes), as rank 0 printed it last."""
    text = jobsubmit("logs", job, "--rank", "0", "--stream", "stdout").stdout
    found = re.findall(r"step (\d+) loss ([\d.]+) with (\d+)", text)
    return {int(step): (float(loss), int(processes)) for step, loss, processes in found}


@pytest.mark.needs("torch")
def test_three_nodes_then_two_then_three(jobsubmit: Command, tmp_path: Path) -> None:
    job_file = elastic(tmp_path, '"2:3"')
    done = jobsubmit("create", job_file, "--follow", "--fault", "kill node 2 at step 20", timeout=300)
    job = job_id(done.stdout)
    alone = jobsubmit("create", job_file, "--follow", "--nodes", "1", "--set", "hyperparameters.step_seconds=0")
    expected, found = curve(jobsubmit, job_id(alone.stdout)), curve(jobsubmit, job)
    assert sorted(found) == sorted(expected) == list(range(1, STEPS + 1))
    assert all(abs(found[step][0] - expected[step][0]) < 2e-5 for step in expected)
    worlds = [found[step][1] for step in sorted(found)]
    assert [world for index, world in enumerate(worlds) if index == 0 or worlds[index - 1] != world] == [3, 2, 3]
    lost, back = jobsubmit.json("status", job)["recoveries"]
    assert lost["what"] == "node 2 lost, continued with 2 in total"
    assert back["what"] == "node 2 came back, continued with 3 in total"
    assert lost["fault"] == "kill node 2 at step 20"
    for recovery in (lost, back):
        assert 0 < recovery["back_at"] - recovery["struck_at"] < 60
    assert "training again" in jobsubmit("status", job).stdout
    assert processes_left(job) == []


@pytest.mark.needs("torch")
def test_the_loss_of_the_first_node_restarts_all(jobsubmit: Command, tmp_path: Path) -> None:
    job_file = elastic(tmp_path, '"1:2"')
    flags = ("--set", "hyperparameters.steps=40", "--set", "restarts.backoff=0")
    done = jobsubmit("create", job_file, "--follow", "--fault", "kill node 0 at step 15", *flags, timeout=200)
    (recovery,) = jobsubmit.json("status", job_id(done.stdout))["recoveries"]
    assert recovery["what"] == "restart 1 after NODE_FAILED"
    assert len(curve(jobsubmit, job_id(done.stdout))) == 40
