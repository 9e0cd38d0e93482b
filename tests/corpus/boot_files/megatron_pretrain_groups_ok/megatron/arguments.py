"""Megatron-style arguments."""
import argparse
import os

import torch


def parse_args(extra_args_provider=None, defaults={}, ignore_unknown_args=False):
    parser = argparse.ArgumentParser(description="Megatron-style arguments", allow_abbrev=False)

    parser = _add_network_size_args(parser)
    parser = _add_regularization_args(parser)
    parser = _add_training_args(parser)
    parser = _add_learning_rate_args(parser)
    parser = _add_checkpointing_args(parser)
    parser = _add_mixed_precision_args(parser)
    parser = _add_distributed_args(parser)
    parser = _add_data_args(parser)
    if extra_args_provider is not None:
        parser = extra_args_provider(parser)

    if ignore_unknown_args:
        args, _ = parser.parse_known_args()
    else:
        args = parser.parse_args()

    args.rank = int(os.getenv("RANK", "0"))
    args.world_size = int(os.getenv("WORLD_SIZE", "1"))
    model_parallel = args.tensor_model_parallel_size
    assert args.world_size % model_parallel == 0, "world size is not divisible by tensor parallel size"
    args.data_parallel_size = args.world_size // model_parallel
    if args.global_batch_size is None:
        args.global_batch_size = args.micro_batch_size * args.data_parallel_size
    for key in defaults:
        if getattr(args, key, None) is None:
            setattr(args, key, defaults[key])
    args.params_dtype = torch.float
    if args.fp16:
        assert not args.bf16
        args.params_dtype = torch.half
    if args.bf16:
        args.params_dtype = torch.bfloat16
    if args.ffn_hidden_size is None:
        args.ffn_hidden_size = 4 * args.hidden_size
    return args


def _add_network_size_args(parser):
    group = parser.add_argument_group(title="network size")
    group.add_argument("--num-layers", type=int, default=None, required=True)
    group.add_argument("--hidden-size", type=int, default=None, required=True)
    group.add_argument("--ffn-hidden-size", type=int, default=None)
    group.add_argument("--num-attention-heads", type=int, default=16)
    group.add_argument("--max-position-embeddings", type=int, default=1024)
    group.add_argument("--position-embedding-type", type=str, default="learned_absolute",
                       choices=["learned_absolute", "rope"])
    return parser


def _add_regularization_args(parser):
    group = parser.add_argument_group(title="regularization")
    group.add_argument("--hidden-dropout", type=float, default=0.1)
    group.add_argument("--weight-decay", type=float, default=0.01)
    group.add_argument("--clip-grad", type=float, default=1.0)
    return parser


def _add_training_args(parser):
    group = parser.add_argument_group(title="training")
    group.add_argument("--micro-batch-size", type=int, default=None)
    group.add_argument("--global-batch-size", type=int, default=None)
    group.add_argument("--train-iters", type=int, default=None)
    group.add_argument("--log-interval", type=int, default=100)
    group.add_argument("--no-masked-softmax-fusion", action="store_false", dest="masked_softmax_fusion")
    group.add_argument("--optimizer", type=str, default="adam", choices=["adam", "sgd"])
    return parser


def _add_learning_rate_args(parser):
    group = parser.add_argument_group(title="learning rate")
    group.add_argument("--lr", type=float, default=None)
    group.add_argument("--min-lr", type=float, default=0.0)
    group.add_argument("--lr-decay-style", type=str, default="linear", choices=["constant", "linear", "cosine"])
    return parser


def _add_checkpointing_args(parser):
    group = parser.add_argument_group(title="checkpointing")
    group.add_argument("--save", type=str, default=None)
    group.add_argument("--save-interval", type=int, default=None)
    group.add_argument("--load", type=str, default=None)
    return parser


def _add_mixed_precision_args(parser):
    group = parser.add_argument_group(title="mixed precision")
    group.add_argument("--fp16", action="store_true")
    group.add_argument("--bf16", action="store_true")
    return parser


def _add_distributed_args(parser):
    group = parser.add_argument_group(title="distributed")
    group.add_argument("--tensor-model-parallel-size", type=int, default=1)
    group.add_argument("--distributed-backend", default="nccl", choices=["nccl", "gloo"])
    group.add_argument("--distributed-timeout-minutes", type=int, default=10)
    group.add_argument("--local_rank", type=int, default=None, help="local rank passed from distributed launcher.")
    return parser


def _add_data_args(parser):
    group = parser.add_argument_group(title="data and dataloader")
    group.add_argument("--data-path", nargs="*", default=None)
    group.add_argument("--split", type=str, default="969, 30, 1")
    group.add_argument("--vocab-size", type=int, default=50304)
    group.add_argument("--seq-length", type=int, default=None)
    return parser
