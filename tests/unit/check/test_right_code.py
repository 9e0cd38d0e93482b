"""Correct programs that look like mistakes which the checks find: nothing is said of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from checked import GPUS, IMPORTED, RESTARTED, STARTED, findings, found, with_files

DATA = """
data = TensorDataset(torch.rand(64, 4))
sampler = DistributedSampler(data)
loader = DataLoader(data, batch_size=8, sampler=sampler)
"""
MODEL = """
model = DDP(nn.Linear(4, 1).cuda())
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
"""
LOOP = """
for epoch in range(3):
    sampler.set_epoch(epoch)
    for batch, in loader:
        optimizer.zero_grad()
        model(batch.cuda()).mean().backward()
        optimizer.step()
"""
START = 'torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))\ndist.init_process_group("nccl")\n'
BY_ENVIRONMENT = """
def get_world_size():
    return dist.get_world_size() if dist.is_initialized() else int(os.environ.get("WORLD_SIZE", 1))
def get_rank():
    return dist.get_rank() if dist.is_initialized() else int(os.environ.get("RANK", 0))
data = TensorDataset(torch.rand(64, 4))
sampler = DistributedSampler(data, num_replicas=get_world_size(), rank=get_rank())
loader = DataLoader(data, batch_size=8, sampler=sampler)
"""
MADE_BY_QUESTION = f"""
def setup():
    if dist.is_initialized():
        return True
    if "RANK" not in os.environ:
        return False
    {START.replace(chr(10), "; ").strip("; ")}
    return True
distributed = setup()
data = TensorDataset(torch.rand(64, 4))
sampler = DistributedSampler(data) if distributed else None
loader = DataLoader(data, batch_size=8, sampler=sampler, shuffle=sampler is None)
"""


@pytest.mark.parametrize(
    "text", [BY_ENVIRONMENT + START + MODEL + LOOP, MADE_BY_QUESTION + MODEL + LOOP], ids=["environment", "makes"]
)
def test_questions_before_the_group_with_right_answers(tmp_path: Path, text: str) -> None:
    assert "no-init" not in found(tmp_path, IMPORTED + text, **GPUS)


ENCODER = """
from transformers import BertConfig, BertModel
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.bert = BertModel(BertConfig(){without})
        self.head = nn.Linear(768, 2)
    def forward(self, x):
        return self.head(self.bert(x).last_hidden_state[:, 0])
net = Net().cuda()
{wraps}
"""


@pytest.mark.parametrize(
    ("without", "wraps"), [(", False", "model = DDP(net)"), ("", "net.head = DDP(net.head)\nmodel = net")]
)
def test_a_pooler_that_is_not_there_or_not_wrapped(tmp_path: Path, without: str, wraps: str) -> None:
    text = STARTED + ENCODER.format(without=without, wraps=wraps)
    assert "unused-parameters" not in found(tmp_path, text, **GPUS)


def test_a_setup_that_is_not_that_of_a_fabric(tmp_path: Path) -> None:
    text = "import lightning as L\nfabric = L.Fabric(num_nodes=2, devices=2)\nclass Trainer:\n    def setup(self):\n"
    text += "        self.model = DDP(nn.Linear(4, 1).cuda())\ntrainer = Trainer()\ntrainer.setup()\n"
    assert "not-launched" not in found(tmp_path, STARTED + text, **GPUS)


PREPARED = """
from accelerate import Accelerator
def wrap(accelerator, net):
    return accelerator.prepare(nn.SyncBatchNorm.convert_sync_batchnorm(net))
accelerator = Accelerator({steps})
model = nn.Linear(4, 1)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
loader = DataLoader(TensorDataset(torch.rand(64, 4)), batch_size=8, shuffle=True)
{prepares}
for epoch in range(2):
    for b, in loader:
        with accelerator.accumulate({trained}):
            accelerator.backward({trained}(b).mean())
            {stepping}
    with torch.no_grad():
        print(model(b))
"""
REST = "optimizer, loader = accelerator.prepare(optimizer, loader)"
STEPS = "optimizer.step(); optimizer.zero_grad()"


@pytest.mark.parametrize(
    ("prepares", "trained", "stepping", "steps"),
    [
        (f"model = wrap(accelerator, model)\n{REST}", "model", STEPS, ""),
        (f"model = accelerator.prepare_model(model)\n{REST}", "model", STEPS, ""),
        (f"model = DDP(model)\n{REST}", "model", STEPS, ""),
        ("c = torch.compile(model)\nc, optimizer, loader = accelerator.prepare(c, optimizer, loader)", "c", STEPS, ""),
        (
            "model, loader = accelerator.prepare(model, loader)",
            "model",
            f"if accelerator.sync_gradients: {STEPS}",
            "gradient_accumulation_steps=4",
        ),
    ],
)
def test_what_is_prepared_otherwise(tmp_path: Path, prepares: str, trained: str, stepping: str, steps: str) -> None:
    text = PREPARED.format(prepares=prepares, trained=trained, stepping=stepping, steps=steps)
    assert "not-prepared" not in found(tmp_path, IMPORTED + text, **GPUS)


COUNTING = """
class Trainer:
    def __init__(self):
        data = TensorDataset(torch.rand(64, 4))
        self.loader = DataLoader(data, batch_size=8, sampler=DistributedSampler(data))
        self.model = DDP(nn.Linear(4, 1).cuda())
        self.epoch, self.hooks = int(os.environ.get("FIRST", 0)), [self.count]
    def fit(self):
        while self.epoch < 5:
            self.loader.sampler.set_epoch(self.epoch)
            for batch, in self.loader:
                self.model(batch.cuda()).mean().backward()
            {counts}
    def after_epoch(self):
        self.count()
    def count(self):
        self.epoch += 1
Trainer().fit()
"""


@pytest.mark.parametrize("counts", ["self.after_epoch()", "for hook in self.hooks: hook()"])
def test_an_epoch_that_a_method_counts(tmp_path: Path, counts: str) -> None:
    assert "set-epoch" not in found(tmp_path, STARTED + COUNTING.format(counts=counts), **GPUS)


KEPT = """
import shutil
from pathlib import Path
out, start = os.environ["JOBSUBMIT_CHECKPOINT_DIR"], 0
latest = os.path.join(out, "latest.pt")
if os.path.exists(latest):
    state = torch.load(latest, map_location="cpu")
    model.module.load_state_dict(state["model"])
    start = state["epoch"]
for epoch in range(start, 3):
    model(torch.rand(8, 4).cuda()).mean().backward()
    if rank == 0:
        state = {{"model": model.module.state_dict(), "epoch": epoch + 1}}
        {saves}
"""


@pytest.mark.parametrize(
    "saves",
    [
        'torch.save(state, os.path.join(out, "a.pt")); shutil.copyfile(os.path.join(out, "a.pt"), latest)',
        'torch.save(state, os.path.join(out, "new.tmp.pt")); os.replace(os.path.join(out, "new.tmp.pt"), latest)',
        'torch.save(state, latest + ".tmp"); os.rename(latest + ".tmp", latest)',
        'path = Path(out) / f"{epoch:04d}.pt"; torch.save(state, path); (Path(out) / "latest.pt").symlink_to(path)',
        'path = Path(out) / "last.pt.tmp"; torch.save(state, path); path.replace(latest)',
    ],
)
def test_a_checkpoint_that_gets_its_name_later(tmp_path: Path, saves: str) -> None:
    seen = found(tmp_path, STARTED + MODEL + KEPT.format(saves=saves), **RESTARTED)
    assert "no-checkpoint" not in seen


FOLDERS = """
import shutil
def clean(path):
    shutil.rmtree(path, ignore_errors=True)
class Saver:
    made = False
    def save(self, folder):
        {makes}
saver = Saver()
def train(folder):
    if rank == 0:
        saver.save(folder)
    model(torch.rand(8, 4).cuda()).mean().backward()
for {number} in range(3):
    train({path})
"""


@pytest.mark.parametrize(
    ("makes", "number", "path"),
    [
        ("os.makedirs(folder)", "fold", 'os.path.join("cv", f"fold{fold}")'),
        ("clean(folder); os.makedirs(folder)", "_", '"out"'),
        ("if not self.made: os.makedirs(folder)", "_", '"out"'),
    ],
)
def test_folders_that_are_new_in_each_call(tmp_path: Path, makes: str, number: str, path: str) -> None:
    text = FOLDERS.format(makes=makes, number=number, path=path)
    assert "made-again" not in found(tmp_path, STARTED + MODEL + text, **GPUS)


FUNCTIONS = """
def exclude(p):
    return p.ndim == 1
class Own(torch.optim.Optimizer):
    def __init__(self, params, lr, fn):
        {starts}
    def step(self):
        pass
    {more}
model = DDP(nn.Linear(4, 1).cuda())
optimizer = Own(model.parameters(), 0.1, exclude)
if os.path.exists("/shared/last.pt"):
    state = torch.load("/shared/last.pt")
    optimizer.load_state_dict(state["optimizer"])
for epoch in range(3):
    model(torch.rand(8, 4).cuda()).mean().backward()
    if rank == 0:
        torch.save({{"optimizer": optimizer.state_dict()}}, "/shared/last.pt")
"""


@pytest.mark.parametrize(
    ("starts", "more"),
    [
        ('super().__init__(params, dict(lr=lr)); self.hooks = {"skip": fn}', ""),
        ("super().__init__(params, dict(lr=fn(0)))", ""),
        ("super().__init__(params, dict(lr=lr, fn=fn))", "def state_dict(self): return {}"),
    ],
)
def test_functions_that_the_groups_of_an_optimizer_do_not_keep(tmp_path: Path, starts: str, more: str) -> None:
    text = STARTED + FUNCTIONS.format(starts=starts, more=more)
    assert "pickled-object" not in found(tmp_path, text, torch_version="2.7", **GPUS)


BY_FILES = """
def validate(model):
    val_loader = DataLoader(data, batch_size=8, sampler=DistributedSampler(data, shuffle=False))
    predicted = []
    with torch.no_grad():
        for b, in val_loader:
            predicted.append(model(b.cuda()))
    torch.save(torch.cat(predicted).cpu(), f"/shared/predicted{rank}.pt")
    dist.barrier()
    return torch.cat([torch.load(f"/shared/predicted{r}.pt") for r in range(dist.get_world_size())]).mean().item()
print(validate(model))
"""


def test_results_that_files_bring_together(tmp_path: Path) -> None:
    assert "part-as-whole" not in found(tmp_path, STARTED + DATA + MODEL + LOOP + BY_FILES, **GPUS)


ACCUMULATED = """
from lightning.fabric import Fabric
fabric = Fabric(devices=2, num_nodes=2)
fabric.launch()
model = nn.Linear(4, 1)
model, optimizer = fabric.setup(model, torch.optim.SGD(model.parameters(), lr=0.1))
step, n = 0, 4
for number in range(100):
    {counts}
    with fabric.no_backward_sync(model, enabled={counter} % n != 0):
        fabric.backward(model(torch.rand(8, 4)).mean())
    {then}
    if {last} % n == 0:
        optimizer.step()
"""


@pytest.mark.parametrize(
    ("counts", "counter", "then", "last"),
    [("pass", "(step + 1)", "step += 1", "step"), ("micro = number + 1", "micro", "pass", "(number + 1)")],
)
def test_the_same_step_by_another_number(tmp_path: Path, counts: str, counter: str, then: str, last: str) -> None:
    text = IMPORTED + ACCUMULATED.format(counts=counts, counter=counter, then=then, last=last)
    assert "never-synchronized" not in found(tmp_path, text, **GPUS)


@pytest.mark.parametrize(
    "groups",
    [
        "a = dist.new_group([0, 1]); b = dist.new_group([2, 3])\n"
        "dist.all_reduce(t, group=a); dist.all_reduce(t, group=b)",
        "a = dist.new_group([0, 1]); dist.barrier(group=a)",
        "a = dist.new_group([0, 1])\nif dist.get_rank(a) >= 0: dist.all_reduce(t, group=a)",
    ],
)
def test_groups_that_are_meant_for_some_ranks(tmp_path: Path, groups: str) -> None:
    assert "other-group" not in found(tmp_path, f"{STARTED}t = torch.ones(1).cuda()\n{groups}\n", **GPUS)


UNWRAPPED = """
net = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)).cuda()
model = DDP(net)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
def evaluate(model=None):
    if model is None:
        model = net
    else:
        model = model.module
    with torch.no_grad():
        return model(torch.rand(8, 4).cuda()).mean().item()
"""


def test_a_model_that_a_function_unwraps(tmp_path: Path) -> None:
    text = f"{STARTED}{DATA}{UNWRAPPED}{LOOP}    if rank == 0:\n        print(evaluate(model))\n"
    assert "rank-0-collective" not in found(tmp_path, text, **GPUS)


def test_a_launcher_that_only_prepares(tmp_path: Path) -> None:
    script = "torchrun --nproc_per_node 1 prepare.py\ntorchrun --nproc_per_node 2 train.py\n"
    with_files(tmp_path, {"start.sh": script, "train.py": IMPORTED, "prepare.py": IMPORTED})
    seen = findings(tmp_path, command=["bash", "start.sh"], resources={"nodes": 1, "nproc_per_node": 2})
    assert "launcher-processes" not in {one.check for one in seen}


@pytest.mark.parametrize(
    "text",
    [
        "models.small = nets.small\nnet = models.__dict__[name]()",
        "make = models.__dict__[name] if name in models.__dict__ else nets.small",
    ],
)
def test_names_that_a_module_gets_or_is_asked_for(tmp_path: Path, text: str) -> None:
    with_files(tmp_path, {"models/__init__.py": "", "nets.py": "def small():\n    pass\n"})
    assert "imports" not in found(tmp_path, f'{IMPORTED}import models, nets\nname = "small"\n{text}\n')


JSONARGPARSE = """
from typing import List, Optional
from jsonargparse import CLI
def main(name: str, amp: bool = False, tags: Optional[List[str]] = None):
    print(name)
CLI(main)
"""


@pytest.mark.parametrize("args", [["--config=/shared/c.yaml"], ["a", "--amp", "TRUE"], ["a", "--tags+=x"]])
def test_words_that_jsonargparse_takes(tmp_path: Path, args: list[str]) -> None:
    (tmp_path / "train.py").write_text(JSONARGPARSE)
    assert [one.text for one in findings(tmp_path, args=args, **GPUS) if one.level == "error"] == []


BY_SIGNS = """
model = nn.Linear(4, 1).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
def exchange():
    for p in model.parameters():
        signs = (p.grad > 0).to(torch.uint8)
        every = [torch.empty_like(signs) for _ in range(dist.get_world_size())]
        dist.all_gather(every, signs)
        p.grad.copy_(torch.stack(every).float().mean(0))
for step in range(10):
    optimizer.zero_grad()
    model(torch.rand(8, 4).cuda()).mean().backward()
    exchange()
    optimizer.step()
"""


def test_gradients_that_are_exchanged_as_bytes(tmp_path: Path) -> None:
    assert "never-synchronized" not in found(tmp_path, STARTED + BY_SIGNS, **GPUS)


TAKEN = """
COUNT=8
for word in "$@"; do
  case $word in
    --gpus=*) COUNT=${word#--gpus=};;
  esac
done
torchrun --nproc_per_node $COUNT train.py
"""


def test_arguments_that_a_script_takes_for_its_launcher(tmp_path: Path) -> None:
    with_files(tmp_path, {"start.sh": TAKEN, "train.py": IMPORTED})
    fields: dict[str, Any] = {"args": ["--gpus=2"], "resources": {"nodes": 1, "nproc_per_node": 2}}
    seen = findings(tmp_path, command=["bash", "start.sh"], **fields)
    assert "arguments-dropped" not in {one.check for one in seen}


OF_SETTINGS = "while [ $# -gt 0 ]; do\n  case $1 in\n    {} *) shift;;\n  esac\ndone"
LAUNCH = "torchrun --nproc_per_node={} --master_port={} train.py"


@pytest.mark.parametrize(
    ("argument", "script", "is_dropped"),
    [
        ("29511", "PORT=$1\n" + LAUNCH.format(2, "$PORT"), False),
        ("2", "GPUS=${1:-8}\n" + LAUNCH.format("$GPUS", 29500), False),
        ("65536", "ulimit -n $1\n" + LAUNCH.format(2, 29500), False),
        ("big.yaml", "cp $1 config.yaml\n" + LAUNCH.format(2, 29500), False),
        ("big.yaml", "echo $1\n" + LAUNCH.format(2, 29500), True),
        ("train", 'MODE=$1\nif [ "$MODE" = train ]; then\n' + LAUNCH.format(2, 29500) + "\nfi", False),
        ("--debug", OF_SETTINGS.format("--debug) export A=1; shift;;") + "\n" + LAUNCH.format(2, 29500), False),
        ("--port=1", OF_SETTINGS.format("--port=*) PORT=${1#*=}; shift;;") + "\n" + LAUNCH.format(2, "$PORT"), False),
        ("--batch=1", OF_SETTINGS.format("--batch=*) BATCH=${1#*=}; shift;;") + "\n" + LAUNCH.format(2, 29500), True),
    ],
)
def test_arguments_that_a_script_needs_itself(argument: str, script: str, is_dropped: bool, tmp_path: Path) -> None:
    with_files(tmp_path, {"start.sh": script, "train.py": IMPORTED, "big.yaml": ""})
    fields: dict[str, Any] = {"args": [argument], "resources": {"nodes": 1, "nproc_per_node": 2}}
    seen = findings(tmp_path, command=["bash", "start.sh"], **fields)
    assert ("arguments-dropped" in {one.check for one in seen}) is is_dropped


BOTH_WAYS = """
from torch.utils.checkpoint import checkpoint
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([nn.Linear(4, 4) for _ in range(4)])
    def forward(self, x):
        for block in self.blocks:
            if torch.rand(1).item() < 0.5:
                x = checkpoint(block, x, use_reentrant=False)
                continue
            x = block(x)
        return x
model = DDP(Net().cuda())
"""


def test_a_layer_that_is_used_both_ways(tmp_path: Path) -> None:
    assert "unused-parameters" not in found(tmp_path, STARTED + BOTH_WAYS, **GPUS)


INNER = """
def main():
    def again(n):
        if n > 0:
            again(n - 1)
    again(3)
"""


@pytest.mark.parametrize("is_set", [True, False])
def test_the_epochs_of_a_function_that_begins_with_others(tmp_path: Path, is_set: bool) -> None:
    steps = LOOP if is_set else LOOP.replace("sampler.set_epoch", "print")
    main = INNER + steps.strip().replace("\n", "\n    ").join(["    ", "\nmain()\n"])
    assert ("set-epoch" in found(tmp_path, STARTED + DATA + MODEL + main, **GPUS)) is not is_set


MADE_BEFORE = """
from pathlib import Path
def prepare(root):
    if rank == 0:
        {first}
    dist.barrier()
class Trainer:
    def __init__(self, root):
        self.folder = os.path.join(root, "ckpt")
        if not os.path.exists(self.folder):
            os.makedirs(self.folder)
prepare("out")
Trainer("out")
"""


@pytest.mark.parametrize(
    ("first", "is_wrong"),
    [
        ('os.makedirs(os.path.join("out", "ckpt"), exist_ok=True)', False),
        ('Path(root).joinpath("ckpt").mkdir(parents=True, exist_ok=True)', False),
        ('os.makedirs("logs", exist_ok=True)', True),
    ],
)
def test_a_folder_that_rank_0_makes_before_all_look_for_it(tmp_path: Path, first: str, is_wrong: bool) -> None:
    seen = found(tmp_path, STARTED + MODEL + MADE_BEFORE.format(first=first), **GPUS)
    assert ("made-by-all" in seen) is is_wrong


KEPT_IN_MIND = """
done = set()
def save():
    if rank == 0:
        if {test}:
            os.mkdir("out")
            done.add("out")
for epoch in range(3):
    model(torch.rand(8, 4).cuda()).mean().backward()
    save()
"""


@pytest.mark.parametrize(("test", "is_wrong"), [('"out" not in done', False), ("model.training", True)])
def test_a_folder_of_which_a_program_knows_that_it_made_it(tmp_path: Path, test: str, is_wrong: bool) -> None:
    seen = found(tmp_path, STARTED + MODEL + KEPT_IN_MIND.format(test=test), **GPUS)
    assert ("made-again" in seen) is is_wrong


ASKS_FIRST = """
def ready():
    return dist.is_available() and dist.is_initialized()
def info(text):
    if {asks}dist.get_rank() == 0:
        print(text)
info("starts")
dist.init_process_group("nccl")
info("goes on")
"""


@pytest.mark.parametrize(("asks", "is_wrong"), [("not ready() or ", False), ("", True)])
def test_a_rank_that_is_asked_for_where_there_may_be_a_group(tmp_path: Path, asks: str, is_wrong: bool) -> None:
    assert ("no-init" in found(tmp_path, IMPORTED + ASKS_FIRST.format(asks=asks), **GPUS)) is is_wrong


MADE_TO_TEST = """
def get_loader(data, shuffle):
    return DataLoader(data, batch_size=8, sampler=DistributedSampler(data) if shuffle else None)
def {name}(model):
    total = 0.0
    for x, in get_loader(data, shuffle=False):
        total += model(x.cuda()).mean().item()
    return total
{name}(model.module)
"""


@pytest.mark.parametrize(("name", "is_wrong"), [("validate", False), ("fit", True)])
def test_a_loader_that_only_a_validation_makes(tmp_path: Path, name: str, is_wrong: bool) -> None:
    text = STARTED + DATA + MODEL + LOOP + MADE_TO_TEST.format(name=name)
    assert ("no-sampler" in found(tmp_path, text, **GPUS)) is is_wrong
