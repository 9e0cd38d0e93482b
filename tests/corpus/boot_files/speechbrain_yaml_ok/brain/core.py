import argparse
import ast
import os
import shutil

import torch
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

from brain.distributed import if_main_process, main_process_only

run_opt_defaults = {
    "debug": False, "device": "cuda:0", "distributed_backend": "nccl", "find_unused_parameters": False,
    "max_grad_norm": 5.0, "noprogressbar": False,
}


def parse_arguments(arg_list=None):
    parser = argparse.ArgumentParser(description="Run an experiment")
    parser.add_argument("param_file", type=str, help="A yaml-formatted file of hyperparameters")
    parser.add_argument("--debug", default=False, action="store_true")
    parser.add_argument("--device", type=str, default="cuda:0", help="e.g. 'cpu', 'cuda:0'")
    parser.add_argument("--distributed_backend", type=str, default="nccl")
    parser.add_argument("--find_unused_parameters", default=False, action="store_true")
    parser.add_argument("--max_grad_norm", type=float)
    parser.add_argument("--noprogressbar", default=None, action="store_true")
    run_opts, overrides = parser.parse_known_args(arg_list)
    run_opts = {k: v for k, v in vars(run_opts).items() if v is not None}
    param_file = run_opts.pop("param_file")
    return param_file, {**run_opt_defaults, **run_opts}, _convert_to_yaml(overrides)


def _convert_to_yaml(overrides):
    """Every word that is not an option of the run replaces a hyperparameter of the file."""
    found = {}
    for arg in overrides:
        if not arg.startswith("--") or "=" not in arg:
            raise ValueError(f"expected --key=value: {arg}")
        key, value = arg[2:].split("=", 1)
        try:
            found[key] = ast.literal_eval(value)
        except (ValueError, SyntaxError):
            found[key] = value
    return found


@main_process_only
def create_experiment_directory(folder, hparams_file):
    os.makedirs(folder, exist_ok=True)
    shutil.copy(hparams_file, os.path.join(folder, "hyperparams.yaml"))


class Brain:
    def __init__(self, modules, hparams, run_opts):
        self.hparams, self.device = hparams, run_opts["device"]
        self.max_grad_norm = run_opts["max_grad_norm"]
        self.modules = torch.nn.ModuleDict(modules).to(self.device)
        self.optimizer = torch.optim.Adadelta(self.modules.parameters(), lr=hparams["lr"])
        self.distributed = torch.distributed.is_initialized()
        if self.distributed:
            for name, module in self.modules.items():
                self.modules[name] = DDP(module, device_ids=[self.device],
                                         find_unused_parameters=run_opts["find_unused_parameters"])

    def make_dataloader(self, dataset, stage):
        sampler = None
        if stage == "train" and self.distributed:
            sampler = DistributedSampler(dataset, shuffle=True, drop_last=True)
        shuffle = stage == "train" and sampler is None
        return DataLoader(dataset, self.hparams["batch_size"], shuffle=shuffle, sampler=sampler)

    def fit(self, epochs, train_set, valid_set):
        train_set, valid_set = self.make_dataloader(train_set, "train"), self.make_dataloader(valid_set, "valid")
        for epoch in epochs:
            self.on_stage_start("train", epoch)
            if isinstance(train_set.sampler, DistributedSampler):
                train_set.sampler.set_epoch(epoch)
            self.modules.train()
            for batch in train_set:
                loss = self.compute_objectives(self.compute_forward(batch, "train"), batch, "train")
                loss.backward()
                torch.nn.utils.clip_grad_norm_(self.modules.parameters(), self.max_grad_norm)
                self.optimizer.step()
                self.optimizer.zero_grad(set_to_none=True)
            self.train_loss = loss.item()
            self.on_stage_start("valid", epoch)
            self.modules.eval()
            with torch.no_grad():
                for batch in valid_set:
                    self.compute_objectives(self.compute_forward(batch, "valid"), batch, "valid")
            self.on_stage_end("valid", None, epoch)

    def save(self, path):
        if if_main_process():
            torch.save(self.modules.state_dict(), path)
