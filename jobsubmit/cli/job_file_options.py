"""The options that say which job file is meant, and what of it is changed."""

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
        help="Local backend: break something on purpose, e.g. 'kill node 1 at step 20', 'delay node 2 by 30s', "
        "'kill rank 3 with SIGTERM after 5s'; without a moment as soon as all ranks have started. May be repeated.",
    ),
]
JobId: TypeAlias = Annotated[
    str | None, typer.Option("--job-id", metavar="ID", help="Name this submission yourself, instead of NAME-suffix.")
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
    bool, typer.Option("--dry-run", "--dryrun", help="Print bundle, script and request, and touch nothing.")
]
Check: TypeAlias = Annotated[
    bool, typer.Option("--check/--no-check", help="Judge the code, too; secrets and limits count in any case.")
]
RequireClean: TypeAlias = Annotated[
    bool, typer.Option("--require-clean", help="Refuse code that is not in a git commit, all of it.")
]
Recheck: TypeAlias = Annotated[
    bool,
    typer.Option("--recheck", help="Look at every object of the code in the store, and send what is damaged or gone."),
]
Expect: TypeAlias = Annotated[
    str | None,
    typer.Option("--expect", metavar="DIGEST", help="Submit only what a dry run with this digest showed."),
]
Profile: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--profile-sync",
        metavar="[=buckets]",
        help="Set profile: time the gradient synchronisation, with =buckets each bucket of it, for `jobsubmit report`.",
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
    Mode | None, typer.Option("--mode", help="Switch the mode; fields only the old mode knows are dropped.")
]
BackendKind: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--backend",
        metavar="KIND",
        help="Set backend.kind: local, slurm, volcano or modelarts; fields of another kind are dropped.",
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
    Path | None, typer.Option("--templates", metavar="DIR", help="Look here for templates first, then in ours.")
]
JobFile: TypeAlias = Annotated[
    Path, typer.Argument(help="The job file.", metavar="JOB_FILE", show_default=str(DEFAULT_JOB_FILE))
]
