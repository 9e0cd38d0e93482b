"""One login and one program on a host answer many questions; here the host is this machine, without sshd."""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from jobsubmit.backends.ssh import connection
from jobsubmit.backends.ssh.connection import Connection, ask, ask_ahead, open_stream
from jobsubmit.errors import BackendError

SSH = """#!/bin/sh
echo login >> "$LOGINS"
[ -e "$LOGINS.refused" ] && { echo 'Permission denied (publickey).' >&2; exit 255; }
for word; do :; done
exec sh -c "exec $word"
"""


class Host:
    """A host that is this machine: its folder, and how often somebody logged in."""

    def __init__(self, folder: Path) -> None:
        self.root, self.logins_file = str(folder / "root"), folder / "logins"

    @property
    def logins(self) -> int:
        return len(self.logins_file.read_text().splitlines()) if self.logins_file.exists() else 0

    def missing(self, *names: str) -> list[str]:
        """Ask which entries of the cache are missing: the simplest question."""
        found: list[str] = ask("here", self.root, "missing", {"names": list(names)}).document["missing"]
        return found


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Host]:
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "ssh").write_text(SSH)
    (folder / "ssh").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    monkeypatch.setenv("LOGINS", str(tmp_path / "logins"))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    connection._control_folder.cache_clear()
    yield Host(tmp_path)
    connection._idle.close()
    connection._control_folder.cache_clear()


def idle(host: Host) -> Connection:
    return connection._idle.connections["here", host.root]


def test_one_program_answers_all_questions(host: Host) -> None:
    assert host.missing("scripts/a") == ["scripts/a"]
    logins = host.logins  # the second of them brought the agent
    for name in ("scripts/b", "scripts/c"):
        assert host.missing(name) == [name]
    assert host.logins == logins == 2


NOTHING: dict[str, list[str]] = {"names": []}


def test_what_is_asked_ahead_is_asked_once(host: Host) -> None:
    host.missing()
    connection._idle.close()
    logins = host.logins
    ask_ahead(["here"], host.root, "missing", NOTHING)
    early = idle(host)
    ask_ahead(["here"], host.root, "missing", NOTHING)
    assert idle(host) is early
    assert early.receive(10).document == {"missing": []}  # it came although nobody asked again
    connection._idle.close()
    ask_ahead(["here"], host.root, "missing", NOTHING)
    early = idle(host)
    assert host.missing() == []
    assert host.missing("scripts/a") == ["scripts/a"]
    assert idle(host) is early
    assert host.logins == logins + 2


def test_whoever_asks_something_else_gets_the_answer_to_that(host: Host) -> None:
    host.missing()
    connection._idle.close()
    ask_ahead(["here"], host.root, "missing", NOTHING)
    assert host.missing("scripts/a") == ["scripts/a"]


def test_what_fails_ahead_is_said_when_it_is_asked(host: Host) -> None:
    Path(f"{host.logins_file}.refused").touch()
    ask_ahead(["here"], host.root, "missing", NOTHING)
    with pytest.raises(BackendError, match="Permission denied"):
        host.missing()


def test_a_stream_takes_the_connection_that_is_there(host: Host) -> None:
    host.missing()
    kept, logins = idle(host), host.logins
    question = {"job_id": "j", "index": 0, "query": {}, "follow": False}
    stream, answer = open_stream("here", host.root, "lines", question, 10)
    assert (stream, answer.document, host.logins) == (kept, {"is_known": False}, logins)
    assert host.missing() == []
    assert idle(host) is not kept
    stream.close()


def test_a_stream_begins_although_the_kept_connection_is_dead(host: Host) -> None:
    host.missing()
    kept = idle(host)
    kept.process.kill()
    question = {"job_id": "j", "index": 0, "query": {}, "follow": False}
    stream, answer = open_stream("here", host.root, "lines", question, 10)
    assert stream is not kept
    assert answer.document == {"is_known": False}
    stream.close()


def test_a_program_that_was_killed_is_started_again(host: Host) -> None:
    host.missing()
    killed = idle(host)
    killed.process.kill()
    assert host.missing("scripts/a") == ["scripts/a"]
    assert idle(host) is not killed


def test_what_may_have_been_done_is_not_asked_twice(host: Host) -> None:
    host.missing()
    idle(host).process.send_signal(signal.SIGSTOP)
    logins = host.logins
    stopped = idle(host)
    with pytest.raises(BackendError, match="did not answer within 0 s") as silent:
        ask("here", host.root, "put", {"entries": [["scripts/a", 1]]}, b"x", seconds=0.3)
    assert silent.value.may_pass
    assert host.logins == logins
    assert stopped.process.returncode is not None
    connection._silent.clear()


def test_a_file_goes_over_and_an_answer_brings_bytes(host: Host, tmp_path: Path) -> None:
    packed = tmp_path / "packed"
    packed.write_bytes(os.urandom(3 << 20))
    ask("here", host.root, "put", {"entries": [["scripts/a", 3 << 20]]}, [packed])
    assert (Path(host.root) / "cache/scripts/a").read_bytes() == packed.read_bytes()
    folder = Path(host.root) / "jobs" / "j" / "0"
    folder.mkdir(parents=True)
    (folder / "events.jsonl").write_bytes(b'{"t": 1}\n' * 1000)
    question = {"job_id": "j", "index": 0, "known": {}, "measured": False}
    for _ in range(2):
        document, data = ask("here", host.root, "look", question)
        assert document["parts"] == [["events.jsonl", 0, 9000]]
        assert data == b'{"t": 1}\n' * 1000


def test_what_a_refused_file_leaves_is_no_question(host: Host) -> None:
    host.missing()
    (Path(host.root) / "cache" / "scripts").write_text("in the way")
    with pytest.raises(BackendError, match="scripts"):
        ask("here", host.root, "put", {"entries": [["scripts/a", 3 << 20]]}, b"\n" * (3 << 20))
    assert host.missing("code/a") == ["code/a"]


def test_a_host_listens_until_the_next_question(host: Host) -> None:
    seeds = [f"test-{os.getpid()}"]
    (port,) = ask("here", host.root, "listen", {"addresses": ["127.0.0.1"], "seeds": seeds}).document["ports"]
    with socket.create_connection(("127.0.0.1", port), timeout=5) as one:
        assert one.recv(10) == b"jobsubmit\n"
    host.missing()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port), timeout=5)


def test_the_program_ends_with_the_client(host: Host) -> None:
    host.missing()
    process = idle(host).process
    assert process.stdin
    process.stdin.close()
    assert process.wait(10) == 0


def test_why_ssh_refuses_is_said(host: Host) -> None:
    host.logins_file.with_suffix(".refused").touch()
    began = time.monotonic()
    with pytest.raises(BackendError, match="Permission denied") as refused:
        host.missing()
    assert "ssh-copy-id here" in refused.value.hint
    assert host.logins == 1
    assert time.monotonic() - began < 5
