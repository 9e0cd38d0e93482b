"""Mistakes that are clear when processes are followed to their ends, or when values are followed through functions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from checked import GPUS, IMPORTED, RESTARTED, STARTED, each_mistake, found

EPOCHS = """
net = DDP(nn.Linear(4, 4).cuda())
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for epoch in range(3):
    {begin}
    for (x,) in train_loader:
        loss = net(x.cuda()).mean()
        loss.backward()
        optimizer.step()
"""
# The samplers of a training and of its validation, in a program that seeds each rank otherwise.
SAMPLED = f"""{STARTED}
torch.manual_seed(7 + rank)
train, val = TensorDataset(torch.rand(64, 4)), TensorDataset(torch.rand(64, 4))
train_sampler = {{train}}
val_sampler = DistributedSampler(val, num_replicas=dist.get_world_size(), rank=rank, shuffle=False)
train_loader = DataLoader(train, batch_size=4, sampler=train_sampler, shuffle=train_sampler is None)
val_loader = DataLoader(val, batch_size=4, sampler=val_sampler)
{EPOCHS}
"""
DIVIDED = "DistributedSampler(train, num_replicas=dist.get_world_size(), rank=rank)"
# Models and loaders that names in a configuration choose.
CHOSEN = f"""{IMPORTED}
import json
settings = {{{{"model": "Linear", "size": 4}}}}
class Config:
    def make(self, module, name, *args):
        return getattr(module, settings[name])(*args)
def main(config):
    {{init}}
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    net = config.make(nn, "model", 4, 4).cuda()
    {{wrap}}
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for step in range(3):
        net(torch.rand(2, 4).cuda()).mean().backward()
        optimizer.step()
def test(config):
    return DDP(config.make(nn, "model", 4, 4).cuda())
main(Config())
"""
JOINS = 'dist.init_process_group("nccl")'
# Conditions on numbers of the job, behind objects and in the branch of one rank.
FAILING = f"""{IMPORTED}
parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=12)
parser.add_argument("--train", action="store_true")
parser.add_argument("--tune", action="store_true")
args = parser.parse_args()
class Config:
    batch = 24
class Trainer:
    def __init__(self, config):
        self.batch = config.batch
    def train(self, world):
        {{test}}
        for epoch in range(args.epochs):
            print(epoch)
            if dist.get_rank() == 0:
                {{inside}}
class Tuner:
    def train(self, world):
        return None
dist.init_process_group("gloo")
if args.train:
    trainer = Trainer(Config)
    trainer.train(int(os.environ["WORLD_SIZE"]))
if args.tune:
    trainer = Tuner()
    trainer.train(1)
"""
TRAINING = {**GPUS, "hyperparameters": {"train": {"flag": True}}}
# A limit of time that each rank measures by itself, in functions.
TIMED = f"""{STARTED}
parser = argparse.ArgumentParser()
parser.add_argument("--hours", type=float, default=0.0)
args = parser.parse_args()
def now():
    torch.cuda.synchronize()
    return time.time()
net = DDP(nn.Linear(4, 4).cuda())
seconds, step = 0.0, 0
while True:
    began = now()
    net(torch.rand(2, 4).cuda()).mean().backward()
    seconds += now() - began
    step += 1
    if step > 100:
        break
    if args.hours > 0:
        passed = {{passed}}
        if passed >= args.hours:
            reason = "time"
            break
"""
# The parsed arguments, which have more names than one.
READ = f"""{IMPORTED}
def get_args_parser():
    parser = argparse.ArgumentParser()
    parser.add_argument("--lr", type=float, default=0.1)
    parser.set_defaults(norm=False)
    return parser
def parse():
    return get_args_parser().parse_args()
def train(args):
    print(args.lr, args.norm)
    assert args.lr > 0, f"not {{{{args.rate}}}}"
    {{read}}
{{main}}
"""
TWICE = "args = get_args_parser()\nargs = args.parse_args()\ntrain(args)"
IF_NONE = "def main(args=None):\n    if args is None:\n        args = parse()\n    train(args)\nmain()"
# A model that is frozen and unfrozen by another name than that of its wrapper.
FROZEN = f"""{STARTED}
def switch(model, on):
    for name, p in model.named_parameters():
        if "bias" not in name:
            p.requires_grad = on
net = nn.Linear(4, 4).cuda()
inner = net
switch(inner, {{before}})
net = DDP(net)
inner = net.module
for epoch in range(30):
    if epoch == 10:
        switch(inner, True)
    net(torch.rand(2, 4).cuda()).mean().backward()
"""
SCORES = f"""{STARTED}
def gather(scores):
    parts = [None for _ in range({{count}})]
    dist.all_gather_object(parts, scores)
    return parts
print(gather([1.0]))
"""
CUT = f"""{IMPORTED}
dist.init_process_group("nccl")
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
torch.manual_seed({{seed}})
data = TensorDataset(torch.rand(64, 4))
indices = torch.randperm(len(data))[: len(data) // 2].tolist()
held = len(indices) // 5
train = torch.utils.data.Subset(data, indices[held:])
val = torch.utils.data.Subset(data, indices[:held])
train_loader = DataLoader(train, batch_size=4, sampler=DistributedSampler(train, shuffle=False))
val_loader = DataLoader(val, batch_size=4, sampler=DistributedSampler(val, shuffle=False))
{EPOCHS.format(begin="print(epoch)")}
"""
SETTINGS = f"""{STARTED}
class Config:
    def __init__(self, preload):
        self.preload = preload
config = Config({{preload}})
net = nn.Linear(4, 4).cuda()
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
if config.preload != "":
    state = torch.load("/shared/last.pt")
    net.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
net = DDP(net)
for step in range(3):
    net(torch.rand(2, 4).cuda()).mean().backward()
if rank == 0:
    torch.save({{{{"model": net.module.state_dict(), "optimizer": optimizer.state_dict()}}}}, "/shared/last.pt")
"""
# Nodes that count their processes from the number of a node, and not of its processes.
COUNTED = f"""{IMPORTED}
parser = argparse.ArgumentParser()
parser.add_argument("--rank", type=int)
parser.add_argument("--world_size", type=int)
parser.add_argument("--init_method")
args = parser.parse_args()
def worker(local_rank, each):
    rank = args.rank * {{each}} + local_rank
    dist.init_process_group("nccl", init_method=args.init_method, rank=rank, world_size=args.world_size * each)
    torch.cuda.set_device(local_rank)
    DDP(nn.Linear(4, 4).cuda())(torch.rand(2, 4).cuda()).mean().backward()
if __name__ == "__main__":
    mp.spawn(worker, nprocs=4, args=(4,))
"""
IN_SPAWN = {
    "mode": "spawn",
    "backend": {"kind": "slurm", "shared_dir": "/shared", "gpus_per_node": 4},
    "resources": {"nodes": 2, "nproc_per_node": 4},
}


@each_mistake(
    [
        (
            "no-sampler",
            SAMPLED.format(train="None", begin="val_sampler.set_epoch(epoch)"),
            SAMPLED.format(train=DIVIDED, begin="train_sampler.set_epoch(epoch)"),
            GPUS,
        ),
        (
            "set-epoch",
            SAMPLED.format(train=DIVIDED, begin="val_loader.sampler.set_epoch(epoch)"),
            SAMPLED.format(train=DIVIDED, begin="train_loader.batch_sampler.sampler.set_epoch(epoch)"),
            GPUS,
        ),
        (
            "no-init",
            CHOSEN.format(init="pass", wrap="net = DDP(net)"),
            CHOSEN.format(init=JOINS, wrap="net = DDP(net)"),
            GPUS,
        ),
        (
            "never-synchronized",
            CHOSEN.format(init=JOINS, wrap="pass"),
            CHOSEN.format(init=JOINS, wrap="net = DDP(net)"),
            GPUS,
        ),
        (
            "unfulfilled",
            FAILING.format(test="assert 16384 % (self.batch * world) == 0, world", inside="pass"),
            FAILING.format(test="assert 16384 % (8 * world) == 0, world", inside="pass"),
            TRAINING,
        ),
        (
            "unfulfilled",
            FAILING.format(
                test="if self.batch > 8 * world:\n            raise ValueError(world)", inside="pass"
            ).replace("batch = 24", "batch = 40"),
            FAILING.format(test="if self.batch > 8 * world:\n            raise ValueError(world)", inside="pass"),
            TRAINING,
        ),
        (
            "unfulfilled",
            FAILING.format(test="pass", inside="if (epoch + 1) % (args.epochs // 20) == 0: print(epoch)"),
            FAILING.format(test="pass", inside="if (epoch + 1) % (args.epochs // 4) == 0: print(epoch)"),
            TRAINING,
        ),
        (
            "left-by-one",
            TIMED.format(passed="seconds / 3600"),
            TIMED.format(passed="step / 3600"),
            {**GPUS, "hyperparameters": {"hours": 2.0}},
        ),
        ("undeclared", READ.format(read="print(args.clip)", main=TWICE), READ.format(read="", main=TWICE), GPUS),
        ("undeclared", READ.format(read="print(args.clip)", main=IF_NONE), READ.format(read="", main=IF_NONE), GPUS),
        ("thawed-later", FROZEN.format(before=False), FROZEN.format(before=True), GPUS),
        (
            "fixed-world-size",
            SCORES.format(count="torch.cuda.device_count()"),
            SCORES.format(count="dist.get_world_size()"),
            GPUS,
        ),
        ("split-by-rank", CUT.format(seed="dist.get_rank()"), CUT.format(seed=3), GPUS),
        ("no-checkpoint", SETTINGS.format(preload='""'), SETTINGS.format(preload='"latest"'), RESTARTED),
        ("same-ranks", COUNTED.format(each="args.world_size"), COUNTED.format(each="each"), IN_SPAWN),
    ]
)
def test_the_mistake_is_found_and_the_right_code_passes(
    check: str, wrong: str, right: str, fields: dict[str, Any], tmp_path: Path
) -> None:
    assert check in found(tmp_path, wrong, **fields)
    assert check not in found(tmp_path, right, **fields)


# A loader without a sampler, where each rank draws samples of its own on purpose.
DRAWN = f"""{STARTED}
torch.manual_seed(7 + rank)
class Drawn(torch.utils.data.Dataset):
    def __len__(self):
        return 1000
    def __getitem__(self, index):
        return (self.read(np.random.randint(5)),)
    def read(self, number):
        return torch.rand(4)
def forever(loader):
    while True:
        for batch in loader:
            yield batch
train_loader = DataLoader({{data}}, batch_size=4, shuffle={{shuffle}})
net = DDP(nn.Linear(4, 4).cuda())
batches = forever(train_loader)
for step in range(1000):
    (x,) = next(batches)
    net(x.cuda()).mean().backward()
"""


@pytest.mark.parametrize(
    ("data", "shuffle", "is_wrong"),
    [
        ("TensorDataset(torch.rand(64, 4))", True, False),
        ("Drawn()", False, False),
        ("TensorDataset(torch.ones(64, 4))", False, True),
    ],
)
def test_samples_that_each_rank_draws(data: str, shuffle: bool, is_wrong: bool, tmp_path: Path) -> None:
    assert ("no-sampler" in found(tmp_path, DRAWN.format(data=data, shuffle=shuffle), **GPUS)) is is_wrong


# A step that is skipped if a model returns no loss, which it does on all ranks, or if a rank has no batch.
SKIPPED = f"""{STARTED}
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)
    def forward(self, x, target=None):
        out = self.layer(x)
        return out, None if target is None else (out - target).square().mean()
data = TensorDataset(torch.rand(64, 4))
net = DDP(Net().cuda())
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for (x,) in DataLoader(data, batch_size=4, sampler=DistributedSampler(data)):
    out, loss = net(x.cuda(), x.cuda())
    if {{test}}:
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""


@pytest.mark.parametrize(("test", "is_wrong"), [("loss is not None", False), ("torch.isfinite(loss)", True)])
def test_a_step_without_a_loss(test: str, is_wrong: bool, tmp_path: Path) -> None:
    assert bool(found(tmp_path, SKIPPED.format(test=test), **GPUS)) is is_wrong


@pytest.mark.parametrize(
    "text",
    [
        "from typing import List\nsizes = [1, 2]\nassert isinstance(sizes, List)\n",
        "from glob import glob\nnames = [n for n in glob('*', root_dir='/data') if n.endswith('jpg')]\nassert names\n",
    ],
)
def test_a_condition_that_holds(text: str, tmp_path: Path) -> None:
    assert not found(tmp_path, text, **GPUS)


# The average of a model that it keeps itself, and an evaluation that goes through all data.
AVERAGED = f"""{STARTED}
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.student, self.teacher = nn.Linear(4, 4), nn.Linear(4, 4).requires_grad_(False)
    def forward(self, x):
        return self.student(x)
    def update(self, rate):
        with torch.no_grad():
            for own, average in zip(self.student.parameters(), self.teacher.parameters()):
                average.lerp_(own, 1 - rate)
    def loss(self, x):
        return self.student(x).mean()
class STL10Eval:
    def __init__(self):
        self.loader = DataLoader(TensorDataset(torch.ones(64, 4)), batch_size=4)
    @torch.inference_mode
    def evaluate(self, net):
        return [net(x.cuda()) for (x,) in self.loader]
class Trainer:
    def __init__(self, loader):
        self.loader, self.evaluation = loader, STL10Eval() if rank == 0 else None
    def compute(self, model: DDP, x):
        with torch.autocast("cuda"):
            return model(x).mean()
    def train(self):
        net = DDP(Net().cuda())
        for epoch in range(3):
            for (x,) in self.loader:
                loss = {{loss}}
                loss.backward()
                {{then}}
            if self.evaluation is not None:
                self.evaluation.evaluate(net.module)
data = TensorDataset(torch.rand(64, 4))
Trainer(DataLoader(data, batch_size=4, sampler=DistributedSampler(data, shuffle=False))).train()
"""


@pytest.mark.parametrize(
    ("loss", "then", "checks"),
    [
        ("self.compute(net, x.cuda())", "net.module.update(0.99)", set()),
        ("net.module.loss(x.cuda())", "print(epoch)", {"bypassed"}),
    ],
)
def test_an_average_and_an_evaluation_of_the_model_inside(
    loss: str, then: str, checks: set[str], tmp_path: Path
) -> None:
    assert found(tmp_path, AVERAGED.format(loss=loss, then=then), **GPUS) == checks
