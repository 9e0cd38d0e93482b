"""Train nets by config: adapted to a platform that starts one process per machine."""
import argparse
import logging
import os

import torch

from engine import comm
from engine.defaults import default_setup, get_cfg
from engine.launch import launch
from engine.train_loop import DefaultTrainer, PeriodicCheckpointer, hooks

logger = logging.getLogger("engine.trainer")


class Trainer(DefaultTrainer):
    def build_hooks(self):
        found = [hooks.IterationTimer(), hooks.LRScheduler(self.optimizer, self.cfg["SOLVER.MAX_ITER"])]
        if comm.is_main_process():
            found.append(PeriodicCheckpointer(self, self.cfg["OUTPUT_DIR"], self.cfg["SOLVER.CHECKPOINT_PERIOD"]))
        found.append(hooks.EvalHook(self.cfg["TEST.EVAL_PERIOD"], self.test))
        return found

    def test(self):
        losses = comm.gather(float(self.last_loss))
        if not comm.is_main_process():
            return {}
        results = {"loss": sum(losses) / len(losses)}
        logger.info("eval %s", results)
        return results


def argument_parser():
    parser = argparse.ArgumentParser(epilog="config keys go last: KEY VALUE")
    parser.add_argument("--config-file", default="", metavar="FILE", help="path to config file")
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--eval-only", action="store_true")
    parser.add_argument("--num-gpus", type=int, default=torch.cuda.device_count(), help="GPUs *per machine*")
    parser.add_argument("--num-machines", "--world_size", type=int, default=1)
    parser.add_argument("--machine-rank", "--rank", type=int, default=0)
    parser.add_argument("--dist-url", "--init_method", default="tcp://127.0.0.1:29501", type=str)
    parser.add_argument("opts", default=None, nargs=argparse.REMAINDER)
    return parser


def setup(args):
    cfg = get_cfg()
    if args.config_file:
        cfg.merge_from_file(args.config_file)
    cfg.merge_from_list(args.opts)
    default_setup(cfg)
    return cfg


def main(args):
    cfg = setup(args)
    trainer = Trainer(cfg)
    if args.resume:
        trainer.resume(os.path.join(cfg["OUTPUT_DIR"], "last.pth"))
    if args.eval_only:
        return trainer.test()
    return trainer.train()


if __name__ == "__main__":
    args = argument_parser().parse_args()
    print("Command Line Args:", args)
    launch(
        main,
        args.num_gpus,
        num_machines=args.num_machines,
        machine_rank=args.machine_rank,
        dist_url=args.dist_url,
        args=(args,),
    )
