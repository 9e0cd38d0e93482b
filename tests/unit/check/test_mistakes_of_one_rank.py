"""Mistakes in what each rank decides, counts or names by itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from checked import IMPORTED, each_mistake, findings, found

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
HIDDEN = """
import os, torch, torch.distributed as dist
local_rank = int(os.environ["LOCAL_RANK"])
os.environ["CUDA_VISIBLE_DEVICES"] = str(local_rank)
torch.cuda.set_device({device})
dist.init_process_group("nccl")
"""
SOURCE = """
import os, torch, torch.distributed as dist
from dataclasses import dataclass
@dataclass
class World:
    rank: int
    device: int
    first: int
def begin():
    device = int(os.environ["LOCAL_RANK"])
    dist.init_process_group("gloo")
    return World(dist.get_rank(), device, 0)
def common(world):
    seed = torch.ones(1)
    dist.broadcast(seed, src=world.{field})
common(begin())
"""
FIGURES = """
import torch, torch.distributed as dist
dist.init_process_group("gloo")
right, seen = 0, 0
for x in range(9):
    right += torch.rand(2).sum().item()
    seen += len("ab")
for figure in ({figures}):
    dist.all_reduce(figure)
"""
TRAINER = """
import os, torch, torch.distributed as dist
from contextlib import nullcontext
from torch.nn.parallel import DistributedDataParallel
dist.init_process_group("gloo")
class Trainer:
    def __init__(self, frozen):
        self.net = torch.nn.Linear(4, 4)
        self.net.requires_grad_(not frozen)
        self.model = DistributedDataParallel(self.net)
        self.core = self.model.module
    def step(self, x):
        self.{called}(x).sum().backward()
    def train(self, loader, optimizer):
        for i, x in enumerate(loader):
            context = nullcontext
            if {skips}:
                context = self.model.no_sync
            with context():
                self.step(x)
            if (i + 1) % 4 == 0:
                optimizer.step()
            {each}
trainer = Trainer(os.environ.get("FROZEN"))
trainer.train(torch.rand(8, 2, 4), torch.optim.SGD(trainer.model.parameters(), 0.1))
"""
GOOD = {"called": "model", "skips": "(i + 1) % 4 != 0", "each": ""}
SPLIT = """
import numpy as np, torch, torch.distributed as dist
from torch.utils.data import Subset
dist.init_process_group("gloo")
{seed}
order = np.random.permutation(100)
held_out, rest = np.split(order, [10])
"""
STREAM = """
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, IterableDataset, get_worker_info
class Stream(IterableDataset):
    def __init__(self, shard_list):
        with open(shard_list) as lines:
            self.shards = lines.read().split()
    def __iter__(self):
        info = get_worker_info()
        yield from self.shards[info.id :: info.num_workers]{part}
dist.init_process_group("gloo")
model = DistributedDataParallel(torch.nn.Linear(4, 4))
loader = DataLoader(Stream("/data/shards.txt"), 4)
"""
HOOKS = """
import os, torch, torch.distributed as dist
class Evaluate:
    def after_epoch(self):
        counts = torch.tensor([1.0, 2.0]){device}
        dist.all_reduce(counts)
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
dist.init_process_group("nccl")
for hook in [Evaluate()]:
    getattr(hook, "after_" + os.environ.get("WHAT", "epoch"))()
"""
CACHED = """
import os, torch, torch.distributed as dist
class Labels:
    def __init__(self, path):
        self.labels = self.scan(f"{path}.cache")
    def scan(self, path):
        labels = [1, 2]
        {saves}
        return labels
def loader(path):
    return Labels(path)
def train(path):
    return loader(path)
def main():
    dist.init_process_group("gloo")
    train("/data/images")
main()
"""
ZERO = """
import torch, torch.distributed as dist
from torch.distributed.optim import ZeroRedundancyOptimizer
dist.init_process_group("gloo")
net = torch.nn.Linear(4, 4)
optimizer = ZeroRedundancyOptimizer(net.parameters(), torch.optim.Adam, lr=0.1)
{gathers}
if dist.get_rank() == 0:
    torch.save(optimizer.state_dict(), "/shared/last.pt")
"""
TEMPORARY = """
import os, tempfile, torch, torch.distributed as dist
dist.init_process_group("gloo")
best = os.path.join({folder}, "best.pt")
if dist.get_rank() == 0:
    torch.save([1], best)
dist.barrier()
torch.load(best)
"""
CPU: dict[str, Any] = {"resources": {"nodes": 2, "nproc_per_node": 2}}
SYNC_BATCH_NORM = """
import torch, torch.distributed as dist
dist.init_process_group("gloo")
net = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4))
{converts}
"""
NODE_AND_PROCESS = """
import argparse, torch, torch.distributed as dist, torch.multiprocessing as mp
class Cluster:
    def __init__(self, args, local_rank, gpus):
        self.size = args.world_size * gpus
        self.rank = {rank}
        self.method = args.init_method
    def __enter__(self):
        dist.init_process_group("nccl", init_method=self.method, world_size=self.size, rank=self.rank)
    def __exit__(self, *of_error):
        dist.destroy_process_group()
def work(i, args, gpus):
    torch.cuda.set_device(i)
    with Cluster(args, i, gpus):
        dist.barrier()
if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    for name in ("world_size", "rank"):
        parser.add_argument("--" + name, type=int)
    parser.add_argument("--init_method")
    gpus = torch.cuda.device_count()
    mp.spawn(work, nprocs=gpus, args=(parser.parse_args(), gpus))
"""
NESTED = """
import argparse, torch, torch.distributed as dist, torch.multiprocessing as mp
def join(i, args, gpus):
    dist.init_process_group("nccl", init_method=args.init_method, world_size=args.world_size * gpus,
                            rank=args.rank * gpus + i)
def main():
    parser = argparse.ArgumentParser()
    for name in ("world_size", "rank"):
        parser.add_argument("--" + name, type=int)
    parser.add_argument("--init_method")
    args, gpus = parser.parse_args(), torch.cuda.device_count()
    def inner(i):
        join(i, args, gpus)
    {spawns}
if __name__ == "__main__":
    main()
"""
LAUNCHED = """
import argparse, torch, torch.distributed as dist, torch.multiprocessing as mp
def worker(i, main, size, gpus, machine_rank, method):
    rank = machine_rank * gpus + i
    torch.cuda.set_device(i)
    dist.init_process_group("nccl", init_method=method, world_size=size, rank=rank)
    main()
def launch(main, gpus, machines=1, machine_rank=0, method=None):
    mp.spawn(worker, nprocs=gpus, args=(main, machines * gpus, gpus, machine_rank, method))
def main():
    dist.barrier()
if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    for name in ("world_size", "rank"):
        parser.add_argument("--" + name, type=int)
    parser.add_argument("--init_method")
    args = parser.parse_args()
    launch(main, torch.cuda.device_count(), machines=args.world_size, {given}method=args.init_method)
"""
SEEDED = """
import os, torch, torch.distributed as dist
from torch.utils.data import TensorDataset
from torch.utils.data.distributed import DistributedSampler
dist.init_process_group("gloo")
sampler = DistributedSampler(TensorDataset(torch.rand(64)), seed={seed})
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
    ("hidden-gpus", HIDDEN.format(device="local_rank"), HIDDEN.format(device="0"), EIGHT),
    ("other-roots", SOURCE.format(field="device"), SOURCE.format(field="first"), EIGHT),
    (
        "not-a-tensor",
        FIGURES.format(figures="right, seen"),
        FIGURES.format(figures="torch.tensor(right), torch.tensor(seen)"),
        EIGHT,
    ),
    ("bypassed", TRAINER.format(**{**GOOD, "called": "core"}), TRAINER.format(**GOOD), EIGHT),
    ("never-synchronized", TRAINER.format(**{**GOOD, "skips": "i % 4 != 0"}), TRAINER.format(**GOOD), EIGHT),
    ("never-synchronized", TRAINER.format(**{**GOOD, "skips": "(i + 1) % 4 == 0"}), TRAINER.format(**GOOD), EIGHT),
    (
        "thawed-later",
        TRAINER.format(**{**GOOD, "each": "if i == 4: self.model.module.requires_grad_(True)"}),
        TRAINER.format(**GOOD),
        EIGHT,
    ),
    ("split-by-rank", SPLIT.format(seed=""), SPLIT.format(seed="np.random.seed(0)"), EIGHT),
    ("no-sampler", STREAM.format(part=""), STREAM.format(part="[dist.get_rank() :: dist.get_world_size()]"), EIGHT),
    ("tensor-on-cpu", HOOKS.format(device=""), HOOKS.format(device=".cuda()"), EIGHT),
    (
        "saved-by-all",
        CACHED.replace("{saves}", "torch.save(labels, path)"),
        CACHED.replace("{saves}", "if dist.get_rank() == 0: torch.save(labels, path)"),
        EIGHT,
    ),
    ("not-consolidated", ZERO.format(gathers=""), ZERO.format(gathers="optimizer.consolidate_state_dict(to=0)"), EIGHT),
    ("staged-by-one", TEMPORARY.format(folder="tempfile.gettempdir()"), TEMPORARY.format(folder="'/shared'"), EIGHT),
    (
        "cuda-on-cpu",
        SYNC_BATCH_NORM.format(converts="net = torch.nn.SyncBatchNorm.convert_sync_batchnorm(net)"),
        SYNC_BATCH_NORM.format(converts=""),
        CPU,
    ),
    (
        "same-ranks",
        NODE_AND_PROCESS.format(rank="args.rank + local_rank"),
        NODE_AND_PROCESS.format(rank="args.rank * gpus + local_rank"),
        MODELARTS,
    ),
    (
        "not-picklable",
        NESTED.format(spawns="mp.spawn(inner, nprocs=gpus)"),
        NESTED.format(spawns="mp.spawn(join, nprocs=gpus, args=(args, gpus))"),
        MODELARTS,
    ),
    (
        "not-picklable",
        NESTED.format(spawns="mp.spawn(lambda i: join(i, args, gpus), nprocs=gpus)"),
        NESTED.format(spawns="mp.start_processes(inner, nprocs=gpus, start_method='fork')"),
        MODELARTS,
    ),
    ("same-ranks", LAUNCHED.format(given=""), LAUNCHED.format(given="machine_rank=args.rank, "), MODELARTS),
    ("sampler-seed", SEEDED.format(seed="7 + dist.get_rank()"), SEEDED.format(seed="7"), EIGHT),
    ("rank-as-device", SPAWNED.format(device="args.global_rank"), SPAWNED.format(device="i"), MODELARTS),
]


@each_mistake(CASES)
def test_each_mistake(check: str, wrong: str, right: str, fields: dict[str, Any], tmp_path: Path) -> None:
    assert check in found(tmp_path, wrong, **fields)
    assert check not in found(tmp_path, right, **fields)


BY_SIGNAL = (
    IMPORTED
    + """
def step(model, optimizer, loader, rank, signal):
    def closure():
        if rank == 0:
            dist.broadcast(signal.fill_(1), src=0)
        return model(loader).mean()
    if rank == 0:
        optimizer.step(closure)
        dist.broadcast(signal.fill_(0), src=0)
    else:
        while True:
            {waits}
            if signal.item() == 0:
                break
            closure()
class Plotter:
    def plot(self, rank):
        dist.barrier()
        if rank == 0:
            figure, ax = make_figure()
            show(ax, ax, [1, 2])
def show(ax, main_ax, values):
    ax.scatter(values, values)
    main_ax.plot(values)
def main():
    dist.init_process_group("nccl")
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    model = nn.Linear(4, 1).cuda()
    optimizer = torch.optim.LBFGS(model.parameters())
    step(model, optimizer, load(), dist.get_rank(), torch.zeros(1).cuda())
    Plotter().plot(dist.get_rank())
main()
"""
)


def test_ranks_that_wait_for_a_signal_meet_it(tmp_path: Path) -> None:
    text = BY_SIGNAL.format(waits="dist.broadcast(signal, src=0)")
    assert "rank-0-collective" not in found(tmp_path, text)
    assert "rank-0-collective" in found(tmp_path, BY_SIGNAL.format(waits="time.sleep(1)"))


BY_PARAMETER = """
import torch, torch.distributed as dist
def load(rank0=False):
    if rank0:
        dist.barrier()
    return 1
dist.init_process_group("gloo")
rank = dist.get_rank()
{calls}
"""


def test_a_parameter_that_says_rank_0_but_is_given_to_all_ranks(tmp_path: Path) -> None:
    assert "rank-0-collective" not in found(tmp_path, BY_PARAMETER.format(calls="load(rank0=True)"))
    assert "rank-0-collective" in found(tmp_path, BY_PARAMETER.format(calls="load(rank0=rank == 0)"))
    one_sided = "if rank == 0:\n    load(rank0=True)\nelse:\n    load()"
    assert "rank-0-collective" in found(tmp_path, BY_PARAMETER.format(calls=one_sided))


ASKED = """
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
class Net(torch.nn.Module):
    def flops(self):
        return 1
    def make_optimizer(self):
        return torch.optim.SGD(self.parameters(), 0.1)
def save(model):
    print(model.flops())
def main():
    dist.init_process_group("gloo")
    model = DDP(Net())
    with torch.enable_grad():
        with torch.random.fork_rng():
            optimizer = model.make_optimizer()
    if torch.rand(1).item() > 0.5:
        save(model)
main()
"""


def test_what_is_surely_asked_of_the_wrapper_is_named_before_what_may_be(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(ASKED)
    (one,) = [one for one in findings(tmp_path) if one.check == "wrapped-attribute"]
    assert (one.level, "make_optimizer" in one.text) == ("error", True)


STEP_IN_TRY = f"""{IMPORTED}
dist.init_process_group("gloo")
net = DDP(nn.Linear(4, 4))
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
def step(x):
    optimizer.zero_grad()
    net(x).mean().backward()
    optimizer.step()
sampler = DistributedSampler(TensorDataset(torch.rand(64, 4)))
loader = DataLoader(sampler.dataset, batch_size=4, sampler=sampler)
for epoch in range(3):
    sampler.set_epoch(epoch)
    batches = iter(loader)
    for _ in range(len(loader)):
        try:
            x, = next(batches)
        except StopIteration:
            break
        try:
            step(x)
        {{handler}}
dist.destroy_process_group()
"""
OUT_OF_MEMORY = """except RuntimeError as error:
            if "out of memory" in str(error):
                print("skipping a batch")
                optimizer.zero_grad()
                continue
            raise"""


@pytest.mark.parametrize(
    ("handler", "is_wrong"),
    [
        (OUT_OF_MEMORY.replace("            raise", "            else:\n                raise"), True),
        (OUT_OF_MEMORY, True),
        ("except torch.cuda.OutOfMemoryError:\n            pass", True),
        ("except (ValueError, RuntimeError):\n            continue", True),
        ("except:\n            break", True),
        ("except RuntimeError as error:\n            print(error)\n            raise", False),
        ("except Exception:\n            if epoch:\n                raise\n            sys.exit(1)", False),
        ("except RuntimeError:\n            step(torch.zeros(1, 4))", False),
        ("except KeyboardInterrupt:\n            break", False),
        ("finally:\n            print('a step')", False),
    ],
)
def test_a_rank_that_goes_on_after_an_error_in_its_step(handler: str, is_wrong: bool, tmp_path: Path) -> None:
    assert found(tmp_path, STEP_IN_TRY.format(handler=handler)) == ({"left-by-one"} if is_wrong else set())


# YOLO's profile(): not all modules have gradients.
MEASURED = f"""{IMPORTED}
dist.init_process_group("gloo")
net = DDP(nn.Linear(4, 4))
def profile(module):
    for _ in range(3):
        out = module(torch.rand(4, 4))
        try:
            out.sum().backward()
        except Exception:
            print("no backward")
profile(net)
dist.destroy_process_group()
"""


def test_a_measurement_that_may_fail_is_no_step(tmp_path: Path) -> None:
    assert found(tmp_path, MEASURED) == set()


BACKWARD = f"""{IMPORTED}
dist.init_process_group("gloo")
rank = dist.get_rank()
net = DDP(nn.Linear(4, 4))
for _ in range(3):
    loss = net(torch.rand(4, 4)).mean()
    if {{test}}:
        loss.backward()
    {{other}}
dist.destroy_process_group()
"""


@pytest.mark.parametrize(
    ("test", "other", "is_wrong"),
    [
        ("rank == 0", "", True),
        ("dist.get_rank() == 0", "", True),
        ("rank == 0", "else:\n        (2 * loss).backward()", False),
        ("rank >= 0", "", False),
    ],
)
def test_gradients_of_rank_0_alone(test: str, other: str, is_wrong: bool, tmp_path: Path) -> None:
    seen = found(tmp_path, BACKWARD.format(test=test, other=other))
    assert ("rank-0-collective" in seen) is is_wrong
