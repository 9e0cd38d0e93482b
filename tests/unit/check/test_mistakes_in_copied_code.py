"""Mistakes in public code as it stands: vocoders, MAE and SimMIM, YOLO, open_clip, ALBEF, LoRA, and their commands."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from checked import GPUS, RESTARTED, each_mistake, findings, found

STARTED = """
import argparse, glob, json, os, sys, torch, torch.distributed as dist, torch.nn as nn
from contextlib import nullcontext
from datetime import datetime
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
dist.init_process_group("nccl")
rank = dist.get_rank()
world_size = dist.get_world_size()
"""
GATHERED = """
def gather(x):
    parts = [x.clone() for _ in range(world_size)]
    dist.all_gather(parts, x)
    return parts
def combine(values):
    return [gather(one) for one in values]
def measure(net):
    return combine([net(torch.rand(2, 4).cuda())])
def evaluate(net):
    return measure(net)
def run_eval(net):
    return evaluate(net)
net = DDP(nn.Linear(4, 1).cuda())
for epoch in range(9):
    net(torch.rand(2, 4).cuda()).sum().backward()
    {guard}
    run_eval(net)
"""
WAITING = """
gpus = json.loads(open("config.json").read())["gpus"]
net = DDP(nn.Linear(4, 1).cuda())
for step in range(9):
    net(torch.rand(2, 4).cuda()).sum().backward()
    if rank == 0:
        torch.save(net.module.state_dict(), "/shared/last.pt")
    {place}if gpus > 1:
    {place}    dist.barrier()
"""
FOUND_BY_ONE = """
def scan(folder, prefix):
    names = glob.glob(folder + "/" + prefix + "*")
    return sorted(names)[-1] if names else None
net = nn.Linear(4, 1).cuda()
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
last = None
if {guard}os.path.isdir("/shared/run"):
    last = scan("/shared/run", "g_")
steps = 0
if last is None:
    state = None
else:
    state = torch.load(last)
    net.load_state_dict(state["net"])
    steps = state["steps"] + 1
net = DDP(net)
"""
CHOSEN = """
def is_parallel(model):
    return type(model) in (nn.parallel.DataParallel, nn.parallel.DistributedDataParallel)
net = DDP(nn.Linear(4, 1).cuda())
for step in range(9):
    loss = {net}(torch.rand(2, 4).cuda()).sum()
    loss.backward()
"""
WITHOUT_GRADIENTS = """
net = DDP(nn.Linear(4, 1).cuda())
for step in range(9):
    loss = net{module}(torch.rand(2, 4).cuda()).sum()
    loss.backward()
    with torch.no_grad():
        print(net(torch.rand(2, 4).cuda()))
"""
KEPT_IN_MAPPING = """
class Generator(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(4, 4)
    def forward(self, x):
        return self.net(x)
    def synthesize(self, x):
        return self.forward(x * 2)
class Trainer:
    def __init__(self, model):
        self.model = model
    def step(self):
        self.model["generator"]{module}(torch.rand(2, 4).cuda()).sum().backward()
Trainer({{"generator": DDP(Generator().cuda()), "discriminator": DDP(nn.Linear(4, 1).cuda())}}).step()
"""
METERS = """
class Meter:
    def __init__(self):
        self.values = []
    def update(self, value):
        self.values.append(value)
    def synchronize(self):
        total = torch.tensor(self.values).cuda()
        dist.all_reduce(total)
        self.values = total.tolist()
def evaluate(loader, net):
    meter = Meter()
    for (x,) in loader:
        meter.update(net(x.cuda()).sum().item())
    {combine}
    return sum(meter.values)
def build(is_pretraining):
    data = TensorDataset(torch.rand(8, 4))
    if is_pretraining:
        return build_other(data)
    return build_loaders(data)
def build_other(data):
    return DataLoader(data), DataLoader(data)
def build_loaders(data):
    train = DataLoader(data, sampler=DistributedSampler(data))
    val = DataLoader(data, sampler=DistributedSampler(data, shuffle=False))
    return train, val
train, val = build(False)
net = DDP(nn.Linear(4, 1).cuda())
for (x,) in train:
    net(x.cuda()).sum().backward()
print(evaluate(val, net.module))
"""
OF_MACHINE = """
_LOCAL_GROUP = None
def make_group(size):
    global _LOCAL_GROUP
    machine = dist.get_rank() // size
    for i in range(dist.get_world_size() // size):
        ranks = list(range(i * size, (i + 1) * size))
        {make}
make_group(2)
"""
MADE_BY_SOME = "if i == machine:\n            _LOCAL_GROUP = dist.new_group(ranks)"
MADE_BY_ALL = "group = dist.new_group(ranks)\n        if i == machine:\n            _LOCAL_GROUP = group"
OF_TWO_KINDS = """
for i in range(world_size // 2):
    ranks = [2 * i, 2 * i + 1]
    {first}
for i in range(2):
    ranks = list(range(i, world_size, 2))
    {second}
"""
BY_FORMAT = """
class Trainer:
    def __init__(self):
        self.rank = dist.get_rank()
        self.device = "cuda:{{}}".format({number})
    def train(self):
        self.net = nn.Linear(4, 1).to(self.device)
Trainer().train()
"""
OF_MODULE = """
def env2int(names, default):
    for name in names:
        if name in os.environ:
            return int(os.environ[name])
    return default
size = -1
def init():
    global size
    size = env2int(["WORLD_SIZE"], 1)
init()
net = nn.Linear(4, 1).cuda()
for p in net.parameters():
    dist.broadcast(p.data, src=0)
for step in range(9):
    loss = net(torch.rand(2, 4).cuda()).sum()
    ({loss}).backward()
    for p in net.parameters():
        dist.all_reduce(p.grad)
        p.grad.div_(size)
"""
ACCUMULATED = """
net = DDP(nn.Linear(4, 1).cuda())
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
parts = torch.rand(4, 2, 4).cuda()
for step in range(9):
    if parts is None:
        net(torch.rand(2, 4).cuda()).sum().backward()
    else:
        context = net.no_sync() if world_size > 1 else nullcontext()
        with context:
            for part in parts{all_but_last}:
                net(part).sum().backward()
        {last}
    optimizer.step()
"""
NUMBERED = """
parser = argparse.ArgumentParser()
parser.add_argument("--name")
args = parser.parse_args()
if args.name is None:
    args.name = datetime.now().strftime("%H_%M")
path = os.path.join("/shared", args.name, "last.pt")
net = nn.Linear(4, 1).cuda()
if os.path.exists(path):
    net.load_state_dict(torch.load(path))
torch.save(net.state_dict(), path)
"""
ON_ZERO = "if rank != 0:\n        continue"


def both(program: str, wrong: dict[str, str], right: dict[str, str]) -> tuple[str, str]:
    return STARTED + program.format(**wrong), STARTED + program.format(**right)


@each_mistake(
    [
        ("rank-0-collective", *both(GATHERED, {"guard": ON_ZERO}, {"guard": "pass"}), GPUS),
        ("rank-0-collective", *both(WAITING, {"place": "    "}, {"place": ""}), GPUS),
        ("loaded-by-one", *both(FOUND_BY_ONE, {"guard": "rank == 0 and "}, {"guard": ""}), GPUS),
        ("bypassed", *both(CHOSEN, {"net": "(net.module if is_parallel(net) else net)"}, {"net": "net"}), GPUS),
        ("bypassed", *both(WITHOUT_GRADIENTS, {"module": ".module"}, {"module": ""}), GPUS),
        ("bypassed", *both(KEPT_IN_MAPPING, {"module": ".module.synthesize"}, {"module": ""}), GPUS),
        ("part-as-whole", *both(METERS, {"combine": "pass"}, {"combine": "meter.synchronize()"}), GPUS),
        ("rank-0-collective", *both(OF_MACHINE, {"make": MADE_BY_SOME}, {"make": MADE_BY_ALL}), GPUS),
        (
            "rank-0-collective",
            *both(
                OF_TWO_KINDS,
                dict.fromkeys(("first", "second"), "if rank in ranks:\n        group = dist.new_group(ranks)"),
                dict.fromkeys(("first", "second"), "group = dist.new_group(ranks)"),
            ),
            GPUS,
        ),
        ("rank-as-device", *both(BY_FORMAT, {"number": "self.rank"}, {"number": "os.environ['LOCAL_RANK']"}), GPUS),
        ("divided-again", *both(OF_MODULE, {"loss": "loss / size"}, {"loss": "loss"}), GPUS),
        (
            "never-synchronized",
            *both(
                ACCUMULATED,
                {"all_but_last": "", "last": "pass"},
                {"all_but_last": "[:-1]", "last": "net(parts[-1]).sum().backward()"},
            ),
            GPUS,
        ),
    ]
)
def test_a_mistake_is_found(check: str, wrong: str, right: str, fields: dict[str, Any], tmp_path: Path) -> None:
    assert check in found(tmp_path, wrong, **fields)
    assert check not in found(tmp_path, right, **fields)


@pytest.mark.parametrize(("name", "is_new"), [("exp", False), (None, True)])
def test_a_name_that_is_given_is_the_same_after_a_restart(name: str | None, is_new: bool, tmp_path: Path) -> None:
    given = {"hyperparameters": {"name": name}} if name else {}
    assert ("no-checkpoint" in found(tmp_path, STARTED + NUMBERED, **given, **RESTARTED)) is is_new


@pytest.mark.parametrize(
    ("words", "is_refused"),
    [
        (["--img", "640", "640"], False),
        (["--img-size", "640", "640"], False),
        (["--im", "640", "640"], True),
        (["--img"], True),
    ],
)
def test_a_short_form_with_several_values(words: list[str], is_refused: bool, tmp_path: Path) -> None:
    """`--im` may be `--img-size` or `--image-weights`."""
    text = f"""{STARTED}
parser = argparse.ArgumentParser()
parser.add_argument("--img-size", nargs="+", type=int)
parser.add_argument("--image-weights", action="store_true")
parser.parse_args()
"""
    wrong = found(tmp_path, text, args=words, **GPUS)
    assert bool({one for one in wrong if one.startswith("argument-")}) is is_refused


def test_a_library_of_a_branch_that_is_not_taken(tmp_path: Path) -> None:
    """LoRA's code has horovod for another platform: this job's ranks still all use the default of --local_rank."""
    text = """
import argparse, torch, torch.distributed as dist
parser = argparse.ArgumentParser()
parser.add_argument("--platform", default="local")
parser.add_argument("--local_rank", type=int, default=0)
args = parser.parse_args()
if args.platform == "azure":
    import horovod.torch as hvd
    hvd.init()
    args.local_rank = hvd.local_rank()
else:
    torch.cuda.set_device(args.local_rank)
    dist.init_process_group("nccl")
"""
    assert "local-rank" in found(tmp_path, text, **GPUS)
    assert "local-rank" not in found(tmp_path, text, hyperparameters={"platform": "azure"}, **GPUS)


@pytest.mark.parametrize(
    ("kind", "wrong"), [("bert", set()), ("distilbert", {"unfulfilled"}), ("roberta", set()), (None, {"unfulfilled"})]
)
def test_a_model_that_a_mapping_does_not_have(kind: str | None, wrong: set[str], tmp_path: Path) -> None:
    text = f"""{STARTED}
from dataclasses import dataclass, field
from transformers import HfArgumentParser
@dataclass
class ModelArguments:
    kind: str = field(default=None)
class Bert: ...
class Roberta: ...
KINDS = {{"bert": Bert, "roberta": Roberta}}
parser = HfArgumentParser((ModelArguments,))
if len(sys.argv) == 2 and sys.argv[1].endswith(".json"):
    (model_args,) = parser.parse_json_file(sys.argv[1])
else:
    (model_args,) = parser.parse_args_into_dataclasses()
model_args: ModelArguments
if model_args.kind not in KINDS:
    raise NotImplementedError(model_args.kind)
"""
    given = {"hyperparameters": {"kind": kind}} if kind else {}
    assert found(tmp_path, text, **given, **GPUS) == wrong


@pytest.mark.parametrize(("batch", "wrong"), [(4, {"unfulfilled"}), (64, set())])
def test_the_chosen_command_of_a_group(batch: int, wrong: set[str], tmp_path: Path) -> None:
    text = f"""{STARTED}
import click
@click.group()
def cli(): ...
@cli.command()
@click.option("--batch", type=int, default=64)
def train(batch):
    rounds = batch // (8 * world_size)
    for i, x in enumerate(torch.rand(9), start=1):
        if i % rounds == 0:
            print(x)
@cli.command("evaluate-all")
def evaluate():
    input()
cli()
"""
    assert found(tmp_path, text, args=["train", "--batch", str(batch)], **GPUS) == wrong
    assert "no-terminal" in found(tmp_path, text, args=["evaluate-all"], **GPUS)


def test_a_parser_is_no_parameter_of_a_model(tmp_path: Path) -> None:
    text = f"""{STARTED}
p = argparse.ArgumentParser()
p.add_argument("--lr")
args = p.parse_args()
net = nn.Linear(4, 1).cuda()
for ema, p in zip(net.parameters(), net.parameters()):
    ema.lerp_(p, 0.1)
"""
    (tmp_path / "train.py").write_text(text)
    assert not [one for one in findings(tmp_path, **GPUS) if one.level == "unknown"]


def test_each_node_goes_to_an_address_of_its_own(tmp_path: Path) -> None:
    text = """
import argparse, torch.distributed as dist, torch.multiprocessing as mp
parser = argparse.ArgumentParser()
args, _ = parser.parse_known_args()
def worker(gpu, args):
    dist.init_process_group("nccl", init_method=args.url, world_size=2, rank=gpu)
def main():
    port = 29500
    args.url = f"tcp://localhost:{port}"
    mp.spawn(worker, nprocs=2, args=(args,))
if __name__ == "__main__":
    main()
"""
    fields = {"mode": "spawn", "resources": {"nodes": 2}}
    assert "fixed-master" in found(tmp_path, text, **fields, **GPUS)


@pytest.mark.parametrize(
    ("hosts", "is_found"), [([], True), (["-H", "a:2,b:2"], False), (["--hostfile", "hosts"], False)]
)
def test_mpirun_on_each_node(hosts: list[str], is_found: bool, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("print('trained')\n")
    said = findings(tmp_path, command=["mpirun", "-n", "4", *hosts, "python", "train.py"], **GPUS)
    assert any("mpirun is given no hosts" in one.text for one in said) is is_found


@pytest.mark.parametrize("start", ["python train.py", "python -m pkg.train"])
def test_a_command_that_goes_to_a_folder_first(start: str, tmp_path: Path) -> None:
    (tmp_path / "src" / "pkg").mkdir(parents=True)
    for file in ("src/train.py", "src/pkg/train.py"):
        (tmp_path / file).write_text("import pkg.net\ninput()\n")
    (tmp_path / "src/pkg/__init__.py").touch()
    (tmp_path / "src/pkg/net.py").touch()
    (tmp_path / "run.sh").write_text(f"set -e\ncd src\n{start}\n")
    for command in (["bash", "run.sh"], ["bash", "-c", f"cd src && {start}"]):
        assert [one.check for one in findings(tmp_path, command=command, **GPUS)] == ["no-terminal"]


def test_packages_that_the_setup_installs(tmp_path: Path) -> None:
    (tmp_path / "requirements.txt").write_text("einops\nconnected-components-3d\n")
    text = "import cc3d\nimport einops\nimport ruamel_yaml\n"
    fields = {"requirements": "requirements.txt", **GPUS}
    assert "packages" in found(tmp_path, text, **fields)
    assert "packages" not in found(tmp_path, text, setup="conda install -y ruamel_yaml", **fields)


@pytest.mark.parametrize(("word", "is_found"), [("configs/a.yaml", False), ("configs/b.yaml", True)])
def test_a_file_of_settings_that_is_read_from_the_words(word: str, is_found: bool, tmp_path: Path) -> None:
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs/a.yaml").touch()
    text = "import sys\nprint(open(sys.argv[1]).read())\n"
    assert ("not-there" in found(tmp_path, text, args=[word], **GPUS)) is is_found


def test_a_model_beside_the_code(tmp_path: Path) -> None:
    (tmp_path / "models/bert").mkdir(parents=True)
    (tmp_path / "code").mkdir()
    text = "from transformers import AutoModel\nname = 'bert'\npath = '../models/' + name\n"
    assert "left-out" in found(tmp_path / "code", f"{text}AutoModel.from_pretrained(path)\n", **GPUS)
    assert "left-out" not in found(tmp_path / "code", f"{text}AutoModel.from_pretrained(name)\n", **GPUS)


SPLIT_BY_NODE = """
import argparse, webdataset as wds
parser = argparse.ArgumentParser()
parser.add_argument("--resampled", action="store_true")
args = parser.parse_args()
def pipeline(resampled):
    if resampled:
        parts = [wds.ResampledShards("{0..9}.tar")]
    else:
        parts = [wds.SimpleShardList("{0..9}.tar")]
    return [*parts, wds.split_by_worker]
wds.DataPipeline(*pipeline(args.resampled))
"""


@pytest.mark.parametrize(("flag", "is_found"), [({}, True), ({"resampled": {"flag": True}}, False)])
def test_shards_of_the_way_that_is_taken(flag: dict[str, Any], is_found: bool, tmp_path: Path) -> None:
    wrong = found(tmp_path, STARTED + SPLIT_BY_NODE, hyperparameters=flag, **GPUS)
    assert ("no-sampler" in wrong) is is_found


RAW = """
ddp = int(os.environ.get("RANK", -1)) != -1
net = nn.Linear(4, 1).cuda()
if ddp:
    net = DDP(net)
raw = net.module if ddp else net
for step in range(9):
    loss = {net}(torch.rand(2, 4).cuda()).sum()
    loss.backward()
torch.save(raw.state_dict(), f"/shared/{{rank}}.pt")
"""
FOR_EACH = """
def restart_from(path, variables, **kwargs):
    state = torch.load(path)
    for key, value in kwargs.items():
        value.load_state_dict(state[key])
    for name in variables:
        variables[name] = state[name]
net = DDP(nn.Linear(4, 1).cuda())
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
start = {{"epoch": 0}}
if {guard}os.path.exists("/shared/last.pt"):
    restart_from("/shared/last.pt", start, net=net, optimizer=optimizer)
"""
LOGGED = """
import logging, os, torch, torch.distributed as dist
def get_logger():
    logger = logging.getLogger("train")
    if logger.handlers:
        return logger
    logger.setLevel("INFO" if dist.get_rank() == 0 else "ERROR")
    return logger
def init():
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl")
{first}
{second}
"""
PLATEAU = """
def dice(x, eps=1e-6):
    return 1 - (x.sum() + eps) / (x.mean() + eps)
def evaluate(net, loader):
    loss, score = 0.0, torch.zeros(1).cuda()
    for (x,) in loader:
        out = net(x.cuda())
        loss += (out.mean() + dice(out)).item()
        score += out.sum()
    dist.all_reduce(score)
    {combine}
    return loss / len(loader), score.item()
data = TensorDataset(torch.rand(8, 4))
sampler = DistributedSampler(data)
train, val = DataLoader(data, sampler=sampler), DataLoader(data, sampler=DistributedSampler(data, shuffle=False))
net = DDP(nn.Linear(4, 1).cuda())
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)
for epoch in range(9):
    sampler.set_epoch(epoch)
    for (x,) in train:
        net(x.cuda()).mean().backward()
        optimizer.step()
    val_loss, val_score = evaluate(net, val)
    scheduler.step(val_loss)
"""
TOGETHER = """
import yaml
def parse_options():
    with open("options.yml") as file:
        opt = yaml.safe_load(file)
    opt["rank"], opt["world_size"] = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    return opt
def make_loader(opt):
    total = opt["batch"]
    if total % opt["world_size"] != 0:
        raise ValueError("not divisible")
def main():
    opt = parse_options()
    make_loader(opt)
main()
"""
IN_CLASS = """
class HyperParameters:
    def parse(self, unknown_arg_ok=False):
        parser = argparse.ArgumentParser()
        parser.add_argument("--stage", type=int, default=0)
        parser.add_argument("--steps", nargs="*", type=int)
        if unknown_arg_ok:
            self.args = vars(parser.parse_known_args()[0])
        else:
            self.args = vars(parser.parse_args())
    def __getitem__(self, key):
        return self.args[key]
para = HyperParameters()
para.parse()
"""
AVERAGED = "loss = torch.tensor(loss).cuda(); dist.all_reduce(loss); loss = loss.item()"


@each_mistake(
    [
        ("bypassed", *both(RAW, {"net": "raw"}, {"net": "net"}), GPUS),
        ("loaded-by-one", *both(FOR_EACH, {"guard": "rank == 0 and "}, {"guard": ""}), GPUS),
        (
            "no-init",
            LOGGED.format(first="get_logger()", second="init()"),
            LOGGED.format(first="init()", second="get_logger()"),
            GPUS,
        ),
        ("own-learning-rate", *both(PLATEAU, {"combine": "pass"}, {"combine": AVERAGED}), GPUS),
    ]
)
def test_one_more_mistake_is_found(check: str, wrong: str, right: str, fields: dict[str, Any], tmp_path: Path) -> None:
    assert check in found(tmp_path, wrong, **fields)
    assert check not in found(tmp_path, right, **fields)


@pytest.mark.parametrize(("batch", "wrong"), [(10, {"unfulfilled"}), (12, set())])
def test_settings_of_two_functions_with_one_name(batch: int, wrong: set[str], tmp_path: Path) -> None:
    (tmp_path / "options.yml").write_text(f"batch: {batch}\n")
    assert found(tmp_path, STARTED + TOGETHER, **GPUS) == wrong


@pytest.mark.parametrize(
    ("words", "wrong"),
    [({"stage": 1}, set()), ({"stages": 1}, {"argument-unknown"}), ({"steps": [1, 2]}, {"argument-type"})],
)
def test_a_parser_in_a_method_with_a_default(words: dict[str, Any], wrong: set[str], tmp_path: Path) -> None:
    assert found(tmp_path, STARTED + IN_CLASS, hyperparameters=words, **GPUS) == wrong


def test_arguments_that_the_program_fills_in_where_none_are_given(tmp_path: Path) -> None:
    text = f"""{STARTED}
parser = argparse.ArgumentParser()
parser.add_argument("--batch", type=int, default=64)
parser.add_argument("--lr", type=float)
args = parser.parse_args()
for name, value in json.loads(open("defaults.json").read()).items():
    if getattr(args, name) is None:
        setattr(args, name, value)
assert args.batch % world_size == 0
assert args.lr
"""
    assert found(tmp_path, text, hyperparameters={"batch": 7}, **GPUS) == {"unfulfilled"}
    assert found(tmp_path, text, **GPUS) == set()


def test_data_that_a_configuration_of_python_names(tmp_path: Path) -> None:
    (tmp_path / "lists").mkdir()
    (tmp_path / "lists/train.txt").touch()
    (tmp_path / "config.py").write_text("cfg = dict(train_list='lists/train.txt', epochs=3)\n")
    text = "import argparse\nparser = argparse.ArgumentParser()\nparser.add_argument('--config')\nparser.parse_args()\n"
    fields = {"hyperparameters": {"config": "config.py"}, **GPUS}
    assert "left-out" not in found(tmp_path, text, **fields)
    (tmp_path / ".gitignore").write_text("lists/\n")
    assert "left-out" in found(tmp_path, text, **fields)


@pytest.mark.parametrize(("test", "is_wrong"), [("world_size > 1", True), ("step % 4 != 3", False)])
def test_steps_of_which_some_are_synchronized(test: str, is_wrong: bool, tmp_path: Path) -> None:
    text = f"""{STARTED}
net = DDP(nn.Linear(4, 1).cuda())
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for step in range(9):
    with net.no_sync() if {test} else nullcontext():
        for part in torch.rand(4, 2, 4).cuda():
            net(part).sum().backward()
    optimizer.step()
"""
    assert ("never-synchronized" in found(tmp_path, text, **GPUS)) is is_wrong


BRAIN = """
class Brain:
    def __init__(self, net):
        self.net = DDP(net)
        self.best, self.bad = float("inf"), 0
    def objective(self, batch):
        raise NotImplementedError
    def on_end(self, loss):
        if loss < self.best:
            self.best, self.bad = loss, 0
        else:
            self.bad += 1
    def fit(self, train, valid):
        for epoch in range(9):
            train.sampler.set_epoch(epoch)
            for batch in train:
                self.objective(batch).backward()
            total = torch.zeros(1).cuda()
            for batch in valid:
                total += self.objective(batch).detach()
            {combine}
            self.on_end(total.item() / len(valid))
            if self.bad > 3:
                break
class Net(Brain):
    def objective(self, batch):
        return nn.functional.mse_loss(self.net(batch[0].cuda()), torch.zeros(2, 1).cuda())
data = TensorDataset(torch.rand(8, 4))
train = DataLoader(data, sampler=DistributedSampler(data))
valid = DataLoader(data, sampler=DistributedSampler(data, shuffle=False))
Net(nn.Linear(4, 1).cuda()).fit(train, valid)
"""


@pytest.mark.parametrize(("combine", "is_wrong"), [("pass", True), ("dist.all_reduce(total)", False)])
def test_an_abstract_trainer_that_stops_early(combine: str, is_wrong: bool, tmp_path: Path) -> None:
    assert ("left-by-one" in found(tmp_path, STARTED + BRAIN.format(combine=combine), **GPUS)) is is_wrong


LISTS = """
def create_samplers(datasets):
    samplers = []
    for one in datasets:
        sampler = DistributedSampler(one)
        samplers.append(sampler)
    return samplers
def create_loaders(datasets, samplers, are_for_training):
    loaders = []
    for dataset, sampler, is_training in zip(datasets, samplers, are_for_training):
        if is_training:
            shuffle = {shuffle}
        else:
            shuffle = False
        loaders.append(DataLoader(dataset, batch_size=2, sampler=sampler, shuffle=shuffle))
    return loaders
data = [TensorDataset(torch.rand(8, 4))]
samplers = create_samplers(data)
loader = create_loaders(data, samplers, [True])[0]
for epoch in range(9):
    samplers[0].set_epoch(epoch)
"""


@pytest.mark.parametrize("shuffle", [True, False])
def test_loaders_that_are_made_from_lists(shuffle: bool, tmp_path: Path) -> None:
    wrong = found(tmp_path, STARTED + LISTS.format(shuffle=shuffle), **GPUS)
    assert ("sampler-and-shuffle" in wrong) is shuffle
