"""Jobs from scripts for sbatch: `jobsubmit init --from "sbatch train.sbatch"`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
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


@pytest.mark.parametrize("text", ["#!/bin/bash\n#SBATCH -N1\necho done\n", '#!/bin/bash\nsrun "$@"\n', ""])
def test_a_script_that_starts_nothing_is_refused(text: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"job\.sh starts no program"):
        of_script(text, tmp_path)


def test_a_script_that_is_not_here_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="submits a job of its own"):
        of_script(TASKS, tmp_path, "sbatch other.sh")


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ("#SBATCH -N2\n#SBATCH --ntasks-per-node=4\nsrun python train.py -n 10 --nodes=1", (2, 4)),
        ("#SBATCH -N2\nsrun --ntasks-per-node=1 torchrun --nproc_per_node=8 train.py", (2, 8)),
        ("#SBATCH -N2\n#SBATCH --ntasks-per-node=4\nsrun -n8 python train.py", (2, 4)),
        ("#SBATCH --nodes=2 --ntasks=6\nmpirun python train.py", (2, 3)),
        ("#SBATCH --gres=gpu:a100\nsrun torchrun --nproc_per_node=$SLURM_GPUS_ON_NODE train.py", (1, None)),
        ("srun torchrun --nproc_per_node=$SLURM_NTASKS_PER_NODE train.py", (1, None)),
        ("#SBATCH --gpus-per-node=h100:2\nsrun torchrun --nproc_per_node=$SLURM_GPUS_ON_NODE train.py", (1, 2)),
    ],
)
def test_numbers_of_a_script(lines: str, expected: tuple[int, int | None], tmp_path: Path) -> None:
    resources = of_script(f"#!/bin/bash\n{lines}\n", tmp_path).fields["resources"]
    assert (resources["nodes"], resources.get("nproc_per_node")) == expected


@pytest.mark.parametrize("folder", ["$SLURM_SUBMIT_DIR", "/home/me/project", '"$HOME/project"'])
def test_a_script_that_changes_to_the_directory_of_the_code(folder: str, tmp_path: Path) -> None:
    draft = of_script(f"#!/bin/bash\n#SBATCH --comment=don't\ncd {folder}\nsrun torchrun train.py\n", tmp_path)
    assert (draft.fields["code_dir"], draft.fields["boot_file"]) == (".", "train.py")


def test_a_script_that_changes_to_a_folder_of_the_code(tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    (tmp_path / "src/train.py").write_text(TRAIN)
    draft = of_script("#!/bin/bash\ncd src\nsrun torchrun train.py\n", tmp_path)
    assert (draft.fields["code_dir"], draft.fields["boot_file"]) == ("src", "train.py")


def test_no_secret_of_a_script_is_written_or_shown(tmp_path: Path) -> None:
    lines = (
        "export API_KEY=hidden1\nexport DB=postgres://u:hidden2@h\nsrun --export=ALL,MY_TOKEN=hidden3 torchrun train.py"
    )
    draft = of_script(f"#!/bin/bash\n{lines}\n", tmp_path)
    assert "hidden" not in str(draft)
    assert "API_KEY, DB: left out, a secret or known only on the cluster; set it in `env` or `secrets`" in draft.notes


def test_what_only_the_cluster_knows_is_noted(tmp_path: Path) -> None:
    lines = "export OUT=$SCRATCH/x DATA_PATH=/data\nsrun torchrun train.py --out $OUT --id $SLURM_JOB_ID --lr $LR"
    draft = of_script(f"#!/bin/bash\n{lines}\n", tmp_path, "sbatch --export=ALL,LR=3 -o log job.sh")
    assert draft.fields["env"] == {"DATA_PATH": "/data", "LR": "3"}
    assert draft.fields["hyperparameters"]["lr"] == 3
    assert "$SCRATCH/x, $SLURM_JOB_ID: known only on the cluster; write the value into the job file" in draft.notes


@pytest.mark.parametrize("name", ["/etc/hostname", "../job.sh", "x" * 300])
def test_only_a_script_of_the_directory_is_read(name: str, tmp_path: Path) -> None:
    (tmp_path / "inner").mkdir()
    (tmp_path / "job.sh").write_text(TASKS)
    with pytest.raises(UsageError, match="submits a job of its own"):
        of_script(TASKS, tmp_path / "inner", f"sbatch {name}")
    assert of_script(TASKS, tmp_path, f"sbatch {tmp_path}/job.sh").fields["resources"]["nodes"] == 2


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ("-p a,b -x node[01-02] --mem=0 --time=30", 'partition: "a,b", exclude: "node[01-02]"'),
        ("--account=007 --mem=480G -c 6 --ntasks-per-node=8", 'account: "007", mem: "480G", cpus_per_task: 48'),
    ],
)
def test_fields_of_the_backend(options: str, expected: str, tmp_path: Path) -> None:
    draft = of_script(f"#!/bin/bash\n#SBATCH {options}\nsrun torchrun train.py\n", tmp_path)
    (note,) = [one for one in draft.notes if one.startswith("for Slurm")]
    fields = note.partition("backend: ")[2]
    assert yaml.safe_load(fields)["kind"] == "slurm"
    assert expected in fields


def test_gpus_and_cores_of_tasks_are_those_of_a_node(tmp_path: Path) -> None:
    text = "#SBATCH -N 2\n#SBATCH --ntasks=4\n#SBATCH --gpus-per-task=a100:1\n#SBATCH --cpus-per-task=8\n"
    draft = of_script(f"{text}srun --output=log.txt python train.py", tmp_path)
    assert draft.fields["resources"] == {"nodes": 2, "nproc_per_node": 2}
    (backend,) = [note for note in draft.notes if "backend" in note]
    assert 'gpus_per_node: "a100:2", cpus_per_task: 16' in backend


@pytest.mark.parametrize(
    ("text", "command"),
    [
        ('NPROC=$1\nshift\ntorchrun --nproc_per_node=$NPROC train.py "$@"\n', "./job.sh 2 --lr 0.1"),
        ("echo starting\nexport OMP_NUM_THREADS=3\ntorchrun --nproc_per_node 2 train.py --lr 0.1\n", "bash job.sh"),
        ("set -e\nCUDA=0,1 torchrun \\\n  --nproc_per_node 2 train.py \\\n  --lr ${LR:-0.1}\n", "sh job.sh"),
    ],
)
def test_a_shell_script_that_only_starts_a_launcher(text: str, command: str, tmp_path: Path) -> None:
    fields = of_script(f"#!/bin/bash\n{text}", tmp_path, command).fields
    assert {name: fields[name] for name in ("mode", "boot_file", "resources", "hyperparameters")} == {
        "mode": "torchrun",
        "boot_file": "train.py",
        "resources": {"nodes": 1, "nproc_per_node": 2},
        "hyperparameters": {"lr": 0.1},
    }


@pytest.mark.parametrize(
    "text",
    [
        "python prepare.py\ntorchrun --nproc_per_node 2 train.py\n",
        "if [ -e $DATA ]; then torchrun --nproc_per_node 2 train.py; fi\n",
        "torchrun --nproc_per_node 2 train.py --port $(shuf -i 1-9 -n 1)\n",
        "python train.py\n",
        "echo '{}' > cfg.json\ntorchrun --nproc_per_node 2 train.py --cfg cfg.json\n",
    ],
)
def test_a_shell_script_that_does_more_stays_a_command(text: str, tmp_path: Path) -> None:
    assert of_script(text, tmp_path, "bash job.sh --lr 0.1").fields["command"].startswith("bash job.sh")
