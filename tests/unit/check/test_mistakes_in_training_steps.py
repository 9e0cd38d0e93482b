"""Mistakes in steps, validations and starts of repositories: vision, recommenders, speech, reinforcement learning."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from checked import GPUS, IMPORTED, RESTARTED, SLURM, STARTED, each_mistake, findings, found

SHUFFLED = (
    IMPORTED
    + """
class MoCo(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Linear(4, 4)
    @torch.no_grad()
    def _shuffle(self, x):
        order = torch.randperm(len(x)).cuda()
        dist.broadcast(order, src={source})
        return x[order]
    def forward(self, x):
        return self.encoder(self._shuffle(x))
def main_worker(gpu, count):
    torch.cuda.set_device(gpu)
    dist.init_process_group("nccl", init_method="tcp://127.0.0.1:29501", world_size=count, rank=gpu)
    model = DDP(MoCo().cuda(gpu), device_ids=[gpu])
    model(torch.rand(8, 4).cuda()).sum().backward()
if __name__ == "__main__":
    mp.spawn(main_worker, nprocs=2, args=(2,))
"""
)
EPOCHS = (
    STARTED
    + """
parser = argparse.ArgumentParser()
parser.add_argument("--start-epoch", type=int, default=0)
args = parser.parse_args()
data = TensorDataset(torch.rand(64, 4))
sampler = DistributedSampler(data)
loader = DataLoader(data, sampler=sampler)
for epoch in range(args.start_epoch, 9):
    sampler.set_epoch({epoch})
    for batch in loader:
        pass
"""
)
TWO_STEPS = (
    STARTED
    + """
class Trainer:
    def __init__(self):
        self.rank = dist.get_rank()
        self.model = nn.Linear(4, 4).cuda()
        self.model_ddp = DDP(self.model)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
    def train(self):
        for step in range(9):
            self.train_mat(torch.rand(2, 4).cuda())
            self.train_seg(torch.rand(2, 4).cuda())
            self.validate()
            self.save()
    def train_mat(self, x):
        self.model_ddp(x).sum().backward()
        self.optimizer.step()
    def train_seg(self, x):
        {called}(x).sum().backward()
        self.optimizer.step()
    def validate(self):
        if self.rank == 0:
            self.model_ddp.eval()
            with torch.no_grad():
                print(self.model(torch.rand(2, 4).cuda()).sum())
            self.model_ddp.train()
        dist.barrier()
    def save(self):
        if self.rank == 0:
            torch.save(self.model.state_dict(), "/shared/last.pt")
        dist.barrier()
Trainer().train()
"""
)
UNWRAPPED = (
    STARTED
    + """
class Restorer:
    def __init__(self):
        self.net = DDP(nn.Linear(4, 4).cuda())
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.1)
    def get_bare_model(self, net):
        if isinstance(net, DDP):
            net = net.module
        return net
    def optimize_parameters(self, x):
        {called}(x).sum().backward()
        self.optimizer.step()
Restorer().optimize_parameters(torch.rand(2, 4).cuda())
"""
)
VALIDATED = (
    STARTED
    + """
def is_master_proc(num_gpus=8):
    if dist.is_initialized():
        return dist.get_rank() % num_gpus == 0
    return True
def eval_epoch(model):
    loss = model(torch.rand(2, 4).cuda()).sum()
    dist.all_reduce(loss)
    return loss
model = DDP(nn.Linear(4, 4).cuda())
for epoch in range(3):
    model(torch.rand(2, 4).cuda()).sum().backward()
    if {condition}:
        eval_epoch(model)
"""
)
AVERAGED = (
    STARTED
    + """
model = nn.Linear(4, 4).cuda()
class Trainer:
    def __init__(self, model):
        self.ema_model = DDP(model)
        self.{name} = DDP(nn.Linear(4, 4).cuda())
    def reload(self):
        if dist.get_rank() == 0:
            self.{name}.load_state_dict(torch.load("/shared/a.pt", map_location="cpu"))
Trainer(model).reload()
"""
)
TWO_PHASES = (
    STARTED
    + """
def average_gradients(agent):
    for p in agent.parameters():
        dist.all_reduce(p.grad)
        p.grad /= dist.get_world_size()
agent = nn.Linear(4, 4).cuda()
optimizer = torch.optim.Adam(agent.parameters())
for phase in range(3):
    for update in range(3):
        optimizer.zero_grad()
        agent(torch.rand(2, 4).cuda()).sum().backward()
        average_gradients(agent)
        optimizer.step()
    for update in range(2):
        optimizer.zero_grad()
        agent(torch.rand(2, 4).cuda()).mean().backward()
        {average}
        nn.utils.clip_grad_norm_(agent.parameters(), 0.5)
        optimizer.step()
"""
)
STOPPED = (
    STARTED
    + """
def early_stopping(value, best, step):
    if value > best:
        return value, 0, False
    return best, step + 1, step > 3
class Other:
    def _valid_epoch(self, loader):
        return 0.0
class Trainer:
    def __init__(self):
        self.model = DDP(nn.Linear(4, 4).cuda())
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
    def _valid_epoch(self, loader):
        hits = count = 0
        for (x,) in loader:
            top = self.model.module(x.cuda()).topk(2).indices
            hits += (top == 1).any(1).sum().item()
            count += len(x)
        {combine}
        return hits / count
    def fit(self, loader):
        best, bad = -1.0, 0
        for epoch in range(9):
            for (x,) in loader:
                self.model(x.cuda()).sum().backward()
                self.optimizer.step()
            score = self._valid_epoch(loader)
            best, bad, stop = early_stopping(score, best, bad)
            if stop:
                break
data = TensorDataset(torch.rand(64, 4))
Trainer().fit(DataLoader(data, sampler=DistributedSampler(data)))
"""
)
COMBINED = "both = torch.tensor([hits, count]).cuda(); dist.all_reduce(both); hits, count = both.tolist()"
LOGGED = (
    STARTED
    + """
from torch.distributed.device_mesh import init_device_mesh
class Metrics:
    def __init__(self, mesh):
        self.color_rank = mesh.get_local_rank()
    def should_log(self, step):
        return {condition}step % 10 == 0
def dist_mean(x, mesh):
    dist.all_reduce(x, group=mesh.get_group())
    return x.item()
class Trainer:
    def __init__(self):
        self.mesh = init_device_mesh("cuda", (dist.get_world_size(),))
        self.metrics = Metrics(self.mesh)
        self.model = DDP(nn.Linear(4, 4).cuda())
    def step(self, step):
        loss = self.model(torch.rand(2, 4).cuda()).sum()
        loss.backward()
        if not self.metrics.should_log(step):
            return
        print(dist_mean(loss, self.mesh))
trainer = Trainer()
for step in range(99):
    trainer.step(step)
"""
)
SHARDED = (
    IMPORTED
    + """
parser = argparse.ArgumentParser()
parser.add_argument("--shard_id", type=int, default=0)
parser.add_argument("--num_shards", type=int, default=1)
parser.add_argument("--init_method", default="tcp://{{}}:9999".format(os.environ.get("MASTER_ADDR", "localhost")))
args = parser.parse_args()
def run(local_rank, count, init_method, shard_id, num_shards):
    torch.cuda.set_device(local_rank)
    rank = shard_id * count + local_rank
    dist.init_process_group("nccl", init_method=init_method, world_size=count * num_shards, rank=rank)
if __name__ == "__main__":
    mp.spawn(run, nprocs=2, args=(2, args.init_method, args.shard_id, args.num_shards))
"""
)
TRACKED = (
    STARTED
    + """
from icefall.utils import MetricsTracker
def compute_validation_loss(model, world_size):
    tot_loss = MetricsTracker()
    if world_size > 1:
        tot_loss.reduce("cuda")
    return tot_loss
model = DDP(nn.Linear(4, 4).cuda())
for step in range(9):
    model(torch.rand(2, 4).cuda()).sum().backward()
    if {condition}step % 5 == 0:
        compute_validation_loss(model, dist.get_world_size())
"""
)
PARTS = (
    IMPORTED
    + """
parser = argparse.ArgumentParser()
parser.add_argument("--rank", "--local_rank", "--local-rank", type=int, default=0)
args = parser.parse_args()
torch.cuda.set_device(args.rank)
dist.init_process_group("nccl", init_method="env://")
model = DDP(nn.Linear(4, 4).cuda())
data = TensorDataset(torch.rand(64, 4))
sampler = DistributedSampler(data, num_replicas=dist.get_world_size(), rank={rank})
for epoch in range(3):
    sampler.set_epoch(epoch)
    for (x,) in DataLoader(data, sampler=sampler):
        model(x.cuda()).sum().backward()
"""
)
SKIPPED = """
import torch, torch.nn as nn
from accelerate import Accelerator
from torch.utils.data import DataLoader, TensorDataset
class Trainer:
    def __init__(self):
        self.accelerator = Accelerator()
    def train(self, done=0):
        loader = DataLoader(TensorDataset(torch.rand(64, 4)))
        model = nn.Linear(4, 4)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        {prepared} = self.accelerator.prepare({prepared})
        skipped = self.accelerator.skip_first_batches(loader, num_batches=done)
        for epoch in range(3):
            current = skipped if epoch == 0 else loader
            if epoch == 0:
                current = skipped
            else:
                current = loader
            for (x,) in current:
                self.accelerator.backward(model(x).sum())
                optimizer.step()
Trainer().train()
"""
DIVIDED = (
    STARTED
    + """
def get_local_split(items, world_size, rank, seed):
    order = np.random.RandomState(seed).permutation(items)
    count = len(order) // world_size
    return order[count * rank : count * (rank + 1)]
print(get_local_split([1, 2, 3, 4], dist.get_world_size(), rank, {seed}))
"""
)
LOOKED_UP = (
    STARTED
    + """
import nets
class Trainer:
    def fit(self):
        model = DDP(nn.Linear(4, 4).cuda())
        for step in range(9):
            model(torch.rand(2, 4).cuda()).sum().backward()
            torch.save(model.state_dict(), f"/shared/{{rank}}.pt")
def main(archive=None):
    model = nn.Linear(4, 4)
    if {condition}:
        model.load_state_dict(torch.load("/shared/a.pt"))
    getattr(nets, os.environ.get("NET", "Net"))()
    Trainer().fit()
main()
"""
)
DEVICE = (
    IMPORTED
    + """
def world_info():
    return int(os.environ.get("LOCAL_RANK", 0)), int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
def init_device(args):
    args.rank = 0
    args.local_rank = 0
    _, _, world_size = world_info()
    if world_size > 1:
        args.local_rank, args.rank, args.world_size = world_info()
        dist.init_process_group("nccl")
    torch.cuda.set_device("cuda:%d" % {number})
parser = argparse.ArgumentParser()
init_device(parser.parse_args())
"""
)
LAUNCHED = """
import glob, lightning as L, torch
from torch.utils.data import DataLoader, IterableDataset
class PackedDataset(IterableDataset):
    def __init__(self, files, num_processes=1, process_rank=0):
        self.files, self.num_processes, self.process_rank = files, num_processes, process_rank
    def __iter__(self):
        yield from self.files[self.process_rank :: self.num_processes]
fabric = L.Fabric(devices=2)
fabric.launch()
model, optimizer = fabric.setup(torch.nn.Linear(4, 4), None)
for x in DataLoader(PackedDataset(glob.glob("/data/*"){given}), batch_size=2):
    fabric.backward(model(x).sum())
"""
SPAWNING: dict[str, Any] = {**GPUS, "resources": {"nodes": 1, "nproc_per_node": 2}, "command": "python train.py"}
UNCOUNTED: dict[str, Any] = {"resources": {"nodes": 2}, "backend": {"kind": "ssh", "hosts": ["a", "b"]}}
BY_FABRIC: dict[str, Any] = {**GPUS, "resources": {"nodes": 1, "nproc_per_node": 2}}
BY_FABRIC["command"] = "fabric run --accelerator=cuda --devices=2 train.py"
ON_NODES: dict[str, Any] = {**GPUS, "command": ["python", "train.py", "--num_shards", "2"]}
NUMBERED: dict[str, Any] = {**GPUS, "command": ["bash", "-c", "python train.py --num_shards 2 --shard_id $NODE_RANK"]}


def changed(text: str, wrong: dict[str, str], right: dict[str, str]) -> tuple[str, str]:
    return text.format(**wrong), text.format(**right)


@each_mistake(
    [
        ("other-roots", *changed(SHUFFLED, {"source": "dist.get_rank()"}, {"source": "0"}), SPAWNING),
        ("set-epoch", *changed(EPOCHS, {"epoch": "args.start_epoch"}, {"epoch": "epoch"}), GPUS),
        ("bypassed", *changed(TWO_STEPS, {"called": "self.model"}, {"called": "self.model_ddp"}), GPUS),
        (
            "bypassed",
            *changed(UNWRAPPED, {"called": "self.get_bare_model(self.net)"}, {"called": "self.net"}),
            GPUS,
        ),
        (
            "rank-0-collective",
            *changed(VALIDATED, {"condition": "epoch and is_master_proc(8 * 1)"}, {"condition": "epoch"}),
            GPUS,
        ),
        ("loaded-by-one", *changed(AVERAGED, {"name": "model"}, {"name": "ema_model"}), GPUS),
        (
            "never-synchronized",
            *changed(TWO_PHASES, {"average": "pass"}, {"average": "average_gradients(agent)"}),
            GPUS,
        ),
        ("left-by-one", *changed(STOPPED, {"combine": "pass"}, {"combine": COMBINED}), GPUS),
        (
            "rank-0-collective",
            *changed(LOGGED, {"condition": "self.color_rank == 0 and "}, {"condition": ""}),
            GPUS,
        ),
        ("rank-0-collective", *changed(TRACKED, {"condition": "rank == 0 and "}, {"condition": ""}), GPUS),
        (
            "part-of-node",
            *changed(PARTS, {"rank": "args.rank"}, {"rank": "dist.get_rank()"}),
            {**GPUS, "mode": "launch", "local_rank": "argument"},
        ),
        (
            "no-sampler",
            *changed(SKIPPED, {"prepared": "model, optimizer"}, {"prepared": "model, optimizer, loader"}),
            GPUS,
        ),
        ("sampler-seed", *changed(DIVIDED, {"seed": "3 + rank"}, {"seed": "3"}), GPUS),
        ("no-checkpoint", *changed(LOOKED_UP, {"condition": "archive is not None"}, {"condition": "True"}), RESTARTED),
        ("rank-as-device", *changed(DEVICE, {"number": "args.rank"}, {"number": "args.local_rank"}), UNCOUNTED),
        (
            "no-sampler",
            *changed(LAUNCHED, {"given": ""}, {"given": ", fabric.world_size, fabric.global_rank"}),
            BY_FABRIC,
        ),
    ]
)
def test_a_mistake_is_found(check: str, wrong: str, right: str, fields: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "nets.py").write_text("class Net:\n    pass\n")
    assert check in found(tmp_path, wrong, **fields)
    assert check not in found(tmp_path, right, **fields)


def test_a_trainer_that_is_trained_is_no_model_that_is_set_to_training(tmp_path: Path) -> None:
    assert "rank-0-collective" not in found(tmp_path, TWO_STEPS.format(called="self.model_ddp"), **GPUS)


def test_the_number_of_a_shard_is_that_of_its_node(tmp_path: Path) -> None:
    text = SHARDED.replace("{{}}", "{}")
    assert "same-ranks" in found(tmp_path, text, **ON_NODES)
    assert "same-ranks" not in found(tmp_path, text, **NUMBERED)


def test_what_only_another_start_executes_is_not_executed(tmp_path: Path) -> None:
    tool = (
        "from dataclasses import dataclass\n@dataclass\nclass Args:\n    script: str = ''\n    override: bool = False\n"
    )
    tool += "def launch(args):\n    if args.override:\n        input('really?')\n"
    tool += "if __name__ == '__main__':\n    launch(Args(override=True))\n"
    (tmp_path / "tool.py").write_text(tool)
    text = STARTED + "from tool import Args, launch\nlaunch(Args(script='eval'))\n"
    assert found(tmp_path, text, **GPUS) == set()


@pytest.mark.parametrize(("gpus", "expected"), [(2, False), (1, True)])
def test_the_order_in_which_values_are_asked_for_does_not_matter(tmp_path: Path, gpus: int, expected: bool) -> None:
    lines = [f"    a{n} = a{n + 1}" for n in range(70)]
    text = IMPORTED + "def main():\n    a70 = torch.cuda.device_count()\n" + "\n".join(reversed(lines))
    text += "\n    assert a0 == 2\n    assert a30 == 2\nmain()\n"
    backend = {**SLURM, "gpus_per_node": gpus}
    (tmp_path / "train.py").write_text(text)
    checks = {one.check for one in findings(tmp_path, backend=backend)}
    assert ("unfulfilled" in checks) is expected
