"""Pretraining with Composer from a yaml file and key=value words."""
import os
import sys

import torch
from composer import Trainer
from composer.callbacks import LRMonitor, SpeedMonitor
from composer.models import HuggingFaceModel
from composer.utils import dist, get_device, reproducibility
from omegaconf import DictConfig, OmegaConf as om
from streaming import StreamingDataset
from torch.utils.data import DataLoader
from transformers import AutoModelForMaskedLM, AutoTokenizer, DataCollatorForLanguageModeling
from datasets import load_from_disk


def build_streaming(cfg, tokenizer, batch_size):
    dataset = StreamingDataset(remote=cfg.remote, local=cfg.local, shuffle=True, batch_size=batch_size)
    # deals with ranks and epochs itself
    return DataLoader(dataset, batch_size=batch_size, num_workers=cfg.num_workers, drop_last=True,
                      collate_fn=DataCollatorForLanguageModeling(tokenizer))


def build_on_disk(cfg, tokenizer, batch_size):
    dataset = load_from_disk(cfg.local).with_format("torch")
    sampler = dist.get_sampler(dataset, shuffle=cfg.get("shuffle", True), drop_last=True)
    return DataLoader(dataset, batch_size=batch_size, sampler=sampler, num_workers=cfg.num_workers,
                      collate_fn=DataCollatorForLanguageModeling(tokenizer))


BUILDERS = {"streaming": build_streaming, "disk": build_on_disk}


def main(cfg: DictConfig):
    reproducibility.seed_all(cfg.seed)
    dist.initialize_dist(get_device(None), timeout=600.0)
    tokenizer = AutoTokenizer.from_pretrained(cfg.tokenizer_name)
    model = HuggingFaceModel(AutoModelForMaskedLM.from_pretrained(cfg.model_name), tokenizer=tokenizer, use_logits=True)
    batch = cfg.global_train_batch_size // dist.get_world_size()
    loader = BUILDERS[cfg.train_loader.name](cfg.train_loader, tokenizer, batch)
    if dist.get_local_rank() == 0:
        os.makedirs(cfg.train_loader.local, exist_ok=True)
    dist.barrier()
    trainer = Trainer(
        run_name=cfg.run_name,
        seed=cfg.seed,
        model=model,
        train_dataloader=loader,
        optimizers=torch.optim.AdamW(model.parameters(), lr=cfg.lr),
        max_duration=cfg.max_duration,
        callbacks=[SpeedMonitor(window_size=50), LRMonitor()],
        precision=cfg.get("precision", "amp_bf16"),
        save_folder=cfg.get("save_folder"),
        save_interval=cfg.get("save_interval", "1000ba"),
        autoresume=cfg.get("autoresume", False),
    )
    if dist.get_global_rank() == 0:
        print(om.to_yaml(cfg))
    trainer.fit()
    trainer.close()


if __name__ == "__main__":
    yaml_path, args_list = sys.argv[1], sys.argv[2:]
    with open(yaml_path) as f:
        yaml_cfg = om.load(f)
    main(om.merge(yaml_cfg, om.from_cli(args_list)))
