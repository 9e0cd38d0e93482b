"""Store → directory: fetch what differs, prove it, and put each file in its place whole."""

from __future__ import annotations

import os
import re
import shutil
import tarfile
import tempfile
import time
import zlib
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from jobsubmit.bundle import hash_file, read_blocks
from jobsubmit.errors import StoreError
from jobsubmit.node.fetch import FetchError, extract, prove, safe_path
from jobsubmit.stores import ObjectInfo, ObjectStore
from jobsubmit.transfer.manifest import NOT_WHOLE_HINT, Entry, Manifest, read_manifest
from jobsubmit.transfer.reference import ARCHIVE_ENDING, CodeRef, place_ref
from jobsubmit.transfer.upload import Progress
from jobsubmit.transfer.workers import run_all, threads_for

_MD5 = re.compile("[0-9a-f]{32}")


class DownloadSummary(NamedTuple):
    """Count what was fetched and what was there already; `digest` is the tree's, where a manifest told it."""

    files: int
    size: int
    skipped: int
    digest: str | None


def download(store: ObjectStore, code: CodeRef, root: Path, progress: Progress) -> DownloadSummary:
    """Make a directory hold what lies at a place, a tree or an archive. Raises StoreError, also for a full disk."""
    try:
        root.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".jobsubmit-", dir=root) as work:
            return _Download(store, root, Path(work), progress).run(code)
    except (FetchError, tarfile.TarError, zlib.error, EOFError) as error:
        raise StoreError(f"{code.uri}: {error}", "upload it again; nothing of it was put in place") from error
    except OSError as error:
        where = error.filename or root
        raise StoreError(f"{where} cannot be written: {error.strerror}", "make room, or choose another DIR") from error


class _Download:
    def __init__(self, store: ObjectStore, root: Path, work: Path, progress: Progress) -> None:
        self.store, self.root, self.work, self.progress = store, root, work, progress
        self.threads = 1

    def run(self, code: CodeRef) -> DownloadSummary:
        started = time.monotonic()
        is_archive = code.uri.endswith(ARCHIVE_ENDING)
        tree = None if is_archive else self._manifest(code)
        self.threads = threads_for(time.monotonic() - started)
        if tree is not None:
            return self._tree(code, tree)
        packed = place_ref(code.uri, code.name, "archive")
        archive = self._manifest(packed)
        if archive is not None:
            return self._archive(packed, archive)
        return self._unlisted(code)

    def _manifest(self, code: CodeRef) -> Manifest | None:
        found = self.store.get_unless(code.manifest_key, "")
        if found is None or found.data is None:
            return None
        manifest = read_manifest(found.data)
        if manifest is None:
            raise StoreError(f"{code.uri}: it is not whole", NOT_WHOLE_HINT)
        return manifest

    # ── three kinds ─────────────────────────────────────────────────────────────────────────────────────────────

    def _tree(self, code: CodeRef, manifest: Manifest) -> DownloadSummary:
        wanted = self._lacking(manifest.files)

        def fetch(path: str) -> None:
            entry = manifest.files[path]
            temporary = self._temporary(path)
            self.store.get_to(f"{code.key}/{path}", temporary)
            prove(str(temporary), path, entry._asdict())
            self._put_in_place(temporary, path)
            self.progress(entry.size, 1)

        run_all(wanted, fetch, lambda path: manifest.files[path].size, self.threads)
        self._make_directories(manifest)
        size = sum(manifest.files[path].size for path in wanted)
        return DownloadSummary(len(wanted), size, len(manifest.files) - len(wanted), manifest.digest)

    def _archive(self, code: CodeRef, manifest: Manifest) -> DownloadSummary:
        wanted = self._lacking(manifest.files)
        if wanted:
            archive, unpacked = self.work / "archive", self.work / "tree"
            self.store.get_to(code.key, archive)
            unpacked.mkdir()
            files = {path: entry._asdict() for path, entry in manifest.files.items()}
            extract(str(archive), files, manifest.directories, str(unpacked))
            for path in wanted:
                self._put_in_place(unpacked / path, path)
                self.progress(manifest.files[path].size, 1)
        self._make_directories(manifest)
        size = sum(manifest.files[path].size for path in wanted)
        return DownloadSummary(len(wanted), size, len(manifest.files) - len(wanted), manifest.digest)

    def _unlisted(self, code: CodeRef) -> DownloadSummary:
        """Fetch what somebody else uploaded: the proof is its sizes, and the ETags where they are md5 sums."""
        start = f"{code.key}/"
        objects = {i.key[len(start) :]: i for i in self.store.list(start) if not i.key.endswith("/")}
        if not objects:
            raise StoreError(f"{code.uri}: there is nothing", "correct the address")

        def fetch(path: str) -> None:
            temporary = self._temporary(path)
            self.store.get_to(start + path, temporary)
            _compare(temporary, objects[path], f"{code.uri}/{path}")
            temporary.chmod(0o644)
            self._put_in_place(temporary, path)
            self.progress(objects[path].size, 1)

        run_all(list(objects), fetch, lambda path: objects[path].size, self.threads)
        return DownloadSummary(len(objects), sum(info.size for info in objects.values()), 0, None)

    # ── files ───────────────────────────────────────────────────────────────────────────────────────────────────

    def _lacking(self, files: Mapping[str, Entry]) -> list[str]:
        return [path for path, entry in files.items() if not _is_there(self.root / path, entry)]

    def _temporary(self, path: str) -> Path:
        descriptor, name = tempfile.mkstemp(dir=self.work)
        os.close(descriptor)
        return Path(name)

    def _put_in_place(self, file: Path, path: str) -> None:
        destination = safe_path(str(self.root), path)
        real = os.path.realpath(os.path.dirname(destination))
        if os.path.commonpath([real, os.path.realpath(self.root)]) != os.path.realpath(self.root):
            raise FetchError(f"{path} would leave {self.root} by a link in it")
        if os.path.isdir(destination) and not os.path.islink(destination):
            shutil.rmtree(destination)
        os.replace(file, destination)

    def _make_directories(self, manifest: Manifest) -> None:
        for directory in manifest.directories:
            with suppress(FileExistsError):
                os.makedirs(safe_path(str(self.root), directory), exist_ok=True)


def _is_there(file: Path, entry: Entry) -> bool:
    try:
        status = file.lstat()
        if status.st_size != entry.size or file.is_symlink() or not file.is_file():
            return False
        mode = "755" if status.st_mode & 0o100 else "644"
        return mode == entry.mode and hash_file(str(file))[0] == entry.sha256
    except OSError:
        return False


def _compare(file: Path, info: ObjectInfo, address: str) -> None:
    import hashlib

    md5, size = hashlib.md5(usedforsecurity=False), 0
    for block in read_blocks(str(file)):
        md5.update(block)
        size += len(block)
    if size != info.size or (_MD5.fullmatch(info.tag) and md5.hexdigest() != info.tag):
        raise FetchError(f"{address} did not arrive as it is in the store")
