import os

import torch
import torch.distributed as dist


def is_master(args):
    return args.distributed_rank == 0


def infer_init_method(args):
    if args.distributed_init_method is not None:
        return
    if all(key in os.environ for key in ["MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE", "RANK"]):
        args.distributed_init_method = "env://"
        args.distributed_world_size = int(os.environ["WORLD_SIZE"])
        args.distributed_rank = int(os.environ["RANK"])
        args.device_id = int(os.environ.get("LOCAL_RANK", args.device_id))


def distributed_init(args):
    dist.init_process_group(
        backend=args.distributed_backend,
        init_method=args.distributed_init_method,
        world_size=args.distributed_world_size,
        rank=args.distributed_rank,
    )
    if torch.cuda.is_available():
        dist.all_reduce(torch.zeros(1).cuda())
    args.distributed_rank = dist.get_rank()


def distributed_main(i, main, args):
    args.device_id = i
    if torch.cuda.is_available():
        torch.cuda.set_device(args.device_id)
    distributed_init(args)
    main(args)
    dist.destroy_process_group()


def call_main(args, main):
    infer_init_method(args)
    if args.distributed_init_method is not None:
        distributed_main(args.device_id, main, args)
    elif args.distributed_world_size > 1:
        port = 20000 + os.getpid() % 20000
        args.distributed_init_method = "tcp://localhost:{port}".format(port=port)
        torch.multiprocessing.spawn(
            fn=_spawned, args=(main, args), nprocs=min(torch.cuda.device_count(), args.distributed_world_size)
        )
    else:
        main(args)


def _spawned(i, main, args):
    args.distributed_rank = i
    distributed_main(i, main, args)


def all_reduce_dict(data, device):
    keys = sorted(data)
    buf = torch.tensor([float(data[k]) for k in keys], device=device)
    dist.all_reduce(buf)
    return dict(zip(keys, buf.tolist()))
