"""The connection to a bucket's server: how it is made, and how its failures are reported."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import Any, TypeVar

from obstore.exceptions import BaseError
from obstore.store import S3Store as Client

from jobsubmit.common.store_address import StoreAddress, endpoint_problem, without_user
from jobsubmit.errors import StoreError
from jobsubmit.stores.authorities import merged, read_by_obstore, require_certificates
from jobsubmit.stores.credential_errors import credential_error, passed_on
from jobsubmit.stores.credentials import Access, credential_provider, find_access
from jobsubmit.stores.s3_errors import ServerErrors, transport_problem
from jobsubmit.stores.s3_retry import Limits, RetryLoop, code_of, is_untrusted, may_come_back, may_pass

T = TypeVar("T")

_LONG = 3600.0
_PROXY_SECONDS = 1.0


class Connection:
    """The connection to one bucket: counts requests, and retries transient failures."""

    def __init__(self, address: StoreAddress, limits: Limits) -> None:
        self.address, self.limits = address, limits
        self.uri = address.uri.rstrip("/")
        self.scheme, _, rest = self.uri.partition("://")
        self.bucket, _, folder = rest.partition("/")
        self.prefix = f"{folder}/" if folder else ""
        self.requests, self.round_trip = 0, 0.0
        self._counting, self._making = threading.Lock(), threading.Lock()
        self.retries = RetryLoop(self.uri, limits)
        if self.is_obs and not address.endpoint_url:
            raise StoreError(
                f"{self.uri}: obs:// needs the address of its server",
                "set store.endpoint_url (`upload` and `download`: --endpoint-url), e.g. https://obs.REGION.myhuaweicloud.com",
                where="store.endpoint_url",
            )

    @property
    def is_obs(self) -> bool:
        """Return whether it is OBS: it documents no conditional PUT, and of our payload modes only the unsigned one."""
        return self.scheme == "obs"

    @cached_property
    def access(self) -> Access:
        """Return endpoint, region and keys."""
        found = find_access(self.address)
        if found.endpoint_url and (problem := endpoint_problem(found.endpoint_url)):
            raise StoreError(
                f"{self.uri}: the endpoint {without_user(found.endpoint_url)} {problem}",
                "correct store.endpoint_url, AWS_ENDPOINT_URL or the profile",
                self.uri,
            )
        return found

    @cached_property
    def ca_bundle(self) -> str:
        """Return the file of the authorities that verify the server, or nothing."""
        bundles = self.access.ca_bundles
        if not bundles or (self.access.endpoint_url or "").startswith("http://"):
            return ""
        for bundle in bundles:
            require_certificates(bundle)
        return merged(bundles)

    @cached_property
    def server_errors(self) -> ServerErrors:
        """Return what makes the errors of this server (see ServerErrors)."""
        return ServerErrors(self.uri, self.access)

    @property
    def is_virtual(self) -> bool:
        """Return whether the bucket's name is part of the host's.

        OBS refuses anything else. An IP address, a name without a dot or one with a port is a private server, which
        seldom supports it.
        """
        if self.address.addressing in ("virtual", "path"):
            return self.address.addressing == "virtual"
        if self.is_obs:
            return True
        if "." in self.bucket:  # no certificate would match
            return False
        host = (self.access.endpoint_url or "https://s3.amazonaws.com").partition("://")[2].partition("/")[0]
        return "." in host and ":" not in host and not host.replace(".", "").isdigit()

    @property
    def client(self) -> Client:
        """Return obstore's client."""
        with self._making:  # once, whichever thread comes first
            return self._client

    @cached_property
    def _client(self) -> Client:
        from datetime import timedelta

        endpoint = self.access.endpoint_url
        config: dict[str, Any] = {
            "region": self.access.region,
            "virtual_hosted_style_request": self.is_virtual,
            "unsigned_payload": self.is_obs,
            "disable_bulk_delete": True,
        }
        if endpoint:
            scheme, _, host = endpoint.rstrip("/").partition("://")
            if self.is_virtual and host.partition(":")[0].replace(".", "").isdigit():
                raise StoreError(
                    f"{self.uri}: the bucket's name cannot be added to the endpoint {endpoint}, which is an IP address",
                    "use the server's host name, or set store.addressing: path if the server supports it",
                    self.uri,
                )
            config["endpoint"] = f"{scheme}://{self.bucket}.{host}" if self.is_virtual else f"{scheme}://{host}"
        if keys := self.access.keys:
            config |= {"access_key_id": keys.access_key_id, "secret_access_key": keys.secret_access_key}
            config |= {"session_token": keys.token} if keys.token else {}
        provider = None if keys else self._provider()
        if self.server_errors.proxy:  # it is near: one that does not answer at once is not there
            self.retries.limits = self.limits._replace(first=_PROXY_SECONDS)
        with read_by_obstore(self.ca_bundle):
            return Client(
                self.bucket,
                config=config,  # type: ignore[arg-type] # its keys are those of S3Config
                client_options={
                    "allow_http": True,
                    "connect_timeout": timedelta(seconds=self.limits.connect),
                    "timeout": timedelta(days=1),
                    "read_timeout": timedelta(seconds=self.limits.answer),
                    "pool_idle_timeout": timedelta(seconds=20),
                },
                retry_config={"max_retries": 0, "retry_timeout": timedelta(0)},  # see s3_retry.py
                credential_provider=provider,
            )

    def _provider(self) -> Any:
        """Return what gives the keys, where they are not plain; raise StoreError where there are none."""
        try:
            return credential_provider(self.address, self.access.region)
        except StoreError:
            raise
        except Exception as error:  # botocore's, the system's, or those of a terminal that is none
            raise credential_error(self.address, type(error).__name__, str(error)) from error

    def count(self) -> None:
        """Count a request."""
        with self._counting:
            self.requests += 1

    def answer(self, tag: str | None) -> str:
        """Note that the server has answered; return its ETag without the quotes."""
        self.retries.has_answered = True
        return (tag or "").strip('"')

    def trying(self, key: str, act: Callable[[], T]) -> T:
        """Call `act`, and retry transient failures of obstore."""

        def timed() -> T:
            started = time.monotonic()
            result = act()
            self.round_trip = min(self.round_trip or _LONG, time.monotonic() - started)
            return result

        with self.errors(key):
            _ = self.client  # making it is no part of a round trip
            return self.retries.run(timed, may_come_back, may_pass)

    @contextmanager
    def errors(self, key: str) -> Iterator[None]:
        """Turn an error of obstore into a StoreError."""
        try:
            yield
        except (BaseError, FileNotFoundError, ValueError) as error:
            if isinstance(error, FileNotFoundError) and error.filename is not None:
                raise
            raise self._store_error(f"{self.uri}/{key}", error) from error

    def _store_error(self, where: str, error: Exception) -> StoreError:
        text, errors = str(error), self.server_errors
        if code := code_of(error):
            message = re.search(r"<Message>(.*?)</Message>", text, re.DOTALL)
            return errors.refused(where, code, message[1] if message else "")
        if status := re.search(r"status code: (\d+) (.*)", text):
            return errors.refused(where, status[1], status[2])
        if is_untrusted(error):
            return errors.untrusted(where, text)
        if found := passed_on(error):
            return credential_error(self.address, *found)
        if "HTTP error" in text:
            return errors.broken(where, transport_problem(text), text)
        return errors.unexpected(where, text)
