"""The folder in which nodes find their `python`."""

from __future__ import annotations

import os

_NAMES = ("python", "python3")


def program_of(python: str) -> str:
    """Return the program of a path: the path itself, or the Python of a virtual environment."""
    return os.path.join(python, "bin", "python") if os.path.isdir(python) else python


def folder_of(python: str, job_dir: str) -> str:
    """Return the folder of a Python, or a folder in the job directory in which it is called `python`, too.

    Raises OSError if the program does not exist. It is not a link: Python finds a virtual environment by its path.
    """
    program = program_of(python)
    if not os.access(program, os.X_OK) or os.path.isdir(program):
        raise FileNotFoundError(2, "there is no executable Python", program)
    if os.path.basename(program) == "python":
        return os.path.dirname(program)
    folder = os.path.join(job_dir, "python")
    os.makedirs(folder, exist_ok=True)
    for name in _NAMES:
        path = os.path.join(folder, name)
        with open(path, "w", encoding="utf-8") as stream:
            stream.write("#!/bin/sh\nexec '%s' \"$@\"\n" % program.replace("'", "'\\''"))
        os.chmod(path, 0o700)
    return folder
