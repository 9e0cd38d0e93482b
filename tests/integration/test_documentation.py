"""README and docs: what a page shows is what its commands print, and the site builds without a warning."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from command import PATIENCE, job_dir
from documentation import ROOT, Block, blocks_of, commands_of, fits, pages
from engine import Engine, engine_of
from minio_server import Server
from modelarts_server import Service
from ruamel.yaml import YAML

from jobsubmit.cli.console import READING_OUTPUT
from jobsubmit.cli.findings import READING

RECORDS = ROOT / "tests/corpus/records/2026-11-22"
WHILE_WAITING = (READING, READING_OUTPUT)
_FOLLOW_SECONDS = 45  # then a command that follows a waiting job is interrupted
# What a page shows instead of a name that is another one each time; a group is that name in what a command prints.
STAND_INS = {
    "slurm://hpc/4711": r"^(slurm://\S+)$",
    "scontrol release 4711": r"(scontrol release \d+)",
    "2720c463b70c": r"# ── digest ([0-9a-f]{12})",
    "DIGEST -": r'^  "digest": "(\w+)"',
    "JOB": r'^  "id": "([\w-]+)"',
}
DDP = """
import torch.distributed as dist
dist.init_process_group("gloo")
dist.barrier()  # a rank that has ended refuses those that still connect to it
print("step 1 loss 0.5", flush=True)
dist.destroy_process_group()
"""


def pages_with(*needs: str) -> list[Any]:
    """Return the pages with a console block of some kind, as parameters of a test."""
    found = [
        page for page in pages() if any(block.kind == "console" and block.needs in needs for block in blocks_of(page))
    ]
    return [pytest.param(page, id=str(page.relative_to(ROOT))) for page in found]


class Reader:
    """Type what a page shows, in one folder; `fields` are put into each job file of the page."""

    def __init__(self, folder: Path, fields: dict[str, Any] | None = None) -> None:
        folder.mkdir(exist_ok=True)
        self.folder, self.fields = folder, fields or {}
        self.names: dict[str, str] = {}  # for each stand-in that was met

    def write(self, block: Block) -> None:
        """Write the file that a block shows."""
        file = self.folder / block.file
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(block.text)
        if self.fields and block.kind == "yaml":
            self.fit(file)

    def fit(self, file: Path) -> None:
        """Let a job file fit what the test has: its cluster, its store, few processes."""
        job = YAML(typ="safe").load(file)
        job["resources"] = {"nodes": min(job["resources"]["nodes"], 2), "nproc_per_node": 2}
        for name in ("checkpoint_dir", "restarts", "timeout", "setup", "requirements"):
            job.pop(name, None)
        with file.open("w") as stream:
            YAML(typ="safe").dump({**job, **self.fields}, stream)

    def run(self, block: Block) -> None:
        """Run the commands of a block, and compare what they print."""
        for command in commands_of(block):
            text, shown = command.text, command.output
            for name, real in self.names.items():
                text = text.replace(name, real)
            for name in STAND_INS:
                shown = shown.replace(name, "…")
            if text.startswith("cd ") and "&&" not in text:
                self.folder /= text.removeprefix("cd ")
                continue
            printed = without_waiting(self.output_of(text))
            assert fits(printed, shown), f"{block.where}: {command.text}\n{printed}"
            for name, pattern in STAND_INS.items():
                if found := re.search(pattern, printed, re.MULTILINE):
                    self.names.setdefault(name, found[1] + (" -" if name.endswith(" -") else ""))

    def output_of(self, text: str) -> str:
        """Return what a command prints to both streams; one that follows a waiting job is ended after a while."""
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        with subprocess.Popen(
            ["bash", "-c", f"exec {text}" if text.startswith("jobsubmit logs -f") else text],
            cwd=self.folder,
            env={**os.environ, "PATH": path, "COLUMNS": "100"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        ) as process:
            try:
                return process.communicate(timeout=_FOLLOW_SECONDS if "logs -f" in text else PATIENCE)[0]
            except subprocess.TimeoutExpired:
                process.send_signal(signal.SIGTERM)  # Ctrl-C is ignored where the tests run in the background
                return process.communicate(timeout=PATIENCE)[0]
            finally:
                process.kill()


def without_waiting(printed: str) -> str:
    """Return what a command prints, without the lines that only a slow machine shows."""
    return "".join(line for line in printed.splitlines(keepends=True) if line.rstrip("\n") not in WHILE_WAITING)


def test_what_only_a_slow_machine_shows_is_not_compared() -> None:
    assert without_waiting(f"{READING}\nnext: jobsubmit create\n") == "next: jobsubmit create\n"


@pytest.mark.needs("torch")
@pytest.mark.parametrize("page", [page for page in pages_with("", "needs torch") if page.id != "README.md"])
def test_what_a_page_shows(page: Path, tmp_path: Path) -> None:
    """All blocks of a page run in one folder, in their order."""
    reader = Reader(tmp_path / "folder")
    if page.name == "for-assistants.md":
        (reader.folder / "train.py").write_text(DDP)
    for block in blocks_of(page):
        if block.file:
            reader.write(block)
        elif block.kind == "console" and block.needs in ("", "needs torch"):
            reader.run(block)


FAILING = """
import os, pathlib, sys, time
started = pathlib.Path(sys.argv[1])
(started / os.environ["RANK"]).touch()
if os.environ["RANK"] == "3":
    while len(list(started.iterdir())) < 4:
        time.sleep(0.05)
    raise RuntimeError("mat1 and mat2 shapes cannot be multiplied (32x784 and 128x10)")
time.sleep(60)
"""


@pytest.mark.needs("torch")
def test_what_the_readme_shows_of_a_job_that_fails(tmp_path: Path) -> None:
    reader = Reader(tmp_path / "folder")
    (reader.folder / "train.py").write_text(FAILING)
    started = tmp_path / "started"
    started.mkdir()
    job = {
        "name": "failing",
        "mode": "torchrun",
        "code_dir": ".",
        "boot_file": "train.py",
        "args": [str(started)],
    }
    (reader.folder / "job.yaml").write_text(json.dumps({**job, "resources": {"nodes": 2, "nproc_per_node": 2}}))
    (block,) = (block for block in blocks_of(ROOT / "README.md") if "failing-" in block.text)
    (command,) = commands_of(block)
    printed = reader.output_of(command.text)
    assert fits(printed, command.output.replace("failing-8k2vqp", "…")), printed


@pytest.mark.needs("torch")
@pytest.mark.parametrize("page", pages_with("needs a project"))
def test_what_a_page_shows_of_a_project(page: Path, tmp_path: Path) -> None:
    reader = Reader(tmp_path / "folder")
    (reader.folder / "my-project").mkdir()
    (reader.folder / "my-project/train.py").write_text(f"import sys\nassert '--lr=0.1' in sys.argv\n{DDP}")
    run_all(page, reader, "needs a project")


@pytest.mark.parametrize("backend", ["local", pytest.param("slurm", marks=pytest.mark.needs("slurm"))])
def test_what_a_page_shows_of_earlier_jobs(backend: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    engine_of(backend, request)
    state = Path(os.environ["JOBSUBMIT_STATE_DIR"])
    shutil.copytree(RECORDS / backend, state)
    for note in state.glob("slurm-jobs/*"):  # where the folder of a job is
        note.write_text(str(state / "slurm" / Path(note.read_text()).name))
    (page,) = (page.values[0] for page in pages_with(f"needs records of {backend}"))
    run_all(page, Reader(tmp_path / "folder"), f"needs records of {backend}")


@pytest.mark.needs("minio")
@pytest.mark.parametrize("page", pages_with("needs a bucket"))
def test_what_a_page_shows_of_a_bucket(page: Path, named_bucket: str, tmp_path: Path) -> None:
    reader = Reader(tmp_path / "folder")
    for number in range(5000):
        file = reader.folder / f"data/{number % 50}/{number}.bin"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(number.to_bytes(4, "big") * 2000)
    run_all(page, reader, "needs a bucket")


@pytest.mark.needs("slurm", "torch", "minio")
@pytest.mark.parametrize("page", pages_with("needs slurm"))
def test_what_a_page_shows_on_slurm(
    page: Path, on_slurm: Engine, named_bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = Reader(tmp_path / "folder", {"backend": {"kind": "slurm"}, "store": {"uri": str(tmp_path / "store")}})
    if page.name == "waiting.md":
        write_waiting_job(reader, {"kind": "slurm", "extra_sbatch": ["--hold"]})
    programs = tmp_path / "programs"
    programs.mkdir()
    (programs / "module").write_text("#!/bin/sh\n")
    (programs / "module").chmod(0o755)
    monkeypatch.setenv("PATH", str(programs), prepend=os.pathsep)
    run_all(page, reader, "needs slurm")
    for job in (Path(os.environ["JOBSUBMIT_STATE_DIR"]) / "jobs").iterdir():
        reader.output_of(f"jobsubmit cancel {job.name}")


@pytest.mark.needs("ssh", "torch")
@pytest.mark.parametrize("page", pages_with("needs ssh"))
def test_what_a_page_shows_on_ssh_hosts(page: Path, on_ssh: Engine, tmp_path: Path) -> None:
    backend = {**on_ssh.fields["backend"], "hosts": ["gpu1", "gpu2"]}
    run_all(page, Reader(tmp_path / "folder", {"backend": backend}), "needs ssh")


@pytest.mark.needs("volcano", "torch", "minio")
@pytest.mark.parametrize("page", pages_with("needs kubernetes"))
def test_what_a_page_shows_on_volcano(page: Path, on_volcano: Engine, tmp_path: Path) -> None:
    reader = Reader(tmp_path / "folder", on_volcano.fields)
    if page.name == "waiting.md":
        backend = {**on_volcano.fields["backend"], "resources": {"cpu": "400"}}
        write_waiting_job(reader, backend)
        wait_for_reason("resnet-1", reader)
    run_all(page, reader, "needs kubernetes")
    for job in (Path(os.environ["JOBSUBMIT_STATE_DIR"]) / "jobs").iterdir():
        reader.output_of(f"jobsubmit cancel {job.name}")


@pytest.mark.needs("torch", "minio")
@pytest.mark.parametrize("page", pages_with("needs modelarts"))
def test_what_a_page_shows_on_modelarts(page: Path, on_modelarts: Engine, modelarts: Service, tmp_path: Path) -> None:
    fields = {**on_modelarts.fields, "backend": {**on_modelarts.fields["backend"], "flavor": "cpu.2"}}
    run_all(page, Reader(tmp_path / "folder", fields), "needs modelarts")


@pytest.fixture
def named_bucket(s3_server: Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Make the buckets that pages name, and let commands find their server."""
    import boto3

    monkeypatch.setenv("AWS_ACCESS_KEY_ID", s3_server.key)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", s3_server.secret)
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3_server.endpoint)
    client = boto3.client("s3", region_name="us-east-1")
    for name in ("bucket", "my-bucket"):
        with suppress(client.exceptions.BucketAlreadyOwnedByYou):
            client.create_bucket(Bucket=name)
    client.close()
    yield "my-bucket"


def run_all(page: Path, reader: Reader, needs: str) -> None:
    """Write the files of a page and the sample that it uses, then run its blocks of a kind."""
    for block in blocks_of(page):
        if block.file:
            reader.write(block)
        elif block.kind == "console" and not block.needs and block.text.startswith("$ jobsubmit init demo\n"):
            reader.output_of("jobsubmit init demo")
    for block in blocks_of(page):
        if block.kind == "console" and block.needs == needs:
            reader.run(block)


def write_waiting_job(reader: Reader, backend: dict[str, Any]) -> None:
    (reader.folder / "code").mkdir()
    (reader.folder / "code/train.py").write_text(DDP)
    job: dict[str, Any] = {
        "name": "resnet",
        "mode": "torchrun",
        "code_dir": "code",
        "boot_file": "train.py",
    }
    job |= {"resources": {"nodes": 2, "nproc_per_node": 1}, **reader.fields, "backend": backend}
    with (reader.folder / "job.yaml").open("w") as stream:
        YAML(typ="safe").dump(job, stream)
    printed = reader.output_of("jobsubmit create job.yaml --detach --job-id resnet-1")
    assert job_dir("resnet-1").exists(), printed


def wait_for_reason(job: str, reader: Reader) -> None:
    """Return once the platform says why a job waits."""
    for _ in range(30):
        if "UNSCHEDULABLE" in reader.output_of(f"jobsubmit status {job}"):
            return
    raise AssertionError("it does not wait")


@pytest.mark.skipif(importlib.util.find_spec("sphinx") is None, reason="needs the extra docs: `make docs`")
def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    """Broken links, pages that no table of contents has, and unknown languages of blocks are warnings."""
    build: list[str | Path] = [
        "-W",
        "--keep-going",
        "-q",
        "-b",
        "html",
        "-d",
        tmp_path / "trees",
        ROOT / "docs",
        tmp_path / "site",
    ]
    done = subprocess.run([sys.executable, "-m", "sphinx", *build], capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "site/reference/fields.html").exists()
