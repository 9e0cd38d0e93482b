"""Text to speech, one GPU on each machine: the launching script passes --rank and --world_size."""
import argparse
import logging
import os

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


def get_args():
    parser = argparse.ArgumentParser(description='acoustic model')
    parser.add_argument('--gpu', type=int, default=0, help='gpu id of this machine, -1 for cpu')
    parser.add_argument('--rank', type=int, required=True, help='global rank for distributed training')
    parser.add_argument('--world_size', type=int, required=True, help='number of total processes')
    parser.add_argument('--init_method', required=True, help='tcp://host:port or file:///shared')
    parser.add_argument('--model_dir', default='exp/tacotron')
    parser.add_argument('--mel_bins', type=int, default=80)
    parser.add_argument('--epochs', type=int, default=200)
    parser.add_argument('--reduction', default='mean', choices=('mean', 'sum'))
    return parser.parse_args()


def main():
    args = get_args()
    logging.basicConfig(level=logging.INFO)
    os.environ['CUDA_VISIBLE_DEVICES'] = str(args.gpu)
    distributed = args.world_size > 1
    if distributed:
        logging.info('training on multiple machines, this is %d', args.rank)
        dist.init_process_group('nccl', init_method=args.init_method, world_size=args.world_size, rank=args.rank)

    torch.manual_seed(20)
    dataset = TensorDataset(torch.randn(8000, 64), torch.randn(8000, args.mel_bins))
    if distributed:
        sampler = DistributedSampler(dataset, shuffle=True)
    else:
        sampler = None
    loader = DataLoader(dataset, sampler=sampler, shuffle=(sampler is None), batch_size=32, drop_last=True)

    use_cuda = args.gpu >= 0 and torch.cuda.is_available()
    device = torch.device('cuda:0' if use_cuda else 'cpu')
    model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.Tanh(), torch.nn.Linear(256, args.mel_bins))
    model = model.to(device)
    if distributed:
        model = torch.nn.parallel.DistributedDataParallel(model, find_unused_parameters=False)
    criterion = torch.nn.L1Loss(reduction=args.reduction)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    os.makedirs(args.model_dir, exist_ok=True)

    for epoch in range(args.epochs):
        if distributed:
            sampler.set_epoch(epoch)
        for text, mel in loader:
            loss = criterion(model(text.to(device)), mel.to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        if args.rank == 0:
            logging.info('epoch %d loss %.4f', epoch, loss.item())
            net = model.module if distributed else model
            torch.save(net.state_dict(), os.path.join(args.model_dir, f'{epoch}.pt'))
    if distributed:
        dist.destroy_process_group()


if __name__ == '__main__':
    main()
