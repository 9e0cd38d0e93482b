"""Begin to report what happens in this process (see ../rank_reporter.py); Python imports this through PYTHONPATH.

PYTHONPATH has folders of the user, too. Until the reporter is loaded, only the standard library can be imported, so
that a `json.py` of the user is imported only by the user's code. No `__future__` here: it is a file, too.
"""

import os
import sys


def _install(agent: str) -> None:
    """Import the rank reporter from the folder of an agent, under a name that no module of the user can have."""
    package = sys.modules["_jobsubmit_agent"] = type(sys)("_jobsubmit_agent")
    package.__path__ = [agent]
    __import__("_jobsubmit_agent.rank_reporter", fromlist=["install"]).install()


def _standard_library() -> "list[str]":
    """Return the part of the path that is Python's own; what PYTHONPATH adds comes before it."""
    library = os.path.dirname(os.__file__)
    own = sys.path[sys.path.index(library) :] if library in sys.path else sys.path
    return [library, *(path for path in own if os.path.basename(path) == "lib-dynload")]


def _chain() -> None:
    """Run the sitecustomize that this one hides, if there is one, as Python itself would."""
    finder = sys.modules["_frozen_importlib_external"].PathFinder
    spec = finder.find_spec("sitecustomize", [path for path in sys.path if os.path.abspath(path or ".") != _HERE])
    if spec is not None and spec.loader is not None:
        module = type(sys)("sitecustomize")
        module.__spec__, module.__file__ = spec, spec.origin
        spec.loader.exec_module(module)


_HERE = os.path.dirname(os.path.abspath(__file__))
_path = sys.path[:]
try:
    sys.path[:] = _standard_library()
    _install(os.path.dirname(_HERE))
except Exception:  # noqa: S110 - the job runs, and its launcher still says how it ended
    pass
finally:
    sys.path[:] = _path
_chain()
