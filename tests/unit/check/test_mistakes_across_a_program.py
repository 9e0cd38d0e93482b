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


def test_a_whole_loader_of_a_function_that_divides_as_well(tmp_path: Path) -> None:
    text = LOADERS.format(train="sampler=DistributedSampler(data)").replace('split == "val"', "split == 1")
    text += "test_loader = get_loader(1)[1]\nwhole = get_loader(2)[1]\n"
    text = text.replace("sampler=DistributedSampler(data, shuffle=False)", "shuffle=False")
    assert "no-sampler" not in found(tmp_path, text, **GPUS)


# Only of rank 0 less is known: it has given the settings to something that may change them.
RESUMED = f"""{STARTED}
import yaml, wandb
settings = yaml.safe_load(open("settings.yaml"))
if rank == 0:
    wandb.init(config=settings)
def find(path):
    return path if path and os.path.exists(path) else None
net = DDP(nn.Linear(4, 4).cuda())
optimizer = torch.optim.SGD(net.parameters(), 0.1)
resume = find(settings["resume"])
if resume {{and_more}}:
    optimizer.load_state_dict(torch.load(resume))
for step in range(3):
    net(torch.rand(4, 4).cuda()).mean().backward()
    optimizer.step()
"""
# A function of the program asks whether there is a process group.
SET_UP = f"""{IMPORTED}
def is_available():
    return dist.is_available()
def is_initialized():
    return is_available() and dist.is_initialized()
def set_up():
    if {{asks}} and "RANK" in os.environ:
        dist.init_process_group("nccl")
    rank = dist.get_rank() if is_initialized() else 0
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    return rank
set_up()
net = nn.Linear(4, 4).cuda()
if is_initialized():
    net = DDP(net)
net(torch.rand(4, 4).cuda()).mean().backward()
"""
# Layers of the program have a `shape`, and arrays have one, too.
SHAPES = f"""{STARTED}
class Grid:
    def __init__(self):
        self.shape = [64, 64]
class Steps:
    def __init__(self, sizes, grid):
        self.sizes = sizes ** 2
        assert len({{of}}.shape) == 1
Steps(np.linspace(0, 1, 10), Grid())
"""
# mmcv joins the group, and the program averages the gradients itself.
JOINED_BY_MMCV = f"""{IMPORTED}
from mmcv.runner import init_dist
init_dist("pytorch", backend="nccl")
net = nn.Linear(4, 4).cuda()
world_size = dist.get_world_size()
for step in range(3):
    loss = net(torch.rand(4, 4).cuda()).mean()
    loss = loss / {{by}}
    loss.backward()
    for param in net.parameters():
        dist.all_reduce(param.grad.data)
        param.grad.data.div_(world_size)
"""
# A port that each node finds for itself, in a program that broadcasts other things later.
PORTS = f"""{IMPORTED}
import socket
def find_free_port():
    with socket.socket() as found:
        found.bind(("", 0))
        return found.getsockname()[1]
def address():
    return f"tcp://{{{{os.environ['MASTER_ADDR']}}}}:{{port}}"
dist.init_process_group("nccl", init_method=address(), rank=int(os.environ["RANK"]), world_size=4)
dist.broadcast(torch.ones(1).cuda(), src=0)
"""
# A field that no option declares, in a program whose meters have a method `update`.
UNDECLARED = f"""{STARTED}
class Meter:
    def update(self, value):
        self.value = value
parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float, default=0.1)
args = parser.parse_args()
{{more}}
def adjust(epoch, args):
    return args.lr * epoch / args.warmup
Meter().update(adjust(1, args))
"""
# The steps of a model inside a wrapper, which training calls one by one.
STEPS = f"""{STARTED}
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)
    def step(self, x):
        return self.layer(x)
    def forward(self, x):
        return self.step(x)
def train(model, batches):
    raw = model.module if isinstance(model, DDP) else model
    for (x,) in batches:
        {{call}}.mean().backward()
train(DDP(Net().cuda()), DataLoader(TensorDataset(torch.rand(8, 4)), sampler=DistributedSampler(range(8))))
"""

# Settings of pydantic, whose fields get what their makers are given, or what the environment says.
OF_PYDANTIC = f"""{IMPORTED}
from pydantic import BaseModel
from pydantic_settings import BaseSettings
class Settings({{base}}):
    master_addr: str = "localhost"
    master_port: int = 29500
def read():
    return Settings({{given}})
def join(settings):
    os.environ["MASTER_ADDR"] = settings.master_addr
    dist.init_process_group("gloo")
join(read())
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


@pytest.mark.parametrize(("and_more", "is_wrong"), [("", False), ("and rank == 0", True)])
def test_less_that_is_known_of_rank_0_is_no_difference(and_more: str, is_wrong: bool, tmp_path: Path) -> None:
    (tmp_path / "settings.yaml").write_text("resume: null\n" if not is_wrong else "resume: /shared/last.pt\n")
    assert ("loaded-by-one" in found(tmp_path, RESUMED.format(and_more=and_more), **GPUS)) is is_wrong


@pytest.mark.parametrize(
    ("asks", "is_wrong"),
    [
        ("not is_initialized()", False),
        ("torch.distributed is None", True),
        ("False and not is_initialized()", True),
    ],
)
def test_a_function_asks_whether_there_is_a_group(asks: str, is_wrong: bool, tmp_path: Path) -> None:
    assert ("no-init" in found(tmp_path, SET_UP.format(asks=asks), **GPUS)) is is_wrong


@pytest.mark.parametrize(("of", "is_wrong"), [("self.sizes", False), ("grid", True)])
def test_the_shape_of_an_array_is_not_that_of_an_object(of: str, is_wrong: bool, tmp_path: Path) -> None:
    assert ("unfulfilled" in found(tmp_path, SHAPES.format(of=of), **GPUS)) is is_wrong


@pytest.mark.parametrize(("by", "is_wrong"), [("world_size", True), ("4", False)])
def test_a_group_that_mmcv_makes(by: str, is_wrong: bool, tmp_path: Path) -> None:
    assert ("divided-again" in found(tmp_path, JOINED_BY_MMCV.format(by=by), **GPUS)) is is_wrong


@pytest.mark.parametrize(("port", "is_wrong"), [("{find_free_port()}", True), ("{os.environ['MASTER_PORT']}", False)])
def test_a_port_that_each_node_finds(port: str, is_wrong: bool, tmp_path: Path) -> None:
    assert ("fixed-master" in found(tmp_path, PORTS.format(port=port), **GPUS)) is is_wrong


@pytest.mark.parametrize(
    ("more", "is_wrong"),
    [
        ("", True),
        ("print(vars(args), {**vars(args)}, vars(args)['lr'])", True),
        ("vars(args).update(warmup=5)", False),
        ("vars(args)['warmup'] = 5", False),
        ("fields = vars(args)\nfields.update(warmup=5)", False),
        ("def more(fields):\n    fields['warmup'] = 5\nmore(vars(args))", False),
    ],
)
def test_a_field_beside_a_method_called_update(more: str, is_wrong: bool, tmp_path: Path) -> None:
    assert ("undeclared" in found(tmp_path, UNDECLARED.format(more=more), **GPUS)) is is_wrong


@pytest.mark.parametrize(("call", "is_wrong"), [("raw.step(x.cuda())", True), ("model(x.cuda())", False)])
def test_steps_of_the_model_inside_a_wrapper(call: str, is_wrong: bool, tmp_path: Path) -> None:
    assert ("bypassed" in found(tmp_path, STEPS.format(call=call), **GPUS)) is is_wrong


@pytest.mark.parametrize(
    ("made", "level"),
    [
        ("torchvision.models.resnet50()", ["error"]),
        ("torchvision.models.vit_b_16()", []),
        ("transformers.AutoModel.from_pretrained('/data/bert')", []),
    ],
)
def test_layers_that_only_some_models_have(made: str, level: list[str], tmp_path: Path) -> None:
    module = made.partition(".")[0]
    text = f"{IMPORTED}import {module}\nnet = nn.SyncBatchNorm.convert_sync_batchnorm({made})\n"
    (tmp_path / "train.py").write_text(text)
    shown = [one for one in findings(tmp_path, backend={"kind": "local"}) if one.check == "cuda-on-cpu"]
    assert [one.level for one in shown] == level


@pytest.mark.parametrize(
    ("base", "given", "is_wrong"),
    [
        ("BaseModel", "", True),
        ("BaseModel", "master_addr=os.environ.get('MASTER_ADDR', 'localhost'), master_port=1", False),
        ("BaseSettings", "", False),
        ("BaseSettings", "master_addr='127.0.0.1'", True),
    ],
)
def test_fields_of_settings(base: str, given: str, is_wrong: bool, tmp_path: Path) -> None:
    assert ("fixed-master" in found(tmp_path, OF_PYDANTIC.format(base=base, given=given))) is is_wrong


def test_a_device_of_another_object_and_of_a_tensor(tmp_path: Path) -> None:
    text = f"""{IMPORTED}
class Prefetcher:
    def __init__(self):
        self.device = torch.device("cuda")
def loss(x, y):
    return (x - y.to(x.device)).mean()
if torch.cuda.is_available():
    Prefetcher()
loss(torch.ones(1), torch.ones(1))
"""
    assert "cuda-on-cpu" not in found(tmp_path, text, backend={"kind": "local"})


@pytest.mark.parametrize(
    ("made", "then"),
    [
        ("devices=int(os.environ['WORLD_SIZE'])", "fit(None)"),
        ("devices=1, num_nodes=1", "test(None)"),
    ],
)
def test_a_trainer_of_which_the_numbers_do_not_matter(made: str, then: str, tmp_path: Path) -> None:
    text = f"import os\nimport lightning as L\nL.Trainer(accelerator='cpu', {made}).{then}\n"
    assert not {"lightning-nodes", "lightning-devices"} & found(tmp_path, text, backend={"kind": "local"})


@pytest.mark.parametrize(
    "more",
    [
        "dict.update(vars(args), warmup=5)",
        "import operator\noperator.setitem(vars(args), 'warmup', 5)",
        "from mergedeep import merge\nmerge(vars(args), {'warmup': 5})",
    ],
)
def test_a_field_that_a_function_sets_in_the_mapping(more: str, tmp_path: Path) -> None:
    assert "undeclared" not in found(tmp_path, UNDECLARED.format(more=more), **GPUS)


def test_a_figure_that_the_condition_shares(tmp_path: Path) -> None:
    text = f"""{STARTED}
def of_all(figure):
    shared = torch.tensor(figure).cuda()
    dist.all_reduce(shared, op=dist.ReduceOp.MAX)
    return shared.item()
net = DDP(nn.Linear(4, 4).cuda())
best = 0
for epoch in range(20):
    net(torch.rand(4, 4).cuda()).mean().backward()
    if rank == 0:
        best = epoch
    if epoch - of_all(best) > 3:
        break
"""
    assert "left-by-one" not in found(tmp_path, text, **GPUS)


def test_a_whole_loader_that_only_rank_0_makes(tmp_path: Path) -> None:
    text = f"""{STARTED}
data = TensorDataset(torch.rand(64, 4))
net = DDP(nn.Linear(4, 4).cuda())
loader = DataLoader(data, batch_size=4, sampler=DistributedSampler(data))
mean = torch.zeros(4).cuda()
if rank == 0:
    for (x,) in DataLoader(data, batch_size=4):
        mean += x.mean(0).cuda()
dist.broadcast(mean, src=0)
for (x,) in loader:
    net(x.cuda() - mean).mean().backward()
"""
    assert "no-sampler" not in found(tmp_path, text, **GPUS)


@pytest.mark.parametrize(
    ("first", "read", "write"),
    [
        ("pass", "try:\n    read()\nexcept FileNotFoundError:\n    pass", ""),
        ("os.chdir('/shared/work')", "read()", ""),
        (
            "pass",
            "read()",
            "elif os.environ['LOCAL_RANK'] == '0':\n    import pandas\n    pandas.DataFrame().to_csv('a.json')",
        ),
    ],
)
def test_a_file_that_other_nodes_may_have(first: str, read: str, write: str, tmp_path: Path) -> None:
    text = f"""{STARTED}
{first}
def read():
    return json.load(open("a.json"))
if rank == 0:
    json.dump(1, open("a.json", "w"))
{write}
dist.barrier()
{read}
"""
    assert "staged-by-one" not in found(tmp_path, text, **GPUS)


@pytest.mark.parametrize(
    "more",
    [
        "setattr(model, 'head', classifier)",
        "both = nn.ModuleDict(dict(model=model, head=classifier))",
        "def wrap_all(models):\n    return [DDP(one) for one in models]\nclassifier, = wrap_all([classifier])",
    ],
)
def test_a_model_that_another_one_keeps(more: str, tmp_path: Path) -> None:
    text = TWO_MODELS.format(wrap="pass").replace("if rank == 0:", f"{more}\nif rank == 0:")
    assert "never-synchronized" not in found(tmp_path, text, **GPUS)
