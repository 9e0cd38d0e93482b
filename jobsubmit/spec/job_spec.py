"""The fields of a job file, typed: a union on `mode`."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal, TypeAlias

from pydantic import BeforeValidator, Field, StrictInt, StrictStr

from jobsubmit.common.store_address import Addressing, StoreAddress
from jobsubmit.spec.backend import BackendField, BackendSpec, parse_backend
from jobsubmit.spec.field_types import (
    CodeDir,
    Command,
    DataName,
    Endpoint,
    EnvName,
    FrozenModel,
    HyperparameterName,
    JobName,
    Location,
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


class ResourcesSpec(FrozenModel):
    """How many machines, and how many processes on each."""

    nodes: NodeCount = Field(
        1,
        description='Number of machines (nodes) of the job; "1:3" under torchrun: at least 1, at most 3 (elastic).',
        examples=[2, "1:3"],
    )
    nproc_per_node: StrictInt | None = Field(
        None,
        ge=1,
        description="Training processes per node; left out, each node starts one per accelerator (MA_NUM_GPUS).",
        examples=[8],
    )
    flavor: StrictStr | None = Field(
        None,
        min_length=1,
        description="The platform's machine type; the local backend ignores it.",
        examples=["modelarts.p3.large.public"],
    )

    @property
    def fewest(self) -> int:
        """Return how many nodes the job needs at least."""
        return int(str(self.nodes).partition(":")[0])

    @property
    def most(self) -> int:
        """Return how many nodes the job starts with, and has at most."""
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
        description="s3://bucket/prefix, obs://bucket/prefix, or a folder (the embedded default).",
        examples=["s3://bucket/jobs", "obs://bucket/jobs", "store"],
    )
    endpoint_url: Endpoint | None = Field(
        None,
        description="Server address for OBS, MinIO and other S3-compatible stores.",
        examples=["https://obs.example.com", "http://127.0.0.1:9000"],
    )
    region: StrictStr | None = Field(
        None, min_length=1, description="Region name the requests are signed for.", examples=["us-east-1"]
    )
    profile: StrictStr | None = Field(
        None, min_length=1, description="Named profile of the AWS credentials files.", examples=["research"]
    )
    addressing: Addressing | None = Field(
        None,
        description="How the bucket is put into the address: OBS needs virtual, MinIO usually path; auto decides.",
        examples=["virtual"],
    )
    ca_bundle: Location | None = Field(
        None,
        description="File with the authorities that have signed the server's certificate, relative to the job file.",
        examples=["company-ca.pem"],
    )

    @property
    def address(self) -> StoreAddress:
        """Return what of this says where the store is."""
        return StoreAddress(
            self.uri or "", self.endpoint_url, self.region, self.profile, self.addressing, self.ca_bundle
        )


class DataSpec(FrozenModel):
    """A folder or a place in a bucket that the nodes see as a local directory."""

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
        description="Give the local path as --NAME=PATH, or as the variable NAME.",
        examples=["env"],
    )


class InputSpec(DataSpec):
    """Data that is on each node before the start; it must not be written to."""


class OutputSpec(DataSpec):
    """A directory whose content is uploaded: now and then, at every restart and at the end."""

    every: Timeout = Field(
        300, description="How often it is uploaded while the job runs, in seconds or as 5m.", examples=["5m", 300]
    )


class CheckpointSpec(FrozenModel):
    """Where a job keeps what it needs to go on after a restart."""

    uri: StoreUri = Field(
        description="A folder, relative to the job file, or s3://…, obs://…; each job has a folder of its own in it.",
        examples=["checkpoints", "s3://bucket/checkpoints"],
    )
    passed_as: PassedAs | None = Field(
        None,
        alias="as",
        description="Give the local path as the variable JOBSUBMIT_CHECKPOINT_DIR only (env), or as --NAME=PATH, too "
        "(hyperparameter); left out, --NAME=PATH is given if the boot file declares it.",
        examples=["hyperparameter"],
    )
    name: HyperparameterName = Field(
        "checkpoint_dir", description="Name of that hyperparameter.", examples=["resume_dir"]
    )


def _not_empty(value: object) -> object:
    if value in ([], ()):
        raise wrong("must name at least one condition, or be left out")
    return value


class RestartsSpec(FrozenModel):
    """When all nodes of a job are started again, from its last checkpoint."""

    max: StrictInt = Field(ge=0, description="How often, at most.", examples=[3])
    on: Annotated[tuple[RestartCondition, ...], Field(min_length=1), BeforeValidator(_not_empty)] = Field(
        ("failure", "node_failure", "hang"),
        description="After what: failure (any process failed), signal (one was ended by a signal), node_failure, hang, "
        "exit:75 (this exit code), log:/a regular expression/ (found in the failing process's last lines).",
        examples=[["node_failure", "exit:75"], ["log:/NCCL error/"]],
    )
    backoff: Pause = Field(
        5,
        description="Pause before the first restart, doubled for each further one, in seconds or as 30s.",
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
        description="Directory that is uploaded, relative to the job file; or s3://… / obs://… that is there already.",
        examples=["src", "s3://bucket/code/src"],
    )
    hyperparameters: dict[HyperparameterName, Hyperparameter] = Field(
        default_factory=dict,
        description="Passed to the boot file as --name=value: booleans as true/false, lists as JSON, null not at all, "
        "{flag: true} as the bare --name.",
        examples=[{"lr": 0.1, "layers": [64, 128], "amp": {"flag": True}}],
    )
    env: dict[EnvName, ScalarText] = Field(
        default_factory=dict,
        description="Environment variables of every node; they travel in the request.",
        examples=[{"NCCL_DEBUG": "INFO"}],
    )
    secrets: dict[EnvName, SecretRef] = Field(
        default_factory=dict,
        description="Environment variables taken from yours at submission (`env:NAME`), and never written down.",
        examples=[{"WANDB_API_KEY": "env:WANDB_API_KEY"}],
    )
    resources: ResourcesSpec = Field(
        default_factory=ResourcesSpec.model_construct,
        description="Machines and processes of the job.",
        examples=[{"nodes": 2, "nproc_per_node": 8}],
    )
    torch_version: TorchVersion | None = Field(
        None,
        description='Version of torch on the nodes, e.g. "2.9"; decides the rendezvous of torchrun.',
        examples=["2.9"],
    )
    templates: Location | None = Field(
        None,
        description="Folder with templates of your own, looked up before the shipped ones.",
        examples=["my-templates"],
    )
    timeout: Timeout | None = Field(
        None,
        description="Longest run time, in seconds or as 90s, 30m, 12h, 2d; after it the job is stopped.",
        examples=["12h", 3600],
    )
    requirements: RelativeFile | None = Field(
        None,
        description="File of Python packages, relative to code_dir, that each node installs before the start.",
        examples=["requirements.txt"],
    )
    setup: ShellLines | None = Field(
        None,
        description="Shell lines that each node runs in the code directory before the start, and again after a restart "
        "that fetches the code anew; bash ends at the first that fails.",
        examples=["pip install -e .", "make extensions\npython prepare_data.py"],
    )
    allow_secrets: tuple[Location, ...] = Field(
        (),
        description="Files, as patterns like in .gitignore, that are uploaded although they look like keys.",
        examples=[["tests/*.pem"]],
    )
    inputs: tuple[InputSpec, ...] = Field(
        (),
        description="Data the nodes find as local directories.",
        examples=[[{"name": "data_url", "uri": "s3://bucket/imagenet"}]],
    )
    outputs: tuple[OutputSpec, ...] = Field(
        (),
        description="Local directories that are uploaded.",
        examples=[[{"name": "train_url", "uri": "out", "every": "10m"}]],
    )
    checkpoint_dir: CheckpointDir | None = Field(
        None,
        description="Directory that all nodes share and that outlives restarts, as a path or {uri, as, name}.",
        examples=["checkpoints", {"uri": "s3://bucket/checkpoints", "as": "env"}],
    )
    restarts: Restarts | None = Field(
        None,
        description="Start all nodes again after a failure, as a number or {max, on, backoff}.",
        examples=[3, {"max": 3, "on": ["node_failure"], "backoff": "30s"}],
    )
    hang_after: Pause | None = Field(
        None,
        description="End the job (reason HANG) after this long without output or CPU time; 10m unless given, 0: never.",
        examples=["20m", 0],
    )
    profile: Profile | None = Field(
        None,
        description="Time what DistributedDataParallel does in each step, for `jobsubmit report`, without a change in "
        "your code: sync, or buckets (each bucket of gradients, too, which costs more).",
        examples=["sync"],
    )
    store: StoreSpec = Field(
        default_factory=StoreSpec.model_construct,
        description="Where the code is uploaded to.",
        examples=[{"uri": "s3://bucket/jobs", "endpoint_url": "http://127.0.0.1:9000"}],
    )
    backend: BackendField = Field(
        default_factory=_local,
        description="What runs the job: {kind: local}, {kind: slurm, …}, …",
        examples=[{"kind": "slurm", "partition": "gpu"}, {"kind": "local"}],
    )
    layout: Layout | None = Field(
        None,
        description="How the code lies in the store: one object per file (tree) or one archive.",
        examples=["archive"],
    )


class SpawnSpec(_CommonSpec):
    """Preset framework: the platform starts the boot file, which calls mp.spawn itself."""

    mode: Literal["spawn"] = Field(description="Preset framework; the boot file calls mp.spawn.", examples=["spawn"])
    boot_file: RelativeFile = Field(
        description="Python file that is started on each node, relative to code_dir.", examples=["main.py"]
    )
    framework: FrameworkSpec | None = Field(
        None,
        description="Preset framework; the local backend ignores it.",
        examples=[{"name": "PyTorch", "version": "2.1"}],
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
        description="Extra positional arguments, after the hyperparameters, each passed as one word.",
        examples=[["--fast", "data/train"]],
    )


class CommandSpec(_ContainerSpec):
    """Your own start command, run once on each node in the code directory."""

    boot_file: ClassVar[None] = None

    mode: Literal["command"] = Field("command", description="A start command of your own.", examples=["command"])
    command: Command = Field(
        description="Your own start command, run once on each node in the code directory.",
        examples=["python train.py", ["bash", "run.sh"]],
    )


class _ImageSpec(_ContainerSpec):
    """The fields of the two custom-image modes."""

    boot_file: RelativeFile | None = Field(
        None,
        description="Python file that the launcher starts once per process, relative to code_dir.",
        examples=["train.py"],
    )
    command: Command | None = Field(
        None,
        description="Your own start command, run in the code directory instead of launcher and boot_file; "
        "the mode then only decides what is checked.",
        examples=[["bash", "run.sh"], "python run.py"],
    )


class LaunchSpec(_ImageSpec):
    """Custom image, started by torch.distributed.launch."""

    mode: Literal["launch"] = Field(
        description="Custom image; started by torch.distributed.launch.", examples=["launch"]
    )
    local_rank: LocalRank = Field(
        "env",
        description="How a process learns its local rank: as the variable LOCAL_RANK only (env: --use_env), or as "
        "--local-rank=N, too (argument).",
        examples=["argument"],
    )


class TorchrunSpec(_ImageSpec):
    """Custom image, started by torch.distributed.run."""

    mode: Literal["torchrun"] = Field(
        description="Custom image; started by torch.distributed.run.", examples=["torchrun"]
    )
    rdzv_backend: RdzvBackendName | None = Field(
        None, description="How the nodes find each other; left out, the torch version decides.", examples=["static"]
    )


JobSpec: TypeAlias = SpawnSpec | LaunchSpec | TorchrunSpec | CommandSpec
SPECS: dict[Start, type[JobSpec]] = {
    "spawn": SpawnSpec,
    "launch": LaunchSpec,
    "torchrun": TorchrunSpec,
    "command": CommandSpec,
}


class Defaults(FrozenModel):
    """The user's configuration file: what a job file leaves out."""

    store: StoreSpec = Field(
        default_factory=StoreSpec.model_construct,
        description="Default store of all jobs.",
        examples=[{"uri": "s3://bucket/jobs"}],
    )
    backend: BackendField = Field(default_factory=_local, description="Default backend.", examples=[{"kind": "slurm"}])
