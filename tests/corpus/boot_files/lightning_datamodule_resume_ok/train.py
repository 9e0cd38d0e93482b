import os
from argparse import ArgumentParser

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import LearningRateMonitor, ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from lightning.pytorch.utilities import rank_zero_info, rank_zero_only
from torch import nn

from data import SeriesDataModule


class Forecaster(pl.LightningModule):
    def __init__(self, hidden: int = 128, lr: float = 1e-3):
        super().__init__()
        self.save_hyperparameters()
        self.rnn = nn.GRU(1, hidden, batch_first=True)
        self.head = nn.Linear(hidden, 1)
        self.outputs = []

    @staticmethod
    def add_model_specific_args(parent):
        group = parent.add_argument_group("Forecaster")
        group.add_argument("--hidden", type=int, default=128)
        group.add_argument("--lr", type=float, default=1e-3)
        return parent

    def forward(self, x):
        out, _ = self.rnn(x.unsqueeze(-1))
        return self.head(out[:, -1]).squeeze(-1)

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = nn.functional.mse_loss(self(x), y)
        self.log("train/loss", loss, prog_bar=True)
        return loss

    def validation_step(self, batch, batch_idx):
        x, y = batch
        error = (self(x) - y).abs()
        self.outputs.append(error)
        self.log("val/mae", error.mean(), sync_dist=True)

    def on_validation_epoch_end(self):
        worst = self.all_gather(torch.cat(self.outputs).max())
        if self.trainer.is_global_zero:
            print(f"worst error {worst.max().item():.4f}")
        self.outputs.clear()

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=self.hparams.lr)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, self.trainer.max_epochs)
        return {"optimizer": optimizer, "lr_scheduler": schedule}


@rank_zero_only
def write_settings(args):
    os.makedirs(args.default_root_dir, exist_ok=True)
    with open(os.path.join(args.default_root_dir, "settings.txt"), "w") as f:
        f.write(repr(vars(args)))


def main():
    parser = ArgumentParser()
    parser.add_argument("--series", required=True)
    parser.add_argument("--default_root_dir", default="/out/forecast")
    parser.add_argument("--num_nodes", type=int, default=1)
    parser.add_argument("--max_epochs", type=int, default=30)
    parser.add_argument("--accumulate", type=int, default=1)
    parser.add_argument("--precision", default="32-true")
    parser = Forecaster.add_model_specific_args(parser)
    args, _ = parser.parse_known_args()

    pl.seed_everything(1234)
    write_settings(args)
    checkpoints = ModelCheckpoint(dirpath=args.default_root_dir, monitor="val/mae", save_last=True)
    trainer = pl.Trainer(
        accelerator="gpu",
        devices="auto",
        num_nodes=args.num_nodes,
        strategy="ddp",
        max_epochs=args.max_epochs,
        accumulate_grad_batches=args.accumulate,
        precision=args.precision,
        logger=CSVLogger(args.default_root_dir),
        callbacks=[checkpoints, LearningRateMonitor()],
        default_root_dir=args.default_root_dir,
    )
    last = os.path.join(args.default_root_dir, "last.ckpt")
    rank_zero_info("resuming" if os.path.exists(last) else "starting")
    trainer.fit(Forecaster(args.hidden, args.lr), datamodule=SeriesDataModule(args.series),
                ckpt_path=last if os.path.exists(last) else None)


if __name__ == "__main__":
    main()
