"""Mistakes in what each rank decides, counts or names by itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from checked import each_mistake, found

SLURM = {"kind": "slurm", "shared_dir": "/shared", "gpus_per_node": "8"}
EIGHT: dict[str, Any] = {"resources": {"nodes": 2, "nproc_per_node": 8}, "backend": SLURM}
MODELARTS: dict[str, Any] = {
    "mode": "spawn",
    "framework": {"name": "PyTorch", "version": "2.1"},
    "resources": {"nodes": 2, "flavor": "modelarts.vm.gpu.8v100"},
    "store": {"uri": "s3://bucket-b/jobs"},
    "backend": {"kind": "modelarts"},
}
CLOCK = """
import os, time, torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
class Budget:
    def __init__(self, hours):
        self.deadline = time.monotonic() + hours * 3600
    def is_over(self):
        return {says}
dist.init_process_group("gloo")
net = DistributedDataParallel(torch.nn.Linear(4, 4))
budget, began = Budget(1), time.time()
for step in range(1000):
    if {test}:
        break
    net(torch.rand(2, 4)).sum().backward()
"""
OVER = "time.monotonic() >= self.deadline"
AGREED = "dist.all_reduce(torch.ones(1)) or time.monotonic() >= self.deadline"
PLATEAU = """
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset
dist.init_process_group("gloo")
data = TensorDataset(torch.rand(64, 4))
sampler = DistributedSampler(data)
loader = DataLoader(data, 4, sampler=sampler)
held_out = DataLoader(data, 4{shared})
net = DistributedDataParallel(torch.nn.Linear(4, 4))
optimizer = torch.optim.SGD(net.parameters(), 0.1)
scheduler = torch.optim.lr_scheduler.{kind}
for epoch in range(9):
    sampler.set_epoch(epoch)
    for (x,) in loader:
        net(x).sum().backward()
        optimizer.step()
    with torch.no_grad():
        total = sum(net(x).sum() for (x,) in held_out)
    {average}
    scheduler.step({given})
"""
SHARED = {"shared": ", sampler=DistributedSampler(data)", "kind": "ReduceLROnPlateau(optimizer)"}
GROUPS = """
import os, torch, torch.distributed as dist
class Node:
    def __init__(self):
        self.size = int(os.environ["LOCAL_WORLD_SIZE"])
        for node in range(dist.get_world_size() // self.size):
            group = dist.new_group({ranks})
            if node == dist.get_rank() // self.size:
                self.group = group
    def hand_on(self, x):
        dist.broadcast(x, {src}, group=self.group)
dist.init_process_group("gloo")
Node().hand_on(torch.ones(1))
"""
OF_NODE = "list(range(node * self.size, (node + 1) * self.size))"
GATHERED = """
import argparse, os, torch, torch.distributed as dist
class Loss:
    def __init__(self, world_size):
        self.world_size = world_size
    def gather(self, x):
        parts = [torch.zeros_like(x) for _ in range(self.world_size)]
        dist.all_gather(parts, x)
        return parts
args = argparse.Namespace()
args.local_world_size = int(os.environ["LOCAL_WORLD_SIZE"])
dist.init_process_group("gloo")
args.world_size = dist.get_world_size()
Loss(args.{count}).gather(torch.ones(1))
"""
ALONE = """
import os, torch, torch.distributed as dist
dist.init_process_group("gloo")
net = torch.nn.Linear(4, 4)
def begin_alike():
    for p in net.parameters():
        dist.broadcast(p.data, src=0)
{before}
optimizer = torch.optim.SGD(net.parameters(), 0.1)
for step in range(9):
    net(torch.rand(2, 4)).sum().backward()
    optimizer.step()
    {after}
"""
SPAWNED = """
import argparse, torch, torch.distributed as dist, torch.multiprocessing as mp
def start(args):
    torch.cuda.set_device(args.device_id)
    dist.init_process_group("nccl", init_method=args.init_method, world_size=args.size, rank=args.global_rank)
def work(i, args, gpus):
    args.global_rank = args.rank * gpus + i
    args.size = args.world_size * gpus
    args.device_id = {device}
    start(args)
if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    for name in ("world_size", "rank"):
        parser.add_argument("--" + name, type=int)
    parser.add_argument("--init_method")
    gpus = torch.cuda.device_count()
    mp.spawn(work, nprocs=gpus, args=(parser.parse_args(), gpus))
"""
CASES: list[tuple[str, str, str, dict[str, Any]]] = [
    ("left-by-one", CLOCK.format(says=OVER, test="budget.is_over()"), CLOCK.format(says=OVER, test="step > 9"), EIGHT),
    (
        "left-by-one",
        CLOCK.format(says=OVER, test="time.time() - began > 3600"),
        CLOCK.format(says=AGREED, test="budget.is_over()"),
        EIGHT,
    ),
    (
        "own-learning-rate",
        PLATEAU.format(**SHARED, average="", given="total"),
        PLATEAU.format(**SHARED, average="dist.all_reduce(total)", given="total"),
        EIGHT,
    ),
    (
        "own-learning-rate",
        PLATEAU.format(**SHARED, average="", given="total"),
        PLATEAU.format(**{**SHARED, "shared": ""}, average="", given="total"),
        EIGHT,
    ),
    (
        "own-learning-rate",
        PLATEAU.format(**SHARED, average="", given="total"),
        PLATEAU.format(**{**SHARED, "kind": "StepLR(optimizer, 3)"}, average="", given=""),
        EIGHT,
    ),
    (
        "other-roots",
        GROUPS.format(ranks=OF_NODE, src="src=0"),
        GROUPS.format(ranks=OF_NODE, src="src=dist.get_rank() // self.size * self.size"),
        EIGHT,
    ),
    ("other-roots", GROUPS.format(ranks=OF_NODE, src="0"), GROUPS.format(ranks="[0, 1]", src="0"), EIGHT),
    ("fixed-world-size", GATHERED.format(count="local_world_size"), GATHERED.format(count="world_size"), EIGHT),
    (
        "never-synchronized",
        ALONE.format(before="begin_alike()", after=""),
        ALONE.format(before="", after="begin_alike()"),
        EIGHT,
    ),
    ("rank-as-device", SPAWNED.format(device="args.global_rank"), SPAWNED.format(device="i"), MODELARTS),
]


@each_mistake(CASES)
def test_each_mistake(check: str, wrong: str, right: str, fields: dict[str, Any], tmp_path: Path) -> None:
    assert check in found(tmp_path, wrong, **fields)
    assert check not in found(tmp_path, right, **fields)
