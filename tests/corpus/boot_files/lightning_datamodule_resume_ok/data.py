import lightning.pytorch as pl
import torch
from torch.utils.data import DataLoader, Dataset


class Windows(Dataset):
    """Overlapping windows of one long series."""

    def __init__(self, series, length):
        self.series, self.length = series, length

    def __len__(self):
        return len(self.series) - self.length

    def __getitem__(self, i):
        return self.series[i: i + self.length], self.series[i + self.length]


class SeriesDataModule(pl.LightningDataModule):
    def __init__(self, path, length=64, batch_size=128, workers=4):
        super().__init__()
        self.save_hyperparameters()

    def prepare_data(self):
        # one process per node comes here
        torch.load(self.hparams.path, map_location="cpu")

    def setup(self, stage):
        series = torch.load(self.hparams.path, map_location="cpu")
        cut = int(0.9 * len(series))
        self.train = Windows(series[:cut], self.hparams.length)
        self.val = Windows(series[cut:], self.hparams.length)

    def train_dataloader(self):
        return DataLoader(self.train, batch_size=self.hparams.batch_size, shuffle=True,
                          num_workers=self.hparams.workers, persistent_workers=self.hparams.workers > 0)

    def val_dataloader(self):
        return DataLoader(self.val, batch_size=self.hparams.batch_size, num_workers=self.hparams.workers)
