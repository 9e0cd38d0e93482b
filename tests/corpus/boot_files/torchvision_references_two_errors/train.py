import datetime
import os
import time

import torch
import torch.utils.data
import torchvision
from torch import nn

import utils


def train_one_epoch(model, criterion, optimizer, loader, device, epoch, args):
    model.train()
    metric = utils.SmoothedValue()
    for i, (image, target) in enumerate(loader):
        image, target = image.to(device), target.to(device)
        loss = criterion(model(image), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        metric.update(loss.item(), image.shape[0])
        if i % args.print_freq == 0:
            print(f"Epoch: [{epoch}] {metric}")


def evaluate(model, criterion, loader, device):
    model.eval()
    metric = utils.SmoothedValue()
    with torch.inference_mode():
        for image, target in loader:
            image = image.to(device)
            metric.update(criterion(model(image), target.to(device)).item(), image.shape[0])
    metric.synchronize_between_processes()
    return metric.global_avg


def load_data(traindir, valdir, args):
    tf = torchvision.transforms.ToTensor()
    dataset = torchvision.datasets.ImageFolder(traindir, tf)
    dataset_test = torchvision.datasets.ImageFolder(valdir, tf)
    if args.distributed:
        train_sampler = torch.utils.data.distributed.DistributedSampler(dataset)
        test_sampler = torch.utils.data.distributed.DistributedSampler(dataset_test, shuffle=False)
    else:
        train_sampler = torch.utils.data.RandomSampler(dataset)
        test_sampler = torch.utils.data.SequentialSampler(dataset_test)
    return dataset, dataset_test, train_sampler, test_sampler


def main(args):
    if args.output_dir:
        utils.mkdir(args.output_dir)
    utils.init_distributed_mode(args)
    device = torch.device(args.device)
    dataset, dataset_test, train_sampler, test_sampler = load_data(
        os.path.join(args.data_path, "train"), os.path.join(args.data_path, "val"), args)
    loader = torch.utils.data.DataLoader(dataset, batch_size=args.batch_size, sampler=train_sampler)
    loader_test = torch.utils.data.DataLoader(dataset_test, batch_size=args.batch_size, sampler=test_sampler)
    model = torchvision.models.get_model(args.model).to(device)
    model_without_ddp = model
    if args.distributed:
        model = torch.nn.parallel.DistributedDataParallel(model, device_ids=[args.gpu])
        model_without_ddp = model.module
    criterion = nn.CrossEntropyLoss(label_smoothing=args.label_smoothing)
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr)
    if args.test_only:
        evaluate(model, criterion, loader_test, device)
        utils.cleanup(args)
        return
    start = time.time()
    for epoch in range(args.start_epoch, args.epochs):
        if args.distributed:
            train_sampler.set_epoch(epoch)
        train_one_epoch(model, criterion, optimizer, loader, device, epoch, args)
        evaluate(model, criterion, loader_test, device)
        if args.output_dir:
            utils.save_on_master({"model": model_without_ddp.state_dict()}, os.path.join(args.output_dir, "ck.pth"))
    print("Training time", str(datetime.timedelta(seconds=int(time.time() - start))))
    utils.cleanup(args)


def get_args_parser(add_help=True):
    import argparse

    parser = argparse.ArgumentParser(description="PyTorch Classification Training", add_help=add_help)
    parser.add_argument("--data-path", default="/datasets01/imagenet_full_size/061417/", type=str)
    parser.add_argument("--model", default="resnet18", type=str)
    parser.add_argument("--device", default="cuda", type=str)
    parser.add_argument("-b", "--batch-size", default=32, type=int)
    parser.add_argument("--epochs", default=90, type=int, metavar="N")
    parser.add_argument("--lr", default=0.1, type=float)
    parser.add_argument("--label-smoothing", default=0.0, type=float, dest="label_smoothing")
    parser.add_argument("--lr-scheduler", default="steplr", type=str)
    parser.add_argument("--print-freq", default=10, type=int)
    parser.add_argument("--output-dir", default=".", type=str)
    parser.add_argument("--start-epoch", default=0, type=int, metavar="N")
    parser.add_argument("--test-only", dest="test_only", action="store_true")
    parser.add_argument("--world-size", default=1, type=int)
    parser.add_argument("--dist-url", default="env://", type=str)
    return parser


if __name__ == "__main__":
    args = get_args_parser().parse_args()
    main(args)
