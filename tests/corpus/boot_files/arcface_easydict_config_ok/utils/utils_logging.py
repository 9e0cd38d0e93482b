import logging
import os
import sys


class AverageMeter(object):
    def __init__(self):
        self.reset()

    def reset(self):
        self.avg = self.sum = self.count = 0

    def update(self, val, n=1):
        self.sum += val * n
        self.count += n
        self.avg = self.sum / self.count


def init_logging(rank, models_root):
    if rank == 0:
        log_root = logging.getLogger()
        log_root.setLevel(logging.INFO)
        formatter = logging.Formatter("Training: %(asctime)s-%(message)s")
        for handler in (logging.FileHandler(os.path.join(models_root, "training.log")), logging.StreamHandler(sys.stdout)):
            handler.setFormatter(formatter)
            log_root.addHandler(handler)
        log_root.info("rank_id: %d" % rank)
