import argparse
import logging
import os
import random

import torch
from torch.utils.data import DataLoader, RandomSampler, TensorDataset
from torch.utils.data.distributed import DistributedSampler

logger = logging.getLogger(__name__)


def set_seed(args):
    random.seed(args.seed)
    torch.manual_seed(args.seed)


def load_and_cache_examples(args):
    if args.local_rank not in [-1, 0]:
        torch.distributed.barrier()  # only the first process does the processing
    cached = args.train_file + ".cache"
    if os.path.exists(cached):
        feats = torch.load(cached)
    else:
        feats = torch.tensor([[float(len(line))] for line in open(args.train_file)])
        if args.local_rank in [-1, 0]:
            torch.save(feats, cached)
    if args.local_rank == 0:
        torch.distributed.barrier()
    return TensorDataset(feats)


def train(args, dataset, model):
    sampler = RandomSampler(dataset) if args.local_rank == -1 else DistributedSampler(dataset)
    loader = DataLoader(dataset, sampler=sampler, batch_size=args.per_gpu_train_batch_size)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.learning_rate)
    if args.local_rank != -1:
        model = torch.nn.parallel.DistributedDataParallel(
            model, device_ids=[args.local_rank], output_device=args.local_rank)
    set_seed(args)
    for epoch in range(int(args.num_train_epochs)):
        if isinstance(sampler, DistributedSampler):
            sampler.set_epoch(epoch)
        for step, (x,) in enumerate(loader):
            loss = model(x.to(args.device)).pow(2).mean() / args.gradient_accumulation_steps
            loss.backward()
            if (step + 1) % args.gradient_accumulation_steps == 0:
                optimizer.step()
                model.zero_grad()
        if args.local_rank in [-1, 0]:
            logger.info("epoch %d loss %f", epoch, loss.item())


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--train_file", default=None, type=str, required=True)
    parser.add_argument("--per_gpu_train_batch_size", default=8, type=int)
    parser.add_argument("--gradient_accumulation_steps", type=int, default=1)
    parser.add_argument("--learning_rate", default=5e-5, type=float)
    parser.add_argument("--num_train_epochs", default=3.0, type=float)
    parser.add_argument("--no_cuda", action="store_true")
    parser.add_argument("--seed", type=int, default=42)
    parser.add_argument("--local_rank", "--local-rank", type=int, default=-1)
    args = parser.parse_args()

    if args.local_rank == -1 or args.no_cuda:
        args.device = torch.device("cuda:0" if torch.cuda.is_available() and not args.no_cuda else "cpu")
    else:
        torch.cuda.set_device(args.local_rank)
        args.device = torch.device("cuda", args.local_rank)
        torch.distributed.init_process_group(backend="nccl")
    dataset = load_and_cache_examples(args)
    model = torch.nn.Linear(1, 1).to(args.device)
    train(args, dataset, model)
    if args.local_rank != -1:
        torch.distributed.barrier()
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
