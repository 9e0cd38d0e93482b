import argparse
import os

import lightning as L
import torch
import torch.nn.functional as F
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.strategies import DDPStrategy
from torch.utils.data import DataLoader, random_split
from torchvision import transforms
from torchvision.datasets import MNIST


class LitAutoEncoder(L.LightningModule):
    def __init__(self, lr):
        super().__init__()
        self.save_hyperparameters()
        self.encoder = torch.nn.Sequential(torch.nn.Linear(784, 64), torch.nn.ReLU(), torch.nn.Linear(64, 3))
        self.decoder = torch.nn.Sequential(torch.nn.Linear(3, 64), torch.nn.ReLU(), torch.nn.Linear(64, 784))

    def training_step(self, batch, batch_idx):
        x, _ = batch
        x = x.view(x.size(0), -1)
        loss = F.mse_loss(self.decoder(self.encoder(x)), x)
        self.log("train_loss", loss, sync_dist=True)
        return loss

    def validation_step(self, batch, batch_idx):
        x, _ = batch
        x = x.view(x.size(0), -1)
        self.log("val_loss", F.mse_loss(self.decoder(self.encoder(x)), x), sync_dist=True)

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=self.hparams.lr)


def cli():
    p = argparse.ArgumentParser()
    p.add_argument("--lr", type=float, default=1e-3)
    p.add_argument("--max_epochs", type=int, default=5)
    p.add_argument("--precision", choices=["32-true", "16-mixed", "bf16-mixed"], default="32-true")
    p.add_argument("--data-dir", default=os.environ.get("DATA_DIR", "."))
    return p.parse_args()


def main():
    args = cli()
    L.seed_everything(7, workers=True)
    dataset = MNIST(args.data_dir, download=True, transform=transforms.ToTensor())
    train, val = random_split(dataset, [55000, 5000])
    trainer = L.Trainer(
        accelerator="gpu",
        devices=int(os.environ.get("LOCAL_WORLD_SIZE", 1)),
        num_nodes=int(os.environ.get("GROUP_WORLD_SIZE", 1)),
        strategy=DDPStrategy(find_unused_parameters=False),
        max_epochs=args.max_epochs,
        precision=args.precision,
        callbacks=[ModelCheckpoint(monitor="val_loss")],
    )
    trainer.fit(LitAutoEncoder(args.lr), DataLoader(train, batch_size=64, shuffle=True, num_workers=4),
                DataLoader(val, batch_size=64))


if __name__ == "__main__":
    main()
