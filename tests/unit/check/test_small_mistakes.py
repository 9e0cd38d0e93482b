"""Small mistakes in correct code, of the kinds that tests/bench/mistakes.py makes by rule."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from checked import GPUS, IMPORTED, each_mistake, found

NONE: dict[str, Any] = {}
SELECTS = 'torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))\n'
ON_GPUS = f"""{IMPORTED}
local_rank = int(os.environ["LOCAL_RANK"])
{{selects}}dist.init_process_group("nccl")
model = DDP(nn.Linear(4, 4).{{place}}, device_ids=[local_rank])
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
x = torch.rand(8, 4).to(f"cuda:{{{{local_rank}}}}")
for step in range(3):
    optimizer.zero_grad()
    model(x).mean().backward()
    optimizer.step()
{{more}}
dist.destroy_process_group()
"""


def on_gpus(place: str = "cuda(local_rank)", selects: str = "", more: str = "") -> str:
    return ON_GPUS.format(place=place, selects=selects, more=more).replace("{{", "{").replace("}}", "}")


CURRENT: list[tuple[str, str, str, dict[str, Any]]] = [
    ("fixed-device", on_gpus(place), on_gpus(place, SELECTS), GPUS)
    for place in ("cuda()", 'to("cuda")', "to(torch.cuda.current_device())")
] + [
    ("fixed-device", on_gpus(more=more), on_gpus(more=more, selects=SELECTS), GPUS)
    for more in (
        "total = torch.zeros(1, device='cuda')",
        "names = [None] * dist.get_world_size()\ndist.all_gather_object(names, 'a')",
    )
]
# What an unselected GPU does no harm to, and what selects one in another way.
HARMLESS = [
    on_gpus(more="loss = nn.CrossEntropyLoss()\nloss.cuda()"),
    on_gpus("cuda()", "torch.set_default_device(f'cuda:{local_rank}')\n"),
    on_gpus("cuda()", "os.environ['CUDA_VISIBLE_DEVICES'] = str(local_rank)\n"),
    on_gpus(more="def unused():\n    return torch.zeros(1, device='cuda')"),
    on_gpus(more="with torch.cuda.device(local_rank):\n    total = torch.zeros(1, device='cuda')"),
]


@each_mistake(CURRENT)
def test_the_current_gpu_that_no_process_selects(
    tmp_path: Path, check: str, wrong: str, right: str, fields: dict[str, Any]
) -> None:
    assert check in found(tmp_path, wrong, **fields)
    assert check not in found(tmp_path, right, **fields)


def test_a_gpu_that_need_not_be_selected(tmp_path: Path) -> None:
    for text in HARMLESS:
        assert "fixed-device" not in found(tmp_path, text, **GPUS), text


STEPS = f"""{IMPORTED}
{{start}}
for epoch in range(3):
    for x in [torch.rand(8, 4)] * 5:
        loss = {{call}}(x).mean()
        {{leave}}
        {{backward}}
dist.destroy_process_group()
"""
WRAPPED = "dist.init_process_group('gloo')\nmodel = DDP(nn.Linear(4, 4))"
ENGINE = "import deepspeed\ndeepspeed.init_distributed()\nmodel, *_ = deepspeed.initialize(model=nn.Linear(4, 4))"
SHARDED = (
    "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n"
    "dist.init_process_group('nccl')\nmodel = FSDP(nn.Linear(4, 4).cuda())"
)


def steps(start: str, leave: str = "pass", backward: str = "loss.backward()") -> str:
    return STEPS.format(start=start, call="model", leave=leave, backward=backward)


OF_ONE_RANK: list[tuple[str, str, str, dict[str, Any]]] = [
    (
        "left-by-one",
        steps(WRAPPED, "if loss != loss:\n            continue"),
        steps(WRAPPED, "if x is x:\n            pass"),
        {},
    ),
    ("left-by-one", steps(WRAPPED, "if loss.item() != loss.item(): continue"), steps(WRAPPED), NONE),
    *(
        ("left-by-one", steps(start, "if dist.get_rank() == 0: break", backward), steps(start, backward=backward), GPUS)
        for start, backward in ((ENGINE, "model.backward(loss)"), (SHARDED, "loss.backward()"))
    ),
]


@each_mistake(OF_ONE_RANK)
def test_a_rank_that_leaves_a_step_that_others_wait_in(
    tmp_path: Path, check: str, wrong: str, right: str, fields: dict[str, Any]
) -> None:
    assert check in found(tmp_path, wrong, **fields)
    assert check not in found(tmp_path, right, **fields)


LOGGED = f"""{IMPORTED}
dist.init_process_group("gloo")
world_size = dist.get_world_size()
model = DDP(nn.Linear(4, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
def reduce_mean(value):
    {{in_function}}
    return value / world_size
for step in range(8):
    loss = model(torch.rand(8, 4)).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    {{figure}}
dist.destroy_process_group()
"""


def logged(figure: str, in_function: str = "dist.all_reduce(value)") -> str:
    return LOGGED.format(figure=figure.replace("\n", "\n    "), in_function=in_function)


AVERAGES: list[tuple[str, str, str, dict[str, Any]]] = [
    ("not-summed", logged(wrong), logged(right), NONE)
    for wrong, right in (
        (
            "mean = loss.detach().clone()\nprint(mean.item() / world_size)",
            "mean = loss.detach().clone()\ndist.all_reduce(mean)\nprint(mean.item() / world_size)",
        ),
        (
            "mean = torch.tensor([loss.item()])\nmean /= dist.get_world_size()",
            "mean = torch.tensor([loss.item()])\nmean /= dist.get_world_size()\ndist.all_reduce(mean)",
        ),
        (
            "total = torch.stack([loss.detach()])\nprint(total.item() / (8 * world_size))",
            "total = torch.stack([loss.detach()])\ntotal = reduce_mean(total)\nprint(total.item() / world_size)",
        ),
        ("share = loss.clone()\nprint(share / world_size)", "reduce_mean(loss)"),
    )
] + [("not-summed", logged("print(reduce_mean(loss.detach()))", "pass"), logged("print(reduce_mean(loss))"), NONE)]
# A share of each process that is meant, and one that others combine.
SHARES = [
    logged("batch_size = 64\nprint(batch_size / world_size)"),
    logged("share = loss.clone() / world_size\nparts = [None] * world_size\ndist.all_gather_object(parts, share)"),
    logged("dist.all_reduce(reduce_mean(loss.detach()))", "pass"),
]


@each_mistake(AVERAGES)
def test_an_average_that_nothing_sums(
    tmp_path: Path, check: str, wrong: str, right: str, fields: dict[str, Any]
) -> None:
    assert check in found(tmp_path, wrong, **fields)
    assert check not in found(tmp_path, right, **fields)


def test_a_share_that_is_meant(tmp_path: Path) -> None:
    for text in SHARES:
        assert "not-summed" not in found(tmp_path, text), text


ACCELERATED = f"""{IMPORTED}
from accelerate import Accelerator
accelerator = Accelerator({{given}})
model, optimizer, loader = accelerator.prepare({{made}})
for x, in loader:
    optimizer.zero_grad()
    loss = {{called}}(x).mean()
    accelerator.backward(loss)
    optimizer.step()
"""
MADE = "nn.Linear(4, 4), None, DataLoader(TensorDataset(torch.rand(64, 4)))"


def accelerated(called: str = "model", given: str = "") -> str:
    return ACCELERATED.format(called=called, given=given, made=MADE)


STREAM = f"""{IMPORTED}
import datasets
class Stream(torch.utils.data.IterableDataset):
    def __init__(self, data):
        self.data = data
    def __iter__(self):
        yield from self.data
def evaluate(model):
    val_data = datasets.load_dataset("c4", split="validation", streaming=True)
    val_data = datasets.distributed.split_dataset_by_node(val_data, rank=rank, world_size=world_size)
    with torch.no_grad():
        return [model(x) for x in val_data]
dist.init_process_group("nccl")
rank, world_size = dist.get_rank(), dist.get_world_size()
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
data = datasets.load_dataset("c4", split="train", streaming=True)
{{divide}}
model: nn.Module = DDP(nn.Linear(4, 4).cuda())
for x in DataLoader(Stream(data), batch_size=None):
    model(x.cuda()).mean().backward()
evaluate(model)
dist.destroy_process_group()
"""
DIVIDE = "data = datasets.distributed.split_dataset_by_node(data, rank=rank, world_size=world_size)"
RATE = f"""{IMPORTED}
parser = argparse.ArgumentParser()
parser.add_argument("--batch_size", type=int, default=4)
args = parser.parse_args()
dist.init_process_group("gloo")
model = DDP(nn.Linear(4, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
trainset = TensorDataset(torch.rand(640, 4))
sampler = DistributedSampler(trainset)
loader = DataLoader(trainset, batch_size=args.batch_size, sampler=sampler)
accum = 2
{{total}}
for epoch in range(9):
    sampler.set_epoch(epoch)
    for i, (x,) in enumerate(loader):
        optimizer.zero_grad()
        model(x).mean().backward()
        optimizer.step()
        lr = 0.1 * (1 - (epoch * len(loader) + i) / total) ** 0.9
        optimizer.param_groups[0]["lr"] = lr
dist.destroy_process_group()
"""
VALIDATION = f"""{IMPORTED}
class Training:
    def __validation(self, model, val_loader):
        total = torch.zeros(1)
        with torch.no_grad():
            for x, in val_loader:
                total += model(x).mean()
        {{combine}}
        return total
    def __call__(self):
        model = DDP(nn.Linear(4, 4))
        valset = TensorDataset(torch.rand(64, 4))
        settings = {{{{"batch_size": 4, "sampler": DistributedSampler(valset, shuffle=False)}}}}
        settings.update({{{{"num_workers": 1}}}})
        loss = self.__validation(model, DataLoader(valset, **settings))
        if loss < 3:
            torch.save(model.state_dict(), f"best_{{{{dist.get_rank()}}}}.pt")
dist.init_process_group("gloo")
Training()()
dist.destroy_process_group()
"""
LOCAL_RANK = f"""{IMPORTED}
parser = argparse.ArgumentParser()
parser.add_argument("--local_rank", "--local-rank", default=-1, type=int)
args = parser.parse_args()
local_rank = args.local_rank
{{more}}
torch.cuda.set_device(local_rank)
dist.init_process_group("nccl")
model = DDP(nn.Linear(4, 4).to(local_rank), device_ids=[local_rank])
dist.destroy_process_group()
"""
TWICE = f"""{IMPORTED}
def evaluate(model):
    if "LOCAL_RANK" in os.environ{{asks}}:
        dist.init_process_group("gloo")
    return model
def train():
    model = DDP(nn.Linear(4, 4))
    evaluate(model)
def main():
    dist.init_process_group("gloo")
    train()
    dist.destroy_process_group()
main()
"""
VARIABLES = f"""{IMPORTED}
dist.init_process_group("nccl")
if dist.get_rank() == 0:
    entity = os.environ["ENTITY"]
    project = os.environ["{{name}}"]
dist.destroy_process_group()
"""
CLIPPED = f"""{IMPORTED}
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
def clip(model):
    {{first}}
    return torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
dist.init_process_group("nccl")
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
model = FSDP(nn.Linear(4, 4).cuda())
model(torch.rand(4, 4).cuda()).mean().backward()
clip(model)
dist.destroy_process_group()
"""
VOLCANO: dict[str, Any] = {"backend": {"kind": "volcano", "resources": {"nvidia.com/gpu": 2}}}
ON_CPUS: dict[str, Any] = {"backend": {"kind": "slurm", "shared_dir": "/shared"}}
OTHERS: list[tuple[str, str, str, dict[str, Any]]] = [
    ("bypassed", accelerated("accelerator.unwrap_model(model)"), accelerated(), GPUS),
    ("no-init", accelerated(), accelerated(given="cpu=True"), ON_CPUS),
    ("no-sampler", STREAM.format(divide=""), STREAM.format(divide=DIVIDE), GPUS),
    *(
        ("schedule-length", RATE.format(total=wrong), RATE.format(total="total = len(loader) * 9"), NONE)
        for wrong in (
            "total = len(trainset) // args.batch_size * 9",
            "total = 9 * (len(trainset) // (args.batch_size * accum))",
        )
    ),
    ("part-as-whole", VALIDATION.format(combine=""), VALIDATION.format(combine="dist.all_reduce(total)"), NONE),
    (
        "local-rank",
        LOCAL_RANK.format(more=""),
        LOCAL_RANK.format(more="local_rank = int(os.environ['LOCAL_RANK'])"),
        {**GPUS, "mode": "launch"},
    ),
    ("second-init", TWICE.format(asks=""), TWICE.format(asks=" and not dist.is_initialized()"), NONE),
    (
        "unset-variable",
        VARIABLES.format(name="PROJECT"),
        VARIABLES.format(name="HOSTNAME"),
        {**VOLCANO, "env": {"ENTITY": "us"}},
    ),
    (
        "clipped-by-part",
        CLIPPED.format(first="pass"),
        CLIPPED.format(first="if isinstance(model, FSDP):\n        return model.clip_grad_norm_(1.0)"),
        GPUS,
    ),
]


@each_mistake(OTHERS)
def test_what_a_small_change_breaks(tmp_path: Path, check: str, wrong: str, right: str, fields: dict[str, Any]) -> None:
    assert check in found(tmp_path, wrong, **fields)
    assert check not in found(tmp_path, right, **fields)


def test_what_is_no_mistake_beside_these(tmp_path: Path) -> None:
    """A group that the caller makes is there; a wrapper in a variable with a type wraps."""
    assert "no-init" not in found(tmp_path, TWICE.format(asks=""))
    assert "never-synchronized" not in found(tmp_path, STREAM.format(divide=DIVIDE), **GPUS)


RECORDED = f"""{IMPORTED}
class Recorder:
    def record(self, values):
        with open("values.pt", "ab") as file:
            torch.save(values, file)
parser = argparse.ArgumentParser()
parser.add_argument("--record", action="store_true")
args = parser.parse_args()
dist.init_process_group("gloo")
recorder = None
if dist.get_rank() == 0 and args.record:
    recorder = Recorder()
model = DDP(nn.Linear(4, 4))
for step in range(3):
    loss = model(torch.rand(4, 4)).mean()
    loss.backward()
    if recorder is not None:
        recorder.record(loss.detach())
dist.destroy_process_group()
"""


def test_a_class_of_which_the_job_makes_no_object_writes_nothing(tmp_path: Path) -> None:
    assert "saved-by-all" not in found(tmp_path, RECORDED)
    everywhere = RECORDED.replace("dist.get_rank() == 0 and args.record", "True")
    everywhere = everywhere.replace("    if recorder is not None:\n    ", "")
    assert "saved-by-all" in found(tmp_path, everywhere)


WRAPPED_FOR_AMP = f"""{IMPORTED}
parser = argparse.ArgumentParser()
parser.add_argument("--amp", action="store_true")
args = parser.parse_args()
use_amp = None
if args.amp:
    use_amp = "apex"
dist.init_process_group("gloo")
model = nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
{{wrap}}
for step in range(3):
    optimizer.zero_grad()
    loss = model(torch.rand(4, 4)).mean()
    loss.backward()
    optimizer.step()
dist.destroy_process_group()
"""
BY_NODE = f"""{IMPORTED}
dist.init_process_group("gloo", rank=int(os.environ["NODE_RANK"]), world_size=int(os.environ["NNODES"]))
rank, size = dist.get_rank(), dist.get_world_size()
grad = torch.zeros(4)
{{first}}
    dist.recv(grad, src=(rank - 1) % size)
    dist.send(grad, dst=(rank + 1) % size)
dist.destroy_process_group()
"""
FOLDERS = f"""{IMPORTED}
import datetime
import torch.distributed.checkpoint as dcp
from pathlib import Path
class Saver:
    def folder(self, base, name):
        made = base / name
        if dist.get_rank() == 0:
            made.mkdir(exist_ok=True)
        dist.barrier()
        return made
    def save(self, model, step):
        stamp = {{stamp}}
        name = f"{{{{stamp}}}}_{{{{step}}}}"
        dcp.save(model.state_dict(), checkpoint_id=self.folder(Path("/shared/out"), name))
dist.init_process_group("gloo")
base = ["a"]
dist.broadcast_object_list(base, src=0)
Saver().save(nn.Linear(4, 4), 1)
dist.destroy_process_group()
"""
RECORDED_BY_ONE = f"""{IMPORTED}
parser = argparse.ArgumentParser()
parser.add_argument("--use_wandb", action="store_true")
args = parser.parse_args()
dist.init_process_group("gloo")
def is_main_process():
    return dist.get_rank() == 0
if args.use_wandb and is_main_process():
    import swanlab as wandb
    wandb.init()
dist.destroy_process_group()
"""
MODULO = f"""{IMPORTED}
GPUS_PER_NODE = {{gpus}}
class Backend:
    def __init__(self):
        self.rank = int(os.environ["RANK"])
        self.local_rank = self.rank % GPUS_PER_NODE
        torch.cuda.set_device(self.local_rank)
        dist.init_process_group("nccl")
Backend()
dist.destroy_process_group()
"""
SCHEDULED = f"""{IMPORTED}
from accelerate import Accelerator
from transformers import get_scheduler
accelerator = Accelerator()
model = nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader = DataLoader(TensorDataset(torch.rand(64, 4)), shuffle=True)
{{before}}
schedule = get_scheduler(
    "cosine",
    optimizer=optimizer,
    num_warmup_steps=10,
    num_training_steps=len(loader) * 9,
)
{{after}}
for x, in loader:
    optimizer.zero_grad()
    accelerator.backward(model(x).mean())
    optimizer.step()
    schedule.step()
"""
PREPARES = "model, optimizer, loader = accelerator.prepare(model, optimizer, loader)"
EIGHT: dict[str, Any] = {
    "resources": {"nodes": 1, "nproc_per_node": 8},
    "backend": {"kind": "slurm", "shared_dir": "/shared", "gpus_per_node": 8},
}
CHANGES: list[tuple[str, str, str, dict[str, Any]]] = [
    (
        "never-synchronized",
        WRAPPED_FOR_AMP.format(wrap="if use_amp == 'apex':\n    model = DDP(model)"),
        WRAPPED_FOR_AMP.format(wrap="if use_amp != 'apex':\n    model = DDP(model)"),
        NONE,
    ),
    (
        "recv-before-send",
        BY_NODE.format(first="for _ in range(2):"),
        BY_NODE.format(first="if rank == 0:\n    dist.send(grad, dst=1)\nelse:"),
        {"command": ["python", "train.py"]},
    ),
    (
        "scattered-checkpoint",
        FOLDERS.format(stamp="datetime.datetime.now().strftime('%H%M%S%f')"),
        FOLDERS.format(stamp="'best'"),
        NONE,
    ),
    (
        "packages",
        RECORDED_BY_ONE,
        RECORDED_BY_ONE.replace("import swanlab", "import wandb"),
        {**GPUS, "requirements": "requirements.txt", "hyperparameters": {"use_wandb": {"flag": True}}},
    ),
    ("fixed-device", MODULO.format(gpus=4), MODULO.format(gpus=8), EIGHT),
    (
        "schedule-length",
        SCHEDULED.format(before=PREPARES, after="schedule = accelerator.prepare(schedule)"),
        SCHEDULED.format(before="", after=f"{PREPARES}\nschedule = accelerator.prepare(schedule)"),
        GPUS,
    ),
    (
        "unset-variable",
        VARIABLES.format(name="DATA_ROOT").replace('["ENTITY"]', '.get("ENTITY")'),
        VARIABLES.format(name="DATA_DIR").replace('["ENTITY"]', '.get("ENTITY")'),
        {**VOLCANO, "env": {"DATA_DIR": "/data"}},
    ),
]
# Code in which something looks like a mistake that it is not.
RIGHT: list[tuple[str, str, dict[str, Any]]] = [
    (
        "fixed-world-size",
        f"""{IMPORTED}
from accelerate import Accelerator
def ensure_distributed():
    if not dist.is_initialized():
        dist.init_process_group(world_size=1, rank=0, store=dist.HashStore())
accelerator = Accelerator()
ensure_distributed()
model, loader = accelerator.prepare(nn.Linear(4, 4), DataLoader(TensorDataset(torch.rand(64, 4))))
""",
        GPUS,
    ),
    (
        "rank-0-collective",
        f"""{IMPORTED}
import mmcv
class Memory:
    def update(self, found=None):
        every = [torch.zeros(1) for _ in range(dist.get_world_size())]
        dist.all_gather(every, torch.zeros(1))
dist.init_process_group("gloo")
if dist.get_rank() == 0:
    bar = mmcv.ProgressBar(10)
for step in range(10):
    if dist.get_rank() == 0:
        bar.update()
Memory().update()
dist.destroy_process_group()
""",
        NONE,
    ),
    (
        "fixed-device",
        f"""{IMPORTED}
import timm.utils as utils
parser = argparse.ArgumentParser()
args = parser.parse_args()
args.device = "cuda:0"
device = utils.init_distributed_device(args)
model = nn.Linear(4, 4)
model.cuda()
model = DDP(model, device_ids=[args.device])
model(torch.rand(4, 4).cuda()).mean().backward()
""",
        GPUS,
    ),
    (
        "no-init",
        f"""{IMPORTED}
from transformers import Trainer, TrainingArguments
from transformers.file_utils import cached_property, torch_required
class Arguments(TrainingArguments):
    @cached_property
    @torch_required
    def _setup_devices(self):
        torch.cuda.set_device(self.local_rank)
        torch.distributed.init_process_group(backend="nccl")
class OurTrainer(Trainer):
    def train(self):
        model = torch.nn.parallel.DistributedDataParallel(self.model_wrapped)
        for batch in self.get_train_dataloader():
            model(**batch).loss.backward()
            self.optimizer.step()
trainer = OurTrainer(model=nn.Linear(4, 4), args=Arguments("out"))
trainer.train()
""",
        GPUS,
    ),
    (
        "rank-0-collective",
        f"""{IMPORTED}
import functools
class ResnetBlockDDPM(nn.Module):
    def forward(self, x):
        return x
ResnetBlock = functools.partial(ResnetBlockDDPM)
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.block, self.last = ResnetBlock(), nn.Linear(4, 4)
    def forward(self, x):
        return self.last(self.block(x))
dist.init_process_group("gloo")
model = DDP(Net())
for step in range(3):
    model(torch.rand(4, 4)).mean().backward()
    if dist.get_rank() == 0:
        model(torch.rand(4, 4))
dist.destroy_process_group()
""",
        NONE,
    ),
]

MANAGED = f"""{IMPORTED}
from contextlib import contextmanager
class Groups:
    def __init__(self):
        self.destroyed = False
    def get(self, name):
        if self.destroyed:
            raise RuntimeError("the groups are destroyed")
        return name
    def destroy(self):
        self.destroyed = True
@contextmanager
def distributed():
    dist.init_process_group("gloo")
    groups = Groups()
    try:
        yield groups
    finally:
        groups.destroy()
        dist.destroy_process_group()
with distributed() as groups:
    groups.get("data")
    model = DDP(nn.Linear(4, 4))
    for step in range(3):
        model(torch.rand(4, 4)).mean().backward()
"""
RIGHT.append(("unfulfilled", MANAGED, NONE))


@each_mistake(CHANGES)
def test_what_another_change_breaks(tmp_path: Path, check: str, wrong: str, right: str, fields: dict[str, Any]) -> None:
    (tmp_path / "requirements.txt").write_text("torch\nwandb\n")
    assert check in found(tmp_path, wrong, **fields)
    assert check not in found(tmp_path, right, **fields)


@pytest.mark.parametrize(("check", "text", "fields"), RIGHT, ids=[check for check, *_ in RIGHT])
def test_what_only_looks_like_a_mistake(tmp_path: Path, check: str, text: str, fields: dict[str, Any]) -> None:
    assert check not in found(tmp_path, text, **fields)


ACCUMULATED = f"""{IMPORTED}
import contextlib
@contextlib.contextmanager
def ddp_sync(module, sync):
    if sync or not isinstance(module, DDP):
        yield
    else:
        with module.no_sync():
            yield
dist.init_process_group("gloo")
model = DDP(nn.Linear(4, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
rounds = 4
for step in range(3):
    optimizer.zero_grad()
    for n in range(rounds):
        {{context}}
            model(torch.rand(4, 4)).mean().backward()
    optimizer.step()
dist.destroy_process_group()
"""


@pytest.mark.parametrize(
    "context",
    [
        "with ddp_sync(model, {test}):",
        "with ddp_sync(model, sync=({test})):",
        "with contextlib.nullcontext() if {test} else model.no_sync():",
    ],
)
def test_a_last_step_that_never_comes(tmp_path: Path, context: str) -> None:
    for test, is_wrong in (("n == rounds", True), ("n == rounds - 1", False)):
        text = ACCUMULATED.format(context=context.format(test=test))
        assert ("never-synchronized" in found(tmp_path, text)) is is_wrong


OWN_SAMPLER = f"""{IMPORTED}
from timm.utils import NativeScaler
class RepeatedSampler(torch.utils.data.Sampler):
    def __init__(self, data, num_replicas=None, rank=None, shuffle=True):
        self.data, self.rank, self.size, self.epoch = data, dist.get_rank(), dist.get_world_size(), 0
    def __iter__(self):
        order = torch.randperm(len(self.data), generator=torch.Generator().manual_seed(self.epoch))
        return iter(order[self.rank :: self.size].tolist())
    def set_epoch(self, epoch):
        self.epoch = epoch
dist.init_process_group("gloo")
trainset = TensorDataset(torch.rand(64, 4))
sampler_train = RepeatedSampler(trainset)
loader = DataLoader(trainset, batch_size=4, sampler=sampler_train)
model = nn.Linear(4, 4)
{{wrap}}
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loss_scaler = NativeScaler()
for epoch in range(3):
    {{told}}
    for x, in loader:
        loss = model(x).mean()
        optimizer.zero_grad()
        loss_scaler(loss, optimizer, parameters=model.parameters())
dist.destroy_process_group()
"""


def own_sampler(wrap: str = "model = DDP(model)", told: str = "sampler_train.set_epoch(epoch)") -> str:
    return OWN_SAMPLER.format(wrap=wrap, told=told)


OF_LIBRARIES: list[tuple[str, str, str, dict[str, Any]]] = [
    ("set-epoch", own_sampler(told="pass"), own_sampler(), NONE),
    ("never-synchronized", own_sampler(wrap="pass"), own_sampler(), NONE),
    *(
        (
            "rank-0-collective",
            steps(start, backward=f"if dist.get_rank() == 0: {call}"),
            steps(start, backward=call),
            GPUS,
        )
        for start, call in ((ENGINE, "model.backward(loss)"), (SHARDED, "loss.backward()"))
    ),
    (
        "rank-0-collective",
        accelerated().replace("    accelerator.b", "    if accelerator.is_main_process: accelerator.b"),
        accelerated(),
        GPUS,
    ),
]


@each_mistake(OF_LIBRARIES)
def test_a_step_that_a_library_or_an_own_class_takes(
    tmp_path: Path, check: str, wrong: str, right: str, fields: dict[str, Any]
) -> None:
    assert check in found(tmp_path, wrong, **fields)
    assert check not in found(tmp_path, right, **fields)


METERED = f"""{IMPORTED}
def get_world_size():
    return dist.get_world_size() if dist.is_initialized() else 1
def all_reduce_mean(x):
    world_size = get_world_size()
    if world_size > 1:
        x_reduce = torch.tensor(x)
        {{mean}}
        x_reduce /= world_size
        return x_reduce.item()
    return x
class Meter:
    def __init__(self):
        self.count, self.total = 0, 0.0
    def update(self, value):
        self.count, self.total = self.count + 1, self.total + value
    def synchronize_between_processes(self):
        t = torch.tensor([self.count, self.total])
        dist.barrier()
        {{meter}}
        self.count, self.total = t.tolist()
{{start}}
meter, model = Meter(), nn.Linear(4, 4)
for step in range(3):
    loss = model(torch.rand(4, 4)).mean()
    meter.update(all_reduce_mean(loss.item()))
meter.synchronize_between_processes()
"""


def metered(
    mean: str = "dist.all_reduce(x_reduce)",
    meter: str = "dist.all_reduce(t)",
    start: str = "dist.init_process_group('gloo')",
) -> str:
    return METERED.format(mean=mean, meter=meter, start=start)


@pytest.mark.parametrize(
    ("check", "wrong"),
    [
        ("not-summed", metered(mean="pass")),
        ("not-summed", metered(meter="pass")),
        ("no-init", metered(start="pass")),
    ],
)
def test_figures_that_are_combined(tmp_path: Path, check: str, wrong: str) -> None:
    assert check in found(tmp_path, wrong)
    assert check not in found(tmp_path, metered())


LATENT = f"""{IMPORTED}
from diffusers import losses
dist.init_process_group("gloo")
model = DDP(nn.Linear(4, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x in [torch.rand(8, 4)] * 5:
    loss_dict = losses.training_losses({{model}}, x)
    optimizer.zero_grad()
    loss_dict["loss"].mean().backward()
    optimizer.step()
dist.destroy_process_group()
"""
METHODS = f"""{IMPORTED}
class Diffusion:
    def training_losses(self, net, x):
        return net(x).mean()
def make(kind):
    return {{{{"a": Diffusion}}}}[kind]()
dist.init_process_group("gloo")
model = DDP(nn.Linear(4, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
diffusion = make(sys.argv[0])
for x in [torch.rand(8, 4)] * 5:
    found = diffusion.training_losses({{model}}, x)
    optimizer.zero_grad()
    found.backward()
    optimizer.step()
dist.destroy_process_group()
"""
DELTAS = f"""{IMPORTED}
def average(tensors):
    for t in tensors:
        dist.all_reduce(t)
        t /= dist.get_world_size()
dist.init_process_group("gloo")
model = nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
start = [p.data.clone() for p in model.parameters()]
for step in range(1000):
    optimizer.zero_grad()
    model(torch.rand(8, 4)).mean().backward()
    optimizer.step()
    if (step + 1) % 100 == 0:
        deltas = [p.data - old for p, old in zip(model.parameters(), start)]
        average(deltas)
dist.destroy_process_group()
"""


@pytest.mark.parametrize("text", [LATENT, METHODS])
def test_the_model_inside_a_wrapper_that_something_else_calls(tmp_path: Path, text: str) -> None:
    assert "bypassed" in found(tmp_path, text.format(model="model.module"))
    assert "bypassed" not in found(tmp_path, text.format(model="model"))


def test_what_is_averaged_in_later_passes(tmp_path: Path) -> None:
    assert "never-synchronized" not in found(tmp_path, DELTAS)
    assert "never-synchronized" in found(tmp_path, DELTAS.replace("        average(deltas)", "        pass"))


SETTINGS_FILE = """
import argparse
from dataclasses import dataclass, field
from transformers import HfArgumentParser, TrainingArguments
@dataclass
class Own:
    lora_rank: int = field(default=8)
parser = argparse.ArgumentParser()
parser.add_argument("--train_args_file", default="other.json")
given = parser.parse_args()
parser = HfArgumentParser((Own, TrainingArguments))
own, training = parser.parse_json_file(json_file=given.train_args_file)
"""


@pytest.mark.parametrize(("key", "is_wrong"), [("lora_r", True), ("lora_rank", False), ("evaluation_strategy", False)])
def test_a_file_of_settings_that_an_argument_names(tmp_path: Path, key: str, is_wrong: bool) -> None:
    (tmp_path / "train.json").write_text(f'{{"output_dir": "/out", "{key}": 4}}')
    names = found(tmp_path, SETTINGS_FILE, args=["--train_args_file", "train.json"])
    assert ("argument-unknown" in names) is is_wrong


MADE_AGAIN = f"""{IMPORTED}
from pathlib import Path
dist.init_process_group("gloo")
model = DDP(nn.Linear(4, 4))
out = Path("/shared/out")
for epoch in range(3):
    model(torch.rand(4, 4)).mean().backward()
    if dist.get_rank() == 0:
        {{make}}
        torch.save(model.state_dict(), out / "eval" / "last.pt")
dist.destroy_process_group()
"""


@pytest.mark.parametrize(
    ("make", "is_wrong"),
    [
        ("(out / 'eval').mkdir()", True),
        ("os.makedirs(os.path.join(out, 'eval'))", True),
        ("(out / 'eval').mkdir(exist_ok=True)", False),
        ("(out / f'eval_{epoch}').mkdir()", False),
        ("if not (out / 'eval').exists(): (out / 'eval').mkdir()", False),
        ("if epoch == 0: (out / 'eval').mkdir()", False),
    ],
)
def test_a_folder_that_each_pass_makes(tmp_path: Path, make: str, is_wrong: bool) -> None:
    assert ("made-again" in found(tmp_path, MADE_AGAIN.replace("{make}", make))) is is_wrong


PITCHED = f"""{IMPORTED}
class Generator(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.pitch = nn.Linear(1, 4)
    def forward(self, x, f0=None):
        x = self.first(x)
        if f0 is not None:
            x = x + self.pitch(f0)
        return x
dist.init_process_group("gloo")
generator = Generator()
generator = DDP(generator)
optimizer = torch.optim.SGD(generator.parameters(), lr=0.1)
for x in [torch.rand(8, 4)] * 5:
    optimizer.zero_grad()
    generator({{given}}).mean().backward()
    optimizer.step()
dist.destroy_process_group()
"""


@pytest.mark.parametrize(("given", "is_wrong"), [("x", True), ("x, x[:, :1]", False), ("x, f0=x[:, :1]", False)])
def test_a_layer_for_an_input_that_no_call_gives(tmp_path: Path, given: str, is_wrong: bool) -> None:
    assert ("unused-parameters" in found(tmp_path, PITCHED.format(given=given))) is is_wrong


# What a review found to be said falsely: each is correct code.
GROUPED = """
dist.init_process_group("nccl")
local_rank = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(local_rank)
rank, world_size = dist.get_rank(), dist.get_world_size()
"""
TRAINED = """
model = DDP(nn.Linear(4, 4).cuda(), device_ids=[local_rank])
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(8):
    optimizer.zero_grad()
    model(torch.rand(8, 4).cuda()).mean().backward()
    optimizer.step()
"""
CORRECT: list[tuple[str, str]] = [
    ("no-init", "from megatron.training.initialize import initialize_megatron\ninitialize_megatron()\ndist.barrier()"),
    ("no-init", "from transformers import TrainingArguments\nprint(TrainingArguments('out').device)\ndist.barrier()"),
    (
        "unused-parameters",
        GROUPED
        + """
class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.context = nn.Linear(4, 4)
    def forward(self, x, context=None):
        if context is not None:
            x = x + self.context(context)
        return self.fc(x)
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([Block() for _ in range(3)])
    def forward(self, x):
        for block in self.blocks:
            x = block(x, x)
        return x
net = DDP(Net().cuda())
net(torch.rand(4, 4).cuda()).mean().backward()
""",
    ),
    *(
        ("not-summed", GROUPED + text + TRAINED)
        for text in (
            "def mean_of(x):\n    outs = [torch.zeros_like(x) for _ in range(world_size)]\n"
            "    dist.all_gather(outs, x)\n"
            "    s = torch.stack(outs).sum(0)\n    return s / world_size\nprint(mean_of(torch.ones(1).cuda()))",
            "def sync_batch_size(batch_size):\n    return int(batch_size / world_size)\nprint(sync_batch_size(64))",
            "def reduce_lr(lr):\n    return lr / world_size\nprint(reduce_lr(0.1))",
            "lengths = torch.tensor([len(x) for x in 'ab'])\ntotal = lengths.sum().item()\nprint(total / world_size)",
            "def sync_ranks():\n    if dist.is_initialized():\n        dist.barrier()\nsync_ranks()",
            "def reduce_memory():\n    torch.cuda.empty_cache()\n    dist.barrier()\nreduce_memory()",
        )
    ),
    (
        "left-by-one",
        GROUPED + TRAINED.replace("    optimizer.zero", "    if state.step != step: continue\n    optimizer.zero", 1),
    ),
    (
        "never-synchronized",
        GROUPED
        + """
class Copied(torch.autograd.Function):
    @staticmethod
    def forward(ctx, weight):
        return weight
    @staticmethod
    def backward(ctx, grad):
        dist.all_reduce(grad, op=dist.ReduceOp.AVG)
        return grad
class Shared(nn.Linear):
    def forward(self, x):
        return nn.functional.linear(x, Copied.apply(self.weight), Copied.apply(self.bias))
torch.manual_seed(0)
net = Shared(4, 4).cuda()
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for step in range(8):
    optimizer.zero_grad()
    net(torch.rand(8, 4).cuda()).mean().backward()
    optimizer.step()
""",
    ),
    *(
        ("made-again", GROUPED + TRAINED + text)
        for text in (
            "    if rank == 0: shutil.rmtree('out', ignore_errors=True); os.makedirs('out')",
            "    if rank == 0 and step + 1 == 8: os.makedirs('out/final')",
            "    args.out = f'out/{step}'; os.makedirs(args.out)",
        )
    ),
    *(
        (
            "fixed-device",
            GROUPED.replace("torch.cuda.set_device(local_rank)", "device = torch.device('cuda', local_rank)") + text,
        )
        for text in (
            "scaler = torch.amp.GradScaler(device='cuda')",
            "print(torch.cuda.device_count(), torch.cuda.current_device())",
            "mse = nn.MSELoss()\nmse.cuda()",
        )
    ),
    (
        "never-synchronized",
        ACCUMULATED.format(
            context="n += 1\n        with contextlib.nullcontext() if n == rounds else model.no_sync():"
        ),
    ),
]


@pytest.mark.parametrize(("check", "text"), CORRECT, ids=[f"{n}-{check}" for n, (check, _) in enumerate(CORRECT)])
def test_correct_code_of_which_nothing_is_said(tmp_path: Path, check: str, text: str) -> None:
    text = f"{IMPORTED}import shutil\n{text}\n"
    assert check not in found(tmp_path, text, **GPUS)


def test_variables_that_tools_and_sites_read(tmp_path: Path) -> None:
    text = VARIABLES.format(name="SCRATCH").replace("ENTITY", "WANDB_DIR")
    assert "unset-variable" not in found(tmp_path, text, **VOLCANO, env={"WANDB_MODE": "offline"})
