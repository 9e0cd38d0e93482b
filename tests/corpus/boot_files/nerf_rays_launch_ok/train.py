"""Radiance field of one scene; each process renders its own part of the rays."""
import argparse
import json
import os

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from render import Embedder, NeRF, render_rays, sample_pdf_available

SCENE = "data/lego/transforms_train.json"


def config_parser():
    parser = argparse.ArgumentParser()
    parser.add_argument("--expname", type=str, default="lego", help="experiment name")
    parser.add_argument("--basedir", type=str, default="./outputs/", help="where to store ckpts and logs")
    parser.add_argument("--transforms", type=str, default=SCENE)
    parser.add_argument("--netwidth", type=int, default=256, help="channels per layer")
    parser.add_argument("--N_rand", type=int, default=4096, help="number of random rays per gradient step")
    parser.add_argument("--N_samples", type=int, default=64)
    parser.add_argument("--lrate", type=float, default=5e-4)
    parser.add_argument("--n_epochs", type=int, default=20)
    parser.add_argument("--perturb", type=float, default=1.)
    parser.add_argument("--use_viewdirs", action="store_true")
    parser.add_argument("--no_reload", action="store_true", help="do not reload weights from saved ckpt")
    parser.add_argument("--i_print", type=int, default=100)
    return parser


def load_rays(path):
    with open(path) as fp:
        meta = json.load(fp)
    focal = 0.5 / np.tan(0.5 * float(meta["camera_angle_x"]))
    rays = []
    for frame in meta["frames"]:
        pose = np.array(frame["transform_matrix"], dtype=np.float32)
        x, y = np.meshgrid(np.linspace(-1, 1, 64), np.linspace(-1, 1, 64), indexing="xy")
        dirs = np.stack([x / focal, -y / focal, -np.ones_like(x)], -1).reshape(-1, 3) @ pose[:3, :3].T
        origins = np.broadcast_to(pose[:3, 3], dirs.shape)
        rays.append(np.concatenate([origins, dirs, np.abs(dirs)], 1))
    return torch.from_numpy(np.concatenate(rays)).float()


def train():
    args = config_parser().parse_args()
    distributed = int(os.environ.get("WORLD_SIZE", 1)) > 1
    local_rank = int(os.environ.get("LOCAL_RANK", 0))
    device = torch.device(f"cuda:{local_rank}")
    torch.cuda.set_device(device)
    if distributed:
        dist.init_process_group(backend="nccl")
    is_main = not distributed or dist.get_rank() == 0

    rays = load_rays(args.transforms)
    dataset = TensorDataset(rays)
    sampler = DistributedSampler(dataset, shuffle=True) if distributed else None
    n_rand = args.N_rand // (dist.get_world_size() if distributed else 1)
    loader = DataLoader(dataset, batch_size=n_rand, sampler=sampler, shuffle=sampler is None, drop_last=True)

    embed = Embedder(10)
    model = NeRF(embed.out_dim, args.netwidth).to(device)
    if distributed:
        model = nn.parallel.DistributedDataParallel(model, device_ids=[local_rank])
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lrate, betas=(0.9, 0.999))

    folder = os.path.join(args.basedir, args.expname)
    os.makedirs(folder, exist_ok=True)
    start = 0
    ckpts = sorted(f for f in os.listdir(folder) if f.endswith(".tar"))
    if ckpts and not args.no_reload:
        ckpt = torch.load(os.path.join(folder, ckpts[-1]), map_location=device)
        start = ckpt["epoch"] + 1
        (model.module if distributed else model).load_state_dict(ckpt["network"])
        optimizer.load_state_dict(ckpt["optimizer"])
    if distributed:
        dist.barrier()  # nobody writes while others list the folder
    if is_main and sample_pdf_available():
        print("hierarchical sampling is on")

    for epoch in range(start, args.n_epochs):
        if distributed:
            sampler.set_epoch(epoch)
        for i, (batch,) in enumerate(loader):
            batch = batch.to(device)
            rgb = render_rays(model, embed, batch[:, :3], batch[:, 3:6], args.N_samples, args.perturb)
            loss = torch.mean((rgb - batch[:, 6:]) ** 2)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            new_lrate = args.lrate * (0.1 ** ((epoch * len(loader) + i) / 250000))
            for param_group in optimizer.param_groups:
                param_group["lr"] = new_lrate
            if i % args.i_print == 0 and is_main:
                print(f"[TRAIN] epoch {epoch} iter {i} loss {loss.item():.5f} psnr {-10 * np.log10(loss.item()):.2f}")
        if is_main:
            net = model.module if distributed else model
            torch.save({"epoch": epoch, "network": net.state_dict(), "optimizer": optimizer.state_dict()},
                       os.path.join(folder, f"{epoch:06d}.tar"))
    if distributed:
        dist.destroy_process_group()


if __name__ == "__main__":
    train()
