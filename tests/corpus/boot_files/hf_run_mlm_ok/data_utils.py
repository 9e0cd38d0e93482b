"""Text to blocks of tokens."""
from itertools import chain

from datasets import load_dataset


def load_text(train_file, validation_file=None, cache_dir=None):
    files = {"train": train_file}
    if validation_file is not None:
        files["validation"] = validation_file
    return load_dataset("text", data_files=files, cache_dir=cache_dir)


def group_into_blocks(examples, max_seq_length):
    joined = {key: list(chain(*values)) for key, values in examples.items()}
    total = len(joined["input_ids"])
    total = (total // max_seq_length) * max_seq_length
    return {
        key: [tokens[i: i + max_seq_length] for i in range(0, total, max_seq_length)]
        for key, tokens in joined.items()
    }
