"""Start the agent of a host: it goes on by itself when the client has gone, and ends with the job."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import socket
import traceback

from .. import node_contract as contract, processes
from ..atomic_write import make_private, replace_file
from ..job_directory import USUAL_ROOT, JobDirectory
from ..machine import addresses
from ..protocol import REQUEST, HostAssignment
from ..supervisor import network
from .follower import Follower
from .leader import Leader
from .member import Member

TYPE_CHECKING = False  # importing typing would cost more than all the rest
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any


class StartError(Exception):
    """The agent cannot be started; the message is one line that says why, `hint` what to do if that is known."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


def start(root: str, folder: str, assignment: HostAssignment) -> dict[str, Any]:
    """Start the agent of this host; return the address of the host, and of host 0 also the ports that it took.

    Raises StartError, also if the job was started here before.
    """
    try:
        make_private(os.path.dirname(folder))
        os.mkdir(folder, 0o700)
        _link_from_usual_root(os.path.dirname(folder))
    except FileExistsError:
        text = "job %s already exists on this host" % assignment["job_id"]
        raise StartError(text, "choose another --job-id, or delete that job") from None
    except OSError as error:
        raise StartError("%s cannot be created: %s" % (folder, error.strerror)) from error
    replace_file(os.path.join(folder, REQUEST), json.dumps(assignment["request"], ensure_ascii=False))
    try:
        address = _own_address(assignment)
        listener, ports = _listen(assignment, address) if assignment["index"] == 0 else (None, {})
    except (addresses.NoAddressError, OSError) as error:
        _remove(folder)
        raise StartError(str(error)) from error
    _detach(folder, lambda: _serve(root, folder, assignment, address, listener, ports))
    return {"address": address, **{name: held.getsockname()[1] for name, held in ports.items()}}


def _link_from_usual_root(job: str) -> None:
    """Make a job in another work folder known where every client looks for it."""
    usual = os.path.join(os.path.expanduser(USUAL_ROOT), "jobs", os.path.basename(job))
    if os.path.realpath(usual) != os.path.realpath(job):
        make_private(os.path.dirname(usual))
        os.symlink(job, usual)


def _own_address(assignment: HostAssignment) -> str:
    if assignment["interface"] or "decider" not in assignment:
        return addresses.own_address(assignment["interface"])
    return addresses.own_address(None, assignment["decider"][0])


def _listen(assignment: HostAssignment, address: str) -> tuple[socket.socket, dict[str, socket.socket]]:
    """Return the socket at which the other hosts reach this one, and what holds the ports of the job."""
    _, rendezvous = network.lease_port(assignment["job_id"])
    port, watch = network.lease_port(network.watch_seed(assignment["job_id"]))
    listener = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind((address, port))
    listener.listen(64)
    return listener, {"rendezvous": rendezvous, "watch": watch}


def _detach(folder: str, serve: Callable[[], None]) -> None:
    """Fork a process of its own session, and return once it holds the lock of the job."""
    answered, answering = os.pipe()
    if os.fork() == 0:
        os.close(answered)
        os.setsid()
        if os.fork() != 0:
            os._exit(0)
        try:
            try:
                _become_agent(folder)
                os.write(answering, b"ready")
            except OSError as error:
                os.write(answering, str(error).encode("utf-8", "replace"))
                raise
            os.close(answering)
            serve()
        except BaseException:
            traceback.print_exc()
        finally:
            processes.kill_all()
            os._exit(0)
    os.close(answering)
    with os.fdopen(answered, "rb") as answer:
        problem = answer.read().decode("utf-8", "replace")
    if problem != "ready":
        raise StartError("the agent did not start: %s" % (problem or "see %s" % JobDirectory(folder).agent_log))


def _become_agent(folder: str) -> None:
    """Let go of the client and its connection; take the lock of the job."""
    files = JobDirectory(folder)
    log = os.open(files.agent_log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    nothing = os.open(os.devnull, os.O_RDWR)
    for source, target in ((nothing, 0), (log, 1), (log, 2)):
        os.dup2(source, target)
    for number in (signal.SIGHUP, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    os.chdir(folder)
    lock = os.open(files.lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    fcntl.flock(lock, fcntl.LOCK_EX)
    processes.adopt_orphans()
    for name in list(os.environ):
        if contract.is_reserved(name) or name.startswith("SSH_"):
            del os.environ[name]


def _serve(
    root: str,
    folder: str,
    assignment: HostAssignment,
    address: str,
    listener: socket.socket | None,
    ports: dict[str, socket.socket],
) -> None:
    member = Member(root, folder, assignment, address)
    if listener is None:
        Follower(folder, assignment, member).run()
    else:
        Leader(folder, assignment, member, listener, ports["rendezvous"].getsockname()[1]).run()


def _remove(folder: str) -> None:
    import shutil

    shutil.rmtree(folder, ignore_errors=True)
    try:
        os.rmdir(os.path.dirname(folder))
    except OSError:
        pass
