"""Small mistakes in correct code, of the kinds that tests/bench/mistakes.py makes by rule."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from checked import GPUS, IMPORTED, each_mistake, found

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


CURRENT = [
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
