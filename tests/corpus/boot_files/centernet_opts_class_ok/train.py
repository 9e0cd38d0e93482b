from __future__ import absolute_import
from __future__ import division
from __future__ import print_function

import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "lib"))

import torch
import torch.distributed as dist
import torch.utils.data

from opts import opts
from models.model import create_model, load_model, save_model
from trains.train_factory import train_factory
from datasets.dataset_factory import get_dataset


def main(opt):
    torch.manual_seed(opt.seed)
    torch.backends.cudnn.benchmark = not opt.not_cuda_benchmark
    opt.local_rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(opt.local_rank)
    dist.init_process_group(backend="nccl", init_method="env://")
    opt.device = torch.device("cuda", opt.local_rank)
    is_master = dist.get_rank() == 0

    Dataset = get_dataset(opt.dataset, opt.task)
    if is_master:
        print(opt)
        os.makedirs(opt.save_dir, exist_ok=True)

    model = create_model(opt.arch, opt.num_classes, opt.head_conv)
    optimizer = torch.optim.Adam(model.parameters(), opt.lr)
    start_epoch = 0
    if opt.load_model != "":
        model, optimizer, start_epoch = load_model(model, opt.load_model, optimizer, opt.resume, opt.lr, opt.lr_step)

    Trainer = train_factory[opt.task]
    trainer = Trainer(opt, model, optimizer)
    trainer.set_device(opt.local_rank, opt.device)

    train_set = Dataset(opt, "train")
    train_sampler = torch.utils.data.distributed.DistributedSampler(train_set)
    train_loader = torch.utils.data.DataLoader(
        train_set, batch_size=opt.batch_size // dist.get_world_size(), sampler=train_sampler,
        num_workers=opt.num_workers, pin_memory=True, drop_last=True)
    val_loader = torch.utils.data.DataLoader(Dataset(opt, "val"), batch_size=1, shuffle=False, num_workers=1)

    best = 1e10
    for epoch in range(start_epoch + 1, opt.num_epochs + 1):
        train_sampler.set_epoch(epoch)
        log_dict_train = trainer.train(epoch, train_loader)
        if is_master:
            print("epoch: {} | ".format(epoch) + " | ".join("{} {:8f}".format(k, v) for k, v in log_dict_train.items()))
            save_model(os.path.join(opt.save_dir, "model_last.pth"), epoch, model, optimizer)
            if opt.val_intervals > 0 and epoch % opt.val_intervals == 0:
                with torch.no_grad():
                    log_dict_val = trainer.val(epoch, val_loader)
                if log_dict_val[opt.metric] < best:
                    best = log_dict_val[opt.metric]
                    save_model(os.path.join(opt.save_dir, "model_best.pth"), epoch, model)
        dist.barrier()
        if epoch in opt.lr_step:
            lr = opt.lr * (0.1 ** (opt.lr_step.index(epoch) + 1))
            for param_group in optimizer.param_groups:
                param_group["lr"] = lr
    dist.destroy_process_group()


if __name__ == "__main__":
    opt = opts().parse()
    main(opt)
