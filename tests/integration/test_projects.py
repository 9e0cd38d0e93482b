"""Projects in the shapes of public ones: each trains on two nodes within its third command."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from command import Command

STEPS = """
    model = DDP(torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(3):
        optimizer.zero_grad()
        loss = model(torch.randn(8, 4)).pow(2).mean()
        loss.backward()
        optimizer.step()
        print(f"step {step} loss {loss.item():.3f} of {dist.get_world_size()}", flush=True)
    dist.destroy_process_group()
"""
HEAD = """
import argparse, os, sys
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.nn.parallel import DistributedDataParallel as DDP
"""

# As in pytorch/examples/imagenet: it spawns, and has names of its own for the nodes.
IMAGENET = f"""{HEAD}
parser = argparse.ArgumentParser()
parser.add_argument("data", nargs="?", default="imagenet")
parser.add_argument("--world-size", default=-1, type=int, help="number of nodes")
parser.add_argument("--rank", default=-1, type=int, help="node rank")
parser.add_argument("--dist-url", default="tcp://224.66.41.62:23456", type=str)
parser.add_argument("--dist-backend", default="gloo", type=str)

def worker(gpu, per_node, args):
    args.rank = args.rank * per_node + gpu
    dist.init_process_group(backend=args.dist_backend, init_method=args.dist_url,
                            world_size=args.world_size, rank=args.rank)
{STEPS}
if __name__ == "__main__":
    args = parser.parse_args()
    per_node = 2
    args.world_size = per_node * args.world_size
    mp.spawn(worker, nprocs=per_node, args=(per_node, args))
"""

# As in examples/distributed/ddp-tutorial-series: two ways to start, and words without names.
TUTORIAL_SPAWN = f"""{HEAD}
def main(rank, world_size):
    os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = "localhost", "12355"
    dist.init_process_group("gloo", rank=rank, world_size=world_size)
{STEPS}
if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("total_epochs", type=int)
    args = parser.parse_args()
    mp.spawn(main, args=(2,), nprocs=2)
"""
TUTORIAL_TORCHRUN = f"""{HEAD}
def main(epochs):
    dist.init_process_group(backend="gloo")
    print("rank", os.environ["LOCAL_RANK"])
{STEPS}
if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("total_epochs", type=int)
    parser.add_argument("save_every", type=int)
    parser.add_argument("--log", help="so begin several options of the launcher")
    args = parser.parse_args()
    main(args.total_epochs)
"""

# As nanoGPT: globals that another file sets from the command line, and data that git does not have.
NANO = f"""{HEAD}
backend = "nccl"
dataset = "shakespeare"
exec(open("configurator.py").read())
ddp = int(os.environ.get("RANK", -1)) != -1
tokens = open(os.path.join("data", dataset, "train.bin"), "rb").read()
if ddp:
    dist.init_process_group(backend=backend)
{STEPS}
"""
CONFIGURATOR = """
import sys
for arg in sys.argv[1:]:
    key, val = arg.lstrip("-").split("=")
    assert key in globals(), f"Unknown config key: {key}"
    globals()[key] = val
"""

# As in examples/distributed/tensor_parallelism: it works as it is read.
MESH = f"""{HEAD}
from torch.distributed.device_mesh import init_device_mesh
world = int(os.environ["WORLD_SIZE"])
mesh = init_device_mesh("cpu", (world,))
with torch.enable_grad():
{STEPS}
print("done")
"""


def git(folder: Path) -> None:
    for words in (["init", "-q"], ["add", "."]):
        subprocess.run(["git", *words], cwd=folder, check=True, capture_output=True)


def trained(jobsubmit: Command, *flags: str) -> None:
    done = jobsubmit("create", "job.yaml", "--nodes", "2", *flags, "--follow")
    assert done.stderr.count("step 2 loss") == 4, done.stderr
    assert done.stderr.count("of 4") >= 4


@pytest.mark.needs("torch")
def test_a_spawning_script_with_its_own_names_for_the_nodes(jobsubmit: Command, tmp_path: Path) -> None:
    (tmp_path / "main.py").write_text(IMAGENET)
    jobsubmit("init")
    trained(jobsubmit)


@pytest.mark.needs("torch")
def test_of_two_ways_the_one_for_several_nodes(jobsubmit: Command, tmp_path: Path) -> None:
    (tmp_path / "multigpu.py").write_text(TUTORIAL_SPAWN)
    (tmp_path / "multigpu_torchrun.py").write_text(TUTORIAL_TORCHRUN)
    jobsubmit("init")
    refused = jobsubmit("validate", "job.yaml", code=3)
    assert "total_epochs is required" in refused.stderr
    assert "give it in `args`" in refused.stderr
    trained(jobsubmit, "--set", "args=[2, 1]", "--set", "hyperparameters.log=all")


@pytest.mark.needs("torch")
def test_data_that_git_ignores_and_a_configurator(jobsubmit: Command, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(NANO)
    (tmp_path / "configurator.py").write_text(CONFIGURATOR)
    (tmp_path / "data/shakespeare").mkdir(parents=True)
    (tmp_path / "data/shakespeare/train.bin").write_bytes(b"to be")
    (tmp_path / ".gitignore").write_text("*.bin\n/state/\n")
    git(tmp_path)
    jobsubmit("init")
    told = jobsubmit("validate", "job.yaml", code=3).stderr
    assert "ignored by .gitignore line 1: *.bin" in told
    assert "add the line !data/shakespeare/train.bin to .jobignore" in told
    assert "pass --backend=gloo" in told
    (tmp_path / ".jobignore").write_text("!data/shakespeare/train.bin\n")
    trained(jobsubmit, "--set", "hyperparameters.backend=gloo")


@pytest.mark.needs("torch")
def test_a_script_that_works_as_it_is_read(jobsubmit: Command, tmp_path: Path) -> None:
    (tmp_path / "tensor_parallel_example.py").write_text(MESH)
    (tmp_path / "log_utils.py").write_text("import logging\n\ndef get_logger():\n    return logging.getLogger()\n")
    jobsubmit("init")
    trained(jobsubmit)


@pytest.mark.needs("torch")
def test_a_command_line_as_it_is_typed(jobsubmit: Command, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TUTORIAL_TORCHRUN)
    command = ("torchrun", "--standalone", "--nproc_per_node=2", "train.py", "2", "1")
    done = jobsubmit("run", "--nodes", "2", "--follow", "--", *command)
    assert done.stderr.count("step 2 loss") == 4, done.stderr
