import os

import torch
import torch.nn.functional as F

from video.datasets import loader
from video.models.build import build_model
from video.utils import distributed as du


def train_epoch(train_loader, model, optimizer, cur_epoch, cfg):
    model.train()
    for cur_iter, (inputs, labels) in enumerate(train_loader):
        inputs, labels = inputs.cuda(non_blocking=True), labels.cuda()
        loss = F.cross_entropy(model(inputs), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if cfg["NUM_GPUS"] > 1:
            [loss] = du.all_reduce([loss.detach()])
        if du.is_master_proc() and cur_iter % cfg["LOG_PERIOD"] == 0:
            print(f"epoch {cur_epoch} iter {cur_iter} loss {loss.item():.4f}")


def train(cfg):
    torch.manual_seed(cfg["RNG_SEED"])
    model = build_model(cfg)
    optimizer = torch.optim.SGD(model.parameters(), lr=cfg["SOLVER.BASE_LR"], momentum=0.9)
    train_loader = loader.construct_loader(cfg, "train")
    for cur_epoch in range(cfg["SOLVER.MAX_EPOCH"]):
        # Shuffle the dataset.
        loader.shuffle_dataset(train_loader, cur_epoch)
        train_epoch(train_loader, model, optimizer, cur_epoch, cfg)
        if du.is_master_proc():
            os.makedirs(cfg["OUTPUT_DIR"], exist_ok=True)
            net = model.module if cfg["NUM_GPUS"] > 1 else model
            torch.save(net.state_dict(), os.path.join(cfg["OUTPUT_DIR"], f"checkpoint_epoch_{cur_epoch:05d}.pyth"))
