"""Mistakes in code that was copied and changed: vocoders, llama2.c, EDM, Megatron, Swin, and their start commands."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from checked import GPUS, RESTARTED, each_mistake, findings, found

TO_SPAWN: dict[str, Any] = {**GPUS, "mode": "spawn", "resources": {"nodes": 2}, "hyperparameters": {"gpus": 2}}
JOINED = """
import argparse, glob, json, os, time, yaml, torch, torch.distributed as dist, torch.nn as nn
import torch.multiprocessing as mp
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, IterableDataset, TensorDataset
from torch.utils.data.distributed import DistributedSampler
"""
STARTED = f"""{JOINED}
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
dist.init_process_group("nccl")
rank = dist.get_rank()
world_size = dist.get_world_size()
"""
ATTACHED = """
def with_allreduce(net):
    for p in net.state_dict().values():
        dist.broadcast(p, 0)
    def allreduce_gradients():
        grads = [p.grad.data for p in net.parameters()]
        flat = torch._utils._flatten_dense_tensors(grads)
        dist.all_reduce(flat)
        {divide}
        for one, new in zip(grads, torch._utils._unflatten_dense_tensors(flat, grads)):
            one.copy_(new)
    net.allreduce_gradients = allreduce_gradients
    return net
net = with_allreduce(nn.Linear(4, 1).cuda())
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for step in range(9):
    net(torch.rand(2, 4).cuda()).sum().backward()
    net.allreduce_gradients()
    optimizer.step()
"""
IN_ONE_PLACE = """
net = nn.Linear(4, 1).cuda()
for p in net.parameters():
    dist.broadcast(p.data, 0)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
start = time.time()
for step in range(9):
    net(torch.rand(2, 4).cuda()).sum().backward()
    all_grads = torch.cat([p.grad.view(-1) for p in net.parameters()])
    dist.all_reduce(all_grads, op=dist.ReduceOp.SUM)
    offset = 0
    for p in net.parameters():
        p.grad.data.copy_(all_grads[offset : offset + p.numel()].view_as(p.grad){divide})
        offset += p.numel()
    optimizer.step()
    print(int(step * world_size / (time.time() - start)))
"""
ASKED = """
class Generator(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(4, 4)
    def forward(self, x):
        return self.net(x)
    def infer(self, x):
        return self.net(x)
generator, other = DDP(Generator().cuda()), DDP(nn.Linear(4, 1).cuda())
generator(torch.rand(2, 4).cuda()).sum().backward()
if rank == 0:
    torch.save(generator.module.state_dict(), "/shared/last.pt")
    generator{module}.infer(torch.rand(2, 4))
"""
TESTED = """
class Evaluator:
    def __init__(self, loader):
        self.loader = loader
    def __call__(self, net):
        hits, count = 0, 0
        for (x,) in self.loader:
            hits += int(net(x.cuda()).sum() > 0)
            count += 1
        return hits / count
data = TensorDataset(torch.rand(8, 4))
evaluator = Evaluator(DataLoader(data, sampler={sampler}))
net = DDP(nn.Linear(4, 1).cuda())
net(torch.rand(2, 4).cuda()).sum().backward()
score = evaluator(net.module)
if rank == 0:
    print(score)
"""
TESTED_BY_METHOD = """
class Trainer:
    def __init__(self):
        data = TensorDataset(torch.rand(8, 4))
        self.val_loader = DataLoader(data, sampler=DistributedSampler(data, shuffle=False))
        self.net = DDP(nn.Linear(4, 1).cuda())
    def train_epoch(self):
        self.net(torch.rand(2, 4).cuda()).sum().backward()
    def validate(self):
        hits = torch.zeros(1).cuda()
        for (x,) in self.val_loader:
            hits += self.net.module(x.cuda()).sum()
        {combine}
        return hits.item()
trainer = Trainer()
trainer.train_epoch()
print(trainer.validate())
"""
CONFIGURED = """
parser = argparse.ArgumentParser()
parser.add_argument("--cfg", default="config.yaml")
args = parser.parse_args()
with open(args.cfg) as f:
    cfg = yaml.safe_load(f)
net = DDP(nn.Linear(4, 1).cuda())
folder = cfg["train"]["folder"]
for epoch in range(9):
    net(torch.rand(2, 4).cuda()).sum().backward()
    {guard}torch.save(net.module.state_dict(), folder + "/checkpoint_%d.pth" % epoch)
"""
TIMED = """
net = DDP(nn.Linear(4, 1).cuda())
elapsed, start = 0.0, time.perf_counter()
while elapsed < 600:
    net(torch.rand(2, 4).cuda()).sum().backward()
    elapsed = time.perf_counter() - start
    {agree}
"""
SHUFFLED = """
class Tokens(IterableDataset):
    def __init__(self, split, length):
        self.split, self.length = split, length
    def __iter__(self):
        info = torch.utils.data.get_worker_info()
        seed = 42 + (info.id if info else 0){by_rank}
        if not dist.is_initialized() or dist.get_rank() == 0:
            print(f"seed {{seed}}")
        generator = torch.Generator().manual_seed(seed)
        while True:
            yield torch.rand(self.length, generator=generator)
class Task:
    @staticmethod
    def batches(**settings):
        data = Tokens(**settings)
        yield from DataLoader(data, batch_size=2)
net = DDP(nn.Linear(4, 1).cuda())
for batch in Task.batches(split="train", length=4):
    net(batch.cuda()).sum().backward()
"""
HANDED = """
def train_one_epoch(net, loader):
    for (x,) in loader:
        net(x.cuda()).sum().backward()
data = TensorDataset(torch.rand(8, 4))
sampler = DistributedSampler(data)
net = nn.Linear(4, 1).cuda()
net_without_ddp = net
net = DDP(net)
for epoch in range(3):
    sampler.set_epoch(epoch)
    train_one_epoch({given}, DataLoader(data, sampler=sampler))
    if rank == 0:
        torch.save(net_without_ddp.state_dict(), "/shared/last.pt")
    net(torch.rand(2, 4).cuda())
"""
KEPT = """
_ARGS = None
def set_args():
    global _ARGS
    parser = argparse.ArgumentParser()
    parser.add_argument("--save", default="/shared/run")
    args = parser.parse_args()
    _ARGS = args
def get_args():
    assert _ARGS is not None
    return _ARGS
def save(net):
    args = get_args()
    if rank == 0:
        torch.save({{"net": net.state_dict(), "args": {args}}}, args.save + "/last.pt")
def load(net):
    net.load_state_dict(torch.load(get_args().save + "/last.pt")["net"])
set_args()
net = nn.Linear(4, 1).cuda()
load(net)
save(net)
"""
SUMMED = f"""{JOINED}
def worker(local_rank, machine_rank, world_size, gpus, url):
    torch.cuda.set_device(local_rank)
    rank = machine_rank{{times}} + local_rank
    dist.init_process_group("nccl", init_method=url, world_size=world_size, rank=rank)
def launch(gpus, machines, machine_rank, url):
    mp.spawn(worker, nprocs=gpus, args=(machine_rank, gpus * machines, gpus, url))
parser = argparse.ArgumentParser()
parser.add_argument("--gpus", type=int, default=1)
parser.add_argument("--world_size", type=int, default=1)
parser.add_argument("--rank", type=int, default=0)
parser.add_argument("--init_method")
if __name__ == "__main__":
    args = parser.parse_args()
    launch(args.gpus, args.world_size, args.rank, args.init_method)
"""
EDM = f"""
import click
{STARTED}
def training_loop(batch_size, batch_gpu, lr):
    per_rank = batch_size // dist.get_world_size()
    if batch_gpu is None or batch_gpu > per_rank:
        batch_gpu = per_rank
    rounds = per_rank // batch_gpu
    assert batch_size == batch_gpu * rounds * dist.get_world_size()
@click.command()
@click.option("--batch", "batch_size", type=click.IntRange(min=1), default={{batch}})
@click.option("--batch-gpu", type=click.IntRange(min=1), default=2)
@click.option("--lr", type=float, default=0.1)
def main(**kwargs):
    training_loop(**kwargs)
if __name__ == "__main__":
    main()
"""
VERSIONED = f"""{STARTED}
MAJOR = int(torch.__version__.split(".")[0])
parser = argparse.ArgumentParser()
if MAJOR == 1:
    parser.add_argument("--local_rank", type=int, required=True)
args = parser.parse_args()
"""
SAVES = "if rank == 0: "


@each_mistake(
    [
        (
            "sum-not-divided",
            STARTED + ATTACHED.format(divide="pass"),
            ATTACHED.format(divide="flat /= world_size"),
            GPUS,
        ),
        (
            "sum-not-divided",
            STARTED + IN_ONE_PLACE.format(divide=""),
            IN_ONE_PLACE.format(divide=" / world_size"),
            GPUS,
        ),
        ("wrapped-attribute", STARTED + ASKED.format(module=""), ASKED.format(module=".module"), GPUS),
        (
            "part-as-whole",
            STARTED + TESTED.format(sampler="DistributedSampler(data, shuffle=False)"),
            TESTED.format(sampler="None"),
            GPUS,
        ),
        (
            "part-as-whole",
            STARTED + TESTED_BY_METHOD.format(combine="pass"),
            TESTED_BY_METHOD.format(combine="dist.all_reduce(hits)"),
            GPUS,
        ),
        ("saved-by-all", STARTED + CONFIGURED.format(guard=""), CONFIGURED.format(guard=SAVES), GPUS),
        (
            "left-by-one",
            STARTED + TIMED.format(agree="pass"),
            TIMED.format(agree="box = [elapsed]; dist.broadcast_object_list(box, src=0); elapsed = box[0]"),
            GPUS,
        ),
        ("no-sampler", STARTED + SHUFFLED.format(by_rank=""), SHUFFLED.format(by_rank=" + 7 * dist.get_rank()"), GPUS),
        ("bypassed", STARTED + HANDED.format(given="net_without_ddp"), HANDED.format(given="net"), GPUS),
        ("pickled-object", STARTED + KEPT.format(args="args"), KEPT.format(args="vars(args)"), RESTARTED),
        ("same-ranks", SUMMED.format(times=""), SUMMED.format(times=" * gpus"), TO_SPAWN),
        ("unfulfilled", EDM.format(batch=12), EDM.format(batch=16), GPUS),
    ]
)
def test_a_mistake_is_found(check: str, wrong: str, right: str, fields: dict[str, Any], tmp_path: Path) -> None:
    assert check in found(tmp_path, wrong, **fields)
    right = right if right.startswith("\nimport") else STARTED + right
    assert check not in found(tmp_path, right, **fields)


@pytest.mark.parametrize(("version", "wrong"), [("1.13", {"argument-missing"}), ("2.4", set())])
def test_a_version_of_torch_decides(version: str, wrong: set[str], tmp_path: Path) -> None:
    assert found(tmp_path, VERSIONED, torch_version=version, **GPUS) == wrong


@pytest.mark.parametrize("ranks", ["get_rank()", "get_rank(group)"])
def test_ranks_of_a_group_may_begin_with_other_parameters(ranks: str, tmp_path: Path) -> None:
    text = f"""{STARTED}
group = dist.new_group(list(range(world_size)))
torch.manual_seed(dist.{ranks} // 2)
net = nn.Linear(4, 1).cuda()
net(torch.rand(2, 4).cuda()).sum().backward()
for p in net.parameters():
    p.grad /= 2
    dist.all_reduce(p.grad, group=group)
"""
    assert "unequal-start" not in found(tmp_path, text, **GPUS)
    assert "unequal-start" in found(tmp_path, text.replace(", group=group", ""), **GPUS)


def test_gradients_that_the_wrapper_is_told_to_leave_alone(tmp_path: Path) -> None:
    text = f"""{STARTED}
net = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1)).cuda()
experts = [p for name, p in net.named_parameters() if name.startswith("0")]
DDP._set_params_and_buffers_to_ignore_for_model(net, ["0.weight", "0.bias"])
model = DDP(net)
model(torch.rand(2, 4).cuda()).sum().backward()
for p in experts:
    p.grad.div_(world_size)
"""
    assert "divided-again" not in found(tmp_path, text, **GPUS)
    told = "DDP._set_params_and_buffers_to_ignore_for_model"
    assert "divided-again" in found(tmp_path, text.replace(told, "print"), **GPUS)


def test_layers_of_a_model_that_is_not_trained(tmp_path: Path) -> None:
    text = f"""{STARTED}
class Teacher(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))
    def forward(self, x):
        for layer in self.layers:
            if torch.rand(1) > 0.1:
                x = layer(x)
        return x
class Student(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)
    def forward(self, x):
        return self.layer(x)
teacher = Teacher().cuda()
teacher.eval()
student = Student().cuda()
student = DDP(student)
student(teacher(torch.rand(2, 4).cuda())).sum().backward()
"""
    assert "unused-parameters" not in found(tmp_path, text, **GPUS)
    assert "unused-parameters" in found(tmp_path, text.replace("DDP(student)", "DDP(teacher)"), **GPUS)


@pytest.mark.parametrize(
    ("word", "is_found"),
    [("--weight_decay=0", True), ("--weight_decay=0.0", False), ("--dataset=7", True), ("--dataset=wiki", False)],
)
def test_a_configurator_takes_the_type_of_the_variable(word: str, is_found: bool, tmp_path: Path) -> None:
    (tmp_path / "configurator.py").write_text(
        "import sys\nfor word in sys.argv[1:]:\n    key, text = word[2:].split('=')\n    globals()[key] = eval(text)\n"
    )
    text = f"weight_decay = 0.1\ndataset = 'web'\nexec(open('configurator.py').read()){STARTED}"
    assert ("argument-type" in found(tmp_path, text, args=[word], **GPUS)) is is_found


@pytest.mark.parametrize(("batch", "wrong"), [(7, {"unfulfilled"}), (8, set())])
def test_a_file_of_python_that_is_run_for_its_variables(batch: int, wrong: set[str], tmp_path: Path) -> None:
    (tmp_path / "base.py").write_text(f"data = dict(kind='wiki', batch={batch})\n")
    text = f"""{STARTED}
import runpy
parser = argparse.ArgumentParser()
parser.add_argument("config")
settings = runpy.run_path(parser.parse_args().config)
def build(data):
    data = dict(data)
    batch, kind = data.pop("batch"), data.pop("kind")
    assert batch % world_size == 0
build(settings["data"])
"""
    assert found(tmp_path, text, args=["base.py"], **GPUS) == wrong


def test_words_of_a_command_stand_before_those_of_its_data(tmp_path: Path) -> None:
    """`--hard 3` of the command is one option with its value, whatever folders come after it."""
    text = f"""{STARTED}
parser = argparse.ArgumentParser()
for name in ("--hard", "--data", "--more", "--lr"):
    parser.add_argument(name)
parser.parse_args()
"""
    command = ["torchrun", "--nnodes=2", "--nproc_per_node=2", "train.py", "--hard", "3"]
    data = [{"name": name, "uri": f"/shared/{name}", "as": "hyperparameter"} for name in ("data", "more")]
    (tmp_path / "train.py").write_text(text)
    said = findings(tmp_path, command=command, inputs=data, hyperparameters={"lr": 1}, **GPUS)
    assert not [one for one in said if one.check.startswith("argument-")]


@pytest.mark.parametrize(
    ("args", "settings", "is_found"),
    [
        ([], "{}", True),
        (["--trainer.num_nodes=2"], "{}", False),
        (["--trainer.num_nodes", "2"], "{}", False),
        (["--trainer.num_nodes", "3"], "{}", True),
        ([], '{"num_nodes": 2}', False),
        ([], '{"num_nodes": int(os.environ["NNODES"])}', False),
    ],
)
def test_nodes_of_a_command_line_of_lightning(args: list[str], settings: str, is_found: bool, tmp_path: Path) -> None:
    text = "import os\nfrom lightning.pytorch.cli import LightningCLI\nclass Net: ...\n"
    text += f"LightningCLI(Net, trainer_defaults={settings})\n"
    assert ("lightning-nodes" in found(tmp_path, text, args=["fit", *args], **GPUS)) is is_found


@pytest.mark.parametrize(
    ("line", "is_found"),
    [
        ("glob.glob('data/*.bin')", True),
        ("list(Path('data').glob('*.bin'))", True),
        ("assert os.path.exists('data/a.bin')", True),
        ("if not Path('data/a.bin').is_file():\n    raise FileNotFoundError('data')", True),
        ("if os.path.exists('data/a.bin'):\n    print('resumed')", False),
        ("glob.glob('data/*.txt')", False),
        ("glob.glob('checkpoints/*.bin')", False),
    ],
)
def test_files_that_a_program_searches_for_or_demands(line: str, is_found: bool, tmp_path: Path) -> None:
    for name in ("data/a.bin", "data/b.bin", "data/c.txt", "checkpoints/a.bin"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / ".gitignore").write_text("*.bin\n")
    text = f"import glob, os\nfrom pathlib import Path\n{line}\n"
    assert ("left-out" in found(tmp_path, text, **GPUS)) is is_found


@pytest.mark.parametrize(
    ("command", "wrong"),
    [
        (["python", "-m", "missing_module"], "packages"),
        (["python", "-m", "project.missing"], "boot-file"),
        (["python", "-m", "project.train"], ""),
        (["python", "-m", "json.tool"], ""),
        (["bash", "-c", "cd project && python -m missing"], ""),
    ],
)
def test_a_module_that_a_command_executes(command: list[str], wrong: str, tmp_path: Path) -> None:
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / "train.py").touch()
    said = findings(tmp_path, missing=["missing_module", "missing"], command=command)
    errors = [one.check for one in said if one.level == "error" and one.where == "command"]
    assert errors == ([wrong] if wrong else [])


def test_settings_that_a_script_reads_are_known_in_other_files(tmp_path: Path) -> None:
    """A file for the rank's own data is another one in each process; one that holds settings is the same."""
    (tmp_path / "config.json").write_text(json.dumps({"folder": "/shared/run"}))
    text = f"""{STARTED}
with open("config.json") as file:
    folder = json.load(file)["folder"]
net = DDP(nn.Linear(4, 1).cuda())
net(torch.rand(2, 4).cuda()).sum().backward()
torch.save(net.module.state_dict(), f"{{folder}}/last.pt")
"""
    assert "saved-by-all" in found(tmp_path, text, **GPUS)
