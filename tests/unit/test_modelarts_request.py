"""What is sent to ModelArts: what the official SDK's own models would send for the same job; what is refused before."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from huaweicloudsdkcore.utils import http_utils
from huaweicloudsdkmodelarts import v1 as sdk

from jobsubmit.errors import CheckError
from jobsubmit.finding import Finding
from jobsubmit.preparation import Demands, examine, prepare
from jobsubmit.settings import load_settings
from jobsubmit.spec.load import load_mapping

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


def typed(value: Any, kind: str) -> Any:
    """Return a value as the SDK's own models hold it: what they do not know is lost."""
    if kind.startswith("list["):
        return [typed(item, kind[5:-1]) for item in value]
    model = getattr(sdk, kind, None)
    if model is None:
        return value
    names = {json_name: name for name, json_name in model.attribute_map.items()}
    known = {names[name]: inner for name, inner in value.items() if name in names}
    return model(**{name: typed(inner, model.openapi_types[name]) for name, inner in known.items()})


@pytest.mark.parametrize("name", JOBS)
def test_the_request_is_what_the_sdk_would_send(name: str, tmp_path: Path) -> None:
    body = body_of(tmp_path, JOBS[name])
    assert json.loads(json.dumps(http_utils.sanitize_for_serialization(typed(body, "Job")))) == body


def test_a_preset_framework_gets_boot_file_and_hyperparameters(tmp_path: Path) -> None:
    body = body_of(tmp_path, {**SPAWN, "hyperparameters": {"lr": 0.1, "amp": True}})
    algorithm = body["algorithm"]
    folder = algorithm["code_dir"]
    assert folder.startswith("/bucket/jobs/job/") and folder.endswith("/code/")
    assert algorithm["boot_file"] == folder + "train.py"
    assert algorithm["engine"] == {"engine_name": "PyTorch", "engine_version": "pytorch_2.1.0-cuda_12.1"}
    assert algorithm["parameters"] == [
        {"name": "lr", "value": "0.1"},
        {"name": "amp", "value": "true"},
        {"name": "world_size", "value": "1"},
        {"name": "rank", "value": "0"},
    ]
    assert "command" not in algorithm
    assert body["spec"] == {"resource": {"flavor_id": "a.flavor", "node_count": 1}}


def test_several_nodes_of_a_preset_framework_get_their_ranks_from_the_platform(tmp_path: Path) -> None:
    body = body_of(tmp_path, {**SPAWN, "resources": {"nodes": 2}})
    assert "parameters" not in body["algorithm"]
    assert body["spec"]["resource"]["node_count"] == 2


def test_an_image_gets_the_start_script_of_the_code_directory(tmp_path: Path) -> None:
    algorithm = body_of(tmp_path, TORCHRUN)["algorithm"]
    assert algorithm["command"].startswith("bash ${MA_JOB_DIR}/code/.jobsubmit/")
    assert algorithm["command"].endswith(".sh")
    assert algorithm["engine"] == {"image_url": "team/pytorch:2.9"}
    assert algorithm["environments"] == {"JOBSUBMIT_JOB_ID": "job-1"}
    assert "boot_file" not in algorithm


def test_faults_hours_and_channels(tmp_path: Path) -> None:
    fields = {**TORCHRUN, "timeout": "90m", "inputs": [DATA], "backend": {"fault_tolerance": {"retry": 2}}}
    body = body_of(tmp_path, fields)
    assert body["metadata"]["annotations"] == {"fault-tolerance/job-retry-num": "2"}
    assert body["spec"]["auto_stop"] == {"time_unit": "HOURS", "duration": 2}
    (channel,) = body["algorithm"]["inputs"]
    assert channel["remote"] == {"obs": {"obs_url": "/bucket/data/"}}
    assert channel["access_method"] == "env"


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "framework": ({"mode": "spawn"}, "framework  a job of mode spawn runs in a preset framework"),
    "image": ({"mode": "torchrun"}, "image  a job of mode torchrun runs in an image"),
    "flag": ({**SPAWN, "hyperparameters": {"amp": {"flag": True}}}, "no bare switch"),
    "long name": ({**SPAWN, "hyperparameters": {"a.b": 1}}, "1 to 64 letters"),
    "folder store": ({**TORCHRUN, "store": {"uri": "here"}}, "the platform cannot see"),
    "archive": ({**TORCHRUN, "layout": "archive"}, "takes a directory, no archive"),
    "folder input": ({**TORCHRUN, "inputs": [{"name": "d", "uri": "/data"}]}, "d: the platform cannot see /data"),
    "elastic": ({**TORCHRUN, "resources": {"nodes": "1:2"}}, "no elastic jobs"),
    "restarts": ({**TORCHRUN, "restarts": 2}, "starts jobs again in its own way"),
    "timeout": ({**TORCHRUN, "timeout": "4d"}, "96 hours, and the limit is 72"),
    "variables": ({**TORCHRUN, "env": {f"V{n}": "1" for n in range(101)}}, "101 variables, and the limit is 100"),
    "long value": ({**TORCHRUN, "env": {"V": "x" * 4097}}, "4,097 characters, and the limit is 4,096"),
    "requirements": ({**SPAWN, "requirements": "r.txt"}, "no start script of ours runs"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_the_platform_cannot_do_is_told_before(name: str, tmp_path: Path) -> None:
    fields, text = REFUSED[name]
    (tmp_path / "code").mkdir()
    (tmp_path / "code/r.txt").write_text("")
    with pytest.raises(CheckError) as caught:
        body_of(tmp_path, fields)
    assert text in caught.value.message


def test_the_number_of_files_is_a_warning_before_it_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "code").mkdir()
    for number in range(1001):
        (tmp_path / f"code/{number}.txt").write_text("")

    def found() -> list[Finding]:
        prepared = examine(load_mapping(job(tmp_path, TORCHRUN)), load_settings(), Demands("job-1", checks=False))
        return [finding for finding in prepared.findings if "files" in finding.text]

    assert [finding.level for finding in found()] == ["warning"]
    for number in range(1001, 4097):
        (tmp_path / f"code/{number}.txt").write_text("")
    assert [finding.level for finding in found()] == ["error"]
