"""The fields of the Volcano backend in a job file."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import (
    BeforeValidator,
    ConfigDict,
    Field,
    JsonValue,
    StrictBool,
    StrictStr,
    WithJsonSchema,
    model_validator,
)

from jobsubmit.spec.backend import BackendSpec
from jobsubmit.spec.backend_registry import KINDS
from jobsubmit.spec.field_types import FrozenModel, ScalarText, location, matching, text_schema, wrong

QUANTITY = r"\d+(\.\d+)?(m|k|M|G|T|P|E|Ki|Mi|Gi|Ti|Pi|Ei)?"


def _mount_path(value: object) -> str:
    text = location(value).rstrip("/")
    if not text.startswith("/") or ".." in text.split("/") or ":" in text:
        raise wrong("must be an absolute path, without `..` and `:`")
    return text


_KUBERNETES_NAME = r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?"


KubernetesName = Annotated[str, matching(_KUBERNETES_NAME, "must be a Kubernetes name: a-z, 0-9, `-`, `.`")]


Quantity = Annotated[
    str,
    matching(QUANTITY, "must be a Kubernetes quantity: `8`, `500m`, `64Gi`", int, float),
    WithJsonSchema({"type": ["string", "number"], "pattern": f"^{QUANTITY}$", "minimum": 0}),
]


MountPath = Annotated[str, BeforeValidator(_mount_path), text_schema(r"(?!.*/\.\.(/|$))/[^:]*")]


def _one(field: str) -> dict[str, JsonValue]:
    """Return the schema of a mapping that gives a field."""
    return {"properties": {field: {"type": "string"}}, "required": [field]}


class TolerationSpec(FrozenModel):
    """A taint of nodes that the pods tolerate."""

    key: StrictStr | None = Field(
        None, description="Key of the taint; left out with operator Exists: any key.", examples=["nvidia.com/gpu"]
    )
    operator: Literal["Exists", "Equal"] = Field(
        "Equal", description="Equal: the value must be equal, too. Exists: the key is enough.", examples=["Exists"]
    )
    value: StrictStr | None = Field(None, description="Value of the taint.", examples=["present"])
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = Field(
        None, description="Effect of the taint; left out: any effect.", examples=["NoSchedule"]
    )


class VolumeSpec(FrozenModel):
    """A volume that every pod mounts: a claim, or a folder of its machine."""

    model_config = ConfigDict(json_schema_extra={"allOf": [{"oneOf": [_one("claim"), _one("host_path")]}]})

    path: MountPath = Field(description="Path of the volume in the pods.", examples=["/data"])
    claim: KubernetesName | None = Field(None, description="Name of a PersistentVolumeClaim.", examples=["datasets"])
    host_path: MountPath | None = Field(
        None, description="A folder of the machine that the pod runs on.", examples=["/mnt/data"]
    )
    read_only: StrictBool = Field(False, description="Whether the pods may not write to it.", examples=[True])

    @model_validator(mode="after")
    def _is_of_one_kind(self) -> VolumeSpec:
        if (self.claim is None) == (self.host_path is None):
            raise wrong("must have either claim or host_path")
        return self


class VolcanoBackendSpec(BackendSpec):
    """Run the job as a Volcano job on Kubernetes: one pod per node."""

    runs_by: ClassVar[str] = KINDS["volcano"].runs_by
    handle_path: ClassVar[str] = ".+/.+"
    uses_containers: ClassVar[bool] = True

    kind: Literal["volcano"] = Field(description="Run as a Volcano job on Kubernetes.", examples=["volcano"])
    namespace: KubernetesName | None = Field(
        None, description="Namespace; left out, that of the context.", examples=["training"]
    )
    context: StrictStr | None = Field(
        None, min_length=1, description="Context of the kubeconfig; left out, the current one.", examples=["cluster-a"]
    )
    queue: KubernetesName | None = Field(None, description="Volcano queue.", examples=["research"])
    priority_class: KubernetesName | None = Field(None, description="PriorityClass of the job.", examples=["high"])
    service_account: KubernetesName | None = Field(
        None, description="ServiceAccount of the pods.", examples=["trainer"]
    )
    image: StrictStr | None = Field(
        None,
        min_length=1,
        description="Container image of jobs that do not set `image`, such as those of mode spawn.",
        examples=["pytorch/pytorch:2.9.0-cuda12.8-cudnn9-runtime"],
    )
    image_pull_secrets: tuple[KubernetesName, ...] = Field(
        (), description="Secrets that are used to pull the image.", examples=[["registry"]]
    )
    image_pull_policy: Literal["Always", "IfNotPresent", "Never"] | None = Field(
        None, description="When the image is pulled; left out, the default of Kubernetes.", examples=["IfNotPresent"]
    )
    node_selector: dict[StrictStr, ScalarText] = Field(
        default_factory=dict, description="Labels that the machines must have.", examples=[{"gpu": "a100"}]
    )
    tolerations: tuple[TolerationSpec, ...] = Field(
        (),
        description="Taints of nodes that the pods tolerate.",
        examples=[[{"key": "nvidia.com/gpu", "operator": "Exists"}]],
    )
    placement: Literal["spread", "pack"] | None = Field(
        None,
        description="spread: every pod on its own machine; pack: on as few machines as possible.",
        examples=["spread"],
    )
    resources: dict[StrictStr, Quantity] = Field(
        default_factory=dict,
        description="Resources of each pod, as request and limit: {cpu: 8, memory: 64Gi, nvidia.com/gpu: 8}.",
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
        description="A Secret with AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY. The pods fetch the code with these "
        "keys instead of signed addresses, which expire.",
        examples=["s3-keys"],
    )

    def gpus_of_node(self, nodes: int, nproc_per_node: int | None) -> int | None:
        """Return the number of GPUs in the pod's resources (see BackendSpec)."""
        counts = [count for name, count in self.resources.items() if "gpu" in name.rpartition("/")[2]]
        if counts:
            return int(counts[0]) if str(counts[0]).isdecimal() else None
        return 0 if self.resources and not any("/" in name for name in self.resources) else None

    def shared_folders(self) -> tuple[str, ...] | None:
        """Return where the pods mount claims: all else is on a pod's or a machine's own disk (see BackendSpec).

        A job without any may get its volumes from the cluster.
        """
        return tuple(volume.path for volume in self.volumes if volume.claim is not None) or None

    def missing_gpu_request(self) -> str:
        """Return `resources` where there are none: pods get no GPU then (see BackendSpec)."""
        return "" if self.resources else "resources: {nvidia.com/gpu: 8}"
