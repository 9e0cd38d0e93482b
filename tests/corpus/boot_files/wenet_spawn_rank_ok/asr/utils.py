import logging
from contextlib import nullcontext

import torch
import torch.nn.functional as F


def load_checkpoint(model, path):
    checkpoint = torch.load(path, map_location='cpu')
    model.load_state_dict(checkpoint['model'])
    return checkpoint.get('infos', {})


def save_checkpoint(model, path, infos):
    if isinstance(model, torch.nn.parallel.DistributedDataParallel):
        model = model.module
    torch.save({'model': model.state_dict(), 'infos': infos}, path)


class Executor:
    def __init__(self):
        self.step = 0

    def train(self, model, optimizer, loader, device, configs, rank):
        model.train()
        accum = configs.get('accum_grad', 1)
        with model.join():  # ranks may have different numbers of batches
            for i, (feats, target) in enumerate(loader):
                context = model.no_sync if (i + 1) % accum else nullcontext
                with context():
                    loss = F.cross_entropy(model(feats.to(device)), target.to(device)) / accum
                    loss.backward()
                if (i + 1) % accum == 0:
                    torch.nn.utils.clip_grad_norm_(model.parameters(), configs['grad_clip'])
                    optimizer.step()
                    optimizer.zero_grad()
                    self.step += 1
                if rank == 0 and i % 100 == 0:
                    logging.debug('batch %d loss %.3f', i, loss.item() * accum)

    def cv(self, model, loader, device):
        model.eval()
        total, seen = 0.0, 0
        with torch.no_grad():
            for feats, target in loader:
                loss = F.cross_entropy(model.module(feats.to(device)), target.to(device))
                total, seen = total + loss.item() * len(target), seen + len(target)
        return total, seen
