"""What is said where a server, the line to it or credentials fail, and what to do next."""

from __future__ import annotations

from pathlib import Path

import pytest

from jobsubmit.common.store_address import StoreAddress
from jobsubmit.errors import StoreError
from jobsubmit.stores.credential_errors import credential_error
from jobsubmit.stores.credentials import Access
from jobsubmit.stores.s3 import S3Store
from jobsubmit.stores.s3_errors import ServerErrors

PROXIES = ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "all_proxy", "ALL_PROXY", "no_proxy", "NO_PROXY")


def errors(endpoint: str = "http://127.0.0.1:9000") -> ServerErrors:
    return ServerErrors("s3://bucket", Access(endpoint, "us-east-1", None))


@pytest.fixture(autouse=True)
def no_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in PROXIES:
        monkeypatch.delenv(name, raising=False)


def test_a_message_of_the_server_is_one_plain_line() -> None:
    found = errors().refused("s3://bucket/x", "AccessDenied", "User &#34;me&#34; may not\n  do &amp; this")
    assert found.message == 's3://bucket/x: AccessDenied User "me" may not do & this'


def test_an_address_with_controls_is_one_line() -> None:
    found = errors().refused("s3://bucket/new\nline\x01", "404", "Not Found")
    assert found.message == r"s3://bucket/new\nline\x01: 404 Not Found"


@pytest.mark.parametrize(
    ("endpoint", "is_named"),
    [("http://host:9000/minio", True), ("http://host:9000/", False), ("http://host:9000", False)],
)
def test_a_path_in_the_address_of_the_server_is_named(endpoint: str, is_named: bool) -> None:
    found = errors(endpoint).refused("s3://bucket/x", "NoSuchBucket", "The specified bucket does not exist")
    assert ("has the path /minio" in found.hint) is is_named
    assert "path" not in errors(endpoint).refused("s3://bucket/x", "SlowDown", "").hint


def test_a_proxy_is_named_where_it_stands_between(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://me:secret@proxy:3128")
    found = errors("http://store.example.com").broken("s3://bucket/x", "Connection refused")
    assert "through the proxy http://proxy:3128: Connection refused" in found.message
    assert "NO_PROXY" in found.hint
    monkeypatch.setenv("no_proxy", "store.example.com")
    assert "proxy" not in errors("http://store.example.com").broken("s3://bucket/x", "Connection refused").message
    assert "proxy" not in errors("https://other.example.com").broken("s3://bucket/x", "Connection refused").message


def test_a_dead_proxy_is_named_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    store = S3Store(StoreAddress("s3://bucket/x", "http://store.example.com"))
    with pytest.raises(StoreError, match=r"through the proxy http://127\.0\.0\.1:9: Connection refused"):
        store.head("k")
    assert store.requests <= 6


@pytest.mark.parametrize(
    ("name", "text", "said", "hint"),
    [
        ("UnauthorizedSSOTokenError", "The SSO session has expired", "has expired", "aws sso login --profile mine"),
        ("SSOTokenLoadError", "Token for x does not exist", "was never started", "aws sso login --profile mine"),
        (
            "ClientError",
            "An error occurred (AccessDenied) when calling the AssumeRole operation: User is not authorized",
            "is refused: AssumeRole: AccessDenied User is not authorized",
            "role_arn",
        ),
        (
            "CredentialRetrievalError",
            "Error when retrieving credentials from custom-process: no vault",
            "the program that provides the keys of the AWS profile mine failed: no vault",
            "credential_process",
        ),
        ("EOFError", "", "requires an MFA code", "aws sts assume-role"),
        ("InfiniteLoopConfigError", "Infinite loop", "provides no keys: Infinite loop", "configuration file"),
        ("NoCredentialsError", "Unable to locate credentials", "there are no credentials", "AWS_ACCESS_KEY_ID"),
    ],
)
def test_what_keeps_a_profile_from_giving_keys(name: str, text: str, said: str, hint: str) -> None:
    found = credential_error(StoreAddress("s3://bucket", profile="mine"), name, text)
    assert said in found.message
    assert hint in found.hint


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ("sso_start_url = https://x.example.com\nsso_region = r\nsso_account_id = 1\nsso_role_name = x", "SSO session"),
        ("credential_process = /nowhere/at/all", "the program that provides the keys of the AWS profile mine failed"),
        ("role_arn = arn:aws:iam::1:role/x\nsource_profile = mine", "provides no keys: Infinite loop"),
    ],
)
def test_profiles_as_boto3_fails_on_them(
    settings: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "config").write_text(f"[profile mine]\nregion = us-east-1\n{settings}\n")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("HOME", str(tmp_path))
    store = S3Store(StoreAddress("s3://bucket/x", "http://127.0.0.1:9", profile="mine"))
    with pytest.raises(StoreError, match=said):
        store.head("k")
