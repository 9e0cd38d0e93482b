import logging
import os

import hydra
import torch
import torch.distributed as dist
from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf

log = logging.getLogger(__name__)


def setup():
    local_rank = int(os.environ.get("LOCAL_RANK", "0"))
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        torch.cuda.set_device(local_rank)
        dist.init_process_group("nccl")
    return local_rank


def average_parameters(model):
    """local SGD: average weights every few steps"""
    for p in model.parameters():
        dist.all_reduce(p.data)
        p.data /= dist.get_world_size()


@hydra.main(version_base=None, config_path="conf", config_name="config")
def main(cfg: DictConfig):
    local_rank = setup()
    if local_rank == 0:
        log.info(OmegaConf.to_yaml(cfg))
    model = instantiate(cfg.model).cuda(local_rank)
    opt = instantiate(cfg.optim, params=model.parameters())
    for epoch in range(cfg.epochs):
        for _ in range(cfg.steps):
            loss = model(torch.randn(8, cfg.dim, device=f"cuda:{local_rank}")).pow(2).mean()
            opt.zero_grad()
            loss.backward()
            opt.step()
        if dist.is_initialized():
            average_parameters(model)
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
