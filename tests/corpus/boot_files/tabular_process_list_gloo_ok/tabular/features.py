import pandas as pd
import torch
from torch.utils.data import Dataset


def load_frame(path, normalize=True):
    frame = pd.read_csv(path)
    numbers = [c for c in frame.columns if c not in ("label", "fold")]
    if normalize:
        frame[numbers] = (frame[numbers] - frame[numbers].mean()) / (frame[numbers].std() + 1e-8)
    return frame


class ClickLogs(Dataset):
    def __init__(self, frame, split):
        part = frame[(frame["fold"] == 0) == (split == "test")]
        self.y = torch.tensor(part["label"].values, dtype=torch.float)
        self.x = torch.tensor(part.drop(columns=["label", "fold"]).values, dtype=torch.float)

    @property
    def width(self):
        return self.x.shape[1]

    def __len__(self):
        return len(self.y)

    def __getitem__(self, i):
        return self.x[i], self.y[i]
