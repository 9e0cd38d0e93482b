"""The commands that transfer a directory without a job: upload, download.

They are used in loops and hooks, where start-up takes nearly all of their time. So they use a parser of the standard
library, and load nothing that an unchanged directory does not need.
"""

from __future__ import annotations

import argparse
import gc
import os
import resource
import time
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, NoReturn

from jobsubmit import config as configuration
from jobsubmit.bundle.model import NOT_REGULAR, Bundle, Known
from jobsubmit.bundle.scan_cache import load_known, save_known
from jobsubmit.bundle.scanner import scan
from jobsubmit.cli import console
from jobsubmit.cli.commands import COMMANDS
from jobsubmit.cli.console import counted, out, printable
from jobsubmit.common.language import translate
from jobsubmit.common.store_address import StoreAddress, endpoint_problem, name_problem, store_uri_problem, without_user
from jobsubmit.errors import INTERRUPTED, UsageError
from jobsubmit.stores.opening import open_store
from jobsubmit.stores.protocol import ObjectStore
from jobsubmit.transfer.code_ref import ARCHIVE_ENDING, MANIFEST_ENDING, CodeRef, place_ref

_COLUMNS = os.environ.get("COLUMNS", "")
_WIDTH = int(_COLUMNS) if _COLUMNS.isdecimal() and int(_COLUMNS) else 110  # argparse would load much to ask for it
if TYPE_CHECKING:
    from jobsubmit.spec.job_spec import Layout
    from jobsubmit.transfer.upload import Changes

_OPEN_FILES = 1024
_URI_HELP = "s3://bucket/path, obs://bucket/path or a folder"


def run(command: str, arguments: list[str]) -> int:
    """Run one of the two commands and return its exit code."""
    gc.disable()  # a hundred thousand files make no cycles, but make it look for them
    _allow_open_files()
    options = make_parser(command).parse_args(arguments)
    out.json, out.debug = options.output == "json", options.debug or out.debug
    return _upload(options) if command == "upload" else _download(options)


def _allow_open_files() -> None:
    """Raise the limit of open files where it is low: many requests at once need a socket and a file each."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < _OPEN_FILES:
        with suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (_OPEN_FILES, hard))


# ── options ─────────────────────────────────────────────────────────────────────────────────────────────────────────


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UsageError(message, f"run `{self.prog} --help` for usage")


def make_parser(command: str) -> argparse.ArgumentParser:
    """Return the parser of one of the two commands."""
    action = _upload if command == "upload" else _download
    parser = _Parser(
        prog=f"jobsubmit {command}",
        description=(action.__doc__ or "").replace("\n    ", "\n").strip(),
        epilog="\n".join(COMMANDS[command].epilog()),
        formatter_class=partial(argparse.RawDescriptionHelpFormatter, width=_WIDTH),
        allow_abbrev=False,
    )
    if command == "upload":
        parser.add_argument("directory", metavar="DIR", help="the directory to upload")
        parser.add_argument("uri", metavar="URI", help=_URI_HELP)
        parser.add_argument("--archive", action="store_true", help="write one compressed object, URI.tar.gz")
        parser.add_argument(
            "--delete", action="store_true", help="delete objects whose files are not in DIR, or are ignored"
        )
        parser.add_argument("--recheck", action="store_true", help="check every object, not only the manifest")
        parser.add_argument(
            "--force",
            action="store_true",
            help="replace the object at the manifest's address even if it is not a manifest",
        )
        parser.add_argument("--dry-run", action="store_true", help="show what would be sent and removed")
    else:
        parser.add_argument("uri", metavar="URI", help=_URI_HELP)
        parser.add_argument("directory", metavar="DIR", help="the directory to write to; created if it does not exist")
    parser.add_argument("--endpoint-url", metavar="URL", help="server of an OBS or MinIO bucket")
    parser.add_argument("--region", metavar="NAME", help="region of the bucket, for signing requests")
    parser.add_argument("--profile", metavar="NAME", help="named profile of the AWS credentials files")
    parser.add_argument(
        "--addressing", choices=["auto", "virtual", "path"], help="bucket in the host name, or in the path"
    )
    parser.add_argument("--ca-bundle", metavar="FILE", help="CA certificates for verifying the server")
    parser.add_argument(
        "-o", "--output", choices=["text", "json"], default="text", help="text for people, json for programs"
    )
    parser.add_argument("--debug", action="store_true", help="show the traceback of an error")
    return parser


class _Place(NamedTuple):
    """The place of a directory: the store, and the code reference in it."""

    address: StoreAddress
    code: CodeRef

    @property
    def own(self) -> tuple[Path, ...]:
        """Return the paths that an upload writes, which are never part of the uploaded directory."""
        if self.address.is_remote:
            return ()
        name = self.code.name
        objects = (name, name + ARCHIVE_ENDING)
        return tuple(Path(self.address.uri) / (key + ending) for key in objects for ending in ("", MANIFEST_ENDING))


def _place(options: argparse.Namespace, layout: Layout, settings: configuration.Settings) -> _Place:
    uri: str = options.uri.removeprefix("file://")
    is_remote = "://" in uri
    uri = uri.rstrip("/") or uri
    above, separator, name = uri.rpartition("/")
    if is_remote and (not separator or above.endswith((":", ":/"))):
        raise UsageError(f"{uri}: must name a folder in the bucket", "for example: s3://bucket/code")
    if not name or name in (".", ".."):
        raise UsageError(f"{options.uri!r}: must end in the name of a folder", "for example: s3://bucket/code")
    own = StoreAddress(
        above or ("/" if separator else "."),
        options.endpoint_url,
        options.region,
        options.profile,
        options.addressing,
        options.ca_bundle and os.path.abspath(options.ca_bundle),
    )
    if problem := store_uri_problem(own.uri) or name_problem(name):
        raise UsageError(f"{options.uri!a}: {problem}")
    if own.endpoint_url is not None and (problem := endpoint_problem(own.endpoint_url)):
        raise UsageError(f"--endpoint-url {without_user(own.endpoint_url)}: {problem}")
    if not own.is_remote and any(own[1:]):
        raise UsageError(f"{uri}: a folder takes no server options", "remove them, or give an s3:// or obs:// address")
    return _Place(settings.completed(own), place_ref(uri, name, layout))


def _require_apart(root: Path, place: _Place) -> None:
    """Raise UsageError where a directory would be uploaded onto itself, or onto a file."""
    if not place.address.is_remote:
        if place.code.layout == "tree" and os.path.isfile(place.code.uri):
            raise UsageError(f"{place.code.uri}: is a file", "choose another URI")
        target, source = os.path.realpath(place.code.uri), os.path.realpath(root)
        if os.path.commonpath([target, source]) == target:
            raise UsageError(f"{place.code.uri}: is {root} itself, or contains it", "choose another URI")


# ── commands ────────────────────────────────────────────────────────────────────────────────────────────────────────


def _upload(options: argparse.Namespace) -> int:
    """Upload a directory, or only what changed in it.

    Writes and verifies one object per file. Unchanged files are not sent. A
    manifest (URI.manifest.json), written last, marks the upload as complete.
    The ignore rules are those of jobs: .gitignore, and .jobignore, which adds
    to it. Objects that are not in DIR are kept, unless you give --delete.
    """
    from jobsubmit.transfer import upload as uploading

    started = time.monotonic()
    if not options.directory:
        raise UsageError("DIR: must not be empty", "e.g. jobsubmit upload . s3://bucket/code")
    if options.archive and options.delete:
        raise UsageError(
            "--archive cannot be combined with --delete: an archive is always replaced as a whole", "remove one of them"
        )
    settings = configuration.load_settings()
    place = _place(options, "archive" if options.archive else "tree", settings)
    code, root, folder = place.code, Path(options.directory), settings.transfer_dir
    if code.layout == "tree" and code.name.endswith((ARCHIVE_ENDING, MANIFEST_ENDING)):
        raise UsageError(f"{code.uri}: this ending is reserved for archives and manifests", "choose another URI")
    _require_apart(root, place)
    known: Known | None = load_known(folder, root)
    known_files = len(known or ())
    bundle = scan(root, (settings.state_dir, *place.own), known)
    known = None  # of a hundred thousand files it is large
    store = open_store(place.address)
    if options.dry_run:
        changes = uploading.compare(
            store, bundle, code, recheck=options.recheck, mirror=options.delete, force=options.force
        )
        if not out.json:
            _show_left_out(bundle, code)
        _show_changes(changes, code, bundle)
        return 0
    try:
        with console.transfer_progress() as progress:
            summary = uploading.upload(
                store,
                bundle,
                code,
                folder,
                progress=progress,
                recheck=options.recheck,
                mirror=options.delete,
                force=options.force,
            )
    except KeyboardInterrupt:
        out.talk("interrupted: the upload is incomplete; run the same command again to continue it")
        return INTERRUPTED
    save_known(folder, bundle, known_files)
    seconds = time.monotonic() - started
    if out.json:
        out.document(
            {
                "uri": code.uri,
                "digest": bundle.digest,
                "files": summary.files,
                "bytes": summary.size,
                "skipped": summary.skipped,
                "deleted": list(summary.deleted),
                "left_out": [left._asdict() for left in bundle.left_out],
                "empty_directories": list(bundle.directories),
                "seconds": round(seconds, 3),
                "requests": store.requests,
            }
        )
        return 0
    _show_left_out(bundle, code)
    for key in summary.deleted:
        out.talk(f"removed {printable(key)}")
    removed = f"{len(summary.deleted):,} removed; " if summary.deleted else ""
    sent = f"{counted(summary.files, 'file')} sent ({counted(summary.size, 'byte')})"
    cost = _cost(store, summary.size, seconds)
    out.data(translate(f"{code.uri}: {sent}, {summary.skipped:,} unchanged; {removed}{cost}"))
    if code.layout == "tree":
        out.talk(
            f"use it in a job file, as `code_dir` or as the `uri` of an input: "
            f"{code.uri if place.address.is_remote else os.path.abspath(code.uri)}"
        )
    return 0


def _show_left_out(bundle: Bundle, code: CodeRef) -> None:
    ignored = [left for left in bundle.left_out if left.reason != NOT_REGULAR]
    for left in bundle.left_out:
        if left.reason == NOT_REGULAR:
            out.talk(f"note: {printable(left.path)}: {NOT_REGULAR}, left out")
    if ignored:
        first = f"{printable(ignored[0].path)} ({ignored[0].reason})"
        others = f" and {len(ignored) - 1:,} more" if len(ignored) > 1 else ""
        out.talk(f"note: left out: {first}{others}; -o json lists all")
    if bundle.directories and code.layout == "tree":
        folders = counted(len(bundle.directories), "empty folder")
        out.talk(f"note: {folders}: only in the manifest; jobsubmit and the nodes create them when they download")


def _show_changes(changes: Changes, code: CodeRef, bundle: Bundle) -> None:
    if out.json:
        send = [file.entry() for file in changes.send]
        left_out = [left._asdict() for left in bundle.left_out]
        out.document({"uri": code.uri, "send": send, "delete": list(changes.delete), "left_out": left_out})
        return
    for file in changes.send:
        out.data(translate(f"would send {printable(file.path)} ({counted(file.size, 'byte')})"))
    for key in changes.delete:
        out.data(translate(f"would remove {printable(key)}"))
    files = counted(len(changes.send), "file")
    out.data(translate(f"{code.uri}: {files} to send, {len(changes.delete)} to remove"))


def _download(options: argparse.Namespace) -> int:
    """Download a directory and verify each file.

    Unchanged files in DIR are not fetched. Files that differ are replaced.
    Other files in DIR are kept.
    """
    from jobsubmit.transfer.download import download

    started = time.monotonic()
    if not options.directory:
        raise UsageError("DIR: must not be empty", "for example: jobsubmit download s3://bucket/code .")
    address, code = _place(options, "tree", configuration.load_settings())
    if code.name.endswith(MANIFEST_ENDING):
        raise UsageError(f"{code.uri}: this is a manifest", "give the URI of its upload, without this ending")
    store, root = open_store(address), Path(options.directory)
    if root.exists() and not root.is_dir():
        raise UsageError(f"{root}: is not a directory", "choose another DIR")
    with console.transfer_progress() as progress:
        summary = download(store, code, root, progress)
    seconds = time.monotonic() - started
    if out.json:
        facts = {"uri": options.uri, "directory": str(root), "digest": summary.digest, "files": summary.files}
        facts |= {"bytes": summary.size, "skipped": summary.skipped, "seconds": round(seconds, 3)}
        out.document({**facts, "requests": store.requests})
        return 0
    proof = "verified with its manifest" if summary.digest else "no manifest: compared sizes and ETags"
    fetched = f"{counted(summary.files, 'file')} fetched ({counted(summary.size, 'byte')})"
    cost = _cost(store, summary.size, seconds)
    out.data(translate(f"{root}: {fetched}, {summary.skipped:,} unchanged; {cost}; {proof}"))
    return 0


def _cost(store: ObjectStore, size: int, seconds: float) -> str:
    rate = f", {size / max(seconds, 0.001) / 1e6:.1f} MB/s" if size else ""
    requests = f", {counted(store.requests, 'request')}" if store.requests else ""
    return f"{seconds:.2f} s{rate}{requests}"
