"""Failures provoked on purpose: each gets what it means, and what to do, in the report."""

from __future__ import annotations

import json
import textwrap
from pathlib import Path

import pytest
from command import Command
from tiers import slow

HEAD = """
import argparse, datetime, os, signal, sys, time
import torch, torch.distributed as dist, torch.nn as nn
import torch.multiprocessing as mp
from torch.nn.parallel import DistributedDataParallel as DDP
"""
JOINED = 'dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=3)); rank = dist.get_rank()\n'
# A process that goes its own way to the others.
MEETING = (
    "dist.init_process_group('gloo', init_method=f'tcp://127.0.0.1:{port}', world_size={world}, rank={rank}, "
    "timeout=datetime.timedelta(seconds=3))"
)

# Mode, boot file, what the report says.
FAILURES = {
    "a launcher's script in spawn mode": ("spawn", 'dist.init_process_group("gloo")', "which only a launcher sets"),
    "NCCL without a GPU": ("torchrun", 'dist.init_process_group("nccl")', "needs a GPU"),
    "nothing is injected under a launcher": (
        "torchrun",
        'p = argparse.ArgumentParser(); p.add_argument("--world_size", required=True); p.parse_args()',
        "requires --world_size",
    ),
    "an argument that is not declared": ("launch", "argparse.ArgumentParser().parse_args()", "arguments --lr=0.1"),
    "no __main__ guard": ("spawn", "mp.spawn(print, nprocs=2)", "as soon as it is imported"),
    "a module that is not there": ("torchrun", "import no_such_module_here", "no_such_module_here"),
    "a port that is taken": (
        "torchrun",
        "import socket; a = socket.create_server(('127.0.0.1', 0)); "
        "socket.create_server(('127.0.0.1', a.getsockname()[1]))",
        "port",
    ),
    "parameters that take no part": (
        "torchrun",
        JOINED + "class M(nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__(); self.a = nn.Linear(2, 2); self.b = nn.Linear(2, 2)\n"
        "    def forward(self, x): return self.a(x)\n"
        "d = DDP(M())\n"
        "for _ in range(3): d(torch.ones(1, 2)).sum().backward()",
        "not used to compute the loss",
    ),
    "another model on each rank": ("torchrun", JOINED + "DDP(nn.Linear(2, 2 + rank))", "different models"),
    "tensors of different sizes": (
        "torchrun",
        JOINED + "for _ in range(20): dist.all_reduce(torch.ones(1000 * (1 + rank)))",
        "different sizes",
    ),
    "a collective that one rank skips": (
        "torchrun",
        JOINED + "time.sleep(30) if rank else dist.all_reduce(torch.ones(10))",
        "that never answered",
    ),
    "an HTTP server where the first node should be": (
        "torchrun",
        "import socket, threading\n"
        "server = socket.create_server(('127.0.0.1', 0))\n"
        "def answer():\n"
        "    while True:\n"
        "        line = server.accept()[0]\n"
        "        line.recv(1024)\n"
        "        line.sendall(b'HTTP/1.1 400 Bad Request\\r\\n\\r\\n')\n"
        "threading.Thread(target=answer, daemon=True).start()\n"
        + MEETING.format(port="{server.getsockname()[1]}", world=2, rank=1),
        "an HTTP server answered",
    ),
    "a process too few": (
        "torchrun",
        "if os.environ['LOCAL_RANK'] != '0': time.sleep(60)\n" + MEETING.format(port=29876, world=3, rank=0),
        "only 1 of 3 processes joined",
    ),
    "a rank that never comes": (
        "torchrun",
        "os.environ['WORLD_SIZE'] = str(int(os.environ['WORLD_SIZE']) + 1); " + JOINED,
        "never joined the process group",
    ),
    "nobody has rank 0": (
        "torchrun",
        MEETING.format(port=29877, world=2, rank=1),
        "no connection to rank 0 at 127.0.0.1, port 29877",
    ),
    "a name that cannot be resolved": (
        "torchrun",
        "dist.init_process_group('gloo', init_method='tcp://no-such-host.invalid:29878', world_size=2, rank=1, "
        "timeout=datetime.timedelta(seconds=3))",
        "a host name cannot be resolved",
    ),
    "a kill": ("torchrun", "os.kill(os.getpid(), signal.SIGKILL)", "killed from outside"),
}


# What is printed decides, and changes with torch only: the diagnosis of each text is a unit test.
CHOSEN = ("a launcher's script in spawn mode", "no __main__ guard", "parameters that take no part")


@pytest.mark.needs("torch")
@pytest.mark.parametrize("name", [name if name in CHOSEN else slow(name) for name in FAILURES])
def test_a_failure_is_explained(name: str, jobsubmit: Command, tmp_path: Path) -> None:
    mode, code, meaning = FAILURES[name]
    (tmp_path / "code").mkdir()
    (tmp_path / "code/boot.py").write_text(HEAD + textwrap.dedent(code) + "\n")
    (tmp_path / "job.yaml").write_text(
        f"name: failing\nmode: {mode}\ncode_dir: code\nboot_file: boot.py\nhyperparameters: {{lr: 0.1}}\n"
        "resources: {nodes: 1, nproc_per_node: 2}\n"
    )
    done = jobsubmit("create", "job.yaml", "--follow", "--no-check", code=100)
    assert meaning in done.stderr.partition("meaning: ")[2], done.stderr
    assert "hint: " in done.stderr.partition("meaning: ")[2]
    failure = jobsubmit.json("status", "failing")["failure"]
    assert meaning in failure["meaning"]


def write_job(folder: Path, boot: str, fields: str) -> None:
    (folder / "code").mkdir()
    (folder / "code/boot.py").write_text(HEAD + boot)
    (folder / "job.yaml").write_text(f"name: failing\ncode_dir: code\n{fields}\n")


@pytest.mark.needs("torch")
def test_a_launcher_that_passes_local_rank(jobsubmit: Command, tmp_path: Path) -> None:
    launcher = "[python, -m, torch.distributed.launch, --nproc_per_node=1, boot.py]"
    write_job(tmp_path, "argparse.ArgumentParser().parse_args()\n", f"mode: launch\ncommand: {launcher}")
    refused = jobsubmit("create", "job.yaml", code=3)
    assert "the parser does not accept --local-rank, which torch.distributed.launch adds" in refused.stderr
    done = jobsubmit("create", "job.yaml", "--follow", "--no-check", code=100)
    assert "does not accept --local-rank" in done.stderr


@pytest.mark.needs("torch")
def test_processes_that_never_met(jobsubmit: Command, tmp_path: Path) -> None:
    boot = "import torch.distributed, torch.distributed.rpc\nprint('alone')\n"
    write_job(tmp_path, boot, "mode: torchrun\nboot_file: boot.py\nresources: {nproc_per_node: 2}")
    done = jobsubmit("create", "job.yaml", "--follow")
    assert "note: no process joined a process group" in done.stderr


# A process that ends while the other one still connects to it would make it fail.
CONNECTED = """
import os, time
open(f"connected-{os.environ['RANK']}", "w").close()
while not (os.path.exists("connected-0") and os.path.exists("connected-1")):
    time.sleep(0.02)
"""


@pytest.mark.needs("torch")
@pytest.mark.parametrize(
    ("use", "is_noted"),
    [
        ("", True),
        ("dist.destroy_process_group()", True),
        ("dist.barrier(); dist.destroy_process_group()", False),
        ("dist.new_group([0, 1]).allreduce([torch.ones(1)]).wait()", False),
        ("(dist.recv if dist.get_rank() else dist.send)(torch.ones(1), 1 - dist.get_rank())", False),
    ],
)
def test_processes_that_met_but_exchanged_nothing(jobsubmit: Command, tmp_path: Path, use: str, is_noted: bool) -> None:
    boot = f"import torch.distributed as dist\ndist.init_process_group('gloo')\n{CONNECTED}{use}\n"
    write_job(tmp_path, boot, "mode: torchrun\nboot_file: boot.py\nresources: {nproc_per_node: 2}")
    done = jobsubmit("create", "job.yaml", "--follow")
    assert ("note: the processes joined a process group, but no process used it" in done.stderr) == is_noted


@pytest.mark.needs("torch")
def test_nodes_that_made_a_group_each(jobsubmit: Command, tmp_path: Path) -> None:
    launcher = "[python, -m, torch.distributed.run, --standalone, --nproc_per_node=2, boot.py]"
    boot = "import torch.distributed as dist\ndist.init_process_group('gloo')\ndist.barrier()\n"
    write_job(tmp_path, boot, f"command: {launcher}\nresources: {{nodes: 2}}")
    done = jobsubmit("create", "job.yaml", "--follow", "--no-check")
    assert "4 processes of the job did not join one process group: the largest group holds 2" in done.stderr


@pytest.mark.needs("torch")
def test_no_process_where_there_are_no_gpus(jobsubmit: Command, tmp_path: Path) -> None:
    boot = "if __name__ == '__main__': mp.spawn(print, nprocs=torch.cuda.device_count())\n"
    write_job(tmp_path, boot, "mode: spawn\nboot_file: boot.py")
    refused = jobsubmit("create", "job.yaml", "--follow", env={"CUDA_VISIBLE_DEVICES": ""}, code=3)
    assert "nprocs is torch.cuda.device_count(), which is 0 on these nodes" in refused.stderr
    done = jobsubmit("create", "job.yaml", "--follow", "--no-check", env={"CUDA_VISIBLE_DEVICES": ""})
    assert "note: the boot file started no training process that" in done.stderr


@pytest.mark.needs("torch")
def test_victims_are_named_as_such_and_torchs_own_report_is_kept(jobsubmit: Command, tmp_path: Path) -> None:
    boot = """
from torch.distributed.elastic.multiprocessing.errors import record

@record
def main():
    dist.init_process_group("gloo")
    tensor = torch.ones(10)
    for step in range(1000):
        dist.all_reduce(tensor)
        if dist.get_rank() == 2 and step == 5:
            raise ValueError("only here")

main()
"""
    write_job(tmp_path, boot, "mode: torchrun\nboot_file: boot.py\nresources: {nodes: 2, nproc_per_node: 2}")
    done = jobsubmit("create", "job.yaml", "--follow", code=100)
    status = jobsubmit.json("describe", "failing")
    assert status["failure"]["rank"] == 2
    assert set(status["failure"]["victims"]) <= {0, 1, 3}
    assert status["failure"]["victims"]
    assert "ended as a result: rank" in done.stderr
    assert "error-rank-2.json" in status["files"]
    error = json.loads((Path(status["directory"]) / "error-rank-2.json").read_text())
    assert "ValueError: only here" in error["message"]["message"]
