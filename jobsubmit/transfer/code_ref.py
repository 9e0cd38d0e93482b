"""Where code is, or will be, in a store."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from jobsubmit.bundle.model import Bundle
    from jobsubmit.plan.script import Script
    from jobsubmit.spec.job_spec import Layout

ARCHIVE_ENDING = ".tar.gz"
MANIFEST_ENDING = ".manifest.json"


class CodeRef(NamedTuple):
    """Where code is: `key` is its key in the store, `name` is its folder in MA_JOB_DIR.

    `fixed` means that the key contains the digest, so its content never changes.
    """

    uri: str
    key: str
    layout: Layout
    name: str
    digest: str | None
    fixed: bool = False

    @property
    def manifest_key(self) -> str:
        """Return the key of its manifest, which is written last."""
        return self.key + MANIFEST_ENDING

    def diff_key(self, sha256: str) -> str:
        """Return the key of the diff between the commit that the manifest names and its files, by the diff's digest."""
        return f"{self.key}.uncommitted-{sha256[:12]}.diff"


def code_ref(store_uri: str, job_name: str, code_name: str, bundle: Bundle, layout: Layout) -> CodeRef:
    """Return where the bundle of a job will be; contacts nothing."""
    key = f"{job_name}/{bundle.digest}/{code_name}" + (ARCHIVE_ENDING if layout == "archive" else "")
    return CodeRef(f"{store_uri}/{key}", key, layout, code_name, bundle.digest, fixed=True)


def place_ref(uri: str, name: str, layout: Layout = "tree") -> CodeRef:
    """Return the reference to code that is, or will be, at `uri`; the store to open is the folder above it."""
    if layout == "archive":
        name = name.removesuffix(ARCHIVE_ENDING)
        return CodeRef(uri.removesuffix(ARCHIVE_ENDING) + ARCHIVE_ENDING, name + ARCHIVE_ENDING, layout, name, None)
    return CodeRef(uri, name, layout, name, None)


def script_key(job_name: str, script: Script) -> str:
    """Return the key of a start script: by its own digest, which is not that of the code."""
    return f"{job_name}/scripts/{script.sha256}.sh"
