"""A directory as an object store: the embedded default."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import stat
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from jobsubmit.agent.atomic_write import open_regular
from jobsubmit.agent.fetch import LARGEST_MANIFEST, write
from jobsubmit.common.file_reading import changed_error
from jobsubmit.errors import StoreError
from jobsubmit.stores.protocol import FREELY, ObjectInfo, Source, Stored, Watch, blocks, md5_of, too_large

# Objects are written here first, by each user in a folder of their own. What a killed process left there is removed
# once it is a day old. Others may write to the same store, so the folder is used only if it is real, ours and closed to
# others; else the next name is tried.
_ANYBODYS = ".jobsubmit-unfinished-"
_UNFINISHED_NAMES = tuple(f"{_ANYBODYS}{os.getuid()}{suffix}" for suffix in ("", *(f"-{n}" for n in range(1, 20))))
_OLD_SECONDS = 24 * 3600
_ATTEMPTS = 100
_LOCK_SECONDS, _LOOK_SECONDS = 10.0, 0.02
_UMASK = os.umask(0o077)
os.umask(_UMASK)  # it can only be read by setting it


class FolderStore:
    """A store in a folder: each object is a file, written elsewhere in the folder and then moved into place."""

    is_near = True
    certificates = ""

    def __init__(self, root: Path) -> None:
        self.root = root.absolute()
        self.uri = str(self.root)
        self.requests, self.round_trip = 0, 0.0
        self._is_tidy = False

    def check_key(self, key: str) -> None:
        """Refuse keys that are not a path (see ObjectStore)."""
        self._path(key)

    def put(
        self, key: str, source: Source, sha256: str, expected: str | None = None, watch: Watch = FREELY
    ) -> str | None:
        """Store an object (see ObjectStore); if folders cannot be locked, tags are compared."""
        target = self._path(key)
        watch.before()
        with self._errors(key):
            self._refuse_links_of_others(target.parent)
            with self._unfinished() as unfinished:
                written, md5 = _copy(blocks(source), unfinished.descriptor, watch)
                if written != sha256:
                    raise changed_error(key if isinstance(source, bytes) else source)
                may_run = isinstance(source, Path) and source.stat().st_mode & stat.S_IXUSR
                os.fchmod(unfinished.descriptor, (0o777 if may_run else 0o666) & self._rights)
                if expected is not None:  # a manifest, which says that all else is there
                    os.fsync(unfinished.descriptor)
                _make(target.parent, self._rights)
                with _only_one(target.parent) if expected is not None else nullcontext():
                    if expected is not None and self._tag(key) != expected:
                        return None
                    watch.before()
                    unfinished.move(target, self._rights)
                # Where folders cannot be locked, somebody else may have been at it at the same moment.
                return md5 if expected is None or self._tag(key) == md5 else None

    def put_stream(self, key: str, data: Iterator[bytes], most: int, watch: Watch = FREELY) -> None:
        """Store an object while it is made (see ObjectStore)."""
        target = self._path(key)
        watch.before()
        with self._errors(key):
            self._refuse_links_of_others(target.parent)
            with self._unfinished() as unfinished:
                _copy(data, unfinished.descriptor, watch)
                os.fchmod(unfinished.descriptor, 0o666 & self._rights)
                watch.before()
                unfinished.move(target, self._rights)

    def get(self, key: str) -> bytes:
        """Return an object whole (see ObjectStore)."""
        with self._errors(key), open(self._path(key), "rb", opener=open_regular) as source:
            data = source.read(LARGEST_MANIFEST + 1)
        if len(data) > LARGEST_MANIFEST:
            raise too_large(f"{self.uri}/{key}", LARGEST_MANIFEST)
        return data

    def get_to(self, key: str, file: Path, most: int) -> str:
        """Copy an object to a file (see ObjectStore)."""
        with self._errors(key), open(self._path(key), "rb", opener=open_regular) as source:
            digest, size = write(source, str(file), most)
        if size > most:
            raise too_large(f"{self.uri}/{key}", most)
        return digest

    def get_unless(self, key: str, tag: str) -> Stored | None:
        """Return an object unless its tag is known (see ObjectStore)."""
        if not self._path(key).is_file():
            return None
        data = self.get(key)
        own = md5_of(data)
        return Stored(None if own == tag else data, own)

    def tag_of(self, source: Path) -> str:
        """Return the md5 (see ObjectStore)."""
        return md5_of(source)

    def head(self, key: str) -> ObjectInfo | None:
        """Return key, size and tag of an object (see ObjectStore)."""
        path = self._path(key)
        with self._errors(key), suppress(FileNotFoundError):
            return ObjectInfo(key, path.stat().st_size, md5_of(path)) if path.is_file() else None
        return None

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        """Yield the objects below a prefix, without tags (see ObjectStore)."""
        start = self.root / prefix.rpartition("/")[0]
        found = []
        with self._errors(prefix):
            for folder, folders, names in os.walk(start, onerror=_refuse):
                folders[:] = [name for name in folders if not name.startswith(_ANYBODYS)]
                for path in (Path(folder) / name for name in names):
                    key = path.relative_to(self.root).as_posix()
                    if key.startswith(prefix) and path.is_file():  # not a link to nothing
                        found.append(ObjectInfo(key, path.stat().st_size, ""))
        yield from sorted(found, key=lambda info: os.fsencode(info.key))

    def copy(self, source_key: str, key: str, source: Path) -> bool:
        """Return False: reading the local file is as fast as reading the stored one (see ObjectStore)."""
        return False

    def delete(self, key: str) -> None:
        """Remove an object and the folders it leaves empty (see ObjectStore)."""
        path = self._path(key)
        self._refuse_links_of_others(path.parent)
        with self._errors(key), suppress(NotADirectoryError):
            path.unlink(missing_ok=True)
        with suppress(OSError):  # one is not empty, or gone
            for folder in path.parents:
                if folder == self.root:
                    break
                folder.rmdir()

    def url(self, key: str, expires: int) -> str:
        """Return a file:// address (see ObjectStore)."""
        return self._path(key).as_uri()

    @contextmanager
    def _unfinished(self) -> Iterator[_Unfinished]:
        """Yield a new empty file in our folder of such files."""
        path, unfinished = self._new_file()
        try:
            if not self._is_tidy:
                self._is_tidy = True
                _remove_old_files(unfinished.folder)
            yield unfinished
        finally:
            with suppress(FileNotFoundError):  # it was moved
                os.unlink(unfinished.name, dir_fd=unfinished.folder)
            os.close(unfinished.descriptor)
            os.close(unfinished.folder)
            with suppress(OSError):  # another process uses it
                path.rmdir()

    @cached_property
    def _rights(self) -> int:
        """Return the rights that what we make here may have: never more than the folder that all of it lies in."""
        around = next(folder for folder in (self.root, *self.root.parents) if folder.is_dir())
        return (around.stat().st_mode | 0o700) & 0o777 & ~_UMASK

    def _new_file(self) -> tuple[Path, _Unfinished]:
        name, flags = uuid.uuid4().hex, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
        for _ in range(_ATTEMPTS):
            _make(self.root, self._rights)
            with suppress(FileNotFoundError):
                path, folder = self._open_private_folder()
                try:
                    return path, _Unfinished(folder, name, os.open(name, flags, 0o600, dir_fd=folder))
                except OSError:
                    os.close(folder)
                    raise
        raise FileNotFoundError(errno.ENOENT, "another process keeps removing it", str(self.root))

    def _open_private_folder(self) -> tuple[Path, int]:
        """Return the first of our folders for unfinished files that is a real one of ours, open; make it if needed."""
        for name in _UNFINISHED_NAMES:
            path = self.root / name
            with suppress(FileExistsError):
                path.mkdir(mode=0o700)
            try:
                descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            except FileNotFoundError:
                raise
            except OSError:  # a link or a file, or closed to us
                continue
            status = os.fstat(descriptor)
            if status.st_uid == os.getuid():
                os.fchmod(descriptor, 0o700 | (status.st_mode & stat.S_ISGID))  # files keep the group of the store
                return path, descriptor
            os.close(descriptor)
        raise PermissionError(errno.EPERM, "other users own all folders for unfinished files", str(self.root))

    def _refuse_links_of_others(self, folder: Path) -> None:
        """Raise StoreError if a folder below the root is a link that another user has made: it may lead anywhere."""
        for part in (folder, *folder.parents):
            if part == self.root:
                return
            with suppress(FileNotFoundError):
                status = part.lstat()
                if stat.S_ISLNK(status.st_mode) and status.st_uid not in (0, os.getuid()):
                    raise StoreError(
                        f"{part} is a symbolic link that another user (uid {status.st_uid}) has created",
                        "use a store that only people you trust can write to",
                        where=self.uri,
                    )

    def _tag(self, key: str) -> str:
        path = self._path(key)
        return md5_of(path) if path.is_file() else ""

    def _path(self, key: str) -> Path:
        parts = key.split("/")
        if any(part in ("", ".", "..") for part in parts) or parts[0].startswith(_ANYBODYS):
            raise StoreError(f"a folder cannot store the key {key!r}", "rename the file")
        return self.root.joinpath(*parts)

    @contextmanager
    def _errors(self, key: str) -> Iterator[None]:
        """Turn what the system refuses into a StoreError."""
        try:
            yield
        except OSError as error:
            hint = "check that the folder exists, belongs to you and has free space, or use another folder"
            raise StoreError(f"{self.uri}/{key}: {error.strerror or error}", hint, where=self.uri) from error


@contextmanager
def _only_one(folder: Path) -> Iterator[None]:
    """Let one process at a time look and move, as far as that is possible: see `put`.

    Some network file systems lock no folders; and anybody who can read a folder can hold its lock for ever.
    """
    descriptor = os.open(folder, os.O_RDONLY)
    deadline = time.monotonic() + _LOCK_SECONDS
    try:
        while time.monotonic() < deadline:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                time.sleep(_LOOK_SECONDS)
            except OSError:
                break
        yield
    finally:
        os.close(descriptor)


class _Unfinished(NamedTuple):
    """A file that is being written, by the descriptors of its folder and of itself."""

    folder: int
    name: str
    descriptor: int

    def move(self, target: Path, rights: int) -> None:
        """Put the file in its place; another process may remove an empty folder there at the same moment."""
        for _ in range(_ATTEMPTS):
            _make(target.parent, rights)
            with suppress(FileNotFoundError):
                os.replace(self.name, target, src_dir_fd=self.folder)
                return
        os.replace(self.name, target, src_dir_fd=self.folder)


def _remove_old_files(folder: int) -> None:
    """Remove what killed processes have left in an open folder."""
    for name in os.listdir(folder):
        with suppress(OSError):
            status = os.stat(name, dir_fd=folder, follow_symlinks=False)
            if stat.S_ISREG(status.st_mode) and time.time() - status.st_mtime > _OLD_SECONDS:
                os.unlink(name, dir_fd=folder)


def _make(folder: Path, rights: int) -> None:
    """Make a folder, and those above it, that somebody may remove at the same moment."""
    for _ in range(_ATTEMPTS):
        with suppress(FileNotFoundError, FileExistsError):
            for missing in reversed([above for above in (folder, *folder.parents) if not above.is_dir()]):
                missing.mkdir(mode=rights)
            return
    folder.mkdir(mode=rights, parents=True, exist_ok=True)


def _refuse(error: OSError) -> None:
    """Raise what os.walk would pass over, except that there is no such folder."""
    if not isinstance(error, (FileNotFoundError, NotADirectoryError)):
        raise error


def _copy(data: Iterator[bytes], descriptor: int, watch: Watch) -> tuple[str, str]:
    """Write bytes to an open file; return their (sha256, md5)."""
    digest, md5 = hashlib.sha256(), hashlib.md5(usedforsecurity=False)
    with os.fdopen(os.dup(descriptor), "wb") as sink:
        for block in data:
            digest.update(block)
            md5.update(block)
            sink.write(block)
            watch.sent(len(block))
    return digest.hexdigest(), md5.hexdigest()
