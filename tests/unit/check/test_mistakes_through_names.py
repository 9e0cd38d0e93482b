"""Mistakes in files, methods and classes that a program finds by names which its arguments or settings give."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from checked import IMPORTED, SLURM, found, with_files

from jobsubmit.check.program.hyperpyyaml import parse_hyperpyyaml
from jobsubmit.check.program.operations import UNKNOWN

EIGHT: dict[str, Any] = {"resources": {"nodes": 2, "nproc_per_node": 4}, "backend": {**SLURM, "gpus_per_node": 4}}

BY_FILE = (
    IMPORTED
    + """
import importlib, importlib.util
def load(path):
    {load}
    return module.Experiment()
parser = argparse.ArgumentParser()
parser.add_argument("-f", "--experiment")
args = parser.parse_args()
dist.init_process_group("nccl")
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
model = DDP(nn.Linear(4, 1).cuda())
optimizer = torch.optim.SGD(model.parameters(), 0.1)
sampler, loader = load(args.experiment).loader()
for epoch in range(3):
    sampler.set_epoch(epoch)
    for x in loader:
        optimizer.zero_grad()
        model(x.cuda()).mean().backward()
        optimizer.step()
dist.destroy_process_group()
"""
)
BY_FOLDER = """sys.path.insert(0, os.path.dirname(path))
    module = importlib.import_module(os.path.basename(path).split(".")[0])"""
BY_SPEC = """spec = importlib.util.spec_from_file_location("experiment", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)"""
EXPERIMENT = """
import torch, torch.distributed as dist
from torch.utils.data import DataLoader, DistributedSampler
class Experiment:
    def loader(self):
        data, count = torch.zeros(100, 4), {count}
        sampler = DistributedSampler(data, num_replicas=count, rank=dist.get_rank() % count)
        return sampler, DataLoader(data, sampler=sampler, batch_size=2)
"""


@pytest.mark.parametrize("load", [BY_FOLDER, BY_SPEC], ids=["by its folder", "by its path"])
@pytest.mark.parametrize("words", [["-f", "exps/small.py"], ["--experiment=exps/small.py"]])
def test_a_file_that_an_argument_names_is_checked(load: str, words: list[str], tmp_path: Path) -> None:
    fields = {**EIGHT, "args": words}
    with_files(tmp_path, {"exps/small.py": EXPERIMENT.format(count="torch.cuda.device_count()")})
    assert "part-of-node" in found(tmp_path, BY_FILE.format(load=load), **fields)
    with_files(tmp_path, {"exps/small.py": EXPERIMENT.format(count="dist.get_world_size()")})
    assert not found(tmp_path, BY_FILE.format(load=load), **fields)


SWITCHED = (
    IMPORTED
    + """
import contextlib
class Backend:
    def micro_step(self, model, index, steps):
        raise NotImplementedError
class Single(Backend):
    @contextlib.contextmanager
    def micro_step(self, model, index, steps):
        yield
class Several(Backend):
    @contextlib.contextmanager
    def micro_step(self, model, index, steps):
        model.require_backward_grad_sync = index % steps == {which}
        yield
def train(backend, settings):
    dist.init_process_group("nccl")
    model = DDP(nn.Linear(4, 1).cuda())
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for step in range(100):
        for index in range({steps}):
            with backend.micro_step(model, index=index, steps=settings.steps):
                model(torch.rand(4).cuda()).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=4)
settings = parser.parse_args()
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
train({{"one": Single, "several": Several}}[os.environ.get("BACKEND", "several")](), settings)
"""
)


def test_gradients_that_a_method_of_several_classes_synchronizes_in_the_first_step(tmp_path: Path) -> None:
    first, last = (
        SWITCHED.format(which="0", steps="settings.steps"),
        SWITCHED.format(which="steps - 1", steps="settings.steps"),
    )
    assert "never-synchronized" in found(tmp_path, first, **EIGHT)
    assert "never-synchronized" not in found(tmp_path, last, **EIGHT)
    other = SWITCHED.format(which="0", steps="1000")  # then some later step is the first of the next ones
    assert "never-synchronized" not in found(tmp_path, other, **EIGHT)


ACCUMULATED = """
import sys
from accelerate import Accelerator
from omegaconf import OmegaConf
import torch
from torch.utils.data import DataLoader
def main(gradient_accumulation_steps=1, learning_rate=0.1):
    accelerator = Accelerator({given})
    model, loader = torch.nn.Linear(4, 1), DataLoader(torch.zeros(100, 4), batch_size=4)
    optimizer = torch.optim.SGD(model.parameters(), learning_rate)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    steps = len(loader) // gradient_accumulation_steps
    parts = [part for part in model.modules()]
    for part in parts:
        for name, inner in part.named_modules():
            yield part, name, inner
    for batch in loader:
        with accelerator.accumulate(model):
            accelerator.backward(model(batch).mean())
            optimizer.step()
            optimizer.zero_grad()
list(main(**OmegaConf.load("settings.yaml")))
"""


def test_steps_that_a_configuration_has_accelerate_accumulate(tmp_path: Path) -> None:
    with_files(tmp_path, {"settings.yaml": "gradient_accumulation_steps: 4\n"})
    assert found(tmp_path, ACCUMULATED.format(given=""), **EIGHT) == {"never-accumulated"}
    given = "gradient_accumulation_steps=gradient_accumulation_steps"
    assert not found(tmp_path, ACCUMULATED.format(given=given), **EIGHT)
    with_files(tmp_path, {"settings.yaml": "learning_rate: 0.2\n"})
    assert not found(tmp_path, ACCUMULATED.format(given=""), **EIGHT)


CHOSEN = (
    IMPORTED
    + """
from some_library import is_old
class Plain:
    def __init__(self):
        self.model = nn.Linear(4, 1)
    def save(self):
        torch.save(self.model.state_dict(), "a.pt")
class Careful(Plain):
    def __init__(self):
        super().__init__()
        state = torch.load("last.pt")
        self.model.load_state_dict(state["model"])
        self.save()
    def save(self):
        if dist.get_rank() == 0:
            torch.save({{"model": self.model.state_dict(), "numpy": np.random.get_state()}}, "last.pt")
KINDS = {{"plain": Plain}}
if is_old():
    KINDS["careful"] = Careful
def start(name):
    kind = KINDS[name]()
    kind.save()
dist.init_process_group("gloo")
start({name})
"""
)


def test_a_checkpoint_of_a_class_that_the_job_makes_no_object_of(tmp_path: Path) -> None:
    assert "pickled-object" not in found(tmp_path, CHOSEN.format(name='"plain"'), **EIGHT)
    with_both = CHOSEN.format(name='"careful"').replace("is_old()", "True")
    assert "pickled-object" in found(tmp_path, with_both, **EIGHT)


OF_SPEECH = (
    IMPORTED
    + """
from hyperpyyaml import load_hyperpyyaml
parser = argparse.ArgumentParser()
parser.add_argument("--config", default="conf/train.yaml")
args = parser.parse_args()
with open(args.config) as stream:
    settings = load_hyperpyyaml(stream, overrides={{"epochs": 1}})
run = settings["run"]
dist.init_process_group("nccl")
local_rank = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(local_rank)
model = DDP(settings["model"].cuda(), device_ids=[local_rank])
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for epoch in range(settings["epochs"]):
    for index, batch in enumerate(load_batches()):
        if run["engine"] == "ddp" and {test}:
            with model.no_sync():
                model(batch.cuda()).mean().backward()
        else:
            model(batch.cuda()).mean().backward()
        if (index + 1) % run["accumulated"] == 0:
            optimizer.step()
            optimizer.zero_grad()
        if dist.get_rank() == 0:
            log(run, index)
        if run["saves_every"] > 0 and (index + 1) % run["saves_every"] == 0:
            dist.barrier()
dist.destroy_process_group()
"""
)
SETTINGS = """
epochs: 100
every: -1
accumulated: 2
model: !new:nets.Model
    size: 4
run:
    engine: ddp
    accumulated: !ref <accumulated>
    saves_every: !ref <every>
"""


def test_settings_that_refer_to_others(tmp_path: Path) -> None:
    with_files(tmp_path, {"conf/train.yaml": SETTINGS})
    first = 'index % run["accumulated"] != 0'
    assert found(tmp_path, OF_SPEECH.format(test=first), **EIGHT) == {"never-synchronized"}
    last = '(index + 1) % run["accumulated"] != 0'
    assert not found(tmp_path, OF_SPEECH.format(test=last), **EIGHT)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("!ref <a>", 3),
        ("!ref <a> * 2 - 1", 5),
        ("!ref <b>/<a>", "x/3"),
        ("!ref <c[d]>", 4),
        ("!ref <chained>", 3),
        ("!copy <c>", {"d": 4}),
        ("!new:torch.nn.Linear {in_features: 1}", UNKNOWN),
        ("!ref <made>", UNKNOWN),
        ("!ref <made> + 1", UNKNOWN),
        ("!ref <value>", UNKNOWN),
        ("!tuple [1, 2]", [1, 2]),
        ("!PLACEHOLDER", UNKNOWN),
    ],
)
def test_a_value_of_hyperpyyaml(text: str, value: object) -> None:
    tree = f"a: 2\nb: x\nc: {{d: 4}}\nchained: !ref <a>\nmade: !apply:os.getcwd\nvalue: {text}\n"
    assert parse_hyperpyyaml(tree, {"a": 3})["value"] == value


@pytest.mark.parametrize(
    ("entry", "reader"),
    [("*{name}", "yaml.safe_load"), ("!ref <{name}>", "hyperpyyaml.load_hyperpyyaml")],
    ids=["aliases", "references"],
)
def test_a_configuration_that_grows_without_end_is_not_read(entry: str, reader: str, tmp_path: Path) -> None:
    lines = ["a: &a [x, x, x, x, x, x, x, x, x]"]
    for before, name in pairwise("abcdefghijkl"):
        lines.append(f"{name}: &{name} [{', '.join([entry.format(name=before)] * 9)}]")
    with_files(tmp_path, {"conf.yaml": "\n".join([*lines, "steps: 3\n"])})
    text = f"import hyperpyyaml, yaml\nsettings = {reader}(open('conf.yaml'))\nassert settings['steps'] == 4\n"
    assert not found(tmp_path, text, **EIGHT)
