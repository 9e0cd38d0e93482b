"""GraphSAGE on several machines: processes are started one by one, as older graph examples do."""
import argparse
import time

import torch
import torch.multiprocessing as mp
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel

import dgl
import dgl.nn as dglnn
from utils import load_graph, thread_wrapped_func


class SAGE(nn.Module):
    def __init__(self, in_feats, n_hidden, n_classes, n_layers, dropout):
        super().__init__()
        self.dropout = nn.Dropout(dropout)
        sizes = [in_feats] + [n_hidden] * (n_layers - 1) + [n_classes]
        self.layers = nn.ModuleList([dglnn.SAGEConv(a, b, 'mean') for a, b in zip(sizes[:-1], sizes[1:])])

    def forward(self, blocks, x):
        for i, (layer, block) in enumerate(zip(self.layers, blocks)):
            x = layer(block, x)
            if i != len(self.layers) - 1:
                x = self.dropout(F.relu(x))
        return x


@thread_wrapped_func
def run(proc_id, n_gpus, args, devices, data):
    dev_id = devices[proc_id]
    world_size = n_gpus * args.num_nodes
    global_rank = args.node_rank * n_gpus + proc_id
    torch.cuda.set_device(dev_id)
    torch.distributed.init_process_group(
        backend='nccl', init_method=args.ip_config, world_size=world_size, rank=global_rank)

    n_classes, g = data
    train_nid = torch.nonzero(g.ndata['train_mask'], as_tuple=True)[0]
    # each process trains on its own part of the nodes, of equal size
    share = len(train_nid) // world_size
    train_nid = train_nid[global_rank * share:(global_rank + 1) * share]

    sampler = dgl.dataloading.NeighborSampler([int(fanout) for fanout in args.fan_out.split(',')])
    dataloader = dgl.dataloading.DataLoader(
        g, train_nid, sampler, batch_size=args.batch_size, shuffle=True, drop_last=False,
        num_workers=args.num_workers)
    in_feats = g.ndata['features'].shape[1]
    model = SAGE(in_feats, args.num_hidden, n_classes, args.num_layers, args.dropout).to(dev_id)
    model = DistributedDataParallel(model, device_ids=[dev_id], output_device=dev_id)
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)

    for epoch in range(args.num_epochs):
        tic = time.time()
        for step, (input_nodes, seeds, blocks) in enumerate(dataloader):
            blocks = [block.int().to(dev_id) for block in blocks]
            batch_pred = model(blocks, g.ndata['features'][input_nodes].to(dev_id))
            loss = F.cross_entropy(batch_pred, g.ndata['labels'][seeds].to(dev_id))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if step % args.log_every == 0 and global_rank == 0:
                print('Epoch {:05d} | Step {:05d} | Loss {:.4f}'.format(epoch, step, loss.item()))
        if world_size > 1:
            torch.distributed.barrier()
        if global_rank == 0:
            print('Epoch Time(s): {:.4f}'.format(time.time() - tic))
            torch.save(model.module.state_dict(), 'model.pt')
    torch.distributed.destroy_process_group()


if __name__ == '__main__':
    argparser = argparse.ArgumentParser("multi-gpu training")
    argparser.add_argument('--num-epochs', type=int, default=20)
    argparser.add_argument('--num-hidden', type=int, default=16)
    argparser.add_argument('--num-layers', type=int, default=2)
    argparser.add_argument('--fan-out', type=str, default='10,25')
    argparser.add_argument('--batch-size', type=int, default=1000)
    argparser.add_argument('--log-every', type=int, default=20)
    argparser.add_argument('--lr', type=float, default=0.003)
    argparser.add_argument('--dropout', type=float, default=0.5)
    argparser.add_argument('--num-workers', type=int, default=0)
    argparser.add_argument('--world_size', dest='num_nodes', type=int, default=1, help='machines')
    argparser.add_argument('--rank', dest='node_rank', type=int, default=0, help='this machine')
    argparser.add_argument('--init_method', dest='ip_config', type=str, required=True)
    args = argparser.parse_args()

    devices = list(range(torch.cuda.device_count()))
    n_gpus = len(devices)
    n_classes, g = load_graph()
    # Create csr/coo/csc formats before launching training processes with multi-gpu.
    g.create_formats_()
    data = n_classes, g
    procs = []
    ctx = mp.get_context('fork')
    for proc_id in range(n_gpus):
        p = ctx.Process(target=run, args=(proc_id, n_gpus, args, devices, data))
        p.start()
        procs.append(p)
    for p in procs:
        p.join()
    raise SystemExit(max(p.exitcode for p in procs))
