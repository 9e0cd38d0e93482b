"""Training code imports `jobsubmit.profiling` on nodes and off them; `jobsubmit.node` is its earlier name."""

from __future__ import annotations

import io
import subprocess
import sys
import zipfile
from pathlib import Path

import jobsubmit
from jobsubmit.backends.shared.agent_archive import agent_archive
from jobsubmit.node import sync as earlier
from jobsubmit.profiling import sync

PROGRAM = """
import sys
sys.path.insert(0, sys.argv[1])
import sitecustomize
from jobsubmit.node import sync as earlier
from jobsubmit.profiling import sync
with sync("mine", 8):
    print(sync is earlier, sys.modules["jobsubmit"].__file__)
try:
    import jobsubmit.api
except ImportError:
    import jobsubmit
    print("no more than that")
print(hasattr(jobsubmit, "status"))
"""


def test_off_a_node_the_block_just_runs() -> None:
    assert sync is earlier
    with sync("mine", 8):
        pass


def on_node(folder: Path) -> str:
    """Run it as a process of a node does, with a Python that has no packages."""
    hook = str(folder / "jobsubmit/agent/hook")
    done = subprocess.run([sys.executable, "-S", "-c", PROGRAM, hook], capture_output=True, text=True, cwd=folder)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_on_a_node_without_jobsubmit_the_agent_brings_it(tmp_path: Path) -> None:
    with zipfile.ZipFile(io.BytesIO(agent_archive())) as archive:
        archive.extractall(tmp_path)
    assert on_node(tmp_path) == f"True {tmp_path}/jobsubmit/__init__.py\nno more than that\nFalse\n"


def test_on_a_local_node_it_is_the_one_that_is_installed_here() -> None:
    assert on_node(Path(jobsubmit.__file__).parents[1]) == f"True {jobsubmit.__file__}\nno more than that\nFalse\n"


def test_off_a_node_a_package_that_is_missing_is_named() -> None:
    program = (
        f"import sys; sys.path.insert(0, {str(Path(jobsubmit.__file__).parents[1])!r}); from jobsubmit import load"
    )
    done = subprocess.run([sys.executable, "-I", "-S", "-c", program], capture_output=True, text=True, check=False)
    assert "No module named 'pydantic'" in done.stderr
