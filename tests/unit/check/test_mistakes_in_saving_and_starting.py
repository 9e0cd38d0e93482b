"""Mistakes in what processes save beside a Trainer, in how they start, and in how they add gradients up."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from checked import GPUS, IMPORTED, RESTARTED, STARTED, each_mistake, findings, found, with_files

TRAINER = """
import fire, os, torch
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments
def train(out: str = "/shared/out"):
    model = AutoModelForCausalLM.from_pretrained("gpt2")
    args = TrainingArguments(output_dir=out, save_steps=100)
    trainer = Trainer(model=model, args=args, train_dataset=[1])
    trainer.train()
    {save}
if __name__ == "__main__":
    fire.Fire(train)
"""
# nanoGPT: each process takes its share of the micro steps.
MICRO_STEPS = f"""{STARTED}
steps = 32
{{before}}
if dist.get_world_size() > 1:
    steps //= dist.get_world_size()
net = DDP(nn.Linear(4, 4).cuda())
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
data = TensorDataset(torch.rand(64, 4))
sampler = DistributedSampler(data)
loader = DataLoader(data, batch_size=4, sampler=sampler)
for epoch in range(3):
    sampler.set_epoch(epoch)
    for micro_step in range(steps):
        net.require_backward_grad_sync = (micro_step == {{last}})
        (net(next(iter(loader))[0].cuda()).mean() / steps).backward()
    optimizer.step()
"""
# NERSC's examples: without a backend, one process is enough.
WORKERS = f"""{IMPORTED}
def init_by_file(backend):
    dist.init_process_group(backend, init_method="file:///shared/sync", rank=int(os.environ["RANK"]))
def init_by_environment(backend):
    dist.init_process_group(backend)
def init_workers(backend=None):
    if backend is None:
        return
    elif "LOCAL_RANK" in os.environ:
        init_by_environment(backend)
    else:
        init_by_file(backend)
parser = argparse.ArgumentParser()
parser.add_argument("-d", "--backend", choices=["nccl", "gloo"])
args = parser.parse_args()
init_workers(args.backend)
net = nn.Linear(4, 4)
if args.backend is not None:
    net = DDP(net)
data = TensorDataset(torch.rand(64, 4))
sampler = DistributedSampler(data) if args.backend is not None else None
for epoch in range(3):
    if sampler is not None:
        sampler.set_epoch(epoch)
    for (x,) in DataLoader(data, sampler=sampler):
        net(x).mean().backward()
"""
CASES: list[tuple[str, str, str, dict[str, Any]]] = [
    (
        "saved-by-all",
        TRAINER.format(save="model.save_pretrained(out)"),
        TRAINER.format(save="trainer.save_model(out)"),
        GPUS,
    ),
    (
        "saved-by-all",
        TRAINER.format(save="model.save_pretrained(out)"),
        TRAINER.format(save="model.save_pretrained(out, is_main_process=trainer.is_world_process_zero())"),
        GPUS,
    ),
    (
        "saved-by-all",
        TRAINER.format(save="model.save_pretrained(out)"),
        TRAINER.format(save="if trainer.is_world_process_zero():\n        model.save_pretrained(out)"),
        GPUS,
    ),
    (
        "saved-by-all",
        TRAINER.format(save="trainer.model.save_pretrained(out)"),
        TRAINER.format(save="model.save_pretrained(f'{out}-{os.environ[\"RANK\"]}')"),
        GPUS,
    ),
    (
        "never-synchronized",
        MICRO_STEPS.format(before='config = {"steps": steps}', last='config["steps"] - 1'),
        MICRO_STEPS.format(before='config = {"steps": steps}', last="steps - 1"),
        GPUS,
    ),
]


@each_mistake(CASES)
def test_each_mistake(check: str, wrong: str, right: str, fields: dict[str, Any], tmp_path: Path) -> None:
    assert check in found(tmp_path, wrong, **fields)
    assert found(tmp_path, right, **fields) == set()


@pytest.mark.parametrize("args", [[], ["-d", "gloo"]])
def test_a_process_group_that_only_another_value_makes(args: list[str], tmp_path: Path) -> None:
    assert found(tmp_path, WORKERS, args=args) == (set() if args else {"no-init"})


# guided-diffusion: the options are those of a mapping that changes, so their values are not all known.
RESUMING = f"""{STARTED}
def defaults():
    return dict(save_dir="/shared/runs", resume_checkpoint="", lr=0.1, method="a")
def add_dict_to_argparser(parser, default_dict):
    for k, v in default_dict.items():
        parser.add_argument(f"--{{k}}", default=v, type=type(v))
def create_argparser():
    options = defaults()
    known = argparse.ArgumentParser()
    add_dict_to_argparser(known, options)
    if known.parse_args().method == "b":
        options.update(dict(width=3))
    parser = argparse.ArgumentParser()
    add_dict_to_argparser(parser, options)
    return parser
class Loop:
    def __init__(self, resume_checkpoint, save_dir):
        self.net = nn.Linear(4, 4).cuda()
        self.resume_checkpoint = resume_checkpoint
        if self.resume_checkpoint:
            self.net.load_state_dict(torch.load(os.path.join(save_dir, self.resume_checkpoint), map_location="cpu"))
        self.wrapped = DDP(self.net)
    def run(self):
        self.wrapped(torch.rand(4, 4).cuda()).mean().backward()
        if rank == 0:
            torch.save(self.net.state_dict(), "/shared/runs/last.pt")
args = create_argparser().parse_args()
Loop(args.resume_checkpoint, args.save_dir).run()
"""


@pytest.mark.parametrize("given", [{}, {"resume_checkpoint": "last.pt"}])
def test_a_checkpoint_that_is_loaded_only_if_a_computed_option_names_it(given: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(RESUMING)
    said = [one for one in findings(tmp_path, **RESTARTED, hyperparameters=given) if one.check == "no-checkpoint"]
    assert ["--resume_checkpoint" in one.text for one in said] == ([] if given else [True])


STREAM = """
import torch
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments
class StreamDataset(torch.utils.data.IterableDataset):
    def __init__(self, path, rank=0, world_size=1):
        self.path, self.rank, self.world_size = path, rank, world_size
    def __iter__(self):
        with open(self.path) as lines:
            for number, line in enumerate(lines):
                if number % self.world_size == self.rank:
                    yield {"input_ids": [len(line)]}
train_dataset = StreamDataset("/shared/data.txt")
model = AutoModelForCausalLM.from_pretrained("gpt2")
Trainer(model=model, args=TrainingArguments(output_dir="/shared/out"), train_dataset=train_dataset).train()
"""


def test_a_trainer_divides_a_stream_itself(tmp_path: Path) -> None:
    assert found(tmp_path, STREAM, **GPUS) == set()


def test_a_module_that_adds_the_root_when_it_is_imported(tmp_path: Path) -> None:
    files = {".project-root": "", "src/__init__.py": "", "src/net.py": "class Net:\n    pass\n"}
    with_files(tmp_path, {**files, "src/train.py": "import autorootcwd\nfrom src.net import Net\nNet()\n"})
    assert [one for one in findings(tmp_path, {"src"}, boot_file="src/train.py") if one.level == "error"] == []


LIGHTNING_CLI = """
from lightning.pytorch.cli import LightningCLI
if __name__ == "__main__":
    LightningCLI()
"""


@pytest.mark.parametrize(("args", "is_wrong"), [(["fit"], True), (["fit", "--ckpt_path=last"], False)])
def test_a_checkpoint_that_an_argument_names_to_a_framework(args: list[str], is_wrong: bool, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(LIGHTNING_CLI)
    said = [one for one in findings(tmp_path, **RESTARTED, args=args) if "no code loads" in one.text]
    assert bool(said) is is_wrong


LIGHTNING = """
import lightning as L, torch
from lightning.pytorch.callbacks import ModelCheckpoint
class Net(L.LightningModule):
    def training_step(self, batch):
        return self.layer(batch).mean()
trainer = L.Trainer(num_nodes=2, devices=2, strategy="ddp", {trainer})
trainer.fit(Net(), torch.utils.data.DataLoader([torch.rand(4)]), ckpt_path={path})
"""
NEW_FOLDER = "Lightning looks for the last checkpoint"


@pytest.mark.parametrize(
    ("trainer", "path", "is_wrong"),
    [
        ("callbacks=[ModelCheckpoint(save_last=True)]", "'last'", True),
        ("max_epochs=3", "'last'", True),
        ("callbacks=[ModelCheckpoint('/shared/run', save_last=True)]", "'last'", False),
        ("logger=L.pytorch.loggers.WandbLogger(id='run')", "'last'", False),
        ("logger=False", "'last'", False),
        ("callbacks=[ModelCheckpoint(save_last=True)]", "'/shared/run/last.ckpt'", False),
    ],
)
def test_lightning_looks_for_its_last_checkpoint(trainer: str, path: str, is_wrong: bool, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(LIGHTNING.format(trainer=trainer, path=path))
    assert any(NEW_FOLDER in one.text for one in findings(tmp_path, **RESTARTED)) is is_wrong


CALLBACK = """
trainer:
  callbacks:
    - class_path: lightning.pytorch.callbacks.ModelCheckpoint
      init_args: {{save_last: true}}
{more}
"""


@pytest.mark.parametrize(
    ("more", "args", "is_wrong"),
    [
        ("", ["--ckpt_path=last"], True),
        ("", ["--ckpt_path", "last"], True),
        ("", ["--ckpt_path=last", "--trainer.logger=false"], False),
        ("  logger: false", ["--ckpt_path=last"], False),
        ("      dirpath: /shared/run", ["--ckpt_path=last"], False),
    ],
)
def test_a_command_line_of_lightning_looks_for_its_last_checkpoint(
    more: str, args: list[str], is_wrong: bool, tmp_path: Path
) -> None:
    with_files(tmp_path, {"train.py": LIGHTNING_CLI, "train.yaml": CALLBACK.format(more=more)})
    said = findings(tmp_path, **RESTARTED, args=["fit", "-c", "train.yaml", *args])
    assert any(NEW_FOLDER in one.text for one in said) is is_wrong


PIPES = f"""{STARTED}
from torch.utils.data import IterDataPipe, functional_datapipe
from torch.utils.data.datapipes.iter.sharding import ShardingFilterIterDataPipe
@functional_datapipe("part")
class Part(ShardingFilterIterDataPipe):
    def __init__(self, source, partition=False):
        super().__init__(source)
        self.partition = partition
    def apply_sharding(self, number, index, group):
        if self.partition:
            super().apply_sharding(number, index, group)
        else:
            self.num_of_instances, self.instance_id = 1, 0
@functional_datapipe("lines")
class Lines(IterDataPipe):
    def __init__(self, source):
        self.source = source
    def __iter__(self):
        for path in self.source:
            yield from open(path)
data = IterableWrapper(["/shared/a.txt"]){{part}}.lines()
net = DDP(nn.Linear(4, 4).cuda())
for x in DataLoader(data):
    net(torch.rand(4, 4).cuda()).mean().backward()
"""


@pytest.mark.parametrize(
    ("part", "is_wrong"), [(".part()", True), (".part(True)", False), (".part(partition=True)", False)]
)
def test_a_pipe_that_is_not_asked_to_divide_its_data(part: str, is_wrong: bool, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(PIPES.format(part=part))
    assert any("does not get partition" in one.text for one in findings(tmp_path, **GPUS)) is is_wrong


# HiFi-GAN: one process trains in place, several are started.
SPAWNING = f"""{IMPORTED}
def train(index, parts):
    if parts > 1:
        rank = int(os.environ["NODE_RANK"]) * parts + index
        size = int(os.environ["NNODES"]) * parts
        dist.init_process_group("gloo", init_method="tcp://master:29500", world_size=size, rank=rank)
    net = DDP(nn.Linear(4, 4)) if parts > 1 else nn.Linear(4, 4)
    net(torch.rand(4, 4)).mean().backward()
if __name__ == "__main__":
    parts = {{parts}}
    if parts > 1:
        mp.spawn(train, nprocs=parts, args=(parts,))
    else:
        train(0, parts)
"""


def test_a_function_that_is_started_elsewhere_makes_the_group(tmp_path: Path) -> None:
    assert "no-init" not in found(tmp_path, SPAWNING.format(parts=2), mode="spawn")
    work, _, start = SPAWNING.format(parts=2).partition('if __name__ == "__main__":')
    (tmp_path / "work.py").write_text(work)
    start = start.replace("train(0", "work.train(0").replace("spawn(train", "spawn(work.train")
    boot = f'import torch.multiprocessing as mp\nimport work\nif __name__ == "__main__":{start}'
    assert "no-init" not in found(tmp_path, boot, mode="spawn")


UNUSED = """
import torch
class Filters(torch.nn.Module):
    def forward(self, x):
        return x + torch.zeros(4).cuda()
class Bank(torch.nn.Module):
    def __init__(self):
        super(Bank, self).__init__()
        self.filters = Filters()
    def forward(self, x):
        return self.filters(x)
"""
USING = """
import torch, torch.distributed as dist, sys
import nets
from nets import Bank
dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel({made})
for name in sys.path:
    getattr(model, "forward" if name else "eval")
model(torch.rand(4)).sum().backward()
"""


@pytest.mark.parametrize(("made", "is_wrong"), [("torch.nn.Linear(4, 4)", False), ("Bank()", True)])
def test_what_a_class_does_that_is_only_imported(made: str, is_wrong: bool, tmp_path: Path) -> None:
    with_files(tmp_path, {"nets.py": UNUSED, "train.py": USING.format(made=made)})
    assert any("needs a GPU" in one.text for one in findings(tmp_path)) is is_wrong


OF_PACKAGE = """
export PYTHONPATH="src${PYTHONPATH:+:$PYTHONPATH}"
torchrun --nnodes="$NNODES" --node-rank="$NODE_RANK" --nproc-per-node=2 --master-addr="$MASTER_ADDR" \\
    --master-port="$MASTER_PORT" -m app.train --config small.json
"""


def test_a_module_in_a_folder_of_the_python_path_is_checked(tmp_path: Path) -> None:
    files = {"src/app/__init__.py": "", "src/app/net.py": "width = 3\n", "run.sh": OF_PACKAGE}
    with_files(tmp_path, {**files, "src/app/train.py": f"{IMPORTED}from .net import width, depth\nrank = 0\n"})
    said = [(one.level, one.where) for one in findings(tmp_path, command=["bash", "run.sh"]) if "depth" in one.text]
    assert said == [("error", "src/app/train.py:7")]


def test_a_module_that_is_not_in_the_code_is_not_checked_and_that_is_said(tmp_path: Path) -> None:
    with_files(tmp_path, {"run.sh": OF_PACKAGE, "train.py": ""})
    (one,) = [one for one in findings(tmp_path, command=["bash", "run.sh"]) if one.check == "command"]
    assert (one.level, "app.train is not in the code directory" in one.text) == ("unknown", True)


# timm: what is saved by the first process of each node.
SAVING = f"""{STARTED}
from timm.utils import CheckpointSaver
parser = argparse.ArgumentParser()
parser.add_argument("--local_rank", default=0, type=int)
parser.add_argument("--output", default="")
args = parser.parse_args()
net = DDP(nn.Linear(4, 4).cuda())
net(torch.rand(4, 4).cuda()).mean().backward()
rank = dist.get_rank()
if {{first}} == 0:
    {{save}}
"""


@pytest.mark.parametrize(
    "save",
    [
        "open(os.path.join(args.output, 'args.yaml'), 'w').write('x')",
        "saver = CheckpointSaver(model=net, checkpoint_dir=args.output)",
    ],
)
def test_the_first_process_of_each_node_writes_the_same_file(save: str, tmp_path: Path) -> None:
    job: dict[str, Any] = {**GPUS, "mode": "launch", "local_rank": "argument", "torch_version": "1.12"}
    job["hyperparameters"] = {"output": "/shared/out"}
    assert "saved-by-all" in found(tmp_path, SAVING.format(first="args.local_rank", save=save), **job)
    assert "saved-by-all" not in found(tmp_path, SAVING.format(first="rank", save=save), **job)


LEAVING = f"""{IMPORTED}
def init_distributed_mode(args):
    if not args.distributed:
        print("Not using distributed mode")
        return
    args.rank = int(os.environ["RANK"])
    dist.init_process_group("gloo")
parser = argparse.ArgumentParser()
parser.add_argument("--distributed", action="store_true")
args = parser.parse_args()
init_distributed_mode(args)
net = nn.Linear(4, 4)
if args.distributed:
    net = DDP(net)
for epoch in range(3):
    net(torch.rand(4, 4)).mean().backward()
"""


@pytest.mark.parametrize("args", [[], ["--distributed"]])
def test_a_function_that_is_left_before_it_makes_the_group(args: list[str], tmp_path: Path) -> None:
    assert ("no-init" in found(tmp_path, LEAVING, args=args)) is not bool(args)


UNDIVIDED = """
import pytorch_lightning as pl, torch
class Net(pl.LightningModule):
    def training_step(self, batch, index):
        return self.layer(batch).mean()
trainer = pl.Trainer(num_nodes=2, devices=2, strategy="ddp", use_distributed_sampler={divides})
loader = torch.utils.data.DataLoader(torch.rand(64, 4), shuffle={shuffle})
trainer.fit(Net(), loader)
"""
OWN_SAMPLER = "False, sampler=torch.utils.data.distributed.DistributedSampler(torch.rand(64, 4))"


@pytest.mark.parametrize(
    ("divides", "shuffle", "is_wrong"),
    [("False", "True", True), ("True", "True", False), ("False", OWN_SAMPLER, False)],
)
def test_lightning_is_told_not_to_divide_the_data(divides: str, shuffle: str, is_wrong: bool, tmp_path: Path) -> None:
    seen = found(tmp_path, UNDIVIDED.format(divides=divides, shuffle=shuffle), **GPUS)
    assert ("no-sampler" in seen) is is_wrong


PLOTTED = f"""{IMPORTED}
import einops
def plot(values):
    import matplotlib.pyplot as plt
    plt.plot(values)
def maybe(values):
    try:
        import seaborn
    except ImportError:
        return
for step in range(3):
    if step % 2 == 0:
        plot([step])
        maybe([step])
"""


def test_a_module_that_only_a_function_imports_is_not_in_the_requirements(tmp_path: Path) -> None:
    with_files(tmp_path, {"train.py": PLOTTED, "requirements.txt": "einops\nnumpy\n"})
    volcano = {"kind": "volcano", "image": "pytorch/pytorch:2.6.0-cuda12.4-cudnn9-runtime"}
    said = findings(tmp_path, backend=volcano, requirements="requirements.txt")
    assert [one.text.rpartition(" ")[2] for one in said if one.check == "packages"] == ["matplotlib"]


RESULTS = f"""{STARTED}
net = DDP(nn.Linear(4, 4).cuda())
net(torch.rand(4, 4).cuda()).mean().backward()
with open("/shared/{{name}}", "a") as stream:
    stream.write("0.5\\n")
"""


@pytest.mark.parametrize(("name", "is_wrong"), [("results.json", True), ("train.log", False)])
def test_a_file_of_results_that_all_processes_add_to(name: str, is_wrong: bool, tmp_path: Path) -> None:
    assert ("saved-by-all" in found(tmp_path, RESULTS.format(name=name), **GPUS)) is is_wrong


@pytest.mark.parametrize(("option", "is_wrong"), [("--data_dir", True), ("--output_dir", False)])
def test_data_that_an_argument_names_outside_the_code(option: str, is_wrong: bool, tmp_path: Path) -> None:
    declared = f'import argparse\nparser = argparse.ArgumentParser()\nparser.add_argument("{option}")\n'
    (tmp_path / "train.py").write_text(f"{declared}print(parser.parse_args())\n")
    for args in ([f"{option}=../../nowhere/train"], [option, "../../nowhere/train"]):
        assert any("outside the code directory" in one.text for one in findings(tmp_path, args=args)) is is_wrong
