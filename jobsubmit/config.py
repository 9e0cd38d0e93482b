"""The user's defaults and this machine's folders; an environment variable for each sets another path."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from jobsubmit.common.store_address import REMOTE_SCHEMES, StoreAddress

if TYPE_CHECKING:
    from jobsubmit.spec.backend import BackendSpec
    from jobsubmit.spec.job_spec import JobSpec

CONFIG_VARIABLE = "JOBSUBMIT_CONFIG"
STATE_VARIABLE = "JOBSUBMIT_STATE_DIR"


class Settings(NamedTuple):
    """Defaults for what a job file leaves out, and the state directory."""

    default_store: StoreAddress
    default_backend: BackendSpec | None
    state_dir: Path

    def job_dir(self, job_id: str) -> Path:
        """Return the one directory that holds everything about a job."""
        return self.state_dir / "jobs" / job_id

    @property
    def transfer_dir(self) -> Path:
        """Return the directory of the caches of uploads, and of their locks."""
        return self.state_dir / "transfer"

    @property
    def input_dir(self) -> Path:
        """Return the directory of the inputs that local jobs have read, one folder per content."""
        return self.state_dir / "inputs"

    @property
    def own_store(self) -> Path:
        """Return the folder that is the default store; only its owner has access."""
        return self.state_dir / "store"

    def completed(self, own: StoreAddress, *, needs_server: bool = False) -> StoreAddress:
        """Return a store, completed from the configuration; without one it is the default folder.

        The server of the configuration belongs to the uri there: another bucket gets it only if that uri is not set.
        """
        ours = self.default_store
        complete = own._replace(uri=(own.uri or ours.uri or str(self.own_store)).rstrip("/") or "/")
        if not complete.is_remote and not needs_server:
            return StoreAddress(complete.uri)
        if own.uri and ours.uri:
            return complete
        return complete._replace(
            endpoint_url=own.endpoint_url or ours.endpoint_url,
            region=own.region or ours.region,
            profile=own.profile or ours.profile,
            addressing=own.addressing or ours.addressing,
            ca_bundle=own.ca_bundle or ours.ca_bundle,
        )

    def store(self, spec: JobSpec) -> StoreAddress:
        """Return the store of a job; with code that is already in a bucket, a folder has a server, too."""
        return self.completed(spec.store.address, needs_server=spec.code_dir.startswith(REMOTE_SCHEMES))

    def backend(self, spec: JobSpec) -> BackendSpec:
        """Return the backend of a job, completed from the configuration if that has the same kind."""
        own, ours = spec.backend, self.default_backend
        if "backend" not in spec.model_fields_set:
            return ours or own
        if ours is None or ours.kind != own.kind:
            return own
        given = {name: getattr(own, name) for name in own.model_fields_set}
        return ours.model_copy(update=given)


def load_settings(environment: Mapping[str, str] = os.environ) -> Settings:
    """Read the user's configuration file if it exists; raise SpecError if it is invalid."""
    named, state = environment.get(CONFIG_VARIABLE), environment.get(STATE_VARIABLE)
    file = Path(named or _user_path("config", "config.yaml"))
    state_dir = Path(state or _user_path("state")).absolute()
    if not named and not file.exists():
        return Settings(StoreAddress(), None, state_dir)
    from jobsubmit.spec.loader import load_defaults

    defaults = load_defaults(file)
    return Settings(defaults.store.address, defaults.backend, state_dir)


def _user_path(kind: str, *below: str) -> str:
    import platformdirs

    folder = platformdirs.user_config_path if kind == "config" else platformdirs.user_state_path
    return str(folder("jobsubmit").joinpath(*below))


BUILT_IN = Settings(StoreAddress(), None, Path("state"))
