import argparse
import io
import os
from datetime import timedelta

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.distributed.elastic.multiprocessing.errors import record
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


class State:
    def __init__(self, model, optimizer):
        self.epoch = -1
        self.model = model
        self.optimizer = optimizer

    def capture(self):
        return {"epoch": self.epoch, "state_dict": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}

    def apply(self, obj, device):
        self.epoch = obj["epoch"]
        self.model.load_state_dict(obj["state_dict"])
        self.optimizer.load_state_dict(obj["optimizer"])

    def load(self, path):
        snap = torch.load(path, map_location="cuda:0")
        self.apply(snap, None)

    def save(self, path):
        tmp = path + ".tmp"
        torch.save(self.capture(), tmp)
        os.rename(tmp, path)


def load_checkpoint(path, state, pg):
    """every rank proposes its epoch; the newest broadcasts its state"""
    if os.path.isfile(path):
        state.load(path)
    epochs = torch.zeros(dist.get_world_size(), dtype=torch.int32)
    epochs[dist.get_rank()] = state.epoch
    dist.all_reduce(epochs, op=dist.ReduceOp.SUM, group=pg)
    max_epoch, max_rank = torch.max(epochs, dim=0)
    if max_epoch == -1:
        return state
    buf = io.BytesIO()
    torch.save(state.capture(), buf)
    raw = torch.frombuffer(bytearray(buf.getbuffer()), dtype=torch.uint8).clone()
    dist.broadcast(raw, src=int(max_rank), group=pg)
    return state


@record
def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--total-epochs", "--epochs", type=int, default=90)
    parser.add_argument("--ckpt", metavar="PATH", default="/tmp/checkpoint.pth.tar")
    parser.add_argument("--timeout", type=float, default=30)
    args = parser.parse_args()

    device_id = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(device_id)
    dist.init_process_group(backend="nccl", init_method="env://", timeout=timedelta(seconds=args.timeout))
    pg = dist.new_group(backend="gloo")
    model = DistributedDataParallel(nn.Linear(4, 2).cuda(device_id), device_ids=[device_id])
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    state = load_checkpoint(args.ckpt, State(model, optimizer), pg)
    ds = TensorDataset(torch.randn(100, 4), torch.randint(2, (100,)))
    sampler = DistributedSampler(ds)
    loader = DataLoader(ds, batch_size=10, sampler=sampler)
    for epoch in range(state.epoch + 1, args.total_epochs):
        state.epoch = epoch
        sampler.set_epoch(epoch)
        for x, y in loader:
            loss = nn.functional.cross_entropy(model(x.cuda(device_id)), y.cuda(device_id))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        if device_id == 0:
            state.save(args.ckpt)
        dist.barrier()


if __name__ == "__main__":
    main()
