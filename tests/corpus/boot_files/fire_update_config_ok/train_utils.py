import os

import torch
import torch.distributed as dist
from torch.distributed.fsdp import FullStateDictConfig, FullyShardedDataParallel as FSDP, StateDictType


def setup():
    dist.init_process_group("nccl")


def clear_gpu_cache(rank=None):
    if rank == 0:
        print("Clearing GPU cache for all ranks")
    torch.cuda.empty_cache()


def update_config(configs, **kwargs):
    for config in configs:
        for name, value in kwargs.items():
            if hasattr(config, name):
                setattr(config, name, value)
    unknown = [k for k in kwargs if not any(hasattr(c, k) for c in configs)]
    if unknown:
        print(f"Warning: unknown parameters {unknown}")


def save_full_state(model, config, rank):
    policy = FullStateDictConfig(offload_to_cpu=True, rank0_only=True)
    with FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT, policy):
        state = model.state_dict()
    if rank == 0:
        os.makedirs(config.output_dir, exist_ok=True)
        torch.save(state, os.path.join(config.output_dir, "full.pt"))
    dist.barrier()


def train(model, loader, sampler, optimizer, config, local_rank, rank):
    world_size = int(os.environ["WORLD_SIZE"])
    best = float("inf")
    for epoch in range(config.num_epochs):
        sampler.set_epoch(epoch)
        model.train()
        total = torch.zeros((), device=local_rank)
        for step, batch in enumerate(loader):
            tokens = batch[0].to(local_rank)
            logits = model(tokens[:, :-1])
            loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
            loss = loss / config.gradient_accumulation_steps
            total += loss.detach().float()
            loss.backward()
            if (step + 1) % config.gradient_accumulation_steps == 0 or step == len(loader) - 1:
                optimizer.step()
                optimizer.zero_grad()
        if torch.cuda.device_count() > 1:
            dist.all_reduce(total, op=dist.ReduceOp.SUM)
        mean = total.item() / len(loader) / world_size
        if config.save_model and mean < best:
            save_full_state(model, config, rank)
        best = min(best, mean)
        if rank == 0:
            print(f"Epoch {epoch + 1}: train_epoch_loss={mean:.4f}")
