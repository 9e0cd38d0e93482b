"""What a host is and has, as far as a job can depend on it. Nothing is started but nvidia-smi, nothing is imported."""

from __future__ import annotations

import glob
import os
import re
import shutil
import socket
import time

from ..machine import addresses
from ..python_folder import program_of
from . import gpus

TYPE_CHECKING = False  # importing typing would cost more than all the rest
if TYPE_CHECKING:
    from typing import Any

_TOOLS = ("bash", "getconf", "grep", "tr")  # that the start script calls
_PACKAGES = ("torch", "nvidia_nccl_cu\\d+")
_NAMES = {"nvidia_nccl_cu\\d+": "nccl"}
_SITES = (
    "lib/python3*/site-packages",
    "lib64/python3*/site-packages",
    "lib/python3/dist-packages",
    "lib/python3*/dist-packages",
    "local/lib/python3*/dist-packages",
)


def collect(root: str, question: dict[str, Any]) -> dict[str, Any]:
    """Return the facts of this host, for a job whose Python and interface are in the question."""
    found: dict[str, Any] = {
        "identity": _identity(),
        "clock": time.time(),
        "missing_tools": [tool for tool in _TOOLS if shutil.which(tool) is None],
        "python": _python(question.get("python")),
        "driver": _driver(),
        "gpus": sorted(glob.glob("/dev/nvidia[0-9]*")),
        "gpu_users": gpus.find_users(),
        "disk": _free(root),
        "shared_memory": _free("/dev/shm"),  # noqa: S108 - it is measured, nothing is written there
        "addresses": addresses.all_addresses(),
        "is_writable": _is_writable(root),
    }
    try:
        found["address"] = addresses.own_address(question.get("interface"))
        found["interface"] = addresses.interface_of(found["address"])
    except addresses.NoAddressError as error:
        found["address_problem"] = str(error)
    return found


def _identity() -> str:
    """Return what is different on every host, whatever names it has."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as stream:
            boot = stream.read().strip()
    except OSError:
        boot = ""
    try:
        namespace = os.readlink("/proc/self/ns/pid")
    except OSError:
        namespace = ""
    return " ".join((socket.gethostname(), boot, namespace))


def _python(given: str | None) -> dict[str, str]:
    """Return program and version of the Python that trains, and the versions of the packages that all hosts must share.

    They are read from the names of its files; what they do not show is left out.
    """
    program = program_of(os.path.expanduser(given)) if given else shutil.which("python")
    if program is None:
        return {"problem": "`python` is not on its PATH"}
    if not os.access(program, os.X_OK) or os.path.isdir(program):
        return {"problem": "%s is not an executable program" % program}
    found = {"program": program}
    prefix = os.path.dirname(os.path.dirname(program))
    versions = {os.path.basename(path) for path in glob.glob(os.path.join(glob.escape(prefix), "lib", "python3.*"))}
    if len(versions) == 1:
        found["version"] = versions.pop()[len("python") :]
    sites = [site for pattern in _SITES for site in glob.glob(os.path.join(glob.escape(prefix), pattern))]
    user_site = os.path.expanduser("~/.local/lib/python%s/site-packages" % found.get("version", "3"))
    for site in [user_site, *sites]:
        for name, version in _versions_in(site):
            found.setdefault(name, version)
    return found


def _versions_in(site: str) -> list[tuple[str, str]]:
    found = []
    for entry in os.listdir(site) if os.path.isdir(site) else ():
        for pattern in _PACKAGES:
            match = re.match(r"(%s)-([^-]+)\.(?:dist|egg)-info$" % pattern, entry)
            if match:
                found.append((_NAMES.get(pattern, match[1]), match[2]))
    return found


def _driver() -> str:
    """Return the version of NVIDIA's driver; empty without one."""
    try:
        with open("/proc/driver/nvidia/version", encoding="utf-8", errors="replace") as stream:
            match = re.search(r"Kernel Module\D*([\d.]+)", stream.read())
    except OSError:
        return ""
    return match[1] if match else ""


def _free(path: str) -> int | None:
    """Return the free bytes of the disk on which a path is, or would be."""
    while path and not os.path.exists(path):
        path = os.path.dirname(path)
    try:
        return shutil.disk_usage(path or "/").free
    except OSError:
        return None


def _is_writable(root: str) -> bool:
    while not os.path.exists(root):
        root = os.path.dirname(root)
    return os.access(root, os.W_OK)
