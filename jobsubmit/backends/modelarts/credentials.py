"""Credentials for ModelArts: from the environment, else from the file of the SDK, else from that of KooCLI (hcloud)."""

from __future__ import annotations

import configparser
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from jobsubmit.errors import BackendError

if TYPE_CHECKING:
    from jobsubmit.backends.modelarts.spec import ModelArtsBackendSpec

FILE_VARIABLE = "HUAWEICLOUD_SDK_CREDENTIALS_FILE"
_FILE = "~/.huaweicloud/credentials"
_KOOCLI_FILE = "~/.hcloud/config.json"
_DEFAULT_PROFILE = "basic"  # the name that the SDK gives it
_VARIABLES = {
    "ak": "HUAWEICLOUD_SDK_AK",
    "sk": "HUAWEICLOUD_SDK_SK",
    "security_token": "HUAWEICLOUD_SDK_SECURITY_TOKEN",
    "project_id": "HUAWEICLOUD_SDK_PROJECT_ID",
    "region": "HUAWEICLOUD_SDK_REGION",
}
# KooCLI's own word for each of these, in a profile of its file.
_KOOCLI = {
    "ak": "accessKeyId",
    "sk": "secretAccessKey",
    "security_token": "securityToken",
    "project_id": "projectId",
    "region": "region",
}
_HINT = f"set HUAWEICLOUD_SDK_AK and HUAWEICLOUD_SDK_SK, write ak and sk into {_FILE}, or run `hcloud configure set`"


@dataclass(frozen=True)
class Identity:
    """Access key, secret key, the token of a temporary key if there is one, and the project and region of the job."""

    ak: str = field(repr=False)
    sk: str = field(repr=False)
    security_token: str = field(repr=False)
    project_id: str
    region: str
    endpoint: str


def identity(spec: ModelArtsBackendSpec, environment: Mapping[str, str] = os.environ) -> Identity:
    """Return the credentials; raise BackendError for what is missing, before any request is made."""
    values = {name: environment.get(variable, "") for name, variable in _VARIABLES.items()}
    if spec.profile or not (values["ak"] and values["sk"]):
        values = {
            **values,
            "security_token": "",
            **_profile(spec.profile, environment),
        }  # a token fits its own keys only
    if not (values["ak"] and values["sk"]):
        raise BackendError("there are no credentials for ModelArts", _HINT)
    project_id, region = spec.project_id or values["project_id"], spec.region or values["region"]
    if not project_id:
        hint = "set backend.project_id (the console shows it under My Credentials), or HUAWEICLOUD_SDK_PROJECT_ID"
        raise BackendError("the project id is not set", hint)
    if not (region or spec.endpoint):
        raise BackendError("the region is not set", "set backend.region, or backend.endpoint")
    return Identity(values["ak"], values["sk"], values["security_token"], project_id, region, spec.endpoint or "")


def _profile(name: str | None, environment: Mapping[str, str]) -> dict[str, str]:
    """Return what the first file says that has a profile of this name, or for nobody in particular."""
    file = Path(environment.get(FILE_VARIABLE) or _FILE).expanduser()
    profiles = _sdk_profiles(file)
    found = profiles.get(name or _DEFAULT_PROFILE)
    if found is None:
        others, current = _koocli_profiles(Path(_KOOCLI_FILE).expanduser())
        found = others.get(name or current)
        profiles = {**others, **profiles}
    if found is None and name:
        known = ", ".join(profiles) or "none"
        text = f"backend.profile: there is no profile {name} in {file} or {_KOOCLI_FILE}"
        raise BackendError(text, f"known profiles: {known}")
    return {key: value for key, value in (found or {}).items() if key in _VARIABLES and value}


def _sdk_profiles(file: Path) -> dict[str, dict[str, str]]:
    parser = configparser.ConfigParser(interpolation=None)
    try:
        parser.read_string(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, configparser.Error) as error:
        raise BackendError(f"{file} cannot be read: {_first(error)}", "write ak=…, sk=… below [basic]") from error
    return {section: dict(parser[section]) for section in parser.sections()}


def _koocli_profiles(file: Path) -> tuple[dict[str, dict[str, str]], str]:
    """Return the profiles that `hcloud configure` made, and the name of the current one."""
    try:
        values = json.loads(file.read_text(encoding="utf-8"))
        profiles = {
            str(profile["name"]): {ours: str(profile.get(theirs) or "") for ours, theirs in _KOOCLI.items()}
            for profile in values["profiles"]
        }
        return profiles, str(values.get("current") or "default")
    except FileNotFoundError:
        return {}, ""
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise BackendError(f"{file} cannot be read: {_first(error)}", "run `hcloud configure set`") from error


def _first(error: Exception) -> str:
    """Return the first line of an error: further ones may quote a key."""
    return str(error).partition("\n")[0]
