"""Inputs, outputs, checkpoints in a bucket, and packages: what a job needs is there, what it makes arrives."""

from __future__ import annotations

import base64
import hashlib
import os
import zipfile
from pathlib import Path

import pytest
from bucket import Bucket
from command import Command, events, job_dir, job_id

BOOT = """
import argparse, json, os, sys, time
parser = argparse.ArgumentParser()
parser.add_argument("--data_url")
parser.add_argument("--train_url")
parser.add_argument("--checkpoint_dir")
args, rest = parser.parse_known_args()
print(json.dumps(vars(args)), flush=True)
HOW
"""


def write_job(folder: Path, how: str, extra: str, nodes: int = 1) -> Path:
    (folder / "code").mkdir(exist_ok=True)
    (folder / "code/boot.py").write_text(BOOT.replace("HOW", how))
    (folder / "job.yaml").write_text(
        f"name: data\nmode: spawn\ncode_dir: code\nboot_file: boot.py\nresources: {{nodes: {nodes}}}\n{extra}"
    )
    return folder / "job.yaml"


def at(bucket: Bucket) -> str:
    return f"store: {{endpoint_url: {bucket.server.endpoint}, uri: s3://{bucket.name}/jobs}}\n"


def test_a_folder_is_an_input_as_it_is_and_an_output_arrives(jobsubmit: Command, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data/x.txt").write_text("seven")
    how = """
text = open(args.data_url + "/x.txt").read()
open(args.train_url + "/result.txt", "w").write(text.upper())
open(os.environ["EXTRA"] + "/more.txt", "w").write("more")
"""
    extra = (
        "inputs: [{name: data_url, uri: data}]\n"
        "outputs: [{name: train_url, uri: results}, {name: EXTRA, uri: extra, as: env}]\n"
    )
    jobsubmit("create", write_job(tmp_path, how, extra), "--follow")
    assert (tmp_path / "results/result.txt").read_text() == "SEVEN"
    assert (tmp_path / "extra/more.txt").read_text() == "more"


@pytest.mark.needs("minio")
def test_a_bucket_is_downloaded_once_per_content(jobsubmit: Command, tmp_path: Path, bucket: Bucket) -> None:
    source = tmp_path / "source"
    source.mkdir()
    (source / "a.bin").write_bytes(os.urandom(100_000))
    uri = f"s3://{bucket.name}/data"
    server = ("--endpoint-url", bucket.server.endpoint)
    jobsubmit("upload", source, uri, *server)
    how = "import hashlib\nprint('sum', hashlib.sha256(open(args.data_url + '/a.bin', 'rb').read()).hexdigest())"
    extra = f"inputs: [{{name: data_url, uri: {uri}}}]\n" + at(bucket)
    job_file = write_job(tmp_path, how, extra, nodes=2)
    places = set()
    for content in (None, None, b"other"):
        if content:
            (source / "a.bin").write_bytes(content)
            jobsubmit("upload", source, uri, *server)
        job = job_id(jobsubmit("create", job_file, "--follow").stdout)
        digest = hashlib.sha256((source / "a.bin").read_bytes()).hexdigest()
        assert jobsubmit("logs", job, "--grep", f"sum {digest}").stdout.count(digest) == 2
        places.add((job_dir(job) / "inputs/data_url").resolve())
    assert len(places) == 2


@pytest.mark.needs("minio")
def test_an_input_that_is_not_there_ends_the_job_before_it_starts(
    jobsubmit: Command, tmp_path: Path, bucket: Bucket
) -> None:
    extra = f"inputs: [{{name: data_url, uri: s3://{bucket.name}/none}}]\n" + at(bucket)
    done = jobsubmit("create", write_job(tmp_path, "pass", extra), "--follow", code=100)
    assert "FAILED (INPUTS_FAILED)" in done.stderr
    assert "input data_url" in done.stderr
    assert not [event for event in events(job_id(done.stdout)) if event["event"] == "node_start"]


@pytest.mark.needs("minio")
def test_outputs_and_checkpoints_reach_the_bucket_while_it_runs_at_restarts_and_at_the_end(
    jobsubmit: Command, tmp_path: Path, bucket: Bucket
) -> None:
    how = """
attempt = os.environ["JOBSUBMIT_RESTART_COUNT"]
open(args.train_url + "/begun-" + attempt, "w").close()
open(args.checkpoint_dir + "/state-" + attempt, "w").close()
if attempt == "0":
    time.sleep(3)
    sys.exit(3)
print("finds", sorted(os.listdir(os.environ["JOBSUBMIT_CHECKPOINT_DIR"])))
open(args.train_url + "/done", "w").close()
"""
    place = f"s3://{bucket.name}"
    extra = (
        f"outputs: [{{name: train_url, uri: {place}/out, every: 1s}}]\n"
        f"checkpoint_dir: {{uri: {place}/ckpt, as: hyperparameter}}\n"
        "restarts: {max: 1, backoff: 2s}\n"
    ) + at(bucket)
    job = job_id(jobsubmit("create", write_job(tmp_path, how, extra), "--detach").stdout)
    restart = next(event for event in follow(jobsubmit, job) if event["event"] == "step" and event["attempt"] == 1)
    assert restart
    assert {"begun-0"} <= set(bucket.tree("out"))
    jobsubmit("wait", job)
    assert set(bucket.tree("out")) == {"begun-0", "begun-1", "done"}
    assert "finds ['state-0', 'state-1']" in jobsubmit("logs", job).stdout
    assert set(bucket.tree(f"ckpt/{job}")) == {"state-0", "state-1"}


def follow(jobsubmit: Command, job: str) -> list[dict[str, object]]:
    found: list[dict[str, object]] = []
    for _ in range(200):
        found = events(job) if (job_dir(job) / "events.jsonl").exists() else []
        if any(event.get("attempt") == 1 for event in found):
            return found
        jobsubmit("status", job)
    raise AssertionError(found)


@pytest.mark.needs("minio")
def test_a_rerun_resumes_from_a_bucket(jobsubmit: Command, tmp_path: Path, bucket: Bucket) -> None:
    how = """
kept = os.environ["JOBSUBMIT_CHECKPOINT_DIR"]
print("finds", sorted(os.listdir(kept)), flush=True)
open(kept + "/step-" + str(len(os.listdir(kept))), "w").close()
sys.exit(len(os.listdir(kept)) < 3)
"""
    job_file = write_job(tmp_path, how, f"checkpoint_dir: s3://{bucket.name}/ckpt\n" + at(bucket))
    job = first = job_id(jobsubmit("create", job_file, "--follow", code=100).stdout)
    for found, code in ((["step-0"], 100), (["step-0", "step-1"], 0)):
        done = jobsubmit("rerun", job, "--resume", "--follow", code=code)
        assert f"finds {found}" in done.stderr
        job = job_id(done.stdout)
    assert set(bucket.tree(f"ckpt/{first}")) == {"step-0", "step-1", "step-2"}


def test_an_output_is_no_code(jobsubmit: Command, tmp_path: Path) -> None:
    how = """
if args.train_url:
    open(args.train_url + "/.gitignore", "w").write("*.pt\\n")
    open(args.train_url + "/model.pt", "w").close()
    os.mkdir(args.train_url + "/__pycache__")
    open(args.train_url + "/__pycache__/x.pyc", "w").close()
"""
    outputs = "outputs: [{name: train_url, uri: out}, {name: empty, uri: none, as: env}]\n"
    jobsubmit("create", write_job(tmp_path, how, outputs), "--follow")
    made = {path.relative_to(tmp_path / "out").as_posix() for path in (tmp_path / "out").rglob("*") if path.is_file()}
    assert made == {".gitignore", "model.pt", "__pycache__/x.pyc"}


def test_relative_settings_are_meant_from_where_the_client_was(jobsubmit: Command, tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text("{}\n")
    job_file = write_job(
        tmp_path, "open(args.train_url + '/x', 'w').close()", "outputs: [{name: train_url, uri: out}]\n"
    )
    jobsubmit("create", job_file, "--follow", env={"JOBSUBMIT_CONFIG": "c.yaml"})
    assert (tmp_path / "out/x").exists()


@pytest.mark.needs("minio")
def test_outputs_that_cannot_be_uploaded_are_a_failure_that_says_where_they_are(
    jobsubmit: Command, tmp_path: Path, bucket: Bucket
) -> None:
    how = "open(args.train_url + '/result', 'w').close()"
    extra = "outputs: [{name: train_url, uri: s3://no-such-bucket-here/out}]\n" + at(bucket)
    done = jobsubmit("create", write_job(tmp_path, how, extra), "--follow", code=100)
    job = job_id(done.stdout)
    assert "FAILED (OUTPUTS_FAILED)" in done.stderr
    assert (job_dir(job) / "outputs/train_url/result").exists()
    assert "no-such-bucket-here" in done.stderr


def wheel(folder: Path) -> None:
    """Write a package that can be installed without any registry."""
    folder.mkdir(parents=True)
    record, files = (
        [],
        {
            "tinypackage.py": "VALUE = 42\n",
            "tinypackage-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: tinypackage\nVersion: 1.0\n",
            "tinypackage-1.0.dist-info/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        },
    )
    with zipfile.ZipFile(folder / "tinypackage-1.0-py3-none-any.whl", "w") as archive:
        for name, text in files.items():
            digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
            record.append(f"{name},sha256={digest},{len(text)}")
            archive.writestr(name, text)
        record.append("tinypackage-1.0.dist-info/RECORD,,")
        archive.writestr("tinypackage-1.0.dist-info/RECORD", "\n".join(record) + "\n")


def test_requirements_are_installed_once_for_the_job_and_nowhere_else(jobsubmit: Command, tmp_path: Path) -> None:
    how = """
import tinypackage, pydantic
print("found", tinypackage.VALUE, "in", tinypackage.__file__, "beside", pydantic.__name__)
sys.exit(int(os.environ["JOBSUBMIT_RESTART_COUNT"]) < 1)
"""
    job_file = write_job(tmp_path, how, "requirements: requirements.txt\nrestarts: {max: 1, backoff: 0}\n")
    wheel(tmp_path / "code/wheels")
    (tmp_path / "code/requirements.txt").write_text("--no-index\n--find-links ./wheels\ntinypackage==1.0\npydantic\n")
    done = jobsubmit("create", job_file, "--follow")
    job = job_id(done.stdout)
    assert done.stderr.count("found 42 in") == 2
    assert done.stderr.count("installs requirements.txt") == 1
    assert str(job_dir(job) / "nodes/0/packages") in jobsubmit("logs", job).stdout


def test_a_package_that_cannot_be_installed_is_told(jobsubmit: Command, tmp_path: Path) -> None:
    job_file = write_job(tmp_path, "pass", "requirements: requirements.txt\n")
    (tmp_path / "code/requirements.txt").write_text("--no-index\nno-such-package-at-all\n")
    done = jobsubmit("create", job_file, "--follow", code=100)
    assert "FAILED (SETUP_FAILED): node 0 could not be set up" in done.stderr
    assert "the packages could not be installed" in done.stderr
    assert "no-such-package-at-all" in done.stderr


def test_a_missing_requirements_file_is_found_before_anything_is_sent(jobsubmit: Command, tmp_path: Path) -> None:
    done = jobsubmit("create", write_job(tmp_path, "pass", "requirements: requirements.txt\n"), code=3)
    assert "requirements: requirements.txt is not in" in done.stderr
