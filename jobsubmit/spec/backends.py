"""What a user may say about the engine that runs a job: a union on `kind`."""

from __future__ import annotations

from typing import Literal, TypeAlias

from pydantic import Field, StrictBool, StrictInt, StrictStr, model_validator

from jobsubmit.spec.backend_fields import (
    KubernetesName,
    MountPath,
    ObsFolder,
    PlatformName,
    Quantity,
    SharedDir,
    SlurmGpus,
    SlurmOption,
    SlurmWord,
)
from jobsubmit.spec.fields import Endpoint, FrozenModel, ScalarText, Timeout, wrong


class LocalBackendSpec(FrozenModel):
    """Run the job on emulated nodes of this machine."""

    kind: Literal["local"] = Field(
        "local", description="Run on emulated nodes of this machine, no account needed.", examples=["local"]
    )


class SlurmBackendSpec(FrozenModel):
    """Run the job by Slurm: one task per node."""

    kind: Literal["slurm"] = Field(
        description="Run by Slurm; works where its clients (sbatch, scontrol, …) do.", examples=["slurm"]
    )
    partition: SlurmWord | None = Field(
        None, description="Partition; left out, the cluster's default.", examples=["gpu"]
    )
    account: SlurmWord | None = Field(None, description="Account that is charged.", examples=["vision"])
    qos: SlurmWord | None = Field(None, description="Quality of service.", examples=["high"])
    time: Timeout | None = Field(
        None,
        description="Time limit of the allocation, in seconds or as 12h; Slurm rounds up to minutes. Left out: from "
        "`timeout`, else the partition's.",
        examples=["12h"],
    )
    constraint: SlurmWord | None = Field(
        None, description="Features that the nodes must have, e.g. a100&ib.", examples=["a100&ib"]
    )
    exclude: SlurmWord | None = Field(None, description="Nodes not to be used, e.g. gpu[3-5].", examples=["gpu[3-5]"])
    gpus_per_node: SlurmGpus | None = Field(
        None, description="GPUs of each node, as a number or with a type: a100:8.", examples=[8, "a100:8"]
    )
    cpus_per_task: StrictInt | None = Field(
        None, ge=1, description="CPUs of each node that the job gets.", examples=[64]
    )
    mem: SlurmWord | None = Field(
        None, description="Memory of each node that the job gets, e.g. 64G.", examples=["64G"]
    )
    extra_sbatch: tuple[SlurmOption, ...] = Field(
        (),
        description="Further options of sbatch, each as one text: --reservation=team.",
        examples=[["--reservation=team"]],
    )
    shared_dir: SharedDir | None = Field(
        None,
        description="Folder that this machine and all nodes see under this path; logs and results go there. Left out: "
        "in the state directory.",
        examples=["/shared/jobsubmit"],
    )


class TolerationSpec(FrozenModel):
    """A taint of nodes that the pods bear."""

    key: StrictStr | None = Field(
        None, description="Key of the taint; left out with operator Exists: any.", examples=["nvidia.com/gpu"]
    )
    operator: Literal["Exists", "Equal"] = Field("Equal", description="Whether the value counts.", examples=["Exists"])
    value: StrictStr | None = Field(None, description="Value of the taint.", examples=["present"])
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = Field(
        None, description="Left out: any.", examples=["NoSchedule"]
    )


class VolumeSpec(FrozenModel):
    """A volume that every pod mounts: a claim, or a folder of its machine."""

    path: MountPath = Field(description="Where the pods see it.", examples=["/data"])
    claim: KubernetesName | None = Field(None, description="Name of a PersistentVolumeClaim.", examples=["datasets"])
    host_path: MountPath | None = Field(
        None, description="A folder of the machine that the pod runs on.", examples=["/mnt/data"]
    )
    read_only: StrictBool = Field(False, description="Whether the pods may not write to it.", examples=[True])

    @model_validator(mode="after")
    def _is_of_one_kind(self) -> VolumeSpec:
        if (self.claim is None) == (self.host_path is None):
            raise wrong("must name one of claim or host_path")
        return self


class VolcanoBackendSpec(FrozenModel):
    """Run the job as a Volcano job on Kubernetes: one pod per node."""

    kind: Literal["volcano"] = Field(description="Run as a Volcano job on Kubernetes.", examples=["volcano"])
    namespace: KubernetesName | None = Field(
        None, description="Namespace; left out, the context's.", examples=["training"]
    )
    context: StrictStr | None = Field(
        None, min_length=1, description="Context of the kubeconfig; left out, its own.", examples=["cluster-a"]
    )
    queue: KubernetesName | None = Field(None, description="Queue of Volcano.", examples=["research"])
    priority_class: KubernetesName | None = Field(None, description="PriorityClass of the job.", examples=["high"])
    service_account: KubernetesName | None = Field(
        None, description="ServiceAccount of the pods.", examples=["trainer"]
    )
    image: StrictStr | None = Field(
        None,
        min_length=1,
        description="Container image of jobs that name none, as those of mode spawn.",
        examples=["pytorch/pytorch:2.9.0-cuda12.8-cudnn9-runtime"],
    )
    image_pull_secrets: tuple[KubernetesName, ...] = Field(
        (), description="Secrets the image is pulled with.", examples=[["registry"]]
    )
    image_pull_policy: Literal["Always", "IfNotPresent", "Never"] | None = Field(
        None, description="When the image is pulled; left out, as Kubernetes thinks fit.", examples=["IfNotPresent"]
    )
    node_selector: dict[StrictStr, ScalarText] = Field(
        default_factory=dict, description="Labels the machines have.", examples=[{"gpu": "a100"}]
    )
    tolerations: tuple[TolerationSpec, ...] = Field(
        (),
        description="Taints of machines that the pods bear.",
        examples=[[{"key": "nvidia.com/gpu", "operator": "Exists"}]],
    )
    placement: Literal["spread", "pack"] | None = Field(
        None,
        description="spread: every pod on a machine of its own; pack: as near together as fits.",
        examples=["spread"],
    )
    resources: dict[StrictStr, Quantity] = Field(
        default_factory=dict,
        description="What each pod gets, as request and limit: {cpu: 8, memory: 64Gi, nvidia.com/gpu: 8}.",
        examples=[{"cpu": 8, "memory": "64Gi", "nvidia.com/gpu": 8}],
    )
    shm_size: Quantity | None = Field(
        None, description="Size of /dev/shm; left out, up to half the machine's memory.", examples=["16Gi"]
    )
    volumes: tuple[VolumeSpec, ...] = Field(
        (),
        description="Volumes that every pod mounts.",
        examples=[[{"claim": "datasets", "path": "/data", "read_only": True}]],
    )
    host_network: StrictBool = Field(
        False, description="Whether the pods use their machine's network.", examples=[True]
    )
    credentials_secret: KubernetesName | None = Field(
        None,
        description="A Secret with AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY that the pods fetch code with, instead "
        "of signed addresses that expire.",
        examples=["s3-keys"],
    )


class FaultToleranceSpec(FrozenModel):
    """When the platform itself starts a job again."""

    retry: StrictInt | None = Field(
        None,
        ge=1,
        le=3,
        description="How often, after a fault of the hardware; also has the machines tried out before.",
        examples=[3],
    )
    unconditional_retry: StrictBool = Field(
        False, description="Also after any other failure, so often as `retry` says.", examples=[True]
    )
    hang_retry: StrictBool = Field(False, description="Also when the job hangs.", examples=[True])


class ModelArtsBackendSpec(FrozenModel):
    """Run the job as a training job of ModelArts."""

    kind: Literal["modelarts"] = Field(description="Run as a training job of ModelArts.", examples=["modelarts"])
    region: PlatformName | None = Field(
        None, description="Region; left out, from the profile or the environment.", examples=["cn-north-4"]
    )
    project_id: PlatformName | None = Field(
        None,
        description="Id of the project in that region; left out, from the profile or the environment.",
        examples=["0f3a5c..."],
    )
    endpoint: Endpoint | None = Field(
        None,
        description="Address of the service; left out, that of the region.",
        examples=["https://modelarts.cn-north-4.example.com"],
    )
    profile: PlatformName | None = Field(
        None,
        description="Profile of ~/.huaweicloud/credentials, or of KooCLI's ~/.hcloud/config.json.",
        examples=["research"],
    )
    workspace_id: PlatformName | None = Field(None, description="Workspace; left out, the default one.", examples=["0"])
    pool_id: PlatformName | None = Field(
        None, description="Dedicated resource pool; left out, the public one.", examples=["pool-a1b2"]
    )
    flavor: StrictStr | None = Field(
        None,
        min_length=1,
        description="Machine type of jobs that name none in resources.flavor.",
        examples=["modelarts.vm.gpu.8v100"],
    )
    log_url: ObsFolder | None = Field(
        None, description="Where the platform keeps the logs: obs://bucket/logs.", examples=["obs://bucket/logs"]
    )
    auto_stop_hours: StrictInt | None = Field(
        None,
        ge=1,
        le=72,
        description="The platform ends the job after so many hours; left out, from `timeout`.",
        examples=[24],
    )
    priority: StrictInt | None = Field(None, ge=1, le=3, description="Priority in a dedicated pool.", examples=[2])
    description: StrictStr | None = Field(
        None, max_length=256, description="What the console shows beside the job.", examples=["warm-up ablation"]
    )
    fault_tolerance: FaultToleranceSpec = Field(
        default_factory=FaultToleranceSpec,
        description="When the platform itself starts the job again.",
        examples=[{"retry": 3, "hang_retry": True}],
    )
    annotations: dict[StrictStr, ScalarText] = Field(
        default_factory=dict,
        description="Further annotations of the job, as the platform's documentation names them.",
        examples=[{"fault-tolerance/job-retry-num": "3"}],
    )
    boot_file_of_image: StrictBool = Field(
        False,
        description="Name the boot file in the request of a custom-image job, too; the documentation leaves open if "
        "the API wants it.",
        examples=[True],
    )


BackendSpec: TypeAlias = LocalBackendSpec | SlurmBackendSpec | VolcanoBackendSpec | ModelArtsBackendSpec
BACKENDS: dict[
    str, type[LocalBackendSpec] | type[SlurmBackendSpec] | type[VolcanoBackendSpec] | type[ModelArtsBackendSpec]
] = {
    "local": LocalBackendSpec,
    "slurm": SlurmBackendSpec,
    "volcano": VolcanoBackendSpec,
    "modelarts": ModelArtsBackendSpec,
}
