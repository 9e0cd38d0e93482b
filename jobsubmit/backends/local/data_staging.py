"""Copy data between a job's directories and its stores, as a program: `… data_staging inputs JOB_DIR`.

The supervisor starts it in the user's directory, with the user's environment and so with the user's credentials.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from jobsubmit.agent.job_directory import JobDirectory
from jobsubmit.agent.protocol import AgentRequest, Mount
from jobsubmit.agent.supervisor.environment import mount_path
from jobsubmit.bundle.scanner import scan
from jobsubmit.common.store_address import REMOTE_SCHEMES, StoreAddress
from jobsubmit.config import load_settings
from jobsubmit.errors import JobSubmitError
from jobsubmit.stores.opening import open_store
from jobsubmit.stores.protocol import ObjectStore
from jobsubmit.transfer.code_ref import CodeRef, place_ref
from jobsubmit.transfer.download import download
from jobsubmit.transfer.input_cache import fetch_cached
from jobsubmit.transfer.progress import Progress
from jobsubmit.transfer.upload import upload


def main() -> int:
    """Copy `inputs` or `outputs` (first argument) of a job (second argument: its directory); return the exit code."""
    what, files = sys.argv[1], JobDirectory(sys.argv[2])
    request: AgentRequest = json.loads(Path(files.request).read_text(encoding="utf-8"))
    carry = _bring if what == "inputs" else _send
    failed = 0
    for mount in request["mounts"]:
        try:
            carry(mount, Path(mount_path(request, files, mount)), request)
        except JobSubmitError as error:
            sys.stderr.write(f"jobsubmit: {mount['kind']} {mount['name']}: {error.message}\n  {error.hint}\n")
            failed = 1
    return failed


def _bring(mount: Mount, path: Path, request: AgentRequest) -> None:
    is_remote = mount["uri"].startswith(REMOTE_SCHEMES)
    if mount["kind"] == "checkpoint" and is_remote and request["checkpoints_of"] != request["job_id"]:
        _bring_checkpoints(mount, path, request)
    if mount["kind"] != "input":
        return
    found = Path(mount["uri"])
    if is_remote:
        found = fetch_cached(*_place(mount, request), load_settings().input_dir)
    elif not found.is_dir():
        raise JobSubmitError(f"{found} is not a folder", "correct its uri in the job file")
    path.unlink(missing_ok=True)
    path.symlink_to(found)


def _bring_checkpoints(mount: Mount, path: Path, request: AgentRequest) -> None:
    store, place = _place(mount, request)
    if store.get_unless(place.manifest_key, "") is None:
        sys.stderr.write(f"jobsubmit: no checkpoint of {request['checkpoints_of']} exists in {mount['uri']}\n")
        return
    download(store, place, path, Progress())


def _send(mount: Mount, path: Path, request: AgentRequest) -> None:
    if not mount["every"] or not path.is_dir() or not any(path.iterdir()):
        return
    store, place = _place(mount, request)
    made = scan(path, ignore=False)
    summary = upload(store, made, place, load_settings().transfer_dir, progress=Progress())
    if summary.files:
        sys.stderr.write(f"jobsubmit: {mount['kind']} {mount['name']}: files sent to {place.uri}: {summary.files}\n")


def _place(mount: Mount, request: AgentRequest) -> tuple[ObjectStore, CodeRef]:
    uri = mount["uri"].rstrip("/")
    if mount["kind"] == "checkpoint":
        uri += f"/{request['checkpoints_of']}"
    above, _, name = uri.rpartition("/")
    server = StoreAddress(**request["server"])  # type: ignore[arg-type] # a job file has said how it is addressed
    return open_store(server._replace(uri=above)), place_ref(uri, name)


if __name__ == "__main__":
    sys.exit(main())
