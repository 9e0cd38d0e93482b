#!/usr/bin/env python3
"""Recipe: CTC recogniser. python train.py hparams/ctc.yaml --lr=0.5"""
import sys

import torch
import yaml

from brain import core, distributed
from brain.data import SpeechCommands


class ASR(core.Brain):
    def compute_forward(self, batch, stage):
        feats, _ = batch
        return self.modules["model"](feats.to(self.device)).log_softmax(-1)

    def compute_objectives(self, predictions, batch, stage):
        _, targets = batch
        loss = torch.nn.functional.nll_loss(predictions, targets.to(self.device))
        if stage != "train":
            self.valid_sum += loss.detach()
        return loss

    def on_stage_start(self, stage, epoch=None):
        self.valid_sum = torch.zeros((), device=self.device)

    def on_stage_end(self, stage, stage_loss, epoch=None):
        if stage != "valid":
            return
        if distributed.if_main_process():
            print(f"epoch {epoch}: train {self.train_loss:.3f} valid {float(self.valid_sum):.3f}")
            self.save(f"{self.hparams['output_folder']}/epoch{epoch}.ckpt")
        distributed.ddp_barrier()


def prepare(folder, skip_prep=False):
    if skip_prep:
        return
    with open(f"{folder}/manifest.txt", "w") as f:
        f.write("ready\n")


if __name__ == "__main__":
    hparams_file, run_opts, overrides = core.parse_arguments(sys.argv[1:])
    distributed.ddp_init_group(run_opts)

    with open(hparams_file) as fin:
        hparams = yaml.safe_load(fin)
    hparams.update(overrides)

    core.create_experiment_directory(hparams["output_folder"], hparams_file)
    distributed.run_on_main(prepare, kwargs={"folder": hparams["output_folder"], "skip_prep": hparams["skip_prep"]})

    train_data, valid_data = SpeechCommands(hparams["train_items"]), SpeechCommands(hparams["valid_items"])
    model = torch.nn.Sequential(torch.nn.Linear(80, hparams["width"]), torch.nn.ReLU(),
                                torch.nn.Linear(hparams["width"], 31))
    asr = ASR(modules={"model": model}, hparams=hparams, run_opts=run_opts)
    asr.fit(range(1, hparams["number_of_epochs"] + 1), train_data, valid_data)
    distributed.ddp_end()
