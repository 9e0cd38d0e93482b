"""Mistakes that only show when trainers, hooks, registries and requests are followed from one method to another."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from checked import SLURM, each_mistake, findings, found

EIGHT = {"resources": {"nodes": 2, "nproc_per_node": 4}}
BEGIN = """
import argparse, os, time, numpy as np, torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, Subset
"""

SEEDED = (
    BEGIN
    + """
class Session:
    def __init__(self, settings):
        dist.init_process_group("gloo")
        self.rank, self.settings = dist.get_rank(), settings
        self.seed_everything()
        self.model = DDP(torch.nn.Linear(4, 1))
    def seed_everything(self):
        seed = self.settings.seed + {added}
        np.random.seed(seed)
        torch.manual_seed(seed)
    def split(self, data):
        order = np.random.permutation(len(data))
        cut = int(len(order) * 0.1)
        return Subset(data, {parts})
Session(load_settings()).split(load_data())
"""
)

PARTS_OF_NODES = (
    BEGIN
    + """
def local_size():
    return int(os.environ.get("LOCAL_WORLD_SIZE", 1))
def loader(data):
    rank, world = dist.get_rank(), dist.get_world_size()
    size = {size}
    sampler = DistributedSampler(data, num_replicas=world // size, rank=rank // size)
    return DataLoader(data, 8, sampler=sampler)
dist.init_process_group("gloo")
model = DDP(torch.nn.Linear(4, 1))
for epoch in range(3):
    for batch in loader(range(64)):
        model(batch).mean().backward()
"""
)

HOOKED = (
    BEGIN
    + """
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = torch.nn.Linear(4, 4), torch.nn.Linear(4, 1)
        for param in self.body.parameters():
            param.requires_grad = False
    def forward(self, x):
        return self.head(self.body(x))
class Thaw:
    def before_epoch(self, runner):
        for param in runner.model.{inner}.parameters():
            param.requires_grad = True
class Runner:
    def __init__(self):
        self.net = Net()
        self.model = DDP(self.net)
        self.hooks = [Thaw()]
    def run(self):
        for epoch in range(3):
            for hook in self.hooks:
                hook.before_epoch(self)
            self.model(torch.rand(4)).mean().backward()
dist.init_process_group("gloo")
Runner().run()
"""
)

STOPPING = (
    BEGIN
    + """
class Stopping:
    def on_epoch_end(self, trainer, loss):
        trainer.should_stop = loss < 0.1
class Trainer:
    def __init__(self):
        self.is_main = dist.get_rank() == 0
        self.model = DDP(torch.nn.Linear(4, 1))
        self.callbacks = {callbacks}
        self.should_stop = False
    def epoch(self):
        loss = self.model(torch.rand(4)).mean()
        loss.backward()
        return loss.item()
    def fit(self):
        for epoch in range(3):
            loss = self.epoch()
            for callback in self.callbacks:
                callback.on_epoch_end(self, loss)
            if self.should_stop:
                break
dist.init_process_group("gloo")
Trainer().fit()
"""
)

SHARDED = (
    BEGIN
    + """
from torch.distributed.fsdp import fully_shard
def apply_fsdp(model):
    fully_shard(model)
    return model
class Trainer:
    def __init__(self, config):
        self.config = config
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        dist.init_process_group("nccl")
        model = torch.nn.Linear(4, 4).cuda()
        {steps}
    def build_optimizer(self, model):
        cls = {{"AdamW": torch.optim.AdamW}}[self.config]
        return cls(model.parameters(), lr=0.1)
    def step(self):
        self.model(torch.rand(4).cuda()).sum().backward()
        self.optimizer.step()
Trainer("AdamW").step()
"""
)
EARLY = "self.optimizer = self.build_optimizer(model)", "self.model = apply_fsdp(model)"

MEETING = (
    BEGIN
    + """
parser = argparse.ArgumentParser()
parser.add_argument("--dist_url", default="{url}")
args = parser.parse_args()
dist.init_process_group("gloo", init_method=args.dist_url, rank=int(os.environ["RANK"]), world_size=4)
"""
)

REQUEST = (
    BEGIN
    + """
class Request:
    def __init__(self):
        self.work = None
    def wait(self):
        self.work.wait()
class Exchange(torch.autograd.Function):
    @staticmethod
    def forward(ctx, request, x):
        out = x.new_empty(x.shape)
        request.work = dist.all_to_all_single(out, x, async_op=True)
        return out
    @staticmethod
    def backward(ctx, gradient):
        return None, gradient
def exchange(x):
    request = Request()
    return Exchange.apply(request, x), request
dist.init_process_group("gloo")
buffer, request = exchange(torch.rand(4))
{waited}
print(buffer)
"""
)

RETURNED = (
    BEGIN
    + """
def reduce_later(x):
    handle = dist.all_reduce(x, async_op=True)
    return x, handle
def other(x):
    dist.barrier(async_op=True).wait()
dist.init_process_group("gloo")
value, handle = reduce_later(torch.rand(4))
other(value)
{waited}
print(value)
"""
)

SWITCHED = (
    BEGIN
    + """
dist.init_process_group("gloo")
model = DDP(torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(10):
    for micro_step in range(4):
        model.require_backward_grad_sync = (micro_step == {which})
        model(torch.rand(4)).mean().backward()
    optimizer.step()
"""
)

LAUNCHERS = (
    BEGIN
    + """
def init_dist(launcher, backend="gloo", **kwargs):
    if launcher == "slurm":
        _slurm(backend, **kwargs)
    else:
        dist.init_process_group(backend, **kwargs)
def _slurm(backend):
    os.environ["RANK"] = os.environ["SLURM_PROCID"]
    dist.init_process_group(backend)
parser = argparse.ArgumentParser()
parser.add_argument("--launcher", default="{launcher}")
args = parser.parse_args()
config = {{"timeout": None}}
init_dist(args.launcher, **config)
"""
)

AVERAGED = (
    BEGIN
    + """
def start():
    dist.init_process_group("gloo")
    return dist.get_rank(), dist.get_world_size()
def allreduce_params(module):
    for param in module.parameters():
        dist.all_reduce(param.grad)
        param.grad /= dist.get_world_size()
rank, n_gpus = start()
torch.manual_seed(0)
model = torch.nn.Linear(4, 1)
loss = model(torch.rand(4)).mean(){divided}
loss.backward()
allreduce_params(model)
"""
)

FOLDERS = (
    BEGIN
    + """
import torch.distributed.checkpoint as dcp
def run_folder():
    name = [{name}]
    dist.broadcast_object_list(name, src=0)
    return os.path.join("/shared/runs", name[0])
class Manager:
    def __init__(self, folder):
        self.folder = os.path.join(folder, "checkpoints")
        self.states = {{"model": torch.nn.Linear(4, 1)}}
    def place(self, step):
        return os.path.join(self.folder, f"step-{{step}}")
    def save(self, step):
        dcp.save(self.states, checkpoint_id=self.place(step))
    def load(self):
        dcp.load(self.states, checkpoint_id=self.place(0))
dist.init_process_group("gloo")
manager = Manager(run_folder())
manager.load()
manager.save(1)
"""
)

HEADS = (
    BEGIN
    + """
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.body = torch.nn.Linear(4, 4)
        self.heads = torch.nn.ModuleList([torch.nn.Linear(4, 1) for _ in range(3)])
    def forward(self, x, task):
        x = self.body(x)
        return {head}
dist.init_process_group("gloo")
model = DDP(Net())
for step in range(9):
    model(torch.rand(4), step % 3).mean().backward()
"""
)

WORKERS = (
    BEGIN
    + """
from dataclasses import dataclass
import torch.multiprocessing as mp
@dataclass
class Worker:
    rank: int
    world_size: int
def start(index, ngpus, args):
    worker = Worker(rank={rank}, world_size=ngpus * args.world_size)
    torch.cuda.set_device(index)
    dist.init_process_group("nccl", init_method=args.init_method, world_size=worker.world_size, rank=worker.rank)
    DDP(torch.nn.Linear(4, 1).cuda(index))
parser = argparse.ArgumentParser()
parser.add_argument("--init_method")
parser.add_argument("--world_size", type=int)
parser.add_argument("--rank", type=int)
if __name__ == "__main__":
    args = parser.parse_args()
    mp.spawn(start, args=(torch.cuda.device_count(), args), nprocs=torch.cuda.device_count())
"""
)

UNWRAPPED = (
    BEGIN
    + """
def unwrap(model):
    return model.module if hasattr(model, "module") else model
def train_one_epoch(model, loader):
    net = unwrap(model)
    for batch in loader:
        loss = {called}(batch).mean()
        loss.backward()
dist.init_process_group("gloo")
model = DDP(torch.nn.Linear(4, 1))
train_one_epoch(model, [torch.rand(4)])
"""
)

AGENT = (
    BEGIN
    + """
class Agent:
    def __init__(self):
        self.online, self.target = torch.nn.Linear(4, 1), torch.nn.Linear(4, 1)
    def average(self):
        for p in self.online.parameters():
            dist.all_reduce(p.grad)
            p.grad /= dist.get_world_size()
    def update(self):
        self.online(torch.rand(4)).mean().backward()
        self.average()
        self.target.load_state_dict({state})
dist.init_process_group("gloo")
torch.manual_seed(dist.get_rank())
Agent().update()
"""
)

PREPARED = """
import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader
class Trainer:
    def __init__(self):
        self.accelerator = Accelerator()
        model, train = torch.nn.Linear(4, 1), DataLoader(range(9), 3)
        self.train_loader = {loader}
        self.model = self.accelerator.prepare(model)
    def run(self):
        for batch in self.train_loader:
            self.accelerator.backward(self.model(batch).mean())
Trainer().run()
"""

HASHED = (
    BEGIN
    + """
class Shards(torch.utils.data.IterableDataset):
    def __init__(self, names, rank, world_size):
        self.names = [name for name in names if {hashed} % world_size == rank]
dist.init_process_group("gloo")
Shards(["a", "b"], dist.get_rank(), dist.get_world_size())
"""
)

DROPPED = (
    BEGIN
    + """
class Layers(torch.nn.ModuleList):
    def __init__(self, layers):
        super().__init__(layers)
    def forward(self, x):
        probs = torch.empty(len(self)).uniform_()
        for index, layer in enumerate(self):
            if not self.training or probs[index] >= {rate}:
                x = layer(x)
        return x
dist.init_process_group("gloo")
DDP(Layers([torch.nn.Linear(4, 4)]))(torch.rand(4)).mean().backward()
"""
)

OF_MPI = (
    BEGIN
    + """
def first(names, default):
    return next((int(os.environ[name]) for name in names if name in os.environ), default)
rank, size = first({names}, 0), first(["WORLD_SIZE"], 1)
dist.init_process_group("gloo", rank=rank, world_size=size)
"""
)

SHUFFLED = (
    BEGIN
    + """
def shuffle(x):
    order = torch.randperm(8{device})
    dist.broadcast(order, src=0)
    return x[order]
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
dist.init_process_group("nccl")
shuffle(torch.rand(8).cuda())
"""
)

WORKED = (
    BEGIN
    + """
class Sampler:
    def update(self):
        self.rank, self.world_size = dist.get_rank(), dist.get_world_size()
        info = torch.utils.data.get_worker_info()
        self.worker, self.workers = (info.id, info.num_workers) if info else (0, 1)
        return dict(rank=self.rank, world_size=self.world_size)
    def sample(self, data):
        return data[{part}]
class Lines(torch.utils.data.IterableDataset):
    def __init__(self, lines):
        self.lines, self.sampler = lines, Sampler()
    def __iter__(self):
        self.sampler.update()
        yield from self.sampler.sample(self.lines)
dist.init_process_group("gloo")
model = DDP(torch.nn.Linear(4, 1))
for batch in DataLoader(Lines([1, 2]), batch_size=2):
    model(batch).mean().backward()
"""
)

OPTIMIZED = (
    BEGIN
    + """
def sync_params(params):
    for p in params:
        dist.broadcast(p, 0)
class Loop:
    def __init__(self):
        self.model = torch.nn.Linear(4, 1)
        self.opt = torch.optim.SGD(self.model.parameters(), lr=0.1)
        if dist.get_rank() == 0:
            self.model.load_state_dict(torch.load("/shared/model.pt"))
        sync_params(self.model.parameters())
        if {who}:
            self.opt.load_state_dict(torch.load("/shared/opt.pt"))
        self.model = DDP(self.model)
dist.init_process_group("gloo")
Loop()
"""
)

CASES: list[tuple[str, str, str, dict[str, Any]]] = [
    (
        "split-by-rank",
        SEEDED.format(added="self.rank", parts="order[cut:]), Subset(data, order[:cut]"),
        SEEDED.format(added="0", parts="order[cut:]), Subset(data, order[:cut]"),
        {},
    ),
    ("part-of-node", PARTS_OF_NODES.format(size="local_size()"), PARTS_OF_NODES.format(size="1"), EIGHT),
    (
        "thawed-later",
        HOOKED.format(inner="module.body"),
        HOOKED.format(inner="module.head").replace("= False", "= True"),
        {},
    ),
    (
        "left-by-one",
        STOPPING.format(callbacks="[Stopping()] if self.is_main else []"),
        STOPPING.format(callbacks="[Stopping()]"),
        {},
    ),
    (
        "optimizer-too-early",
        SHARDED.format(steps="\n        ".join(EARLY)),
        SHARDED.format(steps="\n        ".join(reversed(EARLY))),
        {"backend": SLURM},
    ),
    ("fixed-master", MEETING.format(url="file:///tmp/meeting"), MEETING.format(url="file:///shared/meeting"), {}),
    ("not-awaited", REQUEST.format(waited=""), REQUEST.format(waited="request.wait()"), {}),
    ("not-awaited", RETURNED.format(waited=""), RETURNED.format(waited="handle.wait()"), {}),
    ("never-synchronized", SWITCHED.format(which="0"), SWITCHED.format(which="4 - 1"), {}),
    ("rank-env", LAUNCHERS.format(launcher="slurm"), LAUNCHERS.format(launcher="pytorch"), {}),
    ("divided-again", AVERAGED.format(divided=" / n_gpus"), AVERAGED.format(divided=""), {}),
    (
        "no-checkpoint",
        FOLDERS.format(name='time.strftime("%H%M")'),
        FOLDERS.format(name='"run"'),
        {"restarts": 2},
    ),
    (
        "unused-parameters",
        HEADS.format(head="self.heads[task](x)"),
        HEADS.format(head="sum(head(x) for head in self.heads)"),
        {},
    ),
    (
        "same-ranks",
        WORKERS.format(rank="index"),
        WORKERS.format(rank="args.rank * ngpus + index"),
        {"mode": "spawn", "resources": {"nodes": 2}, "backend": {**SLURM, "gpus_per_node": 8}},
    ),
    ("bypassed", UNWRAPPED.format(called="net"), UNWRAPPED.format(called="model"), {}),
    (
        "unequal-start",
        AGENT.format(state="self.online.state_dict()"),
        AGENT.format(state="torch.load('/shared/start.pt')"),
        {},
    ),
    (
        "no-sampler",
        PREPARED.format(loader="train"),
        PREPARED.format(loader="self.accelerator.prepare(train)"),
        {},
    ),
    ("unused-parameters", DROPPED.format(rate="0.1"), DROPPED.format(rate="0"), {}),
    ("rank-env", OF_MPI.format(names='["PMI_RANK"]'), OF_MPI.format(names='["PMI_RANK", "RANK"]'), {}),
    ("tensor-on-cpu", SHUFFLED.format(device=""), SHUFFLED.format(device=', device="cuda"'), {"backend": SLURM}),
    (
        "no-sampler",
        WORKED.format(part="self.worker :: self.workers"),
        WORKED.format(part="self.rank :: self.world_size"),
        {},
    ),
    ("loaded-by-one", OPTIMIZED.format(who="dist.get_rank() == 0"), OPTIMIZED.format(who="True"), {}),
    ("part-by-hash", HASHED.format(hashed="hash(name)"), HASHED.format(hashed="names.index(name)"), {}),
]


@each_mistake(CASES)
def test_a_mistake_is_found_where_it_is(
    check: str, wrong: str, right: str, fields: dict[str, Any], tmp_path: Path
) -> None:
    assert check in found(tmp_path, wrong, **fields)
    assert check not in found(tmp_path, right, **fields)


def test_each_process_may_shuffle_its_own_data(tmp_path: Path) -> None:
    own = SEEDED.format(added="self.rank", parts="order[cut : 2 * cut]")
    assert "split-by-rank" not in found(tmp_path, own)


def test_processes_that_share_a_model_may_share_data(tmp_path: Path) -> None:
    shared = PARTS_OF_NODES.format(size="local_size()").replace(
        "DDP(torch.nn.Linear(4, 1))", "DDP(net, process_group=g)"
    )
    assert "part-of-node" not in found(
        tmp_path, shared.replace("model =", "g = dist.new_group([0, 4]); model ="), **EIGHT
    )


STEPS = (
    BEGIN
    + """
def average(value):
    total = torch.tensor(value)
    dist.all_reduce(total)
    return total.item() / dist.get_world_size()
dist.init_process_group("gloo")
model = DDP(torch.nn.Linear(4, 1))
for step in range(9):
    loss = model(torch.rand(4)).mean()
    kl = loss.item()
    {agreed}
    if kl > 1.5:
        break
    loss.backward()
"""
)


def test_a_step_that_all_ranks_skip_together(tmp_path: Path) -> None:
    assert "left-by-one" in found(tmp_path, STEPS.format(agreed="pass"))
    assert "left-by-one" not in found(tmp_path, STEPS.format(agreed="kl = average(kl)"))


WRITING = STOPPING.replace(
    "trainer.should_stop = loss < 0.1", "torch.save(trainer.model.state_dict(), '/shared/best.pt')"
)


def test_what_only_rank_0_has_is_written_by_rank_0(tmp_path: Path) -> None:
    assert "saved-by-all" in found(tmp_path, WRITING.format(callbacks="[Stopping()]"))
    assert "saved-by-all" not in found(tmp_path, WRITING.format(callbacks="[Stopping()] if self.is_main else []"))


FILLED = """
import hydra
@hydra.main(config_path="conf", config_name="train", version_base=None)
def main(cfg):
    hydra.utils.instantiate(cfg.trainer).fit(hydra.utils.instantiate(cfg.model), hydra.utils.instantiate(cfg.data))
main()
"""
MODULE = """
from lightning import LightningDataModule
class Words(LightningDataModule):
    def prepare_data(self):
        self.{changed}
    def setup(self, stage):
        self.data = open("/data/words").read()
"""


def test_a_class_that_a_configuration_names_is_read(tmp_path: Path) -> None:
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf/train.yaml").write_text("data:\n  _target_: words.Words\ntrainer: {}\nmodel: {}\n")
    for changed, is_state in (("vocab['a'] = 1", True), ("vocab.append(1)", True), ("vocab.index('a')", False)):
        (tmp_path / "words.py").write_text(MODULE.format(changed=changed))
        assert ("prepared-by-one" in found(tmp_path, FILLED)) is is_state, changed


READING = """
import argparse, json
parser = argparse.ArgumentParser()
parser.add_argument("--json_list")
print(json.load(open(parser.parse_args().json_list)))
"""


def test_a_file_that_a_hyperparameter_names_and_a_rule_leaves_out(tmp_path: Path) -> None:
    (tmp_path / "lists").mkdir()
    (tmp_path / "lists/0.json").write_text("[]")
    (tmp_path / ".gitignore").write_text("*.json\n")
    assert "left-out" in found(tmp_path, READING, hyperparameters={"json_list": "lists/0.json"})


COPIED = """
import os, torch
state = torch.load(os.environ["HOME"])
torch.nn.Linear(1, 1).load_state_dict(state)
"""


def test_a_configuration_may_read_the_variable_of_the_checkpoints(tmp_path: Path) -> None:
    fields: dict[str, Any] = {"restarts": 1, "checkpoint_dir": "/shared/ck"}
    assert "no-checkpoint" in found(tmp_path, COPIED, **fields)
    (tmp_path / "conf.yaml").write_text("path: ${oc.env:JOBSUBMIT_CHECKPOINT_DIR}/last.pt\n")
    assert [one for one in findings(tmp_path, **fields) if one.check == "no-checkpoint"] == []


def test_world_size_of_an_object_is_not_the_argument(tmp_path: Path) -> None:
    text = WORKERS.format(rank="args.rank * ngpus + index")
    fields: dict[str, Any] = {"mode": "spawn", "resources": {"nodes": 2}, "backend": {**SLURM, "gpus_per_node": 8}}
    assert "fixed-world-size" not in found(tmp_path, text, **fields)


VOCABULARY = """
import argparse, yaml
def read(path):
    return open(path).read()
class Trainer:
    def __init__(self, config):
        self.config = config
parser = argparse.ArgumentParser()
parser.add_argument("--config", default="config.yml")
args = parser.parse_args()
with open(args.config) as stream:
    config = yaml.safe_load(stream)
print(read(config["words"]), Trainer(config))
"""


def test_a_file_that_a_configuration_names_and_a_rule_leaves_out(tmp_path: Path) -> None:
    (tmp_path / "artifacts").mkdir()
    (tmp_path / "artifacts/words.json").write_text("[]")
    (tmp_path / ".gitignore").write_text("artifacts/\n")
    (tmp_path / "config.yml").write_text("words: artifacts/words.json\n")
    assert "left-out" in found(tmp_path, VOCABULARY, args=["--config", "config.yml"])


TRAINER = """
from transformers import HfArgumentParser, Trainer, TrainingArguments
(training_args,) = HfArgumentParser((TrainingArguments,)).parse_args_into_dataclasses()
{set_to}
Trainer(args=training_args).train(resume_from_checkpoint=True)
"""


def test_a_folder_for_checkpoints_that_the_code_replaces(tmp_path: Path) -> None:
    fields: dict[str, Any] = {"hyperparameters": {"output_dir": "out"}, "restarts": 1}
    assert "no-checkpoint" in found(tmp_path, TRAINER.format(set_to="pass"), **fields)
    text = TRAINER.format(set_to="training_args.output_dir = '/shared/out'")
    assert "no-checkpoint" not in found(tmp_path, text, **fields)


@pytest.mark.parametrize(("name", "is_wrong"), [("run-$RANDOM", True), ("run-$(date +%s)", True), ("run-7", False)])
def test_a_meeting_that_each_node_names_differently(name: str, is_wrong: bool, tmp_path: Path) -> None:
    (tmp_path / "train.sh").write_text(
        f'torchrun --nnodes=2 --rdzv_id="{name}" --rdzv_backend=c10d --rdzv_endpoint="$MASTER_ADDR" train.py\n'
    )
    assert ("launcher-nodes" in found(tmp_path, "print(1)", command="bash train.sh")) is is_wrong


@pytest.mark.parametrize(("port", "is_wrong"), [("$((20000 + RANDOM % 20000))", True), ("${MASTER_PORT}", False)])
def test_a_port_that_each_node_chooses(port: str, is_wrong: bool, tmp_path: Path) -> None:
    start = 'python train.py --machine-rank "$NODE_RANK" --dist-url "tcp://${MASTER_ADDR}:${PORT}"'
    (tmp_path / "train.sh").write_text(f"PORT={port}\n{start}\n")
    assert ("launcher-nodes" in found(tmp_path, "print(1)", command="bash train.sh")) is is_wrong


CONFIGURED = """
import argparse
from registry import read
parser = argparse.ArgumentParser()
parser.add_argument("config")
read(parser.parse_args().config)
"""


def test_a_configuration_that_is_not_there(tmp_path: Path) -> None:
    (tmp_path / "registry.py").write_text(
        "import importlib\ndef read(name):\n    return importlib.import_module(name)\n"
    )
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs/small.py").write_text("lr = 0.1\n")
    assert "not-there" in found(tmp_path, CONFIGURED, args=["configs/large.py"])
    assert "not-there" not in found(tmp_path, CONFIGURED, args=["configs/small.py"])


def test_what_counts_the_epochs_is_no_loader(tmp_path: Path) -> None:
    text = PREPARED.format(loader="self.accelerator.prepare(train)")
    loops = "        epochs = 9 // len(self.train_loader)\n        for _ in range(epochs):\n    "
    text = text.replace("        for batch", f"{loops}        for batch").replace(
        "            self.acc", "                self.acc"
    )
    assert "no-sampler" not in found(tmp_path, text)


AVERAGED_ON_MAIN = (
    BEGIN
    + """
class Curve:
    def __init__(self, bins):
        self.counts = torch.zeros(2, bins){moved}
    def add(self, scores):
        self.counts[0] += torch.bincount(scores, minlength=self.counts.shape[1])
    def compute(self):
        dist.all_reduce(self.counts)
        return self.counts
local_rank = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(local_rank)
dist.init_process_group("nccl")
Curve(64).compute()
"""
)
GATHERED = (
    BEGIN
    + """
def gather(features, count):
    parts = [torch.zeros_like(features) for _ in range(count)]
    dist.all_gather(parts, features)
    return torch.cat(parts)
class Loss(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.count = {count}
    def forward(self, features):
        return gather(features, self.count).mean()
dist.init_process_group("nccl")
Loss()(torch.ones(8).cuda())
"""
)
STREAMED = (
    BEGIN
    + """
from torch.distributed.fsdp import fully_shard
from torch.utils.data import IterableDataset, get_worker_info
class Shards(IterableDataset):
    def __init__(self, folder):
        self.files = sorted(os.listdir(folder)){part}
    def __iter__(self):
        info = get_worker_info()
        for name in self.files[info.id :: info.num_workers]:
            yield from open(name)
dist.init_process_group("nccl")
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
model = torch.nn.Linear(4, 1).cuda()
fully_shard(model)
shard_dir = "/data/shards"
for batch in DataLoader(Shards(shard_dir), batch_size=8, num_workers=2):
    model(batch).mean().backward()
"""
)
COUNTED_LATER = (
    BEGIN
    + """
import contextlib
dist.init_process_group("gloo")
model = DDP(torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), 0.1)
done = 0
for batch in load():
    with contextlib.nullcontext() if {test} else model.no_sync():
        model(batch).mean().backward()
    done += 1
    if done % 4 != 0:
        continue
    optimizer.step()
"""
)
SHARE_OF_EACH = (
    BEGIN
    + """
dist.init_process_group("gloo")
parser = argparse.ArgumentParser()
parser.add_argument("--accumulate", type=int, default=8)
args = parser.parse_args()
share = {share}
model = DDP(torch.nn.Linear(4, 1))
for batch in load():
    loss = model(batch).mean() / share
    loss.backward()
"""
)
CONVERTED = (
    BEGIN
    + """
local_rank = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(local_rank)
dist.init_process_group("nccl")
model = torch.nn.Sequential(torch.nn.BatchNorm1d(4)).to(torch.device("cuda", local_rank))
model = DDP(torch.nn.SyncBatchNorm.convert_sync_batchnorm({model}), device_ids=[local_rank])
"""
)
BATCHES = """
import deepspeed, torch
def settings():
    return {{"train_batch_size": {total}, "train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 2}}
deepspeed.initialize(model=torch.nn.Linear(4, 1), config=settings())
"""


@pytest.mark.parametrize(
    ("check", "wrong", "right"),
    [
        ("tensor-on-cpu", AVERAGED_ON_MAIN.format(moved=""), AVERAGED_ON_MAIN.format(moved=".cuda()")),
        (
            "fixed-world-size",
            GATHERED.format(count="torch.cuda.device_count()"),
            GATHERED.format(count="dist.get_world_size()"),
        ),
        ("no-sampler", STREAMED.format(part=""), STREAMED.format(part="[dist.get_rank()::dist.get_world_size()]")),
        ("never-synchronized", COUNTED_LATER.format(test="done % 4 == 0"), COUNTED_LATER.format(test="done % 4 == 3")),
        (
            "divided-again",
            SHARE_OF_EACH.format(share="dist.get_world_size()"),
            SHARE_OF_EACH.format(share="max(1, args.accumulate // dist.get_world_size())"),
        ),
        (
            "model-on-cpu",
            CONVERTED.format(model="torch.nn.Sequential(torch.nn.BatchNorm1d(4))"),
            CONVERTED.format(model="model"),
        ),
        ("deepspeed-batch", BATCHES.format(total=8), BATCHES.format(total=64)),
    ],
)
def test_what_is_computed_from_what_is_elsewhere(check: str, wrong: str, right: str, tmp_path: Path) -> None:
    fields: dict[str, Any] = {**EIGHT, "backend": {**SLURM, "gpus_per_node": 4}}
    assert check in found(tmp_path, wrong, **fields)
    assert check not in found(tmp_path, right, **fields)


@pytest.mark.parametrize(("gpus", "is_wrong"), [("0,1", True), ("0,1,2,3", False)])
def test_a_script_that_hides_gpus_from_the_processes(gpus: str, is_wrong: bool, tmp_path: Path) -> None:
    start = 'torchrun --nnodes=$NNODES --node_rank=$NODE_RANK --nproc_per_node=$NPROC_PER_NODE train.py "$@"'
    (tmp_path / "train.sh").write_text(f"set -e\nexport CUDA_VISIBLE_DEVICES={gpus}\n{start}\n")
    found_there = found(tmp_path, "print(1)", command="bash train.sh", **EIGHT)
    assert ("hidden-gpus" in found_there) is is_wrong


PUT_BY_ONE = (
    BEGIN
    + """
import torchvision
parser = argparse.ArgumentParser()
parser.add_argument("--words", default="{folder}/words.txt")
args = parser.parse_args()
dist.init_process_group("gloo")
def prepare(path, root="{folder}/cifar"):
    if dist.get_rank() == 0:
        {put}
    dist.barrier()
    return open(path).read(), torchvision.datasets.CIFAR10(root)
prepare(args.words)
"""
)


@pytest.mark.parametrize("put", ['open(path, "w").write("a")', "torchvision.datasets.CIFAR10(root, download=True)"])
def test_what_only_rank_0_puts_on_its_disk(put: str, tmp_path: Path) -> None:
    fields: dict[str, Any] = {**EIGHT, "backend": SLURM}
    assert "staged-by-one" in found(tmp_path, PUT_BY_ONE.format(folder="/tmp", put=put), **fields)
    assert "staged-by-one" not in found(tmp_path, PUT_BY_ONE.format(folder="/shared", put=put), **fields)
    only_written = PUT_BY_ONE.format(folder="/tmp", put='open(path + ".log", "w").write("a")')
    assert "staged-by-one" not in found(tmp_path, only_written, **fields)


READ_BY_CLASS = (
    BEGIN
    + """
class Words:
    @classmethod
    def load(cls, path):
        return open(path).read().split()
def prepare(path):
    if dist.get_rank() == 0:
        open(path, "w").write("a b")
    dist.barrier()
    return {read}
dist.init_process_group("gloo")
prepare("/tmp/words.txt")
"""
)


def test_the_arguments_of_a_class_method_are_followed(tmp_path: Path) -> None:
    fields: dict[str, Any] = {**EIGHT, "backend": SLURM}
    assert "staged-by-one" in found(tmp_path, READ_BY_CLASS.format(read="Words.load(path)"), **fields)
    assert "staged-by-one" not in found(tmp_path, READ_BY_CLASS.format(read='Words.load("/data/w")'), **fields)
