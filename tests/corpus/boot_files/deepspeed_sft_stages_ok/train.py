#!/usr/bin/env python
"""Step 1 of three: supervised fine-tuning."""
import argparse
import math
import os

import deepspeed
import torch
from datasets import load_from_disk
from deepspeed.ops.adam import DeepSpeedCPUAdam, FusedAdam
from torch.utils.data import DataLoader, RandomSampler, SequentialSampler
from torch.utils.data.distributed import DistributedSampler
from transformers import AutoModelForCausalLM, AutoTokenizer, default_data_collator, get_scheduler

from utils.ds_utils import get_train_ds_config
from utils.utils import get_all_reduce_mean, print_rank_0, save_hf_format, set_random_seed, to_device


def parse_args():
    parser = argparse.ArgumentParser(description="Finetune a transformers model on a causal language modeling task")
    parser.add_argument("--data_path", nargs="*", default=["/data/sft"], help="what save_to_disk wrote")
    parser.add_argument("--model_name_or_path", type=str, required=True)
    parser.add_argument("--per_device_train_batch_size", type=int, default=16)
    parser.add_argument("--per_device_eval_batch_size", type=int, default=16)
    parser.add_argument("--learning_rate", type=float, default=1e-3)
    parser.add_argument("--num_train_epochs", type=int, default=1)
    parser.add_argument("--gradient_accumulation_steps", type=int, default=1)
    parser.add_argument("--lr_scheduler_type", type=str, default="cosine", choices=["linear", "cosine", "constant"])
    parser.add_argument("--output_dir", type=str, default=None)
    parser.add_argument("--seed", type=int, default=1234)
    parser.add_argument("--local_rank", type=int, default=-1, help="local_rank for distributed training on gpus")
    parser.add_argument("--gradient_checkpointing", action="store_true")
    parser.add_argument("--offload", action="store_true")
    parser.add_argument("--dtype", type=str, default="bf16", choices=["fp16", "bf16"])
    parser.add_argument("--zero_stage", type=int, default=0, choices=[0, 1, 2, 3])
    parser.add_argument("--print_loss", action="store_true")
    parser = deepspeed.add_config_arguments(parser)
    args = parser.parse_args()
    if args.local_rank == -1 and "LOCAL_RANK" in os.environ:
        args.local_rank = int(os.environ["LOCAL_RANK"])
    return args


def evaluation(model, loader, device):
    model.eval()
    losses = 0.0
    for step, batch in enumerate(loader):
        with torch.no_grad():
            losses += model(**to_device(batch, device)).loss.float()
    losses = get_all_reduce_mean(losses / (step + 1))
    model.train()
    return math.exp(losses.item())


def main():
    args = parse_args()
    if args.local_rank == -1:
        device = torch.device("cuda")
    else:
        torch.cuda.set_device(args.local_rank)
        device = torch.device("cuda", args.local_rank)
        deepspeed.init_distributed()
    args.global_rank = torch.distributed.get_rank()
    ds_config = get_train_ds_config(
        offload=args.offload, stage=args.zero_stage, dtype=args.dtype, micro_batch=args.per_device_train_batch_size,
        world_size=torch.distributed.get_world_size(), accumulation=args.gradient_accumulation_steps)
    set_random_seed(args.seed)
    torch.distributed.barrier()

    tokenizer = AutoTokenizer.from_pretrained(args.model_name_or_path, fast_tokenizer=True)
    model = AutoModelForCausalLM.from_pretrained(args.model_name_or_path)
    train_dataset = load_from_disk(args.data_path[0])["train"]
    eval_dataset = load_from_disk(args.data_path[0])["test"]

    if args.local_rank == -1:
        train_sampler, eval_sampler = RandomSampler(train_dataset), SequentialSampler(eval_dataset)
    else:
        train_sampler = DistributedSampler(train_dataset)
        eval_sampler = DistributedSampler(eval_dataset, shuffle=False)
    train_loader = DataLoader(train_dataset, collate_fn=default_data_collator, sampler=train_sampler,
                              batch_size=args.per_device_train_batch_size)
    eval_loader = DataLoader(eval_dataset, collate_fn=default_data_collator, sampler=eval_sampler,
                             batch_size=args.per_device_eval_batch_size)

    optimizer_class = DeepSpeedCPUAdam if args.offload else FusedAdam
    optimizer = optimizer_class(model.parameters(), lr=args.learning_rate, betas=(0.9, 0.95))
    steps = math.ceil(len(train_loader) / args.gradient_accumulation_steps) * args.num_train_epochs
    lr_scheduler = get_scheduler(args.lr_scheduler_type, optimizer, num_warmup_steps=0, num_training_steps=steps)
    model, optimizer, _, lr_scheduler = deepspeed.initialize(
        model=model, optimizer=optimizer, config=ds_config, lr_scheduler=lr_scheduler, dist_init_required=True)
    if args.gradient_checkpointing:
        model.gradient_checkpointing_enable()

    print_rank_0("***** Running training *****", args.global_rank)
    print_rank_0(f"ppl: {evaluation(model, eval_loader, device)}", args.global_rank)
    for epoch in range(args.num_train_epochs):
        if isinstance(train_sampler, DistributedSampler):
            train_sampler.set_epoch(epoch)
        model.train()
        for step, batch in enumerate(train_loader):
            loss = model(**to_device(batch, device), use_cache=False).loss
            if args.print_loss:
                print(f"Epoch: {epoch}, Step: {step}, Rank: {args.global_rank}, loss = {loss}")
            model.backward(loss)
            model.step()
        perplexity = evaluation(model, eval_loader, device)
        print_rank_0(f"ppl: {perplexity}", args.global_rank)

    if args.output_dir is not None:
        print_rank_0("saving the final model ...", args.global_rank)
        if args.zero_stage == 3:
            model.save_16bit_model(args.output_dir)
        elif args.global_rank == 0:
            save_hf_format(model, tokenizer, args)
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
