"""Mistakes beside code that seems to make them right: unused, of another loader, of another figure or file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from checked import GPUS, IMPORTED, RESTARTED, STARTED, TWO, each_mistake, findings, found, with_files

VOLCANO: dict[str, Any] = {
    "kind": "volcano",
    "resources": {"nvidia.com/gpu": 2},
    "volumes": [{"claim": "results", "path": "/results"}],
}
TRAIN = """
def train(net):
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    data = TensorDataset(torch.rand(64, 4))
    sampler = DistributedSampler(data)
    for epoch in range(3):
        sampler.set_epoch(epoch)
        for (x,) in DataLoader(data, batch_size=4, sampler=sampler):
            loss = net(x.cuda()).mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            {inside}
"""
# Nothing wraps the model, in a program that asks for the wrapper elsewhere and averages its losses.
ALONE = f"""{STARTED}
class AverageMeter:
    def sync(self):
        tensor = torch.tensor([self.count, self.total]).cuda()
        dist.all_reduce(tensor)
def reduce_tensor(tensor):
    dist.all_reduce(tensor)
    return tensor / dist.get_world_size()
def unwrap(model):
    return model.module if isinstance(model, DDP) else model
{TRAIN.format(inside="torch.cuda.synchronize(); print(reduce_tensor(loss.detach()))")}
net = nn.Linear(4, 4).cuda()
{{wrap}}
train(net)
torch.save(unwrap(net).state_dict(), f"/shared/{{{{rank}}}}.pt")
"""
# A handle that is only collected.
COLLECTED = f"""{STARTED}
def average(net):
    handles = []
    for p in net.parameters():
        handles.append(dist.all_reduce(p.grad, async_op=True))
        {{then}}
    {{after}}
def stop(process):
    process.wait()
net = nn.Linear(4, 4).cuda()
for step in range(3):
    net(torch.rand(2, 4).cuda()).mean().backward()
    average(net)
"""
# A figure of rank 0 alone, in a program that sends something else to all.
REDUCED = f"""{STARTED}
names = [str(rank)]
dist.broadcast_object_list(names, src=0)
def train(net, stopper):
    for epoch in range(3):
        loss = net(torch.rand(2, 4).cuda()).mean()
        loss.backward()
        total = loss.detach()
        {{reduce}}
        if stopper.step(total.item()):
            break
class EarlyStopper:
    def step(self, value):
        return value < 0.1
early_stopper = EarlyStopper()
net = DDP(nn.Linear(4, 4).cuda())
for epoch in range(3):
    loss = net(torch.rand(2, 4).cuda()).mean()
    loss.backward()
    total = loss.detach()
    {{reduce}}
    if early_stopper.step(total.item()):
        break
"""
# A count divided by the size of all data, beside an average of the losses of the training.
COUNTED = f"""{STARTED}
def reduce_mean(tensor):
    dist.all_reduce(tensor)
    return tensor / dist.get_world_size()
data = TensorDataset(torch.rand(64, 4), torch.zeros(64))
loader = DataLoader(data, batch_size=4, sampler=DistributedSampler(data, shuffle=False))
net = DDP(nn.Linear(4, 4).cuda())
def accuracy():
    correct = torch.zeros(1).cuda()
    for x, y in loader:
        correct += (net(x.cuda()).argmax(1) == y.cuda()).sum()
    {{combine}}
    return correct / len(loader.dataset)
for epoch in range(3):
    loss = net(torch.rand(2, 4).cuda()).mean()
    loss.backward()
    print(reduce_mean(loss.detach()))
    print(accuracy())
"""
# A device that is only made, beside tensors of other types.
MADE = f"""{IMPORTED}
def init():
    rank, gpu = int(os.environ["RANK"]), int(os.environ["LOCAL_RANK"])
    {{choose}}
    dist.init_process_group("nccl", rank=rank, world_size=int(os.environ["WORLD_SIZE"]))
    return gpu
gpu = init()
device = torch.device("cuda")
net = nn.Linear(4, 4)
net.to(device)
net = DDP(net, device_ids=[gpu])
for step in range(3):
    x = torch.rand(2, 4)
    net(x.to(torch.float32).to(x.dtype).to(device)).mean().backward()
"""
# Meters of a validation, of which one is combined at the end.
METERS = f"""{STARTED}
class AverageMeter:
    def __init__(self):
        self.sum, self.count, self.avg = 0, 0, 0
    def update(self, value, n=1):
        self.sum, self.count = self.sum + value * n, self.count + n
        self.avg = self.sum / self.count
def reduce_tensor(tensor):
    dist.all_reduce(tensor)
    return tensor / dist.get_world_size()
def validate(net, loader):
    losses, top1 = AverageMeter(), AverageMeter()
    for x, y in loader:
        out = net(x.cuda())
        losses.update(out.mean().item(), x.size(0))
        top1.update((out.argmax(1) == y.cuda()).float().mean().item(), x.size(0))
    loss = reduce_tensor(torch.tensor(losses.avg).cuda()).item()
    accuracy = {{accuracy}}
    return {{{{"loss": loss, "top1": {{returned}}}}}}
data = TensorDataset(torch.rand(64, 4), torch.zeros(64))
loader = DataLoader(data, batch_size=4, sampler=DistributedSampler(data, shuffle=False))
net = DDP(nn.Linear(4, 4).cuda())
for epoch in range(3):
    net(torch.rand(2, 4).cuda()).mean().backward()
    print(validate(net, loader))
"""
# A program that imports a wrapper of a library, and does not use it.
ARGUMENT = """
import argparse, os, torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from mmcv.parallel import MMDistributedDataParallel as MMDDP
parser = argparse.ArgumentParser()
parser.add_argument("--local_rank", type=int, default={default})
args = parser.parse_args()
torch.cuda.set_device(args.local_rank)
dist.init_process_group("nccl")
net = DDP(torch.nn.Linear(4, 4).cuda(), device_ids=[args.local_rank])
for step in range(3):
    net(torch.rand(2, 4).cuda()).mean().backward()
"""
# The epoch is given to a sampler that the loader does not use.
EPOCHS = f"""{STARTED}
data = TensorDataset(torch.rand(64, 4))
batches = torch.utils.data.BatchSampler(DistributedSampler(data), 4, drop_last=True)
loader = DataLoader(data, batch_sampler=batches)
net = DDP(nn.Linear(4, 4).cuda())
for epoch in range(3):
    if hasattr({{sampler}}, "set_epoch"):
        {{sampler}}.set_epoch(epoch)
    for (x,) in loader:
        net(x.cuda()).mean().backward()
"""
# A helper that loads each of some models, behind a condition with two parts.
RESTORED = f"""{STARTED}
parser = argparse.ArgumentParser()
parser.add_argument("--resume", action="store_true")
parser.add_argument("--arch", default="small")
args = parser.parse_args()
def restart_from(path, **parts):
    if not os.path.isfile(path):
        return
    checkpoint = torch.load(path, map_location="cpu")
    for key, value in parts.items():
        if key in checkpoint and value is not None:
            try:
                value.load_state_dict(checkpoint[key], strict=False)
            except TypeError:
                value.load_state_dict(checkpoint[key])
def main(args):
    student = torch.hub.load("group/models", args.arch)
    teacher = torch.hub.load("group/models", args.arch)
    student, teacher = student.cuda(), teacher.cuda()
    if any(isinstance(one, nn.BatchNorm1d) for one in student.modules()):
        teacher = DDP(teacher)
    student = DDP(student)
    if args.resume{{only}}:
        restart_from("/shared/last.pt", student=student, teacher=teacher, scaler=torch.amp.GradScaler())
    for step in range(3):
        student(torch.rand(2, 4).cuda()).mean().backward()
main(args)
"""
# All processes of an Accelerate program write the same folder.
CACHED = """
import os, torch
from accelerate import Accelerator
from datasets import load_dataset, load_from_disk
def tokenized(path):
    if not os.path.isdir(path):
        load_dataset("csv", data_files="/data/all.csv").map(len).save_to_disk(path)
    return load_from_disk(path)
accelerator = Accelerator()
{prepare}
net, loader = accelerator.prepare(torch.nn.Linear(4, 4), torch.utils.data.DataLoader(data, shuffle=True))
for x in loader:
    accelerator.backward(net(x).mean())
"""
# A question before the group is made, as the second part of a condition whose first part is known.
ASKED = f"""{IMPORTED}
parser = argparse.ArgumentParser()
parser.add_argument("--distributed", action="store_true")
args = parser.parse_args()
def main():
    {{before}}
    dist.init_process_group("nccl")
    {{after}}
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    net = DDP(nn.Linear(4, 4).cuda())
    net(torch.rand(2, 4).cuda()).mean().backward()
    dist.destroy_process_group()
main()
"""
QUIET = "if args.distributed and dist.get_rank() != 0: print = str"
# A folder of a pod that is no volume.
STAGED = """
import argparse, os, torch
from accelerate import Accelerator
from datasets import load_dataset
from huggingface_hub import snapshot_download
parser = argparse.ArgumentParser()
parser.add_argument("--data_dir")
args = parser.parse_args()
accelerator = Accelerator()
if accelerator.is_main_process:
    snapshot_download("group/data", repo_type="dataset", local_dir=args.data_dir)
accelerator.wait_for_everyone()
data = load_dataset("json", data_files=os.path.join(args.data_dir, "train.json"))
net, loader = accelerator.prepare(torch.nn.Linear(4, 4), torch.utils.data.DataLoader(data, shuffle=True))
for x in loader:
    accelerator.backward(net(x).mean())
"""
# A step of a Trainer that asks the model for what only the model has.
TRAINER = """
import torch
from transformers import Trainer, TrainingArguments, AutoModel
class Penalized(AutoModel):
    def penalty(self):
        return 0
class PenaltyTrainer(Trainer):
    def compute_loss(self, model, inputs, return_outputs=False, **kwargs):
        loss = super().compute_loss(model, inputs)
        if model.training:
            loss = loss + {penalty}
        return loss
PenaltyTrainer(Penalized.from_pretrained("a"), TrainingArguments("/shared/out"{more})).train()
"""
# A checkpoint that is loaded only if an option is given, beside weights that the training begins with.
RESUMED = f"""{STARTED}
parser = argparse.ArgumentParser()
parser.add_argument("--teacher_path", default="/shared/teacher.pt")
parser.add_argument("--student_resume_path", default="")
args = parser.parse_args()
def load_pretrained(model, path):
    model.load_state_dict(torch.load(path))
def load_resume_state(model, path):
    model.load_state_dict(torch.load(path)["model"])
net = nn.Linear(4, 4).cuda()
path = args.teacher_path
if os.path.exists(path):
    load_pretrained(net, path)
path = {{path}}
if path:
    if os.path.exists(path):
        load_resume_state(net, path)
net = DDP(net)
for step in range(3):
    net(torch.rand(2, 4).cuda()).mean().backward()
if rank == 0:
    torch.save({{{{"model": net.module.state_dict()}}}}, "/shared/last.pt")
"""
# Gradients that are clipped in a function, in a job with GPUs.
CLIPPED = f"""{STARTED}
parser = argparse.ArgumentParser()
parser.add_argument("--amp", action="store_true")
args = parser.parse_args()
def pick():
    if torch.cuda.is_available() and torch.cuda.get_device_capability(0) in torch.cuda.get_arch_list():
        return torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    return torch.device("cpu")
device = pick()
scaler = torch.amp.GradScaler("cuda", enabled=args.amp and device.type == "cuda")
def step(net, optimizer):
    {{unscale}}
    nn.utils.clip_grad_norm_(net.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
net = DDP(nn.Linear(4, 4).cuda())
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for _ in range(3):
    scaler.scale(net(torch.rand(2, 4).cuda()).mean()).backward()
    step(net, optimizer)
"""
WITH_DATA = {**GPUS, "hyperparameters": {"resume": {"flag": True}}}
IN_PODS = {"backend": VOLCANO, "store": {"uri": "s3://jobs/code"}, "image": "pytorch/pytorch"}


@each_mistake(
    [
        ("never-synchronized", ALONE.format(wrap=""), ALONE.format(wrap="net = DDP(net)"), GPUS),
        (
            "not-awaited",
            COLLECTED.format(then="torch.cuda.current_device()", after=""),
            COLLECTED.format(then="pass", after="[handle.wait() for handle in handles]"),
            GPUS,
        ),
        (
            "reduced-to-one",
            REDUCED.format(reduce="dist.reduce(total, 0)"),
            REDUCED.format(reduce="dist.reduce(total, 0); dist.broadcast(total, 0)"),
            GPUS,
        ),
        ("part-as-whole", COUNTED.format(combine=""), COUNTED.format(combine="dist.all_reduce(correct)"), GPUS),
        (
            "fixed-device",
            MADE.format(choose="torch.device(gpu)"),
            MADE.format(choose="torch.cuda.set_device(gpu)"),
            GPUS,
        ),
        (
            "part-as-whole",
            METERS.format(accuracy="top1.avg", returned="top1.avg"),
            METERS.format(accuracy="reduce_tensor(torch.tensor(top1.avg).cuda()).item()", returned="accuracy"),
            GPUS,
        ),
        ("local-rank", ARGUMENT.format(default=0), ARGUMENT.format(default='int(os.environ["LOCAL_RANK"])'), GPUS),
        ("set-epoch", EPOCHS.format(sampler="loader.sampler"), EPOCHS.format(sampler="batches.sampler"), GPUS),
        ("loaded-by-one", RESTORED.format(only=" and rank == 0"), RESTORED.format(only=""), WITH_DATA),
        (
            "saved-by-all",
            CACHED.format(prepare='data = tokenized("/shared/tokenized")'),
            CACHED.format(prepare='with accelerator.main_process_first():\n    data = tokenized("/shared/tokenized")'),
            GPUS,
        ),
        (
            "no-init",
            ASKED.format(before=QUIET, after=""),
            ASKED.format(before="", after=QUIET),
            {**GPUS, "hyperparameters": {"distributed": {"flag": True}}},
        ),
        (
            "wrapped-attribute",
            TRAINER.format(penalty="model.penalty()", more=""),
            TRAINER.format(penalty="self.accelerator.unwrap_model(model).penalty()", more=""),
            GPUS,
        ),
        (
            "wrapped-attribute",
            TRAINER.format(penalty="model.penalty()", more=""),
            TRAINER.format(penalty="model.penalty()", more=', deepspeed="ds.json"'),
            GPUS,
        ),
        (
            "no-checkpoint",
            RESUMED.format(path="args.student_resume_path"),
            RESUMED.format(path='"/shared/last.pt"'),
            RESTARTED,
        ),
        (
            "clipped-scaled",
            CLIPPED.format(unscale="pass"),
            CLIPPED.format(unscale="scaler.unscale_(optimizer)"),
            {**GPUS, "hyperparameters": {"amp": {"flag": True}}},
        ),
    ]
)
def test_the_mistake_is_found_and_the_right_code_passes(
    check: str, wrong: str, right: str, fields: dict[str, Any], tmp_path: Path
) -> None:
    assert check in found(tmp_path, wrong, **fields)
    assert check not in found(tmp_path, right, **fields)


@pytest.mark.parametrize(("folder", "is_wrong"), [("/workspace/data", True), ("/results/data", False)])
def test_a_folder_of_a_pod_that_is_no_volume(folder: str, is_wrong: bool, tmp_path: Path) -> None:
    seen = found(tmp_path, STAGED, hyperparameters={"data_dir": folder}, **IN_PODS)
    assert ("staged-by-one" in seen) is is_wrong


SETTINGS = f"""{IMPORTED}
import configparser
def settings():
    config = configparser.ConfigParser()
    config.optionxform = lambda option: option.upper()
    if not config.read(os.path.join("conf", "train.ini")):
        config.read("default.ini")
    return config
def init(config):
    if {{condition}}:
        dist.init_process_group("nccl")
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
init(settings())
net = nn.Linear(4, 4).cuda()
for step in range(3):
    net(torch.rand(2, 4).cuda()).mean().backward()
"""


@pytest.mark.parametrize(
    "condition",
    [
        'config.get("Training", "DIST") == "ON"',
        'config["Training"].get("dist") == "ON"',
        'config.getboolean("Training", "dist")',
        'config.get("Training", "size", fallback="1") == "2"',
        'config.has_option("Training", "size")',
    ],
)
def test_a_setting_that_configparser_reads(condition: str, tmp_path: Path) -> None:
    for said, is_wrong in (("DIST = OFF", True), ("DIST = ON\nSIZE = 2", False)):
        with_files(tmp_path, {"conf/train.ini": f"# the training\n[Training]\n{said}\nOUT = ${{DIR}}/out\n"})
        assert ("no-init" in found(tmp_path, SETTINGS.format(condition=condition), **GPUS)) is is_wrong


LIGHTNING = "from lightning.pytorch.cli import LightningCLI\nLightningCLI()\n"
DATA = (
    "from lightning import LightningDataModule\nfrom parts.{module} import made\nclass Data(LightningDataModule): ...\n"
)


@pytest.mark.parametrize(("module", "is_wrong"), [("layers", False), ("other", True)])
def test_a_module_that_a_class_of_lightning_cli_imports(module: str, is_wrong: bool, tmp_path: Path) -> None:
    with_files(
        tmp_path,
        {
            "conf.yaml": "data:\n  class_path: parts.data.Data\n",
            "parts/data.py": DATA.format(module=module),
            "parts/layers.py": "made = 1\n",
        },
    )
    seen = found(tmp_path, LIGHTNING, args=["fit", "--config", "conf.yaml", "--trainer.num_nodes=2"], **GPUS)
    assert ("imports" in seen or "missing-module" in seen or "module" in seen) is is_wrong


def test_what_the_extras_of_a_requirement_bring(tmp_path: Path) -> None:
    for line, is_wrong in (("lightning>=2", True), ("lightning[pytorch-extra]>=2", False)):
        with_files(tmp_path, {"requirements.txt": f"{line}\n"})
        missing = ["jsonargparse", "lightning"]
        (tmp_path / "train.py").write_text(LIGHTNING)
        seen = findings(tmp_path, missing, args=["fit"], requirements="requirements.txt")
        assert any("jsonargparse" in finding.text for finding in seen) is is_wrong


CONFIGURED = """
import torch
sizes = "1,2,4"
out_dir = "out"
max_iters = 10
exec(open("configurator.py").read())
print(out_dir, max_iters)
"""
CONFIGURATOR = """
import sys
from ast import literal_eval
for arg in sys.argv[1:]:
    key, val = arg.split("=")
    key = key[2:]
    if key in globals():
        try:
            attempt = literal_eval(val)
        except (SyntaxError, ValueError):
            attempt = val
        assert type(attempt) == type(globals()[key])
        globals()[key] = attempt
    else:
        raise ValueError(f"Unknown config key: {key}")
"""


def test_a_default_of_nanogpt_that_reads_like_a_tuple(tmp_path: Path) -> None:
    with_files(tmp_path, {"configurator.py": CONFIGURATOR, "train.py": CONFIGURED})
    seen = findings(tmp_path, args=["--out_dir=/out", "--max_iters=5e3"])
    assert [one.text.partition(":")[0] for one in seen if one.level == "error"] == ["--max_iters=5e3"]


@pytest.mark.parametrize(("path", "is_wrong"), [("conf/net/config.json", True), ("conf/unet/config.json", False)])
def test_a_configuration_in_a_folder_that_does_not_exist(path: str, is_wrong: bool, tmp_path: Path) -> None:
    text = (
        "import argparse, os, torch\nparser = argparse.ArgumentParser()\nparser.add_argument('--unet_config')\n"
        "args = parser.parse_args()\nif os.path.exists(args.unet_config):\n    print(args.unet_config)\n"
    )
    with_files(tmp_path, {"conf/unet/config.json": "{}"})
    assert ("not-there" in found(tmp_path, text, hyperparameters={"unet_config": path})) is is_wrong


SIDE_BY_SIDE = """
for ((i = 0; i < {count}; i++)); do
    python train.py --rank $((NODE_RANK * NPROC_PER_NODE + i)) --world-size $((NNODES * NPROC_PER_NODE)) {sign}
done
wait
"""
BY_RANK = """
import argparse, os, torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
parser = argparse.ArgumentParser()
parser.add_argument("--rank", type=int, default=0)
parser.add_argument("--world-size", type=int, default=1)
args = parser.parse_args()
address = f'tcp://{os.environ["MASTER_ADDR"]}:{os.environ["MASTER_PORT"]}'
dist.init_process_group("gloo", init_method=address, rank=args.rank, world_size=args.world_size)
net = DDP(torch.nn.Linear(4, 4))
net(torch.rand(2, 4)).mean().backward()
dist.destroy_process_group()
"""


@pytest.mark.parametrize(
    ("count", "sign", "is_wrong"),
    [("NPROC_PER_NODE", "&", False), ("2", "> log 2>&1 &", False), ("1", "&", True), ("NPROC_PER_NODE", "", True)],
)
def test_a_script_that_starts_each_process(count: str, sign: str, is_wrong: bool, tmp_path: Path) -> None:
    with_files(tmp_path, {"run.sh": SIDE_BY_SIDE.format(count=count, sign=sign)})
    assert bool(found(tmp_path, BY_RANK, command=["bash", "run.sh"], resources=TWO)) is is_wrong
