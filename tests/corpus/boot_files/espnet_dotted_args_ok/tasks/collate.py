import torch
from torch.nn.utils.rnn import pad_sequence


class CollateFn:
    def __init__(self, pad=0.0):
        self.pad = pad

    def __call__(self, items):
        feats, labels = zip(*items)
        return pad_sequence(feats, batch_first=True, padding_value=self.pad), torch.tensor(labels)
