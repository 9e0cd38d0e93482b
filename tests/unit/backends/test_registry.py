"""Backends of other packages: they are as good as ours, and one that is broken is named."""

from __future__ import annotations

import json
from collections.abc import Iterator
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
import yaml
from command import Command
from engine import PLUGIN

from jobsubmit.backends.registry import kind_of_handle, open_backend
from jobsubmit.config import BUILT_IN
from jobsubmit.errors import BackendError
from jobsubmit.spec import backend_registry
from jobsubmit.spec.loader import load

pytestmark = pytest.mark.usefixtures("plugin")
BROKEN = EntryPoint("broken", "a_package_that_is_gone.spec:Spec", backend_registry.ENTRY_POINTS)


@pytest.fixture
def plugin(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Have the package installed, as far as this process can tell."""
    monkeypatch.syspath_prepend(str(PLUGIN))
    find_plugins = backend_registry._plugins
    find_plugins.cache_clear()
    yield
    find_plugins.cache_clear()


@pytest.fixture
def job(tmp_path: Path) -> Path:
    (tmp_path / "code").mkdir()
    (tmp_path / "code/train.py").write_text("print('hello')\n")
    file = tmp_path / "job.yaml"
    file.write_text("name: a\nmode: spawn\ncode_dir: code\nboot_file: train.py\nbackend:\n  kind: handmade\n")
    return file


@pytest.fixture
def broken(plugin: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have a package that says it brings a backend, and does not."""
    plugins = {**backend_registry._plugins(), "broken": BROKEN}
    monkeypatch.setattr(backend_registry, "_plugins", lambda: plugins)


def test_ours_come_first_and_then_those_of_other_packages() -> None:
    assert backend_registry.backend_kinds() == ("local", "ssh", "slurm", "volcano", "modelarts", "handmade")


def test_a_job_file_may_use_it_with_its_own_fields(job: Path, jobsubmit: Command) -> None:
    job.write_text(job.read_text() + "  python: venv/bin/python\n")
    shown = jobsubmit.json("create", job, "--dry-run")
    assert json.loads(shown["request"]["request.json"])["mode"] == "spawn"
    job.write_text(job.read_text().replace("python:", "pyhton:"))
    text = jobsubmit("validate", job, code=2).stderr
    assert "job.yaml:7  backend.pyhton: is not a field; did you mean `python`?" in text


def test_its_path_is_relative_to_the_job_file(job: Path) -> None:
    job.write_text(job.read_text() + "  python: venv/bin/python\n")
    resolved = yaml.safe_load(load(job).resolved_text())
    assert resolved["backend"]["python"] == str(job.parent / "venv/bin/python")


def test_the_schema_knows_it(jobsubmit: Command) -> None:
    schema = json.loads(jobsubmit("schema").stdout)
    assert "python" in schema["$defs"]["HandmadeSpec"]["properties"]


def test_its_handle_means_the_same_on_every_machine() -> None:
    assert kind_of_handle("handmade://here/a") == "handmade"
    assert kind_of_handle("handmade://there") == ""
    assert kind_of_handle("local://a") == ""


def test_a_kind_that_nobody_brings(job: Path, jobsubmit: Command) -> None:
    job.write_text(job.read_text().replace("handmade", "cluster"))
    text = jobsubmit("validate", job, code=2).stderr
    assert "backend.kind: must be one of local, ssh, slurm, volcano, modelarts, handmade" in text
    with pytest.raises(BackendError, match="has no backend 'cluster'"):
        open_backend("cluster", BUILT_IN)


def test_a_package_that_cannot_load_its_backend_is_named(broken: None, job: Path, jobsubmit: Command) -> None:
    job.write_text(job.read_text().replace("handmade", "broken"))
    text = jobsubmit("validate", job, code=2).stderr
    assert "a_package_that_is_gone" in text
    assert "Traceback" not in text
    with pytest.raises(BackendError, match="a_package_that_is_gone"):
        open_backend("broken", BUILT_IN)
    jobsubmit("schema")  # of the others


@pytest.mark.parametrize("path", ["a_package_that_is_gone:Backend", "jobsubmit.errors:did_you_mean"])
def test_a_backend_that_does_not_start_hides_no_other_job(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backend_registry.find_spec("handmade"), "runs_by", path)
    with pytest.raises(BackendError, match=f"'handmade': {path} cannot be loaded"):
        open_backend("handmade", BUILT_IN)


@pytest.mark.parametrize(
    "value", ["pathlib:Path", "jobsubmit.spec.backend:BackendSpec", "jobsubmit.errors:did_you_mean"]
)
def test_a_package_that_brings_something_else_is_named(
    value: str, plugin: None, job: Path, jobsubmit: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    plugins = {"broken": EntryPoint("broken", value, backend_registry.ENTRY_POINTS)}
    monkeypatch.setattr(backend_registry, "_plugins", lambda: plugins)
    job.write_text(job.read_text().replace("handmade", "broken"))
    text = jobsubmit("validate", job, code=2).stderr
    assert f"{value} must be a BackendSpec" in text
    jobsubmit("schema")  # of the others
