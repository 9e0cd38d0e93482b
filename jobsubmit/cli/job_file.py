"""Read the job file with the changes that the options of a command make."""

from __future__ import annotations

from pathlib import Path

from jobsubmit.errors import Problem, SpecError
from jobsubmit.spec.loader import LoadedSpec, Override, load
from jobsubmit.spec.modes import Mode


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
    """Return the changes that the flags make. Assignments (--set) come last: they override the other flags."""
    flags = [
        Override("--nodes", ("resources", "nodes"), int(str(nodes)) if str(nodes).isdecimal() else nodes),
        Override("--backend", ("backend", "kind"), backend),
        Override("--profile-sync", ("profile",), profile),
        _store(store),
        Override("--templates", ("templates",), templates and str(templates.absolute())),
    ]
    found = [flag for flag in flags if flag.value is not None]
    found += [_env(text) for text in env or ()]
    return found + [Override.from_assignment(text) for text in assignments or ()]


def _store(uri: str | None) -> Override:
    if uri is None or "://" in uri:
        return Override("--store", ("store", "uri"), uri)
    # A folder is meant from here, not from the job file, and has no use for the file's server.
    return Override("--store", ("store",), {"uri": str(Path(uri).absolute())})


def _env(text: str) -> Override:
    name, separator, value = text.partition("=")
    if not separator:
        raise SpecError([Problem(f"-e {text}", "", "must look like NAME=VALUE")])
    return Override(f"-e {name}", ("env", name), value)


def read_job(file: Path, mode: Mode | None, changes: list[Override]) -> LoadedSpec:
    """Read a job file with the flags applied; its notes say what was dropped."""
    return load(file, changes, mode)
