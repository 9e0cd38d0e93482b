"""Run the command line as a user does, and read what it left."""

from __future__ import annotations

import gc
import io
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import IO, Any, NoReturn

import pytest
from pydantic import TypeAdapter

from jobsubmit.cli import main
from jobsubmit.cli.commands import ALIASES
from jobsubmit.cli.console import out
from jobsubmit.cli.documents.base import ErrorDocument
from jobsubmit.cli.documents.schemas import A_DOCUMENT_PER_LINE, DOCUMENTS

JOBSUBMIT = (sys.executable, "-m", "jobsubmit")
PATIENCE = 500  # seconds after which a command surely hangs, though a busy machine has a tenth of its usual speed


def checked(
    done: subprocess.CompletedProcess[str], code: int | None, arguments: Sequence[str | Path]
) -> subprocess.CompletedProcess[str]:
    """Return a run that has ended; fail unless the exit code is the expected one and there is no traceback.

    What it printed as JSON must be of the form that `jobsubmit schema --output COMMAND` promises.
    """
    assert not any(line.startswith("Traceback") for line in done.stderr.splitlines()), done.stderr
    if code is not None:
        assert done.returncode == code, f"exit code {done.returncode}\n{done.stdout}\n{done.stderr}"
    words = [str(word) for word in arguments]
    words = words[: words.index("--")] if "--" in words else words  # what follows is a user's command
    if words[-2:] == ["-o", "json"] and done.stdout:
        name = next(word for word in words if not word.startswith("-"))
        has_lines = name in A_DOCUMENT_PER_LINE and not done.stdout.startswith("{\n")  # an error is one document
        for text in done.stdout.splitlines() if has_lines else [done.stdout]:
            document_type(ALIASES.get(name, name)).validate_python(json.loads(text))
    return done


@cache
def document_type(name: str) -> TypeAdapter[Any]:
    """Return what a command prints with `-o json`, well or in an error."""
    return TypeAdapter(DOCUMENTS[name] | ErrorDocument if name in DOCUMENTS else ErrorDocument)


class Command:
    """Run `jobsubmit …` in a folder; the state directory is the test's own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __call__(
        self, *args: str | Path, code: int | None = 0, timeout: float = PATIENCE, env: dict[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run to the end; fail unless the exit code is the expected one (None: any) and there is no traceback."""
        done = subprocess.run(
            [*JOBSUBMIT, *map(str, args)],
            capture_output=True,
            text=True,
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            timeout=timeout,
            env={**os.environ, **(env or {})},
        )
        return checked(done, code, args)

    def json(self, *args: str | Path, code: int | None = 0, timeout: float = PATIENCE) -> Any:
        """Run with -o json and return the document."""
        return json.loads(self(*args, "-o", "json", code=code, timeout=timeout).stdout)

    def start(self, *args: str | Path, **options: Any) -> subprocess.Popen[str]:
        """Start and return at once."""
        return subprocess.Popen(
            [*JOBSUBMIT, *map(str, args)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            stdin=subprocess.DEVNULL,
            text=True,
            cwd=self.folder,
            **options,
        )


def read_until(stream: IO[str], text: str) -> None:
    """Read lines until one holds a text; fail where there are no more."""
    while text not in (line := stream.readline()):
        assert line, f"it ended without saying {text!r}"


class CommandHere(Command):
    """Run `jobsubmit …` in this process: a tenth of the time, for tests of what it decides and says."""

    def __call__(
        self, *args: str | Path, code: int | None = 0, timeout: float = PATIENCE, env: dict[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run to the end, as `Command` does; an exception that is not an error of jobsubmit's own is raised."""
        arguments = ["jobsubmit", *map(str, args)]
        stdout, stderr = _stream(), _stream()
        with pytest.MonkeyPatch.context() as here:
            here.chdir(self.folder)
            for name, value in (env or {}).items():
                here.setenv(name, value)
            here.setattr(sys, "argv", arguments)
            here.setattr(sys, "stdout", stdout)
            here.setattr(sys, "stderr", stderr)
            here.setattr(out, "debug", False)
            here.setattr(main, "_bug", _raise)
            try:
                returned = _exit_code()
            finally:
                gc.enable()  # `upload` does without
        return checked(subprocess.CompletedProcess(arguments, returned, _text(stdout), _text(stderr)), code, args)


def _raise(error: Exception) -> NoReturn:
    raise error


def _exit_code() -> int:
    try:
        main.main()
    except SystemExit as ended:
        return int(ended.code or 0)
    raise AssertionError("the command line did not exit")


def _stream() -> io.TextIOWrapper:
    """Return what stands in the place of stdout or stderr."""
    return io.TextIOWrapper(io.BytesIO(), encoding="utf-8")


def _text(stream: io.TextIOWrapper) -> str:
    stream.flush()
    assert isinstance(stream.buffer, io.BytesIO)
    return stream.buffer.getvalue().decode()


def wait_until(jobsubmit: Command, name: str, states: tuple[str, ...]) -> dict[str, Any]:
    """Return the status of a job once it is in one of some states."""
    deadline = time.monotonic() + PATIENCE
    while (status := jobsubmit.json("status", name))["state"] not in states:
        assert time.monotonic() < deadline, status
        time.sleep(0.3)
    return dict(status)


def wait_for_line(jobsubmit: Command, name: str, text: str) -> None:
    """Return once a job's logs hold a text."""
    deadline = time.monotonic() + PATIENCE
    while text not in jobsubmit("logs", name).stdout:
        assert time.monotonic() < deadline, jobsubmit("status", name).stdout
        time.sleep(0.3)


def handle(printed: str) -> str:
    """Return the handle in what `create` printed."""
    return printed.splitlines()[0]


def job_id(handle_line: str) -> str:
    """Return the id in the handle that `create` printed."""
    return handle_line.splitlines()[0].partition("://")[2]


def job_dir(job: str) -> Path:
    """Return the directory of a job of this test."""
    return Path(os.environ["JOBSUBMIT_STATE_DIR"]) / "jobs" / job


def events(job: str) -> list[dict[str, Any]]:
    """Return the recorded events of a job."""
    return [json.loads(line) for line in (job_dir(job) / "events.jsonl").read_text().splitlines()]


def processes_left(job: str, seconds: float = 5.0) -> list[int]:
    """Return the pids that still belong to a job that is over: the processes which watched it end last."""
    deadline = time.monotonic() + seconds
    while (found := processes_of(job)) and time.monotonic() < deadline:
        time.sleep(0.05)
    return found


def processes_of(job: str) -> list[int]:
    """Return the pids of living processes that carry the job's id in their environment or command line."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            words = (process / "environ").read_bytes() + (process / "cmdline").read_bytes()
            state = (process / "stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            continue
        if job.encode() in words and state != "Z" and int(process.name) != os.getpid():
            found.append(int(process.name))
    return found
