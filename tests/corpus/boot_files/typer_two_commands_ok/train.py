import os
from enum import Enum
from pathlib import Path
from typing import Optional

import torch
import torch.distributed as dist
import typer
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler

app = typer.Typer(help="Denoise signals.", no_args_is_help=True)


class Noise(str, Enum):
    gauss = "gauss"
    salt = "salt"


class Signals(Dataset):
    def __init__(self, folder: Path, noise: Noise):
        self.names, self.noise = sorted(folder.glob("*.pt")), noise

    def __len__(self):
        return len(self.names)

    def __getitem__(self, i):
        clean = torch.load(self.names[i], map_location="cpu")
        if self.noise is Noise.gauss:
            return clean + 0.1 * torch.randn_like(clean), clean
        return torch.where(torch.rand_like(clean) < 0.05, torch.ones_like(clean), clean), clean


def network(width: int) -> nn.Module:
    return nn.Sequential(nn.Conv1d(1, width, 9, padding=4), nn.ReLU(), nn.Conv1d(width, 1, 9, padding=4))


@app.command()
def fit(
    folder: Path = typer.Option(..., help="clean signals"),
    output: Path = typer.Option(Path("/out"), "--output", "-o"),
    noise: Noise = Noise.gauss,
    batch_size: int = 16,
    epochs: int = typer.Option(4, min=1),
    learning_rate: float = 1e-3,
    resume_from: Optional[Path] = None,
    amp: bool = False,
):
    """Train; start this with torchrun."""
    local_rank = int(os.environ["LOCAL_RANK"])
    device = torch.device("cuda", local_rank)
    torch.cuda.set_device(device)
    dist.init_process_group("nccl")
    rank = dist.get_rank()
    model = network(32).to(device)
    if resume_from is not None:
        model.load_state_dict(torch.load(resume_from, map_location=device))
    ddp = DistributedDataParallel(model, device_ids=[local_rank])
    optimizer = torch.optim.Adam(ddp.parameters(), lr=learning_rate)
    signals = Signals(folder, noise)
    sampler = DistributedSampler(signals, shuffle=True)
    loader = DataLoader(signals, batch_size, sampler=sampler, num_workers=4)
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        for noisy, clean in loader:
            with torch.autocast("cuda", torch.bfloat16, enabled=amp):
                loss = nn.functional.l1_loss(ddp(noisy.to(device)), clean.to(device))
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
        if rank == 0:
            typer.echo(f"epoch {epoch}: {loss.item():.4f}")
            torch.save(model.state_dict(), output / "denoise.pt")
    dist.destroy_process_group()


@app.command("export")
def export_(weights: Path, target: Path = Path("model.ts")):
    """Write TorchScript."""
    model = network(32)
    model.load_state_dict(torch.load(weights, map_location="cpu"))
    torch.jit.script(model).save(str(target))


if __name__ == "__main__":
    app()
