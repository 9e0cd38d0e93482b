"""The engines that the contract suite runs on: how a job file names them, and how they are broken."""

from __future__ import annotations

import os
import sysconfig
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import cluster_programs
from minio_server import Server
from ruamel.yaml import YAML

PYTHON_OF_IMAGE = (3, 11)


@dataclass
class Engine:
    """Say how jobs get onto one engine: fields of a job file."""

    kind: str
    fields: dict[str, Any] = field(default_factory=dict)

    def job(self, folder: Path, **fields: Any) -> Path:
        """Write a job file for this engine, with its code directory below the folder; return its path."""
        everything = {"name": "contract", "code_dir": "code", **self.fields, **fields}
        if everything["mode"] == "spawn":
            everything.pop("image", None)
        if self.kind == "volcano":  # what the pods share with us, under the same path
            shared = {"host_path": str(folder / "shared"), "path": str(folder / "shared")}
            (folder / "shared").mkdir(exist_ok=True)
            backend = everything["backend"]
            everything["backend"] = {**backend, "volumes": [*backend["volumes"], shared]}
        path = folder / "job.yaml"
        with path.open("w", encoding="utf-8") as stream:
            YAML(typ="safe").dump(everything, stream)
        return path


def volcano_fields(store: Server, bucket: str) -> dict[str, Any]:
    """Return what a job file needs for pods of the test's image, with this machine's Python packages."""
    packages = {"host_path": sysconfig.get_path("purelib"), "path": cluster_programs.PACKAGES, "read_only": True}
    image = os.environ.get("JOBSUBMIT_TEST_IMAGE", cluster_programs.IMAGE)
    is_ours = image == cluster_programs.IMAGE
    return {
        "image": image,
        "store": {"uri": f"s3://{bucket}/jobs", "endpoint_url": store.endpoint},
        "backend": {
            "kind": "volcano",
            "image": image,
            "image_pull_policy": "Never" if is_ours else "IfNotPresent",
            "placement": "spread",
            "resources": {"cpu": "1900m", "memory": "2Gi"},
            "volumes": [packages] if is_ours else [],
        },
    }
