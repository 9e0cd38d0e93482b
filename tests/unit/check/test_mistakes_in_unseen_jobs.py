"""Mistakes and false alarms that jobs of public repositories showed which the checks had not seen before."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from checked import GPUS, IMPORTED, RESTARTED, STARTED, each_mistake, findings, found, with_files

NONE: dict[str, Any] = {}

MODEL = """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)
        {making}
    def forward(self, x):
        device = x.device
        return self.layer(x + torch.arange(4, device=device)).to(x.dtype)
"""
WRAPPED = """
local_rank = int(os.environ["LOCAL_RANK"])
model = Net()
{before}
model = DDP(model, device_ids=[local_rank])
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(3):
    optimizer.zero_grad()
    model(torch.rand(8, 4).cuda()).mean().backward()
    optimizer.step()
"""


def wrapped(before: str, making: str = "pass") -> str:
    return f"{STARTED}{MODEL.format(making=making)}{WRAPPED.format(before=before)}"


ON_CPU: list[tuple[str, str, str, dict[str, Any]]] = [
    ("model-on-cpu", wrapped(before), wrapped(f"model.cuda(local_rank)\n{before}"), GPUS)
    for before in (
        "",
        "model = torch.compile(model)",
        "raw_model = model\nmodel = torch.compile(model)",
        "model = nn.SyncBatchNorm.convert_sync_batchnorm(model)",
    )
] + [
    (
        "model-on-cpu",
        f"import torchvision\n{wrapped('model = torchvision.models.resnet50()')}",
        f"import torchvision\n{wrapped('model = torchvision.models.resnet50().cuda()')}",
        GPUS,
    )
]


@each_mistake(ON_CPU)
def test_a_model_that_nothing_moves(tmp_path: Path, check: str, wrong: str, right: str, fields: dict[str, Any]) -> None:
    assert check in found(tmp_path, wrong, **fields)
    assert check not in found(tmp_path, right, **fields)


RESUMED = """
def load():
    model = Net()
    model.load_state_dict(torch.load("/data/last.pt"))
    return model.cuda()
if os.path.exists("/data/last.pt"):
    model = load()
else:
    model = Net()
    model = model.cuda()
"""


@pytest.mark.parametrize(
    "text",
    [
        wrapped(RESUMED),
        wrapped("", making="self.layer.cuda()"),
        wrapped("model = wrapped_by_others(model)"),
    ],
)
def test_a_model_that_may_be_on_a_gpu(tmp_path: Path, text: str) -> None:
    assert "model-on-cpu" not in found(tmp_path, text, **GPUS)


TOTALS = f"""{STARTED}
total = torch.tensor([1.0, 2.0], device={{place}})
dist.all_reduce(total)
"""


@pytest.mark.parametrize("place", ["'cpu'", "torch.device('cpu')", "None"])
def test_a_tensor_that_is_put_on_the_cpu(tmp_path: Path, place: str) -> None:
    assert "tensor-on-cpu" in found(tmp_path, TOTALS.format(place=place), **GPUS)
    assert "tensor-on-cpu" not in found(tmp_path, TOTALS.format(place="'cuda'"), **GPUS)


def test_a_group_that_a_module_in_a_folder_without_init_makes(tmp_path: Path) -> None:
    with_files(tmp_path, {"src/start.py": f'{IMPORTED}\ndef init():\n    dist.init_process_group("nccl")\n'})
    text = f"{IMPORTED}\nimport src.start\nsrc.start.init()\nmodel = DDP(nn.Linear(4, 4).cuda())\n"
    assert "no-init" not in found(tmp_path, text, **GPUS)
    assert "no-init" in found(tmp_path, text.replace("src.start.init()", ""), **GPUS)


COUNTED = """
def run(size):
    count, batch, total = {start}, [], 0.0
    for example in open("/data/examples.txt"):
        batch.append(example)
        if len(batch) == size:
            total += len("".join(batch))
            {adds}
            batch = []
    return total / count
run(4)
"""


def test_a_number_that_a_later_pass_may_set(tmp_path: Path) -> None:
    assert "unfulfilled" not in found(tmp_path, STARTED + COUNTED.format(start=0, adds="count += len(batch)"))
    assert "unfulfilled" in found(tmp_path, STARTED + COUNTED.format(start=0, adds="pass"))


BATCHES = """
import numpy as np
class Data:
    def batches(self, n):
        order = np.random.permutation(n)
        bounds = list(range(0, n, 8))
        parts = [order[bounds[i]:bounds[i + 1]] for i in range(len(bounds) - 1)]
        {rest}
        return parts
for part in Data().batches(100):
    print(part)
"""


@pytest.mark.parametrize("rest", ["parts.append(order[bounds[-1]:])", "parts = np.split(order, np.cumsum(bounds))"])
def test_batches_are_no_split_of_the_data(tmp_path: Path, rest: str) -> None:
    assert "split-by-rank" not in found(tmp_path, STARTED + BATCHES.format(rest=rest))


@pytest.mark.parametrize("rest", ["parts = order[:80], order[80:]", "parts = np.split(order, [80])"])
def test_a_split_that_nothing_seeds(tmp_path: Path, rest: str) -> None:
    assert "split-by-rank" in found(tmp_path, STARTED + BATCHES.format(rest=rest))


DECLARED = """
import dataclasses, tyro
@dataclasses.dataclass
class Config:
    eval_often: bool = True
config = tyro.cli(Config)
"""


@pytest.mark.parametrize("word", ["--no-eval-often", "--no-eval_often", "--no_eval_often", "--eval-often"])
def test_tyro_takes_dashes_and_underscores(tmp_path: Path, word: str) -> None:
    assert "argument-unknown" not in found(tmp_path, STARTED + DECLARED, args=[word])
    assert "argument-unknown" in found(tmp_path, STARTED + DECLARED, args=[f"{word}s"])


EXCHANGED = """
class Critic(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(4, 1).cuda()
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.1)
    def update(self, x):
        self.optimizer.zero_grad()
        self.net(x).mean().backward()
        for one in self.net.parameters():
            dist.all_reduce(one.grad, op=dist.ReduceOp.AVG)
        self.optimizer.step()
    def train_on_batch(self, x):
        self.optimizer.zero_grad()
        self.net(x).mean().backward()
        self.optimizer.step()
torch.manual_seed(0)
critic = Critic()
print(critic)
for step in range(3):
    critic.update(torch.rand(8, 4).cuda())
    {more}
"""


def test_a_step_in_a_method_that_nothing_calls(tmp_path: Path) -> None:
    assert "never-synchronized" not in found(tmp_path, STARTED + EXCHANGED.format(more="register(critic)"), **GPUS)
    more = "critic.train_on_batch(torch.rand(8, 4).cuda())"
    assert "never-synchronized" in found(tmp_path, STARTED + EXCHANGED.format(more=more), **GPUS)


DIVIDED = """
import numpy as np
from torch.utils.data import RandomSampler
def load():
    files = sorted(glob.glob("/data/*.pt"))
    {divides}
    return TensorDataset(torch.cat([torch.load(one) for one in files]))
model = DDP(nn.Linear(4, 4).cuda())
data = load()
loader = DataLoader(data, batch_size=8, sampler=RandomSampler(data))
for epoch in range(3):
    for batch in loader:
        model(batch[0].cuda()).mean().backward()
"""


def test_files_that_are_divided_before_they_are_read(tmp_path: Path) -> None:
    divides = "files = list(np.array_split(files, dist.get_world_size()))[dist.get_rank()]"
    assert "no-sampler" not in found(tmp_path, STARTED + DIVIDED.format(divides=divides), **GPUS)
    assert "no-sampler" in found(tmp_path, STARTED + DIVIDED.format(divides="pass"), **GPUS)


VALIDATED = """
class Meter:
    def __init__(self):
        self.sum, self.count = 0.0, 0
    def update(self, value, n=1):
        self.sum += value * n
        self.count += n
def validate(loader, model):
    losses, hits, sizes = Meter(), Meter(), Meter()
    for x, y in loader:
        with torch.no_grad():
            out = model(x.cuda())
        loss, n = out.mean(), torch.tensor([len(x)]).cuda()
        dist.all_reduce(loss), dist.all_reduce(n)
        right, size = (out.argmax(1) == y.cuda()).sum(), torch.tensor([len(y)]).cuda()
        {combines}
        hits.update(right.item()), sizes.update(size.item())
        losses.update(loss.item(), n.item())
    accuracy = hits.sum / sizes.sum
    {later}
    return losses.sum / losses.count, accuracy
model = DDP(nn.Linear(4, 4).cuda())
data = TensorDataset(torch.rand(64, 4), torch.zeros(64))
loader = DataLoader(data, batch_size=8, sampler=DistributedSampler(data, shuffle=False))
best = 0.0
for epoch in range(3):
    model(torch.rand(8, 4).cuda()).mean().backward()
    loss, accuracy = validate(loader, model)
    best = max(best, accuracy)
"""


@pytest.mark.parametrize(
    ("combines", "later", "is_wrong"),
    [
        ("pass", "pass", True),
        ("dist.all_reduce(right), dist.all_reduce(size)", "pass", False),
        ("pass", "total = torch.tensor([accuracy]).cuda(); dist.all_reduce(total); accuracy = total.item()", False),
    ],
)
def test_a_count_that_is_not_combined_beside_a_loss_that_is(
    tmp_path: Path, combines: str, later: str, is_wrong: bool
) -> None:
    text = STARTED + VALIDATED.format(combines=combines, later=later)
    assert ("part-as-whole" in found(tmp_path, text, **GPUS)) is is_wrong


TESTED = """
def main_process():
    return dist.get_rank() == 0
class Boxes:
    def evaluate_matches(self, results):
        return sum(one for one in results)
    def evaluate(self, results):
        return self.evaluate_matches(results)
class Masks:
    def evaluate(self, results):
        return len(results)
def test(model, loader):
    mine = [model(x.cuda()).mean().item() for (x,) in loader]
    every = [None] * dist.get_world_size()
    dist.all_gather_object(every, mine)
    if main_process():
        print(Boxes().evaluate(every), Masks().evaluate(every))
model = DDP(nn.Linear(4, 4).cuda())
data = TensorDataset(torch.rand(64, 4))
model(torch.rand(8, 4).cuda()).mean().backward()
test(model, DataLoader(data, batch_size=8, sampler=DistributedSampler(data, shuffle=False)))
"""


def test_results_that_are_combined_before_one_process_evaluates_them(tmp_path: Path) -> None:
    assert "part-as-whole" not in found(tmp_path, STARTED + TESTED, **GPUS)


AVERAGED = """
torch.manual_seed(0)
model = nn.Linear(4, 4).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
def train():
    for step in range(3):
        optimizer.zero_grad()
        model(torch.rand(8, 4).cuda()).mean().backward()
        {before}
        flat = torch.cat([one.grad.flatten() for one in model.parameters()])
        dist.all_reduce(flat)
        flat /= dist.get_world_size()
        for one, grad in zip(model.parameters(), flat.split([one.numel() for one in model.parameters()])):
            one.grad = grad.reshape(one.shape)
        {after}
train()
"""


def test_a_step_before_its_gradients_are_averaged(tmp_path: Path) -> None:
    wrong = AVERAGED.format(before="optimizer.step()", after="pass")
    right = AVERAGED.format(before="pass", after="optimizer.step()")
    assert "never-synchronized" in found(tmp_path, STARTED + wrong, **GPUS)
    assert "never-synchronized" not in found(tmp_path, STARTED + right, **GPUS)


TWO_STEPS = """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)
    def forward(self, x):
        return self.layer(x)
    def make_batch(self, x):
        return x.cuda()
def loss_of(model, x):
    return model(x).mean()
model = DDP(Net().cuda())
raw_model = model.module if dist.get_world_size() > 1 else model
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(100):
    x = torch.rand(8, 4).cuda()
    if step % 10 == 9:
        model(x).square().mean().backward()
        optimizer.step()
    else:
        for part in range(4):
            {loss}
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()
"""


@pytest.mark.parametrize(
    ("loss", "is_wrong"),
    [
        ("loss = raw_model(x).mean()", True),
        ("loss = model(x).mean()", False),
        ("batch = raw_model.make_batch(x); loss = loss_of(model, batch)", False),
    ],
)
def test_a_step_past_the_wrapper_beside_one_with_it(tmp_path: Path, loss: str, is_wrong: bool) -> None:
    assert ("bypassed" in found(tmp_path, STARTED + TWO_STEPS.format(loss=loss), **GPUS)) is is_wrong


WORDS = """
import hydra
@hydra.main(config_path="conf", config_name="train")
def main(cfg):
    if cfg.local_rank == -1:
        return
    torch.cuda.set_device(cfg.local_rank)
    dist.init_process_group("nccl")
    model = DDP(nn.Linear(4, 4).cuda())
    model(torch.rand(8, 4).cuda()).mean().backward()
if __name__ == "__main__":
    {words}
    main()
"""


def test_words_for_hydra_that_the_program_rewrites(tmp_path: Path) -> None:
    with_files(tmp_path, {"conf/train.yaml": "local_rank: -1\n"})
    words = "sys.argv = [sys.argv[0], *(word.removeprefix('--') for word in sys.argv[1:])]"
    fields = {**GPUS, "mode": "launch", "local_rank": "argument", "torch_version": "1.10"}
    assert "no-init" not in found(tmp_path, IMPORTED + WORDS.format(words=words), **fields)
    assert "no-init" in found(tmp_path, IMPORTED + WORDS.format(words="pass"), **fields)


SAVER = """
class Saver:
    def __init__(self, rank):
        self.rank = rank
    def __call__(self, step, model):
        if step > 100{test}:
            torch.save(model.module.state_dict(), os.path.join("/shared/out", str(step) + ".pt"))
model = DDP(nn.Linear(4, 4).cuda())
saver = Saver(rank)
for step in range(1000):
    model(torch.rand(8, 4).cuda()).mean().backward()
    saver(step, model)
"""


def test_a_checkpoint_that_an_object_saves_when_it_is_called(tmp_path: Path) -> None:
    assert "saved-by-all" in found(tmp_path, STARTED + SAVER.format(test=""), **GPUS)
    assert "saved-by-all" not in found(tmp_path, STARTED + SAVER.format(test=" and self.rank == 0"), **GPUS)


AUGMENTED = """
torch.manual_seed(7 + rank)
class Photos(torch.utils.data.Dataset):
    def __init__(self):
        self.files = sorted(glob.glob("/data/*.pt"))
    def __len__(self):
        return len(self.files)
    def __getitem__(self, index):
        photo = torch.load(self.files[index])
        return photo.flip(0) if torch.rand(1) < 0.5 else photo
class Loader(DataLoader):
    def __init__(self, device, **settings):
        super().__init__(**settings)
        self.device = device
data = Photos()
samplers = [{sampler}]
loader = {loader}
model = DDP(nn.Linear(4, 4).cuda())
for epoch in range(3):
    for batch in loader:
        model(batch.cuda()).mean().backward()
"""


@pytest.mark.parametrize(
    "loader",
    [
        "DataLoader(data, batch_size=8, sampler=samplers[0])",
        "Loader(device=0, dataset=data, batch_size=8, sampler=samplers[0])",
    ],
)
def test_data_that_is_only_changed_at_random(tmp_path: Path, loader: str) -> None:
    right = AUGMENTED.format(sampler="DistributedSampler(data)", loader=loader)
    assert "no-sampler" in found(tmp_path, STARTED + AUGMENTED.format(sampler="None", loader=loader), **GPUS)
    assert "no-sampler" not in found(tmp_path, STARTED + right, **GPUS)


@pytest.mark.parametrize(
    ("files", "setup"),
    [
        ({"core/csrc/ops.cu": ""}, ""),
        ({}, "cp /data/vgg.pth core/vgg.pth"),
        ({}, "python setup.py build develop --no-deps"),
    ],
)
def test_a_name_that_no_build_makes(tmp_path: Path, files: dict[str, str], setup: str) -> None:
    with_files(tmp_path, {"core/__init__.py": "from .net import Net\n", "core/net.py": "class Net: pass\n", **files})
    fields = {"setup": setup} if setup else {}
    assert "imports" in found(tmp_path, "from core import Nets\nprint(Nets)\n", **fields)
    assert "imports" not in found(tmp_path, "from core import Net\nprint(Net)\n", **fields)
    assert "imports" not in found(tmp_path, "from core import _C\nprint(_C)\n", **fields)


def test_a_name_that_is_imported_where_the_file_is_started(tmp_path: Path) -> None:
    with_files(tmp_path, {"core.py": "class Net: pass\n"})
    text = 'if __name__ == "__main__":\n    from core import {name}\n    print({name})\n'
    assert "imports" in found(tmp_path, text.format(name="Nets"))
    assert "imports" not in found(tmp_path, text.format(name="Net"))
    assert "imports" not in found(tmp_path, text.format(name="Nets").replace("    ", "    if 1 > 2: ", 1))


PASSES = """
class Weighted(DistributedSampler):
    def __iter__(self):
        g = torch.Generator()
        g.manual_seed(self.epoch)
        return iter(torch.randperm(len(self.dataset), generator=g).tolist()[self.rank :: self.num_replicas])
data = TensorDataset(torch.rand(64, 4))
sampler = {sampler}(data)
loader = DataLoader(data, batch_size=8, sampler=sampler)
model = DDP(nn.Linear(4, 4).cuda())
dtype = getattr(torch, os.environ["DTYPE"])
def load(array, name):
    pointer = array
    for part in name.split("/"):
        pointer = getattr(pointer, part)
    pointer.data = torch.zeros(4)
load(model, "module/weight")
epoch, batches = 0, iter(loader)
for step in range(1000):
    try:
        (x,) = next(batches)
    except StopIteration:
        epoch += 1
        {sets}
        batches = iter(loader)
        (x,) = next(batches)
    model(x.cuda()).mean().backward()
"""


@pytest.mark.parametrize("sampler", ["DistributedSampler", "Weighted"])
def test_an_epoch_that_begins_where_a_loader_ends(tmp_path: Path, sampler: str) -> None:
    right = PASSES.format(sampler=sampler, sets="sampler.set_epoch(epoch)")
    assert "set-epoch" in found(tmp_path, STARTED + PASSES.format(sampler=sampler, sets="pass"), **GPUS)
    assert "set-epoch" not in found(tmp_path, STARTED + right, **GPUS)


SHARDED = """
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
data = TensorDataset(torch.rand(64, 4))
loader = DataLoader(data, batch_size=8{sampler})
model = FSDP(nn.Linear(4, 4).cuda())
for epoch in range(3):
    for (x,) in loader:
        model(x.cuda()).mean().backward()
"""


def test_data_that_is_not_divided_beside_fsdp(tmp_path: Path) -> None:
    assert "no-sampler" in found(tmp_path, STARTED + SHARDED.format(sampler=", shuffle=True"), **GPUS)
    divided = SHARDED.format(sampler=", sampler=DistributedSampler(data)")
    assert "no-sampler" not in found(tmp_path, STARTED + divided, **GPUS)


ALONE = """
def compute(model, x, params):
    loss = model(x * params.scale).mean()
    loss.backward()
    return loss
def update(model, optimizer, x, params):
    optimizer.zero_grad()
    loss = compute(model, x, params)
    optimizer.step()
    shown = loss.detach() * params.scale
    dist.all_reduce(shown)
    return shown
params = argparse.Namespace(scale=1.0)
model = {model}
model.register_forward_hook(lambda *given: None)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(3):
    update(model, optimizer, torch.rand(8, 4).cuda(), params)
"""


def test_a_model_without_a_wrapper_whose_steps_are_elsewhere(tmp_path: Path) -> None:
    right = ALONE.format(model="DDP(nn.Linear(4, 4).cuda())")
    assert "never-synchronized" in found(tmp_path, STARTED + ALONE.format(model="nn.Linear(4, 4).cuda()"), **GPUS)
    assert "never-synchronized" not in found(tmp_path, STARTED + right, **GPUS)


# Ways to move all of a model that are no call of its own method.
MOVED = [
    "for child in model.children(): child.cuda()",
    "model.layer.cuda()",
    "model.apply(lambda module: module.cuda())",
    "for one in model.parameters(): one.data = one.data.cuda()",
    "nn.Module.cuda(model)",
]


@pytest.mark.parametrize("moves", MOVED)
def test_a_model_that_is_moved_part_by_part(tmp_path: Path, moves: str) -> None:
    assert "model-on-cpu" not in found(tmp_path, wrapped(moves), **GPUS)


@pytest.mark.parametrize(
    ("files", "setup", "name"),
    [
        ({"core/region.pyx": ""}, "python setup.py build_ext --inplace", "region"),
        ({"core/helpers.cpp": "", "core/Makefile": ""}, "make -C core", "helpers"),
        ({}, "cp /shared/settings.py core/settings.py", "settings"),
    ],
)
def test_a_module_that_the_setup_makes(tmp_path: Path, files: dict[str, str], setup: str, name: str) -> None:
    with_files(tmp_path, {"core/__init__.py": "", **files})
    assert "imports" not in found(tmp_path, f"from core import {name}\nprint({name})\n", setup=setup)


OWN_LOADERS = """
import random
class Divided(DataLoader):
    def __init__(self, dataset, batch_size=1, shuffle=True, **settings):
        self.parts = DistributedSampler(dataset, shuffle=shuffle)
        super().__init__(dataset, batch_size=batch_size, sampler=self.parts, **settings)
class Windows(torch.utils.data.Dataset):
    def __init__(self):
        self.tokens = torch.arange(4096)
    def __len__(self):
        return 1000
    def __getitem__(self, index):
        index = random.randint(0, 4000)
        return self.tokens[index : index + 8].float()
random.seed(1337 + rank), torch.manual_seed(1337 + rank)
data = Windows()
loader = {loader}
model = DDP(nn.Linear(8, 4).cuda())
for epoch in range(3):
    {sets}
    for x in loader:
        model(x.cuda()).mean().backward()
"""


@pytest.mark.parametrize(
    ("loader", "sets"),
    [
        ("Divided(data, batch_size=8)", "loader.parts.set_epoch(epoch)"),
        ("DataLoader(data, batch_size=8)", "pass"),
    ],
)
def test_loaders_that_divide_or_draw_by_themselves(tmp_path: Path, loader: str, sets: str) -> None:
    seen = found(tmp_path, STARTED + OWN_LOADERS.format(loader=loader, sets=sets), **GPUS)
    assert seen.isdisjoint(("no-sampler", "set-epoch"))


ORDERED = """
class Ordered(DistributedSampler):
    def __init__(self, dataset, **settings):
        super().__init__(dataset, shuffle=False, **settings)
data = TensorDataset(torch.rand(64, 4))
loader = DataLoader(data, batch_size=8, sampler=Ordered(data))
model = DDP(nn.Linear(4, 4).cuda())
for epoch in range(3):
    for (x,) in loader:
        model(x.cuda()).mean().backward()
"""


def test_a_sampler_that_keeps_the_order(tmp_path: Path) -> None:
    assert found(tmp_path, STARTED + ORDERED, **GPUS).isdisjoint(("no-sampler", "set-epoch"))


COMBINED = VALIDATED.replace("hits.update(right.item())", "hits.update(right.item(), 1)")


@pytest.mark.parametrize(
    "combines",
    ["for figure in (right, size): dist.all_reduce(figure)", "dist.all_reduce(right); dist.all_reduce(size)"],
)
def test_figures_that_a_loop_combines(tmp_path: Path, combines: str) -> None:
    text = STARTED + COMBINED.format(combines=combines, later="pass")
    assert "part-as-whole" not in found(tmp_path, text, **GPUS)


PROBED = """
model, head = DDP(nn.Linear(4, 4).cuda()), DDP(nn.Linear(4, 4).cuda())
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
head_optimizer = torch.optim.SGD(head.parameters(), lr=0.1)
for step in range(100):
    x = torch.rand(8, 4).cuda()
    head(model.module(x).detach()).mean().backward()
    head_optimizer.step()
    model(x).mean().backward()
    optimizer.step()
"""


def test_features_that_train_nothing_but_a_head(tmp_path: Path) -> None:
    assert "bypassed" not in found(tmp_path, STARTED + PROBED, **GPUS)


FEDERATED = """
torch.manual_seed(0)
model = nn.Linear(4, 4).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(100):
    optimizer.zero_grad()
    model(torch.rand(8, 4).cuda()).mean().backward()
    optimizer.step()
    for params in model.parameters():
        dist.all_reduce(params.data)
        params.data /= dist.get_world_size()
"""


def test_parameters_that_are_averaged_under_the_name_of_settings(tmp_path: Path) -> None:
    assert "never-synchronized" not in found(tmp_path, STARTED + FEDERATED, **GPUS)


SUMMED = """
torch.manual_seed(0)
model = nn.Linear(4, 4).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(100):
    optimizer.zero_grad()
    x = torch.rand(8, 4).cuda()
    nn.functional.mse_loss(model(x), x, reduction="{reduction}").backward()
    for one in model.parameters():
        dist.all_reduce(one.grad, op=dist.ReduceOp.SUM)
    optimizer.step()
"""


def test_gradients_of_a_loss_that_is_a_sum(tmp_path: Path) -> None:
    assert "sum-not-divided" not in found(tmp_path, STARTED + SUMMED.format(reduction="sum"), **GPUS)
    assert "sum-not-divided" in found(tmp_path, STARTED + SUMMED.format(reduction="mean"), **GPUS)


MIXED = """
parser = argparse.ArgumentParser()
parser.add_argument("experiment")
parser.add_argument("--conf")
parser.add_argument("changes", nargs="*")
args = parser.{parses}()
"""


def test_positional_arguments_between_options(tmp_path: Path) -> None:
    args = ["first", "--conf", "a.yaml", "lr=1", "steps=2"]
    assert "argument-unknown" not in found(tmp_path, IMPORTED + MIXED.format(parses="parse_intermixed_args"), args=args)


WITHOUT_GPUS = """
def worker(gpu, count):
    dist.init_process_group("nccl", rank=gpu, world_size=count)
    if dist.get_rank() == 0 and gpu > 1:
        import json
count = torch.cuda.device_count()
mp.spawn(worker, nprocs=count, args=(count,))
"""


def test_a_program_that_starts_no_process_is_followed_all_the_same(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(IMPORTED + WITHOUT_GPUS)
    seen = findings(tmp_path, command=["python", "train.py"], resources={"nodes": 2, "nproc_per_node": 4})
    assert not [one.text for one in seen if one.level == "unknown"]


RENAMED = """
from datetime import datetime
os.environ["MODEL_DIR"] = os.path.join("/shared/out"{stamp})
model = DDP(nn.Linear(4, 4).cuda())
path = os.path.join(os.environ["MODEL_DIR"], "last.pt")
if os.path.exists(path):
    model.load_state_dict(torch.load(path))
for step in range(1000):
    model(torch.rand(8, 4).cuda()).mean().backward()
    if rank == 0:
        torch.save(model.state_dict(), path)
"""


def test_a_folder_in_a_variable_of_the_environment_that_the_time_names(tmp_path: Path) -> None:
    stamp = ', datetime.now().strftime("%Y%m%d-%H%M%S")'
    wrong = found(tmp_path, STARTED + RENAMED.format(stamp=stamp), **RESTARTED)
    right = found(tmp_path, STARTED + RENAMED.format(stamp=""), **RESTARTED)
    assert wrong - right


BY_SEQ = """
for rank in $(seq {first} $(({first} + 1))); do
  python train.py --rank $rank --world 4 &
done
wait
"""
GIVEN_A_RANK = """
parser = argparse.ArgumentParser()
parser.add_argument("--rank", type=int)
parser.add_argument("--world", type=int)
args = parser.parse_args()
dist.init_process_group("gloo", rank=args.rank, world_size=args.world)
dist.all_reduce(torch.ones(1))
"""


def test_a_loop_over_the_processes_of_a_node(tmp_path: Path) -> None:
    files = {"start.sh": BY_SEQ.format(first="$((NODE_RANK * 2))"), "train.py": IMPORTED + GIVEN_A_RANK}
    with_files(tmp_path, files)
    seen = findings(tmp_path, command=["bash", "start.sh"])
    assert [one.text for one in seen if one.level in ("error", "warning")] == []


ENCODED = """
from transformers import AutoModel, BertModel
class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.bert = {encoder}
        self.head = nn.Linear(self.bert.config.hidden_size, 2)
    def forward(self, ids):
        outputs = self.bert(input_ids=ids)
        return self.head({taken})
model = DDP(Classifier().cuda(){given})
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(10):
    optimizer.zero_grad()
    model(torch.zeros(4, 4, dtype=torch.long).cuda()).mean().backward()
    optimizer.step()
"""
BERT = 'BertModel.from_pretrained("bert-base-uncased")'


@pytest.mark.parametrize(
    ("encoder", "taken", "given", "is_wrong"),
    [
        (BERT, "outputs.last_hidden_state[:, 0]", "", True),
        (BERT, "outputs[0].mean(1)", "", True),
        ('AutoModel.from_pretrained("roberta-base")', "outputs[0][:, 0]", "", True),
        ('AutoModel.from_pretrained("t5-small")', "outputs[0][:, 0]", "", False),
        (BERT.replace(")", ", add_pooling_layer=False)"), "outputs[0][:, 0]", "", False),
        (BERT, "outputs.pooler_output", "", False),
        (BERT, "outputs[1]", "", False),
        (BERT, "outputs[0][:, 0]", ", find_unused_parameters=True", False),
    ],
)
def test_a_pooler_that_no_code_reads(tmp_path: Path, encoder: str, taken: str, given: str, is_wrong: bool) -> None:
    text = ENCODED.format(encoder=encoder, taken=taken, given=given)
    assert ("unused-parameters" in found(tmp_path, STARTED + text, **GPUS)) is is_wrong


IN_ENGINE = """
class Engine:
    def __init__(self, model, optimizer, sampler, epochs):
        self.model, self.optimizer, self.sampler, self.epochs = model, optimizer, sampler, epochs
        self.start_epoch = 0
        {before}
    def load(self, path):
        self.start_epoch = torch.load(path)["epoch"]
    def train(self, loader):
        if self.epochs == 1:
            self.start_epoch, self.epochs = 0, 2
        for epoch in range(self.start_epoch, self.epochs):
            self.model.train()
            {sets}
            for batch, in loader:
                self.optimizer.zero_grad()
                self.model(batch.cuda()).mean().backward()
                self.optimizer.step()
            self.save(epoch)
    def save(self, epoch):
        def write(kind):
            folder = os.path.join("/shared/out", kind)
            if dist.get_rank() == 0:
                {makes}
                torch.save(self.model.state_dict(), os.path.join(folder, f"{{epoch}}.pt"))
        for kind in ("model", "ema"):
            write(kind)
data = TensorDataset(torch.rand(64, 4))
sampler = DistributedSampler(data)
model = DDP(nn.Linear(4, 1).cuda())
engine = Engine(model, torch.optim.SGD(model.parameters(), lr=0.1), sampler, 10)
if os.path.exists("/shared/out/last.pt"):
    engine.load("/shared/out/last.pt")
engine.train(DataLoader(data, batch_size=8, sampler=sampler))
"""


def engine(
    sets: str = "self.sampler.set_epoch(epoch)", makes: str = "os.makedirs(folder, exist_ok=True)", before: str = "pass"
) -> str:
    return STARTED + IN_ENGINE.format(sets=sets, makes=makes, before=before)


@pytest.mark.parametrize(
    ("sets", "is_wrong"),
    [
        ("self.sampler.set_epoch(self.start_epoch)", True),
        ("self.sampler.set_epoch(epoch)", False),
        ("self.start_epoch = epoch\n            self.sampler.set_epoch(self.start_epoch)", False),
    ],
)
def test_an_epoch_from_a_field_that_stays_the_same(tmp_path: Path, sets: str, is_wrong: bool) -> None:
    assert ("set-epoch" in found(tmp_path, engine(sets=sets), **GPUS)) is is_wrong


@pytest.mark.parametrize(
    ("makes", "is_wrong"),
    [
        ("os.makedirs(folder)", True),
        ("os.makedirs(folder, exist_ok=True)", False),
        ("os.makedirs(folder + str(epoch))", False),
        ("os.path.exists(folder) or os.makedirs(folder)", False),
        ("if os.path.isdir(folder):\n                    return\n                os.makedirs(folder)", False),
    ],
)
def test_a_folder_that_each_call_of_a_function_makes(tmp_path: Path, makes: str, is_wrong: bool) -> None:
    assert ("made-again" in found(tmp_path, engine(makes=makes), **GPUS)) is is_wrong


FABRIC = """
from lightning.fabric import Fabric
fabric = Fabric(accelerator="cuda", devices=2, num_nodes=2)
{launches}
model = nn.Linear(4, 1)
model, optimizer = fabric.setup(model, torch.optim.SGD(model.parameters(), lr=0.1))
for step in range(3):
    fabric.backward(model(torch.rand(8, 4)).mean())
    optimizer.step()
"""


@pytest.mark.parametrize(("launches", "is_wrong"), [("fabric.seed_everything(1)", True), ("fabric.launch()", False)])
def test_a_fabric_that_nothing_launches(tmp_path: Path, launches: str, is_wrong: bool) -> None:
    assert ("not-launched" in found(tmp_path, IMPORTED + FABRIC.format(launches=launches), **GPUS)) is is_wrong


CONSOLIDATED = """
import deepspeed
config = {{"train_micro_batch_size_per_gpu": 4, "zero_optimization": {{"stage": 3}}}}
model, _, _, _ = deepspeed.initialize(model=nn.Linear(4, 1), config=config)
for step in range(100):
    model.backward(model(torch.rand(8, 4)).mean())
    model.step()
if model.global_rank == 0:
    {inside}
{outside}
"""


def test_a_state_of_zero_3_that_one_rank_gathers(tmp_path: Path) -> None:
    gathers = "state = model._zero3_consolidated_16bit_state_dict()"
    wrong = IMPORTED + CONSOLIDATED.format(inside=gathers, outside="")
    right = IMPORTED + CONSOLIDATED.format(inside="pass", outside=gathers)
    assert "rank-0-collective" in found(tmp_path, wrong, **GPUS)
    assert "rank-0-collective" not in found(tmp_path, right, **GPUS)


BY_NAME = """
parser = argparse.ArgumentParser()
parser.add_argument("--resume", default="")
args = parser.parse_args()
if not args.resume:
    args.resume = os.path.join("/shared/out", "{sought}")
if not os.path.isfile(args.resume):
    args.resume = ""
model = DDP(nn.Linear(4, 1).cuda())
start = 0
if args.resume:
    state = torch.load(args.resume)
    model.load_state_dict(state["model"])
    start = state["epoch"] + 1
for epoch in range(start, 100):
    model(torch.rand(8, 4).cuda()).mean().backward()
    paths = ["/shared/out/{saved}"]
    if epoch % 10 == 0:
        paths.append(f"/shared/out/checkpoint{{epoch:04}}.pth")
    for path in paths:
        if rank == 0:
            torch.save({{"model": model.state_dict(), "epoch": epoch}}, path)
"""


@pytest.mark.parametrize(
    ("sought", "saved", "given", "is_wrong"),
    [
        ("checkpoint.pth", "checkpoint_last.pth", {}, True),
        ("checkpoint.pth", "checkpoint.pth", {}, False),
        ("checkpoint0010.pth", "last.pth", {}, False),
        ("checkpoint.pth", "checkpoint_last.pth", {"resume": "/shared/out/checkpoint_last.pth"}, False),
    ],
)
def test_a_checkpoint_that_is_asked_for_by_name(
    tmp_path: Path, sought: str, saved: str, given: dict[str, str], is_wrong: bool
) -> None:
    text = STARTED + BY_NAME.format(sought=sought, saved=saved)
    assert ("no-checkpoint" in found(tmp_path, text, hyperparameters=given, **RESTARTED)) is is_wrong


LOADED_INSIDE = """
class PartSampler(torch.utils.data.Sampler):
    def __init__(self, data, num_replicas=None, rank=None):
        self.data = data
        self.num_replicas, self.rank = num_replicas or dist.get_world_size(), rank or dist.get_rank()
    def __iter__(self):
        return iter(range(self.rank, len(self.data), self.num_replicas))
    def __len__(self):
        return len(self.data) // self.num_replicas
def embed(model, data):
    return torch.cat([model(x.cuda()) for x, in DataLoader(data, batch_size=8)])
def evaluate(model, embedded, local_rank):
    loader = DataLoader(TensorDataset(embedded), batch_size=8, sampler=PartSampler(embedded))
    figures = []
    with torch.no_grad():
        for x, in loader:
            figures.append(x.mean())
    figures = torch.stack(figures)
    {combines}
    return figures.mean(), False
local_rank = int(os.environ["LOCAL_RANK"])
data = TensorDataset(torch.rand(64, 4))
sampler = DistributedSampler(data)
model = DDP(nn.Linear(4, 4).cuda())
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
stops = False
for epoch in range(10):
    sampler.set_epoch(epoch)
    for x, in DataLoader(data, batch_size=8, sampler=sampler):
        optimizer.zero_grad()
        model(x.cuda()).mean().backward()
        optimizer.step()
    if not stops:
        figure, stops = evaluate(model, embed(model, data), local_rank)
        print(figure)
"""


@pytest.mark.parametrize(("combines", "is_wrong"), [("pass", True), ("dist.all_reduce(figures)", False)])
def test_a_validation_that_makes_its_loader_itself(tmp_path: Path, combines: str, is_wrong: bool) -> None:
    assert ("part-as-whole" in found(tmp_path, STARTED + LOADED_INSIDE.format(combines=combines), **GPUS)) is is_wrong


WITH_BUFFERS = """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    def forward(self, x):
        return self.layers(x)
@torch.no_grad()
def test(folder, model=None):
    if model is None:
        model = torch.load(folder + "/best.pt")["model"]
    model.eval()
    return model(torch.rand(8, 4).cuda()).mean()
model = DDP(module=Net().cuda())
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(10):
    optimizer.zero_grad()
    model(torch.rand(8, 4).cuda()).mean().backward()
    optimizer.step()
    if rank == 0:
        print(test("/shared/out", {given}))
"""


@pytest.mark.parametrize(("given", "is_wrong"), [("model", True), ("model.module", False)])
def test_a_model_that_a_function_loads_only_if_it_gets_none(tmp_path: Path, given: str, is_wrong: bool) -> None:
    assert ("rank-0-collective" in found(tmp_path, STARTED + WITH_BUFFERS.format(given=given), **GPUS)) is is_wrong
