"""Mistakes of users' tickets: each is found in the program that has it, and not in the one that is right."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from checked import SLURM, each_mistake, findings, found

DDP = """
import argparse, os, torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset, random_split
dist.init_process_group("gloo")
rank, local_rank = dist.get_rank(), int(os.environ["LOCAL_RANK"])
net = DistributedDataParallel(torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
data = TensorDataset(torch.rand(64, 4))
sampler = DistributedSampler(data)
loader = DataLoader(data, 8, sampler=sampler)
for epoch in range(3):
    sampler.set_epoch(epoch)
    for (x,) in loader:
        optimizer.zero_grad()
        net(x).square().mean().backward()
        optimizer.step()
    {end}
dist.destroy_process_group()
"""

CLASS = """
import torch, torch.distributed as dist, torch.distributed.checkpoint as dcp
class Meter:
    def __init__(self): self.total = torch.zeros(1)
    def compute(self):
        dist.all_reduce(self.total)
        return self.total
class Saver:
    def __init__(self, every): self.every = every
    def save(self, step):
        if step % self.every == 0:
            dcp.save({}, checkpoint_id="c")
dist.init_process_group("gloo")
meter = Meter()
saver = Saver(10)
for step in range(100):
    {use}
dist.destroy_process_group()
"""

SPAWN = """
import argparse, torch, torch.distributed as dist, torch.multiprocessing as mp
def worker(gpu, n, args):
    {rank}
    dist.init_process_group("gloo", init_method=args.init_method, world_size={size}, rank=args.rank)
    dist.destroy_process_group()
if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--init_method"); parser.add_argument("--rank", type=int)
    parser.add_argument("--world_size", type=int); parser.add_argument("--procs", type=int, default=2)
    args = parser.parse_args()
    mp.spawn(worker, args=(args.procs, args), nprocs=args.procs)
"""

FLAT = """
import torch, torch.distributed as dist
dist.init_process_group("gloo")
net = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for step in range(10):
    loss = net(torch.rand(8 // 2, 4)).mean() / accum
    loss.backward()
    flat = torch.cat([p.grad.view(-1) for p in net.parameters()])
    dist.all_reduce(flat)
    {divide}
    at = 0
    for p in net.parameters():
        p.grad.copy_(flat[at:at + p.numel()].view_as(p))
        at += p.numel()
    optimizer.step()
dist.destroy_process_group()
"""

METHOD = """
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
class Trainer:
    def __init__(self, net):
        self.net = {wrap}(net)
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.1)
    def average(self):
        for p in self.net.parameters():
            dist.all_reduce(p.grad)
            p.grad /= dist.get_world_size()
    def run(self, train):
        if train:
            self.net(torch.rand(8, 4)).mean().backward()
            self.average()
            self.optimizer.step()
dist.init_process_group("gloo")
Trainer(torch.nn.Linear(4, 1)).run(bool(torch.rand(1) > 0))
dist.destroy_process_group()
"""

ACCELERATE = """
import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader
accelerator = Accelerator()
net = torch.nn.Linear(4, 1)
loader = DataLoader(torch.rand(64, 4), batch_size=8)
{prepare}
for x in loader:
    accelerator.backward(net(x).mean())
"""


TRAINING = """
import os, torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, IterableDataset, TensorDataset
def train(model, loader, optimizer):
    for step, x in enumerate(loader):
        loss = model(x.cuda()).mean()
        loss.backward()
        optimizer.step()
def evaluate(model, rank):
    total = torch.zeros(1, device="cuda")
    dist.all_reduce(total)
    return total
def main():
    local_rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local_rank)
    dist.init_process_group("nccl")
    rank = dist.get_rank()
    data = TensorDataset(torch.rand(64, 4))
    sampler = DistributedSampler(data)
    loader = DataLoader(data, 8, sampler=sampler)
    model = torch.nn.Linear(4, 1).cuda()
    ddp = DDP(model, device_ids=[local_rank])
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
    for epoch in range(3):
        sampler.set_epoch(epoch)
        train(ddp, loader, optimizer)
        evaluate(ddp, rank)
    dist.destroy_process_group()
if __name__ == "__main__":
    main()
"""


def changed(*changes: str) -> str:
    """Return the training on GPUs with some of its texts (each first) replaced by others (each second)."""
    text = TRAINING
    for old, new in zip(changes[::2], changes[1::2], strict=True):
        assert old in text, old
        text = text.replace(old, new)
    return text


INIT = 'dist.init_process_group("nccl")'
WRAP = "ddp = DDP(model, device_ids=[local_rank])"
OPTIMIZER = "optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)"
BACKWARD = "loss.backward()"
STREAM = """
class Lines(IterableDataset):
    def __iter__(self):
        for number, line in enumerate(open("lines.txt")):
            {take}
def train("""
NO_SYNC = """for step, x in enumerate(loader):
        with model.no_sync() if {test} else nullcontext():
            loss = model(x.cuda()).mean()"""
GRADIENTS = """
import torch, torch.distributed as dist
dist.init_process_group("gloo")
torch.manual_seed({seed})
net = torch.nn.Linear(4, 1)
net(torch.rand(8, 4)).mean().backward()
for p in net.parameters():
    dist.all_reduce(p.grad)
    p.grad /= dist.get_world_size()
dist.destroy_process_group()
"""
FSDP = """
import torch, torch.distributed as dist
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, StateDictType
dist.init_process_group("nccl")
model = torch.nn.Linear(4, 1).cuda(dist.get_rank())
{steps}
with FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT):
    {save}
dist.destroy_process_group()
"""
SHARDED = "optimizer = torch.optim.SGD(model.parameters())"


def ddp(end: str) -> str:
    """Return the training with another last line in each epoch."""
    return DDP.replace("{end}", end)


CASES: list[tuple[str, str, str, dict[str, Any]]] = [
    # what is checked, the wrong program, the right one, and fields of the job
    (
        "saved-by-all",
        ddp('torch.save(net.state_dict(), "last.pt")'),
        ddp('if rank == 0: torch.save(net.state_dict(), "last.pt")'),
        {},
    ),
    (
        "saved-by-all",
        ddp('torch.save(net.state_dict(), "last.pt")'),
        ddp('torch.save(net.state_dict(), f"last-{rank}.pt")'),
        {},
    ),
    (
        "loaded-by-one",
        ddp('if rank == 0: optimizer.load_state_dict(torch.load("last.pt")["optimizer"])'),
        ddp('optimizer.load_state_dict(torch.load("last.pt")["optimizer"])'),
        {},
    ),
    (
        "rank-0-collective",
        CLASS.replace("{use}", "if dist.get_rank() == 0: print(meter.compute())"),
        CLASS.replace("{use}", "meter.compute()"),
        {},
    ),
    (
        "rank-0-collective",
        CLASS.replace("{use}", "if dist.get_rank() == 0: saver.save(step)"),
        CLASS.replace("{use}", "saver.save(step)"),
        {},
    ),
    (
        "sampler-and-shuffle",
        ddp("pass").replace("sampler=sampler)", "sampler=sampler, shuffle=True)"),
        ddp("pass"),
        {},
    ),
    (
        "part-of-node",
        ddp("pass").replace("DistributedSampler(data)", "DistributedSampler(data, num_replicas=2, rank=local_rank)"),
        ddp("pass").replace("DistributedSampler(data)", "DistributedSampler(data, num_replicas=4, rank=rank)"),
        {},
    ),
    (
        "split-by-rank",
        ddp("pass").replace("data =", "torch.manual_seed(1 + rank)\nrandom_split(range(9), [5, 4])\ndata ="),
        ddp("pass").replace(
            "data =", "torch.manual_seed(1 + rank)\nrandom_split(range(9), [5, 4], generator=torch.Generator())\ndata ="
        ),
        {},
    ),
    (
        "same-ranks",
        SPAWN.replace("{rank}", "args.rank = gpu").replace("{size}", "args.world_size * n"),
        SPAWN.replace("{rank}", "args.rank = args.rank * n + gpu").replace("{size}", "args.world_size * n"),
        {"mode": "spawn"},
    ),
    (
        "fixed-world-size",
        SPAWN.replace("{rank}", "args.rank = args.rank * n + gpu").replace("{size}", "args.world_size"),
        SPAWN.replace("{rank}", "args.rank = args.rank * n + gpu").replace("{size}", "args.world_size * n"),
        {"mode": "spawn", "resources": {"nodes": 2}},
    ),
    (
        "fixed-world-size",
        ddp("world_size = torch.cuda.device_count()"),
        ddp("world_size = dist.get_world_size()"),
        {"backend": SLURM},
    ),
    (
        "sum-not-divided",
        FLAT.replace("{divide}", "pass"),
        FLAT.replace("{divide}", "flat /= dist.get_world_size()"),
        {},
    ),
    (
        "double-averaging",
        METHOD.replace("{wrap}", "DistributedDataParallel"),
        METHOD.replace("{wrap}", "torch.nn.Sequential"),
        {},
    ),
    (
        "rank-env",
        ddp('print(int(os.environ["SLURM_PROCID"]))'),
        ddp('print(int(os.environ["RANK"]))'),
        {},
    ),
    (
        "fixed-device",
        ddp('if epoch > 1: torch.cuda.set_device(0)\n    print(f"cuda:{local_rank}")'),
        ddp('if epoch > 1: torch.cuda.set_device(local_rank)\n    print(f"cuda:{local_rank}")'),
        {"backend": SLURM},
    ),
    (
        "rank-as-device",
        ddp('device = "cuda"\n    if epoch: device = f"cuda:{rank}"'),
        ddp('device = "cuda"\n    if epoch: device = f"cuda:{local_rank}"'),
        {"backend": SLURM},
    ),
    (
        "no-sampler",
        ACCELERATE.replace("{prepare}", "net = accelerator.prepare(net)"),
        ACCELERATE.replace("{prepare}", "net, loader = accelerator.prepare(net, loader)"),
        {"backend": SLURM},
    ),
    (
        "lightning-nodes",
        "import lightning as L\nL.Trainer(devices=2, strategy='ddp').fit(model)\n",
        "import lightning as L\nL.Trainer(devices=2, num_nodes=2, strategy='ddp').fit(model)\n",
        {"backend": SLURM},
    ),
    ("same-ranks", changed(INIT, INIT.replace(")", ", rank=local_rank, world_size=4)")), TRAINING, {}),
    (
        "no-init",
        changed(INIT, "", "ddp = DDP", f"{INIT}; ddp = DDP", "rank = dist.get_rank()", "rank = 0"),
        TRAINING,
        {},
    ),
    ("no-init", changed(INIT, "", "rank = dist.get_rank()", f"rank = dist.get_rank(); {INIT}"), TRAINING, {}),
    ("second-init", changed(INIT, f"{INIT}; {INIT}"), TRAINING, {}),
    ("rank-0-collective", changed("    total =", "    if rank != 0:\n        return None\n    total ="), TRAINING, {}),
    ("rank-0-collective", changed(WRAP, f"if rank != 0: exit()\n    {WRAP}"), TRAINING, {}),
    (
        "rank-0-collective",
        changed("    data =", "    if rank < 2: group = dist.new_group([0, 1])\n    data ="),
        changed("    data =", "    group = dist.new_group([0, 1])\n    data ="),
        {},
    ),
    (
        "rank-0-collective",
        FSDP.replace("{steps}", "model = FSDP(model)").replace("{save}", "if dist.get_rank() == 0: model.state_dict()"),
        FSDP.replace("{steps}", "model = FSDP(model)").replace("{save}", "model.state_dict()"),
        {"backend": SLURM},
    ),
    (
        "left-by-one",
        changed("        evaluate(ddp, rank)", "        if rank == 0 and evaluate(ddp, rank) < 1: break"),
        changed("        evaluate(ddp, rank)", "        if evaluate(ddp, rank) < 1: break"),
        {},
    ),
    (
        "left-by-one",
        changed(BACKWARD, f"if not torch.isfinite(loss): continue\n        {BACKWARD}"),
        changed(BACKWARD, f"if not torch.isfinite(loss): print(loss)\n        {BACKWARD}"),
        {},
    ),
    ("tensor-on-cpu", changed('torch.zeros(1, device="cuda")', "torch.zeros(1)"), TRAINING, {"backend": SLURM}),
    ("not-a-tensor", changed("    dist.all", "    total = total.item()\n    dist.all"), TRAINING, {}),
    (
        "fixed-world-size",
        changed("    dist.all_reduce(total)", "    dist.all_gather([total for _ in range(2)], total)"),
        changed(
            "    dist.all_reduce(total)", "    dist.all_gather([total for _ in range(dist.get_world_size())], total)"
        ),
        {},
    ),
    (
        "other-roots",
        changed("    data =", "    dist.broadcast(torch.ones(1).cuda(), src=local_rank)\n    data ="),
        changed("    data =", "    dist.broadcast(torch.ones(1).cuda(), src=0)\n    data ="),
        {},
    ),
    (
        "other-groups",
        changed("    data =", "    dist.new_group(list(range(rank - local_rank, rank + 1)))\n    data ="),
        changed("    data =", "    for node in range(2): dist.new_group([2 * node, 2 * node + 1])\n    data ="),
        {},
    ),
    (
        "not-awaited",
        changed("(total)", "(total, async_op=True)"),
        changed("dist.all_reduce(total)", "dist.all_reduce(total, async_op=True).wait()"),
        {},
    ),
    ("model-on-cpu", changed("(4, 1).cuda()", "(4, 1)"), TRAINING, {"backend": SLURM}),
    ("bypassed", changed("train(ddp,", "for x in loader: model(x).mean().backward()\n        print("), TRAINING, {}),
    ("bypassed", changed("= model(x", "= model.module(x"), TRAINING, {}),
    ("two-wrappers", changed(WRAP, f"model = torch.nn.DataParallel(model)\n    {WRAP}"), TRAINING, {}),
    (
        "two-wrappers",
        changed(WRAP, f"{WRAP}\n    ddp = torch.nn.SyncBatchNorm.convert_sync_batchnorm(ddp)"),
        changed(WRAP, f"model = torch.nn.SyncBatchNorm.convert_sync_batchnorm(model)\n    {WRAP}"),
        {},
    ),
    (
        "thawed-later",
        changed(WRAP, f"model.requires_grad_(False)\n    {WRAP}\n    model.requires_grad_(True)"),
        changed(WRAP, f"{WRAP}\n    model.requires_grad_(False); model.requires_grad_(True)"),
        {},
    ),
    (
        "optimizer-too-early",
        FSDP.replace("{steps}", f"{SHARDED}\nmodel = FSDP(model)").replace("{save}", "pass"),
        FSDP.replace("{steps}", f"model = FSDP(model)\n{SHARDED}").replace("{save}", "pass"),
        {"backend": SLURM},
    ),
    ("never-synchronized", changed(BACKWARD, f"with model.no_sync(): {BACKWARD}"), TRAINING, {}),
    (
        "never-synchronized",
        changed("for step, x in enumerate(loader):\n        loss = model(x.cuda()).mean()", NO_SYNC).replace(
            "{test}", "(step + 1) % 4 == 0"
        ),
        changed("for step, x in enumerate(loader):\n        loss = model(x.cuda()).mean()", NO_SYNC).replace(
            "{test}", "(step + 1) % 4 != 0"
        ),
        {},
    ),
    (
        "unequal-start",
        GRADIENTS.replace("{seed}", "1 + dist.get_rank()"),
        GRADIENTS.replace("{seed}", "1"),
        {},
    ),
    ("fixed-device", changed("    torch.cuda.set_device(local_rank)\n", ""), TRAINING, {"backend": SLURM}),
    ("fixed-device", changed("set_device(local_rank)", "set_device(0)"), TRAINING, {"backend": SLURM}),
    (
        "hidden-gpus",
        changed("import os, torch", 'import os; os.environ["CUDA_VISIBLE_DEVICES"] = "0"\nimport torch'),
        changed("import os, torch", 'import os; os.environ["CUDA_VISIBLE_DEVICES"] = "0,1"\nimport torch'),
        {"backend": SLURM},
    ),
    (
        "no-sampler",
        changed("\ndef train(", STREAM, "data = Tensor", "Lines(); data = Tensor").replace("{take}", "yield line"),
        changed("\ndef train(", STREAM, "data = Tensor", "Lines(); data = Tensor").replace(
            "{take}", "if number % self.world_size == self.rank: yield line"
        ),
        {},
    ),
    (
        "part-of-node",
        changed("Sampler(data)", 'Sampler(data, num_replicas=int(os.environ["LOCAL_WORLD_SIZE"]), rank=rank)'),
        TRAINING,
        {},
    ),
    (
        "saved-by-all",
        changed("    dist.destroy", '    if local_rank == 0: torch.save(model, "/shared/last.pt")\n    dist.destroy'),
        changed("    dist.destroy", '    if rank == 0: torch.save(model, "/shared/last.pt")\n    dist.destroy'),
        {},
    ),
    ("no-terminal", changed("    data =", '    input("start? ")\n    data ='), TRAINING, {}),
    (
        "no-checkpoint",
        changed(
            "import os",
            "import time, os",
            "    data =",
            '    torch.load("/a"); torch.save(1, f"/{time.time()}")\n    data =',
        ),
        changed("    data =", '    torch.load("/a"); torch.save(1, "/a")\n    data ='),
        {"restarts": {"max": 1}},
    ),
    (
        "rank-env",
        changed("rank = dist.get_rank()", 'rank = int(os.environ["SLURM_PROCID"])'),
        TRAINING,
        {"backend": SLURM},
    ),
    (
        "prepared-by-one",
        "import lightning as L\nclass Data(L.LightningDataModule):\n    def prepare_data(self): self.classes = 3\n",
        "import lightning as L\nclass Data(L.LightningDataModule):\n    def setup(self, stage): self.classes = 3\n",
        {},
    ),
    ("no-terminal", changed("    data =", "    breakpoint()\n    data ="), TRAINING, {}),
    (
        "no-checkpoint",
        ddp("net.load_state_dict(other.state_dict())"),
        ddp('net.load_state_dict(torch.load("last.pt"))'),
        {"restarts": {"max": 1}},
    ),
]


@each_mistake(CASES)
def test_a_mistake_is_found_where_it_is(
    check: str, wrong: str, right: str, fields: dict[str, Any], tmp_path: Path
) -> None:
    assert check in found(tmp_path, wrong, **fields)
    assert check not in found(tmp_path, right, **fields)


def test_more_processes_than_gpus(tmp_path: Path) -> None:
    text = ddp("torch.cuda.set_device(local_rank)")
    assert "more-processes" in found(tmp_path, text, backend=SLURM, resources={"nodes": 2, "nproc_per_node": 4})
    assert "more-processes" not in found(tmp_path, text, backend=SLURM)


def test_a_configuration_that_an_argument_names_must_be_there(tmp_path: Path) -> None:
    text = "import argparse\np = argparse.ArgumentParser()\np.add_argument('--config')\n"
    text += "args = p.parse_args()\nopen(args.config)\n"
    assert "not-there" in found(tmp_path, text, hyperparameters={"config": "conf/a.yaml"})
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf/a.yaml").touch()
    assert "not-there" not in found(tmp_path, text, hyperparameters={"config": "conf/a.yaml"})


@pytest.mark.parametrize(
    ("command", "is_found"),
    [
        ('python train.py --num-machines "$NNODES"', True),
        ('python train.py --num-machines "$NNODES" --machine-rank "$NODE_RANK"', False),
        ("python train.py --epochs 3", False),
    ],
)
def test_a_command_must_say_which_node_it_is(command: str, is_found: bool, tmp_path: Path) -> None:
    assert ("launcher-nodes" in found(tmp_path, "print(1)\n", command=["bash", "-c", command])) == is_found


@pytest.mark.parametrize(
    ("script", "is_checked"),
    [
        ("python train.py \\\n  --lr 0.1\n", True),
        ("set -e\npip install x\nexport OMP_NUM_THREADS=1\npython train.py --lr 0.1", True),
        ("export RANK=$NODE_RANK && python train.py --lr 0.1", True),
        ("cd inner; python train.py --lr 0.1", False),
        ("python train.py --lr 0.1 2>&1 | tee log", True),
        ("echo train.py --lr 0.1 | xargs python", False),
    ],
)
def test_a_script_of_the_shell_is_read_as_far_as_it_is_clear(script: str, is_checked: bool, tmp_path: Path) -> None:
    text = "import argparse\np = argparse.ArgumentParser()\np.add_argument('--epochs')\np.parse_args()\n"
    assert ("argument-unknown" in found(tmp_path, text, command=["bash", "-c", script])) == is_checked


def test_the_only_command_of_a_typer_app_is_followed(tmp_path: Path) -> None:
    body = ddp('torch.save(net.state_dict(), "last.pt")').replace("\n", "\n    ")
    text = f"import typer\napp = typer.Typer()\n@app.command()\ndef train(lr: float = 0.1):\n    {body}\napp()\n"
    assert "saved-by-all" in found(tmp_path, text)


def test_an_unknown_option_before_a_positional_word_is_refused(tmp_path: Path) -> None:
    text = "import click\n@click.command()\n@click.option('--lr')\n@click.argument('what')\ndef run(lr, what): pass\n"
    text += "run()\n"
    assert "argument-unknown" in found(tmp_path, text, args=["--rate", "0.1", "train"])
    assert "argument-unknown" not in found(tmp_path, text, args=["--lr", "0.1", "train"])


def test_an_argument_that_the_start_script_adds_is_not_missing(tmp_path: Path) -> None:
    text = "import argparse\np = argparse.ArgumentParser()\np.add_argument('--checkpoint-dir', required=True)\n"
    text += "print(p.parse_args().checkpoint_dir)\n"
    assert "argument-missing" in found(tmp_path, text)
    assert found(tmp_path, text, checkpoint_dir="/shared/run") == set()


def test_a_checkpoint_that_is_loaded_where_a_directory_is_given(tmp_path: Path) -> None:
    text = "import argparse, torch\np = argparse.ArgumentParser()\np.add_argument('--checkpoint_dir', default='')\n"
    text += "args = p.parse_args()\nif args.checkpoint_dir:\n    torch.load(args.checkpoint_dir + '/last.pt')\n"
    assert "no-checkpoint" in found(tmp_path, text, restarts={"max": 1})
    assert "no-checkpoint" not in found(tmp_path, text, restarts={"max": 1}, checkpoint_dir="/shared/run")


def test_a_folder_beside_the_code_is_not_uploaded(tmp_path: Path) -> None:
    (tmp_path / "code").mkdir()
    text = "import argparse, sys\nsys.path.append('..')\np = argparse.ArgumentParser()\np.add_argument('--vocab')\n"
    text += "p.parse_args()\n"
    assert "left-out" in found(tmp_path / "code", text)
    (tmp_path / "vocab.json").touch()
    text = text.replace("sys.path.append('..')", "")
    assert "left-out" in found(tmp_path / "code", text, hyperparameters={"vocab": "../vocab.json"})
    assert "left-out" not in found(tmp_path / "code", text, hyperparameters={"vocab": "../none.json"})


@pytest.mark.parametrize("of_batches", [(32, True), (16, False)])
def test_batches_of_deepspeed_fit_the_processes(of_batches: tuple[int, bool], tmp_path: Path) -> None:
    total, is_wrong = of_batches
    sizes = {"train_batch_size": total, "train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 2}
    (tmp_path / "ds.json").write_text(json.dumps(sizes))
    text = "import deepspeed\nmodel = 1\ndeepspeed.initialize(model=model, config='ds.json')\n"
    assert ("deepspeed-batch" in found(tmp_path, text)) == is_wrong


@pytest.mark.parametrize(
    ("script", "check"),
    [
        ('#!/bin/bash\nset -e\nexec torchrun --nproc_per_node=2 train.py "$@"\n', "launcher-nodes"),
        ("torchrun --nnodes=$NNODES --node_rank=$RANK --nproc_per_node=2 train.py\n", "launcher-nodes"),
        ("python train.py --rate 1\n", "argument-unknown"),
    ],
)
def test_a_script_that_a_command_names_is_read(script: str, check: str, tmp_path: Path) -> None:
    (tmp_path / "run.sh").write_text(script)
    text = "import argparse\np = argparse.ArgumentParser()\np.add_argument('--epochs')\np.parse_args()\n"
    assert check in found(tmp_path, text, command=["bash", "run.sh"])


def test_an_interface_that_does_not_leave_the_machine(tmp_path: Path) -> None:
    env = {"NCCL_SOCKET_IFNAME": "lo"}
    assert "loopback" in found(tmp_path, TRAINING, backend=SLURM, env=env)
    assert "loopback" not in found(tmp_path, TRAINING, env=env)


def test_a_platform_that_starts_the_boot_file_itself_sets_no_variables_of_the_start_script(tmp_path: Path) -> None:
    text = "import os, torch.multiprocessing as mp\ndef work(rank): pass\n"
    text += "mp.spawn(work, nprocs=int(os.environ['NPROC_PER_NODE']))\n"
    resources = {"nodes": 2, "flavor": "x", "nproc_per_node": 2}
    assert "rank-env" in found(tmp_path, text, mode="spawn", backend={"kind": "modelarts"}, resources=resources)
    assert "rank-env" not in found(tmp_path, text, mode="spawn")


def test_what_an_installed_package_of_the_code_does_is_not_known(tmp_path: Path) -> None:
    (tmp_path / "scripts").mkdir()
    (tmp_path / "mylib").mkdir()
    (tmp_path / "mylib/__init__.py").write_text("import torch.distributed as dist\ndist.init_process_group('gloo')\n")
    text = "import torch\nfrom torch.nn.parallel import DistributedDataParallel\nimport {}\n"
    text += "DistributedDataParallel(torch.nn.Linear(1, 1))\n"
    (tmp_path / "scripts/run.py").write_text(text.replace("{}", "mylib"))
    assert "no-init" not in found(tmp_path, "", boot_file="scripts/run.py")
    (tmp_path / "scripts/run.py").write_text(text.replace("{}", "json"))
    assert "no-init" in found(tmp_path, "", boot_file="scripts/run.py")


def test_the_backward_of_a_function_does_not_average_gradients(tmp_path: Path) -> None:
    function = "class Gather(torch.autograd.Function):\n    @staticmethod\n    def backward(ctx, *grads):\n"
    function += "        stacked = torch.stack(grads)\n        dist.all_reduce(stacked)\n        return stacked[0]\n"
    text = function.join(ddp("x = Gather.apply(x)").split("dist.init", 1)).replace("class", "class", 1)
    text = text.replace("return stacked[0]\n_process", "return stacked[0]\ndist.init_process")
    assert {"double-averaging", "sum-not-divided"}.isdisjoint(found(tmp_path, text))


TWICE = """
import argparse
parser = argparse.ArgumentParser()
parser.add_argument("data")
parser.add_argument("--lr", type=float)
parser.add_argument("--tag", action="append")
parser.parse_args()
"""


def test_a_hyperparameter_that_args_give_again_has_no_effect(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TWICE)
    given: dict[str, Any] = {"hyperparameters": {"lr": 0.5, "tag": "a"}}
    (twice,) = findings(tmp_path, **given, args=["base", "--lr", "0.1", "--tag", "b"])
    assert (twice.check, twice.level, twice.where) == ("argument-twice", "warning", "hyperparameters.lr")
    assert findings(tmp_path, **given, args=["base", "--tag", "b"]) == []
