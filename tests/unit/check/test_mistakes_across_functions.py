"""Mistakes that show only where values are followed through functions, and those of random or reduced values."""

from pathlib import Path
from typing import Any

import pytest
from checked import SLURM, each_mistake, findings, found

FLAVOR = {
    "backend": {"kind": "modelarts"},
    "resources": {"nodes": 2, "flavor": "modelarts.vm.gpu.8v100"},
    "image": "nlp/pytorch:2.7",
    "torch_version": "2.7",
    "store": {"uri": "s3://bucket/jobs"},
}

SHARDED = """
import torch, torch.distributed as dist
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
def build():
    model = torch.nn.Linear(4, 1)
    return model, {optimizer}
def shard(model):
    return FSDP(model, device_id=0)
dist.init_process_group("nccl")
model, made = build()
model = shard(model)
optimizer = {after}
"""

ACCUMULATED = """
import contextlib, torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
dist.init_process_group("gloo")
model = DDP(torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(8):
    is_last = (step + 1) % 4 == 0 or step + 1 == 8
    with {context}:
        model(torch.rand(8, 4)).mean().backward()
    if is_last:
        optimizer.step()
"""

PARTS = """
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
def set_trainable(part, is_trained):
    for p in part.parameters():
        p.requires_grad = is_trained
dist.init_process_group("gloo")
net = torch.nn.ModuleDict({{"body": torch.nn.Linear(4, 4)}})
{before}
model = DDP(net)
for epoch in range(9):
    if epoch == 3:
        set_trainable(model.module.body, True)
"""

GRADIENTS = """
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
class Tables(torch.nn.Module):
    def scale(self):
        for p in self.parameters():
            p.grad.div_(dist.get_world_size())
class Net(torch.nn.Module):
    def scale(self):
        for p in self.parameters():
            p.grad.div_(dist.get_world_size())
dist.init_process_group("gloo")
tables = Tables()
net = Net().to("cpu")
model = DDP({wrapped})
model(torch.rand(4, 4)).mean().backward()
{scaled}.scale()
"""

NORMS = """
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
dist.init_process_group("gloo")
model = DDP(torch.nn.Linear(4, 1))
model(torch.rand(4, 4)).mean().backward()
for p in model.parameters():
    total = {value}
    dist.all_reduce(total)
    p.grad /= dist.get_world_size()
"""

LAYERS = """
import random, torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
class Net(torch.nn.Module):
    def __init__(self, drop):
        super().__init__()
        self.drop = drop
        self.layers = torch.nn.ModuleList([torch.nn.Linear(4, 4) for _ in range(3)])
    def forward(self, x):
        for layer in self.layers:
            if not self.training or random.random() > self.drop:
                x = layer(x)
        return x
dist.init_process_group("gloo")
model = DDP(Net({drop}){flag})
"""

PLATEAU = """
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
class Meter:
    def total(self, value):
        stats = torch.tensor([value])
        dist.{reduce}(stats, 0)
        return stats.tolist()
dist.init_process_group("gloo")
model = DDP(torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)
for epoch in range(9):
    (loss,) = Meter().total(0.5)
    scheduler.step(loss / 2)
"""

PORTS = """
import argparse, socket, torch, torch.multiprocessing as mp, torch.distributed as dist
def free_port():
    with socket.socket() as sock:
        sock.bind(("", 0))
        return sock.getsockname()[1]
def worker(gpu, n, args, url):
    dist.init_process_group("nccl", init_method=url, world_size=args.world_size * n, rank=args.rank * n + gpu)
parser = argparse.ArgumentParser()
parser.add_argument("--init_method")
parser.add_argument("--rank", type=int, default=0)
parser.add_argument("--world_size", type=int, default=1)
args = parser.parse_args()
if __name__ == "__main__":
    url = args.init_method
    {port}
    n = torch.cuda.device_count()
    mp.spawn(worker, args=(n, args, url), nprocs=n)
"""
SPAWN = {"mode": "spawn", "resources": {"nodes": 2}, "backend": {**SLURM, "gpus_per_node": 8}}

STREAM = """
import os, torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, IterableDataset, get_worker_info
class Lines(IterableDataset):
    def __iter__(self):
        info = get_worker_info()
        yield from self.files[{part}]
dist.init_process_group("nccl")
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
model = DDP(torch.nn.Linear(4, 1).cuda())
for x in DataLoader(Lines(), batch_size=8):
    model(x.cuda()).mean().backward()
"""

FIRST = """
import os, torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
class Trainer:
    def __init__(self, net):
        self.net, self.rank = net, int(os.environ["RANK"])
        self.optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        {condition}
            self._load_state()
        self.model = DDP(net)
        self.model(torch.rand(4, 4)).mean().backward()
    def _load_state(self):
        state = torch.load("/shared/last.pt")
        self.optimizer.load_state_dict(state["optimizer"])
dist.init_process_group("gloo")
Trainer(torch.nn.Linear(4, 1))
"""

TOWERS = """
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
class Net(torch.nn.Module):
    def encode(self, x):
        return x
def train(model):
    {body}.mean().backward()
@torch.no_grad()
def evaluate(model):
    model(torch.rand(4, 4))
def main():
    dist.init_process_group("gloo")
    model = DDP(Net())
    train(model)
    evaluate(model.module)
main()
"""

SCALER = """
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
class Scaler:
    def __call__(self, loss, optimizer):
        torch.amp.GradScaler().scale(loss).backward()
dist.init_process_group("gloo")
model = DDP(torch.nn.Linear(4, 1))
scaler = Scaler()
loss = model(torch.rand(4, 4)).mean()
scaled = loss / {by}
scaler(scaled, None)
"""

CACHE = """
import argparse, torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
parser = argparse.ArgumentParser()
parser.add_argument("--cache", default="{folder}/spectra.pt")
args = parser.parse_args()
dist.init_process_group("gloo")
model = DDP(torch.nn.Linear(4, 1))
if dist.get_rank() == 0:
    torch.save(torch.rand(4), args.cache)
dist.barrier()
data = torch.load(args.cache)
"""

DEVICE = """
import os, torch, torch.distributed as dist
try:
    rank, local_rank = int(os.environ["RANK"]), int(os.environ["LOCAL_RANK"])
    dist.init_process_group("nccl")
except KeyError:
    rank, local_rank = 0, 0
    dist.init_process_group("nccl", init_method="tcp://127.0.0.1:12584", rank=0, world_size=1)
def main():
    torch.cuda.set_device({number})
main()
"""

STARTED = """
import torch.distributed as dist, torch.multiprocessing as mp
def worker(number, size, backend="nccl"):
    dist.init_process_group(backend, init_method="env://", rank=number, world_size=size)
if __name__ == "__main__":
    for number in range(2):
        mp.Process(target=worker, args=(number, 2{more})).start()
"""

THAWED = """
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
class Net(torch.nn.Module):
    def freeze(self):
        for p in self.body.parameters():
            p.requires_grad = False
    def unfreeze(self):
        for p in self.body.parameters():
            p.requires_grad = True
class Trainer:
    def __init__(self, net):
        self.net, self.model = net, DDP(net)
    def fit(self):
        for epoch in range(9):
            if epoch == 3:
                self.net.unfreeze()
            self.model(torch.rand(4, 4)).mean().backward()
dist.init_process_group("gloo")
net = Net()
{before}
Trainer(net).fit()
"""

SAVER = """
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
dist.init_process_group("gloo")
model = DDP(torch.nn.Linear(4, 1))
saver = Saver() if {condition} else None
for epoch in range(9):
    model(torch.rand(4, 4)).mean().backward()
    if saver is not None:
        if saver.save(epoch) > 3:
            break
"""

SETS = """
import torch, torch.distributed as dist
dist.init_process_group("gloo")
sums = {{"loss": 1.0, "acc": 2.0}}
names = {names}
for name in names:
    pair = torch.tensor([sums[name]])
    dist.all_reduce(pair)
"""

RUNS = """
import datetime, pathlib, torch, torch.distributed as dist
class Run:
    def __init__(self, root):
        name = [{name}]
        dist.broadcast_object_list(name, src=0)
        self.folder = pathlib.Path(root) / name[0]
    @property
    def last(self):
        return self.folder / "last.pt"
    def save(self):
        torch.save(1, self.last)
    def load(self):
        return torch.load(self.last)
dist.init_process_group("gloo")
run = Run("/shared/runs")
run.load()
if dist.get_rank() == 0:
    run.save()
"""

CASES: list[tuple[str, str, str, dict[str, Any]]] = [
    (
        "optimizer-too-early",
        SHARDED.format(optimizer="torch.optim.AdamW(model.parameters())", after="made"),
        SHARDED.format(optimizer="None", after="torch.optim.AdamW(model.parameters())"),
        {"backend": SLURM},
    ),
    (
        "never-synchronized",
        ACCUMULATED.format(context="model.no_sync() if is_last else contextlib.nullcontext()"),
        ACCUMULATED.format(context="contextlib.nullcontext() if is_last else model.no_sync()"),
        {},
    ),
    ("thawed-later", PARTS.format(before="set_trainable(net.body, False)"), PARTS.format(before="pass"), {}),
    (
        "divided-again",
        GRADIENTS.format(wrapped="net", scaled="net"),
        GRADIENTS.format(wrapped="tables.x", scaled="net"),
        {},
    ),
    ("double-averaging", NORMS.format(value="p.grad.flatten()"), NORMS.format(value="p.grad.pow(2).sum()"), {}),
    ("unused-parameters", LAYERS.format(drop="0.1", flag=""), LAYERS.format(drop="0.0", flag=""), {}),
    (
        "unused-parameters",
        LAYERS.format(drop="0.1", flag=""),
        LAYERS.format(drop="0.1", flag=", find_unused_parameters=True"),
        {},
    ),
    ("reduced-to-one", PLATEAU.format(reduce="reduce"), PLATEAU.format(reduce="broadcast"), {}),
    ("fixed-master", PORTS.format(port='url = f"tcp://node0:{free_port()}"'), PORTS.format(port="pass"), SPAWN),
    (
        "no-sampler",
        STREAM.format(part="info.id :: info.num_workers"),
        STREAM.format(part="dist.get_rank() + info.id :: dist.get_world_size() * info.num_workers"),
        FLAVOR,
    ),
    (
        "loaded-by-one",
        FIRST.format(condition='if self.rank == 0 and os.path.exists("/shared/last.pt"):'),
        FIRST.format(condition='if os.path.exists("/shared/last.pt"):'),
        {},
    ),
    (
        "bypassed",
        TOWERS.format(body="model.module.encode(torch.rand(4, 4))"),
        TOWERS.format(body="model(torch.rand(4, 4))"),
        {},
    ),
    ("divided-again", SCALER.format(by="dist.get_world_size()"), SCALER.format(by="4"), {}),
    ("staged-by-one", CACHE.format(folder="/tmp"), CACHE.format(folder="/shared"), {"backend": SLURM}),
    ("rank-as-device", DEVICE.format(number="rank"), DEVICE.format(number="local_rank"), {"backend": SLURM}),
    (
        "nccl-on-cpu",
        STARTED.format(more=""),
        STARTED.format(more=", 'gloo'"),
        {"mode": "spawn", "resources": {"nodes": 1}},
    ),
    (
        "unused-parameters",
        LAYERS.format(drop="0.1", flag="").replace(
            "            if not self.training or random.random() > self.drop:\n                x = layer(x)\n",
            "            if random.random() < self.drop:\n                continue\n            x = layer(x)\n",
        ),
        LAYERS.format(drop="0.0", flag=""),
        {},
    ),
    ("thawed-later", THAWED.format(before="net.freeze()"), THAWED.format(before="pass"), {}),
    ("left-by-one", SAVER.format(condition="dist.get_rank() == 0"), SAVER.format(condition="True"), {}),
    ("set-order", SETS.format(names="set(sums) - {'x'}"), SETS.format(names="sorted(set(sums))"), {}),
    (
        "no-checkpoint",
        RUNS.format(name="datetime.datetime.now().isoformat()"),
        RUNS.format(name='"run"'),
        {"restarts": 3, "backend": SLURM},
    ),
]


@each_mistake(CASES)
def test_a_mistake_is_found_where_it_is(
    check: str, wrong: str, right: str, fields: dict[str, Any], tmp_path: Path
) -> None:
    assert check in found(tmp_path, wrong, **fields)
    assert check not in found(tmp_path, right, **fields)


def test_layers_outside_of_the_wrapper_may_be_scaled(tmp_path: Path) -> None:
    tables, net = GRADIENTS.split("class Net")
    text = tables + "class Net" + net.replace("p.grad.div_(dist.get_world_size())", "print(p.grad)")
    assert "divided-again" not in found(tmp_path, text.format(wrapped="net", scaled="tables"))


def test_a_stream_may_be_divided_by_what_it_uses(tmp_path: Path) -> None:
    own = STREAM.format(part="info.id :: info.num_workers").replace("self.files[", "Shards()[")
    shards = "class Shards:\n    def __getitem__(self, part):\n        return self.files[dist.get_rank() :: 2][part]\n"
    assert "no-sampler" not in found(tmp_path, own.replace("class Lines", f"{shards}class Lines"), **FLAVOR)


GPUS = """
import os, torch, torch.distributed as dist
dist.init_process_group("nccl")
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
"""


@pytest.mark.parametrize(
    ("backend", "is_missing"),
    [
        ({"kind": "slurm", "shared_dir": "/shared"}, True),
        ({"kind": "slurm", "shared_dir": "/shared", "gpus_per_node": 2}, False),
        ({"kind": "slurm", "shared_dir": "/shared", "extra_sbatch": ["--gres=gpu:2"]}, False),
        ({"kind": "volcano"}, True),
        ({"kind": "volcano", "resources": {"nvidia.com/gpu": 2}}, False),
        ({"kind": "ssh", "hosts": ["gpu1", "gpu2"]}, False),
    ],
)
def test_gpus_that_nobody_requests(backend: dict[str, Any], is_missing: bool, tmp_path: Path) -> None:
    assert ("no-gpu-request" in found(tmp_path, GPUS, backend=backend)) is is_missing
    assert "no-gpu-request" not in found(tmp_path, GPUS.replace("torch.cuda", "#"), backend=backend)


CLICK = """
import click, functools
def options(function):
    @click.option("--width", default=128)
    @functools.wraps(function)
    def wrapper(*args, **kwargs):
        return function(*args, **kwargs)
    return wrapper
@click.command()
@click.option("--lr", default=0.1)
@options
def main(lr, width):
    pass
if __name__ == "__main__":
    main()
"""


def test_options_that_a_decorator_of_the_program_adds(tmp_path: Path) -> None:
    assert not found(tmp_path, CLICK, hyperparameters={"lr": 0.2, "width": 64})
    assert found(tmp_path, CLICK, hyperparameters={"hidden": 64}) == {"argument-unknown"}
    assert found(tmp_path, CLICK, hyperparameters={"width": "wide"}) == {"argument-type"}


def test_a_script_that_names_its_arguments(tmp_path: Path) -> None:
    (tmp_path / "run.sh").write_text(
        '#!/bin/bash\nSCRIPT=$1\nshift\ntorchrun --nnodes=$NNODES --nproc_per_node=2 "$SCRIPT" "$@"\n'
    )
    text = "import argparse\np = argparse.ArgumentParser()\np.add_argument('--lr')\np.parse_args()\n"
    command = ["bash", "run.sh", "train.py"]
    assert "argument-unknown" in found(tmp_path, text, command=command, hyperparameters={"width": 4})
    assert "argument-unknown" not in found(tmp_path, text, command=command, hyperparameters={"lr": 4})


def test_the_hint_for_an_address_fits_the_mode(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        "import torch.distributed as dist\ndist.init_process_group('gloo', init_method='tcp://localhost:29500')\n"
    )
    (hint,) = [one.hint for one in findings(tmp_path) if one.check == "fixed-master"]
    assert hint.startswith("remove init_method")
