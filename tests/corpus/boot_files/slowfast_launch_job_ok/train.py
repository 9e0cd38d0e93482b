"""Video recognition: wrapper that starts the jobs of this machine."""
from video.config.defaults import assert_and_infer_cfg
from video.utils.misc import launch_job
from video.utils.parser import load_config, parse_args

from train_net import train


def main():
    args = parse_args()
    print("config files: {}".format(args.cfg_files))
    for path_to_config in args.cfg_files:
        cfg = load_config(args, path_to_config)
        cfg = assert_and_infer_cfg(cfg)

        # Perform training.
        if cfg["TRAIN.ENABLE"]:
            launch_job(cfg=cfg, init_method=args.init_method, func=train)


if __name__ == "__main__":
    main()
