"""One node, no launcher: the Trainer starts the other processes of the node."""
import argparse

import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import ModelCheckpoint
from torch import nn
from torch.utils.data import DataLoader
from torchvision import datasets, models, transforms


class Classifier(pl.LightningModule):
    def __init__(self, lr, momentum):
        super().__init__()
        self.save_hyperparameters()
        self.net = models.resnet18(num_classes=10)
        self.criterion = nn.CrossEntropyLoss()

    def training_step(self, batch, _):
        images, labels = batch
        loss = self.criterion(self.net(images), labels)
        self.log("loss", loss)
        return loss

    def validation_step(self, batch, _):
        images, labels = batch
        hits = (self.net(images).argmax(1) == labels).float().mean()
        self.log("accuracy", hits, sync_dist=True)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=self.hparams.lr, momentum=self.hparams.momentum)


def loaders(root, batch_size):
    augment = transforms.Compose([transforms.RandomHorizontalFlip(), transforms.ToTensor()])
    train = datasets.ImageFolder(f"{root}/train", augment)
    val = datasets.ImageFolder(f"{root}/val", transforms.ToTensor())
    return (DataLoader(train, batch_size, shuffle=True, num_workers=8, pin_memory=True),
            DataLoader(val, batch_size, num_workers=8, pin_memory=True))


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--root", required=True)
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--momentum", type=float, default=0.9)
    parser.add_argument("--batch_size", type=int, default=256)
    parser.add_argument("--gpus", type=int, default=-1)
    parser.add_argument("--epochs", type=int, default=10)
    # appended by the platform; one node needs none of them
    for name in ("--init_method", "--world_size", "--rank"):
        parser.add_argument(name, help=argparse.SUPPRESS)
    args = parser.parse_args()

    trainer = pl.Trainer(
        accelerator="gpu",
        devices=args.gpus,
        strategy="ddp",
        max_epochs=args.epochs,
        callbacks=[ModelCheckpoint(dirpath="/out/resnet18", monitor="accuracy", mode="max")],
    )
    trainer.fit(Classifier(args.lr, args.momentum), *loaders(args.root, args.batch_size))
