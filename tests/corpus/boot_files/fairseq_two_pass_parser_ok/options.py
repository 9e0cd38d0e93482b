import argparse

import torch

from models import ARCH_CONFIG_REGISTRY, ARCH_MODEL_REGISTRY
from tasks import TASK_REGISTRY


def eval_str_list(x, type=float):
    if x is None:
        return None
    if isinstance(x, str):
        x = eval(x)
    try:
        return list(map(type, x))
    except TypeError:
        return [type(x)]


def get_parser(desc, default_task="translation"):
    parser = argparse.ArgumentParser(description=desc, allow_abbrev=False)
    parser.add_argument("--no-progress-bar", action="store_true", help="disable progress bar")
    parser.add_argument("--log-interval", type=int, default=100, metavar="N")
    parser.add_argument("--seed", default=1, type=int, metavar="N")
    parser.add_argument("--fp16", action="store_true", help="use FP16")
    parser.add_argument("--task", metavar="TASK", default=default_task, choices=TASK_REGISTRY.keys(), help="task")
    return parser


def add_distributed_training_args(parser):
    group = parser.add_argument_group("Distributed training")
    group.add_argument("--distributed-world-size", type=int, metavar="N", default=max(1, torch.cuda.device_count()))
    group.add_argument("--distributed-rank", default=0, type=int)
    group.add_argument("--distributed-backend", default="nccl", type=str)
    group.add_argument("--distributed-init-method", default=None, type=str)
    group.add_argument("--device-id", "--local_rank", default=0, type=int, help="which GPU to use (usually configured automatically)")
    group.add_argument("--bucket-cap-mb", default=25, type=int, metavar="MB")
    return group


def add_optimization_args(parser):
    group = parser.add_argument_group("Optimization")
    group.add_argument("--max-epoch", "--me", default=0, type=int, metavar="N")
    group.add_argument("--max-update", "--mu", default=0, type=int, metavar="N")
    group.add_argument("--clip-norm", default=25, type=float, metavar="NORM")
    group.add_argument("--update-freq", default="1", metavar="N1,N2", type=lambda uf: eval_str_list(uf, type=int))
    group.add_argument("--lr", "--learning-rate", default="0.25", type=eval_str_list, metavar="LR_1,LR_2")
    return group


def add_checkpoint_args(parser):
    group = parser.add_argument_group("Checkpointing")
    group.add_argument("--save-dir", metavar="DIR", default="checkpoints")
    group.add_argument("--restore-file", default="checkpoint_last.pt")
    group.add_argument("--no-save", action="store_true")
    return group


def get_training_parser(default_task="translation"):
    parser = get_parser("Trainer", default_task)
    add_distributed_training_args(parser)
    group = parser.add_argument_group("Model configuration")
    group.add_argument("--arch", "-a", default="lstm_tiny", metavar="ARCH", choices=ARCH_MODEL_REGISTRY.keys())
    add_optimization_args(parser)
    add_checkpoint_args(parser)
    return parser


def parse_args_and_arch(parser, input_args=None, modify_parser=None):
    if modify_parser is not None:
        modify_parser(parser)
    # first pass: which model, which task; they add options of their own
    args, _ = parser.parse_known_args(input_args)
    if hasattr(args, "arch"):
        ARCH_MODEL_REGISTRY[args.arch].add_args(
            parser.add_argument_group("Model-specific configuration", argument_default=argparse.SUPPRESS)
        )
    TASK_REGISTRY[args.task].add_args(parser)
    args = parser.parse_args(input_args)
    ARCH_CONFIG_REGISTRY[args.arch](args)
    return args
