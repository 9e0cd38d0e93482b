"""Which Python the nodes of this machine run, and what is installed for it."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Collection
from pathlib import Path
from typing import NamedTuple

from jobsubmit.agent.python_folder import program_of

_SECONDS = 20
# Looks where the nodes will look, and imports nothing from there.
_FIND = """
import importlib.util, json, os, site, sys
from importlib.machinery import PathFinder
places = [site.getusersitepackages(), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
found = [name for name in sys.argv[1:] if importlib.util.find_spec(name) or PathFinder.find_spec(name, places)]
print(json.dumps(found))
"""
_VERSION = "import importlib.metadata, sys; print(importlib.metadata.version(sys.argv[1]))"


class ChosenPython(NamedTuple):
    """The program that nodes run as `python`, and why it was chosen."""

    program: str
    why: str


def choose_python(given: str | None) -> ChosenPython | None:
    """Return the Python of local jobs: the given one, that of an active environment, ours, or the first on PATH."""
    if given:
        return ChosenPython(program_of(given), "backend.python in the job file")
    for variable, why in (
        ("VIRTUAL_ENV", "the active virtual environment"),
        ("CONDA_PREFIX", "the active environment"),
    ):
        program = Path(os.environ.get(variable) or "/nowhere", "bin", "python")
        if program.is_file():
            return ChosenPython(str(program), why)
    ours = Path(sys.executable).with_name("python")
    if importlib.util.find_spec("torch") is not None and ours.is_file():
        return ChosenPython(str(ours), "the one that runs jobsubmit")
    found = shutil.which("python")
    return ChosenPython(found, "the first on PATH") if found else None


def find_missing(python: ChosenPython, modules: Collection[str]) -> set[str]:
    """Return the modules that a Python does not find; none if it cannot be asked."""
    if not modules:
        return set()
    if Path(python.program) == Path(sys.executable).with_name("python"):
        return {name for name in modules if not _is_found(name)}
    command = [python.program, "-I", "-c", _FIND, *sorted(modules)]
    try:
        done = subprocess.run(command, check=True, capture_output=True, timeout=_SECONDS)
        return set(modules) - set(json.loads(done.stdout))
    except (OSError, subprocess.SubprocessError, ValueError):
        return set()


def version_of(python: ChosenPython, package: str) -> str:
    """Return the version of a package that a Python has; empty if it has none, or cannot be asked."""
    command = [python.program, "-I", "-c", _VERSION, package]
    try:
        return subprocess.run(command, check=True, capture_output=True, timeout=_SECONDS, text=True).stdout.strip()
    except (OSError, subprocess.SubprocessError, ValueError):
        return ""


def _is_found(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):
        return True
