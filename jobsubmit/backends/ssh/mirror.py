"""What this machine keeps of a job's files on its hosts: it is still there when a host is not.

Small files are copied whole, and of those that only grow the rest. The folder is laid out as one that all nodes share.
"""

from __future__ import annotations

import json
import shutil
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import Any

from jobsubmit.agent.atomic_write import make_private, open_private, replace_file
from jobsubmit.agent.protocol import NodeStatus, read_status_text
from jobsubmit.agent.status_file import read_status
from jobsubmit.backends.shared.shared_folder import SharedFolder
from jobsubmit.common.file_lock import hold_lock

_HOSTS, _CONCLUSION, _WITHOUT_HOST_0 = "hosts.json", "conclusion.json", "without-host-0.json"
_DEEPEST = 4  # run-0/node-0/timing/FILE


class Mirror:
    """The copies of one job's files: `hosts/INDEX` for those of a host, `job` for those of all nodes together."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.job = folder / "job"

    def remember(self, hosts: tuple[str, ...], workdir: str) -> None:
        """Keep where the job is, before it is started there."""
        make_private(str(self.folder))
        replace_file(str(self.folder / _HOSTS), json.dumps({"hosts": hosts, "workdir": workdir}))

    def recall(self) -> tuple[tuple[str, ...], str] | None:
        """Return hosts and folder of the job; None if it was not started from this machine."""
        try:
            found = json.loads((self.folder / _HOSTS).read_text(encoding="utf-8"))
            return tuple(map(str, found["hosts"])), str(found["workdir"])
        except (OSError, ValueError, LookupError, TypeError):
            return None

    def known(self, index: int) -> dict[str, int]:
        """Return the size of each copy of a host's files."""
        folder = self._of(index)
        files = (path for path in folder.rglob("*") if path.is_file()) if folder.is_dir() else ()
        return {path.relative_to(folder).as_posix(): path.stat().st_size for path in files}

    def take(self, index: int, parts: list[Any], data: bytes) -> None:
        """Write what a host has sent; a part that does not follow what is here is left out, for the next time."""
        position = 0
        with hold_lock(self.folder / "lock", lambda: None):
            for name, offset, size in parts:
                content, position = data[position : position + size], position + size
                path = self._path(index, name)
                if path is None or len(content) < size:
                    continue
                make_private(str(path.parent))
                if offset == 0:
                    replace_file(str(path), content, is_durable=False)
                elif path.exists() and path.stat().st_size == offset:
                    with open(path, "ab", opener=open_private) as stream:
                        stream.write(content)

    def _of(self, index: int) -> Path:
        return self.folder / "hosts" / str(index)

    def _path(self, index: int, name: str) -> Path | None:
        """Return where a copy is; None for a name that would leave the folder."""
        parts = PurePosixPath(name).parts
        if not parts or len(parts) > _DEEPEST or any(part in ("..", "/") for part in parts):
            return None
        return self._of(index).joinpath(*parts)

    def status_of(self, index: int) -> NodeStatus | None:
        """Return the status of the whole job as a host knows it."""
        return read_status(str(self._of(index)))

    def conclude(self, status: NodeStatus) -> None:
        """Keep how the job ended: nothing changes that, whatever becomes of its hosts."""
        self._keep(_CONCLUSION, status)

    @property
    def conclusion(self) -> NodeStatus | None:
        """Return how the job ended, once that is known here."""
        return self._kept(_CONCLUSION)

    def remember_without_host_0(self, status: NodeStatus) -> None:
        """Keep what another host concluded while host 0 answered neither it nor us."""
        self._keep(_WITHOUT_HOST_0, status)

    @property
    def without_host_0(self) -> NodeStatus | None:
        """Return what another host concluded while host 0 answered nobody."""
        return self._kept(_WITHOUT_HOST_0)

    def _keep(self, name: str, status: NodeStatus) -> None:
        with suppress(OSError):  # another reader does the same
            replace_file(str(self.folder / name), json.dumps(status))

    def _kept(self, name: str) -> NodeStatus | None:
        try:
            return read_status_text((self.folder / name).read_bytes())
        except (OSError, ValueError):
            return None

    def joined(self, hosts: int) -> SharedFolder:
        """Return the files of all nodes as one folder: links to the copies of the host that ran each node."""
        for index in range(hosts):
            for node in self._of(index).glob("run-*/node-*"):
                link = self.job / node.relative_to(self._of(index))
                if not link.is_symlink():
                    make_private(str(link.parent))
                    with suppress(FileExistsError):  # another reader was faster
                        link.symlink_to(node)
        request = self._of(0) / "request.json"
        if request.exists() and not (self.job / request.name).exists():
            make_private(str(self.job))
            with suppress(FileExistsError):
                (self.job / request.name).symlink_to(request)
        return SharedFolder(self.job)

    def remove(self) -> None:
        """Remove all copies."""
        shutil.rmtree(self.folder, ignore_errors=True)
