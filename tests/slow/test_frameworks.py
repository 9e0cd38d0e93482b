"""Scripts of Hugging Face's Trainer and of DeepSpeed, as they are written: each trains within its third command."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
from command import Command

TRAINER = """
from dataclasses import dataclass, field

import torch
from torch.utils.data import Dataset
from transformers import AutoModelForCausalLM, GPT2Config, HfArgumentParser, Trainer, TrainingArguments


@dataclass
class ModelArguments:
    n_embd: int = field(default=32)


@dataclass
class DataArguments:
    block_size: int = field(default=16)


class Blocks(Dataset):
    def __init__(self, block_size):
        self.ids = torch.randint(0, 128, (128, block_size), generator=torch.Generator().manual_seed(0))

    def __len__(self):
        return len(self.ids)

    def __getitem__(self, index):
        return {"input_ids": self.ids[index], "labels": self.ids[index]}


def main():
    parser = HfArgumentParser((ModelArguments, DataArguments, TrainingArguments))
    model_args, data_args, training_args = parser.parse_args_into_dataclasses()
    config = GPT2Config(vocab_size=128, n_positions=data_args.block_size, n_embd=model_args.n_embd, n_layer=1, n_head=2)
    model = AutoModelForCausalLM.from_config(config)
    trainer = Trainer(model=model, args=training_args, train_dataset=Blocks(data_args.block_size))
    trainer.train()
    print(f"step {trainer.state.global_step} of {training_args.world_size} processes", flush=True)


if __name__ == "__main__":
    main()
"""

DEEPSPEED = """
import argparse

import deepspeed
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.utils.data import TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", default=2, type=int)
parser.add_argument("--local_rank", type=int, default=-1, help="passed from distributed launcher")
parser = deepspeed.add_config_arguments(parser)
args = parser.parse_args()

deepspeed.init_distributed()
data = TensorDataset(torch.randn(64, 12), torch.randint(0, 10, (64,)))
net = torch.nn.Linear(12, 10)
config = {"train_batch_size": 16, "optimizer": {"type": "AdamW", "params": {"lr": 0.001, "torch_adam": True}}}
engine, _, loader, _ = deepspeed.initialize(
    args=args, model=net, model_parameters=net.parameters(), training_data=data, config=config
)
for epoch in range(args.epochs):
    for x, y in loader:
        loss = F.cross_entropy(engine(x.to(engine.device)), y.to(engine.device))
        engine.backward(loss)
        engine.step()
print(f"step {engine.global_steps} of {dist.get_world_size()} processes", flush=True)
"""


def needs_package(name: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(
        importlib.util.find_spec(name) is None, reason=f"needs {name}: `make test-all` installs it"
    )


@pytest.mark.needs("torch")
@needs_package("transformers")
def test_a_script_of_transformers_trainer(jobsubmit: Command, tmp_path: Path) -> None:
    (tmp_path / "run_clm.py").write_text(TRAINER)
    words = (
        "run_clm.py --output_dir out --per_device_train_batch_size 4 --max_steps 3 --report_to none --save_steps 100"
    )
    jobsubmit("init", "--from", f"torchrun --nnodes 2 --nproc_per_node 2 {words}")
    told = jobsubmit("validate", "job.yaml", code=3).stderr  # each process would train alone
    assert "set use_cpu: {flag: true} in `hyperparameters`" in told
    flag = ("--set", "hyperparameters.use_cpu={flag: true}")
    done = jobsubmit("create", "job.yaml", *flag, "--follow", timeout=240)
    assert done.stderr.count("step 3 of 4 processes") == 4, done.stderr


@pytest.mark.needs("torch")
@needs_package("deepspeed")
def test_a_script_of_deepspeed(jobsubmit: Command, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(DEEPSPEED)
    jobsubmit("init", "--from", "deepspeed --num_nodes 2 --num_gpus 2 train.py --epochs 1")
    jobsubmit("validate", "job.yaml")
    done = jobsubmit("create", "job.yaml", "--follow", timeout=240)
    assert done.stderr.count("step 4 of 4 processes") == 4, done.stderr
