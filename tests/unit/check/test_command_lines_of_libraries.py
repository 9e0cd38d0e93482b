"""Command lines that libraries make: of flags, of the parameters of a function, of the fields of a class."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from checked import GPUS, findings

ABSL = """
from absl import app, flags
FLAGS = flags.FLAGS
flags.DEFINE_string("path", None, "where", required=True)
flags.DEFINE_integer("steps", 3, "how many", short_name="n")
flags.DEFINE_float("lr", 0.1, "rate")
flags.DEFINE_bool("amp", True, "half precision")
flags.DEFINE_enum("kind", "a", ["a", "b"], "which")
flags.DEFINE_list("layers", [], "sizes")
def main(argv):
    print(FLAGS.path)
app.run(main)
"""
FIRE = """
import fire
def main(path, lr: float = 0.1, use_amp: bool = False, my_size=None):
    print(path)
if __name__ == "__main__":
    fire.Fire(main)
"""
TYRO = """
import enum, tyro
from dataclasses import dataclass, field
from typing import ClassVar, List, Literal, Optional
class Size(enum.Enum):
    SMALL = "s"
    LARGE = "l"
@dataclass
class Optimizer:
    lr: float = 0.1
    use_fused: bool = False
@dataclass
class Args:
    data_dir: str
    num_steps: int = 3
    amp: bool = True
    kind: Literal["a", "b"] = "a"
    clip: Optional[float] = None
    ids: List[int] = field(default_factory=list)
    optimizer: Optimizer = field(default_factory=Optimizer)
    size: Size = Size.SMALL
    version: ClassVar[int] = 3
    rest: tyro.conf.Suppress[int] = 0
args = tyro.cli(Args)
print(args)
"""
DETECTRON2 = """
from detectron2.engine import default_argument_parser, launch
def main(args):
    print(args)
if __name__ == "__main__":
    args = default_argument_parser().parse_args()
    launch(main, args.num_gpus, num_machines=args.num_machines, machine_rank=args.machine_rank,
           dist_url=args.dist_url, args=(args,))
"""


def _arguments(folder: Path, text: str, args: list[str], **fields: Any) -> list[str]:
    """Return what is wrong with the arguments of a program, or not known of them: check and option each."""
    (folder / "train.py").write_text(text)
    found = findings(folder, **GPUS, **({"args": args} if args else {}), **fields)
    return [one.check for one in found if one.check.startswith(("argument", "injected"))]


# What absl-py 2.3, fire 0.7 and tyro 1.0 did with these words, each seen once.
@pytest.mark.parametrize(
    ("text", "args", "expected"),
    [
        (ABSL, "--path=x", ""),
        (ABSL, "--path x -n 4 --noamp rest", ""),
        (ABSL, "-path=x --amp=False --verbosity=1 --layers=1,2", ""),
        (ABSL, "", "argument-missing"),
        (ABSL, "--path=x --step=1", "argument-unknown"),
        (ABSL, "--path=x --steps=1e3", "argument-type"),
        (ABSL, "--path=x --lr=fast", "argument-type"),
        (ABSL, "--path=x --amp=no", "argument-type"),
        (ABSL, "--path=x --kind=A", "argument-choice"),
        (ABSL, "--path=x --steps=0x10 --lr -1e-3 --noalsologtostderr", ""),
        (ABSL, "--path --x --amp rest", ""),
        (ABSL, "--flagfile=flags.txt", ""),
        (ABSL, "--path=x --undefok=other --other=3", ""),
        (ABSL.replace("app.run", "FLAGS.set_default('path', 'y')\napp.run"), "", ""),
        (ABSL.replace("app.run", "flags.DEFINE_alias('p', 'path')\napp.run"), "--p=3", ""),
        (ABSL.replace("app.run(main)", "app.run(main, argv=['train', '--path=y'])"), "", "arguments"),
        (ABSL.replace("def main", "flags.DEFINE(Own(), 'k', 3, 'h')\ndef main"), "--path=x --k=3", "arguments"),
        (ABSL.replace('"kind", "a"', "NAME, 'a'"), "--path=x --other=1", "arguments"),
        (ABSL.replace(", required=True", "") + 'flags.mark_flag_as_required("path")\n', "", "argument-missing"),
        (
            ABSL.replace("app.run(main)", "import sys\nFLAGS(sys.argv)\nmain([])"),
            "--path=x --step=1",
            "argument-unknown",
        ),
        (
            f"from ml_collections import config_flags\n{ABSL}".replace(
                "def main", 'config_flags.DEFINE_config_file("config")\ndef main'
            ),
            "--path=x --config.lr=1",
            "arguments",
        ),
        (FIRE, "--path=a --use-amp --my-size=3", ""),
        (FIRE, "a 0.2 --nouse_amp", ""),
        (FIRE, "--path a -l 0.1", ""),
        (FIRE, "", "argument-missing"),
        (FIRE, "--path=a --my=3", "argument-unknown"),
        (FIRE, "--path=a --nouse-amp --lr -1e-3", ""),
        (FIRE.replace("print(path)", "return path"), "--path=a run --steps=3", "arguments"),
        (FIRE.replace("print(path)", "return path"), "--path=a --steps=3", "argument-unknown"),
        (FIRE.replace("main(path,", "main(*, path,"), "3", "argument-missing"),
        (FIRE.replace("my_size=None", "**kwargs"), "--path=a --anything=3", ""),
        (FIRE.replace("Fire(main)", "Fire()"), "--path=a --anything=3", "arguments"),
        (FIRE.replace("def main", "@wrapped\ndef main"), "--anything=3", "arguments"),
        (TYRO, "--data_dir=x", ""),
        (TYRO, "--data-dir x --num_steps=4 --no-amp --clip=None --ids 1 2 --rest=4", ""),
        (TYRO, "--data-dir x --optimizer.lr 3 --optimizer.use_fused --size LARGE", ""),
        (TYRO, "", "argument-missing"),
        (TYRO, "--data=x --data-dir=y", "argument-unknown"),
        (TYRO, "--data-dir=x --lr=1", "argument-unknown"),
        (TYRO, "--data-dir=x --amp=False", "argument-flag"),
        (TYRO, "--data-dir=x --amp False", "argument-unknown"),
        (TYRO, "--data-dir=x --kind=c", "argument-choice"),
        (TYRO, "--data-dir=x --size=l", "argument-choice"),
        (TYRO, "--data-dir=x --num-steps=1.5", "argument-type"),
        (TYRO, "--data-dir=x --version=4", "argument-unknown"),
        (TYRO, "--data-dir=x --optimizer.lr -1e-3", ""),
        (
            TYRO.replace("optimizer: Optimizer", "optimizer: Optional[Optimizer]"),
            "--data-dir=x optimizer:a",
            "arguments",
        ),
        (
            TYRO.replace("default_factory=Optimizer", "default_factory=Adam"),
            "--data-dir=x --optimizer.b=3",
            "arguments",
        ),
        (TYRO.replace("cli(Args)", "cli(Args, default=Args(data_dir='y'))"), "", "arguments"),
        (TYRO.replace("rest: tyro", "made: int = field(init=False)\n    rest: tyro"), "--data-dir=x", ""),
        (TYRO.replace('SMALL = "s"', 'SMALL: str = "s"'), "--data-dir=x --size=SMALL", ""),
        (TYRO.replace("rest: tyro", "more: dict = field(default_factory=dict)\n    rest: tyro"), "", "arguments"),
        (TYRO.replace("cli(Args)", "cli(Args, return_unknown_args=True)"), "--data-dir=x --other=3", ""),
        (TYRO.replace("num_steps: int", "num_steps: tyro.conf.Positional[int]"), "--data-dir=x --other=3", "arguments"),
        (TYRO.replace("cli(Args)", "extras.overridable_config_cli({})"), "--data-dir=x --other=3", "arguments"),
        (
            TYRO.replace(
                "args = tyro.cli(Args)", "def main(args: Args, seed: int = 1):\n    print(args)\ntyro.cli(main)"
            ),
            "--args.data-dir=x --seed=x",
            "argument-type",
        ),
        (DETECTRON2, "--config-file a.yaml --resume SOLVER.BASE_LR 0.1 OUTPUT_DIR --x", ""),
        (DETECTRON2, "--config-file=a.yaml --eval=1", "argument-flag"),
        (DETECTRON2, "--config_file=a.yaml", "argument-unknown"),
        (DETECTRON2, "--num-gpus=four", "argument-type"),
    ],
)
def test_what_libraries_accept(tmp_path: Path, text: str, args: str, expected: str) -> None:
    assert _arguments(tmp_path, text, args.split()) == ([expected] if expected else [])


def test_fire_is_said_to_run_first(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(FIRE)
    (wrong,) = [one for one in findings(tmp_path, **GPUS, args=["--path=a", "--rate=1"]) if one.level == "error"]
    assert "runs the whole function without it" in wrong.text


def test_the_hint_names_the_switch_for_the_opposite(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TYRO)
    (wrong,) = [one for one in findings(tmp_path, **GPUS, args=["--data-dir=a", "--amp=False"]) if one.level == "error"]
    assert "no-amp: {flag: true} to switch it off" in wrong.hint


def test_launch_adds_an_option_that_absl_refuses(tmp_path: Path) -> None:
    fields = {"mode": "launch", "local_rank": "argument"}
    assert "injected-argument" in _arguments(tmp_path, ABSL, ["--path=x"], **fields)


def _starts(folder: Path, **fields: Any) -> list[tuple[str, str]]:
    (folder / "train.py").write_text(DETECTRON2)
    own = ("nested-spawn", "fixed-world-size", "same-ranks", "fixed-master")
    return [(one.check, one.level) for one in findings(folder, **GPUS, **fields) if one.check in own]


_OF_NODE = "--num-machines $NNODES --machine-rank $NODE_RANK --dist-url tcp://$MASTER_ADDR:$MASTER_PORT"


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (f"--num-gpus 2 {_OF_NODE}", []),
        ("--num-gpus 2", [("fixed-world-size", "error")]),
        (f"--num-gpus 4 {_OF_NODE}", [("fixed-world-size", "warning")]),
        ("--num-gpus 2 --num-machines 2", [("same-ranks", "error"), ("fixed-master", "error")]),
        ("--num-gpus 2 --num-machines $NNODES --machine-rank $NODE_RANK", [("fixed-master", "error")]),
    ],
)
def test_what_launch_of_detectron2_is_given(tmp_path: Path, words: str, expected: list[tuple[str, str]]) -> None:
    command = ["bash", "-c", f"exec python train.py {words}"]
    assert _starts(tmp_path, command=command) == expected


@pytest.mark.parametrize("words", [[], ["--num-gpus=2", "--num-machines=2"]])
def test_launch_of_detectron2_under_a_launcher(tmp_path: Path, words: list[str]) -> None:
    assert _starts(tmp_path, **({"args": words} if words else {})) == [("nested-spawn", "error")]


LIGHTNING = """
import lightning as L
from lightning.pytorch.cli import LightningCLI
class Data(L.LightningDataModule):
    def __init__(self, root: str, batch_size: int = 8):
        super().__init__()
class Base(L.LightningModule):
    def __init__(self, lr: float = 0.1):
        super().__init__()
class Net(Base):
    def __init__(self, width: int = 4, **kwargs):
        super().__init__(**kwargs)
class CLI(LightningCLI):
    def add_arguments_to_parser(self, parser):
        parser.add_argument("--tag", default="x")
        parser.add_lightning_class_args(L.pytorch.callbacks.EarlyStopping, "stop")
if __name__ == "__main__":
    CLI(Net, Data, run=False)
"""


# What Lightning 2.6 and jsonargparse 4 did with these words and files, each seen once.
@pytest.mark.parametrize(
    ("args", "config", "expected"),
    [
        ("--data.root=x --model.width=3 --model.lr=1 --trainer.max_epochs=2 --stop.monitor=a --tag=b", "", ""),
        ("--data.root x --trainer.logger.class_path=L --optimizer.lr=3", "", ""),
        ("--data.root=x --model.widht=3", "", "argument-unknown"),
        ("--data.root=x --trainer.max_epoches=3", "", "argument-unknown"),
        ("--data.root=x --trainer.max_e=3 --model.w=3", "", ""),
        ("--data.root=x --other=3", "", "argument-unknown"),
        ("--model.width=3", "", "argument-missing"),
        ("--config conf.yaml", "data: {root: x}\nmodel: {width: 3}\nseed_everything: 3\n", ""),
        ("-c conf.yaml", "data: {root: x}\nmodel: {widht: 3}\n", "argument-unknown"),
        ("--config=conf.yaml", "data: {root: x}\nmodell: {width: 3}\n", "argument-unknown"),
        ("--config=conf.yaml", "data: {batch_size: 3}\n", "argument-missing"),
        ("--config=/cache/other.yaml", "", ""),
    ],
)
def test_what_lightning_accepts(tmp_path: Path, args: str, config: str, expected: str) -> None:
    if config:
        (tmp_path / "conf.yaml").write_text(config)
    assert _arguments(tmp_path, LIGHTNING, args.split()) == ([expected] if expected else [])


@pytest.mark.parametrize(
    ("text", "args", "expected"),
    [
        (LIGHTNING.replace(", run=False", ""), "fit --data.root=x", ""),
        (LIGHTNING.replace(", run=False", ""), "--data.root=x", "argument-missing"),
        (LIGHTNING.replace(", run=False", ""), "train --data.root=x", "argument-choice"),
        (LIGHTNING.replace("CLI(Net, Data, ", "CLI("), "--model=Net --model.any=3 --data.other=3", ""),
        (LIGHTNING.replace("run=False", "**settings"), "--other=3", "arguments"),
        (LIGHTNING.replace("lr: float = 0.1", "lr"), "--data.root=x", ""),
        (LIGHTNING.replace("lr: float = 0.1", "lr: Optional[float]"), "--data.root=x", ""),
        (LIGHTNING.replace("lr: float = 0.1", "lr: float"), "--data.root=x", "argument-missing"),
        (LIGHTNING.replace("lr: float = 0.1", "lr: float").replace("(**kw", "(lr=3, **kw"), "--data.root=x", ""),
        (LIGHTNING.replace("class Net(Base)", "class Net(Mixed, Base)"), "--data.root=x --model.more=3", ""),
        (LIGHTNING.replace("(**kwargs)", "()\n        self.n = Inner(**kwargs)"), "--data.root=x --model.more=3", ""),
        (LIGHTNING, "--data data.yaml", ""),
        (LIGHTNING.replace("def add_arguments", "def add_core_arguments"), "--data.root=x --tag=3", "arguments"),
        (
            LIGHTNING.replace("parser.add_argument(", "add_all(parser)\n        parser.a("),
            "--data.root=x --t=3",
            "arguments",
        ),
        (LIGHTNING.replace('argument("--tag"', 'argument("-t", "--tag"'), "--data.root=x -t 3", ""),
        (
            LIGHTNING.replace("(Net, Data, run=False)", "()").replace(
                "    def add_arg", "    def __init__(self):\n        super().__init__(Net, Data)\n    def add_arg"
            ),
            "--model.width=3",
            "arguments",
        ),
        (LIGHTNING.replace(', "stop")', ")"), "--data.root=x --other=3", "arguments"),
        (LIGHTNING.replace("parser.add_argument", "parser.link_arguments('a', 'data.root')\n        p.a"), "", ""),
    ],
)
def test_what_a_class_of_the_program_makes_of_lightning(tmp_path: Path, text: str, args: str, expected: str) -> None:
    assert _arguments(tmp_path, text, args.split()) == ([expected] if expected else [])


def test_a_configuration_of_another_parser_is_a_file(tmp_path: Path) -> None:
    text = "import argparse\nfrom cli import CLI\nparser = argparse.ArgumentParser()\n"
    text += 'parser.add_argument("--config")\nprint(parser.parse_args())\n'
    (tmp_path / "conf.yaml").write_text("model: {lr: 1}\n")
    (tmp_path / "cli.py").write_text(LIGHTNING)
    assert _arguments(tmp_path, text, ["--config", "conf.yaml"]) == []


def test_launch_of_one_process_whose_function_makes_the_group(tmp_path: Path) -> None:
    own = "import torch.distributed as dist\ndef main(args):\n    dist.init_process_group('nccl')\n"
    (tmp_path / "train.py").write_text(DETECTRON2.replace("def main(args):\n", own))
    assert not [one for one in findings(tmp_path, **GPUS) if one.check == "nested-spawn"]


def test_a_word_for_help_prints_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _arguments(tmp_path, FIRE, ["--help"])
    assert capsys.readouterr().out == ""


H4 = """
import os, sys
from dataclasses import dataclass
from transformers import HfArgumentParser
class H4ArgumentParser(HfArgumentParser):
    def parse_yaml_and_args(self, file, words):
        made = self.parse_yaml_file(os.path.abspath(file))
        return made
    def parse(self):
        if len(sys.argv) == 2 and sys.argv[1].endswith(".yaml"):
            return self.parse_yaml_file(os.path.abspath(sys.argv[1]))
        if len(sys.argv) > 2 and sys.argv[1].endswith(".yaml"):
            return self.parse_yaml_and_args(sys.argv[1], sys.argv[2:])
        return self.parse_args_into_dataclasses()
@dataclass
class Args:
    model_name: str
    batch_size: int = 8
print(H4ArgumentParser((Args,)).parse())
"""


@pytest.mark.parametrize(
    ("args", "settings", "expected"),
    [
        ("conf.yaml", "model_name: a\n", []),
        ("conf.yaml", "model_nam: a\n", ["argument-unknown"]),
        ("conf.yaml --batch_size=4", "model_name: a\n", []),
        ("conf.yaml --batch_sizes=4", "model_name: a\n", ["argument-ignored"]),
        ("--model_name=a --batch_sizes=4", "", ["argument-unknown"]),
    ],
)
def test_settings_in_a_file_beside_arguments(tmp_path: Path, args: str, settings: str, expected: list[str]) -> None:
    (tmp_path / "conf.yaml").write_text(settings)
    assert _arguments(tmp_path, H4, args.split()) == expected


def test_a_file_that_an_option_names_is_no_first_word(tmp_path: Path) -> None:
    text = "import argparse\nfrom transformers import HfArgumentParser\nfrom dataclasses import dataclass\n"
    text += "@dataclass\nclass Args:\n    size: int = 3\nparser = argparse.ArgumentParser()\n"
    text += 'parser.add_argument("--file")\nargs = parser.parse_args()\n'
    text += "print(HfArgumentParser(Args).parse_json_file(json_file=args.file))\n"
    (tmp_path / "a.json").write_text("{}")
    assert _arguments(tmp_path, text, ["--file=a.json"]) == []


BY_SIGNATURE = """
from pathlib import Path
from typing import Literal, Optional, Union
from jsonargparse import CLI
def setup(name, devices: int = 8, data: Path = Path("data"), other: Optional[Path] = None, tpu: bool = False,
          resume: Union[bool, Path] = False, kind: Literal["a", "b"] = "a", *, lr: float = 0.1):
    print(name)
if __name__ == "__main__":
    CLI(setup)
"""


@pytest.mark.parametrize(
    ("args", "is_accepted"),
    [
        (["first", "--devices", "4", "--data=/shared", "--lr", "1"], True),
        (["first", "--tpu", "true", "--kind", "b", "--resume", "last.pt"], True),
        (["first", "--device", "4", "--config", "settings.yaml"], True),
        ([], False),
        (["first", "--nodes", "4"], False),
        (["first", "--devices", "four"], False),
        (["first", "--tpu"], False),
        (["first", "--tpu", "1"], False),
        (["first", "--kind", "c"], False),
        (["--name", "first"], False),
    ],
)
def test_parameters_of_a_function_for_jsonargparse(tmp_path: Path, args: list[str], is_accepted: bool) -> None:
    (tmp_path / "train.py").write_text(BY_SIGNATURE)
    seen = [one for one in findings(tmp_path, args=args, **GPUS) if one.level != "hint" and "argument" in one.check]
    assert (not seen) is is_accepted
    assert all(one.level == "error" for one in seen)


def test_a_class_for_jsonargparse_cannot_be_told(tmp_path: Path) -> None:
    text = BY_SIGNATURE.replace("def setup(name,", "class Model:\n    pass\ndef setup(name, model: Model = None,")
    (tmp_path / "train.py").write_text(text)
    assert "unknown" in {one.level for one in findings(tmp_path, args=["first", "--nodes", "4"], **GPUS)}
