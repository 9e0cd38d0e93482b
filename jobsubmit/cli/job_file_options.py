"""The options that name the job file and change its fields."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, TypeAlias

import typer

from jobsubmit.cli.options import backend_names
from jobsubmit.spec.modes import Mode

DEFAULT_JOB_FILE = Path("job.yaml")


Faults: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--fault",
        metavar="FAULT",
        help="Local backend: cause a failure on purpose, e.g. 'kill node 1 at step 20', 'delay node 2 by 30s', "
        "'kill rank 3 with SIGTERM after 5s'; without a time, once all ranks have started. May be repeated.",
    ),
]
JobId: TypeAlias = Annotated[
    str | None, typer.Option("--job-id", metavar="ID", help="Set the id of the job, instead of NAME-suffix.")
]
Follow: TypeAlias = Annotated[
    bool | None,
    typer.Option(
        "--follow/--detach",
        help="Follow the job to its end, or return once it is submitted.",
        show_default="follow on a terminal",
    ),
]
DryRun: TypeAlias = Annotated[
    bool, typer.Option("--dry-run", "--dryrun", help="Print bundle, script and request; change nothing.")
]
Check: TypeAlias = Annotated[
    bool, typer.Option("--check/--no-check", help="Check the code. Secrets and limits are always checked.")
]
RequireClean: TypeAlias = Annotated[
    bool, typer.Option("--require-clean", help="Refuse code that is not fully committed to git.")
]
Recheck: TypeAlias = Annotated[
    bool,
    typer.Option("--recheck", help="Check every object of the code in the store; send damaged or missing ones again."),
]
Expect: TypeAlias = Annotated[
    str | None,
    typer.Option("--expect", metavar="DIGEST", help="Submit only if the digest is the one that a dry run showed."),
]
Profile: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--profile-sync",
        metavar="[=buckets]",
        help="Set profile: time the gradient synchronisation (=buckets: each bucket) for `jobsubmit report`.",
    ),
]
Set: TypeAlias = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="FIELD=VALUE", help="Set any field, e.g. hyperparameters.lr=0.1. May be repeated."),
]
Nodes: TypeAlias = Annotated[
    str | None, typer.Option("--nodes", metavar="N", help='Set resources.nodes: a number, or "1:3" for an elastic job.')
]
ModeChoice: TypeAlias = Annotated[
    Mode | None, typer.Option("--mode", help="Set mode; fields that the new mode does not use are dropped.")
]
BackendKind: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--backend",
        metavar="KIND",
        help="Set backend.kind: local, ssh, slurm, volcano or modelarts; fields of another kind are dropped.",
        autocompletion=backend_names,
    ),
]
StoreUri: TypeAlias = Annotated[
    str | None, typer.Option("--store", metavar="URI", help="Set store.uri: s3://…, obs://… or a folder.")
]
Env: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--env", "-e", metavar="NAME=VALUE", help="Set an environment variable of the nodes. May be repeated."
    ),
]
Templates: TypeAlias = Annotated[
    Path | None,
    typer.Option("--templates", metavar="DIR", help="Look for templates in DIR first, then in the built-in ones."),
]
JobFile: TypeAlias = Annotated[
    Path, typer.Argument(help="The job file.", metavar="JOB_FILE", show_default=str(DEFAULT_JOB_FILE))
]
