"""Who we are to a bucket's server: plain keys read here, everything else (SSO, roles, metadata) left to boto3."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from jobsubmit.common.store_address import StoreAddress
from jobsubmit.errors import StoreError

if TYPE_CHECKING:
    import boto3

CREDENTIALS_HINT = "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or store.profile (--profile)"

_DEFAULT_REGION = "us-east-1"
# A profile with one of these gets its keys from somewhere else, even where it has plain keys too (botocore's order).
_NOT_PLAIN = ("role_arn", "sso_session", "sso_start_url", "web_identity_token_file", "login_session")


class Keys(NamedTuple):
    """A key pair and, for temporary ones, their session token."""

    access_key_id: str
    secret_access_key: str
    token: str | None = None


class Access(NamedTuple):
    """How a server is reached; `keys` is None where only boto3 can tell them."""

    endpoint_url: str | None
    region: str
    keys: Keys | None


def find_access(address: StoreAddress, environment: Mapping[str, str] = os.environ) -> Access:
    """Read what the environment and the AWS files say; contacts nothing and loads no client library."""
    name = address.profile or environment.get("AWS_PROFILE") or environment.get("AWS_DEFAULT_PROFILE") or "default"
    keys = (
        None
        if address.profile
        else _plain_keys(environment, "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")
    )
    needs_files = not (keys and address.region and address.endpoint_url)
    profile = _profile(name, environment) if needs_files else {}
    if keys is None and not any(field in profile for field in _NOT_PLAIN):
        keys = _plain_keys(profile, "aws_access_key_id", "aws_secret_access_key", "aws_session_token")
    return Access(
        address.endpoint_url
        or environment.get("AWS_ENDPOINT_URL_S3")
        or environment.get("AWS_ENDPOINT_URL")
        or profile.get("endpoint_url"),
        address.region
        or environment.get("AWS_REGION")
        or environment.get("AWS_DEFAULT_REGION")
        or profile.get("region", _DEFAULT_REGION),
        keys,
    )


def open_session(address: StoreAddress, region: str) -> boto3.Session:
    """Return boto3's session; raise StoreError where there is no such profile."""
    import boto3
    from botocore.exceptions import BotoCoreError, ProfileNotFound

    try:
        return boto3.Session(profile_name=address.profile, region_name=region)
    except BotoCoreError as error:
        hint = "correct store.profile" if isinstance(error, ProfileNotFound) else "correct the AWS configuration file"
        raise StoreError(f"{address.uri}: {error}", hint, address.uri) from error


def credential_provider(address: StoreAddress, region: str) -> Callable[[], Any]:
    """Return what gives obstore the keys that boto3 finds, and new ones when they expire."""
    from botocore.exceptions import BotoCoreError
    from obstore.auth.boto3 import Boto3CredentialProvider

    session = open_session(address, region)
    try:
        found = session.get_credentials()
    except BotoCoreError as error:
        raise StoreError(f"{address.uri}: {error}", CREDENTIALS_HINT, address.uri) from error
    if found is None:
        raise StoreError(f"{address.uri}: there are no credentials for it", CREDENTIALS_HINT, address.uri)
    return Boto3CredentialProvider(session)


def _plain_keys(values: Mapping[str, str], *names: str) -> Keys | None:
    key, secret, token = (values.get(name) for name in names)
    return Keys(key, secret, token or None) if key and secret else None


def _profile(name: str, environment: Mapping[str, str]) -> dict[str, str]:
    config = environment.get("AWS_CONFIG_FILE", "~/.aws/config")
    shared = environment.get("AWS_SHARED_CREDENTIALS_FILE", "~/.aws/credentials")
    section = name if name == "default" else f"profile {name}"
    return {**_section(config, section), **_section(shared, name)}


def _section(file: str, section: str) -> dict[str, str]:
    path = os.path.expanduser(file)
    if not os.path.exists(path):
        return {}
    import configparser

    parser = configparser.RawConfigParser(default_section="", strict=False)
    try:
        parser.read(path, encoding="utf-8")
    except (configparser.Error, ValueError, OSError):
        return {}  # boto3 reads it again and says what is wrong
    return dict(parser[section]) if parser.has_section(section) else {}
