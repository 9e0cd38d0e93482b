import os

import hydra
import torch
import torch.distributed as dist
from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf

from src.loop import Loop


def setup_distributed():
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl")


@hydra.main(version_base="1.3", config_path="conf", config_name="config")
def main(cfg: DictConfig) -> None:
    setup_distributed()
    torch.manual_seed(cfg.get("seed", 0))
    if dist.get_rank() == 0:
        print(OmegaConf.to_yaml(cfg, resolve=True))
    loop = Loop(cfg, instantiate(cfg.model), instantiate(cfg.optimizer))
    loop.fit()
    loop.save(cfg.get("output", "/out/model.pt"))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
