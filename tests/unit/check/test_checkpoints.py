"""Mistakes with checkpoints, wrapped models and files: found in the program that has them, not in the right one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from checked import GPUS, RESTARTED, SLURM, STARTED, each_mistake, findings, found, with_files

PODS = {"kind": "volcano", "resources": {"nvidia.com/gpu": 2}}
AGAIN = {"restarts": {"max": 1}}

RESUMED = """
import argparse, os, torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.head = torch.nn.Linear(4, 1)
        {layer}
    def forward(self, x):
        return self.head(x)
    def scale(self):
        return 2
def parse():
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", default="{out}")
    parser.add_argument("--lr", type=float, default=0.1)
    return parser.parse_args()
def save(path, model, optimizer, args):
    torch.save({{"net": {saved}, "optimizer": optimizer.state_dict(), "args": {args}}}, path)
def main(args):
    dist.init_process_group("nccl")
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    {folder}
    model = Net().cuda()
    path = os.path.join(args.out, "last.pt")
    state = None
    if os.path.exists(path):
        state = torch.load(path, map_location="cpu")
        model.load_state_dict(state["net"])
    model = DDP(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr)
    for step in range(10):
        model(torch.rand(8, 4).cuda()).mean().backward()
        optimizer.step()
        {step}
        if dist.get_rank() == 0:
            save(path, model, optimizer, args)
    dist.destroy_process_group()
if __name__ == "__main__":
    main(parse())
"""
RIGHT = {
    "layer": "pass",
    "out": "/shared/run",
    "saved": "model.module.state_dict()",
    "args": "vars(args)",
    "folder": "pass",
    "step": "pass",
}

DOWNLOADED = """
import torch, torch.distributed as dist
from torchvision import datasets
dist.init_process_group("gloo")
rank = dist.get_rank()
{fetch}
dist.destroy_process_group()
"""

EVALUATED = """
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset
def loaders(data):
    sampler = DistributedSampler(data, shuffle=False)
    train = DataLoader(data, 8, sampler=DistributedSampler(data))
    return train, DataLoader(data, 8{sampler})
def validate(net, loader):
    correct = torch.zeros(1)
    for x, in loader:
        correct += (net(x) > 0).sum()
    {add}
    return 100.0 * correct / len(loader.dataset)
dist.init_process_group("gloo")
net = DistributedDataParallel(torch.nn.Linear(4, 1))
train, test = loaders(TensorDataset(torch.rand(64, 4)))
print(validate(net, test))
dist.destroy_process_group()
"""

STREAM = """
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, IterableDataset, get_worker_info
class Shards(IterableDataset):
    def __init__(self, shards): self.shards = shards
    def __iter__(self):
        info = get_worker_info()
        first, step = (info.id, info.num_workers) if info else (0, 1)
        {divide}
        for shard in self.shards[first::step]: yield from torch.load(shard)
dist.init_process_group("gloo")
net = DistributedDataParallel(torch.nn.Linear(4, 1))
for x in DataLoader(Shards(["a", "b"]), 8):
    net(x).mean().backward()
dist.destroy_process_group()
"""

ACCELERATED = """
from accelerate import Accelerator
accelerator = Accelerator(gradient_accumulation_steps={steps})
net, loader = accelerator.prepare(make(), data())
for x in loader:
    {accumulate}
        accelerator.backward(net(x).mean())
"""

TRAINER = "from transformers import Trainer\ntrainer = Trainer()\n"

LIGHTNING = """
import lightning as L, os
trainer = L.Trainer(devices=2, num_nodes=int(os.environ["NNODES"]))
trainer.fit(make())
{save}
"""


def resumed(**changes: str) -> str:
    return RESUMED.format(**{**RIGHT, **changes})


def fetched(text: str) -> str:
    return DOWNLOADED.format(fetch=text)


CASES: list[tuple[str, str, str, dict[str, Any]]] = [
    ("other-keys", resumed(saved="model.state_dict()"), resumed(), {}),
    (
        "other-keys",
        resumed().replace("model = Net().cuda()", "model = DDP(Net().cuda())").replace("model = DDP(model)", "pass"),
        resumed(saved="model.state_dict()")
        .replace("model = Net().cuda()", "model = DDP(Net().cuda())")
        .replace("model = DDP(model)", "pass"),
        {},
    ),
    ("wrapped-attribute", resumed(step="print(model.scale())"), resumed(step="print(model.module.scale())"), {}),
    ("pickled-object", resumed(args="args"), resumed(), {}),
    ("pickled-object", resumed(args="args"), resumed(args="args"), {"torch_version": "2.5"}),
    ("unused-parameters", resumed(layer="self.extra = torch.nn.Linear(4, 4)"), resumed(layer="self.extra = 4"), {}),
    (
        "made-by-all",
        resumed(folder="if not os.path.exists(args.out): os.makedirs(args.out)"),
        resumed(folder="os.makedirs(args.out, exist_ok=True)"),
        {},
    ),
    (
        "made-by-all",
        resumed(folder="os.mkdir(args.out)"),
        resumed(folder="if dist.get_rank() == 0: os.mkdir(args.out)"),
        {},
    ),
    ("no-checkpoint", resumed(out="runs"), resumed(), AGAIN),
    (
        "lost-checkpoint",
        resumed(out="runs"),
        resumed(),
        {"backend": PODS, "checkpoint_dir": {"uri": "/mnt/x", "as": "env"}},
    ),
    (
        "fetched-by-all",
        fetched('datasets.CIFAR10("data", download=True)'),
        fetched('if rank != 0: dist.barrier()\ndatasets.CIFAR10("data", download=True)\nif rank == 0: dist.barrier()'),
        {},
    ),
    (
        "fetched-by-all",
        fetched('datasets.CIFAR10("data", download=True)'),
        fetched('datasets.CIFAR10("data", download=rank == 0)'),
        {},
    ),
    (
        "part-as-whole",
        EVALUATED.format(sampler=", sampler=sampler", add="pass"),
        EVALUATED.format(sampler=", sampler=sampler", add="dist.all_reduce(correct)"),
        {},
    ),
    (
        "part-as-whole",
        EVALUATED.format(sampler=", sampler=sampler", add="pass"),
        EVALUATED.format(sampler="", add="pass"),  # each process sees all of it
        {},
    ),
    (
        "no-sampler",
        STREAM.format(divide="pass"),
        STREAM.format(divide="first, step = first + dist.get_rank() * step, step * dist.get_world_size()"),
        {},
    ),
    (
        "never-accumulated",
        ACCELERATED.format(steps=4, accumulate="if True:"),
        ACCELERATED.format(steps=4, accumulate="with accelerator.accumulate(net):"),
        {},
    ),
    (
        "never-accumulated",
        ACCELERATED.format(steps=4, accumulate="if True:"),
        ACCELERATED.format(steps=1, accumulate="if True:"),
        {},
    ),
    (
        "spread-over-all",
        'from transformers import AutoModel\nAutoModel.from_pretrained("/m", device_map="auto")\n',
        'from transformers import AutoModel\nAutoModel.from_pretrained("/m", device_map={"": 0})\n',
        {"backend": SLURM},
    ),
    (
        "rank-0-collective",
        LIGHTNING.format(save='if trainer.is_global_zero: trainer.save_checkpoint("/a")'),
        LIGHTNING.format(save='trainer.save_checkpoint("/a")'),
        {},
    ),
    (
        "rank-0-collective",
        TRAINER + "if trainer.is_world_process_zero(): trainer.evaluate()\n",
        TRAINER + "trainer.evaluate()\n",
        {},
    ),
]


@each_mistake(CASES)
def test_a_mistake_is_found_where_it_is(
    check: str, wrong: str, right: str, fields: dict[str, Any], tmp_path: Path
) -> None:
    assert check in found(tmp_path, wrong, **({} if check == "pickled-object" else fields))
    assert check not in found(tmp_path, right, **fields)


def test_a_command_that_passes_the_checkpoints_on(tmp_path: Path) -> None:
    text = "import argparse\np = argparse.ArgumentParser()\np.add_argument('--out')\np.parse_args()\n"
    fields: dict[str, Any] = {"checkpoint_dir": {"uri": "/shared/run", "as": "env"}}
    shell = 'exec python train.py --out "$JOBSUBMIT_CHECKPOINT_DIR"'
    assert "no-checkpoint" not in found(tmp_path, text, command=["bash", "-c", shell], **fields)
    fields["command"] = ["bash", "-c", "exec python train.py"]
    assert "no-checkpoint" in found(tmp_path, text, **fields)
    hints = [one.hint for one in findings(tmp_path, **fields) if one.check == "no-checkpoint"]
    assert hints == ["read the variable, or pass it in the command"]


DECLARED = """\
import argparse
def parse():
    parser = argparse.ArgumentParser()
    parser.add_argument("--checkpoint-dir", default="")
    return parser.parse_args()
"""
USED = """\
import torch, os
from options import parse
args = parse()
torch.save({}, os.path.join(args.checkpoint_dir, "last.pt"))
torch.load(os.path.join(args.checkpoint_dir, "last.pt"))
"""


@pytest.mark.parametrize("started", [{}, {"command": "python train.py"}])
def test_the_checkpoints_are_declared_where_the_start_script_does_not_look(
    started: dict[str, Any], tmp_path: Path
) -> None:
    (tmp_path / "options.py").write_text(DECLARED)
    (tmp_path / "train.py").write_text(USED)
    given = {"uri": "s3://bucket/c", "as": "hyperparameter", "name": "checkpoint-dir"}
    (warning,) = [
        each for each in findings(tmp_path, checkpoint_dir="s3://bucket/c", **started) if "passes" in each.text
    ]
    assert "options.py:4 declares --checkpoint-dir, but nothing passes it" in warning.text
    assert "as: hyperparameter, name: checkpoint-dir" in str(warning.hint)
    assert not [each for each in findings(tmp_path, checkpoint_dir=given, **started) if "passes" in each.text]


def test_models_looked_up_by_name_do_not_hide_the_arguments(tmp_path: Path) -> None:
    text = "import argparse, torch.distributed as dist, torchvision.models as models\n"
    text += "p = argparse.ArgumentParser()\np.add_argument('--url', default='tcp://127.0.0.1:23456')\n"
    text += "p.add_argument('--arch', default='resnet50')\n"
    text += "def main(options):\n    models.__dict__[options.arch]()\n"
    text += "    dist.init_process_group('gloo', init_method=options.url, world_size=2, rank=0)\n"
    text += "main(p.parse_args())\n"
    assert "fixed-master" in found(tmp_path, text, mode="spawn")


def test_a_package_that_the_requirements_do_not_name(tmp_path: Path) -> None:
    (tmp_path / "requirements.txt").write_text("opencv-python-headless\nwandb>=0.15\n")
    text = "import cv2, wandb, torch, yaml\n"
    fields = {"requirements": "requirements.txt", "backend": SLURM}
    assert "packages" not in found(tmp_path, text, **fields)
    assert "packages" in found(tmp_path, text + "import einops\n", **fields)
    assert "packages" not in found(tmp_path, text + "import einops\n", backend=SLURM)
    assert "packages" not in found(tmp_path, "import einops\n", **fields)  # they may be for something else


def test_a_trainer_that_saves_beside_the_code(tmp_path: Path) -> None:
    text = "from transformers import HfArgumentParser, Trainer, TrainingArguments\n"
    text += "(args,) = HfArgumentParser(TrainingArguments).parse_args_into_dataclasses()\n"
    text += "Trainer(args=args).train(resume_from_checkpoint=True)\n"
    assert "no-checkpoint" in found(tmp_path, text, hyperparameters={"output_dir": "out"}, restarts={"max": 1})
    assert "no-checkpoint" not in found(tmp_path, text, hyperparameters={"output_dir": "/x"}, restarts={"max": 1})


def test_a_loop_variable_named_like_the_parser_is_none(tmp_path: Path) -> None:
    text = "import argparse, torch\ndef parse():\n    p = argparse.ArgumentParser()\n    p.add_argument('--lr')\n"
    text += "    return p.parse_args()\nparse()\nnet = torch.nn.Linear(1, 1)\n"
    text += "for p in net.parameters():\n    p.grad.copy_(torch.clone(p))\n"
    assert "argument-unknown" in found(tmp_path, text, hyperparameters={"rate": 1})


def test_a_part_of_torch_that_needs_another_package(tmp_path: Path) -> None:
    for line, is_found in (
        ("from torch.utils.tensorboard import SummaryWriter", True),
        ("import torch.utils.tensorboard as board", True),
        ("from torch.utils import data", False),
    ):
        assert ("packages" in found(tmp_path, f"{line}\n", missing=["tensorboard"])) is is_found
    assert "packages" not in found(tmp_path, "from torch.utils.tensorboard import SummaryWriter\n", missing=["other"])


SCATTERED = f"""{STARTED}
import datetime, deepspeed, pathlib
def new_folder(base):
    now = datetime.datetime.now()
    name = "run.{{}}.{{}}".format(now.minute, now.second)
    return base / name
engine, *_ = deepspeed.initialize(model=nn.Linear(1, 1))
folder = new_folder(pathlib.Path("out"))
"""


@pytest.mark.parametrize(
    ("lines", "is_scattered"),
    [
        ("engine.save_checkpoint(save_dir=folder)", True),
        ("names = [folder]\ndist.broadcast_object_list(names)\nengine.save_checkpoint(names[0])", False),
        ("engine.save_checkpoint('out')", False),
        ("torch.distributed.checkpoint.save({}, checkpoint_id=f'out/{time.strftime(\"%H%M%S\")}')", True),
        ("if rank == 0:\n    torch.save({}, folder / 'x.pt')", False),
        ("torch.distributed.checkpoint.save({}, checkpoint_id='out/' + time.strftime('%Y%m%d'))", False),
        ("torch.distributed.checkpoint.save({}, checkpoint_id=f'{time.time()}', no_dist=True)", False),
        ("info = {'dir': 'out', 'at': time.time()}\nengine.save_checkpoint(save_dir=info['dir'])", False),
    ],
)
def test_parts_of_a_checkpoint_in_folders_of_each_rank(lines: str, is_scattered: bool, tmp_path: Path) -> None:
    assert ("scattered-checkpoint" in found(tmp_path, f"{SCATTERED}{lines}\n", **GPUS)) is is_scattered


# A configuration that an argument names, over the values of the code: yacs, or any other.
CONFIGURED = f"""{STARTED}
import yaml
from datetime import datetime
from yacs.config import CfgNode
config = CfgNode(new_allowed=True)
config.restart = ""
config.output_dir = ""
with open(sys.argv[1]) as stream:
    given = CfgNode(yaml.safe_load(stream))
if not config.output_dir:
    config.output_dir = datetime.now().strftime("%H_%M_%d")
config.merge_from_other_cfg(given)
net = DDP(nn.Linear(4, 4).cuda())
if config.restart:
    net.module.load_state_dict(torch.load(config.restart))
for epoch in range(3):
    net(torch.rand(4, 4).cuda()).mean().backward()
    if rank == 0:
        torch.save(net.module.state_dict(), os.path.join(config.output_dir, str(epoch)))
"""


@pytest.mark.parametrize(
    ("settings", "texts"),
    [
        ({"output_dir": "/shared/out"}, ["only if `config.restart` is given"]),
        ({"output_dir": "/shared/out", "restart": "/shared/out/last"}, []),
        ({"restart": "/shared/out/last"}, ["depends on datetime.now()"]),
    ],
)
def test_a_configuration_that_an_argument_names(settings: dict[str, str], texts: list[str], tmp_path: Path) -> None:
    with_files(tmp_path, {"train.py": CONFIGURED, "run.json": json.dumps(settings)})
    lost = [one for one in findings(tmp_path, **RESTARTED, args=["run.json"]) if one.check == "no-checkpoint"]
    assert len(lost) == len(texts)
    assert all(text in one.text for text, one in zip(texts, lost, strict=True))


CONTINUED = f"""{STARTED}
parser = argparse.ArgumentParser()
parser.add_argument("--ckpt", default=None)
args = parser.parse_args()
net = DDP(nn.Linear(4, 4).cuda())
optimizer = torch.optim.SGD(net.parameters(), 0.1)
def load_checkpoint(path, model, {{more}}):
    state = torch.load(path)
    model.load_state_dict(state["model"])
if args.ckpt is not None:
    load_checkpoint(args.ckpt, net.module, {{more}})
for epoch in range(3):
    net(torch.rand(4, 4).cuda()).mean().backward()
    optimizer.step()
    if rank == 0:
        torch.save({{{{"model": net.module.state_dict()}}}}, f"/shared/{{{{epoch}}}}.pt")
"""


@pytest.mark.parametrize(
    ("more", "given", "is_lost"), [("optimizer", {}, True), ("optimizer", {"ckpt": "/shared/2.pt"}, False)]
)
def test_a_checkpoint_that_only_an_option_names(
    more: str, given: dict[str, str], is_lost: bool, tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text(CONTINUED.format(more=more))
    lost = [one.text for one in findings(tmp_path, **RESTARTED, hyperparameters=given) if one.check == "no-checkpoint"]
    assert ["only if --ckpt is given" in one for one in lost] == [True] * is_lost
