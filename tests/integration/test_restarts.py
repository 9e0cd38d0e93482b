"""A job that fails goes on: the whole gang from the last checkpoint, to the same end as if nothing had happened."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from command import Command, events, job_dir, job_id, processes_left
from pace import Pace
from tiers import slow

CODE = Path(__file__).parents[2] / "code"
MODES = {"spawn": "main.py", "launch": "torch_ddp.py", "torchrun": "torch_ddp.py"}
STEPS = 30


def training(folder: Path, mode: str, extra: str = "") -> Path:
    (folder / "job.yaml").write_text(
        f"name: long\nmode: {mode}\ncode_dir: {CODE}\nboot_file: {MODES[mode]}\ncheckpoint_dir: checkpoints\n"
        f"hyperparameters: {{steps: {STEPS}, step_seconds: 0.03, save_every: 5}}\n"
        f"resources: {{nodes: 2, nproc_per_node: 2}}\n{extra}"
    )
    return folder / "job.yaml"


def losses(jobsubmit: Command, job: str, rank: int = 0) -> dict[int, str]:
    """Return step → loss as the rank printed it last."""
    text = jobsubmit("logs", job, "--rank", str(rank), "--stream", "stdout").stdout
    return {int(step): loss for step, loss in re.findall(r"step (\d+) loss ([\d.]+)", text)}


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> dict[int, str]:
    folder = tmp_path_factory.mktemp("uninterrupted")
    jobsubmit = Command(folder)
    state = {"JOBSUBMIT_STATE_DIR": str(folder / "state")}
    job = job_id(jobsubmit("create", training(folder, "torchrun"), "--follow", env=state).stdout)
    text = jobsubmit("logs", job, "--rank", "0", env=state).stdout
    found = {int(step): loss for step, loss in re.findall(r"step (\d+) loss ([\d.]+)", text)}
    assert len(found) == STEPS
    return found


RANK, NODE = "kill rank 3 at step 13", "kill node 1 at step 13"
KILLS = [("spawn", RANK), ("torchrun", NODE), slow("launch", RANK)]
KILLS += [slow("spawn", NODE), slow("launch", NODE), slow("torchrun", RANK)]


@pytest.mark.needs("torch")
@pytest.mark.parametrize(("mode", "fault"), KILLS)
def test_after_a_kill_the_gang_resumes_and_ends_with_the_same_loss(
    mode: str, fault: str, jobsubmit: Command, tmp_path: Path, uninterrupted: dict[int, str], pace: Pace
) -> None:
    job_file = training(tmp_path, mode, "restarts: {max: 1, backoff: 0}\n")
    done = jobsubmit("create", job_file, "--follow", "--fault", fault)
    job = job_id(done.stdout)
    assert losses(jobsubmit, job) == uninterrupted
    (resumed,) = re.findall(r"rank 0 goes on after (\d+) steps", done.stderr)
    assert int(resumed) in (10, 15)  # the fault strikes a moment after the step was told
    assert processes_left(job) == []
    status = jobsubmit.json("status", job)
    (recovery,) = status["recoveries"]
    assert recovery["fault"] == fault
    assert recovery["what"] == f"restart 1 after {'SIGNAL' if 'rank' in fault else 'NODE_FAILED'}"
    assert 0 <= recovery["detected_at"] - recovery["struck_at"] < pace.stretched(10)
    assert recovery["back_at"] - recovery["struck_at"] < pace.stretched(60)
    assert recovery["steps_lost"] == max(told_before(done.stderr)) - int(resumed)
    assert f"(fault: {fault})" in done.stderr
    assert (tmp_path / "checkpoints" / job).is_dir()


def told_before(text: str) -> list[int]:
    """Return the steps that were told before the restart."""
    return [int(step) for step in re.findall(r"step (\d+) loss", text.partition("jobsubmit: restart 1")[0])]


BOOT = """
import os, sys, time
attempt = int(os.environ["JOBSUBMIT_RESTART_COUNT"])
print("attempt", attempt, "of rank", os.environ.get("NODE_RANK"), flush=True)
HOW
"""


def simple(folder: Path, how: str, extra: str = "", nodes: int = 1) -> Path:
    (folder / "code").mkdir(exist_ok=True)
    (folder / "code/boot.py").write_text(BOOT.replace("HOW", how))
    (folder / "job.yaml").write_text(
        f"name: simple\nmode: spawn\ncode_dir: code\nboot_file: boot.py\n"
        f"resources: {{nodes: {nodes}, nproc_per_node: 1}}\n" + extra
    )
    return folder / "job.yaml"


def test_it_gives_up_after_the_last_restart(jobsubmit: Command, tmp_path: Path) -> None:
    done = jobsubmit(
        "create", simple(tmp_path, "sys.exit(5)", "restarts: {max: 2, backoff: 0}\n"), "--follow", code=100
    )
    text = jobsubmit("logs", job_id(done.stdout)).stdout
    assert [f"attempt {number}" in text for number in range(4)] == [True, True, True, False]
    status = jobsubmit.json("status", job_id(done.stdout))
    assert (status["failure"]["exit_code"], len(status["recoveries"])) == (5, 2)
    jobsubmit("wait", job_id(done.stdout), "--propagate-exit-code", code=5)


@pytest.mark.parametrize(("on", "attempts"), [("exit:75", 2), ("exit:7", 1), ("log:/bad luck/", 2), ("signal", 1)])
def test_only_what_the_policy_names_is_restarted(on: str, attempts: int, jobsubmit: Command, tmp_path: Path) -> None:
    how = "print('bad luck', flush=True)\nsys.exit(75)"
    job_file = simple(tmp_path, how, f'restarts: {{max: 1, on: ["{on}"], backoff: 0}}\n')
    job = job_id(jobsubmit("create", job_file, "--follow", code=100).stdout)
    assert jobsubmit("logs", job, "--grep", "^attempt").stdout.count("attempt") == attempts


def test_a_restart_finds_the_code_as_it_was_submitted(jobsubmit: Command, tmp_path: Path) -> None:
    how = """
from pathlib import Path
own = Path(__file__).with_name("checkpoint.pt")
print("found" if own.exists() else "begins anew", "built" if own.with_name("built").exists() else "not built")
own.touch()
sys.exit(3)
"""
    job_file = simple(tmp_path, how, "restarts: {max: 1, backoff: 0s}\nsetup: touch built\n")
    done = jobsubmit("create", job_file, "--follow", code=100)
    said = jobsubmit("logs", job_id(done.stdout)).stdout
    assert said.count("begins anew built") == 2
    assert "found" not in said


def test_what_an_earlier_attempt_said_is_no_reason(jobsubmit: Command, tmp_path: Path) -> None:
    how = "print('BOOM' if attempt == 0 else 'something else', flush=True)\nsys.exit(1)"
    job_file = simple(tmp_path, how, 'restarts: {max: 5, on: ["log:/BOOM/"], backoff: 0}\n')
    job = job_id(jobsubmit("create", job_file, "--follow", code=100).stdout)
    assert jobsubmit("logs", job, "--grep", "^attempt").stdout.count("attempt") == 2


def test_a_job_that_runs_is_not_resumed(jobsubmit: Command, tmp_path: Path) -> None:
    job = job_id(jobsubmit("create", simple(tmp_path, "time.sleep(60)", "checkpoint_dir: kept\n"), "--detach").stdout)
    assert "has not ended: it is " in jobsubmit("rerun", job, "--resume", code=2).stderr
    jobsubmit("cancel", job)
    assert "a rerun cannot change store.uri" in jobsubmit("rerun", job, "--set", "store.uri=elsewhere", code=2).stderr


def test_processes_get_time_to_save_before_a_restart(jobsubmit: Command, tmp_path: Path) -> None:
    how = """
import signal
saved = os.environ["JOBSUBMIT_CHECKPOINT_DIR"] + "/saved-by-" + os.environ["NODE_RANK"]
if attempt:
    print("found", sorted(os.listdir(os.environ["JOBSUBMIT_CHECKPOINT_DIR"])), flush=True)
    sys.exit(0)
def save(number, frame):
    time.sleep(4)
    open(saved, "w").close()
    sys.exit(0)
signal.signal(signal.SIGTERM, save)
ready = os.environ["JOBSUBMIT_CHECKPOINT_DIR"] + "/ready"
if os.environ["NODE_RANK"] == "1":
    while not os.path.exists(ready):
        time.sleep(0.05)
    os.remove(ready)
    os._exit(9)
open(ready, "w").close()
time.sleep(60)
"""
    extra = "restarts: {max: 1, backoff: 0}\ncheckpoint_dir: kept\n"
    done = jobsubmit("create", simple(tmp_path, how, extra, nodes=2), "--follow")
    assert done.stderr.count("found ['saved-by-0']") == 2


def test_cancel_in_the_pause_before_a_restart(jobsubmit: Command, tmp_path: Path) -> None:
    job_file = simple(tmp_path, "sys.exit(5)", "restarts: {max: 2, backoff: 1h}\n")
    job = job_id(jobsubmit("create", job_file, "--detach").stdout)
    wait_for_state(jobsubmit, job, "RECOVERING")
    assert "CANCELLED" in jobsubmit("cancel", job).stdout
    assert processes_left(job) == []


def wait_for_state(jobsubmit: Command, job: str, state: str) -> dict[str, Any]:
    for _ in range(100):
        found: dict[str, Any] = jobsubmit.json("status", job)
        if found["state"] == state:
            return found
    raise AssertionError(found)


def test_a_delayed_node_and_a_fault_that_finds_nothing(jobsubmit: Command, tmp_path: Path, pace: Pace) -> None:
    job_file = simple(tmp_path, "time.sleep(0.3)", nodes=2)
    done = jobsubmit(
        "create", job_file, "--follow", "--fault", "delay node 1 by 2s", "--fault", "kill rank 1 at step 99"
    )
    starts = {event["node"]: event["t"] for event in events(job_id(done.stdout)) if event["event"] == "node_start"}
    assert 1.9 < starts[1] - starts[0] < pace.stretched(5)
    assert "kill rank 1 at step 99` was not triggered" in done.stderr


def test_a_checkpoint_directory_in_the_code_directory_is_no_code(jobsubmit: Command, tmp_path: Path) -> None:
    how = "open(os.environ['JOBSUBMIT_CHECKPOINT_DIR'] + '/x', 'w').close()"
    job_file = simple(tmp_path, how, "checkpoint_dir: code/checkpoints\n")
    digests = {jobsubmit.json("status", job_id(jobsubmit("create", job_file, "--follow").stdout))["code"]["digest"]}
    digests.add(jobsubmit.json("status", job_id(jobsubmit("create", job_file, "--follow").stdout))["code"]["digest"])
    assert len(digests) == 1


def test_the_directory_of_a_job_can_be_read_by_people(jobsubmit: Command, tmp_path: Path) -> None:
    job = job_id(jobsubmit("create", simple(tmp_path, "pass"), "--follow").stdout)
    names = {file.name for file in job_dir(job).iterdir()}
    assert names >= {"job.yaml", "resolved.yaml", "plan.json", "start.sh", "local.json", "record.json", "status.json"}


@pytest.mark.needs("torch")
@pytest.mark.parametrize("mode", [slow("spawn"), slow("launch"), "torchrun"])
def test_a_cancelled_training_saves_where_it_was(mode: str, jobsubmit: Command, tmp_path: Path) -> None:
    flags = ("--set", "hyperparameters.save_every=1000", "--set", "hyperparameters.steps=1000")
    job = job_id(jobsubmit("create", training(tmp_path, mode), "--detach", *flags).stdout)
    for _ in range(300):
        if "step 3 " in jobsubmit("logs", job, "--rank", "0").stdout:
            break
    assert "CANCELLED" in jobsubmit("cancel", job, "--grace", "40").stdout
    (saved,) = (tmp_path / "checkpoints" / job).glob("step-*.pt")
    last = max(losses(jobsubmit, job))
    assert saved.name == f"step-{last:09}.pt"
    assert f"was asked to end, and does after {last} steps" in jobsubmit("logs", job, "--rank", "3").stdout
    assert processes_left(job) == []
