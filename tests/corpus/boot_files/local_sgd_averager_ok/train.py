import argparse
import os

import torch
import torch.distributed as dist
import torch.distributed.algorithms.model_averaging.averagers as averagers
from torch.distributed.algorithms.ddp_comm_hooks.post_localSGD_hook import PostLocalSGDState, post_localSGD_hook
from torch.distributed.optim import PostLocalSGDOptimizer
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler
from torchvision import datasets, models, transforms


def average_metrics(values, device):
    t = torch.tensor(values, device=device)
    dist.all_reduce(t)
    return (t / dist.get_world_size()).tolist()


def main(args):
    local_rank = int(os.environ["LOCAL_RANK"])
    device = torch.device(f"cuda:{local_rank}")
    torch.cuda.set_device(device)
    dist.init_process_group(backend=args.backend)
    model = models.mobilenet_v3_small(num_classes=args.classes).to(device)
    model = DDP(model, device_ids=[local_rank], gradient_as_bucket_view=True)
    # up to this step gradients are averaged by DDP, after it weights are, every few steps
    state = PostLocalSGDState(process_group=None, subgroup=None, start_localSGD_iter=args.warmup)
    model.register_comm_hook(state, post_localSGD_hook)
    optimizer = PostLocalSGDOptimizer(
        optim=torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9),
        averager=averagers.PeriodicModelAverager(period=args.period, warmup_steps=args.warmup),
    )
    transform = transforms.Compose([transforms.RandomResizedCrop(160), transforms.ToTensor()])
    dataset = datasets.ImageFolder(args.data, transform)
    sampler = DistributedSampler(dataset, drop_last=True)
    loader = DataLoader(dataset, batch_size=args.batch_size, sampler=sampler, num_workers=args.workers, pin_memory=True)
    for epoch in range(args.epochs):
        loader.sampler.set_epoch(epoch)
        for step, (x, y) in enumerate(loader):
            loss = torch.nn.functional.cross_entropy(model(x.to(device)), y.to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if step % 100 == 0:
                (mean,) = average_metrics([loss.item()], device)
                if dist.get_rank() == 0:
                    print(f"epoch {epoch} step {step} loss {mean:.4f}")
        if dist.get_rank() == 0:
            torch.save(model.module.state_dict(), args.checkpoint)
    dist.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("data", nargs="?", default="/data/train")
    parser.add_argument("--backend", choices=["nccl", "gloo"], default="nccl")
    parser.add_argument("--classes", type=int, default=1000)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--period", type=int, default=4)
    parser.add_argument("--warmup", type=int, default=500)
    parser.add_argument("--checkpoint", default="/out/model.pt")
    main(parser.parse_args())
