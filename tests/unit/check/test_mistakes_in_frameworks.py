"""Mistakes behind Hydra, Lightning and Accelerate, and what looks like one there and is none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from checked import GPUS, IMPORTED, STARTED, each_mistake, findings, found, with_files

SPAWNED = f"""{IMPORTED}
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 1)
    def forward(self, batch):
        device = torch.device("cuda", NUMBER)
        return self.layer(batch.to(device))
def work(gpu, count):
    rank = int(os.environ["NODE_RANK"]) * count + gpu
    dist.init_process_group("nccl", rank=rank, world_size=2 * count)
    torch.cuda.set_device(gpu)
    model = DDP(Net().cuda(gpu), device_ids=[gpu])
    model(torch.ones(1, 4)).sum().backward()
mp.spawn(work, nprocs=torch.cuda.device_count(), args=(torch.cuda.device_count(),))
"""
ACCELERATED = f"""{IMPORTED}
from accelerate import Accelerator
def say(text):
    if dist.get_rank() == 0:
        print(text)
def main():
    BEFORE
    accelerator = Accelerator()
    AFTER
    model = accelerator.prepare(nn.Linear(4, 1))
    model(torch.ones(1, 4)).sum().backward()
main()
"""
LIT = """
import torch, pytorch_lightning as pl
from pytorch_lightning.callbacks import ModelCheckpoint
class Net(pl.LightningModule):
    def training_step(self, batch, number):
        return self.step(batch)
    def validation_step(self, batch, number):
        return self.step(batch)
    def step(self, batch):
        loss = self.layer(batch).sum()
        self.log("watched", FIGURE)
        return loss
trainer = pl.Trainer(num_nodes=2, devices=2, callbacks=[ModelCheckpoint(monitor="watched")])
trainer.fit(Net())
"""
ON_CPU = f"""{STARTED}
model = nn.Linear(4, 1)PLACED
if "LOCAL_RANK" in os.environ:
    model = DDP(model, device_ids=[int(os.environ["LOCAL_RANK"])])
else:
    model = model.cuda()
model(torch.ones(1, 4)).sum().backward()
"""
SAMPLED = f"""{STARTED}
import lightning as L
class Data(L.LightningDataModule):
    def __init__(self, data, shuffle):
        self.data, self.shuffle = data, shuffle
    def loader(self, make, shuffle):
        sampler = DistributedSampler(self.data, shuffle=shuffle) if dist.get_world_size() > 1 else None
        return make(dataset=self.data, sampler=sampler, batch_size=2, shuffle=GIVEN)
    def train_dataloader(self):
        return self.loader(DataLoader, True)
L.Trainer(num_nodes=2, devices=2).fit(None, datamodule=Data(TensorDataset(torch.ones(8)), True))
"""


@each_mistake(
    [
        (
            "rank-as-device",
            SPAWNED.replace("NUMBER", "dist.get_rank()"),
            SPAWNED.replace("NUMBER", "dist.get_rank() % 2"),
            GPUS,
        ),
        (
            "no-init",
            ACCELERATED.replace("BEFORE", 'say("hello")').replace("AFTER", ""),
            ACCELERATED.replace("BEFORE", "").replace("AFTER", 'say("hello")'),
            GPUS,
        ),
        ("part-as-whole", LIT.replace("FIGURE", "loss"), LIT.replace("FIGURE", "float(self.global_step)"), GPUS),
        (
            "lightning-nodes",
            "from pytorch_lightning.trainer import Trainer\nTrainer(num_nodes=4).fit(None)\n",
            "from pytorch_lightning.trainer import Trainer\nTrainer(num_nodes=2).fit(None)\n",
            GPUS,
        ),
        (
            "sampler-and-shuffle",
            SAMPLED.replace("GIVEN", "shuffle"),
            SAMPLED.replace("GIVEN", "shuffle and sampler is None"),
            GPUS,
        ),
    ]
)
def test_mistakes_of_frameworks(tmp_path: Path, check: str, wrong: str, right: str, fields: dict[str, Any]) -> None:
    if wrong.startswith(SPAWNED[:40]) and "mp.spawn(" in wrong:
        fields = {**fields, "mode": "spawn"}
    assert check in found(tmp_path, wrong, **fields)
    assert check not in found(tmp_path, right, **fields)


def test_a_model_on_the_cpu_is_found_once(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(ON_CPU.replace("PLACED", ""))
    assert [one.check for one in findings(tmp_path, **GPUS)].count("model-on-cpu") == 1
    assert "model-on-cpu" not in found(tmp_path, ON_CPU.replace("PLACED", ".cuda()"), **GPUS)


def test_a_loss_is_no_gradient_because_a_grad_scaler_takes_part(tmp_path: Path) -> None:
    text = f"""{STARTED}
def epoch(model, grad_scaler):
    loss = model(torch.ones(1, 4).cuda()).sum()
    grad_scaler.scale(loss).backward()
    return loss
model = DDP(nn.Linear(4, 1).cuda())
NAME = torch.cuda.amp.GradScaler()
loss = epoch(model, NAME)
dist.all_reduce(loss)
print(loss / dist.get_world_size())
"""
    assert "double-averaging" not in found(tmp_path, text.replace("NAME", "grad_scaler"), **GPUS)


@pytest.mark.parametrize(
    ("imported", "expected"),
    [
        ("import broken", ["error"]),
        ("if os.environ.get('UNSET_IN_TESTS'):\n    import broken", ["warning"]),
        ("choice = 'a'\nif choice == 'b':\n    import broken", []),
        ("from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import broken", []),
    ],
)
def test_a_module_that_is_not_valid_and_perhaps_not_imported(
    tmp_path: Path, imported: str, expected: list[str]
) -> None:
    with_files(tmp_path, {"train.py": f"import os\n{imported}\n", "broken.py": "def (:\n"})
    assert [one.level for one in findings(tmp_path) if one.check == "boot-file"] == expected


def test_weights_that_a_backbone_begins_with_are_no_checkpoint_of_this_training(tmp_path: Path) -> None:
    text = f"""{STARTED}
parser = argparse.ArgumentParser()
parser.add_argument("--KIND", default="")
args = parser.parse_args()
def load(path):
    return torch.load(path, map_location="cpu")
model = DDP(nn.Linear(4, 1).cuda())
if args.KIND:
    model.load_state_dict(load(args.KIND))
if rank == 0:
    torch.save({{"model": model.state_dict(), "args": args}}, "/shared/model.pth")
"""
    given = {"KIND": "/cache/weights.pth"}
    for name, is_own in (("pretrained_backbone", False), ("resume", True)):
        fields = {**GPUS, "hyperparameters": {name: given["KIND"]}}
        assert ("pickled-object" in found(tmp_path, text.replace("KIND", name), **fields)) is is_own


WORKSPACE = """
import torch, tqdm
from accelerate import Accelerator
from torch.utils.data import DataLoader
class NAME:
    def __init__(self, cfg):
        self.model = torch.nn.Linear(4, 1)
    def run(self):
        accelerator = Accelerator()
        train_loader = DataLoader(torch.ones(8, 4), batch_size=2)
        GIVEN = accelerator.prepare(GIVEN)
        for epoch in range(2):
            with tqdm.tqdm(train_loader, desc="epoch") as steps:
                for batch in steps:
                    accelerator.backward(self.model(batch).sum())
"""
CHOSEN = """
import pathlib, hydra
from hydra.utils import get_class
@hydra.main(version_base=None, config_path=str(pathlib.Path(__file__).parent.joinpath("app", "config")))
def main(cfg):
    cls = get_class(cfg._target_)
    workspace: object = cls(cfg)
    workspace.run()
main()
"""


def test_the_class_that_hydra_gets_by_its_name_is_the_one_that_trains(tmp_path: Path) -> None:
    both, model = "train_loader, self.model", "self.model"
    with_files(
        tmp_path,
        {
            "train.py": CHOSEN,
            "app/config/right.yaml": "_target_: app.right.Right\n",
            "app/config/wrong.yaml": "_target_: app.wrong.Wrong\n",
            "app/right.py": WORKSPACE.replace("NAME", "Right").replace("GIVEN", both),
            "app/wrong.py": WORKSPACE.replace("NAME", "Wrong").replace("GIVEN", model),
        },
    )

    def checked(name: str) -> list[str]:
        job = findings(tmp_path, args=[f"--config-name={name}"], **GPUS)
        return [f"{one.where} {one.text.partition(' ')[0]}" for one in job if one.check in ("no-sampler", "arguments")]

    assert checked("wrong") == ["app/wrong.py:10 train_loader"]
    assert checked("right") == []


PREPARED = f"""{IMPORTED}
from accelerate import Accelerator
accelerator = Accelerator(cpu=True)
model = nn.Linear(4, 1)
criterion = LOSS
model, criterion = accelerator.prepare(model, criterion)
accelerator.backward(criterion(model(torch.ones(1, 4)), torch.ones(1, 1)))
"""


def test_a_loss_of_the_program_that_is_prepared_on_cpus(tmp_path: Path) -> None:
    own = "class OwnLoss(nn.Module):\n    def __init__(self):\n        super().__init__()\n        self.inner = LAYER\n"
    text = PREPARED.replace("accelerator = ", f"{own}accelerator = ", 1).replace("LOSS", "OwnLoss()")
    assert "prepared-loss" in found(tmp_path, text.replace("LAYER", "nn.MSELoss()"))
    assert "prepared-loss" in found(tmp_path, text.replace("nn.Module", "nn.MSELoss").replace("LAYER", "1"))
    assert "prepared-loss" not in found(tmp_path, text.replace("LAYER", "nn.Linear(1, 1)"))
    assert "prepared-loss" not in found(tmp_path, text.replace("LAYER", "torchvision.models.vgg16()"))
    assert "prepared-loss" not in found(
        tmp_path, text.replace("LAYER", "1").replace("OwnLoss()", "OwnLoss(nn.Linear(1, 1))")
    )


def test_a_loss_that_is_prepared_on_cpus(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(PREPARED.replace("LOSS", "nn.MSELoss()"))
    assert [one.text.partition(" ")[0] for one in findings(tmp_path) if one.check == "prepared-loss"] == ["criterion"]
    assert "prepared-loss" in found(tmp_path, PREPARED.replace("LOSS", "nn.MSELoss()"))
    assert "prepared-loss" not in found(tmp_path, PREPARED.replace("LOSS", "nn.MSELoss()"), **GPUS)
    assert "prepared-loss" not in found(tmp_path, PREPARED.replace("LOSS", "nn.Bilinear(1, 1, 1)"))
    assert "prepared-loss" not in found(
        tmp_path,
        PREPARED.replace("prepare(model, criterion)", "prepare(model), criterion").replace("LOSS", "nn.MSELoss()"),
    )


CYCLED = f"""{IMPORTED}
from accelerate import Accelerator
def cycle(loader):
    while True:
        for batch in loader:
            yield batch
class Trainer:
    def __init__(self):
        self.accelerator = Accelerator()
        self.model = nn.Linear(4, 1)
        self.loader = DataLoader(TensorDataset(torch.ones(8, 4)), batch_size=2)
        (self.model, PREPARED) = self.accelerator.prepare(self.model, PREPARED)
    def train(self):
        batches = cycle(self.loader)
        self.accelerator.backward(self.model(next(batches)[0]).sum())
Trainer().train()
"""


def test_a_loader_that_a_function_goes_through_is_prepared(tmp_path: Path) -> None:
    assert "no-sampler" not in found(tmp_path, CYCLED.replace("PREPARED", "self.loader"), **GPUS)
    assert "no-sampler" in found(
        tmp_path, CYCLED.replace(", PREPARED", ",").replace("self.model,)", "self.model)"), **GPUS
    )


def test_a_loader_that_several_callers_give_what_fits(tmp_path: Path) -> None:
    text = f"""{STARTED}
def loader(data, train, shuffle):
    sampler = DistributedSampler(data) if train else None
    return DataLoader(data, sampler=sampler, shuffle=shuffle)
data = TensorDataset(torch.ones(8))
loader(data, True, FIRST), loader(data, False, True)
"""
    assert "sampler-and-shuffle" not in found(tmp_path, text.replace("FIRST", "False"), **GPUS)
    assert "sampler-and-shuffle" in found(tmp_path, text.replace("FIRST", "True"), **GPUS)


def test_a_configuration_of_hydra_beside_the_boot_file(tmp_path: Path) -> None:
    text = CHOSEN.replace('str(pathlib.Path(__file__).parent.joinpath("app", "config"))', "os.path.dirname(__file__)")
    text = text.replace("import pathlib, hydra", "import os, hydra, broken").replace(
        "config_path", 'config_name="a", config_path'
    )
    with_files(tmp_path, {"train.py": text, "broken.py": "def (:\n", "a.yaml": "_target_: torch.nn.Identity\n"})
    assert [(one.level, one.check) for one in findings(tmp_path)] == [("error", "boot-file")]


COUNTED = f"""{STARTED}
from contextlib import nullcontext
class Loop:
    def __init__(self, model, optimizer):
        self.model, self.optimizer, self.count = model, optimizer, 0
    def step(self, batch):
        self.count += 1
        is_update = self.count % 4 == 0
        skips = dist.is_initialized() and SKIPS
        with self.model.no_sync() if skips else nullcontext():
            self.model(batch).sum().backward()
        if is_update:
            self.optimizer.step()
            self.optimizer.zero_grad()
model = DDP(nn.Linear(4, 1).cuda())
loop = Loop(model, torch.optim.SGD(model.parameters(), lr=0.1))
for batch in range(8):
    loop.step(torch.ones(1, 4).cuda())
"""


def test_a_variable_decides_about_the_step_and_about_no_sync(tmp_path: Path) -> None:
    text = f"try:\n    import deepspeed\nexcept ImportError:\n    deepspeed = None\n{COUNTED}"
    assert "never-synchronized" in found(tmp_path, text.replace("SKIPS", "is_update"), **GPUS)
    assert "never-synchronized" not in found(tmp_path, text.replace("SKIPS", "not is_update"), **GPUS)


def test_a_module_that_a_configuration_names_alone(tmp_path: Path) -> None:
    trainer = f"{STARTED}model = DDP(nn.Linear(4, 1).cuda())\nclass Trainer:\n    def load(self, path):\n"
    trainer += "        if path and rank == 0:\n            model.load_state_dict(torch.load(path))\n"
    trainer += "    def train(self):\n        model(torch.ones(1, 4)).sum().backward()\n"
    train = "import importlib, yaml\ncfg = yaml.safe_load(open('conf.yaml'))\n"
    train += "trainer = importlib.import_module(cfg['type']).Trainer()\ntrainer.load('a.pt')\ntrainer.train()\n"
    with_files(tmp_path, {"conf.yaml": "type: parts.trainer\n", "parts/trainer.py": trainer, "parts/__init__.py": ""})
    assert "loaded-by-one" in found(tmp_path, train, **GPUS)


@pytest.mark.parametrize(("read", "is_wrong"), [('== "0"', True), ("", False)])
def test_a_local_rank_that_is_only_compared_is_no_device(tmp_path: Path, read: str, is_wrong: bool) -> None:
    text = f"""{IMPORTED}
def say(text):
    if os.environ["LOCAL_RANK"] {read}:
        print(text)
parser = argparse.ArgumentParser()
parser.add_argument("--local_rank", type=int, default=-1)
args = parser.parse_args()
dist.init_process_group("nccl")
torch.cuda.set_device(args.local_rank)
model = DDP(nn.Linear(4, 1).cuda(), device_ids=[args.local_rank])
say("started")
"""
    assert ("local-rank" in found(tmp_path, text, **GPUS)) is is_wrong


@pytest.mark.parametrize(("place", "is_wrong"), [("    ", False), ("", True)])
def test_what_is_drawn_for_one_step_splits_no_data(tmp_path: Path, place: str, is_wrong: bool) -> None:
    text = f"""{STARTED}
torch.manual_seed(3 + rank)
model = DDP(nn.Linear(4, 1).cuda())
data = torch.ones(64, 4)
for batch in data:
    loss = model(batch).sum()
    loss.backward()
PLACEorder = torch.randperm(8)
PLACEfirst, others = order[:4], order[4:]
""".replace("PLACE", place)
    assert ("split-by-rank" in found(tmp_path, text, **GPUS)) is is_wrong


def test_a_split_for_each_fold_is_one_of_the_data(tmp_path: Path) -> None:
    text = f"""{STARTED}
torch.manual_seed(3 + rank)
model = DDP(nn.Linear(4, 1).cuda())
for fold in range(5):
    train, test = torch.utils.data.random_split(TensorDataset(torch.ones(8, 4)), [6, 2])
    for (batch,) in DataLoader(train):
        model(batch).sum().backward()
"""
    assert "split-by-rank" in found(tmp_path, text, **GPUS)


PARTS = f"""{STARTED}
parser = argparse.ArgumentParser()
parser.add_argument("--gpus_per_node", type=int, default=2)
parser.add_argument("--num_nodes", type=int, default=2)
opt = parser.parse_args()
data = TensorDataset(torch.ones(8, 4))
sampler = DistributedSampler(data, num_replicas=COUNT, rank=PART)
model = DDP(nn.Linear(4, 1).cuda())
for (batch,) in DataLoader(data, sampler=sampler):
    model(batch.cuda()).sum().backward()
"""


@pytest.mark.parametrize(
    ("count", "part", "said"),
    [
        ("opt.gpus_per_node", "rank % opt.gpus_per_node", "counts the processes of one node"),
        ("opt.num_nodes", "int(os.environ['NODE_RANK'])", "divided among the nodes"),
        ("-1", "rank", ""),
    ],
)
def test_what_divides_the_data(tmp_path: Path, count: str, part: str, said: str) -> None:
    (tmp_path / "train.py").write_text(PARTS.replace("COUNT", count).replace("PART", part))
    texts = [one.text for one in findings(tmp_path, **GPUS) if one.check == "part-of-node"]
    assert any(said in text for text in texts) if said else not texts
