"""Mistakes in the shapes of toolkits: MONAI, PyG, webdataset, Pointcept, nanoGPT's configurator, EDM's options."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from checked import GPUS, each_mistake, findings, found

JOINED = """
import argparse, os, numpy as np, torch, torch.distributed as dist, torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler
local_rank = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(local_rank)
dist.init_process_group("nccl")
rank, world_size = dist.get_rank(), dist.get_world_size()
"""
NET = f"""{JOINED}
data = TensorDataset(torch.rand(8, 4))
loader = DataLoader(data, sampler=DistributedSampler(data))
net = DDP(nn.Linear(4, 1).cuda(), device_ids=[local_rank])
optimizer = torch.optim.SGD(net.parameters(), 0.1)
"""
PARTITION = """
from monai.data import CacheDataset, partition_dataset
part = partition_dataset(data=[1, 2], num_partitions={count}, shuffle=True)[{number}]
loader = DataLoader(CacheDataset(part), batch_size=2)
"""
PLATEAU = """
from torch_geometric.loader import DataLoader as GraphLoader
valid = GraphLoader(data, batch_size=2, sampler=DistributedSampler(data, shuffle=False))
scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)
def evaluate():
    losses, scores = [], []
    for batch in valid:
        losses.append(nn.functional.mse_loss(net(batch[0]), batch[0]).item())
    gathered = [None] * dist.get_world_size()
    dist.all_gather_object(gathered, np.concatenate(scores))
    return np.concatenate(gathered), {loss}
score, loss = evaluate()
scheduler.step(loss)
"""
ANY_GPU = """
import argparse, os, torch, torch.distributed as dist, torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP
local_rank, world_size = int(os.environ["LOCAL_RANK"]), int(os.environ["WORLD_SIZE"])
parser = argparse.ArgumentParser()
parser.add_argument("--cuda", type=lambda text: text == "yes", default=True)
args = parser.parse_args()
def select():
    if torch.cuda.device_count() < {needed}:
        return torch.device("cuda" if torch.cuda.is_available() and args.cuda else "cpu")
    return torch.device(f"cuda:{{local_rank}}")
dist.init_process_group("nccl")
device = select()
net = DDP(nn.Linear(4, 1).to(device))
"""
HEAD = """
class Net(nn.Module):
    def __init__(self, of_classes):
        super().__init__()
        self.of_classes = of_classes
        self.body = nn.Linear(4, 4)
        self.head = nn.Linear(4, 2)
    def forward(self, x):
        x = self.body(x)
        if self.of_classes:
            return self.head(x)
        return x
def wrap(model, find_unused_parameters=False):
    return DDP(model, find_unused_parameters=find_unused_parameters)
net = wrap(Net({of_classes}).cuda(), find_unused_parameters=False)
"""
NORMS = """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.convs, self.norms = nn.ModuleList(), nn.ModuleList()
        self.norms = nn.ModuleList()
        self.convs = nn.ModuleList()
        for _ in range(4):
            self.convs.append(nn.Linear(4, 4))
            self.norms.append({layer})
    def forward(self, x):
        for i, conv in enumerate(self.convs{part}):
            x = self.norms[i](conv(x))
        return self.convs[-1](x)
net = DDP(Net().cuda(), device_ids=[local_rank])
"""
SHARDS = """
import webdataset as wds
pipeline = [wds.SimpleShardList("{{0..9}}.tar"), {split}wds.split_by_worker, wds.tarfile_to_samples()]
loader = wds.WebLoader(wds.DataPipeline(*pipeline), batch_size=None, num_workers=4)
"""
THAWED = """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.neck, self.head = nn.Linear(4, 4), nn.Linear(4, 1)
        for p in self.neck.parameters():
            p.requires_grad_(False)
    def neck_parameters(self):
        return list(self.neck.parameters())
def set_trainable(params, flag):
    for p in params:
        p.requires_grad_(flag)
model = DDP(Net().cuda(), device_ids=[local_rank])
for epoch in range(9):
    if epoch == 5:
        set_trainable({params}, {flag})
"""
ASIDE = """
def wrap(model):
    if dist.get_world_size() == 1:
        return model
    return DDP(model)
class Solver:
    def __init__(self, model, optimizer):
        self.model, self.optimizer = model, optimizer
        self.dmodel = wrap(model)
    def run(self):
        for batch in loader:
            loss = self.{used}(batch[0]).sum()
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
model = nn.Linear(4, 1).cuda()
Solver(model, torch.optim.SGD(model.parameters(), 0.1)).run()
"""
EMPTY = """
for batch in loader:
    mask = batch[0] > 0.5
    {before}
    if not mask.any():
        {left}
    loss = net(batch[0])[mask].sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
SCORE = """
best = -np.inf
for epoch in range(3):
    best = {score}
    torch.save({{"net": net.state_dict(), "best": best}}, "/shared/last.pt")
state = torch.load("/shared/last.pt")
"""
CLICK = """
import click, torch.distributed as dist
@click.command()
@click.option("--batch", type=int, default=64)
@click.option("--batch-gpu", type=int)
def main(**opts):
    dist.init_process_group("nccl")
    train(opts["batch"], opts["batch_gpu"])
def train(batch, each):
    own = batch // dist.get_world_size()
    if each is None or each > own:
        each = own
    assert batch == own // each * each * dist.get_world_size()
main()
"""
CASES: list[tuple[str, str, str, dict[str, Any]]] = [
    (
        "part-of-node",
        NET + PARTITION.format(count="torch.cuda.device_count()", number="local_rank"),
        NET + PARTITION.format(count="world_size", number="rank"),
        GPUS,
    ),
    (
        "own-learning-rate",
        NET + PLATEAU.format(loss="float(np.mean(losses))"),
        NET + PLATEAU.format(loss="float(np.mean(gathered))"),
        GPUS,
    ),
    ("fixed-device", ANY_GPU.format(needed="world_size"), ANY_GPU.format(needed="2"), GPUS),
    ("unused-parameters", JOINED + HEAD.format(of_classes=False), JOINED + HEAD.format(of_classes=True), GPUS),
    (
        "unused-parameters",
        JOINED + NORMS.format(layer="nn.BatchNorm1d(4)", part="[:-1]"),
        JOINED + NORMS.format(layer="nn.ReLU()", part="[:-1]"),
        GPUS,
    ),
    (
        "no-sampler",
        JOINED + SHARDS.format(split=""),
        JOINED + SHARDS.format(split="wds.split_by_node, "),
        GPUS,
    ),
    (
        "thawed-later",
        JOINED + THAWED.format(params="model.module.neck_parameters()", flag=True),
        JOINED + THAWED.format(params="model.module.neck_parameters()", flag=False),
        GPUS,
    ),
    ("bypassed", NET + ASIDE.format(used="model"), NET + ASIDE.format(used="dmodel"), GPUS),
    (
        "left-by-one",
        NET + EMPTY.format(before="pass", left="continue"),
        NET + EMPTY.format(before="dist.all_reduce(mask)", left="continue"),
        GPUS,
    ),
    (
        "pickled-object",
        NET + SCORE.format(score="np.mean([1.0, 2.0])"),
        NET + SCORE.format(score="float(np.mean([1.0, 2.0]))"),
        GPUS,
    ),
    ("unfulfilled", CLICK.replace("default=64", "default=66"), CLICK, {**GPUS, "hyperparameters": {"batch-gpu": 8}}),
]


OWN_RANK = """
import argparse, os, torch.distributed as dist
parser = argparse.ArgumentParser()
parser.add_argument("--rank", type=int, default={default})
args = parser.parse_args()
dist.init_process_group("gloo", rank=args.rank, world_size=4)
"""
NESTED = """
import os, torch.distributed as dist, torch.multiprocessing as mp
def work(i, each):
    rank = int(os.environ["RANK"]) * each + i
    dist.init_process_group("gloo", rank=rank, world_size={size})
if __name__ == "__main__":
    mp.spawn(work, args=(2,), nprocs=2)
"""
LEFT_OUT = """
import argparse, os, torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
parser = argparse.ArgumentParser()
parser.add_argument("--distributed", action="store_true")
args = parser.parse_args()
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
if args.distributed:
    dist.init_process_group("nccl")
model = torch.nn.Linear(4, 1).cuda()
{wrap}
"""
CASES += [
    (
        "no-init",
        LEFT_OUT.format(wrap="model = DDP(model)"),
        LEFT_OUT.format(wrap="if args.distributed:\n    model = DDP(model)"),
        GPUS,
    ),
    (
        "same-ranks",
        OWN_RANK.format(default=0),
        OWN_RANK.format(default='int(os.environ["RANK"])'),
        {"resources": {"nodes": 1, "nproc_per_node": 4}},
    ),
    (
        "fixed-world-size",
        NESTED.format(size=3).replace("mp.spawn(work, args=(2,), nprocs=2)", "work(0, 1)"),
        NESTED.format(size='2 * int(os.environ["WORLD_SIZE"])'),
        {"resources": {"nodes": 2, "nproc_per_node": 1}},
    ),
]


@each_mistake(CASES)
def test_a_mistake_is_found_and_what_is_right_is_not(
    check: str, wrong: str, right: str, fields: dict[str, Any], tmp_path: Path
) -> None:
    assert check in found(tmp_path, wrong, **fields)
    assert check not in found(tmp_path, right, **fields)


CONFIGURED = """
import numpy as np, os, torch
dataset = "openwebtext"
batch_size = 12
compile = False
accumulation = 8
keys = [k for k, v in globals().items() if not k.startswith("_") and isinstance(v, (int, float, bool, str))]
exec(open("configurator.py").read())
config = {k: globals()[k] for k in keys}
torch.distributed.init_process_group("gloo")
assert accumulation % int(os.environ["WORLD_SIZE"]) == 0
folder = os.path.join("data", dataset)
def batch(split):
    return np.memmap(os.path.join(folder, f"{split}.bin"), dtype=np.uint16, mode="r")
batch("train")
"""
CONFIGURATOR = """
import sys
from ast import literal_eval
for arg in sys.argv[1:]:
    if "=" not in arg:
        exec(open(arg).read())
    else:
        key, value = arg[2:].split("=")
        globals()[key] = literal_eval(value)
"""


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"hyperparameters": {"dataset": "shakespeare"}}, "reads data/shakespeare/train.bin, which exists here"),
        ({"hyperparameters": {"batchsize": 4}}, "train.py:8 does not accept --batchsize"),
        ({"hyperparameters": {"batch_size": 4.5}}, "4.5 is of type float, not int"),
        ({"hyperparameters": {"compile": "yes"}}, "invalid choice: 'yes'"),
        ({"hyperparameters": {"accumulation": 6}}, "accumulation is 6"),
        ({"args": ["config/six.py"]}, "accumulation is 6"),
        ({"mode": "spawn"}, "does not accept --world_size"),
        ({"hyperparameters": {"batch_size": 4, "compile": "True", "accumulation": 4}}, ""),
        ({"args": ["config/eight.py"], "hyperparameters": {"batch_size": 8}}, ""),
    ],
)
def test_variables_of_a_configurator_are_arguments(fields: dict[str, Any], said: str, tmp_path: Path) -> None:
    (tmp_path / "config").mkdir()
    (tmp_path / "data/shakespeare").mkdir(parents=True)
    (tmp_path / "data/shakespeare/train.bin").write_bytes(bytes(10))
    (tmp_path / ".gitignore").write_text("*.bin\n")
    (tmp_path / "config/six.py").write_text("accumulation = 6\n")
    (tmp_path / "config/eight.py").write_text("accumulation = 8\nbatch_size = 2\n")
    (tmp_path / "configurator.py").write_text(CONFIGURATOR)
    (tmp_path / "train.py").write_text(CONFIGURED)
    told = [one.text for one in findings(tmp_path, **fields) if one.level in ("error", "warning", "unknown")]
    assert any(said in text for text in told) if said else told == []


def test_a_folder_that_is_added_to_the_path_and_left_out(tmp_path: Path) -> None:
    (tmp_path / "lib/core").mkdir(parents=True)
    (tmp_path / "lib/core/function.py").touch()
    (tmp_path / "tools").mkdir()
    (tmp_path / ".gitignore").write_text("lib/\n")
    (tmp_path / "tools/_init_paths.py").write_text(
        "import os.path as osp, sys\n"
        "def add_path(path):\n    sys.path.insert(0, path)\n"
        "add_path(osp.join(osp.dirname(osp.abspath(__file__)), '..', 'lib'))\n"
    )
    (tmp_path / "tools/train.py").write_text("import _init_paths\nfrom core.function import train\n")
    (told,) = [one for one in findings(tmp_path, boot_file="tools/train.py") if one.check == "imports"]
    assert told.text == (
        "module core.function is in the code directory but is not uploaded: lib/ is ignored by .gitignore line 1: lib/"
    )
    assert "!lib/core" in told.hint


def test_packages_of_a_module_that_a_configuration_names(tmp_path: Path) -> None:
    (tmp_path / "ldm").mkdir()
    (tmp_path / "ldm/attention.py").write_text(
        "import torch\nfrom einops import rearrange\nclass Net(torch.nn.Module): ...\n"
    )
    (tmp_path / "conf.yaml").write_text("target: ldm.attention.Net\n")
    (tmp_path / "requirements.txt").write_text("numpy\n")
    (tmp_path / "ldm/util.py").write_text(
        "import importlib\n"
        "def instantiate_from_config(config):\n"
        "    module, cls = config['target'].rsplit('.', 1)\n"
        "    return getattr(importlib.import_module(module), cls)()\n"
    )
    (tmp_path / "train.py").write_text(
        "import argparse, numpy, yaml\nfrom ldm.util import instantiate_from_config\n"
        "parser = argparse.ArgumentParser()\nparser.add_argument('--base')\n"
        "instantiate_from_config(yaml.safe_load(open(parser.parse_args().base)))\n"
    )
    fields: dict[str, Any] = {**GPUS, "requirements": "requirements.txt"}
    named = findings(tmp_path, **fields, args=["--base", "conf.yaml"])
    assert ["einops" in one.text for one in named if one.check == "packages"] == [True]
    assert not [one for one in findings(tmp_path, **fields) if one.check == "packages"]


def test_modules_of_a_folder_without_init(tmp_path: Path) -> None:
    (tmp_path / "own_models/heads").mkdir(parents=True)
    (tmp_path / "own_models/heads/vgg.py").touch()
    (tmp_path / "train.py").write_text(
        "from own_models.heads import vgg\nfrom own_models import heads\n"
        "from own_models.heads import resnet\nfrom own_models import neck\n"
    )
    told = [(one.where, one.text.partition(" does")[0]) for one in findings(tmp_path) if one.check == "imports"]
    assert told == [("train.py:3", "module own_models.heads.resnet"), ("train.py:4", "module own_models.neck")]


COMM = """
import torch.distributed as dist
own = leaders = None
def create(rank, world_size):
    global own, leaders
    groups = [dist.new_group(list(range(first, first + 2))) for first in range(0, world_size, 2)]
    own, leaders = groups[rank // 2], dist.new_group(list(range(0, world_size, 2)))
def add(tensor, local_rank, first):
    dist.reduce(tensor, dst=first, group=own)
    if local_rank == 0:
        dist.all_reduce(tensor, group=leaders)
    dist.broadcast(tensor, src=first, group=own)
    return tensor
"""
EVALUATED = f"""{NET}
import comm
comm.create(rank, world_size)
def evaluate(model, batches):
    seen = torch.zeros(2)
    for (x,) in batches:
        seen[0] += model(x).sum()
    {{combine}}
    return seen[0].item()
print(evaluate(net, loader))
"""
LAUNCHED = """
import argparse, torch.distributed as dist, torch.multiprocessing as mp
parser = argparse.ArgumentParser()
parser.add_argument("--rank", "--shard_id", dest="shard_id", default=0, type=int)
parser.add_argument("--world_size", "--num_shards", dest="num_shards", default=1, type=int)
parser.add_argument("--init_method", default="")
def run(local_rank, each, init_method, shard_id, num_shards):
    rank = shard_id * each + local_rank
    dist.init_process_group("gloo", init_method=init_method, rank=rank, world_size=each * num_shards)
def launch_job(init_method, shard_id, num_shards):
    mp.spawn(run, nprocs=2, args=(2, init_method, shard_id, num_shards))
if __name__ == "__main__":
    args = parser.parse_args()
    launch_job(init_method=args.init_method, shard_id=args.shard_id, num_shards=args.num_shards)
"""


def test_figures_that_are_added_up_within_nodes_and_between_them(tmp_path: Path) -> None:
    (tmp_path / "comm.py").write_text(COMM)
    added = "seen = comm.add(seen, local_rank, rank - local_rank)"
    assert "part-as-whole" in found(tmp_path, EVALUATED.format(combine="pass"), **GPUS)
    assert "part-as-whole" not in found(tmp_path, EVALUATED.format(combine=added), **GPUS)


def test_a_function_that_starts_processes_counts_nodes(tmp_path: Path) -> None:
    assert "part-of-node" not in found(tmp_path, LAUNCHED, mode="spawn")


def test_a_package_that_is_named_with_its_address(tmp_path: Path) -> None:
    (tmp_path / "requirements.txt").write_text("numpy\ntimm @ git+https://example.org/pytorch-image-models.git@v1\n")
    text = "import numpy, timm, segment_anything\n"
    (tmp_path / "train.py").write_text(text)
    told = [one.text for one in findings(tmp_path, **GPUS, requirements="requirements.txt") if one.check == "packages"]
    assert told == ["requirements.txt does not name a package for module segment_anything"]


@pytest.mark.parametrize(
    ("fields", "is_missing"),
    [
        ({"command": "bash run.sh"}, False),
        ({"command": "./run.sh"}, False),
        ({"command": "bash missing.sh"}, True),
        ({"command": "./scripts/missing.sh --lr 1"}, True),
        ({"command": "bash missing.sh", "setup": "make missing.sh"}, False),
        ({"command": "bash /opt/run.sh"}, False),
        ({"command": ["bash", "-c", "missing.sh"]}, False),
    ],
)
def test_a_script_that_is_not_there(fields: dict[str, Any], is_missing: bool, tmp_path: Path) -> None:
    (tmp_path / "run.sh").write_text("echo\n")
    told = [one.text for one in findings(tmp_path, **fields) if one.check == "boot-file"]
    assert bool(told) is is_missing
