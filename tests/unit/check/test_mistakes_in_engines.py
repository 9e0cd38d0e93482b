"""Mistakes in engines, samplers and launch helpers of public projects, and what only looks like one there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from checked import GPUS, IMPORTED, STARTED, each_mistake, findings, found, with_files

LOADED = f"""{STARTED}
data = TensorDataset(torch.ones(8, 4))
def get_loader(first):
    sampler = DistributedSampler(data)
    BEFORE
    return DataLoader(data, sampler=sampler), sampler
def main():
    model = DDP(nn.Linear(4, 1).cuda())
    loader, sampler = get_loader(0)
    for epoch in range(9):
        WITHIN
        for (batch,) in loader:
            model(batch.cuda()).sum().backward()
main()
"""
REPEATED = f"""{STARTED}
class Repeated(torch.utils.data.Sampler):
    def __init__(self, data, count, rank):
        self.data, self.count, self.rank, self.epoch = data, count, rank, 0
    def set_epoch(self, epoch):
        self.epoch = epoch
    def __iter__(self):
        g = torch.Generator()
        g.manual_seed(SEED)
        indices = torch.randperm(len(self.data), generator=g).tolist()
        return iter(indices[self.rank :: self.count])
data = TensorDataset(torch.ones(8, 4))
sampler = Repeated(data, dist.get_world_size(), rank)
model = DDP(nn.Linear(4, 1).cuda())
for epoch in range(9):
    sampler.set_epoch(epoch)
    for (batch,) in DataLoader(data, sampler=sampler):
        model(batch.cuda()).sum().backward()
"""
LAUNCHED = f"""{IMPORTED}
def work(local_rank, machine_rank, num_machines, gpus):
    global_rank = machine_rank * EACH + local_rank
    dist.init_process_group("nccl", rank=global_rank, world_size=num_machines * gpus)
    torch.cuda.set_device(local_rank)
    model = DDP(nn.Linear(4, 1).cuda())
    model(torch.ones(1, 4).cuda()).sum().backward()
def launch(gpus, num_machines, machine_rank):
    mp.spawn(work, nprocs=gpus, args=(machine_rank, num_machines, gpus))
launch(2, int(os.environ["NNODES"]), int(os.environ["NODE_RANK"]))
"""


@each_mistake(
    [
        (
            "set-epoch",
            LOADED.replace("BEFORE", "sampler.set_epoch(first)").replace("WITHIN", "pass"),
            LOADED.replace("BEFORE", "pass").replace("WITHIN", "sampler.set_epoch(epoch)"),
            GPUS,
        ),
        (
            "sampler-seed",
            REPEATED.replace("SEED", "self.epoch * self.count + self.rank"),
            REPEATED.replace("SEED", "self.epoch"),
            GPUS,
        ),
        (
            "same-ranks",
            LAUNCHED.replace("EACH", "num_machines"),
            LAUNCHED.replace("EACH", "gpus"),
            {**GPUS, "command": "python train.py"},
        ),
    ]
)
def test_mistakes_of_engines(tmp_path: Path, check: str, wrong: str, right: str, fields: dict[str, Any]) -> None:
    assert check in found(tmp_path, wrong, **fields)
    assert check not in found(tmp_path, right, **fields)


SAVES = """
import functools, torch, torch.distributed as dist
def main_process(function):
    @functools.wraps(function)
    def wrapper(*args, **kwargs):
        if dist.get_rank() == 0:
            return function(*args, **kwargs)
    return wrapper
class Runner:
    def train(self, sampler):
        sampler.set_epoch(1)
    @main_process
    def save(self, model):
        torch.save(model.state_dict(), "a.pt")
        dist.barrier()
"""


def test_what_trains_is_read_after_large_models(tmp_path: Path) -> None:
    models = {f"models/m{n}.py": "x = torch.load('a')\n# " + "-" * 100_000 for n in range(12)}
    names = "".join(f"from models import m{n}\n" for n in range(12))
    train = f"{STARTED}{names}from runners import *\nRunner().save(DDP(nn.Linear(4, 1).cuda()))\n"
    with_files(tmp_path, {**models, "runners/__init__.py": "from runners.own import Runner\n", "runners/own.py": SAVES})
    assert "rank-0-collective" in found(tmp_path, train, **GPUS)


LAUNCHER = f"""{IMPORTED}
parser = argparse.ArgumentParser()
parser.add_argument("--launcher", choices=["none", "pytorch"], default="none")
args = parser.parse_args()
START
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
model = DDP(nn.Linear(4, 1).cuda())
"""


@pytest.mark.parametrize(
    ("start", "is_wrong"),
    [
        ("if args.launcher != 'none':\n    dist.init_process_group('nccl')", True),
        ("if os.path.exists('a'):\n    dist.init_process_group('nccl')", False),
    ],
)
def test_an_option_for_a_launcher_that_starts_no_group(tmp_path: Path, start: str, is_wrong: bool) -> None:
    (tmp_path / "train.py").write_text(LAUNCHER.replace("START", start))
    texts = [one.text for one in findings(tmp_path, **GPUS) if one.check == "no-init"]
    assert any(text.startswith("--launcher is none") for text in texts) is is_wrong


def test_a_setting_of_the_name_of_an_argument_is_another(tmp_path: Path) -> None:
    config = "class Settings:\n    pass\ncfg = Settings()\ncfg.local_rank = 0\n"
    train = f"""{IMPORTED}
from config import cfg
parser = argparse.ArgumentParser()
parser.add_argument("--local_rank", type=int, default=0)
print(parser.parse_args())
cfg.local_rank = int(os.environ["RANK"]) % torch.cuda.device_count()
torch.cuda.set_device(cfg.local_rank)
dist.init_process_group("nccl")
model = DDP(nn.Linear(4, 1).cuda())
"""
    with_files(tmp_path, {"config.py": config})
    assert "local-rank" not in found(tmp_path, train, **GPUS)


def test_options_of_a_parent_parser_that_a_library_extends(tmp_path: Path) -> None:
    train = """
import argparse, pytorch_lightning as pl
def add_own(parent):
    parser = argparse.ArgumentParser(parents=[parent], add_help=False)
    parser.add_argument("--width", type=int)
    return parser
parser = argparse.ArgumentParser()
parser = pl.Trainer.add_argparse_args(parser)
parser = add_own(parser)
args = parser.parse_args()
pl.Trainer.from_argparse_args(args).fit(None)
"""
    assert "argument-unknown" not in found(tmp_path, train, **GPUS, args=["--gpus=2", "--width=3"])


RECORDED = """
import torch, pytorch_lightning as pl
from torchmetrics import Metric
from pytorch_lightning.callbacks import ModelCheckpoint
class Recorder(BASE):
    def update(self, seen):
        self.seen = seen
class Net(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.recorder = Recorder()
    def validation_step(self, batch, number):
        self.recorder(batch)
        self.log("rate", self.recorder)
pl.Trainer(num_nodes=2, devices=2, callbacks=[ModelCheckpoint(monitor="rate")]).fit(Net())
"""


@pytest.mark.parametrize(("base", "is_wrong"), [("Metric", False), ("object", True)])
def test_a_metric_is_of_all_processes(tmp_path: Path, base: str, is_wrong: bool) -> None:
    assert ("part-as-whole" in found(tmp_path, RECORDED.replace("BASE", base), **GPUS)) is is_wrong


@pytest.mark.parametrize(("args", "is_wrong"), [("--model.width=3", False), ("--model.widht=3", True)])
def test_the_first_versions_of_lightnings_cli_had_no_commands(tmp_path: Path, args: str, is_wrong: bool) -> None:
    train = "import pytorch_lightning as pl\nfrom pytorch_lightning.utilities.cli import LightningCLI\n"
    train += "class Net(pl.LightningModule):\n    def __init__(self, width: int = 4):\n        super().__init__()\n"
    train += "class Data(pl.LightningDataModule):\n    pass\nLightningCLI(Net, Data)\n"
    (tmp_path / "train.py").write_text(train)
    wrong = [one.check for one in findings(tmp_path, **GPUS, args=[args]) if one.check.startswith("argument")]
    assert wrong == (["argument-unknown"] if is_wrong else [])


@pytest.mark.parametrize(
    ("text", "level"),
    [
        ("breakpoint()", "error"),
        ("if os.path.exists('a'):\n    breakpoint()", "hint"),
        ("if os.path.exists('a'):\n    input()", "warning"),
    ],
)
def test_a_debugger_in_a_branch_may_never_be_started(tmp_path: Path, text: str, level: str) -> None:
    (tmp_path / "train.py").write_text(f"import os\n{text}\n")
    assert [one.level for one in findings(tmp_path, **GPUS) if one.check == "no-terminal"] == [level]
