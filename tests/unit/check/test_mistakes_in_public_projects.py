"""Mistakes in the shapes of public projects, most of them of several files, and right code of the same shape."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from checked import GPUS, SLURM, each_mistake, findings, found

from jobsubmit.check.data import check_data
from jobsubmit.config import BUILT_IN
from jobsubmit.plan.launch_plan import build_plan
from jobsubmit.spec.loader import load_mapping

BEGIN = """
import argparse, os, copy, torch, torch.distributed as dist, torch.multiprocessing as mp
import torch.nn as nn, numpy as np
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler
"""
MOCO = (
    BEGIN
    + """
parser = argparse.ArgumentParser()
parser.add_argument("--world-size", default=-1, type=int)
parser.add_argument("--rank", default=-1, type=int)
parser.add_argument("--gpu", default=None, type=int)
parser.add_argument("--dist-url", default="env://")
parser.add_argument("--multiprocessing-distributed", action="store_true")
def main():
    args = parser.parse_args()
    if args.dist_url == "env://" and args.world_size == -1:
        args.world_size = int(os.environ["WORLD_SIZE"])
    args.distributed = args.world_size > 1 or args.multiprocessing_distributed
    ngpus_per_node = torch.cuda.device_count()
    if args.multiprocessing_distributed:
        args.world_size = ngpus_per_node * args.world_size
        mp.spawn(main_worker, nprocs=ngpus_per_node, args=(ngpus_per_node, args))
    else:
        main_worker(args.gpu, ngpus_per_node, args)
def main_worker(gpu, ngpus_per_node, args):
    args.gpu = gpu
    if args.distributed:
        if args.dist_url == "env://" and args.rank == -1:
            args.rank = int(os.environ["RANK"])
        if args.multiprocessing_distributed:
            args.rank = args.rank * ngpus_per_node + gpu
        dist.init_process_group("nccl", init_method=args.dist_url, world_size=args.world_size, rank=args.rank)
    model = torch.hub.load("a", "b")
    if args.gpu is not None:
        torch.cuda.set_device(args.gpu)
        model = DDP(model.cuda(args.gpu), device_ids=[args.gpu])
    else:
        model.cuda(){more}
        model = DDP(model)
main()
"""
)
MOCO_COMMAND = (
    "python train.py --dist-url tcp://$MASTER_ADDR:$MASTER_PORT --multiprocessing-distributed --world-size 2 --rank "
)
TICKS = (
    BEGIN
    + """
dist.init_process_group("nccl")
def consistent(module):
    for tensor in module.parameters():
        other = tensor.clone()
        dist.broadcast(tensor=other, src=0)
def train(resume, ema, step):
    if resume is not None:
        if dist.get_rank() != 0:
            dist.barrier()
        ema = torch.load(resume, weights_only=True)
        if dist.get_rank() == 0:
            dist.barrier()
    if step % 10 == 0{only}:
        for value in dict(ema=ema).values():
            if isinstance(value, nn.Module):
                consistent(value)
train(os.environ.get("RESUME"), nn.Linear(2, 1), 0)
"""
)
PEAK = (
    BEGIN
    + """
dist.init_process_group("nccl")
def is_distributed():
    return dist.is_available() and dist.is_initialized()
def peak():
    value = torch.cuda.max_memory_allocated() / 1e6
    if is_distributed():
        value = torch.tensor(value, device="cuda")
        dist.reduce(value, 0, dist.ReduceOp.MAX)
    return value
class Trainer:
    step = 0
    def metrics(self):
        return {{"peak": peak()}} if self.step < 3 else {{}}
    def fit(self):
        metrics = {{}}
        {fill}
Trainer().fit()
"""
)
GATHER = (
    BEGIN
    + """
dist.init_process_group("nccl")
def group_of_cpus():
    return dist.new_group(backend="gloo") if os.environ.get("REDUCE_ON_CPU") else None
def gather(tensor):
    cpu_group = None
    if os.getenv("REDUCE_ON_CPU") == "1":
        cpu_group = group_of_cpus()
    tensors = [torch.zeros_like(tensor)] * dist.get_world_size()
    if cpu_group is None:
        dist.all_gather(tensors, tensor)
    else:
        dist.all_gather(tensors, tensor, group=cpu_group)
    return tensors
def is_main_process():
    return dist.get_rank() == 0
class Evaluator:
    def synchronize(self):
        {guard}
        gather(torch.ones(1, device="cuda"))
Evaluator().synchronize()
"""
)
SCALED = (
    BEGIN
    + """
dist.init_process_group("nccl")
def clip_gradients(model, limit):
    for p in model.parameters():
        p.grad.data.mul_(limit / p.grad.data.norm(2))
def train(model, optimizer, batch, scaler):
    for step in range(9):
        if scaler is None:
            model(batch).sum().backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        else:
            scaler.scale(model(batch).sum()).backward()
            {steps}
            scaler.step(optimizer)
            scaler.update()
model = DDP(nn.Linear(4, 1).cuda())
optimizer = torch.optim.SGD(model.parameters(), 0.1)
scaler = None
if torch.cuda.is_available():
    scaler = torch.cuda.amp.GradScaler({enabled})
train(model, optimizer, torch.ones(4).cuda(), scaler)
"""
)
UNSCALE = "scaler.unscale_(optimizer)"
CLIP = "torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)"
AFTER = "\n            "
METERS = (
    BEGIN
    + """
dist.init_process_group("nccl")
class Meter:
    def update(self, value, n=1):
        self.avg = value
def reduce_tensor(tensor):
    tensor = tensor.clone()
    dist.all_reduce(tensor)
    return tensor / dist.get_world_size()
def validate(model, loader):
    losses, top1, times = Meter(), Meter(), Meter()
    for images, target in loader:
        output = model(images)
        loss = output.sum()
        acc = (output.argmax(1) == target).float().mean()
        reduced_loss = reduce_tensor(loss)
        {reduce}
        losses.update(reduced_loss.item(), 1)
        top1.update(acc.item(), 1)
    metrics = dict([("loss", losses.avg), ("top1", top1.avg)])
    return metrics
best = validate(DDP(nn.Linear(4, 2).cuda()), make_loader())
"""
)
UNWRAPPED = (
    BEGIN
    + """
dist.init_process_group("nccl")
class Base:
    def to_device(self, net):
        if self.options["dist"]:
            net = DDP(net.cuda(), find_unused_parameters=True)
        return net
    def bare(self, net):
        if isinstance(net, DDP):
            net = net.module
        return net
class Model(Base):
    def __init__(self, options):
        self.options = options
        self.net = self.to_device(build(options))
        self.optimizer = torch.optim.SGD(self.net.parameters(), 0.1)
    def optimize(self, batch):
        net = {net}
        output = net(batch)
        output.sum().backward()
        self.optimizer.step()
Model(load_options()).optimize(torch.ones(4).cuda())
"""
)
SPAWNED = (
    BEGIN
    + """
def run(local_rank, num_proc, shard_id, num_shards):
    rank = shard_id * num_proc + local_rank
    dist.init_process_group("nccl", init_method=args.init_method, world_size=num_proc * num_shards, rank=rank)
    torch.cuda.set_device({device})
parser = argparse.ArgumentParser()
parser.add_argument("--rank", type=int)
parser.add_argument("--world_size", type=int)
parser.add_argument("--init_method")
args = parser.parse_args()
mp.spawn(run, nprocs=torch.cuda.device_count(), args=(torch.cuda.device_count(), args.rank, args.world_size))
"""
)
EPOCHS = (
    BEGIN
    + """
dist.init_process_group("nccl")
samplers = [DistributedSampler(part) for part in load_parts()]
for epoch in range(9):
    chunk = epoch % len(samplers)
    sampler = samplers[chunk]
    sampler.set_epoch({number})
"""
)
SAVED = (
    BEGIN
    + """
{settings}
dist.init_process_group("nccl")
model = DDP(nn.Linear(4, 1).cuda())
if os.path.exists("/shared/last.pth"):
    model.load_state_dict(torch.load("/shared/last.pth", map_location="cpu")["model"])
state = {{"model": model.state_dict(), "extra": {extra}}}
if dist.get_rank() == 0:
    torch.save(state, "/shared/last.pth")
"""
)
NODE = "from fvcore.common.config import CfgNode\ncfg = CfgNode()\ncfg.merge_from_file('a.yaml')"
NESTED = (
    BEGIN
    + """
class Detector(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = nn.Linear(4, 1)
    def forward(self, x):
        return self.backbone(x)
def main():
    dist.init_process_group("nccl")
    inner = Detector().cuda()
    model = DDP(inner)
    def build_optimizer(model):
        if hasattr(model.backbone, "no_weight_decay"):
            print("without decay")
        return torch.optim.SGD(model.parameters(), 0.1)
    build_optimizer({given})
main()
"""
)
NORMS = (
    BEGIN
    + """
dist.init_process_group("nccl")
net = nn.Linear(4, 1).cuda()
{order}
"""
)
ASKED = (
    BEGIN
    + """
def get_rank():
    return dist.get_rank() if dist.is_initialized() else 0
def init():
    {guard}
    dist.init_process_group("nccl")
{first}
init()
print(get_rank())
"""
)
LAYERS = """
try:
    from mmcv.ops import DeformConv2d
except ImportError:
    DeformConv2d = None
"""
FIXED = (
    BEGIN
    + """
{imports}
dist.init_process_group("nccl")
model = DDP(nn.Sequential(DeformConv2d(4, 1)).cuda())
torch.cuda.set_device({device})
"""
)
SPREAD = (
    BEGIN
    + """
from transformers import AutoModel
dist.init_process_group("nccl")
settings = dict(revision="main", device_map={place})
settings["dtype"] = "auto"
model = AutoModel.from_pretrained("/shared/model", **settings)
"""
)
ANSWER = (
    BEGIN
    + """
parser = argparse.ArgumentParser()
parser.add_argument("--ckpt")
args = parser.parse_args()
dist.init_process_group("nccl")
name = os.path.basename(args.ckpt)
try:
    start = int(os.path.splitext(name)[0])
except ValueError:
    start = int(input("start: "))
"""
)
CASES = [
    (
        "same-ranks",
        MOCO.format(more=""),
        MOCO.format(more=""),
        {"command": ["bash", "-c", MOCO_COMMAND + "0"], **GPUS},
    ),
    ("fixed-device", MOCO.format(more=""), MOCO.format(more="; torch.cuda.set_device(args.rank % 2)"), GPUS),
    ("rank-0-collective", TICKS.format(only=" and dist.get_rank() == 0"), TICKS.format(only=""), GPUS),
    (
        "rank-0-collective",
        PEAK.format(fill="if dist.get_rank() == 0: metrics.update(self.metrics())"),
        PEAK.format(fill="metrics.update(self.metrics())"),
        GPUS,
    ),
    (
        "rank-0-collective",
        GATHER.format(guard="if not is_main_process(): return"),
        GATHER.format(guard="print(is_main_process())"),
        GPUS,
    ),
    (
        "clipped-scaled",
        SCALED.format(steps=f"{CLIP}{AFTER}{UNSCALE}", enabled="enabled=load()"),
        SCALED.format(steps=f"{UNSCALE}{AFTER}{CLIP}", enabled="enabled=load()"),
        GPUS,
    ),
    (
        "clipped-scaled",
        SCALED.format(steps="clip_gradients(model, 3.0)", enabled=""),
        SCALED.format(steps=f"{UNSCALE}{AFTER}clip_gradients(model, 3.0)", enabled=""),
        GPUS,
    ),
    ("part-as-whole", METERS.format(reduce=""), METERS.format(reduce="acc = reduce_tensor(acc)"), GPUS),
    ("bypassed", UNWRAPPED.format(net="self.bare(self.net)"), UNWRAPPED.format(net="self.net"), GPUS),
    (
        "rank-as-device",
        SPAWNED.format(device="rank"),
        SPAWNED.format(device="local_rank"),
        {"mode": "spawn", **GPUS},
    ),
    ("set-epoch", EPOCHS.format(number="chunk"), EPOCHS.format(number="epoch"), GPUS),
    (
        "pickled-object",
        SAVED.format(settings="", extra="np.random.get_state()"),
        SAVED.format(settings="", extra="torch.get_rng_state()"),
        GPUS,
    ),
    ("pickled-object", SAVED.format(settings=NODE, extra="cfg"), SAVED.format(settings=NODE, extra="cfg.dump()"), GPUS),
    (
        "wrapped-attribute",
        NESTED.format(given="model"),
        NESTED.format(given="inner"),
        GPUS,
    ),
    (
        "two-wrappers",
        NORMS.format(order="net = DDP(net)\nnet = nn.SyncBatchNorm.convert_sync_batchnorm(net)"),
        NORMS.format(
            order="if os.environ.get('CPU'):\n    net = DDP(net)\nelse:\n"
            "    net = nn.SyncBatchNorm.convert_sync_batchnorm(net)\n    net = DDP(net)"
        ),
        GPUS,
    ),
    (
        "second-init",
        ASKED.format(guard="pass", first='dist.init_process_group("nccl", timeout=TIMEOUT)'),
        ASKED.format(guard="if dist.is_initialized(): return", first='dist.init_process_group("nccl")'),
        GPUS,
    ),
    ("fixed-device", FIXED.format(imports=LAYERS, device=0), FIXED.format(imports=LAYERS, device="choose()"), GPUS),
    ("spread-over-all", SPREAD.format(place='"auto"'), SPREAD.format(place="None"), GPUS),
]


@each_mistake(CASES)
def test_the_mistake_is_found_and_the_right_code_passes(
    check: str, wrong: str, right: str, fields: dict[str, Any], tmp_path: Path
) -> None:
    assert check in found(tmp_path, wrong, **fields)
    if wrong == right:  # what is right is the command
        fields = {
            **fields,
            "command": [*fields["command"][:-1], fields["command"][-1].replace("rank 0", "rank $NODE_RANK")],
        }
    assert check not in found(tmp_path, right, **fields)


def test_a_framework_that_does_more_than_layers(tmp_path: Path) -> None:
    more = (
        "from mmcv.parallel import MMDistributedDataParallel as Wrapper\nfrom mmcv.ops import DeformConv2d\nWrapper\n"
    )
    assert "fixed-device" not in found(tmp_path, FIXED.format(imports=more, device=0), **GPUS)


def test_an_answer_that_is_asked_for_only_if_a_name_is_no_number(tmp_path: Path) -> None:
    for name, is_found in (("latest.pt", True), ("000100.pt", False)):
        seen = found(tmp_path, ANSWER, hyperparameters={"ckpt": f"/shared/{name}"}, **GPUS)
        assert ("no-terminal" in seen) is is_found


def test_the_command_of_another_word_is_not_started(tmp_path: Path) -> None:
    (tmp_path / "chat.py").write_text("def main():\n    print(input())\n")
    (tmp_path / "fit.py").write_text("def main():\n    print(1)\n")
    text = (
        "import sys\nfrom chat import main as chat\nfrom fit import main as fit\n"
        'COMMANDS = {"chat": chat, "fit": fit}\nrun_cli(COMMANDS)\n'
    )
    for word, is_found in (("fit", False), ("chat", True)):
        assert ("no-terminal" in found(tmp_path, text, args=[word])) is is_found


RESUMED = (
    BEGIN
    + """
def get_args_parser():
    parser = argparse.ArgumentParser()
    parser.add_argument("--resume", default="")
    return parser
def load_model(args, model):
    if args.resume:
        model.load_state_dict(torch.load(args.resume)["model"])
args = get_args_parser()
args = args.parse_args()
dist.init_process_group("nccl")
model = DDP(nn.Linear(4, 1).cuda())
load_model(args, model)
"""
)


@pytest.mark.parametrize(("fields", "is_found"), [({}, True), ({"args": ["--resume=/shared/last.pth"]}, False)])
def test_a_checkpoint_that_is_loaded_only_with_an_argument(
    fields: dict[str, Any], is_found: bool, tmp_path: Path
) -> None:
    assert ("no-checkpoint" in found(tmp_path, RESUMED, restarts=3, **fields, **GPUS)) is is_found


def test_a_module_of_which_a_part_of_the_name_is_computed(tmp_path: Path) -> None:
    (tmp_path / "app/vjepa").mkdir(parents=True)
    (tmp_path / "app/vjepa/train.py").write_text("import torch\ndef main():\n    torch.load('/shared/last.pth')\n")
    text = 'import importlib, sys\nimportlib.import_module(f"app.{sys.argv[1]}.train").main()\n'
    assert "no-checkpoint" not in found(tmp_path, text, restarts=3, args=["vjepa"], **GPUS)
    assert "no-checkpoint" in found(tmp_path, text.replace(".train", ".eval"), restarts=3, args=["vjepa"], **GPUS)


def test_sizes_of_batches_that_transformers_fills_in(tmp_path: Path) -> None:
    text = """
from transformers import HfArgumentParser, Trainer, TrainingArguments
(args,) = HfArgumentParser(TrainingArguments).parse_args_into_dataclasses()
Trainer(args=args).train()
"""
    job = {
        "per_device_train_batch_size": 4,
        "gradient_accumulation_steps": 8,
        "deepspeed": "ds.json",
        "output_dir": "/o",
    }
    for total, is_found in ((64, True), (128, False), ("auto", False)):
        sizes = {"train_batch_size": total, "train_micro_batch_size_per_gpu": "auto"}
        (tmp_path / "ds.json").write_text(json.dumps({**sizes, "gradient_accumulation_steps": "auto"}))
        assert ("deepspeed-batch" in found(tmp_path, text, hyperparameters=job, **GPUS)) is is_found


def test_a_launcher_that_gets_the_number_of_nodes_by_a_variable(tmp_path: Path) -> None:
    text = "from accelerate import Accelerator\nAccelerator()\nprint('cuda')\n"
    launch = "accelerate launch --num_machines {} --num_processes 4 --machine_rank $NODE_RANK train.py"
    for nodes, is_found in (("$NNODES", False), ("1", True)):
        command = ["bash", "-c", launch.format(nodes)]
        assert ("more-processes" in found(tmp_path, text, command=command, **GPUS)) is is_found


def test_a_function_that_both_branches_call(tmp_path: Path) -> None:
    text = (
        BEGIN
        + """
def init(launcher, backend="nccl"):
    if launcher == "slurm":
        os.environ["RANK"] = os.environ["SLURM_PROCID"]
    dist.init_process_group(backend)
parser = argparse.ArgumentParser()
parser.add_argument("--launcher")
args = parser.parse_args()
options = load()
if "backend" in options:
    init(args.launcher, options["backend"])
else:
    init(args.launcher)
"""
    )
    for launcher, is_found in (("slurm", True), ("pytorch", False)):
        assert ("rank-env" in found(tmp_path, text, args=["--launcher", launcher], **GPUS)) is is_found


def test_a_function_that_a_package_hands_on_under_the_name_of_its_module(tmp_path: Path) -> None:
    (tmp_path / "distributed").mkdir()
    (tmp_path / "distributed/__init__.py").write_text("from .launch import launch\n")
    (tmp_path / "distributed/launch.py").write_text(
        "import torch.distributed as dist\ndef launch(url):\n    dist.init_process_group('nccl', init_method=url)\n"
    )
    for url, is_found in (("tcp://localhost:1234", True), ("env://", False)):
        text = f"import distributed as dist\ndist.launch('{url}')\n"
        assert ("fixed-master" in found(tmp_path, text, **GPUS)) is is_found


def test_a_setting_that_a_file_may_replace_is_not_known(tmp_path: Path) -> None:
    text = (
        BEGIN
        + """
from fvcore.common.config import CfgNode
_C = CfgNode()
_C.NUM_GPUS = 1
cfg = _C.clone()
{merge}
if cfg.NUM_GPUS > 1:
    dist.init_process_group("nccl", init_method="tcp://localhost:1234")
"""
    )
    assert "fixed-master" in found(tmp_path, text.format(merge='cfg.merge_from_file("eight.yaml")'), **GPUS)
    assert "fixed-master" not in found(tmp_path, text.format(merge=""), **GPUS)


@pytest.mark.parametrize(
    ("uri", "expected"), [("../data", ["warning"]), ("data", ["warning"]), ("/somewhere/else", []), ("../here", [])]
)
def test_an_input_near_the_code_that_does_not_exist(uri: str, expected: list[str], tmp_path: Path) -> None:
    """On a cluster, what is far from the code may exist on its nodes only."""
    (tmp_path / "here").mkdir()
    (tmp_path / "project/code").mkdir(parents=True)
    spec: dict[str, Any] = {
        "name": "near",
        "mode": "torchrun",
        "code_dir": str(tmp_path / "project/code"),
        "boot_file": "train.py",
    }
    spec |= {"backend": SLURM, "inputs": [{"name": "data", "uri": str((tmp_path / "project" / uri).resolve())}]}
    assert [one.level for one in check_data(build_plan(load_mapping(spec).spec, BUILT_IN))] == expected


def test_a_library_that_launches_the_processes_may_make_their_group(tmp_path: Path) -> None:
    text = "from tensorfn import distributed as dist\nfrom torch.nn.parallel import DistributedDataParallel as DDP\n"
    text += "import torch\ndef main():\n    DDP(torch.nn.Linear(4, 1).cuda())\n"
    assert "no-init" not in found(tmp_path, text + "dist.launch(main, 1)\n", **GPUS)
    assert "no-init" in found(tmp_path, text + "main()\n", **GPUS)


def test_a_layer_that_is_left_out_of_a_model_that_nothing_makes(tmp_path: Path) -> None:
    text = (
        BEGIN
        + """
class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)
    def forward(self, x):
        if torch.rand(1) < 0.5:
            x = self.layer(x)
        return x
dist.init_process_group("nccl")
model = DDP({made}.cuda())
"""
    )
    assert "unused-parameters" in found(tmp_path, text.format(made="Encoder()"), **GPUS)
    assert "unused-parameters" not in found(tmp_path, text.format(made="nn.Linear(4, 4)"), **GPUS)


def test_a_folder_of_data_of_which_nothing_is_uploaded(tmp_path: Path) -> None:
    """A rule that is meant for logs leaves out the lists that the configuration names."""
    (tmp_path / "subsets").mkdir()
    (tmp_path / "subsets/ten.txt").write_text("a\n")
    (tmp_path / "conf.yaml").write_text("data:\n  subset_path: subsets\nlogging:\n  folder: logs\n")
    for rule, is_found in (("*.txt\n", True), ("*.log\n", False)):
        (tmp_path / ".gitignore").write_text(rule)
        assert ("left-out" in found(tmp_path, "import yaml\n", args=["--fname=conf.yaml"], **GPUS)) is is_found


def test_the_hint_names_what_is_read_and_not_the_folder_that_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data/train.pt").touch()
    (tmp_path / ".gitignore").write_text("data/\n")
    (tmp_path / "train.py").write_text("import torch\ntorch.load('data/train.pt')\n")
    (hint,) = [one.hint for one in findings(tmp_path, **GPUS) if one.check == "left-out"]
    assert "!data/train.pt" in hint


def test_one_rule_that_leaves_out_many_modules_is_one_error(tmp_path: Path) -> None:
    """Nor are the modules of a package that does not exist an error each."""
    (tmp_path / "models").mkdir()
    (tmp_path / "lib").mkdir()
    for name in ("models/a.py", "models/b.py", "lib/a.py"):
        (tmp_path / name).touch()
    (tmp_path / ".gitignore").write_text("models/\n")
    imports = "import models.a\nimport models.b, models.a\nimport lib.nets.c, lib.nets.d\n"
    (tmp_path / "train.py").write_text(imports)
    missing, left_out = [one for one in findings(tmp_path, **GPUS) if one.check == "imports"]
    assert missing.text.startswith("module lib.nets does not exist")
    assert left_out.text.startswith("modules models.a, models.b are in the code directory but are not uploaded")
    added = left_out.hint.rpartition(": ")[2].split(", ")
    (tmp_path / ".jobignore").write_text("\n".join(added))
    assert "models" not in str([one.text for one in findings(tmp_path, **GPUS) if one.check == "imports"])


def test_deepspeed_that_the_requirements_do_not_name(tmp_path: Path) -> None:
    text = """
from transformers import HfArgumentParser, TrainingArguments
(args,) = HfArgumentParser(TrainingArguments).parse_args_into_dataclasses()
"""
    (tmp_path / "ds.json").write_text("{}")
    for more, is_found in (("", True), ("deepspeed>=0.14\n", False)):
        (tmp_path / "requirements.txt").write_text(f"transformers\n{more}")
        job = {"hyperparameters": {"deepspeed": "ds.json", "output_dir": "/o"}, "requirements": "requirements.txt"}
        assert ("packages" in found(tmp_path, text, **job, **GPUS)) is is_found


def test_the_folder_in_which_a_job_starts_is_the_code_directory(tmp_path: Path) -> None:
    """`datasets` is the library, and not the folder in the package that adds os.getcwd() to sys.path."""
    (tmp_path / "tune/datasets").mkdir(parents=True)
    (tmp_path / "tune/datasets/__init__.py").write_text("x = 1\n")
    for place, is_found in (("os.getcwd()", False), ("os.path.dirname(__file__)", True)):
        (tmp_path / "tune/__init__.py").write_text(
            f"import os, sys\nsys.path.append({place})\nfrom datasets import load_dataset\n"
        )
        assert ("imports" in found(tmp_path, "import tune\n", **GPUS)) is is_found


def test_a_package_that_another_module_puts_on_the_path(tmp_path: Path) -> None:
    """`_init_paths.py` adds ../lib by a function, and the code in lib is read all the same."""
    (tmp_path / "tools").mkdir()
    (tmp_path / "lib/utils").mkdir(parents=True)
    (tmp_path / "tools/_init_paths.py").write_text(
        "import os.path as osp\nimport sys\ndef add_path(path):\n    if path not in sys.path:\n"
        "        sys.path.insert(0, path)\nthis_dir = osp.dirname(__file__)\n"
        "lib_path = osp.join(this_dir, '..', 'lib')\nadd_path(lib_path)\nadd_path(osp.join(this_dir, '..'))\n"
    )
    (tmp_path / "lib/utils/__init__.py").write_text("import lib.utils\nimport ptflops\ndef ask():\n    input()\n")
    (tmp_path / "requirements.txt").write_text("timm\n")
    (tmp_path / "tools/train.py").write_text("import _init_paths\nimport timm\nfrom utils import ask\nask()\n")
    seen = findings(tmp_path, boot_file="tools/train.py", requirements="requirements.txt", **GPUS)
    assert {(one.check, one.where) for one in seen} == {
        ("no-terminal", "lib/utils/__init__.py:4"),
        ("packages", "lib/utils/__init__.py:2"),
    }
    assert "module ptflops" in next(one.text for one in seen if one.check == "packages")


@pytest.mark.parametrize(
    ("line", "is_found"),
    [
        ("git+https://github.com/cocodataset/cocoapi.git#subdirectory=PythonAPI&egg=pycocotools", False),
        ("git+https://github.com/cocodataset/cocoapi.git#subdirectory=PythonAPI", False),
        ("cython", True),
    ],
)
def test_a_requirement_by_its_address(line: str, is_found: bool, tmp_path: Path) -> None:
    (tmp_path / "requirements.txt").write_text(f"timm\n{line}\n")
    text = "import timm\nimport pycocotools\n"
    assert ("packages" in found(tmp_path, text, requirements="requirements.txt", **GPUS)) is is_found


PLATEAU = (
    BEGIN
    + """
dist.init_process_group("nccl")
model = DDP(nn.Linear(4, 1).cuda())
loader = DataLoader(make_data(), sampler=DistributedSampler(make_data()))
scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(torch.optim.SGD(model.parameters(), 0.1))
for batch in loader:
    loss = model(batch).sum()
    figure = {figure}
scheduler.step(figure)
"""
)
OF_SLURM = (
    BEGIN
    + """
parser = argparse.ArgumentParser()
parser.add_argument("--local_rank", type=int, default={default})
parser.add_argument("--main_port", type=int, default=10001)
params = parser.parse_args()
def init(params):
    params.is_slurm_job = "SLURM_JOB_ID" in os.environ{only}
    has_local_rank = hasattr(params, "local_rank")
    if params.is_slurm_job and has_local_rank:
        params.local_rank = int(os.environ["SLURM_LOCALID"])
        params.is_distributed = True
    elif has_local_rank and params.local_rank != -1:
        assert params.main_port == -1
        params.rank = int(os.environ["RANK"])
        print("%i - " % params.rank)
        params.is_distributed = True
    else:
        params.local_rank = 0
        params.is_distributed = False
    torch.cuda.set_device(params.local_rank)
    if params.is_distributed:
        dist.init_process_group("nccl")
init(params)
"""
)
ON_SLURM = ' and not "WORLD_SIZE" in os.environ'
FROM_LAUNCHER = 'int(os.environ.get("LOCAL_RANK", -1))'
STEPS = (
    BEGIN
    + """
class Options:
    is_distributed = False
opt = load(Options)
if os.environ.get("RANK"):
    opt.is_distributed = True
else:
    opt.is_distributed = False
dist.init_process_group("nccl")
sampler = DistributedSampler(make_data())
loader = DataLoader(make_data(), sampler=sampler)
step = 0
while step < 1000:
    if opt.is_distributed{more}:
        sampler.set_epoch(step)
    for batch in loader:
        step += 1
"""
)
FABRIC = """
import torch
from lightning.fabric import Fabric
from lightning.fabric.strategies import FSDPStrategy
fabric = Fabric(devices=2, num_nodes=2, strategy=FSDPStrategy())
fabric.launch()
model = fabric.setup_module(torch.nn.Linear(4, 1))
optimizer = fabric.setup_optimizers(torch.optim.SGD(model.parameters(), 0.1))
{clip}
optimizer.step()
"""
TRAINER = (
    BEGIN
    + """
from transformers import AutoModel
dist.init_process_group("nccl")
def inner(model):
    return model.module if hasattr(model, "module") else model
def forward(model, batch):
    return model(batch)
class EncoderTrainer:
    def __init__(self, model):
        self.model = DDP(model.cuda())
    def train(self, batch):
        model = {model}
        forward(model, batch).sum().backward()
EncoderTrainer(AutoModel.from_pretrained("/shared/model")).train(torch.ones(4).cuda())
"""
)
QUANTIZED = """
import torch
from accelerate import Accelerator
from transformers import AutoModel
model = AutoModel.from_pretrained("/shared/model", device_map={{"": Accelerator().{number}}})
"""
IN_A_MODEL = (
    BEGIN
    + """
from transformers import Trainer
class Model(nn.Module):
    def forward(self, x):
        xs = [torch.zeros_like(x) for _ in range({count})]
        dist.all_gather(xs, x)
        return torch.cat(xs)
Trainer(model=Model()).train()
"""
)
SHARED = """
import argparse, deepspeed
from tools import route
parser = argparse.ArgumentParser()
parser.add_argument("--batch_size", type=int, default={size})
args = parser.parse_args()
deepspeed.initialize(config={{"train_batch_size": args.batch_size, "gradient_accumulation_steps": 1}})
"""
LITE = """
from pytorch_lightning.lite import LightningLite
class Lite(LightningLite):
    def run(self):
        print(1)
Lite(devices="auto", num_nodes={nodes}).run()
"""
MORE_CASES = [
    ("lightning-nodes", LITE.format(nodes=1), LITE.format(nodes=2), GPUS),
    (
        "own-learning-rate",
        PLATEAU.format(figure="loss.item()"),
        PLATEAU.format(figure="backend.average_all(loss)"),
        GPUS,
    ),
    (
        "local-rank",
        OF_SLURM.format(default=-1, only=ON_SLURM),
        OF_SLURM.format(default=FROM_LAUNCHER, only=ON_SLURM),
        GPUS,
    ),
    (
        "unfulfilled",
        OF_SLURM.format(default=FROM_LAUNCHER, only=ON_SLURM),
        OF_SLURM.format(default=FROM_LAUNCHER, only=ON_SLURM).replace("10001", "-1"),
        GPUS,
    ),
    ("set-epoch", STEPS.format(more=" > 1"), STEPS.format(more=""), GPUS),
    (
        "clipped-by-part",
        FABRIC.format(clip="torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)"),
        FABRIC.format(clip="fabric.clip_gradients(model, optimizer, max_norm=1.0)"),
        GPUS,
    ),
    ("bypassed", TRAINER.format(model="inner(self.model)"), TRAINER.format(model="self.model"), GPUS),
    (
        "rank-as-device",
        QUANTIZED.format(number="process_index"),
        QUANTIZED.format(number="local_process_index"),
        GPUS,
    ),
    (
        "fixed-world-size",
        IN_A_MODEL.format(count="torch.cuda.device_count()"),
        IN_A_MODEL.format(count="dist.get_world_size()"),
        GPUS,
    ),
    ("deepspeed-batch", SHARED.format(size=30), SHARED.format(size=32), GPUS),
]


@each_mistake(MORE_CASES)
def test_a_mistake_of_the_second_round_is_found(
    check: str, wrong: str, right: str, fields: dict[str, Any], tmp_path: Path
) -> None:
    (tmp_path / "tools.py").write_text("def route(*args):\n    args = make(args)\n    return list(args)\n")
    assert check in found(tmp_path, wrong, **fields)
    assert check not in found(tmp_path, right, **fields)


def test_a_value_that_a_text_takes_is_no_division(tmp_path: Path) -> None:
    text = "import os\nrank = int(os.environ['GROUP_RANK']) * 0\nprint({} % rank)\n"
    assert "unfulfilled" not in found(tmp_path, text.format("'%i - '"), **GPUS)
    assert "unfulfilled" in found(tmp_path, text.format("len('abc')"), **GPUS)


def test_an_assertion_in_what_makes_a_model(tmp_path: Path) -> None:
    text = """
import argparse
from math import log2
parser = argparse.ArgumentParser()
parser.add_argument("--image_size", type=int)
args = parser.parse_args()
SIZE = args.image_size
class Model:
    def __init__(self, image_size=256):
        assert log2(image_size).is_integer(), "a power of 2"
settings = dict(image_size=SIZE)
Model(**settings)
"""
    for size, is_found in ((192, True), (256, False)):
        seen = found(tmp_path, text, hyperparameters={"image_size": size}, **GPUS)
        assert ("unfulfilled" in seen) is is_found


def test_a_configuration_of_an_unknown_parser_that_is_nowhere(tmp_path: Path) -> None:
    (tmp_path / "config").mkdir()
    (tmp_path / "config/base.conf").touch()
    text = "from tensorfn import load_arg_config\nconf = load_arg_config()\n"
    for name, is_found in (("improved", True), ("base", False)):
        assert ("not-there" in found(tmp_path, text, args=["--conf", f"config/{name}.conf"], **GPUS)) is is_found


def test_a_number_of_parts_in_a_branch_that_may_not_be_executed(tmp_path: Path) -> None:
    text = (
        BEGIN
        + """
dist.init_process_group("nccl")
model = DDP(nn.Linear(4, 1).cuda())
if {condition}:
    sampler = DistributedSampler(make_data(), num_replicas=0, rank=dist.get_rank())
"""
    )
    assert "part-of-node" in found(tmp_path, text.format(condition="True"), **GPUS)
    assert "part-of-node" not in found(tmp_path, text.format(condition="load().plain"), **GPUS)


def test_a_branch_of_rank_0_without_a_statement_ends_no_check(tmp_path: Path) -> None:
    text = (
        BEGIN
        + """
dist.init_process_group("nccl")
def main():
    if dist.get_rank() != 0:
        return
main()
open("/tmp/x", "w").write("a")
"""
    )
    (tmp_path / "train.py").write_text(text)
    assert [one for one in findings(tmp_path, **GPUS) if "cannot follow" in one.text] == []


def test_sizes_of_batches_in_files_that_a_file_of_arguments_names(tmp_path: Path) -> None:
    sizes = {"train_micro_batch_size_per_gpu": "auto", "gradient_accumulation_steps": "auto"}
    (tmp_path / "conf.yaml").write_text(
        "per_device_train_batch_size: 4\ngradient_accumulation_steps: 8\ndeepspeed: ds.json\n"
    )
    for total, is_found in ((64, True), (128, False)):
        (tmp_path / "ds.json").write_text(json.dumps({"train_batch_size": total, **sizes}))
        seen = found(tmp_path, "import sys, transformers\nprint(sys.argv)\n", args=["conf.yaml"], **GPUS)
        assert ("deepspeed-batch" in seen) is is_found


def test_results_on_the_disk_of_a_node_that_a_restart_needs(tmp_path: Path) -> None:
    text = "import torch\ntorch.load('/shared/last.pth')\n"
    for folder, is_found in (("/tmp/run", True), ("/shared/run", False)):
        seen = found(tmp_path, text, hyperparameters={"output": folder}, restarts=3, **GPUS)
        assert ("no-checkpoint" in seen) is is_found


METER = (
    BEGIN
    + """
import time
dist.init_process_group("nccl")
class Average:
    def update(self, value):
        self.avg = value
    def synchronize(self):
        dist.barrier()
        {add}
class Progress:
    def __init__(self, *meters):
        self.meters = meters
    def synchronize(self):
        for meter in self.meters:
            meter.synchronize()
def validate(loader, model):
    loss, took, end = Average(), Average(), time.time()
    progress = Progress(loss, took)
    for batch in loader:
        loss.update(model(batch).sum().item())
        took.update(time.time() - end)
    {share}
    return {{"loss": loss.avg, "time": took.avg}}
loader = DataLoader(make_data(), sampler=DistributedSampler(make_data()))
validate(loader, DDP(nn.Linear(4, 1).cuda()))
"""
)


def test_meters_that_wait_for_all_and_then_add_up(tmp_path: Path) -> None:
    alone = METER.format(add="self.avg = 0", share="progress.synchronize()")
    assert "part-as-whole" in found(tmp_path, alone, **GPUS)
    together = METER.format(add="dist.all_reduce(self.total)", share="progress.synchronize()")
    assert "part-as-whole" not in found(tmp_path, together, **GPUS)


def test_the_time_of_a_process_is_no_figure_to_combine(tmp_path: Path) -> None:
    figures = (
        'figure = reduce_tensor(loss.avg)\n    loss.update(figure)\n    return {"loss": loss.avg, "time": took.avg}'
    )
    text = METER.format(add="pass", share=figures) + "def reduce_tensor(x):\n    dist.all_reduce(x)\n    return x\n"
    assert "part-as-whole" in found(tmp_path, text, **GPUS)
    assert "part-as-whole" not in found(
        tmp_path, text.replace("loss.update(model(batch).sum().item())", "model(batch)"), **GPUS
    )


def test_a_number_of_gpus_that_counts_only_without_a_process_group(tmp_path: Path) -> None:
    text = (
        BEGIN
        + """
dist.init_process_group("nccl")
try:
    num_replicas = {size}
except RuntimeError:
    num_replicas = torch.cuda.device_count()
"""
    )
    assert "fixed-world-size" not in found(tmp_path, text.format(size="dist.get_world_size()"), **GPUS)
    assert "fixed-world-size" in found(tmp_path, text.format(size="torch.cuda.device_count()"), **GPUS)


SCHEDULED = """
import os, torch.distributed as dist
if "{first}" in os.environ:
    rank, size = int(os.environ["{first}"]), int(os.environ["{size}"])
elif "{second}" in os.environ:
    rank, size = int(os.environ["{second}"]), int(os.environ["{other}"])
dist.init_process_group("nccl", rank=rank, world_size=size)
"""


def test_ranks_of_slurm_that_come_before_those_of_the_launcher(tmp_path: Path) -> None:
    slurm, torch = ("SLURM_PROCID", "SLURM_NTASKS"), ("RANK", "WORLD_SIZE")
    for (first, size), (second, other), is_found in ((slurm, torch, True), (torch, slurm, False)):
        text = SCHEDULED.format(first=first, size=size, second=second, other=other)
        assert ("rank-env" in found(tmp_path, text, **GPUS)) is is_found
    text = SCHEDULED.format(first=slurm[0], size=slurm[1], second=torch[0], other=torch[1])
    volcano = {"kind": "volcano", "resources": {"nvidia.com/gpu": 2}}
    assert "rank-env" not in found(tmp_path, text, backend=volcano, image="i", store={"uri": "s3://bucket/jobs"})


def test_data_of_a_branch_that_may_not_be_executed_is_not_fetched_by_all(tmp_path: Path) -> None:
    text = (
        BEGIN
        + """
from torchvision.datasets import CIFAR10
dist.init_process_group("nccl")
{condition}
    data = CIFAR10("/shared/data", download=True)
"""
    )
    assert "fetched-by-all" in found(tmp_path, text.format(condition="if True:"), **GPUS)
    assert "fetched-by-all" not in found(tmp_path, text.format(condition="if load().name == 'cifar10':"), **GPUS)


EVOLVED = (
    BEGIN
    + """
from contextlib import contextmanager
LOCAL_RANK = int(os.getenv("LOCAL_RANK", -1))
@contextmanager
def zero_first(local_rank):
    if local_rank not in [-1, 0]:
        dist.barrier(device_ids=[local_rank])
    yield
    if local_rank == 0:
        dist.barrier(device_ids=[0])
def restore(opt):
    for key, value in load(opt.resume).items():
        setattr(opt, key, value)
def main(opt):
    if opt.resume and not restore(opt):
        opt = argparse.Namespace(**load(opt.resume))
        opt.resume = True
    else:
        {before}
    if LOCAL_RANK != -1:
        dist.init_process_group("nccl")
    {after}
parser = argparse.ArgumentParser()
parser.add_argument("--resume", nargs="?", const=True, default=False)
parser.add_argument("--data", default="/shared/data.yaml")
opt = parser.parse_args()
main(opt)
"""
)
CHECKED = "with zero_first(LOCAL_RANK): opt.data = check(opt.data)"


def test_arguments_that_only_a_resumed_job_changes(tmp_path: Path) -> None:
    """The barrier comes before the group, which shows only if it is known that the job does not resume."""
    assert "no-init" in found(tmp_path, EVOLVED.format(before=CHECKED, after="pass"), **GPUS)
    assert "no-init" not in found(tmp_path, EVOLVED.format(before="pass", after=CHECKED), **GPUS)


def test_a_module_in_which_exec_is_called_has_no_known_variables(tmp_path: Path) -> None:
    (tmp_path / "places.py").write_text("URL = 'tcp://localhost:1234'\n{more}\n")
    text = "import torch.distributed as dist\nimport places, tools\n"
    text += "dist.init_process_group('nccl', init_method=places.URL)\n"
    for name, is_found in (("tools", True), ("places", False)):
        for file in ("tools", "places"):
            more = "exec(open('/shared/more.py').read())\n" if file == name else ""
            (tmp_path / f"{file}.py").write_text(f"URL = 'tcp://localhost:1234'\n{more}")
        assert ("fixed-master" in found(tmp_path, text, **GPUS)) is is_found


TESTED = (
    BEGIN
    + """
from torch.utils.data import Sampler
dist.init_process_group("nccl")
class RepeatedSampler(Sampler):
    def __init__(self, dataset, num_replicas=None, rank=None):
        self.dataset = dataset
def build(plain):
    data = make_data()
    if plain:
        sampler = DistributedSampler(data)
    else:
        sampler = RepeatedSampler(data)
    return DataLoader(data, sampler=sampler)
def reduce_meter(meter):
    dist.all_reduce(meter.sum)
    return meter.avg
def test(loader, model):
    top1 = make_meter()
    for x, y in loader:
        top1.update((model(x).argmax(1) == y).float().mean())
    dist.barrier()
    return {result}
loader = build(load().plain)
print(test(loader, DDP(nn.Linear(4, 2).cuda())))
"""
)


def test_figures_that_a_function_adds_up_for_map(tmp_path: Path) -> None:
    assert "part-as-whole" in found(tmp_path, TESTED.format(result="top1.avg"), **GPUS)
    assert "part-as-whole" not in found(tmp_path, TESTED.format(result="list(map(reduce_meter, [top1]))"), **GPUS)


SETTINGS = """
from dataclasses import dataclass, field
from typing import Optional
from transformers import HfArgumentParser, TrainingArguments
@dataclass
class DataArguments:
    dataset_name: Optional[str] = field(default=None)
    train_file: Optional[str] = field(default=None)
    def __post_init__(self):
        if self.dataset_name is None and self.train_file is None:
            raise ValueError("a data set or a file, please")
        elif self.train_file is not None:
            extension = self.train_file.split(".")[-1]
            assert extension in ["csv", "json"], "csv or json"
parser = HfArgumentParser((DataArguments, TrainingArguments))
data, training = parser.parse_args_into_dataclasses()
"""


@pytest.mark.parametrize(
    ("given", "is_found"),
    [({"train_file": "/shared/a.tsv"}, True), ({"train_file": "/shared/a.json"}, False), ({}, True)],
)
def test_what_the_dataclasses_of_the_arguments_do_not_accept(
    given: dict[str, str], is_found: bool, tmp_path: Path
) -> None:
    seen = found(tmp_path, SETTINGS, hyperparameters={**given, "output_dir": "/shared/out"}, **GPUS)
    assert ("unfulfilled" in seen) is is_found


def test_a_batch_that_is_cut_to_its_size_is_no_split(tmp_path: Path) -> None:
    text = (
        BEGIN
        + """
dist.init_process_group("nccl")
model = DDP(nn.Linear(4, 1).cuda())
for ids in [np.arange(9)]:
    np.random.shuffle(ids)
    {used} = ids[:4]
"""
    )
    assert "split-by-rank" in found(tmp_path, text.format(used="train"), **GPUS)
    assert "split-by-rank" not in found(tmp_path, text.format(used="ids"), **GPUS)
