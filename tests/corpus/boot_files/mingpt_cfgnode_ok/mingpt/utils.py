import json
import os
import random
import sys
from ast import literal_eval

import numpy as np
import torch


def set_seed(seed):
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)
    torch.cuda.manual_seed_all(seed)


def setup_logging(config):
    work_dir = config.system.work_dir
    os.makedirs(work_dir, exist_ok=True)
    with open(os.path.join(work_dir, 'args.txt'), 'w') as f:
        f.write(' '.join(sys.argv))
    with open(os.path.join(work_dir, 'config.json'), 'w') as f:
        f.write(json.dumps(config.to_dict(), indent=4))


class CfgNode:
    def __init__(self, **kwargs):
        self.__dict__.update(kwargs)

    def __str__(self):
        return json.dumps(self.to_dict(), indent=2)

    def to_dict(self):
        return {k: v.to_dict() if isinstance(v, CfgNode) else v for k, v in self.__dict__.items()}

    def merge_from_args(self, args):
        """Takes words like --trainer.batch_size=32."""
        for arg in args:
            key, _, val = arg.partition('=')
            assert key.startswith('--') and val, "expecting each override arg to be of form --arg=value, got %s" % arg
            try:
                val = literal_eval(val)
            except (SyntaxError, ValueError):
                pass
            obj = self
            *parents, leaf = key[2:].split('.')
            for k in parents:
                obj = getattr(obj, k)
            assert hasattr(obj, leaf), f"{key[2:]} is not an attribute that exists in the config"
            setattr(obj, leaf, val)
