"""The first job file: from a command line, from a project's code, or with sample code."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from command import Command

from jobsubmit.check import run
from jobsubmit.cli.first_job import write_first_job
from jobsubmit.common.finding import Finding
from jobsubmit.common.resources import starter_job
from jobsubmit.config import load_settings
from jobsubmit.errors import UsageError
from jobsubmit.jobs.prepare import examine
from jobsubmit.scaffold.choice import choose_draft, choose_start
from jobsubmit.scaffold.from_command import _TORCHRUN, drafts_from_command
from jobsubmit.spec.json_schema import json_schema
from jobsubmit.spec.loader import load_mapping
from jobsubmit.spec.modes import MODES

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
    "torchrun --nproc_per_node=2 run.py \\\n   --mode train \\\r\n --lr 1 \\\n": {
        "mode": "torchrun",
        "hyperparameters": {"mode": "train", "lr": 1},
        "args": None,
    },
    "python src/run.py --nodes $NNODES -nr ${NODE_RANK} --name 'a b'": {
        "command": [
            "bash",
            "-c",
            'exec python src/run.py --nodes "$NNODES" -nr "${NODE_RANK}" --name \'a b\' "$@"',
            "src/run.py",
        ],
        "args": None,
        "hyperparameters": None,
    },
    "torchrun train.py --nr $NODE_RANK": {
        "mode": None,
        "command": ["bash", "-c", f'{_TORCHRUN} "$0" "$@" --nr "$NODE_RANK"', "train.py"],
    },
    "bash -c 'exec python train.py --node $NODE_RANK'": {
        "command": ["bash", "-c", "exec python train.py --node $NODE_RANK"],
    },
    "bash run.sh --node $NODE_RANK": {
        "command": ["bash", "-c", 'exec bash run.sh --node "$NODE_RANK" "$@"', "bash"],
    },
    "python train.py --a 'one\\\ntwo'": {"hyperparameters": {"a": "one\\\ntwo"}},
    "run-ddp.sh --lr 1": {"name": "run-ddp", "command": "bash run-ddp.sh --lr 1"},
    "torchrun train.py --lr=1 data": {"mode": "torchrun", "args": ["data"], "hyperparameters": {"lr": 1}},
    "python main.py --world_size 2 --rank=0 --init_method tcp://h:1 --lr 1": {
        "mode": "spawn",
        "hyperparameters": {"lr": 1},
        "resources": {"nodes": 1},
    },
    "nohup python -u train.py --lr 0.1 data": {
        "command": "python -u train.py",
        "args": ["--lr", "0.1", "data"],
        "resources": {"nodes": 1, "nproc_per_node": 1},
    },
    "A=b uv run python3.12 -m pkg.train --lr 1": {
        "command": "python -m pkg.train",
        "env": {"A": "b"},
        "hyperparameters": {"lr": 1},
    },
    "accelerate launch --multi_gpu --num_processes 8 --num_machines 2 --mixed_precision bf16 --main_process_port 1 "
    "train.py --steps 5": {
        "mode": "torchrun",
        "boot_file": "train.py",
        "resources": {"nodes": 2, "nproc_per_node": 4},
        "env": {"ACCELERATE_MIXED_PRECISION": "bf16"},
        "hyperparameters": {"steps": 5},
    },
    "deepspeed --num_gpus=4 --num_nodes 2 --hostfile h train.py --deepspeed ds.json": {
        "mode": "torchrun",
        "boot_file": "train.py",
        "resources": {"nodes": 2, "nproc_per_node": 4},
        "hyperparameters": {"deepspeed": "ds.json"},
    },
    "srun -N2 --ntasks-per-node=4 -p gpu --label python -u train.py --lr 1": {
        "mode": "torchrun",
        "resources": {"nodes": 2, "nproc_per_node": 4},
        "hyperparameters": {"lr": 1},
    },
    "srun --nodes 2 torchrun --nproc_per_node 8 --rdzv_backend c10d train.py": {
        "mode": "torchrun",
        "rdzv_backend": "c10d",
        "resources": {"nodes": 2, "nproc_per_node": 8},
    },
    "mpirun -np 4 -H a:2,b:2 -x NCCL_DEBUG=INFO --allow-run-as-root -mca btl tcp python train.py": {
        "mode": "torchrun",
        "env": {"NCCL_DEBUG": "INFO"},
        "resources": {"nodes": 2, "nproc_per_node": 2},
    },
    "bash scripts/run.sh fast": {"command": "bash scripts/run.sh fast"},
    "RANK=0 python -m torch.distributed.run --standalone --nproc_per_node=2 train.py --x=-1 --y -2.5": {
        "mode": "torchrun",
        "hyperparameters": {"x": -1, "y": -2.5},
    },
}


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_line_becomes_a_job(command: str) -> None:
    fields = drafts_from_command(command)[0].fields
    assert {name: fields.get(name) for name in COMMANDS[command]} == COMMANDS[command]
    assert "RANK" not in fields.get("env", {})


def test_what_of_srun_a_job_file_does_not_say_is_noted() -> None:
    command = "srun -N2 -p gpu --account=team --kill-on-bad-exit torchrun --nproc_per_node=2 train.py"
    (note,) = [note for note in drafts_from_command(command)[0].notes if "Slurm" in note]
    assert note.startswith("--partition, --account: dropped")
    notes = drafts_from_command("srun -N2 -w$NODES torchrun --nproc_per_node=2 train.py")[0].notes
    assert [note for note in notes if note.startswith("-w: dropped")]


@pytest.mark.parametrize(
    "command",
    [
        "",
        "torchrun --nproc_per_node=2",
        "torchrun 'train.py",
        "torchrun train.sh",
        "accelerate launch",
        "srun -N 2",
        "python train.py | tee log",
    ],
)
def test_what_is_no_command_is_refused(command: str) -> None:
    with pytest.raises(UsageError, match=r"^the command"):
        drafts_from_command(command)


def test_a_number_of_nodes_that_is_a_variable_is_refused() -> None:
    with pytest.raises(UsageError, match=r"^--nnodes=.SLURM_NNODES: must be a number"):
        drafts_from_command("torchrun --nnodes=$SLURM_NNODES train.py")


@pytest.mark.parametrize(
    ("command", "words", "said"),
    [
        ("torchrun --nproc_per_node=4 -m pkg.train -- --lr 1", ["-m", "pkg.train", "--lr=1"], "--nnodes=2"),
        ("torchrun --nnodes=2 --nproc_per_node=4 -m pkg.train --lr 1", ["-m", "pkg.train", "--lr=1"], "--nnodes=2"),
        (
            "accelerate launch --use_deepspeed --num_processes 2 t.py x",
            ["--use_deepspeed", "t.py", "x"],
            "--num_processes",
        ),
        ("srun -N 2 -n 4 ./program --a", ["./program", "--a"], "SLURM_PROCID=$RANK"),
        (
            "fabric run --devices 4 --num_nodes 2 --strategy ddp t.py --a 1",
            ["--strategy", "ddp", "t.py", "--a=1"],
            "--devices",
        ),
        ("fabric run t.py --a 1 --devices=4 --strategy=ddp", ["--strategy=ddp", "t.py", "--a=1"], "--devices"),
    ],
)
def test_a_launcher_that_no_mode_is_starts_as_a_command(command: str, words: list[str], said: str) -> None:
    """Run the command with stand-ins for launcher and variables: every word reaches it."""
    draft = drafts_from_command(command)[0]
    started = draft.fields["command"]
    assert "mode" not in draft.fields
    text = started if isinstance(started, str) else " ".join(started)
    assert said in text or said == "--nnodes=2"
    if isinstance(started, list) and "srun" not in command:
        extra = [f"--{name}={value}" for name, value in draft.fields.get("hyperparameters", {}).items()]
        shown = 'python() { echo "$@"; }; accelerate() { echo "$@"; }; fabric() { echo "$@"; }; '
        script = shown + started[2].replace("exec ", "")
        environment = {"NNODES": "2", "NODE_RANK": "0", "NPROC_PER_NODE": "4", "MASTER_ADDR": "h", "MASTER_PORT": "1"}
        done = subprocess.run(
            ["bash", "-c", script, *started[3:], *extra, *draft.fields.get("args", [])],
            capture_output=True,
            text=True,
            check=True,
            env=environment,
        )
        assert done.stdout.split()[-len(words) :] == words
        assert said == "--num_processes" or said in done.stdout


DDP = "import os\nimport torch.distributed as dist\ndist.init_process_group('gloo')\nprint(os.environ['LOCAL_RANK'])\n"
SLURM = "import os\nimport torch.distributed as dist\nrank = int(os.environ['SLURM_PROCID'])\n"
SLURM += "dist.init_process_group('gloo', rank=rank, world_size=int(os.environ['SLURM_NTASKS']))\n"
SPAWNS = "import sys\nimport torch.multiprocessing as mp\nif __name__ == '__main__':\n    mp.spawn(print, nprocs=2)\n"
PARSES = "import argparse\np = argparse.ArgumentParser()\np.add_argument('--lr')\np.parse_args()\n"


@pytest.mark.parametrize(
    ("text", "command", "way"),
    [
        (DDP, "srun -N 2 --ntasks-per-node 2 python train.py", "torchrun"),
        (SLURM, "srun -N 2 --ntasks-per-node 2 python train.py", "command"),
        (SPAWNS, "python train.py", "spawn"),
        (PARSES + SPAWNS, "python train.py --lr 1", "command"),  # it refuses what a platform adds in mode spawn
        (SPAWNS, "python train.py data", "command"),
        ("print(1)\n", "python train.py --lr 1", "command"),
    ],
)
def test_the_code_decides_between_the_ways_to_start_it(text: str, command: str, way: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(text)
    draft = choose_draft(command, tmp_path, load_settings())
    assert draft.fields.get("mode", "command") == way
    findings = examine(load_mapping(draft.fields, directory=tmp_path), load_settings()).findings
    assert [finding for finding in findings if finding.level == "error"] == []


@pytest.mark.parametrize(
    ("text", "mode"),
    [
        ("from transformers import (\n    AutoModel,\n    Trainer,\n)\n", "torchrun"),
        ("from accelerate import Accelerator\n", "torchrun"),
        ("import lightning as L\n", "torchrun"),
        ("import deepspeed\np.add_argument('--local_rank')\n", "torchrun"),
        ("from torch.distributed.device_mesh import init_device_mesh\n", "torchrun"),
        ("from torch.distributed.fsdp import fully_shard\n", "torchrun"),
        ("import argparse, deepspeed\n", "torchrun"),
        ("import torch, lightning as L\n", "torchrun"),
        ("import torch\ntorch.distributed.init_process_group()\n", "torchrun"),
    ],
)
def test_what_trains_is_recognised(text: str, mode: str, jobsubmit: Command, tmp_path: Path) -> None:
    (tmp_path / "go.py").write_text(text + "if __name__ == '__main__':\n    pass\n")
    (tmp_path / "trainer.py").write_text("import torch.distributed\n")  # is part of something, not to be started
    jobsubmit("init")
    job = yaml.safe_load((tmp_path / "job.yaml").read_text())
    assert (job["boot_file"], job["mode"]) == ("go.py", mode)


_SPAWNS = """
import argparse
import torch.distributed as dist
import torch.multiprocessing as mp
p = argparse.ArgumentParser()
"""
_WORKS = """
def work(rank, args):
    dist.init_process_group("gloo", init_method="tcp://127.0.0.1:29533", rank=rank, world_size=2)

if __name__ == "__main__":
    mp.spawn(work, args=(p.parse_args(),), nprocs=2)
"""
_LAUNCHED = """
import os
import torch.distributed as dist

if __name__ == "__main__":
    print(os.environ["LOCAL_RANK"])
    dist.init_process_group("gloo")
"""


def test_a_script_that_spawns_comes_before_one_that_only_imports(jobsubmit: Command, tmp_path: Path) -> None:
    options = (
        "p.add_argument('--nodes', type=int)\np.add_argument('--nr', type=int)\np.add_argument('--gpus', type=int)\n"
    )
    place = '"env://", rank=args.nr * args.gpus + rank, world_size=args.nodes * args.gpus'
    spawns = _SPAWNS + options + _WORKS.replace('"tcp://127.0.0.1:29533", rank=rank, world_size=2', place)
    (tmp_path / "mnist_spawn.py").write_text(spawns.replace("nprocs=2", "nprocs=args.gpus"))
    alone = "import torch, torch.distributed as dist\nif __name__ == '__main__':\n    "
    (tmp_path / "mnist.py").write_text(f"{alone}torch.ones(1, requires_grad=True).sum().backward()\n")
    assert "found mnist_spawn.py; a command: it calls mp.spawn" in jobsubmit("init").stderr
    command = yaml.safe_load((tmp_path / "job.yaml").read_text())["command"][2]
    assert command == 'exec python "$0" --nodes "$NNODES" --nr "$NODE_RANK" --gpus "$NPROC_PER_NODE" "$@"'


def test_options_that_name_the_node_otherwise_are_given_in_a_command(jobsubmit: Command, tmp_path: Path) -> None:
    options = "p.add_argument('--dist-url')\np.add_argument('--num-machines', type=int)\n"
    options += "p.add_argument('--machine-rank', type=int)\np.add_argument('--lr', type=float)\n"
    place = "args.dist_url, rank=args.machine_rank * 2 + rank, world_size=args.num_machines * 2"
    told = _WORKS.replace('"tcp://127.0.0.1:29533", rank=rank, world_size=2', place)
    (tmp_path / "go.py").write_text(_SPAWNS + options + told)
    (tmp_path / "other_torchrun.py").write_text(_LAUNCHED)
    done = jobsubmit("init")
    assert "found go.py; a command: it calls mp.spawn" in done.stderr
    job = yaml.safe_load((tmp_path / "job.yaml").read_text())
    assert '--num-machines "$NNODES" --machine-rank "$NODE_RANK"' in job["command"][2]
    assert jobsubmit.json("validate", "job.yaml", "--nodes", "2")["valid"]
    wrong = {**job, "command": [*job["command"][:2], job["command"][2].replace("$NNODES", "$MASTER_ADDR"), "go.py"]}
    (tmp_path / "wrong.yaml").write_text(yaml.safe_dump(wrong))
    assert "invalid int value" in jobsubmit("validate", "wrong.yaml", code=3).stderr
    unknown = {**job, "command": [*job["command"][:2], job["command"][2].replace("$NNODES", "$MINE"), "go.py"]}
    (tmp_path / "unknown.yaml").write_text(yaml.safe_dump(unknown))
    jobsubmit("validate", "unknown.yaml")


def test_code_that_no_mode_passes_its_place_to_is_started_otherwise(jobsubmit: Command, tmp_path: Path) -> None:
    (tmp_path / "multi.py").write_text(_SPAWNS + _WORKS)
    jobsubmit("init")
    assert yaml.safe_load((tmp_path / "job.yaml").read_text())["command"] == "python multi.py"
    (tmp_path / "multi_torchrun.py").write_text(_LAUNCHED)
    jobsubmit("init", "--force")
    job = yaml.safe_load((tmp_path / "job.yaml").read_text())
    assert (job["mode"], job["boot_file"]) == ("torchrun", "multi_torchrun.py")


def test_of_ways_that_all_have_errors_the_one_with_the_fewest_is_proposed(jobsubmit: Command, tmp_path: Path) -> None:
    by_gpus = _WORKS.replace("nprocs=2", "nprocs=torch.cuda.device_count()")  # none on this machine
    (tmp_path / "multi.py").write_text("import torch\n" + _SPAWNS + by_gpus)
    assert "a command: it calls mp.spawn" in jobsubmit("init").stderr
    assert yaml.safe_load((tmp_path / "job.yaml").read_text())["command"] == "python multi.py"
    jobsubmit("init", "--force", "--from", "python multi.py")
    assert yaml.safe_load((tmp_path / "job.yaml").read_text())["command"] == "python multi.py"


def test_a_script_that_works_as_it_is_read_is_found(jobsubmit: Command, tmp_path: Path) -> None:
    work = "import torch.distributed as dist\ndist.init_process_group()\nfor step in range(3):\n    print(step)\n"
    (tmp_path / "example.py").write_text(work)
    (tmp_path / "model.py").write_text("import torch.distributed as dist\nclass Model:\n    pass\n")
    jobsubmit("init")
    assert yaml.safe_load((tmp_path / "job.yaml").read_text())["boot_file"] == "example.py"


def test_what_only_a_comment_names_does_not_train(jobsubmit: Command, tmp_path: Path) -> None:
    (tmp_path / "go.py").write_text(
        "# TODO: torch.distributed; import deepspeed\nif __name__ == '__main__':\n    pass\n"
    )
    assert "scripts that you could start: go.py" in jobsubmit("init", code=2).stderr


@pytest.mark.parametrize(("text", "file"), [("def train():\n    pass\ntrain()\n", "fit.py"), ("x = 1\n", "other.py")])
def test_a_hint_names_a_file_that_exists(text: str, file: str, jobsubmit: Command, tmp_path: Path) -> None:
    (tmp_path / file).write_text(text)
    assert f'--from "python {file}"' in jobsubmit("init", code=2).stderr


def test_deepspeed_passes_the_local_rank_by_an_argument() -> None:
    (first, *_) = drafts_from_command("deepspeed --num_gpus 2 train.py --lr 1")
    assert first.fields["mode"] == "torchrun"
    assert any("it sets LOCAL_RANK" in note for note in first.notes)


def test_a_module_is_named_once() -> None:
    (first, *_) = drafts_from_command("accelerate launch --num_processes 2 -m pkg.train")
    assert first.fields["command"][3:] == ["accelerate", "-m", "pkg.train"]


def test_requirements_that_help_are_named(jobsubmit: Command, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import no_such_thing_here\n" + _LAUNCHED)
    (tmp_path / "requirements.txt").write_text("torch\n")
    jobsubmit("init")
    assert "requirements" not in yaml.safe_load((tmp_path / "job.yaml").read_text())
    (tmp_path / "requirements.txt").write_text("torch\nno-such-thing-here\n")
    for source in ([], ["--from", "torchrun --nproc_per_node=2 train.py"]):
        jobsubmit("init", "--force", *source)
        assert yaml.safe_load((tmp_path / "job.yaml").read_text())["requirements"] == "requirements.txt"


def test_code_that_is_not_recognised_gets_no_sample(jobsubmit: Command, tmp_path: Path) -> None:
    (tmp_path / "fit.py").write_text("import torch\nif __name__ == '__main__':\n    print(torch.ones(1))\n")
    (tmp_path / "notes.txt").touch()
    done = jobsubmit("init", code=2)
    assert "no file in" in done.stderr
    assert "searched for torch.distributed" in done.stderr
    assert "scripts that you could start: fit.py" in done.stderr
    assert '--from "python fit.py"' in done.stderr
    assert {path.name for path in tmp_path.iterdir()} == {"fit.py", "notes.txt"}
    jobsubmit("init", "--with-code")
    assert (tmp_path / "code" / "torch_ddp.py").exists()


def test_a_command_is_submitted_without_a_job_file(jobsubmit: Command, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import sys\nprint(sys.argv[1:])\n")
    done = jobsubmit(
        "run", "--name", "quick", "--dry-run", "-o", "json", "--", "python", "train.py", "-o", "x", "--lr", "1"
    )
    document = json.loads(done.stdout)
    assert "python train.py" in " ".join(document["script"]["text"].split())
    assert "quick" in document["job_id"]
    text = jobsubmit("run", "--dry-run", "--", "python", "train.py", "-o", "json").stdout
    assert text.startswith("# ── bundle")
    assert not (tmp_path / "job.yaml").exists()


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
    assert "already exists" in other.stderr


JOINS = "import torch.distributed as dist\ndist.init_process_group()\n"
LEARNS = f"{JOINS}loss = model()\nscaler.scale(loss).backward()\n"


@pytest.mark.parametrize(
    "others",
    [
        {"communication.py": f"{JOINS}if __name__ == '__main__':\n    dist.barrier()\n"},
        {"src/engine/main.py": f"from .parts import model\n{LEARNS}", "src/engine/parts.py": ""},
    ],
)
def test_what_trains_comes_before_what_is_a_part_of_it(
    others: dict[str, str], jobsubmit: Command, tmp_path: Path
) -> None:
    starts = "import torch.distributed\nimport engine.main\n" if "src/engine/main.py" in others else LEARNS
    for name, text in {**others, "work/start.py": f"{starts}if __name__ == '__main__':\n    print()\n"}.items():
        (tmp_path / "project" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "project" / name).write_text(text)
    assert "found work/start.py" in jobsubmit("init", "project").stderr


def test_a_file_that_only_defines_something_starts_nothing(jobsubmit: Command, tmp_path: Path) -> None:
    (tmp_path / "train_loop.py").write_text(f"def train(model):\n    {LEARNS.replace(chr(10), chr(10) + '    ')}\n")
    refused = jobsubmit("init", code=2)
    assert "starts distributed training" in refused.stderr


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


@pytest.mark.parametrize(
    "command",
    [
        "API_KEY=topsecret torchrun train.py",
        "env HF_TOKEN=topsecret python train.py",
        "mpirun -np 2 -x WANDB_API_KEY=topsecret python train.py",
        "torchrun train.py --lr 0.1 --token=topsecret",
        "torchrun train.py --api_key topsecret --lr 0.1",
    ],
)
def test_a_secret_of_a_command_is_in_no_file(command: str, tmp_path: Path, jobsubmit: Command) -> None:
    (tmp_path / "train.py").write_text("print(1)\n")
    jobsubmit("init", ".", "--from", command)
    text = (tmp_path / "job.yaml").read_text()
    assert "topsecret" not in text
    assert f"# From a command line: {command.split('=', maxsplit=1)[0].split(maxsplit=1)[0]}" in text
    assert "…" in text


def test_a_command_in_quotes_is_refused(tmp_path: Path, jobsubmit: Command) -> None:
    (tmp_path / "train.py").write_text("print(1)\n")
    said = jobsubmit("run", "--dry-run", "--", "python train.py --lr 1", code=2).stderr
    assert "the command is a single word: 'python train.py --lr 1'" in said
    assert "jobsubmit run -- python train.py --lr 1" in said
    (tmp_path / "my script.sh").write_text("#!/bin/sh\n")
    jobsubmit("run", "--dry-run", "--", "my script.sh")


def test_what_submits_a_job_itself_is_refused(tmp_path: Path, jobsubmit: Command) -> None:
    for command in (["init", ".", "--from", "sbatch train.sbatch"], ["run", "--dry-run", "--", "sbatch", "a.sbatch"]):
        assert "sbatch submits a job of its own" in jobsubmit(*command, code=2).stderr
    assert not (tmp_path / "job.yaml").exists()


@pytest.mark.parametrize("name", ["train.sbatch", "train.sh"])
def test_a_script_for_sbatch_is_no_job_file(name: str, tmp_path: Path, jobsubmit: Command) -> None:
    (tmp_path / name).write_text("#!/bin/bash\n#SBATCH --nodes=2\nsrun python train.py\n")
    said = jobsubmit("create", name, code=2).stderr
    assert f"{name}  is a script for sbatch, not a job file" in said
    assert f'jobsubmit init --from "sbatch {name}"' in said


@pytest.mark.parametrize(
    ("command", "resources"),
    [
        ("python train.py trainer=ddp trainer.devices=4 +trainer.num_nodes=2", {"nodes": 2, "nproc_per_node": 4}),
        ("python main.py fit --trainer.num_nodes 3", {"nodes": 3, "nproc_per_node": 1}),
        ("python train.py --devices=4", {"nodes": 1, "nproc_per_node": 1}),
    ],
)
def test_the_numbers_of_lightnings_trainer_are_those_of_the_job(command: str, resources: dict[str, int]) -> None:
    assert drafts_from_command(command)[-1].fields["resources"] == resources


@pytest.mark.parametrize(
    ("command", "resources", "is_asked"),
    [
        ("deepspeed --hostfile=hosts train.py", {"nodes": 2, "nproc_per_node": 4}, False),
        ("deepspeed --hostfile=hosts --num_nodes 3 --num_gpus 2 train.py", {"nodes": 3, "nproc_per_node": 2}, False),
        ("deepspeed --hostfile=/job/hostfile train.py", {"nodes": 1}, True),
    ],
)
def test_a_hostfile_says_how_many_nodes_there_are(
    tmp_path: Path, command: str, resources: dict[str, int], is_asked: bool
) -> None:
    (tmp_path / "hosts").write_text("# two\nworker-1 slots=4\nworker-2 slots=4\n")
    (tmp_path / "train.py").write_text("import deepspeed\n")
    draft = choose_draft(command, tmp_path, load_settings())
    assert draft.fields["resources"] == resources
    assert any("number of its hosts" in note for note in draft.notes) is is_asked


@pytest.mark.parametrize(
    ("words", "hyperparameters", "args"),
    [
        ("-b 16 --epochs 1", {"epochs": 1}, ["-b", "16"]),
        ("--epochs 1 -v --lr 2", {"epochs": 1, "lr": 2}, ["-v"]),
        ("-b 16 train --epochs 1", None, ["-b", "16", "train", "--epochs", "1"]),
        ("train -b 16 --epochs 1", None, ["train", "-b", "16", "--epochs", "1"]),
    ],
)
def test_a_short_option_does_not_keep_others_from_being_hyperparameters(
    words: str, hyperparameters: dict[str, int] | None, args: list[str]
) -> None:
    fields = drafts_from_command(f"torchrun train.py {words}")[0].fields
    assert (fields.get("hyperparameters"), fields.get("args")) == (hyperparameters, args)


def test_the_place_of_one_node_is_replaced_by_that_of_each(jobsubmit: Command, tmp_path: Path) -> None:
    options = "p.add_argument('data')\np.add_argument('--dist-url')\np.add_argument('--world-size', type=int)\n"
    options += "p.add_argument('--rank', type=int)\np.add_argument('--lr', type=float)\n"
    place = "args.dist_url, rank=args.rank * 2 + rank, world_size=args.world_size * 2"
    told = _WORKS.replace('"tcp://127.0.0.1:29533", rank=rank, world_size=2', place)
    (tmp_path / "main.py").write_text(_SPAWNS + options + told)
    words = "--lr 0.1 --dist-url tcp://localhost:1 --world-size=2 --rank 0 data"
    done = jobsubmit("init", "--from", f"python main.py {words}")
    assert "--dist-url, --world-size, --rank: replaced, each node gets its own" in done.stderr
    job = yaml.safe_load((tmp_path / "job.yaml").read_text())
    assert '--world-size "$NNODES" --rank "$NODE_RANK"' in job["command"][2]
    assert job["resources"]["nodes"] == 2
    assert job.get("args", []) + list(job.get("hyperparameters", {})) in (["data", "lr"], ["--lr", "0.1", "data"])


def test_a_job_is_named_after_the_script_that_a_shell_starts() -> None:
    assert drafts_from_command("bash scripts/run_small.sh")[0].fields["name"] == "run_small"


def test_init_shows_what_is_to_be_fixed(jobsubmit: Command, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import torch.distributed as dist\ndist.init_process_group('nccl')\n")
    shown = jobsubmit("init", "--from", "torchrun --nproc_per_node=2 train.py").stderr
    assert "error: train.py:2  backend nccl needs GPUs" in shown
    assert "next: fix 1 error: jobsubmit validate job.yaml" in shown


def test_a_script_that_submits_another_one_is_not_started(tmp_path: Path) -> None:
    begin = "import os, torch, torch.distributed as dist\nfrom torch.nn.parallel import DistributedDataParallel\n"
    rest = "dist.init_process_group('gloo')\nmodel = DistributedDataParallel(torch.nn.Linear(1, 1))\n"
    rest += "model(torch.ones(1)).backward()\n"
    (tmp_path / "main_net.py").write_text(f"{begin}{rest}if __name__ == '__main__':\n    print(os.environ['RANK'])\n")
    submits = "import submitit, main_net\nif __name__ == '__main__':\n    submitit.AutoExecutor('x').submit(main_net)\n"
    (tmp_path / "run_with_submitit.py").write_text(submits)
    draft = choose_start(tmp_path, {"name": "job", "code_dir": "."}, load_settings())
    assert draft is not None
    assert draft.fields["boot_file"] == "main_net.py"


def test_a_script_for_launch_that_refuses_its_argument_is_started_by_torchrun(
    jobsubmit: Command, tmp_path: Path
) -> None:
    text = "import argparse, os\np = argparse.ArgumentParser()\np.add_argument('--local_rank', type=int)\n"
    text += "args = p.parse_args()\nimport torch.distributed as dist\ndist.init_process_group('gloo')\n"
    (tmp_path / "train.py").write_text(f"{text}print(os.environ['LOCAL_RANK'])\ndist.destroy_process_group()\n")
    jobsubmit("init", "--from", "python -m torch.distributed.launch --nproc_per_node=2 train.py")
    assert yaml.safe_load((tmp_path / "job.yaml").read_text())["mode"] == "torchrun"


def test_a_script_that_needs_apex_is_not_the_first_choice(tmp_path: Path) -> None:
    begin = "import os, torch, torch.distributed as dist\nfrom torch.nn.parallel import DistributedDataParallel\n"
    rest = "dist.init_process_group('gloo')\nmodel = DistributedDataParallel(torch.nn.Linear(1, 1))\n"
    rest += "model(torch.ones(1)).backward()\nif __name__ == '__main__':\n    print(os.environ['LOCAL_RANK'])\n"
    (tmp_path / "apex_distributed.py").write_text(f"{begin}from apex import amp\n{rest}")
    (tmp_path / "distributed.py").write_text(f"{begin}{rest}")
    draft = choose_start(tmp_path, {"name": "job", "code_dir": "."}, load_settings())
    assert draft is not None
    assert draft.fields["boot_file"] == "distributed.py"


def test_run_shows_warnings_beside_errors(jobsubmit: Command, tmp_path: Path) -> None:
    text = "import torch.distributed as dist\nimport torch\ndist.init_process_group('nccl')\nopen('data.txt').read()\n"
    (tmp_path / "train.py").write_text(text)
    (tmp_path / "data.txt").write_text("a")
    (tmp_path / ".gitignore").write_text("*.txt\n")
    done = jobsubmit("run", "--nodes", "2", "--", "torchrun", "--nproc_per_node=2", "train.py", code=3)
    assert "warning: train.py:4  reads data.txt" in done.stderr
    assert "error: train.py:3  backend nccl" in done.stderr


def test_a_finding_about_the_command_of_run_names_it_once(jobsubmit: Command, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import torch\nif True:\n    torch.ones(1, requires_grad=True).backward()\n")
    shown = jobsubmit("run", "--dry-run", "--nodes", "2", "--", "python", "train.py").stderr
    assert "the command  does not tell the program which of the 2 nodes it is on" in shown


def test_each_job_is_checked_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The job file that was just written, too: it is the job that was looked at to choose the mode."""
    (tmp_path / "train.py").write_text("import torch.distributed as dist\ndist.init_process_group('gloo')\n")
    checked: list[object] = []
    check = run.check_code

    def counted(*given: Any) -> Iterator[Finding]:
        checked.append(given)
        return check(*given)

    monkeypatch.setattr(run, "check_code", counted)
    write_first_job(tmp_path, None, "torchrun --nproc_per_node 2 train.py", None, force=False, with_code=False)
    assert (tmp_path / "job.yaml").exists()
    assert len(checked) == 1


def test_the_warnings_of_the_checks_are_shown(jobsubmit: Command) -> None:
    text = "import torch, torch.distributed as dist\ndist.init_process_group('gloo')\n"
    text += "if dist.get_rank() == 0:\n    input('go on? ')\n"
    (jobsubmit.folder / "train.py").write_text(text)
    shown = jobsubmit("init", "--from", "torchrun --nproc_per_node 2 train.py").stderr
    assert "warning: train.py:4" in shown
    assert "next: jobsubmit validate job.yaml, then" in shown


def test_modules_of_the_code_directory_are_found(jobsubmit: Command) -> None:
    for name, text in {"own/__init__.py": "", "scripts/train.py": "import own\n" + _LAUNCHED}.items():
        (jobsubmit.folder / name).parent.mkdir(exist_ok=True)
        (jobsubmit.folder / name).write_text(text)
    done = jobsubmit("init", "--from", "torchrun --nproc_per_node 2 scripts/train.py")
    assert yaml.safe_load((jobsubmit.folder / "job.yaml").read_text())["env"] == {"PYTHONPATH": "."}
    assert "PYTHONPATH=. is set" in done.stderr


_OF_TRAINER = """
from transformers import HfArgumentParser, Trainer, TrainingArguments
(args,) = HfArgumentParser((TrainingArguments,)).parse_args_into_dataclasses()
Trainer(args=args).train()
"""


def test_what_only_joins_the_processes_of_a_launcher_gets_one(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(_OF_TRAINER)
    fields = choose_draft("python train.py --output_dir out", tmp_path, load_settings()).fields
    assert (fields["mode"], fields["boot_file"], fields["hyperparameters"]) == (
        *("torchrun", "train.py"),
        {"output_dir": "out"},
    )


def test_what_starts_its_processes_itself_gets_no_launcher(tmp_path: Path) -> None:
    text = "from transformers import AutoTokenizer\nimport lightning as L\n"
    text += "L.Trainer(devices=2, accelerator='cpu').fit(None)\n"
    (tmp_path / "train.py").write_text(text)
    assert choose_draft("python train.py", tmp_path, load_settings()).fields["command"] == "python train.py"


def test_the_words_of_a_launcher_of_the_code_stay_in_order() -> None:
    words = "--nproc_per_node 2 ./main.py --arch resnet50 -b 2 d"
    fields = drafts_from_command(f"python multiproc.py {words}")[0].fields
    assert (fields["args"], "hyperparameters" in fields) == (words.split(), False)


@pytest.mark.parametrize("given", [[], ["--set", "resources.nproc_per_node=2"]])
def test_a_number_that_the_same_command_sets_is_not_said_to_be_missing(given: list[str], jobsubmit: Command) -> None:
    (jobsubmit.folder / "train.py").write_text(_LAUNCHED)
    done = jobsubmit("run", "--dry-run", *given, "--", "accelerate", "launch", "train.py", code=None)
    assert ("nproc_per_node is not set" in done.stderr) == (not given)


ALONE = """
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

def main(rank):
    dist.init_process_group("gloo", init_method="tcp://localhost:29500", rank=rank, world_size=2)

if __name__ == "__main__":
    mp.spawn(main, nprocs=2)
"""


def test_init_checks_the_code_for_the_numbers_that_it_writes(jobsubmit: Command, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(ALONE)
    assert "same ranks" not in jobsubmit("init", "--from", "python train.py").stderr

    two = ["--nodes", "2", "--set", "resources.nproc_per_node=2", "--set", "env.OMP_NUM_THREADS=1"]
    done = jobsubmit("init", "--force", *two, "--from", "python train.py")
    assert "all 2 nodes have the same ranks" in done.stderr
    written = yaml.safe_load((tmp_path / "job.yaml").read_text())
    assert written["resources"] == {"nodes": 2, "nproc_per_node": 2}
    assert written["env"] == {"OMP_NUM_THREADS": 1}

    done = jobsubmit("init", "--force", *two)
    assert "all 2 nodes have the same ranks" in done.stderr
    assert yaml.safe_load((tmp_path / "job.yaml").read_text())["resources"] == {"nodes": 2, "nproc_per_node": 2}


def test_init_keeps_the_numbers_of_a_sample(jobsubmit: Command, tmp_path: Path) -> None:
    refused = jobsubmit("init", "--nodes", "2", "--sample", "torchrun", "new", code=2).stderr
    assert "--nodes cannot change the job file of a sample" in refused
    assert "jobsubmit create new/job.yaml --nodes" in refused
    assert not (tmp_path / "new").exists()


def test_init_refuses_a_value_that_no_job_file_can_have(jobsubmit: Command, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(ALONE)
    for change in ("resources.nodes=none", "resources=none", "unknown=1"):
        assert "error: " in jobsubmit("init", "--set", change, "--from", "python train.py", code=2).stderr
    assert not (tmp_path / "job.yaml").exists()


def test_a_file_named_with_the_folder_before_it(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("from accelerate import Accelerator\nAccelerator(cpu=True)\n")
    draft = choose_draft("python ./train.py --cpu", tmp_path, load_settings())
    assert (draft.fields["mode"], draft.fields["boot_file"]) == ("torchrun", "train.py")
