import argparse

import torch as th
from torch import nn

NUM_CLASSES = 1000


def diffusion_defaults():
    """What the diffusion takes."""
    return dict(diffusion_steps=1000, noise_schedule="linear", learn_sigma=False, rescale_timesteps=False)


def model_and_diffusion_defaults():
    res = dict(
        image_size=64,
        num_channels=128,
        num_res_blocks=2,
        dropout=0.0,
        class_cond=False,
        use_checkpoint=False,
        channel_mult="",
    )
    res.update(diffusion_defaults())
    return res


class Denoiser(nn.Module):
    def __init__(self, channels, blocks, dropout, class_cond):
        super().__init__()
        self.inp = nn.Conv2d(3, channels, 3, padding=1)
        self.time = nn.Linear(1, channels)
        self.label = nn.Embedding(NUM_CLASSES, channels) if class_cond else None
        self.body = nn.Sequential(*[
            nn.Sequential(nn.GroupNorm(8, channels), nn.SiLU(), nn.Dropout(dropout),
                          nn.Conv2d(channels, channels, 3, padding=1)) for _ in range(blocks)])
        self.out = nn.Conv2d(channels, 3, 3, padding=1)

    def forward(self, x, t, y=None):
        emb = self.time(t[:, None].float())
        if self.label is not None:
            emb = emb + self.label(y)
        return self.out(self.body(self.inp(x) + emb[:, :, None, None]))


def create_model_and_betas(image_size, num_channels, num_res_blocks, dropout, class_cond, use_checkpoint, channel_mult,
                           diffusion_steps, noise_schedule, learn_sigma, rescale_timesteps):
    if noise_schedule == "linear":
        betas = th.linspace(1e-4, 0.02, diffusion_steps)
    elif noise_schedule == "cosine":
        betas = th.sin(th.linspace(0.01, 1.5, diffusion_steps)) ** 2 * 0.02
    else:
        raise NotImplementedError(f"unknown beta schedule: {noise_schedule}")
    return Denoiser(num_channels, num_res_blocks, dropout, class_cond), betas


def add_dict_to_argparser(parser, default_dict):
    for k, v in default_dict.items():
        v_type = type(v)
        if v is None:
            v_type = str
        elif isinstance(v, bool):
            v_type = str2bool
        parser.add_argument(f"--{k}", default=v, type=v_type)


def args_to_dict(args, keys):
    return {k: getattr(args, k) for k in keys}


def str2bool(v):
    if isinstance(v, bool):
        return v
    if v.lower() in ("yes", "true", "t", "y", "1"):
        return True
    elif v.lower() in ("no", "false", "f", "n", "0"):
        return False
    else:
        raise argparse.ArgumentTypeError("boolean value expected")
