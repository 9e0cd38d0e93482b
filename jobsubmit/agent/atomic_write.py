"""Write files whole or not at all, and mostly only for their owner."""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import time

TYPE_CHECKING = False  # importing typing would cost more than all the rest
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable


_ROOM_LOOK_SECONDS, _ROOM_SECONDS = 0.5, 3600.0


_FULL = (errno.ENOSPC, errno.EDQUOT)


def is_full(error: BaseException) -> bool:
    """Return whether an error means that a disk, or the user's quota on it, is full."""
    return isinstance(error, OSError) and error.errno in _FULL


def when_there_is_room(write: Callable[[], object]) -> None:
    """Call `write`, and retry it for an hour while the disk is full."""
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


def append_whole(path: str, data: bytes) -> None:
    """Append lines to a file, all or nothing; a line that another process left incomplete is ended first."""
    descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NONBLOCK, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        except OSError:
            pass  # a file system without locks: one write is as good as it gets
        before = os.fstat(descriptor).st_size
        if before and os.pread(descriptor, 1, before - 1) != b"\n":
            data = b"\n" + data
        if os.write(descriptor, data) < len(data):
            os.ftruncate(descriptor, before)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
    except OSError as error:
        raise OSError(error.errno, error.strerror, path) from error
    finally:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_UN)  # a process that was forked meanwhile has it open, too
        except OSError:
            pass
        os.close(descriptor)


def replace_file(
    path: str, data: str | bytes | Iterable[bytes], *, is_durable: bool = True, is_private: bool = True
) -> None:
    """Replace a file as a whole: a reader gets the old data or the new. Without `is_private` all users may read it.

    With `is_durable` this also holds after a crash of the machine.
    """
    data = data.encode("utf-8", "backslashreplace") if isinstance(data, str) else data
    temporary = "%s.%d" % (path, os.getpid())
    try:
        with open(temporary, "wb", opener=open_private) as stream:
            stream.writelines([data] if isinstance(data, bytes) else data)
            stream.flush()
            if not is_private:
                os.fchmod(stream.fileno(), 0o644)
            if is_durable:
                os.fsync(stream.fileno())
        os.replace(temporary, path)
    except OSError as error:
        try:
            os.unlink(temporary)
        except OSError:
            pass
        raise OSError(error.errno, error.strerror, path) from error


def open_regular(path: str, flags: int) -> int:
    """Open a regular file, and not a pipe or a device, which could block forever; an opener for `open`."""
    descriptor = os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC)
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        return descriptor
    os.close(descriptor)
    raise IsADirectoryError(errno.EISDIR, "Is not a regular file", path)


def read_file(path: str, most: int = -1, *, start: int = 0) -> bytes:
    """Return the content of a file of a job directory from `start` on, at most `most` bytes if given."""
    with open(path, "rb", opener=open_regular) as stream:
        stream.seek(start)
        return stream.read(most)


def open_private(path: str, flags: int) -> int:
    """Open a file, which only its owner may read if it is created now; an opener for `open`."""
    return os.open(path, flags | os.O_NOFOLLOW, 0o600)


def make_private(directory: str) -> None:
    """Create a directory that only its owner can read, with any umask; an existing one of ours becomes private."""
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
