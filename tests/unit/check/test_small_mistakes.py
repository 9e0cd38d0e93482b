"""Small mistakes in correct code, of the kinds that tests/bench/mistakes.py makes by rule."""

from __future__ import annotations

from pathlib import Path
from typing import Any

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
        ("print(reduce_mean(loss.detach()))\nshare = loss.clone()\nprint(share / world_size)", "reduce_mean(loss)"),
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
