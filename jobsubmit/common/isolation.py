"""Where processes of ours look for modules: never in the current folder, and last of all where PYTHONPATH says.

A `json.py` there, of whoever wrote the code that is submitted, would run with the user's keys; a harmless one would
break us.
"""

import os
import site
import sys

_START = (
    "import sys; sys.path += sys.argv.pop(1).split(':'); sys.argv.pop(0); "
    "from runpy import run_module; run_module(sys.argv[0], run_name='__main__', alter_sys=True)"
)


def isolate() -> None:
    """Take the current folder out of this process's path, and move to its end what PYTHONPATH has added."""
    if sys.flags.isolated:
        return
    added = {os.path.abspath(path) for path in os.environ.get("PYTHONPATH", "").split(os.pathsep)}
    here = _here()
    paths = [path for path in sys.path if os.path.abspath(path) != here]
    first = [path for path in paths if os.path.abspath(path) not in added]
    last = [path for path in [*paths, *_own_folders()] if path not in first]
    sys.path[:] = [*first, *dict.fromkeys(last)]


def python_command(module: str) -> list[str]:
    """Return the words that run a module of ours as a program, with the packages that this process has."""
    unsafe = ("", _here())
    paths = [path for path in sys.path if path not in unsafe]
    return [sys.executable, "-I", "-c", _START, ":".join(dict.fromkeys([*paths, *_own_folders()])), module]


def _here() -> str:
    try:
        return os.getcwd()
    except FileNotFoundError:  # somebody has removed it
        return ""


def _own_folders() -> list[str]:
    """Return the folders that only this process knows: of jobsubmit itself, and of what the user has installed."""
    folders = [os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))]
    if site.ENABLE_USER_SITE:
        folders.append(site.getusersitepackages())
    return folders
