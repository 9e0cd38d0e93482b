"""What a user may write in a job file, and how it is read."""

from jobsubmit.spec.load import Override, load, load_mapping
from jobsubmit.spec.model import (
    JobSpec,
    LaunchSpec,
    LocalBackendSpec,
    ResourcesSpec,
    SpawnSpec,
    StoreSpec,
    TorchrunSpec,
    json_schema,
)

__all__ = [
    "JobSpec",
    "LaunchSpec",
    "LocalBackendSpec",
    "Override",
    "ResourcesSpec",
    "SpawnSpec",
    "StoreSpec",
    "TorchrunSpec",
    "json_schema",
    "load",
    "load_mapping",
]
