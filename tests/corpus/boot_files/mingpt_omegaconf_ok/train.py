import os
import random

import torch
from omegaconf import OmegaConf
from torch.distributed import destroy_process_group, init_process_group
from torch.utils.data import random_split

from mingpt.char_dataset import CharDataset, DataConfig
from mingpt.model import GPT, GPTConfig, OptimizerConfig, create_optimizer
from mingpt.trainer import Trainer, TrainerConfig


def ddp_setup():
    init_process_group(backend="nccl")
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))


def set_seed(seed):
    random.seed(seed)
    torch.manual_seed(seed)
    torch.cuda.manual_seed_all(seed)


def get_train_objs(gpt_cfg: GPTConfig, opt_cfg: OptimizerConfig, data_cfg: DataConfig):
    dataset = CharDataset(data_cfg)
    train_len = int(len(dataset) * data_cfg.train_split)
    train_set, test_set = random_split(dataset, [train_len, len(dataset) - train_len],
                                       generator=torch.Generator().manual_seed(0))
    gpt_cfg.vocab_size = dataset.vocab_size
    gpt_cfg.block_size = dataset.block_size
    model = GPT(gpt_cfg)
    optimizer = create_optimizer(model, opt_cfg)
    return model, optimizer, train_set, test_set


def main():
    here = os.path.dirname(os.path.abspath(__file__))
    cfg = OmegaConf.merge(OmegaConf.load(os.path.join(here, "gpt2_train_cfg.yaml")), OmegaConf.from_cli())
    ddp_setup()
    set_seed(cfg.seed)
    model, optimizer, train_data, test_data = get_train_objs(
        GPTConfig(**cfg.gpt_config), OptimizerConfig(**cfg.optimizer_config), DataConfig(**cfg.data_config))
    trainer = Trainer(TrainerConfig(**cfg.trainer_config), model, optimizer, train_data, test_data)
    trainer.train()
    destroy_process_group()


if __name__ == "__main__":
    main()
