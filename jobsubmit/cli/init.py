"""The command to begin with: init."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from jobsubmit.cli.options import sample_names
from jobsubmit.spec.modes import Mode


def init(
    directory: Annotated[Path, typer.Argument(help="Where to write it.", metavar="DIR", show_default="here")] = Path(),
    mode: Annotated[
        Mode | None,
        typer.Option("--mode", help="How training is started.", show_default="what your code wants, else torchrun"),
    ] = None,
    command: Annotated[
        str | None,
        typer.Option(
            "--from", metavar="COMMAND", help='From a command line: "torchrun --nproc_per_node=8 train.py …".'
        ),
    ] = None,
    sample: Annotated[
        str | None,
        typer.Option(
            "--sample",
            metavar="NAME",
            help="Write this sample: its job file and its code.",
            autocompletion=sample_names,
        ),
    ] = None,
    list_: Annotated[bool, typer.Option("--list", help="Show the samples there are, and write nothing.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace the job.yaml that is there.")] = False,
    with_code: Annotated[
        bool, typer.Option("--with-code", help="Write the sample training code beside it, whatever lies there.")
    ] = False,
) -> None:
    """Write a first job.yaml.

    In a directory with training code it proposes boot file and mode from what it finds there. With --from it writes
    what a command line says: python, torchrun, accelerate launch, deepspeed, srun, mpirun or any other. In a new or
    empty directory it writes sample training code, too: the documented DDP example, or another --sample.
    """
    from jobsubmit.cli.first_job import show_samples, write_first_job

    if list_:
        show_samples()
    else:
        write_first_job(directory, mode, command, sample, force=force, with_code=with_code)
