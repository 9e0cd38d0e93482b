"""Checkpoints that a killed training can go on from: written whole or not at all, read by one rank for all."""

import os
import signal
from pathlib import Path

import torch
import torch.distributed as dist

KEPT = 2  # a newer one may be damaged by a full disk: the one before is still there


class StopAsked:
    """Remember that somebody asked this process to end (SIGTERM), until all ranks can save and leave together."""

    def __init__(self):
        self.asked = False
        signal.signal(signal.SIGTERM, self._remember)

    def _remember(self, number, frame):
        self.asked = True

    def by_any_rank(self, device):
        """Return the same answer on every rank: whether one of them was asked. Every rank must call it."""
        asked = torch.tensor(float(self.asked), device=device)
        dist.all_reduce(asked, op=dist.ReduceOp.MAX)
        return bool(asked.item())


def save(folder, step, **parts):
    """Write the state of `parts` (model=…, optimizer=…) after a step; rank 0 does, the others return at once."""
    if not folder or dist.get_rank() != 0:
        return
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    temporary = folder / f"unfinished-{os.getpid()}"
    with temporary.open("wb") as stream:
        torch.save({"step": step, **{name: part.state_dict() for name, part in parts.items()}}, stream)
        stream.flush()
        os.fsync(stream.fileno())
    temporary.replace(folder / f"step-{step:09d}.pt")  # until here the one before is the newest, and now this one is
    for old in _files(folder)[:-KEPT]:
        old.unlink()
    for unfinished in folder.glob("unfinished-*"):  # what a killed process left
        unfinished.unlink()


def load(folder, **parts):
    """Give `parts` the newest state that was saved, the same on every rank; return the step it was saved after, or 0.

    Rank 0 reads it and sends it to the others: their nodes may have no copy of the folder, or an older one.
    """
    found = [_newest(Path(folder)) if folder and dist.get_rank() == 0 else None]
    dist.broadcast_object_list(found)
    state = found[0]
    if state is None:
        return 0
    for name, part in parts.items():
        part.load_state_dict(state[name])
    return state["step"]


def _newest(folder):
    for file in reversed(_files(folder)):
        try:
            return torch.load(file, map_location="cpu", weights_only=True)
        except Exception as problem:  # whatever a damaged file makes torch raise
            print(f"{file} cannot be read ({problem}): trying the one before", flush=True)
    return None


def _files(folder):
    """Return the checkpoints, the oldest first."""
    return sorted(folder.glob("step-*.pt"))
