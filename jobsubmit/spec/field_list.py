"""Every field of a job file with its description, by the section it belongs to."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cache
from typing import Any, get_args

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from jobsubmit.spec.backend_registry import backend_kinds, find_spec
from jobsubmit.spec.job_spec import SPECS

_MODE = "How training is started: `spawn`, `launch` or `torchrun` (see `jobsubmit help modes`). Omit it with `command`."


@cache
def field_lists() -> dict[str, dict[str, str]]:
    """Return section → field → description; the section of the top level has no name, a backend's is `backend.KIND`."""
    top = {name: about for spec in SPECS.values() for name, about in _described(spec).items()}
    nested = {name: fields for spec in SPECS.values() for name, fields in _sections(spec, "")}
    kinds = {f"backend.{kind}": find_spec(kind) for kind in backend_kinds()}
    specs = {name: spec for name, spec in kinds.items() if isinstance(spec, type)}
    backends = {
        section: fields
        for name, spec in specs.items()
        for section, fields in ((name, _described(spec)), *_sections(spec, f"{name}."))
    }
    choice = {"kind": f"One of {', '.join(backend_kinds())}; default: local. Their fields: `jobsubmit help backends`."}
    return {"": {**top, "mode": _MODE}, **nested, "backend": choice, **backends}


def _sections(model: type[BaseModel], prefix: str) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield the sections below a model, with their fields."""
    for name, field in model.model_fields.items():
        for inner in _models_in(field.annotation):
            section = f"{prefix}{field.alias or name}"
            yield section, _described(inner)
            yield from _sections(inner, f"{section}.")


def _models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for part in get_args(annotation):
        yield from _models_in(part)


def _described(model: type[BaseModel]) -> dict[str, str]:
    return {field.alias or name: _description(field) for name, field in model.model_fields.items()}


def _description(field: FieldInfo) -> str:
    if not field.examples:
        return field.description or ""
    example = field.examples[0]
    shown = example if isinstance(example, str) else json.dumps(example, ensure_ascii=False)
    return f"{field.description or ''} Example: {shown}".strip()
