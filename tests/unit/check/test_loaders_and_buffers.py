"""Loaders, buffers and numbers that only the program followed from its first line shows to be wrong, or right."""

from __future__ import annotations

from pathlib import Path

import pytest
from checked import GPUS, STARTED, found

# Loaders of a function that also makes those of the validation, or that nobody uses.
LOADERS = f"""{STARTED}
def get_loader(split):
    data = TensorDataset(torch.rand(64, 4))
    if split == "val":
        return data, DataLoader(data, batch_size=1, sampler=DistributedSampler(data, shuffle=False))
    else:
        return data, DataLoader(data, batch_size=4, {{train}})
_, train_loader = get_loader("train")
_, val_loader = get_loader("val")
net = DDP(nn.Linear(4, 4).cuda())
for epoch in range(3):
    for (x,) in train_loader:
        net(x.cuda()).mean().backward()
"""
UNUSED = f"""{STARTED}
def get_loader(folder):
    data = torch.load(folder)
    loader = DataLoader(data, batch_size=4, shuffle=True)
    return loader, data
{{loader}}, data = get_loader("/data/train")
train_loader = DataLoader(data, batch_size=4, sampler=DistributedSampler(data))
net = DDP(nn.Linear(4, 4).cuda())
for (x,) in train_loader:
    net(x.cuda()).mean().backward()
"""
# A callback that evaluates the wrapped model on rank 0.
EVALUATED = f"""{STARTED}
class Verification:
    def __init__(self, rank):
        self.rank = rank
    def check(self, backbone):
        with torch.no_grad():
            print(backbone(torch.rand(2, 3).cuda()))
    def __call__(self, step, backbone):
        if self.rank == 0 and step > 0:
            self.check(backbone)
teacher = DDP(nn.Linear(3, 4).cuda(), broadcast_buffers=False)
student = DDP(nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4)).cuda(), {{setting}})
verify = Verification(rank)
for step in range(100):
    student(torch.rand(2, 3).cuda()).mean().backward()
    verify(step, student)
"""
# The best model is loaded by rank 0 alone: after the training, to evaluate it, or before each epoch.
LOADED = f"""{STARTED}
net = DDP(nn.Linear(4, 4).cuda())
def load():
    if rank == 0:
        net.module.load_state_dict(torch.load("/shared/best.pt"))
def train():
    for epoch in range(3):
        for (x,) in DataLoader(TensorDataset(torch.rand(8, 4)), sampler=None):
            net(x.cuda()).mean().backward()
        {{inside}}
{{before}}
train()
{{after}}
"""
# A checkpoint every so many steps, where that number is a part of a number which is not known.
COUNTED = f"""{STARTED}
parser = argparse.ArgumentParser()
parser.add_argument("--interval", type=float, default=0.5)
args = parser.parse_args()
loader = torch.load("/data/loader.pt")
every = int(len(loader) * 3 * args.interval)
def train(every):
    done = 0
    for step, batch in enumerate(loader):
        done += 1
        if step % every == 0:
            print(done)
train(every)
"""


@pytest.mark.parametrize(
    ("train", "is_wrong"), [("shuffle=True", True), ("sampler=DistributedSampler(data)", False)], ids=["all", "part"]
)
def test_a_loader_in_the_branch_of_the_training(train: str, is_wrong: bool, tmp_path: Path) -> None:
    assert ("no-sampler" in found(tmp_path, LOADERS.format(train=train), **GPUS)) is is_wrong


@pytest.mark.parametrize(("loader", "is_wrong"), [("loader", True), ("_", False)], ids=["used", "dropped"])
def test_a_loader_that_nobody_takes(loader: str, is_wrong: bool, tmp_path: Path) -> None:
    assert ("no-sampler" in found(tmp_path, UNUSED.format(loader=loader), **GPUS)) is is_wrong


@pytest.mark.parametrize(
    ("setting", "is_wrong"), [("device_ids=None", True), ("broadcast_buffers=False", False)], ids=["sent", "kept"]
)
def test_a_callback_calls_one_of_two_wrapped_models(setting: str, is_wrong: bool, tmp_path: Path) -> None:
    assert ("rank-0-collective" in found(tmp_path, EVALUATED.format(setting=setting), **GPUS)) is is_wrong


@pytest.mark.parametrize(("place", "is_wrong"), [("before", True), ("inside", True), ("after", False)])
def test_a_state_that_rank_0_loads_after_the_training(place: str, is_wrong: bool, tmp_path: Path) -> None:
    places = dict.fromkeys(("before", "inside", "after"), "pass") | {place: "load()"}
    assert ("loaded-by-one" in found(tmp_path, LOADED.format(**places), **GPUS)) is is_wrong


@pytest.mark.parametrize(("interval", "is_wrong"), [(0, True), (0.1, False)])
def test_a_part_of_an_unknown_number_is_zero(interval: float, is_wrong: bool, tmp_path: Path) -> None:
    shown = found(tmp_path, COUNTED, **GPUS, hyperparameters={"interval": interval})
    assert ("unfulfilled" in shown) is is_wrong
