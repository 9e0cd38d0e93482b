"""How the work of the checks grows with the code: counted in calls of functions, which no busy machine changes."""

from __future__ import annotations

import importlib.metadata
import sys
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from types import FrameType
from typing import Any
from unittest import mock

import pytest
from checked import findings
from corpus import CORPUS

from jobsubmit.check import run
from jobsubmit.common.finding import Finding

TRAIN = """
import argparse
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler
{imports}

def main(args):
    dist.init_process_group("nccl")
    settings = Settings0(args)
    model = DistributedDataParallel(Model0(settings).cuda())
    sampler = DistributedSampler(load0(settings))
    loader = DataLoader(load0(settings), batch_size=args.batch, sampler=sampler)
    optimizer = torch.optim.SGD(model.parameters(), lr=settings.lr)
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        for batch in loader:
            optimizer.zero_grad()
            step0(settings, model, batch).backward()
            optimizer.step()
        if args.rank == 0:
            torch.save(model.module.state_dict(), settings.path)

parser = argparse.ArgumentParser()
parser.add_argument("--batch", type=int, default=8)
parser.add_argument("--epochs", type=int, default=3)
parser.add_argument("--rank", type=int, default=0)
main(parser.parse_args())
"""
PART = """
import os
import torch
from torch import nn
{imports}

class Settings{n}:
    def __init__(self, args):
        self.args = args
        self.lr = 0.1 * {n}
        self.path = os.path.join("results", "{n}.pt")
        self.rank = int(os.environ["RANK"])

    def is_main(self):
        return self.rank == 0

class Model{n}(nn.Module):
    def __init__(self, settings):
        super().__init__()
        self.settings = settings
        self.first = nn.Linear(4, 4)
        self.second = nn.Linear(4, 4) if settings.lr > 1 else nn.Identity()
        {inner}

    def forward(self, x):
        return self.second(self.first(x))

def load{n}(settings):
    path = settings.path
    if os.path.exists(path):
        from extra{n} import read
        return read(path)
    for name in sorted(os.listdir(path)):
        if name.endswith(".pt"):
            return torch.load(os.path.join(path, name), map_location="cpu")

def step{n}(settings, model, batch):
    if settings.is_main() and settings.args.batch > 4:
        print("step", settings.lr)
    loss = model(batch).mean()
    {more}
    return loss
"""

EXTRA = """
import csv
import json
from torch import nn

def read(path):
    return json.load(open(path))
"""


def _calls(folder: Path, parts: int) -> int:
    """Return how many functions the checks of a program of so many modules call."""
    folder.mkdir()
    names = [f"part{n}" for n in range(parts)]
    (folder / "train.py").write_text(TRAIN.format(imports="\n".join(f"from {name} import *" for name in names)))
    for n, name in enumerate(names):
        is_last = n == parts - 1
        imports = "" if is_last else f"from part{n + 1} import Settings{n + 1}, Model{n + 1}, load{n + 1}, step{n + 1}"
        inner = "self.inner = None" if is_last else f"self.inner = Model{n + 1}(Settings{n + 1}(settings.args))"
        more = "" if is_last else f"loss = loss + step{n + 1}(Settings{n + 1}(settings.args), model, batch)"
        (folder / f"{name}.py").write_text(PART.format(n=n, imports=imports, inner=inner, more=more))
        (folder / f"extra{n}.py").write_text(EXTRA)
    return _calls_of_checks(folder)


def _calls_of_checks(folder: Path) -> int:
    """Return how many functions the checks of a folder's program call."""
    return _calls_of_each_check(folder).total()


def _calls_of_each_check(folder: Path) -> Counter[str]:
    """Return how many functions each check of a folder's program calls, by its name; what is beside them has none."""
    counts: Counter[str] = Counter()
    running = [""]
    safely = run._safely

    def each(frame: FrameType, event: str, argument: Any) -> None:
        counts[running[-1]] += event == "call"

    def named(name: str, *rest: Any) -> list[Finding]:
        running.append(name)
        try:
            return safely(name, *rest)
        finally:
            running.pop()

    before = sys.getprofile()
    with mock.patch.object(run, "_safely", named):
        sys.setprofile(each)
        try:
            findings(folder, resources={"nodes": 2, "nproc_per_node": 2}, backend={"kind": "slurm", "shared_dir": "/s"})
        finally:
            sys.setprofile(before)
    return counts


def _calls_of_trainings(folder: Path, trainings: int) -> Counter[str]:
    """Return how many functions each check calls for so many scripts like timm's, of 15 KB, in one program."""
    folder.mkdir()
    script = (CORPUS / "timm_train_big_ok/train.py").read_text()
    names = [f"part{n}" for n in range(trainings)]
    for name in names:
        (folder / f"{name}.py").write_text(script)
    imports, calls = (f"import {name}" for name in names), (f"{name}.main()" for name in names)
    (folder / "train.py").write_text("\n".join([*imports, *calls, ""]))
    return _calls_of_each_check(folder)


def _calls_of_sums(folder: Path, steps: int) -> int:
    """Return how many functions the checks call for a comprehension over what is computed in so many steps."""
    folder.mkdir()
    lines = [f"v{n + 1} = v{n} + v{n}" for n in range(steps)]
    text = "\n".join(["v0 = 1", *lines, f"total = sum(x * v{steps} for x in (1, 2))", "assert total > 0", ""])
    (folder / "train.py").write_text(text)
    return _calls_of_checks(folder)


def test_a_comprehension_computes_each_value_once(tmp_path: Path) -> None:
    _calls_of_sums(tmp_path / "first", 2)  # imports what the checks need
    counts = [_calls_of_sums(tmp_path / f"of{steps}", steps) for steps in (6, 12)]
    assert counts[1] / counts[0] < 2.2


def test_twice_the_code_is_little_more_than_twice_the_work(tmp_path: Path) -> None:
    _calls(tmp_path / "first", 2)  # imports what the checks need
    counts = [_calls(tmp_path / f"of{parts}", parts) for parts in (10, 20, 40)]
    assert counts[1] / counts[0] < 2.2
    assert counts[2] / counts[1] < 2.2


def test_no_check_does_more_for_each_line_of_a_longer_program(tmp_path: Path) -> None:
    _calls_of_trainings(tmp_path / "first", 1)  # imports what the checks need
    shorter, longer = (_calls_of_trainings(tmp_path / f"of{count}", count) for count in (3, 6))
    grown = {name: longer[name] / shorter[name] for name in longer if longer[name] > 1000}
    assert len(grown) > 20
    assert {name: round(by, 2) for name, by in grown.items() if by > 2.5} == {}


def test_what_is_installed_here_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reads = 0
    packages = importlib.metadata.packages_distributions

    def counted() -> Mapping[str, list[str]]:
        nonlocal reads
        reads += 1
        return packages()

    monkeypatch.setattr(importlib.metadata, "packages_distributions", counted)
    for number in range(9):
        (tmp_path / f"models_{number}").mkdir()
        (tmp_path / f"models_{number}/net.py").touch()
    imports = "".join(f"from models_{number} import net\n" for number in range(9))
    (tmp_path / "train.py").write_text(imports)
    findings(tmp_path)
    assert reads <= 1


def test_a_long_word_takes_little_time(tmp_path: Path) -> None:
    """A hyperparameter may be a text of 128 kB; what looks for paths in it took half a minute."""
    (tmp_path / "train.py").write_text("import argparse\nargparse.ArgumentParser().parse_args()\n")
    begin = time.process_time()
    found = findings(tmp_path, hyperparameters={"text": "x" * 130_000})
    assert time.process_time() - begin < 5
    assert found


def test_files_beside_a_program_are_not_gone_through_for_each_of_its_names(tmp_path: Path) -> None:
    _calls_of_trainings(tmp_path / "first", 1)  # imports what the checks need
    alone = _calls_of_trainings(tmp_path / "alone", 1)
    (tmp_path / "beside").mkdir()
    for number in range(500):
        (tmp_path / f"beside/{number}.cpp").touch()
    (tmp_path / "beside/part0").mkdir()
    script = (CORPUS / "timm_train_big_ok/train.py").read_text()
    (tmp_path / "beside/part0/__init__.py").write_text(script)
    (tmp_path / "beside/train.py").write_text("from part0 import main, torch, logging\nimport part0\npart0.main()\n")
    beside = _calls_of_each_check(tmp_path / "beside")
    assert beside["imports"] < 1.5 * alone["imports"] + 2000
