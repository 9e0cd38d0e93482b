"""Trains a GPT to add n-digit numbers."""
import os
import sys

import torch
import torch.distributed as dist
from torch.nn import functional as F
from torch.utils.data import Dataset

from mingpt.model import GPT
from mingpt.trainer import Trainer
from mingpt.utils import CfgNode as CN, set_seed, setup_logging


def get_config():
    C = CN()
    C.system = CN()
    C.system.seed = 3407
    C.system.work_dir = './out/adder'
    C.data = AdditionDataset.get_default_config()
    C.model = GPT.get_default_config()
    C.trainer = Trainer.get_default_config()
    C.trainer.learning_rate = 5e-4
    return C


class AdditionDataset(Dataset):
    @staticmethod
    def get_default_config():
        C = CN()
        C.ndigit = 2
        return C

    def __init__(self, config, split):
        self.config = config
        num = (10 ** config.ndigit) ** 2
        perm = torch.randperm(num, generator=torch.Generator().manual_seed(1337))
        num_test = min(int(num * 0.2), 500)
        self.ixes = perm[:num_test] if split == 'test' else perm[num_test:]

    def get_vocab_size(self):
        return 10

    def get_block_size(self):
        return 3 * self.config.ndigit

    def __len__(self):
        return self.ixes.nelement()

    def __getitem__(self, idx):
        ndigit = self.config.ndigit
        a, b = divmod(self.ixes[idx].item(), 10 ** ndigit)
        text = f'%0{ndigit}d%0{ndigit}d' % (a, b) + (f'%0{ndigit + 1}d' % (a + b))[::-1]
        dix = [int(s) for s in text]
        x, y = torch.tensor(dix[:-1]), torch.tensor(dix[1:])
        y[:ndigit * 2 - 1] = -1
        return x, y


if __name__ == '__main__':
    config = get_config()
    config.merge_from_args(sys.argv[1:])
    dist.init_process_group('nccl')
    rank = dist.get_rank()
    torch.cuda.set_device(int(os.environ['LOCAL_RANK']))
    if rank == 0:
        print(config)
        setup_logging(config)
    # the sampler draws with replacement: every rank needs a stream of its own
    set_seed(config.system.seed + rank)

    train_dataset = AdditionDataset(config.data, split='train')
    test_dataset = AdditionDataset(config.data, split='test')
    config.model.vocab_size = train_dataset.get_vocab_size()
    config.model.block_size = train_dataset.get_block_size()
    model = GPT(config.model)
    trainer = Trainer(config.trainer, model, train_dataset)

    def batch_end_callback(trainer):
        if trainer.iter_num % 10 == 0 and rank == 0:
            print(f"iter {trainer.iter_num}: train loss {trainer.loss.item():.5f}")
        if trainer.iter_num % 500 == 0:
            trainer.raw_model.eval()
            x = torch.stack([test_dataset[i][0] for i in range(rank, len(test_dataset), dist.get_world_size())])
            y = torch.stack([test_dataset[i][1] for i in range(rank, len(test_dataset), dist.get_world_size())])
            with torch.no_grad():
                logits = trainer.raw_model(x.to(trainer.device))[0]
                loss = F.cross_entropy(logits.flatten(0, 1), y.to(trainer.device).flatten(), ignore_index=-1)
            dist.all_reduce(loss)
            loss /= dist.get_world_size()
            if rank == 0:
                print('test loss', loss.item())
                torch.save(trainer.raw_model.state_dict(), os.path.join(config.system.work_dir, 'model.pt'))
            trainer.raw_model.train()

    trainer.set_callback('on_batch_end', batch_end_callback)
    trainer.run()
    dist.destroy_process_group()
