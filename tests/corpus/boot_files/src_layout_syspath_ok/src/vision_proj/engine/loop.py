import os

import torch
import torch.distributed as dist


def save(model, path):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    torch.save(model.module.state_dict(), path)


def reduce_mean(value):
    value = value.detach().clone()
    dist.reduce(value, dst=0)
    if dist.get_rank() == 0:
        value /= dist.get_world_size()
    return value


def fit(model, loader, sampler, args):
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9)
    step = 0
    for epoch in range(args.epochs):
        if hasattr(sampler, "set_epoch"):
            sampler.set_epoch(epoch)
        for images, targets in loader:
            loss = torch.nn.functional.cross_entropy(model(images.cuda()), targets.cuda())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            if step % 50 == 0:
                mean = reduce_mean(loss)
                if dist.get_rank() == 0:
                    print(f"[{epoch}] {step} {mean.item():.4f}")
