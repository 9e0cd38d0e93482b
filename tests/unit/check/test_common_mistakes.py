"""One training loop with DistributedDataParallel, and what goes wrong in it most often."""

from __future__ import annotations

from pathlib import Path

import pytest
from checked import found

SLURM = {"kind": "slurm", "shared_dir": "/shared", "gpus_per_node": 2}
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
