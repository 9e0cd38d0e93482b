"""Store → directory: fetch the files that differ, verify them, and put each in place atomically."""

from __future__ import annotations

import itertools
import os
import re
import shutil
import stat
import tarfile
import tempfile
import time
import zlib
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from jobsubmit.agent.fetch import FetchError, extract, largest_archive, require_room, safe_path
from jobsubmit.common.file_reading import hash_file
from jobsubmit.errors import StoreError
from jobsubmit.stores.protocol import ObjectStore, md5_of
from jobsubmit.transfer.code_ref import ARCHIVE_ENDING, CodeRef, place_ref
from jobsubmit.transfer.manifest import Entry, Manifest, stored_manifest
from jobsubmit.transfer.progress import Progress
from jobsubmit.transfer.worker_pool import run_all, threads_for

_MD5 = re.compile("[0-9a-f]{32}")
_FEWEST_THREADS = 4
_WORK = ".jobsubmit-unfinished-"
_OLD_SECONDS = 24 * 3600


class DownloadSummary(NamedTuple):
    """What was fetched, and what existed already; `digest` is the tree's, if a manifest names it."""

    files: int
    size: int
    skipped: int
    digest: str | None


def download(store: ObjectStore, code: CodeRef, root: Path, progress: Progress) -> DownloadSummary:
    """Download a tree or an archive into a directory. Raises StoreError, also if the disk is full."""
    try:
        root.mkdir(parents=True, exist_ok=True)
        _remove_leftovers(root)
        with tempfile.TemporaryDirectory(prefix=_WORK, dir=root) as work:
            return _Download(store, root, Path(work), progress).run(code)
    except (FetchError, tarfile.TarError, zlib.error, EOFError) as error:
        raise StoreError(
            f"{code.uri}: {error}", f"run again: the files downloaded to {root} are verified, others are missing"
        ) from error
    except OSError as error:
        where = error.filename or root
        raise StoreError(f"{where} cannot be written: {error.strerror}", "free space, or choose another DIR") from error


def _remove_leftovers(root: Path) -> None:
    """Remove what killed downloads left, once it is a day old."""
    for folder in root.glob(f"{_WORK}*"):
        status = folder.lstat()
        is_ours = stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid()
        if is_ours and time.time() - status.st_mtime > _OLD_SECONDS:
            shutil.rmtree(folder, ignore_errors=True)


class _Download:
    def __init__(self, store: ObjectStore, root: Path, work: Path, progress: Progress) -> None:
        self.store, self.root, self.work, self.progress = store, root, work, progress
        self.real_root = os.path.realpath(root)
        self.numbers = itertools.count()
        self.folders: set[str] = set()

    def run(self, code: CodeRef) -> DownloadSummary:
        is_archive = code.uri.endswith(ARCHIVE_ENDING)
        tree = None if is_archive else stored_manifest(self.store, code)
        if tree is not None:
            return self._listed(tree, lambda wanted: self._fetch_tree(code, tree, wanted))
        packed = place_ref(code.uri, code.name, "archive")
        archive = stored_manifest(self.store, packed)
        if archive is not None:
            return self._listed(archive, lambda wanted: self._fetch_archive(packed, archive, wanted))
        return self._unlisted(code)

    # ── what a manifest lists ───────────────────────────────────────────────────────────────────────────────────

    def _listed(self, manifest: Manifest, fetch: Callable[[list[str]], None]) -> DownloadSummary:
        wanted = [path for path, entry in manifest.files.items() if not _is_there(self.root / path, entry)]
        size = sum(manifest.files[path].size for path in wanted)
        if wanted:
            require_room(str(self.root), [size])
            self.progress.begin("downloading", size, len(wanted))
            fetch(wanted)
        for directory in manifest.directories:
            os.makedirs(self._destination(directory), exist_ok=True)
        return DownloadSummary(len(wanted), size, len(manifest.files) - len(wanted), manifest.digest)

    def _fetch_tree(self, code: CodeRef, manifest: Manifest, wanted: list[str]) -> None:
        def fetch(path: str) -> None:
            entry, temporary = manifest.files[path], self._temporary()
            if self.store.get_to(f"{code.key}/{path}", temporary, entry.size) != entry.sha256:
                raise FetchError(f"{path} differs from the file that was uploaded")
            if entry.mode == "755":
                temporary.chmod(0o755)
            self._put_in_place(temporary, path)
            self.progress.advance(entry.size, 1)

        run_all(
            wanted, fetch, lambda path: manifest.files[path].size, threads_for(self.store.round_trip, _FEWEST_THREADS)
        )

    def _fetch_archive(self, code: CodeRef, manifest: Manifest, wanted: list[str]) -> None:
        archive, unpacked = self.work / "archive", self.work / "tree"
        most = largest_archive((entry.size for entry in manifest.files.values()), len(manifest.directories))
        self.store.get_to(code.key, archive, most)
        unpacked.mkdir()
        files = {path: entry.listed(path) for path, entry in manifest.files.items()}
        extract(str(archive), files, manifest.directories, str(unpacked))
        for path in wanted:
            self._put_in_place(unpacked / path, path)
            self.progress.advance(manifest.files[path].size, 1)

    # ── what somebody else uploaded ─────────────────────────────────────────────────────────────────────────────

    def _unlisted(self, code: CodeRef) -> DownloadSummary:
        """Fetch what has no manifest: the proof is its sizes, and the ETags where they are md5 sums."""
        start = f"{code.key}/"
        objects = {i.key[len(start) :]: i for i in self.store.list(start) if not i.key.endswith("/")}
        if not objects:
            raise StoreError(f"{code.uri}: there is nothing to download", "correct the address")

        def fetch(path: str) -> None:
            info, temporary = objects[path], self._temporary()
            digest = self.store.get_to(start + path, temporary, info.size)
            is_proven = not _MD5.fullmatch(info.tag) or md5_of(temporary) == info.tag
            # The ETag of a bucket that encrypts is no md5: there a second look proves the first.
            is_proven = is_proven or self.store.get_to(start + path, temporary, info.size) == digest
            if not is_proven or temporary.stat().st_size != info.size:
                raise FetchError(f"{path} differs from the object in the store")
            self._put_in_place(temporary, path)
            self.progress.advance(info.size, 1)

        size = sum(info.size for info in objects.values())
        require_room(str(self.root), [size])
        self.progress.begin("downloading", size, len(objects))
        run_all(
            list(objects), fetch, lambda path: objects[path].size, threads_for(self.store.round_trip, _FEWEST_THREADS)
        )
        return DownloadSummary(len(objects), size, 0, None)

    # ── files ───────────────────────────────────────────────────────────────────────────────────────────────────

    def _temporary(self) -> Path:
        return self.work / str(next(self.numbers))

    def _put_in_place(self, file: Path, path: str) -> None:
        destination = self._destination(path)
        try:
            os.replace(file, destination)
        except IsADirectoryError as error:
            with suppress(OSError):  # an empty folder may go
                os.rmdir(destination)
                os.replace(file, destination)
                return
            raise FetchError(f"{path} is a file, but {destination} is a folder that is not empty") from error

    def _destination(self, path: str) -> str:
        """Return where a path lies below the root, its folders made; no link in the root may lead out of it."""
        above = os.path.dirname(path)
        if above not in self.folders:
            real = os.path.realpath(os.path.join(self.root, above))
            if os.path.commonpath([real, self.real_root]) != self.real_root:
                raise FetchError(f"{path} would be written outside {self.root}")
        destination = safe_path(str(self.root), path, is_made=above in self.folders)
        self.folders.add(above)
        return destination


def _is_there(file: Path, entry: Entry) -> bool:
    try:
        status = file.lstat()
        if status.st_size != entry.size or file.is_symlink() or not file.is_file():
            return False
        mode = "755" if status.st_mode & 0o100 else "644"
        return mode == entry.mode and hash_file(str(file)) == entry.sha256
    except OSError:
        return False
