"""CTC/attention trainer; --rank and --world_size are the machine's, the platform's way."""
import argparse
import copy
import logging
import os

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import yaml
from torch.utils.data import DataLoader

from asr.dataset import Dataset
from asr.model import init_model
from asr.utils import Executor, load_checkpoint, save_checkpoint


def get_args():
    parser = argparse.ArgumentParser(description='training your network')
    parser.add_argument('--config', required=True, help='config file')
    parser.add_argument('--train_data', required=True, help='train data file')
    parser.add_argument('--cv_data', required=True, help='cv data file')
    parser.add_argument('--model_dir', required=True, help='save model dir')
    parser.add_argument('--checkpoint', help='checkpoint model')
    parser.add_argument('--rank', '--ddp.rank', dest='rank', default=0, type=int, help='machine number')
    parser.add_argument('--world_size', '--ddp.world_size', dest='world_size', default=1, type=int)
    parser.add_argument('--init_method', '--ddp.init_method', dest='init_method', default=None)
    parser.add_argument('--dist_backend', dest='dist_backend', default='nccl', choices=['nccl', 'gloo'])
    parser.add_argument('--num_workers', default=0, type=int)
    parser.add_argument('--pin_memory', action='store_true', default=False)
    parser.add_argument('--cmvn', default=None, help='global cmvn file')
    return parser.parse_args()


def worker(gpu, args, configs):
    logging.basicConfig(level=logging.DEBUG, format='%(asctime)s %(levelname)s %(message)s')
    torch.manual_seed(777)
    ngpus = torch.cuda.device_count()
    rank = args.rank * ngpus + gpu
    world_size = args.world_size * ngpus
    logging.info('training on gpu %d, rank %d of %d', gpu, rank, world_size)
    dist.init_process_group(args.dist_backend, init_method=args.init_method, world_size=world_size, rank=rank)
    torch.cuda.set_device(gpu)

    train_conf = configs['dataset_conf']
    cv_conf = copy.deepcopy(train_conf)
    cv_conf['shuffle'] = False
    train_dataset = Dataset(args.train_data, train_conf, partition=True)
    cv_dataset = Dataset(args.cv_data, cv_conf, partition=False)
    train_loader = DataLoader(train_dataset, batch_size=None, pin_memory=args.pin_memory, num_workers=args.num_workers)
    cv_loader = DataLoader(cv_dataset, batch_size=None, num_workers=args.num_workers)

    model = init_model(configs)
    infos = load_checkpoint(model, args.checkpoint) if args.checkpoint is not None else {}
    start_epoch = infos.get('epoch', -1) + 1
    device = torch.device('cuda', gpu)
    model = torch.nn.parallel.DistributedDataParallel(model.to(device), find_unused_parameters=True)
    optimizer = torch.optim.Adam(model.parameters(), **configs['optim_conf'])
    executor = Executor()
    for epoch in range(start_epoch, configs.get('max_epoch', 100)):
        train_dataset.set_epoch(epoch)
        dist.barrier()  # sockets may close during a long epoch: begin together
        executor.train(model, optimizer, train_loader, device, configs, rank)
        total_loss, num_seen = executor.cv(model, cv_loader, device)
        logging.info('Epoch %d CV info cv_loss %f', epoch, total_loss / max(num_seen, 1))
        if rank == 0:
            save_checkpoint(model, os.path.join(args.model_dir, f'{epoch}.pt'), {'epoch': epoch})
    dist.destroy_process_group()


def main():
    args = get_args()
    with open(args.config) as fin:
        configs = yaml.load(fin, Loader=yaml.FullLoader)
    configs['cmvn_file'] = args.cmvn
    os.makedirs(args.model_dir, exist_ok=True)
    mp.spawn(worker, nprocs=torch.cuda.device_count(), args=(args, configs))


if __name__ == '__main__':
    main()
