"""Errors of getting credentials (from SSO, roles and programs), each with a hint."""

from __future__ import annotations

import re
from typing import NamedTuple

from jobsubmit.common.store_address import StoreAddress
from jobsubmit.errors import StoreError
from jobsubmit.stores.credentials import CREDENTIALS_HINT, profile_name

# As obstore passes on what botocore's credentials raise: the class, and its text.
_PASSED_ON = re.compile(r"External AWS credential provider: (\w+): ?([^\n]*)")
_OPERATION = re.compile(r"\((\w+)\) when calling the (\w+) operation(?: \([^)]*\))?: ?(.*)")


class _Row(NamedTuple):
    """Know an error by the name of its class; `{profile}` and `{text}` stand for those of the case."""

    names: tuple[str, ...]
    text: str
    hint: str


_TABLE = (
    _Row(
        (
            *("SSOTokenLoadError", "UnauthorizedSSOTokenError", "SSOError", "TokenRetrievalError"),
            *("PendingAuthorizationExpiredError", "LoginRefreshRequired", "LoginTokenLoadError"),
        ),
        "the SSO session of the AWS profile {profile} has expired, or was never started",
        "run aws sso login --profile {profile}",
    ),
    _Row(
        ("CredentialRetrievalError", "FileNotFoundError", "PermissionError", "OSError"),
        "the program that provides the keys of the AWS profile {profile} failed: {text}",
        "run the credential_process of the profile by hand",
    ),
    _Row(
        ("EOFError",),
        "the AWS profile {profile} requires an MFA code, and there is no terminal to enter it",
        "get temporary keys first with aws sts assume-role, and set them",
    ),
    _Row(
        ("EndpointConnectionError", "ConnectTimeoutError", "ReadTimeoutError", "ProxyConnectionError", "SSLError"),
        "cannot reach the server that provides the keys of the AWS profile {profile}: {text}",
        "check the connection to AWS STS or SSO, and the proxy",
    ),
    _Row(
        ("InfiniteLoopConfigError", "InvalidConfigError", "PartialCredentialsError", "RefreshWithMFAUnsupportedError"),
        "the AWS profile {profile} provides no keys: {text}",
        "correct the profile in the AWS configuration file",
    ),
)


def passed_on(error: Exception) -> tuple[str, str] | None:
    """Return the class and the text of a credential error that obstore has passed on, or None."""
    found = _PASSED_ON.search(str(error))
    return (found[1], found[2].strip()) if found else None


def is_of_credentials(name: str) -> bool:
    """Return whether a class name is that of a credential error."""
    return name == "NoCredentialsError" or any(name in row.names for row in _TABLE)


def credential_error(address: StoreAddress, name: str, text: str) -> StoreError:
    """Return the StoreError for a credential error, by its botocore or Python class."""
    profile = profile_name(address)
    if name == "ClientError" and (refused := _OPERATION.search(text)):
        said = f"the key request of the AWS profile {profile} is refused: {refused[2]}: {refused[1]} {refused[3]}"
        hint = "check role_arn and source_profile, and who may assume the role"
        return StoreError(f"{address.uri}: {said.strip()}", hint, address.uri)
    for row in _TABLE:
        if name in row.names:
            said = text.removeprefix("Error when retrieving credentials from custom-process:").strip(" .")
            words = {"profile": profile, "text": said or "no reason given"}
            return StoreError(f"{address.uri}: {row.text.format(**words)}", row.hint.format(**words), address.uri)
    said = f"{address.uri}: there are no credentials for this store: {text}"
    return StoreError(said, CREDENTIALS_HINT, address.uri)
