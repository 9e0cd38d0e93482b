import os
from pathlib import Path

import torch


class Snapshots:
    def __init__(self, folder, rank):
        self.path = Path(folder) / "snapshot.pt"
        self.rank = rank
        if rank == 0:
            self.path.parent.mkdir(parents=True, exist_ok=True)

    def restore(self, model, optimizer, where):
        if not self.path.exists():
            return 0
        state = torch.load(self.path, map_location=where)
        model.module.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        return state["epoch"] + 1

    def keep(self, model, optimizer, epoch):
        if self.rank != 0:
            return
        partial = self.path.with_suffix(".partial")
        torch.save({"model": model.module.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch}, partial)
        os.replace(partial, self.path)
