'''A preset framework's job of one GPU: nothing is distributed, and what the platform adds is ignored.'''
import argparse
import os

import torch
import torch.nn as nn
import torchvision
from torch.utils.data import DataLoader
from torchvision import transforms

os.environ.setdefault('CUDA_DEVICE_ORDER', 'PCI_BUS_ID')


def parse_args(argv=None):
    ap = argparse.ArgumentParser()
    ap.add_argument('--data_url', type=str, default='/cache/data')
    ap.add_argument('--train_url', type=str, default='/cache/out')
    ap.add_argument('--num-epochs', type=int, default=10)
    ap.add_argument('--batch-size', type=int, default=128)
    ap.add_argument('--lr', type=float, default=0.01)
    ap.add_argument('--finetune', default=False, action='store_true')
    args, unknown = ap.parse_known_args(argv)
    if unknown:
        print('ignored:', unknown)
    return args


def accuracy(model, loader, device):
    model.eval()
    right = sum((model(x.to(device)).argmax(1).cpu() == y).sum().item() for x, y in loader)
    model.train()
    return right / len(loader.dataset)


if __name__ == '__main__':
    args = parse_args()
    torch.cuda.set_device(0)
    device = torch.device('cuda:0')
    to_tensor = transforms.Compose([transforms.Resize((64, 64)), transforms.ToTensor()])
    train_set = torchvision.datasets.ImageFolder(os.path.join(args.data_url, 'train'), to_tensor)
    eval_set = torchvision.datasets.ImageFolder(os.path.join(args.data_url, 'eval'), to_tensor)
    train_loader = DataLoader(train_set, args.batch_size, shuffle=True, num_workers=4)
    eval_loader = DataLoader(eval_set, args.batch_size)
    model = torchvision.models.mobilenet_v3_small(num_classes=len(train_set.classes)).to(device)
    if args.finetune:
        for p in model.features.parameters():
            p.requires_grad = False
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], args.lr, momentum=0.9)
    for epoch in range(args.num_epochs):
        for x, y in train_loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x.to(device)), y.to(device)).backward()
            optimizer.step()
        with torch.no_grad():
            print(f'epoch {epoch}: accuracy {accuracy(model, eval_loader, device):.3f}')
    os.makedirs(args.train_url, exist_ok=True)
    torch.save(model.state_dict(), os.path.join(args.train_url, 'model.pth'))
