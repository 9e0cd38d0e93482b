"""Mistakes in re-typed shapes of public training code: torchvision, DETR, diffusion, speech, Accelerate, KAIR."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from checked import GPUS, each_mistake, findings, found

BEGIN = """
import argparse, datetime, math, os, sys, torch, torch.distributed as dist, torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler
local_rank = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(local_rank)
"""
JOINED = f'{BEGIN}dist.init_process_group("nccl")\nrank = dist.get_rank()\n'
NET = JOINED + "net = nn.Linear(4, 1).cuda()\nmodel = DDP(net, device_ids=[local_rank])\n"
LOADED = f"""{NET}
data = TensorDataset(torch.rand(8, 4))
sampler = DistributedSampler(data)
loader = DataLoader(data, sampler=sampler)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
"""
METERS = """
class Meter:
    def __init__(self):
        self.total, self.count = 0.0, 0
    def update(self, value):
        self.total += value
        self.count += 1
    def synchronize(self):
        both = torch.tensor([self.total, self.count], device="cuda")
        dist.all_reduce(both)
        self.total, self.count = both.tolist()
    @property
    def average(self):
        return self.total / self.count
def train_one_epoch():
    meters = {{"loss": Meter()}}
    for batch in loader:
        loss = model(batch[0].cuda()).mean()
        loss.backward()
        optimizer.step()
        meters["loss"].update(loss.item())
    for meter in meters.values():
        {after}
    return meters["loss"].average
seen = torch.ones(1, device="cuda")
dist.all_reduce(seen)
scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)
for epoch in range(3):
    sampler.set_epoch(epoch)
    scheduler.step({figure})
"""
SUMMED = """
def validate():
    total = 0.0
    for batch in loader:
        total += model(batch[0].cuda()).mean().item()
    return total / len(loader)
scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)
early_stopping = EarlyStopping(3)
for epoch in range(3):
    sampler.set_epoch(epoch)
    for batch in loader:
        model(batch[0].cuda()).mean().backward()
        optimizer.step()
    own_loss = validate()
    shared = torch.tensor(own_loss, device="cuda")
    dist.all_reduce(shared)
    {then}
"""
STOPPING = "early_stopping({figure})\n    if early_stopping.early_stop:\n        break"
KEPT = """
class Trainer:
    def __init__(self, model):
        self.model = model.cuda()
        self.ddp_model = DDP(self.model, device_ids=[local_rank])
        self.optimizer = torch.optim.SGD(self.model.parameters(), 0.1)
    def run_step(self, batch):
        with self.ddp_model.no_sync():
            loss = compute_loss({model}, batch)
        loss.backward()
        self.optimizer.step()
trainer = Trainer(nn.Linear(4, 1))
for batch in load():
    trainer.run_step(batch)
"""
UNWRAPPED = """
from accelerate import Accelerator
def train(accelerator, model, optimizer, loader):
    inner = accelerator.unwrap_model(model)
    for batch in loader:
        with accelerator.accumulate(model):
            loss = {model}(batch).mean()
            accelerator.backward(loss)
            optimizer.step()
accelerator = Accelerator()
model, optimizer, loader = accelerator.prepare(make(), optimize(), load())
train(accelerator, model, optimizer, loader)
"""
OWN_MODEL = """
import torch.nn as nn
from accelerate import Accelerator
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Linear(4, 4)
def save(model):
    write(model.encoder)
accelerator = Accelerator()
net = Net()
net, optimizer = accelerator.prepare(net, optimize(net))
for batch in load():
    accelerator.backward(net(batch).mean())
save({given})
"""
TRAINED_LATER = """
import torch.nn as nn
from accelerate import Accelerator
class Net(nn.Module):
    def train_encoder(self, enabled):
        self.encoder.requires_grad_(enabled)
def main():
    accelerator = Accelerator()
    net = Net()
    net.train_encoder({first})
    net, optimizer = accelerator.prepare(net, optimize(net))
    for epoch in range(9):
        if epoch == 3:
            accelerator.unwrap_model(net).train_encoder(True)
        for batch in load():
            accelerator.backward(net(batch).mean())
main()
"""
COUNTED = """
from accelerate import Accelerator
accelerator = Accelerator()
model, eval_loader = accelerator.prepare(make(), load())
correct = seen = 0
for batch in eval_loader:
    predictions, labels = model(batch["x"]).argmax(-1), batch["labels"]
    {combine}
    correct += (predictions == labels).sum().item()
    seen += labels.shape[0]
print(correct / seen)
"""
WRITER = """
class SummaryWriter:
    pass
class Trainer:
    def __init__(self):
        self.writer = self.build_writer()
    def build_writer(self):
        writer = SummaryWriter() if {is_main} else None
        return writer
class Hook:
    def after_epoch(self):
        if self.trainer.writer is not None:
            dist.all_reduce(torch.ones(1, device="cuda"))
hook = Hook()
hook.trainer = Trainer()
hook.after_epoch()
"""
ENDED = """
class Base:
    def optimize(self):
        pass
class Plain(Base):
    def optimize(self):
        model(torch.rand(2, 4).cuda()).mean().backward()
made = make()
for step in range(20):
    made.optimize()
    if step % 5 == 0 and rank == 0:
        save()
        if step > 8:
            {ends}
"""
SCALER = """
class Scaler:
    def __call__(self, loss, optimizer):
        loss.backward()
        optimizer.step()
loss_scaler = Scaler()
for batch in load():
    loss = model(batch).mean()
    if not math.isfinite(loss.item()):
        {skips}
    loss_scaler(loss, make())
"""
UNUSED = """
class Mixed(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.kind = kind
        self.first = nn.Linear(4, 4)
        self.norm = nn.LayerNorm(4)
    def forward(self, x):
        if self.kind == "dot":
            return self.first(x)
        return self.norm(self.first(x))
model = DDP(Mixed({kind}).cuda(), device_ids=[local_rank])
"""
METRIC = """
class Metric:
    def __init__(self):
        self.mat = torch.zeros(3, 3{device})
    def process(self, counts):
        self.mat += counts
    def evaluate(self):
        dist.all_reduce(self.mat)
metric = Metric()
metric.evaluate()
"""
THAWED = """
def train_backbone(model, enabled):
    for name, parameter in model.named_parameters():
        if not name.startswith("head"):
            parameter.requires_grad_(enabled)
net = make()
train_backbone({first}, False)
model = DDP(net.to("cuda"), device_ids=[local_rank])
for epoch in range(9):
    if epoch == 5:
        train_backbone(model.module, True)
    for batch in load():
        model(batch).mean().backward()
"""
GAN = """
discriminator = DDP(nn.Linear(4, 1).cuda(), device_ids=[local_rank])
class Gan:
    def optimize(self, current_step):
        for p in self.netD.parameters():
            p.requires_grad = False
        model(torch.rand(2, 4).cuda()).mean().backward()
        for p in self.netD.parameters():
            p.requires_grad = True
gan = Gan()
gan.netD = discriminator
for step in range(9):
    gan.optimize(step)
"""
SAVED = """
from copy import deepcopy
def save_on_master(state, path):
    if rank == 0:
        torch.save(state, path)
for epoch in range(3):
    model(torch.rand(2, 4).cuda()).mean().backward()
    save_on_master({{"model": {model}, "epoch": epoch}}, "/o/last.pth")
state = torch.load("/o/last.pth", map_location="cpu")
"""
GATHERED = """
CPU_GROUP = None
def gather(one):
    found = [None] * dist.get_world_size()
    dist.all_gather_object(found, one, group=CPU_GROUP)
    return found
CPU_GROUP = dist.new_group(backend="gloo")
if {test}:
    print(gather(1))
"""
CASES: list[tuple[str, str, str, dict[str, Any]]] = [
    (
        "own-learning-rate",
        LOADED + METERS.format(after="pass", figure="train_one_epoch()"),
        LOADED
        + METERS.format(after="meter.synchronize()", figure="train_one_epoch()")
        .replace('meters = {"loss": Meter()}', "loss_meter = Meter()\n    meters = {'loss': loss_meter}")
        .replace('return meters["loss"].average', "loss_meter.synchronize()\n    return loss_meter.average"),
        GPUS,
    ),
    (
        "own-learning-rate",
        LOADED + SUMMED.format(then="scheduler.step(own_loss)"),
        LOADED + SUMMED.format(then="scheduler.step(shared.item())"),
        GPUS,
    ),
    (
        "left-by-one",
        LOADED + SUMMED.format(then=STOPPING.format(figure="own_loss")),
        LOADED + SUMMED.format(then=STOPPING.format(figure="shared.item()")),
        GPUS,
    ),
    ("bypassed", JOINED + KEPT.format(model="self.model"), JOINED + KEPT.format(model="self.ddp_model"), GPUS),
    ("bypassed", UNWRAPPED.format(model="inner"), UNWRAPPED.format(model="model"), GPUS),
    (
        "wrapped-attribute",
        OWN_MODEL.format(given="net"),
        OWN_MODEL.format(given="accelerator.unwrap_model(net)"),
        GPUS,
    ),
    (
        "part-as-whole",
        COUNTED.format(combine="pass"),
        COUNTED.format(combine="predictions, labels = accelerator.gather_for_metrics((predictions, labels))"),
        GPUS,
    ),
    (
        "rank-0-collective",
        JOINED + WRITER.format(is_main="rank == 0"),
        JOINED + WRITER.format(is_main="local_rank >= 0"),
        GPUS,
    ),
    ("left-by-one", NET + ENDED.format(ends="sys.exit()"), NET + ENDED.format(ends="pass"), GPUS),
    ("left-by-one", NET + SCALER.format(skips="continue"), NET + SCALER.format(skips="raise ValueError"), GPUS),
    ("unused-parameters", JOINED + UNUSED.format(kind="'dot'"), JOINED + UNUSED.format(kind="'cat'"), GPUS),
    ("tensor-on-cpu", JOINED + METRIC.format(device=""), JOINED + METRIC.format(device=", device='cuda'"), GPUS),
    ("thawed-later", JOINED + THAWED.format(first="net"), JOINED + THAWED.format(first="other_net"), GPUS),
    (
        "pickled-object",
        NET + SAVED.format(model="deepcopy(net).half()"),
        NET + SAVED.format(model="net.state_dict()"),
        GPUS,
    ),
    ("thawed-later", TRAINED_LATER.format(first="False"), TRAINED_LATER.format(first="True"), GPUS),
    ("rank-0-collective", JOINED + GATHERED.format(test="rank == 0"), JOINED + GATHERED.format(test="True"), GPUS),
    (
        "rank-0-collective",
        JOINED + "if local_rank > 0:\n    dist.barrier()\nload()\nif rank == 0:\n    dist.barrier()\n",
        JOINED + "if local_rank > 0:\n    dist.barrier()\nload()\nif local_rank == 0:\n    dist.barrier()\n",
        GPUS,
    ),
    (
        "rank-0-collective",
        NET + "norm = clip(model)\nif rank == 0:\n    print(norm.full_tensor())\n",
        NET + "norm = clip(model)\nwhole = norm.full_tensor()\nif rank == 0:\n    print(whole)\n",
        GPUS,
    ),
    (
        "no-init",
        BEGIN + 'import colossalai\ntorch.cuda.set_device(dist.get_rank() % 2)\ndist.init_process_group("nccl")\n',
        BEGIN + 'import colossalai\ndist.init_process_group("nccl")\ntorch.cuda.set_device(dist.get_rank() % 2)\n',
        GPUS,
    ),
    (
        "lightning-nodes",
        "from lightning import Fabric\nfabric = Fabric(devices=2)\n",
        "from lightning import Fabric\nfabric = Fabric(devices=2, num_nodes=2)\n",
        GPUS,
    ),
    (
        "staged-by-one",
        JOINED + "if rank == 0:\n    hf_hub_download('a/b', 'c.bin', local_dir='./')\ndist.barrier()\n",
        JOINED + "if local_rank == 0:\n    hf_hub_download('a/b', 'c.bin', local_dir='./')\ndist.barrier()\n",
        GPUS,
    ),
    (
        "no-checkpoint",
        "from accelerate import Accelerator\nimport datetime, os\naccelerator = Accelerator()\n"
        "folder = os.path.join('/runs', 'xl_' + str(datetime.datetime.now()))\naccelerator.save_state(folder)\n"
        "accelerator.load_state(folder)\n",
        "from accelerate import Accelerator\nimport os\naccelerator = Accelerator()\n"
        "folder = os.path.join('/runs', 'xl')\naccelerator.save_state(folder)\naccelerator.load_state(folder)\n",
        {**GPUS, "restarts": 3},
    ),
]


@each_mistake(CASES)
def test_a_mistake_is_found(check: str, wrong: str, right: str, fields: dict[str, Any], tmp_path: Path) -> None:
    assert check in found(tmp_path, wrong, **fields)
    assert check not in found(tmp_path, right, **fields)


LEADER = """
is_leader = dist.get_rank() == 0
if not is_leader and dist.get_world_size() > 1:
    dist.barrier()
load()
if is_leader and dist.get_world_size() > 1:
    dist.barrier()
"""
IN_TURN = """
parts = [
    dist.reduce(own, rank, async_op=True) if i == rank else dist.reduce(parts[i], i, async_op=True)
    for i in range(dist.get_world_size())
]
for part in parts:
    part.wait()
"""
TEACHER = """
teacher = make()
for parameter in teacher.parameters():
    parameter.requires_grad = False
model = DDP(nn.Linear(4, 1).cuda(), device_ids=[local_rank])
for parameter in model.parameters():
    parameter.requires_grad = True
"""
MOVED = """
net = nn.Linear(4, 1)
net.train().requires_grad_(True).to(local_rank)
model = DDP(net, device_ids=[local_rank])
"""
NORM = """
optimizer = make()
for batch in load():
    model(batch).mean().backward()
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    if math.isfinite(norm):
        optimizer.step()
"""


@pytest.mark.parametrize(
    ("check", "text"),
    [
        ("rank-0-collective", JOINED + LEADER),
        ("other-roots", JOINED + IN_TURN),
        ("thawed-later", JOINED + TEACHER),
        ("thawed-later", NET + GAN),
        ("left-by-one", NET + NORM),
        ("model-on-cpu", JOINED + MOVED),
    ],
)
def test_what_only_resembles_a_mistake(check: str, text: str, tmp_path: Path) -> None:
    assert check not in found(tmp_path, text, **GPUS)


def test_each_process_of_mode_launch_has_another_local_rank(tmp_path: Path) -> None:
    text = (
        "import argparse, torch, torch.distributed as dist\nparser = argparse.ArgumentParser()\n"
        "parser.add_argument('--local-rank', '--local_rank', type=int, default=0)\nargs = parser.parse_args()\n"
        "args.gpu = args.local_rank\ntorch.cuda.set_device(args.gpu)\ndist.init_process_group('nccl')\n"
        "model = torch.nn.parallel.DistributedDataParallel(make().cuda(args.gpu), device_ids=[args.gpu])\n"
    )
    assert "fixed-device" not in found(tmp_path, text, mode="launch", local_rank="argument", **GPUS)


@pytest.mark.parametrize(
    ("line", "wrong"),
    [
        ("python train.py --rank $((NODE_RANK * NPROC_PER_NODE)) --size $((NNODES * NPROC_PER_NODE))", set()),
        ("python train.py --rank $((NODE_RANK * NPROC_PER_NODE)) --size $((NNODES))x", {"argument-type"}),
        ("python train.py --rank $((2 ** 99)) --size $((GPUS * 2))", set()),
    ],
)
def test_numbers_that_a_shell_computes(line: str, wrong: set[str], tmp_path: Path) -> None:
    text = (
        "import argparse\nparser = argparse.ArgumentParser()\nparser.add_argument('--rank', type=int)\n"
        "parser.add_argument('--size', type=int)\nargs = parser.parse_args()\n"
    )
    assert found(tmp_path, text, command=["bash", "-c", line], **GPUS) & {"argument-type"} == wrong


def test_the_rest_of_the_arguments_of_a_shell_script(tmp_path: Path) -> None:
    (tmp_path / "run.sh").write_text(
        'CONFIG=$1\npython -m torch.distributed.run --nnodes=$NNODES train.py $CONFIG "${@:2}"\n'
    )
    text = (
        "import argparse\nparser = argparse.ArgumentParser()\nparser.add_argument('config')\n"
        "parser.add_argument('--work-dir', required=True)\nargs = parser.parse_args()\n"
    )
    given = ["bash", "run.sh", "a.yaml", "--work-dir", "/o"]
    assert "argument-missing" not in found(tmp_path, text, command=given, **GPUS)
    assert "argument-missing" in found(tmp_path, text, command=given[:3], **GPUS)


@pytest.mark.parametrize(
    ("module", "requirements", "is_found"),
    [
        ("rouge_score", "torch\nrouge\ntqdm\n", True),
        ("rouge_score", "torch\nrouge-score\n", False),
        ("torchmetrics", "torch\ntqdm\n", True),
        ("torchmetrics", "torch\nlightning\n", False),
        ("skvideo.io", "torch\nscikit-video\n", False),
        ("scipy", "torch\npycocotools\n", True),
        ("scipy", "torch\nscikit-learn\n", False),
    ],
)
def test_a_package_that_resembles_another_one(module: str, requirements: str, is_found: bool, tmp_path: Path) -> None:
    (tmp_path / "requirements.txt").write_text(requirements)
    text = f"import torch, tqdm, lightning, sklearn, pycocotools\nimport {module}\n"
    top = module.partition(".")[0]
    (tmp_path / "train.py").write_text(text)
    named = [one.text for one in findings(tmp_path, requirements="requirements.txt", **GPUS) if one.check == "packages"]
    assert any(one.endswith(f"module {top}") for one in named) is is_found


def test_a_python_path_of_the_folder_itself(tmp_path: Path) -> None:
    (tmp_path / "app").mkdir()
    (tmp_path / "app" / "ask.py").write_text("input()\n")
    (tmp_path / "app" / "train.py").write_text("import app.ask\n")
    (tmp_path / "train.py").write_text("")
    for place in ("./", ".", "$PWD"):
        fields = {"boot_file": "app/train.py", "env": {"PYTHONPATH": place}, **GPUS}
        assert "no-terminal" in {one.check for one in findings(tmp_path, **fields)}
