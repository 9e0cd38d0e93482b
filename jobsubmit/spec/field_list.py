"""Every field of a job file with its description, by the section it belongs to."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from pydantic import BaseModel

from jobsubmit.spec.backend_registry import backend_kinds, find_spec
from jobsubmit.spec.job_spec import (
    SPECS,
    CheckpointSpec,
    FrameworkSpec,
    InputSpec,
    OutputSpec,
    ResourcesSpec,
    RestartsSpec,
    StoreSpec,
)

_SECTIONS: Mapping[str, type[BaseModel]] = {
    "resources": ResourcesSpec,
    "framework": FrameworkSpec,
    "store": StoreSpec,
    "inputs": InputSpec,
    "outputs": OutputSpec,
    "checkpoint_dir": CheckpointSpec,
    "restarts": RestartsSpec,
}


@cache
def field_lists() -> dict[str, dict[str, str]]:
    """Return section → field → description; the section of the top level has no name, a backend's is `backend.KIND`."""
    top = {name: about for spec in SPECS.values() for name, about in _described(spec).items()}
    kinds = {kind: find_spec(kind) for kind in backend_kinds()}
    backends = {f"backend.{kind}": _described(spec) for kind, spec in kinds.items() if isinstance(spec, type)}
    return {"": top, **{name: _described(model) for name, model in _SECTIONS.items()}, **backends}


def _described(model: type[BaseModel]) -> dict[str, str]:
    return {field.alias or name: field.description or "" for name, field in model.model_fields.items()}
