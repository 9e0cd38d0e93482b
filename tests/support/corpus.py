"""Boot files with known answers, and what the checks find in them; see tests/corpus/boot_files/cases.yaml."""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from jobsubmit.bundle.scanner import scan
from jobsubmit.check.run import check_code
from jobsubmit.common.finding import Finding
from jobsubmit.config import BUILT_IN
from jobsubmit.plan import launch_plan as planning
from jobsubmit.spec.loader import load_mapping

CORPUS = Path(__file__).parents[1] / "corpus" / "boot_files"
CASES: list[dict[str, Any]] = yaml.load((CORPUS / "cases.yaml").read_text(), Loader=yaml.CSafeLoader)
BY_NAME = {case["name"]: case for case in CASES}

# What is true of the jobs that the cases are made into, whatever the code is: a launcher, and nowhere to keep results.
_OF_JOBS = ("deprecated-launch", "lost-checkpoint")


def code_of(case: dict[str, Any], folder: Path) -> Path:
    """Return the folder of a case: one in the corpus, or a copy of it with the case's changes."""
    original = CORPUS / str(case.get("of", case["name"]))
    if "change" not in case:
        return original
    copy = folder / str(case["name"])
    shutil.copytree(original, copy)
    for change in case["change"]:
        file = copy / change["file"]
        text = file.read_text()
        assert text.count(change["old"]) == 1, f"{case['name']}: {change['old']!r} does not stand there once"
        file.write_text(text.replace(change["old"], change["new"]))
    return copy


def check_case(name: str) -> tuple[Finding, ...]:
    """Check a case as it stands in the corpus."""
    case = BY_NAME[name]
    with tempfile.TemporaryDirectory() as folder:
        return check_as_case(case, code_of(case, Path(folder)))


def check_as_case(case: dict[str, Any], root: Path) -> tuple[Finding, ...]:
    """Check the code in a folder as a case: a job on nodes with so many GPUs."""
    resources = {"nvidia.com/gpu": case["gpus"]} if case["gpus"] else {"cpu": 8}
    job = {
        "name": "checked",
        "mode": case["mode"],
        "code_dir": str(root),
        "boot_file": "train.py",
        "resources": {"nodes": case["nodes"], **({"nproc_per_node": case["nproc"]} if case["nproc"] else {})},
        "hyperparameters": case["hyperparameters"],
        "backend": {"kind": "volcano", "resources": resources},
        **({"local_rank": case["local_rank"]} if case["mode"] == "launch" else {}),
        **case.get("job", {}),
    }
    plan = planning.build_plan(load_mapping(job, []).spec, BUILT_IN)
    plan = replace(plan, arguments=(*plan.arguments, *map(str, case["args"])))  # in mode spawn there are none
    return tuple(check_code(plan, scan(root)))


def told(found: tuple[Finding, ...]) -> list[Finding]:
    """Return the findings that say that something is wrong with the code."""
    return [f for f in found if f.level != "unknown" and f.check not in _OF_JOBS]
