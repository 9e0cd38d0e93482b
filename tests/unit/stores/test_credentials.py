"""Who we are to a server: what boto3 would find, without loading it where the keys are plain."""

from __future__ import annotations

from pathlib import Path

import boto3
import pytest

from jobsubmit.common.store_address import StoreAddress
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
    environment = {**files, "AWS_ENDPOINT_URL": "https://env.example.com", "AWS_REGION": "env-region"}
    assert find_access(StoreAddress(profile="mine"), environment)[:2] == ("https://env.example.com", "env-region")
    own = StoreAddress(profile="mine", endpoint_url="https://own.example.com", region="own-region")
    assert find_access(own, environment)[:2] == ("https://own.example.com", "own-region")
    assert find_access(StoreAddress(), {})[1] == "us-east-1"


def test_a_damaged_file_is_left_to_boto3(tmp_path: Path) -> None:
    (tmp_path / "credentials").write_bytes(b"[default\nnonsense \xff")
    environment = {"AWS_SHARED_CREDENTIALS_FILE": str(tmp_path / "credentials"), "AWS_CONFIG_FILE": "/nowhere"}
    assert find_access(StoreAddress(), environment).keys is None
