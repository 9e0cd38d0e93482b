"""Who we are to a server: what boto3 would find, without loading it where the keys are plain."""

from __future__ import annotations

from pathlib import Path

import boto3
import pytest

from jobsubmit.common.store_address import StoreAddress
from jobsubmit.errors import StoreError
from jobsubmit.stores.credentials import Access, Keys, find_access

SHARED = """
[default]
aws_access_key_id = default-key
aws_secret_access_key = default-secret
[mine]
aws_access_key_id = mine-key
aws_secret_access_key = mine-secret
aws_session_token = mine-token
[half]
aws_access_key_id = half-key
[both]
aws_access_key_id = shared-key
aws_secret_access_key = shared-secret
"""
CONFIG = """
[default]
region = default-region
[profile mine]
region = mine-region
endpoint_url = https://mine.example.com
[profile role]
role_arn = arn:aws:iam::1:role/x
source_profile = mine
[profile sso]
sso_session = x
sso_account_id = 1
sso_role_name = x
[profile both]
aws_access_key_id = config-key
aws_secret_access_key = config-secret
[profile process]
credential_process = /bin/true
"""
ENVIRONMENT = {"AWS_ACCESS_KEY_ID": "env-key", "AWS_SECRET_ACCESS_KEY": "env-secret"}


@pytest.fixture
def files(tmp_path: Path) -> dict[str, str]:
    (tmp_path / "credentials").write_text(SHARED)
    (tmp_path / "config").write_text(CONFIG)
    return {
        "AWS_SHARED_CREDENTIALS_FILE": str(tmp_path / "credentials"),
        "AWS_CONFIG_FILE": str(tmp_path / "config"),
    }


@pytest.mark.parametrize(
    ("profile", "environment", "key"),
    [
        (None, {}, "default-key"),
        (None, ENVIRONMENT, "env-key"),
        (None, {**ENVIRONMENT, "AWS_PROFILE": "mine"}, "env-key"),
        (None, {"AWS_PROFILE": "mine"}, "mine-key"),
        (None, {"AWS_DEFAULT_PROFILE": "mine"}, "mine-key"),
        ("mine", {}, "mine-key"),
        ("mine", ENVIRONMENT, "mine-key"),
        ("both", {}, "shared-key"),
    ],
)
def test_plain_keys_are_those_that_boto3_would_take(
    profile: str | None, environment: dict[str, str], key: str, files: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = find_access(StoreAddress(profile=profile), {**files, **environment}).keys
    assert keys is not None
    assert keys.access_key_id == key
    for name, value in {**files, **environment}.items():
        monkeypatch.setenv(name, value)
    theirs = boto3.Session(profile_name=profile).get_credentials()
    assert theirs is not None
    assert Keys(theirs.access_key, theirs.secret_key, theirs.token) == keys


@pytest.mark.parametrize("profile", ["role", "sso", "process", "half", "nobody"])
def test_everything_else_is_left_to_boto3(profile: str, files: dict[str, str]) -> None:
    assert find_access(StoreAddress(profile=profile), files).keys is None


def test_where_the_server_and_its_region_come_from(files: dict[str, str]) -> None:
    keys = Keys("mine-key", "mine-secret", "mine-token")
    assert find_access(StoreAddress(profile="mine"), files) == Access("https://mine.example.com", "mine-region", keys)
    environment = {**files, "AWS_ENDPOINT_URL": "https://env.example.com", "AWS_DEFAULT_REGION": "env-region"}
    assert find_access(StoreAddress(profile="mine"), environment)[:2] == ("https://env.example.com", "env-region")
    own = StoreAddress(profile="mine", endpoint_url="https://own.example.com", region="own-region")
    assert find_access(own, environment)[:2] == ("https://own.example.com", "own-region")
    assert find_access(StoreAddress(), {})[1] == "us-east-1"


def test_a_damaged_file_is_left_to_boto3(tmp_path: Path) -> None:
    (tmp_path / "credentials").write_bytes(b"[default\nnonsense \xff")
    environment = {"AWS_SHARED_CREDENTIALS_FILE": str(tmp_path / "credentials"), "AWS_CONFIG_FILE": "/nowhere"}
    assert find_access(StoreAddress(), environment).keys is None


SERVERS = """
[default]
region = default-region
endpoint_url = https://default.example.com
[profile plain]
aws_access_key_id = config-key
aws_secret_access_key = config-secret
[profile global]
endpoint_url = https://global.example.com
region = global-region
[profile service]
services = mine
endpoint_url = https://global.example.com
[profile others]
services = others
endpoint_url = https://global.example.com
[profile only-others]
services = others
[profile nowhere]
services = nowhere
endpoint_url = https://global.example.com
[profile ignores]
services = mine
ignore_configured_endpoint_urls = true
[profile heeds]
endpoint_url = https://global.example.com
ignore_configured_endpoint_urls = no
[profile "two words"]
endpoint_url = https://quoted.example.com
[profile shared]
endpoint_url = https://config.example.com
region = config-region
[profile half]
aws_session_token = config-token
[services mine]
s3 =
  endpoint_url = https://s3.example.com
dynamodb =
  endpoint_url = https://dynamodb.example.com
[services others]
dynamodb =
  endpoint_url = https://dynamodb.example.com
"""
SERVERS_SHARED = """
[default]
aws_access_key_id = default-key
aws_secret_access_key = default-secret
[shared]
aws_access_key_id = shared-key
aws_secret_access_key = shared-secret
endpoint_url = https://shared.example.com
[half]
aws_access_key_id = half-key
aws_secret_access_key = half-secret
"""
IGNORE, SERVICE, GLOBAL = "AWS_IGNORE_CONFIGURED_ENDPOINT_URLS", "AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"
OF_ENVIRONMENT = {GLOBAL: "https://env.example.com", "AWS_DEFAULT_REGION": "env-region"}


@pytest.mark.parametrize(
    ("profile", "environment"),
    [
        (None, {}),
        (None, OF_ENVIRONMENT),
        (None, {SERVICE: "https://s3.env.example.com"}),
        (None, {**OF_ENVIRONMENT, SERVICE: "https://s3.env.example.com"}),
        (None, {IGNORE: "true"}),
        (None, {**OF_ENVIRONMENT, IGNORE: "TRUE"}),
        (None, {**OF_ENVIRONMENT, IGNORE: "1"}),
        (None, {GLOBAL: "", SERVICE: ""}),
        (None, {"AWS_PROFILE": "global"}),
        (None, {"AWS_DEFAULT_PROFILE": "global"}),
        (None, {"AWS_DEFAULT_PROFILE": "service", "AWS_PROFILE": "global"}),
        (None, {**ENVIRONMENT, "AWS_SESSION_TOKEN": "new", "AWS_SECURITY_TOKEN": "old"}),
        (None, {**ENVIRONMENT, "AWS_SESSION_TOKEN": "new"}),
        ("plain", ENVIRONMENT),
        ("global", {}),
        ("global", OF_ENVIRONMENT),
        ("global", {IGNORE: "false"}),
        ("global", {"AWS_PROFILE": "service"}),
        ("service", {}),
        ("service", OF_ENVIRONMENT),
        ("service", {IGNORE: "true"}),
        ("others", {}),
        ("only-others", {}),
        ("nowhere", OF_ENVIRONMENT),
        ("ignores", {}),
        ("ignores", {IGNORE: "false"}),
        ("ignores", OF_ENVIRONMENT),
        ("heeds", {}),
        ("heeds", {IGNORE: "true"}),
        ("two words", {}),
        ("shared", {}),
        ("shared", OF_ENVIRONMENT),
        ("half", {}),
    ],
)
def test_the_server_is_the_one_that_botocore_would_ask(
    profile: str | None, environment: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "config").write_text(SERVERS)
    (tmp_path / "credentials").write_text(SERVERS_SHARED)
    files = {"AWS_CONFIG_FILE": f"{tmp_path}/config", "AWS_SHARED_CREDENTIALS_FILE": f"{tmp_path}/credentials"}
    monkeypatch.delenv("AWS_ENDPOINT_URL")
    for name, value in {**files, **environment}.items():
        monkeypatch.setenv(name, value)
    own = find_access(StoreAddress(profile=profile), {**files, **environment})
    session = boto3.Session(profile_name=profile)
    theirs = session.client("s3", region_name=own.region).meta.endpoint_url
    assert own.endpoint_url == (None if theirs.endswith(".amazonaws.com") else theirs)
    assert own.region == (session.region_name or "us-east-1")
    credentials = session.get_credentials()
    keys = Keys(credentials.access_key, credentials.secret_key, credentials.token) if credentials else None
    assert own.keys in (None, keys)
    assert own.keys or profile not in ("plain", "shared", "half")


def test_a_services_section_that_does_not_exist(tmp_path: Path) -> None:
    (tmp_path / "config").write_text(SERVERS)
    files = {"AWS_CONFIG_FILE": f"{tmp_path}/config", "AWS_SHARED_CREDENTIALS_FILE": "/nowhere"}
    with pytest.raises(StoreError, match="the AWS profile nowhere names the services section nowhere"):
        find_access(StoreAddress(profile="nowhere"), files)


def test_a_region_that_botocore_does_not_know(files: dict[str, str]) -> None:
    assert find_access(StoreAddress(profile="both"), {**files, "AWS_REGION": "other-region"}).region == "other-region"
    assert find_access(StoreAddress(profile="mine"), {**files, "AWS_REGION": "other-region"}).region == "mine-region"


@pytest.mark.parametrize(
    "environment",
    [{"AWS_WEB_IDENTITY_TOKEN_FILE": "/token", "AWS_ROLE_ARN": "arn:x"}, {"AWS_ACCESS_KEY_ID": "half"}],
)
def test_keys_of_a_profile_do_not_stand_in_for_those_that_the_environment_asks_for(
    environment: dict[str, str], files: dict[str, str]
) -> None:
    assert find_access(StoreAddress(), {**files, **environment}).keys is None


@pytest.mark.parametrize(
    ("own", "environment", "bundles"),
    [
        (None, {}, []),
        (None, {"SSL_CERT_FILE": "/ssl.pem"}, ["/ssl.pem"]),
        (None, {"REQUESTS_CA_BUNDLE": "/one.pem", "SSL_CERT_FILE": "/one.pem"}, ["/one.pem"]),
        (None, {"AWS_PROFILE": "ca"}, ["/profile.pem"]),
        (None, {"AWS_PROFILE": "ca", "AWS_CA_BUNDLE": "/aws.pem"}, ["/profile.pem", "/aws.pem"]),
        ("/own.pem", {"AWS_PROFILE": "ca", "AWS_CA_BUNDLE": "/aws.pem"}, ["/own.pem"]),
    ],
)
def test_every_setting_names_authorities(
    own: str | None, environment: dict[str, str], bundles: list[str], tmp_path: Path
) -> None:
    (tmp_path / "config").write_text("[profile ca]\nca_bundle = /profile.pem\n")
    files = {"AWS_CONFIG_FILE": f"{tmp_path}/config", "AWS_SHARED_CREDENTIALS_FILE": "/nowhere"}
    assert find_access(StoreAddress(ca_bundle=own), {**files, **environment}).ca_bundles == tuple(bundles)
