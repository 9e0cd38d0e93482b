"""What trainings share on one machine: code in a store, and the ports of several jobs at once."""

from __future__ import annotations

from pathlib import Path

import pytest
from command import PATIENCE, Command, job_dir, job_id
from losses import losses_of
from minio_server import Server

from jobsubmit.bundle.scanner import scan
from jobsubmit.common.resources import SAMPLE_CODE, starter_job

WITHOUT_TORCH = ("--set", "command=[python, -c, 'print(open(\"torch_ddp.py\").name)']", "--set", "boot_file=null")
ONE_PROCESS = ("--set", "resources.nproc_per_node=1")


@pytest.mark.slow
@pytest.mark.needs("torch")
def test_several_jobs_at_once_do_not_mix(jobsubmit: Command) -> None:
    running = [
        jobsubmit.start("create", starter_job(mode), "--follow", "--set", f"hyperparameters.lr={lr}", *ONE_PROCESS)
        for mode, lr in (("torchrun", 0.1), ("torchrun", 0.2), ("launch", 0.3))
    ]
    results = [process.communicate(timeout=PATIENCE) for process in running]
    assert [process.returncode for process in running] == [0, 0, 0], results
    assert len({tuple(losses_of(talk, 2, keeps_ranks=True)) for _, talk in results}) == 3
    assert len({job_id(data) for data, _ in results}) == 3


@pytest.mark.slow
@pytest.mark.needs("torch")
def test_torchrun_with_the_static_rendezvous(jobsubmit: Command) -> None:
    done = jobsubmit("create", starter_job("torchrun"), "--set", "torch_version='2.1'", "--follow")
    losses_of(done.stderr, 4, keeps_ranks=True)
    assert "--rdzv_backend=static" in done.stderr
    chosen = jobsubmit("render", starter_job("torchrun"), "--set", "rdzv_backend=static").stdout
    assert "--rdzv_backend=static" in chosen


@pytest.mark.needs("minio")
def test_code_uploaded_before_needs_no_bundle(jobsubmit: Command, tmp_path: Path, s3: tuple[str, Server]) -> None:
    bucket, server = s3
    (tmp_path / "code").mkdir()
    (tmp_path / "code/boot.py").write_text("print('I am', __file__)\n")
    jobsubmit("upload", "code", f"s3://{bucket}/team/demo-code", "--endpoint-url", server.endpoint)
    (tmp_path / "job.yaml").write_text(
        f"name: before\nmode: spawn\ncode_dir: s3://{bucket}/team/demo-code\nboot_file: boot.py\n"
        "resources: {nodes: 2}\nstore: {uri: ./scripts, endpoint_url: null}\n"
    )
    flags = ("--set", f"store.uri=s3://{bucket}/jobs", "--set", f"store.endpoint_url={server.endpoint}")
    done = jobsubmit("create", "job.yaml", *flags, "--follow")
    assert jobsubmit("logs", job_id(done.stdout)).stdout.count("/demo-code/boot.py\n") == 2
    assert not (tmp_path / "scripts").exists()
    assert not (job_dir(job_id(done.stdout)) / "nodes/0/code").exists()
    missing = jobsubmit("create", "job.yaml", *flags, "--set", "boot_file=nowhere.py", code=3)
    assert "nowhere.py is not in" in missing.stderr


def test_two_identical_submissions_upload_once(jobsubmit: Command) -> None:
    flags = ("--nodes", "1", *ONE_PROCESS, *WITHOUT_TORCH, "--follow")
    first = jobsubmit("create", starter_job("torchrun"), *flags)
    second = jobsubmit("create", starter_job("torchrun"), *flags)
    assert "code unchanged" not in first.stderr
    assert f"code unchanged: {len(scan(SAMPLE_CODE).files)} files already in the store" in second.stderr
