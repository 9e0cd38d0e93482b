"""A parameter server by RPC: rank 0 keeps the parameters, the others fetch them, and send their gradients, at any time.

No rank waits for another one, so a slow one slows nobody, and gradients may be of parameters that have changed since.
Where all processes are equally fast, DistributedDataParallel is the better choice.
"""

import argparse
import os
from threading import Lock

import torch
from torch import nn
from torch.distributed import rpc
from torch_ddp import ToyModel

SERVER = "server"


class Parameters:
    """Keep the parameters of a model, on the server."""

    def __init__(self, lr):
        torch.manual_seed(0)
        self.model, self.lock, self.updates = ToyModel(), Lock(), 0
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=lr)

    def fetch(self):
        """Return the parameters as they are now."""
        with self.lock:
            return [parameter.detach().clone() for parameter in self.model.parameters()]

    def push(self, gradients):
        """Take a step along the gradients of one trainer; return how many steps there were."""
        with self.lock:
            for parameter, gradient in zip(self.model.parameters(), gradients):
                parameter.grad = gradient
            self.optimizer.step()
            self.updates += 1
            return self.updates


def train(rank, server, args):
    """Train as one trainer: fetch, compute, push."""
    model = ToyModel()
    data = torch.Generator().manual_seed(rank)  # other inputs on every rank, of one and the same task
    first = loss = None
    for step in range(1, args.steps + 1):
        for parameter, value in zip(model.parameters(), server.rpc_sync().fetch()):
            parameter.data.copy_(value)
        inputs = torch.randn(args.batch, 10, generator=data)
        model.zero_grad()
        loss = nn.functional.mse_loss(model(inputs), inputs[:, :5])
        loss.backward()
        updates = server.rpc_sync().push([parameter.grad for parameter in model.parameters()])
        first = first or loss.item()
        if step % 50 == 0:
            print(f"step {step} loss {loss.item():.4f}, update {updates} of the server", flush=True)
    assert loss.item() < first, "the trainers must learn something together"
    print(f"rank {rank}: loss {first:.4f} before, {loss.item():.4f} after", flush=True)


_making = Lock()
_kept = []  # on the server: the one set of parameters


def shared_parameters(lr):
    """Return a reference to the parameters, on the server; the first trainer that asks has them made."""
    with _making:
        if not _kept:
            _kept.append(Parameters(lr))
    return rpc.RRef(_kept[0])


def main():
    """Serve as rank 0 of torchrun, train as the others; all leave together, when the last trainer is done."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--batch", type=int, default=20)
    args, _ = parser.parse_known_args()
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    rpc.init_rpc(SERVER if rank == 0 else f"trainer_{rank}", rank=rank, world_size=world_size)
    if rank != 0:
        train(rank, rpc.rpc_sync(SERVER, shared_parameters, args=(args.lr,)), args)
    rpc.shutdown()
    for parameters in _kept:
        print(f"rank {rank} of {world_size} served {parameters.updates} updates", flush=True)


if __name__ == "__main__":
    main()
