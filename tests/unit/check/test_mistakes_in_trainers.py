"""Mistakes in trainers, loaders and schedules of public projects, and what only looks like one there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from checked import GPUS, IMPORTED, STARTED, each_mistake, findings, found, with_files

TWO_MODELS = f"""{STARTED}
net = nn.Linear(4, 4).cuda()
head = nn.Linear(4, 1).cuda()
net = DDP(net)
WRAP
values = list(net.parameters()) + list(head.parameters())
optimizer = torch.optim.Adam(values, lr=0.1)
for x in DataLoader(TensorDataset(torch.ones(8, 4)), sampler=DistributedSampler(range(8))):
    head(net(x[0].cuda())).sum().backward()
    AVERAGE
    optimizer.step()
"""
SCHEDULED = f"""{STARTED}
data = TensorDataset(torch.ones(800, 4))
loader = DataLoader(data, batch_size=4, sampler=DistributedSampler(data))
model = DDP(nn.Linear(4, 1).cuda())
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
steps = LENGTH
scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, epochs=3, steps_per_epoch=steps)
for epoch in range(3):
    loader.sampler.set_epoch(epoch)
    for (x,) in loader:
        model(x.cuda()).sum().backward()
        optimizer.step()
        scheduler.step()
"""
SAMPLED = f"""{STARTED}
torch.manual_seed(SEED)
def get_loader(mode):
    data = TensorDataset(torch.ones(800, 4))
    sampler = MAKE
    return DataLoader(data, batch_size=4, sampler=sampler, drop_last=mode != "test")
model = DDP(nn.Linear(4, 1).cuda())
for (x,) in get_loader("train"):
    model(x.cuda()).sum().backward()
"""
RANDOM = 'torch.utils.data.RandomSampler(data) if mode == "train" else torch.utils.data.SequentialSampler(data)'
SPLIT = f"""{STARTED}
from datasets import load_dataset
from datasets.distributed import split_dataset_by_node
def read(seed=42):
    data = load_dataset("parquet", data_files="/shared/a.parquet", streaming=True)["train"]
    data = data.shuffle(seed=SEED, buffer_size=1000)
    return split_dataset_by_node(data, rank=rank, world_size=dist.get_world_size())
model = DDP(nn.Linear(4, 1).cuda())
for x in DataLoader(read(), batch_size=4):
    model(x.cuda()).sum().backward()
"""
STOPPED = f"""{STARTED}
class EarlyStopping:
    def __init__(self):
        self.best, self.count, self.early_stop = None, 0, False
    def __call__(self, loss):
        if self.best is None or loss < self.best:
            self.best, self.count = loss, 0
        else:
            self.count += 1
            self.early_stop = self.count >= 3
class Base:
    def validate(self, loader):
        pass
class Experiment(Base):
    def validate(self, loader):
        total = torch.tensor(sum(model(x[0].cuda()).item() for x in loader)).cuda()
        COMBINE
        return total.item() / dist.get_world_size()
    def train(self, loader):
        early_stopping = EarlyStopping()
        for epoch in range(9):
            loader.sampler.set_epoch(epoch)
            for (x,) in loader:
                model(x.cuda()).sum().backward()
            loss = self.validate(loader)
            early_stopping(loss)
            if early_stopping.early_stop:
                break
data = TensorDataset(torch.ones(8, 4))
model = DDP(nn.Linear(4, 1).cuda())
Experiment().train(DataLoader(data, sampler=DistributedSampler(data)))
"""
IN_SETTINGS = f"""{IMPORTED}
params = dict()
params["world_size"] = SIZE
def train(params):
    dist.init_process_group("gloo")
    data = list(range(800))[dist.get_rank() :: params["world_size"]]
train(params)
"""
UNWRAPPED = f"""{IMPORTED}
from accelerate import Accelerator
class Policy:
    def __init__(self, model, accelerator):
        self.model, self.accelerator = model, accelerator
    def forward_pass(self, x):
        net = CHOSEN
        return net(input=x)
class Trainer:
    def __init__(self, policy, accelerator, optimizer):
        self.policy, self.accelerator, self.optimizer = policy, accelerator, optimizer
    def loss(self, x):
        return self.policy.forward_pass(x).mean()
    def train(self, x):
        loss = self.loss(x)
        self.accelerator.backward(loss)
        self.optimizer.step()
accelerator = Accelerator()
policy = Policy(nn.Linear(4, 1), accelerator)
policy.model = accelerator.prepare(policy.model)
optimizer = accelerator.prepare(torch.optim.SGD(policy.model.parameters(), lr=0.1))
Trainer(policy, accelerator, optimizer).train(torch.ones(1, 4))
"""
KEPT = f"""{STARTED}
local_rank = int(os.environ["LOCAL_RANK"])
class Trainer:
    def __init__(self, folder):
        if rank == 0:
            self.folder = folder
            os.makedirs(self.folder, exist_ok=True)
    def save(self):
        if GUARD:
            return
        torch.save({{}}, os.path.join(self.folder, "last.pt"))
Trainer("/shared/run").save()
"""
NAMED = f"""{STARTED}
def main():
    if rank == 0:
        folder = "/shared/run"
        os.makedirs(folder, exist_ok=True)
    dist.barrier()
    torch.save({{}}, os.path.join(folder, f"{{rank}}.pt"))
main()
"""
ACCELERATED = f"""{IMPORTED}
from accelerate import Accelerator
from transformers import get_linear_schedule_with_warmup
accelerator = Accelerator()
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader = DataLoader(TensorDataset(torch.ones(80, 4)), batch_size=4)
FIRST
steps = 3 * len(loader) // 2
scheduler = get_linear_schedule_with_warmup(optimizer, num_warmup_steps=0, num_training_steps=NUMBER)
THEN
for (x,) in loader:
    accelerator.backward(model(x).sum())
    optimizer.step()
    scheduler.step()
"""
BATCHES = "batch_sampler=torch.utils.data.BatchSampler(DistributedSampler(data), 4, drop_last=True)"
BY_EPOCH = f"""{IMPORTED}
from accelerate import Accelerator
accelerator = Accelerator()
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
epochs = 30
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=epochs)
loader = DataLoader(TensorDataset(torch.ones(80, 4)), batch_size=4)
GIVEN = accelerator.prepare(GIVEN)
def train(loader):
    for (x,) in loader:
        accelerator.backward(model(x).sum())
        optimizer.step()
for epoch in range(epochs):
    train(loader)
    scheduler.step()
"""
BUFFERED = f"""{STARTED}
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.norm = nn.Linear(4, 4), nn.BatchNorm1d(4)
    def forward(self, x):
        return self.norm(self.layer(x))
def evaluate(net, loader):
    net.eval()
    with torch.no_grad():
        return sum(net(x.cuda()).sum().item() for (x,) in loader)
data = TensorDataset(torch.ones(8, 4))
loader = DataLoader(data, sampler=DistributedSampler(data))
net = Net().cuda()
model = DDP(net, device_ids=[int(os.environ["LOCAL_RANK"])])
for epoch in range(9):
    loader.sampler.set_epoch(epoch)
    model.train()
    for (x,) in loader:
        model(x.cuda()).sum().backward()
    if rank == 0:
        print(evaluate(MODEL, loader))
"""
RING = f"""{IMPORTED}
dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()
torch.manual_seed(SEED)
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
state = None
if state is not None:
    model.load_state_dict(torch.load(state))
for (x,) in DataLoader(TensorDataset(torch.ones(8, 4)), sampler=DistributedSampler(range(8))):
    model(x).sum().backward()
    for param in model.parameters():
        if rank == 0:
            dist.send(param.grad.data, dst=1)
            dist.recv(param.grad.data, src=size - 1)
        else:
            other = torch.empty_like(param.grad.data)
            dist.recv(other, src=rank - 1)
            param.grad.data += other
            dist.send(param.grad.data, dst=(rank + 1) % size)
        param.grad.data /= size
    optimizer.step()
"""
REDUCED = (
    RING[: RING.index("        if rank == 0:")]
    + """        dist.all_reduce(param.grad.data)
        param.grad.data /= size
    optimizer.step()
"""
)
WITH_DEEPSPEED = f"""{IMPORTED}
import deepspeed
parser = argparse.ArgumentParser()
parser.add_argument("--local_rank", type=int, default=DEFAULT)
parser = deepspeed.add_config_arguments(parser)
args = parser.parse_args()
if args.local_rank == -1:
    device = torch.device("cuda")
else:
    deepspeed.init_distributed()
device_map = {{"": int(os.environ.get("LOCAL_RANK", "0"))}}
engine, _, _, _ = deepspeed.initialize(args=args, model=nn.Linear(4, 1))
"""
PATIENT = f"""{STARTED}
data = TensorDataset(torch.ones(8, 4))
loader = DataLoader(data, sampler=DistributedSampler(data))
tested = DataLoader(data, sampler=DistributedSampler(data))
model = DDP(nn.Linear(4, 1).cuda())
best, bad, patience = 9.0, 0, 3
for epoch in range(99):
    loader.sampler.set_epoch(epoch)
    for (x,) in loader:
        model(x.cuda()).sum().backward()
    if (epoch + 1) % 5 == 0:
        with torch.no_grad():
            loss = sum(model(x.cuda()).sum() for (x,) in tested)
        COMBINE
        if loss.item() < best:
            best, bad = loss.item(), 0
        else:
            bad += 1
        if patience and bad >= patience:
            break
"""
HF = f"""{IMPORTED}
from transformers import Trainer, TrainingArguments
parser = argparse.ArgumentParser()
parser.add_argument("--accumulate", type=int, default=8)
args = parser.parse_args()
args.accumulate = args.accumulate // int(os.environ["WORLD_SIZE"])
given = TrainingArguments(output_dir="/shared/run", gradient_accumulation_steps=args.accumulate)
Trainer(model=nn.Linear(4, 1), args=given).train()
"""
PREPARE = "model, optimizer, loader = accelerator.prepare(model, optimizer, loader)"
STREAM = f"""{STARTED}
import argparse
parser = argparse.ArgumentParser()
parser.add_argument("--num_workers", type=int, default=WORKERS)
args = parser.parse_args()
class Files(torch.utils.data.IterableDataset):
    def __init__(self, files):
        self.files = files
    def __iter__(self):
        worker_info = torch.utils.data.get_worker_info()
        if worker_info is None:
            start, step = 0, 1
        else:
            start = dist.get_rank() * worker_info.num_workers + worker_info.id
            step = dist.get_world_size() * worker_info.num_workers
        for name in self.files[start::step]:
            yield torch.from_numpy(np.load(name))
model = DDP(nn.Linear(4, 1).cuda())
for x in DataLoader(Files(["a.npy"] * 80), batch_size=4, num_workers=args.num_workers):
    model(x.cuda()).sum().backward()
"""


@each_mistake(
    [
        (
            "never-synchronized",
            TWO_MODELS.replace("WRAP", "").replace("AVERAGE", ""),
            TWO_MODELS.replace("WRAP", "head = DDP(head)").replace("AVERAGE", ""),
            GPUS,
        ),
        (
            "never-synchronized",
            TWO_MODELS.replace("WRAP", "").replace("AVERAGE", ""),
            TWO_MODELS.replace("WRAP", "").replace("AVERAGE", "for p in values: dist.all_reduce(p.grad)"),
            GPUS,
        ),
        (
            "never-synchronized",
            TWO_MODELS.replace("WRAP", "").replace("AVERAGE", ""),
            TWO_MODELS.replace("net = DDP(net)", "net = DDP(nn.Sequential(net, head))")
            .replace("WRAP", "")
            .replace("AVERAGE", ""),
            GPUS,
        ),
        (
            "schedule-length",
            SCHEDULED.replace("LENGTH", "len(data) // 4"),
            SCHEDULED.replace("LENGTH", "len(loader)"),
            GPUS,
        ),
        (
            "schedule-length",
            SCHEDULED.replace("LENGTH", "len(data) // 4"),
            SCHEDULED.replace("LENGTH", "len(data) // 4 // dist.get_world_size()"),
            GPUS,
        ),
        (
            "no-sampler",
            SAMPLED.replace("MAKE", RANDOM).replace("SEED", "3"),
            SAMPLED.replace("MAKE", "DistributedSampler(data)").replace("SEED", "3"),
            GPUS,
        ),
        (
            "no-sampler",
            SAMPLED.replace("MAKE", RANDOM).replace("SEED", "3"),
            SAMPLED.replace("MAKE", RANDOM).replace(
                "torch.manual_seed(SEED)", "seed = 3 * 4 + rank\ntorch.manual_seed(seed)"
            ),
            GPUS,
        ),
        ("sampler-seed", SPLIT.replace("SEED", "seed + rank"), SPLIT.replace("SEED", "seed"), GPUS),
        (
            "reduced-to-one",
            STOPPED.replace("COMBINE", "dist.reduce(total, dst=0)"),
            STOPPED.replace("COMBINE", "dist.all_reduce(total)"),
            GPUS,
        ),
        ("fixed-world-size", IN_SETTINGS.replace("SIZE", "16"), IN_SETTINGS.replace("SIZE", "4"), GPUS),
        (
            "fixed-world-size",
            IN_SETTINGS.replace("SIZE", "16"),
            IN_SETTINGS.replace("SIZE", 'int(os.environ["WORLD_SIZE"])'),
            GPUS,
        ),
        (
            "bypassed",
            UNWRAPPED.replace("CHOSEN", "self.accelerator.unwrap_model(self.model)"),
            UNWRAPPED.replace("CHOSEN", "self.model"),
            GPUS,
        ),
        ("no-sampler", STREAM.replace("WORKERS", "0"), STREAM.replace("WORKERS", "2"), GPUS),
        (
            "schedule-length",
            ACCELERATED.replace("FIRST", PREPARE)
            .replace("THEN", "scheduler = accelerator.prepare(scheduler)")
            .replace("NUMBER", "steps"),
            ACCELERATED.replace("FIRST", "")
            .replace("THEN", f"{PREPARE}\nscheduler = accelerator.prepare(scheduler)")
            .replace("NUMBER", "steps"),
            GPUS,
        ),
        (
            "schedule-length",
            ACCELERATED.replace("FIRST", PREPARE)
            .replace("THEN", "scheduler = accelerator.prepare(scheduler)")
            .replace("NUMBER", "steps"),
            ACCELERATED.replace("FIRST", PREPARE)
            .replace("THEN", "scheduler = accelerator.prepare(scheduler)")
            .replace("NUMBER", "steps * accelerator.num_processes"),
            GPUS,
        ),
        (
            "schedule-length",
            BY_EPOCH.replace("GIVEN", "model, optimizer, scheduler, loader"),
            BY_EPOCH.replace("GIVEN", "model, optimizer, loader"),
            GPUS,
        ),
        (
            "schedule-length",
            SCHEDULED.replace("batch_size=4, sampler=DistributedSampler(data)", BATCHES).replace(
                "LENGTH", "len(data) // 4"
            ),
            SCHEDULED.replace("batch_size=4, sampler=DistributedSampler(data)", BATCHES).replace(
                "LENGTH", "len(loader)"
            ),
            GPUS,
        ),
        ("rank-0-collective", BUFFERED.replace("MODEL", "model"), BUFFERED.replace("MODEL", "model.module"), GPUS),
        (
            "rank-0-collective",
            BUFFERED.replace("MODEL", "model"),
            BUFFERED.replace("MODEL", "model").replace("nn.BatchNorm1d(4)", "nn.LayerNorm(4)"),
            GPUS,
        ),
        ("unequal-start", RING.replace("SEED", "3 + rank"), RING.replace("SEED", "3"), {}),
        ("unequal-start", REDUCED.replace("SEED", "3 + rank"), REDUCED.replace("SEED", "3"), {}),
        (
            "local-rank",
            WITH_DEEPSPEED.replace("DEFAULT", "-1"),
            WITH_DEEPSPEED.replace("DEFAULT", 'int(os.environ["LOCAL_RANK"])'),
            GPUS,
        ),
        ("left-by-one", PATIENT.replace("COMBINE", ""), PATIENT.replace("COMBINE", "dist.all_reduce(loss)"), GPUS),
        ("empty-batch", HF.replace("default=8", "default=2"), HF, GPUS),
        (
            "schedule-length",
            ACCELERATED.replace("FIRST", "")
            .replace("THEN", f"{PREPARE}\nscheduler = accelerator.prepare(scheduler)")
            .replace("NUMBER", "steps // accelerator.num_processes"),
            ACCELERATED.replace("FIRST", "")
            .replace("THEN", f"{PREPARE}\nscheduler = accelerator.prepare(scheduler)")
            .replace("NUMBER", "steps"),
            GPUS,
        ),
        (
            "schedule-length",
            ACCELERATED.replace("FIRST", "")
            .replace("THEN", f"{PREPARE}\nscheduler = accelerator.prepare(scheduler)")
            .replace("NUMBER", "steps // accelerator.num_processes"),
            ACCELERATED.replace("FIRST", "")
            .replace("THEN", f"{PREPARE}\nscheduler = accelerator.prepare(scheduler)")
            .replace("// 2", "// 2 // accelerator.num_processes")
            .replace("NUMBER", "steps * accelerator.num_processes"),
            GPUS,
        ),
        ("unset", KEPT.replace("GUARD", "local_rank != 0"), KEPT.replace("GUARD", "rank != 0"), GPUS),
        ("unset", NAMED, NAMED.replace("    if rank == 0:\n", "    if True:\n"), GPUS),
        ("unset", NAMED, NAMED.replace("    torch.save", "    if rank == 0: torch.save"), GPUS),
    ]
)
def test_a_mistake_is_found_and_what_is_right_is_not(
    check: str, wrong: str, right: str, fields: dict[str, Any], tmp_path: Path
) -> None:
    assert check in found(tmp_path, wrong, **fields)
    assert check not in found(tmp_path, right, **fields)


REGISTERED = """
import argparse, importlib
from registry import NETS
def find(name):
    for one in ("small", "large"):
        importlib.import_module(".".join(["nets", one]))
    if name in NETS:
        return NETS[name]
    elif ":" in name:
        return None
    else:
        raise RuntimeError(f"there is no {name}")
parser = argparse.ArgumentParser()
parser.add_argument("--net")
find(parser.parse_args().net)
"""
REGISTRY = """
class Register(dict):
    def __init__(self, name):
        super(Register, self).__init__()
        self.name = name
    def register(self, alias):
        def add(made):
            self[alias] = made
            return made
        return add
NETS = Register("nets")
"""


def test_modules_that_are_imported_by_a_computed_name_may_register_anything(tmp_path: Path) -> None:
    registers = 'from registry import NETS\n@NETS.register("a@b")\nclass Net: pass\n'
    with_files(tmp_path, {"registry.py": REGISTRY, "nets/small.py": registers, "nets/large.py": ""})
    assert "unfulfilled" not in found(tmp_path, REGISTERED, hyperparameters={"net": "a@b"})


@pytest.mark.parametrize(
    ("rest", "is_found"),
    [
        ("args, _ = parser.parse_known_args()", True),
        ("args = parser.parse_known_args()[0]", True),
        ("args, rest = parser.parse_known_args()\nprint(rest)", False),
        ("args, _ = parser.parse_known_args()\nprint(sys.argv)", False),
    ],
)
def test_an_argument_that_no_code_reads(rest: str, is_found: bool, tmp_path: Path) -> None:
    text = f'import argparse, sys\nparser = argparse.ArgumentParser()\nparser.add_argument("--model-dir")\n{rest}\n'
    assert ("argument-ignored" in found(tmp_path, text, hyperparameters={"epochs": "3"})) is is_found


@pytest.mark.parametrize(("workers", "is_found"), [(0, True), (2, False)])
def test_the_job_gives_the_number_of_workers(workers: int, is_found: bool, tmp_path: Path) -> None:
    text = STREAM.replace("WORKERS", "1")
    assert ("no-sampler" in found(tmp_path, text, hyperparameters={"num_workers": workers}, **GPUS)) is is_found


@pytest.mark.parametrize(
    ("condition", "is_found"),
    [
        ('int(os.environ["RANK"]) == 0', True),
        ('os.environ["LOCAL_RANK"] == "0"', True),
        ('"RANK" not in os.environ or int(os.environ["RANK"]) == 0', True),
        ("not args.distributed or rank == 0", True),
        ("rank == 0 or args.all", False),
        ('int(os.environ["WORLD_SIZE"]) == 4', False),
    ],
)
def test_conditions_that_only_rank_0_fulfils(condition: str, is_found: bool, tmp_path: Path) -> None:
    text = f"""{STARTED}
parser = argparse.ArgumentParser()
parser.add_argument("--all", action="store_true")
args, _ = parser.parse_known_args()
args.distributed = prepare()
if {condition}:
    dist.barrier()
"""
    checks = found(tmp_path, text, hyperparameters={"all": {"flag": True}}, **GPUS)
    assert ("rank-0-collective" in checks or "meeting" in checks) is is_found


def test_a_path_through_a_mapping_is_followed(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"trainer": {"nodes": 1}, "distributed": false}')
    text = """
import argparse, json
from functools import reduce
from operator import getitem
def change(tree, keys, value):
    keys = keys.split(";")
    reduce(getitem, keys[:-1], tree)[keys[-1]] = value
parser = argparse.ArgumentParser()
parser.add_argument("--nodes", type=int)
args = parser.parse_args()
with open("config.json") as file:
    config = json.load(file)
change(config, "trainer;nodes", args.nodes)
assert config["trainer"]["nodes"] == 1
"""
    assert "unfulfilled" in found(tmp_path, text, hyperparameters={"nodes": 2})
    assert "unfulfilled" not in found(tmp_path, text, hyperparameters={"nodes": 1})


def test_a_module_is_looked_for_in_the_folder_of_its_launcher(tmp_path: Path) -> None:
    start = 'cd "$(dirname "$0")/../src"\ntorchrun --nnodes $NNODES --node_rank $NODE_RANK --nproc_per_node 2 '
    address = "--master_addr $MASTER_ADDR --master_port $MASTER_PORT "
    with_files(tmp_path, {"scripts/run.sh": f"{start}{address}--module trainer.train\n", "src/trainer/train.py": ""})
    checks = {one.check for one in findings(tmp_path, missing=["trainer"], command=["bash", "scripts/run.sh"])}
    assert "packages" not in checks


def test_what_accelerate_saves_is_not_what_a_method_of_the_program_saves(tmp_path: Path) -> None:
    text = """
from accelerate import Accelerator
class Trainer:
    def __init__(self, accelerator):
        self.accelerator = accelerator
    def save(self):
        self.accelerator.wait_for_everyone()
    def valid(self):
        if self.accelerator.is_main_process:
            self.accelerator.save({}, "/shared/best.pth")
trainer = Trainer(Accelerator())
trainer.save()
trainer.valid()
"""
    assert "rank-0-collective" not in found(tmp_path, text, **GPUS)


def test_a_missing_package_does_not_hide_what_the_processes_do(tmp_path: Path) -> None:
    on_cpus = NAMED.replace('"nccl"', '"gloo"').replace("torch.cuda.set_device", "print")
    (tmp_path / "train.py").write_text(f"import wandb\n{on_cpus}")
    checks = {finding.check for finding in findings(tmp_path, missing=["wandb"])}
    assert checks >= {"packages", "unset"}


READ_ONCE = NAMED.replace('    torch.save({}, os.path.join(folder, f"{rank}.pt"))\n', "READ")
KEPT_IN = KEPT.replace("GUARD", "local_rank != 0")
ON_ZERO = "    if rank == 0:\n        print(evaluate(MODEL, loader))\n"
ALL_FIRST = "    print(evaluate(model, loader))\n" + ON_ZERO
TOGETHER = TWO_MODELS.replace("AVERAGE", "")
IN_SPLIT = SPLIT.replace("SEED", "seed + rank")
BY_RANK = RING.replace("SEED", "3 + rank")


@pytest.mark.parametrize(
    ("check", "text"),
    [
        ("unset", READ_ONCE.replace("READ", '    if "folder" in locals():\n        print(folder)\n')),
        ("unset", READ_ONCE.replace("READ", '    "folder" in locals() and print(folder)\n')),
        ("unset", READ_ONCE.replace("READ", "    if settings.should_save:\n        print(folder)\n")),
        ("unset", READ_ONCE.replace("READ", "    while not queue.empty():\n        print(queue.get(), folder)\n")),
        ("unset", READ_ONCE.replace("READ", "    with contextlib.suppress(NameError):\n        print(folder)\n")),
        (
            "unset",
            KEPT_IN.replace(
                "    def save", "    def load(self, state):\n        vars(self).update(state)\n    def save"
            ),
        ),
        ("unset", KEPT_IN.replace('Trainer("/', 'Trainer.folder = "/shared"\nTrainer("/')),
        (
            "rank-0-collective",
            f"{STARTED}\nparser = argparse.ArgumentParser()\nparser.add_argument('--ddp', action='store_true')\n"
            "args = parser.parse_args()\nif not args.ddp or rank == 0:\n    dist.barrier()\n",
        ),
        ("rank-0-collective", BUFFERED.replace(ON_ZERO, ALL_FIRST).replace("MODEL", "model")),
        (
            "rank-0-collective",
            BUFFERED.replace("MODEL", "model").replace("net, device", "net, broadcast_buffers=False, device"),
        ),
        (
            "rank-0-collective",
            BUFFERED.replace("MODEL", "model") + "    else:\n        evaluate(model, loader)\n",
        ),
        ("never-synchronized", TOGETHER.replace("WRAP", "").replace("nn.Linear(4, 1).cuda()", "nn.MSELoss()")),
        (
            "never-synchronized",
            TOGETHER.replace("net = DDP(net)", "net.head = head\nnet = DDP(net)").replace("WRAP", ""),
        ),
        ("never-synchronized", TOGETHER.replace("WRAP", "others = [DDP(one) for one in [head]]")),
        ("never-synchronized", TOGETHER.replace("WRAP", "head.requires_grad_(False)")),
        (
            "schedule-length",
            SCHEDULED.replace(
                "steps = LENGTH", "n = dist.get_world_size()\nsteps = len(data) // 4\nsteps = steps // n"
            ),
        ),
        (
            "schedule-length",
            ACCELERATED.replace("Accelerator()", "Accelerator(split_batches=True)")
            .replace("FIRST", PREPARE)
            .replace("THEN", "scheduler = accelerator.prepare(scheduler)")
            .replace("NUMBER", "steps"),
        ),
        ("schedule-length", BY_EPOCH.replace("GIVEN = ", "used = ").replace("GIVEN", "scheduler")),
        (
            "fixed-world-size",
            IN_SETTINGS.replace("SIZE", "16").replace("train(params)\n", "params.update(load())\ntrain(params)\n", 1),
        ),
        ("sampler-seed", IN_SPLIT.replace("data = data.shuffle(", "other = data.shuffle(")),
        (
            "reduced-to-one",
            STOPPED.replace("COMBINE", "dist.reduce(total, dst=0)").replace(
                "            if early", "            dist.all_reduce(stop)\n            if early"
            ),
        ),
        (
            "split-by-rank",
            f"{STARTED}\nimport random\nmodel = DDP(nn.Linear(4, 1).cuda())\n"
            "def train(seen):\n    random.shuffle(seen)\n"
            "    for i in range(0, len(seen), 8):\n        batch = torch.stack(seen[i : i + 8])\n"
            "        model(batch).sum().backward()\ntrain(play())\n",
        ),
        ("second-init", f"{STARTED}\nfrom accelerate import Accelerator\naccelerator = Accelerator()\n"),
        (
            "model-on-cpu",
            f"{STARTED}\na = nn.Linear(4, 4).cuda()\nnet = nn.ModuleDict({{'a': a}})\n"
            "model = DDP(net, device_ids=[int(os.environ['LOCAL_RANK'])])\n",
        ),
        ("unequal-start", BY_RANK.replace("optimizer =", "nn.init.zeros_(model.weight)\noptimizer =")),
        (
            "local-rank",
            WITH_DEEPSPEED.replace("DEFAULT", "-1").replace(
                "parser = deepspeed",
                "sys.argv.append(f\"--local_rank={os.environ['LOCAL_RANK']}\")\nparser = deepspeed",
            ),
        ),
    ],
)
def test_what_only_looks_like_a_mistake(check: str, text: str, tmp_path: Path) -> None:
    assert check not in found(tmp_path, text, **GPUS)


@pytest.mark.parametrize(
    "reads", ["from sys import argv as words", "from omegaconf import OmegaConf\nOmegaConf.from_cli()"]
)
def test_words_that_something_else_reads(reads: str, tmp_path: Path) -> None:
    text = f"import argparse\n{reads}\nparser = argparse.ArgumentParser()\nargs, _ = parser.parse_known_args()\n"
    assert "argument-ignored" not in found(tmp_path, text, hyperparameters={"epochs": "3"})


LOADED_BY_A_FUNCTION = f"""{STARTED}
parser = argparse.ArgumentParser()
parser.add_argument("--batch_size", type=int, default=8)
parser.add_argument("--epochs", type=int, default=3)
args = parser.parse_args()
def get_loader(batch_size=32):
    data = TensorDataset(torch.ones(64, 1))
    sampler = DistributedSampler(data)
    return DataLoader(data, batch_size=batch_size, sampler=sampler), sampler
class Trainer:
    def __init__(self, args, train_loader):
        self.args, self.train_loader = args, train_loader
        self.model = DDP(nn.Linear(1, 1).cuda())
        self.optim = torch.optim.SGD(self.model.parameters(), lr=0.1)
        steps = self.args.epochs * LENGTH
        self.lr_scheduler = self.make_scheduler(steps)
    def make_scheduler(self, steps):
        return torch.optim.lr_scheduler.OneCycleLR(self.optim, 0.1, total_steps=steps)
train_loader, sampler = get_loader(batch_size=args.batch_size)
Trainer(args, train_loader)
"""


@pytest.mark.parametrize(
    ("length", "is_said"),
    [("(len(self.train_loader.dataset) // self.args.batch_size)", True), ("len(self.train_loader)", False)],
)
def test_a_schedule_for_the_batches_of_all_processes(length: str, is_said: bool, tmp_path: Path) -> None:
    text = LOADED_BY_A_FUNCTION.replace("LENGTH", length)
    assert ("schedule-length" in found(tmp_path, text, **GPUS)) is is_said


def test_a_sampler_before_the_group_that_a_trainer_makes(tmp_path: Path) -> None:
    text = f"{IMPORTED}def setup():\n    if not dist.is_initialized():\n        dist.init_process_group('nccl')\n"
    text += "class Trainer:\n    def __init__(self):\n        setup()\n"
    load, make = "DistributedSampler([1, 2])\n", "Trainer()\n"
    assert "no-init" in found(tmp_path, text + load + make, **GPUS)
    assert "no-init" not in found(tmp_path, text + make + load, **GPUS)


def test_a_rank_that_is_asked_for_only_where_there_is_a_group(tmp_path: Path) -> None:
    text = f"{IMPORTED}def is_dist_avail_and_initialized():\n    return dist.is_available() and dist.is_initialized()\n"
    text += (
        "def get_rank():\n    if not is_dist_avail_and_initialized():\n        return 0\n    return dist.get_rank()\n"
    )
    text += "if get_rank() == 0:\n    print('first')\ndist.init_process_group('nccl')\nprint(get_rank())\n"
    assert "no-init" not in found(tmp_path, text, **GPUS)
