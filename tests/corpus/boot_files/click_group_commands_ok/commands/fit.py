import click
import torch
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, RandomSampler, TensorDataset

from .common import Env


@click.command()
@click.option("--data", required=True, type=click.Path())
@click.option("--epochs", type=int, default=3)
@click.option("--lr", type=float, default=0.05)
@click.option("--optimizer", type=click.Choice(["sgd", "adam"], case_sensitive=False), default="sgd")
@click.pass_obj
def fit(settings, data, epochs, lr, optimizer):
    """Fit a linear probe."""
    with Env() as env:
        features, labels = torch.load(data, map_location="cpu")
        dataset = TensorDataset(features, labels)
        sampler = DistributedSampler(dataset) if env.world_size > 1 else RandomSampler(dataset)
        loader = DataLoader(dataset, batch_size=settings["batch_size"], sampler=sampler)
        model = torch.nn.Linear(features.size(1), int(labels.max()) + 1).to(env.device)
        if env.world_size > 1:
            model = DistributedDataParallel(model, device_ids=[env.local_rank])
        cls = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam}[optimizer.lower()]
        opt = cls(model.parameters(), lr=lr)
        for epoch in range(epochs):
            if env.world_size > 1:
                sampler.set_epoch(epoch)
            for x, y in loader:
                loss = torch.nn.functional.cross_entropy(model(x.to(env.device)), y.to(env.device))
                opt.zero_grad()
                loss.backward()
                opt.step()
            shown = env.mean(loss.detach().clone())
            if env.is_main:
                click.echo(f"{epoch}: {shown.item():.4f}")
        if env.is_main:
            torch.save(model.state_dict(), settings["output"])
