"""How the nodes of a job get their numbers and their address from a command, and what goes wrong there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from checked import GPUS, IMPORTED, findings, found

SPAWNED = f"""{IMPORTED}
def work(gpu, args):
    rank = args.nr * args.gpus + gpu
    dist.init_process_group("gloo", world_size=args.gpus * args.nodes, rank=rank)
    DDP(nn.Linear(1, 1))(torch.ones(1, 1)).sum().backward()
if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("-n", "--nodes", type=int, default=1)
    parser.add_argument("-g", "--gpus", type=int, default=1)
    parser.add_argument("-nr", "--nr", type=int, default=0)
    args = parser.parse_args()
    mp.spawn(work, nprocs=args.gpus, args=(args,))
"""


def of_places(folder: Path, **fields: Any) -> list[tuple[str, str]]:
    kinds = ("same-ranks", "fixed-world-size", "not-replaced", "launcher-nodes", "fixed-master")
    return [(one.check, one.hint) for one in findings(folder, **fields) if one.check in kinds and one.level == "error"]


@pytest.mark.parametrize("option", ["-nr $NODE_RANK", "-nr=$NODE_RANK", "--nr $NODE_RANK"])
def test_an_option_of_one_dash_is_passed(tmp_path: Path, option: str) -> None:
    (tmp_path / "train.py").write_text(SPAWNED)
    assert of_places(tmp_path, command=["bash", "-c", f"python train.py -n $NNODES -g $NPROC_PER_NODE {option}"]) == []
    assert of_places(tmp_path, command="python train.py -n 2 -g 2") == [
        ("same-ranks", "pass --nr=$NODE_RANK in command: [bash, -c, …], where a shell reads the variable")
    ]


def test_numbers_that_do_not_fit_name_the_options_that_give_them(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SPAWNED)
    assert dict(of_places(tmp_path, command="python train.py -n 4 -g 2 -nr 0")) == {
        "fixed-world-size": "it is computed from --nodes, --gpus: pass $NNODES and $NPROC_PER_NODE in command: "
        "[bash, -c, …]",
        "same-ranks": "pass --nr $NODE_RANK in command: [bash, -c, …], where a shell reads the variable",
    }


def test_a_variable_that_no_shell_replaces(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SPAWNED)
    given: dict[str, Any] = {"hyperparameters": {"nr": "$NODE_RANK"}}
    plain = ["python", "train.py", "-n", "2", "-g", "2"]
    assert "not-replaced" in dict(of_places(tmp_path, command=plain, **given))
    assert "not-replaced" in dict(of_places(tmp_path, command=[*plain, "-nr", "${NODE_RANK}"]))
    assert "not-replaced" in dict(of_places(tmp_path, args=["--nr=$NODE_RANK"]))
    for shell in (["env", "A=1", "bash", "-lc"], ["timeout", "9", "sh", "-c"]):
        start = [*shell, "python train.py -n $NNODES -g 2 -nr $NODE_RANK"]
        assert "not-replaced" not in dict(of_places(tmp_path, command=start))
    assert "not-replaced" not in dict(of_places(tmp_path, args=["torchrun --node_rank=$NODE_RANK other.py"]))
    (tmp_path / "train.py").write_text(f"{SPAWNED}\nprint(os.path.expandvars('$HOME'))\n")
    assert "not-replaced" not in dict(of_places(tmp_path, args=["--nr=$NODE_RANK"]))


def test_an_address_that_differs_is_no_port(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import torch.distributed as dist\ndist.init_process_group('gloo')\n")
    start = "torchrun --nnodes=$NNODES --rdzv_backend=c10d --rdzv_id=1 --rdzv_endpoint={} train.py"
    for endpoint, variable in (("$(hostname):29400", "$MASTER_ADDR"), ("h:$RANDOM", "$MASTER_PORT")):
        hints = [hint for _, hint in of_places(tmp_path, command=["bash", "-c", start.format(endpoint)])]
        assert f"use {variable}, which is the same on all nodes" in hints


@pytest.mark.parametrize("begins", ["os.environ['MASTER_ADDR'] = '{}'", "method = 'tcp://{}:29500'"])
def test_an_address_of_another_machine_on_this_one(tmp_path: Path, begins: str) -> None:
    def level(address: str, **fields: Any) -> list[str]:
        end = "dist.init_process_group('gloo', method, rank=args.rank, world_size=2)"
        parser = (
            "parser = argparse.ArgumentParser(); parser.add_argument('--rank', type=int)\nargs = parser.parse_args()"
        )
        text = f"{IMPORTED}\n{parser}\nmethod = 'env://'\n{begins.format(address)}\n{end}\n"
        (tmp_path / "train.py").write_text(text)
        given: dict[str, Any] = {"resources": {"nodes": 2, "nproc_per_node": 1}, **fields}
        checked = findings(tmp_path, command=["bash", "-c", "python train.py --rank $NODE_RANK"], **given)
        return [one.level for one in checked if one.check == "fixed-master"]

    assert level("192.0.2.7") == ["error"]  # an address of documentation: no machine has it
    assert "error" not in level("192.0.2.7", **GPUS)
    one = {"resources": {"nodes": 1, "nproc_per_node": 1}}
    assert "error" not in level("0.0.0.0", **one)
    assert level("127.0.0.101") == ([] if begins.startswith("method") else ["warning"])


LIGHTNING = "import lightning as L\nL.Trainer(num_nodes=2{}).fit(None)\n"


@pytest.mark.parametrize(
    ("given", "fields", "expected"),
    [
        ("", {}, True),
        (", devices=4", {}, True),
        (", devices=2", {}, False),
        (", devices='auto'", GPUS, False),
        ("", GPUS, False),
        (", **settings", {}, False),
        (", num_processes=2", {}, False),
        (", devices=2); L.Trainer(devices=1", {}, False),
    ],
)
def test_devices_that_lightning_takes(tmp_path: Path, given: str, fields: dict[str, Any], expected: bool) -> None:
    assert ("lightning-devices" in found(tmp_path, LIGHTNING.format(given), **fields)) is expected


def test_batch_norms_that_lightning_synchronizes_need_gpus(tmp_path: Path) -> None:
    text = LIGHTNING.format(", devices=2, sync_batchnorm=True")
    with_layers = f"import torch\nlayer = torch.nn.BatchNorm1d(2)\n{text}"
    assert "cuda-on-cpu" in found(tmp_path, with_layers)
    assert "cuda-on-cpu" not in found(tmp_path, text)
    assert "cuda-on-cpu" not in found(tmp_path, with_layers, **GPUS)


def test_srun_needs_slurm(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import torch.distributed as dist\ndist.init_process_group('gloo')\n")
    (tmp_path / "job.sh").write_text("#SBATCH -N1\nsrun torchrun --nproc_per_node=2 train.py\n")

    def hints(**fields: Any) -> list[str]:
        given = {"resources": {"nodes": 1, "nproc_per_node": 2}, "command": "bash job.sh", **fields}
        return [one.hint for one in findings(tmp_path, **given) if one.check == "launcher-nodes"]

    assert hints() == ['write a job file for what it starts: jobsubmit init --from "sbatch job.sh"']
    assert hints(command="srun torchrun train.py")[0].endswith('jobsubmit init --from "srun …"')
    assert hints(**GPUS) == []


def test_a_number_of_nodes_that_the_program_multiplies_itself(tmp_path: Path) -> None:
    counted = SPAWNED.replace('"-g", "--gpus"', '"--unused"').replace("args.gpus", "2")
    (tmp_path / "train.py").write_text(counted)
    hints = dict(of_places(tmp_path, command="python train.py -n 1 -nr 0"))
    assert hints["fixed-world-size"] == "it is computed from --nodes: pass $NNODES in command: [bash, -c, …]"
