from pathlib import Path
from typing import Annotated

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import typer
from torch.nn.parallel import DistributedDataParallel as DDP

app = typer.Typer(add_completion=False)


def worker(local: int, per_node: int, node: int, nodes: int, url: str, epochs: int, data: Path):
    rank = node * per_node + local
    dist.init_process_group("nccl", init_method=url, world_size=nodes * per_node, rank=rank)
    torch.cuda.set_device(local)
    blob = torch.load(data / "blob.pt", map_location="cpu")
    model = DDP(torch.nn.Linear(blob.shape[1], 1).cuda(local), device_ids=[local])
    opt = torch.optim.Adam(model.parameters())
    for epoch in range(epochs):
        loss = model(blob.cuda(local)).pow(2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        if rank == 0:
            typer.echo(f"epoch {epoch}: {loss.item()}")
    dist.barrier()
    dist.destroy_process_group()


@app.command()
def main(
    data: Annotated[Path, typer.Option(help="folder with blob.pt")],
    epochs: int = 1,
    init_method: Annotated[str, typer.Option("--init_method")] = "tcp://127.0.0.1:29400",
    world_size: Annotated[int, typer.Option("--world_size")] = 1,
    rank: int = 0,
):
    n = torch.cuda.device_count()
    mp.spawn(worker, args=(n, rank, world_size, init_method, epochs, data), nprocs=n, join=True)


if __name__ == "__main__":
    app()
