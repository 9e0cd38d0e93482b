import glob
import os

import click
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset, DistributedSampler

from preprocess import encode


class Bytes(Dataset):
    def __init__(self, pattern, length):
        self.tokens = torch.cat([torch.load(name, map_location="cpu") for name in sorted(glob.glob(pattern))])
        self.length = length

    def __len__(self):
        return (len(self.tokens) - 1) // self.length

    def __getitem__(self, i):
        part = self.tokens[i * self.length: (i + 1) * self.length + 1].long()
        return part[:-1], part[1:]


class CharRNN(nn.Module):
    def __init__(self, kind, dim):
        super().__init__()
        self.embed = nn.Embedding(256, dim)
        self.rnn = {"gru": nn.GRU, "lstm": nn.LSTM}[kind](dim, dim, num_layers=2, batch_first=True)
        self.out = nn.Linear(dim, 256)

    def forward(self, x):
        return self.out(self.rnn(self.embed(x))[0])


@torch.no_grad()
def sample(model, device, prompt="The ", count=80):
    x = encode(prompt).long().unsqueeze(0).to(device)
    for _ in range(count):
        x = torch.cat([x, model(x)[:, -1:].softmax(-1).argmax(-1)], 1)
    return bytes(x[0].tolist()).decode("utf-8", "replace")


@click.command(help="Train a character model.")
@click.argument("pattern")
@click.option("-o", "--out", "output", type=click.Path(file_okay=False), default="/out", show_default=True)
@click.option("--kind", type=click.Choice(["gru", "lstm"]), default="gru")
@click.option("--dim", type=int, default=256)
@click.option("--length", type=click.IntRange(8, 4096), default=128)
@click.option("--batch_size", type=int, default=32)
@click.option("--epochs", type=int, required=True)
@click.option("--lr", type=float, default=1e-3)
@click.option("--show-samples", is_flag=True)
@click.option("--compile/--no-compile", "compile_", default=False)
def train(pattern, output, kind, dim, length, batch_size, epochs, lr, show_samples, compile_):
    local_rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local_rank)
    device = torch.device("cuda", local_rank)
    dist.init_process_group("nccl")
    model = CharRNN(kind, dim).to(device)
    net = DDP(torch.compile(model) if compile_ else model, device_ids=[local_rank])
    optimizer = torch.optim.Adam(net.parameters(), lr=lr)
    dataset = Bytes(pattern, length)
    sampler = DistributedSampler(dataset)
    loader = DataLoader(dataset, batch_size=batch_size, sampler=sampler)
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        for x, y in loader:
            loss = nn.functional.cross_entropy(net(x.to(device)).flatten(0, 1), y.to(device).flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        if dist.get_rank() == 0:
            click.echo(f"epoch {epoch}: {loss.item():.3f}")
            if show_samples:
                click.echo(sample(model, device))
            torch.save(model.state_dict(), os.path.join(output, f"{kind}{epoch}.pt"))
    dist.destroy_process_group()


if __name__ == "__main__":
    train()
