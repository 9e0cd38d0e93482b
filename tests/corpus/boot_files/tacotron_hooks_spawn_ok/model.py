import torch.nn as nn


class Tacotron(nn.Module):
    def __init__(self, hparams):
        super().__init__()
        self.embedding = nn.Embedding(148, hparams.symbols_embedding_dim)
        self.encoder = nn.GRU(hparams.symbols_embedding_dim, 256, batch_first=True)
        self.decoder = nn.Linear(256, hparams.n_mel_channels)

    def forward(self, text, frames):
        _, h = self.encoder(self.embedding(text))
        return self.decoder(h[0]).unsqueeze(1).expand(-1, frames, -1)
