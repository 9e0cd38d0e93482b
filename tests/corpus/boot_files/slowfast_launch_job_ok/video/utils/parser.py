import argparse

import yaml

from video.config.defaults import get_cfg


def parse_args():
    parser = argparse.ArgumentParser(description="Provide video training pipeline.")
    parser.add_argument("--shard_id", "--rank", help="The shard id of current node, from 0 to num_shards - 1",
                        default=0, type=int)
    parser.add_argument("--num_shards", "--world_size", help="Number of shards using by the job", default=1, type=int)
    parser.add_argument("--init_method", help="Initialization method, includes TCP or shared file-system",
                        default="tcp://localhost:9999", type=str)
    parser.add_argument("--cfg", dest="cfg_files", help="Path to the config files",
                        default=["configs/slow_8x8.yaml"], nargs="+")
    parser.add_argument("opts", help="See defaults.py for all options", default=None, nargs=argparse.REMAINDER)
    return parser.parse_args()


def load_config(args, path_to_config=None):
    cfg = get_cfg()
    if path_to_config is not None:
        with open(path_to_config) as f:
            cfg.update(yaml.safe_load(f))
    if args.opts is not None:
        for key, value in zip(args.opts[::2], args.opts[1::2]):
            cfg[key] = yaml.safe_load(value)
    # Inherit parameters from args.
    cfg["NUM_SHARDS"], cfg["SHARD_ID"] = args.num_shards, args.shard_id
    return cfg
