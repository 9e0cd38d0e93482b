"""The files of a local job's directory: who writes what, and how."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import signal
import stat
import time

from . import protocol

TYPE_CHECKING = False  # importing typing would cost more than all the rest
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

REQUEST = "local.json"  # what was submitted, as the backend was asked for it
EVENTS = "events.jsonl"  # one line an event, appended by client, supervisor and hook
STATUS = "status.json"  # replaced whole, by the supervisor (or by the keeper when that is dead)
LOCK = "lock"  # held as long as keeper or supervisor lives
CANCEL = "cancel"  # exists once somebody wants the job to end
GANG_LOG = "gang.log"  # what keeper and supervisor themselves had to say
RESERVE = ".reserve"  # room for the last words on a disk that is full by then; gone once the job has ended
LOGS = "logs"
STACKS = "stacks"  # where each rank was when the job hung
STREAMS = ("stdout", "stderr")
SIGNAL_BASE = 128  # a shell tells signal N as exit code 128 + N
STOPPED_BY_ENGINE = "STOPPED_BY_ENGINE"  # the reason of a node that was told to end by what had started it
STACK_SIGNAL = (signal.SIGRTMAX - 3) if hasattr(signal, "SIGRTMAX") else signal.SIGUSR2  # asks a rank for its stacks


def log_of(job_dir: str, node: int, rank: int | None, stream: str) -> str:
    """Return the log of one stream of a rank, or of what its node says before and around its ranks."""
    name = "node-%d" % node if rank is None else "rank-%d" % rank
    return os.path.join(job_dir, LOGS, "%s.%s.log" % (name, stream))


def stacks_of(job_dir: str, rank: int) -> str:
    """Return the file that a rank writes its stacks to when it is asked."""
    return os.path.join(job_dir, STACKS, "rank-%d.txt" % rank)


_ROOM_LOOK_SECONDS, _ROOM_SECONDS = 0.5, 3600.0
_FULL = (errno.ENOSPC, errno.EDQUOT)
_unwritten = []  # type: list[bytes] # lines of this process that a full disk did not take


def is_full(error: BaseException) -> bool:
    """Tell whether an error says that a disk, or the user's share of it, is full."""
    return isinstance(error, OSError) and error.errno in _FULL


def when_there_is_room(write: Callable[[], object]) -> None:
    """Write something, again and again for an hour while the disk is full."""
    deadline = time.monotonic() + _ROOM_SECONDS
    while True:
        try:
            if write() is not False:
                return
        except OSError as error:
            if not is_full(error) or time.monotonic() > deadline:
                raise
        if time.monotonic() > deadline:
            return
        time.sleep(_ROOM_LOOK_SECONDS)


def append_event(job_dir: str, event: str, **fields: object) -> None:
    """Append one event with the time it happened, whole or not at all; several processes may do so at once.

    What a full disk does not take is written with this process's next event (see `write_events`).
    """
    line = json.dumps({"t": time.time(), "event": event, **fields}, ensure_ascii=False) + "\n"
    _unwritten.append(line.encode("utf-8", "backslashreplace"))
    write_events(job_dir)


def write_events(job_dir: str) -> bool:
    """Write the events that a full disk did not take before; return whether none is left."""
    while _unwritten:
        try:
            append_whole(os.path.join(job_dir, EVENTS), _unwritten[0])
        except OSError as error:
            if not is_full(error):
                _unwritten.clear()
                raise
            return False
        del _unwritten[0]
    return True


def append_whole(path: str, data: bytes) -> None:
    """Append lines to a file, all or nothing; a line that another process left unfinished is ended first."""
    descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NONBLOCK, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        except OSError:
            pass  # a file system without locks: one write is as good as it gets
        before = os.fstat(descriptor).st_size
        if before and os.pread(descriptor, 1, before - 1) != b"\n":
            data = b"\n" + data
        written = 0
        try:
            written = os.write(descriptor, data)
        finally:
            if 0 < written < len(data):
                os.ftruncate(descriptor, before)
        if written < len(data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
    except OSError as error:
        raise OSError(error.errno, error.strerror, path) from error
    finally:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_UN)  # a process that was forked meanwhile has it open, too
        except OSError:
            pass
        os.close(descriptor)


class EventReader:
    """Read each event once, whole lines only; a line that is damaged counts as not there."""

    def __init__(self, job_dir: str) -> None:
        self.path = os.path.join(job_dir, EVENTS)
        self.offset = 0

    def new(self) -> list[dict[str, Any]]:
        """Return the events appended since the last call."""
        try:
            if os.stat(self.path).st_size == self.offset:
                return []
            with open(self.path, "rb", opener=regular) as stream:
                stream.seek(self.offset)
                data = stream.read()
        except OSError:
            return []
        end = data.rfind(b"\n") + 1
        self.offset += end
        found = (protocol.event(line) for line in data[:end].split(b"\n") if line)
        return [event for event in found if event is not None]


def replace_file(path: str, data: str | bytes) -> None:
    """Replace a file, whole and only for its owner: a reader, also after a crash, finds the old data or the new."""
    temporary = "%s.%d" % (path, os.getpid())
    try:
        with open(temporary, "wb", opener=private) as stream:
            stream.write(data if isinstance(data, bytes) else data.encode("utf-8", "backslashreplace"))
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(temporary, path)
    except OSError as error:
        try:
            os.unlink(temporary)
        except OSError:
            pass
        raise OSError(error.errno, error.strerror, path) from error


def regular(path: str, flags: int) -> int:
    """Open a file if it is one, and not a pipe or a device, which could keep us for ever; for `open`."""
    descriptor = os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC)
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        return descriptor
    os.close(descriptor)
    raise IsADirectoryError(errno.EISDIR, "Is not a regular file", path)


def read_file(path: str, most: int = -1) -> bytes:
    """Return what is in a file of a job's directory, its first `most` bytes if they are given."""
    with open(path, "rb", opener=regular) as stream:
        return stream.read(most)


def private(path: str, flags: int) -> int:
    """Open a file, which only its owner may read if it is made now; for `open`."""
    return os.open(path, flags | os.O_NOFOLLOW, 0o600)


def make_private(directory: str) -> None:
    """Make a directory that only its owner can look into, whatever the umask; an older one of ours becomes so."""
    above = os.path.dirname(os.path.abspath(directory))
    if not os.path.isdir(above):
        make_private(above)
    try:
        os.mkdir(directory, 0o700)
    except FileExistsError:
        pass
    status = os.stat(directory)
    if status.st_uid == os.getuid() and stat.S_IMODE(status.st_mode) & 0o077:
        os.chmod(directory, 0o700)


def write_status(job_dir: str, status: dict[str, Any]) -> None:
    """Replace the status, whole."""
    replace_file(os.path.join(job_dir, STATUS), json.dumps(status, ensure_ascii=False, indent=1))


def load_status(job_dir: str) -> dict[str, Any]:
    """Return the status, or an empty mapping before there is one.

    Raises ValueError if what is there is damaged, OSError if it cannot be read now.
    """
    try:
        data = read_file(os.path.join(job_dir, STATUS))
    except FileNotFoundError:
        return {}
    except (IsADirectoryError, NotADirectoryError) as error:
        raise ValueError("%s cannot be read: %s" % (STATUS, error.strerror)) from None
    try:
        return protocol.mapping(data, protocol.STATUS)
    except ValueError as error:
        raise ValueError("%s is damaged: %s" % (STATUS, error)) from None


def read_status(job_dir: str) -> dict[str, Any]:
    """Return the status, or an empty mapping where there is none that can be read."""
    try:
        return load_status(job_dir)
    except (OSError, ValueError):
        return {}


def ask_cancel(job_dir: str, grace: float | None) -> None:
    """Ask whoever watches a job to end it, within a grace time in seconds."""
    replace_file(os.path.join(job_dir, CANCEL), "" if grace is None else repr(grace))


def cancel_grace(job_dir: str, usual: float) -> float | None:
    """Return the grace time of whoever wants the job to end, or None if nobody does."""
    try:
        text = read_file(os.path.join(job_dir, CANCEL)).decode("ascii", "replace")
    except FileNotFoundError:
        return None
    except OSError:
        return usual
    try:
        grace = float(text or usual)
    except ValueError:
        return usual
    return grace if 0 <= grace < float("inf") else usual
