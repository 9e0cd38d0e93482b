"""Jobs for ModelArts, in each of the ways to write one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from jobsubmit.config import load_settings
from jobsubmit.jobs.prepare import Demands, prepare
from jobsubmit.spec.loader import load_mapping

SPAWN: dict[str, Any] = {"mode": "spawn", "framework": {"name": "PyTorch", "version": "pytorch_2.1.0-cuda_12.1"}}
LAUNCH: dict[str, Any] = {"mode": "launch", "image": "team/pytorch:2.9"}
TORCHRUN: dict[str, Any] = {"mode": "torchrun", "image": "team/pytorch:2.9", "torch_version": "2.9"}
DATA = {"name": "data_url", "uri": "obs://bucket/data"}
JOBS: dict[str, dict[str, Any]] = {
    "spawn": SPAWN,
    "spawn, 2 nodes": {**SPAWN, "resources": {"nodes": 2}},
    "spawn, hyperparameters": {**SPAWN, "hyperparameters": {"lr": 0.1, "amp": True, "layers": [1, 2], "name": "a 'b'"}},
    "spawn, environment": {**SPAWN, "env": {"NCCL_DEBUG": "INFO", "A": "日本"}},
    "spawn, input": {**SPAWN, "inputs": [DATA]},
    "spawn, input as variable": {**SPAWN, "inputs": [{**DATA, "as": "env"}]},
    "spawn, output": {**SPAWN, "outputs": [{"name": "train_url", "uri": "s3://bucket/out"}]},
    "spawn, checkpoints": {**SPAWN, "checkpoint_dir": {"uri": "obs://bucket/ckpt", "as": "hyperparameter"}},
    "launch": LAUNCH,
    "launch, 4 nodes": {**LAUNCH, "resources": {"nodes": 4, "nproc_per_node": 8}},
    "launch, local rank": {**LAUNCH, "local_rank": "argument"},
    "launch, arguments": {**LAUNCH, "args": ["--fast", "a b"]},
    "torchrun": TORCHRUN,
    "torchrun, 2 nodes": {**TORCHRUN, "resources": {"nodes": 2}},
    "torchrun, static": {**TORCHRUN, "rdzv_backend": "static"},
    "torchrun, data": {**TORCHRUN, "inputs": [DATA], "outputs": [{"name": "train_url", "uri": "obs://bucket/out"}]},
    "torchrun, own command": {**TORCHRUN, "boot_file": None, "command": ["bash", "run.sh"]},
    "torchrun, timeout": {**TORCHRUN, "timeout": "90m"},
    "torchrun, pool": {**TORCHRUN, "backend": {"pool_id": "pool-1", "workspace_id": "w1", "priority": 2}},
    "torchrun, logs": {**TORCHRUN, "backend": {"log_url": "obs://bucket/logs", "auto_stop_hours": 24}},
    "torchrun, faults": {
        **TORCHRUN,
        "backend": {"fault_tolerance": {"retry": 3, "unconditional_retry": True, "hang_retry": True}},
    },
    "torchrun, annotations": {**TORCHRUN, "backend": {"annotations": {"a/b": "c"}, "description": "tried out"}},
    "torchrun, boot file": {**TORCHRUN, "backend": {"boot_file_of_image": True}},
    "torchrun, own flavor": {**TORCHRUN, "resources": {"flavor": "other.flavor"}},
}


def job(folder: Path, fields: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of a job whose code lies in a folder."""
    (folder / "code").mkdir(exist_ok=True)
    (folder / "code/train.py").write_text(
        "import argparse, torch.distributed\nargparse.ArgumentParser().parse_known_args()\n"
    )
    common = {"name": "job", "code_dir": str(folder / "code"), "boot_file": "train.py"}
    store = {"uri": "obs://bucket/jobs", "endpoint_url": "https://obs.example.com"}
    backend = {"kind": "modelarts", "flavor": "a.flavor", "region": "r", "project_id": "p", **fields.get("backend", {})}
    whole = {**common, "store": store, **fields, "backend": backend}
    return {name: value for name, value in whole.items() if value is not None}


def body_of(folder: Path, fields: dict[str, Any]) -> dict[str, Any]:
    loaded = load_mapping(job(folder, fields))
    prepared = prepare(loaded, load_settings(), Demands("job-1", checks=False))
    (document,) = prepared.request.documents.values()
    found: dict[str, Any] = json.loads(document)
    return found
