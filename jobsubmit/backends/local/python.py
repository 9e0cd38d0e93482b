"""Which Python the nodes of this machine run, and what is installed for it."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import site
import subprocess
import sys
from collections.abc import Collection
from importlib.machinery import PathFinder
from importlib.metadata import distributions
from pathlib import Path
from typing import NamedTuple

from jobsubmit.agent.python_folder import program_of

_SECONDS = 20
# Looks where the nodes will look, and imports nothing from there.
_FIND = """
import importlib.util, json, os, site, sys
from importlib.machinery import PathFinder
places = [site.getusersitepackages(), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
found = [name for name in sys.argv[1:] if importlib.util.find_spec(name) or PathFinder.find_spec(name, places)]
print(json.dumps(found))
"""
_VERSION = "import importlib.metadata, sys; print(importlib.metadata.version(sys.argv[1]))"


_GIVEN = "backend.python in the job file"


class ChosenPython(NamedTuple):
    """The program that nodes run as `python`, and why it was chosen."""

    program: str
    why: str

    @property
    def shows_packages(self) -> bool:
        """Return whether it is known what is installed for it: it may be started, or its files can be read."""
        return self.is_trusted or bool(_site_packages(self))

    @property
    def is_trusted(self) -> bool:
        """Return whether the checks may start it: a job file of somebody else may name any program."""
        return self.why != _GIVEN


def choose_python(given: str | None) -> ChosenPython | None:
    """Return the Python of local jobs: the given one, that of an active environment, ours, or the first on PATH."""
    if given:
        return ChosenPython(program_of(given), _GIVEN)
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
    if _is_ours(python):
        return {name for name in modules if not _is_found(name)}
    if not python.is_trusted:
        return _find_missing_files(python, modules)
    command = [python.program, "-I", "-c", _FIND, *sorted(modules)]
    try:
        done = subprocess.run(command, check=True, capture_output=True, timeout=_SECONDS)
        return set(modules) - set(json.loads(done.stdout))
    except (OSError, subprocess.SubprocessError, ValueError):
        return set()


def find_package(python: ChosenPython, name: str) -> Path | None:
    """Return the folder of a package that is installed for a Python; None if its files do not show that."""
    own = [path for path in sys.path if path.endswith(("site-packages", "dist-packages"))]
    places = own if _is_ours(python) else _site_packages(python)
    first = [site.getusersitepackages(), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    spec = PathFinder.find_spec(name, [*first, *places])
    is_package = spec is not None and spec.origin is not None and spec.submodule_search_locations
    return Path(spec.origin).parent if is_package and spec is not None and spec.origin else None


def version_of(python: ChosenPython, package: str) -> str:
    """Return the version of a package that a Python has; empty if it has none, or cannot be asked."""
    if not python.is_trusted:
        return next((found.version for found in distributions(name=package, path=_site_packages(python))), "")
    command = [python.program, "-I", "-c", _VERSION, package]
    try:
        return subprocess.run(command, check=True, capture_output=True, timeout=_SECONDS, text=True).stdout.strip()
    except (OSError, subprocess.SubprocessError, ValueError):
        return ""


def _is_ours(python: ChosenPython) -> bool:
    return Path(python.program) == Path(sys.executable).with_name("python")


def _find_missing_files(python: ChosenPython, modules: Collection[str]) -> set[str]:
    """Return the modules that have no files in an environment; none if its files do not show everything it finds."""
    sites = _site_packages(python)
    texts = [file.read_text("utf-8", "replace") for folder in sites for file in Path(folder).glob("*.pth")]
    has_finders = any("editable" in text for text in texts)
    if not sites or has_finders or _includes_system_packages(python):
        return set()
    folders = [line.strip() for text in texts for line in text.splitlines()]
    named_places = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))  # "" would be the current folder
    places = [*sites, *folders, site.getusersitepackages(), *named_places]
    named = set(modules) - sys.stdlib_module_names
    return {name for name in named if PathFinder.find_spec(name, places) is None}


def _site_packages(python: ChosenPython) -> list[str]:
    """Return where an environment of venv or conda has its packages; nothing for any other Python."""
    prefix = Path(python.program).parent.parent
    is_environment = (prefix / "pyvenv.cfg").is_file() or (prefix / "conda-meta").is_dir()
    return [str(found) for found in prefix.glob("lib/python3*/site-packages")] if is_environment else []


def _includes_system_packages(python: ChosenPython) -> bool:
    settings = Path(python.program).parent.parent / "pyvenv.cfg"
    return settings.is_file() and b"include-system-site-packages = true" in settings.read_bytes()


def _is_found(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):
        return True
