"""Mistakes in how repositories start, write their results, gather what they need and measure themselves."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from checked import GPUS, IMPORTED, RESTARTED, STARTED, each_mistake, findings, found, with_files

ORDERED = (
    STARTED
    + """
sampler = DistributedSampler(TensorDataset(torch.rand(64, 4)))
loader = DataLoader(sampler.dataset, sampler=sampler)
{before}
for epoch in range(9):
    {inside}
    for batch in loader:
        pass
"""
)
OWN_METHOD = (
    STARTED
    + """
def unwrap(model):
    return model.module if hasattr(model, "module") else model
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)
    def forward(self, x):
        return self.layer(x)
    def loss(self, x):
        return self.layer(x).sum()
def step(model, optimizer, x):
    net = unwrap(model)
    loss = {loss}
    loss.backward()
    optimizer.step()
model = DDP(Net().cuda())
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for number in range(9):
    step(model, optimizer, torch.rand(2, 4).cuda())
"""
)
RELATIVE = (
    IMPORTED
    + """
def is_main_process():
    return dist.get_rank() == 0
def save_on_master(*args, **kwargs):
    if is_main_process():
        torch.save(*args, **kwargs)
def save_model(args, epoch, model):
    for path in [os.path.join(args.output_dir, "checkpoint-%d.pth" % epoch)]:
        save_on_master({"model": model.state_dict()}, path)
parser = argparse.ArgumentParser()
parser.add_argument("--output_dir", default="./output")
args = parser.parse_args()
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
dist.init_process_group("nccl")
model = DDP(nn.Linear(4, 4).cuda())
saved = sorted(glob.glob(os.path.join(args.output_dir, "checkpoint-*.pth")))
if saved:
    model.load_state_dict(torch.load(saved[-1], map_location="cpu")["model"])
for epoch in range(3):
    model(torch.rand(2, 4).cuda()).sum().backward()
    save_model(args, epoch, model)
"""
)
PLATEAU = (
    STARTED
    + """
class AverageMeter:
    def __init__(self):
        self.sum = self.count = self.avg = 0
    def update(self, value, n=1):
        self.sum += value * n
        self.count += n
        self.avg = self.sum / self.count
def evaluate(loader, model):
    losses = AverageMeter()
    for (x,) in loader:
        losses.update(model(x.cuda()).sum().item(), len(x))
    {averaged}
    return losses.avg
def accuracy(loader, model):
    accs = AverageMeter()
    total = torch.tensor(accs.avg).cuda()
    dist.all_reduce(total)
    accs.avg = total.item() / 4
    return accs.avg
data = TensorDataset(torch.rand(64, 4))
sampler = DistributedSampler(data)
loader = DataLoader(data, sampler=sampler)
model = DDP(nn.Linear(4, 4).cuda())
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)
for epoch in range(3):
    sampler.set_epoch(epoch)
    for (x,) in loader:
        model(x.cuda()).sum().backward()
        optimizer.step()
    scheduler.step(evaluate(loader, model))
    accuracy(loader, model)
"""
)
OVER_ALL = "total = torch.tensor(losses.avg).cuda(); dist.all_reduce(total); losses.avg = total.item() / 4"
NUMBERED_FOLDERS = (
    STARTED
    + """
parser = argparse.ArgumentParser()
parser.add_argument("--name", default=None)
args = parser.parse_args()
def run_folder(root, name):
    if name:
        return os.path.join(root, name)
    found = [int(one.split("-")[0]) for one in os.listdir(root)]
    number = max(found) + 1 if found else 0
    return os.path.join(root, f"{number:05d}-run")
folder = run_folder("/shared/runs", args.name)
model = DDP(nn.Linear(4, 4).cuda())
last = os.path.join(folder, "last.pt")
if os.path.exists(last):
    model.load_state_dict(torch.load(last, map_location="cpu"))
for epoch in range(9):
    model(torch.rand(2, 4).cuda()).sum().backward()
    if rank == 0:
        os.makedirs(folder, exist_ok=True)
        torch.save(model.state_dict(), last)
"""
)
SHARDED = (
    STARTED
    + """
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
parser = argparse.ArgumentParser()
parser.add_argument("--plain", action="store_true")
args = parser.parse_args()
net = nn.Linear(4, 4).cuda()
model = DDP(net) if args.plain else FSDP(net)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(9):
    model(torch.rand(2, 4).cuda()).sum().backward()
    if {condition}:
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    else:
        model.clip_grad_norm_(1.0)
    optimizer.step()
"""
)
SUMMED = (
    STARTED
    + """
def sum_over_ranks(parameters):
    for p in parameters:
        dist.all_reduce(p.grad)
def policy_loss(model, x):
    logp = model(x)
    return -logp.mean(){divided}
model = nn.Linear(4, 4).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for number in range(9):
    optimizer.zero_grad()
    policy_loss(model, torch.rand(2, 4).cuda()).backward()
    sum_over_ranks(model.parameters())
    optimizer.step()
"""
)
STEPPED = """
import torch, torch.nn as nn, yaml
from types import SimpleNamespace
from accelerate import Accelerator
from torch.utils.data import DataLoader, TensorDataset
cfg = SimpleNamespace(**yaml.safe_load(open("c.yaml")))
accelerator = Accelerator({given})
loader = DataLoader(TensorDataset(torch.rand(64, 4)))
model = nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
for number, (x,) in enumerate(loader):
    with accelerator.accumulate(model):
        accelerator.backward(model(x).sum() / cfg.accum_steps)
        optimizer.step()
        optimizer.zero_grad()
"""
SPLIT = (
    IMPORTED
    + """
class Settings(dict):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.__dict__ = self
def train(rank, h):
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", init_method="tcp://127.0.0.1:29501", world_size=h.num_gpus, rank=rank)
    data = TensorDataset(torch.rand(64, 4))
    loader = DataLoader(data, batch_size=h.batch_size, sampler=DistributedSampler(data))
    model = DDP(nn.Linear(4, 4).cuda())
def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--config")
    a = parser.parse_args()
    with open(a.config) as file:
        data = file.read()
    h = Settings(json.loads(data))
    h.num_gpus = torch.cuda.device_count()
    h.batch_size = int(h.batch_size / h.num_gpus)
    mp.spawn(train, nprocs=h.num_gpus, args=(h,))
if __name__ == "__main__":
    main()
"""
)


def filled(text: str, **values: str) -> str:
    """Put values into a program, whose other braces stay as they are."""
    for name, value in values.items():
        text = text.replace(f"{{{name}}}", value)
    return text


def changed(text: str, wrong: dict[str, str], right: dict[str, str]) -> tuple[str, str]:
    return filled(text, **wrong), filled(text, **right)


TWO_GPUS: dict[str, Any] = {**GPUS, "resources": {"nodes": 1, "nproc_per_node": 2}}


@each_mistake(
    [
        (
            "set-epoch",
            *changed(
                ORDERED,
                {"before": "sampler.set_epoch(int(os.environ['START']))", "inside": "pass"},
                {"before": "pass", "inside": "sampler.set_epoch(epoch)"},
            ),
            GPUS,
        ),
        ("bypassed", *changed(OWN_METHOD, {"loss": "net.loss(x)"}, {"loss": "model(x).sum()"}), GPUS),
        ("own-learning-rate", *changed(PLATEAU, {"averaged": "pass"}, {"averaged": OVER_ALL}), GPUS),
        ("clipped-by-part", *changed(SHARDED, {"condition": "not args.plain"}, {"condition": "args.plain"}), GPUS),
        (
            "sum-not-divided",
            *changed(SUMMED, {"divided": ""}, {"divided": " / dist.get_world_size()"}),
            GPUS,
        ),
        (
            "never-accumulated",
            *changed(STEPPED, {"given": ""}, {"given": "gradient_accumulation_steps=cfg.accum_steps"}),
            GPUS,
        ),
    ]
)
def test_mistakes_in_code(tmp_path: Path, check: str, wrong: str, right: str, fields: dict[str, Any]) -> None:
    with_files(tmp_path, {"c.yaml": "accum_steps: 4\n"})
    assert check in found(tmp_path, wrong, **fields)
    assert check not in found(tmp_path, right, **fields)


def test_each_restart_takes_the_next_number_for_its_folder(tmp_path: Path) -> None:
    assert "no-checkpoint" in found(tmp_path, NUMBERED_FOLDERS, **RESTARTED)
    assert "no-checkpoint" not in found(tmp_path, NUMBERED_FOLDERS, **RESTARTED, args=["--name", "first"])


def test_checkpoints_in_a_folder_that_the_next_start_does_not_have(tmp_path: Path) -> None:
    job: dict[str, Any] = {"restarts": 3, "image": "registry.test/torch:2.1", "store": {"uri": "s3://jobs/a"}}
    job["backend"] = {"kind": "volcano", "namespace": "a", "volumes": [{"path": "/shared", "claim": "shared"}]}
    assert "no-checkpoint" in found(tmp_path, RELATIVE, **job)
    assert "no-checkpoint" not in found(tmp_path, RELATIVE, **job, args=["--output_dir", "/shared/out"])


@pytest.mark.parametrize(("batch", "expected"), [(1, True), (8, False)])
def test_a_setting_that_is_changed_before_the_processes_start(tmp_path: Path, batch: int, expected: bool) -> None:
    with_files(tmp_path, {"c.json": json.dumps({"batch_size": batch})})
    job: dict[str, Any] = {**TWO_GPUS, "command": "python train.py --config c.json"}
    assert ("empty-batch" in found(tmp_path, SPLIT, **job)) is expected


def test_one_number_for_all_nodes(tmp_path: Path) -> None:
    words = "torchrun --nnodes=2 --nproc_per_node=2 --node_rank {} --master_addr $MASTER_ADDR train.py"
    for number, expected in (("0", True), ("$NODE_RANK", False)):
        command = ["bash", "-c", words.format(number)]
        assert ("launcher-nodes" in found(tmp_path, STARTED, **GPUS, command=command)) is expected


def test_a_file_that_a_configuration_names_and_the_upload_leaves_out(tmp_path: Path) -> None:
    text = STARTED + "import yaml\nparser = argparse.ArgumentParser()\nparser.add_argument('--cfg')\n"
    text += "def read(path, changes):\n    settings = yaml.safe_load(open(path))\n"
    text += "    settings['net'].update(one.strip('-').split('=') for one in changes)\n    return settings['net']\n"
    text += "class Net:\n    def __init__(self, vocabulary):\n        self.words = json.load(open(vocabulary))\n"
    text += "args, more = parser.parse_known_args()\nnet = Net(**read(args.cfg, more))\n"
    files = {"c.yaml": "net: {vocabulary: words/all.json}\n", "words/all.json": "[]", ".gitignore": "words/\n"}
    with_files(tmp_path, files)
    assert "left-out" in found(tmp_path, text, **GPUS, args=["--cfg", "c.yaml"])
    assert "left-out" not in found(tmp_path, text, **GPUS, args=["--cfg", "c.yaml", "--vocabulary=/data/all.json"])


def test_two_unknown_parts_of_a_name_are_one_name(tmp_path: Path) -> None:
    text = STARTED + "def rows(kind, size):\n    return open(f'data/{kind}{size}.d/rows.csv')\n"
    (tmp_path / "train.py").write_text(text + "rows(os.environ['KIND'], os.environ['SIZE'])\n")
    with_files(tmp_path, {"data/small1.d/rows.csv": "", ".gitignore": "data/\n"})
    assert not [one for one in findings(tmp_path, **GPUS) if one.level == "unknown"]


def test_a_number_in_a_comment_of_a_script_is_none(tmp_path: Path) -> None:
    lines = [
        "# on one node: torchrun --node_rank 0 train.py",
        'torchrun --nnodes=2 --node_rank "$NODE_RANK" --master_addr a train.py',
    ]
    with_files(tmp_path, {"run.sh": "\n".join(lines)})
    assert "launcher-nodes" not in found(tmp_path, STARTED, **GPUS, command="bash run.sh")


def test_packages_that_the_setup_builds(tmp_path: Path) -> None:
    with_files(
        tmp_path,
        {
            "requirements.txt": "pesq\n",
            "ops/setup.py": "from setuptools import setup\nsetup(name='ops', ext_modules=[Ext('ops_cuda', [])])\n",
            "ops/ops_cuda.cpp": "",
        },
    )
    text = STARTED + "import ops_cuda, pesq\n"
    fields: dict[str, Any] = {**GPUS, "requirements": "requirements.txt"}
    assert "packages" in found(tmp_path, text, **fields)
    assert "packages" not in found(tmp_path, text, **fields, setup="cd ops && python setup.py install")
