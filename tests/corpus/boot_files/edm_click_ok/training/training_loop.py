import os
import time

import torch

import dnn
from torch_utils import distributed as dist
from torch_utils import misc, training_stats
from training.dataset import ImageFolderDataset


class Precond(torch.nn.Module):
    def __init__(self, arch, channel_mult, use_fp16):
        super().__init__()
        self.arch, self.use_fp16 = arch, use_fp16
        self.net = torch.nn.Conv2d(3, 3, 3, padding=1)

    def forward(self, x, sigma):
        return self.net(x / (1 + sigma))


def training_loop(run_dir, data, network_kwargs, optimizer_kwargs, seed, batch_size, batch_gpu, total_kimg,
                  cudnn_benchmark, kimg_per_tick=50, snapshot_ticks=50, device=torch.device('cuda')):
    start_time = time.time()
    torch.manual_seed((seed * dist.get_world_size() + dist.get_rank()) % (1 << 31))
    torch.backends.cudnn.benchmark = cudnn_benchmark

    batch_gpu_total = batch_size // dist.get_world_size()
    if batch_gpu is None or batch_gpu > batch_gpu_total:
        batch_gpu = batch_gpu_total
    num_accumulation_rounds = batch_gpu_total // batch_gpu
    assert batch_size == batch_gpu * num_accumulation_rounds * dist.get_world_size()

    dist.print0('Loading dataset...')
    if dist.get_rank() != 0:
        torch.distributed.barrier()  # rank 0 goes first
    dataset_obj = ImageFolderDataset(data)
    if dist.get_rank() == 0:
        torch.distributed.barrier()  # other ranks follow
    sampler = misc.InfiniteSampler(dataset_obj, rank=dist.get_rank(), num_replicas=dist.get_world_size(), seed=seed)
    loader = iter(torch.utils.data.DataLoader(dataset_obj, sampler=sampler, batch_size=batch_gpu))

    dist.print0('Constructing network...')
    net = Precond(**network_kwargs).train().requires_grad_(True).to(device)
    if dist.get_rank() == 0:
        with torch.no_grad():
            misc.print_module_summary(net)
    optimizer = torch.optim.Adam(net.parameters(), **optimizer_kwargs)
    ddp = torch.nn.parallel.DistributedDataParallel(net, device_ids=[device])

    cur_nimg, cur_tick, tick_start_nimg = 0, 0, 0
    while True:
        optimizer.zero_grad(set_to_none=True)
        for round_idx in range(num_accumulation_rounds):
            ddp.require_backward_grad_sync = round_idx == num_accumulation_rounds - 1
            images, _ = next(loader)
            images = images.to(device).to(torch.float32) / 127.5 - 1
            sigma = torch.randn([images.shape[0], 1, 1, 1], device=device).exp()
            loss = (ddp(images + sigma * torch.randn_like(images), sigma) - images).square()
            training_stats.report('Loss/loss', loss)
            loss.sum().mul(1 / batch_gpu_total).backward()
        for param in net.parameters():
            if param.grad is not None:
                torch.nan_to_num(param.grad, nan=0, posinf=1e5, neginf=-1e5, out=param.grad)
        optimizer.step()

        cur_nimg += batch_size
        done = cur_nimg >= total_kimg * 1000
        if not done and cur_tick != 0 and cur_nimg < tick_start_nimg + kimg_per_tick * 1000:
            continue
        stats = training_stats.collect()
        dist.print0(f'tick {cur_tick} kimg {cur_nimg / 1e3:.1f} time {dnn.format_time(time.time() - start_time)} {stats}')
        if (done or cur_tick % snapshot_ticks == 0) and dist.get_rank() == 0:
            torch.save(net.state_dict(), os.path.join(run_dir, f'training-state-{cur_nimg // 1000:06d}.pt'))
        cur_tick, tick_start_nimg = cur_tick + 1, cur_nimg
        if done or dist.should_stop():
            break
    dist.print0('Exiting...')
