"""Listings of servers that cannot write every name: versitygw lists U+FFFD for a control character."""

from __future__ import annotations

from typing import Any
from unittest.mock import Mock

import pytest
from botocore.exceptions import ClientError

from jobsubmit.errors import StoreError
from jobsubmit.stores.s3_boto import S3Control
from jobsubmit.stores.s3_retry import Limits, RetryLoop


class Server:
    """A bucket with one object, whose name it lists as given."""

    def __init__(self, key: str, listed: str) -> None:
        self.key, self.listed = key, listed

    def list_objects(self, **_: Any) -> dict[str, Any]:
        return {"Contents": [{"Key": self.listed, "Size": 1, "ETag": '"x"'}], "IsTruncated": False}

    def head_object(self, *, Bucket: str, Key: str) -> dict[str, Any]:  # noqa: N803 - boto3's names
        if Key != self.key:
            raise ClientError({"Error": {"Code": "404"}}, "HeadObject")
        return {"ContentLength": 1, "ETag": '"x"'}


def control(server: Server, monkeypatch: pytest.MonkeyPatch) -> S3Control:
    found = S3Control(Mock(bucket="bucket", retries=RetryLoop("s3://bucket", Limits())))
    monkeypatch.setattr(S3Control, "_client", server)
    return found


def test_a_name_that_is_listed_with_another_character_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(StoreError, match="does not list the control characters"):
        list(control(Server("bell\x07", "bell\ufffd"), monkeypatch).listed("", ""))


def test_a_name_that_holds_the_replacement_character_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    found = control(Server("odd\ufffd", "odd\ufffd"), monkeypatch).listed("", "")
    assert [info.key for info in found] == ["odd\ufffd"]
