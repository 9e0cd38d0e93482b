"""One GPU, started by torchrun like everything here; several processes only if there are several."""
import os

import click
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

WORLD_SIZE = int(os.environ.get("WORLD_SIZE", "1"))


@click.command(context_settings={"show_default": True})
@click.option("--points", type=click.Path(dir_okay=False), default="/data/points.pt")
@click.option("--epochs", "-e", default=10)
@click.option("--lr", default=1e-3)
@click.option("--save/--no-save", default=True)
@click.option("--verbose", "-v", count=True)
@click.option("--hidden", multiple=True, type=int, default=[64, 64])
def main(points, epochs, lr, save, verbose, hidden):
    distributed = WORLD_SIZE > 1
    if distributed:
        local_rank = int(os.environ["LOCAL_RANK"])
        torch.cuda.set_device(local_rank)
        dist.init_process_group("nccl")
        device = torch.device("cuda", local_rank)
    else:
        device = torch.device("cuda:0")

    x, y = torch.load(points, map_location="cpu")
    dataset = TensorDataset(x, y)
    sampler = DistributedSampler(dataset) if distributed else None
    loader = DataLoader(dataset, batch_size=256, shuffle=sampler is None, sampler=sampler)

    sizes = [x.size(1), *hidden, y.size(1)]
    layers = []
    for i, o in zip(sizes, sizes[1:]):
        layers += [torch.nn.Linear(i, o), torch.nn.ReLU()]
    model = torch.nn.Sequential(*layers[:-1]).to(device)
    net = torch.nn.parallel.DistributedDataParallel(model, device_ids=[device.index]) if distributed else model
    optimizer = torch.optim.Adam(net.parameters(), lr=lr)
    for epoch in range(epochs):
        if sampler is not None:
            sampler.set_epoch(epoch)
        for a, b in loader:
            loss = torch.nn.functional.mse_loss(net(a.to(device)), b.to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        if verbose and (not distributed or dist.get_rank() == 0):
            click.echo(f"{epoch} {loss.item():.5f}")
    if save and (not distributed or dist.get_rank() == 0):
        torch.save(model.state_dict(), "/out/regression.pt")
    if distributed:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
