"""The user's defaults and this machine's folders; each can be moved by one environment variable."""

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
    """What a job file may leave out."""

    default_store: StoreAddress
    default_backend: BackendSpec | None
    state_dir: Path

    def job_dir(self, job_id: str) -> Path:
        """Return the one directory that holds everything about a job."""
        return self.state_dir / "jobs" / job_id

    @property
    def transfer_dir(self) -> Path:
        """Return the directory of what uploads remember, and of their locks."""
        return self.state_dir / "transfer"

    @property
    def input_dir(self) -> Path:
        """Return the directory of the inputs that jobs of this machine have read, one folder per content."""
        return self.state_dir / "inputs"

    @property
    def own_store(self) -> Path:
        """Return the folder that is the store where nobody names one; it is for its owner only."""
        return self.state_dir / "store"

    def completed(self, own: StoreAddress, *, needs_server: bool = False) -> StoreAddress:
        """Return a store with what it leaves out: from the configuration, else the embedded folder.

        The configuration's server belongs to its own uri: another bucket gets it only if the configuration names none.
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
        """Return the store of a job; code that is in a bucket already needs a server beside a folder, too."""
        return self.completed(spec.store.address, needs_server=spec.code_dir.startswith(REMOTE_SCHEMES))

    def backend(self, spec: JobSpec) -> BackendSpec:
        """Return the backend of a job: its own, completed by the configuration's where that is of the same kind."""
        own, ours = spec.backend, self.default_backend
        if "backend" not in spec.model_fields_set:
            return ours or own
        if ours is None or ours.kind != own.kind:
            return own
        given = {name: getattr(own, name) for name in own.model_fields_set}
        return ours.model_copy(update=given)


def load_settings(environment: Mapping[str, str] = os.environ) -> Settings:
    """Read the user's configuration file if there is one; raise SpecError where it is wrong."""
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
