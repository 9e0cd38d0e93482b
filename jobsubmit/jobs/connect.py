"""Connect to the machines of a job while it is still prepared. This module loads little, because it comes first."""

from __future__ import annotations

from jobsubmit.backends.protocol import ConnectsEarly
from jobsubmit.backends.registry import open_backend
from jobsubmit.config import Settings
from jobsubmit.spec.loader import LoadedSpec


def connect_early(loaded: LoadedSpec, settings: Settings) -> None:
    """Begin to connect to the machines of a job that will probably be submitted, if its backend can."""
    backend = open_backend(loaded.spec.backend.kind, settings)
    if isinstance(backend, ConnectsEarly):
        backend.connect(loaded.spec.backend)
