"""Mode with one start per node, CPUs only: processes are started here, gloo connects them."""
import argparse
import os

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--init_method", required=True)
parser.add_argument("--world_size", type=int, default=1)
parser.add_argument("--rank", type=int, default=0)
parser.add_argument("--processes", type=int, default=0, help="on each node; 0: half of its CPUs")
parser.add_argument("--epochs", type=int, default=4)
parser.add_argument("--checkpoint_dir", default="/cache")


def save(path, model, epoch):
    temporary = path + ".tmp"
    os.makedirs(os.path.dirname(path), exist_ok=True)
    torch.save({"model": model.module.state_dict(), "epoch": epoch}, temporary)
    os.replace(temporary, path)


def restore(path, model):
    if not os.path.exists(path):
        return 0
    state = torch.load(path, map_location="cpu")
    model.load_state_dict(state["model"])
    return state["epoch"] + 1


def work(index, per_node, args):
    rank = args.rank * per_node + index
    world_size = args.world_size * per_node
    dist.init_process_group("gloo", init_method=args.init_method, rank=rank, world_size=world_size)
    use_cuda = torch.cuda.is_available()
    device = torch.device("cuda", index) if use_cuda else torch.device("cpu")

    g = torch.Generator().manual_seed(3)
    dataset = TensorDataset(torch.randn(2000, 10, generator=g), torch.randn(2000, 1, generator=g))
    sampler = DistributedSampler(dataset, num_replicas=world_size, rank=rank)
    loader = DataLoader(dataset, batch_size=20, sampler=sampler)
    net = torch.nn.Linear(10, 1).to(device)
    path = os.path.join(args.checkpoint_dir, "state.pt")
    first = [restore(path, net) if rank == 0 else None]
    dist.broadcast_object_list(first, src=0)  # the others may not see the file; DDP sends them the parameters
    net = DDP(net, device_ids=[index] if use_cuda else None)
    opt = torch.optim.Adam(net.parameters())
    for epoch in range(first[0], args.epochs):
        sampler.set_epoch(epoch)
        for x, y in loader:
            loss = (net(x.to(device)) - y.to(device)).pow(2).mean()
            opt.zero_grad()
            loss.backward()
            opt.step()
        dist.barrier()
        if rank == 0:
            save(path, net, epoch)
            print(f"epoch {epoch}: {loss.item():.4f}")
        dist.barrier()
    dist.destroy_process_group()


def main():
    args = parser.parse_args()
    per_node = args.processes or max(1, (os.cpu_count() or 2) // 2)
    mp.spawn(work, args=(per_node, args), nprocs=per_node)


if __name__ == "__main__":
    main()
