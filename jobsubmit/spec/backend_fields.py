"""What a single value that an engine reads may be: the rule for each kind, with the sentence that explains it."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import BeforeValidator, WithJsonSchema

from jobsubmit.spec.fields import location, matching, plain_text, text_schema, wrong

QUANTITY = r"\d+(\.\d+)?(m|k|M|G|T|P|E|Ki|Mi|Gi|Ti|Pi|Ei)?"
# Options of sbatch that would contradict what jobsubmit says itself.
_OUR_SHORT_OPTIONS = "-[JNnoeaDWM]"
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


def _slurm_gpus(value: object) -> str:
    text = str(value) if isinstance(value, int) and not isinstance(value, bool) else plain_text(value)
    if not re.fullmatch(_SLURM_GPUS, text):
        raise wrong("must be a number, or a type and a number: `a100:8`")
    return text


def _slurm_option(value: object) -> str:
    text = plain_text(value)
    if not re.fullmatch(_SLURM_OPTION, text) or not text.isprintable():
        raise wrong("must be one option of sbatch on one line: `--reservation=team`")
    name = re.split("[= ]", text)[0]
    is_begun = len(name) >= _SHORTEST_OPTION and any(ours.startswith(name) for ours in _OUR_LONG_OPTIONS)
    if name in _OUR_LONG_OPTIONS or is_begun or (not name.startswith("--") and re.match(_OUR_SHORT_OPTIONS, name)):
        raise wrong(f"{name} is jobsubmit's to set")
    return text


def _quantity(value: object) -> str:
    text = str(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else plain_text(value)
    if not re.fullmatch(QUANTITY, text):
        raise wrong("must be a quantity of Kubernetes: `8`, `500m`, `64Gi`")
    return text


def _shared_dir(value: object) -> str:
    text = location(value)
    if not text.isprintable() or "\\" in text:
        raise wrong("must be a path that sbatch can read: without control characters and backslashes")
    return text


def _mount_path(value: object) -> str:
    text = location(value).rstrip("/")
    if not text.startswith("/") or ".." in text.split("/") or ":" in text:
        raise wrong("must be an absolute path, without `..` and `:`")
    return text


def _begun(option: str) -> str:
    """Return a pattern of an option and its beginnings, which sbatch takes for it."""
    rest = option[_SHORTEST_OPTION:]
    return option[:_SHORTEST_OPTION] + "".join(f"({letter}" for letter in rest) + ")?" * len(rest)


_SLURM_WORD = r"[A-Za-z0-9_][A-Za-z0-9_.,:@/+=\[\]*&|()!-]*"
_SLURM_GPUS = r"([A-Za-z][\w.-]*:)?[1-9]\d{0,3}"
_SLURM_OPTION = r"--?[A-Za-z][A-Za-z0-9-]*([= ].*)?"
_OURS = "|".join(_begun(option) for option in _OUR_LONG_OPTIONS)
_KUBERNETES_NAME = r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?"

_PLATFORM_NAME = r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}"
_OBS_FOLDER = r"(obs|s3)://[a-z0-9][a-z0-9.-]{1,61}[a-z0-9](/[^\x00-\x1f]*)?"

PlatformName = Annotated[
    str, matching(_PLATFORM_NAME, "must be letters, digits, `_`, `-`, `.`"), text_schema(_PLATFORM_NAME)
]
ObsFolder = Annotated[
    str, matching(_OBS_FOLDER, "must be a folder in a bucket: obs://bucket/folder"), text_schema(_OBS_FOLDER)
]
SlurmWord = Annotated[str, matching(_SLURM_WORD, "must be one word, as sbatch takes it"), text_schema(_SLURM_WORD)]
SlurmGpus = Annotated[
    str,
    BeforeValidator(_slurm_gpus),
    WithJsonSchema({"type": ["integer", "string"], "pattern": f"^{_SLURM_GPUS}$", "minimum": 1, "maximum": 9999}),
]
SlurmOption = Annotated[
    str,
    BeforeValidator(_slurm_option),
    text_schema(rf"(?!{_OUR_SHORT_OPTIONS})(?!({_OURS})([= ]|$))(?!.*[\x00-\x1f]){_SLURM_OPTION}"),
]
KubernetesName = Annotated[
    str,
    matching(_KUBERNETES_NAME, "must be a name of Kubernetes: a-z, 0-9, `-`, `.`"),
    text_schema(_KUBERNETES_NAME),
]
Quantity = Annotated[
    str,
    BeforeValidator(_quantity),
    WithJsonSchema({"type": ["string", "number"], "pattern": f"^{QUANTITY}$", "minimum": 0}),
]
SharedDir = Annotated[str, BeforeValidator(_shared_dir), text_schema(r"[^\x00-\x1f\\]+")]
MountPath = Annotated[str, BeforeValidator(_mount_path), text_schema(r"(?!.*/\.\.(/|$))/[^:]*")]
