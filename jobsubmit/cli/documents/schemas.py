"""What each command prints with `-o json`, as models: their JSON Schemas are the promise to programs.

A later version may add fields; it does not remove or rename one without an entry in the changelog.
"""

from __future__ import annotations

from typing import Any

from pydantic import TypeAdapter
from pydantic.json_schema import GenerateJsonSchema

from jobsubmit.cli.documents.base import ErrorDocument
from jobsubmit.cli.documents.jobs import Description, Event, JobDocument, Line, StatusDocument, Summary
from jobsubmit.cli.documents.metrics import MetricsDocument
from jobsubmit.cli.documents.platform import AnyJson, HelpText, HelpTopic, PageAddress, PlatformObject, Test
from jobsubmit.cli.documents.report import ReportComparison, ReportDocument
from jobsubmit.cli.documents.submission import (
    BundleDocument,
    Comparison,
    DryRun,
    Expansion,
    FirstJob,
    HostCommand,
    Rendering,
    Sample,
    Validation,
)
from jobsubmit.cli.documents.transfer import Download, Upload, UploadPlan

# A list of types where a command prints different documents for different options.
DOCUMENTS: dict[str, Any] = {
    "create": JobDocument | DryRun,
    "run": JobDocument | DryRun,
    "rerun": JobDocument | DryRun,
    "status": StatusDocument,
    "describe": Description,
    "wait": JobDocument,
    "cancel": JobDocument,
    "list": list[Summary],
    "delete": list[str],
    "prune": list[str],
    "events": Event,
    "logs": Line,
    "metrics": MetricsDocument,
    "ui": PageAddress,
    "report": ReportDocument | ReportComparison,
    "validate": Validation,
    "render": Rendering | Expansion | list[HostCommand] | Comparison | dict[str, str],
    "bundle": BundleDocument,
    "doctor": list[Test],
    "upload": Upload | UploadPlan,
    "download": Download,
    "flavors": list[PlatformObject],
    "engines": list[PlatformObject],
    "import": AnyJson,
    "init": FirstJob | list[Sample],
    "help": HelpText | list[HelpTopic],
    "docs": HelpText,
    "schema": AnyJson,
    "error": ErrorDocument,
}
A_DOCUMENT_PER_LINE = ("events", "logs")


class _WithoutTitles(GenerateJsonSchema):
    def field_title_should_be_set(self, schema: Any) -> bool:
        """Return no: a title would only repeat the name of its field."""
        return False


def document_schema(name: str) -> dict[str, Any]:
    """Return the JSON Schema of what a command prints with `-o json` (`error`: of what each prints when it fails)."""
    schema = TypeAdapter(DOCUMENTS[name]).json_schema(mode="serialization", schema_generator=_WithoutTitles)
    for model in (schema, *schema.get("$defs", {}).values()):
        if model.get("additionalProperties") is False:  # a later version may add a field
            del model["additionalProperties"]
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}
