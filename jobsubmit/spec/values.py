"""What a single value of a job file may be: the rule for each kind, with the sentence that explains it."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict, PlainValidator, WithJsonSchema
from pydantic_core import PydanticCustomError

from jobsubmit.address import BUCKET, endpoint_problem, store_uri_problem
from jobsubmit.duration import seconds_of

JOB_NAME = r"[A-Za-z0-9_][A-Za-z0-9_-]{0,63}"
HYPERPARAMETER_NAME = r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}"
ENV_NAME = r"[A-Za-z_][A-Za-z0-9_]*"

# The launcher's and the platform's own words: a job that sets one would contradict what the node is told.
RESERVED_ENV = frozenset(
    [
        "RANK",
        "LOCAL_RANK",
        "WORLD_SIZE",
        "LOCAL_WORLD_SIZE",
        "GROUP_RANK",
        "GROUP_WORLD_SIZE",
        "ROLE_RANK",
        "ROLE_WORLD_SIZE",
        "MASTER_ADDR",
        "MASTER_PORT",
        "NNODES",
        "NODE_RANK",
        "NPROC_PER_NODE",
        "NODE_ADDR",
        "RDZV_ID",
    ]
)
RESERVED_ENV_PREFIXES = ("MA_", "VC_", "JOBSUBMIT_", "jobsubmit_")
SHELL_READONLY_ENV = frozenset(["BASHOPTS", "SHELLOPTS", "BASH_VERSINFO", "UID", "EUID", "PPID", "BASH_ENV"])

# What a gang may be started again after: any failed process, one that a signal ended, a lost node, no sign of life.
RESTART_CONDITIONS = ("failure", "signal", "node_failure", "hang")

_HIGHEST_EXIT_CODE = 255

QUANTITY = r"\d+(\.\d+)?(m|k|M|G|T|P|E|Ki|Mi|Gi|Ti|Pi|Ei)?"
# Options of sbatch that would contradict what jobsubmit says itself.
_OUR_OPTIONS = re.compile(r"-[JNnoeaDWM].*")
_OUR_LONG_OPTIONS = (
    "--job-name",
    "--comment",
    "--nodes",
    "--ntasks",
    "--ntasks-per-node",
    "--output",
    "--error",
    "--open-mode",
    "--requeue",
    "--no-requeue",
    "--export",
    "--export-file",
    "--wrap",
    "--array",
    "--chdir",
    "--parsable",
    "--wait",
    "--test-only",
    "--clusters",
    "--hetjob",
)
_SHORTEST_OPTION = 4  # sbatch takes an option by its beginning


def wrong(text: str) -> PydanticCustomError:
    """Return a complaint about a value, to be raised."""
    return PydanticCustomError("jobsubmit", "{text}", {"text": text})


def plain_text(value: object) -> str:
    """Return a value that is text which a command line can carry; raise the complaint otherwise."""
    if isinstance(value, bool) or not isinstance(value, str):
        raise wrong(f"must be text, not {_kind(value)}: quote it")
    if any("\ud800" <= letter <= "\udfff" for letter in value):
        raise wrong("must not contain half a character (a lone surrogate)")
    if "\0" in value:
        raise wrong("must not contain a NUL character: no command line or environment can carry it")
    return value


def _kind(value: object) -> str:
    kinds: tuple[tuple[type | tuple[type, ...], str], ...] = (
        (type(None), "nothing"),
        (bool, "a boolean"),
        ((int, float), "a number"),
        (str, "text"),
        (list, "a list"),
        (dict, "a mapping"),
    )
    return next((name for types, name in kinds if isinstance(value, types)), type(value).__name__)


def _scalar_text(value: object) -> str:
    """Accept text and numbers; a boolean has no one spelling, so it must be quoted."""
    if isinstance(value, bool):
        raise wrong(f'a boolean has no one spelling as text: write "{str(value).lower()}" (or "1", "0") in quotes')
    if isinstance(value, (int, float)):
        return str(value)
    return plain_text(value)


def _matching(pattern: str, rule: str) -> BeforeValidator:
    def check(value: object) -> str:
        text = plain_text(value)
        if not re.fullmatch(pattern, text):
            raise wrong(rule)
        return text

    return BeforeValidator(check)


def _job_name(value: object) -> str:
    text = plain_text(value)
    if not re.fullmatch(JOB_NAME, text):
        raise wrong("must be 1 to 64 letters, digits, `_` or `-`, not starting with `-`")
    return text


def _env_name(value: object) -> str:
    text = _data_name(value)
    if problem := env_name_problem(text):
        raise wrong(problem)
    return text


def env_name_problem(text: str) -> str:
    """Return why a job must not set a variable of this name, or nothing."""
    if text.startswith(RESERVED_ENV_PREFIXES):
        prefix = next(prefix for prefix in RESERVED_ENV_PREFIXES if text.startswith(prefix))
        return f"names that start with `{prefix}` are reserved for the platform"
    if text in RESERVED_ENV:
        return "is set by the launcher on every node; a job must not set it"
    if text in SHELL_READONLY_ENV:
        return "belongs to the shell that runs the start script; a job cannot set it"
    return ""


def _secret(value: object) -> str:
    text = plain_text(value)
    if not re.fullmatch(rf"env:{ENV_NAME}", text):
        raise wrong("must be a reference like `env:WANDB_API_KEY`; the value itself never stands in a job file")
    return text


def _relative_file(value: object) -> str:
    text = plain_text(value)
    parts = text.split("/")
    inside = [part for part in parts if part not in ("", ".")]
    if text.startswith("/") or ".." in parts or text.endswith("/") or not inside:
        raise wrong("must be a file inside code_dir, written relative to it, without `..`")
    return "/".join(inside)


def _location(value: object) -> str:
    text = plain_text(value)
    if not text:
        raise wrong("must not be empty")
    return text


def _store_uri(value: object) -> str:
    text = _location(value)
    if problem := store_uri_problem(text):
        raise wrong(problem)
    return text


def _code_dir(value: object) -> str:
    text = _location(value)
    scheme, separator, rest = text.partition("://")
    if separator and scheme not in ("s3", "obs"):
        raise wrong(f"has the unknown scheme `{scheme}://`: use a folder, or s3://bucket/folder, obs://bucket/folder")
    if separator and not re.fullmatch(rf"{BUCKET}(/[^/]+)+/?", rest):
        raise wrong(f"must name a folder in a bucket: `{scheme}://bucket/folder`")
    if separator and {".", "..", "start.sh"} & set(rest.rstrip("/").split("/")):
        raise wrong("must not have `.`, `..` or `start.sh` as the name of a folder")
    return text


def _endpoint(value: object) -> str:
    text = _location(value)
    if problem := endpoint_problem(text):
        raise wrong(problem)
    return text


def _duration(shortest: int) -> BeforeValidator:
    def check(value: object) -> int:
        seconds = seconds_of(value)
        if seconds is None:
            raise wrong("must be a whole number of seconds, or a number with a unit: `90s`, `30m`, `12h`, `2d`")
        if seconds < shortest:
            raise wrong("must be at least 1 second" if shortest else "must not be negative")
        return seconds

    return BeforeValidator(check)


def _nodes(value: object) -> int | str:
    if isinstance(value, str) and (match := re.fullmatch(r"(\d{1,9}):(\d{1,9})", value)):
        fewest, most = int(match[1]), int(match[2])
        if not 1 <= fewest <= most:
            raise wrong('must be "fewest:most" with 1 ≤ fewest ≤ most, e.g. "1:3"')
        return most if fewest == most else f"{fewest}:{most}"
    if isinstance(value, bool) or not isinstance(value, int):
        raise wrong('must be a whole number, or "fewest:most" for an elastic job, e.g. "1:3"')
    if value < 1:
        raise wrong("must be ≥ 1")
    return value


def _restart_condition(value: object) -> str:
    text = plain_text(value)
    if text.startswith("log:"):
        if not re.fullmatch(r"log:/.+/", text, re.DOTALL):
            raise wrong("must look like `log:/a regular expression/`")
        try:
            re.compile(text[len("log:/") : -1])
        except re.error as error:
            raise wrong(f"is not a regular expression: {error}") from None
    elif match := re.fullmatch(r"exit:(\d{1,9})", text):
        if not 1 <= int(match[1]) <= _HIGHEST_EXIT_CODE:
            raise wrong("an exit code of a failure is 1 to 255")
    elif text not in RESTART_CONDITIONS:
        raise wrong(f"must be one of {', '.join(RESTART_CONDITIONS)}, `exit:75` or `log:/a regular expression/`")
    return text


def _data_name(value: object) -> str:
    text = plain_text(value)
    if not re.fullmatch(ENV_NAME, text):
        raise wrong("must be letters, digits and `_`, not starting with a digit")
    return text


def _command(value: object) -> tuple[str, ...]:
    items = value.split() if isinstance(value, str) else value
    if not isinstance(items, (list, tuple)) or not items:
        raise wrong("must be a list of words, like `[bash, run.sh, --fast]`, or one line of plain words")
    if isinstance(value, str) and re.search(r"[\"'`$\\|&;<>(){}*?#~\n]", value):
        raise wrong("no shell reads this line: give a list of words, like `[bash, -c, 'echo $HOME']`")
    return tuple(_scalar_text(item) for item in items)


def _slurm_gpus(value: object) -> str:
    text = str(value) if isinstance(value, int) and not isinstance(value, bool) else plain_text(value)
    if not re.fullmatch(r"([A-Za-z][\w.-]*:)?[1-9]\d{0,3}", text):
        raise wrong("must be a number, or a type and a number: `a100:8`")
    return text


def _slurm_option(value: object) -> str:
    text = plain_text(value)
    if not re.fullmatch(r"--?[A-Za-z][A-Za-z0-9-]*([= ].*)?", text) or not text.isprintable():
        raise wrong("must be one option of sbatch on one line: `--reservation=team`")
    name = re.split("[= ]", text)[0]
    is_begun = len(name) >= _SHORTEST_OPTION and any(ours.startswith(name) for ours in _OUR_LONG_OPTIONS)
    if name in _OUR_LONG_OPTIONS or is_begun or (not name.startswith("--") and _OUR_OPTIONS.fullmatch(name)):
        raise wrong(f"{name} is jobsubmit's to set")
    return text


def _quantity(value: object) -> str:
    text = str(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else plain_text(value)
    if not re.fullmatch(QUANTITY, text):
        raise wrong("must be a quantity of Kubernetes: `8`, `500m`, `64Gi`")
    return text


def _shared_dir(value: object) -> str:
    text = _location(value)
    if not text.isprintable() or "\\" in text:
        raise wrong("must be a path that sbatch can read: without control characters and backslashes")
    return text


def _mount_path(value: object) -> str:
    text = _location(value).rstrip("/")
    if not text.startswith("/") or ".." in text.split("/") or ":" in text:
        raise wrong("must be an absolute path, without `..` and `:`")
    return text


def _duration_schema(shortest: int) -> WithJsonSchema:
    text = {"type": "string", "pattern": r"^\d{1,9}[smhd]$"}
    return WithJsonSchema({"anyOf": [{"type": "integer", "minimum": shortest}, text]})


JobName = Annotated[str, BeforeValidator(_job_name), WithJsonSchema({"type": "string", "pattern": f"^{JOB_NAME}$"})]
EnvName = Annotated[str, BeforeValidator(_env_name), WithJsonSchema({"type": "string", "pattern": f"^{ENV_NAME}$"})]
HyperparameterName = Annotated[
    str, _matching(HYPERPARAMETER_NAME, "must be 1 to 64 letters, digits, `_`, `.` or `-`, not starting with `-`")
]
ScalarText = Annotated[str, BeforeValidator(_scalar_text), WithJsonSchema({"type": ["string", "number"]})]
SecretRef = Annotated[str, BeforeValidator(_secret), WithJsonSchema({"type": "string", "pattern": f"^env:{ENV_NAME}$"})]
RelativeFile = Annotated[str, BeforeValidator(_relative_file), WithJsonSchema({"type": "string", "minLength": 1})]
Location = Annotated[str, BeforeValidator(_location), WithJsonSchema({"type": "string", "minLength": 1})]
CodeDir = Annotated[str, BeforeValidator(_code_dir), WithJsonSchema({"type": "string", "minLength": 1})]
Endpoint = Annotated[str, BeforeValidator(_endpoint), WithJsonSchema({"type": "string", "pattern": "^https?://"})]
StoreUri = Annotated[str, BeforeValidator(_store_uri), WithJsonSchema({"type": "string", "minLength": 1})]
TorchVersion = Annotated[
    str,
    _matching(r"\d+\.\d+(\.\d+)?([.+a-z].*)?", 'must look like "2.9" or "2.9.1"'),
    WithJsonSchema({"type": "string", "pattern": r"^\d+\.\d+"}),
]
Timeout = Annotated[int, _duration(1), _duration_schema(1)]
Pause = Annotated[int, _duration(0), _duration_schema(0)]
NodeCount = Annotated[
    int | str,
    BeforeValidator(_nodes),
    WithJsonSchema({"anyOf": [{"type": "integer", "minimum": 1}, {"type": "string", "pattern": r"^\d+:\d+$"}]}),
]
RestartCondition = Annotated[
    str,
    BeforeValidator(_restart_condition),
    WithJsonSchema({"type": "string", "pattern": rf"^({'|'.join(RESTART_CONDITIONS)}|exit:\d+|log:/.+/)$"}),
]
SlurmWord = Annotated[
    str,
    _matching(r"[A-Za-z0-9_][A-Za-z0-9_.,:@/+=\[\]*&|()!-]*", "must be one word, as sbatch takes it"),
    WithJsonSchema({"type": "string", "minLength": 1}),
]
SlurmGpus = Annotated[str, BeforeValidator(_slurm_gpus), WithJsonSchema({"type": ["integer", "string"]})]
SlurmOption = Annotated[
    str, BeforeValidator(_slurm_option), WithJsonSchema({"type": "string", "pattern": "^--?[A-Za-z]"})
]
KubernetesName = Annotated[
    str,
    _matching(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?", "must be a name of Kubernetes: a-z, 0-9, `-`, `.`"),
    WithJsonSchema({"type": "string", "pattern": "^[a-z0-9]([a-z0-9.-]*[a-z0-9])?$"}),
]
Quantity = Annotated[
    str, BeforeValidator(_quantity), WithJsonSchema({"type": ["string", "number"], "pattern": f"^{QUANTITY}$"})
]
SharedDir = Annotated[str, BeforeValidator(_shared_dir), WithJsonSchema({"type": "string", "minLength": 1})]
MountPath = Annotated[str, BeforeValidator(_mount_path), WithJsonSchema({"type": "string", "pattern": "^/"})]
DataName = Annotated[str, BeforeValidator(_data_name), WithJsonSchema({"type": "string", "pattern": f"^{ENV_NAME}$"})]
Command = Annotated[
    tuple[str, ...],
    PlainValidator(_command),
    WithJsonSchema(
        {"anyOf": [{"type": "array", "items": {"type": ["string", "number"]}, "minItems": 1}, {"type": "string"}]}
    ),
]


class FrozenModel(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)
