"""Programs that Hydra configures: what it refuses, and the values that the code gets from it."""

from pathlib import Path
from typing import Any

import pytest
from checked import findings, with_files

TRAIN = """
import os, hydra, torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
def setup(cfg):
    dist.init_process_group(cfg.dist.backend, world_size=cfg.dist.size, rank=int(os.environ["RANK"]))
@hydra.main(version_base="1.3", config_path="conf", config_name="config")
def main(cfg):
    setup(cfg)
    model = DDP(torch.nn.Linear(cfg.model.width, 1))
    torch.optim.SGD(model.parameters(), lr=cfg.optim.lr)
main()
"""
CONFIG = """
defaults:
  - _self_
  - model: small
  - optional extra: none
dist: {backend: gloo, size: 4}
optim:
  lr: 0.1
  name: "${model.kind}"
hydra: {run: {dir: out}}
"""
GROUPS = {
    "model/small.yaml": "width: 4\nkind: a\n",
    "model/large.yaml": "# @package _global_\nmodel: {width: 8}\nnew: 1\n",
}


def checked(folder: Path, *args: str, config: str = CONFIG, train: str = TRAIN, **fields: Any) -> list[str]:
    """Return what is wrong with the arguments of a job, by check and text; a gap as `cannot tell`."""
    (folder / "conf/model").mkdir(parents=True)
    (folder / "train.py").write_text(train)
    for name, text in {"config.yaml": config, **GROUPS}.items():
        (folder / "conf" / name).write_text(text)
    found = findings(folder, args=list(args), **fields)
    return [f"{one.check} {one.text}" for one in found if one.check.startswith(("argument", "fixed-world"))]


@pytest.mark.parametrize(
    "args",
    [
        (),
        ("optim.lr=0.2", "model.width=16"),
        ("+optim.momentum=0.9", "++optim.lr=1"),
        ("model=large", "new=2"),
        ("hydra.run.dir=/shared/out",),
        ("--config-name", "config", "optim.lr=1"),
    ],
)
def test_what_hydra_accepts_is_not_wrong(args: tuple[str, ...], tmp_path: Path) -> None:
    assert checked(tmp_path, *args) == []


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("optim.lrr=0.2",), "the configuration has no optim.lrr"),
        (("new=2",), "the configuration has no new"),
        (("--lr=0.2",), "Hydra does not accept --lr"),
    ],
)
def test_what_hydra_refuses_is_an_error(args: tuple[str, ...], said: str, tmp_path: Path) -> None:
    (found,) = checked(tmp_path, *args)
    assert found.startswith(f"argument-unknown {said}")


def test_hyperparameters_are_options_which_hydra_refuses(tmp_path: Path) -> None:
    (found,) = checked(tmp_path, hyperparameters={"lr": 0.2})
    assert "Hydra does not accept --lr: it takes NAME=VALUE" in found


def test_what_mode_spawn_passes_is_no_argument_of_hydra(tmp_path: Path) -> None:
    checked(tmp_path)
    found = findings(tmp_path, mode="spawn", hyperparameters={"lr": 0.2})
    (told,) = [one for one in found if one.check == "argument-unknown"]
    assert "--lr, --init_method, --world_size, --rank, which mode spawn passes" in told.text
    assert told.hint == "use mode: torchrun with `args`, or a `command:` of your own"


def test_a_value_that_must_be_given(tmp_path: Path) -> None:
    (found,) = checked(tmp_path, config=CONFIG.replace("lr: 0.1", "lr: ???"))
    assert found.startswith("argument-missing optim.lr must be given")
    (tmp_path / "given").mkdir()
    assert checked(tmp_path / "given", "optim.lr=1", config=CONFIG.replace("lr: 0.1", "lr: ???")) == []


def test_a_value_that_the_program_sets(tmp_path: Path) -> None:
    (tmp_path / "data.py").write_text("def prepare(cfg, data):\n    cfg.optim.lr = 0.1 * len(data)\n")
    assert checked(tmp_path, config=CONFIG.replace("lr: 0.1", "lr: ???"), train=f"import data\n{TRAIN}") == []


def test_the_code_gets_the_values(tmp_path: Path) -> None:
    resources = {"nodes": 2, "nproc_per_node": 4}
    (found,) = checked(tmp_path, resources=resources)
    assert "world_size=cfg.dist.size is 4, but the job has 8 processes" in found
    (tmp_path / "given").mkdir()
    assert checked(tmp_path / "given", "dist.size=8", resources=resources) == []


@pytest.mark.parametrize(
    "args", [("model=huge",), ("~optim.lr",), ("-m", "optim.lr=1,2"), ("--config-dir", "/etc/conf")]
)
def test_what_is_not_in_the_files_cannot_be_told(args: tuple[str, ...], tmp_path: Path) -> None:
    (found,) = checked(tmp_path, *args)
    assert found.startswith("arguments not all accepted arguments are known")


LIGHTNING = """
import hydra, pytorch_lightning as pl
@hydra.main(version_base="1.3", config_path="conf", config_name="config")
def main(cfg):
    trainer = hydra.utils.instantiate(cfg.trainer)
    trainer.fit(hydra.utils.instantiate(cfg.model))
main()
"""
TRAINER = {
    "config.yaml": "defaults:\n  - _self_\n  - experiment: base\n",
    "trainer/default.yaml": "_target_: pytorch_lightning.Trainer\nnum_nodes: 1\ndevices: 4\n",
    "trainer/wide.yaml": "_target_: pytorch_lightning.Trainer\nnum_nodes: 2\ndevices: 4\n",
    "pipeline/text.yaml": "# @package _global_\ndefaults:\n  - /trainer: default\n",
    "experiment/base.yaml": "# @package _global_\ndefaults:\n  - /pipeline: text\n",
    "experiment/large.yaml": "# @package _global_\ndefaults:\n  - /experiment/base.yaml\n",
    "experiment/own.yaml": "# @package _global_\ndefaults:\n  - /pipeline: text\ntrainer: {num_nodes: 2}\n",
    "experiment/other.yaml": "# @package _global_\ndefaults:\n  - /pipeline: text\n  - override /trainer: wide\n",
}


@pytest.mark.parametrize(
    ("experiment", "is_wrong"), [("base", True), ("large", True), ("own", False), ("other", False)]
)
def test_what_a_file_says_itself_and_what_it_overrides_counts(experiment: str, is_wrong: bool, tmp_path: Path) -> None:
    for name, text in TRAINER.items():
        (tmp_path / "conf" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "conf" / name).write_text(text)
    (tmp_path / "train.py").write_text(LIGHTNING)
    fields: dict[str, Any] = {"resources": {"nodes": 2, "nproc_per_node": 4}}
    found = findings(tmp_path, args=[f"experiment={experiment}"], **fields)
    assert any("num_nodes is 1" in one.text for one in found) is is_wrong
    assert not any(one.level == "unknown" for one in found)


ROOTED = """
import hydra, rootutils
root = rootutils.setup_root(__file__, indicator=["pyproject.toml"], pythonpath=True)
from src.net import Net
@hydra.main(version_base="1.3", config_path=root / "conf", config_name="config")
def main(cfg):
    Net(cfg.width)
main()
"""


@pytest.mark.parametrize(("word", "is_wrong"), [("width=3", False), ("depth=3", True)])
def test_the_folder_that_rootutils_finds(word: str, is_wrong: bool, tmp_path: Path) -> None:
    files = {
        "src/train.py": ROOTED,
        "src/__init__.py": "",
        "src/net.py": "class Net:\n    pass\n",
        "pyproject.toml": "",
    }
    with_files(tmp_path, {**files, "conf/config.yaml": "width: 4\n"})
    found = findings(tmp_path, boot_file="src/train.py", args=[word])
    assert not any(one.check == "imports" or one.level == "unknown" for one in found)
    assert any("no depth" in one.text for one in found) is is_wrong
