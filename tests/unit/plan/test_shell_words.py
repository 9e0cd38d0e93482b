"""What a start script executes last: its variables are filled in, as far as they are known before."""

from __future__ import annotations

import pytest

from jobsubmit.plan.launchers import launch_of_command

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


@pytest.mark.parametrize(
    ("nodes", "set_by_job", "read"),
    [
        ("$NUM_NODES", (), 1),
        ("$NUM_NODES", ("NUM_NODES",), "$NUM_NODES"),
        ("$NNODES", (), "$NNODES"),
        ("${NNODES:-1}", (), "$NNODES"),
        ("${SLURM_NNODES:-1}", (), "$SLURM_NNODES"),
    ],
)
def test_a_script_of_megatron(nodes: str, set_by_job: tuple[str, ...], read: int | str) -> None:
    command = ["bash", "run.sh", "/data/pile", "/shared/out"]
    found = launch_of_command(command, lambda _: MEGATRON.replace("{nodes}", nodes), set_by_job)
    assert (found.launcher, found.nodes, found.nproc) == ("torchrun", read, 8)
    assert found.options["node_rank"] == "$NODE_RANK"
    assert found.program == (
        *("pretrain_gpt.py", "--num-layers", "24", "--lr", "0.0003"),
        *("--data-path", "/data/pile", "--save", "/shared/out"),
    )


@pytest.mark.parametrize(
    ("text", "program"),
    [
        ("SCRIPT=$1\nshift\ntorchrun $SCRIPT $@", ("train.py", "--lr", "1")),
        ("OUT='a b'\nNAME=$OUT/x\npython train.py --out \"$NAME\"", ("train.py", "--out", "a b/x")),
        ("python train.py --home ${HOME:-/root} --tag ${TAG:-none}", ("train.py", "--home", "$HOME", "--tag", "none")),
        ("A=1; A=2; python train.py $A", ("train.py", "2")),
        ("A=$(date); python train.py $A", ("train.py", "$A")),
    ],
)
def test_variables_of_a_script(text: str, program: tuple[str, ...]) -> None:
    assert launch_of_command(["bash", "run.sh", "train.py", "--lr", "1"], lambda _: text).program == program
