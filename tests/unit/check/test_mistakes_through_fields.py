"""Mistakes that only show when fields, properties, decorators and settings of a program are followed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from checked import SLURM, each_mistake, findings, found

BEGIN = """
import argparse, functools, os, time, torch, torch.distributed as dist
from dataclasses import dataclass, field
from pathlib import Path
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, random_split
"""

OPTIONS = """
import argparse
SPEC = {{"steps": dict(type={kind}, default=100, help="how long"), "fast": dict(action="store_true")}}
parser = argparse.ArgumentParser()
for name, settings in SPEC.items():
    parser.add_argument("--" + name, **settings)
args = parser.parse_args()
"""

REPORTED = (
    BEGIN
    + """
def chief_only(function):
    @functools.wraps(function)
    def wrapper(*args, **kwargs):
        if dist.get_rank() == 0:
            return function(*args, **kwargs)
    return wrapper
class Meter:
    def merged(self):
        pair = torch.ones(2)
        dist.all_reduce(pair)
        return pair[0].item()
class Board:
    def __init__(self):
        self.meters = {{"loss": Meter()}}
    def line(self):
        return "  ".join(f"{{name}} {{meter.merged()}}" for name, meter in self.meters.items())
class Trainer:
    def __init__(self):
        self.board = Board()
    {decorator}
    def report(self, step):
        print(step, self.board.line())
dist.init_process_group("gloo")
Trainer().report(1)
"""
)

TOTAL = (
    BEGIN
    + """
class Matrix:
    @property
    def total(self):
        total = torch.ones(2)
        dist.all_reduce(total)
        return total
    def summary(self):
        return self.total.sum().item()
dist.init_process_group("gloo")
matrix = Matrix()
{lines}
"""
)

PACED = (
    BEGIN
    + """
class Watch:
    def __init__(self):
        self.zero = time.perf_counter()
    @property
    def minutes(self):
        return (time.perf_counter() - self.zero) / 60
class Allowance:
    def __init__(self, minutes):
        self.limit, self.watch, self.steps = minutes, Watch(), 0
    def __bool__(self):
        return {left}
dist.init_process_group("gloo")
model = DDP(torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
allowance = Allowance(10)
while allowance:
    loss = model(torch.rand(4)).mean()
    loss.backward()
    optimizer.step()
"""
)

GUARDED = (
    BEGIN
    + """
class Guard:
    def __call__(self, loss):
        spike = torch.tensor(float(loss > 4.0))
        {agree}
        return spike.item() < 0.5
class Trainer:
    def __init__(self):
        self.model = DDP(torch.nn.Linear(4, 1))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.accept = Guard()
    def run(self):
        for step in range(10):
            loss = self.model(torch.rand(4)).mean()
            if not self.accept(loss):
                continue
            loss.backward()
            self.optimizer.step()
dist.init_process_group("gloo")
Trainer().run()
"""
)

SPLIT = (
    BEGIN
    + """
def seed_all(opt, rank):
    opt.seed += {added}
    torch.manual_seed(opt.seed)
def parts_of(data, opt):
    generator = torch.Generator().manual_seed(opt.seed)
    return random_split(data, [50, 14], generator=generator)
parser = argparse.ArgumentParser()
parser.add_argument("--seed", type=int, default=0)
opt = parser.parse_args()
dist.init_process_group("gloo")
seed_all(opt, dist.get_rank())
train, valid = parts_of(range(64), opt)
loader = DataLoader(train, 8, sampler=DistributedSampler(train))
model = DDP(torch.nn.Linear(4, 1))
"""
)

SPAWNED = (
    BEGIN
    + """
import torch.multiprocessing as mp
@dataclass
class Place:
    slot: int
    slots: int
    node: int
    @property
    def rank(self):
        return self.node * self.slots + self.slot
def work(slot, args):
    place = Place(slot, 2, args.{node})
    dist.init_process_group("gloo", init_method=args.init_method, world_size=2 * args.world_size, rank=place.rank)
if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--init_method")
    parser.add_argument("--world_size", type=int)
    parser.add_argument("--rank", type=int)
    parser.add_argument("--node_rank", type=int, default=0)
    args = parser.parse_args()
    mp.spawn(work, args=(args,), nprocs=2)
"""
)

RUNS = (
    BEGIN
    + """
@dataclass
class Folder:
    base: Path
    started: str = field(default_factory=lambda: {name})
    @property
    def snapshot(self):
        return self.base / self.started / "last.pt"
class Keeper:
    def __init__(self, folder, net):
        self.folder, self.net = folder, net
    def restore(self):
        if self.folder.snapshot.is_file():
            self.net.load_state_dict(torch.load(self.folder.snapshot))
    def store(self):
        if dist.get_rank() == 0:
            torch.save(self.net.state_dict(), self.folder.snapshot)
parser = argparse.ArgumentParser()
parser.add_argument("--checkpoint_dir", type=Path)
args = parser.parse_args()
dist.init_process_group("gloo")
net = torch.nn.Linear(4, 1)
keeper = Keeper(Folder(args.checkpoint_dir), net)
keeper.restore()
model = DDP(net)
for epoch in range(3):
    model(torch.rand(4)).mean().backward()
    keeper.store()
"""
)

GROUPS = (
    BEGIN
    + """
class Topology:
    def __init__(self):
        self.rank, self.size = dist.get_rank(), 2
    @property
    def first(self):
        return self.rank // self.size * self.size
    @property
    def peers(self):
        return {peers}
    @functools.cached_property
    def group(self):
        return dist.new_group(self.peers)
dist.init_process_group("gloo")
dist.all_reduce(torch.ones(1), group=Topology().group)
"""
)

SHARDED = (
    BEGIN
    + """
from torch.distributed.fsdp import fully_shard
@dataclass
class Spec:
    model: object
    optimizer: object
def model_of(): return torch.nn.Linear(4, 4).cuda()
def optimizer_of(model):
    return torch.optim.AdamW([{{"params": [p for p in model.parameters() if p.dim() > 1]}}], lr=0.1)
def build():
    model = model_of()
    return Spec({early}, optimizer_of(model))
def parallelize(model):
    return fully_shard(model)
class Trainer:
    def __init__(self):
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        dist.init_process_group("nccl")
        spec = build()
        self.optimizer = spec.optimizer
        self.model = {late}
Trainer()
"""
)

PREPARED = """
import lightning as L
class Data(L.LightningDataModule):
    def __init__(self):
        super().__init__()
        self.speakers = {{}}
    def tables(self):
        self.speakers.update(enumerate(open("speakers.txt")))
    def prepare_data(self):
        {prepare}
    def setup(self, stage):
        {setup}
L.Trainer(num_nodes=2, devices=2).fit(L.LightningModule(), datamodule=Data())
"""

ACCUMULATED = """
import argparse
from dataclasses import dataclass
from accelerate import Accelerator
@dataclass
class Settings:
    gradient_accumulation_steps: int
    def of_accelerator(self):
        return {{"gradient_accumulation_steps": {steps}, "mixed_precision": "no"}}
parser = argparse.ArgumentParser()
parser.add_argument("--gradient_accumulation_steps", type=int, default=4)
settings = Settings(**vars(parser.parse_args()))
accelerator = Accelerator(**settings.of_accelerator())
"""

INNER = (
    BEGIN
    + """
class Policy(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.head = torch.nn.Linear(4, 1)
    def forward(self, x):
        return self.head(x)
    def score(self, x):
        return self(x).mean()
class Learner:
    def __init__(self):
        self.policy = DDP(Policy())
        self.optimizer = torch.optim.SGD(self.policy.parameters(), lr=0.1)
    @property
    def net(self):
        return self.policy.module
    def loss(self, x):
        return {scored}
    def update(self):
        loss = self.loss(torch.rand(4))
        loss.backward()
        self.optimizer.step()
dist.init_process_group("gloo")
Learner().update()
"""
)

STAGED = (
    BEGIN
    + """
@dataclass
class Stages:
    body: object
    def __post_init__(self):
        self.set_all(self.body, False)
    @staticmethod
    def set_all(module, value):
        for parameter in module.parameters():
            parameter.requires_grad = value
    def enter(self, epoch):
        {enter}
class Job:
    def __init__(self):
        net = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 1))
        self.stages = Stages(net[0])
        self.model = DDP(net)
    def run(self):
        for epoch in range(3):
            self.stages.enter(epoch)
            self.model(torch.rand(4)).mean().backward()
dist.init_process_group("gloo")
Job().run()
"""
)

EXTRACTED = (
    BEGIN
    + """
def prepare(archive, folder):
    Path(folder).mkdir(exist_ok=True)
    Path(folder, "train.csv").write_text(archive)
def run_on_main(function, kwargs):
    if dist.get_rank() == 0:
        function(**kwargs)
    dist.barrier()
dist.init_process_group("gloo")
run_on_main(prepare, kwargs={{"archive": "a.tar", "folder": "{folder}"}})
rows = open("{folder}/train.csv").readlines()
"""
)

RECIPE = (
    BEGIN
    + """
from dataclasses import asdict
@dataclass
class Recipe:
    folder: {kind}
    epochs: int = 3
class Saver:
    def __init__(self, recipe):
        self.recipe = recipe
    def state(self, net):
        return {{"net": net.state_dict(), "recipe": asdict(self.recipe)}}
    def save(self, net):
        torch.save(self.state(net), "last.pt")
    def load(self, net):
        net.load_state_dict(torch.load("last.pt")["net"])
saver = Saver(Recipe(Path("a")))
saver.save(torch.nn.Linear(4, 1))
saver.load(torch.nn.Linear(4, 1))
"""
)

KEPT = (
    BEGIN
    + """
@dataclass
class Config:
    width: int = 4
class Other:
    def __init__(self, config):
        self.config = config
class Run:
    def __init__(self):
        self.config = Config()
        self.net = torch.nn.Linear(4, 1)
    def state(self):
        return {{"net": self.net.state_dict(), "config": {config}}}
    def save(self):
        torch.save(self.state(), "last.pt")
    def load(self):
        self.net.load_state_dict(torch.load("last.pt")["net"])
run = Run()
run.save()
run.load()
"""
)

DIFFUSION = (
    BEGIN
    + """
class Diffusion:
    def __init__(self, model):
        self.model = model
    def loss(self, x):
        return self.model(x).mean()
class Trainer:
    def __init__(self, diffusion):
        self.diffusion = diffusion
        self.model = DDP(diffusion.model)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        {given}
    def train(self):
        for step in range(3):
            loss = self.diffusion.loss(torch.rand(4))
            loss.backward()
            self.optimizer.step()
dist.init_process_group("gloo")
Trainer(Diffusion(torch.nn.Linear(4, 1))).train()
"""
)

PLACED = (
    BEGIN
    + """
from typing import NamedTuple
class World(NamedTuple):
    rank: int
    local_rank: int
    @classmethod
    def of_environment(cls):
        return cls(*(int(os.environ.get(name, "0")) for name in ("RANK", "LOCAL_RANK")))
    @property
    def device(self):
        return torch.device("cuda", self.{number})
torch.cuda.set_device(World.of_environment().device)
dist.init_process_group("nccl")
"""
)

SHARED_OUT = (
    BEGIN
    + """
def number(name):
    return int(os.environ[name])
@dataclass
class Topology:
    rank: int
    world: int
    slot: int
    slots: int
    @classmethod
    def detect(cls):
        return cls(number("RANK"), number("WORLD_SIZE"), number("LOCAL_RANK"), number("LOCAL_WORLD_SIZE"))
    @property
    def sharding(self):
        return {{"num_replicas": self.{count}, "rank": self.{part}}}
dist.init_process_group("gloo")
sampler_of = functools.partial(DistributedSampler, **Topology.detect().sharding)
loader = DataLoader(range(64), 8, sampler=sampler_of(range(64)))
model = DDP(torch.nn.Linear(4, 1))
"""
)

SPAWN = {"mode": "spawn"}
RESTARTED = {"checkpoint_dir": "checkpoints", "restarts": 2}
AGREE = "dist.all_reduce(spike)"


@each_mistake(
    [
        (
            "argument-type",
            OPTIONS.format(kind="int"),
            OPTIONS.format(kind="float"),
            {"hyperparameters": {"steps": "2e6"}},
        ),
        ("rank-0-collective", REPORTED.format(decorator="@chief_only"), REPORTED.format(decorator=""), {}),
        (
            "rank-0-collective",
            TOTAL.format(lines="if dist.get_rank() == 0: print(matrix.summary())"),
            TOTAL.format(lines="total = matrix.summary()"),
            {},
        ),
        ("left-by-one", PACED.format(left="self.watch.minutes < self.limit"), PACED.format(left="self.steps < 9"), {}),
        ("left-by-one", GUARDED.format(agree="pass"), GUARDED.format(agree=AGREE), {}),
        ("split-by-rank", SPLIT.format(added="rank"), SPLIT.format(added="1"), {}),
        ("same-ranks", SPAWNED.format(node="node_rank"), SPAWNED.format(node="rank"), SPAWN),
        ("no-checkpoint", RUNS.format(name="time.strftime('%H')"), RUNS.format(name="'run'"), RESTARTED),
        ("other-groups", GROUPS.format(peers="[self.first, self.first + 1]"), GROUPS.format(peers="[0, 1]"), {}),
        (
            "optimizer-too-early",
            SHARDED.format(early="model", late="parallelize(spec.model)"),
            SHARDED.format(early="parallelize(model)", late="spec.model"),
            {"backend": SLURM},
        ),
        (
            "prepared-by-one",
            PREPARED.format(prepare="self.tables()", setup="pass"),
            PREPARED.format(prepare="self.tables()", setup="self.tables()"),
            {},
        ),
        (
            "never-accumulated",
            ACCUMULATED.format(steps="self.gradient_accumulation_steps"),
            ACCUMULATED.format(steps="1"),
            {},
        ),
        ("bypassed", INNER.format(scored="self.net.score(x)"), INNER.format(scored="self.policy(x).mean()"), {}),
        (
            "part-of-node",
            SHARED_OUT.format(count="slots", part="slot"),
            SHARED_OUT.format(count="world", part="rank"),
            {},
        ),
        ("bypassed", DIFFUSION.format(given="pass"), DIFFUSION.format(given="diffusion.model = self.model"), {}),
        ("staged-by-one", EXTRACTED.format(folder="/tmp/data"), EXTRACTED.format(folder="/shared/data"), {}),
        ("pickled-object", RECIPE.format(kind="Path"), RECIPE.format(kind="str"), {}),
        ("pickled-object", KEPT.format(config="self.config"), KEPT.format(config="vars(self.config)"), {}),
        ("rank-as-device", PLACED.format(number="rank"), PLACED.format(number="local_rank"), {"backend": SLURM}),
        ("thawed-later", STAGED.format(enter="self.set_all(self.body, True)"), STAGED.format(enter="pass"), {}),
    ]
)
def test_a_mistake_is_found_where_it_is(
    check: str, wrong: str, right: str, fields: dict[str, Any], tmp_path: Path
) -> None:
    assert check in found(tmp_path, wrong, **fields)
    assert check not in found(tmp_path, right, **fields)


def test_a_file_that_a_class_method_opens_and_a_rule_leaves_out(tmp_path: Path) -> None:
    (tmp_path / "resources").mkdir()
    (tmp_path / "resources/labels.tsv").write_text("a\n")
    (tmp_path / ".jobignore").write_text("*.tsv\n")
    (tmp_path / "train.py").write_text(
        """
from pathlib import Path
class Labels:
    @classmethod
    def bundled(cls, kind="labels"):
        return cls.read(Path(__file__).parent / "resources" / f"{kind}.tsv")
    @classmethod
    def read(cls, path):
        return open(path).readlines()
Labels.bundled()
"""
    )
    assert [finding.check for finding in findings(tmp_path)] == ["left-out"]


WORLD = (
    BEGIN
    + """
@dataclass
class World:
    rank: int
    chief: bool
    group: object
    @classmethod
    def join(cls):
        dist.init_process_group("gloo")
        groups = [dist.new_group([first, first + 1]) for first in (0, 2)]
        rank = dist.get_rank()
        return cls(rank, rank == 0, groups[rank // 2])
    def any(self, flag):
        flags = torch.tensor(float(flag))
        dist.all_reduce(flags)
        return bool(flags)
"""
)


@pytest.mark.parametrize(
    "lines",
    [
        "if world.rank == 0: print(os.path.join('a', 'b'), ', '.join('ab'))",
        "for step in range(3):\n    loss = model(torch.rand(4)).mean()\n"
        "    if world.any(not torch.isfinite(loss)): continue\n    loss.backward()",
        "if world.chief: torch.save(model.state_dict(), 'last.pt')",
    ],
    ids=["a function of a library", "a decision of all ranks", "a field of rank 0"],
)
def test_what_only_looks_like_a_mistake(lines: str, tmp_path: Path) -> None:
    text = f"{WORLD}world = World.join()\nmodel = DDP(torch.nn.Linear(4, 1))\n{lines}\n"
    assert found(tmp_path, text) == set()


def test_a_field_that_only_rank_0_has(tmp_path: Path) -> None:
    text = """
class Workspace:
    def __init__(self):
        self.active = dist.get_rank() == 0
    def keep(self, model):
        if self.active:
            torch.save(model.state_dict(), "last.pt")
dist.init_process_group("gloo")
Workspace().keep(DDP(torch.nn.Linear(4, 1)))
"""
    assert found(tmp_path, BEGIN + text) == set()


def test_all_ranks_stop_by_the_loss_of_the_validation(tmp_path: Path) -> None:
    text = """
class Stopper:
    def __init__(self):
        self.best = 9.0
    def __call__(self, loss):
        return loss > self.best
dist.init_process_group("gloo")
model = DDP(torch.nn.Linear(4, 1))
stopper = Stopper()
for epoch in range(3):
    model(torch.rand(4)).mean().backward()
    val_loss = figures()["loss"]
    if stopper(val_loss):
        break
    dist.barrier()
"""
    assert found(tmp_path, BEGIN + text) == set()


def test_a_stream_that_is_given_its_part(tmp_path: Path) -> None:
    text = """
@dataclass
class Plan:
    part: int
    parts: int
class Stream(torch.utils.data.IterableDataset):
    def __init__(self, plan):
        self.plan = plan
    def __iter__(self):
        for shard in {shards}:
            yield torch.full((4,), float(shard))
dist.init_process_group("gloo")
plan = Plan(dist.get_rank(), dist.get_world_size())
model = DDP(torch.nn.Linear(4, 1))
for x in DataLoader(Stream({plan}), 8):
    model(x).mean().backward()
"""
    right = text.format(shards="self.plan.mine()", plan="plan")
    assert "no-sampler" not in found(tmp_path, BEGIN + right)
    assert "no-sampler" in found(tmp_path, BEGIN + text.format(shards="range(8)", plan="8"))


def test_a_module_that_a_function_imports(tmp_path: Path) -> None:
    text = """
import os
def report():
    import perhaps_used
def save():
    import surely_used
def plot():
    import never_used
def show():
    try:
        import not_needed
    except ImportError:
        pass
save()
show()
if os.environ.get("RANK") == "0" and len(os.listdir()) > 2:
    report()
"""
    (tmp_path / "train.py").write_text(text)
    names = ("perhaps_used", "surely_used", "never_used", "not_needed")
    told = {(one.level, one.where, one.text.rpartition(" ")[2]) for one in findings(tmp_path, missing=names)}
    assert told == {("warning", "train.py:4", "perhaps_used"), ("error", "train.py:6", "surely_used")}


def test_a_split_is_named_once(tmp_path: Path) -> None:
    text = """
dist.init_process_group("gloo")
torch.manual_seed(dist.get_rank())
train, valid = random_split(range(64), [50, 14])
model = DDP(torch.nn.Linear(4, 1))
loader = DataLoader(train, 8, sampler=DistributedSampler(train))
"""
    (tmp_path / "train.py").write_text(BEGIN + text)
    assert [finding.check for finding in findings(tmp_path)].count("split-by-rank") == 1
