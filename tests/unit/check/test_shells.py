"""What a start command executes on a node: its shells are followed, and nothing of them is executed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from checked import GPUS, TWO, findings, found, with_files

from jobsubmit.check.shell.started import Started, start_on
from jobsubmit.config import BUILT_IN
from jobsubmit.plan import launch_plan as planning
from jobsubmit.spec.loader import load_mapping

MEGATRON = """#!/bin/bash
set -euo pipefail
export CUDA_DEVICE_MAX_CONNECTIONS=1
DATA=$1
SAVE_PATH=$2
GPUS_PER_NODE=8
MASTER_ADDR=${MASTER_ADDR:-localhost}
NUM_NODES=${NUM_NODES:-1}
DISTRIBUTED_ARGS="
    --nproc_per_node $GPUS_PER_NODE \\
    --nnodes {nodes} \\
    --node_rank $NODE_RANK
"
GPT_ARGS="
    --num-layers 24
    --lr 0.0003
"
torchrun $DISTRIBUTED_ARGS pretrain_gpt.py \\
    $GPT_ARGS \\
    --data-path $DATA --save ${SAVE_PATH}
"""
KALDI = r"""stage=0
rate=1
is_fast=false
set -- --rate 0.5 --is-fast true
while true; do
  [ -z "${1:-}" ] && break
  case "$1" in
    --*=*) exit 1 ;;
    --*) name=`echo "$1" | sed s/^--// | sed s/-/_/g`
      eval '[ -z "${'$name'+xxx}" ]' && echo "invalid option $1" && exit 1
      old="`eval echo \\$$name`"
      if [ "$old" == "true" ] || [ "$old" == "false" ]; then was_switch=true; else was_switch=false; fi
      eval $name=\"$2\"
      if $was_switch && [[ "$2" != "true" && "$2" != "false" ]]; then exit 1; fi
      shift 2 ;;
    *) break ;;
  esac
done
python train.py $rate $is_fast
"""
LOCAL: dict[str, Any] = {"name": "followed", "code_dir": ".", "resources": TWO}


def started(text: str, *arguments: str, node: int = 0, files: dict[str, str] | None = None, **fields: Any) -> Started:
    """Follow a script, `run.sh`, as the start command of a job of two nodes."""
    spec = load_mapping({**LOCAL, "command": ["bash", "run.sh", *arguments], **fields}).spec
    code = {"run.sh": text, "train.py": "import torch.distributed", **(files or {})}
    return start_on(node, planning.build_plan(spec, BUILT_IN), lambda path: code.get(path, ""))


@pytest.mark.parametrize(
    ("nodes", "env", "read"),
    [
        ("$NUM_NODES", {}, 1),
        ("$NUM_NODES", {"NUM_NODES": "4"}, 4),
        ("$NNODES", {}, 2),
        ("${NNODES:-1}", {}, 2),
        ("${SLURM_NNODES:-1}", {}, "$SLURM_NNODES"),
    ],
)
def test_a_script_of_megatron(nodes: str, env: dict[str, str], read: int | str) -> None:
    seen = started(MEGATRON.replace("{nodes}", nodes), "/data/pile", "/shared/out", node=1, env=env).launch
    assert (seen.launcher, seen.nodes, seen.nproc) == ("torchrun", read, 8)
    assert seen.options["node_rank"] == "1"
    assert seen.program == (
        *("pretrain_gpt.py", "--num-layers", "24", "--lr", "0.0003"),
        *("--data-path", "/data/pile", "--save", "/shared/out"),
    )


@pytest.mark.parametrize(
    ("text", "program"),
    [
        ("SCRIPT=$1\nshift\ntorchrun $SCRIPT $@", "train.py --lr 1"),
        ("OUT='a b'\nNAME=$OUT/x\npython train.py --out \"$NAME\"", "train.py --out a|b/x"),
        ("python train.py --home ${HOME:-/root} --tag ${TAG:-none}", "train.py --home $HOME --tag none"),
        ("A=1; A=2; python train.py $A", "train.py 2"),
        ("A=$(date +%s); python train.py $A/x", "train.py $(date|+%s)/x"),
        ('A=(--lr 1)\nA+=(--seed "2 3")\npython train.py "${A[@]}" ${#A[@]}', "train.py --lr 1 --seed 2|3 4"),
        ("[ $NNODES -gt 1 ] && A=many || A=one\npython train.py $A", "train.py many"),
        ('if [[ "$MODE" == "fast" ]]; then A=1; else A=2; fi\npython train.py $A', "train.py 2"),
        ("case $3 in 1|2) A=low;; *) A=high;; esac\npython train.py $A", "train.py low"),
        ("while [ $# -gt 0 ]; do case $1 in --lr) LR=$2; shift 2;; *) shift;; esac; done; python train.py $LR",
         "train.py 1"),
        ("run() { local n=$1; shift; torchrun --nproc_per_node=$n \"$@\" 2>&1 | tee log; }\nrun 2 train.py a",
         "train.py a"),
        ("CMD=\"python train.py --n $((NNODES * 4))\"\necho $CMD\neval $CMD", "train.py --n 8"),
        ("F=conf/base.yaml; F=${F##*/}; python train.py ${F%.yaml} ${F/x/y}", "train.py base $F"),
        ("nohup env A=1 timeout 5 python -u train.py > log 2>&1 &\nwait", "train.py"),
        ('python train.py "$@"', "train.py train.py --lr 1"),
        ("python prepare.py\npython train.py 7\nrm -r /tmp/x", "train.py 7"),
        ('[ -n "$RESUME" ] && A="--resume $RESUME"\npython train.py $A', "train.py"),
        ('if [ -z "$DATA" ]; then echo "no data"; exit 1; fi\npython train.py $DATA', "train.py $DATA"),
        ("set -- a b\npython train.py $2 ${3:-c} ${@:1}", "train.py b c a b"),
        (". ./env.sh\nsource conf/more.sh\npython train.py $A $B", "train.py 1 2"),
        ('python train.py "$*"', "train.py train.py|--lr|1"),
        ("N=`basename /a/b.yaml .yaml`; let M=2*NNODES; python train.py $N $M", "train.py b 4"),
        (KALDI, "train.py 0.5 true"),
        ('A="x y"; B=z; C="$A $B ${A%y} -- $B"; python train.py $C', "train.py x y z x -- z"),
        ("N=$(python -c 'import torch; print(torch.cuda.device_count())')\nA=\"--n $N --m 1\"; python train.py $A",
         "train.py --n $(python|-c|'import|torch;|printtorch.cuda.device_count') --m 1"),
        ('set -- --lr=2 -c base.yaml last\no=$(getopt -o c:v --long lr:,seed: -- "$@")\neval set -- "$o"\n'
         "while true; do case $1 in --lr) LR=$2; shift 2;; -c) C=$2; shift 2;; --) shift; break;; esac; done\n"
         "python train.py $LR $C $1", "train.py 2 base.yaml last"),
        ("bash inner.sh x y", "train.py x 1"),
        ("./inner.sh x", "train.py x 1"),
        ("cd conf && python ../train.py", "../train.py"),
        ("ROOT=$(cd $(dirname \"${BASH_SOURCE[0]}\") && pwd)\npython $ROOT/train.py", "$PWD/train.py"),
        ("for s in 1 2; do python train.py $s; done", "train.py 1"),
        ("until python train.py; do sleep 5; done", "train.py"),
        ("python train.py \\\n  --a 1  # the rate\n", "train.py --a 1"),
        ("if (( NODE_RANK == 0 )); then A=first; else A=other; fi\npython train.py $A", "train.py first"),
    ],
)  # fmt: skip
def test_what_a_script_makes_of_its_words(text: str, program: str) -> None:
    files = {"env.sh": "A=1", "conf/more.sh": "B=2\nreturn\nB=3", "inner.sh": "export Q\npython train.py $1 ${Q:-1}\n"}
    seen = started(text, "train.py", "--lr", "1", files=files)
    assert seen.launch.program == tuple(word.replace("|", " ") for word in program.split(" "))


def test_only_the_first_node_starts_something() -> None:
    text = "if [ $NODE_RANK != 0 ]; then sleep infinity; fi\nmpirun -H a:2,b:2 -np 4 python train.py"
    assert started(text).launch.launcher == "mpirun"
    text = "[ $NODE_RANK == 0 ] || exit 0\nmpirun -H a:2,b:2 -np 4 python train.py"
    assert (started(text).launch.launcher, started(text, node=1).launch.launcher) == ("mpirun", "")


def test_a_shell_that_a_launcher_of_torch_starts() -> None:
    inner = 'SLURM_PROCID=$RANK exec "$0" "$@" --rank $RANK'
    seen = started(f"torchrun --nnodes=2 --no-python bash -c '{inner}' python train.py --lr 1")
    assert (seen.launch.launcher, seen.launch.nodes) == ("torchrun", 2)
    assert seen.launch.program == ("train.py", "--lr", "1", "--rank", "$RANK")
    assert seen.environment["SLURM_PROCID"] == "$RANK"


def test_variables_that_reach_the_program() -> None:
    text = "export A=1 B=x\nC=3\nexport RANK=$NODE_RANK\nD=4 python train.py"
    assert started(text, node=1).environment.items() >= {"A": "1", "B": "x", "D": "4", "RANK": "1"}.items()
    assert "C" not in started(text).environment


def test_a_shell_inside_a_launcher_of_a_scheduler() -> None:
    text = "srun -n 2 --ntasks-per-node 1 bash -c 'RANK=$SLURM_PROCID python train.py --n $SLURM_PROCID'"
    seen = started(text)
    assert (seen.launch.launcher, seen.launch.program) == ("srun", ("train.py", "--n", "$SLURM_PROCID"))
    assert seen.environment["RANK"] == "$SLURM_PROCID"


@pytest.mark.parametrize(
    "text", ["while true; do A=$A$A; done", "f() { f; }; f", "bash run.sh", "x=(", "if then fi \"'"]
)
def test_a_script_that_does_not_end_is_followed_for_a_while(text: str) -> None:
    assert started(f"{text}\n").launch.launcher == ""


BY_RDZV = "torchrun --nnodes $NNODES --rdzv-backend c10d --rdzv-endpoint $MASTER_ADDR:1 --nproc-per-node 2 train.py"
RIGHT = "torchrun --nnodes $NNODES --node_rank $NODE_RANK --master_addr $MASTER_ADDR --nproc_per_node 2 train.py"
ACCELERATE = (
    "accelerate launch --num_machines $NNODES --machine_rank $NODE_RANK --main_process_ip $MASTER_ADDR "
    "--main_process_port $MASTER_PORT --num_processes $((NNODES * 2)) train.py"
)


@pytest.mark.parametrize(
    ("right", "wrong", "check"),
    [
        (RIGHT, RIGHT.replace("--node_rank $NODE_RANK", ""), "launcher-nodes"),
        (RIGHT, RIGHT.replace("--master_addr $MASTER_ADDR", ""), "launcher-nodes"),
        (RIGHT, RIGHT.replace("$MASTER_ADDR", "127.0.0.1"), "launcher-nodes"),
        (RIGHT, f"MASTER_ADDR=localhost\n{RIGHT}", "launcher-nodes"),
        (RIGHT, f"NODE_RANK=$RANK\n{RIGHT}", "launcher-nodes"),
        (RIGHT, f"NNODES=1\n{RIGHT}", "launcher-nodes"),
        (RIGHT, RIGHT.replace("--nproc_per_node 2", "--nproc_per_node 1"), "launcher-processes"),
        (RIGHT, "torchrun --standalone --nnodes $NNODES --nproc_per_node 2 train.py", "launcher-nodes"),
        (RIGHT.replace(" --", " \\\n  --"), RIGHT.replace(" --", " \\\n  # --x 1 \\\n  --"), "cut-command"),
        (RIGHT.replace(" --", " \\\n  --"), RIGHT.replace(" --", " \\ \n  --"), "cut-command"),
        (f"{RIGHT} \\\n  --lr=1", f"{RIGHT} \\\n  # --x 1 \\\n  --lr=1", "cut-command"),
        (f"{RIGHT} \\\n  --lr=1 \\\n  --a=$B", f"{RIGHT} \\ \n  --lr=1 \\\n  --a=$B", "cut-command"),
        (ACCELERATE, ACCELERATE.replace("--machine_rank $NODE_RANK", ""), "launcher-nodes"),
        (ACCELERATE, ACCELERATE.replace("--machine_rank $NODE_RANK", "--machine_rank 0"), "launcher-nodes"),
        (ACCELERATE, ACCELERATE.replace("--main_process_ip $MASTER_ADDR", ""), "launcher-nodes"),
        (ACCELERATE, ACCELERATE.replace("$((NNODES * 2))", "2"), "launcher-processes"),
        (
            "python train.py --rank $NODE_RANK --port ${MASTER_PORT}",
            "export MASTER_PORT=$((RANDOM % 100 + 1000))\npython train.py --rank $NODE_RANK",
            "launcher-nodes",
        ),
        (f'A="1"\n{RIGHT}', f'A="1\n{RIGHT}', "shell-syntax"),
        (f"if true; then\n{RIGHT}\nfi", f"if true; then\n{RIGHT}", "shell-syntax"),
        (
            f"[ $# -lt 1 ] || exit 1\n{RIGHT}",
            f'if [ $# -lt 1 ]; then\n  echo "usage: run.sh CONFIG"\n  exit 1\nfi\n{RIGHT}',
            "script-ends",
        ),
        (f"cd /data || exit 1\n{RIGHT}", f"[ $NNODES -eq 1 ] || exit 2\n{RIGHT}", "script-ends"),
        ("deepspeed --hostfile h --no_ssh --node_rank $NODE_RANK train.py", "deepspeed train.py", "launcher-nodes"),
        (f"srun -N1 {BY_RDZV}", f"srun {BY_RDZV}", "launcher-nodes"),
        (f"srun --overlap --nodes 1 {BY_RDZV}", f"srun --overlap --nodes 2 {BY_RDZV} --nodes 1", "launcher-nodes"),
        (
            "[ $NODE_RANK = 0 ] || exit 0\nmpirun -H a:2,b:2 -np 4 python train.py",
            "mpirun -H a:2,b:2 -np 4 python train.py",
            "launcher-nodes",
        ),
    ],
)
def test_how_a_script_starts_the_nodes(right: str, wrong: str, check: str, tmp_path: Path) -> None:
    starts = {"launcher-nodes", "launcher-processes", "cut-command", "shell-syntax", "script-ends"}
    with_files(tmp_path, {"run.sh": right})
    assert not starts & found(tmp_path, "print(1)\n", command="bash run.sh", **GPUS)
    with_files(tmp_path, {"run.sh": wrong})
    assert check in found(tmp_path, "print(1)\n", command="bash run.sh", **GPUS)


@pytest.mark.parametrize(
    ("command", "is_dropped"),
    [
        (["bash", "run.sh"], True),
        (["bash", "all.sh"], False),
        (["bash", "named.sh"], False),
        (["bash", "-c", "python train.py"], True),
        (["bash", "-c", 'python train.py "$@"', "run"], False),
        (["python", "train.py"], False),
        (["bash", "long.sh"], True),
    ],
)
def test_arguments_of_the_job_that_a_script_does_not_pass_on(
    command: list[str], is_dropped: bool, tmp_path: Path
) -> None:
    scripts = {"run.sh": "python train.py", "all.sh": 'python train.py "$@"', "named.sh": "python train.py ${1#*=}"}
    scripts["long.sh"] = "python train.py --steps 10.255"
    with_files(tmp_path, scripts)
    seen = found(tmp_path, "print(1)\n", command=command, hyperparameters={"rate": 0.25}, **GPUS)
    assert ("arguments-dropped" in seen) is is_dropped


def test_what_a_launcher_of_the_project_passes_on(tmp_path: Path) -> None:
    text = """
from argparse import REMAINDER, ArgumentParser
parser = ArgumentParser()
parser.add_argument("--node_rank", type=int)
parser.add_argument("script")
parser.add_argument("rest", nargs=REMAINDER)
parser.parse_args()
"""
    with_files(tmp_path, {"run.sh": 'python train.py --node_rank $NODE_RANK inner.sh "$@"'})
    fields: dict[str, Any] = {"command": "bash run.sh", "hyperparameters": {"rate": 1}, **GPUS}
    assert "argument-unknown" not in found(tmp_path, text, **fields)
    assert "argument-unknown" in found(tmp_path, text.replace("nargs=REMAINDER", "nargs='?'"), **fields)


def test_a_script_that_is_to_fail(tmp_path: Path) -> None:
    with_files(tmp_path, {"run.sh": "echo a trial\nexit 3\n"})
    assert "script-ends" not in found(tmp_path, "print(1)\n", command="bash run.sh", **GPUS)


def test_a_command_that_cannot_be_followed_stops_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> Started:
        raise ZeroDivisionError

    monkeypatch.setattr("jobsubmit.check.run.start_on", fail)
    (tmp_path / "train.py").write_text("print(1)\n")
    (one, *_) = findings(tmp_path, command="python train.py", **GPUS)
    assert (one.level, "ZeroDivisionError" in one.text) == ("unknown", True)


BY_TASK = """
import argparse, os, torch, torch.distributed as dist, torch.multiprocessing as mp
def run(local_rank, world_size):
    if {is_task}:
        rank = int(os.environ["{number}"]) * torch.cuda.device_count() + local_rank
    else:
        rank = local_rank
    dist.init_process_group("nccl", rank=rank, world_size=world_size)
    torch.cuda.set_device(local_rank)
parser = argparse.ArgumentParser()
parser.add_argument("--world-size", type=int)
if __name__ == "__main__":
    mp.spawn(run, args=(parser.parse_args().world_size,), nprocs=torch.cuda.device_count())
"""


@pytest.mark.parametrize("number", ["NODE_RANK", "SLURM_PROCID", "NODE"])
def test_a_program_that_reads_the_number_of_its_node(number: str, tmp_path: Path) -> None:
    with_files(tmp_path, {"run.sh": "export WORLD_SIZE=$((NNODES * 2))\npython train.py --world-size $WORLD_SIZE\n"})
    text = BY_TASK.format(is_task=f'"{number}" in os.environ', number=number)
    shown = found(tmp_path, text, command="bash run.sh", **GPUS)
    assert bool(shown & {"launcher-nodes", "same-ranks"}) is (number == "NODE")


ALONE = """
import {imported}torch
model = torch.nn.Linear(4, 1)
model(torch.ones(2, 4)).mean().backward()
{reads}
"""


@pytest.mark.parametrize(
    ("command", "imported", "reads", "is_alone"),
    [
        ("python train.py", "", "", True),
        ("python train.py", "os, ", 'print(os.environ["NODE_RANK"])', False),
        (["bash", "-c", "python train.py --node $NODE_RANK"], "sys, ", "print(sys.argv)", False),
        (["bash", "-c", "RANK=$NODE_RANK python train.py"], "", "", False),
        (
            ["bash", "-c", "torchrun --nnodes 2 --node_rank $NODE_RANK --master_addr $MASTER_ADDR train.py"],
            "",
            "",
            False,
        ),
    ],
)
def test_a_program_that_does_not_know_its_node(
    command: str | list[str], imported: str, reads: str, is_alone: bool, tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text(ALONE.format(imported=imported, reads=reads))
    shown = findings(tmp_path, command=command, **GPUS)
    assert any("train by itself" in one.text for one in shown) is is_alone
