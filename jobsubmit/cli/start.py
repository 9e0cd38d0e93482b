"""The commands to begin with: init and schema."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Annotated

import typer

from jobsubmit.assets import SAMPLE_CODE, starter_job
from jobsubmit.cli.job_file import ModeOption
from jobsubmit.cli.options import Debug, Format, OutputFormat
from jobsubmit.cli.output import out
from jobsubmit.errors import UsageError
from jobsubmit.spec.model import json_schema

_CODE = "code"


def init(
    directory: Annotated[Path, typer.Argument(help="Where to write it.", metavar="DIR", show_default="here")] = Path(),
    mode: Annotated[ModeOption, typer.Option("--mode", help="How training is started.")] = ModeOption.torchrun,
    format_: Format = OutputFormat.text,
    debug: Debug = False,
) -> None:
    """Write a first job.yaml.

    Beside it goes sample training code, where there is no `code` folder yet.

    Example: jobsubmit init demo && jobsubmit create demo/job.yaml --follow
    """
    job = directory / "job.yaml"
    if job.exists():
        raise UsageError(f"{job} exists already", "remove it, or give another directory")
    code = directory / _CODE
    text = starter_job(mode.value).read_text(encoding="utf-8")
    text = text.replace("code_dir: ../../code", f"code_dir: {_CODE}").replace(
        f"create {mode.value}.yaml", "create job.yaml"
    )
    try:
        directory.mkdir(parents=True, exist_ok=True)
        if not code.exists():
            shutil.copytree(SAMPLE_CODE, code, ignore=shutil.ignore_patterns("__pycache__", "*.sh"))
            out.talk(f"wrote {code}/, the sample training code")
        job.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{error.filename or job}: {error.strerror}", "give a directory you can write to") from error
    if out.json:
        out.document({"job_file": str(job), "code_dir": str(code)})
    else:
        out.data(str(job))
    out.talk(f"next: jobsubmit create {job} --follow")


def schema(format_: Format = OutputFormat.json, debug: Debug = False) -> None:
    """Print the JSON Schema of a job file.

    Example: jobsubmit schema > job.schema.json
    """
    out.document(json_schema())
