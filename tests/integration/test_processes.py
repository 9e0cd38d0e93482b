"""What the hook and the supervisor do to a user's processes: report them, and never change what they do."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

import pytest
from command import PATIENCE, Command, events, job_dir, job_id, processes_left
from pace import Pace


def write_job(folder: Path, boot: str, extra: str = "", mode: str = "spawn") -> Path:
    (folder / "code").mkdir(exist_ok=True)
    (folder / "code/boot.py").write_text(boot)
    (folder / "job.yaml").write_text(f"name: p\nmode: {mode}\ncode_dir: code\nboot_file: boot.py\n{extra}")
    return folder / "job.yaml"


def test_the_request_that_was_shown_is_the_one_that_was_sent(jobsubmit: Command, tmp_path: Path) -> None:
    job_file = write_job(tmp_path, "print('x')\n", "env: {A: '1'}\n")
    shown = jobsubmit.json("create", job_file, "--dry-run", "--job-id", "same")
    jobsubmit("create", job_file, "--job-id", "same", "--follow")
    for name, text in shown["request"].items():
        assert (job_dir("same") / name).read_text() == text
    assert (job_dir("same") / "start.sh").read_text() == shown["script"]["text"]
    code = {"uri": shown["code"]["uri"], "digest": shown["code"]["digest"], "git": shown["git"]}
    assert jobsubmit.json("status", "same")["code"] == code


def test_the_users_own_sitecustomize_still_runs(
    jobsubmit: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/sitecustomize.py").write_text("import builtins\nbuiltins.MINE = 'still here'\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "mine"))
    done = jobsubmit("create", write_job(tmp_path, "print(MINE)\n"), "--follow")
    assert "[node 0] still here" in done.stderr


def test_a_module_of_the_users_may_have_any_name(jobsubmit: Command, tmp_path: Path) -> None:
    job_file = write_job(tmp_path, "import agent, events, processes\nprint(agent.NAME, events.NAME, processes.NAME)\n")
    for name in ("agent", "events", "processes"):
        (tmp_path / f"code/{name}.py").write_text(f"NAME = 'my {name}'\n")
    assert "[node 0] my agent my events my processes" in jobsubmit("create", job_file, "--follow").stderr


PROCESSES = """
import multiprocessing, os, sys, time

def work(number):
    print("worker", number, "of", os.environ["NNODES"], flush=True)
    if number == int(sys.argv[1].partition("=")[2]):
        sys.exit(9)
    time.sleep(3)

if __name__ == "__main__":
    context = multiprocessing.get_context("METHOD")
    workers = [context.Process(target=work, args=(n,)) for n in range(2)]
    [w.start() for w in workers]
    [w.join() for w in workers]
    sys.exit(max(w.exitcode for w in workers))
"""


@pytest.mark.parametrize("method", ["spawn", "fork"])
def test_a_loop_over_process_has_ranks_too(method: str, jobsubmit: Command, tmp_path: Path) -> None:
    boot = PROCESSES.replace("METHOD", method)
    extra = "hyperparameters: {fail: 1}\nresources: {nodes: 2, nproc_per_node: 2}\n"
    done = jobsubmit("create", write_job(tmp_path, boot, extra), "--follow", code=100)
    assert "[rank 3] worker 1 of 2" in done.stderr
    failure = jobsubmit.json("status", job_id(done.stdout))["failure"]
    assert (failure["rank"] in (1, 3), failure["exit_code"]) == (True, 9)


HELPERS = """
import multiprocessing, os, sys

def double(x):
    return 2 * x

def helper():
    os._exit(3)

if __name__ == "__main__":
    context = multiprocessing.get_context("spawn")
    with context.Pool(2) as pool:
        print("pool says", pool.map(double, [1, 2]))
    process = context.Process(target=helper)
    process.start()
    process.join()
    print("the helper ended with", process.exitcode, "and that is fine")
"""


def test_pools_and_helpers_of_a_boot_file_are_its_own_affair(jobsubmit: Command, tmp_path: Path) -> None:
    job_file = write_job(tmp_path, HELPERS, "resources: {nproc_per_node: 2}\n")
    done = jobsubmit("create", job_file, "--follow")
    assert "[node 0] pool says [2, 4]" in done.stderr
    assert "[node 0] the helper ended with 3 and that is fine" in done.stderr


HANDLED = """
import sys
import torch.multiprocessing as mp

def work(rank):
    try:
        raise KeyError("handled")
    except KeyError:
        sys.exit(0)

if __name__ == "__main__":
    mp.spawn(work, nprocs=2)
"""


@pytest.mark.needs("torch")
def test_a_rank_that_handles_its_exception_has_not_failed(jobsubmit: Command, tmp_path: Path) -> None:
    done = jobsubmit("create", write_job(tmp_path, HANDLED, "resources: {nproc_per_node: 2}\n"), "--follow")
    assert "SUCCEEDED" in done.stderr
    assert "Traceback" not in done.stderr


CHECKPOINT = """
import multiprocessing, os, signal, sys, time

def save(number, frame):
    time.sleep(1)
    open("saved-" + str(os.getpid()), "w").write("checkpoint")
    sys.exit(0)

def work():
    signal.signal(signal.SIGTERM, save)
    print("up", flush=True)
    time.sleep(600)

if __name__ == "__main__":
    context = multiprocessing.get_context("spawn")
    workers = [context.Process(target=work) for n in range(2)]
    [w.start() for w in workers]
    [w.join() for w in workers]
"""


def wait_for(jobsubmit: Command, job: str, text: str, times: int = 1) -> None:
    deadline = time.monotonic() + PATIENCE
    while jobsubmit("logs", job).stdout.count(text) < times:
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_ranks_have_time_to_save_a_checkpoint_when_cancelled(jobsubmit: Command, tmp_path: Path) -> None:
    job_file = write_job(tmp_path, CHECKPOINT, "resources: {nproc_per_node: 2}\n")
    job = job_id(jobsubmit("create", job_file, "--detach").stdout)
    wait_for(jobsubmit, job, "up", times=2)
    jobsubmit("cancel", job)
    saved = list((job_dir(job) / "nodes/0/code").glob("saved-*"))
    assert [file.read_text() for file in saved] == ["checkpoint", "checkpoint"]


DAEMON = """
import os, sys, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        time.sleep(600)
    os._exit(0)
print("daemon left", flush=True)
"""


def test_a_daemon_that_a_job_leaves_is_ended_with_it(jobsubmit: Command, tmp_path: Path) -> None:
    done = jobsubmit("create", write_job(tmp_path, DAEMON), "--follow")
    assert "SUCCEEDED" in done.stderr
    assert processes_left(job_id(done.stdout)) == []


@pytest.mark.needs("torch")
def test_a_killed_launcher_leaves_no_rank_behind(jobsubmit: Command, tmp_path: Path) -> None:
    boot = "import time\nprint('up', flush=True)\ntime.sleep(600)\n"
    job_file = write_job(tmp_path, boot, "resources: {nodes: 2, nproc_per_node: 2}\n", mode="torchrun")
    job = job_id(jobsubmit("create", job_file, "--detach").stdout)
    wait_for(jobsubmit, job, "] up", times=4)
    launcher = next(e["pid"] for e in events(job) if e["event"] == "node_start" and e["node"] == 1)
    os.kill(launcher, signal.SIGKILL)
    jobsubmit("wait", job, code=100)
    assert processes_left(job) == []
    failure = jobsubmit.json("status", job)["failure"]
    assert (failure["node"], failure["rank"], failure["signal"]) == (1, None, 9)


@pytest.mark.needs("torch")
def test_a_command_may_restart_its_ranks(jobsubmit: Command, tmp_path: Path) -> None:
    (tmp_path / "code").mkdir()
    (tmp_path / "code/boot.py").write_text(
        "import os, sys\nattempt = os.environ['TORCHELASTIC_RESTART_COUNT']\nprint('attempt', attempt, flush=True)\n"
        "sys.exit(5 if attempt == '0' else 0)\n"
    )
    command = "[python, -m, torch.distributed.run, --nproc_per_node=1, --max_restarts=1, boot.py]"
    (tmp_path / "job.yaml").write_text(f"name: r\nmode: torchrun\ncode_dir: code\ncommand: {command}\n")
    done = jobsubmit("create", "job.yaml", "--follow")
    assert "[rank 0] attempt 0" in done.stderr
    assert "[rank 0] attempt 1" in done.stderr


@pytest.mark.parametrize("words", ["", "RANK=0 LOCAL_RANK=0 WORLD_SIZE=1 "], ids=["no rank", "a rank"])
def test_a_user_who_redirects_output_keeps_it(words: str, jobsubmit: Command, tmp_path: Path) -> None:
    (tmp_path / "code").mkdir()
    (tmp_path / "code/run.sh").write_text(f"{words}python train.py >mine.txt 2>&1\n")
    (tmp_path / "code/train.py").write_text("print('to my own file')\n")
    (tmp_path / "job.yaml").write_text("name: r\nmode: launch\ncode_dir: code\ncommand: [bash, run.sh]\n")
    done = jobsubmit("create", "job.yaml", "--follow")
    assert (job_dir(job_id(done.stdout)) / "nodes/0/code/mine.txt").read_text() == "to my own file\n"
    assert "to my own file" not in done.stderr


def test_what_a_node_found_is_the_contract_and_only_that(
    jobsubmit: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "PET_NNODES"):
        monkeypatch.setenv(name, "stray")
    boot = "import json, os\njson.dump(dict(os.environ), open('env.json', 'w'))\n"
    done = jobsubmit("create", write_job(tmp_path, boot, "resources: {nodes: 2}\n"), "--follow")
    job = job_id(done.stdout)
    found = [json.loads((job_dir(job) / f"nodes/{node}/code/env.json").read_text()) for node in (0, 1)]
    assert "stray" not in {value for environment in found for value in environment.values()}
    for node, environment in enumerate(found):
        assert environment["NODE_RANK"] == environment["VC_TASK_INDEX"] == str(node)
        assert environment["MASTER_ADDR"] == environment["VC_WORKER_HOSTS"].split(",")[0]
        assert environment["NODE_ADDR"] == environment["MA_CURRENT_IP"]
        assert environment["MA_JOB_DIR"] == str(job_dir(job) / f"nodes/{node}")
    assert found[0]["MASTER_PORT"] == found[1]["MASTER_PORT"]


@pytest.mark.parametrize(
    ("starts", "resources"), [(1, "{nodes: 2, nproc_per_node: 2}"), (2, "{nodes: 2}")], ids=["fewer", "more"]
)
def test_ranks_are_counted_by_what_is_started(starts: int, resources: str, jobsubmit: Command, tmp_path: Path) -> None:
    """A boot file may start one process on each node, or several, whatever the job file says."""
    boot = (
        "import torch.multiprocessing as mp\n\ndef work(i):\n    print('works')\n\n"
        f"if __name__ == '__main__':\n    mp.spawn(work, nprocs={starts})\n"
    )
    done = jobsubmit("create", write_job(tmp_path, boot, f"resources: {resources}\n"), "--follow")
    for rank in range(2 * starts):
        assert f"[rank {rank}] works" in done.stderr


LATE_STORES = """
import os, pathlib, socket, sys, time
from datetime import timedelta
import torch.distributed as dist

here = pathlib.Path(sys.argv[1].partition("=")[2])
is_server = os.environ["NODE_RANK"] == "0"

def told(name):
    while not (here / name).is_file() or not (here / name).read_text():
        time.sleep(0.01)
    return (here / name).read_text()

for number in range(3):
    if is_server:
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        (here / f"port{number}").write_text(str(port))
        told(f"ready{number}")
        time.sleep(1.2)
    else:
        port = int(told(f"port{number}"))
        (here / f"ready{number}").write_text("yes")
    store = dist.TCPStore("127.0.0.1", port, 2, is_server, timedelta(seconds=60), wait_for_workers=False)
    (here / f"{'served' if is_server else 'connected'}{number}").write_text(str(time.time()))
    told(f"connected{number}")
"""


@pytest.mark.needs("torch")
def test_a_store_that_listens_late_is_found_at_once(jobsubmit: Command, tmp_path: Path, pace: Pace) -> None:
    """Torch itself would sleep between its tries, longer each time."""
    told = tmp_path / "told"
    told.mkdir()
    extra = f"resources: {{nodes: 2, nproc_per_node: 1}}\nhyperparameters: {{here: {told}}}\n"
    jobsubmit("create", write_job(tmp_path, LATE_STORES, extra), "--follow", "--no-check")
    lost = [
        float((told / f"connected{number}").read_text()) - float((told / f"served{number}").read_text())
        for number in range(3)
    ]
    assert sum(lost) < pace.stretched(0.4)
