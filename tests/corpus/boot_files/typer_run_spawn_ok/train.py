"""Matrix factorization; one process per GPU, started here."""
from typing import Annotated

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import typer
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


class Factors(nn.Module):
    def __init__(self, users, items, dim):
        super().__init__()
        self.users, self.items = nn.Embedding(users, dim), nn.Embedding(items, dim)

    def forward(self, user, item):
        return (self.users(user) * self.items(item)).sum(-1)


def worker(gpu: int, gpus: int, node: int, nodes: int, url: str, settings: dict):
    rank, world = node * gpus + gpu, nodes * gpus
    torch.cuda.set_device(gpu)
    dist.init_process_group(backend="nccl", init_method=url, rank=rank, world_size=world)
    users, items, stars = torch.load(settings["ratings"], map_location="cpu")
    data = TensorDataset(users, items, stars.float())
    sampler = DistributedSampler(data, num_replicas=world, rank=rank)
    loader = DataLoader(data, batch_size=settings["batch_size"], sampler=sampler, num_workers=2)
    net = Factors(int(users.max()) + 1, int(items.max()) + 1, settings["dim"]).cuda(gpu)
    model = DDP(net, device_ids=[gpu])
    optimizer = torch.optim.Adam(model.parameters(), lr=settings["lr"])
    for epoch in range(settings["epochs"]):
        sampler.set_epoch(epoch)
        for user, item, star in loader:
            loss = nn.functional.mse_loss(model(user.cuda(gpu), item.cuda(gpu)), star.cuda(gpu))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        if rank == 0:
            print(f"epoch {epoch}: rmse {loss.sqrt().item():.3f}", flush=True)
    if rank == 0:
        torch.save(net.state_dict(), settings["output"])
    dist.destroy_process_group()


def main(
    ratings: Annotated[str, typer.Option()],
    output: str = "/out/factors.pt",
    dim: int = 64,
    epochs: int = 10,
    batch_size: Annotated[int, typer.Option("--batch_size", "--batch-size")] = 8192,
    lr: float = 1e-2,
    init_method: Annotated[str, typer.Option("--init_method")] = "tcp://127.0.0.1:29512",
    world_size: Annotated[int, typer.Option("--world_size", help="nodes")] = 1,
    rank: Annotated[int, typer.Option(help="this node")] = 0,
):
    gpus = torch.cuda.device_count()
    settings = {"ratings": ratings, "output": output, "dim": dim, "epochs": epochs, "batch_size": batch_size, "lr": lr}
    mp.spawn(worker, args=(gpus, rank, world_size, init_method, settings), nprocs=gpus)


if __name__ == "__main__":
    typer.run(main)
