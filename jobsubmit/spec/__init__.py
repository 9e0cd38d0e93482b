"""What a user may write in a job file, and how it is read."""

from jobsubmit.spec.backends import LocalBackendSpec, SlurmBackendSpec, VolcanoBackendSpec
from jobsubmit.spec.load import Override, load, load_mapping
from jobsubmit.spec.model import (
    JobSpec,
    LaunchSpec,
    ResourcesSpec,
    SpawnSpec,
    StoreSpec,
    TorchrunSpec,
)
from jobsubmit.spec.schema import json_schema

__all__ = [
    "JobSpec",
    "LaunchSpec",
    "LocalBackendSpec",
    "Override",
    "ResourcesSpec",
    "SlurmBackendSpec",
    "SpawnSpec",
    "StoreSpec",
    "TorchrunSpec",
    "VolcanoBackendSpec",
    "json_schema",
    "load",
    "load_mapping",
]
