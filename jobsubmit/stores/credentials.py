"""Credentials for a bucket: plain keys are read here, everything else (SSO, roles, metadata) is left to boto3."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

from jobsubmit.common.store_address import StoreAddress
from jobsubmit.errors import StoreError

if TYPE_CHECKING:
    import boto3

CREDENTIALS_HINT = (
    "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or store.profile (`upload` and `download`: --profile)"
)

_DEFAULT_REGION, _DEFAULT_PROFILE = "us-east-1", "default"
# A profile with one of these may get its keys from somewhere else, even where it has plain keys too.
_NOT_PLAIN = (
    *("role_arn", "sso_session", "sso_start_url", "web_identity_token_file", "login_session"),
    "credential_process",
)
_KEYS = ("aws_access_key_id", "aws_secret_access_key", "aws_session_token")


class Keys(NamedTuple):
    """A key pair and, for temporary ones, their session token."""

    access_key_id: str
    secret_access_key: str
    token: str | None = None


class Access(NamedTuple):
    """How to reach a server; `keys` is None if only boto3 can find them.

    `ca_bundles` are the files of the authorities that verify its certificate; none means those of the system.
    """

    endpoint_url: str | None
    region: str
    keys: Keys | None
    ca_bundles: tuple[str, ...] = ()


def find_access(address: StoreAddress, environment: Mapping[str, str] = os.environ) -> Access:
    """Read the environment and the AWS files, in botocore's order; contacts nothing and loads no client library.

    Unlike botocore, it reads AWS_REGION if neither AWS_DEFAULT_REGION nor the profile names a region, and it uses all
    CA bundles that are named, that of SSL_CERT_FILE too.
    """
    files = AwsFiles(address.profile, environment)
    return Access(
        address.endpoint_url or _endpoint(files, environment),
        address.region
        or environment.get("AWS_DEFAULT_REGION")
        or files.profile.get("region")
        or environment.get("AWS_REGION")
        or _DEFAULT_REGION,
        _keys(address, files, environment),
        _ca_bundles(address, files, environment),
    )


def _endpoint(files: AwsFiles, environment: Mapping[str, str]) -> str | None:
    is_ignored = environment.get("AWS_IGNORE_CONFIGURED_ENDPOINT_URLS")
    if is_ignored is None:
        is_ignored = files.profile.get("ignore_configured_endpoint_urls", "")
    if is_ignored.lower() == "true":
        return None
    return (
        environment.get("AWS_ENDPOINT_URL_S3")
        or environment.get("AWS_ENDPOINT_URL")
        or files.service("s3").get("endpoint_url")
        or files.profile.get("endpoint_url")
    )


def _keys(address: StoreAddress, files: AwsFiles, environment: Mapping[str, str]) -> Keys | None:
    if not address.profile:
        tokens = ("AWS_SECURITY_TOKEN", "AWS_SESSION_TOKEN")
        token = next((name for name in tokens if name in environment), tokens[-1])
        if keys := _plain_keys(environment, "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", token):
            return keys
        if "AWS_ACCESS_KEY_ID" in environment or "AWS_WEB_IDENTITY_TOKEN_FILE" in environment:
            return None
    if any(field in files.profile for field in _NOT_PLAIN):
        return None
    own = files.shared if _KEYS[0] in files.shared else files.config
    return _plain_keys(own, *_KEYS)


def _ca_bundles(address: StoreAddress, files: AwsFiles, environment: Mapping[str, str]) -> tuple[str, ...]:
    if address.ca_bundle:
        return (address.ca_bundle,)
    names = ("AWS_CA_BUNDLE", "REQUESTS_CA_BUNDLE", "SSL_CERT_FILE")
    named = [files.profile.get("ca_bundle"), *(environment.get(name) for name in names)]
    return tuple(dict.fromkeys(filter(None, named)))


def profile_name(address: StoreAddress, environment: Mapping[str, str] = os.environ) -> str:
    """Return the name of the profile that is used."""
    return AwsFiles(address.profile, environment).name


def open_session(address: StoreAddress, region: str) -> boto3.Session:
    """Return boto3's session; raise StoreError if the profile does not exist."""
    import boto3
    from botocore.exceptions import BotoCoreError, ProfileNotFound

    try:
        return boto3.Session(profile_name=address.profile, region_name=region)
    except BotoCoreError as error:
        hint = (
            "correct store.profile (`upload` and `download`: --profile)"
            if isinstance(error, ProfileNotFound)
            else "correct the AWS configuration file"
        )
        raise StoreError(f"{address.uri}: {error}", hint, address.uri) from error


def credential_provider(address: StoreAddress, region: str) -> Callable[[], Any]:
    """Return a function that gives obstore the keys that boto3 finds, and new ones when they expire.

    Raises StoreError if there are none, and passes on the errors of botocore and the system.
    """
    from obstore.auth.boto3 import Boto3CredentialProvider

    session = open_session(address, region)
    found = session.get_credentials()
    if found is None:
        raise StoreError(f"{address.uri}: there are no credentials for this store", CREDENTIALS_HINT, address.uri)
    return Boto3CredentialProvider(session)


def _plain_keys(values: Mapping[str, str], *names: str) -> Keys | None:
    key, secret, token = (values.get(name) for name in names)
    return Keys(key, secret, token or None) if key and secret else None


class AwsFiles:
    """The settings of one profile in the AWS configuration and credentials files, which are read on first use."""

    def __init__(self, profile: str | None, environment: Mapping[str, str]) -> None:
        self._environment = environment
        self.name = (
            profile or environment.get("AWS_DEFAULT_PROFILE") or environment.get("AWS_PROFILE") or _DEFAULT_PROFILE
        )

    @cached_property
    def profile(self) -> Mapping[str, str]:
        """Return all settings of the profile; the credentials file takes precedence."""
        return {**self.config, **self.shared}

    @cached_property
    def shared(self) -> Mapping[str, str]:
        """Return the settings of the profile in the credentials file."""
        sections = _sections(self._environment.get("AWS_SHARED_CREDENTIALS_FILE", "~/.aws/credentials"))
        return sections.get(self.name, {})

    @cached_property
    def config(self) -> Mapping[str, str]:
        """Return the settings of the profile in the configuration file."""
        names = [self.name] if self.name == _DEFAULT_PROFILE else []
        spelled = (["profile", self.name], names)
        found = [values for section, values in self._configured.items() if _words(section) in spelled]
        return found[-1] if found else {}

    def service(self, name: str) -> Mapping[str, str]:
        """Return the settings of a service in the `services` section that the profile names.

        Raises StoreError if that section does not exist.
        """
        section = self.profile.get("services")
        if section is None:
            return {}
        found = [values for own, values in self._configured.items() if _words(own) == ["services", section]]
        if not found:
            text = f"the AWS profile {self.name} names the services section {section}, which does not exist"
            raise StoreError(text, f"add [services {section}] to the AWS configuration file, or correct the profile")
        pairs = (line.partition("=") for line in found[-1].get(name, "").splitlines())
        return {key.strip(): value.strip() for key, _, value in pairs}

    @cached_property
    def _configured(self) -> Mapping[str, Mapping[str, str]]:
        return _sections(self._environment.get("AWS_CONFIG_FILE", "~/.aws/config"))


def _sections(file: str) -> Mapping[str, Mapping[str, str]]:
    path = os.path.expanduser(os.path.expandvars(file))
    if not os.path.exists(path):
        return {}
    import configparser

    parser = configparser.RawConfigParser(default_section="", strict=False)
    try:
        parser.read(path, encoding="utf-8")
    except (configparser.Error, ValueError, OSError):
        return {}  # boto3 reads it again and says what is wrong
    return {section: dict(parser[section]) for section in parser.sections()}


def _words(section: str) -> list[str]:
    """Return the words of a section's name, one of which may be quoted."""
    if '"' not in section and "'" not in section and "\\" not in section:
        return section.split()
    import shlex

    try:
        return shlex.split(section)
    except ValueError:
        return []
