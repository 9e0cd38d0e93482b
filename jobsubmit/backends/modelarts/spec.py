"""The fields of the ModelArts backend in a job file."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field, StrictBool, StrictInt, StrictStr

from jobsubmit.spec.backend import BackendSpec
from jobsubmit.spec.backend_registry import KINDS
from jobsubmit.spec.field_types import Endpoint, FrozenModel, ScalarText, matching

_PLATFORM_NAME = r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}"


_OBS_FOLDER = r"(obs|s3)://[a-z0-9][a-z0-9.-]{1,61}[a-z0-9](/[^\x00-\x1f]*)?"


PlatformName = Annotated[str, matching(_PLATFORM_NAME, "must consist of letters, digits, `_`, `-` and `.`")]


ObsFolder = Annotated[str, matching(_OBS_FOLDER, "must be a folder in a bucket: obs://bucket/folder")]


class FaultToleranceSpec(FrozenModel):
    """When the platform itself restarts a job."""

    retry: StrictInt | None = Field(
        None,
        ge=1,
        le=3,
        description="Maximum number of restarts after a hardware fault. The platform then also tests the machines "
        "before the job starts.",
        examples=[3],
    )
    unconditional_retry: StrictBool = Field(
        False, description="Also restart after any other failure, up to `retry` times.", examples=[True]
    )
    hang_retry: StrictBool = Field(False, description="Also restart a job that hangs.", examples=[True])


class ModelArtsBackendSpec(BackendSpec):
    """Run the job as a training job of ModelArts."""

    runs_by: ClassVar[str] = KINDS["modelarts"].runs_by
    handle_path: ClassVar[str] = ".+/.+"
    uses_containers: ClassVar[bool] = True
    starts_boot_file: ClassVar[bool] = True

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
        description="Machine type of jobs that do not set resources.flavor.",
        examples=["modelarts.vm.gpu.8v100"],
    )
    log_url: ObsFolder | None = Field(
        None, description="Where the platform stores the logs: obs://bucket/logs.", examples=["obs://bucket/logs"]
    )
    auto_stop_hours: StrictInt | None = Field(
        None,
        ge=1,
        le=72,
        description="Hours after which the platform ends the job; left out, derived from `timeout`.",
        examples=[24],
    )
    priority: StrictInt | None = Field(None, ge=1, le=3, description="Priority in a dedicated pool.", examples=[2])
    description: StrictStr | None = Field(
        None, max_length=256, description="Description of the job in the console.", examples=["warm-up ablation"]
    )
    fault_tolerance: FaultToleranceSpec = Field(
        default_factory=FaultToleranceSpec,
        description="When the platform itself restarts the job.",
        examples=[{"retry": 3, "hang_retry": True}],
    )
    annotations: dict[StrictStr, ScalarText] = Field(
        default_factory=dict,
        description="Further annotations of the job, named as in the platform's documentation.",
        examples=[{"fault-tolerance/job-retry-num": "3"}],
    )
    boot_file_of_image: StrictBool = Field(
        False,
        description="Name the boot file in the request of a custom-image job, too; the documentation does not say "
        "whether the API needs it.",
        examples=[True],
    )
