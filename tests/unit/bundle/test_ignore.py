"""Ignore files mean what git says they mean, and take bounded time whatever is in them."""

from __future__ import annotations

import os
import random
import subprocess
import sysconfig
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from jobsubmit.bundle.ignore import covers, parse_patterns
from jobsubmit.bundle.scanner import scan

PIECES = [
    "*",
    "**",
    "***",
    "?",
    "/",
    "//",
    "a",
    "b",
    "ab",
    ".",
    "-",
    " ",
    "\\",
    "\\*",
    "\\ ",
    "!",
    "#",
    "[ab]",
    "[!a]",
    "[^b]",
]
PIECES += [
    "[a-c]",
    "[c-a]",
    "[]a]",
    "[a",
    "[[:alpha:]]",
    "[[:nope:]]",
    "[a\\]b]",
    "é",
    "**/",
    "/**",
    "/**/",
    "a/",
    "*.py",
    "[/]",
    "日",
]
NAMES = ["a", "b", "ab", "ba", "a.py", "a b", "aé", "é", "日本", "*", "a-b", "c", "]", "#a", "!a", "a ", ".a", "\\a"]
PYTHON = """
__pycache__/
*.py[cod]
*$py.class
/build/
*.egg-info/
!keep.pyc
test*/data
**/tests/**/*.txt
email/mime/
!email/mime/text.py
/json/d*er.py
*.[!p]*
"""


def git_says(root: Path, paths: Sequence[str]) -> set[str]:
    """Return which of these paths git ignores."""
    text = b"".join(os.fsencode(path) + b"\0" for path in paths)
    environment = {**os.environ, "GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_NOSYSTEM": "1"}
    command = ["git", "check-ignore", "--no-index", "--stdin", "-z"]
    done = subprocess.run(command, cwd=root, input=text, capture_output=True, env=environment, timeout=30)
    assert done.returncode in (0, 1), done.stderr
    return {os.fsdecode(path) for path in done.stdout.split(b"\0")[:-1]}


def repository(root: Path) -> Path:
    root.mkdir(parents=True, exist_ok=True)
    subprocess.run(["git", "init", "--quiet", str(root)], check=True, capture_output=True)
    return root


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    root = repository(tmp_path_factory.mktemp("tree"))
    chance = random.Random(7)
    files = set()
    for _ in range(60):
        folders = [f"{chance.choice(NAMES)}_" if chance.random() < 0.2 else chance.choice(["a", "b", "ab", "d"])][
            : chance.randrange(2)
        ]
        folders += chance.choices(["a", "b", "ab", "é"], k=chance.randrange(4))
        files.add("/".join([*folders, chance.choice(NAMES)]))
    made = []
    for path in sorted(files, key=len):
        file = root / path
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.touch(exist_ok=False)
            made.append(path)
        except OSError:
            continue  # a file or a folder has that name already
    return root, made


@pytest.mark.parametrize("seed", range(12))
def test_what_is_left_out_is_what_git_leaves_out(seed: int, tree: tuple[Path, list[str]]) -> None:
    root, files = tree
    chance = random.Random(seed)
    for _ in range(25):
        lines = ["".join(chance.choices(PIECES, k=chance.randrange(1, 6))) for _ in range(chance.randrange(1, 4))]
        text = "\n".join(lines) + chance.choice(["", "\n", "\r\n"])
        (root / ".gitignore").write_bytes(text.encode())
        expected = git_says(root, files)
        patterns = parse_patterns(text.split("\n"))
        assert {path for path in files if covers(patterns, path)} == expected, repr(text)


def test_a_source_tree_is_left_out_as_git_does(tmp_path: Path) -> None:
    root = repository(tmp_path / "source")
    library = Path(sysconfig.get_path("stdlib"))
    names = [
        p.relative_to(library).as_posix()
        for name in ("email", "json", "unittest", "ctypes")
        for p in (library / name).rglob("*")
    ]
    for name in (*names, "build/x.py", "a/build/x.py", "keep.pyc", "a/tests/b/c.txt", "x.egg-info/PKG-INFO"):
        if not (library / name).is_dir():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).touch()
    (root / ".gitignore").write_text(PYTHON)
    (root / "email" / ".gitignore").write_text("*.txt\n!__pycache__/\n/mime/audio.py\n")
    files = [p.relative_to(root).as_posix() for p in root.rglob("*") if p.is_file() and ".git/" not in f"{p}/"]
    bundle = scan(root)
    ours = {file.path for file in bundle.files}
    by_default = {path for path in files if "__pycache__" in path or path.endswith(".pyc") or ".egg-info" in path}
    assert set(files) - by_default - ours == git_says(root, files) - by_default


@pytest.mark.parametrize(
    ("line", "path"),
    [
        ("*a" * 13 + "b", "a" * 120),
        ("*" * 13 + "b", "a" * 120),
        ("?*" * 13 + "b", "a" * 120),
        ("**/a/" * 13 + "b", "a/" * 60 + "c"),
        ("**/*a*a/" * 8 + "b", ("a" * 20 + "/") * 40 + "c"),
        ("[a-z]*" * 20 + "!", "q" * 200),
    ],
)
def test_many_stars_take_no_time(line: str, path: str) -> None:
    began = time.process_time()
    assert not covers(parse_patterns([line]), path)
    assert time.process_time() - began < 1
