"""What a job file says about this backend."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field, StrictStr

from jobsubmit.spec.backend import BackendSpec


class HandmadeSpec(BackendSpec):
    """Run each node as a process of this machine, as somebody would who has only the agent."""

    runs_by: ClassVar[str] = "jobsubmit_handmade.backend:HandmadeBackend"
    handle_path: ClassVar[str] = "here/.+"
    path_fields: ClassVar[tuple[str, ...]] = ("python",)

    kind: Literal["handmade"] = Field(description="Run as processes.", examples=["handmade"])
    python: StrictStr | None = Field(
        None, description="Python of the nodes; left out, ours.", examples=["venv/bin/python"]
    )
