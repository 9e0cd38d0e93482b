"""Mistakes that were planted in public training scripts, in their shapes, and right code of the same shape."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from checked import GPUS, each_mistake, found

from jobsubmit.bundle.scanner import scan
from jobsubmit.check.secrets import check_secrets

BEGIN = """
import argparse, os, time, torch, torch.distributed as dist, torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler
local_rank = int(os.environ["LOCAL_RANK"])
"""
JOINED = f'{BEGIN}dist.init_process_group("nccl")\nrank = dist.get_rank()\n'
NET = JOINED + "model = DDP(nn.Linear(4, 1).cuda(local_rank), device_ids=[local_rank])\n"
SKIPPED = """
def step(model, x, optimizer):
    while True:
        loss = model(x).mean()
        reduced = loss.detach().clone()
        dist.all_reduce(reduced, group=get_group())
        if not Scaler.has_inf_or_nan({judged}):
            loss.backward()
            optimizer.step()
for x in load():
    step(model, x, make())
"""
GROUPS = """
groups = []
for i in range(dist.get_world_size() // 2):
    ranks = range(i * 2, i * 2 + 2)
    {before}if i == rank // 2:
        {inside}
"""
STOPPED = """
class Trainer:
    def __init__(self, params):
        self.params = params
    def end_epoch(self, score):
        if self.best is not None and {test}:
            if score < self.best:
                exit()
trainer = Trainer(load())
for epoch in range(10):
    for x in load():
        model(x).mean().backward()
    trainer.end_epoch(1.0)
"""
STATES = """
inner = model.module
if os.path.exists("/o/last.pth"):
    checkpoint = torch.load("/o/last.pth")
    inner.load_state_dict(checkpoint["model"])
for epoch in range(5):
    if rank == 0:
        for path in ["/o/last.pth"]:
            torch.save({{"model": {last}.state_dict()}}, path)
        if epoch % 2 == 0:
            torch.save({{"model": inner.state_dict()}}, "/o/epoch%d.pth" % epoch)
"""
DEVICES = """
def select(device):
    if device == "cpu":
        os.environ["CUDA_VISIBLE_DEVICES"] = "-1"
    elif device:
        os.environ["CUDA_VISIBLE_DEVICES"] = device
    {after}
select("{devices}")
"""
BATCHES = """
class Loader(DataLoader):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
def sizes():
    return int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
args = argparse.Namespace()
args.rank, args.world = sizes()
print(args)
args.rank, args.world = sizes()
def make(data, batch):
    batch = min(batch, len(data))
    return Loader(data, batch_size=batch, sampler=DistributedSampler(data))
train = make(load(), {batch} // args.world)
test = make(load(), {batch} // args.world * 2)
"""
THAWED = """
class Trainer:
    def __init__(self, model, args):
        self.args = args
        for p in model.backbone.parameters():
            p.requires_grad = {first}
        self.model = DDP(model.cuda(local_rank))
    def before_epoch(self, epoch):
        if epoch == self.args.freeze_epochs:
            for p in unwrap(self.model).backbone.parameters():
                p.requires_grad = True
trainer = Trainer(load(), load())
for epoch in range(9):
    trainer.before_epoch(epoch)
"""
CLIPPED = """
from accelerate.utils import is_xpu_available
scaler = torch.cuda.amp.GradScaler()
for x in load():
    print(is_xpu_available())
    scaler.scale(model(x).mean()).backward()
    {unscale}
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
"""
GATHERED = """
import argparse, os, trainers
parser = argparse.ArgumentParser()
parser.add_argument("--trainer", default="Trainer")
args = parser.parse_args()
def main(rank, size):
    made = getattr(trainers, args.trainer)
    trainer = made(load(), rank=rank, size=size)
    trainer.run(load())
main(int(os.environ["{variable}"]), int(os.environ["WORLD_SIZE"]))
"""
TRAINER = """
import torch, torch.distributed as dist
def gather(values, rank, size):
    parts = [torch.empty_like(values).to(rank) for _ in range(size)]
    dist.all_gather(parts, values)
    return parts
class Trainer:
    def __init__(self, model, rank=0, size=1):
        self.rank, self.size = rank, size
        dist.init_process_group("nccl")
    def run(self, x):
        return gather(x, self.rank, self.size), gather(x + 1, self.rank, self.size)
"""
VALIDATED = """
def train():
    def validate(x):
        model(x)
        {wait}
    for x in load():
        model(x).mean().backward()
        if rank == 0:
            validate(x)
train()
"""
REDUCED = """
class Sum(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        dist.all_reduce(x)
        return x
for x in load():
    model(x).mean().backward()
    total = x
    {more}
    if rank == 0 and len(x) > 2:
        print({shown})
"""
SHARDED = """
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
class Trainer:
    def __init__(self, model):
        self.model = model
    def clip(self):
        return torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
    def train(self):
        for x in load():
            self.model(x).mean().backward()
            self.clip()
class ShardedTrainer(Trainer):
    def __init__(self, model):
        self.model = FSDP(model)
    {own}
ShardedTrainer(load()).train()
"""
BRANCHES = """
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
sharded = load()
net = FSDP(load()) if sharded else load()
for x in load():
    net(x).mean().backward()
    if sharded:
        {first}
    else:
        torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
"""
BESIDE = """
model = nn.Linear(4, 1).cuda(local_rank)
wrapped = DDP(model, device_ids=[local_rank])
parser = argparse.ArgumentParser()
parser.add_argument("--chunks", type=int, default=4)
args = parser.parse_args()
def train():
    for x in load():
        if args.chunks > 1:
            loss = {called}(x).mean()
        else:
            loss = wrapped(x).mean()
        loss.backward()
train()
"""
CACHED = """
def corpus(path):
    data = load(path)
    torch.save(data, "/shared/cache.pt")
    return data
{before}
data = corpus("/shared/text")
if rank == 0:
    dist.barrier()
"""
FOLDER = """
def make(path, quiet=False):
    if quiet:
        return
    if not os.path.exists(path):
        os.makedirs(path)
make("/shared/out", quiet={quiet})
"""
ONE_OF_MANY = """
from fairscale.nn.model_parallel import initialize as groups
parser = argparse.ArgumentParser()
parser.add_argument("--model_parallel_size", type=int, default=1)
args = parser.parse_args()
groups.initialize_model_parallel(args.model_parallel_size)
for p in model.parameters():
    dist.broadcast(p.data, src=0, group=groups.get_data_parallel_group())
"""
ACCUMULATED = """
import contextlib
def train(steps):
    for i, x in enumerate(load()):
        skips = steps > 1 and {test}
        with model.no_sync() if skips else contextlib.nullcontext():
            model(x).mean().backward()
        if (i + 1) % steps == 0:
            optimizer.step()
train(4)
"""
SAVED = """
def save_on_master(*args, **kwargs):
    if rank == 0:
        torch.save(*args, **kwargs)
parser = argparse.ArgumentParser()
args = parser.parse_args()
if os.path.exists("/o/last.pth"):
    checkpoint = torch.load("/o/last.pth")
save_on_master({{"args": {saved}}}, "/o/last.pth")
"""
READ = """
parser = argparse.ArgumentParser()
args = parser.parse_args()
def read(files, number, count):
    return files[number::count]
data = read(load_files(), {given})
"""
MASTER = """
params = load()
def start(params):
    params.is_master = params.node == 0 and params.local_rank == 0
start(params)
{test}:
    torch.save(load(), "/shared/params.pkl")
"""
HANDLED = """
try:
    weight = load()
except RuntimeError:
    {stop}
    weight = 0.0
"""
COPIED = """
def copy(root, local_rank=None):
    if local_rank is None:
        try:
            local_rank = int(os.environ["SLURM_LOCALID"])
        except Exception:
            return None
    {use}
if load():
    copy("/data")
"""
FALLBACK = """
def group():
    if dist.is_initialized():
        return 1
    else:
        dist.init_process_group("nccl", rank=0, world_size=1, init_method="tcp://127.0.0.1:2345")
if load():
    group()
"""


GATHERED_BYTES = """
def gather(data, size):
    tensor = torch.ByteTensor(pack(data)){moved}
    if size != len(data):
        padding = torch.ByteTensor(size=(size,)){moved}
        tensor = torch.cat((tensor, padding), dim=0)
    parts = [torch.zeros(size, device="cuda") for _ in range(4)]
    dist.all_gather(parts, tensor)
    for size, tensor in zip(sizes(), parts):
        print(size, tensor)
gather(load(), 5)
"""
DRAWN = """
import numpy as np
np.random.seed(0)
order = np.random.default_rng({seed}).permutation(9).tolist()
train, test = order[:4], order[4:]
"""
RESUMED = """
from datetime import datetime
name = {name}
last = os.path.join("/shared/out", name, "last.pth.tar")
if os.path.isfile(last):
    resume(model, last)
"""


def _replaced(text: str, wrong: dict[str, str], right: dict[str, str]) -> tuple[str, str]:
    return text.format(**wrong), text.format(**right)


@each_mistake(
    [
        ("left-by-one", *_replaced(NET + SKIPPED, {"judged": "loss"}, {"judged": "reduced"}), GPUS),
        (
            "left-by-one",
            *_replaced(
                JOINED + "class Own(DDP): pass\nmodel = Own(nn.Linear(4, 1).cuda(local_rank))\n" + SKIPPED,
                {"judged": "loss"},
                {"judged": "reduced"},
            ),
            GPUS,
        ),
        (
            "rank-0-collective",
            *_replaced(
                JOINED + GROUPS,
                {"before": "", "inside": "groups.append(dist.new_group(ranks))"},
                {"before": "group = dist.new_group(ranks)\n    ", "inside": "groups.append(group)"},
            ),
            GPUS,
        ),
        (
            "left-by-one",
            *_replaced(NET + STOPPED, {"test": "self.params.is_master"}, {"test": "self.params.is_late"}),
            GPUS,
        ),
        ("other-keys", *_replaced(NET + STATES, {"last": "model"}, {"last": "inner"}), GPUS),
        (
            "hidden-gpus",
            *_replaced(
                JOINED + DEVICES, {"devices": "0", "after": "pass"}, {"devices": "0,1", "after": "torch.manual_seed(0)"}
            ),
            GPUS,
        ),
        ("empty-batch", *_replaced(JOINED + BATCHES, {"batch": "2"}, {"batch": "8"}), GPUS),
        ("thawed-later", *_replaced(JOINED + THAWED, {"first": "False"}, {"first": "True"}), GPUS),
        (
            "clipped-scaled",
            *_replaced(NET + CLIPPED, {"unscale": "pass"}, {"unscale": "scaler.unscale_(optimizer)"}),
            GPUS,
        ),
        ("rank-0-collective", *_replaced(NET + VALIDATED, {"wait": "dist.barrier()"}, {"wait": "pass"}), GPUS),
        (
            "rank-0-collective",
            *_replaced(
                NET + REDUCED,
                {"more": "pass", "shown": "Sum.apply(total)"},
                {"more": "total = Sum.apply(total)", "shown": "total"},
            ),
            GPUS,
        ),
        (
            "clipped-by-part",
            *_replaced(JOINED + SHARDED, {"own": "pass"}, {"own": "def clip(self): self.model.clip_grad_norm_(1.0)"}),
            GPUS,
        ),
        (
            "clipped-by-part",
            *_replaced(JOINED + BRANCHES, {"first": "pass"}, {"first": "net.clip_grad_norm_(1.0)"}),
            GPUS,
        ),
        ("bypassed", *_replaced(JOINED + BESIDE, {"called": "model"}, {"called": "wrapped"}), GPUS),
        (
            "saved-by-all",
            *_replaced(NET + CACHED, {"before": "dist.barrier()"}, {"before": "if rank != 0:\n    dist.barrier()"}),
            GPUS,
        ),
        ("made-by-all", *_replaced(JOINED + FOLDER, {"quiet": "load()"}, {"quiet": "load() or rank != 0"}), GPUS),
        (
            "never-synchronized",
            *_replaced(NET + ACCUMULATED, {"test": "i % steps != 0"}, {"test": "(i + 1) % steps != 0"}),
            GPUS,
        ),
        ("pickled-object", *_replaced(JOINED + SAVED, {"saved": "args"}, {"saved": "vars(args)"}), GPUS),
        (
            "part-of-node",
            *_replaced(
                NET + READ,
                {"given": "local_rank, load().gpus_per_node"},
                {"given": "rank, dist.get_world_size()"},
            ),
            GPUS,
        ),
        (
            "saved-by-all",
            *_replaced(NET + MASTER, {"test": "if load()"}, {"test": "if getattr(params, 'is_master', True)"}),
            GPUS,
        ),
        ("no-terminal", *_replaced(JOINED + HANDLED, {"stop": "breakpoint()"}, {"stop": "pass"}), GPUS),
        (
            "rank-env",
            *_replaced(BEGIN + COPIED, {"use": "torch.cuda.set_device(local_rank)"}, {"use": "print(local_rank)"}),
            GPUS,
        ),
        ("tensor-on-cpu", *_replaced(JOINED + GATHERED_BYTES, {"moved": ""}, {"moved": ".cuda()"}), GPUS),
        ("split-by-rank", *_replaced(NET + DRAWN, {"seed": ""}, {"seed": "0"}), GPUS),
        (
            "no-checkpoint",
            *_replaced(
                f"{NET}torch.load(load())\n{RESUMED}",
                {"name": "'-'.join([datetime.now().strftime('%Y%m%d'), 'net'])"},
                {"name": "'-'.join(['run1', 'net'])"},
            ),
            {**GPUS, "restarts": 2},
        ),
        (
            "rank-0-collective",
            *_replaced(
                NET + "config = load()\nif {test}:\n    dist.barrier()\n",
                {"test": "config['rank'] == 0"},
                {"test": "config['step'] == 0"},
            ),
            GPUS,
        ),
        (
            "pickled-object",
            *_replaced(
                JOINED + SAVED.replace("/o/last.pth", "{path}"),
                {"saved": "args", "path": "/o/last.pth"},
                {"saved": "args", "path": "/o/results.pth"},
            ),
            GPUS,
        ),
        ("fixed-world-size", BEGIN + FALLBACK, JOINED + FALLBACK, GPUS),
        (
            "other-groups",
            *_replaced(
                JOINED + "group = dist.new_group({ranks})\n",
                {"ranks": "[rank, rank + 1]"},
                {"ranks": "[dist.get_rank()]"},
            ),
            GPUS,
        ),
        (
            "double-averaging",
            *_replaced(
                NET + "grad = load()\nloss = torch.zeros({size}, 1)\ndist.all_reduce(loss)\n",
                {"size": "grad"},
                {"size": "grad.size()[0]"},
            ),
            GPUS,
        ),
    ]
)
def test_a_mistake_is_found(check: str, wrong: str, right: str, fields: dict[str, Any], tmp_path: Path) -> None:
    assert check in found(tmp_path, wrong, **fields)
    assert check not in found(tmp_path, right, **fields)


def test_the_rank_of_all_that_a_trainer_hands_on_as_a_device(tmp_path: Path) -> None:
    """The trainer is chosen by an argument, and all calls of a function give the same field."""
    (tmp_path / "trainers.py").write_text(TRAINER)
    assert "rank-as-device" in found(tmp_path, GATHERED.format(variable="RANK"), **GPUS)
    assert "rank-as-device" not in found(tmp_path, GATHERED.format(variable="LOCAL_RANK"), **GPUS)


@pytest.mark.parametrize(("size", "is_found"), [(2, True), (1, False)])
def test_rank_0_is_in_one_group_of_a_model_in_parts_only(size: int, is_found: bool, tmp_path: Path) -> None:
    seen = found(tmp_path, NET + ONE_OF_MANY, args=[f"--model_parallel_size={size}"], **GPUS)
    assert ("other-roots" in seen) is is_found


def test_a_collective_of_rank_0_that_only_a_signal_leads_to(tmp_path: Path) -> None:
    text = NET + "def save():\n    if rank == 0:\n        dist.barrier()\n{more}"
    assert "rank-0-collective" in found(tmp_path, text.format(more="save()\n"), **GPUS)
    handled = "import signal\nsignal.signal(signal.SIGUSR1, save)\n"
    assert "rank-0-collective" not in found(tmp_path, text.format(more=handled), **GPUS)


ACCELERATED = """
from accelerate import Accelerator
import torch
from torch.utils.data import DataLoader
class State:
    def __init__(self):
        self.step = 0
    def resume(self, path):
        self.load(path)
    def load(self, path):
        self.step = torch.load(path + "/step.pth")
        for value in self.__dict__.values():
            value.load_state_dict(torch.load(path))
accelerator = Accelerator()
state, loader, net = State(), DataLoader(data()), model()
net{prepared} = accelerator.prepare(net{prepared})
{resume}
def batches():
    while True:
        for batch in loader:
            yield batch
source = batches()
for _ in range(100):
    accelerator.backward(net(next(source)))
"""


def test_accelerate_resumes_on_every_rank_and_prepares_the_loader(tmp_path: Path) -> None:
    everywhere = 'state.resume("/o")'
    alone = f"if accelerator.is_main_process:\n    {everywhere}"
    right = found(tmp_path, ACCELERATED.format(prepared=", loader", resume=everywhere), **GPUS)
    assert not {"loaded-by-one", "no-sampler"} & right
    assert "loaded-by-one" in found(tmp_path, ACCELERATED.format(prepared=", loader", resume=alone), **GPUS)
    assert "no-sampler" in found(tmp_path, ACCELERATED.format(prepared="", resume=everywhere), **GPUS)


def test_a_loader_of_the_validation_that_accelerate_does_not_move(tmp_path: Path) -> None:
    text = """
from accelerate import Accelerator
import torch
from torch.utils.data import DataLoader
accelerator = Accelerator()
net, loader, val_loader = model(), DataLoader(data()), DataLoader(data())
net, loader{prepared} = accelerator.prepare(net, loader{prepared})
for batch in loader:
    accelerator.backward(net(batch))
for batch in val_loader:
    with torch.no_grad():
        net({given})
"""
    assert "not-prepared" in found(tmp_path, text.format(prepared="", given="batch"), **GPUS)
    assert "not-prepared" not in found(tmp_path, text.format(prepared=", val_loader", given="batch"), **GPUS)
    assert "not-prepared" not in found(tmp_path, text.format(prepared="", given="batch.to('cuda')"), **GPUS)


def test_what_horovodrun_starts(tmp_path: Path) -> None:
    fields: dict[str, Any] = {"resources": {"nodes": 1, "nproc_per_node": 2}, **GPUS}
    command = ["horovodrun", "-np", "4", "-H", "localhost:4", "python", "train.py", "--size", "large"]
    text = "import argparse\nparser = argparse.ArgumentParser()\nparser.add_argument('--size', type=int)\n"
    assert "argument-type" in found(tmp_path, f"{text}parser.parse_args()\n", command=command, **fields)
    command[-1] = "5"
    assert not found(tmp_path, f"{text}parser.parse_args()\n", command=command, **fields)


@pytest.mark.parametrize(("seed", "is_found"), [("$RANDOM", True), ("${RANDOM}", True), ("7", False)])
def test_a_seed_that_the_shell_of_each_node_draws(seed: str, is_found: bool, tmp_path: Path) -> None:
    (tmp_path / "run.sh").write_text(
        f"torchrun --nnodes 2 --node_rank $NODE_RANK --master_addr a train.py --seed {seed}\n"
    )
    seen = found(tmp_path, "print(1)\n", command=["bash", "run.sh"], **GPUS)
    assert ("launcher-nodes" in seen) is is_found


def test_deepspeed_for_which_nobody_gives_the_local_rank(tmp_path: Path) -> None:
    text = """
import argparse, deepspeed, torch
parser = argparse.ArgumentParser()
parser.add_argument("--local_rank", type=int, default=-1)
args = parser.parse_args()
if args.local_rank == -1:
    device = torch.device("cuda")
else:
    torch.cuda.set_device(args.local_rank)
    deepspeed.init_distributed()
args.global_rank = torch.distributed.get_rank()
engine, _, _, _ = deepspeed.initialize(args=args, model=load())
"""
    assert "local-rank" in found(tmp_path, text, **GPUS)
    launched = {"mode": "launch", "local_rank": "argument", "torch_version": "1.13"}
    assert "local-rank" not in found(tmp_path, text, **launched, **GPUS)


def test_a_configuration_of_deepspeed_that_is_in_another_folder(tmp_path: Path) -> None:
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf/ds.json").write_text(json.dumps({"zero_optimization": {"stage": 2}}))
    text = """
from transformers import HfArgumentParser, TrainingArguments
(args,) = HfArgumentParser(TrainingArguments).parse_args_into_dataclasses()
"""
    for file, is_found in (("ds.json", True), ("conf/ds.json", False)):
        job = {"hyperparameters": {"output_dir": "/o", "deepspeed": file}}
        assert ("not-there" in found(tmp_path, text, **job, **GPUS)) is is_found


def test_the_number_of_nodes_that_lightning_takes_from_the_arguments(tmp_path: Path) -> None:
    text = """
import argparse
from pytorch_lightning import Trainer
parser = Trainer.add_argparse_args(argparse.ArgumentParser())
Trainer.from_argparse_args(parser.parse_args()).fit(load())
"""
    for nodes, is_found in ((3, True), (2, False)):
        seen = found(tmp_path, text, command=["python", "train.py", "--num_nodes", str(nodes)], **GPUS)
        assert ("lightning-nodes" in seen) is is_found
        assert "launcher-nodes" not in seen  # Lightning reads NODE_RANK itself


IMPORTED = {
    "import numpy\nif True:\n    import rich\n": True,
    "import numpy\nif load():\n    import rich\n": False,
    "import numpy, os, sys\nsys.path.append(os.path.dirname(sys.path[0]))\nimport rich\n": True,
    "import numpy, os, sys\nsys.path.append(os.environ['MORE'])\nimport rich\n": False,
}


@pytest.mark.parametrize(("text", "is_found"), IMPORTED.items(), ids=map(str, range(len(IMPORTED))))
def test_a_package_that_the_requirements_do_not_name(text: str, is_found: bool, tmp_path: Path) -> None:
    (tmp_path / "requirements.txt").write_text("numpy\n")
    assert ("packages" in found(tmp_path, text, requirements="requirements.txt", **GPUS)) is is_found


def test_a_package_of_a_module_that_a_condition_has_imported(tmp_path: Path) -> None:
    (tmp_path / "tf.py").write_text("import tensorflow\n")
    for place, is_found in (("if load():\n    import tf", False), ("def later():\n    import tf\nrun(later)", True)):
        assert ("packages" in found(tmp_path, f"{place}\n", missing=["tensorflow"], **GPUS)) is is_found


def test_modules_that_the_setup_copies(tmp_path: Path) -> None:
    (tmp_path / "ops").mkdir()
    (tmp_path / "ops/__init__.py").write_text("")
    text = "from ops import fast_cuda\nimport ops.other\n"
    assert "imports" in found(tmp_path, text, **GPUS)
    assert "imports" not in found(tmp_path, text, setup="cp -r /shared/builds/ops/. ops/", **GPUS)


def test_a_parent_folder_on_the_path_of_code_that_is_all_uploaded(tmp_path: Path) -> None:
    (tmp_path / "code/net").mkdir(parents=True)
    (tmp_path / "code/net/__init__.py").touch()
    (tmp_path / "code/net/layers.py").touch()
    text = "import sys\nsys.path.insert(0, '../')\n{more}"
    assert "left-out" in found(tmp_path / "code", text.format(more=""), **GPUS)
    assert "left-out" not in found(tmp_path / "code", text.format(more="import net.layers\n"), **GPUS)


def test_another_model_is_loaded_and_no_checkpoint(tmp_path: Path) -> None:
    text = JOINED + SAVED.replace('torch.load("/o/last.pth")', "torch.load({path})")
    text = text.format(path="{path}", saved="args").replace("{path}", "args.{name}")
    assert "pickled-object" in found(tmp_path, text.replace("{name}", "resume"), **GPUS)
    for name in ("teacher_path", "finetune"):
        assert "pickled-object" not in found(tmp_path, text.replace("{name}", name), **GPUS)


def test_weights_that_a_model_loads_when_it_is_made(tmp_path: Path) -> None:
    model = "class Coder(nn.Module):\n    def __init__(self, path):\n        {read} = torch.load(path)\n"
    text = (
        JOINED
        + model.format(read="weights")
        + SAVED.format(saved="args").replace('torch.load("/o/last.pth")', "{last}")
    )
    assert "pickled-object" in found(tmp_path, text.replace("{last}", "torch.load(path())"), **GPUS)
    assert "pickled-object" not in found(tmp_path, text.replace("{last}", "Coder('/o/coder.pth')"), **GPUS)


def test_a_limit_for_the_loss_that_is_not_given(tmp_path: Path) -> None:
    text = f"""{NET}
parser = argparse.ArgumentParser()
parser.add_argument("--target-kl", type=float, default=None)
args = parser.parse_args()
for x in load():
    approx_kl = model(x).mean()
    approx_kl.backward()
    if args.target_kl is not None and approx_kl > args.target_kl:
        break
"""
    assert "left-by-one" in found(tmp_path, text, args=["--target-kl=0.1"], **GPUS)
    assert "left-by-one" not in found(tmp_path, text, **GPUS)


def test_one_of_several_values_that_a_function_returns(tmp_path: Path) -> None:
    text = f"""{NET}
def make_folders(name):
    now = time.strftime("%H:%M")
    return os.path.join("/shared/out", {{folder}}), os.path.join("/shared/logs", now)
out, logs = make_folders("run1")
torch.load(load())
if rank == 0:
    torch.save(model.module.state_dict(), os.path.join(out, "last.pth"))
"""
    assert "no-checkpoint" in found(tmp_path, text.format(folder="now"), restarts=2, **GPUS)
    assert "no-checkpoint" not in found(tmp_path, text.format(folder="name"), restarts=2, **GPUS)


def test_a_file_that_is_written_where_something_failed(tmp_path: Path) -> None:
    text = f"{NET}try:\n    place = load()\n{{when}}:\n    torch.save(load(), '/shared/paths.pt')\n"
    assert "saved-by-all" in found(tmp_path, text.format(when="finally"), **GPUS)
    assert "saved-by-all" not in found(tmp_path, text.format(when="except ImportError"), **GPUS)


def test_a_token_of_hugging_face_with_digits(tmp_path: Path) -> None:
    token = "hf_" + "tVqZbXnRwKcMpLyDsGhJfUaEoTiQvBxN7k"
    (tmp_path / "train.py").write_text(f"token = {token!r}\n")
    assert [finding.check for finding in check_secrets(scan(tmp_path), ())] == ["secret"]
