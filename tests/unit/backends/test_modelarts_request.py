"""What is sent to ModelArts: what the official SDK's own models would send for the same job; what is refused before."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from huaweicloudsdkcore.utils import http_utils
from huaweicloudsdkmodelarts import v1 as sdk
from modelarts_jobs import DATA, JOBS, SPAWN, TORCHRUN, body_of, job

from jobsubmit.common.finding import Finding
from jobsubmit.config import load_settings
from jobsubmit.errors import CheckError
from jobsubmit.jobs.prepare import Demands, examine
from jobsubmit.spec.loader import load_mapping


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
    assert re.fullmatch(r".*/run\.sh [0-9a-f]{16}\.sh", algorithm["command"])
    assert algorithm["engine"] == {"image_url": "team/pytorch:2.9"}
    told = algorithm["environments"]
    assert sorted(told) == ["JOBSUBMIT_JOB_ID", "JOBSUBMIT_REQUEST"]
    assert told["JOBSUBMIT_JOB_ID"] == json.loads(told["JOBSUBMIT_REQUEST"])["job_id"] == "job-1"
    assert "boot_file" not in algorithm


@pytest.mark.parametrize(
    ("restarts", "expected"),
    [
        (2, {"job-retry-num": "2", "job-unconditional-retry": "true", "hang-retry": "true"}),
        ({"max": 3, "on": ["node_failure"]}, {"job-retry-num": "3"}),
        (0, {}),
    ],
)
def test_restarts_are_the_platforms_own(restarts: Any, expected: dict[str, str], tmp_path: Path) -> None:
    told = body_of(tmp_path, {**TORCHRUN, "restarts": restarts})["metadata"].get("annotations", {})
    assert told == {f"fault-tolerance/{name}": value for name, value in expected.items()}


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
    "flag": ({**SPAWN, "hyperparameters": {"amp": {"flag": True}}}, "not a switch without a value"),
    "long name": ({**SPAWN, "hyperparameters": {"a.b": 1}}, "1 to 64 letters"),
    "folder store": ({**TORCHRUN, "store": {"uri": "here"}}, "the platform cannot see"),
    "archive": ({**TORCHRUN, "layout": "archive"}, "needs a directory, not an archive"),
    "folder input": ({**TORCHRUN, "inputs": [{"name": "d", "uri": "/data"}]}, "d: the platform cannot see /data"),
    "elastic": ({**TORCHRUN, "resources": {"nodes": "1:2"}}, "does not support elastic jobs"),
    "restarts": ({**TORCHRUN, "restarts": 4}, "4 restarts, but the limit is 3"),
    "restart after a code": (
        {**TORCHRUN, "restarts": {"max": 1, "on": ["exit:75"]}},
        "the platform does not distinguish exit:75 from other failures",
    ),
    "timeout": ({**TORCHRUN, "timeout": "4d"}, "96 hours, but the limit is 72"),
    "variables": ({**TORCHRUN, "env": {f"V{n}": "1" for n in range(101)}}, "103 variables, but the limit is 100"),
    "long value": ({**TORCHRUN, "env": {"V": "x" * 4097}}, "4,097 characters, but the limit is 4,096"),
    "requirements": ({**SPAWN, "requirements": "r.txt"}, "does not run the start script of jobsubmit"),
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
