"""The options that say which job file is meant, and what of it is changed."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Annotated, TypeAlias

import typer

from jobsubmit.errors import Problem, SpecError
from jobsubmit.spec.job_spec import Mode
from jobsubmit.spec.loader import LoadedSpec, Override, load

DEFAULT_JOB_FILE = Path("job.yaml")


class ModeOption(str, Enum):
    """A launch mode on the command line."""

    spawn = "spawn"
    launch = "launch"
    torchrun = "torchrun"


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
Propagate: TypeAlias = Annotated[
    bool, typer.Option("--propagate-exit-code", help="If the job fails, exit as its first failing process did.")
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
    ModeOption | None, typer.Option("--mode", help="Switch the mode; fields only the old mode knows are dropped.")
]
BackendKind: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--backend",
        metavar="KIND",
        help="Set backend.kind: local, slurm, volcano or modelarts; fields of another kind are dropped.",
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


def overrides(
    *,
    assignments: list[str] | None = None,
    nodes: str | int | None = None,
    backend: str | None = None,
    store: str | None = None,
    env: list[str] | None = None,
    profile: str | None = None,
    templates: Path | None = None,
) -> list[Override]:
    """Return what the flags say; an assignment is the most exact way to say it, so it wins over the others."""
    found = []
    if nodes is not None:
        number = int(nodes) if str(nodes).isdecimal() else nodes
        found.append(Override("--nodes", ("resources", "nodes"), number))
    if backend is not None:
        found.append(Override("--backend", ("backend", "kind"), backend))
    if profile is not None:
        found.append(Override("--profile-sync", ("profile",), profile))
    if store is not None:
        found.append(_store(store))
    if templates is not None:
        found.append(Override("--templates", ("templates",), str(templates.absolute())))
    found += [_env(text) for text in env or ()]
    return found + [Override.from_assignment(text) for text in assignments or ()]


def _store(uri: str) -> Override:
    if "://" in uri:
        return Override("--store", ("store", "uri"), uri)
    # A folder is meant from here, not from the job file, and has no use for the file's server.
    return Override("--store", ("store",), {"uri": str(Path(uri).absolute())})


def _env(text: str) -> Override:
    name, separator, value = text.partition("=")
    if not separator:
        raise SpecError([Problem(f"-e {text}", "", "must look like NAME=VALUE")])
    return Override(f"-e {name}", ("env", name), value)


def read_job(file: Path, mode: ModeOption | None, changes: list[Override]) -> LoadedSpec:
    """Read a job file with the flags applied, and say what was dropped."""
    wanted: Mode | None = mode.value if mode else None
    return load(file, changes, wanted)
