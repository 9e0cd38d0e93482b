"""One training loop with DistributedDataParallel, and what goes wrong in it most often."""

from __future__ import annotations

from pathlib import Path

import pytest
from checked import SLURM, findings, found

LOOP = """
import argparse, json, os, random, torch
import numpy as np
import torch.distributed as dist
import torch.nn as nn
from sklearn.model_selection import train_test_split
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(4, 1)
    def forward(self, x):
        return self.head(x)
def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", default="/shared/run")
    parser.add_argument("--epochs", type=int, default=3)
    args = parser.parse_args()
    local_rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local_rank)
    dist.init_process_group("nccl")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    {data}
    model = Net().cuda(local_rank)
    {wrap}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    {before}
    for epoch in range(args.epochs):
        {epoch}
        for step, (x,) in enumerate(loader):
            loss = model(x.cuda(local_rank)).mean()
            {step}
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        {end}
    dist.destroy_process_group()
if __name__ == "__main__":
    main()
"""
RIGHT = {
    "data": "data = TensorDataset(torch.rand(64, 4)); sampler = DistributedSampler(data); "
    "loader = DataLoader(data, 8, sampler=sampler)",
    "wrap": "model = DDP(model, device_ids=[local_rank])",
    "before": "pass",
    "epoch": "sampler.set_epoch(epoch)",
    "step": "pass",
    "end": "pass",
}
SPLIT = "sampler = DistributedSampler(files); loader = DataLoader(files, 8, sampler=sampler)"
RESUME = """start = 0
    if rank == 0:
        state = torch.load("/shared/a.pt")
        {model}.load_state_dict(state["model"])
        {position}"""


def loop(**changes: str) -> str:
    return LOOP.format(**{**RIGHT, **changes})


WRONG = {
    "nothing averages": ("never-synchronized", {"wrap": "pass"}),
    "one epoch for all": ("set-epoch", {"before": "first = 0", "epoch": "sampler.set_epoch(first)"}),
    "a log of all": ("saved-by-all", {"end": 'json.dump({}, open(os.path.join(args.out, "m.json"), "w"))'}),
    "an array of all": ("saved-by-all", {"end": 'np.save(f"{args.out}/pred_{epoch}.npy", np.zeros(3))'}),
    "a flag of rank 0": (
        "left-by-one",
        {"before": "stop = False", "end": "if rank == 0 and loss.item() < 0.1: stop = True\n        if stop: break"},
    ),
    "rank 0 returns": ("left-by-one", {"end": "if rank == 0:\n            if loss.item() < 0.1: return"}),
    "an object of rank 0": (
        "left-by-one",
        {"before": "stopper = Stopper()", "end": "if rank == 0: stopper(loss.item())\n        if stopper.stop: break"},
    ),
    "a large loss": ("left-by-one", {"step": "if loss.item() > 10: continue"}),
    "an array": ("tensor-on-cpu", {"end": "t = torch.from_numpy(np.zeros(2))\n        dist.all_reduce(t)"}),
    "a counter": ("not-a-tensor", {"before": "seen = 0", "end": "seen += 5\n        dist.all_reduce(seen)"}),
    "never waited": ("not-awaited", {"end": "work = dist.all_reduce(loss, async_op=True)\n        print(loss)"}),
    "made and wrapped": ("model-on-cpu", {"wrap": "model = DDP(Net(), device_ids=[local_rank])"}),
    "around": ("two-wrappers", {"wrap": "model = nn.DataParallel(DDP(model, device_ids=[local_rank]))"}),
    "inside": ("two-wrappers", {"wrap": "model = DDP(nn.DataParallel(model))"}),
    "one GPU for all": ("fixed-device", {"wrap": "model = DDP(model, device_ids=[0])"}),
    "one place for all": ("fixed-device", {"wrap": "model = DDP(model.to('cuda:0'))"}),
    "files in any order": (
        "split-by-rank",
        {"data": f"files = list(range(64)); random.shuffle(files); files = files[rank::world]; {SPLIT}"},
    ),
    "numbers in any order": ("split-by-rank", {"data": f"files = np.random.permutation(9); n = files[:5]; {SPLIT}"}),
    "works that nothing waits for": (
        "not-awaited",
        {"end": "works = []\n        works.append(dist.all_reduce(loss, async_op=True))\n        print(len(works))"},
    ),
    "a root of its own": ("other-roots", {"end": "dist.broadcast(loss, src=dist.get_rank(), group=dist.group.WORLD)"}),
    "a new generator": (
        "split-by-rank",
        {"data": f"files = np.random.default_rng().permutation(9); n = files[:5]; {SPLIT}"},
    ),
    "a split of scikit": ("split-by-rank", {"data": f"files, test = train_test_split(list(range(64))); {SPLIT}"}),
    "only rank 0 goes on": (
        "loaded-by-one",
        {"before": RESUME.format(model="net", position='start = state["epoch"]')},
    ),
    "only rank 0 loads": ("loaded-by-one", {"before": RESUME.format(model="model.module", position="pass")}),
}
NOT_WRONG = {
    "as it is": {},
    "a file each": {"end": 'np.save(f"{args.out}/pred_{rank}.npy", np.zeros(3))'},
    "a file for each sample": {"end": 'for name in x: open(f"{args.out}/{name}.txt", "w")'},
    "a flag for all": {
        "before": "stop = False",
        "end": "if rank == 0: stop = True\n        flag = [stop]\n        dist.broadcast_object_list(flag)\n"
        "        if flag[0]: break",
    },
    "a counter in a tensor": {
        "before": "seen = 0",
        "end": "seen += 5\n        seen = torch.tensor(seen).cuda()\n        dist.all_reduce(seen)",
    },
    "waited for": {"end": "work = dist.all_reduce(loss, async_op=True)\n        work.wait()"},
    "seeded": {"data": f"random.seed(0); files = list(range(64)); random.shuffle(files); files = files[:9]; {SPLIT}"},
    "a split with a state": {"data": f"files, test = train_test_split(list(range(64)), random_state=0); {SPLIT}"},
    "the weights before the wrapper": {
        "wrap": 'if rank == 0: model.load_state_dict(torch.load("/shared/a.pt"))\n    model = DDP(model)'
    },
}


@pytest.mark.parametrize("name", WRONG)
def test_it_is_found(name: str, tmp_path: Path) -> None:
    check, changes = WRONG[name]
    assert check in found(tmp_path, loop(**changes), backend=SLURM)


@pytest.mark.parametrize("name", NOT_WRONG)
def test_what_is_right_is_not(name: str, tmp_path: Path) -> None:
    assert not found(tmp_path, loop(**NOT_WRONG[name]), backend=SLURM)


SPAWN = """
import argparse, os, torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.nn.parallel import DistributedDataParallel as DDP
def worker(gpu, n, args):
    rank = {rank}
    torch.cuda.set_device({device})
    dist.init_process_group("nccl", init_method={url}, world_size={size}, rank=rank)
    model = DDP(torch.nn.Linear(4, 1).cuda(gpu), device_ids=[gpu])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(torch.rand(4, 4).cuda(gpu)).mean().backward()
    optimizer.step()
    dist.destroy_process_group()
def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--init_method")
    parser.add_argument("--rank", type=int, default=0)
    parser.add_argument("--world_size", type=int, default=1)
    args = parser.parse_args()
    n = torch.cuda.device_count()
    {start}
if __name__ == "__main__":
    main()
"""
SPAWNED = {
    "rank": "args.rank * n + gpu",
    "device": "gpu",
    "url": "args.init_method",
    "size": "args.world_size * n",
    "start": "mp.spawn(worker, args=(n, args), nprocs=n)",
}
PROCESSES = "for i in range(n): mp.Process(target=worker, args=(i, n, args)).start()"


@pytest.mark.parametrize(
    ("check", "changes"),
    [
        ("same-ranks", {"rank": "gpu"}),
        ("same-ranks", {"rank": "args.rank + gpu"}),
        ("same-ranks", {"rank": "gpu", "start": PROCESSES}),
        ("rank-env", {"rank": 'int(os.environ["RANK"])'}),
        ("fixed-world-size", {"size": "args.world_size"}),
        ("fixed-world-size", {"size": "n"}),
        ("fixed-world-size", {"start": "mp.spawn(worker, args=(n, args), nprocs=args.world_size)"}),
        ("fixed-master", {"url": '"tcp://127.0.0.1:23456"'}),
        ("rank-as-device", {"device": "rank"}),
        ("", {}),
        ("", {"start": PROCESSES}),
        ("", {"url": '"env://"'}),
    ],
)
def test_processes_that_the_boot_file_starts(check: str, changes: dict[str, str], tmp_path: Path) -> None:
    backend = {**SLURM, "gpus_per_node": 8}
    found_here = found(
        tmp_path, SPAWN.format(**{**SPAWNED, **changes}), mode="spawn", resources={"nodes": 2}, backend=backend
    )
    assert check in found_here if check else not found_here


HELPERS = """
import math, os, time, torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
class Meter:
    def gather(self):
        dist.barrier()
class Meters:
    def __init__(self): self.meters = dict(a=Meter())
    def gather(self):
        for name in self.meters: self.meters[name].gather()
class Saver:
    def __init__(self, folder):
        self.last = os.path.join(folder, "last.pt")
    def save(self):
        if dist.get_rank() == 0: torch.save(1, self.last)
class Table:
    def __init__(self, path):
        self.words = open(path).read()
class Trainer:
    def __init__(self, net):
        self.model = DDP(net)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
    def loss(self, x):
        inner = {model}
        return inner(x).mean()
    def update(self, x):
        loss = self.loss(x)
        {skip}
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss
    def epoch(self):
        for x in range(9): self.update(torch.rand(1, 4))
    def run(self):
        for epoch in range(9):
            self.epoch()
            if dist.get_rank() == 0:
                {rank_zero}
def folder():
    return os.path.join("/shared", {name})
def average(value):
    dist.all_reduce(value)
def evaluate():
    meters = Meters()
    meters.gather()
def table():
    return Table(os.path.join("words", "units.txt"))
dist.init_process_group("gloo")
torch.manual_seed(0)
Trainer(torch.nn.Linear(4, 1)).run()
torch.load("/shared/last.pt")
Saver(folder()).save()
average({number})
evaluate()
table()
"""
IN_HELPERS = {
    "model": "self.model",
    "skip": "pass",
    "rank_zero": "pass",
    "name": '"run"',
    "number": "torch.zeros(1)",
}


@pytest.mark.parametrize(
    ("check", "changes"),
    [
        ("bypassed", {"model": "self.model.module"}),
        ("left-by-one", {"skip": "if not math.isfinite(loss.item()): return None"}),
        ("left-by-one", {"rank_zero": "break"}),
        ("rank-0-collective", {"rank_zero": "evaluate()"}),
        ("no-checkpoint", {"name": 'time.strftime("%Y")'}),
        ("not-a-tensor", {"number": "loss.item()"}),
        ("", {}),
    ],
)
def test_mistakes_in_helpers_and_methods(check: str, changes: dict[str, str], tmp_path: Path) -> None:
    here = found(tmp_path, HELPERS.format(**{**IN_HELPERS, **changes}), backend=SLURM, restarts={"max": 1})
    assert check in here if check else not here


def test_a_file_that_a_constructor_opens(tmp_path: Path) -> None:
    (tmp_path / "words").mkdir()
    (tmp_path / "words/units.txt").touch()
    assert "left-out" not in found(tmp_path, HELPERS.format(**IN_HELPERS), backend=SLURM)
    (tmp_path / ".gitignore").write_text("*.txt\n")
    assert "left-out" in found(tmp_path, HELPERS.format(**IN_HELPERS), backend=SLURM)


ACCELERATED = """
from accelerate import Accelerator
from torch.utils.data import DataLoader
def loaders():
    return DataLoader(range(9)), DataLoader(range(9))
accelerator = Accelerator()
train, test = loaders()
net, {given} = accelerator.prepare(make(), {given})
for epoch in range(3):
    for step, x in enumerate(train):
        accelerator.backward(net(x).mean())
"""


def test_a_loader_from_a_function_must_be_prepared(tmp_path: Path) -> None:
    assert "no-sampler" in found(tmp_path, ACCELERATED.format(given="test"), backend=SLURM)
    assert "no-sampler" not in found(tmp_path, ACCELERATED.format(given="train"), backend=SLURM)


@pytest.mark.parametrize(
    ("nodes", "is_found"), [("num_nodes: 1", True), ("num_nodes: 2", False), ("max_epochs: 3", True)]
)
def test_the_nodes_in_a_configuration_of_lightning(nodes: str, is_found: bool, tmp_path: Path) -> None:
    (tmp_path / "base.yaml").write_text(f"trainer:\n  {nodes}\n")
    text = "from lightning.pytorch.cli import LightningCLI\nLightningCLI()\n"
    here = found(tmp_path, text, backend=SLURM, args=["fit", "--config", "base.yaml"])
    assert ("lightning-nodes" in here) == is_found


@pytest.mark.parametrize("is_module", [True, False])
def test_a_program_that_is_started_as_a_module(is_module: bool, tmp_path: Path) -> None:
    (tmp_path / "pkg").mkdir()
    (tmp_path / "pkg/data.py").write_text("size = 1\n")
    (tmp_path / "pkg/main.py").write_text("from .data import size, colour\n")
    (tmp_path / "run.sh").write_text(f"torchrun {'-m pkg.main' if is_module else 'pkg/main.py'}\n")
    texts = [one.text for one in findings(tmp_path, command=["bash", "run.sh"])]
    assert ("pkg/data.py does not define colour" in texts) == is_module
    assert any("fails in the boot file" in text for text in texts) != is_module
