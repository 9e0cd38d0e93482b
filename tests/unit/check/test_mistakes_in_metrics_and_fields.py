"""Mistakes that metrics, inherited methods, fields of dataclasses and decorators hide."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import checked
import pytest
from checked import GPUS, RESTARTED, each_mistake, findings, found

STARTED = f"""{checked.STARTED}
import yaml
from dataclasses import dataclass
data = TensorDataset(torch.rand(64, 4))
"""
METRICS = (
    STARTED
    + """
from torchmetrics.aggregation import MeanMetric
model = DDP(nn.Linear(4, 4).cuda())
mean = MeanMetric({given}).to("cuda", non_blocking=True)
for step in range(9):
    loss = model(torch.rand(2, 4).cuda()).sum()
    loss.backward()
    mean.update(loss)
    if rank == 0 and step % 2 == 0:
        print(f"loss {mean.compute()}")
"""
)
STOPPED = (
    STARTED
    + """
def evaluate(model, loader):
    total = sum(model.module(x.cuda()).sum().item() for (x,) in loader)
    return total / len(loader)
def mean_of(value):
    total = torch.tensor(value).cuda()
    dist.all_reduce(total)
    return total.item() / dist.get_world_size()
model = DDP(nn.Linear(4, 4).cuda())
sampler = DistributedSampler(data)
loader = DataLoader(data, sampler=sampler)
best, best_epoch = 1e9, 0
for epoch in range(99):
    sampler.set_epoch(epoch)
    for (x,) in loader:
        model(x.cuda()).sum().backward()
    own = evaluate(model, loader)
    score = mean_of(own)
    if SCORE < best:
        best, best_epoch = SCORE, epoch
    elif epoch - best_epoch >= 5:
        break
"""
)
LEFT = (
    STARTED
    + """
class Agent:
    def __init__(self):
        self.multi_gpu = bool(os.environ.get("MULTI"))
        self.global_rank = int(os.environ["RANK"])
        self.model = nn.Linear(4, 4).cuda()
    def train_epoch(self):
        self.model(torch.rand(2, 4).cuda()).sum().backward()
        if self.multi_gpu:
            for p in self.model.parameters():
                dist.all_reduce(p.grad)
                p.grad /= dist.get_world_size()
    def train(self):
        epoch = 0
        while True:
            self.train_epoch()
            epoch += 1
            should_exit = False
            if CONDITION:
                if epoch > 99:
                    should_exit = True
            if should_exit:
                return epoch
Agent().train()
"""
)
DEGREES = (
    STARTED
    + """
@dataclass
class Degrees:
    replicate: int
    shard: int
    world: int
    def __post_init__(self):
        self._validate()
    def _validate(self):
        if self.shard < 0:
            self.shard = self.world // self.replicate
        assert self.replicate * self.shard == self.world
def main(settings):
    Degrees(replicate=2, shard=settings["shard"], world=int(os.environ["WORLD_SIZE"]))
with open("c.yaml") as file:
    main(yaml.safe_load(file))
"""
)
INHERITED = (
    STARTED
    + """
class Base:
    def __init__(self):
        self.model = self._build_model()
    def _build_model(self):
        raise NotImplementedError
class Experiment(Base):
    def _build_model(self):
        return DDP(nn.Linear(4, 4).cuda())
    def train(self):
        path = "/shared/last.pth"
        if os.path.exists(path):
            self.model.load_state_dict(torch.load(path, map_location="cpu"))
        for epoch in range(9):
            self.model(torch.rand(2, 4).cuda()).sum().backward()
            if rank == 0:
                torch.save(SAVED.state_dict(), path)
Experiment().train()
"""
)
STREAM = (
    STARTED
    + """
class Stream:
    def __init__(self, loader):
        self.loader, self.epoch = loader, 0
        self.loader.sampler.set_epoch(0)
        self.rows = iter(loader)
    def __next__(self):
        try:
            return next(self.rows)
        except StopIteration:
            self.epoch += 1
            NEXT
            self.rows = iter(self.loader)
            return next(self.rows)
stream = Stream(DataLoader(data, sampler=DistributedSampler(data)))
for epoch in range(9):
    next(stream)
"""
)
ASKED = (
    STARTED
    + """
parser = argparse.ArgumentParser()
parser.add_argument("--resume", default="")
args = parser.parse_args()
model = DDP(nn.Linear(4, 4).cuda())
def load(args, model):
    if args.resume:
        model.load_state_dict(torch.load(args.resume, map_location="cpu"))
load(args, model)
for epoch in range(9):
    model(torch.rand(2, 4).cuda()).sum().backward()
    if rank == 0:
        torch.save(model.state_dict(), "/shared/last.pth")
"""
)
PARSED = """
import os, torch, torch.distributed as dist, torch.nn as nn
from fastcore.script import call_parse
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
def train(lr):
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl")
    model = FSDP(nn.Linear(4, 4).cuda())
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    model(torch.rand(2, 4).cuda()).sum().backward()
    CLIP
    optimizer.step()
@call_parse()
def main(lr: float = 0.1):
    train(lr)
"""


STATISTICS = (
    STARTED
    + """
def update_average(losses):
    stats = torch.stack([torch.stack(losses).sum(), COUNT])
    dist.all_reduce(stats)
    return (stats[0] / stats[1]).item()
update_average([torch.rand(1).cuda()[0]])
"""
)
STREAMED = (
    STARTED
    + """
from torch.utils.data import IterableDataset
class Numbers:
    def __init__(self):
        self.rank = dist.get_rank() if dist.is_initialized() else 0
        self.world_size = dist.get_world_size() if dist.is_initialized() else 1
        info = torch.utils.data.get_worker_info()
        self.worker_id, self.num_workers = (info.id, info.num_workers) if info is not None else (0, 1)
    def sample(self, rows):
        DIVIDED
        return rows[self.worker_id :: self.num_workers]
class Rows(IterableDataset):
    def __init__(self, rows):
        self.rows, self.numbers = rows, Numbers()
    def __iter__(self):
        yield from self.numbers.sample(self.rows)
model = DDP(nn.Linear(4, 4).cuda())
for x in DataLoader(Rows(list(range(64)))):
    model(torch.rand(2, 4).cuda()).sum().backward()
"""
)
CONFIGURED = """
import argparse, pytorch_lightning as pl
from sconf import Config
parser = argparse.ArgumentParser()
parser.add_argument("--config")
args, left = parser.parse_known_args()
config = Config(args.config)
config.argv_update(left)
pl.Trainer(num_nodes=config.get("num_nodes", 1), devices=2).fit(None)
"""


def changed(text: str, name: str, wrong: str, right: str) -> tuple[str, str]:
    return text.replace(name, wrong), text.replace(name, right)


@each_mistake(
    [
        ("rank-0-collective", *changed(METRICS, "{given}", "", "sync_on_compute=False"), GPUS),
        ("left-by-one", *changed(STOPPED, "SCORE", "own", "score"), GPUS),
        ("left-by-one", *changed(LEFT, "CONDITION", "self.global_rank == 0", "self.multi_gpu"), GPUS),
        ("other-keys", *changed(INHERITED, "SAVED", "self.model.module", "self.model"), GPUS),
        (
            "tensor-on-cpu",
            *changed(STATISTICS, "COUNT", "torch.tensor(1.0)", 'torch.tensor(1.0, device="cuda")'),
            GPUS,
        ),
        (
            "no-sampler",
            *changed(STREAMED, "DIVIDED", "pass", "rows = rows[self.rank :: self.world_size]"),
            GPUS,
        ),
        ("set-epoch", *changed(STREAM, "NEXT", "pass", "self.loader.sampler.set_epoch(self.epoch)"), GPUS),
        (
            "clipped-by-part",
            *changed(
                PARSED,
                "CLIP",
                "nn.utils.clip_grad_norm_(model.parameters(), 1.0)",
                "model.clip_grad_norm_(1.0)",
            ),
            GPUS,
        ),
    ]
)
def test_mistakes_in_code(tmp_path: Path, check: str, wrong: str, right: str, fields: dict[str, Any]) -> None:
    assert check in found(tmp_path, wrong, **fields)
    assert check not in found(tmp_path, right, **fields)


@pytest.mark.parametrize(("shard", "expected"), [(4, True), (2, False), (-1, False)])
def test_a_field_that_is_computed_only_if_it_is_left_open(tmp_path: Path, shard: int, expected: bool) -> None:
    (tmp_path / "c.yaml").write_text(f"shard: {shard}\n")
    assert ("unfulfilled" in found(tmp_path, DEGREES, **GPUS)) is expected


def test_a_checkpoint_that_only_an_argument_has_the_code_load(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(ASKED)
    texts = [one.text for one in findings(tmp_path, **RESTARTED) if one.check == "no-checkpoint"]
    assert len(texts) == 1
    assert "only if --resume is given" in texts[0]
    given = findings(tmp_path, **RESTARTED, args=["--resume", "/shared/last.pth"])
    assert not [one for one in given if one.check == "no-checkpoint"]


def test_a_look_at_the_folder_above_is_no_use_of_it(tmp_path: Path) -> None:
    text = STARTED + "scripts = [one for one in os.listdir('..') if one == 'train.sh']\n"
    assert "left-out" not in found(tmp_path, text, **GPUS)
    (tmp_path.parent / "lists.txt").write_text("a")
    assert "left-out" in found(tmp_path, text + "open('../lists.txt')\n", **GPUS)


@pytest.mark.parametrize(
    ("settings", "words", "expected"),
    [
        ("num_nodes: 1\n", [], True),
        ("lr: 1\n", [], True),
        ("num_nodes: 2\n", [], False),
        ("num_nodes: 1\n", ["--num_nodes", "2"], False),
    ],
)
def test_lightning_nodes_in_a_file_that_only_a_library_reads(
    tmp_path: Path, settings: str, words: list[str], expected: bool
) -> None:
    (tmp_path / "c.yaml").write_text(settings)
    text = found(tmp_path, CONFIGURED, **GPUS, args=["--config", "c.yaml", *words])
    assert ("lightning-nodes" in text) is expected


def test_a_comment_in_the_script_of_a_command_is_no_step(tmp_path: Path) -> None:
    lines = ["#!/bin/bash", "# One process per device; the rest goes to the script.", "n=${NPROC_PER_NODE:-2}"]
    (tmp_path / "run.sh").write_text("\n".join([*lines, "torchrun --nproc_per_node=$n train.py  # first; last"]) + "\n")
    job: dict[str, Any] = {**GPUS, "resources": {"nodes": 1, "nproc_per_node": 2}, "command": "bash run.sh"}
    text = METRICS.replace("{given}", "")
    assert "rank-0-collective" in found(tmp_path, text, **job)


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        ("find . -name train.py | xargs python train.py\n", True),
        ("for seed in 1 2; do python train.py --seed $seed; done\n", False),
        ("# python train.py\nfor seed in 1 2; do ./train $seed; done\n", False),
        ("for seed in 1 2; do python /opt/train.py; done\n", False),
        ("python train.py\n", False),
    ],
)
def test_a_command_that_is_not_followed_is_said_so(tmp_path: Path, script: str, expected: bool) -> None:
    (tmp_path / "run.sh").write_text(script)
    (tmp_path / "train.py").write_text("print(1)\n")
    unknown = [
        one
        for one in findings(tmp_path, **GPUS, command="bash run.sh")
        if (one.level, one.check) == ("unknown", "command")
    ]
    assert len(unknown) == expected
