"""A second S3 server for the contract suites: moto, whose answers differ from MinIO's in many small things."""

from __future__ import annotations

import importlib.util
import uuid
from collections.abc import Iterator
from contextlib import contextmanager

KEY, SECRET = "moto", "only-for-loopback"


def is_there() -> bool:
    """Tell whether moto is installed."""
    return importlib.util.find_spec("moto") is not None and importlib.util.find_spec("flask") is not None


@contextmanager
def running() -> Iterator[tuple[str, str]]:
    """Run a server on loopback, with a bucket; yield its address and the bucket's name."""
    import boto3
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        host, port = server.get_host_and_port()
        endpoint, bucket = f"http://{host}:{port}", f"test-{uuid.uuid4().hex[:12]}"
        client = boto3.client(
            "s3",
            endpoint_url=endpoint,
            region_name="us-east-1",
            aws_access_key_id=KEY,
            aws_secret_access_key=SECRET,
        )
        client.create_bucket(Bucket=bucket)
        yield endpoint, bucket
    finally:
        server.stop()
