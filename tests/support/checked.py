"""A program of a few lines, checked as the code of a job."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any

import pytest

from jobsubmit.bundle.scanner import scan
from jobsubmit.check.run import check_code
from jobsubmit.common.finding import Finding
from jobsubmit.config import BUILT_IN
from jobsubmit.plan import launch_plan as planning
from jobsubmit.spec.loader import load_mapping

TWO = {"nodes": 2, "nproc_per_node": 2}
SLURM = {"kind": "slurm", "shared_dir": "/shared", "gpus_per_node": 2}
GPUS: dict[str, Any] = {"backend": SLURM}
RESTARTED: dict[str, Any] = {**GPUS, "restarts": 3}


# How most programs begin: with imports, or with a process group, too.
IMPORTED = """
import argparse, glob, json, os, sys, time, numpy as np, torch, torch.distributed as dist, torch.nn as nn
import torch.multiprocessing as mp
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler
"""
STARTED = f"""{IMPORTED}
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
dist.init_process_group("nccl")
rank = dist.get_rank()
"""


def with_files(folder: Path, files: dict[str, str]) -> None:
    """Write files into a folder, by their paths in it."""
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


def findings(folder: Path, missing: Collection[str] | None = None, **fields: Any) -> list[Finding]:
    """Check the `train.py` of a folder; `missing` are the modules that the nodes' Python lacks, if that is known."""
    spec: dict[str, Any] = {"name": "checked", "mode": "torchrun", "code_dir": str(folder), "resources": TWO}
    spec |= {} if "command" in fields else {"boot_file": "train.py"}
    spec |= fields
    if "command" in fields:
        del spec["mode"]
    find_missing = None if missing is None else set(missing).intersection
    return list(check_code(planning.build_plan(load_mapping(spec).spec, BUILT_IN), scan(folder), find_missing))


def found(folder: Path, text: str, **fields: Any) -> set[str]:
    """Check a program; return what is wrong with it, by the names of the checks."""
    (folder / "train.py").write_text(text)
    return {finding.check for finding in findings(folder, **fields) if finding.level in ("error", "warning")}


def each_mistake(cases: list[tuple[str, str, str, dict[str, Any]]]) -> pytest.MarkDecorator:
    """Run a test with each case: a check, a program with its mistake, one without it, and the fields of the job."""
    ids = [f"{number}-{check}" for number, (check, *_) in enumerate(cases)]
    return pytest.mark.parametrize(("check", "wrong", "right", "fields"), cases, ids=ids)
