"""The command that writes a job file: init."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from jobsubmit.cli.job_file_options import Nodes, Set
from jobsubmit.cli.options import sample_names
from jobsubmit.spec.modes import Mode


def init(
    directory: Annotated[
        Path, typer.Argument(help="Where to write it.", metavar="DIR", show_default="current directory")
    ] = Path(),
    mode: Annotated[
        Mode | None,
        typer.Option("--mode", help="How training is started.", show_default="what fits your code, else torchrun"),
    ] = None,
    command: Annotated[
        str | None,
        typer.Option(
            "--from", metavar="COMMAND", help='Convert this command line: "torchrun --nproc_per_node=8 train.py …".'
        ),
    ] = None,
    sample: Annotated[
        str | None,
        typer.Option(
            "--sample",
            metavar="NAME",
            help="Write the job file and the code of this sample.",
            autocompletion=sample_names,
        ),
    ] = None,
    nodes: Nodes = None,
    set_: Set = None,
    list_: Annotated[bool, typer.Option("--list", help="List the available samples; write nothing.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing job.yaml.")] = False,
    with_code: Annotated[
        bool, typer.Option("--with-code", help="Also write sample training code, even if DIR has code.")
    ] = False,
) -> None:
    """Write a job.yaml from your code, a command line or a sample.

    In a directory with training code, it proposes the boot file and the mode.
    With --from, it converts a command line of python, torchrun, accelerate
    launch, deepspeed, srun, mpirun or any other program. In a new or empty
    directory, it also writes sample training code: a DDP example, or another
    --sample. With --nodes or --set, the job file has these values, and init
    checks your code for them.
    """
    from jobsubmit.cli import console
    from jobsubmit.cli.findings import READING
    from jobsubmit.cli.first_job import show_samples, write_first_job
    from jobsubmit.cli.job_file import overrides

    if list_:
        show_samples()
    else:
        with console.said_if_slow(READING):
            changes = overrides(assignments=set_, nodes=nodes)
            write_first_job(directory, mode, command, sample, force=force, with_code=with_code, changes=changes)
