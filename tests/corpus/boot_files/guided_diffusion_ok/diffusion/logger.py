import os
import time
from collections import defaultdict

import torch.distributed as dist

_VALUES = defaultdict(list)
_FILE = None


def configure(folder):
    global _FILE
    os.makedirs(folder, exist_ok=True)
    if dist.get_rank() == 0:
        _FILE = open(os.path.join(folder, time.strftime("log-%Y%m%d.txt")), "a")


def get_dir():
    return os.path.dirname(_FILE.name) if _FILE else "/tmp"


def log(*words):
    if _FILE is not None:
        print(*words, file=_FILE, flush=True)


def logkv_mean(key, value):
    _VALUES[key].append(value)


def dumpkvs():
    for key, values in sorted(_VALUES.items()):
        log(f"| {key:20s} | {sum(values) / len(values):.5f} |")
    _VALUES.clear()
