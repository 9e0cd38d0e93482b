"""Mistakes in the shapes of research code: settings in dataclasses and YAML, numbered folders, objects of rank 0."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from checked import GPUS, RESTARTED, each_mistake, findings, found

JOINED = """
import argparse, copy, glob, os, re, torch, torch.distributed as dist, torch.nn as nn
from dataclasses import dataclass, fields
from pathlib import Path
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler
local_rank = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(local_rank)
dist.init_process_group("nccl")
rank = dist.get_rank()
world_size = dist.get_world_size()
"""
LOADED = f"""{JOINED}
data = TensorDataset(torch.rand(8, 4))
sampler = DistributedSampler(data)
loader = DataLoader(data, sampler=sampler)
net = nn.Linear(4, 1).cuda()
"""
DATACLASS = """
@dataclass
class Options:
    batch_size: int = {batch}
    lr: float = 0.1
def parse():
    parser = argparse.ArgumentParser()
    for f in fields(Options):
        parser.add_argument("--" + f.name, type=f.type, default=f.default)
    return Options(**vars(parser.parse_args()))
args = parse()
assert args.batch_size % world_size == 0
"""
OF_CLASS = """
@dataclass
class Options:
    lr: {kind} = 0.1
def parse_into(cls):
    parser = argparse.ArgumentParser()
    for f in fields(cls):
        parser.add_argument(f"--{{f.name}}", type=f.type, default=f.default)
    return cls(**vars(parser.parse_args()))
parse_into(Options)
"""
TAKEN_APART = """
@dataclass
class Options:
    batch_size: int
    def steps(self, processes):
        return self.batch_size // processes
parser = argparse.ArgumentParser()
parser.add_argument("--batch_size", type=int, default={batch})
parser.add_argument("--data_dir", default="/data")
given = vars(parser.parse_args())
data_dir, *_ = (given.pop(key) for key in ("data_dir",))
options = Options(**given)
steps = options.steps(world_size)
assert steps > 0, "too small"
"""
OVERRIDDEN = """
class Settings:
    def __init__(self, path, **overrides):
        self.values = {{"loader": {{"batch": 8, "workers": 2}}, "lr": 0.1}}
        for key, value in overrides.items():
            if value is not None:
                self.values["loader"][key] = value
    def build(self):
        settings = self.values["loader"]
        total, world = settings["batch"], dist.get_world_size()
        assert total % world == 0
settings = Settings("none.yaml", batch={batch}, workers=None)
settings.build()
"""
ENTRY = """
settings = {{"loader": {{"batch": 8}}}}
settings["loader"]["batch"] = {batch}
if settings["loader"]["batch"] % world_size:
    raise ValueError("does not fit")
"""
NUMBERED = """
if rank == 0:
    number = {number}
    folder = [f"/runs/{{number:03d}}-model"]
else:
    folder = [None]
dist.broadcast_object_list(folder, src=0)
saved = sorted(glob.glob(f"{{folder[0]}}/*.pt"))
if saved:
    net.load_state_dict(torch.load(saved[-1]))
for step in range(10):
    torch.save(net.state_dict(), f"{{folder[0]}}/{{step}}.pt")
"""
INCREMENTED = """
def increment_path(path, exist_ok=False):
    path = Path(path)
    if path.exists() and not exist_ok:
        for n in range(2, 9999):
            p = Path(f"{{path}}{{n}}")
            if not p.exists():
                return p
    return path
last = increment_path(Path("/runs") / "exp", exist_ok={ok}) / "last.pt"
if last.exists():
    net.load_state_dict(torch.load(last))
torch.save(net.state_dict(), last)
"""
LATEST = """
number = len(os.listdir("/runs"))
saved = sorted(glob.glob("/runs/*/last.pt"))
if saved:
    net.load_state_dict(torch.load(saved[-1]))
torch.save(net.state_dict(), f"/runs/{number}/last.pt")
"""
RUN_IDS = 'max([int(name) for name in os.listdir("/runs")]) + 1'
WRITER = """
def train(model, log_writer=None):
    for batch in loader:
        loss = model(batch[0].cuda()).mean()
        loss.backward()
        {reduce_for_all}
        if log_writer is not None:
            {reduce_for_one}
            log_writer.add_scalar("loss", loss)
if rank == 0 and len(loader):
    log_writer = make_writer()
else:
    log_writer = None
sampler.set_epoch(1)
train(DDP(net, device_ids=[local_rank]), log_writer=log_writer)
"""
LEARNERS = """
class Learner:
    def __init__(self, count):
        self.group = {group}
{before}
is_learner = rank < 2
learner = Learner(2) if is_learner else None
"""
NEVER_CALLED = """
class Loss:
    def __call__(self, net, images):
        return net(images).mean()
def only_at_last(module, is_last):
    assert isinstance(module, nn.Module)
    if not is_last and isinstance(module, DDP):
        module.no_sync()
loss_fn = Loss()
ddp = DDP(net, device_ids=[local_rank])
ema = copy.deepcopy(net)
optimizer = torch.optim.SGD(net.parameters(), 0.1)
for epoch in range(3):
    sampler.set_epoch(epoch)
    for batch in loader:
        only_at_last(ddp, True)
        loss_fn(net={model}, images=batch[0].cuda()).backward()
        optimizer.step()
"""
CLASSIFIED = """
classifier = DDP(net, device_ids=[local_rank])
optimizer = torch.optim.SGD(classifier.parameters(), 0.1)
scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)
for epoch in range(3):
    sampler.set_epoch(epoch)
    total, seen = 0.0, 0
    for points, in loader:
        prediction = classifier(points.cuda())
        error = torch.nn.functional.mse_loss(prediction, points.cuda())
        error.backward()
        optimizer.step()
        total += error.item() * points.numel()
        seen += points.numel()
    own = total / seen
    {then}
"""
DOWNLOADED = """
import urllib.request
FOLDER = {folder!r}
def download():
    os.makedirs(FOLDER, exist_ok=True)
    urllib.request.urlretrieve("https://example.org/a.txt", os.path.join(FOLDER, "a.txt"))
def load(split):
    return [open(name).read() for name in glob.glob(os.path.join(FOLDER, f"*_{{split}}.txt"))]
if {first} == 0:
    download()
dist.barrier()
load("train")
"""
STEPS = """
class Options:
    def __init__(self, batch):
        self.batch = batch
    def rounds(self, devices):
        return self.batch // devices
options = Options(32)
rounds = {rounds}
model = DDP(net, device_ids=[local_rank])
for batch in loader:
    sampler.set_epoch(1)
    loss = model(batch[0].cuda()).mean()
    (loss / rounds).backward()
"""
OBJECT = """
class Options:
    def __init__(self):
        self.lr = 0.1
def save(model, options):
    torch.save({"model": model.state_dict(), "options": VALUE}, "/runs/last.pt")
def load():
    return torch.load("/runs/last.pt")
save(net, Options())
load()
"""


CASES: list[tuple[str, str, str, dict[str, Any]]] = [
    ("unfulfilled", JOINED + DATACLASS.format(batch=6), JOINED + DATACLASS.format(batch=8), GPUS),
    (
        "argument-type",
        JOINED + OF_CLASS.format(kind="int"),
        JOINED + OF_CLASS.format(kind="float"),
        {**GPUS, "hyperparameters": {"lr": 0.5}},
    ),
    ("unfulfilled", JOINED + TAKEN_APART.format(batch=3), JOINED + TAKEN_APART.format(batch=4), GPUS),
    ("unfulfilled", JOINED + OVERRIDDEN.format(batch=6), JOINED + OVERRIDDEN.format(batch=12), GPUS),
    ("unfulfilled", JOINED + ENTRY.format(batch=6), JOINED + ENTRY.format(batch=12), GPUS),
    (
        "rank-as-device",
        JOINED + "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n"
        "FSDP(nn.Linear(4, 1), device_id=rank)\n",
        JOINED + "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n"
        "FSDP(nn.Linear(4, 1), device_id=local_rank)\n",
        GPUS,
    ),
    (
        "no-checkpoint",
        LOADED + NUMBERED.format(number='len(glob.glob("/runs/*"))'),
        LOADED + NUMBERED.format(number="7"),
        RESTARTED,
    ),
    ("no-checkpoint", LOADED + NUMBERED.format(number='len(os.listdir("/runs"))'), LOADED + LATEST, RESTARTED),
    ("no-checkpoint", LOADED + INCREMENTED.format(ok=False), LOADED + INCREMENTED.format(ok=True), RESTARTED),
    (
        "rank-0-collective",
        LOADED + WRITER.format(reduce_for_all="pass", reduce_for_one="dist.all_reduce(loss)"),
        LOADED + WRITER.format(reduce_for_all="dist.all_reduce(loss)", reduce_for_one="pass"),
        GPUS,
    ),
    (
        "rank-0-collective",
        JOINED + LEARNERS.format(group="dist.new_group(list(range(2)))", before=""),
        JOINED + LEARNERS.format(group="shared", before="shared = dist.new_group(list(range(2)))"),
        GPUS,
    ),
    ("bypassed", LOADED + NEVER_CALLED.format(model="net"), LOADED + NEVER_CALLED.format(model="ddp"), GPUS),
    (
        "own-learning-rate",
        LOADED + CLASSIFIED.format(then="scheduler.step(own)"),
        LOADED
        + CLASSIFIED.format(
            then="shared = torch.tensor(own, device='cuda')\n    dist.all_reduce(shared)\n    scheduler.step(shared)"
        ),
        GPUS,
    ),
    (
        "staged-by-one",
        JOINED + DOWNLOADED.format(folder="/tmp/texts", first="rank"),
        JOINED + DOWNLOADED.format(folder="/tmp/texts", first="local_rank"),
        GPUS,
    ),
    (
        "staged-by-one",
        JOINED + DOWNLOADED.format(folder="texts", first="rank"),
        JOINED + DOWNLOADED.format(folder="/shared/texts", first="rank"),
        GPUS,
    ),
    (
        "divided-again",
        LOADED + STEPS.format(rounds="world_size"),
        LOADED + STEPS.format(rounds="options.rounds(world_size)"),
        GPUS,
    ),
    (
        "pickled-object",
        LOADED + OBJECT.replace("VALUE", "options"),
        LOADED + OBJECT.replace("VALUE", "vars(options)"),
        GPUS,
    ),
]
SHARDED = """
from torch.distributed.optim import ZeroRedundancyOptimizer
class Trainer:
    def __init__(self, net):
        self.net = net
        self.optimizer = ZeroRedundancyOptimizer(net.parameters(), torch.optim.AdamW)
    @property
    def data_parallel_rank(self):
        return dist.get_rank()
    @property
    def is_data_parallel_master(self):
        return self.data_parallel_rank == 0
    def gather(self):
        if isinstance(self.optimizer, ZeroRedundancyOptimizer):
            self.optimizer.consolidate_state_dict(to=0)
    def save(self):
        torch.save(self.net.state_dict(), "/runs/last.pt")
def save_checkpoint(trainer):
    {before}
    if not trainer.is_data_parallel_master:
        return
    {inside}
    trainer.save()
save_checkpoint(Trainer(net))
"""
ACCUMULATED = """
from contextlib import nullcontext
class Trainer:
    def __init__(self, rounds):
        self.rounds = rounds
        self.model = DDP(net, device_ids=[local_rank])
        self.optimizer = torch.optim.SGD(self.model.parameters(), 0.1)
    def accumulate(self, i):
        if {test}:
            return nullcontext()
        return self.model.no_sync()
    def train(self):
        for i in range(self.rounds):
            with self.accumulate(i):
                (self.model(next(batches).cuda()).mean() / self.rounds).backward()
        self.optimizer.step()
batches = iter(loader)
sampler.set_epoch(1)
Trainer(4).train()
"""
ATTRIBUTES = """
import json
class AttrDict(dict):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.__dict__ = self
def load_config(path):
    with open(path) as file:
        return AttrDict(json.loads(file.read()))
class Data:
    def __init__(self, h):
        self.hop_size = h.hop_size // 2
class Generator(nn.Module):
    def __init__(self, h):
        super().__init__()
        assert math.prod(h.rates) == h.hop_size {more}
import math
h = load_config("config.json")
Data(h), Generator(h)
"""
NAMES_TRIED = """
def find_rank():
    rank = 0
    for v in ({names}):
        if v in os.environ:
            rank = int(os.environ[v])
            break
    return rank
torch.cuda.set_device(find_rank() % 2)
"""
STOPPED = """
class Meter:
    def __init__(self):
        self.sum, self.count, self.avg = 0.0, 0, 0.0
    def update(self, value):
        self.sum += value
        self.count += 1
        self.avg = self.sum / self.count
    def all_reduce(self):
        both = torch.tensor([self.sum, self.count], device="cuda")
        dist.all_reduce(both)
        self.sum, self.count = both.tolist()
        self.avg = self.sum / self.count
class EarlyStopping:
    def step(self, loss):
        self.best = min(loss, self.best)
        return loss > self.best
def validate():
    losses, top1 = Meter(), Meter()
    for points, in loader:
        losses.update(torch.nn.functional.mse_loss(model(points.cuda()), points.cuda()).item())
        top1.update(0.5)
    top1.all_reduce()
    {more}
    return top1.avg, losses.avg
model = DDP(net, device_ids=[local_rank])
stopper = EarlyStopping()
for epoch in range(9):
    sampler.set_epoch(epoch)
    for points, in loader:
        model(points.cuda()).mean().backward()
    acc, loss = validate()
    if stopper.step(loss):
        break
"""
LIGHTNING = """
import argparse
import lightning.pytorch as pl
from omegaconf import OmegaConf
def load_config():
    parser = argparse.ArgumentParser()
    parser.add_argument("overrides", nargs="*")
    args = parser.parse_args()
    base = OmegaConf.create({{"trainer": {{"devices": 2, "num_nodes": {nodes}}}}})
    return OmegaConf.merge(base, OmegaConf.from_dotlist(args.overrides))
def make(trainer_cfg):
    return pl.Trainer(**trainer_cfg, default_root_dir="/runs")
cfg = load_config()
make(cfg.trainer).fit(model)
"""
CASES += [
    (
        "rank-0-collective",
        LOADED + SHARDED.format(before="pass", inside="trainer.gather()"),
        LOADED + SHARDED.format(before="trainer.gather()", inside="pass"),
        GPUS,
    ),
    (
        "never-synchronized",
        LOADED + ACCUMULATED.format(test="i % self.rounds == 0"),
        LOADED + ACCUMULATED.format(test="(i + 1) % self.rounds == 0"),
        GPUS,
    ),
    (
        "rank-env",
        JOINED + NAMES_TRIED.format(names="'SLURM_PROCID', 'PMI_RANK', 'RANK'"),
        JOINED + NAMES_TRIED.format(names="'LOCAL_RANK', 'SLURM_PROCID'"),
        GPUS,
    ),
    (
        "left-by-one",
        LOADED + STOPPED.format(more="pass"),
        LOADED + STOPPED.format(more="losses.all_reduce()"),
        GPUS,
    ),
    ("lightning-nodes", LIGHTNING.format(nodes=1), LIGHTNING.format(nodes=2), GPUS),
    (
        "lightning-nodes",
        LIGHTNING.format(nodes=2),
        LIGHTNING.format(nodes=2).replace("args.overrides", "[]"),
        {**GPUS, "args": ["trainer.num_nodes=4"]},
    ),
]
DRAWN = """
import random
parser = argparse.ArgumentParser()
parser.add_argument("--seed", type=int, default={default})
args = parser.parse_args()
seed = args.seed
if seed is None:
    seed = random.randint(1, 10000)
{more}
sampler = DistributedSampler(data, seed=seed)
sampler.set_epoch(1)
"""
CASES += [
    (
        "sampler-seed",
        LOADED + DRAWN.format(default=None, more=""),
        LOADED + DRAWN.format(default="os.environ.get('SEED')", more=""),
        GPUS,
    ),
    (
        "sampler-seed",
        LOADED + DRAWN.format(default=None, more=""),
        LOADED + DRAWN.format(default=None, more="box = [seed]\ndist.broadcast_object_list(box, src=0)\nseed = box[0]"),
        GPUS,
    ),
]
HOOKS = """
def mean(tensor):
    dist.all_reduce(tensor)
    return tensor / world_size
class Data:
    def evaluate(self, results):
        return results
class EvalHook:
    def evaluate(self, runner):
        return {figure}(torch.ones(1, device="cuda"))
    def after_epoch(self, runner):
        if rank == 0:
            self.evaluate(runner)
class Runner:
    def __init__(self, hooks):
        self.hooks = hooks
    def call_hook(self, name):
        for hook in self.hooks:
            getattr(hook, name)(self)
    def run(self):
        self.call_hook("after_epoch")
Runner([EvalHook()]).run()
"""
OWN_WORDS = """
import sys
from ast import literal_eval
def configure(defaults):
    config = dict(defaults)
    for word in sys.argv[1:]:
        key, value = word[2:].split("=", 1)
        try:
            config[key] = literal_eval(value)
        except ValueError:
            config[key] = value
    return config
config = configure(dict(steps={steps}, lr=0.1))
assert config["steps"] % world_size == 0
"""
OF_CLASS_METHOD = """
class Trainer:
    @classmethod
    def run(cls, model, scheduler):
        for epoch in range(3):
            sampler.set_epoch(epoch)
            stats = cls.validate(model)
            shared = cls.average(stats)
            if isinstance(scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau):
                scheduler.step({figure}["loss"] / {figure}["count"])
    @classmethod
    def validate(cls, model):
        total = {{"loss": 0.0, "count": 0.0}}
        for points, in loader:
            loss = torch.nn.functional.mse_loss(model(points.cuda()).flatten(), points.cuda())
            loss.backward()
            total["loss"] += loss.item() * points.flatten().numel()
            total["count"] += 1
        return total
    @staticmethod
    def average(total):
        both = torch.tensor([total["loss"], total["count"]], device="cuda")
        dist.all_reduce(both)
        return dict(zip(total, both))
model = DDP(net, device_ids=[local_rank])
optimizer = torch.optim.SGD(model.parameters(), 0.1)
Trainer.run(model, torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer))
"""
FETCHED = """
from torchvision import datasets
if {first} == 0:
    datasets.MNIST("data", train=True, download=True)
dist.barrier()
datasets.MNIST("data", train=True)
"""
COUNTED = """
def batch():
    return torch.randint(9, (4, 4)).float().cuda()
@torch.no_grad()
def estimate():
    losses = torch.zeros(8)
    for k in range(8):
        losses[k] = model(batch()).mean().item()
    return losses.mean().item()
torch.manual_seed(1 + rank)
model = DDP(nn.Linear(4, 1).cuda(), device_ids=[local_rank])
best, bad = float("inf"), 0
while True:
    loss = estimate()
    {more}
    if loss < best:
        best, bad = loss, 0
    else:
        bad += 1
    if bad >= 5:
        break
    model(batch()).mean().backward()
"""
HELD = """
class Loss(nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model
    def forward(self, batch):
        return self.model(batch).mean()
{before}
model = DDP(net, device_ids=[local_rank])
{after}
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for epoch in range(3):
    sampler.set_epoch(epoch)
    for points, in loader:
        loss_fn(points.cuda()).backward()
        optimizer.step()
    save(model.module)
"""
LAYERED = """
class Attention(nn.Module):
    def __init__(self, heads, width):
        assert width % heads == 0
class Encoder(nn.Module):
    def __init__(self, options):
        self.layers = nn.ModuleList([Attention(options.heads, options.width) for _ in range(options.layers)])
parser = argparse.ArgumentParser()
parser.add_argument("--heads", type=int, default=8)
parser.add_argument("--width", type=int, default={width})
parser.add_argument("--layers", type=int, default=2)
options = parser.parse_args()
encoder = Encoder(options) if options.layers else None
"""
OF_OWN_CLASS = """
@dataclass
class Options:
    batch: int = {batch}
    @classmethod
    def parse(cls):
        parser = argparse.ArgumentParser()
        for f in fields(cls):
            parser.add_argument(f"--{{f.name}}", type=f.type, default=f.default)
        return cls(**vars(parser.parse_args()))
options = Options.parse()
assert options.batch % world_size == 0
"""
CASES += [
    ("rank-0-collective", JOINED + HOOKS.format(figure="mean"), JOINED + HOOKS.format(figure="float"), GPUS),
    (
        "unfulfilled",
        JOINED + OWN_WORDS.format(steps=6),
        JOINED + OWN_WORDS.format(steps=8),
        {**GPUS, "hyperparameters": {"lr": 0.5}},
    ),
    (
        "own-learning-rate",
        LOADED + OF_CLASS_METHOD.format(figure="stats"),
        LOADED + OF_CLASS_METHOD.format(figure="shared"),
        GPUS,
    ),
    ("staged-by-one", JOINED + FETCHED.format(first="rank"), JOINED + FETCHED.format(first="local_rank"), GPUS),
    (
        "left-by-one",
        JOINED + COUNTED.format(more="pass"),
        JOINED
        + COUNTED.format(
            more="shared = torch.tensor(loss, device='cuda')\n    dist.all_reduce(shared)\n    loss = shared.item()"
        ),
        GPUS,
    ),
    (
        "bypassed",
        LOADED.replace("net =", "model = net =")
        + HELD.replace("DDP(net,", "DDP(model,").format(before="loss_fn = Loss(model)", after=""),
        LOADED.replace("net =", "model = net =")
        + HELD.replace("DDP(net,", "DDP(model,").format(before="", after="loss_fn = Loss(model)"),
        GPUS,
    ),
    ("unfulfilled", JOINED + LAYERED.format(width=500), JOINED + LAYERED.format(width=512), GPUS),
    ("unfulfilled", JOINED + OF_OWN_CLASS.format(batch=6), JOINED + OF_OWN_CLASS.format(batch=8), GPUS),
]
STOP_TIME = """
import time
def should_stop(start, step):
    if step >= 100:
        return True
    elapsed = (time.time() - start) / 3600
    if elapsed > 2:
        return True
    return False
start = time.time()
model = DDP(net, device_ids=[local_rank])
for epoch in range(3):
    sampler.set_epoch(epoch)
    for step, batch in enumerate(loader):
        model(batch[0].cuda()).mean().backward()
        stop = {stop}
        if stop:
            break
"""
EITHER = """
parser = argparse.ArgumentParser()
parser.add_argument("--name", default=None)
parser.add_argument("--width", type=int, default=None)
parser.add_argument("--depth", type=int, default=None)
args = parser.parse_args()
has_sizes = all([args.width is not None, args.depth is not None])
assert (args.name is not None) ^ has_sizes
"""
CASES += [
    (
        "left-by-one",
        LOADED + STOP_TIME.format(stop="should_stop(start, step)"),
        LOADED + STOP_TIME.format(stop="step >= 100"),
        GPUS,
    ),
    (
        "unfulfilled",
        JOINED + EITHER,
        JOINED
        + EITHER.replace("default=None)\nargs", "default=2)\nargs").replace('"--name", default=None', '"--name"'),
        {**GPUS, "hyperparameters": {"width": 4}},
    ),
]
SHARED = """
size = -1
def join():
    global size
    size = dist.get_world_size()
def slice_of(count):
    if count % size != 0:
        raise ValueError("does not fit")
    return count // size
join()
slice_of({count})
"""
RENDERED = """
class Trainer:
    def __init__(self, net):
        self.model = DDP(net, device_ids=[local_rank])
    @property
    def net(self):
        return self.model.module if world_size > 1 else self.model
    def step(self, batch):
        return {model}.render(batch).mean()
    def train(self):
        for batch in loader:
            self.step(batch[0].cuda()).backward()
class Net(nn.Module):
    def render(self, x):
        return x
sampler.set_epoch(1)
Trainer(Net()).train()
"""
HEADS = """
class Head(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(2))
    def forward(self, x):
        return self.layers[1](self.layers[0](x))
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.boxes = Head()
        self.classes = Head()
        self.shape = tuple([4, 4])
    def forward(self, x):
        return {forward}
DDP(Net().cuda(), device_ids=[local_rank])
"""
COMMENTED = """
import json
def parse(path):
    text = ""
    with open(path) as file:
        for line in file:
            text += line.split("//")[0] + "\\n"
    options = json.loads(text)
    options["path"] = path
    os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(str(x) for x in options["gpu_ids"])
    return options
parse("options.json")
"""
PRESETS = """
@dataclass
class Config:
    width: int = 8
PRESETS = {{"small": Config(), "large": Config(width=16)}}
class Manager:
    def __init__(self, config):
        self.config = config
    def save(self):
        torch.save({{"config": {value}}}, "/runs/last.pt")
manager = Manager(PRESETS["small"])
manager.save()
torch.load("/runs/last.pt")
"""
CASES += [
    ("unfulfilled", JOINED + SHARED.format(count=6), JOINED + SHARED.format(count=8), GPUS),
    ("bypassed", LOADED + RENDERED.format(model="self.net"), LOADED + RENDERED.format(model="self.model"), GPUS),
    (
        "unused-parameters",
        JOINED + HEADS.format(forward="self.boxes(x)"),
        JOINED + HEADS.format(forward="self.classes(self.boxes(x))"),
        GPUS,
    ),
    (
        "pickled-object",
        LOADED + PRESETS.format(value="self.config"),
        LOADED + PRESETS.format(value="vars(self.config)"),
        GPUS,
    ),
]
STATE = """
parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float, default=0.1)
def save(model, args):
    state = {{}}
    state["model"] = model.state_dict()
    state["args"] = {value}
    torch.save(state, "/runs/last.pt")
args = parser.parse_args()
save(net, args)
torch.load("/runs/last.pt")
"""
HYDRA = """
import hydra
from omegaconf import OmegaConf
class Trainer:
    def __init__(self, cfg):
        self.cfg = cfg
        if os.path.exists("/runs/last.pt"):
            torch.load("/runs/last.pt")
    def save(self):
        torch.save({{"config": {value}}}, "/runs/last.pt")
@hydra.main(version_base=None, config_path=None, config_name="base")
def main(cfg):
    Trainer(cfg).save()
main()
"""
LOADED_CONFIG = """
from omegaconf import OmegaConf
config = OmegaConf.merge(OmegaConf.load("none.yaml"), OmegaConf.from_cli())
torch.save({{"config": {value}}}, "/runs/last.pt")
torch.load("/runs/last.pt")
"""
CASES += [
    (
        "pickled-object",
        LOADED + STATE.format(value="args"),
        LOADED + STATE.format(value="vars(args)"),
        GPUS,
    ),
    (
        "pickled-object",
        LOADED + HYDRA.format(value="self.cfg"),
        LOADED + HYDRA.format(value="OmegaConf.to_container(self.cfg)"),
        GPUS,
    ),
    (
        "pickled-object",
        LOADED + LOADED_CONFIG.format(value="config"),
        LOADED + LOADED_CONFIG.format(value="OmegaConf.to_container(config)"),
        GPUS,
    ),
]


@each_mistake(CASES)
def test_a_mistake_is_found(check: str, wrong: str, right: str, fields: dict[str, Any], tmp_path: Path) -> None:
    assert check in found(tmp_path, wrong, **fields)
    assert check not in found(tmp_path, right, **fields)


def test_an_object_in_a_checkpoint_is_called_what_it_is(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(LOADED + OBJECT.replace("VALUE", "options"))
    texts = [one.text for one in findings(tmp_path, **GPUS) if one.check == "pickled-object"]
    assert ["an object of Options" in text for text in texts] == [True]


def test_files_that_are_named_by_what_calls_give(tmp_path: Path) -> None:
    text = """
from pathlib import Path
LISTS = Path(__file__).resolve().parent / "lists"
class Data:
    def __init__(self, split):
        self.names = open(LISTS / f"{split}.txt").read().split()
Data("train"), Data("val")
"""
    (tmp_path / "train.py").write_text(text)
    (tmp_path / "lists").mkdir()
    for name in ("train", "val", "test"):
        (tmp_path / "lists" / f"{name}.txt").write_text("a\n")
    (tmp_path / ".gitignore").write_text("lists/\n")
    texts = [one.text for one in findings(tmp_path, **GPUS) if one.check == "left-out"]
    assert [text.split(",")[0] for text in texts] == ["reads lists/train.txt", "reads lists/val.txt"]


@pytest.mark.parametrize(("gpus", "is_found"), [("[0]", True), ("[0, 1]", False)])
def test_options_in_json_with_comments(gpus: str, is_found: bool, tmp_path: Path) -> None:
    (tmp_path / "options.json").write_text(f'{{\n  "gpu_ids": {gpus}, // of a node\n  "path": ""\n}}\n')
    assert ("hidden-gpus" in found(tmp_path, JOINED + COMMENTED, **GPUS)) is is_found


@pytest.mark.parametrize(("more", "is_found"), [("", True), ("* 2", False)])
def test_settings_that_are_read_like_fields(more: str, is_found: bool, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"rates": [4, 2], "hop_size": 4}')
    assert ("unfulfilled" in found(tmp_path, JOINED + ATTRIBUTES.format(more=more), **GPUS)) is is_found


def test_a_condition_on_what_it_sets_is_followed_once(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(JOINED + OF_ITSELF)
    assert [one.text for one in findings(tmp_path, **GPUS) if one.level == "unknown"] == []


def test_a_loader_that_this_job_does_not_make(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"cached": ""}')
    assert "no-sampler" not in found(tmp_path, LOADED + LOADED_APART, **GPUS)


@pytest.mark.parametrize(("nodes", "wrong"), [("1", {"launcher-nodes"}), ("$NNODES", set())])
def test_a_shell_script_that_numbers_the_nodes(nodes: str, wrong: set[str], tmp_path: Path) -> None:
    script = f"""#!/bin/bash
GPUS_PER_NODE=2
MASTER_ADDR=${{MASTER_ADDR:-localhost}}
MASTER_PORT=6000
NODE_RANK=${{NODE_RANK:-0}}
LAUNCH=(
    --nproc_per_node $GPUS_PER_NODE
    --nnodes {nodes}
    --node_rank $NODE_RANK
    --master_addr $MASTER_ADDR
    --master_port $MASTER_PORT
)
torchrun ${{LAUNCH[@]}} train.py
"""
    (tmp_path / "run.sh").write_text(script)
    assert found(tmp_path, "print(1)\n", command=["bash", "run.sh"], **GPUS) == wrong


@pytest.mark.parametrize(("count", "wrong"), [("${WORLD_SIZE:-1}", {"launcher-nodes"}), ("${NNODES:-1}", set())])
def test_a_shell_script_with_defaults_for_what_nobody_sets(count: str, wrong: set[str], tmp_path: Path) -> None:
    start = "torchrun --nnodes $COUNT --node_rank $PLACE --master_addr $MASTER_ADDR train.py"
    script = f"COUNT={count}\nPLACE=${{NODE_RANK:-0}}\n{start}\n"
    (tmp_path / "run.sh").write_text(script)
    assert found(tmp_path, "print(1)\n", command=["bash", "run.sh"], **GPUS) == wrong


@pytest.mark.parametrize(("line", "wrong"), [("use_cpu: true", set()), ("seed: 1", {"no-init"})])
def test_that_cpus_are_used_may_be_said_in_a_configuration(line: str, wrong: set[str], tmp_path: Path) -> None:
    text = """
import yaml
from transformers import Trainer, TrainingArguments
training_args = TrainingArguments(**yaml.safe_load(open("conf/train.yaml")))
Trainer(args=training_args).train()
"""
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "train.yaml").write_text(f"output_dir: out\n{line}\n")
    assert found(tmp_path, text) == wrong


MERGED = """
def merge(part, folder):
    with open(f"{folder}/{rank}.pkl", "wb") as file:
        pickle.dump(part, file)
    dist.barrier()
    if rank != 0:
        return None
    return [pickle.load(open(f"{folder}/{one}.pkl", "rb")) for one in range(world_size)]
def evaluate(model, loader):
    part = []
    for batch in loader:
        part.append(model(batch[0].cuda()).item())
    merged = merge(part, "/shared/parts")
    return None if merged is None else sum(map(sum, merged))
import pickle
model = DDP(net, device_ids=[local_rank])
for epoch in range(3):
    sampler.set_epoch(epoch)
    model(torch.rand(1, 4).cuda()).mean().backward()
tests = DataLoader(data, sampler=DistributedSampler(data, shuffle=False))
result = evaluate(model, tests)
"""


REDUCED_LATER = """
class Confusion:
    def __init__(self):
        self.matrix = torch.zeros(2, 2, device="cuda")
    def update(self, points):
        self.matrix += points.mean()
    def reduce_from_all_processes(self):
        reduce_across_processes(self.matrix)
def reduce_across_processes(matrix):
    dist.barrier()
    dist.all_reduce(matrix)
def evaluate(model, loader):
    confusion = Confusion()
    for points, in loader:
        confusion.update(model(points.cuda()))
    confusion.reduce_from_all_processes()
    return confusion
model = DDP(net, device_ids=[local_rank])
for epoch in range(3):
    sampler.set_epoch(epoch)
    model(torch.rand(1, 4).cuda()).mean().backward()
tests = DataLoader(data, sampler=DistributedSampler(data, shuffle=False))
confusion = evaluate(model, tests)
"""
OF_ITSELF = """
class Clock:
    def tick(self):
        self.step = self.step + 1 if self.step is not None else None
        return dist.barrier() if self.step is not None else None
clock = Clock()
clock.tick()
"""
LOADED_APART = """
import json
from accelerate import Accelerator
config = json.load(open("config.json"))
config["name"] = "first"
def load():
    if config.get("cached", ""):
        return DataLoader(data)
    return stream()
def train(accelerator, model, batches):
    for batch in batches:
        accelerator.backward(model(batch).mean())
accelerator = Accelerator()
batches = load()
if config.get("cached", ""):
    net, batches = accelerator.prepare(net, batches)
else:
    net = accelerator.prepare(net)
train(accelerator, net, batches)
"""
SEEDED_ALIKE = """
parser = argparse.ArgumentParser(description="tables spread over all ranks")
parser.add_argument("--seed", type=int, default=1)
args = parser.parse_args()
torch.manual_seed(args.seed)
net = nn.Linear(4, 1).cuda()
net(torch.rand(1, 4).cuda()).mean().backward()
for parameter in net.parameters():
    dist.all_reduce(parameter.grad)
    parameter.grad /= world_size
"""
OF_EACH_NODE = """
class Cache:
    def __init__(self, folder):
        node = int(os.environ["GROUP_RANK"])
        self.file = os.path.join(folder, f"cache_node{node}.pt")
        if int(os.environ["LOCAL_RANK"]) == 0:
            torch.save(torch.ones(2), self.file)
Cache("/shared/cache")
"""
OTHER_FILE = """
parser = argparse.ArgumentParser("DINO")
parser.add_argument("--folder")
args = parser.parse_args()
torch.save({"args": args}, os.path.join(args.folder, "checkpoint.pth"))
torch.save({"features": torch.ones(2)}, os.path.join(args.folder, f"part{rank}.pth"))
torch.load(os.path.join(args.folder, f"part{rank}.pth"))
"""
SYNCHRONIZED_SEED = """
import random
def sync_seed(seed):
    if seed is None:
        seed = random.randint(0, 9)
    box = torch.tensor(seed if rank == 0 else 0, device="cuda")
    dist.broadcast(box, src=0)
    return box.item()
sampler = DistributedSampler(data, seed=sync_seed(None))
"""
OF_ONE_NODE = """
class Place:
    def __init__(self):
        self.node_rank = rank // 2
        self.local_rank = local_rank
        self.local_size = int(os.environ["LOCAL_WORLD_SIZE"])
    @property
    def tests(self):
        return self.node_rank == 0
def load(place):
    return DistributedSampler([1, 2], num_replicas=place.local_size, rank=place.local_rank, shuffle=False)
place = Place()
if place.tests:
    load(place)
"""


@pytest.mark.parametrize(
    ("check", "text"),
    [
        ("part-as-whole", LOADED + MERGED),
        ("part-as-whole", LOADED + REDUCED_LATER),
        ("part-of-node", JOINED + OF_ONE_NODE),
        ("rank-0-collective", JOINED + OF_ITSELF),
        ("unequal-start", JOINED + SEEDED_ALIKE),
        ("pickled-object", JOINED + OTHER_FILE),
        ("saved-by-all", JOINED + OF_EACH_NODE),
        ("sampler-seed", LOADED + SYNCHRONIZED_SEED),
    ],
)
def test_what_only_resembles_a_mistake(check: str, text: str, tmp_path: Path) -> None:
    assert check not in found(tmp_path, text, **GPUS)
