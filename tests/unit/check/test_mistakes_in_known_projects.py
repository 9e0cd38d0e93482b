"""Mistakes in code that is made from templates and well-known projects, and what only looks like one there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from checked import GPUS, SLURM, STARTED, each_mistake, findings, found, with_files

# The shape of a template that many projects begin with: a class reads the options that the boot file lists.
OPTIONS_IN_TUPLES = {
    "config.json": "{}",
    "parse_config.py": """
import json, os
class ConfigParser:
    def __init__(self, config, changes=None):
        self.config = config
    @classmethod
    def from_args(cls, args, options=""):
        for opt in options:
            args.add_argument(*opt.flags, default=None, type=opt.type)
        if not isinstance(args, tuple):
            args = args.parse_args()
        if args.device is not None:
            os.environ["CUDA_VISIBLE_DEVICES"] = args.device
        with open(args.config) as file:
            config = json.load(file)
        return cls(config, {opt.target: getattr(args, opt.flags[0][2:]) for opt in options})
    def init_obj(self, name, module, *args, **kwargs):
        return getattr(module, self.config[name]["type"])(*args, **kwargs)
""",
    "train.py": """
import argparse, collections, importlib
import torch.distributed as dist
from parse_config import ConfigParser
def main(config):
    dist.init_process_group("gloo")
    importlib.import_module("model")
    dist.destroy_process_group()
if __name__ == "__main__":
    args = argparse.ArgumentParser()
    args.add_argument("-c", "--config", default=None, type=str)
    args.add_argument("-d", "--device", default=None, type=str)
    CustomArgs = collections.namedtuple("CustomArgs", "flags type target")
    options = [
        CustomArgs(["--lr", "--learning_rate"], type=float, target="optimizer;args;lr"),
        CustomArgs(["--bs", "--batch_size"], type=int, target="data_loader;args;batch_size"),
    ]
    main(ConfigParser.from_args(args, options))
""",
    "model.py": "",
}


def test_options_in_a_list_of_named_tuples(tmp_path: Path) -> None:
    with_files(tmp_path, OPTIONS_IN_TUPLES)
    given = {"config": "config.json", "learning_rate": "fast", "batchsize": 4}
    refused = [one.text for one in findings(tmp_path, hyperparameters=given) if one.level in ("error", "unknown")]
    assert len(refused) == 2
    assert "invalid float value" in refused[0]
    assert "--batchsize" in refused[1]
    given = {"config": "config.json", "learning_rate": 0.1, "bs": 4}
    assert not [one for one in findings(tmp_path, hyperparameters=given) if one.level in ("error", "unknown")]


OF_TORCH_2: dict[str, Any] = {"torch_version": "2.4"}
IN_FOLDER = {
    "run.sh": "cd pretrain\ntorchrun --nnodes $NNODES --node_rank $NODE_RANK --nproc_per_node $NPROC_PER_NODE "
    "--master_addr $MASTER_ADDR --master_port $MASTER_PORT main.py\n",
    "pretrain/config.yaml": "gpus: '0,1'\n",
    "pretrain/data/words.txt": "a",
    "pretrain/.gitignore": "data/\n",
    "pretrain/main.py": """
import os, yaml, torch, torch.distributed as dist
config = yaml.load(open("config.yaml"), Loader=yaml.FullLoader)
os.environ["CUDA_VISIBLE_DEVICES"] = config["gpus"]
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
dist.init_process_group("nccl")
words = open("data/words.txt").read()
""",
}


def test_files_are_looked_for_in_the_folder_that_a_command_goes_to(tmp_path: Path) -> None:
    with_files(tmp_path, IN_FOLDER)
    fields = {"command": ["bash", "run.sh"], "backend": {**SLURM, "gpus_per_node": 4}}
    seen = {one.check: one.text for one in findings(tmp_path, **fields, resources={"nodes": 2, "nproc_per_node": 4})}
    assert "see only 2 of its GPUs" in seen["hidden-gpus"]
    assert "pretrain/data/words.txt" in seen["left-out"]


def test_a_folder_of_the_program_that_a_variable_adds_to_the_path(tmp_path: Path) -> None:
    train = """
import sys
from pathlib import Path
ROOT = Path(__file__).resolve().parent
SOURCES = ROOT / "src"
sys.path.insert(0, str(SOURCES))
from steps import train
train()
"""
    steps = "def train():\n    input('really?')\n"
    with_files(tmp_path, {"train.py": train, "src/steps.py": steps})
    assert "no-terminal" in {one.check for one in findings(tmp_path)}


STREAM = """
import deepspeed, json, torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info
class Lines(IterableDataset):
    def __iter__(self):
        worker = get_worker_info()
        number, count = (0, 1) if worker is None else (worker.id, worker.num_workers)
        for index, line in enumerate(open("/shared/lines")):
            if index % count == number PART:
                yield json.loads(line)
engine, *_ = deepspeed.initialize(model=torch.nn.Linear(4, 1), config="/shared/ds.json"MORE)
for epoch in range(3):
    for batch in DataLoader(Lines(), batch_size=None, num_workers=4):
        engine.backward(engine(batch).sum())
        engine.step()
"""
WHOLE = STREAM.replace(" PART", "").replace("MORE", "")
DIVIDED = STREAM.replace(" PART", " and index % torch.distributed.get_world_size() == torch.distributed.get_rank()")
LOADED = STREAM.replace(" PART", "").replace("MORE", ", training_data=Lines()")
DERIVED = """
from accelerate import Accelerator
from transformers import AutoConfig, AutoModel, BertPreTrainedModel
from torch.utils.data import DataLoader
import torch, sys
class Tagger(BertPreTrainedModel):
    def __init__(self, config):
        super().__init__(config)
        self.crf = torch.nn.Linear(4, 1)
accelerator = Accelerator()
if 1 < 2:
    model = Tagger.from_pretrained("/shared/bert")
else:
    model = AutoModel.from_config(AutoConfig())
loader = DataLoader(range(8))
model, loader = accelerator.prepare(model, loader)
for batch in loader:
    accelerator.backward(model(batch).sum())
print(ASKED.crf)
"""
RESUMED = """
from accelerate import Accelerator
from torch.utils.data import DataLoader
import glob, torch
resume = len(glob.glob("/shared/checkpoint-*")) > 0
accelerator = Accelerator()
model, loader = torch.nn.Linear(1, 1), DataLoader(range(8))
optimizer = torch.optim.SGD(model.parameters())
model, optimizerPREPARED = accelerator.prepare(model, optimizerPREPARED)
if resume:
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
for batch in loader:
    accelerator.backward(model(batch).sum())
    optimizer.step()
"""


@each_mistake(
    [
        ("no-sampler", WHOLE, DIVIDED.replace("MORE", ""), GPUS),
        ("no-sampler", WHOLE, LOADED, GPUS),
        (
            "wrapped-attribute",
            DERIVED.replace("ASKED", "model"),
            DERIVED.replace("ASKED", "accelerator.unwrap_model(model)"),
            GPUS,
        ),
        ("no-sampler", RESUMED.replace("PREPARED", ""), RESUMED.replace("PREPARED", ", loader"), GPUS),
    ]
)
def test_mistakes(check: str, wrong: str, right: str, fields: dict[str, Any], tmp_path: Path) -> None:
    assert check in found(tmp_path, wrong, **fields)
    assert check not in found(tmp_path, right, **fields)


ON_CPUS = """
import math, sys, torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
dist.init_process_group("gloo")
model = DDP(torch.nn.Linear(4, 1))
DEVICE
for i in range(4):
    loss = model(torch.randn(2, 4)).mean()
    if not math.isfinite(loss.item()):
        LEAVE
    loss.backward()
    USE
dist.destroy_process_group()
"""
AT_EXIT = ON_CPUS.replace("LEAVE", "sys.exit(1)").replace("DEVICE", "")
SPAWNED = """
import argparse, os
import torch, torch.distributed as dist, torch.multiprocessing as mp
args = argparse.ArgumentParser().parse_args()
def worker(gpu, args):
    NUMBER
    dist.init_process_group("gloo", init_method="env://", world_size=args.world_size, rank=rank)
    dist.all_reduce(torch.ones(1))
    dist.destroy_process_group()
def main():
    args.rank = int(os.environ["NODE_RANK"]) * 2 ZERO
    args.world_size = int(os.environ["NNODES"]) * 2
    mp.spawn(worker, (args,), 2)
if __name__ == "__main__":
    main()
"""
SUMMED = SPAWNED.replace("NUMBER", "rank = args.rank + gpu")
STARTED_PLAINLY: dict[str, Any] = {
    "command": ["python", "train.py"],
    "resources": {"nodes": 2, "nproc_per_node": 1},
}


@each_mistake(
    [
        (
            "cuda-on-cpu",
            AT_EXIT.replace("USE", "print(torch.zeros(1, device='cuda'))"),
            AT_EXIT.replace("USE", "print(torch.zeros(1, device='cpu'))"),
            {},
        ),
        (
            "cuda-on-cpu",
            AT_EXIT.replace("USE", "torch.cuda.synchronize()"),
            AT_EXIT.replace("sys.exit(1)", "sys.exit()").replace("USE", "torch.cuda.synchronize()"),
            {},
        ),
        ("same-ranks", SUMMED.replace(" ZERO", " * 0"), SUMMED.replace(" ZERO", ""), STARTED_PLAINLY),
        ("library-version", "import torch\nprint(torch.stft(torch.ones(9), 4))\n", "import torch\n", OF_TORCH_2),
        (
            "library-version",
            "import torch\nprint(torch.stft(torch.ones(9), 4))\n",
            "import torch\nprint(torch.stft(torch.ones(9), 4, return_complex=True))\n",
            OF_TORCH_2,
        ),
    ]
)
def test_what_newcomers_met(check: str, wrong: str, right: str, fields: dict[str, Any], tmp_path: Path) -> None:
    assert check in found(tmp_path, wrong, **fields)
    assert check not in found(tmp_path, right, **fields)


def test_a_gpu_is_reported_where_its_device_is_chosen(tmp_path: Path) -> None:
    made = ON_CPUS.replace("DEVICE", "device = torch.device('cuda:{:d}'.format(0))").replace("LEAVE", "break")
    (tmp_path / "train.py").write_text(made.replace("USE", "loss.to(device)\n    (\n        model\n        .cuda())"))
    [one] = [one for one in findings(tmp_path) if one.check == "cuda-on-cpu"]
    assert one.where == "train.py:6"
    assert "train.py:15 .cuda()" in one.text


COUNTED = """
import time
import lightning as L
from lightning.pytorch.callbacks import Callback
class Timer(Callback):
    def __init__(self):
        self.total, self.count = 0, 0
    def on_train_epoch_end(self, trainer, module):
        self.total += time.time()
        self.count += 1
    def average(self):
        return self.total / self.count
timer = Timer()
trainer = L.Trainer(num_nodes=2, devices=2, accelerator="gpu", callbacks=[timer])
trainer.fit(L.LightningModule())
print(timer.average())
"""
SCALED = f"""{STARTED}
from torch.cuda.amp import GradScaler
scaler = GradScaler()
model = DDP(nn.Linear(4, 1).cuda())
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x in DataLoader(TensorDataset(torch.ones(8, 4)), sampler=DistributedSampler(range(8))):
    loss = model(x[0].cuda()).sum()
    if scaler:
        scaler.scale(loss).backward()
    else:
        loss.backward()
    if scaler:
        scaler.unscale_(optimizer)
        scaler.step(optimizer)
    else:
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
"""
LOADERS_IN_CLASSES = f"""{STARTED}
class TrainLoader:
    def get(self):
        data = TensorDataset(torch.ones(8, 4))
        return DataLoader(data, sampler=DistributedSampler(data))
class EvalLoader:
    def get(self):
        return DataLoader(TensorDataset(torch.ones(8, 4)))
model = DDP(nn.Linear(4, 1).cuda())
for epoch in range(3):
    for x in TrainLoader().get():
        model(x[0].cuda()).sum().backward()
    for x in EvalLoader().get():
        print(model(x[0].cuda()))
"""
RESTORED = f"""{STARTED}
class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4))
    def forward(self, x):
        return x * self.weight
    def half(self):
        self.weight.requires_grad = False
    def to(self, device):
        kept = self.weight.requires_grad
        self.weight = self.weight.to(device)
        self.weight.requires_grad = kept
        return self
layer = Layer()
layer.half()
model = DDP(nn.Sequential(nn.Linear(4, 4), layer).cuda())
total = None
for x in DataLoader(TensorDataset(torch.ones(8, 4)), sampler=DistributedSampler(range(8))):
    if total is None:
        total = torch.zeros(1).to("cuda")
    model(x[0].cuda()).sum().backward()
"""
PAST_WRAPPER = f"""{STARTED}
def synchronize(model):
    for parameter in model.module.parameters():
        dist.all_reduce(parameter.grad)
        parameter.grad /= dist.get_world_size()
def step(inner, x):
    inner(x).sum().backward()
def train(model):
    inner = model.module
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x in DataLoader(TensorDataset(torch.ones(8, 4)), sampler=DistributedSampler(range(8))):
        step(inner, x[0].cuda())
        synchronize(model)
        optimizer.step()
train(DDP(nn.Linear(4, 1).cuda()))
"""
COPIED = f"""{STARTED}
import shutil
def copy_log_up_to_epoch(folder, epoch):
    with open(os.path.join(folder, "log.jsonl"), "w") as file:
        file.write(str(epoch))
log_dir = "/scratch/run"
if rank == 0:
    copy_log_up_to_epoch(log_dir, 3)
    shutil.copy("config.yaml", os.path.join(log_dir, "config.yaml"))
print(open(os.path.join(log_dir, "data.txt")).read())
"""
PASSED_ON = f"""{STARTED}
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 1)
    def forward(self, x):
        return self.layer(x)
    def infer(self, x):
        return self(x)
class Trainer:
    def __init__(self):
        self.inner = Net().cuda()
        self.model = DDP(self.inner)
    def infer(self, x):
        return self.model.infer(x)
    def train(self):
        self.model(torch.ones(4).cuda()).sum().backward()
        evaluate(self.inner)
def evaluate(model):
    print(model.infer(torch.ones(4).cuda()))
Trainer().train()
"""


@pytest.mark.parametrize(
    ("check", "text"),
    [
        ("unfulfilled", COUNTED),
        ("clipped-scaled", SCALED),
        ("no-sampler", LOADERS_IN_CLASSES),
        ("thawed-later", RESTORED),
        ("double-averaging", PAST_WRAPPER),
        ("bypassed", PAST_WRAPPER),
        ("staged-by-one", COPIED),
        ("staged-by-one", COPIED.replace("log_dir", "root")),
        ("wrapped-attribute", PASSED_ON),
    ],
)
def test_what_only_looks_like_a_mistake(check: str, text: str, tmp_path: Path) -> None:
    assert check not in found(tmp_path, text, **GPUS)


OPTIONAL = """
import argparse
parser = argparse.ArgumentParser()
parser.add_argument("--config", default="")
args = parser.parse_args()
"""


def test_a_file_that_an_option_names_by_its_empty_default(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text("{}")
    opened = f"{OPTIONAL}with open(args.config) as file:\n    print(file.read())\n"
    assert "not-there" in found(tmp_path, opened)
    assert "not-there" not in found(tmp_path, opened, hyperparameters={"config": "a.json"})
    assert "not-there" not in found(tmp_path, f"{OPTIONAL}if args.config:\n    print(open(args.config).read())\n")


COUNTED_AGAIN = """
import argparse, math, torch
from accelerate import Accelerator
from torch.utils.data import DataLoader
from transformers import get_scheduler
args = argparse.Namespace(epochs=3, steps=None)
accelerator = Accelerator()
model, loader = torch.nn.Linear(1, 1), DataLoader(range(8))
optimizer = torch.optim.SGD(model.parameters())
FIRST
args.steps = args.epochs * len(loader)
scheduler = get_scheduler("linear", optimizer, num_warmup_steps=0, num_training_steps=args.steps)
model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)
args.steps = args.epochs * len(loader)
for batch in loader:
    accelerator.backward(model(batch).sum())
    optimizer.step()
    scheduler.step()
"""


def test_steps_that_are_counted_again_after_the_schedule_is_made(tmp_path: Path) -> None:
    assert "schedule-length" not in found(tmp_path, COUNTED_AGAIN.replace("FIRST", ""), **GPUS)
    first = COUNTED_AGAIN.replace("FIRST", "loader = accelerator.prepare(loader)")
    assert "schedule-length" in found(tmp_path, first.replace("loader, scheduler", "scheduler"), **GPUS)


BUILT_LOADER = f"""{STARTED}
from torch.optim.lr_scheduler import LambdaLR
config = {{"loader": {{"batch_size": 4}}, "epochs": 3}}
def build_loader(config):
    data = TensorDataset(torch.ones(800, 4))
    return DataLoader(data, sampler=DistributedSampler(data), **config["loader"])
class WarmupPolyLR(LambdaLR):
    def __init__(self, optimizer, max_iters):
        super().__init__(optimizer, lambda step: 1 - step / max_iters)
loader = build_loader(config)
model = DDP(nn.Linear(4, 1).cuda())
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
steps = LENGTH
scheduler = WarmupPolyLR(optimizer, max_iters=config["epochs"] * steps)
for epoch in range(config["epochs"]):
    loader.sampler.set_epoch(epoch)
    for (x,) in loader:
        model(x.cuda()).sum().backward()
        optimizer.step()
        scheduler.step()
"""


def test_a_schedule_for_the_data_of_a_loader_that_a_function_builds(tmp_path: Path) -> None:
    whole = BUILT_LOADER.replace("LENGTH", 'len(loader.dataset) // config["loader"]["batch_size"]')
    assert "schedule-length" in found(tmp_path, whole, **GPUS)
    assert "schedule-length" not in found(tmp_path, BUILT_LOADER.replace("LENGTH", "len(loader)"), **GPUS)
    own = whole.replace('config = {"loader"', 'size = int(8 / 2)\nconfig = {"loader"')
    assert "schedule-length" in found(tmp_path, own, **GPUS)
    divided = whole.replace("return DataLoader(", 'size = config["loader"]["batch_size"] // 4\n    return DataLoader(')
    assert "schedule-length" not in found(tmp_path, divided, **GPUS)


PARTITIONED = f"""{STARTED}
from monai.data import CacheDataset, Dataset, ThreadDataLoader, partition_dataset
class Trainer:
    def __init__(self):
        files = [{{"image": name}} for name in json.load(open("/shared/files.json"))]
        self.loader = ThreadDataLoader(Dataset(data=(PART)[:100]), batch_size=4)
        self.model = DDP(nn.Linear(4, 1).cuda())
        self.best, self.bad = 9, 0
    def train(self):
        for epoch in range(3):
            for x in self.loader:
                self.model(x.cuda()).sum().backward()
            loss = self.validate()
            if loss < self.best:
                self.best, self.bad = loss, 0
            else:
                self.bad += 1
            if self.bad >= 2:
                break
    def validate(self):
        total = 0
        for step, x in enumerate(self.loader):
            total += self.model.module(x.cuda()).sum().item()
        return total / (step + 1)
Trainer().train()
"""


def test_parts_of_the_data_that_monai_makes(tmp_path: Path) -> None:
    parts = "partition_dataset(data=files, num_partitions=dist.get_world_size())[rank]"
    assert "left-by-one" in found(tmp_path, PARTITIONED.replace("PART", parts), **GPUS)
    assert "left-by-one" not in found(tmp_path, PARTITIONED.replace("PART", "files"), **GPUS)


UNBOUND = f"""{STARTED}
parser = argparse.ArgumentParser()
parser.add_argument("--log", action="store_true")
def main(args):
    if args.log:
        has_log = True
    OTHERWISE
    for epoch in range(3):
        print(epoch)
    if rank == 0 and has_log:
        print("done")
main(parser.parse_args())
"""


def test_a_variable_that_only_another_job_sets(tmp_path: Path) -> None:
    text = UNBOUND.replace("    OTHERWISE\n", "")
    assert "unset" in found(tmp_path, text, **GPUS)
    assert "unset" not in found(tmp_path, text, **GPUS, hyperparameters={"log": {"flag": True}})
    assert "unset" not in found(tmp_path, text.replace("rank == 0 and", "args.log and"), **GPUS)
    assert "unset" not in found(tmp_path, UNBOUND.replace("OTHERWISE", "has_log = False or args.log"), **GPUS)
    caught = text.replace(
        "    if rank == 0 and has_log:\n        print",
        "    try:\n        print(has_log)\n    except NameError:\n        print",
    )
    assert "unset" not in found(tmp_path, caught, **GPUS)


BEGUN = f"""{STARTED}
local_rank = int(os.environ["LOCAL_RANK"])
class Tokens:
    def __init__(self, path, world_size, number):
        self.tokens, self.number = np.memmap(path), number
        length = len(self.tokens) // world_size
        self.start = NUMBER * length
    def __iter__(self):
        yield from self.tokens[self.start:]
model = DDP(nn.Linear(4, 1).cuda())
for x in Tokens("/shared/tokens.bin", dist.get_world_size(), rank):
    model(x).sum().backward()
"""


def test_parts_of_all_processes_that_begin_within_a_node(tmp_path: Path) -> None:
    assert "part-of-node" in found(tmp_path, BEGUN.replace("NUMBER", "local_rank"), **GPUS)
    assert "part-of-node" not in found(tmp_path, BEGUN.replace("NUMBER", "self.number"), **GPUS)


STATES = f"""{STARTED}
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict
class AppState:
    def __init__(self, model, optimizer):
        self.model, self.optimizer = model, optimizer
    def state_dict(self):
        return get_state_dict(self.model, self.optimizer)
def save(model, path):
    torch.save(model.state_dict(), path)
model = DDP(nn.Linear(4, 1).cuda())
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
state = AppState(model, optimizer)
if rank == 0:
    SAVED
dcp.save({{"app": state}}, checkpoint_id="/shared/a")
"""


def test_the_state_of_a_model_is_not_that_of_the_only_class_with_such_a_method(tmp_path: Path) -> None:
    assert "rank-0-collective" not in found(tmp_path, STATES.replace("SAVED", 'save(model, "/shared/b")'), **GPUS)
    assert "rank-0-collective" in found(tmp_path, STATES.replace("SAVED", "print(state.state_dict())"), **GPUS)


WITH_GPUS = """
import argparse, os, torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
parser = argparse.ArgumentParser()
parser.add_argument("--device", default="")
def select_device(name):
    return torch.device(name or "cpu")
def smart_ddp(model):
    return DDP(model, device_ids=[0])
def train(device):
    dist.init_process_group("gloo")
    model = torch.nn.Linear(4, 1)
    cuda = device.type != "cpu"
    if WRAPPED:
        model = smart_ddp(model)
    model(torch.ones(4)).sum().backward()
train(select_device(parser.parse_args().device))
"""


def test_a_model_that_is_wrapped_only_with_gpus(tmp_path: Path) -> None:
    only = WITH_GPUS.replace("WRAPPED", 'cuda and "RANK" in os.environ')
    assert "never-synchronized" in found(tmp_path, only)
    assert "never-synchronized" not in found(tmp_path, only, **GPUS)
    assert "never-synchronized" not in found(tmp_path, WITH_GPUS.replace("WRAPPED", '"RANK" in os.environ'))


SEARCHED = f"""{OPTIONAL}
import glob
files = [args.config] if args.config.startswith("/") else glob.glob("**/" + args.config, recursive=True)
with open(files[0]) as file:
    print(file.read())
"""


def test_a_configuration_that_the_code_searches_for(tmp_path: Path) -> None:
    with_files(tmp_path, {"models/small.yaml": "a: 1\n", ".git/HEAD": ""})
    text = f"{SEARCHED}\nimport os\nif os.path.isdir('.git'):\n    print(os.listdir('.git'))\n"
    checks = found(tmp_path, text, hyperparameters={"config": "small.yaml"})
    assert not {"not-there", "left-out"} & checks
    assert "not-there" in found(tmp_path, text, hyperparameters={"config": "big.yaml"})


CALLED_BACK = f"""{STARTED}
class Verification:
    def __init__(self, rank):
        self.rank = rank
    def test(self, backbone):
        with torch.no_grad():
            backbone(torch.ones(4, 4).cuda())
    def __call__(self, step, backbone):
        if self.rank == 0 and step % 100 == 0:
            backbone.eval()
            self.test(backbone)
            backbone.train()
backbone = DDP(nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)).cuda()OPTION)
header = DDP(nn.Linear(4, 2).cuda(), broadcast_buffers=False)
verify = Verification(rank)
for step, (x,) in enumerate(DataLoader(TensorDataset(torch.ones(8, 4)), sampler=DistributedSampler(range(8)))):
    header(backbone(x.cuda())).sum().backward()
    verify(step, backbone)
"""


def test_a_callback_that_calls_a_wrapped_model_on_rank_0(tmp_path: Path) -> None:
    assert "rank-0-collective" in found(tmp_path, CALLED_BACK.replace("OPTION", ""), **GPUS)
    left = CALLED_BACK.replace("OPTION", ", broadcast_buffers=False")
    assert "rank-0-collective" not in found(tmp_path, left, **GPUS)


OF_MODULE = f"""{STARTED}
from torch.optim.lr_scheduler import CosineAnnealingLR
class Data:
    def __init__(self):
        self.data = TensorDataset(torch.ones(800, 4))
    def train_dataloader(self):
        return DataLoader(self.data, batch_size=4, shuffle=True)
def init_optimizer(model, steps):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return optimizer, CosineAnnealingLR(optimizer, 3 * steps)
dm = Data()
loader = DataLoader(dm.data, batch_size=4, sampler=DistributedSampler(dm.data))
model = DDP(nn.Linear(4, 1).cuda())
optimizer, scheduler = init_optimizer(model, len(LOADER))
for epoch in range(3):
    loader.sampler.set_epoch(epoch)
    for (x,) in loader:
        model(x.cuda()).sum().backward()
        optimizer.step()
        scheduler.step()
"""
DRAWN = f"""{STARTED}
import pandas as pd
def seed_everything(seed):
    np.random.seed(seed)
seed_everything(42 SEED)
def split(df):
    train = df.sample(frac=0.7 STATE)
    return train, df.drop(train.index)
train, test = split(pd.read_csv("/shared/a.csv"))
model = DDP(nn.Linear(4, 1).cuda())
for (x,) in DataLoader(TensorDataset(torch.tensor(train.values)), sampler=DistributedSampler(range(8))):
    model(x.cuda()).sum().backward()
"""
FIGURE_OF_ZERO = """
import lightning as L
class Model(L.LightningModule):
    def training_step(self, batch, number):
        return batch.sum()
    def on_validation_epoch_end(self):
        if self.global_rank == 0:
            self.log("val_psnr", 3.0SYNC)
        WHOLE
L.Trainer(num_nodes=2, devices=2, accelerator="gpu").fit(Model())
"""


@each_mistake(
    [
        (
            "schedule-length",
            OF_MODULE.replace("LOADER", "dm.train_dataloader()"),
            OF_MODULE.replace("LOADER", "loader"),
            GPUS,
        ),
        (
            "split-by-rank",
            DRAWN.replace("SEED", "+ rank").replace(" STATE", ""),
            DRAWN.replace("SEED", "").replace(" STATE", ""),
            GPUS,
        ),
        (
            "split-by-rank",
            DRAWN.replace("SEED", "+ rank").replace(" STATE", ""),
            DRAWN.replace("SEED", "+ rank").replace(" STATE", ", random_state=0"),
            GPUS,
        ),
        (
            "rank-0-collective",
            FIGURE_OF_ZERO.replace("SYNC", ", sync_dist=True").replace("WHOLE", ""),
            FIGURE_OF_ZERO.replace("SYNC", "").replace("WHOLE", 'self.log("loss", 1.0, sync_dist=True)'),
            GPUS,
        ),
    ]
)
def test_more_mistakes(check: str, wrong: str, right: str, fields: dict[str, Any], tmp_path: Path) -> None:
    assert check in found(tmp_path, wrong, **fields)
    assert check not in found(tmp_path, right, **fields)


RESUMED_LATER = f"""{STARTED}
parser = argparse.ArgumentParser()
parser.add_argument("--resume", default="")
def main(args):
    if args.resume:
        ckpt = torch.load(args.resume)
    start = ckpt["epoch"] if args.resume else 0
    while args.resume:
        print(ckpt)
main(parser.parse_args())
"""
WRAPPED_BOTH_WAYS = WITH_GPUS.replace(
    "        model = smart_ddp(model)\n",
    "        if cuda:\n            model = DDP(model, device_ids=[0])\n        else:\n            model = DDP(model)\n",
).replace("WRAPPED", 'os.environ.get("NO_DDP") != "1"')
ON_TOP_OF_NODES = BEGUN.replace("NUMBER * length", 'int(os.environ["NODE_RANK"]) * 2 * length + local_rank * length')
PLACED = BEGUN.replace("len(self.tokens) // world_size", "os.cpu_count() // world_size").replace("NUMBER", "local_rank")
OTHER_SIZE = f"""{STARTED}
parser = argparse.ArgumentParser()
parser.add_argument("--micro", type=int, default=8)
parser.add_argument("--global_batch_size", type=int, default=32)
args = parser.parse_args()
data = TensorDataset(torch.ones(800, 4))
loader = DataLoader(data, args.micro, sampler=DistributedSampler(data))
model = DDP(nn.Linear(4, 1).cuda())
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
steps = len(loader.dataset) // args.global_batch_size
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=steps)
for (x,) in loader:
    model(x.cuda()).sum().backward()
    optimizer.step()
    scheduler.step()
"""
ASKED_FOR_CPUS = """
from accelerate import Accelerator, PartialState
PartialState(cpu=True)
accelerator = Accelerator()
"""
OF_LIBRARY = """
import argparse
import pytorch_lightning as pl
class MyTrainer(pl.Trainer):
    pass
parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float)
parser = MyTrainer.add_argparse_args(parser)
args = parser.parse_args()
"""
OTHER_BUFFERS = f"""{STARTED}
model = DDP(nn.Sequential(nn.Conv2d(3, 3, 1), nn.BatchNorm2d(3)).cuda(), broadcast_buffers=False)
critic = DDP(nn.Linear(1, 1).cuda())
for (x,) in DataLoader(TensorDataset(torch.ones(8, 4)), sampler=DistributedSampler(range(8))):
    critic(model(x.cuda())).sum().backward()
if rank == 0:
    critic(torch.ones(1).cuda())
"""
NOT_MADE_ON_GPUS = f"""{STARTED}
scaler = torch.amp.GradScaler(device="cuda")
print(torch.cuda.max_memory_allocated(device="cuda"))
""".replace("torch.cuda.set_device", "print").replace('"nccl"', '"gloo"')


@pytest.mark.parametrize(
    ("check", "text", "fields"),
    [
        ("unset", RESUMED_LATER, GPUS),
        ("never-synchronized", WRAPPED_BOTH_WAYS, {}),
        ("part-of-node", ON_TOP_OF_NODES, GPUS),
        ("part-of-node", PLACED, GPUS),
        ("schedule-length", OTHER_SIZE, GPUS),
        ("no-init", ASKED_FOR_CPUS, {}),
        ("argument-unknown", OF_LIBRARY, {"hyperparameters": {"max_epochs": 4}}),
        ("rank-0-collective", OTHER_BUFFERS, GPUS),
        ("cuda-on-cpu", NOT_MADE_ON_GPUS, {}),
        (
            "library-version",
            "import torch\ntry:\n    1\nexcept TypeError:\n    torch.stft(torch.ones(9), 4)\n",
            OF_TORCH_2,
        ),
        ("library-version", "import torch\ntorch.stft(torch.ones(9).to(torch.complex64), 4)\n", OF_TORCH_2),
    ],
)
def test_what_a_review_found(check: str, text: str, fields: dict[str, Any], tmp_path: Path) -> None:
    assert check not in found(tmp_path, text, **fields)


AVERAGED_AGAIN = f"""{STARTED}
def average(model):
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
        parameter.grad /= dist.get_world_size()
def update_ema(model):
    print(model)
model = DDP(nn.Linear(4, 1).cuda())
raw_model = model.module
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for (x,) in DataLoader(TensorDataset(torch.ones(8, 4)), sampler=DistributedSampler(range(8))):
    model(x.cuda()).sum().backward()
    average(model)
    optimizer.step()
    update_ema(raw_model)
"""
STAGED_FROM_SOURCES = f"""{STARTED}
import shutil
if rank == 0:
    shutil.copytree("/shared/src", "/tmp/d")
print(os.listdir("/tmp/d"))
"""


@pytest.mark.parametrize(
    ("check", "text"), [("double-averaging", AVERAGED_AGAIN), ("staged-by-one", STAGED_FROM_SOURCES)]
)
def test_what_is_found_still(check: str, text: str, tmp_path: Path) -> None:
    assert check in found(tmp_path, text, **GPUS)
