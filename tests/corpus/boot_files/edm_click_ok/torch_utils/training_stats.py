import torch

_rank = 0
_sync_device = None
_sums = {}


def init_multiprocessing(rank, sync_device):
    global _rank, _sync_device
    _rank, _sync_device = rank, sync_device


def report(name, value):
    total, count = _sums.get(name, (0.0, 0))
    _sums[name] = (total + float(value.sum()), count + value.numel())


def collect():
    names = sorted(_sums)
    deltas = torch.tensor([_sums[name] for name in names], dtype=torch.float64, device=_sync_device or "cpu")
    if _sync_device is not None:
        torch.distributed.all_reduce(deltas)
    _sums.clear()
    return {name: (total / max(count, 1)) for name, (total, count) in zip(names, deltas.tolist())}
