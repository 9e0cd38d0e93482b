"""A parameter server and its trainers over RPC, on CPUs: rank 0 serves, the others train."""
import argparse
import os
from threading import Lock

import torch
import torch.distributed.autograd as dist_autograd
import torch.distributed.rpc as rpc
import torch.nn as nn
import torch.nn.functional as F
from torch.distributed.optim import DistributedOptimizer
from torchvision import datasets, transforms


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 16, 3)
        self.fc = nn.Linear(16 * 13 * 13, 10)

    def forward(self, x):
        return F.log_softmax(self.fc(F.max_pool2d(F.relu(self.conv(x)), 2).flatten(1)), dim=1)


class ParameterServer(nn.Module):
    def __init__(self):
        super().__init__()
        self.model = Net()

    def forward(self, inp):
        return self.model(inp)

    def get_dist_gradients(self, cid):
        return {k.cpu(): v.cpu() for k, v in dist_autograd.get_gradients(cid).items()}

    def get_param_rrefs(self):
        return [rpc.RRef(param) for param in self.model.parameters()]


param_server = None
global_lock = Lock()


def get_parameter_server():
    global param_server
    with global_lock:
        if param_server is None:
            param_server = ParameterServer()
        return param_server


def call_method(method, rref, *args):
    return method(rref.local_value(), *args)


class TrainerNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.server = rpc.remote("parameter_server", get_parameter_server)

    def forward(self, x):
        return rpc.rpc_sync("parameter_server", call_method, args=(ParameterServer.forward, self.server, x))

    def get_global_param_rrefs(self):
        return rpc.rpc_sync("parameter_server", call_method, args=(ParameterServer.get_param_rrefs, self.server))


def run_parameter_server(rank, world_size):
    print("PS: initializing RPC")
    rpc.init_rpc(name="parameter_server", rank=rank, world_size=world_size)
    print("PS: waiting for the trainers")
    rpc.shutdown()


def run_trainer(rank, world_size, loader, epochs):
    rpc.init_rpc(name=f"trainer_{rank}", rank=rank, world_size=world_size)
    net = TrainerNet()
    optimizer = DistributedOptimizer(torch.optim.SGD, net.get_global_param_rrefs(), lr=0.03)
    for epoch in range(epochs):
        for i, (data, target) in enumerate(loader):
            with dist_autograd.context() as cid:
                loss = F.nll_loss(net(data), target)
                if i % 50 == 0:
                    print(f"Rank {rank} epoch {epoch} batch {i} loss {loss.item():.4f}")
                dist_autograd.backward(cid, [loss])
                optimizer.step(cid)
    rpc.shutdown()


def main():
    parser = argparse.ArgumentParser(description="Parameter-Server RPC based training")
    parser.add_argument("--data", default="/data/mnist")
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--batch_size", type=int, default=32)
    args = parser.parse_args()
    rank = int(os.environ["RANK"])
    world_size = int(os.environ["WORLD_SIZE"])
    if rank == 0:
        run_parameter_server(rank, world_size)
    else:
        full = datasets.MNIST(args.data, train=True, transform=transforms.ToTensor())
        mine = torch.utils.data.Subset(full, range(rank - 1, len(full), world_size - 1))
        loader = torch.utils.data.DataLoader(mine, batch_size=args.batch_size, shuffle=True)
        run_trainer(rank, world_size, loader, args.epochs)


if __name__ == "__main__":
    main()
