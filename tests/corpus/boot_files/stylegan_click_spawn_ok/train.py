"""Train a GAN: the tool's own --gpus starts the processes of this machine."""

import os
import tempfile

import click
import torch

from training import loop


class UserError(Exception):
    pass


def setup_training_options(gpus, data, outdir, cfg, batch, gamma, kimg, mirror):
    if not (gpus >= 1 and gpus & (gpus - 1) == 0):
        raise UserError('--gpus must be a power of two')
    spec = {'auto': dict(width=64, lr=2e-3), 'paper256': dict(width=128, lr=25e-4)}[cfg]
    return dict(num_gpus=gpus, data=data, run_dir=outdir, batch_size=batch or 8 * gpus, r1_gamma=gamma or 10.0,
                total_kimg=kimg or 25000, mirror=mirror, random_seed=0, **spec)


def subprocess_fn(rank, args, temp_dir):
    # Init torch.distributed.
    if args['num_gpus'] > 1:
        init_file = os.path.abspath(os.path.join(temp_dir, '.torch_distributed_init'))
        if os.name == 'nt':
            init_method = 'file:///' + init_file.replace('\\', '/')
            torch.distributed.init_process_group(
                backend='gloo', init_method=init_method, rank=rank, world_size=args['num_gpus'])
        else:
            init_method = f'file://{init_file}'
            torch.distributed.init_process_group(
                backend='nccl', init_method=init_method, rank=rank, world_size=args['num_gpus'])

    # Execute training loop.
    loop.training_loop(rank=rank, **args)
    if args['num_gpus'] > 1:
        torch.distributed.destroy_process_group()


@click.command()
@click.pass_context
@click.option('--outdir', help='Where to save the results', required=True, metavar='DIR')
@click.option('--gpus', help='Number of GPUs to use [default: 1]', type=int, default=1, metavar='INT')
@click.option('-n', '--dry-run', help='Print training options and exit', is_flag=True)
@click.option('--data', help='Training data (directory or zip)', metavar='PATH', required=True)
@click.option('--mirror', help='Enable dataset x-flips [default: false]', type=bool, default=False, metavar='BOOL')
@click.option('--cfg', help='Base config', type=click.Choice(['auto', 'paper256']), default='auto')
@click.option('--gamma', help='Override R1 gamma', type=float)
@click.option('--kimg', help='Override training duration', type=int, metavar='INT')
@click.option('--batch', help='Override batch size', type=int, metavar='INT')
@click.option('--init_method', 'init_method', hidden=True, default=None, help='the platform gives it; one machine only')
@click.option('--world_size', 'world_size', hidden=True, type=click.IntRange(1, 1), default=1)
@click.option('--rank', 'machine', hidden=True, type=int, default=0)
def main(ctx, outdir, dry_run, init_method, world_size, machine, **config_kwargs):
    """Train a GAN on images of a folder."""
    try:
        args = setup_training_options(outdir=outdir, **config_kwargs)
    except UserError as err:
        ctx.fail(str(err))
    print('Training options:', args)
    if dry_run:
        print('Dry run; exiting.')
        return
    os.makedirs(args['run_dir'], exist_ok=True)

    print('Launching processes...')
    torch.multiprocessing.set_start_method('spawn')
    with tempfile.TemporaryDirectory() as temp_dir:
        if args['num_gpus'] == 1:
            subprocess_fn(rank=0, args=args, temp_dir=temp_dir)
        else:
            torch.multiprocessing.spawn(fn=subprocess_fn, args=(args, temp_dir), nprocs=args['num_gpus'])


if __name__ == "__main__":
    main()
