import ast
import os

import yaml

from engine import comm


class CfgNode(dict):
    def merge_from_file(self, path):
        with open(path) as f:
            self.update(yaml.safe_load(f))

    def merge_from_list(self, words):
        for key, value in zip(words[::2], words[1::2]):
            if key not in self:
                raise KeyError(key)
            self[key] = ast.literal_eval(value)


def get_cfg():
    return CfgNode({
        "SOLVER.MAX_ITER": 1000, "SOLVER.BASE_LR": 0.01, "SOLVER.CHECKPOINT_PERIOD": 500,
        "SOLVER.IMS_PER_BATCH": 64, "TEST.EVAL_PERIOD": 500, "OUTPUT_DIR": "./output",
    })


def default_setup(cfg):
    if comm.is_main_process():
        os.makedirs(cfg["OUTPUT_DIR"], exist_ok=True)
        with open(os.path.join(cfg["OUTPUT_DIR"], "config.yaml"), "w") as f:
            yaml.safe_dump(dict(cfg), f)
    comm.synchronize()
