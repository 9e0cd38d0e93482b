import argparse
import os

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch.optim import AdamW
from torch.utils.data import DataLoader
from datasets import load_dataset
from transformers import AutoModelForSequenceClassification, AutoTokenizer, get_linear_schedule_with_warmup

MAX_GPU_BATCH_SIZE = 16
EVAL_BATCH_SIZE = 32


def get_dataloaders(accelerator, batch_size):
    tokenizer = AutoTokenizer.from_pretrained("bert-base-cased")
    ds = load_dataset("glue", "mrpc")

    def tok(ex):
        return tokenizer(ex["sentence1"], ex["sentence2"], truncation=True, max_length=None)

    with accelerator.main_process_first():
        tokenized = ds.map(tok, batched=True, remove_columns=["idx", "sentence1", "sentence2"])
    tokenized = tokenized.rename_column("label", "labels")

    def collate(examples):
        return tokenizer.pad(examples, padding="longest", return_tensors="pt")

    return (DataLoader(tokenized["train"], shuffle=True, collate_fn=collate, batch_size=batch_size, drop_last=True),
            DataLoader(tokenized["validation"], shuffle=False, collate_fn=collate, batch_size=EVAL_BATCH_SIZE))


def training_function(config, args):
    accelerator = Accelerator(cpu=args.cpu, mixed_precision=args.mixed_precision)
    set_seed(config["seed"])
    train_dl, eval_dl = get_dataloaders(accelerator, config["batch_size"])
    model = AutoModelForSequenceClassification.from_pretrained("bert-base-cased", return_dict=True)
    optimizer = AdamW(params=model.parameters(), lr=config["lr"])
    sched = get_linear_schedule_with_warmup(optimizer, 100, len(train_dl) * args.num_epochs)
    model, optimizer, train_dl, eval_dl, sched = accelerator.prepare(model, optimizer, train_dl, eval_dl, sched)
    for epoch in range(args.num_epochs):
        model.train()
        for batch in train_dl:
            loss = model(**batch).loss
            accelerator.backward(loss)
            optimizer.step()
            sched.step()
            optimizer.zero_grad()
        right = torch.zeros(1, device=accelerator.device)
        model.eval()
        for batch in eval_dl:
            with torch.no_grad():
                preds = model(**batch).logits.argmax(-1)
            preds, refs = accelerator.gather_for_metrics((preds, batch["labels"]))
            right += (preds == refs).sum()
        accelerator.print(f"epoch {epoch}: {right.item()}")
        if args.checkpointing_steps == "epoch":
            accelerator.save_state(os.path.join(args.output_dir, f"epoch_{epoch}"))
    accelerator.end_training()


def main():
    parser = argparse.ArgumentParser(description="Simple example of training script.")
    parser.add_argument("--mixed_precision", type=str, default=None, choices=["no", "fp16", "bf16", "fp8"])
    parser.add_argument("--cpu", action="store_true", help="If passed, will train on the CPU.")
    parser.add_argument("--checkpointing_steps", type=str, default=None)
    parser.add_argument("--num_epochs", type=int, default=3)
    parser.add_argument("--output_dir", type=str, default=".")
    args = parser.parse_args()
    training_function({"lr": 2e-5, "seed": 42, "batch_size": MAX_GPU_BATCH_SIZE}, args)


if __name__ == "__main__":
    main()
