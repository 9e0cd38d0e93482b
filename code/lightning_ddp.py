"""A Lightning training: the Trainer finds torchrun's variables by itself and wraps the model; needs `lightning`."""

import argparse
import os

import lightning
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torch_ddp import ToyModel


class Toy(lightning.LightningModule):
    """Train the toy model of torch_ddp.py."""

    def __init__(self, lr):
        super().__init__()
        self.model, self.lr = ToyModel(), lr

    def training_step(self, batch, index):
        """Return the loss of a batch."""
        inputs, labels = batch
        loss = nn.functional.mse_loss(self.model(inputs), labels)
        print(f"step {self.global_step + 1} loss {loss.item():.6f}", flush=True)
        return loss

    def configure_optimizers(self):
        """Return the optimizer."""
        return torch.optim.SGD(self.parameters(), lr=self.lr)


def main():
    """Train as one process of torchrun."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lr", type=float, default=0.01)
    parser.add_argument("--epochs", type=int, default=2)
    args, _ = parser.parse_known_args()
    lightning.seed_everything(0)
    data = TensorDataset(torch.randn(480, 10), torch.randn(480, 5))
    nproc, world_size = int(os.environ["LOCAL_WORLD_SIZE"]), int(os.environ["WORLD_SIZE"])
    trainer = lightning.Trainer(
        accelerator="gpu" if nproc <= torch.cuda.device_count() else "cpu",
        strategy="ddp",
        devices=nproc,
        num_nodes=world_size // nproc,
        max_epochs=args.epochs,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Toy(args.lr), DataLoader(data, batch_size=10, shuffle=True))  # it puts a DistributedSampler in
    assert trainer.world_size == world_size
    print(f"rank {trainer.global_rank} of {trainer.world_size} did {trainer.global_step} steps", flush=True)


if __name__ == "__main__":
    main()
