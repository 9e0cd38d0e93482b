"""Mistakes and false alarms in steps that add up, in groups, in parsers, and in what modules lack."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from checked import GPUS, IMPORTED, RESTARTED, SLURM, STARTED, TWO, findings, found, with_files

IN_BATCHES = """
data = TensorDataset(torch.rand(64, 4))
sampler = {sampler}
batches = torch.utils.data.BatchSampler(sampler, 8, drop_last=True)
model = DDP(nn.Linear(4, 1).cuda())
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(10):
    {sets}
    for x, in DataLoader(data, batch_sampler=batches):
        optimizer.zero_grad()
        model(x.cuda()).mean().backward()
        optimizer.step()
"""


@pytest.mark.parametrize(
    ("sampler", "sets", "is_wrong"),
    [
        ("torch.utils.data.RandomSampler(data)", "pass", True),
        ("DistributedSampler(data)", "sampler.set_epoch(epoch)", False),
    ],
)
def test_a_random_sampler_in_a_batch_sampler(tmp_path: Path, sampler: str, sets: str, is_wrong: bool) -> None:
    text = STARTED + IN_BATCHES.format(sampler=sampler, sets=sets)
    assert ("no-sampler" in found(tmp_path, text, **GPUS)) is is_wrong


OBJECTS = """
import pickle
def all_gather(data):
    buffer = pickle.dumps(data)
    tensor = torch.ByteTensor(torch.ByteStorage.from_buffer(buffer)).cuda()
    every = [torch.empty_like(tensor) for _ in range(dist.get_world_size())]
    dist.all_gather(every, tensor)
    return every
torch.manual_seed(0)
model = {wraps}(nn.Linear(4, 1).cuda())
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(10):
    optimizer.zero_grad()
    loss = model(torch.rand(8, 4).cuda()).mean()
    loss.backward()
    optimizer.step()
print(all_gather({{"loss": loss.item()}}))
"""


@pytest.mark.parametrize(("wraps", "is_wrong"), [("", True), ("DDP", False)])
def test_objects_that_are_gathered_are_no_gradients(tmp_path: Path, wraps: str, is_wrong: bool) -> None:
    assert ("never-synchronized" in found(tmp_path, STARTED + OBJECTS.format(wraps=wraps), **GPUS)) is is_wrong


@pytest.mark.parametrize("nodes", [1, 2])
@pytest.mark.parametrize(("each", "is_wrong"), [("4", True), ("2", False), ("$NPROC_PER_NODE", False)])
def test_a_launcher_that_starts_more_processes(tmp_path: Path, nodes: int, each: str, is_wrong: bool) -> None:
    options = f"--nnodes=$NNODES --node_rank=$NODE_RANK --nproc_per_node={each} --master_addr=$MASTER_ADDR"
    with_files(tmp_path, {"train.py": IMPORTED, "start.sh": f"torchrun {options} train.py\n"})
    seen = findings(tmp_path, command=["bash", "start.sh"], resources={"nodes": nodes, "nproc_per_node": 2})
    assert ("launcher-processes" in {one.check for one in seen}) is is_wrong


SWITCHED = """
from contextlib import contextmanager
class Alone:
    def micro_step(self, *args, **kwargs):
        pass
class Together:
    @contextmanager
    def micro_step(self, model, index, steps):
        model.require_backward_grad_sync = index == {last}
        yield
class Settings:
    steps = 4
settings, together = Settings(), Together()
model = DDP(nn.Linear(4, 1).cuda())
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(10):
    optimizer.zero_grad()
    for index in range(settings.steps):
        with together.micro_step(model=model, index=index, steps=settings.steps):
            loss = model(torch.rand(8, 4).cuda()).mean() / settings.steps
        loss.backward()
    optimizer.step()
"""


@pytest.mark.parametrize(("last", "is_wrong"), [("steps", True), ("steps - 1", False)])
def test_a_last_step_that_a_context_manager_is_never_given(tmp_path: Path, last: str, is_wrong: bool) -> None:
    assert ("never-synchronized" in found(tmp_path, STARTED + SWITCHED.format(last=last), **GPUS)) is is_wrong


IN_FABRIC = """
from lightning.fabric import Fabric
fabric = Fabric(accelerator="cuda", devices=2, num_nodes=2)
fabric.launch()
model = nn.Linear(4, 1)
model, optimizer = fabric.setup(model, torch.optim.SGD(model.parameters(), lr=0.1))
steps = 4
for number in range(100):
    is_accumulating = (number + 1) % steps != 0
    with fabric.no_backward_sync(model, enabled={enabled}):
        fabric.backward(model(torch.rand(8, 4)).mean() / steps)
    if not is_accumulating:
        optimizer.step()
        optimizer.zero_grad()
"""


@pytest.mark.parametrize(
    ("enabled", "is_wrong"),
    [("number % steps != 0", True), ("is_accumulating", False), ("(number + 1) % steps != 0", False)],
)
def test_fabric_synchronizes_in_another_step(tmp_path: Path, enabled: str, is_wrong: bool) -> None:
    assert ("never-synchronized" in found(tmp_path, IMPORTED + IN_FABRIC.format(enabled=enabled), **GPUS)) is is_wrong


OF_ONE_NODE = """
def evaluate(model, loader):
    total = torch.zeros(2).cuda()
    with torch.no_grad():
        for x, in loader:
            total += torch.stack([model(x.cuda()).mean(), torch.ones(()).cuda()])
    group = dist.new_group({ranks})
    dist.all_reduce(total, group=group)
    if rank == 0:
        return total[0] / total[1]
    return None
data = TensorDataset(torch.rand(64, 4))
model = DDP(nn.Linear(4, 1).cuda())
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
best = 0.0
for step in range(10):
    optimizer.zero_grad()
    model(torch.rand(8, 4).cuda()).mean().backward()
    optimizer.step()
    sys.stdout = open(os.devnull, "w")
    figure = evaluate(model, DataLoader(data, sampler=DistributedSampler(data, shuffle=False)))
    if figure is not None:
        torch.save(model.state_dict(), "/shared/out/best.pt")
"""


@pytest.mark.parametrize(
    ("ranks", "is_wrong"), [("[n for n in range(2)]", True), ("list(range(dist.get_world_size()))", False)]
)
def test_results_that_a_group_of_one_node_adds_up(tmp_path: Path, ranks: str, is_wrong: bool) -> None:
    assert found(tmp_path, STARTED + OF_ONE_NODE.format(ranks=ranks), **GPUS) == (
        {"other-group"} if is_wrong else set()
    )


PARTS = """
from datasets import load_dataset
data = load_dataset("/shared/data")
lengths = []
for number in range(10):
    part = data.shard(num_shards=10, index=number, contiguous=True)
    lengths.append(len(part))
model = DDP(nn.Linear(4, 1).cuda())
"""


def test_parts_that_each_process_goes_through(tmp_path: Path) -> None:
    fields = {**GPUS, "resources": {"nodes": 2, "nproc_per_node": 8}}
    assert "part-of-node" not in found(tmp_path, STARTED + PARTS, **fields)


GIVEN_AWAY = """
from toolkit.settings import complete
parser = argparse.ArgumentParser()
parser.add_argument("--heads", type=int, default=8)
heads = parser.parse_known_args()[0].heads
args = complete(parser=parser)
"""


def test_a_parser_that_a_library_completes(tmp_path: Path) -> None:
    with_files(tmp_path, {"train.py": IMPORTED + GIVEN_AWAY})
    seen = findings(tmp_path, hyperparameters={"lr": 0.1})
    assert [one.level for one in seen if "argument" in one.check] == ["unknown"]


LEFT_OVER = """
parser = argparse.ArgumentParser()
parser.add_argument("--config", required=True)
args, rest = parser.parse_known_args()
more = argparse.ArgumentParser()
for name in open(args.config).read().split():
    more.add_argument(f"--{name}", required=True)
settings = more.parse_known_args(rest)[0]
"""


def test_words_that_a_parser_with_computed_options_gets(tmp_path: Path) -> None:
    with_files(tmp_path, {"train.py": IMPORTED + LEFT_OVER})
    seen = findings(tmp_path, hyperparameters={"config": "/shared/names.txt", "lr": 0.1})
    assert [one.level for one in seen if "argument" in one.check] == ["unknown"]


MEDICAL = """
from monai.data import DistributedSampler as Divided
{first}
data = TensorDataset(torch.rand(64, 4))
sampler = Divided(data, even_divisible=True)
{then}
"""


@pytest.mark.parametrize("is_wrong", [True, False])
def test_a_sampler_of_monai_before_the_group(tmp_path: Path, is_wrong: bool) -> None:
    start = 'dist.init_process_group("nccl")'
    text = MEDICAL.format(first="" if is_wrong else start, then=start if is_wrong else "")
    assert ("no-init" in found(tmp_path, IMPORTED + text, **GPUS)) is is_wrong


BY_SETTINGS = """
settings = json.load(open("/shared/settings.json"))
def work(number, settings):
    dist.init_process_group("nccl", init_method=settings["url"], world_size=4, rank=number)
if settings["distributed"]:
    mp.spawn(work, nprocs=2, args=(settings,))
else:
    work(0, settings)
"""


@pytest.mark.parametrize(("mode", "is_wrong"), [("torchrun", True), ("spawn", False)])
def test_processes_that_settings_start_below_a_launcher(tmp_path: Path, mode: str, is_wrong: bool) -> None:
    assert ("nested-spawn" in found(tmp_path, IMPORTED + BY_SETTINGS, mode=mode, **GPUS)) is is_wrong


FROM_GPU = """
model = nn.Linear(4, 1).cuda()
source = {source}
for value in model.state_dict().values():
    if not torch.is_tensor(value):
        continue
    dist.broadcast(value, source)
"""


@pytest.mark.parametrize(
    ("source", "is_wrong"), [("dist.get_rank() - torch.cuda.current_device()", True), ("0", False)]
)
def test_a_source_that_is_the_first_rank_of_each_node(tmp_path: Path, source: str, is_wrong: bool) -> None:
    assert ("other-roots" in found(tmp_path, STARTED + FROM_GPU.format(source=source), **GPUS)) is is_wrong


SAVED = """
from data.scans import Scans
resume = ""
scans = Scans()
model = DDP(nn.Linear(4, 1).cuda())
if os.path.isfile(resume):
    model.load_state_dict(torch.load(resume))
for step in range(100):
    model(torch.rand(8, 4).cuda()).mean().backward()
    if rank == 0:
        torch.save(model.state_dict(), "/shared/out/last.pt")
"""
SCANS = """
import pickle
def read(path):
    with open(path, "rb") as stream:
        return pickle.load(stream)
class Scans:
    def __init__(self):
        self.index = read("/shared/scans/index")
"""


def test_pickled_data_is_no_checkpoint(tmp_path: Path) -> None:
    with_files(tmp_path, {"data/__init__.py": "", "data/scans.py": SCANS})
    assert "no-checkpoint" in found(tmp_path, STARTED + SAVED, **RESTARTED)
    assert "no-checkpoint" not in found(tmp_path, STARTED + SAVED.replace('""', "sys.argv[1]", 1), **RESTARTED)


CONFIGURED = """
import importlib.util
parser = argparse.ArgumentParser()
parser.add_argument("--config", default="configs/{name}.py")
args = parser.parse_args()
spec = importlib.util.spec_from_file_location("config", args.config)
config = importlib.util.module_from_spec(spec)
spec.loader.exec_module(config)
"""


@pytest.mark.parametrize(("name", "is_wrong"), [("large", True), ("small", False)])
def test_a_module_of_settings_that_is_the_default(tmp_path: Path, name: str, is_wrong: bool) -> None:
    with_files(tmp_path, {"configs/small.py": "lr = 0.1\n"})
    assert ("not-there" in found(tmp_path, IMPORTED + CONFIGURED.format(name=name))) is is_wrong


SKIPPING = """
import random
from torch.utils.checkpoint import checkpoint
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([nn.Linear(4, 4) for _ in range(4)])
    def forward(self, x):
        for number in range(len(self.blocks)):
            if self.training and random.random() < 0.1:
                {skips}
            x = checkpoint(self.blocks[number], x)
        return x
model = DDP(Net().cuda())
"""


@pytest.mark.parametrize(("skips", "is_wrong"), [("continue", True), ("x = x * 0.5", False)])
def test_layers_of_a_list_that_are_left_out_at_random(tmp_path: Path, skips: str, is_wrong: bool) -> None:
    assert ("unused-parameters" in found(tmp_path, STARTED + SKIPPING.format(skips=skips), **GPUS)) is is_wrong


@pytest.mark.parametrize("looks_up", ["models.__dict__[args.model]()", "getattr(models, args.model)()"])
@pytest.mark.parametrize(("model", "is_wrong"), [("netb", True), ("NetB", False), ("NetC", False)])
def test_a_model_that_a_module_lacks(tmp_path: Path, looks_up: str, model: str, is_wrong: bool) -> None:
    defined = "def NetB():\n    pass\nNetC = NetB\n"
    with_files(tmp_path, {"models.py": defined})
    text = f'{IMPORTED}import models\nparser = argparse.ArgumentParser()\nparser.add_argument("--model")\n'
    text += f"args = parser.parse_args()\nmodel = {looks_up}\n"
    assert ("imports" in found(tmp_path, text, hyperparameters={"model": model})) is is_wrong


REGISTERED = """
from timm.models import create_model, register_model
class Net(nn.Module):
    def __init__(self, depth=12, pretrained_cfg=None{more}):
        super().__init__()
def make(name, pretrained=False, **kwargs):
    return Net(**kwargs)
@register_model
def small_net(pretrained=False, **kwargs):
    settings = dict(depth=4)
    settings.update(kwargs)
    {takes}
    return make("small_net", pretrained=pretrained, **settings)
model = create_model("small_net", depth=2)
"""
CLUSTER: dict[str, Any] = {"backend": {**SLURM, "gpus_per_node": 2}, "requirements": "requirements.txt"}


@pytest.mark.parametrize(
    ("wanted", "more", "takes", "is_wrong"),
    [
        ("timm>=1.0.9", "", "pass", True),
        ("timm>=1.0.9", ", **kwargs", "pass", False),
        ("timm>=1.0.9", "", 'settings.pop("pretrained_cfg_overlay", None)', False),
        ("timm>=0.6", "", "pass", False),
        ("timm==0.4.12", "", "pass", False),
    ],
)
def test_a_model_for_the_timm_that_requirements_name(
    tmp_path: Path, wanted: str, more: str, takes: str, is_wrong: bool
) -> None:
    with_files(tmp_path, {"requirements.txt": f"{wanted}\n"})
    text = IMPORTED + REGISTERED.format(more=more, takes=takes)
    assert ("library-version" in found(tmp_path, text, resources=TWO, **CLUSTER)) is is_wrong
