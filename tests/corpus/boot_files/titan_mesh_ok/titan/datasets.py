import torch
from torch.utils.data import DataLoader, IterableDataset


class TokenStream(IterableDataset):
    """Endless; each data parallel rank has a stream of its own."""

    def __init__(self, vocabulary, seq_len, dp_rank, dp_world_size):
        self.vocabulary, self.seq_len = vocabulary, seq_len
        self.dp_rank, self.dp_world_size = dp_rank, dp_world_size

    def __iter__(self):
        index = self.dp_rank
        while True:
            generator = torch.Generator().manual_seed(index)
            tokens = torch.randint(self.vocabulary, (self.seq_len + 1,), generator=generator)
            yield tokens[:-1], tokens[1:]
            index += self.dp_world_size


def build_dataloader(vocabulary, seq_len, batch_size, dp_rank, dp_world_size):
    return DataLoader(TokenStream(vocabulary, seq_len, dp_rank, dp_world_size), batch_size=batch_size)
