"""The user's defaults and this machine's folders; each can be moved by one environment variable."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import platformdirs

from jobsubmit.spec.load import load_defaults
from jobsubmit.spec.model import REMOTE_SCHEMES, Defaults, JobSpec, LocalBackendSpec, StoreSpec

CONFIG_VARIABLE = "JOBSUBMIT_CONFIG"
STATE_VARIABLE = "JOBSUBMIT_STATE_DIR"


@dataclass(frozen=True)
class Settings:
    """Hold what a job file may leave out, and the file it was read from (None: built in)."""

    defaults: Defaults
    source: Path | None
    state_dir: Path

    def job_dir(self, job_id: str) -> Path:
        """Return the one directory that holds everything about a job."""
        return self.state_dir / "jobs" / job_id

    def store(self, spec: JobSpec) -> StoreSpec:
        """Return the store of a job: its own fields first, then the configuration's, then the embedded folder."""
        own, ours = spec.store, self.defaults.store
        uri = own.uri or ours.uri or str(self.state_dir / "store")
        if not uri.startswith(REMOTE_SCHEMES) and not _is_remote_code(spec):
            return StoreSpec(uri=uri)
        server = {
            name: getattr(own, name) or getattr(ours, name)
            for name in ("endpoint_url", "region", "profile", "addressing")
        }
        return StoreSpec(uri=uri, **server)

    def backend(self, spec: JobSpec) -> LocalBackendSpec:
        """Return the backend of a job: its own, else the configuration's."""
        return spec.backend if "backend" in spec.model_fields_set else self.defaults.backend


def _is_remote_code(spec: JobSpec) -> bool:
    return spec.code_dir.startswith(REMOTE_SCHEMES)


def load_settings(environment: Mapping[str, str] = os.environ) -> Settings:
    """Read the user's configuration file if there is one; raise SpecError where it is wrong."""
    file = Path(environment.get(CONFIG_VARIABLE) or platformdirs.user_config_path("jobsubmit") / "config.yaml")
    state_dir = Path(environment.get(STATE_VARIABLE) or platformdirs.user_state_path("jobsubmit")).absolute()
    if CONFIG_VARIABLE in environment or file.exists():
        return Settings(load_defaults(file), file, state_dir)
    return Settings(Defaults(), None, state_dir)
