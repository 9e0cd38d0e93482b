"""Jobs from scripts for sbatch: `jobsubmit init --from "sbatch train.sbatch"`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from command import Command

from jobsubmit.config import load_settings
from jobsubmit.errors import UsageError
from jobsubmit.scaffold.choice import choose_draft
from jobsubmit.scaffold.draft import JobDraft

LAUNCHED = """#!/bin/bash
#SBATCH --nodes=2   # two of them
#SBATCH --gres=gpu:v100:4
module purge
source venv/bin/activate
export RDZV_HOST=$(hostname) OMP_NUM_THREADS=3
# srun python old.py
srun torchrun \\
    --nnodes=$SLURM_JOB_NUM_NODES --nproc_per_node=$SLURM_GPUS_ON_NODE \\
    --rdzv_id=$SLURM_JOB_ID --rdzv_backend=c10d --rdzv_endpoint="$RDZV_HOST:29400" \\
    train.py --epochs "${EPOCHS:-5}" "$@"
"""
TASKS = """#!/bin/bash
#SBATCH -N 2
#SBATCH --ntasks-per-node 3
#SBATCH --cpus-per-task=8
conda activate train
export WORLD_SIZE=$((SLURM_NNODES * SLURM_NTASKS_PER_NODE))
srun python train.py --lr 0.1
"""
TRAIN = """
import os, torch, torch.distributed as dist
print(os.environ["SLURM_CPUS_PER_TASK"])
dist.init_process_group("gloo", rank=int(os.environ["SLURM_PROCID"]), world_size=int(os.environ["WORLD_SIZE"]))
torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(1, 1))(torch.ones(1, 1)).sum().backward()
"""


def of_script(text: str, folder: Path, command: str = "sbatch job.sh") -> JobDraft:
    (folder / "job.sh").write_text(text)
    (folder / "train.py").write_text(TRAIN)
    return choose_draft(command, folder, load_settings())


def test_a_launcher_in_a_script_becomes_its_mode(tmp_path: Path) -> None:
    draft = of_script(LAUNCHED, tmp_path, "sbatch -A team --nodes=4 job.sh --lr 1")
    expected: dict[str, Any] = {
        "mode": "torchrun",
        "boot_file": "train.py",
        "rdzv_backend": "c10d",
        "resources": {"nodes": 4, "nproc_per_node": 4},
        "hyperparameters": {"epochs": 5, "lr": 1},
        "env": {"OMP_NUM_THREADS": "3"},
    }
    assert {name: draft.fields.get(name) for name in expected} == expected
    assert draft.notes[0].startswith("from job.sh:8: srun torchrun --nnodes=4")
    assert draft.notes[1].startswith("module, source in job.sh: left out")
    said = 'for Slurm, add to the job file: backend: {kind: slurm, account: team, gpus_per_node: "v100:4"}'
    assert draft.notes[2] == said


def test_tasks_of_srun_get_the_numbers_of_the_script(tmp_path: Path) -> None:
    draft = of_script(TASKS, tmp_path)
    assert draft.fields["resources"] == {"nodes": 2, "nproc_per_node": 3}
    assert draft.fields["command"][-2:] == ["python", "train.py"]
    assert draft.fields["env"] == {"SLURM_CPUS_PER_TASK": "8"}
    assert draft.fields["hyperparameters"] == {"lr": 0.1}
    assert draft.notes[-1].endswith("backend: {kind: slurm, cpus_per_task: 24}")


def test_one_command_is_enough(jobsubmit: Command, tmp_path: Path) -> None:
    of_script(TASKS, tmp_path)
    assert "fix" not in jobsubmit("init", "--from", "sbatch job.sh").stderr
    assert jobsubmit.json("validate", "job.yaml")["valid"]


@pytest.mark.parametrize("text", ["#!/bin/bash\n#SBATCH -N1\necho done\n", ""])
def test_a_script_that_starts_nothing_is_refused(text: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"job\.sh starts no program"):
        of_script(text, tmp_path)


def test_a_script_that_is_not_here_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="submits a job of its own"):
        of_script(TASKS, tmp_path, "sbatch other.sh")
