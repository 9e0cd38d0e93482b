import argparse
import os
import time
from types import SimpleNamespace

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

from data_utils import TextMelCollate, TextMelLoader
from distributed import apply_gradient_allreduce, reduce_tensor
from hparams import create_hparams
from model import Tacotron


def prepare_dataloaders(hparams):
    trainset = TextMelLoader(hparams.training_files, hparams)
    if hparams.distributed_run:
        train_sampler = DistributedSampler(trainset)
        shuffle = False
    else:
        train_sampler = None
        shuffle = True
    return DataLoader(trainset, num_workers=1, shuffle=shuffle, sampler=train_sampler, batch_size=hparams.batch_size,
                      pin_memory=False, drop_last=True, collate_fn=TextMelCollate()), train_sampler


def load_model(hparams):
    model = Tacotron(hparams).cuda()
    if hparams.distributed_run:
        model = apply_gradient_allreduce(model)
    return model


def save_checkpoint(model, optimizer, iteration, filepath):
    print("Saving model and optimizer state at iteration {} to {}".format(iteration, filepath))
    torch.save({"iteration": iteration, "state_dict": model.state_dict(), "optimizer": optimizer.state_dict()}, filepath)


def train(local, n_gpus, args, hparams):
    rank = args.rank * n_gpus + local
    hparams.distributed_run = args.world_size * n_gpus > 1
    torch.cuda.set_device(local)
    if hparams.distributed_run:
        dist.init_process_group(backend=hparams.dist_backend, init_method=args.init_method,
                                world_size=args.world_size * n_gpus, rank=rank)
    torch.manual_seed(hparams.seed)
    model = load_model(hparams)
    optimizer = torch.optim.Adam(model.parameters(), lr=hparams.learning_rate, weight_decay=1e-6)
    train_loader, train_sampler = prepare_dataloaders(hparams)
    iteration = 0
    if args.checkpoint_path is not None:
        saved = torch.load(args.checkpoint_path, map_location="cpu")
        model.load_state_dict(saved["state_dict"])
        if not args.warm_start:
            optimizer.load_state_dict(saved["optimizer"])
            iteration = saved["iteration"] + 1
    model.train()
    for epoch in range(hparams.epochs):
        if train_sampler is not None:
            train_sampler.set_epoch(epoch)
        for text, mel in train_loader:
            start = time.perf_counter()
            model.zero_grad()
            loss = torch.nn.functional.mse_loss(model(text.cuda(), mel.size(1)), mel.cuda())
            if hparams.distributed_run:
                reduced_loss = reduce_tensor(loss.data, args.world_size * n_gpus).item()
            else:
                reduced_loss = loss.item()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), hparams.grad_clip_thresh)
            optimizer.step()
            if rank == 0:
                print("Train loss {} {:.6f} {:.2f}s/it".format(iteration, reduced_loss, time.perf_counter() - start))
                if iteration % hparams.iters_per_checkpoint == 0:
                    save_checkpoint(model, optimizer, iteration, os.path.join(args.output_directory, f"checkpoint_{iteration}"))
            iteration += 1
    if hparams.distributed_run:
        dist.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("-o", "--output_directory", type=str, help="directory to save checkpoints")
    parser.add_argument("-c", "--checkpoint_path", type=str, default=None, required=False, help="checkpoint path")
    parser.add_argument("--warm_start", action="store_true", help="load model weights only")
    parser.add_argument("--hparams", type=str, required=False, help="comma separated name=value pairs")
    parser.add_argument("--init_method", type=str, default="tcp://localhost:54321")
    parser.add_argument("--world_size", type=int, default=1, help="machines")
    parser.add_argument("--rank", type=int, default=0, help="of the machine")
    args = parser.parse_args()
    hparams: SimpleNamespace = create_hparams(args.hparams)
    os.makedirs(args.output_directory, exist_ok=True)
    torch.backends.cudnn.benchmark = False
    gpus = torch.cuda.device_count()
    mp.spawn(train, args=(gpus, args, hparams), nprocs=gpus)
