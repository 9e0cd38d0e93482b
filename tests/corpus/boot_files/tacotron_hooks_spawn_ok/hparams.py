import ast
from types import SimpleNamespace


def create_hparams(hparams_string=None):
    """Create model hyperparameters. Parse nondefault from given string."""
    hparams = SimpleNamespace(
        epochs=500,
        iters_per_checkpoint=1000,
        seed=1234,
        dist_backend="nccl",
        training_files="filelists/speech_train_filelist.txt",
        n_mel_channels=80,
        symbols_embedding_dim=512,
        learning_rate=1e-3,
        grad_clip_thresh=1.0,
        batch_size=64,
    )
    if hparams_string:
        for pair in hparams_string.split(","):
            name, value = pair.split("=")
            assert hasattr(hparams, name), name
            try:
                value = ast.literal_eval(value)
            except (ValueError, SyntaxError):
                pass
            setattr(hparams, name, value)
    return hparams
