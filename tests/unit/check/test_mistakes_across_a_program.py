"""Mistakes, and what only looks like one, that the whole program shows and no single function."""

from __future__ import annotations

from pathlib import Path

import pytest
from checked import GPUS, IMPORTED, STARTED, findings, found, with_files

# Loaders of a function that also makes those of the validation, or that nobody uses.
LOADERS = f"""{STARTED}
def get_loader(split):
    data = TensorDataset(torch.rand(64, 4))
    if split == "val":
        return data, DataLoader(data, batch_size=1, sampler=DistributedSampler(data, shuffle=False))
    else:
        return data, DataLoader(data, batch_size=4, {{train}})
_, train_loader = get_loader("train")
_, val_loader = get_loader("val")
net = DDP(nn.Linear(4, 4).cuda())
for epoch in range(3):
    for (x,) in train_loader:
        net(x.cuda()).mean().backward()
"""
UNUSED = f"""{STARTED}
def get_loader(folder):
    data = torch.load(folder)
    loader = DataLoader(data, batch_size=4, shuffle=True)
    return loader, data
{{loader}}, data = get_loader("/data/train")
train_loader = DataLoader(data, batch_size=4, sampler=DistributedSampler(data))
net = DDP(nn.Linear(4, 4).cuda())
for (x,) in train_loader:
    net(x.cuda()).mean().backward()
"""
# A callback that evaluates the wrapped model on rank 0.
EVALUATED = f"""{STARTED}
class Verification:
    def __init__(self, rank):
        self.rank = rank
    def check(self, backbone):
        with torch.no_grad():
            print(backbone(torch.rand(2, 3).cuda()))
    def __call__(self, step, backbone):
        if self.rank == 0 and step > 0:
            self.check(backbone)
teacher = DDP(nn.Linear(3, 4).cuda(), broadcast_buffers=False)
student = DDP(nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4)).cuda(), {{setting}})
verify = Verification(rank)
for step in range(100):
    student(torch.rand(2, 3).cuda()).mean().backward()
    verify(step, student)
"""
# The best model is loaded by rank 0 alone: after the training, to evaluate it, or before each epoch.
LOADED = f"""{STARTED}
net = DDP(nn.Linear(4, 4).cuda())
def load():
    if rank == 0:
        net.module.load_state_dict(torch.load("/shared/best.pt"))
def train():
    for epoch in range(3):
        for (x,) in DataLoader(TensorDataset(torch.rand(8, 4)), sampler=None):
            net(x.cuda()).mean().backward()
        {{inside}}
{{before}}
train()
{{after}}
"""
# A checkpoint every so many steps, where that number is a part of a number which is not known.
COUNTED = f"""{STARTED}
parser = argparse.ArgumentParser()
parser.add_argument("--interval", type=float, default=0.5)
args = parser.parse_args()
loader = torch.load("/data/loader.pt")
every = int(len(loader) * 3 * args.interval)
def train(every):
    done = 0
    for step, batch in enumerate(loader):
        done += 1
        if step % every == 0:
            print(done)
train(every)
"""

# An epoch of accumulated gradients: which step exchanges them is decided before the counters count it.
ACCUMULATED = f"""{STARTED}
import contextlib
net = DDP(nn.Linear(4, 4).cuda())
optimizer = torch.optim.SGD(net.parameters(), 0.1)
can_skip = hasattr(net, "no_sync")
count = 0
for (x,) in DataLoader(TensorDataset(torch.rand(64, 4)), sampler=DistributedSampler(range(64))):
    steps = count {{ahead}} == 4
    with net.no_sync() if can_skip and not steps else contextlib.nullcontext():
        net(x.cuda()).mean().backward()
    count += 1
    if count == 4:
        optimizer.step()
        optimizer.zero_grad()
        count = 0
"""
# Two models, of which the optimizer gets the parameters before one of them is wrapped.
TWO_MODELS = f"""{STARTED}
model = nn.Linear(4, 4).cuda()
classifier = nn.Linear(4, 2).cuda()
optimizer = torch.optim.SGD(list(model.parameters()) + list(classifier.parameters()), lr=0.1)
if rank == 0:
    print(str(model) + str(classifier))
model = DDP(model)
{{wrap}}
for (x,) in DataLoader(TensorDataset(torch.rand(64, 4)), sampler=DistributedSampler(range(64))):
    classifier(model(x.cuda())).mean().backward()
    optimizer.step()
"""
# The average loss of an epoch, in the variable of the loss.
AVERAGED = f"""{STARTED}
net = DDP(nn.Linear(4, 4).cuda())
def run_epoch(loader):
    losses = []
    for (x,) in loader:
        loss = net(x.cuda()).mean()
        {{inside}}
        losses.append(loss.item())
        loss.backward()
        {{after}}
    loss = torch.tensor(np.mean(losses)).cuda()
    dist.all_reduce(loss)
    loss /= dist.get_world_size()
    return loss.item()
run_epoch(DataLoader(TensorDataset(torch.rand(64, 4)), sampler=DistributedSampler(range(64))))
"""
# Early stopping by a history, whose results an object of the program has combined before.
STOPPED = f"""{STARTED}
class Results:
    def __init__(self):
        self.loss = 0.0
    def add(self, loss):
        self.loss += loss.item()
    def combine(self):
        if {{combines}}:
            total = torch.tensor(self.loss).cuda()
            dist.all_reduce(total)
            self.loss = total.item()
    def values(self):
        return {{{{"loss": self.loss}}}}
def check_early_stop(values):
    return all(one >= values[0] for one in values[1:])
net = DDP(nn.Linear(4, 4).cuda())
loader = DataLoader(TensorDataset(torch.rand(64, 4)), sampler=DistributedSampler(range(64)))
history = {{{{"valid_metric": []}}}}
for epoch in range(20):
    loader.sampler.set_epoch(epoch)
    results = Results()
    for (x,) in loader:
        loss = net(x.cuda()).mean()
        loss.backward()
        results.add(loss)
    results.combine()
    history["valid_metric"].append(results.values())
    recent = [one["loss"] for one in history["valid_metric"][-5:]]
    if check_early_stop(recent):
        break
"""
# A device that another function gives to the process group.
JOINED = f"""{IMPORTED}
def join(device):
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl", device_id=device)
def main(name):
    device = torch.device({{device}})
    join(device)
main("cuda")
"""


@pytest.mark.parametrize(
    ("train", "is_wrong"), [("shuffle=True", True), ("sampler=DistributedSampler(data)", False)], ids=["all", "part"]
)
def test_a_loader_in_the_branch_of_the_training(train: str, is_wrong: bool, tmp_path: Path) -> None:
    assert ("no-sampler" in found(tmp_path, LOADERS.format(train=train), **GPUS)) is is_wrong


@pytest.mark.parametrize(("loader", "is_wrong"), [("loader", True), ("_", False)], ids=["used", "dropped"])
def test_a_loader_that_nobody_takes(loader: str, is_wrong: bool, tmp_path: Path) -> None:
    assert ("no-sampler" in found(tmp_path, UNUSED.format(loader=loader), **GPUS)) is is_wrong


@pytest.mark.parametrize(
    ("setting", "is_wrong"), [("device_ids=None", True), ("broadcast_buffers=False", False)], ids=["sent", "kept"]
)
def test_a_callback_calls_one_of_two_wrapped_models(setting: str, is_wrong: bool, tmp_path: Path) -> None:
    assert ("rank-0-collective" in found(tmp_path, EVALUATED.format(setting=setting), **GPUS)) is is_wrong


@pytest.mark.parametrize(("place", "is_wrong"), [("before", True), ("inside", True), ("after", False)])
def test_a_state_that_rank_0_loads_after_the_training(place: str, is_wrong: bool, tmp_path: Path) -> None:
    places = dict.fromkeys(("before", "inside", "after"), "pass") | {place: "load()"}
    assert ("loaded-by-one" in found(tmp_path, LOADED.format(**places), **GPUS)) is is_wrong


@pytest.mark.parametrize(("interval", "is_wrong"), [(0, True), (0.1, False)])
def test_a_part_of_an_unknown_number_is_zero(interval: float, is_wrong: bool, tmp_path: Path) -> None:
    shown = found(tmp_path, COUNTED, **GPUS, hyperparameters={"interval": interval})
    assert ("unfulfilled" in shown) is is_wrong


# A configuration that is a module, which the program imports by the name that an argument gives.
IMPORTED_BY_NAME = f"""{IMPORTED}
import importlib
parser = argparse.ArgumentParser()
parser.add_argument("--config")
args = parser.parse_args()
config = importlib.import_module(os.path.relpath(args.config.replace("/", "."))).Config()
state = torch.load(config.pretrained)
"""
SETTINGS = "class Config:\n    def __init__(self):\n        self.pretrained = '{path}'\n"


@pytest.mark.parametrize("name", ["configs/first", "configs.first"])
@pytest.mark.parametrize(
    ("path", "text"), [("../first.pt", "uses ../first.pt"), ("data/first.pt", "reads data/first.pt")]
)
def test_a_file_that_a_module_of_settings_names(name: str, path: str, text: str, tmp_path: Path) -> None:
    code = tmp_path / "code"
    files = {"train.py": IMPORTED_BY_NAME, "configs/first.py": SETTINGS.format(path=path), ".gitignore": "data/\n"}
    with_files(code, {**files, path: "state", "configs/second.py": SETTINGS.format(path="/data/other.pt")})
    shown = [one.text for one in findings(code, **GPUS, hyperparameters={"config": name}) if one.check == "left-out"]
    assert [one.startswith(text) for one in shown] == [True]


@pytest.mark.parametrize(("ahead", "is_wrong"), [("", True), ("+ 1", False)])
def test_gradients_that_no_step_exchanges(ahead: str, is_wrong: bool, tmp_path: Path) -> None:
    assert ("never-synchronized" in found(tmp_path, ACCUMULATED.format(ahead=ahead), **GPUS)) is is_wrong


@pytest.mark.parametrize(("wrap", "is_wrong"), [("pass", True), ("classifier = DDP(classifier)", False)])
def test_one_of_two_models_is_wrapped_after_the_optimizer_is_made(wrap: str, is_wrong: bool, tmp_path: Path) -> None:
    assert ("never-synchronized" in found(tmp_path, TWO_MODELS.format(wrap=wrap), **GPUS)) is is_wrong


@pytest.mark.parametrize(
    ("inside", "after", "is_wrong"),
    [
        ("loss /= dist.get_world_size()", "pass", True),
        ("pass", "pass", False),
        ("pass", "loss = loss.detach() / dist.get_world_size()", False),
    ],
)
def test_a_loss_that_is_averaged_after_its_gradients(inside: str, after: str, is_wrong: bool, tmp_path: Path) -> None:
    assert ("divided-again" in found(tmp_path, AVERAGED.format(inside=inside, after=after), **GPUS)) is is_wrong


def test_results_that_an_object_has_combined(tmp_path: Path) -> None:
    assert "left-by-one" not in found(tmp_path, STOPPED.format(combines="dist.is_initialized()"), **GPUS)


@pytest.mark.parametrize(("device", "is_wrong"), [("name", True), ("name, int(os.environ['LOCAL_RANK'])", False)])
def test_a_device_without_a_number_for_the_group(device: str, is_wrong: bool, tmp_path: Path) -> None:
    assert ("group-device" in found(tmp_path, JOINED.format(device=device), **GPUS)) is is_wrong
