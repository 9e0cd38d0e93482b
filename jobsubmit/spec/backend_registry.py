"""The registry of backends: one line each, and the entry points of other packages.

A package adds a backend by an entry point, which names the class of its fields:

    [project.entry-points."jobsubmit.backends"]
    mine = "my_package.spec:MyBackendSpec"
"""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple, get_args

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

ENTRY_POINTS = "jobsubmit.backends"


class BuiltIn(NamedTuple):
    """A kind of ours: the class of its fields, and what is used without loading that (see BackendSpec)."""

    fields: str
    runs_by: str
    connects_by: str = ""


KINDS = {
    "local": BuiltIn("jobsubmit.backends.local.spec:LocalBackendSpec", "jobsubmit.backends.local.backend:LocalBackend"),
    "ssh": BuiltIn(
        "jobsubmit.backends.ssh.spec:SshBackendSpec",
        "jobsubmit.backends.ssh.backend:SshBackend",
        "jobsubmit.backends.ssh.connecting:connect",
    ),
    "slurm": BuiltIn("jobsubmit.backends.slurm.spec:SlurmBackendSpec", "jobsubmit.backends.slurm.backend:SlurmBackend"),
    "volcano": BuiltIn(
        "jobsubmit.backends.volcano.spec:VolcanoBackendSpec", "jobsubmit.backends.volcano.backend:VolcanoBackend"
    ),
    "modelarts": BuiltIn(
        "jobsubmit.backends.modelarts.spec:ModelArtsBackendSpec",
        "jobsubmit.backends.modelarts.backend:ModelArtsBackend",
    ),
}


class PluginError(Exception):
    """A backend of another package cannot be loaded."""


def backend_kinds() -> tuple[str, ...]:
    """Return the kinds of all backends, the built-in ones first."""
    return (*KINDS, *sorted(name for name in _plugins() if name not in KINDS))


def find_spec(kind: str) -> Any:
    """Return the class of a kind's fields; None for an unknown kind, PluginError if it cannot be loaded."""
    if kind in KINDS:
        return load_object(KINDS[kind].fields)
    plugin = _plugins().get(kind)
    if plugin is None:
        return None
    package = plugin.dist.name if plugin.dist else plugin.module
    try:
        spec = plugin.load()
    except Exception as error:
        return PluginError(f"package {package} cannot be loaded: {type(error).__name__}: {error}")
    field = getattr(spec, "model_fields", {}).get("kind")
    if field is None or get_args(field.annotation) != (kind,) or not hasattr(spec, "runs_by"):
        text = f'{plugin.value} must be a BackendSpec with `kind: Literal["{kind}"]` and `runs_by`'
        return PluginError(f"package {package} is not compatible: {text}")
    return spec


def load_object(path: str) -> Any:
    """Return the object that `module:name` names."""
    module, _, name = path.partition(":")
    return getattr(import_module(module), name)


@cache
def _plugins() -> dict[str, EntryPoint]:
    """Return the entry points of other packages; they are read only for a kind that is not ours, or for a list."""
    from importlib.metadata import entry_points

    return {point.name: point for point in entry_points(group=ENTRY_POINTS)}
