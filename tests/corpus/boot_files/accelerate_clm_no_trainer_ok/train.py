#!/usr/bin/env python
"""Causal LM fine-tuning without the Trainer, on Accelerate."""
import argparse
import json
import math
import os
import random

import datasets
import torch
import transformers
from accelerate import Accelerator
from accelerate.logging import get_logger
from accelerate.utils import set_seed
from torch.utils.data import DataLoader
from tqdm.auto import tqdm
from transformers import AutoModelForCausalLM, AutoTokenizer, SchedulerType, default_data_collator, get_scheduler

logger = get_logger(__name__)


def parse_args():
    parser = argparse.ArgumentParser(description="Finetune a transformers model on a causal language modeling task")
    parser.add_argument("--dataset_name", type=str, default=None)
    parser.add_argument("--train_file", type=str, default=None)
    parser.add_argument("--model_name_or_path", type=str, required=True)
    parser.add_argument("--per_device_train_batch_size", type=int, default=8)
    parser.add_argument("--learning_rate", type=float, default=5e-5)
    parser.add_argument("--weight_decay", type=float, default=0.0)
    parser.add_argument("--num_train_epochs", type=int, default=3)
    parser.add_argument("--max_train_steps", type=int, default=None)
    parser.add_argument("--gradient_accumulation_steps", type=int, default=1)
    parser.add_argument(
        "--lr_scheduler_type",
        type=SchedulerType,
        default="linear",
        choices=["linear", "cosine", "cosine_with_restarts", "polynomial", "constant", "constant_with_warmup"],
    )
    parser.add_argument("--num_warmup_steps", type=int, default=0)
    parser.add_argument("--output_dir", type=str, default=None)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--block_size", type=int, default=512)
    parser.add_argument("--checkpointing_steps", type=str, default=None, help="a number of steps, or 'epoch'")
    parser.add_argument("--resume_from_checkpoint", type=str, default=None)
    parser.add_argument("--with_tracking", action="store_true")
    parser.add_argument("--report_to", type=str, default="all")
    args = parser.parse_args()
    if args.dataset_name is None and args.train_file is None:
        raise ValueError("Need either a dataset name or a training file.")
    if args.train_file is not None and args.train_file.split(".")[-1] not in ("csv", "json", "txt"):
        raise ValueError("`train_file` should be csv, json or txt.")
    return args


def evaluate(accelerator, model, loader, batch_size):
    model.eval()
    losses = []
    for batch in loader:
        with torch.no_grad():
            loss = model(**batch).loss
        losses.append(accelerator.gather_for_metrics(loss.repeat(batch_size)))
    return torch.mean(torch.cat(losses))


def main():
    args = parse_args()
    log_with = {"log_with": args.report_to, "project_dir": args.output_dir} if args.with_tracking else {}
    accelerator = Accelerator(gradient_accumulation_steps=args.gradient_accumulation_steps, **log_with)
    logger.info(accelerator.state, main_process_only=False)
    if accelerator.is_local_main_process:
        datasets.utils.logging.set_verbosity_warning()
        transformers.utils.logging.set_verbosity_info()
    else:
        transformers.utils.logging.set_verbosity_error()
    if args.seed is not None:
        set_seed(args.seed)
    if accelerator.is_main_process and args.output_dir is not None:
        os.makedirs(args.output_dir, exist_ok=True)
    accelerator.wait_for_everyone()

    raw = datasets.load_dataset(args.dataset_name) if args.dataset_name else datasets.load_dataset(
        "text", data_files={"train": args.train_file, "validation": args.train_file})
    tokenizer = AutoTokenizer.from_pretrained(args.model_name_or_path)
    model = AutoModelForCausalLM.from_pretrained(args.model_name_or_path)

    def encode(examples):
        out = tokenizer(examples["text"], truncation=True, padding="max_length", max_length=args.block_size)
        out["labels"] = out["input_ids"].copy()
        return out

    with accelerator.main_process_first():
        lm = raw.map(encode, batched=True, remove_columns=raw["train"].column_names)
    for index in random.sample(range(len(lm["train"])), 3):
        logger.info(f"Sample {index} of the training set: {lm['train'][index]}.")

    train_loader = DataLoader(lm["train"], shuffle=True, collate_fn=default_data_collator,
                              batch_size=args.per_device_train_batch_size)
    eval_loader = DataLoader(lm["validation"], collate_fn=default_data_collator,
                             batch_size=args.per_device_train_batch_size)
    no_decay = ["bias", "layer_norm.weight"]
    groups = [
        {"params": [p for n, p in model.named_parameters() if not any(nd in n for nd in no_decay)],
         "weight_decay": args.weight_decay},
        {"params": [p for n, p in model.named_parameters() if any(nd in n for nd in no_decay)], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=args.learning_rate)
    per_epoch = math.ceil(len(train_loader) / args.gradient_accumulation_steps)
    if args.max_train_steps is None:
        args.max_train_steps = args.num_train_epochs * per_epoch
    scheduler = get_scheduler(args.lr_scheduler_type, optimizer=optimizer,
                              num_warmup_steps=args.num_warmup_steps * accelerator.num_processes,
                              num_training_steps=args.max_train_steps * accelerator.num_processes)
    model, optimizer, train_loader, eval_loader, scheduler = accelerator.prepare(
        model, optimizer, train_loader, eval_loader, scheduler)

    if args.with_tracking:
        accelerator.init_trackers("clm_no_trainer", vars(args))
    if args.resume_from_checkpoint:
        accelerator.load_state(args.resume_from_checkpoint)
    bar = tqdm(range(args.max_train_steps), disable=not accelerator.is_local_main_process)
    done = 0
    for epoch in range(args.num_train_epochs):
        model.train()
        for batch in train_loader:
            with accelerator.accumulate(model):
                loss = model(**batch).loss
                accelerator.backward(loss)
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
            if accelerator.sync_gradients:
                bar.update(1)
                done += 1
                if args.checkpointing_steps and args.checkpointing_steps.isdigit():
                    if done % int(args.checkpointing_steps) == 0:
                        accelerator.save_state(os.path.join(args.output_dir or "", f"step_{done}"))
        eval_loss = evaluate(accelerator, model, eval_loader, args.per_device_train_batch_size)
        logger.info(f"epoch {epoch}: perplexity {math.exp(eval_loss)}")
        if args.with_tracking:
            accelerator.log({"eval_loss": eval_loss, "epoch": epoch}, step=done)
        if args.checkpointing_steps == "epoch":
            accelerator.save_state(os.path.join(args.output_dir or "", f"epoch_{epoch}"))

    if args.output_dir is not None:
        accelerator.wait_for_everyone()
        unwrapped = accelerator.unwrap_model(model)
        unwrapped.save_pretrained(args.output_dir, is_main_process=accelerator.is_main_process,
                                  save_function=accelerator.save)
        if accelerator.is_main_process:
            tokenizer.save_pretrained(args.output_dir)
            with open(os.path.join(args.output_dir, "all_results.json"), "w") as f:
                json.dump({"perplexity": math.exp(eval_loss)}, f)
    accelerator.end_training()


if __name__ == "__main__":
    main()
