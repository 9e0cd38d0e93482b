"""Mistakes that show in what a followed process computes: from whose data, how it is scaled, and who is called."""

from __future__ import annotations

import json
import textwrap
from pathlib import Path
from typing import Any

import pytest
from checked import GPUS, IMPORTED, RESTARTED, TWO, each_mistake, findings, found, with_files

TRAINING = f"""{IMPORTED}
from torch.utils.data import BatchSampler

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 2)

    def forward(self, x):
        return self.layer(x)

class Meter:
    def __init__(self):
        self.sum, self.count = 0.0, 0

    def update(self, value, n=1):
        self.sum += value * n
        self.count += n

    @property
    def average(self):
        return self.sum / max(self.count, 1)

def mean_of(value):
    total = torch.tensor(value).cuda()
    dist.all_reduce(total)
    return total.item() / dist.get_world_size()

def is_bad(loss):
    return bool(torch.isnan(loss))

def loaders():
    data = TensorDataset(torch.randn(8, 4), torch.randn(8))
    train, other = DistributedSampler(data), DistributedSampler(data, shuffle=False)
    return DataLoader(data, 4, sampler=train), DataLoader(data, 4, sampler=other), train

def main():
    dist.init_process_group("nccl")
    torch.manual_seed(0)
    rank, local_rank = dist.get_rank(), int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local_rank)
    net = Net().cuda(local_rank)
    MODEL
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)
    loader, other, sampler = loaders()
    best, patience, meter = 1e9, 0, Meter()
    for epoch in range(5):
        sampler.set_epoch(epoch)
        for i, (x, y) in enumerate(loader):
            loss = nn.functional.cross_entropy(model(x.cuda()), y.cuda())
            STEP
        judged, losses = Meter(), []
        with torch.no_grad():
            for x, y in other:
                found = nn.functional.cross_entropy(model(x.cuda()), y.cuda())
                judged.update(found.item(), x.size(0))
                losses.append(found.item())
        END
    dist.destroy_process_group()

main()
"""
WRAP = "model = DDP(net, device_ids=[local_rank])"
STEP = """optimizer.zero_grad()
loss.backward()
optimizer.step()"""


def program(step: str = STEP, end: str = "pass", model: str = WRAP) -> str:
    """Return a program that trains and validates, with other statements in a step, after an epoch, for the model."""
    text = TRAINING
    for name, code in (("MODEL", model), ("STEP", step), ("END", end)):
        before = text.partition(f"    {name}\n")[0]
        indent = " " * (len(before) - len(before.rstrip(" ")) + 4)
        text = text.replace(f"{indent}{name}\n", textwrap.indent(f"{code}\n", indent))
    return text


SKIPPED = """if is_bad(loss):
    {then}
optimizer.zero_grad()
loss.backward()
optimizer.step()"""
ONLY = """finite = torch.isfinite(loss).item()
if {test}:
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()"""
STOPPED = """score = {score}
if score < best:
    best, patience = score, 0
else:
    patience += 1
if patience > 3:
    break"""
REPEATED = """k = 0
while {test} and k < 9:
    k += 1
    loss = model(x).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()"""
BEST = """score = {score}
if score < best:
    best = score
    if rank == 0:
        torch.save(net.state_dict(), "best.pt")"""
COMBINED = """total = torch.tensor([judged.sum, judged.count]).cuda()
{combine}
judged.sum, judged.count = total.tolist()
if judged.average < best and rank == 0:
    torch.save(net.state_dict(), "best.pt")"""


@each_mistake(
    [
        ("left-by-one", program(SKIPPED.format(then="continue")), program(SKIPPED.format(then="exit(1)")), GPUS),
        ("left-by-one", program(ONLY.format(test="finite")), program(ONLY.format(test="True")), GPUS),
        (
            "left-by-one",
            program(end=STOPPED.format(score="judged.average")),
            program(end=STOPPED.format(score="mean_of(judged.average)")),
            GPUS,
        ),
        ("left-by-one", program(REPEATED.format(test="loss > 1")), program(REPEATED.format(test="True")), GPUS),
        (
            "part-as-whole",
            program(end=BEST.format(score="judged.average")),
            program(end=BEST.format(score="mean_of(judged.average)")),
            GPUS,
        ),
        (
            "part-as-whole",
            program(end=BEST.format(score="sum(losses) / len(losses)")),
            program(end=BEST.format(score="mean_of(sum(losses) / len(losses))")),
            GPUS,
        ),
        (
            "part-as-whole",
            program(end=COMBINED.format(combine="pass")),
            program(end=COMBINED.format(combine="dist.all_reduce(total)")),
            GPUS,
        ),
        (
            "own-learning-rate",
            program(end="scheduler.step(judged.average)"),
            program(end="scheduler.step(mean_of(judged.average))"),
            GPUS,
        ),
    ]
)
def test_what_a_process_decides_by_its_own_data(
    check: str, wrong: str, right: str, fields: dict[str, Any], tmp_path: Path
) -> None:
    assert check in found(tmp_path, wrong, **fields)
    assert check not in found(tmp_path, right, **fields)


BY_COUNT = """optimizer.zero_grad()
loss.backward()
count = torch.tensor(float(len(x))).cuda()
dist.all_reduce(count)
for p in model.parameters():
    p.grad.mul_({factor} / count.item())
optimizer.step()"""
FLAT = """optimizer.zero_grad()
loss.backward()
flat = torch._utils._flatten_dense_tensors([p.grad.data for p in model.parameters()])
dist.all_reduce(flat)
{then}
optimizer.step()"""
BUCKETS = """optimizer.zero_grad()
loss.backward()
buckets = {{}}
for p in model.parameters():
    buckets.setdefault(p.type(), [])
    buckets[p.type()].append(p.grad)
for bucket in buckets.values():
    flat = torch._utils._flatten_dense_tensors(bucket)
    dist.all_reduce(flat)
    {then}
optimizer.step()"""
BY_HAND = """optimizer.zero_grad()
loss.backward()
for p in net.parameters():
    dist.all_reduce(p.grad)
    p.grad /= dist.get_world_size()
optimizer.step()
{more}"""
OF_HEAD = """head_opt = torch.optim.SGD(net.layer.parameters(), 1)
model(x).mean().backward()
head_opt.step()"""
BARE = "model = net"


@each_mistake(
    [
        (
            "divided-again",
            program(STEP.replace("loss.", "(loss / dist.get_world_size()).")),
            program(STEP.replace("loss.", "(loss / 4).")),
            GPUS,
        ),
        (
            "divided-again",
            program(BY_COUNT.format(factor="1.0")),
            program(BY_COUNT.format(factor="dist.get_world_size()")),
            GPUS,
        ),
        (
            "sum-not-divided",
            program(FLAT.format(then="pass"), model=BARE),
            program(FLAT.format(then="flat.div_(dist.get_world_size())"), model=BARE),
            GPUS,
        ),
        (
            "sum-not-divided",
            program(BUCKETS.format(then="pass"), model=BARE),
            program(BUCKETS.format(then="flat.div_(dist.get_world_size())"), model=BARE),
            GPUS,
        ),
        (
            "never-synchronized",
            program(BY_HAND.format(more=OF_HEAD), model=BARE),
            program(BY_HAND.format(more=""), model=BARE),
            GPUS,
        ),
    ]
)
def test_how_gradients_are_scaled(check: str, wrong: str, right: str, fields: dict[str, Any], tmp_path: Path) -> None:
    assert check in found(tmp_path, wrong, **fields)
    assert check not in found(tmp_path, right, **fields)


IN_CONTEXT = """with model.no_sync() if {test} else open(os.devnull):
    (loss / 4).backward()
if (i + 1) % 4 == 0 or (i + 1) == len(loader):
    optimizer.step()
    optimizer.zero_grad()"""
LAST = "(i + 1) % 4 and (i + 1) != len(loader)"
SWITCHED = """model.require_backward_grad_sync = i % 4 == {last}
(loss / 4).backward()
if (i + 1) % 4 == 0:
    optimizer.step()
    optimizer.zero_grad()"""
PARTS = """for k in range(4):
    model.require_backward_grad_sync = k == {last}
    model(x).mean().backward()
optimizer.step()"""


@each_mistake(
    [
        (
            "never-synchronized",
            program(IN_CONTEXT.format(test="i % 4")),
            program(IN_CONTEXT.format(test=LAST)),
            GPUS,
        ),
        (
            "never-synchronized",
            program(IN_CONTEXT.format(test="(i + 1) % 4")),  # but for the last step, which may have fewer parts
            program(IN_CONTEXT.replace(" or (i + 1) == len(loader)", "").format(test="(i + 1) % 4")),
            GPUS,
        ),
        ("never-synchronized", program(SWITCHED.format(last=0)), program(SWITCHED.format(last=3)), GPUS),
        ("never-synchronized", program(PARTS.format(last=0)), program(PARTS.format(last=3)), GPUS),
    ]
)
def test_a_rehearsal_shows_which_gradients_are_exchanged(
    check: str, wrong: str, right: str, fields: dict[str, Any], tmp_path: Path
) -> None:
    assert check in found(tmp_path, wrong, **fields)
    assert check not in found(tmp_path, right, **fields)


LOADED = """if not {guard} os.path.isfile("/shared/last.pt"):
    pass
else:
    state = torch.load("/shared/last.pt", map_location="cpu")
    model.module.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])"""
KEYS = """if os.path.isfile("/shared/net.pt"):
    net.load_state_dict(torch.load("/shared/net.pt"))
model = DDP(net, device_ids=[local_rank])"""
SAVED = 'if rank == 0:\n    torch.save({state}, "/shared/net.pt")'
NAMED = """folder = os.path.join("/shared/runs", {name})
names = [folder]
dist.broadcast_object_list(names, src=0)
if rank == 0:
    torch.save(net.state_dict(), os.path.join(names[0], "last.pt"))
if os.path.isfile(os.path.join(names[0], "last.pt")):
    net.load_state_dict(torch.load(os.path.join(names[0], "last.pt")))"""


CALLED = """inner = {model}
loss = inner(x.cuda()).mean()
optimizer.zero_grad()
loss.backward()
optimizer.step()"""


@each_mistake(
    [
        (
            "bypassed",
            program(CALLED.format(model="model.module")).replace(
                "(model(x.cuda()), y.cuda())\n            inner", "(x, y)\n            inner"
            ),
            program(CALLED.format(model="model.module if epoch < 0 else model")),
            GPUS,
        ),
        (
            "other-keys",
            program(end=SAVED.format(state="model.state_dict()"), model=KEYS),
            program(end=SAVED.format(state="model.module.state_dict()"), model=KEYS),
            GPUS,
        ),
        (
            "no-checkpoint",
            program(end=NAMED.format(name='time.strftime("%H%M")')),
            program(end=NAMED.format(name='"run"')),
            RESTARTED,
        ),
    ]
)
def test_wrappers_and_their_states(check: str, wrong: str, right: str, fields: dict[str, Any], tmp_path: Path) -> None:
    assert check in found(tmp_path, wrong, **fields)
    assert check not in found(tmp_path, right, **fields)


def test_a_state_that_one_process_loads_after_the_wrapper_was_made(tmp_path: Path) -> None:
    text = program().replace("    best, patience", "    RESUME\n    best, patience")
    load = "\n    ".join(LOADED.splitlines())
    assert "loaded-by-one" in found(tmp_path, text.replace("RESUME", load.format(guard="rank == 0 or not")), **GPUS)
    assert "loaded-by-one" not in found(tmp_path, text.replace("RESUME", load.format(guard="")), **GPUS)


@pytest.mark.parametrize(("batch", "is_empty"), [(2, True), (8, False)])
def test_a_batch_that_is_divided_by_more_processes_than_it_has_samples(
    batch: int, is_empty: bool, tmp_path: Path
) -> None:
    batches = f"BatchSampler(train, {batch} // dist.get_world_size(), True)"
    text = program().replace("DataLoader(data, 4, sampler=train)", f"DataLoader(data, batch_sampler={batches})")
    assert ("empty-batch" in found(tmp_path, text, **GPUS)) is is_empty


def test_a_group_that_accelerate_has_made_already(tmp_path: Path) -> None:
    begin = "from accelerate import Accelerator\nimport torch.distributed as dist\n"
    make, group = "accelerator = Accelerator()\n", "dist.init_process_group('nccl')\n"
    assert "second-init" in found(tmp_path, begin + make + group, **GPUS)
    assert "second-init" not in found(tmp_path, begin + make, **GPUS)


def test_processes_that_a_program_starts_itself(tmp_path: Path) -> None:
    text = f"""{IMPORTED}
from multiprocessing import Process
def work(rank, size):
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", init_method="tcp://127.0.0.1:6020", rank=rank, world_size=size)
if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--size", type=int)
    args = parser.parse_args()
    started = []
    for rank in range(args.size):
        started.append(Process(target=work, args=(rank, args.size)))
        started[-1].start()
"""
    fields: dict[str, Any] = {**GPUS, "resources": {"nodes": 1}}
    for size, check in ((4, {"more-processes"}), (2, set())):
        command = ["python", "train.py", "--size", str(size)]
        assert found(tmp_path, text, command=command, **fields) & {"more-processes"} == check


@pytest.mark.parametrize(("nodes", "is_wrong"), [("", True), ("trainer.num_nodes=2", False)])
def test_a_trainer_in_the_configuration_of_hydra(nodes: str, is_wrong: bool, tmp_path: Path) -> None:
    with_files(
        tmp_path,
        {"conf/run.yaml": "trainer:\n  _target_: lightning.pytorch.Trainer\n  devices: 2\n  num_nodes: 1\n"},
    )
    text = (
        "import hydra, lightning\n@hydra.main(config_path='conf', config_name='run')\ndef main(cfg):\n"
        "    hydra.utils.instantiate(cfg.trainer).fit(None)\nmain()\n"
    )
    assert ("lightning-nodes" in found(tmp_path, text, args=[nodes] if nodes else [], **GPUS)) is is_wrong


@pytest.mark.parametrize(("more", "is_wrong"), [("", True), (", sync_dist=True", False)])
def test_a_watched_figure_of_one_process(more: str, is_wrong: bool, tmp_path: Path) -> None:
    text = (
        "import lightning as L\nfrom lightning.pytorch.callbacks import ModelCheckpoint\n"
        "class Task(L.LightningModule):\n    def on_validation_epoch_end(self):\n"
        f"        self.log('cer', self.errors / self.total{more})\n"
        "L.Trainer(num_nodes=2, callbacks=[ModelCheckpoint(monitor='cer')]).fit(Task())\n"
    )
    assert ("part-as-whole" in found(tmp_path, text, **GPUS)) is is_wrong


def test_options_that_fire_tyro_and_transformers_make(tmp_path: Path) -> None:
    body = "\n    batch = size // 4\n    DataLoader(TensorDataset(), batch_size=batch)\n"
    fire = f"{IMPORTED}\nimport fire\ndef main(size: int = 64):{body}fire.Fire(main)\n"
    tyro = (
        f"{IMPORTED}\nimport tyro\nfrom dataclasses import dataclass\n@dataclass\nclass Args:\n    size: int = 64\n"
        f"def main(size):{body}main(tyro.cli(Args).size)\n"
    )
    parser = tyro.replace("import tyro", "from transformers import HfArgumentParser").replace(
        "tyro.cli(Args)", "HfArgumentParser(Args).parse_args_into_dataclasses()[0]"
    )
    for text in (fire, tyro, parser):
        for size, is_empty in (("2", True), ("8", False)):
            assert ("empty-batch" in found(tmp_path, text, hyperparameters={"size": size}, **GPUS)) is is_empty


def test_a_default_that_names_no_file(tmp_path: Path) -> None:
    with_files(tmp_path, {"zero2.json": "{}"})
    text = "import argparse, json\np = argparse.ArgumentParser()\np.add_argument('--file', default={!r})\n"
    text += "args = p.parse_args()\nsettings = json.load(open(args.file))\n"
    assert "not-there" in found(tmp_path, text.format("zero3.json"), **GPUS)
    assert "not-there" not in found(tmp_path, text.format("zero2.json"), **GPUS)


def test_an_option_that_has_the_code_resume_is_not_given(tmp_path: Path) -> None:
    text = f"""{IMPORTED}
p = argparse.ArgumentParser()
p.add_argument("--from_resume", type=int, default=0)
args = p.parse_args()
def load_checkpoint():
    return torch.load("/shared/last.pt")
state = load_checkpoint() if args.from_resume == 1 else None
torch.save({{}}, "/shared/last.pt")
"""
    assert "no-checkpoint" in found(tmp_path, text, **RESTARTED)
    assert "no-checkpoint" not in found(tmp_path, text, hyperparameters={"from_resume": 1}, **RESTARTED)


def test_imports_that_are_tried_in_two_ways(tmp_path: Path) -> None:
    with_files(tmp_path, {"tools/__init__.py": "", "tools/sizes.py": "SIZE = 0\n"})
    text = f"{IMPORTED}\ntry:\n    {{}}\nexcept:\n    {{}}\nDataLoader(TensorDataset(), batch_size=SIZE)\n"
    ours, other = "from tools.sizes import SIZE", "from sizes import SIZE"
    assert "empty-batch" in found(tmp_path, text.format(ours, other), **GPUS)
    assert "empty-batch" in found(tmp_path, text.format(other, ours), **GPUS)


def test_entries_of_a_configuration_that_stand_twice(tmp_path: Path) -> None:
    text = f"{IMPORTED}\nimport yaml\nsize = yaml.safe_load(open('c.yaml'))['size']\nDataLoader([], batch_size=size)\n"
    for last, is_empty in ((0, True), (4, False)):
        with_files(tmp_path, {"c.yaml": f"size: 2\nsize: {last}\n"})
        assert ("empty-batch" in found(tmp_path, text, resources=TWO, **GPUS)) is is_empty


def test_a_model_that_loads_the_state_of_a_wrapper(tmp_path: Path) -> None:
    text = program(end="teacher = Net()\nteacher.load_state_dict({model}.state_dict())")
    assert "other-keys" in found(tmp_path, text.replace("{model}", "model"), **GPUS)
    assert "other-keys" not in found(tmp_path, text.replace("{model}", "model.module"), **GPUS)
    assert "other-keys" not in found(
        tmp_path, text.replace("{model}", "model").replace("= Net()", "= DDP(net)"), **GPUS
    )


def test_a_state_that_fabric_saves_on_one_rank(tmp_path: Path) -> None:
    text = (
        "import lightning\nfabric = lightning.Fabric(num_nodes=2)\nfabric.launch()\n{}fabric.save('/shared/x', {{}})\n"
    )
    assert "rank-0-collective" in found(tmp_path, text.format("if fabric.is_global_zero:\n    "), **GPUS)
    assert "rank-0-collective" not in found(tmp_path, text.format(""), **GPUS)


def test_the_rank_that_deepspeed_passes(tmp_path: Path) -> None:
    text = "import argparse\np = argparse.ArgumentParser()\np.add_argument('--local_rank', type=int, required=True)\n"
    text += "args = p.parse_args()\n"
    fields: dict[str, Any] = {**GPUS, "resources": {"nodes": 1, "nproc_per_node": 2}}
    assert found(tmp_path, text, command=["deepspeed", "--num_gpus=2", "train.py"], **fields) == set()
    command = ["deepspeed", "--num_gpus=2", "--no_local_rank", "train.py"]
    assert found(tmp_path, text, command=command, **fields) == {"argument-missing"}


def test_a_file_of_arguments_that_another_parser_takes(tmp_path: Path) -> None:
    with_files(tmp_path, {"args.json": "{}"})
    text = """
import argparse, sys
from dataclasses import dataclass
from transformers import HfArgumentParser
@dataclass
class Args:
    size: int = 1
p = argparse.ArgumentParser()
p.add_argument("--file")
file = p.parse_args().file
args, = HfArgumentParser(Args).parse_json_file(json_file=file)
"""
    assert "argument-unknown" not in found(tmp_path, text, args=["--file", "args.json"], **GPUS)
    assert "argument-unknown" in found(tmp_path, text, args=["--file", "args.json", "--other=1"], **GPUS)


@pytest.mark.parametrize(("source", "is_wrong"), [("rank", True), ("0", False)])
def test_a_broadcast_from_another_rank_in_each_process(source: str, is_wrong: bool, tmp_path: Path) -> None:
    box = "class Box:\n    def __init__(self, rank):\n        self.rank = rank\n"
    text = box + program(end=f"box = Box({source})\ndist.broadcast(torch.ones(1).cuda(), box.rank)")
    assert ("other-roots" in found(tmp_path, text, **GPUS)) is is_wrong


def test_an_error_that_the_program_raises_does_not_hide_what_follows(tmp_path: Path) -> None:
    refuses = 'if os.environ.get("CHECKED") is None:\n    raise ValueError("no data")\n'
    text = program(end="scheduler.step(judged.average)")
    assert "own-learning-rate" in found(tmp_path, text.replace("\nmain()", f"\n{refuses}main()"), **GPUS)


def test_epochs_that_nothing_sets_although_a_function_would(tmp_path: Path) -> None:
    text = program().replace("        sampler.set_epoch(epoch)\n", "        {}\n")
    text = text.replace("def main():", "def unused(sampler):\n    return 'set_epoch'\n\ndef main():")
    assert "set-epoch" in found(tmp_path, text.replace("        {}\n", "        pass\n"), **GPUS)
    assert "set-epoch" not in found(
        tmp_path, text.replace("        {}\n", "        sampler.set_epoch(epoch)\n"), **GPUS
    )


def test_a_package_that_only_a_method_imports(tmp_path: Path) -> None:
    with_files(tmp_path, {".gitignore": "data/\n", "app/__init__.py": "", "app/data/__init__.py": "SIZE = 1\n"})
    text = "import tasks\nclass Task:\n    def load(self):\n        from app.data import SIZE\n        return SIZE\n"
    text += "def start(task):\n    return task.load()\nstart(tasks.get(Task))\n"
    assert "imports" in found(tmp_path, text, **GPUS)


def test_a_file_that_is_executed_as_a_module(tmp_path: Path) -> None:
    with_files(tmp_path, {"exps/small.py": "class Exp:\n    def __init__(self):\n        self.batch = 0\n"})
    text = f"""{IMPORTED}
import importlib.util
spec = importlib.util.spec_from_file_location("exp", sys.argv[1])
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
DataLoader(TensorDataset(), batch_size=module.Exp().batch)
"""
    assert "empty-batch" in found(tmp_path, text, args=["exps/small.py"], **GPUS)


def test_classes_that_a_configuration_names(tmp_path: Path) -> None:
    loaders = f"{IMPORTED}\ndef Loader(size):\n    return DataLoader(TensorDataset(), batch_size=size)\n"
    settings = "loader:\n  obj: parts.loaders.Loader\n  args: {size: 0}\n"
    with_files(tmp_path, {"c.yaml": settings, "parts/__init__.py": "", "parts/loaders.py": loaders})
    text = r"""
import importlib, re, sys, yaml
def build(text):
    settings = yaml.safe_load(open("c.yaml"))
    settings.update(yaml.safe_load(text))
    part = settings["loader"]
    found = re.match(r"^(.*)[.](\w+)$", part["obj"])
    return getattr(importlib.import_module(found.group(1)), found.group(2))(**part["args"])
del sys.argv[0]
build("seed: 1")
"""
    assert "empty-batch" in found(tmp_path, text, **GPUS)


def test_a_variable_that_is_not_set_has_its_default(tmp_path: Path) -> None:
    text = program(end="if os.environ.get('CHECKED', 'no') == 'no':\n    scheduler.step(judged.average)")
    assert "own-learning-rate" in found(tmp_path, text, env={}, **GPUS)
    ranks = f"{IMPORTED}\ndef work(i):\n    rank = int(os.environ.get('RANK', '0')) * 2 + i\n"
    ranks += "    dist.init_process_group('nccl', init_method='tcp://10.0.0.1:99', rank=rank, world_size=4)\n"
    ranks += "if __name__ == '__main__':\n    mp.spawn(work, nprocs=2)\n"
    assert "same-ranks" in found(tmp_path, ranks, **{**GPUS, "mode": "spawn"})


def test_a_setting_of_a_library_s_object_is_not_known(tmp_path: Path) -> None:
    text = f"{IMPORTED}\nimport settings\nhparams = settings.HParams(several=False)\ndist.init_process_group('nccl')\n"
    text += "if hparams.several:\n    DataLoader(TensorDataset(), batch_size=0)\nelse:\n    pass\n"
    assert "empty-batch" in found(tmp_path, text, **GPUS)
    text = text.replace("batch_size=0", "batch_size=2").replace("    pass", "    dist.init_process_group('nccl')")
    assert "second-init" not in found(tmp_path, text.replace("if hparams.several", "if not hparams.several"), **GPUS)


def test_what_gathers_parts_of_a_tensor_waits_for_nobody(tmp_path: Path) -> None:
    step = "if is_bad(loss):\n    y = torch.gather(x, 1, y)\n" + STEP
    assert "left-by-one" not in found(tmp_path, program(step), **GPUS)
    assert "left-by-one" in found(tmp_path, program(step.replace("torch.gather(x, 1, y)", "dist.barrier()")), **GPUS)


def test_a_configuration_that_a_flag_of_absl_names(tmp_path: Path) -> None:
    settings = "import ml_collections\ndef get_config(kind='small'):\n    c = ml_collections.ConfigDict()\n"
    settings += (
        "    c.data = ml_collections.ConfigDict()\n    c.data.batch = 8 if kind == 'small' else 0\n    return c\n"
    )
    with_files(tmp_path, {"conf/base.py": settings})
    text = f"{IMPORTED}\nfrom absl import app, flags\nfrom ml_collections import config_flags\nFLAGS = flags.FLAGS\n"
    text += "flags.DEFINE_integer('times', 1, '')\nconfig_flags.DEFINE_config_file('config', 'conf/other.py')\n"
    text += "def main(_):\n    DataLoader(TensorDataset(), batch_size=FLAGS.config.data.batch * FLAGS.times)\n"
    text += "app.run(main)\n"
    for args, is_empty in (
        (["--config=conf/base.py"], False),
        (["--config=conf/base.py:large"], True),
        (["--config=conf/base.py", "--config.data.batch=0"], True),
        (["--config=conf/base.py", "--times=0"], True),
    ):
        assert ("empty-batch" in found(tmp_path, text, args=args, **GPUS)) is is_empty


def test_a_package_whose_name_begins_with_torch(tmp_path: Path) -> None:
    with_files(tmp_path, {"requirements.txt": "torch\ntimm\n"})
    fields: dict[str, Any] = {**GPUS, "requirements": "requirements.txt"}
    assert "packages" in found(tmp_path, "import torch, timm\nimport torch_fidelity\n", **fields)
    with_files(tmp_path, {"requirements.txt": "torch\ntimm\ntorch-fidelity\n"})
    assert "packages" not in found(tmp_path, "import torch, timm\nimport torch_fidelity\n", **fields)


STOPPER = """class Stopper:
    def __init__(self):
        self.best, self.waited = 1e9, 0

    def is_better(self, value):
        if value < self.best:
            self.best, self.waited = value, 0
            return True
        self.waited += 1
        return False

"""


def test_an_object_that_counts_by_its_own_data(tmp_path: Path) -> None:
    end = "stopper = Stopper() if epoch == 0 else stopper\nstopper.is_better({})\nif stopper.waited > 3:\n    break"
    own, common = (STOPPER + program(end=end.format(score)) for score in ("judged.average", "mean_of(judged.average)"))
    assert "left-by-one" in found(tmp_path, own, **GPUS)
    assert "left-by-one" not in found(tmp_path, common, **GPUS)


@pytest.mark.parametrize(("test", "is_wrong"), [("i > 0", True), ("i < len(parts) - 1", False)])
def test_parts_of_a_step_whose_number_is_not_known(test: str, is_wrong: bool, tmp_path: Path) -> None:
    step = f"""parts = x.split(2)
for i, part in enumerate(parts):
    with model.no_sync() if {test} else open(os.devnull):
        model(part).mean().backward()
optimizer.step()"""
    assert ("never-synchronized" in found(tmp_path, program(step), **GPUS)) is is_wrong


def test_a_property_that_returns_the_wrapper_is_called(tmp_path: Path) -> None:
    text = f"""{IMPORTED}
class Trainer:
    def __init__(self, net):
        self.wrapped = DDP(net)
    @property
    def model(self):
        return self.wrapped
    def step(self, x):
        out = self.model(x)
        return out.flatten()
dist.init_process_group("nccl")
Trainer(nn.Linear(4, 4).cuda()).step(torch.ones(4).cuda())
"""
    assert "wrapped-attribute" not in found(tmp_path, text, **GPUS)


BY_MPI = f"""{IMPORTED}
from mpi4py import MPI

def begin():
    if dist.is_initialized():
        return
    comm = MPI.COMM_WORLD
    {{begun}}

begin()
"""
GIVEN = "dist.init_process_group('nccl', init_method='tcp://host:1', rank=comm.rank, world_size=comm.size)"
WRITTEN = "os.environ['RANK'] = str(comm.Get_rank()); dist.init_process_group('nccl')"
READ = "dist.init_process_group('nccl', rank=int(os.environ['OMPI_COMM_WORLD_RANK']), world_size=4)"


@pytest.mark.parametrize(("begun", "check"), [(GIVEN, "same-ranks"), (WRITTEN, "same-ranks"), (READ, "rank-env")])
def test_ranks_of_mpi_need_mpirun(begun: str, check: str, tmp_path: Path) -> None:
    text = BY_MPI.format(begun=begun)
    command = ["mpirun", "-np", "4", "-H", "a:2,b:2", "python", "train.py"]
    assert check in found(tmp_path, text, resources=TWO, **GPUS)
    assert not {"same-ranks", "rank-env"} & found(tmp_path, text, command=command, resources=TWO, **GPUS)


@pytest.mark.parametrize(("numbers", "is_wrong"), [("local_rank, local_world_size", True), ("rank, world_size", False)])
def test_a_loader_that_gets_the_numbers_of_its_node(numbers: str, is_wrong: bool, tmp_path: Path) -> None:
    text = f"""{IMPORTED}
class DistributedDataLoader:
    def __init__(self, pattern, process_rank, num_processes):
        self.pattern, self.process_rank, self.num_processes = pattern, process_rank, num_processes
rank, local_rank = int(os.environ["RANK"]), int(os.environ["LOCAL_RANK"])
world_size, local_world_size = int(os.environ["WORLD_SIZE"]), int(os.environ["LOCAL_WORLD_SIZE"])
dist.init_process_group("nccl")
loader = DistributedDataLoader("/in/*.bin", {numbers})
"""
    assert ("part-of-node" in found(tmp_path, text, resources=TWO, **GPUS)) is is_wrong


@pytest.mark.parametrize(("test", "is_wrong"), [("last or alone", False), ("alone", True)])
def test_the_last_part_of_a_step_is_not_known(test: str, is_wrong: bool, tmp_path: Path) -> None:
    step = f"""alone = dist.get_world_size() == 1
for start in range(0, x.shape[0], 8):
    last = start + 8 >= x.shape[0]
    if {test}:
        model(x[start:start + 8]).mean().backward()
    else:
        with model.no_sync():
            model(x[start:start + 8]).mean().backward()
optimizer.step()"""
    assert ("never-synchronized" in found(tmp_path, program(step), **GPUS)) is is_wrong


BY_TASKS = f"""{IMPORTED}
rank = int(os.environ["{{rank}}"])
torch.cuda.set_device(int(os.environ["{{local}}"]))
dist.init_process_group("nccl"{{given}})
if {{waits}}:
    dist.barrier()
dist.destroy_process_group()
"""
OF_TORCHRUN = {"rank": "RANK", "local": "LOCAL_RANK", "given": "", "waits": "True"}
OF_SRUN = {**OF_TORCHRUN, "rank": "SLURM_PROCID", "local": "SLURM_LOCALID"}
GIVEN_BY_SRUN = {**OF_SRUN, "given": ", rank=rank, world_size=int(os.environ['SLURM_NTASKS'])"}


@pytest.mark.parametrize("launcher", ["srun", "mpirun"])
@pytest.mark.parametrize("names", [OF_TORCHRUN, {**OF_SRUN, "rank": "NODE_RANK", "local": "NODE_RANK"}])
def test_a_scheduler_sets_no_variables_of_torchrun(launcher: str, names: dict[str, str], tmp_path: Path) -> None:
    fields = {"resources": {"nodes": 1, "nproc_per_node": 2}, **GPUS}
    text = BY_TASKS.format(**names)
    assert "rank-env" in found(tmp_path, text, command=[launcher, "-n", "2", "python", "train.py"], **fields)
    inside = [launcher, "-n", "1", "torchrun", "--nproc_per_node", "2", "train.py"]
    assert "rank-env" not in found(tmp_path, text, command=inside, **fields)


@pytest.mark.parametrize(("waits", "hangs"), [("True", False), ("rank == 0", True)])
def test_each_task_of_srun_is_a_process(waits: str, hangs: bool, tmp_path: Path) -> None:
    fields = {"resources": {"nodes": 1, "nproc_per_node": 2}, **GPUS}
    text = BY_TASKS.format(**{**GIVEN_BY_SRUN, "waits": waits})
    shown = found(tmp_path, text, command=["srun", "-n", "2", "python", "train.py"], **fields)
    assert shown == ({"rank-0-collective"} if hangs else set())


@pytest.mark.parametrize(("place", "is_wrong"), [("rank", True), ("local_rank", False), ("rank % 2", False)])
def test_a_list_with_a_place_for_each_process_of_a_node(place: str, is_wrong: bool, tmp_path: Path) -> None:
    text = f"""{IMPORTED}
parser = argparse.ArgumentParser()
parser.add_argument("--gpu", nargs="+")
args = parser.parse_args()
rank, local_rank = int(os.environ["RANK"]), int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(int(args.gpu[{place}]))
dist.init_process_group("nccl")
"""
    fields: dict[str, Any] = {"args": ["--gpu", "0", "1"], "resources": TWO, **GPUS}
    assert ("out-of-range" in found(tmp_path, text, **fields)) is is_wrong


def test_a_place_that_an_error_is_expected_for(tmp_path: Path) -> None:
    text = f"""{IMPORTED}
rank = int(os.environ["RANK"])
try:
    name = ["a", "b"][rank]
except IndexError:
    name = "c"
dist.init_process_group("nccl")
"""
    assert "out-of-range" not in found(tmp_path, text, resources=TWO, **GPUS)


IN_PARTS = """parts = list(zip(x.chunk(4), y.chunk(4)))
for i, (one, other) in enumerate(parts):
    kept = accelerator.prepare(model)
    context = kept.no_sync if {test} else contextlib.nullcontext
    with context():
        nn.functional.cross_entropy(kept(one), other).backward()
optimizer.step()"""


@pytest.mark.parametrize(("test", "is_wrong"), [("i > 0", True), ("i < len(parts) - 1", False)])
def test_a_context_of_a_model_that_a_variable_holds(test: str, is_wrong: bool, tmp_path: Path) -> None:
    text = "import contextlib\nfrom somewhere import accelerator\n" + program(IN_PARTS.format(test=test))
    assert ("never-synchronized" in found(tmp_path, text, **GPUS)) is is_wrong


STREAMS = f"""{IMPORTED}
from torch.utils.data import IterableDataset, get_worker_info
import sentencepiece, transformers
class Tokens(IterableDataset):
    def __init__(self, seed):
        self.seed = seed
    def __iter__(self):
        info = get_worker_info()
        {{sees}}
        while True:
            yield torch.zeros(4) + self.seed + (info.id if info else 0)
class Processed(IterableDataset):
    def __init__(self, source, change):
        self.source, self.change = source, change
    def __iter__(self):
        return self.change(iter(self.source))
def main():
    dist.init_process_group("nccl")
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    sentencepiece.SentencePieceTrainer.train("text")
    train_data = Tokens(7)
    train_data = Processed(train_data, lambda rows: rows)
    model = DDP(nn.Linear(4, 1).cuda())
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for x in DataLoader(train_data, 4):
        model(x.cuda()).mean().backward()
        optimizer.step()
main()
"""


@pytest.mark.parametrize(("sees", "is_wrong"), [("pass", True), ("self.seed += dist.get_rank()", False)])
def test_a_stream_that_another_one_passes_on(sees: str, is_wrong: bool, tmp_path: Path) -> None:
    assert ("no-sampler" in found(tmp_path, STREAMS.format(sees=sees), **GPUS)) is is_wrong


ACCUMULATED = """
from accelerate import Accelerator
import torch, tyro, dataclasses
@dataclasses.dataclass
class Args:
    lr: float = 0.1
    accumulation_steps: int = 1
args = tyro.cli(Args)
accelerator = Accelerator({given})
model = accelerator.prepare(torch.nn.Linear(4, 1))
optimizer = accelerator.prepare(torch.optim.SGD(model.parameters(), args.lr))
for x in accelerator.prepare(torch.utils.data.DataLoader(torch.zeros(8, 4))):
    with accelerator.accumulate(model):
        accelerator.backward(model(x).mean())
        optimizer.step()
"""


@pytest.mark.parametrize(
    ("given", "steps", "is_wrong"),
    [("", 8, True), ("", 1, False), ("gradient_accumulation_steps=args.accumulation_steps", 8, False)],
)
def test_a_number_of_steps_that_an_unknown_parser_gets(given: str, steps: int, is_wrong: bool, tmp_path: Path) -> None:
    for words in ({"hyperparameters": {"accumulation_steps": steps}}, {"args": ["--accumulation-steps", str(steps)]}):
        fields: dict[str, Any] = {**words, **GPUS}
        assert ("never-accumulated" in found(tmp_path, ACCUMULATED.format(given=given), **fields)) is is_wrong


@pytest.mark.parametrize(
    ("score", "is_wrong"),
    [
        ("np.average(losses)", True),
        ("functools.reduce(max, losses)", True),
        ("found.gather(0, y).item()", True),
        ("torch.gather(found, 0, y).item()", True),
        ("accelerator.gather(found).item()", False),
        ("mean_of(np.average(losses))", False),
    ],
)
def test_what_combines_values_of_one_process_only(score: str, is_wrong: bool, tmp_path: Path) -> None:
    end = (
        f"stopper = Stopper() if epoch == 0 else stopper\nstopper.is_better({score})\nif stopper.waited > 3:\n    break"
    )
    text = f"import functools\nfrom somewhere import accelerator\n{STOPPER}{program(end=end)}"
    assert ("left-by-one" in found(tmp_path, text, **GPUS)) is is_wrong


BY_A_GENERATOR = """import contextlib
@contextlib.contextmanager
def exchange(model, wanted):
    if wanted or not isinstance(model, DDP):
        yield
    else:
        with model.no_sync():
            yield
"""
IN_ROUNDS = """rounds = x.shape[0] // 2
for i in range(rounds):
    with exchange(model, {test}):
        nn.functional.cross_entropy(model(x[i::rounds]), y[i::rounds]).backward()
optimizer.step()"""


@pytest.mark.parametrize(("test", "is_wrong"), [("i == 0", True), ("i == rounds - 1", False), ("True", False)])
def test_a_context_of_the_program_in_which_gradients_stay(test: str, is_wrong: bool, tmp_path: Path) -> None:
    text = f"{IMPORTED}\n{BY_A_GENERATOR}{program(IN_ROUNDS.format(test=test))}"
    assert ("never-synchronized" in found(tmp_path, text, **GPUS)) is is_wrong


IN_A_CLASS = f"""{IMPORTED}
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 1)
class Models:
    def __init__(self, number):
        self.first = Net().to(number)
        self.second = {{second}}
        {{more}}
        self.first = DDP(self.first, device_ids=[number])
        self.second = DDP(self.second, device_ids=[number])
dist.init_process_group("nccl")
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
Models(int(os.environ["LOCAL_RANK"]))
"""


@pytest.mark.parametrize(
    ("second", "more", "is_wrong"),
    [
        ("Net()", "pass", True),
        ("Net()", "self.second.cuda()", False),
        ("Net().to(number)", "pass", False),
        ("Net()", "nn.ModuleList([self.second]).to(number)", False),
        ("Net()", "torch.set_default_device('cuda')", False),
    ],
)
def test_a_model_of_an_object_that_stays_on_the_cpu(second: str, more: str, is_wrong: bool, tmp_path: Path) -> None:
    text = IN_A_CLASS.format(second=second, more=more)
    assert ("model-on-cpu" in found(tmp_path, text, **GPUS)) is is_wrong


CROPS = """
import argparse, torch, torch.distributed as dist
parser = argparse.ArgumentParser()
parser.add_argument("--sizes", type=int, nargs="+", default=[224])
parser.add_argument("--counts", type=int, nargs="+", default=[2])
args = parser.parse_args()
class Crops:
    def __init__(self, sizes, counts):
        assert len(sizes) == len(counts)
dist.init_process_group("nccl")
Crops(args.sizes, args.counts)
"""


def test_an_assertion_about_lists(tmp_path: Path) -> None:
    fields: dict[str, Any] = {"args": ["--counts", "2", "6"], **GPUS}
    assert "unfulfilled" in found(tmp_path, CROPS, **fields)
    fields["args"] += ["--sizes", "224", "96"]
    assert "unfulfilled" not in found(tmp_path, CROPS, **fields)


LEFT_FOR_CLI = """
import argparse
from omegaconf import OmegaConf
parser = argparse.ArgumentParser()
parser.add_argument("--config")
args, rest = parser.parse_known_args()
cfg = OmegaConf.merge(OmegaConf.load(args.config), OmegaConf.from_cli(rest))
"""


@pytest.mark.parametrize(("word", "is_wrong"), [("--train.rate=2", True), ("train.rate=2", False)])
def test_words_that_a_parser_leaves_for_omegaconf(word: str, is_wrong: bool, tmp_path: Path) -> None:
    with_files(tmp_path, {"base.yaml": "train: {rate: 1}\n"})
    fields: dict[str, Any] = {"args": ["--config=base.yaml", word], **GPUS}
    assert ("argument-unknown" in found(tmp_path, LEFT_FOR_CLI, **fields)) is is_wrong


FROM_FILE = """
import configargparse, torch, torch.distributed as dist
parser = configargparse.ArgumentParser()
parser.add_argument("--config", is_config_file=True)
parser.add_argument("--world", type=int, default=1)
parser.add_argument("--distributed", action="store_true")
parser.add_argument("--names", nargs="+", default=[])
args = parser.parse_args()
if args.distributed:
    assert args.world == dist.get_world_size() and args.names == ["a", "b"]
"""


@pytest.mark.parametrize(("size", "is_wrong"), [("4  # of both nodes", False), ("3", True)])
def test_a_configuration_that_configargparse_reads(size: str, is_wrong: bool, tmp_path: Path) -> None:
    lines = f"[start]\n; how it starts\nworld = {size}\ndistributed = True\nnames: [a, b]\nother = 5\n"
    with_files(tmp_path, {"base.txt": lines})
    fields: dict[str, Any] = {"args": ["--config", "base.txt"], "resources": TWO, **GPUS}
    assert ("unfulfilled" in found(tmp_path, FROM_FILE, **fields)) is is_wrong


LEFT_ALONE = """
import argparse, torch, torch.distributed as dist
class Settings:
    pass
def run(local_rank):
    settings = Settings()
    settings.local_rank = {kept}
    return settings
parser = argparse.ArgumentParser()
parser.add_argument("--local_rank", type=int, default=-1)
args = parser.parse_args()
if args.local_rank != -1:
    dist.init_process_group("nccl")
    torch.cuda.set_device(args.local_rank)
run(args.local_rank)
"""


def test_a_local_rank_that_is_kept_elsewhere(tmp_path: Path) -> None:
    assert "local-rank" in found(tmp_path, LEFT_ALONE.format(kept="local_rank"), **GPUS)
    assert "local-rank" not in found(tmp_path, LEFT_ALONE.format(kept="dist.get_node_local_rank()"), **GPUS)


BY_YACS = """
from yacs.config import CfgNode as CN
_C = CN()
_C.STEPS = (1, 2)
_C.RATE = 0.1
def main():
    cfg = _C.clone()
    cfg.merge_from_file("base.yaml")
    if not list(cfg.STEPS) == sorted(cfg.STEPS):
        raise ValueError("steps must increase")
main()
"""


@pytest.mark.parametrize(("steps", "is_wrong"), [("(60, 80)", False), ("(80, 60)", True)])
def test_a_literal_in_a_file_of_yacs(steps: str, is_wrong: bool, tmp_path: Path) -> None:
    with_files(tmp_path, {"base.yaml": f"STEPS: {steps}\n"})
    assert ("unfulfilled" in found(tmp_path, BY_YACS, **GPUS)) is is_wrong


BUILT = """
import argparse, torch, torch.distributed as dist
from somewhere import builders
parser = argparse.ArgumentParser()
parser.add_argument("--size", type=int, default=3)
args = parser.parse_args()
data = {call}
assert args.size % 4 == 0
"""


@pytest.mark.parametrize(("call", "is_known"), [("builders['a'](args)", True), ("builders(1)(2)(args)", True)])
def test_arguments_that_a_class_of_several_gets(call: str, is_known: bool, tmp_path: Path) -> None:
    assert ("unfulfilled" in found(tmp_path, BUILT.format(call=call), **GPUS)) is is_known


def test_code_that_the_setup_installs(tmp_path: Path) -> None:
    files = {"own/__init__.py": "def ask():\n    input()\n", "tools/run.py": "import own\nown.ask()\n"}
    with_files(tmp_path, files)
    fields: dict[str, Any] = {"boot_file": "tools/run.py", **GPUS}
    assert "no-terminal" in found(tmp_path, "", setup="python setup.py build develop --no-deps", **fields)
    assert "no-terminal" not in found(tmp_path, "", **fields)


OWN_NAME = """
from transformers import HfArgumentParser, Trainer, TrainingArguments
from dataclasses import dataclass
@dataclass
class TrainingArguments(TrainingArguments):
    longest: int = 512
(args,) = HfArgumentParser((TrainingArguments,)).parse_args_into_dataclasses()
"""


@pytest.mark.parametrize(("name", "is_wrong"), [("longest", False), ("learning_rate", False), ("shortest", True)])
def test_a_class_of_arguments_that_has_the_name_of_its_base(name: str, is_wrong: bool, tmp_path: Path) -> None:
    fields: dict[str, Any] = {"hyperparameters": {"output_dir": "/out", name: 1}, **GPUS}
    assert ("argument-unknown" in found(tmp_path, OWN_NAME, **fields)) is is_wrong
    assert not [one for one in findings(tmp_path, **fields) if "RecursionError" in one.text]


def test_a_folder_that_does_not_hide_an_installed_package(tmp_path: Path) -> None:
    text = "import sys\nsys.path.insert(0, 'src')\nfrom sets_of_others import Value\n{more}\nprint(Value)\n"
    with_files(tmp_path, {"src/sets_of_others/rows.py": "size = 1\n"})
    assert "imports" not in found(tmp_path, text.format(more=""))
    assert "imports" in found(tmp_path, text.format(more="import sets_of_others.rows"))


ASKED_EARLY = """
import deepspeed, torch
{early}
deepspeed.init_distributed()
rank = torch.distributed.get_rank()
"""


@pytest.mark.parametrize(("early", "is_wrong"), [("rank = torch.distributed.get_rank()", True), ("rank = 0", False)])
def test_a_rank_that_is_asked_before_deepspeed_makes_the_group(early: str, is_wrong: bool, tmp_path: Path) -> None:
    assert ("no-init" in found(tmp_path, ASKED_EARLY.format(early=early), **GPUS)) is is_wrong


@pytest.mark.parametrize(("steps", "is_wrong"), [(2, True), (1, False)])
def test_sizes_of_batches_in_a_file_of_arguments(steps: int, is_wrong: bool, tmp_path: Path) -> None:
    given = {"per_device_train_batch_size": 2, "gradient_accumulation_steps": steps, "deepspeed": "./ds.json"}
    sizes = {"train_batch_size": 8, "train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": steps}
    with_files(tmp_path, {"args.json": json.dumps(given), "ds.json": json.dumps(sizes)})
    text = "import sys, transformers\nparser = transformers.HfArgumentParser(transformers.TrainingArguments)\n"
    text += "(args,) = parser.parse_json_file(sys.argv[1])\n"
    fields: dict[str, Any] = {"args": ["args.json"], "resources": TWO, **GPUS}
    assert ("deepspeed-batch" in found(tmp_path, text, **fields)) is is_wrong


@pytest.mark.parametrize(("start", "is_wrong"), [("fabric run --num-nodes=2", False), ("torchrun --nnodes=2", True)])
def test_nodes_that_the_launcher_of_fabric_gives(start: str, is_wrong: bool, tmp_path: Path) -> None:
    text = "import lightning as L\nfabric = L.Fabric(devices=2, strategy='ddp')\nfabric.launch()\n"
    command = f"{start} --node-rank=0 --rdzv-backend=c10d train.py" if is_wrong else f"{start} --devices=2 train.py"
    assert ("lightning-nodes" in found(tmp_path, text, command=command, **GPUS)) is is_wrong


@pytest.mark.parametrize(("more", "is_wrong"), [("return x", False), ("return x.to(self.device)", True)])
def test_a_device_that_an_object_keeps(more: str, is_wrong: bool, tmp_path: Path) -> None:
    text = f"""{IMPORTED}
class Executor:
    def __init__(self):
        self.device = torch.device("cuda:{{}}".format(int(os.environ["RANK"])))
    def run(self, x):
        {more}
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
dist.init_process_group("nccl")
Executor().run(torch.zeros(3))
"""
    assert ("rank-as-device" in found(tmp_path, text, **GPUS)) is is_wrong
