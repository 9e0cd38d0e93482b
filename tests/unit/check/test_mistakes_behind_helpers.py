"""Mistakes that show in what a helper, a file of arguments or a library's configuration hands on."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from checked import IMPORTED, SLURM, STARTED, findings, found, with_files

from jobsubmit.bundle.scanner import scan

EIGHT: dict[str, Any] = {"resources": {"nodes": 2, "nproc_per_node": 4}, "backend": {**SLURM, "gpus_per_node": 4}}

OF_FILE = """
import argparse
{converts}
parser = argparse.ArgumentParser(fromfile_prefix_chars="@")
{sets}
parser.add_argument("--data", required=True)
parser.add_argument("--epochs", type=int, required=True)
print(parser.parse_args())
"""
CONVERTS = "def convert(line):\n    return line.split()"


@pytest.mark.parametrize(
    ("text", "converts", "sets", "is_wrong"),
    [
        ("--data\n/data\n--epochs\n3\n", "", "", False),
        ("--data\n/data\n--epochs\nthree\n", "", "", True),
        ("--data /data\n--epochs 3\n", CONVERTS, "parser.convert_arg_line_to_args = convert", False),
        ("--data /data\n", CONVERTS, "parser.convert_arg_line_to_args = convert", True),
        ("--data /data\n--epochs 3\n", "", "", True),
    ],
)
def test_a_file_of_arguments(text: str, converts: str, sets: str, is_wrong: bool, tmp_path: Path) -> None:
    with_files(tmp_path, {"train.py": OF_FILE.format(converts=converts, sets=sets), "conf/train.txt": text})
    shown = findings(tmp_path, args=["@conf/train.txt"])
    assert any(one.level == "error" for one in shown) is is_wrong


ACTOR = {
    "lib/__init__.py": "",
    "lib/train/__init__.py": "",
    "lib/train/paths.py": """
import os, sys
sys.path.insert(0, os.path.join(os.path.dirname(__file__), "../.."))
""",
    "lib/train/start.py": """
import argparse, importlib, os, torch, torch.distributed as dist
import paths
parser = argparse.ArgumentParser()
parser.add_argument("--local_rank", type=int, default=int(os.environ["LOCAL_RANK"]))
args = parser.parse_args()
dist.init_process_group("nccl")
torch.cuda.set_device(args.local_rank)
run = getattr(importlib.import_module("lib.train.script"), "run")
run(args)
""",
    "lib/train/script.py": """
import os, torch
from torch.nn.parallel import DistributedDataParallel as DDP
from lib.train.actor import Actor
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)
    def forward(self, x):
        return self.layer(x)
class Trainer:
    def __init__(self, actor, optimizer):
        self.actor, self.optimizer, self.epoch = actor, optimizer, 0
    def load(self, path):
        if os.path.exists(path):
            for key, value in torch.load(path).items():
                setattr(self, key, value)
    def train(self):
        self.load("/shared/last.pt")
        for batch in make_loader():
            self.optimizer.zero_grad()
            self.actor(batch).backward()
            self.optimizer.step()
def run(args):
    net = DDP(Net().cuda(), device_ids=[args.local_rank])
    Trainer(Actor(net), torch.optim.SGD(net.parameters(), 0.1)).train()
""",
}
INNER = """
import torch.nn as nn
class Actor:
    def __init__(self, net):
        self.net = net
    def __call__(self, batch):
        net = {net}
        return net(batch.cuda()).mean()
"""


def test_a_trainer_that_a_text_names_and_that_restores_its_fields(tmp_path: Path) -> None:
    fields = {**EIGHT, "boot_file": "lib/train/start.py"}
    is_wrapped = "isinstance(self.net, nn.parallel.distributed.DistributedDataParallel)"
    with_files(tmp_path, {**ACTOR, "lib/train/actor.py": INNER.format(net="self.net")})
    assert "bypassed" not in {one.check for one in findings(tmp_path, **fields)}
    inner = f"self.net.module if {is_wrapped} else self.net"
    with_files(tmp_path, {"lib/train/actor.py": INNER.format(net=inner)})
    assert "bypassed" in {one.check for one in findings(tmp_path, **fields)}


MEETING = (
    IMPORTED
    + """
parser = argparse.ArgumentParser()
parser.add_argument("--local_rank", type=int, default=-1)
args = parser.parse_args()
dist.init_process_group("nccl")
torch.cuda.set_device(args.local_rank)
def load(args):
    {before}
        dist.barrier()
    data = read("/data")
    {after}
        dist.barrier()
    return data
def evaluate(args):
    return len(load(args))
load(args)
if args.local_rank == 0:
    evaluate(args)
"""
)


def test_a_helper_whose_barriers_only_some_ranks_reach_once_more(tmp_path: Path) -> None:
    fields = {**EIGHT, "mode": "launch", "local_rank": "argument", "torch_version": "1.13"}
    both = MEETING.format(before="if args.local_rank != 0:", after="if args.local_rank == 0:")
    assert "rank-0-collective" in found(tmp_path, both, **fields)
    once = both.replace("def evaluate(args):\n    return len(load(args))", "def evaluate(args):\n    return 1")
    assert "rank-0-collective" not in found(tmp_path, once, **fields)


BY_ARGUMENT = (
    IMPORTED
    + """
from ignite.engine import Engine, Events
parser = argparse.ArgumentParser()
parser.add_argument("--local_rank", type=int, default=-1)
args = parser.parse_args()
args.distributed = args.local_rank != -1
model = nn.Linear(4, 1).cuda()
if args.distributed:
    torch.cuda.set_device(args.local_rank)
    dist.init_process_group("nccl")
    model = DDP(model, device_ids=[args.local_rank])
optimizer = torch.optim.SGD(model.parameters(), 0.1)
def update(engine, batch):
    optimizer.zero_grad()
    model(batch.cuda()).mean().backward()
    optimizer.step()
def init_by_environment():
    return int(os.environ["LOCAL_RANK"])
Engine(update).run(load_batches())
"""
)


@pytest.mark.parametrize("library", ["from ignite.engine import Engine, Events", "from engines import Engine, Events"])
def test_a_local_rank_that_nobody_passes_to_a_script_with_helpers(library: str, tmp_path: Path) -> None:
    text = BY_ARGUMENT.replace("from ignite.engine import Engine, Events", library)
    assert "local-rank" in found(tmp_path, text, **EIGHT)
    passed = {**EIGHT, "mode": "launch", "local_rank": "argument", "torch_version": "1.13"}
    assert "local-rank" not in found(tmp_path, text, **passed)
    asked = text.replace("args.distributed =", "args.local_rank = init_by_environment()\nargs.distributed =")
    assert "local-rank" not in found(tmp_path, asked, **EIGHT)


WATCHED = """
import numpy as np
import pytorch_lightning as pl
from pytorch_lightning.cli import LightningCLI
class Module(pl.LightningModule):
    def validation_step(self, batch, index):
        figures = self.net.evaluate(batch)
        for name in figures:
            self.log("val/" + name, figures[name]{sync})
    def on_validation_epoch_end(self):
        total_metric = np.sum(self.outputs)
        self.log("whole", total_metric{sync})
LightningCLI(Module)
"""
CONFIGURATION = """
trainer:
  callbacks:
    - class_path: pytorch_lightning.callbacks.ModelCheckpoint
      init_args: {{monitor: {monitor}}}
"""


@pytest.mark.parametrize(("monitor", "is_wrong"), [("val/error", True), ("whole", True), ("train/error", False)])
def test_figures_that_a_configuration_has_lightning_watch(monitor: str, is_wrong: bool, tmp_path: Path) -> None:
    with_files(tmp_path, {"conf/train.yaml": CONFIGURATION.format(monitor=monitor)})
    fields = {**EIGHT, "hyperparameters": {"config": "conf/train.yaml"}}
    assert ("part-as-whole" in found(tmp_path, WATCHED.format(sync=""), **fields)) is is_wrong
    assert "part-as-whole" not in found(tmp_path, WATCHED.format(sync=", sync_dist=True"), **fields)


STEPS = (
    IMPORTED
    + """
def is_bad(loss):
    def of(x):
        return torch.isnan(x).any() or torch.isinf(x).any()
    flag = of(loss)
    {agrees}
    return flag.item()
def reduce_tensor(given):
    with torch.no_grad():
        reduced = given
        dist.reduce(reduced, dst=0)
    return reduced / dist.get_world_size()
def main():
    dist.init_process_group("nccl")
    local_rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local_rank)
    model = DDP(nn.Linear(4, 1).cuda(), device_ids=[local_rank])
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    matrix = np.zeros((4, 4))
    for batch in load_batches():
        loss = model(batch.cuda()).mean()
        if is_bad(loss):
            loss = torch.tensor(0.0, requires_grad=True)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        matrix += count(batch)
        print(reduce_tensor(loss.detach()).item())
    matrix = torch.from_numpy(matrix){moves}
    print(reduce_tensor(matrix))
    dist.destroy_process_group()
main()
"""
)


def test_a_step_whose_loss_one_rank_replaces_and_a_tensor_that_a_helper_reduces(tmp_path: Path) -> None:
    right = STEPS.format(agrees="dist.all_reduce(flag)", moves=".cuda()")
    assert not found(tmp_path, right, **EIGHT)
    assert found(tmp_path, STEPS.format(agrees="pass", moves=".cuda()"), **EIGHT) == {"left-by-one"}
    assert found(tmp_path, STEPS.format(agrees="dist.all_reduce(flag)", moves=""), **EIGHT) == {"tensor-on-cpu"}


REGISTERED = {
    "nets.py": """
import torch.nn as nn
from timm.models.registry import register_model
class Tokens(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.inner = nn.Linear(width, width)
        self.spare = nn.Linear(width, width)
    def forward(self, x):
        return self.inner(x)
class Body(nn.Module):
    def __init__(self, kind="tokens", width=8):
        super().__init__()
        if kind == "tokens":
            self.first = Tokens(width)
        elif kind == "plain":
            self.first = nn.Linear(width, width)
    def forward(self, x):
        return self.first(x)
class Net(nn.Module):
    def __init__(self, kind="tokens", width=8, drop_rate=0.0):
        super().__init__()
        self.body = Body(kind=kind, width=width)
    def forward(self, x):
        return self.body(x)
@register_model
def net_plain(pretrained=False, **kwargs):
    return Net(kind="plain", **kwargs)
@register_model
def net_tokens(pretrained=False, **kwargs):
    return Net(kind="tokens", **kwargs)
""",
    "train.py": """
import argparse, os, torch, torch.distributed as dist
from timm.models import create_model
from torch.nn.parallel import DistributedDataParallel as DDP
import nets
parser = argparse.ArgumentParser()
parser.add_argument("--model", default="net_tokens")
args = parser.parse_args()
dist.init_process_group("nccl")
local = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(local)
model = create_model(args.model, pretrained=False, num_classes=None, drop_rate=0.1)
model = DDP(model.cuda(), device_ids=[local])
model(torch.ones(2, 8).cuda()).sum().backward()
""",
}


@pytest.mark.parametrize(("model", "is_wrong"), [("net_plain", False), ("net_tokens", True)])
def test_timm_makes_the_model_that_is_registered_under_a_name(model: str, is_wrong: bool, tmp_path: Path) -> None:
    with_files(tmp_path, REGISTERED)
    shown = findings(tmp_path, hyperparameters={"model": model}, **EIGHT)
    assert any(one.check == "unused-parameters" for one in shown) is is_wrong


BY_HAND = """
import argparse, torch, torch.distributed as dist, torch.nn as nn
from torch.multiprocessing import Process
def average_gradients(params):
    for one in params:
        dist.all_reduce(one.grad.data)
        one.grad.data /= dist.get_world_size()
def average_params(params):
    for one in params:
        dist.all_reduce(one.data)
        one.data /= dist.get_world_size()
def main(rank, size):
    torch.cuda.set_device(rank % 4)
    model = nn.Linear(4, 1).cuda()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for step in range(1000):
        if step % 100 == 0:
            average_params(model.parameters())
        optimizer.zero_grad()
        model(torch.ones(2, 4).cuda() * rank).mean().backward()
        {averages}
        optimizer.step()
def start(rank, size, function):
    dist.init_process_group("nccl", rank=rank, world_size=size)
    function(rank, size)
    dist.destroy_process_group()
if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--rank", type=int, default=0)
    parser.add_argument("--world_size", type=int, default=1)
    args = parser.parse_args()
    processes = [
        Process(target=start, args=(args.rank * 4 + local, args.world_size * 4, main)) for local in range(4)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
"""


@pytest.mark.parametrize(("averages", "is_wrong"), [("average_gradients(model.parameters())", False), ("", True)])
def test_gradients_that_are_averaged_by_hand_where_processes_start(
    averages: str, is_wrong: bool, tmp_path: Path
) -> None:
    shown = found(tmp_path, BY_HAND.format(averages=averages), mode="spawn", **EIGHT)
    assert ("never-synchronized" in shown) is is_wrong


SCANNED = {
    "lib/__init__.py": "",
    "lib/utils.py": """
import os
from os import path as osp
def scandir(folder, suffix=None, recursive=False):
    root = folder
    def scan(folder):
        for entry in os.scandir(folder):
            if not entry.name.startswith(".") and entry.is_file():
                name = osp.relpath(entry.path, root)
                if suffix is None:
                    yield name
                elif name.endswith(suffix):
                    yield name
            elif recursive:
                yield from scan(entry.path)
            else:
                continue
    return scan(folder)
""",
    "lib/models/__init__.py": """
import importlib
from os import path as osp
from lib.utils import scandir
folder = osp.dirname(osp.abspath(__file__))
names = [osp.splitext(osp.basename(one))[0] for one in scandir(folder) if one.endswith("_model.py")]
modules = [importlib.import_module(f"lib.models.{name}") for name in names]
def create_model(kind, settings):
    for module in modules:
        found = getattr(module, kind, None)
        if found is not None:
            break
    if found is None:
        raise ValueError(kind)
    return found(settings)
""",
    "lib/models/other_model.py": "class Other:\n    pass\n",
    "lib/models/plain_model.py": """
import os, torch, torch.distributed as dist, torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP
class Plain:
    def __init__(self, settings):
        self.settings = settings
        self.net = DDP(nn.Linear(4, 1).cuda(), device_ids=[int(os.environ["LOCAL_RANK"])])
        self.optimizer = torch.optim.SGD(self.net.parameters(), 0.1)
        self.started = 0
    def resume(self, state):
        self.started = state["step"]
    def train(self):
        self.optimizer.zero_grad()
        loss = self.net(torch.ones(2, 4).cuda()).mean()
        loss.backward()
        self.optimizer.step()
        self.log = {log}
    def current_log(self):
        return {reduced}
    def reduce(self, loss):
        if self.settings["dist"]:
            dist.reduce(loss, dst=0)
        return loss
""",
    "train.py": """
import os, torch, torch.distributed as dist
from lib.models import create_model
dist.init_process_group("nccl")
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
settings = {"dist": False, "rank": 0}
if os.environ["WORLD_SIZE"] != "1":
    settings["dist"] = True
    settings["rank"] = dist.get_rank()
state = torch.load("/cache/state.pt", map_location="cpu") if os.path.exists("/cache/state.pt") else None
if state is not None:
    model = create_model("Plain", settings)
    model.resume(state)
else:
    model = create_model("Plain", settings)
for step in range(1000):
    model.train()
    if settings["rank"] == 0 and step % 100 == 0:
        print(model.current_log())
dist.destroy_process_group()
""",
}


@pytest.mark.parametrize(
    ("log", "reduced", "is_wrong"),
    [("self.reduce(loss.detach())", "self.log", False), ("loss.detach()", "self.reduce(self.log)", True)],
)
def test_a_class_that_is_looked_up_in_the_modules_of_a_folder(
    log: str, reduced: str, is_wrong: bool, tmp_path: Path
) -> None:
    model = SCANNED["lib/models/plain_model.py"].format(log=log, reduced=reduced)
    with_files(tmp_path, {**SCANNED, "lib/models/plain_model.py": model})
    shown = findings(tmp_path, **EIGHT)
    assert {one.check for one in shown if one.level in ("error", "warning")} == (
        {"rank-0-collective"} if is_wrong else set()
    )


PARTS_OF_BATCH = """
import argparse, os, torch, torch.distributed as dist, torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP
class Engine:
    def __init__(self, args):
        self.batch_size, self.micro = args.batch_size, args.micro * dist.get_world_size()
        self.parts = self.batch_size // self.micro
        self.model = DDP(nn.Linear(4, 1).cuda(), device_ids=[int(os.environ["LOCAL_RANK"])])
    def backward(self, loss):
        return (loss / self.parts).backward()
    def grow(self, batch_size):
        self.batch_size = batch_size
        self.parts = self.batch_size // self.micro
parser = argparse.ArgumentParser()
parser.add_argument("--batch_size", type=int, default=512)
parser.add_argument("--micro", type=int, default=64)
args = parser.parse_args()
dist.init_process_group("nccl")
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
engine = Engine(args)
for step in range(1000):
    loss = engine.model(torch.ones(2, 4).cuda() * torch.rand(1).item()).mean()
    engine.backward(loss)
    if step % 100 == 0:
        engine.grow(engine.batch_size * 2)
dist.destroy_process_group()
"""


@pytest.mark.parametrize(("micro", "is_wrong"), [(64, False), (128, True)])
def test_a_number_by_which_the_first_step_divides(micro: int, is_wrong: bool, tmp_path: Path) -> None:
    shown = found(tmp_path, PARTS_OF_BATCH, hyperparameters={"micro": micro}, **EIGHT)
    assert ("unfulfilled" in shown) is is_wrong


DEEPSPEED = """
import argparse, json, torch, torch.nn as nn, deepspeed
from accelerate import init_empty_weights
from torch.utils.data import DataLoader, DistributedSampler
parser = argparse.ArgumentParser()
parser.add_argument("--model", default="small")
parser.add_argument("--epochs", type=int, default=3)
args = vars(parser.parse_args())
deepspeed.init_distributed(dist_backend="nccl")
args["config"] = f'conf/{args["model"]}_stage_2.json'
settings = json.load(open(args["config"]))
settings["scheduler"]["params"]["total_num_steps"] = 100
{sets}
with init_empty_weights():
    nn.Linear(4, 1)
data = torch.utils.data.TensorDataset(torch.ones(64, 4))
engine, _, _, _ = deepspeed.initialize(model=nn.Linear(4, 1), config_params=settings)
sampler = DistributedSampler(data, shuffle=True)
loader = DataLoader(data, sampler=sampler, batch_size=4)
for epoch in range(args["epochs"]):
    {epochs}
    for (batch,) in loader:
        engine.backward(engine(batch.to(engine.device)).mean())
        engine.step()
"""
SIZES = '{"train_batch_size": %d, "train_micro_batch_size_per_gpu": 4, "scheduler": {"params": {}}}'
SETS_EPOCH = "sampler.set_epoch(epoch)"


@pytest.mark.parametrize(
    ("size", "sets", "epochs", "wrong"),
    [
        (32, "", SETS_EPOCH, set()),
        (36, "", SETS_EPOCH, {"deepspeed-batch"}),
        (36, 'settings["train_batch_size"] = 32', SETS_EPOCH, set()),
        (32, "", "pass", {"set-epoch"}),
    ],
)
def test_deepspeed_with_a_file_whose_name_is_computed(
    size: int, sets: str, epochs: str, wrong: set[str], tmp_path: Path
) -> None:
    files = {"train.py": DEEPSPEED.replace("{sets}", sets).replace("{epochs}", epochs)}
    with_files(tmp_path, {**files, "conf/small_stage_2.json": SIZES % size})
    shown = findings(tmp_path, **EIGHT)
    assert {one.check for one in shown if one.level in ("error", "warning")} == wrong


PREPARED = """
import argparse, torch, torch.nn as nn
from accelerate import Accelerator
from transformers import AutoModelForCausalLM
from torch.utils.data import DataLoader
parser = argparse.ArgumentParser()
parser.add_argument("--deepspeed", action="store_true")
parser.add_argument("--model")
args = parser.parse_args()
accelerator = Accelerator()
model = AutoModelForCausalLM.from_pretrained(args.model)
loader = DataLoader(torch.utils.data.TensorDataset(torch.ones(64, 4)), shuffle=True, batch_size=4)
optimizer = torch.optim.AdamW(model.parameters())
if args.deepspeed:
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
else:
    model = accelerator.prepare(model)
    {prepares}
model.gradient_checkpointing_enable()
for (batch,) in loader:
    accelerator.backward(model(batch.to(accelerator.device)).loss)
    optimizer.step()
    optimizer.zero_grad()
"""
ACCELERATE = (
    "accelerate launch --num_machines 2 --num_processes 8 --machine_rank $NODE_RANK --main_process_ip $MASTER_ADDR "
    "--main_process_port $MASTER_PORT {options} train.py --model /cache/llama"
)


@pytest.mark.parametrize(
    ("options", "prepares", "wrong"),
    [
        ("--use_fsdp", "loader, optimizer = accelerator.prepare(loader, optimizer)", set()),
        ("--use_fsdp", "optimizer = accelerator.prepare(optimizer)", {"no-sampler"}),
        ("--config_file fsdp.yaml", "loader, optimizer = accelerator.prepare(loader, optimizer)", set()),
        ("--multi_gpu", "loader, optimizer = accelerator.prepare(loader, optimizer)", {"wrapped-attribute"}),
    ],
)
def test_what_accelerate_prepares_in_the_branch_that_is_taken(
    options: str, prepares: str, wrong: set[str], tmp_path: Path
) -> None:
    settings = "distributed_type: FSDP\nnum_machines: 2\n"
    with_files(tmp_path, {"train.py": PREPARED.format(prepares=prepares), "fsdp.yaml": settings})
    fields = {**EIGHT, "command": ["bash", "-c", ACCELERATE.format(options=options)]}
    shown = findings(tmp_path, **fields)
    assert {one.check for one in shown if one.level in ("error", "warning")} == wrong


@pytest.mark.parametrize(
    ("options", "backend", "is_wrong"),
    [
        ("--use_fsdp", {"kind": "local"}, True),
        ("--config_file fsdp.yaml", {"kind": "local"}, True),
        ("--use_fsdp --fsdp_sync_module_states false", {"kind": "local"}, False),
        ("--cpu", {"kind": "local"}, False),
        ("--use_fsdp", EIGHT["backend"], False),
    ],
)
def test_accelerate_shards_only_on_gpus(
    options: str, backend: dict[str, Any], is_wrong: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    prepares = "loader, optimizer = accelerator.prepare(loader, optimizer)"
    settings = "distributed_type: FSDP\nnum_machines: 2\n"
    with_files(tmp_path, {"train.py": PREPARED.format(prepares=prepares), "fsdp.yaml": settings})
    fields = {**EIGHT, "backend": backend, "command": ["bash", "-c", ACCELERATE.format(options=options)]}
    assert any("FSDP of accelerate needs GPUs" in one.text for one in findings(tmp_path, **fields)) is is_wrong


SHARED_STEP = """
import hydra, pytorch_lightning as pl
class Module(pl.LightningModule):
    def training_step(self, batch, index):
        return self._shared_step(batch, "train")
    def validation_step(self, batch, index):
        return self._shared_step(batch, prefix="val")
    def _shared_step(self, batch, prefix):
        loss = self.net(batch)
        figures = {{"loss": loss, "error": loss * 2}}
        figures = {{f"{{prefix}}/{{key}}": value for key, value in figures.items()}}
        self.log_dict(figures, on_epoch=True{sync})
        return loss
@hydra.main(version_base="1.3", config_path="conf", config_name="config")
def main(cfg):
    trainer = hydra.utils.instantiate(cfg.trainer, callbacks=[hydra.utils.instantiate(cfg.checkpoint)])
    trainer.fit(Module())
main()
"""
OF_CHECKPOINT = """
defaults: [_self_, best]
watched: {figure}
trainer: {{_target_: pytorch_lightning.Trainer, num_nodes: 2, devices: 4}}
"""
BEST = 'checkpoint:\n  _target_: pytorch_lightning.callbacks.ModelCheckpoint\n  monitor: "${watched}"\n'


@pytest.mark.parametrize(("figure", "is_wrong"), [("val/error", True), ("train/loss", False)])
def test_a_figure_that_a_step_of_several_stages_logs(figure: str, is_wrong: bool, tmp_path: Path) -> None:
    with_files(tmp_path, {"conf/config.yaml": OF_CHECKPOINT.format(figure=figure), "conf/best.yaml": BEST})
    assert ("part-as-whole" in found(tmp_path, SHARED_STEP.format(sync=""), **EIGHT)) is is_wrong
    assert "part-as-whole" not in found(tmp_path, SHARED_STEP.format(sync=", sync_dist=True"), **EIGHT)


PARALLEL = {
    "core/__init__.py": "import core.state\nmpu = state\n",
    "core/state.py": """
import torch.distributed as dist
_GROUP = None
def initialize(size):
    global _GROUP
    for first in range(0, dist.get_world_size(), size):
        ranks = range(first, first + size)
        group = dist.new_group(ranks)
        if dist.get_rank() in ranks:
            _GROUP = group
def get_group():
    assert _GROUP is not None
    return _GROUP
""",
    "train.py": """
import argparse, os, torch, torch.distributed as dist
from core import mpu
from core.state import get_group
def by_mpi(args):
    from mpi4py import MPI
    args.rank = MPI.COMM_WORLD.Get_rank()
    args.world_size = MPI.COMM_WORLD.Get_size()
parser = argparse.ArgumentParser()
args = parser.parse_args()
args.rank, args.world_size = int(os.getenv("RANK", "0")), int(os.getenv("WORLD_SIZE", "1"))
if hasattr(args, "deepspeed_mpi") and args.deepspeed_mpi:
    by_mpi(args)
dist.init_process_group("nccl", rank=args.rank, world_size=args.world_size)
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
mpu.initialize(4)
dist.all_reduce(torch.ones(1).cuda(), group=get_group())
dist.destroy_process_group()
""",
}


def test_groups_by_an_alias_of_a_module_and_a_rank_that_only_mpi_would_change(tmp_path: Path) -> None:
    with_files(tmp_path, PARALLEL)
    assert not [one for one in findings(tmp_path, **EIGHT) if one.level in ("error", "warning")]


TEACHER = (
    IMPORTED
    + """
from nets import build
dist.init_process_group("nccl")
local_rank = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(local_rank)
student, teacher = build(sys.argv[1]).cuda(), build(sys.argv[1]).cuda()
if has_norms(student):
    teacher = DDP(teacher, device_ids=[local_rank])
    teacher_without_ddp = teacher.module
else:
    teacher_without_ddp = teacher
student = DDP(student, device_ids=[local_rank])
teacher_without_ddp.load_state_dict({state})
old = {{key.replace("module.", ""): value for key, value in torch.load("/cache/old.pt", map_location="cpu").items()}}
dist.destroy_process_group()
"""
)


@pytest.mark.parametrize(
    ("state", "is_wrong"), [("student.module.state_dict()", False), ("student.state_dict()", True)]
)
def test_a_teacher_that_gets_the_state_of_a_wrapped_student(state: str, is_wrong: bool, tmp_path: Path) -> None:
    shown = found(tmp_path, TEACHER.format(state=state), args=["small"], **EIGHT)
    assert ("other-keys" in shown) is is_wrong


BY_TIMM = """
import argparse, os, torch, torch.distributed as dist, torch.nn as nn
from timm.data import create_dataset, create_loader
from torch.nn.parallel import DistributedDataParallel as DDP
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.block1, self.block2 = nn.Linear(4, 4), nn.Linear(4, 4)
    def forward(self, x):
        for number in range(2):
            x = getattr(self, f"block{{number + 1}}")(x)
        return x
args = argparse.ArgumentParser().parse_args()
args.distributed = int(os.environ["WORLD_SIZE"]) > 1
local_rank = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(local_rank)
dist.init_process_group("nccl")
loader = create_loader(create_dataset("", "/cache/data"), 224, 8, is_training=True, distributed=args.distributed)
model = DDP(Net().cuda(), device_ids=[local_rank])
for epoch in range(90):
    {epochs}
    for images, targets in loader:
        model(images).sum().backward()
"""


@pytest.mark.parametrize(("epochs", "is_wrong"), [("loader.sampler.set_epoch(epoch)", False), ("pass", True)])
def test_the_epochs_of_a_loader_of_timm(epochs: str, is_wrong: bool, tmp_path: Path) -> None:
    assert ("set-epoch" in found(tmp_path, BY_TIMM.format(epochs=epochs), **EIGHT)) is is_wrong


ON_GPUS = """
import os, torch, torch.distributed as dist, torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP
class Trainer:
    def __init__(self, model):
        self.gpu_id = int(os.environ["LOCAL_RANK"])
        self.model = DDP(model.to(self.gpu_id), device_ids=[self.gpu_id])
    def step(self, batch):
        self.model(batch.cuda()).mean().backward()
dist.init_process_group("gloo")
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
model = nn.SyncBatchNorm.convert_sync_batchnorm(nn.Sequential(nn.Linear(4, 4), {norm}))
trainer = Trainer(model)
trainer.step(torch.ones(2, 4))
dist.destroy_process_group()
"""


@pytest.mark.parametrize(("norm", "has_norms"), [("nn.ReLU()", False), ("nn.BatchNorm1d(4)", True)])
def test_one_message_names_all_places_that_need_a_gpu(norm: str, has_norms: bool, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(ON_GPUS.format(norm=norm))
    (one,) = [one for one in findings(tmp_path, backend={"kind": "local"}) if one.check == "cuda-on-cpu"]
    assert one.text.startswith("torch.cuda.set_device() needs a GPU, but these nodes have none. These need one, too: ")
    for place in ("7 .to(self.gpu_id)", "9 .cuda()"):
        assert f"train.py:{place}" in one.text
    assert ("SyncBatchNorm" in one.text) is has_norms


def test_a_module_of_the_code_that_python_does_not_find(tmp_path: Path) -> None:
    with_files(tmp_path, {"own/__init__.py": "", "scripts/train.py": "import own\n"})
    for missing, env, is_wrong in (({"own"}, {}, True), ({"own"}, {"PYTHONPATH": "."}, False), (set(), {}, False)):
        shown = findings(tmp_path, missing=missing, boot_file="scripts/train.py", env=env)
        hints = [one.hint for one in shown if one.check == "packages"]
        assert hints == (["add `-e PYTHONPATH=.`, or in the job file env: {PYTHONPATH: .}"] if is_wrong else [])


def test_modules_that_are_missing_for_the_same_reason_are_one_error(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import einops\nimport hydra\nimport wandb\n")
    (one,) = [one for one in findings(tmp_path, missing={"einops", "wandb"}) if one.check == "packages"]
    assert (one.where, one.text) == (
        "train.py:1",
        "the nodes' Python has no module einops, nor wandb (train.py:3)",
    )


def test_a_module_named_as_the_code_directory_is_found_from_the_folder_above(tmp_path: Path) -> None:
    with_files(tmp_path, {"esm2/train.py": "from esm2.net import Net\n", "esm2/net.py": "class Net: pass\n"})
    (one,) = [one for one in findings(tmp_path / "esm2", missing={"esm2"}) if one.check == "packages"]
    assert "set code_dir to the folder above it" in one.hint
    above = {"boot_file": "esm2/train.py", "env": {"PYTHONPATH": "."}}
    assert not [one for one in findings(tmp_path, missing={"esm2"}, **above) if one.check == "packages"]


REPORTS = (
    STARTED
    + """
def validate(model, loader):
    total = 0.0
    for x, y in loader:
        total += model(x.cuda()).mean().item()
    return total / len(loader), total
data = TensorDataset(torch.ones(64, 4), torch.ones(64))
loader = DataLoader(data, batch_size=4, sampler=DistributedSampler(data, shuffle=False))
model = DDP(nn.Linear(4, 1).cuda(), device_ids=[int(os.environ["LOCAL_RANK"])])
loss, total = validate(model, loader)
figures = torch.tensor([loss, total]).cuda()
{combines}
print(figures)
"""
)


@pytest.mark.parametrize(("combines", "is_wrong"), [("dist.all_reduce(figures)", False), ("", True)])
def test_results_that_are_put_into_a_tensor_and_combined(combines: str, is_wrong: bool, tmp_path: Path) -> None:
    assert ("part-as-whole" in found(tmp_path, REPORTS.format(combines=combines), **EIGHT)) is is_wrong


ONE_PASS = (
    STARTED
    + """
data = TensorDataset(torch.ones(64, 4), torch.ones(64))
model = DDP(nn.Linear(4, 1).cuda(), device_ids=[int(os.environ["LOCAL_RANK"])])
for step, (x, y) in enumerate(DataLoader(data, batch_size=4, sampler=DistributedSampler(data))):
    model(x.cuda()).mean().backward()
"""
)


def test_a_single_pass_needs_no_epoch(tmp_path: Path) -> None:
    assert "set-epoch" not in found(tmp_path, ONE_PASS, **EIGHT)


@pytest.mark.parametrize(("devices", "is_named"), [("1", True), ("4", False), ("count", False)])
def test_the_hint_for_a_trainer_names_devices_that_do_not_fit(devices: str, is_named: bool, tmp_path: Path) -> None:
    begin = "import sys, pytorch_lightning as pl\ncount = int(sys.stdin.readline())\n"
    (tmp_path / "train.py").write_text(f"{begin}pl.Trainer(devices={devices}).fit(None)\n")
    (one,) = [one for one in findings(tmp_path, **EIGHT) if one.check == "lightning-nodes"]
    assert ("LOCAL_WORLD_SIZE" in (one.hint or "")) is is_named


@pytest.mark.parametrize(("named", "is_named"), [("Einops>=0.6\ntorch\n", True), ("torch\n", False)])
def test_a_file_of_requirements_that_the_job_does_not_use(named: str, is_named: bool, tmp_path: Path) -> None:
    with_files(tmp_path, {"train.py": "import einops\n", "requirements.txt": named})
    (one,) = [one for one in findings(tmp_path, missing={"einops"}) if one.check == "packages"]
    assert ("--set requirements=requirements.txt" in (one.hint or "")) is is_named


BOXES = """
import os, torch, torch.distributed as dist
{starts}
def count(boxes):
    number = torch.tensor([boxes], dtype=torch.float{device})
    if dist.is_initialized():
        dist.all_reduce(number)
    return number.item()
def main():
    torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", 0)))
    print(count(4))
{calls}
"""
OF_DETECTRON = ("from detectron2.engine import default_argument_parser, launch", "launch(main, 4)")
OF_TORCH = ("dist.init_process_group(backend='NCCL')", "main()")


@pytest.mark.parametrize(("starts", "calls"), [OF_DETECTRON, OF_TORCH])
@pytest.mark.parametrize("device", ["", ", device='cuda'"])
def test_a_cpu_tensor_where_the_backend_is_written_in_capitals_or_by_detectron(
    starts: str, calls: str, device: str, tmp_path: Path
) -> None:
    shown = found(tmp_path, BOXES.format(starts=starts, calls=calls, device=device), **EIGHT)
    assert ("tensor-on-cpu" in shown) is (device == "")


OPENMMLAB = """
import argparse
from mmcv.runner import init_dist
from mmdet.apis import train_detector
parser = argparse.ArgumentParser()
parser.add_argument("config")
parser.add_argument("--launcher", choices=["none", "pytorch", "slurm", "mpi"], default="none")
parser.add_argument("--local_rank", type=int, default=0)
args = parser.parse_args()
if args.launcher == "none":
    distributed = False
else:
    distributed = True
    init_dist(args.launcher)
train_detector(None, None, None, distributed=distributed)
"""


@pytest.mark.parametrize(
    ("fields", "is_wrong"),
    [
        ({}, True),
        ({"hyperparameters": {"launcher": "pytorch"}}, False),
        ({"resources": {"nodes": 1, "nproc_per_node": 1}}, False),
    ],
)
def test_a_script_of_openmmlab_without_its_launcher(fields: dict[str, Any], is_wrong: bool, tmp_path: Path) -> None:
    with_files(tmp_path, {"train.py": OPENMMLAB, "conf.py": "total_epochs = 3\n"})
    shown = findings(tmp_path, args=["conf.py"], **{**EIGHT, **fields})
    assert any("--launcher is none" in one.text for one in shown) is is_wrong


@pytest.mark.parametrize(("size", "is_wrong"), [(16, False), (1024, True)])
def test_sizes_of_batches_that_several_processes_share(size: int, is_wrong: bool, tmp_path: Path) -> None:
    text = DEEPSPEED.replace("{sets}", "mpu = None").replace("{epochs}", SETS_EPOCH)
    text = text.replace("config_params=settings", "config_params=settings, mpu=mpu")
    sizes = SIZES.replace('"scheduler"', '"gradient_accumulation_steps": 1, "scheduler"')
    with_files(tmp_path, {"train.py": text, "conf/small_stage_2.json": sizes % size})
    assert any(one.check == "deepspeed-batch" for one in findings(tmp_path, **EIGHT)) is is_wrong


OF_ALL_CORES = """
import os, torch, torch.distributed as dist, torch.multiprocessing as mp
def setup(rank, size):
    rank = int(os.environ["NODE_RANK"]) * {per_node} + rank
    dist.init_process_group("gloo", rank=rank, world_size={size})
def run(rank, world_size):
    setup(rank, world_size)
    torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2))
def start(world_size):
    mp.spawn(run, args=(world_size,), nprocs={count}, join=True)
if __name__ == "__main__":
    try:
        world_size = int(os.environ["NUMBER_OF_PROCESSES"])
    except KeyError:
        world_size = os.cpu_count()
    start(world_size)
"""


@pytest.mark.parametrize(
    ("per_node", "size", "count", "nodes", "is_wrong"),
    [
        ("size", "size", "world_size", 2, True),
        ("size", "size", "world_size", 1, False),
        ("size", "size * int(os.environ['NNODES'])", "world_size", 2, False),
        ("size // 2", "size", "world_size // 2", 2, False),
    ],
)
def test_the_processes_of_one_node_are_taken_for_all(
    per_node: str, size: str, count: str, nodes: int, is_wrong: bool, tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text(OF_ALL_CORES.format(per_node=per_node, size=size, count=count))
    shown = findings(tmp_path, mode="spawn", resources={"nodes": nodes})
    assert any("is the number of processes that each node starts" in one.text for one in shown) is is_wrong


@pytest.mark.parametrize("names_argument", [False, True])
def test_the_hint_names_the_argument_only_where_there_is_one(names_argument: bool, tmp_path: Path) -> None:
    program = OF_ALL_CORES.format(per_node=2, size=2, count=2)
    if names_argument:
        parser = "import argparse\nargs = argparse.ArgumentParser()\nargs.add_argument('--world_size', type=int)\n"
        program = parser + "args.add_argument('--rank', type=int)\nargs = args.parse_args()\n" + program
    (tmp_path / "train.py").write_text(program)
    shown = findings(tmp_path, mode="spawn", resources={"nodes": 2, "nproc_per_node": 2})
    hints = [one.hint for one in shown if one.check == "fixed-world-size"]
    assert ["the argument --world_size" in str(hint) for hint in hints] == [names_argument]


@pytest.mark.parametrize(("named", "is_named"), [("einops>=0.7", True), ("other", False)])
def test_the_package_that_the_project_itself_names(named: str, is_named: bool, tmp_path: Path) -> None:
    text = f'[project]\ndependencies = [\n  "torch",\n  "{named}",\n]\n'
    with_files(tmp_path, {"train.py": "import einops\n", "part/pyproject.toml": text})
    (one,) = [one for one in findings(tmp_path, missing={"einops"}) if one.check == "packages"]
    assert ("part/pyproject.toml names its package" in str(one.hint)) is is_named


@pytest.mark.parametrize(("count", "asks_for_gpus"), [("torch.cuda.device_count()", True), ("1", False)])
def test_a_condition_on_gpus_says_so(count: str, asks_for_gpus: bool, tmp_path: Path) -> None:
    text = f"import torch\ncount = {count}\nassert count >= 2, 'at least 2'\n"
    (tmp_path / "train.py").write_text(text)
    (one,) = [one for one in findings(tmp_path) if one.check == "unfulfilled"]
    assert ("it asks for GPUs" in str(one.hint)) is asks_for_gpus


WRITER = """
import torch
try:
    from torch.utils.tensorboard import SummaryWriter
except ImportError:
    {instead}
"""


@pytest.mark.parametrize(
    ("instead", "missing", "is_wrong"),
    [
        ("from tensorboardX import SummaryWriter", {"tensorboard", "tensorboardX"}, True),
        ("from tensorboardX import SummaryWriter", {"tensorboard"}, False),
        ("from tensorboardX import SummaryWriter", {"tensorboardX"}, False),
        ("SummaryWriter = None", {"tensorboard", "tensorboardX"}, False),
    ],
)
def test_a_package_and_the_one_instead_of_it(instead: str, missing: set[str], is_wrong: bool, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(WRITER.format(instead=instead))
    shown = [one.text for one in findings(tmp_path, missing=missing) if one.check == "packages"]
    assert shown == ["the nodes' Python has neither the module tensorboard nor tensorboardX"] * is_wrong


@pytest.mark.parametrize(
    ("call", "is_found"),
    [
        ("MNIST(root='./data', train=True, download=True)", True),
        ("MNIST('data', download=True)", True),
        ("MNIST('other', download=True)", False),
        ("MNIST(root, download=True)", False),
    ],
)
def test_data_that_is_here_and_downloaded_again(call: str, is_found: bool, tmp_path: Path) -> None:
    program = f"import sys\nfrom torchvision import datasets\nroot = sys.argv[1]\ndatasets.{call}\n"
    with_files(tmp_path, {"train.py": program, "data/MNIST/raw/train": "x", ".gitignore": "data\n"})
    shown = [one for one in findings(tmp_path) if one.check == "left-out"]
    assert ["each node downloads the data in data again" in one.text for one in shown] == [True] * is_found
    assert all("!/data" in str(one.hint) for one in shown)


@pytest.mark.parametrize(
    ("ignored", "download", "text", "line"),
    [
        ("data/\n", "sys.argv[1]", "each node downloads the data in data again", "!/data "),
        ("data/\n", "False", "reads the data in data, which exists here but is not uploaded", "!/data "),
        ("data/\nraw/\n", "True", "each node downloads the data in data again", "!/data/** "),
        ("data/\n*ubyte\n", "True", "each node downloads the data in data again", "!/data/** "),
    ],
)
def test_a_folder_in_which_other_rules_apply_as_well(
    ignored: str, download: str, text: str, line: str, tmp_path: Path
) -> None:
    program = f"import sys\nfrom torchvision import datasets\ndatasets.MNIST('data', download={download})\n"
    with_files(tmp_path, {"train.py": program, "data/MNIST/raw/train-ubyte": "x", ".gitignore": ignored})
    (shown,) = [one for one in findings(tmp_path) if one.check == "left-out"]
    assert shown.text.startswith(text)
    assert f"add the line {line}" in str(shown.hint)

    wanted = re.search(r"the line (\S+) to", str(shown.hint))
    (tmp_path / ".jobignore").write_text(f"{wanted and wanted[1]}\n")
    assert [one for one in findings(tmp_path) if one.check == "left-out"] == []
    assert "data/MNIST/raw/train-ubyte" in [file.path for file in scan(tmp_path).files]


@pytest.mark.parametrize(
    ("call", "is_wrong"),
    [
        ("dist.broadcast(numbers)", True),
        ("dist.reduce(numbers, op=dist.ReduceOp.SUM)", True),
        ("dist.broadcast(numbers, 0)", False),
        ("dist.broadcast(numbers, group_src=0)", False),
        ("dist.broadcast(numbers, **{'src': 0})", False),
        ("dist.broadcast_object_list([1])", False),
    ],
)
def test_a_collective_that_names_no_rank(call: str, is_wrong: bool, tmp_path: Path) -> None:
    program = f"{STARTED}numbers = torch.ones(3, device='cuda')\n{call}\n"
    (tmp_path / "train.py").write_text(program)
    assert any("names no rank" in one.text for one in findings(tmp_path, **EIGHT)) is is_wrong


@pytest.mark.parametrize(
    "line", ["from torch.multiprocessing.spawn import spawn", "from torch.multiprocessing import spawn"]
)
def test_processes_are_started_by_a_name_of_an_inner_module(line: str, tmp_path: Path) -> None:
    program = f"{line}\ndef run(rank):\n    print(rank)\nif __name__ == '__main__':\n    spawn(run, nprocs=2)\n"
    assert "nested-spawn" in found(tmp_path, program)


SEVERAL_DEMOS = """
import torch, torch.distributed as dist, torch.multiprocessing as mp
def basic(rank, size):
    dist.init_process_group("gloo", rank=rank, world_size=size)
    torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2), device_ids=[rank])
def sharded(rank, size):
    dist.init_process_group("gloo", rank=rank, world_size=size)
    torch.nn.Linear(2, 2){moved}
def run(demo, size):
    mp.spawn(demo, args=(size,), nprocs=size)
if __name__ == "__main__":
    {first}run(basic, 2)
    run(sharded, 2)
"""


@pytest.mark.parametrize(
    ("first", "moved", "level", "places"),
    [
        ("", ".cuda()", "error", ["train.py:5", "train.py:8"]),
        ("", "", "error", ["train.py:5"]),
        ("import os\n    if os.environ.get('BASIC'): ", ".cuda()", "error", ["train.py:8"]),
        ("import os\n    if os.environ.get('BASIC'): ", "", "", []),
    ],
)
def test_each_function_that_a_helper_starts_is_looked_at(
    first: str, moved: str, level: str, places: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    (tmp_path / "train.py").write_text(SEVERAL_DEMOS.format(first=first, moved=moved))
    shown = findings(tmp_path, mode="spawn", resources={"nodes": 1, "nproc_per_node": 2})
    found = [one for one in shown if one.check == "cuda-on-cpu"]
    assert [one.level for one in found] == [level] * bool(level)
    assert [place for place in ("train.py:5", "train.py:8") for one in found if place in f"{one.where} {one.text}"] == (
        places
    )
