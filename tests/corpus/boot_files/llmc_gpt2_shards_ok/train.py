"""Reference training of GPT-2, to compare with the C version."""
import os
import glob
import math
import argparse
from contextlib import nullcontext

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
import torch.distributed as dist
from torch.distributed import init_process_group, destroy_process_group
from torch.distributed.optim import ZeroRedundantOptimizer
from torch.nn.parallel import DistributedDataParallel as DDP


def print0(*args, **kwargs):
    # only the master prints; without torchrun RANK is not set and we print
    if int(os.environ.get("RANK", 0)) == 0:
        print(*args, **kwargs)


class TinyGPT(nn.Module):
    def __init__(self, vocab, width, depth):
        super().__init__()
        self.wte = nn.Embedding(vocab, width)
        self.blocks = nn.ModuleList([nn.TransformerEncoderLayer(width, 8, batch_first=True) for _ in range(depth)])
        self.head = nn.Linear(width, vocab, bias=False)

    def forward(self, idx, targets=None):
        x = self.wte(idx)
        mask = nn.Transformer.generate_square_subsequent_mask(idx.size(1), device=idx.device)
        for block in self.blocks:
            x = block(x, src_mask=mask, is_causal=True)
        logits = self.head(x)
        loss = None if targets is None else F.cross_entropy(logits.flatten(0, 1), targets.flatten())
        return logits, loss


def _load_data_shard(filename):
    with open(filename, "rb") as f:
        header = np.frombuffer(f.read(256 * 4), dtype=np.int32)
        assert header[0] == 20240520, "magic number mismatch in the data .bin file"
        tokens = np.frombuffer(f.read(), dtype=np.uint16)
    assert len(tokens) == header[2], "number of tokens read does not match header?"
    return tokens


class DistributedDataLoader:
    def __init__(self, filename_pattern, B, T, process_rank, num_processes):
        self.process_rank = process_rank
        self.num_processes = num_processes
        self.B, self.T = B, T
        self.files = sorted(glob.glob(filename_pattern))
        assert len(self.files) > 0, f"did not find any files that match the pattern {filename_pattern}"
        self.reset()

    def reset(self):
        self.current_shard = 0
        self.tokens = _load_data_shard(self.files[0])
        self.current_position = self.process_rank * self.B * self.T

    def advance(self):
        self.current_shard = (self.current_shard + 1) % len(self.files)
        self.current_position = self.process_rank * self.B * self.T
        self.tokens = _load_data_shard(self.files[self.current_shard])

    def next_batch(self):
        B, T = self.B, self.T
        buf = self.tokens[self.current_position:self.current_position + B * T + 1]
        buf = torch.tensor(buf.astype(np.int32), dtype=torch.long)
        x, y = buf[:-1].view(B, T), buf[1:].view(B, T)
        self.current_position += B * T * self.num_processes
        if self.current_position + (B * T * self.num_processes + 1) > len(self.tokens):
            self.advance()
        return x, y


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--input_bin", type=str, required=True, help="input .bin to train on")
    parser.add_argument("--input_val_bin", type=str, default="", help="input .bin to eval validation loss on")
    parser.add_argument("--output_dir", type=str, default="", help="output directory for logs")
    parser.add_argument("--model", type=str, default="d12", choices=["d12", "d24", "d36"])
    parser.add_argument("--batch_size", type=int, default=4)
    parser.add_argument("--sequence_length", type=int, default=64)
    parser.add_argument("--total_batch_size", type=int, default=65536, help="in tokens")
    parser.add_argument("--num_iterations", type=int, default=10)
    parser.add_argument("--learning_rate", type=float, default=1e-4)
    parser.add_argument("--warmup_iters", type=int, default=0)
    parser.add_argument("--weight_decay", type=float, default=0.0)
    parser.add_argument("--grad_clip", type=float, default=1.0)
    parser.add_argument("--val_loss_every", type=int, default=0)
    parser.add_argument("--val_max_steps", type=int, default=20)
    parser.add_argument("--tensorcores", type=int, default=0, help="use tensorcores")
    parser.add_argument("--device", type=str, default="", help="by default we autodetect")
    parser.add_argument("--compile", type=int, default=0)
    parser.add_argument("--dtype", type=str, default="float32", choices=("float32", "float16", "bfloat16"))
    parser.add_argument("--zero_stage", type=int, default=0, choices=(0, 1))
    args = parser.parse_args()

    B, T = args.batch_size, args.sequence_length
    ddp = int(os.environ.get('RANK', -1)) != -1
    if ddp:
        assert torch.cuda.is_available(), "for now i think we need CUDA for DDP"
        init_process_group(backend='nccl')
        ddp_rank = int(os.environ['RANK'])
        ddp_local_rank = int(os.environ['LOCAL_RANK'])
        ddp_world_size = int(os.environ['WORLD_SIZE'])
        device = f'cuda:{ddp_local_rank}'
        torch.cuda.set_device(device)
        master_process = ddp_rank == 0
        zero_stage = args.zero_stage
    else:
        ddp_rank, ddp_local_rank, ddp_world_size = 0, 0, 1
        zero_stage = 0
        master_process = True
        device = args.device or ("cuda" if torch.cuda.is_available() else "cpu")
    device_type = 'cuda' if 'cuda' in device else 'cpu'
    print0(f"using device: {device}")

    tokens_per_fwdbwd = B * T * ddp_world_size
    assert args.total_batch_size % tokens_per_fwdbwd == 0
    grad_accum_steps = args.total_batch_size // tokens_per_fwdbwd
    ptdtype = {'float32': torch.float32, 'bfloat16': torch.bfloat16, 'float16': torch.float16}[args.dtype]
    ctx = torch.amp.autocast(device_type=device_type, dtype=ptdtype) if device_type == "cuda" else nullcontext()
    torch.manual_seed(42)
    if args.tensorcores:
        torch.set_float32_matmul_precision('high')

    depth, width = {"d12": (12, 768), "d24": (24, 1024), "d36": (36, 1280)}[args.model]
    model = TinyGPT(50304, width, depth).to(device)
    if args.compile:
        model = torch.compile(model)
    train_loader = DistributedDataLoader(args.input_bin, B, T, ddp_rank, ddp_world_size)
    val_loader = None
    if args.input_val_bin:
        val_loader = DistributedDataLoader(args.input_val_bin, B, T, ddp_rank, ddp_world_size)
    if ddp:
        model = DDP(model, device_ids=[ddp_local_rank])
    raw_model = model.module if ddp else model
    if zero_stage == 1:
        optimizer = ZeroRedundantOptimizer(raw_model.parameters(), optimizer_class=torch.optim.AdamW,
                                           lr=args.learning_rate, weight_decay=args.weight_decay)
    else:
        optimizer = torch.optim.AdamW(raw_model.parameters(), lr=args.learning_rate, weight_decay=args.weight_decay)

    def get_lr(it):
        if it < args.warmup_iters:
            return args.learning_rate * (it + 1) / args.warmup_iters
        ratio = (it - args.warmup_iters) / max(1, args.num_iterations - args.warmup_iters)
        return args.learning_rate * 0.5 * (1.0 + math.cos(math.pi * ratio))

    logfile = None
    if args.output_dir and master_process:
        os.makedirs(args.output_dir, exist_ok=True)
        logfile = os.path.join(args.output_dir, "main.log")

    for step in range(args.num_iterations + 1):
        last_step = step == args.num_iterations
        if args.val_loss_every > 0 and val_loader and (step % args.val_loss_every == 0 or last_step):
            model.eval()
            val_loader.reset()
            with torch.no_grad():
                val_loss = torch.zeros((), device=device)
                for _ in range(args.val_max_steps):
                    x, y = val_loader.next_batch()
                    _, loss = raw_model(x.to(device), y.to(device))
                    val_loss += loss / args.val_max_steps
            if ddp:
                dist.all_reduce(val_loss, op=dist.ReduceOp.AVG)
            print0(f"val loss {val_loss.item()}")
        if last_step:
            break
        model.train()
        optimizer.zero_grad(set_to_none=True)
        lossf = torch.zeros((), device=device)
        for micro_step in range(grad_accum_steps):
            x, y = train_loader.next_batch()
            x, y = x.to(device), y.to(device)
            if ddp:
                model.require_backward_grad_sync = (micro_step == grad_accum_steps - 1)
            with ctx:
                _, loss = model(x, y)
                loss = loss / grad_accum_steps
                lossf += loss.detach()
            loss.backward()
        if ddp:
            dist.all_reduce(lossf, op=dist.ReduceOp.AVG)
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), args.grad_clip)
        for param_group in optimizer.param_groups:
            param_group['lr'] = get_lr(step)
        optimizer.step()
        print0(f"step {step + 1:4d}/{args.num_iterations} | train loss {lossf.item():.6f} | norm {norm:.4f}")
        if master_process and logfile is not None:
            with open(logfile, "a") as f:
                f.write("s:%d trl:%f\n" % (step, lossf.item()))
    if ddp:
        destroy_process_group()
