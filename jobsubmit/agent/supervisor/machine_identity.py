"""Which machine watches a job: its record may lie on a disk that others see, or be copied to another one."""

from __future__ import annotations

import os

from ..protocol import Watcher


def describe_watcher(job_dir: str) -> Watcher:
    """Return who we are: `boot` names the running kernel, `dir` is where the job's lock is held."""
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
