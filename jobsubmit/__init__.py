"""Submit PyTorch distributed training jobs to ModelArts-like platforms.

job = jobsubmit.load("job.yaml")
handle = jobsubmit.create(job)
print(jobsubmit.wait(handle).state)
"""

from __future__ import annotations

from importlib import import_module

TYPE_CHECKING = False  # `python -m jobsubmit` still finds modules in the current folder here: nothing else is imported
if TYPE_CHECKING:
    from typing import Any

    from jobsubmit.api import (
        LogQuery,
        cancel,
        create,
        delete,
        list_jobs,
        load,
        logs,
        prepare,
        render_script,
        report_of,
        rerun,
        status,
        wait,
    )

__version__ = "0.1.0"
__all__ = [
    "LogQuery",
    "cancel",
    "create",
    "delete",
    "list_jobs",
    "load",
    "logs",
    "prepare",
    "render_script",
    "report_of",
    "rerun",
    "status",
    "wait",
]


def __getattr__(name: str) -> Any:
    """Load the interface when it is used: the parts that run on nodes import this package too."""
    if name in __all__:
        return getattr(import_module("jobsubmit.api"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
