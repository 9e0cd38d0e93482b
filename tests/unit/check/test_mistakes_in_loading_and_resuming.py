"""Mistakes and false alarms in loading data, in resuming, and in what libraries are given."""

from __future__ import annotations

from pathlib import Path

import pytest
from checked import GPUS, IMPORTED, RESTARTED, STARTED, TWO, findings, found, with_files

BY_FIELD = """
def main(args):
    args.epoch = torch.load("/shared/out/start.pt")
    data = TensorDataset(torch.rand(64, 4))
    sampler = DistributedSampler(data)
    model = DDP(nn.Linear(4, 1).cuda())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    train(model, DataLoader(data, batch_size=8, sampler=sampler), sampler, optimizer, args)
def train(model, loader, sampler, optimizer, args):
    for epoch in range(args.epoch, 10):
        sampler.set_epoch({epoch})
        for batch, in loader:
            optimizer.zero_grad()
            model(batch.cuda()).mean().backward()
            optimizer.step()
parser = argparse.ArgumentParser()
main(parser.parse_args())
"""


@pytest.mark.parametrize(("epoch", "is_wrong"), [("args.epoch", True), ("epoch", False)])
def test_an_epoch_from_an_argument_that_another_function_sets(tmp_path: Path, epoch: str, is_wrong: bool) -> None:
    assert ("set-epoch" in found(tmp_path, STARTED + BY_FIELD.format(epoch=epoch), **GPUS)) is is_wrong


BESIDE_METRICS = """
from metrics.recall import recall
data = TensorDataset(torch.rand(64, 4))
sampler = DistributedSampler(data)
model = DDP(nn.Linear(4, 1).cuda())
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(10):
    sampler.set_epoch(epoch)
    for batch, in DataLoader(data, batch_size=8, sampler=sampler):
        optimizer.zero_grad()
        model(batch.cuda()).mean().backward()
        optimizer.step()
    print(recall(data))
"""
RECALL = """
from torch.utils.data import DataLoader
def recall(data, size=8):
    def batches():
        loader = DataLoader(data, batch_size=size, shuffle=False)
        for x in loader:
            yield x
    return sum(len(x) for x in batches())
"""


def test_a_loader_in_a_file_of_metrics(tmp_path: Path) -> None:
    with_files(tmp_path, {"metrics/__init__.py": "", "metrics/recall.py": RECALL})
    assert "no-sampler" not in found(tmp_path, STARTED + BESIDE_METRICS, **GPUS)


FOLDERS = """
def settings():
    parser = argparse.ArgumentParser()
    parser.add_argument("--name", default="first")
    args = parser.parse_args()
    args.output = os.path.join("/shared/out", args.name)
    args.board = os.path.join("/shared/out", "board", args.name)
    make(args)
    return args
def make(args):
    os.makedirs(args.output, exist_ok=True)
    os.makedirs({second})
settings()
model = DDP(nn.Linear(4, 1).cuda())
model(torch.rand(8, 4).cuda()).mean().backward()
"""


@pytest.mark.parametrize(
    ("second", "is_wrong"),
    [("args.board", True), ("args.board, exist_ok=True", False), ("args.output", False)],
)
def test_a_folder_beside_one_that_may_exist(tmp_path: Path, second: str, is_wrong: bool) -> None:
    assert ("made-by-all" in found(tmp_path, STARTED + FOLDERS.format(second=second), **GPUS)) is is_wrong


STAGES = """
def words(path="lists/words.txt"):
    with open(path) as stream:
        return stream.read().split()
for stage in "02":
    long_id = f"{time.time()}_{stage}"
    def make_loader(size):
        data = TensorDataset(torch.rand(len(words()), 4))
        return DataLoader(data, batch_size=size, sampler=DistributedSampler(data))
    if stage == "0":
        loader = DataLoader(TensorDataset(torch.rand(8, 4)))
    else:
        loader = make_loader(8)
    model = Net(long_id)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    wrapped = DDP(model.cuda())
    step = model.load("/shared/out/last.pt")
    while step < 100:
        for batch, in loader:
            optimizer.zero_grad()
            wrapped(batch.cuda()).mean().backward()
            optimizer.step()
            step += 1
            if step >= 100:
                break
"""
NET = """
class Net(nn.Module):
    def __init__(self, name):
        super().__init__()
        self.name, self.layer = name, nn.Linear(4, 1)
    def forward(self, x):
        return self.layer(x)
    def load(self, path):
        return torch.load(path)["step"]
"""


def test_a_function_that_a_loop_of_a_script_defines(tmp_path: Path) -> None:
    with_files(tmp_path, {"lists/words.txt": "a b c\n", ".gitignore": "*.txt\n"})
    (tmp_path / "train.py").write_text(STARTED + NET + STAGES)
    assert [one.where for one in findings(tmp_path, **GPUS) if one.check == "left-out"] == ["train.py:22"]


def test_a_number_of_steps_from_a_model_that_is_named_by_the_time(tmp_path: Path) -> None:
    assert "left-by-one" not in found(tmp_path, STARTED + NET + STAGES, **GPUS)


LAST = """
from pytorch_lightning import LightningModule, Trainer
from pytorch_lightning.callbacks import ModelCheckpoint
class Module(LightningModule):
    def training_step(self, batch, number):
        return batch[0].mean()
folder = "/shared/out/checkpoints"
last = f"{{folder}}/last.ckpt"
if not os.path.exists(last):
    last = None
best = ModelCheckpoint(monitor="loss", save_last=True{best})
each = ModelCheckpoint(dirpath=folder, every_n_epochs=1)
trainer = Trainer(devices=2, num_nodes=2, callbacks=[best, each])
trainer.fit(Module(), DataLoader(TensorDataset(torch.rand(64, 4))), ckpt_path=last)
"""


@pytest.mark.parametrize(("best", "is_wrong"), [("", True), (", dirpath=folder", False)])
def test_the_last_checkpoint_of_lightning_in_a_folder_of_the_run(tmp_path: Path, best: str, is_wrong: bool) -> None:
    assert ("no-checkpoint" in found(tmp_path, IMPORTED + LAST.format(best=best), **RESTARTED)) is is_wrong


WITH_FUNCTIONS = """
def is_weight(p):
    return p.ndim > 1
class LARS(torch.optim.Optimizer):
    def __init__(self, params, lr, weight_decay=0, weight_decay_filter=None):
        defaults = dict(lr=lr, weight_decay=weight_decay, {keeps})
        super().__init__(params, defaults)
    def step(self):
        pass
model = DDP(nn.Linear(4, 1).cuda())
optimizer = LARS(model.parameters(), lr=0.1, weight_decay_filter=is_weight)
start = 0
if os.path.exists("/shared/out/model.pt"):
    state = torch.load("/shared/out/model.pt", map_location="cpu")
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    start = state["epoch"]
for epoch in range(start, 10):
    optimizer.zero_grad()
    model(torch.rand(8, 4).cuda()).mean().backward()
    optimizer.step()
    if rank == 0:
        torch.save({{"epoch": epoch + 1, "model": model.state_dict(), "optimizer": optimizer.state_dict()}},
                   "/shared/out/model.pt")
"""


@pytest.mark.parametrize(("keeps", "is_wrong"), [("filter=weight_decay_filter", True), ("nesterov=False", False)])
def test_a_function_in_the_groups_of_an_optimizer(tmp_path: Path, keeps: str, is_wrong: bool) -> None:
    text = STARTED + WITH_FUNCTIONS.format(keeps=keeps)
    assert ("pickled-object" in found(tmp_path, text, torch_version="2.7", **GPUS)) is is_wrong


COUNTED = """
class Params:
    def __init__(self):
        self.epochs, self.path = 10, "/shared/out/model.pt"
class Trainer:
    def __init__(self, params):
        self.params = params
        self.start = 0
        self.model = DDP(nn.Linear(4, 1).cuda())
        if os.path.exists(params.path):
            self.load(params.path)
        self.epoch = self.start
    def load(self, path):
        state = torch.load(path, map_location="cpu")
        self.model.load_state_dict(state["model"])
        self.start = state["epoch"]
    def train(self):
        for epoch in range(self.start, self.params.epochs):
            self.model(torch.rand(8, 4).cuda()).mean().backward()
            if rank == 0:
                torch.save({"epoch": self.epoch, "model": self.model.state_dict()}, self.params.path)
params = Params()
Trainer(params).train()
"""


def test_a_number_beside_an_object_of_settings_is_no_object(tmp_path: Path) -> None:
    assert "pickled-object" not in found(tmp_path, STARTED + COUNTED, torch_version="2.7", **GPUS)


WHOLE = """
def make_loader(train):
    data = TensorDataset(torch.rand(64, 4))
    sampler = DistributedSampler(data, shuffle=train)
    return DataLoader(data, batch_size=8, sampler=sampler if train else None), sampler
def validate(model, loader):
    total = 0.0
    with torch.no_grad():
        for x, in loader:
            total += model(x.cuda()).mean().item()
    return total
loader, sampler = make_loader(True)
val_loader, _ = make_loader(False)
model = DDP(nn.Linear(4, 1).cuda())
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(10):
    sampler.set_epoch(epoch)
    for x, in loader:
        optimizer.zero_grad()
        model(x.cuda()).mean().backward()
        optimizer.step()
    print(validate(model, val_loader))
"""


def test_a_sampler_for_the_training_only(tmp_path: Path) -> None:
    assert "part-as-whole" not in found(tmp_path, STARTED + WHOLE, **GPUS)


METERS = """
class Meter:
    def __init__(self):
        self.sum = self.count = 0
    def update(self, value, n=1):
        self.sum, self.count = self.sum + value * n, self.count + n
    @property
    def avg(self):
        return self.sum / self.count
def gathered(figures):
    every = []
    for one in figures:
        parts = [torch.zeros_like(one) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, one)
        every.append(torch.stack(parts))
    return every
def validate(model, loader, args):
    accuracy = Meter()
    with torch.no_grad():
        for x, in loader:
            found, size = model(x.cuda()).mean(), torch.tensor(len(x)).cuda()
            if args.distributed:
                {combines}
            else:
                accuracy.update(found.cpu().numpy(), n=size.cpu().numpy())
    return accuracy.avg
parser = argparse.ArgumentParser()
parser.add_argument("--distributed", action="store_true")
args = parser.parse_args()
data = TensorDataset(torch.rand(64, 4))
model = DDP(nn.Linear(4, 1).cuda())
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(10):
    optimizer.zero_grad()
    model(torch.rand(8, 4).cuda()).mean().backward()
    optimizer.step()
    print(validate(model, DataLoader(data, sampler=DistributedSampler(data, shuffle=False)), args))
"""
GATHERED = """
                every, sizes = gathered([found, size])
                for one, n in zip(every, sizes):
                    accuracy.update(one, n=n)
"""


def test_figures_that_a_loop_takes_from_what_is_gathered(tmp_path: Path) -> None:
    right = found(tmp_path, STARTED + METERS.format(combines=GATHERED.strip()), **GPUS)
    assert "part-as-whole" not in right


DROPPED = """
launch() {{
    torchrun --nnodes="$NNODES" --node_rank="$NODE_RANK" --nproc_per_node="$NPROC_PER_NODE" \\
        --master_addr="$MASTER_ADDR" --master_port="$MASTER_PORT" train.py "$@"
}}
launch --out /shared/out {rest}
"""


@pytest.mark.parametrize(("rest", "is_wrong"), [("", True), ('"$@"', False)])
def test_arguments_of_a_script_beside_those_of_its_function(tmp_path: Path, rest: str, is_wrong: bool) -> None:
    options = "\n".join(f'parser.add_argument("--{one}")' for one in ("out", "batch", "size"))
    text = f"{IMPORTED}\nparser = argparse.ArgumentParser()\n{options}\nargs = parser.parse_args()\n"
    with_files(tmp_path, {"start.sh": DROPPED.format(rest=rest), "train.py": text})
    given = {"batch": 2, "size": 512}  # as many as there are nodes
    seen = findings(tmp_path, command=["bash", "start.sh"], hyperparameters=given, resources=TWO)
    assert ("arguments-dropped" in {one.check for one in seen}) is is_wrong


CONTRASTED = """
class Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        every = [torch.zeros_like(x) for _ in range(dist.get_world_size())]
        dist.all_gather(every, x)
        return tuple(every)
    @staticmethod
    def backward(ctx, *grads):
        grads = torch.stack(grads)
        dist.all_reduce(grads)
        return grads[dist.get_rank()]
parser = argparse.ArgumentParser()
parser.add_argument("--dataparallel", type=int, default=0)
args = parser.parse_args()
torch.manual_seed(0)
model = nn.Linear(4, 4).cuda()
if args.dataparallel:
    model = nn.DataParallel(model, device_ids=[0])
else:
    model = DDP(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(10):
    optimizer.zero_grad()
    torch.cat(Gather.apply(model(torch.rand(8, 4).cuda()))).mean().backward()
    optimizer.step()
"""


@pytest.mark.parametrize(("value", "is_wrong"), [(1, True), (0, False)])
def test_a_layer_that_gathers_averages_no_gradients_of_parameters(tmp_path: Path, value: int, is_wrong: bool) -> None:
    seen = found(tmp_path, STARTED + CONTRASTED, hyperparameters={"dataparallel": value}, **GPUS)
    assert ("never-synchronized" in seen) is is_wrong


CODEBOOK = """
torch.manual_seed(0)
codes = torch.zeros(4).cuda()
def update(x):
    flatten = x.reshape(-1, 4)
    sums = flatten.transpose(0, 1).sum(1)
    dist.all_reduce(sums)
    codes.copy_(codes * 0.9 + sums * 0.1)
model = {wraps}(nn.Linear(4, 4).cuda())
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(10):
    optimizer.zero_grad()
    x = model(torch.rand(8, 4).cuda())
    update(x.detach())
    (x - codes).mean().backward()
    optimizer.step()
"""


@pytest.mark.parametrize(("wraps", "is_wrong"), [("", True), ("DDP", False)])
def test_sums_of_flat_features_are_no_gradients(tmp_path: Path, wraps: str, is_wrong: bool) -> None:
    assert ("never-synchronized" in found(tmp_path, STARTED + CODEBOOK.format(wraps=wraps), **GPUS)) is is_wrong


ACCELERATED = """
from accelerate import Accelerator
accelerator = Accelerator(gradient_accumulation_steps=4)
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader = DataLoader(TensorDataset(torch.rand(64, 4)), batch_size=8, shuffle=True)
{prepares}
for x, in loader:
    with accelerator.accumulate(model):
        loss = model(x.to(accelerator.device)).mean()
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
"""


@pytest.mark.parametrize(
    ("prepares", "is_wrong"),
    [
        ("model, loader = accelerator.prepare(model, loader)", True),
        ("optimizer, loader = accelerator.prepare(optimizer, loader)\nmodel.to(accelerator.device)", True),
        ("model, optimizer, loader = accelerator.prepare(model, optimizer, loader)", False),
        ("prepared = [model, optimizer, loader]\nmodel, optimizer, loader = accelerator.prepare(*prepared)", False),
    ],
)
def test_what_accelerate_must_prepare(tmp_path: Path, prepares: str, is_wrong: bool) -> None:
    assert ("not-prepared" in found(tmp_path, IMPORTED + ACCELERATED.format(prepares=prepares), **GPUS)) is is_wrong


TWO_SETS = """
data = TensorDataset(torch.rand(64, 4))
train_sampler = DistributedSampler(data)
{name} = DistributedSampler(data)
loader, loader_u = DataLoader(data, sampler=train_sampler), DataLoader(data, sampler={name})
model = DDP(nn.Linear(4, 1).cuda())
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(10):
    loader.sampler.set_epoch(epoch)
    {sets}
    for (x,), (y,) in zip(loader, loader_u):
        optimizer.zero_grad()
        (model(x.cuda()) - model(y.cuda())).mean().backward()
        optimizer.step()
"""


@pytest.mark.parametrize(
    ("name", "sets", "is_wrong"),
    [
        ("train_sampler_u", "pass", True),
        ("train_sampler_u", "loader_u.sampler.set_epoch(epoch)", False),
        ("memory_sampler", "pass", False),
    ],
)
def test_one_of_two_samplers_of_a_training_gets_no_epoch(tmp_path: Path, name: str, sets: str, is_wrong: bool) -> None:
    text = TWO_SETS.format(name=name, sets=sets)
    assert ("set-epoch" in found(tmp_path, STARTED + text, **GPUS)) is is_wrong


RENEWED = """
data = TensorDataset(torch.rand(64, 4))
def renew(size):
    train_sampler = DistributedSampler(data)
    return train_sampler, DataLoader(data, batch_size=size, sampler=train_sampler)
model = DDP(nn.Linear(4, 1).cuda())
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
train_sampler, loader = renew(8)
for epoch in range(10):
    if epoch == int(os.environ.get("LATER", 5)):
        train_sampler, loader = renew(16)
    train_sampler.set_epoch(epoch)
    for x, in loader:
        optimizer.zero_grad()
        model(x.cuda()).mean().backward()
        optimizer.step()
"""


def test_a_sampler_that_is_made_again(tmp_path: Path) -> None:
    assert "set-epoch" not in found(tmp_path, STARTED + RENEWED, **GPUS)


SPAWNED = """
def work(number, settings):
    if settings.together:
        dist.init_process_group("nccl", init_method="tcp://localhost:2345", world_size=2, rank=number)
    settings.rank = number
    torch.cuda.set_device(number)
    torch.manual_seed(0)
    record(settings)
    model = {wraps}(nn.Linear(4, 1).cuda())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(10):
        optimizer.zero_grad()
        model(torch.rand(8, 4).cuda()).mean().backward()
        optimizer.step()
def record(settings):
    if hasattr(settings, "rank"):
        if not settings.together or settings.rank == 0:
            with open("/shared/out/settings.txt", "w") as stream:
                stream.write("settings")
    else:
        with open("/shared/out/settings.txt", "w") as stream:
            stream.write("settings")
class Settings:
    def __init__(self, values):
        self.__dict__.update(values)
if __name__ == "__main__":
    settings = Settings(json.load(open("/shared/settings.json")))
    if settings.together:
        mp.spawn(work, nprocs=2, args=(settings,))
    else:
        work(0, settings)
"""


@pytest.mark.parametrize(("wraps", "seen"), [("", {"never-synchronized"}), ("DDP", set[str]())])
def test_a_function_that_is_spawned_or_called(tmp_path: Path, wraps: str, seen: set[str]) -> None:
    fields = {**GPUS, "command": ["python", "train.py"], "resources": {"nodes": 1, "nproc_per_node": 2}}
    assert found(tmp_path, IMPORTED + SPAWNED.format(wraps=wraps), **fields) == seen
