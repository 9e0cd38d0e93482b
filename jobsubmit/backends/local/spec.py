"""The fields of the local backend in a job file."""

from __future__ import annotations

import os
from typing import ClassVar, Literal

from pydantic import Field

from jobsubmit.agent.supervisor.node_scope import find_gpus, share_gpus
from jobsubmit.spec.backend import BackendSpec
from jobsubmit.spec.backend_registry import KINDS
from jobsubmit.spec.field_types import PythonProgram


class LocalBackendSpec(BackendSpec):
    """Run the job on emulated nodes of this machine."""

    runs_by: ClassVar[str] = KINDS["local"].runs_by
    is_this_machine: ClassVar[bool] = True
    path_fields: ClassVar[tuple[str, ...]] = ("python",)

    kind: Literal["local"] = Field(
        "local", description="Run on emulated nodes of this machine, no account needed.", examples=["local"]
    )

    python: PythonProgram | None = Field(
        None,
        description="Python that runs the training: the path of the program, or of a virtual environment's folder. "
        "Left out: that of the active environment, else the one that runs jobsubmit if it has torch, else "
        "the first `python` on PATH.",
        examples=["/opt/envs/train/bin/python3.11", "../.venv"],
    )

    def gpus_of_node(self, nodes: int, nproc_per_node: int | None) -> int | None:
        """Return each node's share of this machine's GPUs (see BackendSpec)."""
        return len(share_gpus(find_gpus(os.environ), nodes, nproc_per_node)[0])

    def why_no_gpus(self, nodes: int, nproc_per_node: int | None) -> str:
        """Return how many GPUs the processes need and this machine has, if it has too few (see BackendSpec)."""
        found = len(find_gpus(os.environ))
        if not found or self.gpus_of_node(nodes, nproc_per_node):
            return ""
        return f"the job needs {nodes * (nproc_per_node or 1)} GPUs, and this machine has {found}"
