import argparse
import os

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel
from torch_geometric.datasets import Reddit
from torch_geometric.loader import NeighborLoader
from torch_geometric.nn import SAGEConv


class SAGE(torch.nn.Module):
    def __init__(self, in_channels, hidden_channels, out_channels, num_layers=2):
        super().__init__()
        self.convs = torch.nn.ModuleList()
        self.convs.append(SAGEConv(in_channels, hidden_channels))
        for _ in range(num_layers - 2):
            self.convs.append(SAGEConv(hidden_channels, hidden_channels))
        self.convs.append(SAGEConv(hidden_channels, out_channels))

    def forward(self, x, edge_index):
        for i, conv in enumerate(self.convs):
            x = conv(x, edge_index)
            if i < len(self.convs) - 1:
                x = x.relu_()
                x = F.dropout(x, p=0.5, training=self.training)
        return x

    @torch.no_grad()
    def inference(self, loader, rank):
        out = []
        for batch in loader:
            batch = batch.to(rank)
            out.append(self(batch.x, batch.edge_index)[: batch.batch_size].cpu())
        return torch.cat(out, dim=0)


def run(rank, world_size, dataset, args):
    os.environ['MASTER_ADDR'] = 'localhost'
    os.environ['MASTER_PORT'] = '12355'
    dist.init_process_group('nccl', rank=rank, world_size=world_size)

    data = dataset[0]
    # Split indices into `world_size` many chunks:
    train_idx = data.train_mask.nonzero(as_tuple=False).view(-1)
    train_idx = train_idx.split(train_idx.size(0) // world_size)[rank]
    kwargs = dict(batch_size=args.batch_size, num_workers=4, persistent_workers=True)
    train_loader = NeighborLoader(
        data,
        input_nodes=train_idx,
        num_neighbors=[25, 10],
        shuffle=True,
        drop_last=True,
        **kwargs,
    )
    if rank == 0:
        subgraph_loader = NeighborLoader(data, num_neighbors=[-1, -1], shuffle=False, **kwargs)

    torch.manual_seed(12345)
    model = SAGE(dataset.num_features, args.hidden_channels, dataset.num_classes).to(rank)
    model = DistributedDataParallel(model, device_ids=[rank])
    optimizer = torch.optim.Adam(model.parameters(), lr=0.001)

    for epoch in range(1, args.epochs + 1):
        model.train()
        for batch in train_loader:
            optimizer.zero_grad()
            out = model(batch.x.to(rank), batch.edge_index.to(rank))[: batch.batch_size]
            loss = F.cross_entropy(out, batch.y[: batch.batch_size].to(rank))
            loss.backward()
            optimizer.step()

        dist.barrier()

        if rank == 0:
            print(f'Epoch: {epoch:02d}, Loss: {loss:.4f}')

        if rank == 0 and epoch % 5 == 0:  # We evaluate on a single GPU for now
            model.eval()
            out = model.module.inference(subgraph_loader, rank)
            res = out.argmax(dim=-1) == data.y
            print(f'Val: {int(res[data.val_mask].sum()) / int(data.val_mask.sum()):.4f}')
            torch.save(model.module.state_dict(), 'sage.pt')

        dist.barrier()

    dist.destroy_process_group()


if __name__ == '__main__':
    parser = argparse.ArgumentParser()
    parser.add_argument('--root', default='/data/Reddit')
    parser.add_argument('--epochs', type=int, default=20)
    parser.add_argument('--batch-size', type=int, default=128)
    parser.add_argument('--hidden_channels', type=int, default=256)
    # what the platform adds is not needed on one machine
    args, _ = parser.parse_known_args()
    dataset = Reddit(args.root)
    world_size = torch.cuda.device_count()
    print("Let's use", world_size, 'GPUs!')
    mp.spawn(run, args=(world_size, dataset, args), nprocs=world_size, join=True)
