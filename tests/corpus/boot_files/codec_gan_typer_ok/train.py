import os
from enum import Enum
from pathlib import Path
from typing import Optional

import torch
import torch.distributed as dist
import torch.nn.functional as F
import typer
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler
from typing_extensions import Annotated

from codec import Codec, Discriminator
from wavs import WavSegments


class Quantizer(str, Enum):
    vq = "vq"
    rvq = "rvq"
    fsq = "fsq"


def hinge_d(real, fake):
    return F.relu(1 - real).mean() + F.relu(1 + fake).mean()


def load_latest(folder: Path, codec, disc, opt_g, opt_d):
    found = sorted(folder.glob("step_*.pt"))
    if not found:
        return 0
    state = torch.load(found[-1], map_location="cpu")
    codec.load_state_dict(state["codec"])
    disc.load_state_dict(state["disc"])
    opt_g.load_state_dict(state["opt_g"])
    opt_d.load_state_dict(state["opt_d"])
    return state["step"]


def train(
    data: Annotated[Path, typer.Option(help="folder with wav files")],
    out: Annotated[Path, typer.Option(help="checkpoints")],
    quantizer: Annotated[Quantizer, typer.Option(case_sensitive=False)] = Quantizer.rvq,
    codebooks: int = 8,
    segment: float = 1.0,
    batch_size: Annotated[int, typer.Option("--batch-size", "-b")] = 16,
    steps: int = 400_000,
    lr: float = 3e-4,
    adversarial: bool = True,
    save_every: int = 5000,
    seed: Optional[int] = None,
):
    """Neural audio codec with an adversarial loss."""
    local_rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local_rank)
    dist.init_process_group("nccl")
    rank = dist.get_rank()
    device = torch.device("cuda", local_rank)
    if seed is not None:
        torch.manual_seed(seed + rank)

    codec = Codec(quantizer.value, codebooks).to(device)
    disc = Discriminator().to(device)
    opt_g = torch.optim.AdamW(codec.parameters(), lr=lr, betas=(0.5, 0.9))
    opt_d = torch.optim.AdamW(disc.parameters(), lr=lr, betas=(0.5, 0.9))
    out.mkdir(parents=True, exist_ok=True)
    step = load_latest(out, codec, disc, opt_g, opt_d)
    codec_ddp = DistributedDataParallel(codec, device_ids=[local_rank], find_unused_parameters=True)
    disc_ddp = DistributedDataParallel(disc, device_ids=[local_rank], broadcast_buffers=False)

    dataset = WavSegments(data, segment)
    sampler = DistributedSampler(dataset, shuffle=True)
    loader = DataLoader(dataset, batch_size=batch_size, sampler=sampler, num_workers=4, drop_last=True)

    epoch = 0
    while step < steps:
        sampler.set_epoch(epoch)
        for wav in loader:
            wav = wav.to(device, non_blocking=True)
            recon, commit = codec_ddp(wav)
            if adversarial:
                d_loss = hinge_d(disc_ddp(wav), disc_ddp(recon.detach()))
                opt_d.zero_grad()
                d_loss.backward()
                opt_d.step()
            g_loss = F.l1_loss(recon, wav) * 10 + commit
            if adversarial:
                g_loss = g_loss - disc(recon).mean()
            opt_g.zero_grad()
            g_loss.backward()
            opt_g.step()
            step += 1
            if rank == 0 and step % 100 == 0:
                typer.echo(f"step {step}: generator {g_loss.item():.4f}")
            if step % save_every == 0:
                if rank == 0:
                    torch.save({"codec": codec.state_dict(), "disc": disc.state_dict(), "opt_g": opt_g.state_dict(),
                                "opt_d": opt_d.state_dict(), "step": step}, out / f"step_{step:08d}.pt")
                dist.barrier()
            if step >= steps:
                break
        epoch += 1
    dist.destroy_process_group()


if __name__ == "__main__":
    typer.run(train)
