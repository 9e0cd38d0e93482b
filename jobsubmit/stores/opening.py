"""Open the store at an address."""

from __future__ import annotations

from pathlib import Path

from jobsubmit.common.store_address import StoreAddress
from jobsubmit.stores.protocol import ObjectStore


def open_store(address: StoreAddress, *, is_brief: bool = False) -> ObjectStore:
    """Return the store at an address. This loads its client library, and contacts nothing.

    With `is_brief`, the store gives up if the server does not answer within seconds.
    """
    if address.is_remote:
        from jobsubmit.stores.s3 import BRIEF, S3Store

        return S3Store(address, BRIEF) if is_brief else S3Store(address)
    from jobsubmit.stores.folder import FolderStore

    return FolderStore(Path(address.uri.removeprefix("file://")))
