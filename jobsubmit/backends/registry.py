"""Open the backend of a job by its kind."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from jobsubmit.errors import BackendError, JobSubmitError
from jobsubmit.spec.backend_registry import KINDS, PluginError, find_spec, load_object

if TYPE_CHECKING:
    from jobsubmit.backends.protocol import Backend
    from jobsubmit.config import Settings


def open_backend(kind: str, settings: Settings) -> Backend:
    """Return the backend of a kind; its client library is loaded only when it is used. Raises BackendError."""
    if kind in KINDS:
        backend: Backend = load_object(KINDS[kind].runs_by)(settings)
        return backend
    spec = find_spec(kind)
    if spec is None:
        hint = "upgrade jobsubmit, or install the package that provides it"
        raise BackendError(f"this version of jobsubmit has no backend {kind!r}", hint)
    if isinstance(spec, PluginError):
        raise BackendError(f"the backend {kind!r}: {spec}", "reinstall or upgrade that package")
    try:
        backend = load_object(spec.runs_by)(settings)
    except JobSubmitError:
        raise
    except Exception as error:
        text = f"the backend {kind!r}: {spec.runs_by} cannot be loaded: {type(error).__name__}: {error}"
        raise BackendError(text, "reinstall or upgrade the package that provides it") from error
    return backend


def connect_early(kind: str, fields: Mapping[str, Any]) -> None:
    """Begin to connect to the machines that the fields of `backend` name, if their kind can."""
    spec = KINDS.get(kind) or find_spec(kind)
    connects_by = getattr(spec, "connects_by", "")
    if connects_by:
        load_object(connects_by)(fields)


def kind_of_handle(text: str) -> str:
    """Return the kind of backend of a handle that works on every machine; empty for any other text."""
    kind, separator, path = text.partition("://")
    spec = find_spec(kind) if separator else None
    return kind if isinstance(spec, type) and re.fullmatch(getattr(spec, "handle_path", ""), path) else ""
