"""Ask hosts with OpenSSH's own client: one login per host, and one program there that answers all questions."""

from __future__ import annotations

import atexit
import itertools
import json
import os
import re
import select
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import IO, Any, NamedTuple, TypeVar

from jobsubmit.agent.atomic_write import make_private
from jobsubmit.backends.shared.agent_archive import agent_archive, agent_digest
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
_REMOVES_AGENT = "empty"
_BLOCK = 1 << 16
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


class Connection:
    """The agent's program on a host: it answers one question after the other. `close` ends it.

    It is usable at once: what is sent waits until the host is reached.
    """

    def __init__(self, host: str, root: str, agent: bytes = b"") -> None:
        self.host, self.root = host, root
        self.errors = tempfile.TemporaryFile()  # noqa: SIM115 - a pipe would stay open with the shared connection
        self.process = subprocess.Popen(_words(host), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.errors)
        assert self.process.stdin
        assert self.process.stdout
        self.input, self.output = self.process.stdin, self.process.stdout
        self.received, self.is_marked = b"", False
        self.writer = threading.Thread()
        self.asked: tuple[str, Mapping[str, Any]] | None = None  # ahead: its answer has not been read
        header = {"root": root, "mark": _MARK, "agent": agent_digest(), "size": len(agent)}
        self._write([_program() + json.dumps(header).encode() + b"\n" + agent])

    @property
    def is_open(self) -> bool:
        """Whether the program still runs, as far as is known here."""
        return self.process.poll() is None

    def send(self, command: str, question: Mapping[str, Any], payload: bytes | Sequence[Path] = b"") -> None:
        """Ask a question; the payload is bytes or the content of files. It is sent while the caller goes on."""
        if isinstance(payload, bytes):
            size, blocks = len(payload), iter([payload])
        else:
            size = sum(path.stat().st_size for path in payload)
            blocks = itertools.chain.from_iterable(read_blocks(str(path)) for path in payload)
        head = json.dumps({"command": command, "question": question, "size": size}).encode() + b"\n"
        self._write(itertools.chain([head], blocks))

    def receive(self, seconds: float) -> Answer:
        """Return the next answer. Raises BackendError, also if it is not there in time."""
        deadline = time.monotonic() + seconds
        try:
            while not self.is_marked:
                self.is_marked = self._line(deadline).strip() == _MARK.encode()
            document = self._parse(self._line(deadline))
            size = document.pop("bytes", 0)
            while len(self.received) < size:
                self._receive(deadline)
        except TimeoutError:
            raise _silence(self.host, seconds) from None
        data, self.received = self.received[:size], self.received[size:]
        return Answer(document, data)

    def lines(self) -> Iterator[bytes]:
        """Yield the lines that follow the last answer, until the program ends. Raises BackendError if it breaks off."""
        block = b"\n"
        while block:
            *whole, self.received = self.received.split(b"\n")
            yield from (line + b"\n" for line in whole)
            block = os.read(self.output.fileno(), _BLOCK)
            self.received += block
        if self.process.wait() != 0:
            raise BackendError(f"{self.host}: the connection broke", may_pass=True)

    def close(self) -> None:
        """End the program; what was not read is lost."""
        self.process.kill()
        self.process.wait()
        with suppress(OSError):
            self.input.close()
        self.output.close()
        self.errors.close()

    def _write(self, blocks: Iterable[bytes]) -> None:
        """Send blocks after what was sent before; if nobody reads them, the answer says why."""
        before = self.writer

        def write() -> None:
            if before.ident is not None:
                before.join()
            with suppress(OSError, ValueError):  # ValueError: it was closed meanwhile
                for block in blocks:
                    self.input.write(block)
                self.input.flush()

        self.writer = threading.Thread(target=write, daemon=True)
        self.writer.start()

    def _line(self, deadline: float) -> bytes:
        while b"\n" not in self.received:
            self._receive(deadline)
        line, _, self.received = self.received.partition(b"\n")
        return line

    def _receive(self, deadline: float) -> None:
        if not select.select([self.output], [], [], max(0.0, deadline - time.monotonic()))[0]:
            raise TimeoutError
        block = os.read(self.output.fileno(), _BLOCK)
        if not block:
            code = self.process.wait()
            if not self.is_marked or code == _OF_SSH:
                raise _refusal(self.host, code, self.errors)
            raise self._no_answer()
        self.received += block

    def _parse(self, line: bytes) -> dict[str, Any]:
        try:
            found = json.loads(line)
        except ValueError:
            found = None
        if not isinstance(found, dict):
            raise self._no_answer()
        return found

    def _no_answer(self) -> BackendError:
        hint = f"log in and look for the cause: ssh {self.host}"
        return BackendError(f"{self.host}: its agent gave no answer", hint, may_pass=True)


class _Idle:
    """Connections that wait for the next question, at most one for each host and folder."""

    def __init__(self) -> None:
        self.connections: dict[tuple[str, str], Connection] = {}
        self.lock = threading.Lock()

    def has(self, host: str, root: str) -> bool:
        """Return whether a connection waits for a question, or for whoever reads its answer."""
        with self.lock:
            return (host, root) in self.connections

    def take(self, host: str, root: str, command: str, question: Mapping[str, Any]) -> Connection | None:
        """Return a connection that nobody else uses now, and that was asked nothing else ahead, if there is one."""
        with self.lock:
            connection = self.connections.pop((host, root), None)
        if connection is None:
            return None
        if connection.is_open and connection.asked in (None, (command, question)):
            return connection
        connection.close()
        return None

    def give(self, connection: Connection) -> None:
        """Keep a connection for the next question; close it if there is one already."""
        with self.lock:
            kept = self.connections.setdefault((connection.host, connection.root), connection)
        if kept is not connection:
            connection.close()

    def close(self) -> None:
        """Close all connections."""
        with self.lock:
            connections, self.connections = list(self.connections.values()), {}
        for connection in connections:
            connection.close()


_idle = _Idle()
atexit.register(_idle.close)


def ask_ahead(hosts: Iterable[str], root: str, command: str, question: Mapping[str, Any]) -> None:
    """Connect to hosts and ask them what `ask` will ask first, so that it need not wait; problems show there.

    Does nothing for a host to which a connection is open.
    """
    for host in hosts:
        if not _idle.has(host, root):
            with suppress(OSError, BackendError):
                connection = Connection(host, root)
                connection.send(command, question)
                connection.asked = (command, question)
                _idle.give(connection)


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
        document, data = _ask(host, root, command, question, payload, seconds)
    except BackendError as error:
        if not error.may_pass or command in _NOT_TWICE or time.monotonic() - began > _AGAIN_WITHIN_SECONDS:
            raise
        document, data = _ask(host, root, command, question, payload, seconds)  # the connection was dead
    if "error" in document:
        raise reported_error(host, document)
    return Answer(document, data)


def _ask(
    host: str, root: str, command: str, question: Mapping[str, Any], payload: bytes | Sequence[Path], seconds: float
) -> Answer:
    connection = _idle.take(host, root, command, question) or Connection(host, root)
    answer = _ask_on(connection, command, question, payload, seconds)
    if "needs_agent" in answer.document:
        answer = _ask_on(Connection(host, root, agent_archive()), command, question, payload, seconds)
    return answer


def _ask_on(
    connection: Connection,
    command: str,
    question: Mapping[str, Any],
    payload: bytes | Sequence[Path],
    seconds: float,
) -> Answer:
    is_good = False
    try:
        if connection.asked is None:
            connection.send(command, question, payload)
        answer, connection.asked = connection.receive(seconds), None
        is_good = command != _REMOVES_AGENT and not answer.document.keys() & {"needs_agent", "error"}
    finally:
        if is_good:
            _idle.give(connection)
        else:
            connection.close()
    return answer


def reported_error(host: str, document: Mapping[str, Any]) -> BackendError:
    """Return the error that the agent of a host answered."""
    return BackendError(
        f"{host}: {document['error']}", document.get("hint") or f"log in and look for the cause: ssh {host}"
    )


def open_stream(
    host: str, root: str, command: str, question: Mapping[str, Any], seconds: float
) -> tuple[Connection, Answer]:
    """Ask a question whose answer goes on, on a connection that is the caller's from then on; return its beginning.

    Raises BackendError.
    """
    _require_sign_of_life(host)
    kept = _idle.take(host, root, command, question)
    if kept is not None:
        with suppress(BackendError):  # it was dead
            return kept, _begin_stream(kept, command, question, seconds)
    connection = Connection(host, root)
    return connection, _begin_stream(connection, command, question, seconds)


def _begin_stream(connection: Connection, command: str, question: Mapping[str, Any], seconds: float) -> Answer:
    try:
        connection.send(command, question)
        return connection.receive(seconds)
    except BaseException:
        connection.close()
        raise


def ask_all(hosts: Iterable[str], ask_one: Callable[[str], T]) -> dict[str, T | BackendError]:
    """Ask hosts at the same time; return the answer of each, or why there is none."""

    def tried(host: str) -> T | BackendError:
        try:
            return ask_one(host)
        except BackendError as error:
            return error

    from concurrent.futures import ThreadPoolExecutor  # not needed to connect

    names = list(hosts)
    with ThreadPoolExecutor(min(_MOST_AT_ONCE, len(names) or 1)) as pool:
        return dict(zip(names, pool.map(tried, names), strict=True))


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
