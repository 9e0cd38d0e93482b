"""What every backend promises: the same job file, the same script and the same answers on each engine."""

from __future__ import annotations

import hashlib
import json
import re
import time
from pathlib import Path
from typing import Any

import pytest
from command import Command, handle, wait_for_line
from engine import Engine
from hostile import HOSTILE
from modelarts_server import PROJECT
from pace import Pace
from tiers import slow

pytestmark = pytest.mark.needs("torch")


def boot(folder: Path, text: str) -> None:
    (folder / "code").mkdir(exist_ok=True)
    (folder / "code" / "train.py").write_text(text)


RECORDER = """
import json, os, sys
print("RECORD " + json.dumps({"argv": sys.argv[1:], "env": dict(os.environ)}), flush=True)
"""


def test_hostile_values_arrive_unmodified(engine: Engine, jobsubmit: Command, tmp_path: Path) -> None:
    boot(tmp_path, RECORDER)
    values = [value for value in HOSTILE if len(value) <= engine.longest_value]
    env = {f"H{number}": value for number, value in enumerate(values)}
    arguments = {"mode": "torchrun", "boot_file": "train.py", "args": list(HOSTILE), "env": env}
    job = engine.job(tmp_path, **arguments, hyperparameters={"name": HOSTILE[0]})
    done = jobsubmit("create", job, "--follow")
    text = jobsubmit("logs", handle(done.stdout), "--rank", "0").stdout
    record = json.loads(next(line for line in text.splitlines() if "RECORD " in line).partition("RECORD ")[2])
    assert record["argv"] == [f"--name={HOSTILE[0]}", *HOSTILE]
    assert {name: record["env"].get(name) for name in env} == env


FAILING = """
import os, sys, time
rank = int(os.environ["RANK"])
print("rank", rank, "is here", flush=True)
if rank == 3:
    time.sleep(2)
    print("last words of rank 3", file=sys.stderr, flush=True)
    sys.exit(7)
time.sleep(120)
"""


def test_the_rank_that_failed_first_is_named(engine: Engine, jobsubmit: Command, tmp_path: Path) -> None:
    boot(tmp_path, FAILING)
    fields = {"mode": "torchrun", "boot_file": "train.py", "resources": {"nodes": 2, "nproc_per_node": 2}}
    done = jobsubmit("create", engine.job(tmp_path, **fields), "--follow", code=100)
    job = handle(done.stdout)
    status = jobsubmit.json("status", job)
    failure = status["failure"]
    assert (status["state"], status["reason"]) == ("FAILED", "EXIT_CODE")
    assert (failure["node"], failure["rank"], failure["exit_code"], failure["signal"]) == (1, 3, 7, None)
    assert failure["last_lines"][-1] == "last words of rank 3"
    jobsubmit("wait", job, "--propagate-exit-code", code=7)
    lines = jobsubmit("logs", job, "--node", "0").stdout
    assert "rank 0 is here" in lines
    assert "rank 1 is here" in lines
    jobsubmit("delete", job)


SLEEPING = "import time\nprint('sleeping', flush=True)\ntime.sleep(300)\n"


def test_cancel_twice(engine: Engine, jobsubmit: Command, tmp_path: Path, pace: Pace) -> None:
    boot(tmp_path, SLEEPING)
    job = engine.job(tmp_path, mode="spawn", boot_file="train.py", resources={"nodes": 2, "nproc_per_node": 1})
    name = handle(jobsubmit("create", job, "--detach").stdout)
    wait_for_line(jobsubmit, name, "sleeping")
    began = time.time()
    jobsubmit("cancel", name)
    jobsubmit("cancel", name)
    assert time.time() - began < pace.stretched(40)
    status = jobsubmit.json("status", name)
    assert status["state"] == "CANCELLED"
    jobsubmit("wait", name, code=103)
    assert "sleeping" in jobsubmit("logs", name).stdout


COUNTING = """
import os, sys
for number in range(2000):
    print("line", number, flush=number % 100 == 0)
    if number % 500 == 0:
        print("aside", number, file=sys.stderr, flush=True)
"""


def test_logs_are_complete_and_in_order(engine: Engine, jobsubmit: Command, tmp_path: Path) -> None:
    boot(tmp_path, COUNTING)
    fields = {"mode": "torchrun", "boot_file": "train.py", "resources": {"nodes": 2, "nproc_per_node": 2}}
    done = jobsubmit("create", engine.job(tmp_path, **fields), "--follow")
    again = jobsubmit("logs", handle(done.stdout)).stdout
    for text in (done.stderr, again):
        for rank in range(4):
            said = re.findall(rf"^\[rank {rank}\] line (\d+)$", text, re.MULTILINE)
            assert [int(number) for number in said] == list(range(2000))
            assert len(re.findall(rf"^\[rank {rank}\] aside \d+$", text, re.MULTILINE)) == 4
    name = handle(done.stdout)
    only = jobsubmit("logs", name, "--rank", "2", "--stream", "stderr").stdout.splitlines()
    assert only == [f"[rank 2] aside {number}" for number in (0, 500, 1000, 1500)]
    assert len(jobsubmit("logs", name, "--tail", "5").stdout.splitlines()) == 5


RESUMING = """
import os, sys, time
rank, folder = os.environ["RANK"], os.environ["JOBSUBMIT_CHECKPOINT_DIR"]
path = os.path.join(folder, "rank-" + rank)
step = int(open(path).read()) if os.path.exists(path) else 0
print("attempt", os.environ["JOBSUBMIT_RESTART_COUNT"], "begins at step", step, flush=True)
while step < 6:
    step += 1
    time.sleep(0.2)
    print("step", step, flush=True)
    with open(path + ".new", "w") as checkpoint:
        checkpoint.write(str(step))
    os.replace(path + ".new", path)
    if rank == "1" and step == 3:
        sys.exit(9)
print("done", flush=True)
"""


def test_a_restart_goes_on_from_the_checkpoint(engine: Engine, jobsubmit: Command, tmp_path: Path) -> None:
    attempt = 1 if engine.counts_attempts else 0
    boot(tmp_path, RESUMING)
    fields: dict[str, Any] = {"mode": "torchrun", "boot_file": "train.py"}
    fields |= {"resources": {"nodes": 2, "nproc_per_node": 1}, "restarts": {"max": 2, "backoff": "1s"}}
    job = engine.job(tmp_path, **fields, checkpoint_dir=engine.checkpoints(tmp_path))
    done = jobsubmit("create", job, "--follow")
    assert "[rank 1] attempt 0 begins at step 0" in done.stderr
    assert f"[rank 1] attempt {attempt} begins at step 3" in done.stderr
    assert "[rank 1] done" in done.stderr
    later = jobsubmit("logs", handle(done.stdout)).stdout
    assert re.findall(r"^\[rank 1\] (step \d)$", later, re.MULTILINE) == [f"step {n}" for n in range(1, 7)]


def test_it_gives_up_after_the_last_restart(engine: Engine, jobsubmit: Command, tmp_path: Path) -> None:
    text = "import os, sys\nprint('try', os.environ.get('JOBSUBMIT_RESTART_COUNT', '?'), flush=True)\nsys.exit(5)\n"
    boot(tmp_path, text)
    job = engine.job(tmp_path, mode="spawn", boot_file="train.py", restarts={"max": 1, "backoff": "0s"})
    done = jobsubmit("create", job, "--follow", code=100)
    assert re.findall(r"try \S", jobsubmit("logs", handle(done.stdout)).stdout) == (
        ["try 0", "try 1"] if engine.counts_attempts else ["try ?", "try ?"]
    )
    assert jobsubmit.json("status", handle(done.stdout))["failure"]["exit_code"] == 5


@pytest.mark.parametrize("name", ["Upper_Case-and_more", slow("_"), slow("9-lives"), slow("x" * 64)])
def test_any_name_of_a_job_will_do(name: str, engine: Engine, jobsubmit: Command, tmp_path: Path) -> None:
    boot(tmp_path, "print('hello')\n")
    done = jobsubmit("create", engine.job(tmp_path, name=name, mode="spawn", boot_file="train.py"), "--follow")
    assert "[node 0] hello" in done.stderr
    assert jobsubmit.json("status", name)["state"] == "SUCCEEDED"


UNKNOWN = {
    "local": "local://nothing",
    "ssh": "ssh://gpu1/nothing",
    "slurm": "slurm://jobsubmit/999999",
    "volcano": "volcano://default/nothing",
    "modelarts": f"modelarts://-/{PROJECT}/nothing",
    "handmade": "handmade://here/nothing",
}


def test_an_unknown_handle(engine: Engine, jobsubmit: Command) -> None:
    for command in ("status", "logs", "cancel", "wait", "delete"):
        assert "error:" in jobsubmit(command, UNKNOWN[engine.kind], code=102).stderr


def test_what_is_shown_is_what_is_sent(engine: Engine, jobsubmit: Command, tmp_path: Path) -> None:
    boot(tmp_path, "print('hello')\n")
    job = engine.job(tmp_path, mode="spawn", boot_file="train.py")
    shown = jobsubmit.json("create", job, "--dry-run", "--job-id", "the-one")
    jobsubmit("create", job, "--follow", "--job-id", "the-one")
    kept = Path(jobsubmit.json("describe", "the-one")["directory"])
    assert {name: (kept / name).read_text() for name in shown["request"]} == shown["request"]
    assert shown["script"]["sha256"] == hashlib.sha256((kept / "start.sh").read_bytes()).hexdigest()
    jobsubmit("delete", "the-one")


def test_a_handle_is_used_once(engine: Engine, jobsubmit: Command, tmp_path: Path) -> None:
    boot(tmp_path, "print('hello')\n")
    job = engine.job(tmp_path, mode="spawn", boot_file="train.py")
    jobsubmit("create", job, "--follow", "--job-id", "only-once")
    other = {"JOBSUBMIT_STATE_DIR": str(tmp_path / "another-machine")} if engine.kind == "volcano" else {}
    refused = jobsubmit("create", job, "--job-id", "only-once", env=other, code=None)
    assert refused.returncode in (2, 5)
    assert "--job-id" in refused.stderr
    jobsubmit("delete", "only-once")


def test_secrets_reach_the_nodes_and_stand_nowhere(engine: Engine, jobsubmit: Command, tmp_path: Path) -> None:
    boot(tmp_path, "import hashlib, os\nprint(hashlib.sha256(os.environ['TOKEN'].encode()).hexdigest())\n")
    job = engine.job(tmp_path, mode="spawn", boot_file="train.py", secrets={"TOKEN": "env:MY_TOKEN"})
    value = "very-secret-" + hashlib.sha256(str(tmp_path).encode()).hexdigest()
    done = jobsubmit("create", job, "--follow", env={"MY_TOKEN": value})
    assert hashlib.sha256(value.encode()).hexdigest() in done.stderr
    name = handle(done.stdout)
    shown = [jobsubmit(command, name, "-o", "json").stdout for command in ("status", "describe", "events")]
    assert not [text for text in shown if value in text]
    kept = [path for path in (tmp_path / "state").rglob("*") if path.is_file() and value.encode() in path.read_bytes()]
    assert kept == []
