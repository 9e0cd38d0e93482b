import argparse
import os
import os.path as osp
import time

from engine.config import Config, DictAction
from engine.runner import Runner
from models import build_detector


def parse_args():
    parser = argparse.ArgumentParser(description='Train a detector')
    parser.add_argument('config', help='train config file path')
    parser.add_argument('--work-dir', help='the dir to save logs and models')
    parser.add_argument('--amp', action='store_true', default=False, help='enable mixed precision')
    parser.add_argument('--auto-scale-lr', action='store_true', help='scale the learning rate by the total batch')
    parser.add_argument('--resume', nargs='?', type=str, const='auto', help='resume from a path, or the latest')
    parser.add_argument('--cfg-options', nargs='+', action=DictAction, help='override settings: key=value')
    parser.add_argument('--launcher', choices=['none', 'pytorch', 'slurm', 'mpi'], default='none')
    # torch >= 2 passes --local-rank, older launchers --local_rank
    parser.add_argument('--local_rank', '--local-rank', type=int, default=0)
    args = parser.parse_args()
    if 'LOCAL_RANK' not in os.environ:
        os.environ['LOCAL_RANK'] = str(args.local_rank)
    return args


def main():
    args = parse_args()
    cfg = Config.fromfile(args.config)
    cfg.launcher = args.launcher
    if args.cfg_options is not None:
        cfg.merge_from_dict(args.cfg_options)
    if args.work_dir is not None:
        cfg.work_dir = args.work_dir
    elif cfg.get('work_dir', None) is None:
        cfg.work_dir = osp.join('./work_dirs', osp.splitext(osp.basename(args.config))[0])
    if args.amp:
        cfg.optim_wrapper['type'] = 'AmpOptimWrapper'
    if args.auto_scale_lr:
        cfg.auto_scale_lr['enable'] = True
    if args.resume == 'auto':
        cfg.resume, cfg.load_from = True, None
    elif args.resume is not None:
        cfg.resume, cfg.load_from = True, args.resume
    cfg.timestamp = time.strftime('%Y%m%d_%H%M%S')

    runner = Runner.from_cfg(cfg, build_detector)
    try:
        runner.train()
    finally:
        runner.close()


if __name__ == '__main__':
    main()
