import os

import fire
import torch
import torch.distributed as dist
import torch.nn as nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

from configs import fsdp_config, train_config
from policies.wrapping import bfSixteen, get_wrapper
from train_utils import clear_gpu_cache, setup, train, update_config


class Model(nn.Module):
    def __init__(self, dim, layers, vocabulary=32000):
        super().__init__()
        self.embed = nn.Embedding(vocabulary, dim)
        self.layers = nn.ModuleList(nn.TransformerEncoderLayer(dim, 8, batch_first=True) for _ in range(layers))
        self.head = nn.Linear(dim, vocabulary, bias=False)

    def forward(self, tokens):
        h = self.embed(tokens)
        mask = nn.Transformer.generate_square_subsequent_mask(tokens.size(1), device=tokens.device, dtype=h.dtype)
        for layer in self.layers:
            h = layer(h, src_mask=mask, is_causal=True)
        return self.head(h)


def main(**kwargs):
    train_cfg, fsdp_cfg = train_config(), fsdp_config()
    update_config((train_cfg, fsdp_cfg), **kwargs)
    torch.manual_seed(train_cfg.seed)

    setup()
    local_rank = int(os.environ["LOCAL_RANK"])
    rank = int(os.environ["RANK"])
    torch.cuda.set_device(local_rank)
    clear_gpu_cache(local_rank)

    model = Model(train_cfg.model_dim, train_cfg.num_layers)
    if rank == 0:
        print(f"--> {sum(p.numel() for p in model.parameters()) / 1e6} Million params")
    model = FSDP(
        model,
        auto_wrap_policy=get_wrapper(nn.TransformerEncoderLayer),
        mixed_precision=bfSixteen if fsdp_cfg.mixed_precision else None,
        sharding_strategy=fsdp_cfg.sharding_strategy,
        device_id=torch.cuda.current_device(),
        limit_all_gathers=True,
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=train_cfg.lr, weight_decay=0.0)

    tokens = torch.load(train_cfg.tokens_file, map_location="cpu").long()
    length = train_cfg.context_length + 1
    dataset = TensorDataset(tokens[: len(tokens) // length * length].view(-1, length))
    sampler = DistributedSampler(dataset, rank=dist.get_rank(), num_replicas=dist.get_world_size(), shuffle=True)
    loader = DataLoader(dataset, batch_size=train_cfg.batch_size_training, sampler=sampler, drop_last=True,
                        num_workers=train_cfg.num_workers_dataloader, pin_memory=True)
    train(model, loader, sampler, optimizer, train_cfg, local_rank, rank)
    dist.destroy_process_group()


if __name__ == "__main__":
    fire.Fire(main)
