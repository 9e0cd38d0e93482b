"""Ask hosts with OpenSSH's own client: one connection per host, which later questions share."""

from __future__ import annotations

import hashlib
import json
import os
import re
import select
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import IO, Any, NamedTuple, TypeVar

from jobsubmit.agent.atomic_write import make_private
from jobsubmit.backends.shared.agent_archive import agent_archive
from jobsubmit.backends.ssh import bootstrap
from jobsubmit.common.file_reading import read_blocks
from jobsubmit.errors import BackendError

T = TypeVar("T")

_MARK = "jobsubmit:answer"
# The same in every login shell: no word of it needs more quotes. The first line of its input is a Python program.
_COMMAND = 'python3 -I -S -c "import sys; exec(eval(sys.stdin.buffer.readline()))"'
_CONNECT_SECONDS = 8
_ANSWER_SECONDS = 60.0
_NOT_TWICE = ("start", "put")
_AGAIN_WITHIN_SECONDS = 3.0
_SILENT_SECONDS = 10.0
_silent: dict[str, tuple[float, BackendError]] = {}  # hosts that did not answer: until when they are not asked again
_OF_SSH = 255  # the exit code of ssh itself
_OPTIONS = {
    "BatchMode": "yes",  # never a prompt
    "ConnectTimeout": str(_CONNECT_SECONDS),
    "ControlMaster": "auto",
    "ControlPersist": "60",
    "ServerAliveInterval": "5",
    "ServerAliveCountMax": "2",
    "ForwardAgent": "no",
    "ForwardX11": "no",
    "ClearAllForwardings": "yes",
    "EscapeChar": "none",
    "LogLevel": "ERROR",
}
_MOST_AT_ONCE = 16


class Answer(NamedTuple):
    """What a host answered: a document, and the bytes after it."""

    document: dict[str, Any]
    data: bytes


class Stream:
    """The output of a command that goes on; `close` ends it."""

    def __init__(self, host: str, process: subprocess.Popen[bytes], errors: IO[bytes]) -> None:
        self.host, self.process, self.errors = host, process, errors
        assert process.stdout
        self.output = process.stdout

    def document(self, seconds: float) -> dict[str, Any]:
        """Return the document with which the answer begins. Raises BackendError, also if there is none in time."""
        is_marked, begin, deadline = False, b"", time.monotonic() + seconds
        while not is_marked or b"\n" not in begin:
            if not select.select([self.output], [], [], max(0.0, deadline - time.monotonic()))[0]:
                raise _silence(self.host, seconds)
            byte = os.read(self.output.fileno(), 1)  # and not more: what follows is for others to read
            if not byte:
                break
            begin += byte
            if not is_marked and begin.endswith(b"\n"):
                is_marked, begin = begin.strip() == _MARK.encode(), b""
        if is_marked and begin.endswith(b"\n"):
            return _parse(self.host, begin)
        self.process.wait()
        raise _refusal(self.host, self.process.returncode, self.errors)

    def close(self) -> None:
        """End the command, and let go of its output."""
        if self.process.stdin:
            with suppress(OSError):
                self.process.stdin.close()
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self.output.close()
        self.errors.close()


def ask(
    host: str,
    root: str,
    command: str,
    question: Mapping[str, Any],
    payload: bytes | Sequence[Path] = b"",
    *,
    seconds: float = _ANSWER_SECONDS,
) -> Answer:
    """Have a host run a command of its agent, and return the answer; the agent is sent if the host lacks it.

    Raises BackendError: `may_pass` unless the host refuses us.
    """
    _require_sign_of_life(host)
    began = time.monotonic()
    try:
        answer = _ask(host, _input(root, command, question, b"", payload), seconds)
    except BackendError as error:
        if not error.may_pass or command in _NOT_TWICE or time.monotonic() - began > _AGAIN_WITHIN_SECONDS:
            raise
        answer = _ask(host, _input(root, command, question, b"", payload), seconds)  # the shared connection was dead
    if answer.document.get("needs_agent"):
        answer = _ask(host, _input(root, command, question, agent_archive(), payload), seconds)
    if "error" in answer.document:
        raise reported_error(host, answer.document)
    return answer


def reported_error(host: str, document: Mapping[str, Any]) -> BackendError:
    """Return the error that the agent of a host answered."""
    return BackendError(
        f"{host}: {document['error']}", document.get("hint") or f"log in and look for the cause: ssh {host}"
    )


def open_stream(
    host: str, root: str, command: str, question: Mapping[str, Any], *, keeps_input: bool = False
) -> Stream:
    """Start a command of a host's agent that goes on; with `keeps_input` it ends when the stream is closed."""
    _require_sign_of_life(host)
    errors = tempfile.TemporaryFile()  # noqa: SIM115 - it is read when the command has ended
    process = subprocess.Popen(_words(host), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors)
    assert process.stdin
    try:
        process.stdin.writelines(_input(root, command, question, b"", b""))
        process.stdin.flush()
        if not keeps_input:
            process.stdin.close()
    except BrokenPipeError:
        pass  # why, its error output says
    return Stream(host, process, errors)


def ask_all(hosts: Iterable[str], ask_one: Callable[[str], T]) -> dict[str, T | BackendError]:
    """Ask hosts at the same time; return the answer of each, or why there is none."""

    def tried(host: str) -> T | BackendError:
        try:
            return ask_one(host)
        except BackendError as error:
            return error

    names = list(hosts)
    with ThreadPoolExecutor(min(_MOST_AT_ONCE, len(names) or 1)) as pool:
        return dict(zip(names, pool.map(tried, names), strict=True))


def _ask(host: str, blocks: Iterable[bytes], seconds: float) -> Answer:
    with tempfile.TemporaryFile() as errors:  # a pipe would stay open as long as the shared connection
        process = subprocess.Popen(_words(host), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors)
        pipe, process.stdin = process.stdin, None
        assert pipe
        threading.Thread(target=_write, args=(pipe, blocks), daemon=True).start()
        try:
            output, _ = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired as error:
            _abandon(process)
            raise _silence(host, seconds) from error
        except BaseException:
            _abandon(process)
            raise
        _, mark, rest = output.partition(f"\n{_MARK}\n".encode())
        if not mark:
            raise _refusal(host, process.returncode, errors)
    line, _, data = rest.partition(b"\n")
    return Answer(_parse(host, line), data)


def _write(pipe: IO[bytes], blocks: Iterable[bytes]) -> None:
    with suppress(OSError), pipe:  # who does not read it says why
        for block in blocks:
            pipe.write(block)


def _abandon(process: subprocess.Popen[bytes]) -> None:
    """End a command without its output: the shared connection has that open, too, until it is dead itself."""
    process.kill()
    process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            with suppress(OSError):
                pipe.close()


def _silence(host: str, seconds: float) -> BackendError:
    text = f"{host} did not answer within {seconds:.0f} s"
    problem = BackendError(text, f"try to log in: ssh {host} true", may_pass=True)
    _silent[host] = (time.monotonic() + _SILENT_SECONDS, problem)
    return problem


def _require_sign_of_life(host: str) -> None:
    """Raise the error of a host that did not answer just now: a command that asks it often waits for it once."""
    until, problem = _silent.get(host, (0.0, None))
    if problem is not None and time.monotonic() < until:
        raise problem


def _parse(host: str, line: bytes) -> dict[str, Any]:
    try:
        found = json.loads(line)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise BackendError(
            f"{host}: its agent gave no answer", f"log in and look for the cause: ssh {host}", may_pass=True
        )
    return found


def _refusal(host: str, code: int, errors: IO[bytes]) -> BackendError:
    errors.seek(0)
    lines = [line.strip() for line in errors.read().decode("utf-8", "replace").splitlines() if line.strip()]
    words = lines[-1] if lines else f"ssh ended with exit code {code}"
    if code < 0:
        return BackendError(f"{host}: ssh was ended by signal {-code}", "run the command again", may_pass=True)
    if code != _OF_SSH:
        hint = f"it needs Python 3.8 or later as `python3`: try `ssh {host} python3 --version`"
        return BackendError(f"{host}: python3 cannot be run there: {words}", hint)
    is_permanent = True
    if re.search(r"(?:Host key verification failed|IDENTIFICATION HAS CHANGED)", "\n".join(lines)):
        hint = (
            f"log in once by hand, and compare the host key: ssh {host}; if it has changed for a known reason, first "
            "remove the old one: ssh-keygen -R HOSTNAME"
        )
    elif re.search(r"(?:Permission denied|no such identity)", words):
        hint = f"set up a key that needs no password, or load it into your SSH agent: ssh-copy-id {host}"
    else:
        hint, is_permanent = f"try to log in: ssh {host} true", False
    return BackendError(f"{host} cannot be reached with ssh: {words}", hint, may_pass=not is_permanent)


def _words(host: str) -> list[str]:
    options = {**_OPTIONS, "ControlPath": str(_control_folder() / "%C")}
    return ["ssh", "-T", *(f"-o{name}={value}" for name, value in options.items()), "--", host, _COMMAND]


@cache
def _control_folder() -> Path:
    """Return a private folder for the sockets of shared connections; its path is short, as sockets need."""
    folder = Path(os.environ.get("XDG_RUNTIME_DIR") or tempfile.gettempdir()) / f"jobsubmit-ssh-{os.getuid()}"
    make_private(str(folder))
    if folder.stat().st_uid != os.getuid() or folder.is_symlink():
        raise BackendError(f"{folder} belongs to somebody else", "remove it, or set XDG_RUNTIME_DIR")
    return folder


@cache
def _program() -> bytes:
    return repr(Path(bootstrap.__file__).read_text(encoding="utf-8")).encode() + b"\n"


@cache
def _agent_name() -> str:
    return hashlib.sha256(agent_archive()).hexdigest()[:16]


def _input(
    root: str, command: str, question: Mapping[str, Any], agent: bytes, payload: bytes | Sequence[Path]
) -> Iterator[bytes]:
    """Yield what a host reads: the bootstrap, a header, the agent if it goes along, and a payload or files."""
    header = {
        "root": root,
        "mark": _MARK,
        "agent": _agent_name(),
        "size": len(agent),
        "command": command,
        "question": question,
    }
    yield _program() + json.dumps(header).encode() + b"\n" + agent
    if isinstance(payload, bytes):
        yield payload
        return
    for path in payload:
        yield from read_blocks(str(path))


def clock_of(host: str, root: str, question: Mapping[str, Any]) -> tuple[dict[str, Any], float]:
    """Return the facts of a host, and how many seconds its clock is ahead, as exactly as the connection allows."""
    before = time.time()
    facts = ask(host, root, "facts", question).document
    return facts, float(facts["clock"]) - (before + time.time()) / 2
