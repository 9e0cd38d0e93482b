import torch


def load_filepaths_and_text(filename, split="|"):
    with open(filename, encoding="utf-8") as f:
        return [line.strip().split(split) for line in f]


class TextMelLoader(torch.utils.data.Dataset):
    def __init__(self, audiopaths_and_text, hparams):
        self.items = load_filepaths_and_text(audiopaths_and_text)
        self.n_mel = hparams.n_mel_channels

    def __getitem__(self, index):
        path, text = self.items[index]
        return torch.tensor([ord(c) % 148 for c in text]), torch.load(path)[: self.n_mel]

    def __len__(self):
        return len(self.items)


class TextMelCollate:
    def __call__(self, batch):
        text = torch.nn.utils.rnn.pad_sequence([t for t, _ in batch], batch_first=True)
        return text, torch.nn.utils.rnn.pad_sequence([m.T for _, m in batch], batch_first=True)
