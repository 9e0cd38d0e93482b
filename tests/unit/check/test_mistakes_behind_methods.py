"""Mistakes that a property, a method or a function of another file hides."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from checked import findings, found

BEGIN = """
import argparse, contextlib, os, torch, numpy as np, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Subset
from torch.utils.data.distributed import DistributedSampler
"""
SLURM = {"kind": "slurm", "shared_dir": "/shared", "gpus_per_node": "8"}
EIGHT: dict[str, Any] = {"resources": {"nodes": 2, "nproc_per_node": 8}, "backend": SLURM}
TRAINER = (
    BEGIN
    + """
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.body = torch.nn.Linear(4, 4)
    def set_trainable(self, flag):
        for p in self.body.parameters():
            p.requires_grad = flag
class Trainer:
    def __init__(self):
        dist.init_process_group("gloo")
        self._net = Net()
        self._net.set_trainable({first})
        self.net = DDP(self._net)
        self.updates = 0
    @property
    def is_first(self):
        return dist.get_rank() == {first_rank}
    def context(self, step):
        if {skips}:
            return contextlib.nullcontext()
        return self.net.no_sync()
    def train(self):
        for i in range(1000):
            if self.updates == 100:
                self._net.set_trainable(True)
            with self.context(i):
                self.net(torch.rand(2, 4)).sum().backward()
            if (i + 1) % 4 == 0:
                self.updates += 1
    def keep(self):
        if {saves}:
            torch.save(self._net.state_dict(), "/shared/last.pt")
trainer = Trainer()
trainer.train()
trainer.keep()
"""
)
FINE = {"first": "True", "first_rank": "0", "skips": "(step + 1) % 4 == 0", "saves": "self.is_first"}


@pytest.mark.parametrize(
    ("check", "change"),
    [
        ("saved-by-all", {"saves": "self.updates"}),
        ("never-synchronized", {"skips": "step % 4 == 0"}),
        ("thawed-later", {"first": "False"}),
    ],
)
def test_a_method_and_a_property_are_followed(check: str, change: dict[str, str], tmp_path: Path) -> None:
    assert check in found(tmp_path, TRAINER.format(**{**FINE, **change}), **EIGHT)
    assert check not in found(tmp_path, TRAINER.format(**FINE), **EIGHT)


RESUMED = (
    BEGIN
    + """
from saving import load_all
def is_main(args):
    return args.rank == 0
args = argparse.Namespace(rank=int(os.environ["RANK"]))
dist.init_process_group("gloo")
net = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(net.parameters(), 0.1)
start = 0
if {who}:
    start = load_all(net, optimizer)
net = DDP(net)
for epoch in range(start, 9):
    net(torch.rand(2, 4)).sum().backward()
"""
)


def test_a_state_that_a_function_of_another_file_loads_on_rank_0(tmp_path: Path) -> None:
    (tmp_path / "saving.py").write_text(
        "import torch\ndef load_all(net, optimizer):\n    state = torch.load('/shared/last.pt')\n"
        "    net.load_state_dict(state['net'])\n    optimizer.load_state_dict(state['optimizer'])\n"
        "    return state['epoch']\n"
    )
    assert "loaded-by-one" in found(tmp_path, RESUMED.format(who="is_main(args)"), **EIGHT)
    assert "loaded-by-one" not in found(tmp_path, RESUMED.format(who="os.path.exists('/shared/last.pt')"), **EIGHT)


RING = (
    BEGIN
    + """
def ring(x):
    rank, size = dist.get_rank(), dist.get_world_size()
    y = torch.empty_like(x)
    {messages}
dist.init_process_group("gloo")
ring(torch.ones(1))
"""
)
WAIT, SEND = "dist.recv(y, src=(rank - 1) % size)", "dist.send(x, dst=(rank + 1) % size)"


@pytest.mark.parametrize(
    "messages",
    [
        f"work = dist.isend(x, dst=(rank + 1) % size); {WAIT}; work.wait()",
        f"if rank: {WAIT}\n    {SEND}",
        f"if rank % 2:\n        {WAIT}; {SEND}\n    else:\n        {SEND}; {WAIT}",
    ],
)
def test_a_ring_in_which_all_ranks_wait_first(messages: str, tmp_path: Path) -> None:
    assert "recv-before-send" in found(tmp_path, RING.format(messages=f"{WAIT}; {SEND}"), **EIGHT)
    assert "recv-before-send" in found(tmp_path, RING.format(messages=f"{SEND}; {WAIT}"), **EIGHT)
    assert "recv-before-send" not in found(tmp_path, RING.format(messages=messages), **EIGHT)


CORPUS = (
    BEGIN
    + """
parser = argparse.ArgumentParser()
parser.add_argument("--cache", default="{folder}/words")
def build(cache):
    np.save(os.path.join(cache, "words.npy"), np.zeros(3))
class Corpus:
    def __init__(self, cache):
        if dist.get_rank() == 0:
            build(cache)
        dist.barrier()
        for name in ("words",):
            setattr(self, name, np.load(os.path.join({read}, name + ".npy")))
def main():
    args = parser.parse_args()
    dist.init_process_group("gloo")
    Corpus(args.cache)
main()
"""
)


def test_a_cache_that_a_function_fills_on_the_disk_of_one_node(tmp_path: Path) -> None:
    assert "staged-by-one" in found(tmp_path, CORPUS.format(folder="/tmp", read="cache"), **EIGHT)
    assert "staged-by-one" not in found(tmp_path, CORPUS.format(folder="/shared", read="cache"), **EIGHT)
    assert "staged-by-one" not in found(tmp_path, CORPUS.format(folder="/tmp", read="'/data'"), **EIGHT)


REST = (
    BEGIN
    + """
def loaders(train_set, val_set, world):
    sampler = DistributedSampler(train_set)
    counted = DistributedSampler(val_set, shuffle=False, drop_last=True)
    begin = len(counted) * world
    rest = Subset({whole}, range(begin, len(val_set)))
    return DataLoader(train_set, sampler=sampler), DataLoader(rest, batch_size=8), sampler
dist.init_process_group("gloo")
net = DDP(torch.nn.Linear(4, 4))
train, rest, sampler = loaders(range(100), range(50), dist.get_world_size())
for epoch in range(3):
    sampler.set_epoch(epoch)
    for x in train:
        net(x).sum().backward()
"""
)


def test_what_is_left_of_a_validation_is_for_all_ranks(tmp_path: Path) -> None:
    assert "no-sampler" not in found(tmp_path, REST.format(whole="val_set"), **EIGHT)
    assert "no-sampler" in found(tmp_path, REST.format(whole="train_set"), **EIGHT)


SWITCHED = (
    BEGIN
    + """
from dataclasses import dataclass
@dataclass
class Config:
    path: str = "last.pt"
    steps: int = 4
class Trainer:
    def __init__(self, config):
        self.config = config
    def make(self):
        net = registry.build("net")
        {before}
        net = DDP(net, device_ids=[int(os.environ["LOCAL_RANK"])])
        return net.to("cuda")
    def train(self):
        model = self.make()
        for step in range(4):
            model.require_backward_grad_sync = {syncs}
            model(torch.rand(2, 4)).sum().backward()
        if dist.get_rank() == 0:
            torch.save(model.state_dict(), self.config.path)
    def load(self):
        return torch.load(self.config.path)
dist.init_process_group("nccl")
trainer = Trainer(Config({path}**settings()))
trainer.load()
trainer.train()
"""
)
FINE_SWITCH = {"before": "net = net.cuda()", "syncs": "step == 4 - 1", "path": "path='/shared/last.pt', "}


@pytest.mark.parametrize(
    ("check", "change"),
    [
        ("model-on-cpu", {"before": "pass"}),
        ("never-synchronized", {"syncs": "(step % 4 == 0)"}),
    ],
)
def test_a_model_of_a_registry_and_a_switch(check: str, change: dict[str, str], tmp_path: Path) -> None:
    assert check in found(tmp_path, SWITCHED.format(**{**FINE_SWITCH, **change}), **EIGHT)
    assert check not in found(tmp_path, SWITCHED.format(**FINE_SWITCH), **EIGHT)


@pytest.mark.parametrize("path", ["path='/shared/last.pt', ", ""])
def test_a_field_that_is_given_beside_others_is_not_its_default(path: str, tmp_path: Path) -> None:
    fields: dict[str, Any] = {**EIGHT, "restarts": 2, "checkpoint_dir": {"uri": "/shared", "as": "env"}}
    text = SWITCHED.format(**{**FINE_SWITCH, "path": path})
    (tmp_path / "train.py").write_text(text)
    assert not [one for one in findings(tmp_path, **fields) if "checkpoints go to" in one.text]


PREPARED = (
    BEGIN
    + """
def prepare():
    dist.init_process_group("gloo")
    return torch.device("cpu")
def train(device):
    DDP(torch.nn.Linear(4, 4).to(device))
{start}
"""
)


def test_what_stands_in_the_arguments_is_called_first(tmp_path: Path) -> None:
    assert "no-init" not in found(tmp_path, PREPARED.format(start="train(prepare())"), **EIGHT)
    assert "no-init" in found(tmp_path, PREPARED.format(start="train('cpu'); prepare()"), **EIGHT)


FROZEN_BY_FUNCTION = (
    BEGIN
    + """
def freeze(model):
    head = {{id(p) for p in model[1].parameters()}}
    for p in model.parameters():
        p.requires_grad = id(p) in head
def unfreeze(model):
    for p in model.parameters():
        p.requires_grad_(True)
def main():
    dist.init_process_group("gloo")
    net = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 2))
    {first}(net)
    net = DDP(net)
    for epoch in range(9):
        if epoch == 3:
            unfreeze(net.module)
        net(torch.rand(2, 4)).sum().backward()
main()
"""
)


def test_what_a_function_may_have_frozen(tmp_path: Path) -> None:
    assert "thawed-later" in found(tmp_path, FROZEN_BY_FUNCTION.format(first="freeze"), **EIGHT)
    assert "thawed-later" not in found(tmp_path, FROZEN_BY_FUNCTION.format(first="unfreeze"), **EIGHT)
