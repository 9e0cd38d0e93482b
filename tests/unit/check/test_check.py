"""What the checks find in boot files with known answers; see tests/corpus/boot_files/cases.yaml."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from jobsubmit.bundle.scanner import scan
from jobsubmit.check.run import check_code
from jobsubmit.common.finding import Finding
from jobsubmit.config import BUILT_IN
from jobsubmit.plan import launch_plan as planning
from jobsubmit.spec.loader import load_mapping

CORPUS = Path(__file__).parents[2] / "corpus" / "boot_files"
CASES: list[dict[str, Any]] = yaml.safe_load((CORPUS / "cases.yaml").read_text())


def findings(case: dict[str, Any]) -> list[Finding]:
    """Check a case as a job on nodes with so many GPUs."""
    resources = {"nvidia.com/gpu": case["gpus"]} if case["gpus"] else {"cpu": 8}
    job = {
        "name": "checked",
        "mode": case["mode"],
        "code_dir": str(CORPUS / case["name"]),
        "boot_file": "train.py",
        "resources": {"nodes": case["nodes"], **({"nproc_per_node": case["nproc"]} if case["nproc"] else {})},
        "hyperparameters": case["hyperparameters"],
        "backend": {"kind": "volcano", "resources": resources},
        **({"local_rank": case["local_rank"]} if case["mode"] == "launch" else {}),
    }
    plan = planning.build_plan(load_mapping(job, []).spec, BUILT_IN)
    plan = replace(plan, arguments=(*plan.arguments, *map(str, case["args"])))  # in mode spawn there are none
    return list(check_code(plan, scan(CORPUS / case["name"])))


def told(found: list[Finding]) -> list[Finding]:
    return [f for f in found if f.level != "unknown" and f.check != "deprecated-launch"]


@pytest.mark.parametrize("case", CASES, ids=lambda case: str(case["name"]))
def test_there_is_no_false_alarm(case: dict[str, Any]) -> None:
    planted = {error["id"] for error in case["wrong"]}
    assert [str(f) for f in told(findings(case)) if f.check not in planted] == []


@pytest.mark.parametrize("case", [case for case in CASES if case["wrong"]], ids=lambda case: str(case["name"]))
def test_what_is_planted_is_found(case: dict[str, Any]) -> None:
    found = told(findings(case))
    for error in case["wrong"]:
        if error.get("missed"):
            continue
        same = [f for f in found if f.check == error["id"]]
        assert same, f"{error} is not found"
        if "line" in error:
            place = f"{error.get('file', 'train.py')}:{error['line']}"
            assert any(place in f"{f.where} {f.text}" for f in same), [f"{f.where} {f.text}" for f in same]


def test_nine_of_ten_are_found() -> None:
    planted = [error for case in CASES for error in case["wrong"]]
    assert len(CASES) >= 40
    assert sum(not error.get("missed") for error in planted) >= 0.9 * len(planted)


@pytest.mark.parametrize("case", [case for case in CASES if case["unknown"]], ids=lambda case: str(case["name"]))
def test_what_cannot_be_told_is_said_so(case: dict[str, Any]) -> None:
    found = findings(case)
    assert not [f for f in found if f.check.startswith("argument-") and f.level == "error"]
    is_understood = case["name"] in ("typer_app", "click_command")
    assert is_understood or any(f.level == "unknown" and f.check == "arguments" for f in found)


def test_a_chain_of_calls_may_be_long(tmp_path: Path) -> None:
    """Two thousand functions, each called by the one before it."""
    chain = "".join(f"def f{number}():\n    f{number + 1}()\n" for number in range(2000))
    end = "def f2000():\n    os.environ['MASTER_PORT'] = '1'\n    dist.init_process_group('gloo')\n"
    (tmp_path / "train.py").write_text(f"import os\nimport torch.distributed as dist\n{chain}{end}f0()\n")
    job = {"name": "deep", "mode": "torchrun", "code_dir": str(tmp_path), "boot_file": "train.py"}
    found = list(check_code(planning.build_plan(load_mapping(job).spec, BUILT_IN), scan(tmp_path)))
    assert [f.where for f in found if f.level == "error"] == ["train.py:4004"]
