"""Mistakes and false alarms in start scripts, in files beside the code, and in what a job's options switch on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from checked import GPUS, IMPORTED, RESTARTED, STARTED, TWO, findings, found, with_files

MODEL = """
model = DDP(nn.Linear(4, 1).cuda())
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
"""
LAUNCHES = (
    "torchrun --nnodes $NNODES --node_rank $NODE_RANK --nproc_per_node 2 --master_addr $MASTER_ADDR train.py {}\n"
)


@pytest.mark.parametrize(("passes", "is_wrong"), [('"$1"', True), ('"$1" "$2"', False), ('"$@"', False)])
def test_a_script_that_passes_on_its_first_arguments(tmp_path: Path, passes: str, is_wrong: bool) -> None:
    options = "\n".join(f'parser.add_argument("--{one}")' for one in ("rate", "steps"))
    text = f"{IMPORTED}\nparser = argparse.ArgumentParser()\n{options}\nargs = parser.parse_args()\n"
    with_files(tmp_path, {"start.sh": LAUNCHES.format(passes), "train.py": text})
    given = {"rate": 0.25, "steps": 777}
    seen = findings(tmp_path, command=["bash", "start.sh"], hyperparameters=given, resources=TWO)
    dropped = [one.text for one in seen if one.check == "arguments-dropped"]
    assert bool(dropped) is is_wrong
    assert all("--steps" in one and "--rate" not in one for one in dropped)


LISTED = """
import json
from pathlib import Path
class Base:
    def __init__(self, listed, tested, part):
        with open(listed if part == "train" else tested) as stream:
            self.names = stream.readlines()
class Asked(Base):
    def is_there(self):
        return self.asked.exists()
class Faces(Base):
    {field} = Path(__file__).parent.joinpath("assets/faces.txt")
    tested = "/shared/tested.txt"
    def __init__(self, part):
        super().__init__(Faces.{field}, Faces.tested, part)
def make(kind, part):
    if kind == "faces":
        return Faces(part)
settings = json.load(open("/shared/settings.json"))
make(settings["kind"], settings["part"])
"""


@pytest.mark.parametrize(
    ("field", "ignored", "is_wrong"),
    [
        ("train_list", "assets/", True),
        ("train_list", "other/", False),
        ("log_file", "assets/", False),
        ("asked", "assets/", False),
    ],
)
def test_a_file_that_a_class_names(tmp_path: Path, field: str, ignored: str, is_wrong: bool) -> None:
    with_files(tmp_path, {"faces.py": LISTED.format(field=field), "assets/faces.txt": "a", ".jobignore": ignored})
    assert ("left-out" in found(tmp_path, f"{IMPORTED}import faces\n")) is is_wrong


RESUMED = """
from transformers import HfArgumentParser, Trainer, TrainingArguments
parser = HfArgumentParser(TrainingArguments)
args, = parser.parse_args_into_dataclasses()
last = None
if args.resume_from_checkpoint:
    last = newest(args.output_dir)
trainer = Trainer(model=nn.Linear(4, 1), args=args)
if last is not None:
    trainer._load_from_checkpoint(last)
trainer.train(resume_from_checkpoint=last)
"""


@pytest.mark.parametrize("is_given", [True, False])
def test_a_trainer_that_goes_on_only_if_it_is_asked_to(tmp_path: Path, is_given: bool) -> None:
    given: dict[str, Any] = {"output_dir": "/shared/out", **({"resume_from_checkpoint": "true"} if is_given else {})}
    (tmp_path / "train.py").write_text(IMPORTED + RESUMED)
    seen = findings(tmp_path, hyperparameters=given, **RESTARTED)
    lost = [one.text for one in seen if one.check == "no-checkpoint"]
    assert bool(lost) is not is_given
    assert all("--resume_from_checkpoint" in one for one in lost)


SCALED = """
from docopt import docopt
arguments = docopt(__doc__)
class Trainer:
    def __init__(self, enable_amp=False):
        self.enable_amp = enable_amp
    def train(self):
        scaler = torch.cuda.amp.GradScaler(enabled=self.enable_amp)
        loss = model(torch.rand(8, 4).cuda()).mean()
        loss = scaler.scale(loss)
        loss.backward()
        {unscales}
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
Trainer(enable_amp=arguments["--amp"]).train()
"""


@pytest.mark.parametrize(
    ("unscales", "words", "is_wrong"),
    [("pass", ["--amp"], True), ("scaler.unscale_(optimizer)", ["--amp"], False), ("pass", [], False)],
)
def test_gradients_of_a_loss_that_a_variable_holds_scaled(
    tmp_path: Path, unscales: str, words: list[str], is_wrong: bool
) -> None:
    text = STARTED + MODEL + SCALED.format(unscales=unscales)
    assert ("clipped-scaled" in found(tmp_path, text, args=words, **GPUS)) is is_wrong


WRITTEN = """
class Figures:
    {default}
    def __init__(self):
        if rank == 0:
            Figures.writer = print
    def write(self):
        if self.writer is not None:
            self.writer("step")
Figures().write()
"""


@pytest.mark.parametrize(("default", "is_wrong"), [("writer = None", False), ("pass", True)])
def test_a_field_that_a_class_has_and_one_rank_sets(tmp_path: Path, default: str, is_wrong: bool) -> None:
    assert ("unset" in found(tmp_path, STARTED + WRITTEN.format(default=default), **GPUS)) is is_wrong


SHOWN = """
class Figures:
    def gathered(self):
        value = torch.ones(1).cuda()
        dist.all_reduce(value)
        return value
    def show(self, known=None):
        if rank != 0:
            return
        print(self.gathered() if known is None else known)
figures = Figures()
{shows}
"""


@pytest.mark.parametrize(
    ("shows", "is_wrong"), [("every = figures.gathered()\nfigures.show(every)", False), ("figures.show()", True)]
)
def test_figures_that_rank_0_shows_and_all_have_gathered(tmp_path: Path, shows: str, is_wrong: bool) -> None:
    assert ("rank-0-collective" in found(tmp_path, STARTED + SHOWN.format(shows=shows), **GPUS)) is is_wrong


JOINED = """
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
try:
    with model.join({settings}):
        for x in torch.rand(8, 4):
            optimizer.zero_grad()
            model(x.cuda()).mean().backward()
            optimizer.step()
except RuntimeError as error:
    print(error)
"""


@pytest.mark.parametrize(("settings", "is_wrong"), [("throw_on_early_termination=True", False), ("", True)])
def test_an_error_that_join_raises_on_all_ranks(tmp_path: Path, settings: str, is_wrong: bool) -> None:
    text = STARTED + MODEL + JOINED.format(settings=settings)
    assert ("left-by-one" in found(tmp_path, text, **GPUS)) is is_wrong


TESTED = """
class Trainer:
    def eval(self, ema=False):
        total = 0.0
        loader = DataLoader(data, batch_size=8, sampler=DistributedSampler(data, shuffle=False))
        for x, in loader:
            total += model(x.cuda()).mean().item()
        return total / len(data)
data = TensorDataset(torch.rand(64, 4))
def make():
    average = copy_of(model)
    average.eval()
    return average
make()
{tests}
"""


@pytest.mark.parametrize(("tests", "is_wrong"), [("", False), ("trainer = Trainer()\nprint(trainer.eval())", True)])
def test_a_model_that_is_set_to_eval(tmp_path: Path, tests: str, is_wrong: bool) -> None:
    assert ("part-as-whole" in found(tmp_path, STARTED + MODEL + TESTED.format(tests=tests), **GPUS)) is is_wrong


HYDRA = """
import hydra
@hydra.main(config_path="configs", config_name="main", version_base="1.2")
def main(config):
    print(config.trainer)
main()
"""


@pytest.mark.parametrize(
    ("words", "refused"),
    [
        (["+experiment=small"], ""),
        (["+experiment=small", "trainer.nodes=2"], "trainer.nodes"),
        (["+experiment=small", "trainer.epochs=2", "model.width=3"], ""),
        (["experiment=small"], "experiment"),
        (["+experiment=large", "model.width=3"], "model.width"),
    ],
)
def test_groups_that_the_command_line_adds_for_hydra(tmp_path: Path, words: list[str], refused: str) -> None:
    files = {
        "main.yaml": "defaults:\n  - model: plain\ntrainer:\n  devices: 2\n",
        "model/plain.yaml": "width: 2\n",
        "model/deep.yaml": "depth: 2\n",
        "experiment/small.yaml": "# @package _global_\ntrainer:\n  epochs: 1\n",
        "experiment/large.yaml": "# @package _global_\ndefaults:\n  - override /model: deep\n",
    }
    with_files(tmp_path, {f"configs/{name}": text for name, text in files.items()} | {"train.py": HYDRA})
    seen = [one.text for one in findings(tmp_path, args=words) if one.check == "argument-unknown"]
    assert len(seen) == bool(refused)
    assert all(refused in one for one in seen)


AGAIN = """
import argparse, os, subprocess
parser = argparse.ArgumentParser(description="start it with torchrun")
parser.add_argument("file")
args = parser.parse_args()
command = " ".join([{starts}, f"--nproc_per_node={{os.environ['LOCAL_WORLD_SIZE']}}"])
os.system(command + f" {{args.file}}")
"""


@pytest.mark.parametrize(
    ("starts", "fields", "is_wrong"),
    [
        ('"torchrun"', {}, True),
        ('"accelerate launch"', {}, True),
        ('"nvidia-smi"', {}, False),
        ('"torchrun"', {"resources": {"nodes": 2, "nproc_per_node": 1}}, False),
        ('"torchrun"', {"command": ["python", "train.py"]}, False),
        ('args.file, "version"', {}, False),
    ],
)
def test_a_launcher_that_each_process_starts(
    tmp_path: Path, starts: str, fields: dict[str, Any], is_wrong: bool
) -> None:
    with_files(tmp_path, {"train.py": AGAIN.format(starts=starts), "main.py": IMPORTED})
    seen = {one.check for one in findings(tmp_path, args=["main.py"], **fields)}
    assert ("nested-spawn" in seen) is is_wrong


PREPARED = """
from accelerate import Accelerator
from transformers import get_linear_schedule_with_warmup
class Trainer(object):
    def __init__(self):
        self.accelerator = Accelerator()
        self.lm = nn.Linear(4, 1)
        self.optimizer = torch.optim.AdamW(self.lm.parameters())
        self.loader = DataLoader(TensorDataset(torch.rand(64, 4)), batch_size=8, shuffle=True)
        self.lm, self.optimizer, self.loader = self.accelerator.prepare(self.lm, self.optimizer, self.loader)
    def train(self):
        for x, in self.loader:
            if self.accelerator.num_processes > 1:
                loss = {several}.mean()
            else:
                loss = self.lm(input=x).mean()
            self.accelerator.backward(loss)
            self.optimizer.step()
            self.optimizer.zero_grad()
Trainer().train()
"""


@pytest.mark.parametrize(("several", "is_wrong"), [("self.lm.module(input=x)", True), ("self.lm(input=x)", False)])
def test_the_model_inside_of_what_accelerate_prepared(tmp_path: Path, several: str, is_wrong: bool) -> None:
    assert ("bypassed" in found(tmp_path, IMPORTED + PREPARED.format(several=several), **GPUS)) is is_wrong


LORA = """
net = nn.Linear(4, 1).cuda()
def mark(model, bias="none"):
    for name, one in model.named_parameters():
        if "lora" not in name:
            one.requires_grad = False
    if bias == "none":
        return
    elif bias == "lora_only":
        for one in {parts}:
            one.bias.requires_grad = True
mark(net)
model = DDP(net)
"""


@pytest.mark.parametrize(("parts", "is_wrong"), [("model.modules()", False), ("model.module.children()", True)])
def test_parameters_that_a_helper_may_unfreeze(tmp_path: Path, parts: str, is_wrong: bool) -> None:
    assert ("thawed-later" in found(tmp_path, STARTED + LORA.format(parts=parts), **GPUS)) is is_wrong


BY_NODE = """
import mmap
parser = argparse.ArgumentParser()
for name in ("world_size", "gpus", "first"):
    parser.add_argument(f"--{{name}}", type=int)
args = parser.parse_args()
def work(local_rank, args):
    dist.init_process_group("gloo", rank=args.first + local_rank, world_size=args.world_size)
    for line in open("/shared/data").readlines()[{part}::args.world_size]:
        score = len(line)
    model = DDP(nn.Linear(4, 1))
    model(torch.rand(8, 4)).mean().backward()
if __name__ == "__main__":
    mp.spawn(work, args=(args,), nprocs=args.gpus)
"""
STARTS_NODE = (
    'exec python train.py --world_size "$((NNODES * NPROC_PER_NODE))" --gpus "$NPROC_PER_NODE" --first "$((NODE_RANK * '
    '{}))"'
)


@pytest.mark.parametrize(
    ("part", "factor", "wrong"),
    [
        ("args.first + local_rank", "NPROC_PER_NODE", set()),
        ("local_rank", "NPROC_PER_NODE", {"part-of-node"}),
        ("args.first + local_rank", "1", {"same-ranks"}),
    ],
)
def test_the_first_rank_of_a_node_in_a_command(tmp_path: Path, part: str, factor: str, wrong: set[str]) -> None:
    with_files(tmp_path, {"train.py": IMPORTED + BY_NODE.format(part=part)})
    command = ["bash", "-c", STARTS_NODE.format(factor)]
    seen = {one.check for one in findings(tmp_path, command=command, resources={"nodes": 2, "nproc_per_node": 4})}
    assert seen & {"part-of-node", "same-ranks"} == wrong


FALLS_BACK = """
parser = argparse.ArgumentParser()
parser.add_argument("--multi", action="store_true")
args = parser.parse_args()
def work(number, count):
    if args.multi:
        dist.init_process_group("nccl", init_method="env://", rank=number, world_size=count)
    model = nn.Linear(4, 1).cuda()
    model = DDP(model) if args.multi else nn.DataParallel(model)
    model(torch.rand(8, 4)).mean().backward()
if __name__ == "__main__":
    if args.multi:
        mp.spawn(work, args=(2,), nprocs=2)
    else:
        work(None, 1)
"""


@pytest.mark.parametrize(("nodes", "is_wrong"), [(2, True), (1, False)])
def test_nodes_that_train_alone_without_an_option(tmp_path: Path, nodes: int, is_wrong: bool) -> None:
    resources = {"nodes": nodes, "nproc_per_node": 2}
    seen = found(tmp_path, IMPORTED + FALLS_BACK, mode="spawn", resources=resources, **GPUS)
    assert ("no-init" in seen) is is_wrong


FLAT = """
def average(params):
    grads = [one.grad for one in params if one.grad is not None]
    flat = torch.cat([one.reshape(-1) for one in grads])
    dist.all_reduce(flat)
    flat.div_(dist.get_world_size())
    {copies}
model = nn.Linear(4, 1).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(8):
    model(torch.rand(8, 4).cuda()).mean().backward()
    average(list(model.parameters()))
    optimizer.step()
    optimizer.zero_grad()
"""
COPIES = """
    start = 0
    for one in grads:
        one.copy_(flat[start:start + one.numel()].view_as(one))
        start += one.numel()
"""


@pytest.mark.parametrize(("copies", "is_wrong"), [("pass", True), (COPIES.strip(), False)])
def test_gradients_that_are_averaged_in_a_copy(tmp_path: Path, copies: str, is_wrong: bool) -> None:
    assert ("reduced-copy" in found(tmp_path, STARTED + FLAT.format(copies=copies), **GPUS)) is is_wrong


IN_PAIRS = """
parser = argparse.ArgumentParser()
parser.add_argument("--config")
args, words = parser.parse_known_args()
settings = {}
for place in range(0, len(words), 2):
    settings[words[place][2:]] = words[place + 1]
print(settings["epochs"])
"""


@pytest.mark.parametrize(("words", "is_wrong"), [(["--epochs=5", "--size=2"], True), (["--epochs", "5"], False)])
def test_words_that_a_program_takes_in_pairs(tmp_path: Path, words: list[str], is_wrong: bool) -> None:
    assert ("word-pairs" in found(tmp_path, IMPORTED + IN_PAIRS, args=["--config", "a", *words])) is is_wrong


CHOSEN = """
import json, rewards
settings = json.load(open("/shared/settings.json"))
print(getattr(rewards, {key})())
"""


@pytest.mark.parametrize(("key", "is_wrong"), [('settings["reward"]', True), ('"size"', False)])
def test_a_module_for_a_function_that_a_setting_chooses(tmp_path: Path, key: str, is_wrong: bool) -> None:
    functions = "def look():\n    from rewards.looks import Scorer\n    return Scorer()\ndef size():\n    return 1\n"
    with_files(tmp_path, {"rewards/__init__.py": functions, "rewards/look.py": "class Scorer:\n    pass\n"})
    assert ("imports" in found(tmp_path, IMPORTED + CHOSEN.format(key=key))) is is_wrong


OF_FILE = """
from absl import app, flags
from ml_collections import config_flags
config_flags.DEFINE_config_file("config", "configs/base.py", "the configuration")
def main(_):
    print(flags.FLAGS.config.rate)
if __name__ == "__main__":
    app.run(main)
"""


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--config.rate=0.2", "--config.optim.beta", "0.5", "--noconfig.amp"], ""),
        (["--config=configs/large.py:two", "--config.depth=3"], ""),
        (["--config.rates=0.2"], "--config.rates"),
        (["--config=/shared/own.py", "--config.rates=0.2"], "not all accepted arguments are known"),
        (["--config=configs/kinds/small.py", "--config.rate=0.2"], ""),
        (["--config=configs/kinds/small.py", "--config.rates=0.2"], "--config.rates"),
        (["--config=own/computed.py", "--config.rates=0.2"], "not all accepted arguments are known"),
    ],
)
def test_flags_for_the_fields_of_a_configuration(tmp_path: Path, words: list[str], said: str) -> None:
    base = "import ml_collections\ndef get_config():\n    config = ml_collections.ConfigDict()\n    config.rate = 0.1\n"
    base += '    config.optim = ml_collections.ConfigDict({"beta": 0.9})\n    config.amp = True\n    return config\n'
    large = (
        "import base\ndef get_config(name):\n    config = base.get_config()\n    config.depth = 2\n    return config\n"
    )
    small = "from configs.base import get_config as base\ndef get_config():\n    return base()\n"
    computed = (
        "def get_config():\n    config = {}\n    for name in NAMES:\n        config[name] = 1\n    return config\n"
    )
    with_files(tmp_path, {"configs/base.py": base, "configs/large.py": large, "configs/kinds/small.py": small})
    with_files(tmp_path, {"own/computed.py": computed, "train.py": OF_FILE})
    seen = [one.text for one in findings(tmp_path, args=words) if one.check in ("arguments", "argument-unknown")]
    assert len(seen) == bool(said)
    assert all(said in one for one in seen)


SAVED = """
def train(net, args, step):
    for x in torch.rand(8, 4):
        net(x.cuda()).mean().backward()
        step += 1
    {asks}
        torch.save(net.module.state_dict(), os.path.join(args.out, f"model.{{step}}.pt"))
    return step
parser = argparse.ArgumentParser()
parser.add_argument("--out")
args = parser.parse_args()
loader = DataLoader(TensorDataset(torch.rand(64, 4)), batch_size=8, num_workers=2)
model = DDP(nn.Linear(4, len(loader)).cuda())
step = 0
for epoch in range(3):
    step = train(model, args, step)
"""


@pytest.mark.parametrize(("asks", "is_wrong"), [("if True:", True), ("if rank == 0:", False)])
def test_a_checkpoint_of_a_step_that_a_training_returns(tmp_path: Path, asks: str, is_wrong: bool) -> None:
    text = STARTED + SAVED.format(asks=asks)
    assert ("saved-by-all" in found(tmp_path, text, args=["--out", "/shared/out"], **GPUS)) is is_wrong


OWN_PARSERS = """
import argparse
from parts.Data import Data
from parts.common import add
def first():
    parser = argparse.ArgumentParser()
    parser = add(parser)
    parser = Data.add_to(parser)
    args, extras = parser.parse_known_args()
    print(args.size)
if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser = add(parser)
    start, extras = parser.parse_known_args()
    if start.kind:
        first()
"""


def test_a_parser_that_a_function_of_a_class_returns(tmp_path: Path) -> None:
    added = 'parser.add_argument("--{}", type=int, default=1)\n'
    data = f"class Data:\n    def add_to(parser):\n        {added.format('size')}        return parser\n"
    common = f"def add(parser):\n    {added.format('kind')}    return parser\n"
    with_files(tmp_path, {"parts/Data.py": data, "parts/common.py": common, "train.py": OWN_PARSERS})
    assert [one for one in findings(tmp_path, args=["--size=3"]) if one.level == "unknown"] == []


SEEN = """
def work(number, count):
    torch.cuda.set_device(number)
    dist.init_process_group("nccl", init_method="env://", rank=number, world_size=count)
    model = DDP(nn.Linear(4, 1).to(number), device_ids=[{device}])
    model(torch.rand(8, 4)).mean().backward()
if __name__ == "__main__":
    os.environ["CUDA_VISIBLE_DEVICES"] = "0,1"
    mp.spawn(work, args=(2,), nprocs=2)
"""


@pytest.mark.parametrize(("device", "is_wrong"), [("0", True), ("number", False)])
def test_one_gpu_of_those_that_all_processes_see(tmp_path: Path, device: str, is_wrong: bool) -> None:
    fields: dict[str, Any] = {"mode": "spawn", "resources": {"nodes": 1, "nproc_per_node": 2}, **GPUS}
    assert ("fixed-device" in found(tmp_path, IMPORTED + SEEN.format(device=device), **fields)) is is_wrong


LONG = """
for epoch in range(3):
    sampler.set_epoch(epoch)
    for x, in loader:
        if {test}:
            continue
        optimizer.zero_grad()
        model(x.cuda()).mean().backward()
        optimizer.step()
"""
DATA = """
data = TensorDataset(torch.rand(64, 4))
sampler = DistributedSampler(data)
loader = DataLoader(data, batch_size=8, sampler=sampler)
"""


@pytest.mark.parametrize(
    ("test", "is_wrong"),
    [("x.size(1) > 1200", True), ("x.shape[-1] < 8", True), ("x.size(0) < 8", False), ("x.shape[0] != 8", False)],
)
def test_a_step_that_a_rank_skips_for_a_long_sample(tmp_path: Path, test: str, is_wrong: bool) -> None:
    text = STARTED + DATA + MODEL + LONG.format(test=test)
    assert ("left-by-one" in found(tmp_path, text, **GPUS)) is is_wrong


HELPED = """
def reduced(*args, **kwargs):
    if dist.is_initialized():
        dist.all_reduce(*args, **kwargs)
def put_together(tensors):
    whole = tensors[0].new_empty(sum(one.numel() for one in tensors))
    return whole
def averaged(whole):
    reduced(whole)
    whole /= dist.get_world_size()
    return whole
def share(params):
    grads = [one.grad for one in params if one.grad is not None]
    averaged(put_together(grads))
net = nn.Linear(4, 1).cuda()
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for step in range(8):
    optimizer.zero_grad()
    net(torch.rand(8, 4).cuda()).mean().backward()
    {shares}
    optimizer.step()
"""


@pytest.mark.parametrize(("shares", "is_wrong"), [("share(net.parameters())", False), ("pass", True)])
def test_gradients_that_helpers_of_helpers_average(tmp_path: Path, shares: str, is_wrong: bool) -> None:
    text = STARTED + HELPED.format(shares=shares)
    assert ("never-synchronized" in found(tmp_path, text, **GPUS)) is is_wrong


EITHER = """
import torch
try:
    import ujson as json
except ImportError:
    import simplejson as json
"""


@pytest.mark.parametrize(("named", "is_wrong"), [("torch\n", True), ("torch\nsimplejson\n", False), ("tqdm\n", False)])
def test_two_packages_of_which_requirements_name_none(tmp_path: Path, named: str, is_wrong: bool) -> None:
    with_files(tmp_path, {"requirements.txt": named})
    fields: dict[str, Any] = {"requirements": "requirements.txt", **GPUS}
    assert ("packages" in found(tmp_path, EITHER, **fields)) is is_wrong


BY_NAME = """
import importlib
import torch
class Settings(dict):
    pass
def find(name):
    owner, _, last = name.rpartition(".")
    for place in (owner, f"parts.{owner}"):
        try:
            return getattr(importlib.import_module(place), last)
        except ImportError:
            pass
def construct(class_name=None, **more):
    return find(class_name)(**more)
settings = Settings(class_name="parts.data.Faces")
construct(**settings)
"""


@pytest.mark.parametrize(("named", "is_wrong"), [("torch\n", True), ("torch\nujson\n", False)])
def test_a_class_that_is_made_by_its_name(tmp_path: Path, named: str, is_wrong: bool) -> None:
    with_files(tmp_path, {"requirements.txt": named, "parts/data.py": "import ujson\nclass Faces:\n    pass\n"})
    fields: dict[str, Any] = {"requirements": "requirements.txt", **GPUS}
    assert ("packages" in found(tmp_path, BY_NAME, **fields)) is is_wrong
