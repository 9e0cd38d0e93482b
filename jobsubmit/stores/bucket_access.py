"""What a node needs to use buckets by itself: their addresses, and keys."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from jobsubmit.common.store_address import StoreAddress
from jobsubmit.stores.credentials import Keys, open_session
from jobsubmit.stores.protocol import ObjectStore
from jobsubmit.stores.s3 import S3Store

if TYPE_CHECKING:
    from jobsubmit.agent.protocol import DataAccess

_NAME = "x"


def find_bucket_access(server: StoreAddress, uris: Sequence[str]) -> DataAccess:
    """Return how to reach the buckets of some addresses on one server; contacts no bucket. Raises StoreError."""
    names = {uri.partition("://")[2].partition("/")[0]: uri.partition("://")[0] for uri in uris}
    stores = {name: S3Store(server._replace(uri=f"{scheme}://{name}")) for name, scheme in names.items()}
    first = next(iter(stores.values()))
    keys = first.connection.access.keys or _keys_of_session(first.connection.address, first.connection.access.region)
    return {
        "buckets": {name: _address_of(store) for name, store in stores.items()},
        "region": first.connection.access.region,
        "key": keys.access_key_id,
        "secret": keys.secret_access_key,
        "token": keys.token or "",
        "certificates": first.certificates,
    }


def _address_of(store: ObjectStore) -> str:
    """Return the address below which the objects of a bucket are."""
    return store.url(_NAME, 60).partition("?")[0].removesuffix(_NAME)


def _keys_of_session(address: StoreAddress, region: str) -> Keys:
    found = open_session(address, region).get_credentials()
    assert found is not None  # the code was uploaded with them
    frozen = found.get_frozen_credentials()
    return Keys(frozen.access_key or "", frozen.secret_key or "", frozen.token)
