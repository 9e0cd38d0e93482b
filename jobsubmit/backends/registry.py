"""Open a backend by its kind."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jobsubmit.backends.protocol import Backend
from jobsubmit.errors import BackendError

if TYPE_CHECKING:
    from jobsubmit.config import Settings


def open_backend(kind: str, settings: Settings) -> Backend:
    """Return the backend of a kind; loads its client library only now."""
    if kind == "local":
        from jobsubmit.backends.local.backend import LocalBackend

        return LocalBackend(settings)
    if kind == "slurm":
        from jobsubmit.backends.slurm.backend import SlurmBackend

        return SlurmBackend(settings)
    if kind == "volcano":
        from jobsubmit.backends.volcano.backend import VolcanoBackend

        return VolcanoBackend(settings)
    if kind == "modelarts":
        from jobsubmit.backends.modelarts.backend import ModelArtsBackend

        return ModelArtsBackend(settings)
    raise BackendError(f"the backend {kind!r} is not known to this version of jobsubmit", "upgrade jobsubmit")
