"""Jobs of ModelArts' own tools become job files, which mean the same job."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from command import Command
from modelarts_jobs import JOBS, body_of
from ruamel.yaml import YAML

from jobsubmit.scaffold.from_modelarts import draft_from_modelarts
from jobsubmit.spec.loader import load_mapping

MA_CLI = """
# ma-cli ma-job submit this.yaml
name: resnet 50
code-dir: obs://bucket/code/
boot-file: obs://bucket/code/train/main.py
framework-type: PyTorch
framework-version: pytorch_1.8.0-cuda_10.2
data-url: obs://bucket/dataset/
log_url: obs://bucket/logs/
train-instance-type: modelarts.vm.cpu.8u
train-instance-count: 2
parameters: [lr=0.1, epochs=3]
env-variables: {A: b}
output: train_url=obs://bucket/out
uid: 1000
"""


@pytest.mark.parametrize("name", [name for name in JOBS if "checkpoints" not in name])
def test_what_we_send_can_be_draft_from_modelarts(name: str, tmp_path: Path) -> None:
    """The code is in the bucket then; the start script of an image is made anew."""
    body = body_of(tmp_path, JOBS[name])
    fields = draft_from_modelarts(body).fields
    again = {**fields, "store": {"uri": "obs://bucket/jobs", "endpoint_url": "https://obs.example.com"}}
    again["backend"] = {**fields["backend"], "region": "r", "project_id": "p"}
    if fields["mode"] == "spawn":
        sent = body_of(tmp_path, again)
        assert {**sent, "metadata": body["metadata"]} == body
    else:
        assert (fields["mode"], fields["boot_file"]) == (JOBS[name]["mode"], "train.py")
        assert "command" not in fields
        assert "env" not in fields
        load_mapping(again)


def test_the_command_of_somebody_elses_image_is_kept(tmp_path: Path) -> None:
    body = body_of(tmp_path, JOBS["torchrun"])
    body["algorithm"]["command"] = "bash ${MA_JOB_DIR}/code/run.sh"
    expected = ["bash", "-c", "bash ${MA_JOB_DIR}/code/run.sh"]  # a shell must replace the variable
    assert draft_from_modelarts(body).fields["command"] == expected
    body["algorithm"]["parameters"] = [{"name": "lr", "value": "0.1"}]
    expected = ["bash", "-c", 'bash ${MA_JOB_DIR}/code/run.sh "$@"', "bash"]
    assert draft_from_modelarts(body).fields["command"] == expected
    body["algorithm"]["command"] = "python train.py 'two words'"
    assert draft_from_modelarts(body).fields["command"] == ["python", "train.py", "two words"]


def test_a_file_of_ma_cli(jobsubmit: Command, tmp_path: Path) -> None:
    (tmp_path / "ma.yaml").write_text(MA_CLI)
    done = jobsubmit("import", "ma.yaml")
    assert "uid: dropped, it has no equivalent" in done.stderr
    fields = YAML(typ="safe").load(done.stdout)
    assert fields == {
        "name": "resnet-50",
        "mode": "spawn",
        "code_dir": "obs://bucket/code",
        "boot_file": "train/main.py",
        "framework": {"name": "PyTorch", "version": "pytorch_1.8.0-cuda_10.2"},
        "hyperparameters": {"lr": "0.1", "epochs": "3"},
        "env": {"A": "b"},
        "inputs": [{"name": "data_url", "uri": "obs://bucket/dataset/"}],
        "outputs": [{"name": "train_url", "uri": "obs://bucket/out"}],
        "resources": {"nodes": 2, "flavor": "modelarts.vm.cpu.8u"},
        "backend": {"kind": "modelarts", "log_url": "obs://bucket/logs/"},
    }
    (tmp_path / "job.yaml").write_text(done.stdout)
    store = ("--set", "store.endpoint_url=https://obs.example.com")
    assert "parameters" in jobsubmit("render", "--request", *store).stdout


def test_what_is_no_job_is_refused(jobsubmit: Command, tmp_path: Path) -> None:
    for text in ("[1]", json.dumps({"a": 1}), "{", "\x00"):
        (tmp_path / "x.json").write_text(text)
        assert (
            "x.json" in jobsubmit("import", "x.json", code=2).stderr
            or "training job" in jobsubmit("import", "x.json", code=2).stderr
        )
    jobsubmit("import", "none.json", code=2)


def test_data_that_is_not_in_obs_is_named() -> None:
    body = {
        "metadata": {"name": "x"},
        "algorithm": {
            "code_dir": "/bucket/code/",
            "boot_file": "/bucket/code/train.py",
            "inputs": [{"name": "data", "remote": {"dataset": {"id": "1"}}}],
        },
    }
    draft = draft_from_modelarts(body)
    assert "inputs: data: dropped, it is not in OBS" in draft.notes
