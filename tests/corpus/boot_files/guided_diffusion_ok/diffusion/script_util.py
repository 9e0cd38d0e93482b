import argparse

from .unet import GaussianDiffusion, UNetModel


def model_and_diffusion_defaults():
    return dict(
        image_size=64,
        num_channels=128,
        num_res_blocks=2,
        dropout=0.0,
        diffusion_steps=1000,
        noise_schedule="linear",
        use_checkpoint=False,
        learn_sigma=False,
    )


def create_model_and_diffusion(image_size, num_channels, num_res_blocks, dropout, diffusion_steps, noise_schedule,
                               use_checkpoint, learn_sigma):
    model = UNetModel(num_channels, num_res_blocks, 6 if learn_sigma else 3, dropout)
    return model, GaussianDiffusion(diffusion_steps, noise_schedule)


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
    raise argparse.ArgumentTypeError("boolean value expected")
