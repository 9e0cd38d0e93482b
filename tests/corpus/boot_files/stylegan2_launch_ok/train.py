import argparse
import os
import random

import torch
from torch import autograd, nn, optim
from torch.nn import functional as F
from torch.utils import data

try:
    import wandb
except ImportError:
    wandb = None

from dataset import MultiResolutionDataset
from distributed import get_rank, get_world_size, reduce_loss_dict, synchronize
from model import Discriminator, Generator


def data_sampler(dataset, shuffle, distributed):
    if distributed:
        return data.distributed.DistributedSampler(dataset, shuffle=shuffle)
    if shuffle:
        return data.RandomSampler(dataset)
    return data.SequentialSampler(dataset)


def sample_data(loader):
    epoch = 0
    while True:
        if hasattr(loader.sampler, "set_epoch"):
            loader.sampler.set_epoch(epoch)
        for batch in loader:
            yield batch
        epoch += 1


def requires_grad(model, flag=True):
    for p in model.parameters():
        p.requires_grad = flag


def accumulate(model1, model2, decay=0.999):
    par1, par2 = dict(model1.named_parameters()), dict(model2.named_parameters())
    for k in par1.keys():
        par1[k].data.mul_(decay).add_(par2[k].data, alpha=1 - decay)


def d_r1_loss(real_pred, real_img):
    grad_real, = autograd.grad(outputs=real_pred.sum(), inputs=real_img, create_graph=True)
    return grad_real.pow(2).reshape(grad_real.shape[0], -1).sum(1).mean()


def train(args, loader, generator, discriminator, g_optim, d_optim, g_ema, device):
    loader = sample_data(loader)
    loss_dict = {}
    if args.distributed:
        g_module, d_module = generator.module, discriminator.module
    else:
        g_module, d_module = generator, discriminator

    for i in range(args.start_iter, args.iter):
        real_img = next(loader).to(device)
        requires_grad(generator, False)
        requires_grad(discriminator, True)
        fake_img = generator(torch.randn(args.batch, args.latent, device=device))
        loss_dict["d"] = F.softplus(discriminator(fake_img)).mean() + F.softplus(-discriminator(real_img)).mean()
        d_optim.zero_grad()
        loss_dict["d"].backward()
        d_optim.step()
        if i % args.d_reg_every == 0:
            real_img.requires_grad = True
            real_pred = discriminator(real_img)
            r1_loss = d_r1_loss(real_pred, real_img)
            d_optim.zero_grad()
            (args.r1 / 2 * r1_loss * args.d_reg_every + 0 * real_pred[0, 0]).backward()
            d_optim.step()

        requires_grad(generator, True)
        requires_grad(discriminator, False)
        loss_dict["g"] = F.softplus(-discriminator(generator(torch.randn(args.batch, args.latent, device=device)))).mean()
        g_optim.zero_grad()
        loss_dict["g"].backward()
        g_optim.step()
        accumulate(g_ema, g_module)
        loss_reduced = reduce_loss_dict(loss_dict)

        if get_rank() == 0:
            if wandb and args.wandb:
                wandb.log({k: v.mean().item() for k, v in loss_reduced.items()})
            if i % 10000 == 0:
                os.makedirs("checkpoint", exist_ok=True)
                torch.save({"g": g_module.state_dict(), "d": d_module.state_dict(), "g_ema": g_ema.state_dict()},
                           f"checkpoint/{str(i).zfill(6)}.pt")


if __name__ == "__main__":
    device = "cuda"

    parser = argparse.ArgumentParser(description="GAN trainer")
    parser.add_argument("path", type=str, help="path to the dataset")
    parser.add_argument("--iter", type=int, default=800000, help="total training iterations")
    parser.add_argument("--batch", type=int, default=16, help="batch sizes for each gpus")
    parser.add_argument("--size", type=int, default=256)
    parser.add_argument("--r1", type=float, default=10)
    parser.add_argument("--d_reg_every", type=int, default=16)
    parser.add_argument("--ckpt", type=str, default=None)
    parser.add_argument("--lr", type=float, default=0.002)
    parser.add_argument("--wandb", action="store_true", help="use weights and biases logging")
    parser.add_argument("--local_rank", "--local-rank", type=int, default=0, help="local rank for distributed training")
    args = parser.parse_args()

    n_gpu = int(os.environ["WORLD_SIZE"]) if "WORLD_SIZE" in os.environ else 1
    args.distributed = n_gpu > 1
    if args.distributed:
        torch.cuda.set_device(args.local_rank)
        torch.distributed.init_process_group(backend="nccl", init_method="env://")
        synchronize()

    args.latent, args.start_iter = 512, 0
    random.seed(get_rank())
    torch.manual_seed(get_rank())
    generator = Generator(args.size, args.latent).to(device)
    discriminator = Discriminator(args.size).to(device)
    g_ema = Generator(args.size, args.latent).to(device)
    g_ema.eval()
    g_ema.load_state_dict(generator.state_dict())
    g_optim = optim.Adam(generator.parameters(), lr=args.lr * 4 / 5, betas=(0, 0.99 ** (4 / 5)))
    d_ratio = args.d_reg_every / (args.d_reg_every + 1)
    d_optim = optim.Adam(discriminator.parameters(), lr=args.lr * d_ratio, betas=(0, 0.99 ** d_ratio))

    if args.ckpt is not None:
        ckpt = torch.load(args.ckpt, map_location=lambda storage, loc: storage)
        generator.load_state_dict(ckpt["g"])
        discriminator.load_state_dict(ckpt["d"])
        g_ema.load_state_dict(ckpt["g_ema"])
    if args.distributed:
        generator = nn.parallel.DistributedDataParallel(
            generator, device_ids=[args.local_rank], output_device=args.local_rank, broadcast_buffers=False)
        discriminator = nn.parallel.DistributedDataParallel(
            discriminator, device_ids=[args.local_rank], output_device=args.local_rank, broadcast_buffers=False)

    dataset = MultiResolutionDataset(args.path, args.size)
    sampler = data_sampler(dataset, shuffle=True, distributed=args.distributed)
    loader = data.DataLoader(dataset, batch_size=args.batch, sampler=sampler, drop_last=True)
    if get_rank() == 0 and wandb is not None and args.wandb:
        wandb.init(project="gan")
    train(args, loader, generator, discriminator, g_optim, d_optim, g_ema, device)
    if get_world_size() > 1:
        torch.distributed.destroy_process_group()
