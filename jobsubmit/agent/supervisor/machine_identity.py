"""Which machine supervises a job: other machines may see its directory, or a copy of it."""

from __future__ import annotations

import os

from ..protocol import Watcher


def describe_watcher(job_dir: str) -> Watcher:
    """Return the identity of this machine: `boot` is its running kernel, `dir` the directory of the job's lock."""
    return {
        "host": os.uname().nodename,
        "boot": _boot(),
        "pid_namespace": _pid_namespace(),
        "dir": os.path.realpath(job_dir),
    }


def _boot() -> str:
    try:
        with open("/proc/sys/kernel/random/boot_id") as stream:
            return stream.read().strip()
    except OSError:
        return ""


def _pid_namespace() -> str:
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return ""
