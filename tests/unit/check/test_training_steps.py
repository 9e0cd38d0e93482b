"""Mistakes in how processes train together: found in the program that has them, not in the right one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from checked import GPUS, SLURM, STARTED, each_mistake, findings, found

STEP = """
import argparse, contextlib, os, torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = torch.nn.Linear(4, 4), torch.nn.Linear(4, 1)
    def forward(self, x):
        return self.head(self.body(x))
    def freeze(self):
        for p in self.body.parameters():
            p.requires_grad = False
    def unfreeze(self):
        for p in self.body.parameters():
            p.requires_grad = True
def trainable(net, everything):
    net.body.requires_grad_(everything)
def context(model, micro_step):
    {context}
    return model.no_sync()
def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--gpu", type=int, default=0)
    args = parser.parse_args()
    torch.cuda.set_device({device})
    dist.init_process_group("nccl")
    world = float(dist.get_world_size())
    net = Net().cuda()
    {before}
    model = DDP(net)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(8):
        {later}
        with context(model, step % 4):
            loss = model(torch.rand(8, 4).cuda()).mean()
            {backward}
        {reduce}
        optimizer.step()
    dist.destroy_process_group()
main()
"""
RIGHT = {
    "context": "if micro_step == 3: return contextlib.nullcontext()",
    "device": 'int(os.environ["LOCAL_RANK"])',
    "before": "pass",
    "later": "pass",
    "backward": "loss.backward()",
    "reduce": "pass",
}

GROUPS = """
import torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
for first in range(0, dist.get_world_size(), 2):
    ends = [first, first + 1]
    {make}
dist.destroy_process_group()
"""

ORDER = """
import torch, torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.parallel import DistributedDataParallel as DDP
class Trainer:
    def __init__(self):
        {first}
        self.build()
    def build(self):
        self.model = DDP(torch.nn.Linear(4, 1))
    def fit(self):
        {second}
trainer = Trainer()
trainer.fit()
"""

SHARDED = """
import torch
from torch.distributed.fsdp import fully_shard
def shard(model):
    for block in model.blocks: fully_shard(block)
    return fully_shard(model)
def optimizer_of(model):
    return torch.optim.AdamW([p for p in model.parameters()])
def build(model):
    {first}
    {second}
    return model, optimizer
torch.distributed.init_process_group("nccl")
build(torch.nn.Linear(4, 1))
"""

CLIPPED = """
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
torch.distributed.init_process_group("nccl")
model = FSDP(torch.nn.Linear(4, 1))
model(torch.rand(1, 4)).sum().backward()
{clip}
"""

DATA = """
import argparse, torch, torch.distributed as dist
from torch.utils.data import DataLoader, DistributedSampler, random_split
parser = argparse.ArgumentParser()
parser.add_argument("--batch_size", type=int, default=2)
args = parser.parse_args()
dist.init_process_group("gloo")
rank, node, nodes = dist.get_rank(), dist.get_rank() // 2, dist.get_world_size() // 2
{data}
dist.destroy_process_group()
"""

EVALUATED = """
import torch.distributed as dist
class Recall:
    def summarize(self):
        dist.barrier()
def inference(model, recall):
    return recall.summarize()
dist.init_process_group("gloo")
{call}
dist.destroy_process_group()
"""

RANKS = """
import argparse, torch, torch.distributed as dist, torch.multiprocessing as mp
class Worker:
    def __init__(self, gpu, n, args):
        dist.init_process_group("gloo", init_method=args.init_method, world_size=args.world_size * n, rank={rank})
def entry(gpu, n, args):
    Worker(gpu, n, args)
if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--init_method"); parser.add_argument("--rank", type=int)
    parser.add_argument("--world_size", type=int); parser.add_argument("--procs", type=int, default=2)
    args = parser.parse_args()
    mp.spawn(entry, args=(args.procs, args), nprocs=args.procs)
"""


def step(**changes: str) -> str:
    return STEP.format(**{**RIGHT, **changes})


def data(text: str) -> str:
    return DATA.format(data=text)


CASES: list[tuple[str, str, str, dict[str, Any]]] = [
    ("divided-again", step(backward="(loss / world).backward()"), step(backward="(loss / 4).backward()"), {}),
    (
        "divided-again",
        step(reduce="for p in net.parameters(): p.grad.div_(world)"),
        step(reduce="for p in net.parameters(): p.grad.div_(2)"),
        {},
    ),
    ("thawed-later", step(before="net.freeze()", later="net.unfreeze()"), step(before="net.freeze()"), {}),
    (
        "thawed-later",
        step(before="trainable(net, False)", later="trainable(net, step > 4)"),
        step(later="trainable(net, step > 4)"),
        {},
    ),
    ("thawed-later", step(before="net.freeze()", later="net.unfreeze()"), step(later="net.unfreeze()"), {}),
    (
        "bypassed",
        step().replace("loss = model(", "inner = model.module; loss = inner("),
        step().replace("loss = model(", "inner = model; loss = inner("),
        {},
    ),
    (
        "never-synchronized",
        step(context="if micro_step == 0: return contextlib.nullcontext()"),
        step(),
        {},
    ),
    ("fixed-device", step(device="args.gpu"), step(), {"backend": SLURM}),
    (
        "rank-0-collective",
        GROUPS.format(make="if rank in ends: dist.new_group(ends)"),
        GROUPS.format(make="group = dist.new_group(ends)"),
        {},
    ),
    (
        "rank-0-collective",
        GROUPS.format(make="if rank in ends: dist.new_group(ends)"),
        GROUPS.format(make="if rank in ends: dist.new_group(ends, use_local_synchronization=True)"),
        {},
    ),
    (
        "no-init",
        ORDER.format(first="pass", second='dist.init_process_group("gloo")'),
        ORDER.format(first='dist.init_process_group("gloo")', second="pass"),
        {},
    ),
    (
        "no-init",
        ORDER.format(first="dist.get_rank()", second='init_device_mesh("cpu", (4,))'),
        ORDER.format(first='init_device_mesh("cpu", (4,))', second="dist.get_rank()"),
        {},
    ),
    (
        "optimizer-too-early",
        SHARDED.format(first="optimizer = optimizer_of(model)", second="model = shard(model)"),
        SHARDED.format(first="model = shard(model)", second="optimizer = optimizer_of(model)"),
        {},
    ),
    (
        "clipped-by-part",
        CLIPPED.format(clip="torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)"),
        CLIPPED.format(clip="model.clip_grad_norm_(1.0)"),
        {},
    ),
    ("split-by-rank", data("random_split(range(9), [5, 4])"), data("torch.manual_seed(0)\nrandom_split([1], [1])"), {}),
    (
        "part-of-node",
        data("DistributedSampler(range(9), num_replicas=nodes, rank=node)"),
        data("DistributedSampler(range(9), num_replicas=dist.get_world_size(), rank=rank)"),
        {},
    ),
    (
        "empty-batch",
        data("DataLoader(range(9), batch_size=args.batch_size // dist.get_world_size())"),
        data("DataLoader(range(9), batch_size=args.batch_size)"),
        {},
    ),
    (
        "staged-by-one",
        data('if rank == 0: extract("a.tar", "/tmp/data")\ndist.barrier()'),
        data('if rank == 0: extract("a.tar", "/shared/data")\ndist.barrier()'),
        {},
    ),
    (
        "rank-0-collective",
        EVALUATED.format(call="if dist.get_rank() == 0: inference(1, Recall())"),
        EVALUATED.format(call="inference(1, Recall())"),
        {},
    ),
    ("same-ranks", RANKS.format(rank="gpu"), RANKS.format(rank="args.rank * n + gpu"), {"mode": "spawn"}),
]


@each_mistake(CASES)
def test_a_mistake_is_found_where_it_is(
    check: str, wrong: str, right: str, fields: dict[str, Any], tmp_path: Path
) -> None:
    assert check in found(tmp_path, wrong, **fields)
    assert check not in found(tmp_path, right, **fields)


@pytest.mark.parametrize(
    "script",
    [
        "accelerate launch --num_processes $((NNODES * NPROC_PER_NODE)) train.py --lr 0.1\n",
        'cd "$(dirname "$0")/.."\nexec python train.py --lr 0.1\n',
        "cd $(dirname ${BASH_SOURCE[0]})/..\npython train.py --lr 0.1\n",
        'ARGS=(\n  --nnodes "$NNODES"\n)\ntorchrun "${ARGS[@]}" train.py --lr 0.1\n',
        "N=$((NNODES * 2))\ntorchrun --nnodes $N train.py --lr 0.1\n",
    ],
)
def test_what_a_script_starts_is_checked(script: str, tmp_path: Path) -> None:
    (tmp_path / "scripts").mkdir()
    (tmp_path / "scripts/run.sh").write_text(script)
    text = "import argparse\np = argparse.ArgumentParser()\np.add_argument('--epochs')\np.parse_args()\n"
    assert "argument-unknown" in found(tmp_path, text, command=["bash", "scripts/run.sh"])


def test_a_script_that_goes_elsewhere_is_not(tmp_path: Path) -> None:
    (tmp_path / "run.sh").write_text('cd "$(dirname "$0")/.."\npython train.py --lr 0.1\n')
    text = "import argparse\np = argparse.ArgumentParser()\np.add_argument('--epochs')\np.parse_args()\n"
    assert "argument-unknown" not in found(tmp_path, text, command=["bash", "run.sh"])


def test_the_first_process_of_a_node_is_not_meant_by_every_so_many_steps(tmp_path: Path) -> None:
    text = "import os, torch, torch.distributed as dist\nlocal_rank = int(os.environ['LOCAL_RANK'])\n"
    text += "dist.init_process_group('gloo')\nrank = dist.get_rank()\n"
    text += "steps = torch.load('/a', map_location=f'cuda:{local_rank}')['steps']\n"
    text += (
        "while True:\n    steps += 1\n    if steps % 10 == 0:\n        if rank == 0:\n            torch.save(1, '/b')\n"
    )
    assert "saved-by-all" not in found(tmp_path, text)


def test_functions_that_call_each_other_are_followed_only_so_far(tmp_path: Path) -> None:
    text = "import torch.distributed as dist\ndist.init_process_group('gloo')\n"
    text += "def wrap(module):\n    for child in module: wrap(child)\n    return module\nwrap([])\n"
    assert not found(tmp_path, text)
    assert "sharding" not in {finding.check for finding in findings(tmp_path)}


def test_a_module_that_is_built_from_sources_beside_it_may_be_imported(tmp_path: Path) -> None:
    (tmp_path / "ops/src").mkdir(parents=True)
    (tmp_path / "ops/__init__.py").touch()
    text = "from ops import boxes_cuda\n"
    assert "imports" in found(tmp_path, text)
    (tmp_path / "ops/src/boxes.cu").touch()
    assert "imports" not in found(tmp_path, text)


@pytest.mark.parametrize(
    ("seed", "loader", "is_same"),
    [
        ("torch.manual_seed(42)", "data, 4, shuffle=True", True),
        ("", "data, 4", True),
        ("", "data, 4, shuffle=True", False),
        ("torch.manual_seed(args.seed)", "data, 4, shuffle=True", False),
    ],
)
def test_all_ranks_train_on_the_same_batches(seed: str, loader: str, is_same: bool, tmp_path: Path) -> None:
    text = (
        f"{STARTED}args = load()\n{seed}\ndata = TensorDataset(torch.ones(8, 1))\nmodel = DDP(nn.Linear(1, 1).cuda())\n"
    )
    text += f"for x in DataLoader({loader}):\n    model(x).sum().backward()\n"
    (tmp_path / "train.py").write_text(text)
    (shown,) = [one.text for one in findings(tmp_path, **GPUS) if one.check == "no-sampler"]
    assert ("the same batches" in shown) is is_same
