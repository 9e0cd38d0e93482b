"""The user's defaults and this machine's folders; each can be moved by one environment variable."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import platformdirs

from jobsubmit.spec.load import load_defaults
from jobsubmit.spec.model import Defaults, JobSpec, LocalBackendSpec, StoreSpec
from jobsubmit.spec.values import REMOTE_SCHEMES

CONFIG_VARIABLE = "JOBSUBMIT_CONFIG"
STATE_VARIABLE = "JOBSUBMIT_STATE_DIR"

_SERVER_FIELDS = ("endpoint_url", "region", "profile", "addressing")


@dataclass(frozen=True)
class Settings:
    """Hold what a job file may leave out."""

    defaults: Defaults
    state_dir: Path

    def job_dir(self, job_id: str) -> Path:
        """Return the one directory that holds everything about a job."""
        return self.state_dir / "jobs" / job_id

    def completed(self, own: StoreSpec, *, needs_server: bool = False) -> StoreSpec:
        """Return a store with what it leaves out: from the configuration, else the embedded folder.

        The configuration's server belongs to its own uri: another bucket gets it only if the configuration names none.
        """
        ours = self.defaults.store
        uri = own.uri or ours.uri or str(self.state_dir / "store")
        if not uri.startswith(REMOTE_SCHEMES) and not needs_server:
            return StoreSpec(uri=uri)
        server = {name: getattr(own, name) for name in _SERVER_FIELDS}
        if not (own.uri and ours.uri):
            server = {name: value or getattr(ours, name) for name, value in server.items()}
        return StoreSpec(uri=uri, **server)

    def store(self, spec: JobSpec) -> StoreSpec:
        """Return the store of a job; code that is in a bucket already needs a server beside a folder, too."""
        return self.completed(spec.store, needs_server=spec.code_dir.startswith(REMOTE_SCHEMES))

    def backend(self, spec: JobSpec) -> LocalBackendSpec:
        """Return the backend of a job: its own, else the configuration's."""
        return spec.backend if "backend" in spec.model_fields_set else self.defaults.backend


def load_settings(environment: Mapping[str, str] = os.environ) -> Settings:
    """Read the user's configuration file if there is one; raise SpecError where it is wrong."""
    named = environment.get(CONFIG_VARIABLE)
    file = Path(named or platformdirs.user_config_path("jobsubmit") / "config.yaml")
    state_dir = Path(environment.get(STATE_VARIABLE) or platformdirs.user_state_path("jobsubmit")).absolute()
    if named or file.exists():
        return Settings(load_defaults(file), state_dir)
    return Settings(Defaults(), state_dir)


BUILT_IN = Settings(Defaults(), Path("state"))
