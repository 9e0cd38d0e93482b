import itertools
import os

import torch
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, Sampler

from engine import comm, hooks


class TrainingSampler(Sampler):
    """An endless shuffled stream, of which each rank takes its part."""

    def __init__(self, size):
        self.size, self.seed = size, comm.shared_seed()
        self.rank, self.world = comm.get_rank(), comm.get_world_size()

    def __iter__(self):
        yield from itertools.islice(self._indices(), self.rank, None, self.world)

    def _indices(self):
        g = torch.Generator()
        g.manual_seed(self.seed)
        while True:
            yield from torch.randperm(self.size, generator=g).tolist()


class Boxes(Dataset):
    def __len__(self):
        return 5000

    def __getitem__(self, i):
        return torch.rand(32), torch.rand(4)


class PeriodicCheckpointer(hooks.HookBase):
    def __init__(self, trainer, output, period):
        self.trainer, self.output, self.period = trainer, output, period

    def after_step(self):
        if (self.trainer.iter + 1) % self.period == 0:
            model = getattr(self.trainer.model, "module", self.trainer.model)
            torch.save({"model": model.state_dict(), "iter": self.trainer.iter}, os.path.join(self.output, "last.pth"))


class DefaultTrainer:
    def __init__(self, cfg):
        self.cfg, self.start, self.last_loss = cfg, 0, 0.0
        model = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Linear(64, 4)).to("cuda")
        self.optimizer = torch.optim.SGD(model.parameters(), cfg["SOLVER.BASE_LR"])
        if comm.get_world_size() > 1:
            model = DistributedDataParallel(model, device_ids=[comm.get_local_rank()], broadcast_buffers=False)
        self.model = model
        data = Boxes()
        per_gpu = cfg["SOLVER.IMS_PER_BATCH"] // comm.get_world_size()
        self.loader = iter(DataLoader(data, batch_size=per_gpu, sampler=TrainingSampler(len(data)), drop_last=True))
        self.hooks = self.build_hooks()
        for hook in self.hooks:
            hook.trainer = self

    def build_hooks(self):
        return []

    def resume(self, path):
        state = torch.load(path, map_location="cpu")
        getattr(self.model, "module", self.model).load_state_dict(state["model"])
        self.start = state["iter"] + 1

    def train(self):
        for self.iter in range(self.start, self.cfg["SOLVER.MAX_ITER"]):
            x, y = next(self.loader)
            loss = torch.nn.functional.smooth_l1_loss(self.model(x.cuda()), y.cuda())
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            self.last_loss = loss.item()
            for hook in self.hooks:
                hook.after_step()
