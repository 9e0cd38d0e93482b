"""Who we are to ModelArts: from the environment, else from the SDK's credentials file."""

from __future__ import annotations

import configparser
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from jobsubmit.errors import BackendError

if TYPE_CHECKING:
    from jobsubmit.spec.backends import ModelArtsBackendSpec

FILE_VARIABLE = "HUAWEICLOUD_SDK_CREDENTIALS_FILE"
_FILE = "~/.huaweicloud/credentials"
_DEFAULT_PROFILE = "basic"  # the name that the SDK gives it
_VARIABLES = {
    "ak": "HUAWEICLOUD_SDK_AK",
    "sk": "HUAWEICLOUD_SDK_SK",
    "security_token": "HUAWEICLOUD_SDK_SECURITY_TOKEN",
    "project_id": "HUAWEICLOUD_SDK_PROJECT_ID",
    "region": "HUAWEICLOUD_SDK_REGION",
}
_HINT = "set HUAWEICLOUD_SDK_AK and HUAWEICLOUD_SDK_SK, or write ak and sk into " + _FILE


@dataclass(frozen=True)
class Identity:
    """Hold access key, secret key, perhaps a token of a temporary key, and where the job goes."""

    ak: str = field(repr=False)
    sk: str = field(repr=False)
    security_token: str = field(repr=False)
    project_id: str
    region: str
    endpoint: str


def identity(spec: ModelArtsBackendSpec, environment: Mapping[str, str] = os.environ) -> Identity:
    """Return who we are; raise BackendError for what is missing, before any request is made."""
    told = {name: environment.get(variable, "") for name, variable in _VARIABLES.items()}
    if spec.profile or not (told["ak"] and told["sk"]):
        told = {**told, **_profile(spec.profile, environment)}
    if not (told["ak"] and told["sk"]):
        raise BackendError("there are no credentials for ModelArts", _HINT)
    project_id, region = spec.project_id or told["project_id"], spec.region or told["region"]
    if not project_id:
        hint = "set backend.project_id (the console shows it under My Credentials), or HUAWEICLOUD_SDK_PROJECT_ID"
        raise BackendError("the id of the project is not known", hint)
    if not (region or spec.endpoint):
        raise BackendError("the region is not known", "set backend.region, or backend.endpoint")
    return Identity(told["ak"], told["sk"], told["security_token"], project_id, region, spec.endpoint or "")


def _profile(name: str | None, environment: Mapping[str, str]) -> dict[str, str]:
    file = Path(environment.get(FILE_VARIABLE) or _FILE).expanduser()
    parser = configparser.ConfigParser(interpolation=None)
    try:
        parser.read_string(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        if name:
            raise BackendError(f"backend.profile: there is no {file}", _HINT) from None
        return {}
    except (OSError, ValueError, configparser.Error) as error:
        raise BackendError(f"{file} cannot be read: {error}", "write ak=…, sk=… below [basic]") from error
    if name and not parser.has_section(name):
        known = ", ".join(parser.sections()) or "none"
        raise BackendError(f"backend.profile: there is no profile {name} in {file}", f"it has: {known}")
    section = name or _DEFAULT_PROFILE
    found = dict(parser[section]) if parser.has_section(section) else {}
    return {key: value for key, value in found.items() if key in _VARIABLES and value}
