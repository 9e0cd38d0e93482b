"""The first job file: from a command line, from a project's code, or with sample code."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml
from command import Command

from jobsubmit.common.resources import starter_job
from jobsubmit.errors import UsageError
from jobsubmit.scaffold.from_command import draft_from_command
from jobsubmit.spec.job_spec import MODES
from jobsubmit.spec.json_schema import json_schema

CORPUS = Path(__file__).parents[2] / "corpus" / "boot_files"
COMMANDS: dict[str, dict[str, Any]] = {
    "torchrun train.py": {"mode": "torchrun", "resources": {"nodes": 1, "nproc_per_node": 1}},
    "torchrun --nnodes=2 --nproc-per-node=8 --rdzv_backend=c10d --rdzv-endpoint=h:1 src/train.py --lr 0.1": {
        "mode": "torchrun",
        "boot_file": "src/train.py",
        "rdzv_backend": "c10d",
        "resources": {"nodes": 2, "nproc_per_node": 8},
        "hyperparameters": {"lr": 0.1},
    },
    "torchrun --nnodes=1:4 --nproc_per_node=gpu --max_restarts=3 ./train.py --amp -b 8": {
        "resources": {"nodes": "1:4"},
        "restarts": 3,
        "boot_file": "train.py",
        "hyperparameters": {"amp": {"flag": True}},
        "args": ["-b", "8"],
    },
    "A=1 OMP_NUM_THREADS=4 python3.11 -m torch.distributed.launch --use_env --nproc_per_node 2 train.py --name 'a b'": {
        "mode": "launch",
        "env": {"A": "1", "OMP_NUM_THREADS": "4"},
        "hyperparameters": {"name": "a b"},
        "resources": {"nodes": 1, "nproc_per_node": 2},
    },
    "python -u -m torch.distributed.launch --nproc_per_node=4 --master_port 1 train.py data --steps 30 60 --lr=1e-3": {
        "mode": "launch",
        "local_rank": "argument",
        "args": ["data", "--steps", "30", "60", "--lr=1e-3"],
    },
    "torchrun train.py config/small.py --batch_size=4": {
        "mode": "torchrun",
        "args": ["config/small.py", "--batch_size=4"],
    },
    "torchrun train.py data --api-key s3cret --lr=1 --token=t": {"mode": "torchrun", "args": ["data", "--lr=1"]},
    "torchrun train.py --api-key s3cret --hf_token=t --pad_token_id 0": {
        "mode": "torchrun",
        "hyperparameters": {"pad_token_id": 0},
    },
    "torchrun train.py --lr=1 data": {"mode": "torchrun", "args": ["data"], "hyperparameters": {"lr": 1}},
    "python main.py --world_size 2 --rank=0 --init_method tcp://h:1 --lr 1": {
        "mode": "spawn",
        "hyperparameters": {"lr": 1},
        "resources": {"nodes": 1},
    },
    "RANK=0 python -m torch.distributed.run --standalone --nproc_per_node=2 train.py --x=-1 --y -2.5": {
        "mode": "torchrun",
        "hyperparameters": {"x": -1, "y": -2.5},
    },
}


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_line_becomes_a_job(command: str) -> None:
    fields = draft_from_command(command).fields
    assert {name: fields.get(name) for name in COMMANDS[command]} == COMMANDS[command]
    assert "RANK" not in fields.get("env", {})


@pytest.mark.parametrize(
    "command",
    [
        "",
        "python -m pkg.train",
        "bash train.sh",
        "torchrun --nproc_per_node=2",
        "torchrun -m pkg.train",
        "torchrun 'train.py",
    ],
)
def test_what_is_no_launchers_command_is_refused(command: str) -> None:
    with pytest.raises(UsageError, match="--from"):
        draft_from_command(command)


def test_from_writes_a_job_that_renders_the_same_words(jobsubmit: Command, tmp_path: Path) -> None:
    command = "torchrun --nnodes=2 --nproc_per_node=2 train.py in 'p q' --lr 0.1 --amp"
    jobsubmit("init", "--from", command)
    (tmp_path / "train.py").write_text("print(1)\n")
    script = jobsubmit("render", "job.yaml").stdout
    assert script.index(" in\n") < script.index("'p q'") < script.index("--lr") < script.index("0.1")
    assert "'p q'" in script
    assert yaml.safe_load((tmp_path / "job.yaml").read_text())["resources"] == {"nodes": 2, "nproc_per_node": 2}
    refused = jobsubmit("init", "other", "--from", command, "--with-code", code=2)
    assert "--from" in refused.stderr


@pytest.mark.parametrize(
    ("case", "mode"),
    [("imagenet_spawn_ok", "spawn"), ("known_args_underscore_local_rank", "launch"), ("none", "torchrun")],
)
def test_a_project_is_looked_at(case: str, mode: str, jobsubmit: Command, tmp_path: Path) -> None:
    if (CORPUS / case).exists():
        shutil.copytree(CORPUS / case, tmp_path / "project")
    else:
        (tmp_path / "project").mkdir()
        text = "import os, torch.distributed as dist\nif __name__ == '__main__':\n    dist.init_process_group()\n"
        (tmp_path / "project" / "train.py").write_text(text + "    print(os.environ['LOCAL_RANK'])\n")
    done = jobsubmit("init", "project")
    assert "found train.py" in done.stderr
    job = yaml.safe_load((tmp_path / "project" / "job.yaml").read_text())
    assert (job["mode"], job["boot_file"], job["code_dir"]) == (mode, "train.py", ".")
    assert not (tmp_path / "project" / "code").exists()
    other = jobsubmit("init", "project", code=2)
    assert "exists already" in other.stderr


@pytest.mark.parametrize("mode", MODES)
def test_the_first_job_is_valid(mode: str, jobsubmit: Command, tmp_path: Path) -> None:
    jobsubmit("init", "demo", "--mode", mode)
    assert jobsubmit.json("validate", "demo/job.yaml")["valid"]
    assert json.loads((tmp_path / "demo" / "job.schema.json").read_text()) == json_schema()


def test_the_schema_beside_the_starters_is_the_one_that_is_printed() -> None:
    folder = starter_job("torchrun").parent
    assert json.loads((folder / "job.schema.json").read_text()) == json_schema(), "jobsubmit schema writes it anew"
    for file in folder.glob("*.yaml"):
        assert file.read_text().startswith("# yaml-language-server: $schema=job.schema.json\n")
