import os

import click
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP


@click.group(invoke_without_command=True)
@click.option("--epochs", type=int, default=1, show_default=True)
@click.option("--batch-size", type=click.IntRange(1), default=32)
@click.option("--lr", type=float, default=1e-3)
@click.option("--amp/--no-amp", default=False)
@click.pass_context
def cli(ctx, epochs, batch_size, lr, amp):
    """Train a small model."""
    local_rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local_rank)
    dist.init_process_group("nccl")
    try:
        run(epochs, batch_size, lr, amp, torch.device("cuda", local_rank))
    finally:
        dist.destroy_process_group()


def run(epochs, batch_size, lr, amp, device):
    model = DDP(torch.nn.Linear(32, 4).to(device), device_ids=[device.index])
    opt = torch.optim.SGD(model.parameters(), lr=lr)
    for epoch in range(epochs):
        x = torch.randn(batch_size, 32, device=device)
        y = torch.randint(0, 4, (batch_size,), device=device)
        with torch.autocast("cuda", enabled=amp):
            loss = F.cross_entropy(model(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        if dist.get_rank() == 0:
            click.echo(f"{epoch} {loss.item():.4f}")


if __name__ == "__main__":
    cli(auto_envvar_prefix="TRAIN")
