import argparse
import sys

try:
    import tomllib
except ModuleNotFoundError:
    import tomli as tomllib


class JobConfig:
    """Sections of a toml file, each overridden by --section.name=value."""

    def __init__(self):
        self.parser = argparse.ArgumentParser(description="titan arg parser.")
        self.parser.add_argument("--job.config_file", type=str, default="./train_configs/debug_model.toml")
        self.parser.add_argument("--job.dump_folder", type=str, default="./outputs")
        self.parser.add_argument("--model.dim", type=int, default=128)
        self.parser.add_argument("--model.n_layers", type=int, default=2)
        self.parser.add_argument("--optimizer.lr", type=float, default=8e-4)
        self.parser.add_argument("--optimizer.name", type=str, default="AdamW", choices=["AdamW", "Adam"])
        self.parser.add_argument("--training.steps", type=int, default=1000)
        self.parser.add_argument("--training.batch_size", type=int, default=8)
        self.parser.add_argument("--training.seq_len", type=int, default=1024)
        self.parser.add_argument("--training.compile", action="store_true")
        self.parser.add_argument("--parallelism.data_parallel_shard_degree", type=int, default=-1)
        self.parser.add_argument("--parallelism.tensor_parallel_degree", type=int, default=1)
        self.parser.add_argument("--checkpoint.interval", type=int, default=500)
        self.parser.add_argument("--checkpoint.folder", type=str, default="checkpoint")

    def parse_args(self, args_list=sys.argv[1:]):
        values = vars(self.parser.parse_args(args_list))
        given = {word.lstrip("-").split("=")[0] for word in args_list if word.startswith("--")}
        with open(values["job.config_file"], "rb") as f:
            for section, entries in tomllib.load(f).items():
                for name, value in entries.items():
                    if f"{section}.{name}" not in given:
                        values[f"{section}.{name}"] = value
        for dotted, value in values.items():
            section, name = dotted.split(".", 1)
            if not hasattr(self, section):
                setattr(self, section, type(section, (), {})())
            setattr(getattr(self, section), name, value)
