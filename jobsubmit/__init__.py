"""Submit PyTorch distributed training jobs to ModelArts-like platforms."""

__version__ = "0.1.0"
