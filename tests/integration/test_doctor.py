"""`doctor` tries out what a submission needs, says what to do, and leaves nothing behind."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from bucket import Bucket
from command import Command
from pace import Pace

from jobsubmit.common.resources import starter_job


def verdicts(lines: list[dict[str, str]]) -> dict[str, str]:
    return {line["subject"]: line["verdict"] for line in lines}


@pytest.mark.needs("torch")
def test_all_is_well(jobsubmit: Command, tmp_path: Path) -> None:
    flags = ("--store", str(tmp_path / "store"))
    told = verdicts(jobsubmit.json("doctor", starter_job("torchrun"), *flags))
    assert {told[subject] for subject in ("python", "torch", "shell", "state", "store", "job", "backend")} == {"ok"}
    assert [path for path in (tmp_path / "store").rglob("*") if path.is_file()] == []
    text = jobsubmit("doctor").stdout
    assert text.startswith("ok    python ")


@pytest.mark.needs("minio", "torch")
def test_a_bucket_is_written_to_and_left_as_it_was(jobsubmit: Command, bucket: Bucket, s3: tuple[str, object]) -> None:
    endpoint = s3[1].endpoint  # type: ignore[attr-defined]
    flags = ("--store", f"s3://{s3[0]}/jobs", "--set", f"store.endpoint_url={endpoint}")
    told = verdicts(jobsubmit.json("doctor", starter_job("launch"), *flags))
    assert told["store"] == told["clock"] == "ok"
    assert "Contents" not in bucket.client.list_objects(Bucket=s3[0])


@pytest.mark.needs("minio", "torch")
def test_keys_that_are_refused(jobsubmit: Command, s3: tuple[str, object], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "not-the-secret")
    endpoint = s3[1].endpoint  # type: ignore[attr-defined]
    flags = ("--store", f"s3://{s3[0]}/jobs", "--set", f"store.endpoint_url={endpoint}")
    done = jobsubmit("doctor", starter_job("launch"), *flags, code=3)
    assert "fail  store " in done.stdout
    assert "SignatureDoesNotMatch" in done.stdout
    assert "not-the-secret" not in done.stdout + done.stderr


@pytest.mark.slow  # what it bounds is a wall time
def test_a_server_that_does_not_answer(jobsubmit: Command, monkeypatch: pytest.MonkeyPatch, pace: Pace) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    flags = ("--store", "s3://bucket/jobs", "--set", "store.endpoint_url=http://127.0.0.1:9")
    began = time.monotonic()
    done = jobsubmit("doctor", starter_job("launch"), *flags, code=3)
    assert time.monotonic() - began < pace.stretched(10)
    assert "fail  store " in done.stdout
    assert "→ " in done.stdout


def test_code_that_cannot_work(jobsubmit: Command) -> None:
    done = jobsubmit("doctor", starter_job("launch"), "--set", "boot_file=nowhere.py", code=3)
    assert "fail  job " in done.stdout
    assert "nowhere.py is not in" in done.stdout


def test_a_tool_that_is_missing(jobsubmit: Command, tmp_path: Path) -> None:
    done = jobsubmit("doctor", env={"PATH": str(tmp_path)}, code=3)
    assert "not on PATH: bash, getconf, grep, tr" in done.stdout


def test_a_state_directory_that_cannot_be_written(jobsubmit: Command, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    done = jobsubmit("doctor", env={"JOBSUBMIT_STATE_DIR": str(tmp_path / "file" / "state")}, code=3)
    assert "fail  state " in done.stdout
    assert "set JOBSUBMIT_STATE_DIR to a folder" in done.stdout
