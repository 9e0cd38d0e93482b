"""Fixtures: every test has a state directory of its own; servers are real, started once, and ended by their pid."""

from __future__ import annotations

import functools
import importlib.util
import os
import shutil
import sys
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import browser
import kubernetes_cluster
import minio_server
import modelarts_server
import namespaces
import pace
import proxy
import pytest
import slurm
import ssh_hosts
import tiers
from bucket import Bucket
from command import Command, CommandHere
from engine import NEEDS, PYTHON_OF_IMAGE, Engine, engine_of, modelarts_engine, volcano_fields
from kubernetes_cluster import Cluster
from minio_server import Server
from modelarts_server import Service
from obs import Domain
from proxy import Proxy
from slurm import Slurm
from ssh_hosts import Hosts
from xdist.scheduler.loadscope import LoadScopeScheduling

if TYPE_CHECKING:
    from playwright.sync_api import Browser
    from xdist.remote import Producer
    from xdist.scheduler.protocol import Scheduling

REQUIRED = set(filter(None, os.environ.get("JOBSUBMIT_REQUIRE", "").split(",")))


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Sort tests into tiers; skip what this machine lacks, unless JOBSUBMIT_REQUIRE names it: then it is a failure."""
    for item in items:
        tiers.mark(item)
        for name in (name for mark in item.iter_markers("needs") for name in mark.args):
            if name not in REQUIRED and not _IS_THERE[name]():
                reason = f"needs {name}: `make engines` provides it (all but minio and torch on Debian, as root)"
                item.add_marker(pytest.mark.skip(reason=reason))


def _has_kubernetes() -> bool:
    """Tell whether there is one; pods get this machine's packages, which fit one version of Python."""
    is_ours = kubernetes_cluster.is_there() and sys.version_info[:2] == PYTHON_OF_IMAGE
    return is_ours or "JOBSUBMIT_TEST_KUBECONFIG" in os.environ


_IS_THERE: dict[str, Callable[[], bool]] = {
    "torch": lambda: importlib.util.find_spec("torch") is not None,
    "minio": lambda: "JOBSUBMIT_TEST_S3_ENDPOINT" in os.environ or minio_server.is_there(),
    "slurm": lambda: "JOBSUBMIT_TEST_SLURM_CONF" in os.environ or slurm.is_there(),
    "volcano": _has_kubernetes,
    "browser": browser.is_there,
    "namespaces": namespaces.is_there,
    "ssh": ssh_hosts.is_there,
}


class _ByEngine(LoadScopeScheduling):  # type: ignore[misc]  # it has no types
    """Let one worker run all tests of an engine: there is one cluster of each, and one port of the platform's."""

    def _split_scope(self, nodeid: str) -> str:
        return next((engine for engine in ("ssh", "slurm", "volcano", "modelarts") if engine in nodeid), nodeid)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> Scheduling:
    """Share the tests out among the workers of `pytest -n`."""
    return _ByEngine(config, log)


@pytest.fixture(scope="session", autouse=True)
def read_botocore_models_once() -> None:
    """Share what botocore reads of its own JSON files (a quarter of a second for each client) among all clients."""
    import botocore.session

    botocore.session.create_loader = functools.cache(botocore.session.create_loader)


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Keep tests apart from each other and from the developer's own settings."""
    for name in list(os.environ):
        if name.startswith(("AWS_", "JOBSUBMIT_")) and not name.startswith("JOBSUBMIT_TEST_"):
            monkeypatch.delenv(name)
    for name in ("VIRTUAL_ENV", "CONDA_PREFIX"):  # an active environment is the Python of local jobs
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("JOBSUBMIT_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setenv("JOBSUBMIT_LANG", "en")  # whatever the locale is
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")  # a forgotten endpoint must not lead off this machine
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "no-aws-config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "no-aws-credentials"))


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    """Yield a running browser."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=shutil.which(browser.PROGRAM), args=list(browser.QUIET))
        yield running
        running.close()


@pytest.fixture(scope="session")
def torch_to_find(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a torch that is found and cannot be imported."""
    folder = tmp_path_factory.mktemp("torch")
    (folder / "torch").mkdir()
    (folder / "torch" / "__init__.py").write_text("raise ImportError('unit tests do without torch')\n")
    return folder


@pytest.fixture(autouse=True)
def same_with_and_without_torch(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, torch_to_find: Path
) -> None:
    """Let unit tests find torch on any machine: `make check` does not install it, and `make test` does meanwhile."""
    if tiers.is_fast(request.node):
        monkeypatch.setattr(sys, "path", [*sys.path, str(torch_to_find)])
        monkeypatch.setenv("PYTHONPATH", str(torch_to_find), prepend=os.pathsep)


@pytest.fixture
def jobsubmit(tmp_path: Path, request: pytest.FixtureRequest) -> Command:
    """Return the command line, run as a user does: a process of its own, no terminal; in unit tests in this one."""
    return CommandHere(tmp_path) if tiers.is_fast(request.node) else Command(tmp_path)


@pytest.fixture(name="pace")
def pace_of_this_machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[pace.Pace]:
    """Measure how slow this machine is during the test."""
    with pace.measured(tmp_path_factory.mktemp("pace") / "samples") as found:
        yield found


@pytest.fixture(scope="session")
def s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Run one MinIO for the whole session, or use the one that is named."""
    if endpoint := os.environ.get("JOBSUBMIT_TEST_S3_ENDPOINT"):
        key = os.environ.get("JOBSUBMIT_TEST_S3_KEY", "minioadmin")
        yield Server(endpoint, key, os.environ.get("JOBSUBMIT_TEST_S3_SECRET", "minioadmin"))
        return
    with minio_server.running(tmp_path_factory.mktemp("minio")) as server:
        yield server


@pytest.fixture
def s3(s3_server: Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, Server]]:
    """Return a fresh bucket, with its credentials in the environment."""
    with fresh_bucket(s3_server, monkeypatch) as bucket:
        yield bucket, s3_server


@contextmanager
def fresh_bucket(server: Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    import boto3

    monkeypatch.setenv("AWS_ACCESS_KEY_ID", server.key)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", server.secret)
    client = boto3.client("s3", endpoint_url=server.endpoint, region_name="us-east-1")
    bucket = f"test-{uuid.uuid4().hex[:12]}"
    client.create_bucket(Bucket=bucket)
    yield bucket
    for page in client.get_paginator("list_objects").paginate(Bucket=bucket):
        for item in page.get("Contents", []):
            client.delete_object(Bucket=bucket, Key=item["Key"])
    client.delete_bucket(Bucket=bucket)
    client.close()


@pytest.fixture
def bucket(s3: tuple[str, Server]) -> Iterator[Bucket]:
    """Return the fresh bucket, looked into past what a test puts in front of it."""
    found = Bucket(*s3)
    yield found
    found.client.close()


@pytest.fixture
def domain(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Domain]:
    """Run a server with a domain set; not every machine resolves names below localhost, so it is its own proxy."""
    if "JOBSUBMIT_TEST_S3_ENDPOINT" in os.environ:
        pytest.skip("needs a server of our own domain")
    (tmp_path / "server").mkdir()
    with (
        minio_server.running(tmp_path / "server", domain="localhost") as server,
        proxy.in_front_of(server.endpoint) as line,
    ):
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", server.key)
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", server.secret)
        import boto3

        client = boto3.client("s3", endpoint_url=server.endpoint, region_name="us-east-1")
        client.create_bucket(Bucket="virtual")
        client.close()
        monkeypatch.setenv("http_proxy", line.endpoint)
        yield Domain(server.endpoint.replace("127.0.0.1", "localhost"), line)


@pytest.fixture
def line(s3: tuple[str, Server]) -> Iterator[Proxy]:
    """Run a proxy in front of the server."""
    with proxy.in_front_of(s3[1].endpoint) as running:
        yield running


# ── engines ─────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="session")
def slurm_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slurm]:
    """Run one Slurm of three virtual nodes for the whole session, or use the one that is named."""
    if conf := os.environ.get("JOBSUBMIT_TEST_SLURM_CONF"):
        yield Slurm({"SLURM_CONF": conf}, 3, tmp_path_factory.mktemp("slurm"))
        return
    with slurm.running(tmp_path_factory.mktemp("slurm") / "cluster", nodes=3) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def kubernetes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Run one Kubernetes of two nodes, with Volcano, for the whole session, or use the one that is named."""
    if config := os.environ.get("JOBSUBMIT_TEST_KUBECONFIG"):
        yield Cluster(tmp_path_factory.mktemp("kube"), Path(config))
        return
    with kubernetes_cluster.running(tmp_path_factory.mktemp("kube") / "k", nodes=2) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def pods_store(kubernetes: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, str]]:
    """Run a MinIO where pods can reach it, or use the server that is named; return it with a bucket."""
    if not kubernetes.processes:
        endpoint, key, secret = (os.environ[f"JOBSUBMIT_TEST_S3_{name}"] for name in ("ENDPOINT", "KEY", "SECRET"))
        yield Server(endpoint, key, secret), os.environ["JOBSUBMIT_TEST_S3_BUCKET"]
        return
    import boto3

    with minio_server.running(tmp_path_factory.mktemp("minio"), host=kubernetes_cluster.GATEWAY) as server:
        session = boto3.Session(server.key, server.secret, region_name="us-east-1")
        client = session.client("s3", endpoint_url=server.endpoint)
        client.create_bucket(Bucket="pods")
        client.close()
        yield server, "pods"


@pytest.fixture(scope="session")
def ssh_session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosts]:
    """Run three hosts for the whole session."""
    with ssh_hosts.running(tmp_path_factory.mktemp("ssh"), 3) as hosts:
        yield hosts


@pytest.fixture
def hosts(ssh_session: Hosts, monkeypatch: pytest.MonkeyPatch) -> Hosts:
    """Return three running hosts, gpu1 to gpu3, which the `ssh` on PATH knows."""
    monkeypatch.setenv("PATH", f"{ssh_session.bin}:{os.environ['PATH']}")
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(ssh_session.sockets))
    return ssh_session


@pytest.fixture(scope="session")
def hosts_server(ssh_session: Hosts, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Run a MinIO where hosts can reach it."""
    with minio_server.running(tmp_path_factory.mktemp("minio"), host=f"{ssh_session.subnet}.1") as server:
        yield server


@pytest.fixture
def hosts_bucket(hosts_server: Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bucket]:
    """Return a fresh bucket that hosts can reach."""
    with fresh_bucket(hosts_server, monkeypatch) as name:
        found = Bucket(name, hosts_server)
        yield found
        found.client.close()


@pytest.fixture
def on_ssh(hosts: Hosts) -> Engine:
    """Return hosts as an engine: as many of them as a job has nodes."""
    return Engine("ssh", {"backend": {"kind": "ssh", "python": sys.executable}})


@pytest.fixture
def on_slurm(slurm_cluster: Slurm, monkeypatch: pytest.MonkeyPatch) -> Engine:
    """Return Slurm as an engine, its clients' configuration in the environment."""
    for name, value in slurm_cluster.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    return Engine("slurm", {"backend": {"kind": "slurm"}})


@pytest.fixture
def on_volcano(kubernetes: Cluster, pods_store: tuple[Server, str], monkeypatch: pytest.MonkeyPatch) -> Engine:
    """Return Volcano as an engine, with the administrator's kubeconfig and the store's keys in the environment."""
    server, bucket = pods_store
    monkeypatch.setenv("KUBECONFIG", str(kubernetes.kubeconfig))
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", server.key)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", server.secret)
    return Engine("volcano", volcano_fields(server, bucket))


@pytest.fixture
def modelarts(tmp_path: Path, s3: tuple[str, Server], monkeypatch: pytest.MonkeyPatch) -> Iterator[Service]:
    """Run the stand-in for ModelArts, with keys for it in the environment."""
    monkeypatch.setenv("HUAWEICLOUD_SDK_AK", modelarts_server.AK)
    monkeypatch.setenv("HUAWEICLOUD_SDK_SK", modelarts_server.SK)
    with modelarts_server.running(tmp_path / "platform", s3[1]) as service:
        yield service


@pytest.fixture
def on_modelarts(modelarts: Service, s3: tuple[str, Server], tmp_path: Path) -> Engine:
    """Return ModelArts as an engine, the user's configuration saying where it is."""
    return modelarts_engine(modelarts, *s3, tmp_path / "config")


@pytest.fixture(
    params=[pytest.param(kind, marks=pytest.mark.needs(*needs)) for kind, needs in [*NEEDS.items(), ("handmade", ())]]
)
def engine(request: pytest.FixtureRequest) -> Engine:
    """Return each engine in turn."""
    return engine_of(request.param, request)
