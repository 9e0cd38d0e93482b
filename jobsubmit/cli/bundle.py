"""The command that shows what would be uploaded: bundle."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from jobsubmit.cli.console import counted, out, printable
from jobsubmit.cli.job_file_options import DEFAULT_JOB_FILE, JobFile, Set
from jobsubmit.config import load_settings
from jobsubmit.errors import UsageError

if TYPE_CHECKING:
    from jobsubmit.bundle.git import Revision
    from jobsubmit.bundle.model import Bundle, BundleFile
    from jobsubmit.common.finding import Finding


def bundle(
    job: JobFile = DEFAULT_JOB_FILE,
    list_: Annotated[bool, typer.Option("--list", help="Show all files, and everything that is left out.")] = False,
    top: Annotated[int, typer.Option("--top", metavar="N", min=1, help="Show the N largest files.")] = 10,
    set_: Set = None,
) -> None:
    """Show which files of the code directory would be uploaded.

    Shows the digest of the bundle, the largest files, what is left out and
    why, and keys or tokens that do not belong in an upload. Changes nothing.

    Exit codes: 0 no problem, 2 the job file is invalid, 3 the bundle contains
    a secret, or exceeds a limit of the backend.
    """
    from jobsubmit.cli.job_file import overrides, read_job
    from jobsubmit.jobs import prepare

    loaded = read_job(job, None, overrides(assignments=set_))
    found, wrong = prepare.examine_bundle(loaded, load_settings())
    if found is None:
        raise UsageError(
            f"code_dir {loaded.spec.code_dir}: is already in a bucket; nothing would be uploaded",
            "set code_dir to a directory of this machine",
        )
    files = sorted(found.files, key=lambda file: (-file.size, file.path))
    if out.json:
        out.document(_document(found, files if list_ else files[:top], wrong))
    else:
        _show(found, files, None if list_ else top)
    if wrong:
        if not out.json:
            raise prepare.check_error(wrong)
        raise typer.Exit(3)


def _document(found: Bundle, files: Sequence[BundleFile], wrong: Sequence[Finding]) -> dict[str, object]:
    return {
        "root": str(found.root),
        "digest": found.digest,
        "git": found.revision.document() if found.revision else None,
        "files": len(found.files),
        "bytes": found.size,
        "largest": [file.entry() for file in files],
        "left_out": [left._asdict() for left in found.left_out],
        "empty_directories": list(found.directories),
        "secrets": [_place(finding) for finding in wrong if finding.check == "secret"],
        "limits": [_place(finding) for finding in wrong if finding.check != "secret"],
    }


def _place(finding: Finding) -> dict[str, str]:
    return {"where": finding.where, "text": finding.text}


def _show(found: Bundle, files: Sequence[BundleFile], most: int | None) -> None:
    """Show a bundle, with at most so many files, and paths that are left out."""
    out.data(f"{found.root}: {counted(len(found.files), 'file')}, {counted(found.size, 'byte')}")
    out.data(f"digest {found.digest}")
    if found.revision:
        _show_revision(found.revision, is_whole=most is None)
    for file in files[:most]:
        out.data(f"{file.size:>15,}  {printable(file.path)}")
    if more := len(files[most:]) if most else 0:
        out.data(f"{'':>15}  and {more:,} smaller ones; --list shows all")
    for left in found.left_out[:most]:
        out.data(f"left out: {printable(left.path)} ({left.reason})")
    if more := len(found.left_out[most:]) if most else 0:
        out.data(f"left out: {more:,} more; --list shows all")


def _show_revision(revision: Revision, *, is_whole: bool) -> None:
    uncommitted = len(revision.uncommitted)
    out.data(
        f"git commit {revision.commit}"
        + (f" on {printable(revision.branch)}" if revision.branch else ", no branch")
        + (f", {counted(uncommitted, 'uncommitted path')}" if uncommitted else ", no uncommitted changes")
    )
    for path in revision.uncommitted if is_whole else ():
        out.data(f"not committed: {printable(path)}")
