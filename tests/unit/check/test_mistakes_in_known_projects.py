"""Mistakes in code that is made from templates and well-known projects, and what only looks like one there."""

from __future__ import annotations

from pathlib import Path

from checked import findings, with_files

# The shape of a template that many projects begin with: a class reads the options that the boot file lists.
OPTIONS_IN_TUPLES = {
    "config.json": "{}",
    "parse_config.py": """
import json, os
class ConfigParser:
    def __init__(self, config, changes=None):
        self.config = config
    @classmethod
    def from_args(cls, args, options=""):
        for opt in options:
            args.add_argument(*opt.flags, default=None, type=opt.type)
        if not isinstance(args, tuple):
            args = args.parse_args()
        if args.device is not None:
            os.environ["CUDA_VISIBLE_DEVICES"] = args.device
        with open(args.config) as file:
            config = json.load(file)
        return cls(config, {opt.target: getattr(args, opt.flags[0][2:]) for opt in options})
    def init_obj(self, name, module, *args, **kwargs):
        return getattr(module, self.config[name]["type"])(*args, **kwargs)
""",
    "train.py": """
import argparse, collections, importlib
import torch.distributed as dist
from parse_config import ConfigParser
def main(config):
    dist.init_process_group("gloo")
    importlib.import_module("model")
    dist.destroy_process_group()
if __name__ == "__main__":
    args = argparse.ArgumentParser()
    args.add_argument("-c", "--config", default=None, type=str)
    args.add_argument("-d", "--device", default=None, type=str)
    CustomArgs = collections.namedtuple("CustomArgs", "flags type target")
    options = [
        CustomArgs(["--lr", "--learning_rate"], type=float, target="optimizer;args;lr"),
        CustomArgs(["--bs", "--batch_size"], type=int, target="data_loader;args;batch_size"),
    ]
    main(ConfigParser.from_args(args, options))
""",
    "model.py": "",
}


def test_options_in_a_list_of_named_tuples(tmp_path: Path) -> None:
    with_files(tmp_path, OPTIONS_IN_TUPLES)
    given = {"config": "config.json", "learning_rate": "fast", "batchsize": 4}
    refused = [one.text for one in findings(tmp_path, hyperparameters=given) if one.level in ("error", "unknown")]
    assert len(refused) == 2
    assert "invalid float value" in refused[0]
    assert "--batchsize" in refused[1]
    given = {"config": "config.json", "learning_rate": 0.1, "bs": 4}
    assert not [one for one in findings(tmp_path, hyperparameters=given) if one.level in ("error", "unknown")]
