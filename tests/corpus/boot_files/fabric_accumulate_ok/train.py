"""A loop of one's own on Lightning Fabric, with gradient accumulation."""
import argparse
import os
from pathlib import Path

import torch
import torch.nn.functional as F
from lightning.fabric import Fabric
from lightning.fabric.loggers import TensorBoardLogger
from torch.utils.data import DataLoader, TensorDataset


class Encoder(torch.nn.Module):
    def __init__(self, vocabulary, dim):
        super().__init__()
        self.embed = torch.nn.Embedding(vocabulary, dim)
        layer = torch.nn.TransformerEncoderLayer(dim, 8, batch_first=True)
        self.body = torch.nn.TransformerEncoder(layer, 6)
        self.head = torch.nn.Linear(dim, vocabulary)

    def forward(self, tokens):
        return self.head(self.body(self.embed(tokens)))


def build_fabric(args):
    per_node = int(os.environ["LOCAL_WORLD_SIZE"])
    nodes = int(os.environ["WORLD_SIZE"]) // per_node
    return Fabric(accelerator="cuda", devices=per_node, num_nodes=nodes, strategy="ddp",
                  precision=args.precision, loggers=TensorBoardLogger(args.out))


@torch.no_grad()
def validate(fabric, model, loader):
    model.eval()
    total = torch.zeros((), device=fabric.device)
    for tokens, target in loader:
        total += F.cross_entropy(model(tokens).flatten(0, 1), target.flatten())
    mean = fabric.all_reduce(total / max(len(loader), 1), reduce_op="mean")
    model.train()
    return mean.item()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, default=Path("/out/fabric"))
    parser.add_argument("--precision", choices=["32-true", "bf16-mixed", "16-mixed"], default="bf16-mixed")
    parser.add_argument("--accumulate", type=int, default=4)
    parser.add_argument("--micro-batch", type=int, default=8)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--lr", type=float, default=3e-4)
    parser.add_argument("tokens", type=Path)
    args = parser.parse_args()

    fabric = build_fabric(args)
    fabric.launch()
    fabric.seed_everything(3 + fabric.global_rank)

    tokens = torch.load(args.tokens, map_location="cpu")
    train = TensorDataset(tokens[256:, :-1], tokens[256:, 1:])
    val = TensorDataset(tokens[:256, :-1], tokens[:256, 1:])
    train_loader, val_loader = fabric.setup_dataloaders(
        DataLoader(train, batch_size=args.micro_batch, shuffle=True, drop_last=True),
        DataLoader(val, batch_size=args.micro_batch),
    )
    with fabric.init_module():
        model = Encoder(32000, 512)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    model, optimizer = fabric.setup(model, optimizer)

    state = {"model": model, "optimizer": optimizer, "epoch": 0}
    checkpoint = args.out / "last.ckpt"
    if checkpoint.exists():
        fabric.load(checkpoint, state)
    for epoch in range(state["epoch"], args.epochs):
        for step, (x, y) in enumerate(train_loader):
            waits = (step + 1) % args.accumulate != 0
            with fabric.no_backward_sync(model, enabled=waits):
                loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten())
                fabric.backward(loss / args.accumulate)
            if not waits:
                fabric.clip_gradients(model, optimizer, max_norm=1.0)
                optimizer.step()
                optimizer.zero_grad()
            if fabric.is_global_zero and step % 50 == 0:
                fabric.log("loss", loss.item(), step)
        score = validate(fabric, model, val_loader)
        fabric.print(f"epoch {epoch}: {score:.3f}")
        state["epoch"] = epoch + 1
        fabric.save(checkpoint, state)
    fabric.barrier()
    if fabric.is_global_zero:
        (args.out / "DONE").touch()


if __name__ == "__main__":
    main()
