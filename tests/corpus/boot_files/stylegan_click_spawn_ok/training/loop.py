import os

import numpy as np
import torch
import torch.nn.functional as F

from .networks import Discriminator, Generator


class ImageFolder(torch.utils.data.Dataset):
    def __init__(self, path, mirror):
        self.path, self.mirror = path, mirror
        self.names = sorted(os.listdir(path))

    def __len__(self):
        return len(self.names)

    def __getitem__(self, i):
        img = np.load(os.path.join(self.path, self.names[i]))
        if self.mirror and i % 2:
            img = img[:, :, ::-1].copy()
        return torch.from_numpy(img).float()


class InfiniteSampler(torch.utils.data.Sampler):
    def __init__(self, dataset, rank, num_replicas, seed):
        self.dataset, self.rank, self.num_replicas, self.seed = dataset, rank, num_replicas, seed

    def __iter__(self):
        order = np.arange(len(self.dataset))
        np.random.RandomState(self.seed).shuffle(order)
        idx = 0
        while True:
            if idx % self.num_replicas == self.rank:
                yield int(order[idx % order.size])
            idx += 1


def training_loop(rank, num_gpus, run_dir, data, batch_size, r1_gamma, total_kimg, mirror, random_seed, width, lr):
    device = torch.device('cuda', rank)
    torch.cuda.set_device(device)
    torch.manual_seed(random_seed * num_gpus + rank)

    dataset = ImageFolder(data, mirror)
    sampler = InfiniteSampler(dataset, rank=rank, num_replicas=num_gpus, seed=random_seed)
    images = iter(torch.utils.data.DataLoader(dataset, sampler=sampler, batch_size=batch_size // num_gpus))

    G, D = Generator(width).to(device), Discriminator(width).to(device)
    if num_gpus > 1:
        for module in (G, D):
            for param in list(module.parameters()) + list(module.buffers()):
                torch.distributed.broadcast(param.detach(), src=0)
    phases = [('G', G, torch.optim.Adam(G.parameters(), lr, betas=(0, 0.99))),
              ('D', D, torch.optim.Adam(D.parameters(), lr, betas=(0, 0.99)))]

    cur_nimg, tick = 0, 0
    while cur_nimg < total_kimg * 1000:
        real = next(images).to(device)
        for name, module, opt in phases:
            opt.zero_grad(set_to_none=True)
            fake = G(torch.randn(len(real), 64, device=device))
            if name == 'G':
                loss = F.softplus(-D(fake)).mean()
            else:
                loss = F.softplus(D(fake.detach())).mean() + F.softplus(-D(real)).mean() + 0 * r1_gamma
            loss.backward()
            params = [param for param in module.parameters() if param.grad is not None]
            flat = torch.cat([param.grad.flatten() for param in params])
            if num_gpus > 1:
                torch.distributed.all_reduce(flat)
                flat /= num_gpus
            grads = flat.nan_to_num(nan=0, posinf=1e5, neginf=-1e5).split([param.numel() for param in params])
            for param, grad in zip(params, grads):
                param.grad = grad.reshape(param.shape)
            opt.step()
        cur_nimg += batch_size
        tick += 1
        if rank == 0 and tick % 1000 == 0:
            print(f'kimg {cur_nimg / 1e3:<8.1f} loss {loss.item():.4f}')
            torch.save(dict(G=G.state_dict(), D=D.state_dict()), os.path.join(run_dir, f'snapshot-{cur_nimg}.pt'))
