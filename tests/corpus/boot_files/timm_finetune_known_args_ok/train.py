""" Fine-tuning of a timm backbone. What we do not know goes on to the model's constructor as key=value. """
import argparse
import os

import timm
import torch
import torch.distributed as dist
from timm.data import create_transform, resolve_data_config
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler
from torchvision.datasets import ImageFolder


def parse():
    p = argparse.ArgumentParser(formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    p.add_argument('--data-dir', required=True)
    p.add_argument('--model', default='vit_small_patch16_224')
    p.add_argument('--num-classes', type=int, default=10)
    p.add_argument('--batch-size', type=int, default=64)
    p.add_argument('--learning-rate', type=float, default=1e-4)
    p.add_argument('--epochs', type=int, default=10)
    p.add_argument('--workers', type=int, default=4)
    p.add_argument('--smoothing', type=float, default=0.1)
    p.add_argument('--freeze', action='store_true')
    p.add_argument('--out', default='finetuned.pth')
    args, rest = p.parse_known_args()
    extra = dict(word[2:].split('=', 1) for word in rest if word.startswith('--model_') and '=' in word)
    return args, {k.removeprefix('model_'): float(v) for k, v in extra.items()}


def main():
    args, model_kwargs = parse()
    dist.init_process_group('nccl')
    local_rank = int(os.environ['LOCAL_RANK'])
    torch.cuda.set_device(local_rank)

    model = timm.create_model(args.model, pretrained=False, num_classes=args.num_classes, **model_kwargs).cuda()
    if args.freeze:
        for name, p in model.named_parameters():
            p.requires_grad = name.startswith(('head', 'fc', 'classifier'))
    config = resolve_data_config({}, model=model)
    train_set = ImageFolder(os.path.join(args.data_dir, 'train'), create_transform(**config, is_training=True))
    sampler = DistributedSampler(train_set, drop_last=True)
    loader = DataLoader(train_set, args.batch_size, sampler=sampler, num_workers=args.workers, pin_memory=True)
    model = DDP(model, device_ids=[local_rank])
    criterion = torch.nn.CrossEntropyLoss(label_smoothing=args.smoothing)
    optimizer = torch.optim.AdamW((p for p in model.parameters() if p.requires_grad), lr=args.learning_rate)

    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        running = torch.zeros(2, device='cuda')
        for images, labels in loader:
            loss = criterion(model(images.cuda(non_blocking=True)), labels.cuda(non_blocking=True))
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            running += torch.stack([loss.detach(), torch.ones_like(loss)])
        dist.all_reduce(running)
        if dist.get_rank() == 0:
            print(f'epoch {epoch}: {running[0].item() / running[1].item():.4f}')
    if dist.get_rank() == 0:
        torch.save(model.module.state_dict(), args.out)
    dist.destroy_process_group()


if __name__ == '__main__':
    main()
