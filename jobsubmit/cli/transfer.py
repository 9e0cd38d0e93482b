"""The command that moves a directory without a job: upload."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from jobsubmit import upload as uploading
from jobsubmit.bundle import scan
from jobsubmit.cli import output
from jobsubmit.cli.options import Debug, Format, OutputFormat
from jobsubmit.cli.output import out
from jobsubmit.errors import UsageError
from jobsubmit.settings import load_settings
from jobsubmit.spec.load import load_store
from jobsubmit.stores import open_store


def upload(
    directory: Annotated[Path, typer.Argument(help="The directory to upload.", metavar="DIR")],
    uri: Annotated[str, typer.Argument(help="s3://bucket/path, obs://bucket/path or a folder.", metavar="URI")],
    endpoint_url: Annotated[
        str | None, typer.Option("--endpoint-url", metavar="URL", help="Server of an OBS or MinIO bucket.")
    ] = None,
    profile: Annotated[
        str | None, typer.Option("--profile", help="Named profile of the AWS credentials files.")
    ] = None,
    format_: Format = OutputFormat.text,
    debug: Debug = False,
) -> None:
    """Upload a directory.

    One object per file, verified; nothing is sent when it is there already. Ignore rules as for jobs. A manifest beside
    it (URI.manifest.json), written last, says that it is whole. What lies there already and is not in DIR stays there.

    Example: jobsubmit upload ./code s3://bucket/team/code
    """
    above, separator, name = uri.rstrip("/").rpartition("/")
    if "://" in uri and (not separator or above.endswith(":/")):
        raise UsageError(f"{uri}: must name a folder in the bucket", "e.g. s3://bucket/code")
    store = {"uri": above or ("/" if separator else "."), "endpoint_url": endpoint_url, "profile": profile}
    spec = load_settings().completed(load_store(store, uri))
    bundle = scan(directory)
    with output.upload_progress(bundle.size) as progress:
        summary = uploading.upload(open_store(spec), bundle, uploading.tree_ref(uri, name, bundle.digest), progress)
    if out.json:
        out.document(
            {
                "uri": uri,
                "digest": bundle.digest,
                "files": summary.files,
                "bytes": summary.size,
                "skipped": summary.skipped,
            }
        )
    else:
        out.data(f"{uri}: {summary.files} files sent ({summary.size:,} bytes), {summary.skipped} unchanged")
        out.talk(f"use it in a job file: code_dir: {uri if '://' in uri else Path(uri).absolute()}")
