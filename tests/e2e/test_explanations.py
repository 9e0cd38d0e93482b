"""Failures provoked on purpose: each gets what it means, and what to do, in the report."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest
from command import Command

HEAD = """
import argparse, datetime, os, signal, sys, time
import torch, torch.distributed as dist, torch.nn as nn
import torch.multiprocessing as mp
from torch.nn.parallel import DistributedDataParallel as DDP
"""
JOINED = 'dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=3)); rank = dist.get_rank()\n'

# Mode, boot file, what the report says.
FAILURES = {
    "a launcher's script in spawn mode": ("spawn", 'dist.init_process_group("gloo")', "which only a launcher sets"),
    "NCCL without a GPU": ("torchrun", 'dist.init_process_group("nccl")', "wants a GPU"),
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
        "took no part in the loss",
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
        "waited in vain",
    ),
    "a kill": ("torchrun", "os.kill(os.getpid(), signal.SIGKILL)", "killed from outside"),
}


@pytest.mark.needs("torch")
@pytest.mark.parametrize("name", FAILURES)
def test_a_failure_is_explained(name: str, jobsubmit: Command, tmp_path: Path) -> None:
    mode, code, meaning = FAILURES[name]
    (tmp_path / "code").mkdir()
    (tmp_path / "code/boot.py").write_text(HEAD + textwrap.dedent(code) + "\n")
    (tmp_path / "job.yaml").write_text(
        f"name: failing\nmode: {mode}\ncode_dir: code\nboot_file: boot.py\nhyperparameters: {{lr: 0.1}}\n"
        "resources: {nodes: 1, nproc_per_node: 2}\n"
    )
    done = jobsubmit("create", "job.yaml", "--follow", "--no-check", code=100)
    assert meaning in done.stderr.partition("it means: ")[2], done.stderr
    assert "hint: " in done.stderr.partition("it means: ")[2]
    failure = jobsubmit.json("status", "failing")["failure"]
    assert meaning in failure["meaning"]
