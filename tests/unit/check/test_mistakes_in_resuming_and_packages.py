"""Mistakes in how programs resume, find their files and modules, and in copies of known toolkits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from checked import GPUS, RESTARTED, STARTED, each_mistake, findings, found, with_files

TRAINED = f"""{STARTED}
net = DDP(nn.Linear(4, 4).cuda())
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
data = TensorDataset(torch.rand(64, 4))
sampler = DistributedSampler(data)
loader = DataLoader(data, batch_size=4, sampler=sampler)
"""
# DETR's helpers: one that loads on rank 0 only, and one that loads on each.
LOADED = f"""{TRAINED}
def load_on_master(path):
    if dist.get_rank() == 0:
        return torch.load(path)
    return None
def load_on_each(path):
    return torch.load(path, map_location="cpu")
checkpoint = {{load}}("/shared/last.pth")
if checkpoint is not None:
    optimizer.load_state_dict(checkpoint["optimizer"])
"""
# Only the number of the first epoch comes from the checkpoint, or a model that is wrapped already.
BEGUN = f"""{TRAINED}
start = 0
{{resume}}
for epoch in range(start, 9):
    sampler.set_epoch(epoch)
    for (x,) in loader:
        net(x.cuda()).mean().backward()
        optimizer.step()
"""
COUNTED_ON = 'start = torch.load("/shared/last.pt")["epoch"] + 1'
GIVEN = """
state = torch.load("/shared/last.pt"){who}
if "model" in state:
    net.module.load_state_dict(state["model"])
"""
# nanoGPT's checkpoint: in some steps, if it is the best, and not in the first.
KEPT = f"""{TRAINED}
best = 1e9
for step in range(1000):
    (x,) = next(iter(loader))
    loss = net(x.cuda()).mean()
    loss.backward()
    optimizer.step()
    if step % 100 == 0{{who}}:
        if loss.item() < best:
            best = loss.item()
            if step > 0:
                torch.save(net.module.state_dict(), "/shared/ckpt.pt")
"""
# What to resume from is looked for.
SOUGHT = f"""{TRAINED}
parser = argparse.ArgumentParser()
parser.add_argument("--resume")
args = parser.parse_args()
path = args.resume
if {{who}}path is None:
    if os.path.exists("/shared/latest.pt"):
        path = "/shared/latest.pt"
{{share}}
start = 0
if path:
    state = torch.load(path, map_location="cpu")
    optimizer.load_state_dict(state["optimizer"])
    start = state["epoch"] + 1
"""
# The last checkpoint is looked for by the end of its name, as in Swin and SimMIM.
LISTED = f"""{TRAINED}
def resume_helper(folder):
    checkpoints = [name for name in os.listdir(folder) if name.endswith("{{ending}}")]
    return max(checkpoints) if checkpoints else None
latest = resume_helper("/shared/run")
if latest:
    optimizer.load_state_dict(torch.load(os.path.join("/shared/run", latest)))
def save(epoch):
    path = os.path.join("/shared/run", {{name}})
    if rank == 0:
        torch.save(optimizer.state_dict(), path)
for epoch in range(9):
    sampler.set_epoch(epoch)
    for (x,) in loader:
        net(x.cuda()).mean().backward()
        optimizer.step()
    save(epoch)
"""
SEARCHED = f"""{TRAINED}
def load_latest():
    found = sorted(glob.glob("/shared/run/{{pattern}}"))
    if found:
        optimizer.load_state_dict(torch.load(found[-1]))
load_latest()
for epoch in range(9):
    sampler.set_epoch(epoch)
    for (x,) in loader:
        net(x.cuda()).mean().backward()
        optimizer.step()
    if rank == 0:
        torch.save(optimizer.state_dict(), "/shared/run/model_%d.pt" % epoch)
"""
# WeNet's step: it ends where the count is a multiple, and so does no_sync(); beside it, checkpoints have a time.
COUNTED = f"""{TRAINED}
from contextlib import nullcontext
accum_grad = 4
def steps(batches):
    for idx, (x,) in enumerate(batches):
        if idx % accum_grad != 0:
            context = net.no_sync
        else:
            context = nullcontext
        with context():
            net(x.cuda()).mean().backward()
        if {{ends}}:
            optimizer.step()
            optimizer.zero_grad()
        if (idx + 1) % 20000 == 0:
            print("a long time")
for epoch in range(9):
    sampler.set_epoch(epoch)
    steps(loader)
"""
# The first process of a node does something before the others, who wait.
FIRST = f"""{STARTED}
local = int(os.environ["LOCAL_RANK"])
if {{others}}:
    dist.barrier()
open("/data/index")
if local == 0:
    dist.barrier()
"""
# The last checkpoint gets the keys of the wrapper, through a helper; the best one those of the model.
KEYS = f"""{TRAINED}
folder = "/shared/run"
def save(path, model):
    torch.save({{{{"model": model.state_dict()}}}}, path)
last = "{{{{}}}}/{{{{}}}}-last.pt".format(folder, "net")
if os.path.exists(last):
    net.module.load_state_dict(torch.load(last)["model"], strict=True)
for epoch in range(9):
    for (x,) in loader:
        net(x.cuda()).mean().backward()
    if rank == 0:
        save(last, {{saved}})
        torch.save({{{{"model": net.module.state_dict()}}}}, "{{{{}}}}/ep{{{{}}}}.pt".format(folder, epoch))
"""
NAMED = f"""{STARTED}
def folder_of(results):
    return os.path.join(results, os.environ{{job}})
if rank == 0:
    os.makedirs(folder_of("/results"), exist_ok=True)
"""
ASKED_IN_PLACE = f"""{STARTED}
run = os.environ{{job}} if rank == 0 else None
"""
CHOSEN = """
import os, torch, torch.distributed as dist
dist.init_process_group("nccl")
torch.cuda.set_device({number})
"""
KUBERNETES: dict[str, Any] = {"backend": {"kind": "volcano", "resources": {"nvidia.com/gpu": 2}}}
FOUR: dict[str, Any] = {
    "backend": {"kind": "slurm", "shared_dir": "/shared", "gpus_per_node": 4},
    "resources": {"nodes": 2, "nproc_per_node": 4},
}
# timm's own function loads the weights, the optimizer and the epoch.
RESUMED = f"""{STARTED}
from timm.models import resume_checkpoint
net = nn.Linear(4, 4).cuda()
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
start = None
if {{who}}os.environ["RESUME"]:
    start = resume_checkpoint(net, "/shared/last.pth", optimizer=optimizer)
net = DDP(net)
for epoch in range(start or 0, 9):
    net(torch.rand(4, 4).cuda()).mean().backward()
    optimizer.step()
"""
DATA = """
import lightning as L
class Data(L.LightningDataModule):
    def prepare_data(self):
        self.train_set = [1, 2]
    def setup(self, stage=None):
        {setup}
    def train_dataloader(self):
        return self.train_set
"""
TIMM = f"""{STARTED}
from timm.data import create_loader
net = DDP(nn.Linear(4, 4).cuda())
data = TensorDataset(torch.rand(64, 4))
loader = create_loader(data, input_size=(3, 224, 224), batch_size=4, is_training=True{{more}})
for x, y in loader:
    net(x).mean().backward()
"""


@each_mistake(
    [
        ("loaded-by-one", LOADED.format(load="load_on_master"), LOADED.format(load="load_on_each"), GPUS),
        (
            "loaded-by-one",
            BEGUN.format(resume=f"if rank == 0:\n    {COUNTED_ON}"),
            BEGUN.format(resume=f"if os.path.exists('/shared/last.pt'):\n    {COUNTED_ON}"),
            GPUS,
        ),
        (
            "loaded-by-one",
            BEGUN.format(resume=GIVEN.format(who=" if rank == 0 else {}")),
            BEGUN.format(resume=GIVEN.format(who="")),
            GPUS,
        ),
        ("loaded-by-one", SOUGHT.format(who="rank == 0 and ", share=""), SOUGHT.format(who="", share=""), GPUS),
        (
            "loaded-by-one",
            SOUGHT.format(who="rank == 0 and ", share="print([path])"),
            SOUGHT.format(
                who="rank == 0 and ", share="paths = [path]; dist.broadcast_object_list(paths); path = paths[0]"
            ),
            GPUS,
        ),
        (
            "no-checkpoint",
            LISTED.format(ending="pth", name='f"ckpt_epoch_{epoch}.pt"'),
            LISTED.format(ending="pt", name='f"ckpt_epoch_{epoch}.pt"'),
            RESTARTED,
        ),
        (
            "no-checkpoint",
            LISTED.format(ending=".pth.tar", name='"ckpt_{}.pth".format(epoch)'),
            LISTED.format(ending=".pth", name='"ckpt_{}.pth".format(epoch)'),
            RESTARTED,
        ),
        ("no-checkpoint", SEARCHED.format(pattern="ckpt_*.pt"), SEARCHED.format(pattern="model_*.pt"), RESTARTED),
        (
            "never-synchronized",
            COUNTED.format(ends="(idx + 1) % accum_grad == 0"),
            COUNTED.format(ends="idx % accum_grad == 0"),
            GPUS,
        ),
        ("rank-0-collective", FIRST.format(others="local > 1"), FIRST.format(others="local > 0"), GPUS),
        ("loaded-by-one", RESUMED.format(who="rank == 0 and "), RESUMED.format(who=""), GPUS),
        ("saved-by-all", KEPT.format(who=""), KEPT.format(who=" and rank == 0"), GPUS),
        ("other-keys", KEYS.format(saved="net"), KEYS.format(saved="net.module"), GPUS),
        (
            "unset-variable",
            NAMED.format(job='["SLURM_JOB_ID"]'),
            NAMED.format(job='.get("SLURM_JOB_ID", "run")'),
            KUBERNETES,
        ),
        (
            "unset-variable",
            NAMED.format(job='["SLURM_JOB_ID"]'),
            NAMED.format(job='["SLURM_JOB_ID"]').replace(
                "    return", '    if "SLURM_JOB_ID" not in os.environ:\n        return results\n    return'
            ),
            KUBERNETES,
        ),
        (
            "unset-variable",
            ASKED_IN_PLACE.format(job='["SLURM_JOB_ID"]'),
            ASKED_IN_PLACE.format(job='.get("SLURM_JOB_ID")'),
            KUBERNETES,
        ),
        (
            "fixed-device",
            CHOSEN.format(number="dist.get_rank() % 2"),
            CHOSEN.format(number="dist.get_rank() % 4"),
            FOUR,
        ),
        ("prepared-by-one", DATA.format(setup="pass"), DATA.format(setup="self.prepare_data()"), GPUS),
        ("no-sampler", TIMM.format(more=""), TIMM.format(more=", distributed=True"), GPUS),
        ("no-sampler", TIMM.format(more=", distributed=False"), TIMM.format(more=", **settings"), GPUS),
    ]
)
def test_the_mistake_is_found_and_the_right_code_passes(
    check: str, wrong: str, right: str, fields: dict[str, Any], tmp_path: Path
) -> None:
    assert check in found(tmp_path, wrong, **fields)
    assert check not in found(tmp_path, right, **fields)


PACKAGE = {
    "train.py": "from toolkit.data import loader\n",
    "toolkit/__init__.py": "",
    "toolkit/data/constants.py": "MEAN = 0.5\n",
    "toolkit/data/loader.py": "from .collate import fast_collate\n",
}


@pytest.mark.parametrize(
    ("head", "is_wrong"),
    [
        ("from .constants import *\n", True),
        ("import sys\nsys.modules['toolkit.data.collate'] = sys\n", False),
        ("__path__ = __import__('pkgutil').extend_path(__path__, __name__)\n", False),
    ],
)
def test_a_module_that_is_not_there_in_a_package_that_imports_all_names(
    head: str, is_wrong: bool, tmp_path: Path
) -> None:
    with_files(tmp_path, {**PACKAGE, "toolkit/data/__init__.py": head})
    seen = [one for one in findings(tmp_path) if one.check == "imports"]
    assert [one.text.partition(" in ")[0] for one in seen] == ["module toolkit.data.collate does not exist"] * is_wrong


SETTINGS = """
class Node:
    pass
cfg = Node()
cfg.DATASETS = Node()
cfg.DATASETS.PATH = "../data/%s/train"
cfg.OUTPUT_DATA = "../data"
print(cfg.DATASETS.PATH % "shapes", cfg.OUTPUT_DATA)
"""


@pytest.mark.parametrize(("folder", "said"), [("data/shapes", ["../data"]), ("other", [])])
def test_a_setting_that_names_data_beside_the_code(folder: str, said: list[str], tmp_path: Path) -> None:
    (tmp_path / folder).mkdir(parents=True)
    code = tmp_path / "code"
    with_files(code, {"train.py": SETTINGS})
    texts = [one.text for one in findings(code) if one.check == "left-out"]
    assert [text.split()[1].rstrip(",") for text in texts] == said


JSONARGPARSE = """
from jsonargparse import ActionConfigFile, ArgumentParser
class Data:
    def __init__(self, folder: str = "."):
        self.folder = folder
parser = ArgumentParser()
parser.add_argument("--config", action=ActionConfigFile)
{adds}
cfg = parser.parse_args()
print(cfg.data)
"""


@pytest.mark.parametrize(
    ("adds", "is_wrong"),
    [('parser.add_class_arguments(Data, "data")', False), ('parser.add_argument("--data")', True)],
)
def test_options_that_jsonargparse_derives_from_a_class(adds: str, is_wrong: bool, tmp_path: Path) -> None:
    with_files(tmp_path, {"train.py": JSONARGPARSE.format(adds=adds)})
    seen = findings(tmp_path, hyperparameters={"data.folder": "/data"})
    assert any(one.level == "error" for one in seen) is is_wrong


ABSL = """
import os, torch, torch.distributed as dist
from absl import app, flags
flags.DEFINE_integer("gpu", 0, "")
flags.DEFINE_integer("local_rank", 0, "")
FLAGS = flags.FLAGS
def main(_):
    FLAGS.gpu = {gpu}
    torch.cuda.set_device(FLAGS.gpu)
    dist.init_process_group("nccl")
app.run(main)
"""


@pytest.mark.parametrize(("gpu", "is_wrong"), [("FLAGS.local_rank", False), ("0", True)])
def test_a_flag_of_absl_that_the_launcher_gives(gpu: str, is_wrong: bool, tmp_path: Path) -> None:
    fields: dict[str, Any] = {**GPUS, "mode": "launch", "local_rank": "argument", "torch_version": "1.10"}
    with_files(tmp_path, {"train.py": ABSL.format(gpu=gpu)})
    assert any(one.check == "fixed-device" for one in findings(tmp_path, **fields)) is is_wrong


PARENT = {
    "train.py": """
import argparse
import models
parser = argparse.ArgumentParser(add_help=False)
parser.add_argument("--resume-last", action="store_true")
parser = models.with_options(parser)
args, _ = parser.parse_known_args()
""",
    "models.py": """
import argparse
def with_options(parent):
    parser = argparse.ArgumentParser(parents=[parent])
    parser.add_argument("--width", type=int)
    return parser
""",
}


@pytest.mark.parametrize(("name", "is_wrong"), [("resume-latest", True), ("resume-last", False)])
def test_a_parent_parser_that_is_a_parameter(name: str, is_wrong: bool, tmp_path: Path) -> None:
    with_files(tmp_path, PARENT)
    seen = findings(tmp_path, hyperparameters={name: {"flag": True}})
    assert any("does not declare" in one.text for one in seen) is is_wrong


COMMANDS = {
    "train.py": """
import argparse
import asking
def run(args):
    print("training")
def add(commands):
    parser = commands.add_parser("train")
    parser.set_defaults(func=run)
parser = argparse.ArgumentParser()
commands = parser.add_subparsers()
add(commands)
asking.add(commands)
args = parser.parse_args()
args.func(args)
""",
    "asking.py": """
def ask(args):
    print(input("> "))
def add(commands):
    parser = commands.add_parser("ask")
    parser.set_defaults(func=ask)
""",
}


@pytest.mark.parametrize(("command", "is_wrong"), [("train", False), ("ask", True)])
def test_the_function_of_a_command_that_the_job_does_not_choose(command: str, is_wrong: bool, tmp_path: Path) -> None:
    with_files(tmp_path, COMMANDS)
    assert any("input()" in one.text for one in findings(tmp_path, args=[command])) is is_wrong


PREPARED = """
import torch, torch.nn as nn
from accelerate import Accelerator
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.criterion = nn.MSELoss()
accelerator = Accelerator(cpu=True)
net = Net()
trained = []
for one in net.parameters():
    trained.append(one)
optimizer = torch.optim.Adam(trained)
loss = nn.MSELoss()
net, optimizer{more} = accelerator.prepare(net, optimizer{more})
"""


@pytest.mark.parametrize(("more", "is_wrong"), [("", False), (", loss", True)])
def test_an_optimizer_of_a_model_with_a_loss_is_no_loss(more: str, is_wrong: bool, tmp_path: Path) -> None:
    with_files(tmp_path, {"train.py": PREPARED.format(more=more)})
    assert any(one.check == "prepared-loss" for one in findings(tmp_path)) is is_wrong


@pytest.mark.parametrize(("named", "is_wrong"), [("diffusers", False), ("einops", True)])
def test_what_the_packages_of_hugging_face_bring(named: str, is_wrong: bool, tmp_path: Path) -> None:
    with_files(tmp_path, {"train.py": "import huggingface_hub\n", "requirements.txt": f"{named}\n"})
    seen = findings(tmp_path, missing=["huggingface_hub"], requirements="requirements.txt")
    assert any("huggingface_hub" in one.text for one in seen) is is_wrong


@pytest.mark.parametrize(("setup", "is_wrong"), [("", True), ("pip install -q -r ./more.txt", False)])
def test_a_second_file_of_requirements_that_the_setup_installs(setup: str, is_wrong: bool, tmp_path: Path) -> None:
    with_files(tmp_path, {"train.py": "import einops\n", "requirements.txt": "numpy\n", "more.txt": "einops\n"})
    fields = {"requirements": "requirements.txt", **({"setup": setup} if setup else {})}
    seen = findings(tmp_path, missing=["einops"], **fields)
    assert any("einops" in one.text for one in seen) is is_wrong


@pytest.mark.parametrize(
    ("line", "named"),
    [
        ("accelerate launch --main_process_ip=$(hostname -I | cut -d' ' -f1) train.py", "--main_process_ip"),
        ("torchrun --nnodes=2 --node_rank=$NODE_RANK --master_addr $HOSTNAME train.py", "--master_addr"),
        ("MASTER_ADDR=$(hostname) RANK=$NODE_RANK python train.py", "MASTER_ADDR"),
        ("torchrun --nnodes=2 --node_rank=$NODE_RANK --master_addr $MASTER_ADDR train.py", ""),
    ],
)
def test_a_script_that_gives_each_node_its_own_address(line: str, named: str, tmp_path: Path) -> None:
    with_files(tmp_path, {"train.py": "import torch\n", "run.sh": f"{line}\n"})
    said = [one.text for one in findings(tmp_path, command=["bash", "run.sh"]) if "the node itself" in one.text]
    assert [text.partition(" ")[0] for text in said] == ([named] if named else [])


@pytest.mark.parametrize(("place", "is_known"), [("0", True), ("1", False)])
def test_a_program_that_asks_for_its_own_path_only(place: str, is_known: bool, tmp_path: Path) -> None:
    with_files(tmp_path, {"train.py": f"import os, sys\nprint(os.path.dirname(os.path.abspath(sys.argv[{place}])))\n"})
    seen = findings(tmp_path, hyperparameters={"lr": 0.1})
    assert any("sys.argv is read directly" in one.text for one in seen) is not is_known


RESTARTED_EPOCHS = f"""{TRAINED}
epoch = 0
sampler.set_epoch(epoch)
batches = iter(loader)
for step in range(1000):
    try:
        (x,) = next(batches)
    except StopIteration:
        epoch += 1
        {{again}}
        batches = iter(loader)
        (x,) = next(batches)
    net(x.cuda()).mean().backward()
    optimizer.step()
"""


@pytest.mark.parametrize(("again", "is_wrong"), [("sampler.set_epoch(epoch)", False), ("pass", True)])
def test_an_epoch_that_is_set_where_a_loader_has_no_more_batches(again: str, is_wrong: bool, tmp_path: Path) -> None:
    assert ("set-epoch" in found(tmp_path, RESTARTED_EPOCHS.format(again=again), **GPUS)) is is_wrong


# The scores of a meter are combined for the log; what is returned, and chooses the best model, is the meter.
SCORED = f"""{TRAINED}
class Meter:
    def __init__(self):
        self.scores = {{{{}}}}
    def update_scores(self, name, score):
        self.scores[name] = score
    def get_scores(self):
        return self.scores
def validate(batches, model, meter):
    with torch.no_grad():
        for (x,) in batches:
            meter.update_scores("loss", model(x.cuda()).mean().item())
    total = torch.tensor(meter.get_scores()["loss"]).cuda()
    dist.all_reduce(total)
    print("loss", total.item())
    {{put}}
    return meter
tests = TensorDataset(torch.rand(64, 4))
test_loader = DataLoader(tests, batch_size=4, sampler=DistributedSampler(tests, shuffle=False))
for epoch in range(9):
    sampler.set_epoch(epoch)
    for (x,) in loader:
        net(x.cuda()).mean().backward()
        optimizer.step()
    meter = validate(test_loader, net, Meter())
    if rank == 0 and meter.get_scores()["loss"] < 1:
        torch.save(net.module.state_dict(), "/shared/best.pt")
"""


@pytest.mark.parametrize(("put", "is_wrong"), [("pass", True), ('meter.update_scores("loss", total.item())', False)])
def test_a_meter_that_is_returned_with_the_figures_of_one_process(put: str, is_wrong: bool, tmp_path: Path) -> None:
    assert ("part-as-whole" in found(tmp_path, SCORED.format(put=put), **GPUS)) is is_wrong


# WeNet's and L2P's functions: an epoch, and another number that stays the same in all of a task's epochs.
TASKS = f"""{TRAINED}
def train_one_epoch(batches, epoch, task_id):
    batches.sampler.set_epoch({{number}})
    for (x,) in batches:
        net(x.cuda()).mean().backward()
        optimizer.step()
for task_id in range(5):
    for epoch in range(9):
        train_one_epoch(loader, epoch=epoch, task_id=task_id)
"""
# The first process of each node is taken for the main process.
BY_NODE = f"""{TRAINED}
def is_main_process():
    return int(os.environ.get("{{variable}}", dist.get_rank())) == 0
def save_on_master(*args, **kwargs):
    if is_main_process():
        torch.save(*args, **kwargs)
save_on_master(net.module.state_dict(), "/shared/run/last.pt")
"""
STAGE = f"""{TRAINED}
class Stage:
    def __init__(self, layer):
        {{keep}}
    def step(self, x):
        self.module(x.cuda()).mean().backward()
stage = Stage(net)
for (x,) in loader:
    stage.step(x)
"""
NAMED_BY_CLOCK = """
import os, torch
from datetime import datetime
from accelerate import Accelerator
from accelerate.utils import broadcast_object_list
accelerator = Accelerator()
net = accelerator.prepare(torch.nn.Linear(4, 4))
name = datetime.now().strftime("%Y-%m-%d-%H-%M")
{share}
accelerator.save_state(os.path.join("/shared", name))
"""


@each_mistake(
    [
        ("set-epoch", TASKS.format(number="task_id"), TASKS.format(number="epoch"), GPUS),
        ("saved-by-all", BY_NODE.format(variable="LOCAL_RANK"), BY_NODE.format(variable="RANK"), GPUS),
        (
            "scattered-checkpoint",
            NAMED_BY_CLOCK.format(share=""),
            NAMED_BY_CLOCK.format(share="names = [name]; broadcast_object_list(names); name = names[0]"),
            GPUS,
        ),
    ]
)
def test_what_is_counted_or_named_by_another_than_the_rank(
    check: str, wrong: str, right: str, fields: dict[str, Any], tmp_path: Path
) -> None:
    assert check in found(tmp_path, wrong, **fields)
    assert check not in found(tmp_path, right, **fields)


def test_a_field_called_module_is_no_model_inside_a_wrapper(tmp_path: Path) -> None:
    assert "bypassed" not in found(tmp_path, STAGE.format(keep="self.module = layer"), **GPUS)


CONFIGURED = {
    "train.py": "from lightning.pytorch.cli import LightningCLI\ncli = LightningCLI()\n",
    "config.yaml": "data:\n  class_path: app.data.loading.Images\n",
    "app/__init__.py": "",
    "app/data/__init__.py": "",
    "app/data/loading.py": "class Images:\n    pass\n",
}


@pytest.mark.parametrize(("ignored", "is_wrong"), [("data/", True), ("/data/", False)])
def test_a_class_of_a_configuration_in_a_module_that_is_left_out(ignored: str, is_wrong: bool, tmp_path: Path) -> None:
    with_files(tmp_path, {**CONFIGURED, ".gitignore": f"{ignored}\n"})
    seen = [one.text for one in findings(tmp_path, args=["fit", "--config", "config.yaml"])]
    assert any(text.startswith("module app.data.loading is in the code directory but") for text in seen) is is_wrong


YACS = """
from yacs.config import CfgNode as CN
cfg = CN()
cfg.LR = 0.1
cfg.merge_from_file("settings.yaml")
"""


@pytest.mark.parametrize(("ignored", "is_wrong"), [("settings.yaml", True), ("other.yaml", False)])
def test_settings_of_yacs_that_are_left_out(ignored: str, is_wrong: bool, tmp_path: Path) -> None:
    with_files(tmp_path, {"train.py": YACS, "settings.yaml": "LR: 0.2\n", ".gitignore": f"{ignored}\n"})
    assert any("settings.yaml" in one.text for one in findings(tmp_path) if one.check == "left-out") is is_wrong


SPAWNED = """
import torch, torch.distributed as dist, torch.multiprocessing as mp, torch.nn as nn
import sys
from torch.nn.parallel import DistributedDataParallel as DDP
def main_worker(gpu, count):
    net = nn.Linear(4, 4)
    if gpu is not None:
        torch.cuda.set_device(gpu)
        dist.init_process_group("nccl", init_method=sys.argv[1], rank=int(sys.argv[2]) * count + gpu, world_size=8)
        net = DDP(net.cuda(gpu), device_ids=[gpu])
    else:
        net = net.cuda()
    for step in range(9):
        net(torch.rand(2, 4).cuda()).mean().backward()
if __name__ == "__main__":
    count = int(open("count.txt").read())
    if count > 1:
        mp.spawn(main_worker, nprocs=count, args=(count,))
    else:
        main_worker(None, count)
"""


def test_a_worker_that_is_called_and_spawned_is_not_taken_to_be_called_only(tmp_path: Path) -> None:
    spawning: dict[str, Any] = {**GPUS, "mode": "spawn", "resources": {"nodes": 2, "nproc_per_node": 2}}
    assert {"fixed-device", "never-synchronized"}.isdisjoint(found(tmp_path, SPAWNED, **spawning))


HELPERS = {
    "train.py": "from helpers import Settings, missing\n",
    "helpers/__init__.py": "from .settings import *\n",
    "helpers/settings.py": """
class Settings:
    def update(self, key, value):
        setattr(self, key, value)
print(globals()["__name__"])
{more}
""",
}


@pytest.mark.parametrize(
    ("more", "is_wrong"),
    [
        ("", True),
        ("missing = 1", False),
        ("globals()['missing'] = 1", False),
        ("import sys\nsetattr(sys.modules[__name__], 'missing', 1)", False),
        ("exec('missing = 1')", False),
    ],
)
def test_a_name_that_a_package_does_not_have_through_its_modules(more: str, is_wrong: bool, tmp_path: Path) -> None:
    with_files(tmp_path, {**HELPERS, "helpers/settings.py": HELPERS["helpers/settings.py"].format(more=more)})
    texts = [one.text for one in findings(tmp_path) if one.check == "imports"]
    assert ("helpers/__init__.py does not define missing" in texts) is is_wrong


def test_a_package_that_gives_all_of_its_modules(tmp_path: Path) -> None:
    lists = "import glob, os\n__all__ = [os.path.basename(one)[:-3] for one in glob.glob('helpers/*.py')]\n"
    files = {
        "train.py": "from app import settings\n",
        "app.py": "from helpers import *\n",
        "helpers/settings.py": "x = 1\n",
    }
    with_files(tmp_path, {**files, "helpers/__init__.py": lists})
    assert "imports" not in {one.check for one in findings(tmp_path)}


def test_a_setup_that_makes_files_changes_no_module_that_is_there(tmp_path: Path) -> None:
    with_files(tmp_path, {"train.py": "from helpers import missing\n", "helpers.py": "x = 1\n"})
    seen = findings(tmp_path, setup="ln -s /data/images images\npython setup.py build_ext --inplace")
    assert "helpers.py does not define missing" in [one.text for one in seen]


OTHER_SCRIPT = """
def main(args):
    for epoch in range(args.epochs):
        args.loader.sampler.set_epoch(epoch)
if __name__ == "__main__":
    main(None)
def helper():
    return 1
"""


def test_an_epoch_that_only_another_script_sets(tmp_path: Path) -> None:
    with_files(tmp_path, {"finetune.py": OTHER_SCRIPT})
    training = f"from finetune import helper\n{TASKS}".format(number="epoch")
    set_here = "batches.sampler.set_epoch(epoch)"
    assert "set-epoch" not in found(tmp_path, training, **GPUS)
    assert "set-epoch" in found(tmp_path, training.replace(set_here, "helper()"), **GPUS)


# DETR's helper, which hands on all of its arguments.
HANDED_ON = f"""{TRAINED}
def save_on_master(*args, **kwargs):
    {{only}}torch.save(*args, **kwargs)
for epoch in range(9):
    sampler.set_epoch(epoch)
    for (x,) in loader:
        net(x.cuda()).mean().backward()
        optimizer.step()
    for path in ["/shared/run/last.pth"]:
        save_on_master({{{{"model": net.module.state_dict()}}}}, path)
"""


@pytest.mark.parametrize(("only", "is_wrong"), [("", True), ("if rank == 0: ", False)])
def test_a_helper_that_hands_on_what_it_saves(only: str, is_wrong: bool, tmp_path: Path) -> None:
    assert ("saved-by-all" in found(tmp_path, HANDED_ON.format(only=only), **GPUS)) is is_wrong


KEPT_BY_LIGHTNING = """
import glob, torch, lightning as L
from lightning.pytorch.callbacks import ModelCheckpoint
def latest_checkpoint():
    return max(glob.glob("/shared/run/*.ckpt"), default=None)
trainer = L.Trainer(num_nodes=2, devices=2, callbacks=[ModelCheckpoint(dirpath="/shared/run")])
trainer.fit(L.LightningModule(), ckpt_path=latest_checkpoint())
"""


def test_checkpoints_that_a_library_names(tmp_path: Path) -> None:
    assert "no-checkpoint" not in found(tmp_path, KEPT_BY_LIGHTNING, **RESTARTED)


LOGGED = f"""{STARTED}
parser = argparse.ArgumentParser()
parser.add_argument("--wandb", action="store_true")
args = parser.parse_args()
if rank == 0 and args.wandb:
    print(os.environ["SLURM_JOB_ID"])
"""


@pytest.mark.parametrize("is_given", [True, False])
def test_a_variable_that_rank_0_reads_if_an_argument_says_so(is_given: bool, tmp_path: Path) -> None:
    given: dict[str, Any] = {"hyperparameters": {"wandb": {"flag": True}}} if is_given else {}
    assert ("unset-variable" in found(tmp_path, LOGGED, **KUBERNETES, **given)) is is_given
