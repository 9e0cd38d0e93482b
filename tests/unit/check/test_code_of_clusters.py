"""Code that was written for a cluster: its variables, its options, and trainers that are found by their names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from checked import GPUS, findings, found, with_files

SYNC = """
import os, torch, torch.distributed as dist
def place():
    return f"file://{os.environ['SCRATCH_OF_TESTS']}/sync.{os.environ['SLURM_STEP_ID']}"
dist.init_process_group("gloo", init_method=place(), rank=int(os.environ["RANK"]), world_size=4)
"""


def test_a_variable_that_nothing_sets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "train.py").write_text(SYNC)

    def unset(**fields: Any) -> list[str]:
        return [one.text.partition(" ")[0] for one in findings(tmp_path, **fields) if one.check == "unset-variable"]

    assert unset() == ["SCRATCH_OF_TESTS", "SLURM_STEP_ID"]
    assert unset(env={"SCRATCH_OF_TESTS": "/tmp"}) == ["SLURM_STEP_ID"]
    assert unset(setup="export SCRATCH_OF_TESTS=/tmp\nmake") == ["SCRATCH_OF_TESTS", "SLURM_STEP_ID"]
    start = "export SCRATCH_OF_TESTS=/tmp SLURM_STEP_ID=0; exec torchrun --nnodes=$NNODES train.py"
    assert unset(command=["bash", "-c", start]) == []
    assert unset(**GPUS) == []  # Slurm sets its own, and its nodes may have the other
    monkeypatch.setenv("SCRATCH_OF_TESTS", "/tmp")
    assert unset() == ["SLURM_STEP_ID"]


def test_variables_that_jobsubmit_and_bash_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = ["PWD", "SHLVL", "WANDB_NAME", "CHECKPOINT_DIR_OF_TESTS", "TOKEN_OF_TESTS"]
    for name in names:
        monkeypatch.delenv(name, raising=False)
    fields: dict[str, Any] = {"tracking": ["wandb"], "secrets": {"TOKEN_OF_TESTS": "env:HOME"}}
    fields["env"] = {"CHECKPOINT_DIR_OF_TESTS": "/tmp"}
    assert "unset-variable" not in found(
        tmp_path, f"import os\nprint([os.environ[name] for name in {names}])\n", **fields
    )
    each = "import os\n" + "".join(f"print(os.environ[{name!r}])\n" for name in names)
    assert "unset-variable" not in found(tmp_path, each, **fields)


@pytest.mark.parametrize(
    "before",
    [
        "import dotenv; dotenv.load_dotenv()",
        "import os; os.environ.update(dict(line.split('=') for line in open('/etc/environment')))",
        "import os; os.environ['SCRATCH_OF_TESTS'] = '/tmp'; os.environ['SLURM_STEP_ID'] = '0'",
    ],
)
def test_a_variable_that_the_program_may_set_itself(tmp_path: Path, before: str) -> None:
    assert "unset-variable" not in found(tmp_path, before + SYNC)


def test_a_file_where_nodes_meet_is_there_on_this_machine(tmp_path: Path) -> None:
    text = (
        'import torch.distributed as dist\ndist.init_process_group("gloo", "file:///tmp/meeting", rank=0, world_size=2)'
    )
    (tmp_path / "train.py").write_text(text)
    for fields, level in (({}, "warning"), (GPUS, "error")):
        assert [one.level for one in findings(tmp_path, **fields) if one.check == "fixed-master"] == [level]


@pytest.mark.parametrize(
    ("setup", "hint"),
    [
        ("make\nexport NCCL_DEBUG=INFO\n", "`env`"),
        ("pip install -e . && NCCL_DEBUG=INFO", "`env`"),
        ("source /opt/env/bin/activate  # ours\n", "backend.python"),
        ("module load cuda/12\nconda activate train", "backend.python"),
        ("export CUDA_HOME=/usr/local/cuda\nmake extensions", ""),
        ("source env.sh && python prepare.py", ""),
        ("CUDA_HOME=/usr/local/cuda make", ""),
        ("", ""),
    ],
)
def test_a_setup_that_is_to_change_the_shell_of_the_program(tmp_path: Path, setup: str, hint: str) -> None:
    (tmp_path / "train.py").write_text("")
    hints = [one.hint for one in findings(tmp_path, setup=setup or None) if one.check == "setup-alone"]
    assert len(hints) == bool(hint)
    assert all(hint in one for one in hints)


TASK = """
import os, torch.distributed as dist
dist.init_process_group("gloo", rank=int(os.environ["SLURM_PROCID"]), world_size=int(os.environ["SLURM_NTASKS"]))
"""
TASKS = (
    "exec torchrun --nnodes=$NNODES --node_rank=$NODE_RANK --nproc_per_node=$NPROC_PER_NODE --master_addr=$MASTER_ADDR "
    '--master_port=$MASTER_PORT --no-python bash -c \'SLURM_PROCID=${set} SLURM_NTASKS=$WORLD_SIZE exec "$0" "$@"\' '
    "python train.py"
)


@pytest.mark.parametrize(("variable", "is_found"), [("RANK", False), ("NODE_RANK", True)])
def test_a_rank_of_slurm_that_the_command_sets(tmp_path: Path, variable: str, is_found: bool) -> None:
    command = ["bash", "-c", TASKS.replace("${set}", f"${variable}")]
    assert bool({"rank-env", "same-ranks"} & found(tmp_path, TASK, command=command)) is is_found


TRAINERS = {
    "start.py": """
import torch.distributed as dist
def by_gloo():
    dist.init_process_group("gloo")
def by_a_file():
    dist.init_process_group("gloo", init_method="file:///tmp/x")
def start(backend):
    if backend is None:
        return 0
    if backend == "gloo":
        by_gloo()
    return dist.get_rank()
""",
    "trainers/__init__.py": """
import importlib
def make(name, **given):
    return importlib.import_module("." + name, {package}).Trainer(**given)
""",
    "trainers/basic.py": """
import torch
class Trainer:
    def __init__(self, rank):
        self.net = torch.nn.Linear(2, 2)
    def train(self):
        self.net(torch.rand(2, 2)).sum().backward()
""",
}
MAIN = """
import argparse
from start import start
from trainers import make
parser = argparse.ArgumentParser()
parser.add_argument("-d", "--distributed-backend", choices=["gloo", "nccl"])
args = parser.parse_args()
make("basic", rank=start(args.distributed_backend)).train()
"""


@pytest.mark.parametrize("package", ['"trainers"', "__package__", "package=__name__"])
def test_processes_whose_group_an_option_leaves_out(tmp_path: Path, package: str) -> None:
    with_files(tmp_path, {name: text.replace("{package}", package) for name, text in TRAINERS.items()})
    assert "no-init" in found(tmp_path, MAIN)
    assert "no-init" not in found(tmp_path, MAIN, hyperparameters={"distributed-backend": "gloo"})
    assert "no-init" not in found(tmp_path, MAIN, resources={"nodes": 1, "nproc_per_node": 1})


LIGHTNING = """
import argparse, lightning.pytorch as pl
parser = argparse.ArgumentParser()
parser.add_argument("--accelerator", default="gpu")
args = parser.parse_args()
trainer = pl.Trainer(accelerator=args.accelerator, num_nodes=2, strategy="ddp")
trainer.fit(pl.demos.boring_classes.BoringModel())
"""
ARGUMENTS = """
from transformers import Trainer, TrainingArguments
arguments = TrainingArguments("out", {given})
Trainer(model=None, args=arguments).train()
"""
PARSED = """
from transformers import HfArgumentParser, Trainer, TrainingArguments
(arguments,) = HfArgumentParser(TrainingArguments).parse_args_into_dataclasses()
Trainer(model=None, args=arguments).train()
"""


@pytest.mark.parametrize(
    ("text", "fields", "is_wrong"),
    [
        (LIGHTNING, {}, True),
        (LIGHTNING, {"hyperparameters": {"accelerator": "auto"}}, False),
        (LIGHTNING, GPUS, False),
        (ARGUMENTS.format(given="bf16=True"), {}, True),
        (ARGUMENTS.format(given="bf16=True"), GPUS, False),
        (ARGUMENTS.format(given="bf16=True, use_cpu=True"), {}, False),
        (ARGUMENTS.format(given="fp16=True"), {}, False),
        (PARSED, {"args": ["--output_dir=out", "--bf16"]}, True),
        (PARSED, {"args": ["--output_dir=out", "--bf16", "--use_cpu"]}, False),
        (PARSED, {"args": ["--output_dir=out", "--bf16=False"]}, False),
    ],
)
def test_what_libraries_do_on_gpus_only(text: str, fields: dict[str, Any], is_wrong: bool, tmp_path: Path) -> None:
    assert ("cuda-on-cpu" in found(tmp_path, text, **fields)) is is_wrong


def test_the_rank_of_deepspeed_is_no_number_of_a_gpu(tmp_path: Path) -> None:
    text = """
import argparse, deepspeed, torch
parser = argparse.ArgumentParser()
parser.add_argument("--local_rank", type=int, default=-1)
args = parser.parse_args()
deepspeed.init_distributed()
local_rank = args.local_rank
if local_rank == -1:
    local_rank = int(deepspeed.comm.get_rank())
if torch.cuda.is_available():
    torch.cuda.set_device(local_rank)
"""
    assert "rank-as-device" in found(tmp_path, text, **GPUS)
