"""The JSON Schema of a job file, for editors: the fields, and of what may not be said together all that it can tell."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, TypeAlias

from pydantic import Field, TypeAdapter

from jobsubmit.spec.constraints import INIT_METHOD, OF_THE_SHELL, SINGLE_NODE_RANKS
from jobsubmit.spec.fields import FREE_ENV_NAME
from jobsubmit.spec.model import JobSpec

Schema: TypeAlias = dict[str, Any]

SCHEMA_NAME = "job.schema.json"  # beside a job file, whose first line names it
SCHEMA_LINE = f"# yaml-language-server: $schema={SCHEMA_NAME}\n"

_IS_REMOTE = {"type": "string", "pattern": "^(s3|obs)://"}
_ONE_NUMBER = {"anyOf": [{"type": "integer"}, {"type": "string", "pattern": r"^(\d+):\1$"}]}
_NOT_ELASTIC = {"properties": {"resources": {"properties": {"nodes": _ONE_NUMBER}}}}


def json_schema() -> Schema:
    """Return the JSON Schema of a job file, with description and examples on every field."""
    adapter: TypeAdapter[JobSpec] = TypeAdapter(Annotated[JobSpec, Field(discriminator="mode")])
    schema = adapter.json_schema()
    for name, definition in schema["$defs"].items():
        for field in definition.get("properties", {}).values():
            if "patternProperties" in field:  # names that do not fit are no names at all
                field.setdefault("additionalProperties", False)
        if rules := _RULES.get(name):
            definition["allOf"] = rules
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "jobsubmit job file",
        **schema,
    }


def _given(field: str, value: Schema) -> Schema:
    """Return the schema of a mapping that has a field with such a value."""
    return {"properties": {field: value}, "required": [field]}


def _if(condition: Schema, then: Schema) -> Schema:
    return {"if": condition, "then": then}


def _without(field: str, names: tuple[str, ...]) -> Schema:
    """Return the schema of a mapping whose `field` has none of these names."""
    return {"properties": {field: {"properties": dict.fromkeys(names, False)}}}


def _rules_of_spawn() -> Iterator[Schema]:
    """Yield what the platform appends itself (see constraints.py)."""
    several_nodes = {"anyOf": [{"type": "integer", "minimum": 2}, {"type": "string", "not": {"pattern": "^0*1:"}}]}
    several = _given("resources", _given("nodes", several_nodes))
    ranks = {name: {"enum": [value, str(value)]} for name, value in SINGLE_NODE_RANKS.items()}
    injected = [*SINGLE_NODE_RANKS, INIT_METHOD]
    no_argument = {"not": {"properties": {"name": {"enum": injected}, "as": {"not": {"const": "env"}}}}}
    yield _without("hyperparameters", (INIT_METHOD,))
    yield {
        **_if(several, _without("hyperparameters", tuple(SINGLE_NODE_RANKS))),
        "else": {"properties": {"hyperparameters": {"properties": ranks}}},
    }
    yield {"properties": {field: {"items": no_argument} for field in ("inputs", "outputs")}}


_DATA = _if(
    _given("as", {"const": "env"}),
    {"properties": {"name": {"pattern": f"^(?!({'|'.join(OF_THE_SHELL)})$){FREE_ENV_NAME}$"}}},
)
_ARCHIVE = _if(_given("code_dir", _IS_REMOTE), {"properties": {"layout": {"not": {"const": "archive"}}}})
_ONE_START = {
    "oneOf": [_given("boot_file", {"type": "string"}), _given("command", {"type": ["string", "array"]})],
}
_FIXED_RENDEZVOUS = {
    "anyOf": [_given("rdzv_backend", {"const": "static"}), _given("torch_version", {"pattern": r"^2\.1(\D|$)"})]
}
_RULES: dict[str, list[Schema]] = {
    "SpawnSpec": [_ARCHIVE, _NOT_ELASTIC, *_rules_of_spawn()],
    "LaunchSpec": [_ARCHIVE, _NOT_ELASTIC, _ONE_START],
    "TorchrunSpec": [_ARCHIVE, _ONE_START, _if(_FIXED_RENDEZVOUS, _NOT_ELASTIC)],
    "StoreSpec": [
        _if(
            _given("uri", {"type": "string", "not": _IS_REMOTE}),
            {"properties": {name: {"type": "null"} for name in ("endpoint_url", "region", "profile", "addressing")}},
        )
    ],
    "InputSpec": [_DATA],
    "OutputSpec": [_DATA],
}
