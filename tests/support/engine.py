"""The engines that the contract suite runs on: how a job file names them, and how they are broken."""

from __future__ import annotations

import json
import os
import sysconfig
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import cluster_programs
import modelarts_server
import pytest
from minio_server import Server
from modelarts_server import Service
from ruamel.yaml import YAML

PLUGIN = Path(__file__).parent / "plugin"
PYTHON_OF_IMAGE = (3, 11)
_MACHINES = 2  # of the tests' Kubernetes

# What the machine must have to run each of them.
NEEDS = {"local": (), "ssh": ("ssh",), "slurm": ("slurm",), "volcano": ("volcano", "minio"), "modelarts": ("minio",)}


@dataclass
class Engine:
    """Say how jobs get onto one engine, by fields of a job file, and what its nature denies them."""

    kind: str
    fields: dict[str, Any] = field(default_factory=dict)
    framework: dict[str, str] | None = None
    """Where a job of mode spawn runs in a preset framework: nothing of ours runs on its nodes then."""
    has_archives: bool = True
    has_timings: bool = True
    counts_attempts: bool = True
    """Whether a node learns how often its job was started again."""
    longest_value: int = 1 << 20
    """Characters that a variable may have."""

    def keeps_ranks(self, mode: str) -> bool:
        """Tell whether the ranks of a node have lines of their own."""
        return not (mode == "spawn" and self.framework)

    def checkpoints(self, folder: Path) -> str:
        """Return where checkpoints outlive a restart."""
        return f"{self.fields['store']['uri']}/ckpt" if self.kind == "modelarts" else str(folder / "shared")

    def job(self, folder: Path, **fields: Any) -> Path:
        """Write a job file for this engine, with its code directory below the folder; return its path."""
        everything = {"name": "contract", "code_dir": "code", **self.fields, **fields}
        if everything["mode"] == "spawn":
            everything.pop("image", None)
            everything.update({"framework": self.framework} if self.framework else {})
        if self.kind == "modelarts":  # a machine type says how many accelerators a node has
            flavor = f"cpu.{everything.get('resources', {}).get('nproc_per_node', 1)}"
            everything["backend"] = {**everything["backend"], "flavor": flavor}
        if self.kind == "ssh":
            nodes = everything.get("resources", {}).get("nodes", 1)
            everything["backend"] = {"hosts": [f"gpu{number + 1}" for number in range(nodes)], **everything["backend"]}
        if self.kind == "volcano":  # what the pods share with us, under the same path
            shared = {"host_path": str(folder / "shared"), "path": str(folder / "shared")}
            (folder / "shared").mkdir(exist_ok=True)
            backend = {**everything["backend"], "volumes": [*everything["backend"]["volumes"], shared]}
            if everything.get("resources", {}).get("nodes", 1) > _MACHINES:
                backend.update(placement="pack", resources={"cpu": "600m", "memory": "2Gi"})
            everything["backend"] = backend
        path = folder / "job.yaml"
        with path.open("w", encoding="utf-8") as stream:
            YAML(typ="safe").dump(everything, stream)
        return path


def engine_of(kind: str, request: pytest.FixtureRequest) -> Engine:
    """Return an engine, running (see conftest.py)."""
    if kind == "local":
        return Engine("local", {"backend": {"kind": "local"}})
    if kind == "handmade":  # a backend of a package that is not ours (see plugin/)
        path = os.pathsep.join([str(PLUGIN), *filter(None, [os.environ.get("PYTHONPATH")])])
        request.getfixturevalue("monkeypatch").setenv("PYTHONPATH", path)
        return Engine("handmade", {"backend": {"kind": "handmade"}})
    found: Engine = request.getfixturevalue(f"on_{kind}")
    return found


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


def modelarts_engine(service: Service, bucket: str, store: Server, config: Path) -> Engine:
    """Return ModelArts as an engine, the user's configuration (below XDG_CONFIG_HOME) saying where it is."""
    where = {"kind": "modelarts", "endpoint": service.endpoint, "project_id": modelarts_server.PROJECT}
    (config / "jobsubmit").mkdir(parents=True)
    (config / "jobsubmit/config.yaml").write_text(json.dumps({"backend": where}))
    store_fields = {"uri": f"s3://{bucket}/jobs", "endpoint_url": store.endpoint}
    framework = {"name": modelarts_server.ENGINE["engine_name"], "version": modelarts_server.ENGINE["engine_version"]}
    return Engine(
        "modelarts",
        {"image": "team/pytorch:2.9", "store": store_fields, "backend": where},
        framework,
        has_archives=False,
        has_timings=False,
        counts_attempts=False,
        longest_value=4096,
    )
