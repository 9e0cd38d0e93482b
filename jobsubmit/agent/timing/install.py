"""Begin the timing of a process, before the user's code runs."""

from __future__ import annotations

from ..after_import import after_import
from . import ddp
from .marks import Marks
from .recorder import Recorder

recorder: Recorder | None = None


def install(job_dir: str, rank: int, node: int, kind: str) -> None:
    """Time this process, which is a rank; `kind` is sync or buckets."""
    global recorder  # noqa: PLW0603 - a process has one, and jobsubmit.profiling.sync must find it
    begun = recorder = Recorder(job_dir, rank, node, kind)
    actions = Marks(begun).actions()
    actions["torch.nn.parallel.distributed"] = lambda module: ddp.measure(module, begun)
    after_import(actions, begun.off)
