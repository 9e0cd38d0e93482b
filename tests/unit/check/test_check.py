"""What the checks find in boot files with known answers; see tests/corpus/boot_files/cases.yaml."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias

import pytest
from _pytest.mark import ParameterSet
from corpus import CASES, check_case, told

from jobsubmit.agent.atomic_write import replace_file
from jobsubmit.bundle.scanner import scan
from jobsubmit.check.run import check_code
from jobsubmit.common.finding import Finding
from jobsubmit.common.language import translate
from jobsubmit.common.resources import SAMPLE_CODE
from jobsubmit.config import BUILT_IN
from jobsubmit.plan import launch_plan as planning
from jobsubmit.scaffold.samples import Sample, list_samples
from jobsubmit.spec.loader import load, load_mapping

Findings: TypeAlias = Callable[[str], tuple[Finding, ...]]


def in_its_tier(case: dict[str, Any]) -> ParameterSet:
    """Return a case for `make check` if it is a script of its own, and for `make test` if it is a change of another."""
    return pytest.param(case, id=case["name"], marks=[pytest.mark.integration] if "of" in case else [])


@pytest.fixture(scope="session")
def findings(tmp_path_factory: pytest.TempPathFactory) -> Findings:
    """Check each case once, also if several workers ask for it: they share a folder."""
    base = tmp_path_factory.getbasetemp()
    shared = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "checked-cases"
    shared.mkdir(exist_ok=True)

    @cache
    def checked(name: str) -> tuple[Finding, ...]:
        file = shared / name
        if not file.exists():
            replace_file(str(file), json.dumps([asdict(one) for one in check_case(name)]), is_durable=False)
        return tuple(Finding(**one) for one in json.loads(file.read_bytes()))

    return checked


@pytest.mark.parametrize("case", [*map(in_its_tier, CASES)])
def test_there_is_no_false_alarm(case: dict[str, Any], findings: Findings) -> None:
    planted = {error["id"] for error in case["wrong"]}
    assert [str(f) for f in told(findings(case["name"])) if f.check not in planted] == []


@pytest.mark.parametrize("sample", list_samples(), ids=lambda sample: sample.name)
def test_the_samples_are_right(sample: Sample) -> None:
    job = load(sample.job_file)
    plan = planning.build_plan(job.spec, BUILT_IN)
    assert [str(finding) for finding in told(tuple(check_code(plan, scan(SAMPLE_CODE))))] == []


@pytest.mark.parametrize("case", [in_its_tier(case) for case in CASES if case["wrong"]])
def test_what_is_planted_is_found(case: dict[str, Any], findings: Findings) -> None:
    found = told(findings(case["name"]))
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
    assert len({case.get("of", case["name"]) for case in CASES}) >= 120
    assert len(planted) >= 120
    assert sum(not error.get("missed") for error in planted) >= 0.9 * len(planted)


@pytest.mark.integration
def test_little_cannot_be_told(findings: Findings) -> None:
    def cannot_tell(case: dict[str, Any]) -> bool:
        return any(finding.level == "unknown" for finding in findings(case["name"]))

    right = [case for case in CASES if not case["wrong"]]
    wrong = [case for case in CASES if any(error.get("missed") for error in case["wrong"])]
    assert sum(map(cannot_tell, right)) <= 0.2 * len(right)
    assert sum(map(cannot_tell, wrong)) <= 0.08 * sum(len(case["wrong"]) for case in CASES)


@pytest.mark.parametrize("case", [in_its_tier(case) for case in CASES if case["unknown"]])
def test_what_cannot_be_told_is_said_so(case: dict[str, Any], findings: Findings) -> None:
    found = findings(case["name"])
    assert not [f for f in found if f.check.startswith("argument-") and f.level == "error"]
    assert any(f.level == "unknown" and f.check == "arguments" for f in found)


def test_a_chain_of_calls_may_be_long(tmp_path: Path) -> None:
    """Two thousand functions, each called by the one before it."""
    chain = "".join(f"def f{number}():\n    f{number + 1}()\n" for number in range(2000))
    end = "def f2000():\n    os.environ['MASTER_PORT'] = '1'\n    dist.init_process_group('gloo')\n"
    (tmp_path / "train.py").write_text(f"import os\nimport torch.distributed as dist\n{chain}{end}f0()\n")
    job = {"name": "deep", "mode": "torchrun", "code_dir": str(tmp_path), "boot_file": "train.py"}
    found = list(check_code(planning.build_plan(load_mapping(job).spec, BUILT_IN), scan(tmp_path)))
    assert [f.where for f in found if f.level == "error"] == ["train.py:4004"]


def check_files_of(root: Path, text: str, **job: Any) -> list[str]:
    """Check a boot file in a folder; return what is said of files that it reads."""
    (root / "train.py").write_text(text)
    spec = {"name": "checked", "mode": "torchrun", "code_dir": str(root), "boot_file": "train.py", **job}
    found = check_code(planning.build_plan(load_mapping(spec).spec, BUILT_IN), scan(root))
    return [f"{f.where} {f.text}" for f in found if f.check == "left-out"]


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("np.memmap('data/train.bin')", "data/train.bin"),
        ("np.memmap(os.path.join('data', 'train.bin'), dtype='u2', mode='r')", "data/train.bin"),
        ("open(Path(__file__).resolve().parent / 'data' / 'train.bin', 'rb')", "data/train.bin"),
        ("(Path('data') / 'train.bin').read_bytes()", "data/train.bin"),
        ("torch.load(os.path.join(os.path.dirname(os.path.abspath(__file__)), 'data', 'train.bin'))", "data/train.bin"),
        ("name = sys.stdin.read()\nnp.load(f'data/{name}/train.bin')", "data/wiki/train.bin"),
        (
            "d = os.path.join('data', sys.stdin.read())\ndef f():\n  np.load(os.path.join(d, 'train.bin'))\nf()",
            "data/wiki/",
        ),
        ("np.memmap('data/train.bin', 'u2', 'w+')", ""),
        ("open('data/train.bin', 'wb')", ""),
        ("open('data/none.bin')", ""),
        ("open('kept.txt')", ""),
    ],
)
def test_a_file_that_is_read_and_left_out_is_named(text: str, path: str, tmp_path: Path) -> None:
    for name in ("data/train.bin", "data/wiki/train.bin", "kept.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / ".gitignore").write_text("*.bin\n")
    imports = "import os, sys\nfrom pathlib import Path\nimport numpy as np\nimport torch\n"
    found = check_files_of(tmp_path, imports + text)
    assert len(found) == bool(path)
    assert not path or f"reads {path}" in found[0]
    assert not path or "ignored by .gitignore line 1: *.bin" in found[0]


def test_a_file_that_an_argument_names_and_that_is_left_out_is_named(tmp_path: Path) -> None:
    (tmp_path / "vocab.json").touch()
    (tmp_path / "out.json").touch()
    (tmp_path / ".gitignore").write_text("*.json\n")
    text = "import argparse\np = argparse.ArgumentParser()\np.add_argument('--vocab', default='vocab.json')\n"
    text += "p.add_argument('--out', default='out.json')\nargs = p.parse_args()\n"
    assert [found.partition(":")[0] for found in check_files_of(tmp_path, text)] == ["train.py"]
    given = check_files_of(tmp_path, text, hyperparameters={"vocab": "vocab.json"})
    assert [found.partition(" ")[0] for found in given] == ["hyperparameters.vocab"]


@pytest.mark.parametrize(
    ("call", "is_warned"),
    [
        ("Accelerator()", True),
        ("Accelerator(cpu=False)", True),
        ("Accelerator(cpu=True)", False),
        ("Accelerator(**k)", False),
    ],
)
def test_accelerate_on_cpus_is_warned_of(call: str, is_warned: bool, tmp_path: Path) -> None:
    text = f"import sys\nfrom accelerate import Accelerator\nk = dict(cpu=len(sys.argv))\naccelerator = {call}\n"
    (tmp_path / "train.py").write_text(text)
    spec: dict[str, Any] = {"name": "checked", "mode": "torchrun", "code_dir": str(tmp_path), "boot_file": "train.py"}
    spec |= {"resources": {"nodes": 2, "nproc_per_node": 2}}
    found = check_code(planning.build_plan(load_mapping(spec).spec, BUILT_IN), scan(tmp_path))
    assert any("would train alone" in finding.text for finding in found) == is_warned


# What Python and argparse themselves say of a program is quoted as it is.
QUOTED = re.compile(r"invalid \w+ value: |ignored explicit argument|is not valid Python|invalid choice: ")
ENGLISH = re.compile(r"(?<![\w./=:-])[a-z]{3,}(?: [a-z]{2,}){3}(?![\w/=:-])")


@pytest.mark.integration
def test_every_finding_is_there_in_chinese(findings: Findings, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not only its template: what was built from it is recognized, with all parts."""
    monkeypatch.setenv("JOBSUBMIT_LANG", "zh")
    texts = {text for case in CASES for found in findings(case["name"]) for text in (found.text, found.hint)}
    ours = {text for text in texts if text and not QUOTED.search(text)}
    left = {text: ENGLISH.findall(re.sub(r"`[^`]*`|'[^']*'", "", translate(text))) for text in ours}
    assert not {text: words for text, words in left.items() if words or translate(text) == text}
    assert len(ours) > 250


@pytest.mark.parametrize(
    ("command", "level", "text"),
    [
        ("torchrun train.py", "warning", "each of the 2 nodes would train by itself"),
        ("torchrun --nnodes 1 train.py", "warning", "is given --nnodes=1"),
        (
            ["bash", "-c", "python -m torch.distributed.run --nproc_per_node 2 train.py"],
            "warning",
            "would train by itself",
        ),
        ("torchrun --nnodes=4 train.py", "error", "waits for 4 nodes (--nnodes), and the job has only 2"),
        ("torchrun --nnodes=2 train.py", "error", "is not given --master_addr: the 2 nodes would never meet"),
        ("torchrun --nnodes=2 --master_addr=a train.py", "error", "is not given --node_rank: all 2 nodes"),
        ("torchrun --nnodes=2 --rdzv_endpoint=localhost:1 train.py", "error", "would look for the others on itself"),
        ("torchrun --nnodes=2 --rdzv_backend=c10d --rdzv_endpoint=a:1 train.py", "", ""),
        ("torchrun --nnodes=1:2 train.py", "", ""),
        (["bash", "-c", 'torchrun --nnodes "$NNODES" --node_rank $NODE_RANK --master_addr a train.py'], "", ""),
        ("python train.py", "", ""),
    ],
)
def test_a_launcher_must_start_on_the_nodes_of_the_job(
    command: str | list[str], level: str, text: str, tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text("print('step 1')\n")
    spec = {"name": "checked", "code_dir": str(tmp_path), "command": command, "resources": {"nodes": 2}}
    found = check_code(planning.build_plan(load_mapping(spec).spec, BUILT_IN), scan(tmp_path))
    about = [finding for finding in found if finding.check == "launcher-nodes"]
    assert [finding.level for finding in about] == ([level] if level else [])
    assert all(text in finding.text for finding in about)
