"""The JSON Schema of a job file, for editors: the fields, and the rules between fields that a schema can express."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, TypeAdapter

from jobsubmit.spec.constraints import Schema, schemas_of
from jobsubmit.spec.job_spec import JobSpec

SCHEMA_NAME = "job.schema.json"  # beside a job file, whose first line names it
SCHEMA_LINE = f"# yaml-language-server: $schema={SCHEMA_NAME}\n"


def json_schema() -> Schema:
    """Return the JSON Schema of a job file, with description and examples on every field."""
    adapter: TypeAdapter[JobSpec] = TypeAdapter(Annotated[JobSpec, Field(discriminator="mode")])
    schema = adapter.json_schema()
    for name, definition in schema["$defs"].items():
        for field in definition.get("properties", {}).values():
            if "patternProperties" in field:  # names that do not fit are no names at all
                field.setdefault("additionalProperties", False)
        if rules := schemas_of(name):
            definition["allOf"] = rules
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "jobsubmit job file",
        **schema,
    }
