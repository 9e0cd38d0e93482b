"""The fields of a job file, typed: a union on `mode`."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal, TypeAlias

from pydantic import BeforeValidator, Field, StrictInt, StrictStr

from jobsubmit.common.store_address import Addressing, StoreAddress
from jobsubmit.spec.backend import BackendField, BackendSpec, parse_backend
from jobsubmit.spec.field_types import (
    MOST_PROCESSES_OF_NODE,
    CodeDir,
    Command,
    DataName,
    Endpoint,
    EnvName,
    FrozenModel,
    HyperparameterName,
    JobName,
    Location,
    MetricName,
    MetricPattern,
    NodeCount,
    Pause,
    RelativeFile,
    RestartCondition,
    ScalarText,
    SecretRef,
    ShellLines,
    StoreUri,
    Timeout,
    TorchVersion,
    wrong,
)
from jobsubmit.spec.hyperparameter import Hyperparameter
from jobsubmit.spec.modes import Start

Layout: TypeAlias = Literal["tree", "archive"]
RdzvBackendName: TypeAlias = Literal["static", "c10d"]
LocalRank: TypeAlias = Literal["env", "argument"]
PassedAs: TypeAlias = Literal["hyperparameter", "env"]
Profile: TypeAlias = Literal["sync", "buckets"]
Tracker: TypeAlias = Literal["wandb", "mlflow", "swanlab"]


class ResourcesSpec(FrozenModel):
    """The nodes of a job, their processes and their machine type."""

    nodes: NodeCount = Field(
        1,
        description='Number of nodes; "1:3" makes a torchrun job elastic: at least 1 node, at most 3.',
        examples=[2, "1:3"],
    )
    nproc_per_node: StrictInt | None = Field(
        None,
        ge=1,
        le=MOST_PROCESSES_OF_NODE,
        description="Training processes per node; default: one per accelerator of the node (MA_NUM_GPUS). It does not "
        "request GPUs: the backend has a field for that.",
        examples=[8],
    )
    flavor: StrictStr | None = Field(
        None,
        min_length=1,
        description="Machine type of ModelArts; the other backends ignore it.",
        examples=["modelarts.p3.large.public"],
    )

    @property
    def fewest(self) -> int:
        """Return the smallest number of nodes that the job needs."""
        return int(str(self.nodes).partition(":")[0])

    @property
    def most(self) -> int:
        """Return the number of nodes that the job starts with, which is also the largest."""
        return int(str(self.nodes).rpartition(":")[2])


class FrameworkSpec(FrozenModel):
    """A preset framework of the platform, used instead of an image."""

    name: StrictStr = Field(description="The preset engine, e.g. PyTorch.", min_length=1, examples=["PyTorch"])
    version: StrictStr = Field(
        description="The engine's version string, as the platform lists it.",
        min_length=1,
        examples=["pytorch_2.1.0-cuda_12.1-py_3.10-ubuntu_20.04-x86_64"],
    )


class StoreSpec(FrozenModel):
    """Where code is uploaded to: a folder, or a bucket on S3, OBS or MinIO."""

    uri: StoreUri | None = Field(
        None,
        description="s3://bucket/prefix, obs://bucket/prefix, or a folder; default: `store` in the state directory.",
        examples=["s3://bucket/jobs", "obs://bucket/jobs", "store"],
    )
    endpoint_url: Endpoint | None = Field(
        None,
        description="Server address for OBS, MinIO and other S3-compatible stores.",
        examples=["https://obs.example.com", "http://127.0.0.1:9000"],
    )
    region: StrictStr | None = Field(
        None, min_length=1, description="Region for which requests are signed.", examples=["us-east-1"]
    )
    profile: StrictStr | None = Field(
        None, min_length=1, description="Name of a profile in the AWS credentials files.", examples=["research"]
    )
    addressing: Addressing | None = Field(
        None,
        description="Where the bucket is in the address: virtual (in the host name; OBS needs it), path (usual for "
        "MinIO), or auto, which decides.",
        examples=["virtual"],
    )
    ca_bundle: Location | None = Field(
        None,
        description="File with the CA certificates that verify the server's certificate, relative to the job file.",
        examples=["company-ca.pem"],
    )

    @property
    def address(self) -> StoreAddress:
        """Return the address of the store."""
        return StoreAddress(
            self.uri or "", self.endpoint_url, self.region, self.profile, self.addressing, self.ca_bundle
        )


class DataSpec(FrozenModel):
    """A folder, on disk or in a bucket, that the nodes see as a local directory."""

    name: DataName = Field(
        description="Name of the hyperparameter or variable that holds the local path.", examples=["data_url"]
    )
    uri: StoreUri = Field(
        description="s3://bucket/path, obs://bucket/path, or a folder relative to the job file.",
        examples=["s3://bucket/imagenet", "../data"],
    )
    passed_as: PassedAs = Field(
        "hyperparameter",
        alias="as",
        description="How your code gets the local path: as --NAME=PATH (hyperparameter, the default), or as the "
        "variable NAME (env).",
        examples=["env"],
    )


class InputSpec(DataSpec):
    """Data that each node has before the start; do not write to it."""


class OutputSpec(DataSpec):
    """A directory whose content is uploaded: at an interval, at every restart and at the end."""

    name: DataName = Field(
        description="Name of the hyperparameter or variable that holds the local path.", examples=["train_url"]
    )
    uri: StoreUri = Field(
        description="s3://bucket/path, obs://bucket/path, or a folder relative to the job file.",
        examples=["s3://bucket/results", "../results"],
    )
    every: Timeout = Field(
        300,
        description="Interval between uploads while the job runs, in seconds or as 5m; default 5m.",
        examples=["5m", 300],
    )


class CheckpointSpec(FrozenModel):
    """Where a job stores what it needs to continue after a restart."""

    uri: StoreUri = Field(
        description="Folder, relative to the job file, or s3://…, obs://…; each job gets a subfolder of its own "
        "(not on ModelArts, where jobs with the same folder share it).",
        examples=["checkpoints", "s3://bucket/checkpoints"],
    )
    passed_as: PassedAs | None = Field(
        None,
        alias="as",
        description="How your code gets the local path: only as the variable JOBSUBMIT_CHECKPOINT_DIR (env), or also "
        "as --NAME=PATH (hyperparameter); default: --NAME=PATH is passed if the boot file declares it.",
        examples=["hyperparameter"],
    )
    name: HyperparameterName = Field(
        "checkpoint_dir", description="Name of the hyperparameter.", examples=["resume_dir"]
    )


def _not_empty(value: object) -> object:
    if value in ([], ()):
        raise wrong("must have at least one condition; remove the field to use the default")
    return value


class RestartsSpec(FrozenModel):
    """When all nodes of a job restart, from its last checkpoint."""

    max: StrictInt = Field(ge=0, description="Maximum number of restarts.", examples=[3])
    on: Annotated[tuple[RestartCondition, ...], Field(min_length=1), BeforeValidator(_not_empty)] = Field(
        ("failure", "node_failure", "hang"),
        description="What causes a restart: failure (any process failed), signal (a signal ended a process), "
        "node_failure (a node was lost), hang (see hang_after), exit:75 (this exit code), log:/a regular expression/ "
        "(found in the last lines of the failing process); default: failure, node_failure and hang.",
        examples=[["node_failure", "exit:75"], ["log:/NCCL error/"]],
    )
    backoff: Pause = Field(
        5,
        description="Pause before the first restart, in seconds or as 30s; it doubles with each further restart. "
        "Default: 5s.",
        examples=["30s", 5],
    )


def _short(name: str, kind: type[int] | type[str], model: type[FrozenModel], rule: str, schema: Any) -> BeforeValidator:
    """Let a plain value stand for a mapping with this one field."""

    def expand(value: object) -> object:
        if isinstance(value, kind) and not isinstance(value, bool):
            return {name: value}
        if not isinstance(value, (dict, model)):
            raise wrong(rule)
        return value

    return BeforeValidator(expand, json_schema_input_type=schema | model)


Restarts = Annotated[
    RestartsSpec,
    _short("max", int, RestartsSpec, "must be a number, or {max, on, backoff}", Annotated[int, Field(ge=0)]),
]


def _local() -> BackendSpec:
    return parse_backend({})


CheckpointDir = Annotated[
    CheckpointSpec, _short("uri", str, CheckpointSpec, "must be a path, or {uri, as, name}", StoreUri)
]


class _CommonSpec(FrozenModel):
    """The fields every mode has."""

    name: JobName = Field(
        description="Name of the job; each submission gets a suffix of its own.", examples=["resnet50"]
    )
    code_dir: CodeDir = Field(
        description="Directory to upload, relative to the job file; or the address of uploaded code: s3://… or obs://….",
        examples=["src", "s3://bucket/code/src"],
    )
    hyperparameters: dict[HyperparameterName, Hyperparameter] = Field(
        default_factory=dict,
        description="Passed to the boot file as --name=value: booleans as true/false, lists as JSON, {flag: true} as "
        "--name alone; null is not passed.",
        examples=[{"lr": 0.1, "layers": [64, 128], "amp": {"flag": True}}],
    )
    env: dict[EnvName, ScalarText] = Field(
        default_factory=dict,
        description="Environment variables of every node; they are part of the request.",
        examples=[{"NCCL_DEBUG": "INFO"}],
    )
    secrets: dict[EnvName, SecretRef] = Field(
        default_factory=dict,
        description="Environment variables whose values jobsubmit reads from yours at submission (`env:NAME`) and "
        "never stores.",
        examples=[{"WANDB_API_KEY": "env:WANDB_API_KEY"}],
    )
    resources: ResourcesSpec = Field(
        default_factory=ResourcesSpec.model_construct,
        description="Nodes, processes and machine type of the job.",
        examples=[{"nodes": 2, "nproc_per_node": 8}],
    )
    torch_version: TorchVersion | None = Field(
        None,
        description='Version of torch on the nodes, e.g. "2.9"; decides the rendezvous of torchrun.',
        examples=["2.9"],
    )
    templates: Location | None = Field(
        None,
        description="Folder with your own templates, which replace the built-in ones of the same name.",
        examples=["my-templates"],
    )
    timeout: Timeout | None = Field(
        None,
        description="Maximum run time, in seconds or as 90s, 30m, 12h, 2d; the job is then stopped.",
        examples=["12h", 3600],
    )
    requirements: RelativeFile | None = Field(
        None,
        description="File of Python packages, relative to code_dir; each node installs them before the start.",
        examples=["requirements.txt"],
    )
    setup: ShellLines | None = Field(
        None,
        description="Shell lines that each node runs in the code directory before the training starts, in each "
        "attempt; bash stops at the first command that fails.",
        examples=["pip install -e .", "make extensions\npython prepare_data.py"],
    )
    allow_secrets: tuple[Location, ...] = Field(
        (),
        description="Patterns, as in .gitignore, of files to upload even if they seem to contain secrets.",
        examples=[["tests/*.pem"]],
    )
    inputs: tuple[InputSpec, ...] = Field(
        (),
        description="Data that each node gets as local directories.",
        examples=[[{"name": "data_url", "uri": "s3://bucket/imagenet"}]],
    )
    outputs: tuple[OutputSpec, ...] = Field(
        (),
        description="Local directories that are uploaded.",
        examples=[[{"name": "train_url", "uri": "out", "every": "10m"}]],
    )
    checkpoint_dir: CheckpointDir | None = Field(
        None,
        description="Directory for checkpoints, which survives restarts, as a path or {uri, as, name}.",
        examples=["checkpoints", {"uri": "s3://bucket/checkpoints", "as": "env"}],
    )
    restarts: Restarts | None = Field(
        None,
        description="Restart all nodes after a failure, as a maximum number or {max, on, backoff}.",
        examples=[3, {"max": 3, "on": ["node_failure"], "backoff": "30s"}],
    )
    hang_after: Pause | None = Field(
        None,
        description="End the job (reason HANG) after this time without output or CPU use; 0 turns it off. Default: 10m "
        "on the local backend and for jobs with one node, else off.",
        examples=["20m", 0],
    )
    profile: Profile | None = Field(
        None,
        description="Measure DistributedDataParallel in each step for `jobsubmit report`, without changes to your "
        "code: sync, or buckets (also each bucket of gradients, which costs more).",
        examples=["sync"],
    )
    metrics: dict[MetricName, MetricPattern] = Field(
        default_factory=dict,
        description="Metrics by your own regular expressions, for output that jobsubmit does not read by itself; the "
        "first group contains the number. The names step, steps, epoch and epochs count the progress.",
        examples=[{"loss": "train=([0-9.]+)", "step": "it ([0-9]+)"}],
    )
    tracking: tuple[Tracker, ...] = Field(
        (),
        description="Experiment trackers (wandb, mlflow, swanlab) that get the job id as the group of their runs, in "
        "their own environment variables.",
        examples=[["wandb"]],
    )
    store: StoreSpec = Field(
        default_factory=StoreSpec.model_construct,
        description="Where the code is uploaded to.",
        examples=[{"uri": "s3://bucket/jobs", "endpoint_url": "http://127.0.0.1:9000"}],
    )
    backend: BackendField = Field(
        default_factory=_local,
        description="Backend that runs the job: {kind: local}, {kind: slurm, …}, …",
        examples=[{"kind": "slurm", "partition": "gpu"}, {"kind": "local"}],
    )
    layout: Layout | None = Field(
        None,
        description="How the code is stored: as one object per file (tree), or as one archive (archive).",
        examples=["archive"],
    )


class SpawnSpec(_CommonSpec):
    """Preset framework: the platform starts the boot file, which calls mp.spawn itself."""

    mode: Literal["spawn"] = Field(description="Preset framework; the boot file calls mp.spawn.", examples=["spawn"])
    boot_file: RelativeFile = Field(
        description="Python file to start, relative to code_dir: once per node in mode spawn, else once per process.",
        examples=["main.py"],
    )
    framework: FrameworkSpec | None = Field(
        None,
        description="Preset framework of ModelArts, as `jobsubmit engines` lists it; the local backend ignores it.",
        examples=[{"name": "PyTorch", "version": "pytorch_2.1.0-cuda_12.1-py_3.10-ubuntu_20.04-x86_64"}],
    )


class _ContainerSpec(_CommonSpec):
    """The fields of jobs that run in an image of their own."""

    image: StrictStr | None = Field(
        None,
        min_length=1,
        description="Container image; needed only by backends that start containers.",
        examples=["pytorch/pytorch:2.9.0-cuda12.8-cudnn9-runtime"],
    )
    args: tuple[ScalarText, ...] = Field(
        (),
        description="Further arguments, passed after the hyperparameters, each as one word.",
        examples=[["--fast", "data/train"]],
    )


class CommandSpec(_ContainerSpec):
    """Your own start command, run once on each node in the code directory."""

    boot_file: ClassVar[None] = None

    mode: Literal["command"] = Field("command", description="Your own start command.", examples=["command"])
    command: Command = Field(
        description="Your own start command, run once on each node in the code directory.",
        examples=["python train.py", ["bash", "run.sh"]],
    )


class _ImageSpec(_ContainerSpec):
    """The fields of the two custom-image modes."""

    boot_file: RelativeFile | None = Field(
        None,
        description="Python file to start, relative to code_dir: once per node in mode spawn, else once per process.",
        examples=["train.py"],
    )
    command: Command | None = Field(
        None,
        description="Your own start command, run in the code directory instead of launcher and boot_file; "
        "mode launch or torchrun then only decides what is checked, and torchrun allows elastic nodes.",
        examples=[["bash", "run.sh"], "python run.py"],
    )


class LaunchSpec(_ImageSpec):
    """Custom image, started by torch.distributed.launch."""

    mode: Literal["launch"] = Field(
        description="Custom image; started by torch.distributed.launch.", examples=["launch"]
    )
    local_rank: LocalRank = Field(
        "env",
        description="How a process gets its local rank: only as the variable LOCAL_RANK (env: --use_env), or also as "
        "--local-rank=N (argument).",
        examples=["argument"],
    )


class TorchrunSpec(_ImageSpec):
    """Custom image, started by torch.distributed.run."""

    mode: Literal["torchrun"] = Field(
        description="Custom image; started by torch.distributed.run.", examples=["torchrun"]
    )
    rdzv_backend: RdzvBackendName | None = Field(
        None, description="How the nodes find each other; by default the torch version decides.", examples=["static"]
    )


JobSpec: TypeAlias = SpawnSpec | LaunchSpec | TorchrunSpec | CommandSpec
SPECS: dict[Start, type[JobSpec]] = {
    "spawn": SpawnSpec,
    "launch": LaunchSpec,
    "torchrun": TorchrunSpec,
    "command": CommandSpec,
}


class Defaults(FrozenModel):
    """The user's configuration file: defaults for what a job file leaves out."""

    store: StoreSpec = Field(
        default_factory=StoreSpec.model_construct,
        description="Default store of all jobs.",
        examples=[{"uri": "s3://bucket/jobs"}],
    )
    backend: BackendField = Field(default_factory=_local, description="Default backend.", examples=[{"kind": "slurm"}])
