"""Mistakes in the shapes in which public repositories have them, and right code of the same shape."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from checked import GPUS, SLURM, each_mistake, findings, found

from jobsubmit.check.data import check_data
from jobsubmit.config import BUILT_IN
from jobsubmit.plan.launch_plan import build_plan
from jobsubmit.spec.loader import load_mapping

BEGIN = """
import argparse, os, time, datetime, numpy as np, torch, torch.distributed as dist
from pathlib import Path
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler
"""
DETECTOR = (
    BEGIN
    + """
def copy_attr(a, b):
    for k, v in b.__dict__.items():
        setattr(a, k, v)
class Loss:
    def __init__(self, model):
        head = {read}
        self.stride = head.stride
def train(opt, device):
    cuda = device.type != "cpu"
    model = torch.hub.load("repository", "detector").to(device)
    if cuda and opt.rank != -1:
        model = DDP(model, device_ids=[0])
    model.names = ["cat"]
    loss = Loss(model)
parser = argparse.ArgumentParser()
parser.add_argument("--device", default="")
opt = parser.parse_args()
opt.rank = int(os.environ["RANK"])
dist.init_process_group("nccl")
train(opt, pick(opt.device))
"""
)
RESUMED = (
    BEGIN
    + """
def save(args, epoch, model, model_without_ddp):
    state = {{"model": {saved}.state_dict(), "epoch": epoch}}
    torch.save(state, Path(args.output_dir) / "last.pth")
def main(args):
    dist.init_process_group("nccl")
    model = torch.nn.Linear(4, 1).cuda()
    model_without_ddp = model
    if args.distributed:
        model = DDP(model)
        model_without_ddp = model.module
    checkpoint = torch.load("/shared/last.pth")
    model_without_ddp.load_state_dict(checkpoint["model"])
    other = torch.hub.load("a", "b")
    other.load_state_dict(checkpoint, strict=False)
    for epoch in range(3):
        save(args=args, epoch=epoch, model=model, model_without_ddp=model_without_ddp)
parser = argparse.ArgumentParser()
parser.add_argument("--output_dir", default="/shared")
args = parser.parse_args()
args.distributed = check_distributed()
main(args)
"""
)
STEPS = (
    BEGIN
    + """
def train_one_epoch(model, loader, optimizer, scaler):
    for samples in loader:
        loss = model(samples)
        scaler(loss, optimizer)
def main(args):
    dist.init_process_group("nccl")
    model = torch.nn.Linear(4, 1).cuda()
    model_without_ddp = model
    if args.distributed:
        model = DDP(model)
        model_without_ddp = model.module
    optimizer = torch.optim.AdamW(model_without_ddp.parameters())
    train_one_epoch({given}, load(args), optimizer, Scaler())
parser = argparse.ArgumentParser()
args = parser.parse_args()
args.distributed = check_distributed()
main(args)
"""
)
WEIGHTS = (
    BEGIN
    + """
rank = int(os.environ["RANK"])
dist.init_process_group("nccl")
data = load()
for epoch in range(3):
    {guard}
        indices = (torch.tensor(data.indices) if rank == 0 else torch.zeros(data.n)).int(){moved}
        dist.broadcast(indices, 0)
"""
)
LINEAR = (
    BEGIN
    + """
dist.init_process_group("nccl")
model = DDP(torch.nn.Linear(4, 1).cuda())
optimizer = torch.optim.SGD(model.parameters(), 0.1)
scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)
if Path("/shared/last.pth").is_file():
    best = torch.load("/shared/last.pth", map_location="cpu"{how})["best"]
else:
    best = {best}
for epoch in range(3):
    accuracy = torch.zeros(1).cuda()
    if dist.get_rank() == 0:
        accuracy += validate(model)
        torch.save(dict(epoch=epoch, best=best), "/shared/last.pth")
        {one}
    dist.all_reduce(accuracy)
    {all}
"""
)
RUNNER = (
    BEGIN
    + """
class Groups:
    def __init__(self):
        self.known = {{}}
    def create(self, all_ranks):
        rank = int(os.environ["RANK"])
        mine = None
        for ranks in all_ranks:
            key = tuple(sorted(ranks))
            {skips}
            if key not in self.known:
                self.known[key] = dist.new_group(ranks=ranks)
            {keeps}
            mine = self.known[key]
        return mine
dist.init_process_group("nccl")
groups = Groups()
group = groups.create(make_ranks())
"""
)
SPEECH = (
    BEGIN
    + """
def load_if_available(params, model):
    return None if params.start_epoch == 1 else torch.load(params.last)
def save_checkpoint(filename, params, model, rank=0):
    if rank != 0:
        return
    torch.save({{"model": model.state_dict()}}, filename)
class AttributeDict(dict):
    pass
def get_params():
    return AttributeDict({{"best": 1.0, "env_info": {{"hostname": "unknown"}}}})
def run(rank, args):
    params = get_params()
    params.update(vars(args))
    model = torch.nn.Linear(4, 1).cuda()
    checkpoints = None
    {guard}
        checkpoints = load_if_available(params, model)
    model = DDP(model)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    if checkpoints is not None:
        optimizer.load_state_dict(checkpoints["optimizer"])
    for epoch in range(params.start_epoch, 9):
        if epoch % params.every == 0 or epoch == 8:
            filename = Path(args.folder) / f"epoch-{{params.cur_epoch}}.pt"
            save_checkpoint(filename=filename, params=params, model=model{rank})
parser = argparse.ArgumentParser()
parser.add_argument("--folder", default="/shared")
dist.init_process_group("nccl")
run(dist.get_rank(), parser.parse_args())
"""
)
NAMED = (
    BEGIN
    + """
def save_on_master(*args, **kwargs):
    if dist.get_rank() == 0:
        torch.save(*args, **kwargs)
def save_model(args, model, epoch):
    folder = Path(args.output_dir)
    for path in [folder / ("checkpoint-%s.pth" % epoch)]:
        save_on_master({{"model": model.state_dict()}}, path)
def load_model(args, model):
    model.load_state_dict(torch.load(os.path.join(args.output_dir, "checkpoint-1.pth"))["model"])
parser = argparse.ArgumentParser()
parser.add_argument("--output_dir", default="")
args = parser.parse_args()
if args.output_dir:
    args.output_dir = os.path.join(args.output_dir, {name})
dist.init_process_group("nccl")
model = torch.nn.Linear(4, 1)
load_model(args, model)
save_model(args, model, 1)
"""
)
STOPPED = """
import torch
from accelerate import Accelerator
class EarlyStopping:
    def __init__(self, patience=5):
        self.patience, self.lowest, self.count = patience, 9.0, 0
    def check(self, loss):
        self.count = 0 if loss < self.lowest else self.count + 1
        return self.count >= self.patience
callback = EarlyStopping()
accelerator = Accelerator()
model, optimizer, loader = accelerator.prepare(make_model(), make_optimizer(), make_loader())
for batch in loader:
    loss = model(**batch).loss
    accelerator.backward(loss)
    optimizer.step()
    {lines}
        break
"""
ACCUMULATED = """
import argparse
from accelerate import Accelerator
parser = argparse.ArgumentParser()
parser.add_argument("--gradient_accumulation_steps", type=int, default=1)
args = parser.parse_args()
accelerator = Accelerator(cpu=False{given})
model, optimizer, loader = accelerator.prepare(make_model(), make_optimizer(), make_loader())
for batch in loader:
    with accelerator.accumulate(model):
        accelerator.backward(model(**batch).loss)
        optimizer.step()
"""
SPLIT = """
import numpy as np
from accelerate import Accelerator
accelerator = Accelerator()
np.random.seed(42{seed})
order = np.random.permutation(100)
train, validation = order[:80], order[80:]
"""
HPARAMS = (
    BEGIN
    + """
class HParams(object):
    def __init__(self, **kwargs):
        self.__dict__.update(kwargs)
def create_hparams(text=None):
    hparams = HParams(epochs=500, dist_backend="nccl", dist_url={url})
    return hparams
def init(hparams, rank):
    dist.init_process_group(backend=hparams.dist_backend, init_method=hparams.dist_url, world_size=4, rank=rank)
init(create_hparams(), int(os.environ["RANK"]))
"""
)
JOINED = (
    BEGIN
    + """
def init_distributed(args):
    if "WORLD_SIZE" in os.environ and os.environ["WORLD_SIZE"] != "":
        args.local_rank = int(os.environ["LOCAL_RANK"])
        args.rank = {rank}
    dist.init_process_group("nccl", init_method="env://", world_size=4, rank=args.rank)
def main(args, config):
    for name, value in config.items():
        setattr(args, name, value)
    init_distributed(args)
parser = argparse.ArgumentParser()
parser.add_argument("--rank", default=0, type=int)
main(parser.parse_args(), read_config())
"""
)
CONFIGURED = (
    BEGIN
    + """
def configure(folder=None):
    rank = {rank}
    return f"log-{{rank}}"
def setup():
    if dist.is_initialized():
        return
    dist.init_process_group("nccl")
configure()
setup()
"""
)
SCALED = (
    BEGIN
    + """
scaler = torch.cuda.amp.GradScaler({enabled})
for batch in load():
    scaler.scale(model(batch)).backward()
    {unscale}
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
"""
)
STEPPED = (
    BEGIN
    + """
class Trainer:
    def __init__(self, var, var_wo_ddp):
        self.var, self.var_wo_ddp = var, var_wo_ddp
    {grad}
    def train_step(self, batch):
        loss = {called}(batch).mean()
        self.scale_and_step(loss)
dist.init_process_group("nccl")
Trainer((DDP if several() else Plain)(net), net).train_step(load())
"""
)
FOLDER = (
    BEGIN
    + """
def main(args):
    folder = Path(args.folder)
    if not folder.exists():
        os.mkdir(folder)
parser = argparse.ArgumentParser()
parser.add_argument("--folder", default="/shared/out")
args = parser.parse_args()
dist.init_process_group("gloo")
{first}
main(args)
"""
)
PREPARED = """
from accelerate import Accelerator
accelerator = Accelerator()
model, optimizer, loader = accelerator.prepare(make_model(), make_optimizer(), make_loader())
model, optimizer = accelerator.prepare(model, optimizer)
for batch in loader:
    accelerator.backward(model(**batch).loss)
if accelerator.is_main_process:
    {owner}.save_pretrained("/shared/out")
"""
STARTED = (
    BEGIN
    + """
def run(index, init_method, shards):
    dist.init_process_group("nccl", init_method=init_method, world_size=4, rank=shards * 2 + index)
def launch(init_method, func):
    torch.multiprocessing.spawn(run, nprocs=2, args=(init_method, int(os.environ["NODE_RANK"])))
parser = argparse.ArgumentParser()
parser.add_argument("--init_method", default="tcp://localhost:9999")
args = parser.parse_args()
launch(init_method={first}, func=train)
launch(init_method={first}, func=test)
"""
)
TESTED = (
    BEGIN
    + """
from torch.utils.data import SequentialSampler
def validate(loader, model):
    seen = torch.zeros(2)
    for batch in loader:
        seen += score(model(batch))
    {combine}
    return seen[0] / seen[1]
def train(loader, model):
    for batch in loader:
        model(batch).mean().backward()
    dist.all_reduce(figures())
parser = argparse.ArgumentParser()
parser.add_argument("--dist-eval", action="store_true")
args = parser.parse_args()
dist.init_process_group("gloo")
data = load()
model = DDP(net())
train(DataLoader(data, sampler=DistributedSampler(data)), model)
accuracy = validate(DataLoader(data, sampler={sampler}), model)
"""
)
PACKED = """
import lightning
from torch.utils.data import IterableDataset, get_worker_info
class PackedDataset(IterableDataset):
    def __init__(self, filenames, seed=1, num_processes=1, process_rank=0):
        self.filenames, self.num_processes, self.process_rank = filenames, num_processes, process_rank
    def __iter__(self):
        workers = get_worker_info().num_workers
        return iter(self.filenames[self.process_rank :: self.num_processes * workers])
fabric = lightning.Fabric()
data = PackedDataset(["a"], seed=1 + fabric.global_rank{given})
"""
CASES: list[tuple[str, str, str, dict[str, Any]]] = [
    (
        "wrapped-attribute",
        DETECTOR.format(read="model.model[-1]"),
        DETECTOR.format(read="model.module.model[-1] if is_parallel(model) else model.model[-1]"),
        GPUS,
    ),
    (
        "wrapped-attribute",
        BEGIN
        + "import timm\ndist.init_process_group('nccl')\nmodel = DDP(timm.create_model('vit'))\nn = model.blocks\n",
        BEGIN + "import timm\ndist.init_process_group('nccl')\nmodel = DDP(timm.create_model('vit'))\n"
        "n = model.module.blocks\nmodel.static_graph\n",
        GPUS,
    ),
    (
        "other-keys",
        RESUMED.format(saved="model"),
        RESUMED.format(saved="model_without_ddp"),
        {**GPUS, "torch_version": "2.1"},
    ),
    ("bypassed", STEPS.format(given="model_without_ddp"), STEPS.format(given="model"), GPUS),
    (
        "tensor-on-cpu",
        WEIGHTS.format(guard="if data.weighted:", moved=""),
        WEIGHTS.format(guard="if data.weighted:", moved=".cuda()"),
        GPUS,
    ),
    (
        "pickled-object",
        LINEAR.format(best="argparse.Namespace(top1=0)", how="", one="pass", all="scheduler.step(accuracy)"),
        LINEAR.format(
            best="argparse.Namespace(top1=0)", how=", weights_only=False", one="pass", all="scheduler.step(accuracy)"
        ),
        GPUS,
    ),
    (
        "own-learning-rate",
        LINEAR.format(best="{}", how="", one="scheduler.step(accuracy)", all="pass"),
        LINEAR.format(best="{}", how="", one="pass", all="scheduler.step(accuracy)"),
        GPUS,
    ),
    (
        "rank-0-collective",
        RUNNER.format(skips="if rank not in ranks:\n                continue", keeps="pass"),
        RUNNER.format(skips="pass", keeps="if rank not in ranks:\n                continue"),
        GPUS,
    ),
    (
        "loaded-by-one",
        SPEECH.format(guard="if rank == 0:", rank=", rank=rank"),
        SPEECH.format(guard="if True:", rank=", rank=rank"),
        GPUS,
    ),
    (
        "saved-by-all",
        SPEECH.format(guard="if True:", rank=""),
        SPEECH.format(guard="if True:", rank=", rank=rank"),
        GPUS,
    ),
    (
        "no-checkpoint",
        NAMED.format(name='datetime.datetime.now().strftime("%Y%m%d")'),
        NAMED.format(name='"run"'),
        {**GPUS, "restarts": 3, "hyperparameters": {"output_dir": "/shared/out"}},
    ),
    (
        "left-by-one",
        STOPPED.format(lines="if callback.check(loss.item()):"),
        STOPPED.format(lines="if callback.check(accelerator.gather(loss).mean().item()):"),
        {},
    ),
    (
        "never-accumulated",
        ACCUMULATED.format(given=""),
        ACCUMULATED.format(given=", gradient_accumulation_steps=args.gradient_accumulation_steps"),
        {"hyperparameters": {"gradient_accumulation_steps": 4}},
    ),
    ("split-by-rank", SPLIT.format(seed=" + accelerator.process_index"), SPLIT.format(seed=""), {}),
    (
        "fixed-master",
        HPARAMS.format(url='"tcp://localhost:54321"'),
        HPARAMS.format(url='"env://"'),
        GPUS,
    ),
    (
        "same-ranks",
        JOINED.format(rank="args.rank * 2 + args.local_rank"),
        JOINED.format(rank='int(os.environ["RANK"])'),
        GPUS,
    ),
    ("no-init", CONFIGURED.format(rank="dist.get_rank()"), CONFIGURED.format(rank='os.environ["RANK"]'), GPUS),
    (
        "rank-as-device",
        BEGIN + 'dist.init_process_group("nccl")\ntorch.load("a", map_location="cuda:" + str(dist.get_rank()))\n',
        BEGIN + 'dist.init_process_group("nccl")\ntorch.load("a", map_location="cuda:" + os.environ["LOCAL_RANK"])\n',
        GPUS,
    ),
    (
        "staged-by-one",
        BEGIN + "from torch_geometric.datasets import Reddit\ndist.init_process_group('nccl')\n"
        "if dist.get_rank() == 0:\n    data = Reddit('/tmp/Reddit')\ndist.barrier()\n",
        BEGIN + "from torch_geometric.datasets import Reddit\ndist.init_process_group('nccl')\n"
        "if dist.get_rank() == 0:\n    data = Reddit('/shared/Reddit')\ndist.barrier()\n",
        GPUS,
    ),
    (
        "rank-env",
        BEGIN + 'local = int(os.environ.get("SLURM_LOCALID", os.environ.get("LOCAL_RANK")))\n',
        BEGIN + 'local = int(os.environ.get("LOCAL_RANK", os.environ.get("SLURM_LOCALID")))\n',
        GPUS,
    ),
    (
        "rank-env",
        BEGIN
        + 'try:\n    os.environ["CUDA_VISIBLE_DEVICES"] = os.environ["SLURM_LOCALID"]\nexcept Exception:\n    pass\n',
        BEGIN
        + 'try:\n    os.environ["CUDA_VISIBLE_DEVICES"] = os.environ["LOCAL_RANK"]\nexcept Exception:\n    pass\n',
        GPUS,
    ),
    (
        "rank-env",
        BEGIN + 'torch.cuda.set_device(int(os.environ.get("OMPI_COMM_WORLD_LOCAL_RANK", 0)))\n',
        BEGIN + 'torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", os.environ.get("PMI_RANK", 0))))\n',
        GPUS,
    ),
    (
        "unfulfilled",
        BEGIN + 'world = int(os.environ["WORLD_SIZE"])\nparser = argparse.ArgumentParser()\n'
        'parser.add_argument("--batch", type=int, default=6)\nargs = parser.parse_args()\n'
        "def run():\n    assert args.batch % world == 0\nrun()\n",
        BEGIN + 'world = int(os.environ["WORLD_SIZE"])\nparser = argparse.ArgumentParser()\n'
        'parser.add_argument("--batch", type=int, default=8)\nargs = parser.parse_args()\n'
        "def run():\n    assert args.batch % world == 0\nrun()\n",
        {},
    ),
    (
        "unfulfilled",
        BEGIN + 'parser = argparse.ArgumentParser()\nparser.add_argument("--data")\nparser.add_argument("--name")\n'
        "args = parser.parse_args()\nif args.data is None and args.name is None:\n    raise ValueError('which?')\n",
        BEGIN + 'parser = argparse.ArgumentParser()\nparser.add_argument("--data")\nparser.add_argument("--name")\n'
        "args = parser.parse_args()\nif args.data is None and args.name is not None:\n    raise ValueError('which?')\n",
        {},
    ),
    (
        "unfulfilled",
        BEGIN + 'steps = 2 // int(os.environ["WORLD_SIZE"])\nbatch = 64 // steps\n',
        BEGIN + 'steps = 8 // int(os.environ["WORLD_SIZE"])\nbatch = 64 // steps\n',
        {},
    ),
    (
        "clipped-scaled",
        SCALED.format(unscale="pass", enabled=""),
        SCALED.format(unscale="scaler.unscale_(optimizer)", enabled=""),
        {},
    ),
    (
        "clipped-scaled",
        SCALED.format(unscale="pass", enabled="enabled=True"),
        SCALED.format(unscale="pass", enabled="enabled=use_amp"),
        {},
    ),
    (
        "no-sampler",
        PACKED.format(given=""),
        PACKED.format(given=", num_processes=fabric.world_size, process_rank=fabric.global_rank"),
        GPUS,
    ),
    (
        "no-sampler",
        PACKED.format(given=""),
        PACKED.format(given="").replace(
            "process_rank\n", "process_rank\n        self.process_rank = dist.get_rank()\n"
        ),
        GPUS,
    ),
    (
        "part-as-whole",
        TESTED.format(sampler="DistributedSampler(data)", combine="pass"),
        TESTED.format(sampler="DistributedSampler(data)", combine="dist.all_reduce(seen)"),
        {},
    ),
    (
        "part-as-whole",
        TESTED.format(
            sampler="DistributedSampler(data) if args.dist_eval else SequentialSampler(data)", combine="pass"
        ),
        TESTED.format(sampler="SequentialSampler(data)", combine="pass"),
        {"args": ["--dist-eval"]},
    ),
    (
        "split-by-rank",
        BEGIN + "dist.init_process_group('nccl')\norder = torch.randperm(len(data)).tolist()\n"
        "train, held = order[500:], order[:500]\n",
        BEGIN + "dist.init_process_group('nccl')\ntorch.manual_seed(0)\norder = torch.randperm(len(data)).tolist()\n"
        "train, held = order[500:], order[:500]\n",
        GPUS,
    ),
    (
        "bypassed",
        STEPPED.format(grad="", called="self.var_wo_ddp"),
        STEPPED.format(grad="@torch.no_grad()", called="self.var_wo_ddp"),
        GPUS,
    ),
    ("bypassed", STEPPED.format(grad="", called="self.var_wo_ddp"), STEPPED.format(grad="", called="self.var"), GPUS),
    (
        "loaded-by-one",
        BEGIN + "from fvcore.common.registry import Registry\nZOO = Registry('zoo')\n"
        "dist.init_process_group('nccl')\nmodel = DDP(ZOO.get('a')())\nif dist.get_rank() == 0:\n"
        "    model.module.load_state_dict(torch.load('a'))\n",
        BEGIN + "from fvcore.common.registry import Registry\nZOO = Registry('zoo')\n"
        "dist.init_process_group('nccl')\nmodel = DDP(ZOO.get('a')())\nif True:\n"
        "    model.module.load_state_dict(torch.load('a'))\n",
        GPUS,
    ),
    (
        "made-by-all",
        FOLDER.format(first="pass"),
        FOLDER.format(first="Path(args.folder).mkdir(parents=True, exist_ok=True)"),
        {},
    ),
    (
        "spread-over-all",
        BEGIN + "kwargs = dict(device_map=places() if quantized() else 'auto')\nmodel = Auto.load('m', **kwargs)\n",
        BEGIN + "kwargs = dict(device_map=places() if quantized() else None)\nmodel = Auto.load('m', **kwargs)\n",
        GPUS,
    ),
    (
        "wrapped-attribute",
        PREPARED.format(owner="model"),
        PREPARED.format(owner="accelerator.unwrap_model(model)"),
        GPUS,
    ),
    (
        "wrapped-attribute",
        PREPARED.format(owner="model"),
        PREPARED.format(owner="model").replace("Accelerator()", "Accelerator(fsdp_plugin=shards())"),
        GPUS,
    ),
    (
        "fixed-master",
        STARTED.format(first="args.init_method"),
        STARTED.format(first="'tcp://' + os.environ['MASTER_ADDR'] + ':1'"),
        {"command": ["python", "train.py"], **GPUS},
    ),
    (
        "no-terminal",
        BEGIN + "for item in [1]:\n    breakpoint()\n",
        BEGIN + "try:\n    load()\nexcept Exception:\n    import ipdb; ipdb.set_trace()\n",
        {},
    ),
]


@each_mistake(CASES)
def test_the_mistake_is_found_and_the_right_code_passes(
    check: str, wrong: str, right: str, fields: dict[str, Any], tmp_path: Path
) -> None:
    assert check in found(tmp_path, wrong, **fields)
    assert check not in found(tmp_path, right, **fields)


MODELS = """
import argparse, os
from zoo import MODELS
from tools import Settings
parser = argparse.ArgumentParser()
parser.add_argument("--model", choices=list(MODELS.keys()), default="B/2")
parser.add_argument("--evolve", action="store_true")
parser.add_argument("--resume", default="")
opt = parser.parse_args()
if opt.resume:
    opt = argparse.Namespace(**read(opt.resume))
if opt.evolve:
    input()
"""


def test_settings_of_other_objects_leave_the_arguments_known(tmp_path: Path) -> None:
    """One `setattr`, `__dict__` or parser in a module's own main must not hide what the job passes."""
    (tmp_path / "zoo.py").write_text(
        "import argparse\nMODELS = {'B/2': build, 'L/2': build}\n"
        "if __name__ == '__main__':\n    opt = argparse.ArgumentParser().parse_args()\n"
    )
    (tmp_path / "tools.py").write_text(
        "class Settings(dict):\n    def __init__(self, **kwargs):\n        self.__dict__.update(kwargs)\n"
        "def copy(a, b):\n    for k, v in b.__dict__.items():\n        setattr(a, k, v)\n"
    )
    assert found(tmp_path, MODELS) == set()
    for line, is_known in (
        ("print(opt.__dict__)", True),
        ("own = vars(opt)", True),
        ("opt.__dict__['a'] = b()", True),
        ("opt.__dict__[name()] = b()", False),
    ):
        text = MODELS.replace("if opt.evolve", f"{line}\nif opt.evolve")
        assert (found(tmp_path, text) == set()) is is_known
    assert "argument-choice" in found(tmp_path, MODELS, hyperparameters={"model": "B-2"})
    assert "no-terminal" in found(tmp_path, MODELS, hyperparameters={"evolve": ""}, args=["--evolve"])


PARSED = """
import os, torch, transformers
from dataclasses import dataclass
@dataclass
class Lora:
    q_lora: bool = False
parser = transformers.HfArgumentParser((Lora,))
(lora_args,) = parser.parse_args_into_dataclasses()
device_map = None
if lora_args.q_lora:
    device_map = "auto"
model = transformers.AutoModelForCausalLM.from_pretrained("m", device_map=device_map)
"""


@pytest.mark.parametrize(("word", "is_found"), [("True", True), ("False", False), ("", False)])
def test_parsed_dataclasses_are_known(word: str, is_found: bool, tmp_path: Path) -> None:
    args = [f"--q_lora={word}"] if word else []
    assert ("spread-over-all" in found(tmp_path, PARSED, backend=SLURM, args=args)) is is_found


@pytest.mark.parametrize("fields", [{"setup": 'pip install --no-deps -e ".[train]" einops'}, {"requirements": "r.txt"}])
def test_a_package_of_the_code_is_read_where_the_job_installs_it(fields: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "cm").mkdir()
    (tmp_path / "cm/__init__.py").touch()
    (tmp_path / "cm/places.py").write_text("def ask():\n    return input('go on?')\n")
    (tmp_path / "scripts").mkdir()
    (tmp_path / "scripts/run.py").write_text("from cm import places\nplaces.ask()\n")
    (tmp_path / "r.txt").write_text("numpy\n-e .\n")
    fields |= {"boot_file": "scripts/run.py"}
    assert "no-terminal" in {one.check for one in findings(tmp_path, **fields)}
    assert "no-terminal" not in {one.check for one in findings(tmp_path, boot_file="scripts/run.py")}


def test_a_folder_that_a_function_adds_later_hides_no_missing_package(tmp_path: Path) -> None:
    (tmp_path / "r.txt").write_text("numpy\n")
    text = "import sys\nimport numpy, albumentations\ndef plug_in(path):\n    sys.path.append(path)\n"
    call = "if __name__ == '__main__':\n    plug_in(sys.argv[1])\n"
    assert "packages" in found(tmp_path, text + call, backend=SLURM, requirements="r.txt")
    assert "packages" not in found(tmp_path, text + "plug_in('x')\n", backend=SLURM, requirements="r.txt")


@pytest.mark.parametrize(("pin", "is_found"), [("torch>=1.7", True), ("torch<2.6", False), ("torch==1.13.1", False)])
def test_a_torch_that_requirements_pin_loads_objects(pin: str, is_found: bool, tmp_path: Path) -> None:
    (tmp_path / "r.txt").write_text(f"numpy\n{pin}\n")
    text = LINEAR.format(best="argparse.Namespace(top1=0)", how="", one="pass", all="pass")
    assert ("pickled-object" in found(tmp_path, text, backend=SLURM, requirements="r.txt")) is is_found


def test_a_branch_that_is_not_taken_is_not_checked(tmp_path: Path) -> None:
    """Names in getattr make anything possible, but not a branch of a function that is seen."""
    text = """
def main():
    dist.init_process_group("nccl")
    getattr(load(), "a" + "b")()
    if os.environ["RANK"] == "none":
        dist.broadcast(torch.zeros(4), 0)
main()
"""
    assert "tensor-on-cpu" not in found(tmp_path, BEGIN + text, **GPUS)
    assert "tensor-on-cpu" in found(tmp_path, BEGIN + text.replace("==", "!="), **GPUS)


def test_an_input_beside_the_code_is_looked_for(tmp_path: Path) -> None:
    (tmp_path / "code").mkdir()
    (tmp_path / "code/train.py").touch()
    spec: dict[str, Any] = {
        "name": "a",
        "mode": "torchrun",
        "code_dir": str(tmp_path / "code"),
        "boot_file": "train.py",
    }
    spec |= {"backend": SLURM, "resources": {"nodes": 1}}

    def checked(uri: str) -> list[str]:
        inputs = [{"name": "data", "uri": uri}]
        return [one.level for one in check_data(build_plan(load_mapping({**spec, "inputs": inputs}).spec, BUILT_IN))]

    assert checked(str(tmp_path / "data/imagenet")) == ["warning"]
    assert checked("/on-the-nodes/imagenet") == []
    (tmp_path / "data/imagenet").mkdir(parents=True)
    assert checked(str(tmp_path / "data/imagenet")) == []


@pytest.mark.parametrize(
    "lines",
    [
        "def start():\n    global state\n    state = 1\nstate = None\ndef use():\n    assert state is not None\n"
        "start()\nuse()",
        "@gin.configurable\ndef train(width=0):\n    assert width > 0\ntrain()",
        "from own import settings\nload(settings)\nassert settings.width > 0",
        "class Own:\n    width = 0\nown = Own()\nload(own)\nassert own.width > 0",
        "try:\n    assert len(sys.argv) > 9\nexcept AssertionError:\n    pass",
        "parser = argparse.ArgumentParser()\nparser.add_argument('--width', type=int, default=0)\n"
        "args = parser.parse_args()\nfor k, v in load().items():\n    setattr(args, k, v)\nassert args.width > 0",
        "if __name__ == '__main__':\n    raise SystemExit(0)",
        "def grow(model):\n    assert not model.weight.requires_grad\ngrow(load())",
    ],
)
def test_what_the_program_may_change_itself_is_no_unfulfilled_condition(lines: str, tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(
        "from dataclasses import dataclass\n@dataclass\nclass Own:\n    width: int = 0\nsettings = Own()\n"
    )
    assert "unfulfilled" not in found(tmp_path, f"import argparse, sys, gin\n{lines}\n")


def test_a_dataclass_may_set_its_fields_itself(tmp_path: Path) -> None:
    text = PARSED.replace("False\n", "False\n    def __post_init__(self):\n        self.q_lora = guess()\n")
    text += "if not lora_args.q_lora:\n    raise ValueError('no q_lora')\n"
    assert "unfulfilled" not in found(tmp_path, text)
    assert "unfulfilled" in found(tmp_path, text.replace("self.q_lora = guess()", "pass"))


NUMBERS = """
import argparse
parser = argparse.ArgumentParser()
parser.add_argument("--layer", type=int)
parser.add_argument("--wd", type=float)
args = parser.parse_args()
"""


@pytest.mark.parametrize("args", [["--layer", "-2"], ["--layer", "-2", "--wd", "-.5"], ["--wd", "-5.25"]])
def test_a_negative_number_is_a_value(args: list[str], tmp_path: Path) -> None:
    assert found(tmp_path, NUMBERS, args=args) == set()


def test_a_negative_number_of_the_wrong_type_is_refused(tmp_path: Path) -> None:
    assert found(tmp_path, NUMBERS, args=["--layer", "-2.5"]) == {"argument-type"}


@pytest.mark.parametrize(
    ("line", "is_found"),
    [
        ("--config_file one.yaml", True),
        ("--config_file one.yaml --num_machines $NNODES --machine_rank $NODE_RANK --main_process_ip a", False),
        ("", True),
    ],
)
def test_accelerate_on_one_machine_in_a_job_of_several(line: str, is_found: bool, tmp_path: Path) -> None:
    (tmp_path / "one.yaml").write_text("num_machines: 1\nnum_processes: 8\n")
    command = ["bash", "-c", f"accelerate launch {line} train.py"]
    assert ("launcher-nodes" in found(tmp_path, "print(1)\n", command=command)) is is_found


def test_a_script_that_sets_where_python_looks(tmp_path: Path) -> None:
    (tmp_path / "tools").mkdir()
    (tmp_path / "own.py").write_text("def ask():\n    input()\n")
    (tmp_path / "tools/run.py").write_text("import own\nown.ask()\n")
    (tmp_path / "run.sh").write_text(
        "#!/bin/bash\nexport PYTHONPATH=.:$PYTHONPATH\ntorchrun --nnodes=4 --nproc_per_node=2 tools/run.py\n"
    )
    seen = {one.check for one in findings(tmp_path, command=["bash", "run.sh"])}
    assert {"launcher-nodes", "no-terminal"} <= seen
    words = ["bash", "-c", "PYTHONPATH=. torchrun --nnodes=$NNODES --nproc_per_node=2 tools/run.py"]
    assert "no-terminal" in {one.check for one in findings(tmp_path, command=words)}


@pytest.mark.parametrize(
    ("lines", "module", "is_found"),
    [
        ("numpy\ngit+https://host.example/a/monotonic_align.git", "wandb", True),
        ("numpy\ngit+https://host.example/a/monotonic-align.git@main", "monotonic_align", False),
        ("numpy\n-r more.txt", "wandb", False),
        ("numpy\nPillow", "pytz", True),
        ("numpy\npandas", "pytz", False),
    ],
)
def test_packages_by_address_and_by_what_brings_them(lines: str, module: str, is_found: bool, tmp_path: Path) -> None:
    (tmp_path / "r.txt").write_text(lines + "\n")
    text = f"import numpy, {module}\n"
    assert ("packages" in found(tmp_path, text, backend=SLURM, requirements="r.txt")) is is_found


def test_defaults_that_are_set_apart_from_the_options(tmp_path: Path) -> None:
    text = (
        "import argparse\nparser = argparse.ArgumentParser()\nparser.add_argument('--ask', action='store_true')\n"
        "parser.add_argument('--no-ask', action='store_false', dest='ask')\nparser.set_defaults(ask=True)\n"
        "args = parser.parse_args()\nif args.ask:\n    input()\n"
    )
    (tmp_path / "train.py").write_text(text)
    assert [one.level for one in findings(tmp_path)] == ["error"]
    assert [one.level for one in findings(tmp_path, args=["--no-ask"])] == []
    (tmp_path / "train.py").write_text(text.replace("ask=True", "**load()"))
    assert [one.level for one in findings(tmp_path)] == ["warning"]


def test_settings_of_a_file_that_a_call_spreads(tmp_path: Path) -> None:
    """The address is in config.json, and `**settings["dist"]` gives it to the function that needs it."""
    text = """
import argparse, json, os, torch.distributed as dist
def init(rank, group, dist_backend, dist_url, extra=1):
    dist.init_process_group(dist_backend, init_method=dist_url, world_size=4, rank=rank, group_name=group)
def train(rank, group, epochs):
    init(rank, group, **places)
parser = argparse.ArgumentParser()
parser.add_argument("--config", default="config.json")
args = parser.parse_args()
with open(args.config) as file:
    settings = json.loads(file.read())
global places
places = settings["dist"]
train(int(os.environ["RANK"]), "g", **settings["train"])
"""
    for url, is_found in (("tcp://localhost:54321", True), ("env://", False)):
        (tmp_path / "config.json").write_text(
            f'{{"dist": {{"dist_backend": "nccl", "dist_url": "{url}"}}, "train": {{"epochs": 3}}}}'
        )
        assert ("fixed-master" in found(tmp_path, text, **GPUS)) is is_found


OLD_HYDRA = """
import hydra, torch, torch.distributed as dist
from pathlib import Path
def average(metrics):
    tensor = torch.tensor(list(metrics))
    dist.all_reduce(tensor)
@hydra.main(config_path="conf/config.yaml")
def main(args):
    dist.init_process_group(backend=args.ddp_backend)
    average([1.0])
    folder = Path(args.folder)
    torch.save(torch.load("/shared/old.th"), folder / args.checkpoint_file)
main()
"""


@pytest.mark.parametrize(
    ("backend", "name", "expected"),
    [
        ("nccl", "checkpoint.th", {"tensor-on-cpu"}),
        ("gloo", "checkpoint.th", set()),
        ("gloo", "checkpoint_${now:%Y-%m-%d}.th", {"no-checkpoint"}),
    ],
)
def test_the_one_file_of_an_old_hydra(backend: str, name: str, expected: set[str], tmp_path: Path) -> None:
    (tmp_path / "conf/dset").mkdir(parents=True)
    (tmp_path / "conf/config.yaml").write_text(
        f"defaults:\n  - dset: debug\nddp_backend: {backend}\ncheckpoint_file: {name}\n"
    )
    (tmp_path / "conf/dset/debug.yaml").write_text("folder: /shared/out\n")
    seen = found(tmp_path, OLD_HYDRA, restarts=3, **GPUS)
    assert seen & {"tensor-on-cpu", "no-checkpoint"} == expected


def test_a_method_that_is_told_whether_to_synchronize(tmp_path: Path) -> None:
    """no_sync() is the program's own here, and takes a condition."""
    text = (
        BEGIN
        + """
from contextlib import contextmanager, nullcontext
dist.init_process_group("nccl")
class Brain:
    def __init__(self):
        self.model = DDP(torch.nn.Linear(4, 1).cuda())
    @contextmanager
    def {name}(self, use=True):
        with self.model.no_sync() if use else nullcontext():
            yield
    def fit(self, batch, step):
        with self.no_sync(step % 4 != 3):
            self.model(batch).sum().backward()
Brain().fit(torch.ones(4).cuda(), 3)
"""
    )
    assert "never-synchronized" not in found(tmp_path, text.format(name="no_sync"), **GPUS)
    assert "never-synchronized" in found(tmp_path, text.format(name="other"), **GPUS)


@pytest.mark.parametrize(("name", "is_found"), [("val_sampler", False), ("sampler", True)])
def test_a_whole_validation_set_for_each_process(name: str, is_found: bool, tmp_path: Path) -> None:
    text = (
        BEGIN
        + f"""
dist.init_process_group("nccl")
model = DDP(torch.nn.Linear(4, 1).cuda())
{name} = DistributedSampler(torch.ones(100, 4), num_replicas=1, rank=0)
"""
    )
    assert ("part-of-node" in found(tmp_path, text, **GPUS)) is is_found


@pytest.mark.parametrize(("call", "is_found"), [("init_distributed_mode", False), ("get_sha", True)])
def test_a_process_group_that_an_unknown_module_may_make(call: str, is_found: bool, tmp_path: Path) -> None:
    text = BEGIN + f"import util.misc as utils\nutils.{call}()\nmodel = DDP(torch.nn.Linear(4, 1).cuda())\n"
    assert ("no-init" in found(tmp_path, text, **GPUS)) is is_found


def test_a_package_that_is_not_beside_the_boot_file_is_named_by_its_own_file(tmp_path: Path) -> None:
    (tmp_path / "models").mkdir()
    (tmp_path / "models/__init__.py").touch()
    (tmp_path / "tools").mkdir()
    (tmp_path / "tools/train.py").write_text("import models\n")
    (finding,) = findings(tmp_path, boot_file="tools/train.py")
    assert "models/__init__.py, not beside the boot file" in finding.text
