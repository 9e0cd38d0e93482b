"""The values of expressions: `show(…)` in a program asks for one, on two nodes with eight processes each."""

import ast
import time
from pathlib import Path
from typing import Any

import pytest

from jobsubmit.bundle.scanner import scan
from jobsubmit.check.program.facts import Facts
from jobsubmit.check.program.namespaces import Namespaces
from jobsubmit.check.program.operations import UNKNOWN, Several
from jobsubmit.check.program.reading import load_program
from jobsubmit.check.program.values import Values

RANKS, LOCAL = Several((0, 8, 15)), Several((0, 4, 7))
ENVIRONMENT = {
    "RANK": Several(("0", "8", "15")),
    "LOCAL_RANK": Several(("0", "4", "7")),
    "WORLD_SIZE": "16",
    "SLURM_PROCID": None,
}


def shown(folder: Path, text: str, **given: Any) -> list[Any]:
    """Return the value of each expression that is shown, in the order of the lines of all files."""
    (folder / "train.py").write_text(f"import os\nimport torch.distributed as dist\n{text}")
    program = load_program(scan(folder), "train.py")
    assert program is not None
    values = Values(program, Facts("torchrun", 2, 8, 8, ENVIRONMENT, (), RANKS), **given)
    calls = [(module, call) for module, call in program.of(ast.Call) if ast.unparse(call.func) == "show"]
    return [values.of(call.args[0], module) for module, call in sorted(calls, key=lambda one: one[1].lineno)]


SETUP = """
def setup():
    if "RANK" in os.environ:
        rank = int(os.environ["RANK"])
        world, local = int(os.environ["WORLD_SIZE"]), int(os.environ["LOCAL_RANK"])
    elif "SLURM_PROCID" in os.environ:
        rank, world, local = int(os.environ["SLURM_PROCID"]), 4, 0
    else:
        return 0, 1, 0
    return rank, world, local
rank, world, local = setup()
"""
SETTINGS = """
from dataclasses import dataclass, field
@dataclass
class Settings:
    backend: str = "nccl"
    workers: int = field(default=3)
    rank: int = field(default_factory=lambda: int(os.environ["RANK"]))
    @property
    def is_main(self):
        return self.rank == 0
"""


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (f"{SETUP}show(rank)\nshow(world)\nshow(local)", [RANKS, 16, LOCAL]),
        (f'{SETUP}show(f"cuda:{{local}}")', [Several(("cuda:0", "cuda:4", "cuda:7"))]),
        ("size = 64\nsize //= int(os.environ['WORLD_SIZE'])\nshow(size)", [4]),
        ("a = 1\nif os.environ['WORLD_SIZE'] == '16':\n    a = 2\nelse:\n    a = 3\nshow(a)", [2]),
        ("def f(x, y=2):\n    return x * y\nshow(f(3))\nshow(f(4, y=5))", [6, 20]),
        ("def main():\n    return dist.get_rank() == 0\nif main():\n    pass\nshow(main())", [Several((True, False))]),
        (
            "dist.init_process_group('gloo')\n"
            "def size():\n    if not dist.is_initialized():\n        return 1\n    return dist.get_world_size()\n"
            "show(size())",
            [16],
        ),
        (f"{SETTINGS}s = Settings()\nshow(s.backend)\nshow(s.workers)\nshow(s.rank)", ["nccl", 3, RANKS]),
        (f"{SETTINGS}s = Settings('gloo', workers=5)\nshow(s.backend)\nshow(s.workers)", ["gloo", 5]),
        (f"{SETTINGS}def go(s):\n    show(s.is_main)\ngo(Settings())", [Several((True, False))]),
        (
            "class T:\n    def __init__(self, n):\n        self.n = n\n        self.r = self.rank() % 8\n"
            "    def rank(self):\n        return int(os.environ['RANK'])\n"
            "    def go(self):\n        show(self.n)\n        show(self.r)\nT(9).go()",
            [9, Several((0, 7))],
        ),
        ("c = {'a': {'b': 5}, **{'d': 6}}\nshow(c['a']['b'])\nshow(c.get('d'))\nshow(c.get('e', 7))", [5, 6, 7]),
        ("from types import SimpleNamespace as Namespace\nc = Namespace(**{'a': 1}, b=2)\nshow(c.a + c.b)", [3]),
        ("show(17 % 4)\nshow(2 ** 5)\nshow(min(3, 8))\nshow('a,b'.split(','))", [1, 32, 3, ["a", "b"]]),
    ],
)
def test_what_a_program_computes_is_followed(tmp_path: Path, text: str, expected: list[Any]) -> None:
    assert shown(tmp_path, text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "for i in range(3):\n    step = i\n    show(step)",
        "step = 0\nwhile True:\n    show(step)\n    step += 1",
        "a = 1\nif os.environ['OTHER']:\n    a = 2\nshow(a)",
        "def f():\n    if input():\n        return 1\n    return 2\nshow(f())",
        "def f(n):\n    return f(n - 1)\nshow(f(3))",
        "def f():\n    yield 1\nshow(f())",
        "c = {'a': {}}\nc[input()]['b'] = 1\nshow(c['a'])",
        "c = {'a': 1}\nif input():\n    c['a'] = 2\nshow(c['a'])",
        "c = {'a': 1}\ndef f(c):\n    c['a'] = 2\nf(c)\nshow(c['a'])",
        "c = {'a': 1}\nc.update(read())\nshow(c['a'])",
        "c = {'a': [1]}\nc['a'].append(2)\nshow(c['a'])",
        "c = {'a': 1}\nc['a'] += 1\nshow(c['a'])",
        "c = {'a': 1}\nfor k, v in read().items():\n    c[k] = v\nshow(c['a'])",
        "show([x for x in 'ab'])",
        "x = 1\nshow([x for x in input()][0])\nshow(sum(x for x in input()))",
        "try:\n    a = 1\nexcept OSError:\n    a = 2\nshow(a)",
        "a = 1\ndef f():\n    global a\n    a = 2\nf()\nshow(a)",
        "class T:\n    def __init__(self):\n        self.n = 1\n    def set(self):\n        self.n = 2\n"
        "    def go(self):\n        show(self.n)\nT().go()",
        "a = a + 1\nshow(a)",
    ],
)
def test_what_may_be_otherwise_is_not_known(tmp_path: Path, text: str) -> None:
    assert all(value is UNKNOWN for value in shown(tmp_path, text))


@pytest.mark.parametrize(
    ("name", "content", "read"),
    [
        ("c.yaml", "train: {batch: 32, backend: gloo}\n", "yaml.safe_load(open('c.yaml'))"),
        (
            "conf/c.json",
            '{"train": {"batch": 32, "backend": "gloo"}}',
            "json.loads(Path('conf', 'c.json').read_text())",
        ),
        ("c.yaml", "train: {batch: 32, backend: gloo}\n", "OmegaConf.load(HERE / 'c.yaml')"),
    ],
)
def test_configuration_files_are_read(tmp_path: Path, name: str, content: str, read: str) -> None:
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text(content)
    text = (
        "import json, yaml\nfrom pathlib import Path\nfrom omegaconf import OmegaConf\nHERE = Path(__file__).parent\n"
        f"c = {read}\nshow(c['train']['batch'])\nshow(c.train.backend)\n"
        "with open('c.yaml') as stream:\n    d = yaml.load(stream, Loader=yaml.FullLoader)\n"
    )
    assert shown(tmp_path, text) == [32, "gloo"]


def test_configurations_of_python_are_read(tmp_path: Path) -> None:
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs" / "base.py").write_text(
        "import os\nsize = 4\nmodel = dict(type='Net', width=8, head=dict(type='A', depth=2))\n"
        "data = {'batch': size * 2, 'path': os.getcwd()}\n"
    )
    (tmp_path / "configs" / "own.py").write_text(
        "_base_ = ['base.py']\nmodel = dict(width=16, head=dict(_delete_=True, type='B'))\nlr = -1\n"
    )
    (tmp_path / "configs" / "broken.py").write_text("_base_ = ['none.py']\nlr = 1\n")
    text = """
from mmengine.config import Config
c = Config.fromfile("configs/own.py")
show(c.model.width)
show(c.model.head)
show(c["data"]["batch"])
show(c.data.path)
show(c.lr)
show(Config.fromfile("configs/broken.py").lr)
"""
    assert shown(tmp_path, text) == [16, {"type": "B"}, 8, UNKNOWN, -1, UNKNOWN]


def test_configurations_of_omegaconf_are_merged(tmp_path: Path) -> None:
    (tmp_path / "base.yaml").write_text("train: {batch: 8, backend: gloo, lr: '${base.lr}'}\n")
    (tmp_path / "more.yaml").write_text("train: {batch: 16}\n")
    text = """
from omegaconf import OmegaConf
args, words = argparse.ArgumentParser().parse_known_args()
files = ["base.yaml", "more.yaml"]
read = [OmegaConf.load(file) for file in files]
c = OmegaConf.merge(*read, OmegaConf.from_dotlist(words), OmegaConf.create({"name": "first"}))
show(c.train.batch)
show(c.train.backend)
show(c.data.workers)
show(OmegaConf.to_container(c)["name"])
show(c.train.lr)
d = OmegaConf.merge(OmegaConf.load("base.yaml"), OmegaConf.load("none.yaml"))
show(d.train.batch)
"""
    values = shown(tmp_path, text, leftover=("train.backend=nccl", "data.workers=3"))
    assert values == [16, "nccl", 3, "first", UNKNOWN, UNKNOWN]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("c = {'a': {}}\nc['a']['b'] = 1\nshow(c['a'])\nc['a']['b'] = 2\nshow(c['a']['b'])", [{"b": 1}, 2]),
        ("c = {'a': 1, 'b': 2}\nif input():\n    c['a'] = 3\nshow(c['b'])", [2]),
        ("c = {'a': 2}\nc['a'] = c['a'] * 3\nshow(c['a'])", [6]),
        ("c = {'a': 1}\nc['a'] = 2\ndef f():\n    show(c['a'])\nf()", [2]),
        (
            "c = {'a': {'n': 1, 'm': 2}}\ndef f(c, **kw):\n    c = {'a': {'n': 1, 'm': 2}}\n"
            "    for key, value in kw.items():\n        if value is not None:\n            c['a'][key] = value\n"
            "    show(c['a'])\nf(0, n=5, m=None)",
            [{"n": 5, "m": 2}],
        ),
        (
            "class T:\n    def __init__(self):\n        self.c = {'a': 1}\n        self.c['a'] = 2\n"
            "    def go(self):\n        show(self.c['a'])\nT().go()",
            [2],
        ),
    ],
)
def test_entries_that_are_put_into_a_mapping_are_followed(tmp_path: Path, text: str, expected: list[Any]) -> None:
    assert shown(tmp_path, text) == expected


def test_a_configuration_that_is_missing_is_not_known(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text("batch: 32\n")
    (tmp_path / "bad.yaml").write_text("batch: [\n")
    text = (
        "import yaml\n"
        "show(yaml.safe_load(open('none.yaml')))\nshow(yaml.safe_load(open('bad.yaml')))\n"
        "show(yaml.safe_load(open('../c.yaml')))\n"
    )
    assert all(value is UNKNOWN for value in shown(tmp_path, text))


def test_an_argument_that_the_program_replaces_has_its_new_value(tmp_path: Path) -> None:
    text = (
        "args = parse()\nshow(args.batch)\nargs.batch = args.batch // int(os.environ['WORLD_SIZE'])\nshow(args.batch)\n"
        "args.rank = int(os.environ['RANK'])\ndef go(args):\n    show(args.rank)\ngo(args)\n"
    )
    given = {"arguments": {"batch": 64}, "namespaces": Namespaces(frozenset({"args"}))}
    assert shown(tmp_path, text, **given) == [64, 4, RANKS]


def test_values_that_need_each_other_take_no_time(tmp_path: Path) -> None:
    lines = [
        f"    if args.a{(n * 7) % 40} > args.a{(n * 3 + 1) % 40}:\n        args.a{n} = args.a{n + 1}" for n in range(40)
    ]
    text = "def f(args):\n" + "\n".join(lines) + "\n    show(args.a0)\n"
    assert shown(tmp_path, text) == [UNKNOWN]


@pytest.mark.parametrize(("mappings", "value"), [(2, 1), (7, UNKNOWN)])
def test_mappings_that_loops_fill_by_one_another_are_given_up_in_time(
    tmp_path: Path, mappings: int, value: Any
) -> None:
    names = [f"name{number}" for number in range(12)]
    text = f"filled0 = {dict.fromkeys(names, 1)}\n"
    for number in range(1, mappings + 1):
        text += f"filled{number} = {{}}\nfor key in filled0:\n    if filled{number - 1}[key] == 7:\n        continue\n"
        text += f"    filled{number}[key] = 1\n"
    began = time.process_time()
    assert shown(tmp_path, f"{text}show(filled{mappings}['name0'])\n") == [value]
    assert time.process_time() - began < 10
