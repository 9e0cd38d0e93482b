"""What some processes do otherwise than the others: found by following them, in whatever way the code says it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from checked import GPUS, IMPORTED, STARTED, each_mistake, findings, found, with_files

NET = f"""{STARTED}
net = DDP(nn.Linear(4, 4).cuda())
optimizer = torch.optim.SGD(net.parameters(), 0.1)
data = TensorDataset(torch.rand(64, 4))
"""
# A decorator, a condition with a value of its own, or a callback that only one rank has.
DECORATED = (
    STARTED
    + """
def chosen(function):
    def call(*args, **kwargs):
        return function(*args, **kwargs) if {who} else None
    return call
@chosen
def report(x):
    dist.all_reduce(x)
report(torch.ones(1).cuda())
"""
)
CHOSEN = (
    STARTED
    + """
def is_main():
    return rank == 0
def evaluate():
    total = torch.zeros(1).cuda()
    dist.all_reduce(total)
    return total.item()
for epoch in range(3):
    score = {test} and evaluate()
"""
)
CALLBACKS = (
    NET
    + """
class Target:
    def on_epoch(self, trainer, loss):
        trainer.should_stop = loss < 0.1
class Trainer:
    def __init__(self, callbacks):
        self.callbacks, self.should_stop = callbacks, False
    def fit(self):
        sampler = DistributedSampler(data)
        for epoch in range(1000):
            sampler.set_epoch(epoch)
            for (x,) in DataLoader(data, sampler=sampler):
                loss = net(x.cuda()).mean()
                loss.backward()
                optimizer.step()
            dist.all_reduce(loss)
            for callback in self.callbacks:
                callback.on_epoch(self, loss.item())
            if self.should_stop:
                break
callbacks = []
if {who}:
    callbacks.append(Target())
Trainer(callbacks).fit()
"""
)
CONFIGURED = (
    IMPORTED
    + """
settings = json.load(open("settings.json"))
numbers = {{**settings, "rank": {rank}}}
local = int(os.environ["LOCAL_RANK"])
class Group:
    def __init__(self, rank, world_size):
        dist.init_process_group("nccl", rank=rank, world_size=world_size)
Group(**{{name: numbers[name] for name in ("rank", "world_size")}})
"""
)
TWICE = (
    IMPORTED
    + """
class Base:
    def __init__(self):
        {guard}dist.init_process_group("nccl")
class Trainer(Base):
    def __init__(self):
        super().__init__()
dist.init_process_group("nccl")
{between}
Trainer()
"""
)
GROUPS = (
    STARTED
    + """
node = int(os.environ["GROUP_RANK"])
each = int(os.environ["LOCAL_WORLD_SIZE"])
for first in range(0, dist.get_world_size(), each):
    group = dist.new_group(list(range(first, first + each)))
    if first == node * each:
        own = group
weights = torch.zeros(4).cuda()
dist.broadcast(weights, src={src}, group=own)
"""
)
DEVICES = (
    IMPORTED
    + """
from types import SimpleNamespace
class Place(SimpleNamespace):
    pass
def place():
    table = {{"one": 0, "own": int(os.environ["LOCAL_RANK"]), "all": int(os.environ["RANK"])}}
    return Place(index=table["{key}"])
dist.init_process_group("nccl")
torch.cuda.set_device(place().index)
net = DDP(nn.Linear(4, 4).cuda(), device_ids=[place().index])
"""
)
HIDDEN = (
    IMPORTED
    + """
os.environ.update({{"CUDA_VISIBLE_DEVICES": "{visible}"}})
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
dist.init_process_group("nccl")
"""
)
SLICED = (
    NET
    + """
class Rows(torch.utils.data.IterableDataset):
    def __init__(self, number, count):
        self.number, self.count = number, count
    def __iter__(self):
        for row in {part}:
            yield row
rows = Rows(int(os.environ["{prefix}RANK"]), int(os.environ["{prefix}WORLD_SIZE"]))
for x in DataLoader(rows):
    net(x.cuda()).mean().backward()
"""
)
SAMPLED = (
    NET
    + """
settings = {{"seed": {seed}, "num_replicas": dist.get_world_size(), "rank": rank}}
sampler = DistributedSampler(data, **settings)
for epoch in range(3):
    sampler.set_epoch(epoch)
    for (x,) in DataLoader(data, sampler=sampler):
        net(x.cuda()).mean().backward()
"""
)
LOADED = (
    NET
    + """
import yaml
from torch.utils.data import RandomSampler
SAMPLERS = {{"random": RandomSampler, "divided": DistributedSampler}}
settings = yaml.safe_load(open("loader.yaml"))
sampler = SAMPLERS[settings.pop("sampler")](data)
loader = DataLoader(data, sampler=sampler, **settings)
for epoch in range(3):
    {counts}
    for (x,) in loader:
        net(x.cuda()).mean().backward()
"""
)
COUNTED = (
    NET
    + """
class Epochs:
    def on_epoch(self, trainer):
        trainer.loader.sampler.set_epoch(trainer.epoch)
class Trainer:
    def __init__(self):
        self.epoch, self.callbacks = 0, [Epochs()]
        self.loader = DataLoader(data, sampler=DistributedSampler(data))
    def fit(self):
        for epoch in range(1000):
            {counts}
            for callback in self.callbacks:
                callback.on_epoch(self)
            for (x,) in self.loader:
                net(x.cuda()).mean().backward()
Trainer().fit()
"""
)
STARTS = (
    IMPORTED
    + """
import functools
def logged(function):
    {wraps}
    def call(*args):
        return function(*args)
    return call
@logged
def work(local, count):
    torch.cuda.set_device(local)
    dist.init_process_group("nccl", rank=local, world_size=count)
if __name__ == "__main__":
    args = argparse.ArgumentParser()
    for name in ("--rank", "--world_size", "--init_method"):
        args.add_argument(name)
    args.parse_args()
    mp.spawn(work, args=(2,), nprocs=2)
"""
)
NESTED = (
    IMPORTED
    + """
def work(local, count):
    dist.init_process_group("nccl", rank=local, world_size=count)
def {name}(local, count):
    print(local)
if __name__ == "__main__":
    processes = [mp.Process(target=work, args=(number, 2)) for number in range(2)]
    for process in processes:
        process.start()
"""
)
DOWNLOADED = (
    STARTED
    + """
import torchvision
def images(root, fetch):
    return torchvision.datasets.CIFAR10(root, download=fetch)
data = images("{root}", {who})
"""
)
SPREAD = (
    STARTED
    + """
from transformers import AutoModelForCausalLM
settings = json.load(open("model.json"))
model = AutoModelForCausalLM.from_pretrained("/models/small", **settings)
"""
)
SHARDED = (
    STARTED
    + """
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
class Base:
    def __init__(self):
        self.model = nn.Linear(4, 4).cuda()
        {early}
class Trainer(Base):
    def __init__(self):
        super().__init__()
        self.model = FSDP(self.model)
        {late}
    def make(self):
        self.optimizer = torch.optim.AdamW(self.model.parameters())
Trainer()
"""
)
OF_NODES = (
    STARTED
    + """
def by_one(function):
    def call(*args):
        if int(os.environ["{prefix}RANK"]) == 0:
            function(*args)
    return call
@by_one
def keep(state):
    torch.save(state, "/shared/last.pt")
keep({{}})
"""
)
EACH: dict[str, Any] = {**GPUS, "resources": {"nodes": 2, "nproc_per_node": 2}}
ONE: dict[str, Any] = {**GPUS, "resources": {"nodes": 1, "nproc_per_node": 2}}


@each_mistake(
    [
        ("rank-0-collective", DECORATED.format(who="rank == 0"), DECORATED.format(who="True"), GPUS),
        ("rank-0-collective", CHOSEN.format(test="is_main()"), CHOSEN.format(test="True"), GPUS),
        ("left-by-one", CALLBACKS.format(who="rank == 0"), CALLBACKS.format(who="True"), GPUS),
        ("second-init", TWICE.format(guard="", between=""), TWICE.format(guard="", between=""), GPUS),
        ("other-roots", GROUPS.format(src="0"), GROUPS.format(src="node * each"), GPUS),
        ("fixed-device", DEVICES.format(key="one"), DEVICES.format(key="own"), GPUS),
        ("rank-as-device", DEVICES.format(key="all"), DEVICES.format(key="own"), GPUS),
        ("hidden-gpus", HIDDEN.format(visible="1"), HIDDEN.format(visible="0,1"), GPUS),
        (
            "part-of-node",
            SLICED.format(part="data[self.number::self.count]", prefix="LOCAL_"),
            SLICED.format(part="data[self.number::self.count]", prefix=""),
            GPUS,
        ),
        (
            "part-of-node",
            SLICED.format(part="(x for i, x in enumerate(data) if i % self.count == self.number)", prefix="LOCAL_"),
            SLICED.format(part="(x for i, x in enumerate(data) if i % self.count == self.number)", prefix=""),
            GPUS,
        ),
        ("sampler-seed", SAMPLED.format(seed="3 + rank"), SAMPLED.format(seed="3"), GPUS),
        ("set-epoch", COUNTED.format(counts="pass"), COUNTED.format(counts="self.epoch = epoch"), GPUS),
        (
            "staged-by-one",
            DOWNLOADED.format(root="/tmp/c", who="rank == 0"),
            DOWNLOADED.format(root="/s", who="0"),
            GPUS,
        ),
        (
            "optimizer-too-early",
            SHARDED.format(early="self.make()", late="pass"),
            SHARDED.format(early="pass", late="self.make()"),
            GPUS,
        ),
        ("saved-by-all", OF_NODES.format(prefix="LOCAL_"), OF_NODES.format(prefix=""), GPUS),
        ("nested-spawn", NESTED.format(name="other"), NESTED.format(name="work"), ONE),
    ]
)
def test_what_processes_do_otherwise_is_found(
    check: str, wrong: str, right: str, fields: dict[str, Any], tmp_path: Path
) -> None:
    if check == "second-init":
        right = TWICE.format(guard="dist.is_initialized() or ", between="")
        assert check not in found(tmp_path, TWICE.format(guard="", between="dist.destroy_process_group()"), **fields)
    assert check in found(tmp_path, wrong, **fields)
    assert check not in found(tmp_path, right, **fields)


def test_ranks_of_a_configuration_that_are_the_same_on_all_nodes(tmp_path: Path) -> None:
    with_files(tmp_path, {"settings.json": '{"world_size": 4, "node_rank": 0}'})
    same = CONFIGURED.format(rank='settings["node_rank"] * 2 + int(os.environ["LOCAL_RANK"])')
    assert "same-ranks" in found(tmp_path, same, **EACH)
    assert found(tmp_path, CONFIGURED.format(rank='int(os.environ["RANK"])'), **EACH) == set()
    with_files(tmp_path, {"settings.json": '{"world_size": 2}'})
    assert "fixed-world-size" in found(tmp_path, CONFIGURED.format(rank='int(os.environ["RANK"])'), **EACH)


def test_samplers_and_words_for_loaders_in_a_configuration(tmp_path: Path) -> None:
    counts = "sampler.set_epoch(epoch)"
    for settings, check in (
        ("sampler: divided\nbatch_size: 4\nshuffle: true\n", "sampler-and-shuffle"),
        ("sampler: divided\nbatch_size: 0\n", "empty-batch"),
    ):
        with_files(tmp_path, {"loader.yaml": settings})
        assert check in found(tmp_path, LOADED.format(counts=counts), **GPUS)
    with_files(tmp_path, {"loader.yaml": "sampler: random\nbatch_size: 4\n"})
    assert "no-sampler" in found(tmp_path, LOADED.format(counts="pass"), **GPUS)
    with_files(tmp_path, {"loader.yaml": "sampler: divided\nbatch_size: 4\nshuffle: false\n"})
    assert found(tmp_path, LOADED.format(counts=counts), **GPUS) == set()


def test_a_model_that_a_configuration_spreads_over_all_gpus(tmp_path: Path) -> None:
    for place, is_found in (('"auto"', True), ("null", False)):
        with_files(tmp_path, {"model.json": f'{{"device_map": {place}}}'})
        assert ("spread-over-all" in found(tmp_path, SPREAD, **GPUS)) is is_found


@pytest.mark.parametrize(("wraps", "is_found"), [("pass", True), ("@functools.wraps(function)", False)])
def test_a_decorated_function_for_spawned_processes(wraps: str, *, is_found: bool, tmp_path: Path) -> None:
    seen = found(tmp_path, STARTS.format(wraps=wraps), mode="spawn", **ONE)
    assert ("not-picklable" in seen) is is_found


ASKED = f"""{IMPORTED}
def main():
    world_size = torch.cuda.device_count()
    if world_size > 1:
        dist.init_process_group("nccl", world_size={{count}}, rank=int(os.environ["RANK"]))
main()
"""
AGAIN = (
    IMPORTED
    + """
def train(rank=0):
    dist.init_process_group("nccl")
    {own}
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    if rank == 0:
        torch.save({{}}, "/shared/last.pt")
train()
"""
)
SUMMED = (
    STARTED
    + """
model = nn.Linear(4, 4).cuda()
for tensor in model.state_dict().values():
    dist.broadcast(tensor, src=0)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
def exchange():
    flat = torch.cat([p.grad.reshape(-1) for p in model.parameters()])
    dist.all_reduce(flat, op=dist.ReduceOp.SUM)
    {after}
    start = 0
    for p in model.parameters():
        p.grad.copy_(flat[start : start + p.numel()].view_as(p))
        start += p.numel()
world_size = dist.get_world_size()
for x in load():
    (model(x).mean() / world_size).backward()
    exchange()
    optimizer.step()
"""
)


def test_a_number_of_gpus_that_is_only_asked_for_is_no_world_size(tmp_path: Path) -> None:
    assert "fixed-world-size" in found(tmp_path, ASKED.format(count="world_size"), **GPUS)
    assert found(tmp_path, ASKED.format(count='int(os.environ["WORLD_SIZE"])'), **GPUS) == set()


def test_a_function_that_finds_out_its_rank_needs_none(tmp_path: Path) -> None:
    assert "saved-by-all" in found(tmp_path, AGAIN.format(own="pass"), **GPUS)
    assert "saved-by-all" not in found(tmp_path, AGAIN.format(own="rank = dist.get_rank()"), **GPUS)


def test_a_loss_that_is_divided_for_a_sum_of_gradients_is_divided_once(tmp_path: Path) -> None:
    assert "divided-again" not in found(tmp_path, SUMMED.format(after="pass"), **GPUS)
    assert "divided-again" in found(tmp_path, SUMMED.format(after="flat /= world_size"), **GPUS)


FIRST = (
    STARTED
    + """
import contextlib, torchvision
@contextlib.contextmanager
def main_first():
    if rank != 0:
        dist.barrier()
    yield {who}
    if rank == 0:
        dist.barrier()
with main_first() as first:
    data = torchvision.datasets.CIFAR10("/tmp/images", download=first)
"""
)
SUBGROUPS = (
    STARTED
    + """
own, _ = dist.new_subgroups(group_size=2)
dist.broadcast(torch.ones(1).cuda(), src={src}, group=own)
"""
)
SEEDED = (
    NET
    + """
settings = {{"seed": 3}}
torch.manual_seed(settings["seed"] + rank)
def seed_of(settings, rank):
    return settings["seed"] {more}
sampler = DistributedSampler(data, seed=seed_of(settings, rank))
for epoch in range(3):
    sampler.set_epoch(epoch)
    for (x,) in DataLoader(data, sampler=sampler):
        net(x.cuda()).mean().backward()
"""
)
ACCUMULATED = """
import argparse, torch
from accelerate import Accelerator
parser = argparse.ArgumentParser()
parser.add_argument("--gradient_accumulation_steps", type=int, default=4)
args = parser.parse_args()
more = {{"log_with": "tensorboard"}}
accelerator = Accelerator({given}**more)
{later}
model, optimizer, loader = accelerator.prepare(net(), optimizer(), loader())
for x in loader:
    with accelerator.accumulate(model):
        accelerator.backward(model(x).mean())
        optimizer.step()
"""


@each_mistake(
    [
        ("staged-by-one", FIRST.format(who="rank == 0"), FIRST.format(who="True"), GPUS),
        ("other-roots", SUBGROUPS.format(src="0"), SUBGROUPS.format(src="rank // 2 * 2"), GPUS),
        ("sampler-seed", SEEDED.format(more="+ rank"), SEEDED.format(more=""), GPUS),
        (
            "never-accumulated",
            ACCUMULATED.format(given="", later=""),
            ACCUMULATED.format(given="", later="accelerator.gradient_accumulation_steps = 4"),
            GPUS,
        ),
        (
            "nested-spawn",
            NESTED.format(name="other").replace("mp.Process", "mp.get_context('spawn').Process"),
            NESTED.format(name="other").replace(
                "mp.Process(target=work", "mp.get_context('spawn').Process(target=other"
            ),
            ONE,
        ),
    ]
)
def test_what_is_seen_decides(check: str, wrong: str, right: str, fields: dict[str, Any], tmp_path: Path) -> None:
    assert check in found(tmp_path, wrong, **fields)
    assert check not in found(tmp_path, right, **fields)


# A figure by which all leave the loop, and that a field of the trainer lets rank 0 alone set.
PATIENT = (
    NET
    + """
class Trainer:
    def __init__(self):
        self.verbose = True
        if dist.get_rank() != {quiet}:
            self.verbose = False
    def train(self):
        best, best_epoch = 0.0, 0
        for epoch in range(20):
            for (x,) in DataLoader(data):
                net(x.cuda()).mean().backward()
                optimizer.step()
            if self.verbose:
                score = float(torch.rand(1))
                if score > best:
                    best, best_epoch = score, epoch
            {shared}
            if epoch - best_epoch > 3:
                break
Trainer().train()
"""
)


def test_a_figure_of_rank_0_by_which_all_leave_a_loop(tmp_path: Path) -> None:
    assert "left-by-one" in found(tmp_path, PATIENT.format(quiet="0", shared="pass"), **GPUS)
    (left,) = (one for one in findings(tmp_path, **GPUS) if one.check == "left-by-one")
    assert left.text.startswith("only rank 0 sets best_epoch: it leaves this loop in another step than the others")

    shared = "kept = [best_epoch]; dist.broadcast_object_list(kept, src=0); best_epoch = kept[0]"
    assert "left-by-one" not in found(tmp_path, PATIENT.format(quiet="0", shared=shared), **GPUS)
    assert "left-by-one" not in found(tmp_path, PATIENT.format(quiet="dist.get_rank()", shared="pass"), **GPUS)


# What rank 0 writes to the disk of its node, and all ranks read.
READ = (
    STARTED
    + """
import json, os
from pathlib import Path
class Keeper:
    def __init__(self, folder):
        self.folder = folder
        os.makedirs(folder, exist_ok=True)
    @property
    def path(self):
        return {path}
    def keep(self, state):
        if rank == 0:
            {write}
    def best(self):
        {read}
keeper = Keeper("{folder}")
{first}
for epoch in range(3):
    keeper.keep(torch.nn.Linear(4, 4).state_dict())
dist.barrier()
state = keeper.best()
"""
)
SAVED = {
    "path": "os.path.join(self.folder, 'best.pt')",
    "write": "torch.save(state, self.path)",
    "read": "return torch.load(self.path, map_location='cpu')",
    "folder": "out",
    "first": "",
}
JSON = {
    **SAVED,
    "path": "Path(self.folder) / 'best.json'",
    "write": "json.dump(1, self.path.open('w'))",
    "read": "with open(self.path) as file: return json.load(file)",
}


@pytest.mark.parametrize("files", [SAVED, JSON], ids=["torch", "json"])
def test_a_file_that_only_rank_0_writes_is_not_on_the_other_nodes(files: dict[str, str], tmp_path: Path) -> None:
    folder = tmp_path / "job"
    folder.mkdir()
    assert "staged-by-one" in found(folder, READ.format(**files), **GPUS)
    (wrong,) = (one for one in findings(folder, **GPUS) if one.check == "staged-by-one")
    assert "which only rank 0 writes (train.py:" in wrong.text

    one_node = {"nodes": 1, "nproc_per_node": 2}
    assert "staged-by-one" not in found(folder, READ.format(**files), **GPUS, resources=one_node)
    for other in (
        {"write": files["write"] + "\n        elif os.environ['LOCAL_RANK'] == '0':\n            " + files["write"]},
        {"folder": "/shared/out"},
        {"first": "keeper.best()  # the file of an earlier job"},
        {"read": "\n        if os.path.exists(self.path):\n            " + files["read"]},
        {
            "read": "\n        try:\n            "
            + files["read"]
            + "\n        except FileNotFoundError:\n            pass"
        },
    ):
        assert "staged-by-one" not in found(folder, READ.format(**{**files, **other}), **GPUS)
