import torch.nn as nn

from models import register_model_architecture


class LSTMModel(nn.Module):
    def __init__(self, dim, layers, dropout):
        super().__init__()
        self.embed = nn.Embedding(1000, dim)
        self.rnn = nn.LSTM(dim, dim, layers, batch_first=True, dropout=dropout)
        self.out = nn.Linear(dim, 1000)

    @staticmethod
    def add_args(parser):
        parser.add_argument("--encoder-embed-dim", type=int, metavar="N")
        parser.add_argument("--encoder-layers", type=int, metavar="N")
        parser.add_argument("--dropout", type=float, metavar="D")

    @classmethod
    def build_model(cls, args, task):
        return cls(args.encoder_embed_dim, args.encoder_layers, args.dropout)

    def forward(self, x):
        return self.out(self.rnn(self.embed(x))[0])


@register_model_architecture(LSTMModel, "lstm_tiny")
def tiny(args):
    args.dropout = getattr(args, "dropout", 0.1)
    args.encoder_embed_dim = getattr(args, "encoder_embed_dim", 64)
    args.encoder_layers = getattr(args, "encoder_layers", 2)


@register_model_architecture(LSTMModel, "lstm_wide")
def wide(args):
    args.encoder_embed_dim = getattr(args, "encoder_embed_dim", 512)
    tiny(args)
