"""Directories to upload, and a look into the bucket past whatever stands in front of it."""

from __future__ import annotations

import hashlib
import json
import random
from pathlib import Path
from typing import Any

import boto3
from minio_server import Server


def make(root: Path, files: int = 40, salt: str = "") -> Path:
    for number in range(files):
        path = root / f"p{number % 5}" / f"f{number}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{salt}{number}\n" * (1 + number * 7))
    (root / "large.bin").write_bytes(random.Random(salt).randbytes(3 << 20))
    return root


def contents(root: Path) -> dict[str, bytes]:
    return {path.relative_to(root).as_posix(): path.read_bytes() for path in root.rglob("*") if path.is_file()}


class Bucket:
    """Look into a bucket past whatever stands in front of it."""

    def __init__(self, name: str, server: Server) -> None:
        self.name, self.server = name, server
        self.client = boto3.client("s3", endpoint_url=server.endpoint, region_name="us-east-1")

    def objects(self, prefix: str = "") -> dict[str, bytes]:
        pages = self.client.get_paginator("list_objects").paginate(Bucket=self.name, Prefix=prefix)
        keys = [item["Key"] for page in pages for item in page.get("Contents", [])]
        return {key: self.client.get_object(Bucket=self.name, Key=key)["Body"].read() for key in keys}

    def tree(self, place: str) -> dict[str, bytes]:
        return {key.removeprefix(f"{place}/"): data for key, data in self.objects(f"{place}/").items()}

    def manifest(self, place: str) -> dict[str, Any] | None:
        """Return the manifest if it says that the place is whole."""
        data = self.objects(f"{place}.manifest.json").get(f"{place}.manifest.json")
        document = json.loads(data) if data else None
        return document if document and "digest" in document else None

    def assert_whole(self, place: str, root: Path) -> None:
        assert self.tree(place) == contents(root)
        manifest = self.manifest(place)
        assert manifest is not None
        assert {f["path"]: f["sha256"] for f in manifest["files"]} == {
            path: hashlib.sha256(data).hexdigest() for path, data in contents(root).items()
        }
