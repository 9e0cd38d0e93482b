from datetime import timedelta

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from engine import comm


def launch(main_func, num_gpus_per_machine, num_machines=1, machine_rank=0, dist_url=None, args=()):
    """Start main_func in as many processes as there are GPUs on this machine."""
    world_size = num_machines * num_gpus_per_machine
    if world_size > 1:
        mp.start_processes(
            _distributed_worker,
            nprocs=num_gpus_per_machine,
            args=(main_func, world_size, num_gpus_per_machine, machine_rank, dist_url, args),
            start_method="spawn",
            daemon=False,
        )
    else:
        main_func(*args)


def _distributed_worker(local_rank, main_func, world_size, num_gpus_per_machine, machine_rank, dist_url, args):
    assert torch.cuda.is_available(), "cuda is not available. Please check your installation."
    global_rank = machine_rank * num_gpus_per_machine + local_rank
    dist.init_process_group(
        backend="NCCL",
        init_method=dist_url,
        world_size=world_size,
        rank=global_rank,
        timeout=timedelta(minutes=30),
    )
    num_machines = world_size // num_gpus_per_machine
    for i in range(num_machines):
        ranks = list(range(i * num_gpus_per_machine, (i + 1) * num_gpus_per_machine))
        group = dist.new_group(ranks)
        if i == machine_rank:
            comm.set_local_group(group)
    torch.cuda.set_device(local_rank)
    comm.synchronize()
    main_func(*args)
    dist.destroy_process_group()
