import argparse
import os
import os.path as osp

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel
from torch_geometric.datasets import Reddit
from torch_geometric.loader import NeighborLoader
from torch_geometric.nn import SAGEConv

parser = argparse.ArgumentParser()
parser.add_argument("--hidden_channels", type=int, default=256)
parser.add_argument("--lr", type=float, default=0.003)
parser.add_argument("--epochs", type=int, default=20)
parser.add_argument("--batch_size", type=int, default=1024)
parser.add_argument("--fan_out", type=str, default="25,10", help="neighbours to sample at each layer")
parser.add_argument("--data_root", type=str, default=osp.join(osp.dirname(osp.realpath(__file__)), "..", "..", "data"))
parser.add_argument("--out", type=str, default="sage.pt")


class SAGE(torch.nn.Module):
    def __init__(self, in_channels, hidden_channels, out_channels, num_layers=2):
        super().__init__()
        dims = [in_channels] + [hidden_channels] * (num_layers - 1) + [out_channels]
        self.convs = torch.nn.ModuleList(SAGEConv(a, b) for a, b in zip(dims, dims[1:]))

    def forward(self, x, edge_index):
        for i, conv in enumerate(self.convs):
            x = conv(x, edge_index)
            if i < len(self.convs) - 1:
                x = F.dropout(x.relu_(), p=0.5, training=self.training)
        return x


@torch.no_grad()
def test(model, loader, device):
    model.eval()
    hits = torch.zeros(2, device=device)
    for batch in loader:
        batch = batch.to(device)
        out = model(batch.x, batch.edge_index)[: batch.batch_size]
        hits[0] += (out.argmax(-1) == batch.y[: batch.batch_size]).sum()
        hits[1] += batch.batch_size
    return hits


def run(args):
    rank, world_size = dist.get_rank(), dist.get_world_size()
    local_rank = int(os.environ["LOCAL_RANK"])
    device = torch.device("cuda", local_rank)
    # one process of each node downloads and processes, then the others read
    if local_rank == 0:
        dataset = Reddit(args.data_root)
        dist.barrier()
    else:
        dist.barrier()
        dataset = Reddit(args.data_root)
    data = dataset[0]

    # every process gets its own part of the seeds
    train_idx = data.train_mask.nonzero().view(-1)
    train_idx = train_idx.split(train_idx.size(0) // world_size)[rank]
    kwargs = dict(num_neighbors=[int(n) for n in args.fan_out.split(",")], batch_size=args.batch_size, num_workers=4)
    train_loader = NeighborLoader(data, input_nodes=train_idx, shuffle=True, drop_last=True, **kwargs)
    val_loader = None
    if rank == 0:
        val_loader = NeighborLoader(data, input_nodes=data.val_mask.nonzero().view(-1), shuffle=False, **kwargs)

    torch.manual_seed(12345)
    model = SAGE(dataset.num_features, args.hidden_channels, dataset.num_classes).to(device)
    model = DistributedDataParallel(model, device_ids=[local_rank])
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)
    for epoch in range(1, args.epochs + 1):
        model.train()
        for batch in train_loader:
            batch = batch.to(device)
            optimizer.zero_grad()
            out = model(batch.x, batch.edge_index)[: batch.batch_size]
            loss = F.cross_entropy(out, batch.y[: batch.batch_size])
            loss.backward()
            optimizer.step()
        dist.barrier()
        if rank == 0:
            print(f"Epoch: {epoch:02d}, Loss: {loss:.4f}")
            # the bare module, no collectives in here
            hits, total = test(model.module, val_loader, device).tolist()
            print(f"Val: {hits / total:.4f}")
            torch.save(model.module.state_dict(), args.out)
        dist.barrier()


def main():
    args = parser.parse_args()
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl")
    try:
        run(args)
    finally:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
