import argparse
import copy
import importlib.util
import os
import os.path as osp
import time

import torch
import torch.distributed as dist

from posekit import HOOKS, build_dataloader, build_dataset, build_model
from posekit.dist_utils import get_dist_info, init_dist
from posekit.runner import Runner


def parse_args():
    parser = argparse.ArgumentParser(description="Train a pose model")
    parser.add_argument("config", help="train config file path")
    parser.add_argument("--work-dir", help="the dir to save logs and models")
    parser.add_argument("--resume-from", help="the checkpoint file to resume from")
    parser.add_argument("--no-validate", action="store_true")
    parser.add_argument("--seed", type=int, default=None, help="random seed")
    parser.add_argument("--launcher", choices=["none", "pytorch", "slurm"], default="none", help="job launcher")
    parser.add_argument("--local_rank", "--local-rank", type=int, default=0)
    args = parser.parse_args()
    if "LOCAL_RANK" not in os.environ:
        os.environ["LOCAL_RANK"] = str(args.local_rank)
    return args


class Config(dict):
    def __getattr__(self, name):
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name)

    @classmethod
    def fromfile(cls, filename):
        spec = importlib.util.spec_from_file_location(osp.splitext(osp.basename(filename))[0], filename)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return cls({k: v for k, v in vars(module).items() if not k.startswith("_")})


def main():
    args = parse_args()
    cfg = Config.fromfile(args.config)
    if args.work_dir is not None:
        cfg["work_dir"] = args.work_dir
    elif cfg.get("work_dir") is None:
        cfg["work_dir"] = osp.join("./work_dirs", osp.splitext(osp.basename(args.config))[0])

    if args.launcher == "none":
        distributed = False
    else:
        distributed = True
        init_dist(args.launcher, **cfg.dist_params)
    rank, world_size = get_dist_info()
    os.makedirs(osp.abspath(cfg.work_dir), exist_ok=True)
    if args.seed is not None:
        torch.manual_seed(args.seed)

    model = build_model(copy.deepcopy(cfg.model)).cuda()
    if distributed:
        model = torch.nn.parallel.DistributedDataParallel(
            model, device_ids=[torch.cuda.current_device()], broadcast_buffers=False, find_unused_parameters=False)
    optimizer = getattr(torch.optim, cfg.optimizer.pop("type"))(model.parameters(), **cfg.optimizer)
    dataset = build_dataset(cfg.data["train"])
    loader = build_dataloader(dataset, cfg.data["samples_per_gpu"], cfg.data["workers_per_gpu"], dist=distributed,
                              shuffle=True, seed=args.seed)
    runner = Runner(model, optimizer, cfg.work_dir, rank, meta={"time": time.strftime("%Y%m%d_%H%M%S")})
    for hook_cfg in cfg.hooks:
        hook_cfg = dict(hook_cfg)
        runner.register_hook(HOOKS.get(hook_cfg.pop("type"))(**hook_cfg))
    if distributed:
        runner.register_hook(HOOKS.get("DistSamplerSeedHook")())
    if not args.no_validate:
        val_loader = build_dataloader(build_dataset(cfg.data["val"]), 1, cfg.data["workers_per_gpu"], dist=distributed,
                                      shuffle=False)
        runner.register_hook(HOOKS.get("EvalHook")(val_loader, interval=cfg.evaluation["interval"]))
    if args.resume_from:
        runner.resume(args.resume_from)
    runner.run(loader, cfg.total_epochs)
    if distributed:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
