import argparse
import os

import torch
from torch.distributed import destroy_process_group, init_process_group
from torch.utils.data import random_split

from char_dataset import CharDataset
from trainer import Trainer, TrainerConfig
from net import TinyGPT


def ddp_setup():
    init_process_group(backend="nccl")
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))


def get_train_objs(path, lr):
    dataset = CharDataset(path, block_size=128)
    cut = int(len(dataset) * 0.9)
    train_set, test_set = random_split(dataset, [cut, len(dataset) - cut])
    model = TinyGPT(dataset.vocab_size, 128)
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr)
    return model, optimizer, train_set, test_set


def main(opts):
    ddp_setup()
    cfg = TrainerConfig(max_epochs=opts.max_epochs, grad_norm_clip=opts.grad_norm_clip,
                        snapshot_path=opts.snapshot_path)
    model, optimizer, train_set, test_set = get_train_objs(opts.data, opts.lr)
    trainer = Trainer(cfg, model, optimizer, train_set, test_set)
    trainer.train()
    destroy_process_group()


if __name__ == "__main__":
    ap = argparse.ArgumentParser()
    ap.add_argument("--data", default="data/input.txt")
    ap.add_argument("--snapshot_path", required=True)
    ap.add_argument("--max-epochs", type=int, default=10)
    ap.add_argument("--grad-norm-clip", type=float, default=1.0)
    ap.add_argument("--lr", type=float, default=3e-4)
    main(ap.parse_args())
