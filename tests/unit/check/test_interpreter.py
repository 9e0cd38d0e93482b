"""What is seen while a program is followed: `show(…)` asks for a value, on two nodes with eight processes each."""

from __future__ import annotations

import ast
import time
from pathlib import Path
from typing import Any

import pytest
from checked import with_files

from jobsubmit.bundle.scanner import scan
from jobsubmit.check.interpreter.follow import follow_processes, observe
from jobsubmit.check.program.facts import Facts
from jobsubmit.check.program.operations import UNKNOWN, Several
from jobsubmit.check.program.program import Program
from jobsubmit.check.program.reading import load_program

RANKS = Several((0, 8, 15))
ENVIRONMENT = {
    "RANK": Several(("0", "8", "15")),
    "LOCAL_RANK": Several(("0", "4", "7")),
    "WORLD_SIZE": "16",
    "NO": None,
}


def program_of(folder: Path, text: str, files: dict[str, str] | None = None) -> Program:
    with_files(folder, {"train.py": f"import os\n{text}", **(files or {})})
    program = load_program(scan(folder), "train.py")
    assert program is not None
    return program


def facts_of(*words: str) -> Facts:
    return Facts("torchrun", 2, 8, 8, ENVIRONMENT, words, RANKS)


def asked(program: Program) -> list[ast.expr]:
    calls = [call for _, call in program.of(ast.Call) if ast.unparse(call.func) == "show"]
    return [call.args[0] for call in sorted(calls, key=lambda one: one.lineno)]


def shown(folder: Path, text: str, *words: str, files: dict[str, str] | None = None) -> list[Any]:
    program = program_of(folder, text, files)
    seen = observe(program, facts_of(*words), {}, None)
    return [seen.values.get(node, UNKNOWN) for node in asked(program)]


LOADER = """
import yaml
class Config:
    def __init__(self, values):
        for key, value in values.items():
            setattr(self, key, Config(value) if isinstance(value, dict) else value)
def merge(own, other):
    for key, value in other.items():
        if isinstance(value, dict) and key in own:
            merge(own[key], value)
        else:
            own[key] = value
    return own
def load(path):
    with open(path) as stream:
        own = yaml.safe_load(stream)
    return merge(load(own.pop("base")), own) if "base" in own else own
cfg = Config(load("own.yaml"))
show(cfg.train.batch)
show(cfg.train.lr)
show(cfg.name)
"""
REGISTRY = """
import importlib
import registry
for file in sorted(os.listdir("nets")):
    if file.endswith(".py") and not file.startswith("_"):
        importlib.import_module(f"nets.{file[:-3]}")
net = registry.build("wide", width=4)
show(net.width)
show("none" in registry.NETS)
"""
OPTIONS = """
import argparse
OPTIONS = {"train": {"--lr": dict(type=float, default=0.1), "--steps": dict(type=int, default=5)}}
parser = argparse.ArgumentParser()
for group in OPTIONS.values():
    for name, settings in group.items():
        parser.add_argument(name, **settings)
parser.set_defaults(steps=7)
args, rest = parser.parse_known_args()
show(args.lr)
show(args.steps)
show(rest)
"""


@pytest.mark.parametrize(
    ("text", "words", "files", "expected"),
    [
        (
            LOADER,
            [],
            {"own.yaml": "base: base.yaml\ntrain: {lr: 0.5}\n", "base.yaml": "train: {batch: 8, lr: 1}\nname: first\n"},
            [8, 0.5, "first"],
        ),
        (
            REGISTRY,
            [],
            {
                "registry.py": "NETS = {}\ndef register(net):\n    NETS[net.__name__.lower()] = net\n    return net\n"
                "def build(name, **settings):\n    return NETS[name](**settings)\n",
                "nets/__init__.py": "",
                "nets/wide.py": "from registry import register\n@register\nclass Wide:\n"
                "    def __init__(self, width):\n        self.width = width * 2\n",
            },
            [8, False],
        ),
        (OPTIONS, ["--lr=3", "--other=1"], {}, [3.0, 7, ["--other=1"]]),
        (
            "a = [1, 2]\na.append(3)\na += [4]\nfirst, *more = a\nshow(sum(a))\nshow(more)",
            [],
            {},
            [10, [2, 3, 4]],
        ),
        ("a = 1\nif input():\n    a = 2\nshow(a)\nb = 1\nif input():\n    b = 1\nshow(b)", [], {}, [UNKNOWN, 1]),
        ("def f():\n    if input():\n        return 3\n    return 3\nshow(f())", [], {}, [3]),
        (
            "n = 0\nfor x in input():\n    n += 1\nshow(n)\nm = 5\nfor x in input():\n    m = 5\nshow(m)",
            [],
            {},
            [UNKNOWN, 5],
        ),
        ("try:\n    a = int(os.environ['NO'])\nexcept KeyError:\n    a = -1\nshow(a)", [], {}, [-1]),
        ("a = {'b': 1}\nchange(a)\nshow(a['b'])\nprint(a)\nc = {'b': 2}\nprint(c)\nshow(c['b'])", [], {}, [UNKNOWN, 2]),
        (
            "class A:\n    n = 1\n    def __getattr__(self, name):\n        return len(name)\n"
            "show(A().n)\nshow(A().four)",
            [],
            {},
            [1, 4],
        ),
        (
            "import functools\nf = functools.partial(max, 3)\nshow(f(2))\nshow((lambda x, y=2: x * y)(4))",
            [],
            {},
            [3, 8],
        ),
        ("show(eval('1 + 2'))\nexec('a = 4')\nshow(a)", [], {}, [3, 4]),
        ("from pathlib import Path\nshow(str(Path(__file__).resolve().parents[1] / 'x'))", [], {}, ["../x"]),
        (
            "import numpy as np\na = []\nfor _ in range(3):\n    a.extend(np.random.choice([1, 2], 2))\nshow(len(a))",
            [],
            {},
            [6],
        ),
        ("show(int(os.environ['RANK']) // 8)\nshow(os.environ.get('NO', 'x'))", [], {}, [Several((0, 1)), "x"]),
    ],
)
def test_a_program_is_followed(
    text: str, words: list[str], files: dict[str, str], expected: list[Any], tmp_path: Path
) -> None:
    assert shown(tmp_path, text, *words, files=files) == expected


def test_what_runs_long_is_given_up_and_nothing_wrong_is_left(tmp_path: Path) -> None:
    text = "n = 0\nwhile n < 10 ** 9:\n    show(n)\n    n += 1\nwhile True:\n    pass\n"
    assert shown(tmp_path, f"show(1 + 1)\n{text}") == [2, UNKNOWN]
    deep = "def f(n):\n    return f(n + 1) + f(n + 2)\nshow(f(0))\n"
    assert shown(tmp_path, deep) == [UNKNOWN]


def test_nothing_of_the_program_is_executed(tmp_path: Path) -> None:
    place = tmp_path / "made"
    text = f"open({str(place)!r}, 'w').write('x')\nos.makedirs({str(place)!r})\neval('print(1)')\nshow(1 + 1)\n"
    assert shown(tmp_path, text) == [2]
    assert not place.exists()


def test_each_process_is_followed_with_its_own_numbers(tmp_path: Path) -> None:
    program = program_of(tmp_path, "rank = int(os.environ['RANK'])\nshow(rank)\nshow('a' if rank == 0 else 'b')\n")
    followed = follow_processes(program, facts_of(), {}, None, 8)
    values = [[one.values[node] for node in asked(program)] for one in followed]
    assert [(one.process.rank, one.process.node) for one in followed] == [(0, 0), (1, 0), (8, 1)]
    assert values == [[0, "a"], [1, "b"], [8, "b"]]


@pytest.mark.parametrize(
    "text",
    [
        "a = [0]\nfor _ in range(100):\n    a += a\n",
        "a = [0]\nfor _ in range(100):\n    a = [*a, *a]\n",
        "a = (0,)\nfor _ in range(100):\n    a = a + a\n",
        "a = 'x'\nfor _ in range(100):\n    a = ''.join([a, a])\n",
        "a = 'x' * 10 ** 9\nb = [0] * 10 ** 9\nc = 2 ** 10 ** 9\n"
        "d = f'{1:1000000000}'\ne = '{:1000000000}'.format(1)\n",
        "r = range(60)\na = [x for x in r for y in r for z in r for u in r for v in r for w in r]\n",
        "a = []\na.append(a)\nb = {}\nb['b'] = b\nprint(a == b, a, b)\nimport copy\ncopy.deepcopy(a)\n",
        "def f(*a):\n    return [f(*a, x) for x in range(9)]\nf()\n",
        "class A(A):\n    pass\nclass B:\n    @property\n    def p(self):\n        return self.p\nB().p\n",
        "for _ in range(10 ** 12):\n    pass\nwhile True:\n    x = 1\n",
        "".join(f"{'    ' * n}for a{n} in input():\n" for n in range(12)) + "    " * 12 + "pass\n",
    ],
)
def test_programs_that_grow_are_followed_in_a_second(text: str, tmp_path: Path) -> None:
    begun = time.process_time()
    shown(tmp_path, text)
    assert time.process_time() - begun < 5


def test_an_entry_that_is_an_attribute_may_be_anything(tmp_path: Path) -> None:
    text = """
class Options(dict):
    def __getattr__(self, name):
        return self[name]
def main(**given):
    options = Options(given)
    show(options.resume is not None)
    show(True if options.dry_run else False)
    show(options.items is not None)
main(**unknown())
"""
    assert shown(tmp_path, text) == [UNKNOWN, UNKNOWN, True]


def test_methods_of_an_object_that_something_unknown_gets(tmp_path: Path) -> None:
    text = """
class Base:
    def run(self):
        show(self.rate)
        self.listener.begin(self)
        return self.step()
class Agent(Base):
    unit = 3
    def __init__(self, listener):
        self.rate, self.listener = 0.1, listener
    def step(self):
        show(self is None)
        show(self.unit)
        return 7
import somewhere
agent = Agent(somewhere.listener(1)[0])
show(agent.run())
"""
    assert shown(tmp_path, text) == [0.1, False, UNKNOWN, 7]


def test_what_a_call_that_is_not_followed_again_may_change(tmp_path: Path) -> None:
    text = """
class Tree:
    def __init__(self):
        self.rate, self.depth, self.seen = 0.1, 0, []
    def walk(self, value):
        self.depth += 1
        self.seen.append(value)
        return {key: self.walk(one) for key, one in value.items()} if isinstance(value, dict) else value
tree = Tree()
import somewhere
tree.walk(somewhere.value())
show(tree.rate)
show(tree.depth)
show(len(tree.seen))
"""
    assert shown(tmp_path, text) == [0.1, UNKNOWN, UNKNOWN]


@pytest.mark.parametrize(
    ("adds", "given", "seen"),
    [
        ("deepspeed.add_config_arguments(parser)", ["--deepspeed", "--steps", "5"], [5, True, None]),
        ("deepspeed.add_tuning_arguments(parser)", ["--warm", "2", "--steps", "5"], [5, UNKNOWN, UNKNOWN]),
    ],
)
def test_a_parser_that_a_library_adds_options_to(adds: str, given: list[str], seen: list[Any], tmp_path: Path) -> None:
    text = f"""
import argparse, deepspeed
parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=3)
parser = {adds}
args = parser.parse_args()
show(args.steps)
show(args.deepspeed)
show(args.deepspeed_config)
"""
    assert shown(tmp_path, text, *given) == seen


def test_an_entry_of_an_entry_that_is_not_known(tmp_path: Path) -> None:
    text = """
import somewhere
info = {"rate": 0.1, "loss": somewhere.loss(), "steps": 3}
info["loss"]["total"] = 1
show(info["rate"])
show("total" in info)
info[somewhere.name()]["total"] = 1
show(info["rate"])
"""
    assert shown(tmp_path, text) == [0.1, False, UNKNOWN]
