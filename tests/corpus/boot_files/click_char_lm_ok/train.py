import contextlib
import os
import time

import click
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

from lm.data import Windows, read_tokens
from lm.model import GPT, GPTConfig

ACTIVATIONS = ["gelu", "relu", "swiglu"]


def get_dist_info():
    return int(os.environ["RANK"]), int(os.environ["LOCAL_RANK"]), int(os.environ["WORLD_SIZE"])


def estimate(model, loader, device, iters):
    model.eval()
    total = torch.zeros((), device=device)
    with torch.no_grad():
        for k, (x, y) in enumerate(loader):
            if k == iters:
                break
            total += model(x.to(device), y.to(device))
    dist.all_reduce(total)
    model.train()
    return total.item() / (min(iters, len(loader)) * dist.get_world_size())


@click.command(context_settings={"show_default": True})
@click.option("--data", "data_dir", type=click.Path(), required=True, help="folder with train.bin and val.bin")
@click.option("--out", "out_dir", type=click.Path(file_okay=False), default="out")
@click.option("--n-layer", type=click.IntRange(min=1), default=12)
@click.option("--n-embd", type=int, default=768)
@click.option("--block-size", type=int, default=1024)
@click.option("--activation", type=click.Choice(ACTIVATIONS), default="gelu")
@click.option("--batch-size", "-b", type=int, default=12)
@click.option("--grad-accum", type=int, default=4)
@click.option("--lr", type=float, default=6e-4)
@click.option("--epochs", type=int, default=1)
@click.option("--compile/--no-compile", "use_compile", default=True)
@click.option("--resume", is_flag=True, help="go on from OUT/ckpt.pt")
@click.option("--eval-iters", type=int, default=50)
def main(data_dir, out_dir, n_layer, n_embd, block_size, activation, batch_size, grad_accum, lr, epochs, use_compile,
         resume, eval_iters):
    rank, local_rank, world_size = get_dist_info()
    device = f"cuda:{local_rank}"
    torch.cuda.set_device(device)
    dist.init_process_group(backend="nccl")
    master_process = rank == 0
    if master_process:
        os.makedirs(out_dir, exist_ok=True)
    torch.manual_seed(1337 + rank)
    torch.backends.cuda.matmul.allow_tf32 = True

    train_set = Windows(read_tokens(os.path.join(data_dir, "train.bin")), block_size)
    val_set = Windows(read_tokens(os.path.join(data_dir, "val.bin")), block_size)
    train_sampler = DistributedSampler(train_set, shuffle=True, drop_last=True)
    train_loader = DataLoader(train_set, batch_size=batch_size, sampler=train_sampler, pin_memory=True, num_workers=2)
    val_loader = DataLoader(val_set, batch_size=batch_size, sampler=DistributedSampler(val_set, shuffle=False))

    config = GPTConfig(n_layer=n_layer, n_embd=n_embd, block_size=block_size, activation=activation)
    model = GPT(config).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
    start_epoch = 0
    if resume:
        ckpt = torch.load(os.path.join(out_dir, "ckpt.pt"), map_location=device)
        model.load_state_dict(ckpt["model"])
        optimizer.load_state_dict(ckpt["optimizer"])
        start_epoch = ckpt["epoch"] + 1
    raw_model = model
    if use_compile:
        model = torch.compile(model)
    model = DDP(model, device_ids=[local_rank])
    if master_process:
        click.echo(f"{sum(p.numel() for p in raw_model.parameters()) / 1e6:.1f}M parameters, {world_size} processes")

    for epoch in range(start_epoch, epochs):
        train_sampler.set_epoch(epoch)
        t0 = time.time()
        for step, (x, y) in enumerate(train_loader):
            x, y = x.to(device, non_blocking=True), y.to(device, non_blocking=True)
            last = (step + 1) % grad_accum == 0
            with contextlib.nullcontext() if last else model.no_sync():
                with torch.autocast("cuda", dtype=torch.bfloat16):
                    loss = model(x, y) / grad_accum
                loss.backward()
            if last:
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad(set_to_none=True)
                if master_process and (step + 1) % (10 * grad_accum) == 0:
                    click.echo(f"step {step + 1}: loss {loss.item() * grad_accum:.4f}, {time.time() - t0:.1f}s")
        val_loss = estimate(model, val_loader, device, eval_iters)
        if master_process:
            click.secho(f"epoch {epoch}: val loss {val_loss:.4f}", fg="green")
            torch.save({"model": raw_model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch},
                       os.path.join(out_dir, "ckpt.pt"))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
