import torch.nn as nn


class ASRModel(nn.Module):
    def __init__(self, input_dim, width, vocab):
        super().__init__()
        self.encoder = nn.GRU(input_dim, width, batch_first=True)
        self.decoder = nn.Linear(width, vocab)

    def forward(self, feats):
        return self.decoder(self.encoder(feats)[0][:, -1])


def init_model(configs):
    return ASRModel(configs['input_dim'], configs['width'], configs['vocab'])
