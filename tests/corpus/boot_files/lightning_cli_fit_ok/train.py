"""Segmentation: python train.py fit --config configs/base.yaml"""
from pathlib import Path

import lightning as L
import torch
import torch.nn.functional as F
from lightning.pytorch.cli import LightningArgumentParser, LightningCLI
from torch.utils.data import DataLoader, Dataset
from torchvision.io import read_image

from models.unet import UNet, count_parameters


class Masks(Dataset):
    def __init__(self, root, part):
        self.images = sorted(Path(root, part, "images").glob("*.png"))

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        path = self.images[index]
        mask = read_image(str(path.parent.parent / "masks" / path.name))[0].long()
        return read_image(str(path))[:3].float() / 255, mask


class MaskData(L.LightningDataModule):
    def __init__(self, root: str = "data", batch_size: int = 8, num_workers: int = 8):
        super().__init__()
        self.root, self.batch_size, self.num_workers = root, batch_size, num_workers

    def _loader(self, part, shuffle):
        return DataLoader(Masks(self.root, part), self.batch_size, shuffle=shuffle, num_workers=self.num_workers)

    def train_dataloader(self):
        return self._loader("train", True)

    def val_dataloader(self):
        return self._loader("val", False)


class Segmenter(L.LightningModule):
    def __init__(self, width: int = 32, classes: int = 2, batch_size: int = 8):
        super().__init__()
        self.save_hyperparameters()
        self.net = UNet(width, classes)

    def on_fit_start(self):
        if self.global_rank == 0:
            print(f"{count_parameters(self.net):,} parameters")

    def training_step(self, batch, batch_idx):
        image, mask = batch
        loss = F.cross_entropy(self.net(image), mask)
        self.log("loss", loss)
        return loss

    def validation_step(self, batch, batch_idx):
        image, mask = batch
        hit = (self.net(image).argmax(1) == mask).float().mean()
        self.log("val_hit", hit, sync_dist=True, batch_size=self.hparams.batch_size)


class MaskCLI(LightningCLI):
    def add_arguments_to_parser(self, parser: LightningArgumentParser):
        parser.add_argument("--compile", action="store_true")
        parser.add_optimizer_args(torch.optim.AdamW)
        parser.add_lr_scheduler_args(torch.optim.lr_scheduler.ExponentialLR)
        parser.link_arguments("data.batch_size", "model.batch_size")
        parser.set_defaults({"lr_scheduler.gamma": 0.98})

    def before_fit(self):
        if self.config[self.subcommand].compile:
            self.model.net.compile()


def cli_main():
    torch.set_float32_matmul_precision("high")
    MaskCLI(Segmenter, MaskData, seed_everything_default=7, save_config_kwargs={"overwrite": True})


if __name__ == "__main__":
    cli_main()
