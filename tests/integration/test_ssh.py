"""What is SSH's own: hosts that are lost, the queue, what is found before the start, what is left on a host."""

from __future__ import annotations

import os
import random
import re
import shutil
import signal
import stat
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from bucket import Bucket
from command import PATIENCE, Command, handle, processes_left, processes_of, wait_for_line, wait_until
from engine import Engine
from pace import Pace
from ssh_chaos import TARGETS, strike_all
from ssh_hosts import USER, Hosts

from jobsubmit.agent.data import bucket as bucket_module
from jobsubmit.common.store_address import StoreAddress
from jobsubmit.stores.bucket_access import find_bucket_access

pytestmark = pytest.mark.needs("ssh")

COUNTING = """
import os, sys, time
node, steps = os.environ["NODE_RANK"], int(sys.argv[1])
folder = os.environ.get("JOBSUBMIT_CHECKPOINT_DIR")
path = folder and os.path.join(folder, "node-" + node)
step = int(open(path).read()) if path and os.path.exists(path) else 0
print("on", os.uname().nodename, "from step", step, flush=True)
while step < steps:
    step += 1
    print("step", step, flush=True)
    if path:
        with open(path + ".new", "w") as file:
            file.write(str(step))
        os.replace(path + ".new", path)
    time.sleep(0.2)
"""


@pytest.fixture
def job(on_ssh: Engine, tmp_path: Path) -> Callable[..., Path]:
    """Return what writes the file of a job that counts steps on each of its hosts."""

    def write(steps: int = 5, text: str = COUNTING, nodes: int = 2, **fields: Any) -> Path:
        (tmp_path / "code").mkdir(exist_ok=True)
        (tmp_path / "code/train.py").write_text(text)
        backend = {**on_ssh.fields["backend"], **fields.pop("backend", {})}
        everything = {"mode": "torchrun", "command": f"python train.py {steps}", "resources": {"nodes": nodes}}
        return on_ssh.job(tmp_path, **{**everything, **fields, "backend": backend})

    return write


@pytest.fixture(autouse=True)
def hosts_as_before(hosts: Hosts) -> Iterator[None]:
    """Begin with empty homes; plug what a test has unplugged, and start what it has powered off."""
    for number in (1, 2, 3):
        remove(hosts.home(number))
        hosts.home(number).mkdir()
    yield
    for number in (1, 2, 3):
        if number not in hosts.processes:
            hosts.start(number)
        hosts.plug(number)
        hosts.firewall(number, "")


def remove(folder: Path) -> None:
    """Remove a folder in which a program that answered a client may still load modules, and so write compiled ones."""
    deadline = time.monotonic() + 5
    while folder.exists():
        shutil.rmtree(folder, ignore_errors=time.monotonic() < deadline)


def ended_at(jobsubmit: Command, name: str) -> float:
    """Return when a job ended, as its hosts say."""
    return float(jobsubmit.json("status", name)["details"]["ended"])


def test_a_job_needs_no_client(jobsubmit: Command, job: Callable[..., Path], hosts: Hosts, tmp_path: Path) -> None:
    name = handle(jobsubmit("create", job(15), "--detach").stdout)
    hosts.break_connections()
    elsewhere = {"JOBSUBMIT_STATE_DIR": str(tmp_path / "another-machine")}
    assert jobsubmit("wait", name, env=elsewhere).returncode == 0
    lines = jobsubmit("logs", name, env=elsewhere).stdout
    for node in (0, 1):
        assert re.findall(rf"^\[node {node}\] step (\d+)$", lines, re.MULTILINE) == [str(n) for n in range(1, 16)]
    assert "[node 1] on gpu2 from step 0" in lines


def test_a_host_that_is_unplugged_is_named(
    jobsubmit: Command, job: Callable[..., Path], hosts: Hosts, pace: Pace
) -> None:
    name = handle(jobsubmit("create", job(1000), "--detach").stdout)
    wait_for_line(jobsubmit, name, "[node 1] step 3")
    hosts.unplug(2)
    unplugged = time.time()
    status = wait_until(jobsubmit, name, ("FAILED",))
    assert status["reason"] == "NODE_FAILED"
    assert "node 1 was lost: gpu2" in status["message"]
    assert ended_at(jobsubmit, name) - unplugged < pace.stretched(15)
    assert processes_left(name.rpartition("/")[2], unplugged + pace.stretched(16) - time.time()) == []


def test_without_host_0_the_others_end(jobsubmit: Command, job: Callable[..., Path], hosts: Hosts, pace: Pace) -> None:
    name = handle(jobsubmit("create", job(1000), "--detach").stdout)
    wait_for_line(jobsubmit, name, "[node 1] step 3")
    hosts.power_off(1)
    gone = time.time()
    status = wait_until(jobsubmit, name, ("FAILED",))
    assert (status["reason"], "gpu1" in status["message"]) == ("NODE_FAILED", True)
    assert ended_at(jobsubmit, name) - gone < pace.stretched(15)
    assert processes_left(name.rpartition("/")[2], pace.stretched(1)) == []
    assert "[node 1] step 3" in jobsubmit("logs", name).stdout


def test_a_host_0_that_was_cut_off_does_not_blame_the_others(
    jobsubmit: Command, job: Callable[..., Path], hosts: Hosts
) -> None:
    name = handle(jobsubmit("create", job(1000), "--detach").stdout)
    wait_for_line(jobsubmit, name, "[node 1] step 3")
    hosts.unplug(1)
    time.sleep(14)  # nobody asks meanwhile; both sides have given up then
    hosts.plug(1)
    status = wait_until(jobsubmit, name, ("FAILED",))
    assert status["reason"] == "NODE_FAILED"
    assert status["message"].startswith("node 0 was lost: gpu1 lost its network: its interface eth0 has no connection")
    assert processes_left(name.rpartition("/")[2], 3) == []


def test_a_spare_host_takes_the_place_of_a_lost_one(
    jobsubmit: Command, job: Callable[..., Path], hosts: Hosts, tmp_path: Path
) -> None:
    backend = {"hosts": ["gpu1", "gpu2", "gpu3"], "spares": 1}
    more = {"restarts": {"max": 1, "backoff": "0s"}, "checkpoint_dir": str(tmp_path / "shared")}
    name = handle(jobsubmit("create", job(60, backend=backend, **more), "--detach").stdout)
    wait_for_line(jobsubmit, name, "[node 1] step 5")
    hosts.unplug(2)
    status = wait_until(jobsubmit, name, ("SUCCEEDED", "FAILED"))
    assert status["state"] == "SUCCEEDED", status
    lines = jobsubmit("logs", name).stdout
    resumed = re.search(r"^\[node 1\] on gpu3 from step (\d+)$", lines, re.MULTILINE)
    assert resumed
    assert int(resumed[1]) >= 5
    assert [recovery["what"] for recovery in status["recoveries"]] == ["restart 1 after NODE_FAILED"]
    assert any("gpu3 runs node 1" in note for note in status["details"]["notes"])


def test_a_host_that_is_lost_while_a_restart_waits_ends_the_job(
    jobsubmit: Command, job: Callable[..., Path], hosts: Hosts
) -> None:
    text = "import os, sys, time\ntime.sleep(1)\nsys.exit(3 * (os.environ['NODE_RANK'] == '1'))\n"
    name = handle(jobsubmit("create", job(1, text, restarts={"max": 2, "backoff": "30s"}), "--detach").stdout)
    wait_until(jobsubmit, name, ("RECOVERING",))
    hosts.power_off(2)
    status = wait_until(jobsubmit, name, ("FAILED", "LOST"))
    assert (status["state"], status["reason"]) == ("FAILED", "NODE_FAILED")
    assert "no spare host is left" in status["message"]


@pytest.mark.parametrize("is_shared", [True, False])
def test_a_folder_of_checkpoints_that_the_hosts_do_not_share_is_said_so(
    is_shared: bool, jobsubmit: Command, job: Callable[..., Path], tmp_path: Path, hosts: Hosts
) -> None:
    folder = tmp_path / "kept" if is_shared else Path("/home/kept")
    done = jobsubmit.json("create", job(2, checkpoint_dir=str(folder)), "--follow")
    notes = jobsubmit.json("status", done["id"])["details"]["notes"]
    assert any(f"gpu1 and gpu2 do not share the folder {folder}" in note for note in notes) != is_shared
    assert not list((tmp_path / "kept").glob(".jobsubmit-*"))


def test_a_second_job_waits_and_says_for_whom(jobsubmit: Command, job: Callable[..., Path], hosts: Hosts) -> None:
    first = handle(jobsubmit("create", job(1000), "--detach", "--job-id", "the-first").stdout)
    wait_for_line(jobsubmit, first, "step 2")
    backend = {"hosts": ["gpu3", "gpu2"]}
    second = handle(jobsubmit("create", job(3, backend=backend), "--detach", "--job-id", "the-second").stdout)
    third = handle(jobsubmit("create", job(3, backend=backend), "--detach", "--job-id", "the-third").stdout)
    deadline = time.time() + PATIENCE
    while "the-first" not in (status := jobsubmit.json("status", second))["message"]:
        assert time.time() < deadline, status
        time.sleep(0.2)
    assert status["state"] == "PENDING"
    assert "waiting for gpu2" in status["message"]
    jobsubmit("cancel", first)
    for name in (second, third):
        assert wait_until(jobsubmit, name, ("SUCCEEDED", "FAILED"))["state"] == "SUCCEEDED"
    began = [jobsubmit.json("status", name)["steps"] for name in (second, third)]
    queued = [next(step["end"] for step in steps if step["name"] == "queue") for steps in began]
    assert ended_at(jobsubmit, second) <= queued[1]
    assert queued[0] <= queued[1]


def test_a_dead_job_does_not_keep_a_host(jobsubmit: Command, job: Callable[..., Path], hosts: Hosts) -> None:
    name = handle(jobsubmit("create", job(1000, nodes=1), "--detach", "--job-id", "dies").stdout)
    wait_for_line(jobsubmit, name, "step 2")
    for pid in processes_of("dies"):
        os.kill(pid, signal.SIGKILL)
    agents = [pid for pid in hosts.processes_of(1) if b"python3" in Path(f"/proc/{pid}/cmdline").read_bytes()]
    for pid in agents:
        os.kill(pid, signal.SIGKILL)
    status = wait_until(jobsubmit, name, ("LOST", "FAILED"))
    assert (status["state"], status["reason"]) == ("LOST", "AGENT_DIED")
    after = jobsubmit.json("create", job(2, nodes=1), "--follow")
    assert after["state"] == "SUCCEEDED"
    notes = jobsubmit.json("status", after["id"])["details"]["notes"]
    assert any("the agent of job dies on gpu1 died" in note for note in notes)


STUCK = """
import os, time
import torch, torch.distributed as dist
dist.init_process_group("gloo")
def wait_for_nothing():
    time.sleep(1000)
print("step 1", flush=True)
if dist.get_rank() == 2:
    wait_for_nothing()
dist.all_reduce(torch.ones(1))
"""


@pytest.mark.needs("torch")
def test_a_hang_is_noticed_and_the_page_has_the_stacks_of_all_hosts(
    jobsubmit: Command, job: Callable[..., Path], tmp_path: Path
) -> None:
    where = "--nnodes 2 --nproc_per_node 2 --node_rank $NODE_RANK --master_addr $MASTER_ADDR --master_port $MASTER_PORT"
    fields = {"command": ["bash", "-c", f"torchrun {where} train.py"], "hang_after": "15s"}
    done = jobsubmit("create", job(text=STUCK, **fields), "--job-id", "hanging", "--follow", code=100)
    assert "FAILED (HANG)" in done.stderr
    jobsubmit("report", "hanging", "--html", tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    stacks = {rank: page.partition(f"stacks of rank {rank}")[2].partition("stacks of rank")[0] for rank in range(4)}
    assert {rank for rank, text in stacks.items() if "in wait_for_nothing" in text} == {2}
    assert all("in all_reduce" in stacks[rank] for rank in (0, 1, 3))


def test_an_ordinary_user_behind_another_host(jobsubmit: Command, job: Callable[..., Path], hosts: Hosts) -> None:
    backend = {"hosts": [f"{USER}@far1", f"{USER}@far2"], "python": "/usr/bin/python3"}
    name = handle(jobsubmit("create", job(3, backend=backend), "--detach").stdout)
    assert wait_until(jobsubmit, name, ("SUCCEEDED", "FAILED"))["state"] == "SUCCEEDED"
    lines = jobsubmit("logs", name).stdout
    assert "[node 0] on gpu1 from step 0" in lines
    assert "[node 1] step 3" in lines
    assert hosts.ssh(1, f"ls -A /home/{USER}").stdout.split() == [".jobsubmit"]
    assert hosts.ssh(1, f"stat -c %U /home/{USER}/.jobsubmit").stdout.strip() == USER
    jobsubmit("delete", name)


def test_what_a_login_shell_prints_is_not_an_answer(jobsubmit: Command, job: Callable[..., Path], hosts: Hosts) -> None:
    (hosts.home(1) / ".bashrc").write_text("echo welcome to gpu1\nprintf 'no end of line'\n")
    assert "[node 0] step 2" in jobsubmit("create", job(2, nodes=1), "--follow").stderr


def test_no_clean_start_is_refused(jobsubmit: Command, job: Callable[..., Path]) -> None:
    for _ in range(10):
        (line,) = (line for line in jobsubmit.json("doctor", job()) if line["subject"] == "backend")
        assert line["verdict"] == "ok"


def files_of(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if not path.is_dir()}


def test_the_code_goes_to_a_host_once_and_only_the_cache_is_left(
    jobsubmit: Command, job: Callable[..., Path], hosts: Hosts
) -> None:
    jobsubmit("create", job(1), "--follow", "--job-id", "one")
    (archive,) = hosts.home(2).glob(".jobsubmit/cache/code/*/archive")
    before = archive.stat()
    jobsubmit("create", job(1), "--follow", "--job-id", "two")
    assert (archive.stat().st_ino, len(list(archive.parents[1].iterdir()))) == (before.st_ino, 1)
    assert (hosts.home(2) / ".jobsubmit/jobs/one").is_dir()
    jobsubmit("delete", "one", "two")
    for number in (1, 2):
        left = files_of(hosts.home(number))
        assert left
        assert all(name.startswith(".jobsubmit/cache/") for name in left), left
    jobsubmit("prune", "--hosts", "gpu1,gpu2")
    assert files_of(hosts.home(1)) == files_of(hosts.home(2)) == set()


def test_a_damaged_copy_is_not_used_twice(jobsubmit: Command, job: Callable[..., Path], hosts: Hosts) -> None:
    file = job(1, nodes=1)
    jobsubmit("create", file, "--follow")
    for archive in hosts.home(1).glob(".jobsubmit/cache/code/*/archive"):
        archive.write_bytes(b"x" * archive.stat().st_size)
    status = jobsubmit.json("create", file, "--follow", code=100)
    assert status["reason"] == "FETCH_FAILED"
    assert jobsubmit.json("create", file, "--follow")["state"] == "SUCCEEDED"


def test_a_folder_of_somebody_else_is_not_used(
    job: Callable[..., Path], hosts: Hosts, refused: Callable[..., None]
) -> None:
    assert hosts.ssh(1, f"mkdir -p /home/scratch/cache/agents && chown {USER} /home/scratch").returncode == 0
    refused(job(nodes=1, backend={"workdir": "/home/scratch"}), "/home/scratch belongs to somebody else")


def test_another_work_folder(jobsubmit: Command, job: Callable[..., Path], hosts: Hosts, tmp_path: Path) -> None:
    work = tmp_path / "work"
    backend = {"workdir": str(work)}
    name = handle(jobsubmit("create", job(2, nodes=1, backend=backend), "--follow", "--job-id", "w").stdout)
    assert (work / "jobs/w/0").is_dir()
    elsewhere = {"JOBSUBMIT_STATE_DIR": str(tmp_path / "another-machine")}
    assert "[node 0] step 2" in jobsubmit("logs", name, env=elsewhere).stdout
    jobsubmit("delete", name)
    assert {path.parts[0] for path in map(Path, files_of(work))} == {"cache"}


def test_secrets_stand_nowhere_on_a_host(jobsubmit: Command, job: Callable[..., Path], hosts: Hosts) -> None:
    text = "import os\nprint('it has', len(os.environ['TOKEN']), 'characters')\n"
    value = "a-very-secret-value"
    file = job(1, text=text, secrets={"TOKEN": "env:MINE"})
    done = jobsubmit("create", file, "--follow", env={"MINE": value})
    assert f"[node 1] it has {len(value)} characters" in done.stderr
    for number in (1, 2):
        kept = [path for path in hosts.home(number).rglob("*") if path.is_file()]
        assert kept
        assert not [path for path in kept if value.encode() in path.read_bytes()]
        assert not [path for path in kept if stat.S_IMODE(path.lstat().st_mode) & 0o077 and "cache" not in path.parts]


@pytest.mark.parametrize("tail", [(), ("--tail", "1")])
def test_a_line_is_followed_once_although_connections_break(
    tail: tuple[str, ...], jobsubmit: Command, job: Callable[..., Path], hosts: Hosts
) -> None:
    name = handle(jobsubmit("create", job(40), "--detach").stdout)
    follower = jobsubmit.start("logs", "-f", name, *tail)
    for _ in range(3):
        time.sleep(1.5)
        hosts.break_connections()
    output, _ = follower.communicate(timeout=PATIENCE)
    for node in (0, 1):
        steps = [int(step) for step in re.findall(rf"^\[node {node}\] step (\d+)$", output, re.MULTILINE)]
        assert steps == list(range(steps[0] if tail else 1, 41))


# ── before the start ────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def refused(jobsubmit: Command, pace: Pace) -> Callable[..., None]:
    """Submit a job that is refused before it starts; it is quick, and says all of these.

    The hosts are asked for 5 s at most; what the command takes besides is what `validate` takes just before.
    """

    def submit(file: Path, *expected: str) -> None:
        started = time.monotonic()
        jobsubmit("validate", file)
        began = time.monotonic()
        done = jobsubmit("create", file, "--follow", code=5)
        assert time.monotonic() - began < pace.stretched(5) + 2 * (began - started)
        for text in expected:
            assert text in done.stderr
        assert "hint:" in done.stderr

    return submit


def test_a_firewall_is_named(job: Callable[..., Path], hosts: Hosts, refused: Callable[..., None]) -> None:
    hosts.firewall(1, "20000-29999")
    refused(job(), "gpu2 does not reach gpu1 at", "(eth0)", "open the ports 20000 to 29999")


@pytest.mark.parametrize("variable", ["NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME"])
def test_a_wrong_interface_is_named(
    variable: str, job: Callable[..., Path], hosts: Hosts, refused: Callable[..., None]
) -> None:
    for number in (1, 2):
        hosts.inside(number, "ip", "link", "add", "docker0", "type", "bridge")
        hosts.inside(number, "ip", "addr", "add", "172.17.0.1/16", "dev", "docker0")
        hosts.inside(number, "ip", "link", "set", "docker0", "up")
    try:
        said = f"{variable}=docker0 does not lead from gpu2 to gpu1"
        refused(job(env={variable: "docker0"}), said, "172.17.0.1", "eth0")
        refused(job(backend={"interface": "docker0"}), "gpu2", "172.17.0.1")
        refused(job(backend={"interface": "eth7"}), "it has no interface eth7", "eth0")
    finally:
        for number in (1, 2):
            hosts.inside(number, "ip", "link", "del", "docker0")


NVIDIA_SMI = """#!/bin/sh
case "$1" in
*compute-apps*) echo "GPU-1, $$, python";;
*) echo "GPU-1, 0";;
esac
"""


def test_a_busy_gpu_is_named(
    jobsubmit: Command, job: Callable[..., Path], hosts: Hosts, refused: Callable[..., None]
) -> None:
    program = Path("/usr/local/bin/nvidia-smi")
    assert not program.exists()
    program.write_text(NVIDIA_SMI)
    program.chmod(0o755)
    try:
        refused(job(), "gpu1: GPU 0 is used by process", "python, ", "share_gpus")
        done = jobsubmit("create", job(1, backend={"share_gpus": True}), "--follow")
        assert "[node 1] step 1" in done.stderr
    finally:
        program.unlink()


def test_a_full_disk_is_named(
    job: Callable[..., Path], hosts: Hosts, tmp_path: Path, refused: Callable[..., None]
) -> None:
    small = tmp_path / "small"
    small.mkdir()
    assert hosts.ssh(2, f"mount -t tmpfs -o size=20m,mode=700 tmpfs {small}").returncode == 0
    try:
        refused(job(backend={"workdir": str(small)}), f"gpu2: the disk of {small} has only", "MiB left")
    finally:
        hosts.ssh(2, f"umount {small}")


def test_different_versions_are_named(job: Callable[..., Path], hosts: Hosts, refused: Callable[..., None]) -> None:
    for number, version in ((1, "2.9.1"), (2, "2.8.0")):
        env = hosts.home(number) / "env"
        site = env / "lib/python3.11/site-packages"
        (site / f"torch-{version}.dist-info").mkdir(parents=True)
        (env / "bin").mkdir()
        (env / "bin/python").symlink_to("/usr/bin/python3")
    refused(job(backend={"python": "~/env"}), "the versions of torch differ: gpu1: 2.9.1, gpu2: 2.8.0")


def test_hosts_that_cannot_be_reached_are_named(
    job: Callable[..., Path], hosts: Hosts, refused: Callable[..., None]
) -> None:
    refused(job(backend={"hosts": ["gpu1", "nowhere.invalid"]}), "nowhere.invalid cannot be reached")
    known = hosts.folder / "known_hosts"
    text = known.read_text()
    known.write_text("")
    hosts.break_connections()
    try:
        refused(job(nodes=1), "Host key verification failed", "ssh gpu1")
    finally:
        known.write_text(text)
    key = (hosts.folder / "client").rename(hosts.folder / "away")
    hosts.break_connections()
    try:
        refused(job(nodes=1), "Permission denied", "ssh-copy-id gpu1")
    finally:
        key.rename(hosts.folder / "client")


def test_hosts_and_nodes_must_fit(jobsubmit: Command, job: Callable[..., Path]) -> None:
    file = job(nodes=1, backend={"hosts": ["gpu1", "gpu2"]})
    assert "set it to 2" in jobsubmit("create", file, code=3).stderr
    assert "twice" in jobsubmit("create", job(backend={"hosts": ["gpu1", "gpu1"]}), code=2).stderr


def test_one_machine_under_two_names_is_noticed(
    job: Callable[..., Path], hosts: Hosts, refused: Callable[..., None]
) -> None:
    refused(job(backend={"hosts": ["gpu1", f"root@{hosts.address(1)}"]}), "are the same machine")


def test_a_job_that_could_not_be_started_leaves_nothing(
    jobsubmit: Command, job: Callable[..., Path], hosts: Hosts
) -> None:
    folder = hosts.home(2) / ".jobsubmit/jobs/blocked/1"
    folder.mkdir(parents=True)
    done = jobsubmit("create", job(), "--job-id", "blocked", code=5)
    assert "gpu2: job blocked already exists on this host" in done.stderr
    assert not (hosts.home(1) / ".jobsubmit/jobs/blocked").exists()
    assert processes_left("blocked") == []
    folder.rmdir()
    folder.parent.rmdir()


def test_whatever_is_killed_nothing_is_left_and_no_state_is_wrong(hosts: Hosts, tmp_path: Path) -> None:
    seed = random.randrange(1 << 30)
    print("seed", seed)
    ended = strike_all(hosts, tmp_path, len(TARGETS), seed)
    assert ended.total() == len(TARGETS)


# ── data in buckets ─────────────────────────────────────────────────────────────────────────────────────────────────

COPYING = """
import os, sys, time
node, folder = os.environ["NODE_RANK"], os.environ["JOBSUBMIT_CHECKPOINT_DIR"]
data, out = os.environ["DATA"], os.environ["OUT"]
print("read", open(os.path.join(data, "deep/x.txt")).read(), flush=True)
print("has", sorted(os.listdir(folder)), flush=True)
is_first = not os.listdir(folder)
with open(os.path.join(out, "result-" + node), "w") as file:
    file.write("of node " + node)
with open(os.path.join(folder, "shard-" + node), "w") as file:
    file.write("x" * int(sys.argv[1]) + node)
time.sleep(1)
if is_first and node == "1":
    sys.exit(3)
"""


def with_data(bucket: Bucket) -> dict[str, Any]:
    """Return the fields of a job whose data is in a bucket."""
    bucket.client.put_object(Bucket=bucket.name, Key="data/deep/x.txt", Body=b"seven")
    at = f"s3://{bucket.name}"
    return {
        "store": {"uri": f"{at}/jobs", "endpoint_url": bucket.server.endpoint},
        "inputs": [{"name": "DATA", "uri": f"{at}/data", "as": "env"}],
        "outputs": [{"name": "OUT", "uri": f"{at}/out", "as": "env"}],
        "checkpoint_dir": f"{at}/kept",
    }


def test_data_goes_from_and_to_a_bucket_and_every_node_resumes(
    jobsubmit: Command, job: Callable[..., Path], hosts: Hosts, hosts_bucket: Bucket
) -> None:
    size = 1000
    fields = {**with_data(hosts_bucket), "restarts": {"max": 1, "backoff": "0s"}}
    done = jobsubmit("create", job(size, COPYING, **fields), "--follow", "--job-id", "first")
    for node in (0, 1):
        assert f"[node {node}] read seven" in done.stderr
        assert f"[node {node}] has []" in done.stderr
        assert f"[node {node}] has ['shard-0', 'shard-1']" in done.stderr  # in the second attempt
    sent = {**hosts_bucket.objects("out/"), **hosts_bucket.objects("kept/")}
    for node in (0, 1):
        assert sent[f"out/result-{node}"] == f"of node {node}".encode()
        assert sent[f"kept/first/shard-{node}"] == b"x" * size + str(node).encode()
    assert len([path for path in hosts.home(1).glob(".jobsubmit/cache/inputs/*") if path.is_dir()]) == 1
    again = jobsubmit("rerun", "first", "--resume", "--follow", "--job-id", "second")
    assert "[node 1] has ['shard-0', 'shard-1']" in again.stderr
    kept = [path for path in hosts.home(1).rglob("*") if path.is_file() and path.stat().st_size < 1 << 20]
    assert not [path for path in kept if hosts_bucket.server.secret.encode() in path.read_bytes()]


def test_a_large_file_goes_in_parts(hosts_bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bucket_module, "_LARGE", 6 << 20)
    monkeypatch.setattr(bucket_module, "_PART", 5 << 20)
    server = hosts_bucket.server
    file = tmp_path / "large"
    file.write_bytes(random.Random(1).randbytes(12 << 20))
    access = find_bucket_access(StoreAddress(endpoint_url=server.endpoint), [f"s3://{hosts_bucket.name}/any"])
    own = bucket_module.Bucket(hosts_bucket.name, access)
    own.write("a b/ü+large", str(file))
    assert hosts_bucket.objects()["a b/ü+large"] == file.read_bytes()
    ((key, size, tag),) = own.list("a b/")
    assert (key, size, tag.endswith("-3")) == ("a b/ü+large", 12 << 20, True)
    own.remove("a b/ü+large")
    assert own.read("a b/ü+large") is None
    for number in range(1003):  # more than one page
        hosts_bucket.client.put_object(Bucket=hosts_bucket.name, Key=f"many/{number:04}", Body=b"")
    assert [key for key, _, _ in own.list("many/")] == [f"many/{number:04}" for number in range(1003)]


def test_an_input_that_is_not_there_is_named(
    jobsubmit: Command, job: Callable[..., Path], hosts_bucket: Bucket
) -> None:
    fields = with_data(hosts_bucket)
    fields["inputs"][0]["uri"] += "-missing"
    status = jobsubmit.json("create", job(1, COPYING, **fields), "--follow", code=100)
    assert status["reason"] == "INPUTS_FAILED"
    assert "data-missing: there is nothing to download" in "\n".join(status["failure"]["last_lines"])
