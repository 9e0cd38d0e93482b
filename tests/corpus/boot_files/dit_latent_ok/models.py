import torch.nn as nn


class DiT(nn.Module):
    def __init__(self, input_size=32, patch_size=2, hidden_size=384, depth=12, num_classes=1000):
        super().__init__()
        self.x_embedder = nn.Conv2d(3, hidden_size, patch_size, stride=patch_size)
        self.y_embedder = nn.Embedding(num_classes + 1, hidden_size)
        self.blocks = nn.ModuleList([nn.Conv2d(hidden_size, hidden_size, 1) for _ in range(depth)])
        self.final = nn.ConvTranspose2d(hidden_size, 3, patch_size, stride=patch_size)

    def forward(self, x, t, y):
        h = self.x_embedder(x) + self.y_embedder(y)[:, :, None, None] + t.view(-1, 1, 1, 1)
        for block in self.blocks:
            h = h + block(h)
        return self.final(h)


def DiT_XL_2(**kwargs):
    return DiT(depth=28, hidden_size=1152, patch_size=2, **kwargs)


def DiT_B_4(**kwargs):
    return DiT(depth=12, hidden_size=768, patch_size=4, **kwargs)


def DiT_S_2(**kwargs):
    return DiT(depth=12, hidden_size=384, patch_size=2, **kwargs)


DiT_models = {
    'DiT-XL/2': DiT_XL_2,
    'DiT-B/4': DiT_B_4,
    'DiT-S/2': DiT_S_2,
}
