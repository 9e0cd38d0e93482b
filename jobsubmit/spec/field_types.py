"""The rules for single values of a job file, each with its error message."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from typing import Annotated, TypeVar

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, PlainValidator, WithJsonSchema
from pydantic_core import PydanticCustomError

from jobsubmit.agent import node_contract
from jobsubmit.common.durations import parse_duration
from jobsubmit.common.store_address import BUCKET, SIGNED, endpoint_problem, store_uri_problem

JOB_NAME = r"[A-Za-z0-9_][A-Za-z0-9_-]{0,63}"
HYPERPARAMETER_NAME = r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}"
ENV_NAME = r"[A-Za-z_][A-Za-z0-9_]*"

# What a job may be started again after: any failed process, one that a signal ended, a lost node, no sign of life.
RESTART_CONDITIONS = ("failure", "signal", "node_failure", "hang")

_HIGHEST_EXIT_CODE = 255
_NO_PLUGINS = "PYDANTIC_DISABLE_PLUGINS"
MOST_PROCESSES_OF_NODE = 1024  # more than any node has accelerators or cores for
MOST_NODES = 100_000  # more than any cluster has, and few enough to be named one by one
_SHELL_SIGNS = r""""'`$\\|&;<>(){}*?#~\n"""


def wrong(text: str) -> PydanticCustomError:
    """Return an error about a value, for raising."""
    return PydanticCustomError("jobsubmit", "{text}", {"text": text})


def plain_text(value: object) -> str:
    """Return a value if it is text that a command line can carry; raise an error otherwise."""
    if isinstance(value, bool) or not isinstance(value, str):
        remedy = "write it without brackets or braces" if isinstance(value, list | tuple | dict) else "quote it"
        raise wrong(f"must be text, not {_kind(value)}: {remedy}")
    if any("\ud800" <= letter <= "\udfff" for letter in value):
        raise wrong("must not contain a lone surrogate (half of a character)")
    if "\0" in value:
        raise wrong("must not contain a NUL character: arguments and environment variables cannot contain one")
    return value


def _kind(value: object) -> str:
    kinds: tuple[tuple[type | tuple[type, ...], str], ...] = (
        (type(None), "null"),
        (bool, "a boolean"),
        ((int, float), "a number"),
        (list, "a list"),
        (dict, "a mapping"),
    )
    return next((name for types, name in kinds if isinstance(value, types)), type(value).__name__)


def _scalar_text(value: object) -> str:
    """Accept text and numbers; a boolean has no one spelling, so it must be quoted."""
    if isinstance(value, bool):
        raise wrong(f'a boolean has no single spelling as text: write "{str(value).lower()}" (or "1", "0") in quotes')
    if isinstance(value, (int, float)):
        return str(value)
    return plain_text(value)


def matching(pattern: str, rule: str, *numbers: type) -> BeforeValidator:
    """Return a check that a text, or a number of these types, matches a pattern; the JSON Schema has it, too."""

    def check(value: object) -> str:
        text = str(value) if isinstance(value, numbers) and not isinstance(value, bool) else plain_text(value)
        if not re.fullmatch(pattern, text):
            raise wrong(rule)
        return text

    text = Annotated[str, text_schema(pattern)]
    return BeforeValidator(check, json_schema_input_type=text | float if numbers == (float,) else text)


def _unless(problem_of: Callable[[str], str]) -> AfterValidator:
    """Return a check that a function finds no problem in a text."""

    def check(text: str) -> str:
        if problem := problem_of(text):
            raise wrong(problem)
        return text

    return AfterValidator(check)


def env_name_problem(text: str) -> str:
    """Return why a job must not set a variable of this name, or nothing."""
    prefix = next((prefix for prefix in node_contract.RESERVED_PREFIXES if text.startswith(prefix)), "")
    if prefix in (*node_contract.PLATFORM_PREFIXES, *node_contract.OWN_PREFIXES):
        return f"names that start with `{prefix}` are reserved for the platform and jobsubmit"
    if prefix in node_contract.LAUNCHER_PREFIXES:
        return f"names that start with `{prefix}` are options of the launcher: jobsubmit sets them, a job must not"
    if text in node_contract.OF_TRAINING:
        return "is set by the launcher on every node; a job must not set it"
    if prefix or text in node_contract.OF_SHELL:
        return "belongs to the shell that runs the start script; a job cannot set it"
    return ""


def _relative_file(value: object) -> str:
    text = plain_text(value)
    parts = text.split("/")
    inside = [part for part in parts if part not in ("", ".")]
    if text.startswith("/") or ".." in parts or text.endswith("/") or not inside:
        raise wrong("must be a file inside code_dir: a relative path without `..`")
    return "/".join(inside)


def location(value: object) -> str:
    """Return a value if it is text and not empty; raise an error otherwise."""
    text = plain_text(value)
    if not text:
        raise wrong("must not be empty")
    return text


def _code_dir(value: object) -> str:
    text = location(value)
    scheme, separator, rest = text.partition("://")
    if separator and scheme not in ("s3", "obs"):
        raise wrong(f"has the unknown scheme `{scheme}://`: use a folder, s3://bucket/folder or obs://bucket/folder")
    if separator and not re.fullmatch(rf"{BUCKET}(/[^/]+)+/?", rest):
        raise wrong(f"must name a folder in a bucket: `{scheme}://bucket/folder`")
    if separator and SIGNED.search(rest):
        raise wrong("must not contain a signature: set credentials in AWS_… variables or a profile")
    if separator and {".", "..", "start.sh"} & set(rest.rstrip("/").split("/")):
        raise wrong("must not contain a folder named `.`, `..` or `start.sh`")
    return text


def _duration(shortest: int) -> BeforeValidator:
    def check(value: object) -> int:
        seconds = parse_duration(value)
        if seconds is None:
            raise wrong("must be a whole number of seconds, or a number with a unit: `90s`, `30m`, `12h`, `2d`")
        if seconds < shortest:
            raise wrong("must be at least 1 second" if shortest else "must not be negative")
        return seconds

    return BeforeValidator(check)


def _nodes(value: object) -> int | str:
    if isinstance(value, str) and (match := re.fullmatch(r"([0-9]{1,9}):([0-9]{1,9})", value)):
        fewest, most = int(match[1]), int(match[2])
        if most > MOST_NODES:
            raise wrong(f"must be ≤ {MOST_NODES:,}")
        if not 1 <= fewest <= most:
            raise wrong('must be "fewest:most" with 1 ≤ fewest ≤ most, e.g. "1:3"')
        return most if fewest == most else f"{fewest}:{most}"
    if isinstance(value, bool) or not isinstance(value, int):
        raise wrong('must be a whole number, or "fewest:most" for an elastic job, e.g. "1:3"')
    if value < 1:
        raise wrong("must be ≥ 1")
    if value > MOST_NODES:
        raise wrong(f"must be ≤ {MOST_NODES:,}")
    return value


def _restart_condition(value: object) -> str:
    text = plain_text(value)
    if text.startswith("log:"):
        if not re.fullmatch(r"log:/.+/", text, re.DOTALL):
            raise wrong("must look like `log:/a regular expression/`")
        _compiled(text[len("log:/") : -1])
    elif match := re.fullmatch(r"exit:([0-9]{1,9})", text):
        if not 1 <= int(match[1]) <= _HIGHEST_EXIT_CODE:
            raise wrong("must be an exit code from 1 to 255")
    elif text not in RESTART_CONDITIONS:
        raise wrong(f"must be one of {', '.join(RESTART_CONDITIONS)}, `exit:75` or `log:/a regular expression/`")
    return text


def _metric_name(value: object) -> str:
    text = plain_text(value)
    if not re.fullmatch(r"[\w@./ -]{1,60}", text):
        raise wrong("must be a name of letters, digits, and _ @ . / - of at most 60 characters")
    return re.sub(r"[^\w@]+|_+", "_", text.lower()).strip("_") or text


def _metric_pattern(value: object) -> str:
    text = plain_text(value)
    if _compiled(text).groups < 1:
        raise wrong("must have a group that contains the number, as in `train=([0-9.]+)`")
    return text


def _compiled(text: str) -> re.Pattern[str]:
    from jobsubmit.spec.slow_pattern import can_take_exponential_time  # few jobs have a pattern

    try:
        found = re.compile(text)
        is_slow = can_take_exponential_time(text)
    except (re.error, RecursionError, OverflowError) as error:
        raise wrong(f"is not a regular expression: {error}") from None
    if is_slow:
        raise wrong(
            "is a regular expression that can take exponential time: a repetition in it can match the same text in "
            "several ways, as `(a+)+` does"
        )
    return found


def _command(value: object) -> tuple[str, ...]:
    items = value.split() if isinstance(value, str) else value
    if not isinstance(items, (list, tuple)) or not items:
        raise wrong("must be a list of words, like `[bash, run.sh, --fast]`, or one line of plain words")
    if isinstance(value, str) and re.search(f"[{_SHELL_SIGNS}]", value):
        raise wrong("is not run by a shell: write a list of words, like `[bash, -c, 'echo $HOME']`")
    return tuple(_scalar_text(item) for item in items)


def text_schema(pattern: str) -> WithJsonSchema:
    """Return the JSON Schema of a text that matches a pattern as a whole."""
    return WithJsonSchema({"type": "string", "pattern": f"^(?:{pattern})$"})


def _duration_schema(shortest: int) -> WithJsonSchema:
    text = {"type": "string", "pattern": r"^0*[1-9]\d{0,8}[smhd]$" if shortest else r"^\d{1,9}[smhd]$"}
    return WithJsonSchema({"anyOf": [{"type": "integer", "minimum": shortest}, text]})


_RESERVED = "|".join(sorted((*node_contract.OF_TRAINING, *node_contract.OF_SHELL)))
# A variable that a job may set.
FREE_ENV_NAME = rf"(?!{'|'.join(node_contract.RESERVED_PREFIXES)})(?!({_RESERVED})$){ENV_NAME}"
WITHOUT_NUL = r"^[^\x00]*$"
_REMOTE = rf"(?![^?]*{SIGNED.pattern})(s3|obs)://{BUCKET}"
_REFERENCE_RULE = "must be a reference like `env:WANDB_API_KEY`; do not write the value itself into a job file"

JobName = Annotated[str, matching(JOB_NAME, "must be 1 to 64 letters, digits, `_` or `-`, not starting with `-`")]
DataName = Annotated[
    str, matching(r"[A-Za-z_][A-Za-z0-9_-]*", "must be letters, digits, `_` and `-`, beginning with a letter or `_`")
]
EnvName = Annotated[
    str,
    matching(ENV_NAME, "must be letters, digits and `_`, not starting with a digit"),
    _unless(env_name_problem),
    text_schema(FREE_ENV_NAME),
]
HyperparameterName = Annotated[
    str, matching(HYPERPARAMETER_NAME, "must be 1 to 64 letters, digits, `_`, `.` or `-`, not starting with `-`")
]
ScalarText = Annotated[
    str, BeforeValidator(_scalar_text), WithJsonSchema({"type": ["string", "number"], "pattern": WITHOUT_NUL})
]
SecretRef = Annotated[str, matching(f"env:{ENV_NAME}", _REFERENCE_RULE)]
RelativeFile = Annotated[
    str,
    BeforeValidator(_relative_file),
    text_schema(r"(?!/)(?!([\s\S]*/)?\.\.(/|$))(?!(\.?/)*\.?$)[\s\S]*[^/]"),
]
Location = Annotated[str, BeforeValidator(location), WithJsonSchema({"type": "string", "minLength": 1})]
CodeDir = Annotated[
    str,
    BeforeValidator(_code_dir),
    text_schema(rf"(?![\s\S]*://)[\s\S]+|(?![\s\S]*/(\.\.?|start\.sh)(/|$)){_REMOTE}(/[^/]+)+/?"),
]
Endpoint = Annotated[
    Location,
    _unless(endpoint_problem),
    text_schema(rf"(?![\s\S]*{SIGNED.pattern})" + r"[hH][tT][tT][pP][sS]?://(?!\S*\[[^\]]*$)(?![^/?#]*@)[^\s/?#]\S*"),
]
StoreUri = Annotated[
    Location, _unless(store_uri_problem), text_schema(rf"(?![\s\S]*://)[\s\S]+|file://[\s\S]*|{_REMOTE}(/[\s\S]*)?")
]
ShellLines = Annotated[
    str, matching(r"[^\x00]*\S[^\x00]*", "must be shell lines as one text; use `|` for several lines")
]
PythonProgram = Annotated[
    str,
    matching(
        r"[^\x00-\x1f]*/[^\x00-\x1f]*", "must be a path: to the program, or to the folder of a virtual environment"
    ),
]
TorchVersion = Annotated[str, matching(r"\d+\.\d+(\.\d+)?([.+a-z].*)?", 'must look like "2.9" or "2.9.1"', float)]
Timeout = Annotated[int, _duration(1), _duration_schema(1)]
Pause = Annotated[int, _duration(0), _duration_schema(0)]
NodeCount = Annotated[
    int | str,
    BeforeValidator(_nodes),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "integer", "minimum": 1, "maximum": MOST_NODES},
                {"type": "string", "pattern": r"^0*[1-9]\d*:0*[1-9]\d*$"},
            ]
        }
    ),
]
RestartCondition = Annotated[
    str,
    BeforeValidator(_restart_condition),
    text_schema(rf"{'|'.join(RESTART_CONDITIONS)}|exit:0*([1-9]\d?|1\d\d|2[0-4]\d|25[0-5])|log:/[\s\S]+/"),
]
MetricName = Annotated[str, BeforeValidator(_metric_name), text_schema(r"[\w@./ -]{1,60}")]
MetricPattern = Annotated[str, BeforeValidator(_metric_pattern), text_schema(r"[\s\S]*\([\s\S]*")]
Command = Annotated[
    tuple[str, ...],
    PlainValidator(_command),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "array", "items": {"type": ["string", "number"]}, "minItems": 1},
                {"type": "string", "pattern": rf"^[^{_SHELL_SIGNS}]*[^{_SHELL_SIGNS}\s][^{_SHELL_SIGNS}]*$"},
            ]
        }
    ),
]


class FrozenModel(BaseModel):
    """A model that is built on first use: a command needs only one mode and one backend."""

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)


ModelT = TypeVar("ModelT", bound=BaseModel)


def built(model: type[ModelT]) -> type[ModelT]:
    """Build a model and return it, without pydantic's search for plugins in all installed packages."""
    if not model.__pydantic_complete__:
        before = os.environ.get(_NO_PLUGINS)
        os.environ[_NO_PLUGINS] = "__all__"
        try:
            model.model_rebuild()
        finally:
            os.environ.pop(_NO_PLUGINS)
            if before is not None:
                os.environ[_NO_PLUGINS] = before
    return model
