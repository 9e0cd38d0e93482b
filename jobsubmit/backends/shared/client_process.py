"""Ask an engine's own command-line clients."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence

from jobsubmit.errors import BackendError

_PLAIN = {"LC_ALL": "C.UTF-8", "SLURM_TIME_FORMAT": "standard"}  # what we read must look the same everywhere
ANSWER_SECONDS = 8.0  # so that an engine that is down is told within ten


def run_client(
    command: Sequence[str],
    hint: str,
    *,
    stdin: str | None = None,
    environment: Mapping[str, str] | None = None,
    seconds: float = ANSWER_SECONDS,
) -> subprocess.CompletedProcess[str]:
    """Run a client to its end; raise BackendError where it is missing or gets no answer. Its exit code is its own."""
    try:
        return subprocess.run(
            command,
            input=stdin or "",
            capture_output=True,
            encoding="utf-8",
            errors="surrogateescape",
            timeout=seconds,
            env={**os.environ, **_PLAIN} if environment is None else environment,
            check=False,
        )
    except FileNotFoundError as error:
        raise BackendError(f"there is no {command[0]} on PATH", hint) from error
    except subprocess.TimeoutExpired as error:
        raise BackendError(f"{command[0]} got no answer within {seconds:.0f} s", hint, may_pass=True) from error


def describe_refusal(done: subprocess.CompletedProcess[str]) -> str:
    """Return what a client that failed said, on one line."""
    said = [line.split(": error: ")[-1].strip() for line in (done.stderr or done.stdout).splitlines() if line.strip()]
    return "; ".join(dict.fromkeys(said)) or f"exit code {done.returncode}"
