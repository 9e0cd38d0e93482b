"""Where the keys for ModelArts come from, and what is said where there are none."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from jobsubmit.backends.modelarts.credentials import Identity, identity
from jobsubmit.backends.modelarts.spec import ModelArtsBackendSpec
from jobsubmit.errors import BackendError

ENVIRONMENT = {
    "HUAWEICLOUD_SDK_AK": "env-ak",
    "HUAWEICLOUD_SDK_SK": "env-sk",
    "HUAWEICLOUD_SDK_PROJECT_ID": "env-project",
    "HUAWEICLOUD_SDK_REGION": "env-region",
}
SDK = "[basic]\nak = sdk-ak\nsk = sdk-sk\nproject_id = sdk-project\n[team]\nak = team-ak\nsk = team-sk\n"
KOOCLI = {
    "current": "second",
    "profiles": [
        {"name": "default", "accessKeyId": "default-ak", "secretAccessKey": "default-sk"},
        {
            "name": "second",
            "mode": "AKSK",
            "accessKeyId": "second-ak",
            "secretAccessKey": "second-sk",
            "securityToken": "second-token",
            "region": "second-region",
            "projectId": "second-project",
        },
    ],
}


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a home directory that is empty."""
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


def write_sdk(home: Path, text: str = SDK) -> None:
    (home / ".huaweicloud").mkdir()
    (home / ".huaweicloud/credentials").write_text(text)


def write_koocli(home: Path, text: str = "") -> None:
    (home / ".hcloud").mkdir()
    (home / ".hcloud/config.json").write_text(text or json.dumps(KOOCLI))


def found(environment: dict[str, str] | None = None, **fields: Any) -> Identity:
    return identity(ModelArtsBackendSpec(kind="modelarts", **fields), environment or {})


def test_the_environment_comes_first(home: Path) -> None:
    write_sdk(home)
    who = found(ENVIRONMENT)
    assert (who.ak, who.sk, who.security_token) == ("env-ak", "env-sk", "")
    assert (who.project_id, who.region) == ("env-project", "env-region")


def test_then_the_file_of_the_sdk(home: Path) -> None:
    write_sdk(home)
    write_koocli(home)
    assert (found(region="r").ak, found(region="r").project_id) == ("sdk-ak", "sdk-project")
    assert found(ENVIRONMENT, profile="team", project_id="p").sk == "team-sk"


def test_then_that_of_koocli(home: Path) -> None:
    write_koocli(home)
    who = found()
    assert (who.ak, who.sk, who.security_token) == ("second-ak", "second-sk", "second-token")
    assert (who.project_id, who.region) == ("second-project", "second-region")
    assert found(profile="default", region="r", project_id="p").ak == "default-ak"


def test_a_job_file_says_where(home: Path) -> None:
    who = found(ENVIRONMENT, project_id="mine", region="there", endpoint="https://a.example.com")
    assert (who.project_id, who.region, who.endpoint) == ("mine", "there", "https://a.example.com")


@pytest.mark.parametrize(
    ("environment", "fields", "text"),
    [
        ({}, {}, "there are no credentials for ModelArts"),
        ({**ENVIRONMENT, "HUAWEICLOUD_SDK_PROJECT_ID": ""}, {}, "the project id is not set"),
        ({**ENVIRONMENT, "HUAWEICLOUD_SDK_REGION": ""}, {}, "the region is not set"),
        (ENVIRONMENT, {"profile": "nobody"}, "there is no profile nobody"),
    ],
)
def test_what_is_missing_is_told(environment: dict[str, str], fields: dict[str, str], text: str, home: Path) -> None:
    with pytest.raises(BackendError, match=text):
        found(environment, **fields)


@pytest.mark.parametrize("text", ["ak = planted-key\n", "[basic]\nplanted-key\n", "[basic]\nak=planted-key\nak=2\n"])
def test_a_file_that_is_wrong_is_not_quoted(text: str, home: Path) -> None:
    write_sdk(home, text)
    with pytest.raises(BackendError, match="credentials cannot be read") as caught:
        found()
    assert "planted" not in str(caught.value) + caught.value.hint


@pytest.mark.parametrize("text", ["planted-key", '{"profiles": [{"accessKeyId": "planted-key"}]}', '["planted-key"]'])
def test_a_file_of_koocli_that_is_wrong_is_not_quoted(text: str, home: Path) -> None:
    write_koocli(home, text)
    with pytest.raises(BackendError, match=r"config\.json cannot be read") as caught:
        found()
    assert "planted" not in str(caught.value) + caught.value.hint


def test_no_key_is_shown(home: Path) -> None:
    assert not {"env-ak", "env-sk"} & set(repr(found(ENVIRONMENT)).split("'"))
