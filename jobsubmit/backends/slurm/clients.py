"""Slurm's command-line clients: the state of a job, and whether jobsubmit submitted it."""

from __future__ import annotations

import os
import re
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from jobsubmit.agent.node_contract import is_reserved
from jobsubmit.backends.slurm.batch_script import LOG, MARK
from jobsubmit.common.durations import parse_time
from jobsubmit.errors import BackendError

HINT = "run this where Slurm's clients work: check with `sinfo`"
_UNKNOWN = re.compile(r"Invalid job id|Invalid user id|no jobs?\b", re.IGNORECASE)
_PLAIN = {"LC_ALL": "C.UTF-8", "SLURM_TIME_FORMAT": "standard"}  # what we read must look the same everywhere
_ANSWER_SECONDS, _SUBMIT_SECONDS = 8.0, 60.0  # a controller that is down is reported within ten
_FRESH_SECONDS = 1.0
_FIELDS = ("JobState", "Reason", "Restarts", "SubmitTime", "StartTime", "NodeList")
_CREDENTIALS = re.compile(r"(AWS|OBS|HW|HUAWEI|HUAWEICLOUD)_(.*(KEY|TOKEN|SECRET).*|(.*_)?(AK|SK))")


@dataclass(frozen=True)
class SlurmJob:
    """What Slurm reports about a job; times are in seconds since the epoch, None if they are not known yet.

    `folder` is where its nodes write, None if Slurm does not report it (any more).
    """

    state: str
    reason: str
    restarts: int
    submitted: float | None
    started: float | None
    nodes: str
    folder: Path | None
    is_ours: bool


def run_client(
    command: Sequence[str],
    *,
    stdin: str = "",
    environment: Mapping[str, str] | None = None,
    seconds: float = _ANSWER_SECONDS,
) -> subprocess.CompletedProcess[str]:
    """Run a client and return its result, with any exit code; raise BackendError if it is missing or gets no answer."""
    try:
        return subprocess.run(
            command,
            input=stdin,
            capture_output=True,
            encoding="utf-8",
            errors="surrogateescape",
            timeout=seconds,
            env={**os.environ, **_PLAIN} if environment is None else environment,
            check=False,
        )
    except FileNotFoundError as error:
        raise BackendError(f"there is no {command[0]} on PATH", HINT) from error
    except subprocess.TimeoutExpired as error:
        raise BackendError(f"{command[0]} got no answer within {seconds:.0f} s", HINT, may_pass=True) from error


def describe_refusal(done: subprocess.CompletedProcess[str]) -> str:
    """Return the error output of a failed client, on one line."""
    said = [line.split(": error: ")[-1].strip() for line in (done.stderr or done.stdout).splitlines() if line.strip()]
    return "; ".join(dict.fromkeys(said)) or f"exit code {done.returncode}"


def look(number: str) -> SlurmJob | None:
    """Return a job as the controller reports it, else the accounting, or None. Raises BackendError.

    The controller, which other users need too, is asked at most once a second for a job.
    """
    asked_at, known = _seen.get(number, (0.0, None))
    if time.monotonic() - asked_at < _FRESH_SECONDS:
        return known
    found = _look(number)
    _seen[number] = (time.monotonic(), found)
    return found


_seen: dict[str, tuple[float, SlurmJob | None]] = {}


def _look(number: str) -> SlurmJob | None:
    done = run_client(["scontrol", "--oneliner", "show", "job", number])
    if done.returncode == 0:
        return _from_controller(done.stdout)
    if not _UNKNOWN.search(done.stderr):
        raise BackendError(f"Slurm: {describe_refusal(done)}", HINT, may_pass=True)
    return _from_accounting(number)


def _from_controller(text: str) -> SlurmJob:
    found = {name: match[1] for name in _FIELDS if (match := re.search(rf"\b{name}=(\S*)", text))}
    log = re.search(rf" StdOut=(.*/{re.escape(LOG)})(?: |$)", text, re.MULTILINE)
    folder = Path(log[1]).parent if log else None
    comment = re.search(r"\bComment=(\S*)", text)
    is_ours = folder is not None and comment is not None and comment[1] == MARK + folder.name
    return SlurmJob(
        state=found.get("JobState", ""),
        reason=found.get("Reason", ""),
        restarts=int(found.get("Restarts") or 0),
        submitted=parse_time(found.get("SubmitTime", "")),
        started=parse_time(found.get("StartTime", "")),
        nodes=found.get("NodeList", "").replace("(null)", ""),
        folder=folder if is_ours else None,
        is_ours=is_ours,
    )


def _from_accounting(number: str) -> SlurmJob | None:
    """Ask sacct, which many clusters do not have."""
    columns = "State,Submit,Start,NodeList,Restarts"
    try:
        done = run_client(["sacct", "-X", "-n", "-P", "-j", number, "-o", columns])
        if done.returncode != 0:  # an older one knows no Restarts
            done = run_client(["sacct", "-X", "-n", "-P", "-j", number, "-o", columns.rpartition(",")[0]])
    except BackendError:
        return None
    if done.returncode != 0 or not done.stdout.strip():
        return None
    state, submitted, started, nodes, *restarts = done.stdout.splitlines()[-1].split("|")
    return SlurmJob(
        state=state.split()[0],
        reason="",
        restarts=int(restarts[0] or 0) if restarts else 0,
        submitted=parse_time(submitted),
        started=parse_time(started),
        nodes=nodes,
        folder=None,
        is_ours=True,  # as far as is known; without a folder nothing of it is touched
    )


def find(job_id: str) -> str | None:
    """Return the number of the newest Slurm job whose comment has this job id, or None."""
    done = run_client(["squeue", "--me", "--states=all", "--noheader", "--format=%i %k"])
    if done.returncode != 0:
        raise BackendError(f"Slurm: {describe_refusal(done)}", HINT)
    numbers = [line.split()[0] for line in done.stdout.splitlines() if line.split()[1:] == [MARK + job_id]]
    return max(numbers, key=int) if numbers else None


@cache
def cluster_name() -> str:
    """Return the name of the cluster that the clients use. Raises BackendError if it does not answer."""
    done = run_client(["scontrol", "show", "config"])
    found = re.search(r"^ClusterName\s*= *(\S+)", done.stdout, re.MULTILINE)
    if done.returncode != 0 or not found:
        raise BackendError(f"Slurm: {describe_refusal(done)}", HINT)
    return found[1]


def sbatch(document: str, environment: Mapping[str, str], *options: str) -> str:
    """Pass a document to sbatch and return its output. Raises BackendError if Slurm refuses it."""
    done = run_client(["sbatch", *options], stdin=document, environment=environment, seconds=_SUBMIT_SECONDS)
    if done.returncode != 0:
        raise BackendError(f"Slurm refuses the job: {describe_refusal(done)}", _refusal_hint(done.stderr))
    return done.stdout or done.stderr


def _refusal_hint(text: str) -> str:
    hints = {
        r"account|qos|QOS": "run `sacctmgr show associations user=$USER`; set backend.account and backend.qos",
        r"partition": "set backend.partition to one that `sinfo` shows",
        r"[Nn]ode count|configuration|Requested node|processors": "request less, or use a larger partition (`sinfo`)",
        r"[Tt]ime limit": "set a shorter backend.time, or choose another partition",
        r"contact|connect|communication": HINT,
    }
    return next(
        (hint for pattern, hint in hints.items() if re.search(pattern, text)), "correct `backend` in the job file"
    )


def clean_environment() -> dict[str, str]:
    """Return the environment that a job may have: no variables of other launchers, no keys of a store or cloud, and
    no defaults of sbatch, because the document sets everything."""
    return {
        name: value
        for name, value in os.environ.items()
        if not is_reserved(name)
        and not _CREDENTIALS.fullmatch(name)
        and not (name.startswith(("SBATCH_", "SLURM_", "SRUN_")) and name not in ("SLURM_CONF", "SLURM_JWT"))
    }


def cancel(number: str) -> None:
    """Have Slurm end a job; do nothing if it has ended. Raises BackendError if Slurm does not answer."""
    done = run_client(["scancel", number])
    if done.returncode != 0 and not _UNKNOWN.search(done.stderr):
        raise BackendError(f"Slurm: {describe_refusal(done)}", HINT)
