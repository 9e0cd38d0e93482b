"""Code that was judged and submitted is not judged again."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from jobsubmit.bundle import scan_cache
from jobsubmit.check import findings_cache, run, secrets
from jobsubmit.config import load_settings
from jobsubmit.jobs.prepare import examine, remember
from jobsubmit.spec.loader import LoadedSpec, load_mapping


@pytest.fixture
def job(tmp_path: Path) -> LoadedSpec:
    (tmp_path / "code").mkdir()
    (tmp_path / "code/train.py").write_text("import os\nprint(os.environ['RANK'])\n")
    return load_mapping({"name": "a", "mode": "spawn", "boot_file": "train.py", "code_dir": str(tmp_path / "code")})


def test_what_was_found_is_found_again_without_reading(
    job: LoadedSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = load_settings()
    first = examine(job, settings)
    assert [finding.check for finding in first.findings] == ["rank-env"]
    remember(first, settings)
    monkeypatch.setattr(run, "check_code", lambda *args: pytest.fail("it was judged again"))
    assert examine(job, settings).findings == first.findings
    changed = replace(job, spec=job.spec.model_copy(update={"env": {"A": "1"}}))
    with pytest.raises(pytest.fail.Exception):
        examine(changed, settings)
    (tmp_path / "code/train.py").write_text("import os\nprint(os.environ['RANK'])\n\n")
    with pytest.raises(pytest.fail.Exception):
        examine(job, settings)


def test_files_that_did_not_change_are_neither_read_nor_searched_again(
    job: LoadedSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scan_cache, "_RACY_NS", 0)
    settings = load_settings()
    first = examine(job, settings)
    remember(first, settings)
    monkeypatch.setattr(secrets, "_in_file", lambda file: pytest.fail("it was searched again"))
    again = examine(job, settings)
    assert first.bundle is not None
    assert again.bundle is not None
    assert (first.bundle.read > 0, again.bundle.read) == (True, 0)


def test_a_secret_is_found_each_time(job: LoadedSpec, tmp_path: Path) -> None:
    (tmp_path / "code/keys.py").write_text("key = 'AKIAIOSFODNN7ABCDEFG'\n".replace("ABCDEFG", "QQQQQQQ"))
    settings = load_settings()
    for _ in range(2):
        found = examine(job, settings)
        assert "secret" in [finding.check for finding in found.findings]
        remember(found, settings)


def test_findings_are_those_of_the_gpus_that_the_machine_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = "import torch\nimport torch.distributed as dist\ndist.init_process_group()\ntorch.cuda.set_device(0)\n"
    (tmp_path / "train.py").write_text(code)
    two_nodes = {"nodes": 2, "nproc_per_node": 1}
    job = load_mapping(
        {"name": "a", "mode": "torchrun", "boot_file": "train.py", "code_dir": str(tmp_path), "resources": two_nodes}
    )
    settings = load_settings()
    said = {}
    for gpus in ("", "0", "0,1"):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", gpus)
        examined = examine(job, settings)
        remember(examined, settings)
        said[gpus] = [finding.text for finding in examined.findings if finding.check == "cuda-on-cpu"]
    needs = "torch.cuda.set_device() needs a GPU, but"
    assert said == {
        "": [f"{needs} these nodes have none"],
        "0": [f"{needs} the nodes get none: the job needs 2 GPUs, and this machine has 1"],
        "0,1": [],
    }


def test_a_damaged_entry_counts_as_none(tmp_path: Path) -> None:
    (tmp_path / "findings").mkdir()
    for text in ("", "{", '[{"level": 1}]', "[" * 100_000):
        (tmp_path / "findings" / "key").write_text(text)
        assert findings_cache.load_findings(tmp_path, "key") is None


def test_there_are_not_more_and_more_entries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(findings_cache, "_MOST", 3)
    for number in range(6):
        findings_cache.save_findings(tmp_path, f"key{number}", [])
    assert len(list((tmp_path / "findings").iterdir())) == 3
    assert findings_cache.load_findings(tmp_path, "key5") == []
