"""README and docs: what a page shows is what its commands print, and the site builds without a warning."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest
from documentation import ROOT, Block, blocks_of, commands_of, fits, pages

RUN_HERE = ("", "needs torch")


def runs(block: Block) -> bool:
    return block.kind == "console" and block.needs in RUN_HERE


PAGES = [page for page in pages() if page.parent != ROOT and any(map(runs, blocks_of(page)))]


@pytest.mark.needs("torch")
@pytest.mark.parametrize("page", PAGES, ids=[str(page.relative_to(ROOT)) for page in PAGES])
def test_what_a_page_shows(page: Path, tmp_path: Path) -> None:
    """All blocks of a page run in one folder, in their order."""
    folder = tmp_path / "folder"
    folder.mkdir()
    for block in blocks_of(page):
        if block.file:
            file = folder / block.file
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(block.text)
        elif runs(block):
            run(block, folder)


def run(block: Block, folder: Path) -> None:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    for command in commands_of(block):
        done = subprocess.run(
            ["bash", "-c", command.text],
            cwd=folder,
            env={**os.environ, "PATH": path, "COLUMNS": "100"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=120,
        )
        assert fits(done.stdout, command.output), f"{block.where}: {command.text}\n{done.stdout}"


@pytest.mark.skipif(importlib.util.find_spec("sphinx") is None, reason="needs the extra docs: `make docs`")
def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    """Broken links, pages that no table of contents has, and unknown languages of blocks are warnings."""
    build: list[str | Path] = [
        "-W",
        "--keep-going",
        "-q",
        "-b",
        "html",
        "-d",
        tmp_path / "trees",
        ROOT / "docs",
        tmp_path / "site",
    ]
    done = subprocess.run([sys.executable, "-m", "sphinx", *build], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "site/reference/fields.html").exists()
