"""Which code of a job the checks follow, and with which values: `input()` and an assertion show what is reached."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from checked import GPUS, found, with_files

ARGUMENTS = """
import argparse
parser = argparse.ArgumentParser()
parser.add_argument("--n", type=int, default=3)
parser.add_argument("--scale", default="1")
args = parser.parse_args()
"""
ASSERTS = "assert args.n == 4\n"


@pytest.mark.parametrize(
    ("more", "is_known"),
    [
        ("for name in ('scale', 'shift'): setattr(args, name, 1.0)", True),
        ("for name in ('n', 'scale'): setattr(args, name, 4)", False),
        ("for key, value in load().items(): setattr(args, key, value)", False),
        ("for key, value in load().items():\n    if not hasattr(args, key): setattr(args, key, value)", True),
        ("def other(args):\n    args.__dict__[load()] = 4", True),
        ("def other(args):\n    args.__dict__[load()] = 4\nother(args)", False),
    ],
)
def test_arguments_that_are_set_by_name(more: str, is_known: bool, tmp_path: Path) -> None:
    assert ("unfulfilled" in found(tmp_path, f"{ARGUMENTS}{more}\n{ASSERTS}", **GPUS)) is is_known


def test_a_parser_of_another_module_that_parses_nothing(tmp_path: Path) -> None:
    for parses in ("", "args = parser.parse_known_args()[0]\n"):
        (tmp_path / "score.py").write_text(
            "import argparse\nparser = argparse.ArgumentParser()\nparser.add_argument('path', nargs='*')\n"
            f"parser.add_argument('--n', default='7')\n{parses}"
        )
        assert "unfulfilled" in found(tmp_path, f"import score\n{ARGUMENTS}{ASSERTS}", **GPUS)


@pytest.mark.parametrize("kind", ["ast.literal_eval", "eval"])
def test_a_type_that_takes_literals(kind: str, tmp_path: Path) -> None:
    text = f"""
import argparse, ast
parser = argparse.ArgumentParser()
parser.add_argument("--pretrained", type={kind}, default="True")
args = parser.parse_args()
if args.pretrained == False:
    raise ValueError("needs a pretrained model")
"""
    for given, is_found in (("False", True), ("True", False)):
        assert ("unfulfilled" in found(tmp_path, text, args=["--pretrained", given], **GPUS)) is is_found


TASKS = """
def main():
    if {condition}:
        from tasks.first import run
    else:
        from tasks.second import run
    run()
def common():
    input("go on?")
if __name__ == "__main__":
    main()
"""


@pytest.mark.parametrize("asks", ["first", "second"])
def test_a_name_that_one_of_two_imports_gives(asks: str, tmp_path: Path) -> None:
    """The boot file is also imported by its own name."""
    (tmp_path / "tasks").mkdir()
    for name in ("first", "second"):
        body = "common()" if name == asks else "pass"
        (tmp_path / f"tasks/{name}.py").write_text(f"from train import common\ndef run():\n    {body}\n")
    assert "no-terminal" in found(tmp_path, TASKS.format(condition="load()"))


def test_a_name_that_another_function_imports(tmp_path: Path) -> None:
    for name, body in (("first", "input()"), ("second", "pass")):
        (tmp_path / f"{name}.py").write_text(f"def run():\n    {body}\n")
    text = "def a():\n    from {a} import run\n    run()\ndef b():\n    from {b} import run\n    run()\na()\n"
    assert "no-terminal" in found(tmp_path, text.format(a="first", b="second"))
    assert "no-terminal" not in found(tmp_path, text.format(a="second", b="first"))


def test_what_a_package_hands_on_with_a_star(tmp_path: Path) -> None:
    (tmp_path / "models").mkdir()
    (tmp_path / "models/__init__.py").write_text("from .net import *\n")
    (tmp_path / "models/net.py").write_text("class Net:\n    def __init__(self):\n        input()\n")
    assert "no-terminal" in found(tmp_path, "import models\nmodels.Net()\n")
    assert "no-terminal" in found(tmp_path, "from models import *\nNet()\n")


@pytest.mark.parametrize(
    "start",
    [
        "import nets\nnets.__dict__[args.net]()",
        "import nets\ngetattr(nets, args.net)()",
        "import nets\nmake = getattr(nets, args.net)\nmake()",
        "import nets\ngetattr(nets, 'make_%s' % args.size)()",
        "import nets\nfrom timm import create_model\ncreate_model(args.net)",
    ],
)
def test_a_function_by_the_name_in_an_argument(start: str, tmp_path: Path) -> None:
    text = f"""
import argparse
parser = argparse.ArgumentParser()
parser.add_argument("--net", default="make_small")
parser.add_argument("--size", default="small")
args = parser.parse_args()
{start}
"""
    asks = "@register_model\ndef make_{}():\n    {}\n"
    for small, large, is_found in (("input()", "pass", True), ("pass", "input()", False)):
        nets = "from timm import register_model\n" + asks.format("small", small) + asks.format("large", large)
        (tmp_path / "nets.py").write_text(nets)
        assert ("no-terminal" in found(tmp_path, text)) is is_found


def test_a_condition_on_the_only_entry_of_a_list(tmp_path: Path) -> None:
    text = """
import argparse, torch
parser = argparse.ArgumentParser()
parser.add_argument("--encoders", default="clip-L")
parser.add_argument("--size", type=int, default=256)
args = parser.parse_args()
@torch.no_grad()
def load(names, size):
    for name in names.split(","):
        kind, width = name.split("-")
        if size == 512:
            if kind != "dino":
                raise NotImplementedError(name)
load(args.encoders, args.size)
"""
    assert "unfulfilled" in found(tmp_path, text, args=["--size=512"], **GPUS)
    assert "unfulfilled" not in found(tmp_path, text, args=["--size=512", "--encoders=dino-L"], **GPUS)


FIELDS = """
class Config:
    def __init__(self, **given):
        self.ask = False
        self.loud = False
        for key in given:
            {sets}
def run(config):
    if config.ask:
        input()
run(Config(**load()))
"""


@pytest.mark.parametrize(
    ("sets", "words", "is_found"),
    [
        ("setattr(self, key, given[key])", ["ask=1"], True),
        ("self.__dict__[key] = given[key]", ["ask=1"], True),
        ("setattr(self, key, given[key])", ["loud=1"], False),
        ("pass", ["ask=1"], False),
    ],
)
def test_a_field_that_may_be_set_by_its_name(sets: str, words: list[str], is_found: bool, tmp_path: Path) -> None:
    seen = found(tmp_path, FIELDS.format(sets=sets), args=words, **GPUS)
    assert ("no-terminal" in seen) is is_found


def test_a_configuration_whose_fields_a_function_sets(tmp_path: Path) -> None:
    text = """
import fire
from dataclasses import dataclass
@dataclass
class train_config:
    ask: bool = False
def update(config, **given):
    for key, value in given.items():
        setattr(config, key, value)
def main(**given):
    config = train_config()
    update(config, **given)
    if config.ask:
        input()
fire.Fire(main)
"""
    assert "no-terminal" in found(tmp_path, text, args=["--ask"])
    assert "no-terminal" not in found(tmp_path, text, args=["--quiet"])
    (tmp_path / "conf.yaml").write_text("ask: true\n")  # which nothing reads
    assert "no-terminal" not in found(tmp_path, text, args=["--quiet"])


def test_a_variable_that_the_program_sets_for_its_processes(tmp_path: Path) -> None:
    text = """
import os
def start():
    {sets}
    if "WORLD_SIZE" in os.environ:
        input()
start()
"""
    job: dict[str, Any] = {"command": ["python", "train.py"], **GPUS}
    assert "no-terminal" in found(tmp_path, text.format(sets="os.environ['WORLD_SIZE'] = '4'"), **job)
    assert "no-terminal" not in found(tmp_path, text.format(sets="pass"), **job)


def test_a_call_that_the_arguments_rule_out(tmp_path: Path) -> None:
    """Only the call for one process gives another size."""
    text = """
import argparse, torch, torch.distributed as dist
from torch.multiprocessing import Process
parser = argparse.ArgumentParser()
parser.add_argument("--each", type=int, default=1)
parser.add_argument("--nodes", type=int, default=1)
parser.add_argument("--node", type=int, default=0)
parser.add_argument("--address", default="127.0.0.1")
args = parser.parse_args()
def join(rank, size, args):
    import os
    os.environ["MASTER_ADDR"] = args.address
    os.environ["MASTER_PORT"] = "6020"
    dist.init_process_group("nccl", init_method="env://", rank=rank, world_size=size)
if args.each > 1:
    for number in range(args.each):
        rank = {rank}
        Process(target=join, args=(rank, args.each * args.nodes, args)).start()
else:
    join(0, args.each, args)
"""
    words = "python train.py --each $NPROC_PER_NODE --nodes $NNODES --node $NODE_RANK"
    right = text.format(rank="number + args.node * args.each")
    whole = f"{words} --address $MASTER_ADDR"
    assert not found(tmp_path, right, command=["bash", "-c", whole], **GPUS)
    assert "fixed-master" in found(tmp_path, right, command=["bash", "-c", words], **GPUS)
    same = text.format(rank="number")
    assert "same-ranks" in found(
        tmp_path, same.replace("(rank, args", "(number, args"), command=["bash", "-c", whole], **GPUS
    )


def test_a_shell_script_with_variables_and_outputs_of_commands(tmp_path: Path) -> None:
    (tmp_path / "run.sh").write_text(
        "set -e\nDATA=/shared/data\nfirst=$((NODE_RANK * NPROC_PER_NODE))\n"
        "python3 train.py --data $DATA --ranks $(seq -s ' ' $first 7) --n 5\n"
    )
    text = """
import argparse
parser = argparse.ArgumentParser()
parser.add_argument("--data")
parser.add_argument("--ranks", nargs="+", type=int)
parser.add_argument("--n", type=int, default=3)
args = parser.parse_args()
assert args.data == {data!r}
assert args.n == 5
"""
    assert not found(tmp_path, text.format(data="/shared/data"), command=["bash", "run.sh"], **GPUS)
    assert "unfulfilled" in found(tmp_path, text.format(data="/data"), command=["bash", "run.sh"], **GPUS)


def test_dora_reads_the_configuration_of_hydra(tmp_path: Path) -> None:
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf/config.yaml").write_text("misc:\n  num_workers: 4\n")
    text = """
from dora import hydra_main
@hydra_main(config_path="conf", config_name="config")
def main(cfg):
    print(cfg.misc.num_workers)
main()
"""
    assert "argument-unknown" in found(tmp_path, text, args=["misc.workers=8"])
    assert "argument-unknown" not in found(tmp_path, text, args=["misc.num_workers=8"])


def test_a_text_that_looks_like_an_import_in_a_module_that_is_skimmed(tmp_path: Path) -> None:
    (tmp_path / "large.py").write_text("import net\n" + f"x = 1  # {'-' * 82}\n" * 6_000)
    (tmp_path / "net.py").write_text('"""Net.\n\nimport from https://example.org/net\n"""\nimport math\n')
    assert "boot-file" not in found(tmp_path, "import large\n")


@pytest.mark.parametrize(
    "line", ["# It is distributed on an as-is basis.\n", "x = x.cuda()  # to the current device\n"]
)
def test_the_options_of_a_large_program_are_known(line: str, tmp_path: Path) -> None:
    for number in range(10):
        (tmp_path / f"net{number}.py").write_text(f"{line.rstrip()}{'.' * 220}\n" * 280)
    (tmp_path / "options.py").write_text(
        'import argparse\nparser = argparse.ArgumentParser()\nparser.add_argument("--lr")\n'
    )
    text = "\n".join(f"import net{number}" for number in range(10)) + "\nimport options\noptions.parser.parse_args()\n"
    assert "argument-unknown" in found(tmp_path, text, hyperparameters={"lrr": "1"})
    assert "argument-unknown" not in found(tmp_path, text, hyperparameters={"lr": "1"})


SETTINGS = """
import argparse
from yacs.config import CfgNode as CN
_C = CN()
_C.TRAIN = CN()
_C.TRAIN.BATCH = 12
_C.GPUS = 4
cfg = _C
parser = argparse.ArgumentParser()
parser.add_argument("--cfg", default="base.yaml")
parser.add_argument("opts", nargs=argparse.REMAINDER)
args = parser.parse_args()
def load(path):
    {load}
load(args.cfg)
cfg.merge_from_list(args.opts)
{more}
assert cfg.TRAIN.BATCH % cfg.GPUS == 0
"""
MERGE = "cfg.merge_from_file(path)"


@pytest.mark.parametrize(
    ("load", "more", "words", "is_found"),
    [
        (MERGE, "", [], False),
        (MERGE, "", ["GPUS", "5"], True),
        (MERGE, "", ["--cfg=odd.yaml"], True),
        (MERGE, "", ["--cfg=odd.yaml", "TRAIN.BATCH", "16"], False),
        (MERGE, "", ["--cfg=child.yaml", "GPUS", "5"], False),  # what it inherits is not known
        (MERGE, "", ["--cfg=/shared/other.yaml", "GPUS", "5"], False),
        (MERGE, "cfg.GPUS = count()", ["GPUS", "5"], False),
        ("with open(path) as f:\n        cfg.merge_from_other_cfg(cfg.load_cfg(f))", "", ["--cfg=odd.yaml"], True),
        ("cfg.merge_from_other_cfg(other())", "", ["GPUS", "5"], False),
    ],
)
def test_settings_of_yacs(load: str, more: str, words: list[str], is_found: bool, tmp_path: Path) -> None:
    (tmp_path / "base.yaml").write_text("TRAIN:\n  BATCH: 8\n")
    (tmp_path / "odd.yaml").write_text("TRAIN:\n  BATCH: 9\n")
    (tmp_path / "child.yaml").write_text("_BASE_: base.yaml\nTRAIN:\n  BATCH: 9\n")
    seen = found(tmp_path, SETTINGS.format(load=load, more=more), args=words, **GPUS)
    assert ("unfulfilled" in seen) is is_found


def test_a_checkpoint_that_the_settings_of_yacs_do_not_name(tmp_path: Path) -> None:
    text = """
import os, torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from yacs.config import CfgNode as CN
cfg = CN()
cfg.RESUME = {resume}
dist.init_process_group("nccl")
model, optimizer = DDP(make()), make_optimizer()
if dist.get_rank() == 0:
    if os.path.exists(cfg.RESUME):
        optimizer.load_state_dict(torch.load(cfg.RESUME))
"""
    assert "loaded-by-one" in found(tmp_path, text.format(resume="'/shared/last.pt'"), **GPUS)
    assert "loaded-by-one" not in found(tmp_path, text.format(resume="''"), **GPUS)


def test_an_error_for_a_value_that_the_code_does_not_know(tmp_path: Path) -> None:
    text = """
import argparse, yaml
parser = argparse.ArgumentParser()
parser.add_argument("--config")
args = parser.parse_args()
cfg = yaml.load(open(args.config))
if cfg["criterion"]["name"] == "CELoss":
    pass
elif cfg["criterion"]["name"] == "OHEM":
    pass
else:
    raise NotImplementedError(cfg["criterion"])
"""
    for name, is_found in (("ProbOhem", True), ("OHEM", False)):
        (tmp_path / "conf.yaml").write_text(f"criterion:\n  name: {name}\n")
        assert ("unfulfilled" in found(tmp_path, text, args=["--config", "conf.yaml"], **GPUS)) is is_found


REGISTRY = """
class Registry(dict):
    def register(self, *names):
        def add(made):
            self[names[0] if names else made.__name__] = made
            return made
        return add
MODELS = Registry()
"""
NETS = """
from registry import MODELS
@MODELS.register("wide-net")
class Wide:
    def __init__(self):
        input()
@MODELS.register()
class Narrow:
    pass
"""


@pytest.mark.parametrize(
    ("asks", "fields", "is_found"),
    [
        ("args.model", {"args": ["--model", "wide-net"]}, True),
        ("args.model", {"args": ["--model", "Narrow"]}, False),
        ("'wide-net'", {}, True),
        ("yaml.safe_load(open(args.model))['type']", {"args": ["--model", "configs/wide.yaml"]}, True),
        ("yaml.safe_load(open(args.model))['type']", {"args": ["--model", "configs/narrow.yaml"]}, False),
        ("Config.fromfile(args.model).type", {"args": ["--model", "configs/wide.py"]}, True),
    ],
)
def test_a_class_that_is_registered_by_a_name(
    asks: str, fields: dict[str, Any], *, is_found: bool, tmp_path: Path
) -> None:
    (tmp_path / "registry.py").write_text(REGISTRY)
    (tmp_path / "nets.py").write_text(NETS)
    (tmp_path / "configs").mkdir()
    for name, text in (("base.yaml", "type: wide-net"), ("wide.yaml", "_base_: base.yaml"), ("narrow.yaml", "x: 1")):
        (tmp_path / "configs" / name).write_text(f"{text}\n")
    (tmp_path / "configs" / "wide.py").write_text("type = 'wide-net'\n")
    text = (
        "import argparse\nimport yaml\nimport nets\nfrom registry import MODELS\n"
        "parser = argparse.ArgumentParser()\nparser.add_argument('--model')\nargs = parser.parse_args()\n"
        f"MODELS[{asks}]()\n"
    )
    assert ("no-terminal" in found(tmp_path, text, **fields, **GPUS)) is is_found


LISTED = "for name in os.listdir(os.path.dirname(__file__)):\n    "


@pytest.mark.parametrize(
    ("package", "asks"),
    [
        (f"import os, importlib\n{LISTED}importlib.import_module('nets.' + name[:-3])", "MODELS['wide-net']()"),
        (f"import os, importlib\n{LISTED}importlib.import_module(__name__ + '.' + name[:-3])", "MODELS['wide-net']()"),
        (
            "import pkgutil\nfrom importlib import import_module\n"
            "for _, name, _ in pkgutil.iter_modules(__path__):\n    import_module(f'.{name}', __name__)",
            "MODELS['wide-net']()",
        ),
        ("", "import importlib\nimportlib.import_module('nets.' + args.model).Wide()"),
        ("", "from build import instantiate_from_config\ninstantiate_from_config(yaml.safe_load(open(args.file)))"),
    ],
)
def test_a_module_that_is_imported_by_its_name(package: str, asks: str, tmp_path: Path) -> None:
    (tmp_path / "nets").mkdir()
    (tmp_path / "nets" / "__init__.py").write_text(package)
    (tmp_path / "nets" / "wide.py").write_text(NETS)
    (tmp_path / "registry.py").write_text(REGISTRY)
    (tmp_path / "net.yaml").write_text("target: nets.wide.Wide\nparams: {width: 3}\n")
    (tmp_path / "build.py").write_text(
        "import importlib\n\ndef instantiate_from_config(config):\n"
        "    module, name = config['target'].rsplit('.', 1)\n"
        "    return getattr(importlib.import_module(module, package=None), name)(**config.get('params', dict()))\n"
    )
    text = (
        "import argparse\nimport yaml\nimport nets\nfrom registry import MODELS\n"
        "parser = argparse.ArgumentParser()\nparser.add_argument('--model', default='wide')\n"
        f"parser.add_argument('--file', default='net.yaml')\nargs = parser.parse_args()\n{asks}\n"
    )
    assert "no-terminal" in found(tmp_path, text, **GPUS)


@pytest.mark.parametrize(("sets", "is_known"), [("c.n = args.n", True), ("if load():\n        c.n = args.n", False)])
def test_a_mapping_whose_entries_are_set_by_name(sets: str, *, is_known: bool, tmp_path: Path) -> None:
    text = f"""{ARGUMENTS}
class EasyDict(dict):
    def __setattr__(self, name, value):
        self[name] = value
def loop(n=4, size=1):
    assert n == 4
def main():
    c = EasyDict()
    {sets}
    loop(**c)
main()
"""
    assert ("unfulfilled" in found(tmp_path, text, **GPUS)) is is_known


@pytest.mark.parametrize(("given", "is_found"), [("3", True), ("4", False)])
def test_the_options_of_a_click_command(given: str, *, is_found: bool, tmp_path: Path) -> None:
    text = (
        "import click\n@click.command()\n@click.option('--batch-gpu', 'batch_gpu', type=int, default=4)\n"
        "@click.option('--total', type=int, default=16)\ndef main(batch_gpu, total):\n"
        "    assert total % batch_gpu == 0\nmain()\n"
    )
    assert ("unfulfilled" in found(tmp_path, text, args=["--batch-gpu", given], **GPUS)) is is_found


LOOKED_UP = """
class Small:
    def __init__(self, depth=2, width=8):
        assert depth % 2 == 0
class Large:
    pass
def small(**kwargs):
    return Small(width=16, **kwargs)
"""


@pytest.mark.parametrize(
    "call",
    [
        "nets.__dict__[args.net](**vars(args))",
        "getattr(nets, args.net)(depth=args.depth)",
        "MODELS[args.net](depth=args.depth)",
        "maker = MODELS[args.net]\nmaker(args.depth)",
        "maker = getattr(nets, args.net)\nmaker(**args.__dict__)",
    ],
)
def test_arguments_of_what_is_looked_up_by_a_name(call: str, tmp_path: Path) -> None:
    (tmp_path / "nets.py").write_text(LOOKED_UP)
    text = f"""
import argparse
import nets
MODELS = {{"small": nets.Small, "large": nets.Large}}
parser = argparse.ArgumentParser()
parser.add_argument("--net", default="small")
parser.add_argument("--depth", type=int, default=2)
args = parser.parse_args()
{call}
"""
    for depth, is_found in ((3, True), (4, False)):
        assert ("unfulfilled" in found(tmp_path, text, args=["--depth", str(depth)], **GPUS)) is is_found


OWN_SETTINGS = {
    "settings.py": """
import yacs.config
class ConfigNode(yacs.config.CfgNode):
    pass
config = ConfigNode()
config.train = ConfigNode()
config.train.distributed = False
""",
    "train.py": """
import argparse, torch, torch.distributed as dist
from settings import config as defaults
def load():
    parser = argparse.ArgumentParser()
    parser.add_argument("options", nargs=argparse.REMAINDER)
    args = parser.parse_args()
    config = defaults.clone()
    config.merge_from_list(args.options)
    return config
config = load()
if config.train.distributed:
    dist.init_process_group("gloo")
torch.nn.Linear(2, 2)(torch.rand(2)).sum().backward()
""",
}


def test_settings_of_yacs_in_small_letters(tmp_path: Path) -> None:
    with_files(tmp_path, OWN_SETTINGS)
    assert "no-init" in found(tmp_path, OWN_SETTINGS["train.py"])
    assert "no-init" not in found(tmp_path, OWN_SETTINGS["train.py"], args=["train.distributed", "True"])
