import argparse
import os

import torch
import torch.nn.functional as F
import torch.optim as optim
from torchvision import models

import hvd_compat as hvd

parser = argparse.ArgumentParser(description='ResNet example (was: Horovod)',
                                 formatter_class=argparse.ArgumentDefaultsHelpFormatter)
parser.add_argument('--batch-size', type=int, default=32)
parser.add_argument('--epochs', type=int, default=90)
parser.add_argument('--base-lr', type=float, default=0.0125)
parser.add_argument('--wd', type=float, default=0.00005)
parser.add_argument('--no-cuda', action='store_true', default=False)
parser.add_argument('--checkpoint-format', default='./checkpoint-{epoch}.pth.tar')
args = parser.parse_args()
args.cuda = not args.no_cuda and torch.cuda.is_available()

hvd.init()
torch.manual_seed(42)
if args.cuda:
    torch.cuda.set_device(hvd.local_rank())
device = torch.device('cuda', hvd.local_rank()) if args.cuda else torch.device('cpu')
verbose = hvd.rank() == 0

model = models.resnet18().to(device)
optimizer = optim.SGD(model.parameters(), lr=args.base_lr * hvd.size(), weight_decay=args.wd)
optimizer = hvd.DistributedOptimizer(optimizer, model.parameters())
hvd.broadcast_parameters(model.state_dict(), root_rank=0)

for epoch in range(args.epochs):
    model.train()
    for _ in range(100):
        x = torch.randn(args.batch_size, 3, 224, 224, device=device)
        y = torch.randint(1000, (args.batch_size,), device=device)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
    mean = hvd.allreduce(loss.detach())
    if verbose:
        print(f'epoch {epoch} loss {mean.item():.4f}')
        torch.save(model.state_dict(), args.checkpoint_format.format(epoch=epoch))
hvd.shutdown()
