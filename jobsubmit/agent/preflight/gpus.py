"""Which processes use the GPUs of this machine now, as nvidia-smi reports."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess

from ..node_contract import JOB_ID

_ANSWER_SECONDS = 3.0
_APPS = ("--query-compute-apps=gpu_uuid,pid,process_name", "--format=csv,noheader,nounits")
_GPUS = ("--query-gpu=uuid,index", "--format=csv,noheader,nounits")


def find_users() -> list[str]:
    """Return a line for each process that uses a GPU; empty if nvidia-smi is not there, or does not answer."""
    if shutil.which("nvidia-smi") is None:
        return []
    apps = _ask(_APPS)
    if not apps:
        return []
    numbers = {cells[0]: cells[1] for cells in _ask(_GPUS) if len(cells) == 2}  # noqa: PLR2004 - uuid, index
    found = []
    for cells in apps:
        if len(cells) >= 3 and cells[1].isdigit():  # noqa: PLR2004 - uuid, pid, name
            number, pid = numbers.get(cells[0], cells[0]), int(cells[1])
            found.append("GPU %s is used by process %d (%s)" % (number, pid, _describe(pid, cells[2])))
    return found


def _ask(question: tuple[str, ...]) -> list[list[str]]:
    try:
        done = subprocess.run(
            ["nvidia-smi", *question],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=_ANSWER_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return []
    lines = done.stdout.decode("utf-8", "replace").splitlines() if done.returncode == 0 else []
    return [[cell.strip() for cell in line.split(",")] for line in lines]


def _describe(pid: int, name: str) -> str:
    """Return what is known of a process: its name, its user, and its job if it is one of ours."""
    words = [os.path.basename(name) or "unknown program"]
    try:
        uid = os.stat("/proc/%d" % pid).st_uid
    except OSError:
        return ", ".join([*words, "not visible from here"])
    try:
        words.append("user %s" % pwd.getpwuid(uid).pw_name)
    except KeyError:
        words.append("user id %d" % uid)
    try:
        with open("/proc/%d/environ" % pid, "rb") as stream:
            variables = stream.read().split(b"\0")
    except OSError:
        variables = []  # of another user
    mark = JOB_ID.encode() + b"="
    words += ["job %s" % line[len(mark) :].decode("utf-8", "replace") for line in variables if line.startswith(mark)]
    return ", ".join(words)
