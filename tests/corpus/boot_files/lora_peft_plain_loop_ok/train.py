import argparse
import json
import logging
import os
from contextlib import nullcontext

import torch
import torch.distributed as dist
from peft import LoraConfig, TaskType, get_peft_model, prepare_model_for_kbit_training
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler
from transformers import AutoModelForCausalLM, AutoTokenizer, BitsAndBytesConfig

logger = logging.getLogger(__name__)


class InstructionSet(Dataset):
    def __init__(self, path, tokenizer, max_len):
        with open(path, encoding="utf-8") as f:
            self.rows = [json.loads(line) for line in f]
        self.tokenizer, self.max_len = tokenizer, max_len

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        row = self.rows[i]
        text = f"### Instruction:\n{row['instruction']}\n\n### Response:\n{row['output']}"
        ids = self.tokenizer(text, truncation=True, max_length=self.max_len, padding="max_length", return_tensors="pt")
        return {k: v[0] for k, v in ids.items()}


def add_lora_args(parser):
    lora = parser.add_argument_group("lora", "the low rank adapters")
    lora.add_argument("--lora-r", type=int, default=8)
    lora.add_argument("--lora-alpha", type=int, default=16)
    lora.add_argument("--lora-dropout", type=float, default=0.05)
    lora.add_argument("--target-modules", nargs="*", default=["q_proj", "v_proj"])
    bits = lora.add_mutually_exclusive_group()
    bits.add_argument("--load-in-4bit", action="store_const", dest="bits", const=4)
    bits.add_argument("--load-in-8bit", action="store_const", dest="bits", const=8)
    parser.set_defaults(bits=16)


def get_args():
    parser = argparse.ArgumentParser()
    parser.add_argument("base_model", help="path or name on the hub")
    parser.add_argument("--data", required=True)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--lr", type=float, default=3e-4)
    parser.add_argument("--micro-batch-size", type=int, default=4)
    parser.add_argument("--grad-accum", type=int, default=8)
    parser.add_argument("--cutoff-len", type=int, default=512)
    parser.add_argument("--output", default="lora-out")
    add_lora_args(parser)
    return parser.parse_args()


def load_base(args, local_rank):
    quant = None
    if args.bits == 4:
        quant = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_compute_dtype=torch.bfloat16)
    elif args.bits == 8:
        quant = BitsAndBytesConfig(load_in_8bit=True)
    # the whole model on this process' own GPU
    device_map = {"": local_rank}
    model = AutoModelForCausalLM.from_pretrained(
        args.base_model, quantization_config=quant, device_map=device_map, torch_dtype=torch.bfloat16
    )
    if quant is not None:
        model = prepare_model_for_kbit_training(model)
    return model


def main():
    args = get_args()
    local_rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local_rank)
    dist.init_process_group("nccl", device_id=torch.device("cuda", local_rank))
    logging.basicConfig(level=logging.INFO if dist.get_rank() == 0 else logging.WARNING)

    tokenizer = AutoTokenizer.from_pretrained(args.base_model)
    tokenizer.pad_token = tokenizer.eos_token
    config = LoraConfig(
        r=args.lora_r, lora_alpha=args.lora_alpha, lora_dropout=args.lora_dropout,
        target_modules=args.target_modules, task_type=TaskType.CAUSAL_LM,
    )
    model = get_peft_model(load_base(args, local_rank), config)
    if dist.get_rank() == 0:
        model.print_trainable_parameters()
    model = DistributedDataParallel(model, device_ids=[local_rank])

    data = InstructionSet(args.data, tokenizer, args.cutoff_len)
    sampler = DistributedSampler(data, shuffle=True, seed=42)
    loader = DataLoader(data, args.micro_batch_size, sampler=sampler, drop_last=True, num_workers=2)
    optimizer = torch.optim.AdamW((p for p in model.parameters() if p.requires_grad), lr=args.lr)
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        for step, batch in enumerate(loader, start=1):
            batch = {k: v.to(local_rank) for k, v in batch.items()}
            sync = step % args.grad_accum == 0
            with nullcontext() if sync else model.no_sync():
                loss = model(**batch, labels=batch["input_ids"]).loss / args.grad_accum
                loss.backward()
            if sync:
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad(set_to_none=True)
        mean = loss.detach().clone()
        dist.all_reduce(mean, op=dist.ReduceOp.AVG)
        logger.info("epoch %d: %.4f", epoch, mean.item() * args.grad_accum)
        if dist.get_rank() == 0:
            model.module.save_pretrained(os.path.join(args.output, f"epoch_{epoch}"))
        dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
