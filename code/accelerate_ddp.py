"""An Accelerate training, started by torchrun instead of `accelerate launch`; needs `accelerate`."""

import argparse
import os

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torch_ddp import ToyModel, finish


def main():
    """Train as one process of torchrun."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lr", type=float, default=0.01)
    parser.add_argument("--epochs", type=int, default=2)
    args, _ = parser.parse_known_args()
    accelerator = Accelerator(cpu=int(os.environ["LOCAL_WORLD_SIZE"]) > torch.cuda.device_count())
    torch.manual_seed(0)
    model = ToyModel()
    data = TensorDataset(torch.randn(480, 10), torch.randn(480, 5))
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr)
    # It wraps the model in DistributedDataParallel, and has the loader give each process another part.
    model, optimizer, loader = accelerator.prepare(model, optimizer, DataLoader(data, batch_size=10, shuffle=True))
    step = 0
    for _ in range(args.epochs):
        for inputs, labels in loader:
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(inputs), labels)
            accelerator.backward(loss)
            optimizer.step()
            step += 1
            print(f"step {step} loss {accelerator.reduce(loss.detach(), 'mean').item():.6f}", flush=True)
    print(f"rank {accelerator.process_index} of {accelerator.num_processes} did {step} steps", flush=True)
    finish()


if __name__ == "__main__":
    main()
