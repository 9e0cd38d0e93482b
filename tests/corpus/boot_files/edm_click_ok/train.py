"""Train a denoiser with a preconditioned loss; run it with torchrun."""

import json
import os
import re

import click
import torch

import dnn
from torch_utils import distributed as dist
from training import training_loop

import warnings
warnings.filterwarnings('ignore', 'Grad strides do not match bucket view strides')


def parse_int_list(s):
    if isinstance(s, list):
        return s
    ranges = []
    range_re = re.compile(r'^(\d+)-(\d+)$')
    for p in s.split(','):
        if m := range_re.match(p):
            ranges.extend(range(int(m.group(1)), int(m.group(2)) + 1))
        else:
            ranges.append(int(p))
    return ranges


@click.command()
# Main options.
@click.option('--outdir', help='Where to save the results', metavar='DIR', type=str, required=True)
@click.option('--data', help='Path to the dataset', metavar='DIR', type=str, required=True)
@click.option('--arch', help='Network architecture', type=click.Choice(['ddpmpp', 'ncsnpp', 'adm']), default='ddpmpp')
# Hyperparameters.
@click.option('--duration', help='Training duration in Mimg', type=click.FloatRange(min=0, min_open=True), default=200)
@click.option('--batch', help='Total batch size', metavar='INT', type=click.IntRange(min=1), default=512)
@click.option('--batch-gpu', help='Limit batch size per GPU', metavar='INT', type=click.IntRange(min=1))
@click.option('--cres', help='Channels per resolution', type=parse_int_list)
@click.option('--lr', help='Learning rate', type=click.FloatRange(min=0, min_open=True), default=10e-4)
# Performance-related.
@click.option('--fp16', help='Enable mixed-precision training', metavar='BOOL', type=bool, default=False)
@click.option('--bench', help='Enable cuDNN benchmarking', metavar='BOOL', type=bool, default=True)
# I/O-related.
@click.option('--desc', help='String to include in result dir name', type=str)
@click.option('--seed', help='Random seed  [default: random]', type=int)
@click.option('-n', '--dry-run', help='Print training options and exit', is_flag=True)
def main(**kwargs):
    """Train diffusion-based generative model."""
    opts = dnn.EasyDict(kwargs)
    torch.multiprocessing.set_start_method('spawn')
    dist.init()

    c = dnn.EasyDict()
    c.network_kwargs = dnn.EasyDict(arch=opts.arch, channel_mult=opts.cres or [2, 2, 2], use_fp16=opts.fp16)
    c.optimizer_kwargs = dnn.EasyDict(lr=opts.lr, betas=[0.9, 0.999], eps=1e-8)
    c.update(data=opts.data, batch_size=opts.batch, batch_gpu=opts.batch_gpu, cudnn_benchmark=opts.bench)
    c.total_kimg = max(int(opts.duration * 1000), 1)

    if opts.seed is not None:
        c.seed = opts.seed
    else:
        seed = torch.randint(1 << 31, size=[], device=torch.device('cuda'))
        torch.distributed.broadcast(seed, src=0)
        c.seed = int(seed)

    # Pick output directory.
    if dist.get_rank() != 0:
        c.run_dir = None
    else:
        prev = os.listdir(opts.outdir) if os.path.isdir(opts.outdir) else []
        ids = [int(m.group()) for x in prev if (m := re.match(r'^\d+', x))]
        c.run_dir = os.path.join(opts.outdir, f'{max(ids, default=-1) + 1:05d}-{opts.arch}-{opts.desc or "run"}')

    dist.print0('Training options:')
    dist.print0(json.dumps(c, indent=2))
    dist.print0(f'Number of GPUs:          {dist.get_world_size()}')
    if opts.dry_run:
        dist.print0('Dry run; exiting.')
        torch.distributed.destroy_process_group()
        return

    if dist.get_rank() == 0:
        os.makedirs(c.run_dir, exist_ok=True)
        with open(os.path.join(c.run_dir, 'training_options.json'), 'wt') as f:
            json.dump(c, f, indent=2)
    training_loop.training_loop(**c)
    torch.distributed.destroy_process_group()


if __name__ == '__main__':
    main()
