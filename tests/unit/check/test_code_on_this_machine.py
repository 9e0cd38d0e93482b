"""Code that was written for a cluster with GPUs, started on the nodes of this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from checked import GPUS, IMPORTED, findings, found, with_files

from jobsubmit.check.program.facts import Facts
from jobsubmit.config import load_settings
from jobsubmit.scaffold.choice import choose_draft

HERE: dict[str, Any] = {"backend": {"kind": "local"}}
GROUP = f"""{IMPORTED}
parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=4)
parser.add_argument("--log-every", type=int, default=2)
args = parser.parse_args()
dist.init_process_group("gloo")
"""


@pytest.fixture(autouse=True)
def _no_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")


@pytest.mark.parametrize(
    "line",
    [
        'assert torch.cuda.is_available(), "one GPU at least"',
        'if not torch.cuda.is_available():\n    raise RuntimeError("one GPU at least")',
    ],
)
def test_code_that_demands_gpus(tmp_path: Path, line: str) -> None:
    (tmp_path / "train.py").write_text(f"{GROUP}{line}\n")
    (wrong,) = [one for one in findings(tmp_path, **HERE) if one.check == "unfulfilled"]
    assert (wrong.level, "these nodes have none" in wrong.text) == ("error", True)
    assert "unfulfilled" not in found(tmp_path, f"{GROUP}{line}\n", **GPUS)


@pytest.mark.parametrize(
    ("test", "is_said"),
    [("step % args.log_every == 0", True), ("step % 2 == 0 and usable", False), ("usable", False)],
)
def test_a_gpu_that_is_used_in_some_steps(tmp_path: Path, test: str, is_said: bool) -> None:
    text = f"{GROUP}usable = os.path.exists('/dev/nvidia0')\nstep = 0\nfor batch in DataLoader([1, 2, 3]):\n"
    text += f"    step += 1\n    if {test}:\n        torch.cuda.synchronize()\n"
    assert ("cuda-on-cpu" in found(tmp_path, text, **HERE)) is is_said


def test_the_hint_names_a_device_for_each_process(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(f"{GROUP}nn.Linear(1, 1).to(int(os.environ['LOCAL_RANK']))\n")
    (wrong,) = [one for one in findings(tmp_path, **HERE) if one.check == "cuda-on-cpu"]
    assert 'torch.device("cuda", local_rank)' in wrong.hint


@pytest.mark.parametrize(("given", "is_wrong"), [("args.count", False), ("args.steps", True)])
def test_a_loop_without_a_pass_divides_nothing(tmp_path: Path, given: str, is_wrong: bool) -> None:
    text = f"{GROUP}args.count = args.steps // 8\nfor i in range(1, {given} + 1):\n    print((i - 1.0) / args.count)\n"
    assert ("unfulfilled" in found(tmp_path, text, **GPUS)) is is_wrong


READ = [
    ("print(args.init_method)", True),
    ("print(args.steps, args.log_every)", False),
    ("args.rate = 3\nprint(args.rate)", False),
    ("print(hasattr(args, 'rate') and args.rate)", False),
    ("try:\n    print(args.rate)\nexcept AttributeError:\n    pass", False),
    ("def run(options):\n    print(options.rate)\nrun(args)", True),
    ("def run(args):\n    print(args.rate)\nclass Own:\n    rate = 3\nrun(Own())", False),
    ("for name in ('rate',):\n    setattr(args, name, 3)\nprint(args.rate)", False),
    ("vars(args).update(rate=3)\nprint(args.rate)", False),
    ("if args.steps > 9:\n    print(args.rate)", False),
]


@pytest.mark.parametrize(("line", "is_wrong"), READ)
def test_an_argument_that_is_read_and_not_declared(tmp_path: Path, line: str, is_wrong: bool) -> None:
    assert ("undeclared" in found(tmp_path, f"{GROUP}{line}\n", **GPUS)) is is_wrong


SPAWNED = f"""{IMPORTED}
def work(number, count):
    dist.init_process_group("gloo", init_method="tcp://127.0.0.1:23456", world_size=count, rank=number)
if __name__ == "__main__":
    mp.spawn(work, args=(4,), nprocs=2)
"""


def test_hints_for_a_command_name_what_its_nodes_have(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SPAWNED)
    hints = " ".join(one.hint for one in findings(tmp_path, **GPUS, command="python train.py"))
    assert 'init_method="env://"' in hints
    assert 'os.environ["NODE_RANK"]' in hints
    (tmp_path / "train.py").write_text("import lightning as L\nL.Trainer(devices=4).fit(None)\n")
    hints = " ".join(one.hint for one in findings(tmp_path, **GPUS, command="python train.py"))
    assert 'devices=int(os.environ["NPROC_PER_NODE"])' in hints


HYDRA = """
import hydra, torchvision
@hydra.main(version_base="1.3", config_path="conf", config_name="config")
def main(cfg):
    hydra.utils.instantiate(cfg.trainer).fit(None)
main()
"""


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ("accelerator: cpu\ndevices: 2\n", {"lightning-nodes"}),
        ("accelerator: gpu\nnum_nodes: 2\n", {"cuda-on-cpu"}),
        ("sync_batchnorm: true\nnum_nodes: 2\n", {"cuda-on-cpu"}),
        ("accelerator: cpu\nnum_nodes: 2\n", set()),
    ],
)
def test_what_hydra_gives_lightnings_trainer(tmp_path: Path, settings: str, expected: set[str]) -> None:
    trainer = f"_target_: lightning.pytorch.trainer.Trainer\n{settings}"
    with_files(tmp_path, {"conf/config.yaml": "defaults:\n  - trainer: own\n", "conf/trainer/own.yaml": trainer})
    wrong = found(tmp_path, HYDRA, **HERE, command="python train.py")
    assert wrong & {"lightning-nodes", "cuda-on-cpu"} == expected


ENOUGH_GPUS = """
def enough(least=2):
    has_gpu = torch.accelerator.is_available()
    return has_gpu and torch.accelerator.device_count() >= least
"""


@pytest.mark.parametrize(
    ("text", "places"),
    [
        ("if not enough():\n    print('no GPUs')\n    sys.exit()\n", ["unfulfilled", "cuda-on-cpu"]),
        ("has = torch.cuda.is_available()\nif not has:\n    exit(0)\n", ["unfulfilled", "cuda-on-cpu"]),
        ("if not torch.cuda.is_available():\n    raise SystemError('no GPUs')\n", ["unfulfilled", "cuda-on-cpu"]),
        ("if torch.cuda.is_available():\n    print('a GPU')\n    sys.exit()\n", ["cuda-on-cpu"]),
        ("if not enough():\n    train_on_cpu()\n    sys.exit()\n", []),
        ("if '--dry' in sys.argv and not enough():\n    sys.exit()\n", ["cuda-on-cpu"]),
    ],
)
def test_a_program_that_ends_because_there_are_no_gpus(text: str, places: list[str], tmp_path: Path) -> None:
    """What needs GPUs after that is named, too: else each run would show only the next place."""
    program = f"{IMPORTED}{ENOUGH_GPUS}def train_on_cpu():\n    pass\n{text}torch.cuda.set_device(0)\n"
    assert sorted(found(tmp_path, program, **HERE) & {"unfulfilled", "cuda-on-cpu"}) == sorted(places)


def test_a_main_function_that_returns_because_there_are_no_gpus(tmp_path: Path) -> None:
    body = "    if not torch.cuda.is_available():\n        logging.info('no GPU')\n        return\n    train()\n"
    text = f"import logging, torch\ndef train():\n    pass\ndef NAME():\n{body}NAME()\n"
    assert "unfulfilled" in found(tmp_path, text.replace("NAME", "main"), **HERE)
    assert "unfulfilled" not in found(tmp_path, text.replace("NAME", "empty_cache"), **HERE)


TASK = """
class Task(nn.Module):
    def prepare(self, device_ids=None, **kwargs):
        self.model = DDP(nn.Linear(1, 1), device_ids=device_ids, **kwargs)
task = Task()
"""


@pytest.mark.parametrize(
    ("text", "needs"),
    [
        ("torch.accelerator.set_device_index(0)", "torch.accelerator.set_device_index()"),
        ("if torch.accelerator.is_available():\n    torch.accelerator.set_device_index(0)", ""),
        ("rank = dist.get_rank()\ndevice = rank % torch.cuda.device_count()", "`rank % torch.cuda.device_count()`"),
        ("print('%d GPUs' % torch.cuda.device_count())", ""),
        (f"{TASK}task.prepare(device_ids=[0], find_unused_parameters=False)", "device_ids=[0]"),
        (f"{TASK}task.prepare(device_ids=None)", ""),
        ("print(4 // torch.cuda.device_count() if torch.cuda.is_available() else 1)", ""),
    ],
)
def test_words_that_need_a_gpu(text: str, needs: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(f"{IMPORTED}{text}\n")
    texts = [one.text for one in findings(tmp_path, **HERE) if one.check in ("cuda-on-cpu", "unfulfilled")]
    assert texts == ([f"{needs} needs a GPU, but these nodes have none"] if needs else [])


@pytest.mark.parametrize(
    ("device", "is_refused"),
    [
        ("torch.device('cpu')", True),
        ("torch.device('cuda' if torch.cuda.is_available() else 'cpu')", True),
        ("torch.device('cpu:0')", False),
        ("torch.device('cpu', 0)", False),
        ("torch.device(f'cuda:{rank}') if torch.cuda.is_available() else None", False),
    ],
)
def test_a_process_group_for_a_device_without_a_number(device: str, is_refused: bool, tmp_path: Path) -> None:
    text = f"{IMPORTED}rank = int(os.environ['LOCAL_RANK'])\ndevice = {device}\n"
    text += "dist.init_process_group('gloo', device_id=device)\n"
    assert ("group-device" in found(tmp_path, text, **HERE)) is is_refused


@pytest.mark.parametrize(
    ("call", "is_said"),
    [("MNIST(FOLDER, download=True)", True), ("MNIST('data')", False), ("Own(FOLDER)", False)],
)
def test_a_data_set_in_a_folder_beside_the_code(call: str, is_said: bool, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    text = "from os import path\nfrom lightning.pytorch.demos.mnist_datamodule import MNIST\nclass Own:\n    pass\n"
    text += f"FOLDER = path.join(path.dirname(__file__), '..', 'data')\n{call}\n"
    with_files(tmp_path, {"code/train.py": text})
    texts = [one.text for one in findings(tmp_path / "code", **HERE) if one.check == "left-out"]
    assert texts == (["uses ../data, which is outside the code directory and is not uploaded"] if is_said else [])


SWIN = """
class Scaler:
    def __init__(self):
        self._scaler = torch.cuda.amp.GradScaler()
    def state_dict(self):
        return self._scaler.state_dict()
def train_one_epoch(model, loader, loss_scaler):
    for samples in loader:
        samples = samples.cuda(non_blocking=True)
        model(samples).sum().backward()
        print(loss_scaler.state_dict()["scale"])
def main(epochs):
    model = nn.Linear(1, 1).cuda()
    for epoch in range(epochs):
        train_one_epoch(model, [torch.ones(1, 1)], Scaler())
if __name__ == "__main__":
    main(int(input()))
"""


def test_places_in_loops_are_among_those_that_need_a_gpu(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(f"{IMPORTED}{SWIN}")
    (text,) = [one.text for one in findings(tmp_path, **HERE) if one.check == "cuda-on-cpu"]
    assert "train.py:15 .cuda()" in text
    assert "train.py:17 `loss_scaler.state_dict()['scale']`" in text


WRAPPED_ON_GPUS = f"""{GROUP}
def sync_params(params):
    for p in params:
        dist.broadcast(p, 0)
class Loop:
    def __init__(self):
        self.model = nn.Linear(1, 1)
        sync_params(self.model.parameters())
        if torch.cuda.is_available():
            self.ddp = DDP(self.model)
        else:
            OTHERWISE
    def run(self):
        while True:
            self.ddp(torch.ones(1, 1)).sum().backward()
            self.load()
    def load(self):
        sync_params(self.model.parameters())
Loop().run()
"""


@pytest.mark.parametrize(
    ("otherwise", "is_said"),
    [
        ("print('without GPUs, gradients are not synchronized')\n            self.ddp = self.model", True),
        ("self.ddp = MyParallel(self.model)", False),
    ],
)
def test_a_model_that_is_wrapped_only_with_gpus(otherwise: str, is_said: bool, tmp_path: Path) -> None:
    text = WRAPPED_ON_GPUS.replace("OTHERWISE", otherwise)
    assert ("never-synchronized" in found(tmp_path, text, **HERE)) is is_said


MPI = """
import torch.distributed as dist
from mpi4py import MPI
comm = MPI.COMM_WORLD
dist.init_process_group("gloo", rank=comm.rank, world_size=comm.size)
"""


def test_ranks_of_mpi_where_mpirun_became_a_launcher_of_torch(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(MPI)
    draft = choose_draft("mpirun -np 2 python train.py", tmp_path, load_settings())
    fields = {name: draft.fields[name] for name in ("command", "resources")}
    shown = [one for one in findings(tmp_path, **HERE, **fields) if one.check == "same-ranks"]
    assert [one.level for one in shown] == ["error"]


def test_a_module_that_only_a_class_without_objects_imports(tmp_path: Path) -> None:
    text = """
class Plain:
    pass
class Board:
    def __init__(self):
        import gone
def make(name):
    return Board() if name == "board" else Plain()
outputs = [make(name) for name in filter(None, NAMES.split(","))]
"""
    for names, is_said in (("'plain,'", False), ("'plain,board'", True)):
        (tmp_path / "train.py").write_text(text.replace("NAMES", names))
        shown = [one.check for one in findings(tmp_path, {"gone"}, **HERE)]
        assert ("packages" in shown) is is_said


OF_TRAINER = """
from transformers import HfArgumentParser, Trainer, TrainingArguments
(args,) = HfArgumentParser((TrainingArguments,)).parse_args_into_dataclasses()
Trainer(args=args).train()
"""


@pytest.mark.parametrize(
    ("command", "nodes", "is_said"),
    [
        ("python train.py", 2, True),
        ("python train.py", 1, False),
        (["bash", "-c", "RANK=$NODE_RANK WORLD_SIZE=$NNODES python train.py"], 2, False),
        ("torchrun --nnodes 2 --node_rank $NODE_RANK --master_addr $MASTER_ADDR train.py", 2, False),
    ],
)
def test_a_library_that_joins_what_no_launcher_starts(
    command: str | list[str], nodes: int, is_said: bool, tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text(OF_TRAINER)
    command = ["bash", "-c", command] if isinstance(command, str) and "$" in command else command
    shown = findings(tmp_path, **HERE, command=command, resources={"nodes": nodes, "nproc_per_node": 1})
    assert any("only joins" in one.text for one in shown) is is_said


def test_a_device_by_the_format_of_its_number(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        f"{GROUP}device = torch.device('cuda:{{:d}}'.format(0))\nnn.Linear(1, 1).to(device)\n"
    )
    (text,) = [one.where for one in findings(tmp_path, **HERE) if one.check == "cuda-on-cpu"]
    assert text == "train.py:13"


LAUNCHER = """
import subprocess, sys
def main(words):
    for rank in range(2):
        subprocess.Popen([sys.executable, "-u", *words])
main(sys.argv[1:])
"""


def test_what_a_launcher_of_the_code_starts_is_not_checked_and_that_is_said(tmp_path: Path) -> None:
    with_files(tmp_path, {"multiproc.py": LAUNCHER, "train.py": "print(1)\n"})
    shown = findings(tmp_path, **HERE, command="python multiproc.py", args=["train.py", "--lr", "1"])
    assert [one.level for one in shown if "so their code is not checked" in one.text] == ["unknown"]


RETURNS = """
def main(evaluate):
    for name in os.listdir("."):
        if name == "last.pt":
            print("loading")
            if evaluate:
                return
    if os.path.exists("last.pt"):
        if evaluate:
            return
    torch.zeros(3).cuda()
main(EVALUATE)
"""


@pytest.mark.parametrize(("evaluate", "level"), [("False", ["error"]), ("os.path.exists('x')", [])])
def test_a_return_that_this_job_does_not_reach_hides_nothing(evaluate: str, level: list[str], tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(IMPORTED + RETURNS.replace("EVALUATE", evaluate))
    assert [one.level for one in findings(tmp_path, **HERE) if one.check == "cuda-on-cpu"] == level


TRAINED = f"""{GROUP}
def train(device):
    nn.Linear(1, 1)(torch.ones(1, 1)).sum().backward()
def report():
    if not torch.cuda.is_available():
        print("no memory statistics")
        sys.exit(0)
    print(torch.cuda.max_memory_allocated())
def get_args():
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--dry-run", action="store_true")
    return parser.parse_args()
def maintain_cache():
    if not torch.cuda.is_available():
        return
    torch.cuda.empty_cache()
"""


@pytest.mark.parametrize(
    "lines",
    [
        "train('cpu')\nreport()\n",
        "def main():\n    train('cpu')\n    if not torch.cuda.is_available():\n        return\n    report()\nmain()\n",
        "maintain_cache()\ntrain('cpu')\n",
        "if not torch.cuda.is_available():\n    sys.exit(train('cpu'))\n",
        "if not torch.cuda.is_available():\n    print(train('cpu'))\n    sys.exit()\n",
        "args = get_args()\nif args.dry_run:\n    print(args)\n    sys.exit()\ntrain('cpu')\n",
    ],
)
def test_a_program_that_ends_after_it_trained_or_for_another_reason(lines: str, tmp_path: Path) -> None:
    assert "unfulfilled" not in found(tmp_path, f"{TRAINED}{lines}", **HERE)


@pytest.mark.parametrize(
    "text",
    [
        "acc = torch.accelerator.current_accelerator()\n"
        "use = acc is not None and torch.accelerator.device_count() > 0\n"
        "device = torch.device(acc.type, 0) if use else torch.device('cpu')\n",
        "print(torch.accelerator.current_accelerator())\n",
        "class StandardScaler:\n    def state_dict(self):\n        return {'scale': 1}\n"
        "scaler = StandardScaler()\nprint(scaler.state_dict()['scale'], torch.cuda.amp.GradScaler)\n",
        "scaler = torch.amp.GradScaler('cpu')\nprint(scaler.state_dict()['scale'])\n",
        "class Task:\n    def prepare(self, device_ids=None):\n"
        "        self.model = DDP(nn.Linear(1, 1), device_ids=device_ids)\n"
        "class Loader:\n    def prepare(self, device_ids):\n        self.ids = device_ids\n"
        "Loader().prepare(device_ids=[0])\n",
        "def bold(text):\n    return text\nprint(bold('GPUs: %d') % torch.cuda.device_count())\n",
        "def pick():\n    if os.path.exists('lock'):\n        pass\n    else:\n        try:\n"
        "            torch.cuda.init()\n        except RuntimeError:\n            return 'cpu'\n"
        "    torch.zeros(3).cuda()\nif os.path.exists('x'):\n    pick()\n",
    ],
)
def test_what_needs_no_gpu(text: str, tmp_path: Path) -> None:
    assert "cuda-on-cpu" not in found(tmp_path, f"{IMPORTED}{text}", **HERE)


@pytest.mark.parametrize(
    "text",
    [
        "import transformers\nos.environ['RANK'] = os.environ['NODE_RANK']\n"
        "transformers.Trainer(args=transformers.TrainingArguments('x')).train()\n",
        "from accelerate import Accelerator\ndef work(rank):\n    Accelerator(cpu=True)\nmp.spawn(work, nprocs=2)\n",
    ],
)
def test_a_program_that_connects_its_processes_itself(text: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(IMPORTED + text)
    shown = findings(tmp_path, **HERE, command="python train.py", resources={"nodes": 2, "nproc_per_node": 1})
    assert not [one for one in shown if "only joins" in one.text]


@pytest.mark.parametrize("kind", ["staticmethod", "classmethod"])
def test_a_module_that_a_function_of_a_class_imports(kind: str, tmp_path: Path) -> None:
    text = f"class IO:\n    @{kind}\n    def save(*words):\n        import gone\nIO.save()\n"
    (tmp_path / "train.py").write_text(text)
    assert "packages" in {one.check for one in findings(tmp_path, {"gone"}, **HERE)}


def test_data_beside_the_code_that_a_configuration_names(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    text = "import sys, yaml\nsettings = yaml.safe_load(open(sys.argv[1]))\n"
    with_files(tmp_path / "code", {"train.py": text, "configs/base.yaml": "data:\n  root: ../data\n"})
    texts = [one.text for one in findings(tmp_path / "code", **HERE, args=["configs/base.yaml"])]
    assert "uses ../data, which is outside the code directory and is not uploaded" in texts


OF_FIELDS = f"""{IMPORTED}
class Trainer:
    def __init__(self, model, rank, path=None):
        self.path = path
        {{device}}
        self.model = {{model}}
        if self.path is None:
            self.path = "snapshot.pt"
    def train(self):
        for (x,) in DataLoader(TensorDataset(torch.rand(4, 4))):
            self.model({{batch}}).mean().backward()
def main(rank):
    dist.init_process_group("gloo")
    Trainer(nn.Linear(4, 4), rank).train()
main(int(os.environ["LOCAL_RANK"]))
"""
TO_FIELD = {"model": "model.to(self.device)", "batch": "x.to(self.device)"}


@pytest.mark.parametrize(
    ("device", "moves", "needs"),
    [
        ("self.device = torch.device('cuda', rank)", TO_FIELD, "torch.device('cuda', rank)"),
        (
            "self.acc = torch.accelerator.current_accelerator()\n"
            "        self.device = torch.device(f'{self.acc}:{rank}')",
            TO_FIELD,
            "the device of torch.accelerator.current_accelerator()",
        ),
        (
            "self.gpu_id = rank",
            {"model": "DDP(model.to(rank), device_ids=[rank])", "batch": "x.to(self.gpu_id)"},
            ".to(self.gpu_id)",
        ),
        ("self.device = torch.device('cpu')", TO_FIELD, ""),
        (
            "self.acc = torch.accelerator.current_accelerator()\n"
            "        self.device = torch.device('cpu') if self.acc is None else torch.device(self.acc.type, rank)",
            TO_FIELD,
            "",
        ),
    ],
)
def test_a_device_that_a_field_holds(
    device: str, moves: dict[str, str], needs: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Facts, "has_nccl", True)  # of a build for GPUs, on nodes without them
    (tmp_path / "train.py").write_text(OF_FIELDS.format(device=device, **moves))
    wrong = [one.text for one in findings(tmp_path, **HERE) if one.check == "cuda-on-cpu"]
    assert [needs in one for one in wrong] == [True] * bool(needs)


@pytest.mark.parametrize("name", ["--dist-backend", "--backend"])
def test_a_backend_that_an_option_names(name: str, tmp_path: Path) -> None:
    field = name.removeprefix("--").replace("-", "_")
    text = f"{IMPORTED}parser = argparse.ArgumentParser()\nparser.add_argument('{name}', default='nccl')\n"
    (tmp_path / "train.py").write_text(f"{text}args = parser.parse_args()\ndist.init_process_group(args.{field})\n")
    (wrong,) = [one for one in findings(tmp_path, **HERE) if one.check == "nccl-on-cpu"]
    assert (wrong.hint or "").startswith(f"pass {name}=gloo")


LIGHTNING = "import lightning.pytorch as pl\npl.Trainer({given}).fit(None)\n"
ALONE = {"command": "python train.py"}


@pytest.mark.parametrize(
    ("given", "fields", "said"),
    [
        ("devices=1", {}, "error: each process would train alone"),
        ("devices=2", {}, "error: Lightning refuses that"),
        ("devices=1, strategy='ddp'", {}, "error: Lightning refuses that"),
        ("", {}, "warning: the job would fail, or each process would train alone"),
        ("devices=2", ALONE, "error: each node would train alone"),
        ("devices=2, plugins=[None]", ALONE, "warning: each node would train alone"),
        ("devices=2, num_nodes=4", ALONE, "error: its processes would wait for nodes that do not exist"),
    ],
)
def test_a_number_of_nodes_that_a_trainer_does_not_get(
    given: str, fields: dict[str, Any], said: str, tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text(LIGHTNING.format(given=given))
    (wrong,) = [one for one in findings(tmp_path, **HERE, **fields) if one.check == "lightning-nodes"]
    assert f"{wrong.level}: {wrong.text.rpartition(': ')[2]}" == said


TOY = """
import torch
net = torch.nn.Linear(1, 1)
for step in range(3):
    net(torch.ones(1)).backward()
{more}
"""


@pytest.mark.parametrize(
    ("more", "fields", "hint"),
    [
        ("", {}, "nodes: 1, nproc_per_node: 1"),
        ("", ALONE, "no code makes a process group"),
        ("", {"resources": {"nodes": 1, "nproc_per_node": 1}}, ""),
        ("import os\nprint(os.environ['RANK'])", {}, ""),
        ("from lib import DistributedTrainer", {}, ""),
    ],
)
def test_a_program_that_knows_of_no_other_process(more: str, fields: dict[str, Any], hint: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TOY.format(more=more))
    alone = [one for one in findings(tmp_path, **HERE, **fields) if one.check in ("no-init", "launcher-nodes")]
    assert [hint in one.hint for one in alone] == [True] * bool(hint)


def test_nccl_that_deepspeed_is_asked_for(tmp_path: Path) -> None:
    text = "import deepspeed\ndeepspeed.init_distributed({given})\n"
    assert "nccl-on-cpu" in found(tmp_path, text.format(given="dist_backend='nccl'"), **HERE)
    assert "nccl-on-cpu" not in found(tmp_path, text.format(given="dist_backend='gloo'"), **HERE)
    assert "nccl-on-cpu" not in found(tmp_path, text.format(given=""), **HERE)


@pytest.mark.parametrize(("accelerator", "is_wrong"), [("gpu", True), ("cpu", False), ("auto", False)])
def test_gpus_that_the_command_line_of_lightning_asks_for(accelerator: str, is_wrong: bool, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("from lightning.pytorch.cli import LightningCLI\nLightningCLI()\n")
    args = ["fit", f"--trainer.accelerator={accelerator}", "--trainer.num_nodes=2", "--trainer.devices=2"]
    shown = [one.text for one in findings(tmp_path, **HERE, args=args) if one.check == "cuda-on-cpu"]
    assert [one.startswith("trainer.accelerator is gpu, which needs a GPU") for one in shown] == [True] * is_wrong


def test_a_folder_beside_the_code_is_named_once(tmp_path: Path) -> None:
    text = "from torchvision import datasets\ndatasets.MNIST('../data')\ndatasets.MNIST('../data', train=False)\n"
    with_files(tmp_path, {"code/train.py": text, "data/MNIST/raw/train": "x"})
    (shown,) = [one for one in findings(tmp_path / "code", **HERE) if one.check == "left-out"]
    assert "copy it into code_dir and use its new path, or name it in `inputs`" in (shown.hint or "")
