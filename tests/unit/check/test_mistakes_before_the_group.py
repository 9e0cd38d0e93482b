"""What processes ask of their process group before they have made it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from checked import GPUS, IMPORTED, each_mistake, found

HELPERS = """
def is_dist_avail_and_initialized():
    if not dist.is_available():
        return False
    if not dist.is_initialized():
        return False
    return True
def get_world_size():
    if not is_dist_avail_and_initialized():
        return 1
    return dist.get_world_size()
def get_rank():
    return dist.get_rank() if is_dist_avail_and_initialized() else 0
def is_main_process():
    return get_rank() == 0
def start():
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl")
"""
TRAIN = """
model = DDP(nn.Linear(4, 1).cuda())
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(3):
    loader.sampler.set_epoch(epoch)
    for batch, in loader:
        optimizer.zero_grad()
        model(batch.cuda()).mean().backward()
        optimizer.step()
"""
DATA = "data = TensorDataset(torch.rand(64, 4))\n"
BY_HELPERS = "sampler = DistributedSampler(data, num_replicas=get_world_size(), rank=get_rank())\n"
BY_CONDITION = "sampler = DistributedSampler(data) if get_world_size() > 1 else None\n"
BY_VARIABLE = "world_size, x = get_world_size(), 1\nn = get_world_size()\n"
BY_BRANCH = """
if is_dist_avail_and_initialized():
    sampler = DistributedSampler(data)
else:
    sampler = torch.utils.data.RandomSampler(data)
"""
BY_FIELD = """
class Settings:
    pass
args = Settings()
args.distributed = get_world_size() > 1
"""
FIELD_USED = """
if args.distributed:
    sampler = DistributedSampler(data)
else:
    sampler = None
"""
LOADER = "loader = DataLoader(data, batch_size=8, sampler=sampler)\n"


def program(*parts: str) -> str:
    return "".join([IMPORTED, HELPERS, *parts])


EARLY: list[tuple[str, str, str, dict[str, Any]]] = [
    ("no-init", program(DATA, asks, LOADER, "start()", TRAIN), program("start()\n", DATA, asks, LOADER, TRAIN), GPUS)
    for asks in (BY_HELPERS, BY_CONDITION, BY_BRANCH)
] + [
    (
        "no-init",
        program("n = get_world_size()\nstart()\n", DATA, "sampler = DistributedSampler(data, n)\n", LOADER, TRAIN),
        program("start()\nn = get_world_size()\n", DATA, "sampler = DistributedSampler(data, n)\n", LOADER, TRAIN),
        GPUS,
    ),
    (
        "no-init",
        program(BY_FIELD, "start()\n", DATA, FIELD_USED, LOADER, TRAIN),
        program("start()\n", BY_FIELD, DATA, FIELD_USED, LOADER, TRAIN),
        GPUS,
    ),
    (
        "no-init",
        program(DATA, BY_HELPERS, LOADER, "if not dist.is_initialized():\n    start()\n", TRAIN),
        program("if not dist.is_initialized():\n    start()\n", DATA, BY_HELPERS, LOADER, TRAIN),
        GPUS,
    ),
]


@each_mistake(EARLY)
def test_who_asks_before_the_group_is_made_is_alone(
    tmp_path: Path, check: str, wrong: str, right: str, fields: dict[str, Any]
) -> None:
    assert check in found(tmp_path, wrong, **fields)
    assert found(tmp_path, right, **fields) == set()


@pytest.mark.parametrize(
    "before",
    [
        "print(get_rank())\n",
        "if is_main_process():\n    os.makedirs('/tmp/logs', exist_ok=True)\n",
        "import accelerate\naccelerate.Accelerator()\nn = get_world_size()\n",
        "n = get_world_size()\nn = int(os.environ['WORLD_SIZE'])\n",
    ],
)
def test_what_is_only_written_may_come_before_the_group(tmp_path: Path, before: str) -> None:
    text = program(before, "start()\n", DATA, "sampler = DistributedSampler(data)\n", LOADER, TRAIN)
    assert "no-init" not in found(tmp_path, text, **GPUS)
