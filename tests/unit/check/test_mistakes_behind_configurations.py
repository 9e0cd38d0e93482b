"""Mistakes that only the values of a configuration show: of loaders that repositories write for themselves."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from checked import GPUS, RESTARTED, each_mistake, findings, found, with_files

LOADED = """
import argparse, copy, json, os, random, yaml, torch, torch.distributed as dist, torch.nn as nn
import torch.multiprocessing as mp
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler
"""
FLATTENED = (
    LOADED
    + """
class CfgNode(dict):
    def __getattr__(self, name):
        if name in self:
            return self[name]
        raise AttributeError(name)
    def __setattr__(self, name, value):
        self[name] = value
def load_cfg(file):
    cfg = {}
    with open(file) as f:
        sections = yaml.safe_load(f)
    for key in sections:
        for k, v in sections[key].items():
            cfg[k] = v
    return CfgNode(cfg)
def merge_list(cfg, words):
    merged = copy.deepcopy(cfg)
    for name, value in zip(words[0::2], words[1::2]):
        setattr(merged, name.split(".")[-1], value)
    return merged
def get_parser():
    parser = argparse.ArgumentParser()
    parser.add_argument("--config")
    parser.add_argument("opts", nargs=argparse.REMAINDER)
    args = parser.parse_args()
    cfg = load_cfg(args.config)
    if args.opts:
        cfg = merge_list(cfg, args.opts)
    return cfg
def main():
    args = get_parser()
    assert (args.train_h - 1) % 8 == 0
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl")
main()
"""
)
STRUCTURED = (
    LOADED
    + """
from dataclasses import dataclass, field
from omegaconf import OmegaConf
@dataclass
class Sharding:
    checkpointing: bool = False
    size: int = 1
@dataclass
class TrainArgs:
    steps: int = 10
    probe_freq: int = 0
    sharding: Sharding = field(default_factory=Sharding)
def train(args):
    if args.probe_freq:
        assert args.sharding.checkpointing is False
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl")
cli = OmegaConf.from_cli()
from_file = OmegaConf.load(cli.config)
del cli.config
cfg = OmegaConf.merge(OmegaConf.structured(TrainArgs()), from_file, cli)
train(OmegaConf.to_object(cfg))
"""
)
CHOSEN = (
    LOADED
    + """
import importlib
from omegaconf import OmegaConf
def get_obj_from_str(string):
    module, cls = string.rsplit(".", 1)
    return getattr(importlib.import_module(module, package=None), cls)
parser = argparse.ArgumentParser()
parser.add_argument("--cfg_path")
parser.add_argument("--save_dir", default="out")
args = parser.parse_args()
configs = OmegaConf.load(args.cfg_path)
for key in vars(args):
    if key in ["cfg_path", "save_dir"]:
        configs[key] = getattr(args, key)
trainer = get_obj_from_str(configs.trainer.target)(configs)
trainer.train()
"""
)
CHOSEN_TRAINER = """
import os, torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
class Base:
    def __init__(self, configs):
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        dist.init_process_group("nccl")
        self.model = DDP(torch.nn.Linear(4, 1).cuda())
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.scaler = torch.cuda.amp.GradScaler()
    def train(self):
        for step in range(9):
            self.training_step(step)
    def training_step(self, step):
        pass
class Trainer(Base):
    def training_step(self, step):
        self.scaler.scale(self.model(torch.rand(2, 4).cuda()).sum()).backward()
        {unscale}
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.scaler.step(self.optimizer)
        self.scaler.update()
"""
SPAWNED = (
    LOADED
    + """
class Trainer:
    def __init__(self, config):
        self.settings = config["trainer"]
        data = TensorDataset(torch.rand(64, 4))
        self.loader = DataLoader(data, batch_size=self.settings["batch_size"] // config["world_size"],
                                 sampler=DistributedSampler(data))
    def load(self, path):
        return torch.load(path)
def main_worker(rank, config):
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", init_method="tcp://127.0.0.1:29501", world_size=config["world_size"], rank=rank)
    config["name"] = config["model"].split("/")[-1]
    Trainer(config)
if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--config")
    args = parser.parse_args()
    config = json.load(open(args.config))
    config["world_size"] = torch.cuda.device_count()
    mp.spawn(main_worker, nprocs=config["world_size"], args=(config,))
"""
)
PREPARED = (
    LOADED
    + """
class Options:
    def __init__(self):
        self.parser = argparse.ArgumentParser()
        self.parser.add_argument("--port", type=int, default=10001)
    def parse(self):
        opt, _ = self.parser.parse_known_args()
        return opt
def prepare(opt):
    opt.seed = 3
    return opt
def resume(path):
    opt = torch.load(path)["opt"]
    return opt.epoch
options = Options()
opt = options.parse()
opt = prepare(opt)
if not hasattr(opt, "alone") and not getattr(opt, "single", False):
    assert opt.port == {port}
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl")
"""
)
RESUMED = (
    LOADED
    + """
class Config:
    def __init__(self, path, **given):
        self.resume = None
        self.tuning = None
        for k, v in given.items():
            if k in ("resume", "tuning"):
                self.__dict__[k] = v
class Solver:
    def __init__(self, cfg):
        self.cfg = cfg
    def load_state(self, path):
        state = torch.load(path, map_location="cpu")
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
    def fit(self):
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        dist.init_process_group("nccl")
        self.model = DDP(nn.Linear(4, 1).cuda())
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        if self.cfg.resume:
            self.load_state(self.cfg.resume)
        {look}
        for epoch in range(3):
            self.model(torch.rand(2, 4).cuda()).sum().backward()
            self.optimizer.step()
            if dist.get_rank() == 0:
                state = {{"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}}
                torch.save(state, "/shared/last.pt")
parser = argparse.ArgumentParser()
parser.add_argument("-r", "--resume")
args = parser.parse_args()
solver = Solver(Config("c.yaml", **{{k: v for k, v in args.__dict__.items() if v is not None}}))
solver.fit()
"""
)


@pytest.mark.parametrize(
    ("words", "height", "expected"), [([], 768, True), ([], 769, False), (["TRAIN.train_h", "768"], 769, True)]
)
def test_settings_under_the_name_of_the_arguments(
    tmp_path: Path, words: list[str], height: int, expected: bool
) -> None:
    with_files(tmp_path, {"c.yaml": f"TRAIN:\n  train_h: {height}\n  lr: 0.1\nTEST:\n  scales: [1, 2]\n"})
    text = FLATTENED.replace("value)\n    return merged", "int(value))\n    return merged")
    assert ("unfulfilled" in found(tmp_path, text, **GPUS, args=["--config=c.yaml", *words])) is expected


@pytest.mark.parametrize(
    ("words", "check"),
    [
        (["config=c.yaml", "probe_freq=5"], set()),
        (["config=c.yaml", "probe_freq=5", "sharding.checkpointing=true"], {"unfulfilled"}),
        (["config=c.yaml", "sharding.checkpoint=true"], {"argument-unknown"}),
        (["config=c.yaml", "--steps=5"], {"argument-unknown"}),
    ],
)
def test_a_configuration_made_of_a_dataclass(tmp_path: Path, words: list[str], check: set[str]) -> None:
    with_files(tmp_path, {"c.yaml": "steps: 20\nsharding: {size: 2}\n"})
    assert found(tmp_path, STRUCTURED, **GPUS, args=words) == check
    assert not [one for one in findings(tmp_path, **GPUS, args=words) if one.level == "unknown"]


@pytest.mark.parametrize("is_right", [False, True])
def test_a_trainer_whose_name_a_configuration_gives(tmp_path: Path, is_right: bool) -> None:
    unscale = "self.scaler.unscale_(self.optimizer)" if is_right else "pass"
    trainer = CHOSEN_TRAINER.replace("{unscale}", unscale)
    with_files(tmp_path, {"c.yaml": "trainer:\n  target: nets.Trainer\n", "nets.py": trainer})
    assert ("clipped-scaled" in found(tmp_path, CHOSEN, **GPUS, args=["--cfg_path", "c.yaml"])) is not is_right


def test_a_method_that_adds_to_the_path_hides_no_missing_package(tmp_path: Path) -> None:
    client = "import sys\nclass Client:\n    def __init__(self, path=None):\n        if path is not None:\n"
    client += "            sys.path.append(path)\n"
    with_files(tmp_path, {"client.py": client, "requirements.txt": "omegaconf\nlmdb\n"})
    text = "import lmdb, lpips\nimport torch.distributed as dist\nfrom client import Client\n"
    text += "def main():\n    Client('/data')\nmain()\n"
    assert found(tmp_path, text, **GPUS, requirements="requirements.txt") == {"packages"}


@pytest.mark.parametrize(("batch", "expected"), [(1, True), (8, False)])
def test_a_configuration_that_goes_through_spawned_processes(tmp_path: Path, batch: int, expected: bool) -> None:
    with_files(tmp_path, {"c.json": json.dumps({"model": "nets/a", "trainer": {"batch_size": batch}})})
    job: dict[str, Any] = {**GPUS, "resources": {"nodes": 1, "nproc_per_node": 2}}
    job |= {"command": "python train.py --config c.json"}
    assert ("empty-batch" in found(tmp_path, SPAWNED, **job)) is expected


@each_mistake(
    [
        ("unfulfilled", PREPARED.replace("{port}", "-1"), PREPARED.replace("{port}", "10001"), GPUS),
        (
            "no-checkpoint",
            RESUMED.format(look="pass"),
            RESUMED.format(look="if os.path.exists('/shared/last.pt'): self.load_state('/shared/last.pt')"),
            RESTARTED,
        ),
    ]
)
def test_options_that_are_not_given(tmp_path: Path, check: str, wrong: str, right: str, fields: dict[str, Any]) -> None:
    assert check in found(tmp_path, wrong, **fields)
    assert check not in found(tmp_path, right, **fields)


def test_hydra_composes_the_folder_that_an_argument_names(tmp_path: Path) -> None:
    with_files(
        tmp_path,
        {
            "scripts/a/b.yaml": "defaults:\n  - _self_\n  - augment: two.yaml\nlr: 1\ndevices: 2\n",
            "scripts/a/augment/two.yaml": "- {crop: 3}\n- {crop: 4}\n",
        },
    )
    text = LOADED + "import hydra\n@hydra.main(version_base='1.2')\ndef main(cfg):\n    assert cfg.lr < 1\nmain()\n"
    words = ["--config-path", "scripts/a", "--config-name", "b.yaml"]
    assert found(tmp_path, text, **GPUS, args=[*words, "lr=0.5"]) == set()
    assert not [one for one in findings(tmp_path, **GPUS, args=[*words, "lr=0.5"]) if one.level == "unknown"]
    assert found(tmp_path, text, **GPUS, args=words) == {"unfulfilled"}
    assert found(tmp_path, text, **GPUS, args=[*words, "lr=0.5", "steps=3"]) == {"argument-unknown"}
