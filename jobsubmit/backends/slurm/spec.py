"""The fields of the Slurm backend in a job file."""

from __future__ import annotations

import re
from typing import Annotated, ClassVar, Literal

from pydantic import BeforeValidator, Field, StrictInt, WithJsonSchema

from jobsubmit.spec.backend import BackendSpec
from jobsubmit.spec.backend_registry import KINDS
from jobsubmit.spec.field_types import PythonProgram, Timeout, location, matching, plain_text, text_schema, wrong

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


_NOT_SUPPORTED = ("--array", "--clusters", "--hetjob")
_NOT_SUPPORTED_SHORT = "-[aM]"
_PER_TASK = "--gpus-per-t"  # or longer
_SHORTEST_OPTION = 4  # sbatch takes an option by its beginning


def _slurm_option(value: object) -> str:
    text = plain_text(value)
    if not re.fullmatch(_SLURM_OPTION, text) or not text.isprintable():
        raise wrong("must be one sbatch option on one line: `--reservation=team`")
    name = re.split("[= ]", text)[0]
    if name.startswith(_PER_TASK):
        raise wrong(f"{name} is for one task, and each node has only one: set backend.gpus_per_node")
    is_begun = len(name) >= _SHORTEST_OPTION and any(ours.startswith(name) for ours in _OUR_LONG_OPTIONS)
    if name in _OUR_LONG_OPTIONS or is_begun or (not name.startswith("--") and re.match(_OUR_SHORT_OPTIONS, name)):
        if any(one.startswith(name) for one in _NOT_SUPPORTED) or re.match(_NOT_SUPPORTED_SHORT, name):
            raise wrong(f"{name} is not supported: submit one job for each task or cluster")
        raise wrong(f"{name} cannot be set here: jobsubmit sets it")
    return text


def _shared_dir(value: object) -> str:
    text = location(value)
    if not text.isprintable() or "\\" in text:
        raise wrong("must be a path without control characters and backslashes, which sbatch cannot read")
    return text


def _begun(option: str) -> str:
    """Return a pattern of an option and its beginnings, which sbatch takes for it."""
    rest = option[_SHORTEST_OPTION:]
    return option[:_SHORTEST_OPTION] + "".join(f"({letter}" for letter in rest) + ")?" * len(rest)


_SLURM_WORD = r"[A-Za-z0-9_][A-Za-z0-9_.,:@/+=\[\]*&|()!-]*"


_SLURM_GPUS = r"([A-Za-z][\w.-]*:)?[1-9]\d{0,3}"


_SLURM_OPTION = r"--?[A-Za-z][A-Za-z0-9-]*([= ].*)?"


_OURS = "|".join(_begun(option) for option in _OUR_LONG_OPTIONS)


SlurmWord = Annotated[str, matching(_SLURM_WORD, "must be one word that sbatch accepts")]


SlurmGpus = Annotated[
    str,
    matching(_SLURM_GPUS, "must be a number, or a type and a number: `a100:8`", int),
    WithJsonSchema({"type": ["integer", "string"], "pattern": f"^{_SLURM_GPUS}$", "minimum": 1, "maximum": 9999}),
]


SlurmOption = Annotated[
    str,
    BeforeValidator(_slurm_option),
    text_schema(rf"(?!{_PER_TASK})(?!{_OUR_SHORT_OPTIONS})(?!({_OURS})([= ]|$))(?!.*[\x00-\x1f]){_SLURM_OPTION}"),
]


SharedDir = Annotated[str, BeforeValidator(_shared_dir), text_schema(r"[^\x00-\x1f\\]+")]


class SlurmBackendSpec(BackendSpec):
    """Run the job with Slurm: one task per node."""

    runs_by: ClassVar[str] = KINDS["slurm"].runs_by
    handle_path: ClassVar[str] = ".+/.+"
    path_fields: ClassVar[tuple[str, ...]] = ("shared_dir", "python")

    kind: Literal["slurm"] = Field(
        description="Run with Slurm; its clients (sbatch, scontrol, …) must work on this machine.", examples=["slurm"]
    )
    partition: SlurmWord | None = Field(
        None, description="Partition; left out, the cluster's default.", examples=["gpu"]
    )
    account: SlurmWord | None = Field(None, description="Account that is charged.", examples=["vision"])
    qos: SlurmWord | None = Field(None, description="Quality of service.", examples=["high"])
    time: Timeout | None = Field(
        None,
        description="Time limit of the allocation, in seconds or as 12h; Slurm rounds up to minutes. Left out: derived "
        "from `timeout`, else the limit of the partition.",
        examples=["12h"],
    )
    constraint: SlurmWord | None = Field(
        None, description="Features that the nodes must have, e.g. a100&ib.", examples=["a100&ib"]
    )
    exclude: SlurmWord | None = Field(None, description="Nodes not to use, e.g. gpu[3-5].", examples=["gpu[3-5]"])
    gpus_per_node: SlurmGpus | None = Field(
        None, description="GPUs of each node, as a number or with a type: a100:8.", examples=[8, "a100:8"]
    )
    cpus_per_task: StrictInt | None = Field(
        None, ge=1, description="CPUs that the job gets on each node.", examples=[64]
    )
    mem: SlurmWord | None = Field(
        None, description="Memory that the job gets on each node, e.g. 64G.", examples=["64G"]
    )
    extra_sbatch: tuple[SlurmOption, ...] = Field(
        (),
        description="More sbatch options, each as one text: --reservation=team.",
        examples=[["--reservation=team"]],
    )
    shared_dir: SharedDir | None = Field(
        None,
        description="Folder that this machine and all nodes see under this path; logs and results go there. Left out: "
        "a folder in the state directory.",
        examples=["/shared/jobsubmit"],
    )

    python: PythonProgram | None = Field(
        None,
        description="Python that runs the training: the path of the program, or of a virtual environment's folder. "
        "Left out: the first `python` on the nodes' PATH.",
        examples=["/opt/envs/train/bin/python3.11", "../.venv"],
    )

    def gpus_of_node(self, nodes: int, nproc_per_node: int | None) -> int | None:
        """Return the number in `gpus_per_node` (see BackendSpec)."""
        return int(self.gpus_per_node.rpartition(":")[2]) if self.gpus_per_node else None

    def missing_gpu_request(self) -> str:
        """Return `gpus_per_node`, unless an option of sbatch may request GPUs as well (see BackendSpec)."""
        may_request = any(re.match(r"--(?:gpu|gres|tres|exclusive)|-G", option) for option in self.extra_sbatch)
        return "" if self.gpus_per_node or may_request else "gpus_per_node: 8"
