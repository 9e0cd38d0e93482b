"""The values that a hyperparameter may have."""

from __future__ import annotations

import json
import math
import sys
from typing import Annotated, Any, TypeAlias

from pydantic import Field, PlainValidator, StrictBool, WithJsonSchema

from jobsubmit.spec.field_types import WITHOUT_NUL, FrozenModel, plain_text, wrong

_INT64 = 1 << 63
_HYPERPARAMETER_RULE = "must be text, a number, a boolean, null, a list, or `{flag: true}` for a store-true flag"


class Flag(FrozenModel):
    """A store-true flag of the boot file: `{flag: true}` passes `--name`, `{flag: false}` passes nothing."""

    flag: StrictBool = Field(description="Whether the flag is on.", examples=[True])


HyperparameterValue: TypeAlias = str | int | float | bool | list[Any] | Flag | None


def _hyperparameter(value: object) -> HyperparameterValue:
    if isinstance(value, Flag):
        return value
    if isinstance(value, dict) and set(value) == {"flag"} and isinstance(value["flag"], bool):
        return Flag(flag=value["flag"])
    if isinstance(value, list):
        _check_list(value)
        return json.loads(json.dumps(value))  # type: ignore[no-any-return]
    if not isinstance(value, (str, int, float, type(None))):
        raise wrong(_HYPERPARAMETER_RULE)
    _check_scalar(value)
    return value


def _check_list(items: list[Any]) -> None:
    for item in items:
        if isinstance(item, list):
            _check_list(item)
        elif not isinstance(item, (str, int, float, type(None))):
            raise wrong("a list may hold text, numbers, booleans, null and lists, not mappings")
        else:
            _check_scalar(item)


def _check_scalar(value: str | float | None) -> None:
    if isinstance(value, str):
        plain_text(value)
    elif isinstance(value, float) and not math.isfinite(value):
        raise wrong("must be a finite number: quote it to pass it as text")
    elif isinstance(value, int) and abs(value) >= _INT64:
        raise wrong("is too big for a 64-bit integer: quote it to pass it as text")


Hyperparameter = Annotated[
    HyperparameterValue,
    PlainValidator(_hyperparameter),
    WithJsonSchema(
        {
            "anyOf": [
                {
                    "type": ["string", "number", "boolean", "null", "array"],
                    "pattern": WITHOUT_NUL,
                    "minimum": -sys.float_info.max,
                    "maximum": sys.float_info.max,
                },
                {
                    "type": "object",
                    "properties": {"flag": {"type": "boolean", "description": "Whether the store-true flag is on."}},
                    "required": ["flag"],
                    "additionalProperties": False,
                },
            ]
        }
    ),
]
