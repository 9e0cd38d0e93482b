"""The line to a bucket's server: how it is found, how long anybody waits, and what its refusals mean."""

from __future__ import annotations

import random
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import Any, NamedTuple, TypeVar

from obstore.exceptions import AlreadyExistsError, BaseError, GenericError
from obstore.store import S3Store as Client

from jobsubmit.agent.retry import PASSING_STATUSES
from jobsubmit.common.store_address import StoreAddress, endpoint_problem, without_user
from jobsubmit.errors import StoreError
from jobsubmit.stores.credentials import Access, credential_provider, find_access

T = TypeVar("T")

HINTS = {
    "NoSuchBucket": "create the bucket first, or correct store.uri",
    "AccessDenied": "the key may not do this here: check the bucket's policy and store.profile",
    "403": "the key may not do this here, or the bucket is somebody else's: check store.uri and store.profile",
    "InvalidAccessKeyId": "the server does not know this key: check the credentials and store.endpoint_url",
    "SignatureDoesNotMatch": "the secret key, store.region or store.endpoint_url is wrong",
    "ExpiredToken": "the session token has expired: get a new one",
    "InvalidTokenId": "the session token is not the server's: get a new one",
    "RequestTimeTooSkewed": "the clock of this machine is more than 15 minutes off: set it",
    "PermanentRedirect": "the bucket lies in another region: set store.region",
    "AuthorizationHeaderMalformed": "the bucket lies in another region: set store.region",
    "XMinioStorageFull": "the server's disk is full: make room there, then run again",
    "SlowDown": "the server is overloaded: run again later",
}
_LONG = 3600.0
PASSING_CODES = ("RequestTimeout", "OperationAborted", "SlowDown", "TooManyRequests", "InternalError")
UNEXPECTED_HINT = "see the server's message; `--debug` shows where it happened"


class Limits(NamedTuple):
    """Bound the waiting, in seconds: for a connection, for an answer or its next bytes, and for all tries together.

    Until the server has answered once, no new try begins after `first`: the address may be wrong.
    """

    connect: float = 5
    answer: float = 30
    first: float = 5
    total: float = 120


class Connection:
    """Reach one bucket; count what is asked of it, and repeat what may pass."""

    def __init__(self, address: StoreAddress, limits: Limits) -> None:
        self.address, self.limits = address, limits
        self.uri = address.uri.rstrip("/")
        self.scheme, _, rest = self.uri.partition("://")
        self.bucket, _, folder = rest.partition("/")
        self.prefix = f"{folder}/" if folder else ""
        self.requests, self.round_trip = 0, 0.0
        self._counting, self._making = threading.Lock(), threading.Lock()
        self._has_answered = False
        self._dead: StoreError | None = None
        if self.is_obs and not address.endpoint_url:
            raise StoreError(
                f"{self.uri}: obs:// needs store.endpoint_url",
                "e.g. endpoint_url: https://obs.REGION.myhuaweicloud.com",
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

    @property
    def reach_hint(self) -> str:
        """Return what to check where the server cannot be reached."""
        return f"check that {self.access.endpoint_url or 'AWS'} is reachable, and store.endpoint_url (--endpoint-url)"

    @property
    def is_virtual(self) -> bool:
        """Return whether the bucket's name is part of the host's.

        OBS refuses anything else; an address, a name without a dot or one with a port is somebody's own server, which
        seldom knows its buckets by name.
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
                    f"{self.uri}: the endpoint {endpoint} has no name that the bucket's could stand before",
                    "give the server's name, or store.addressing: path if it takes that",
                    self.uri,
                )
            config["endpoint"] = f"{scheme}://{self.bucket}.{host}" if self.is_virtual else f"{scheme}://{host}"
        if keys := self.access.keys:
            config |= {"access_key_id": keys.access_key_id, "secret_access_key": keys.secret_access_key}
            config |= {"session_token": keys.token} if keys.token else {}
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
            retry_config={"max_retries": 0, "retry_timeout": timedelta(0)},  # the tries are ours: see patiently
            credential_provider=None if keys else credential_provider(self.address, self.access.region),
        )

    def count(self) -> None:
        """Count a request."""
        with self._counting:
            self.requests += 1

    def answer(self, tag: str | None) -> str:
        """Note that the server has answered; return its ETag without the quotes."""
        self._has_answered = True
        return (tag or "").strip('"')

    def heard(self, act: Callable[[], T]) -> T:
        """Act in such a way that Ctrl-C is heard at once: the main thread would not hear it while it waits."""
        return _aside(act) if threading.current_thread() is threading.main_thread() else act()

    def require_alive(self) -> None:
        """Raise StoreError where another thread has waited for the line in vain."""
        if self._dead:
            raise self._dead

    def trying(self, key: str, act: Callable[[], T]) -> T:
        """Repeat what obstore could not do but may pass."""

        def timed() -> T:
            started = time.monotonic()
            result = act()
            self.round_trip = min(self.round_trip or _LONG, time.monotonic() - started)
            return result

        with self.errors(key):
            _ = self.client  # making it is no part of a round trip
            return self.patiently(timed, is_transport, _may_pass)

    def patiently(
        self, act: Callable[[], T], is_line: Callable[[Exception], bool], may_pass: Callable[[Exception], bool]
    ) -> T:
        """Repeat what failed by the line or may pass, with jitter, up to the deadline; Ctrl-C is heard at once."""
        started, pause = time.monotonic(), 0.1
        while True:
            try:
                result = self.heard(act)
                self._dead = None
                return result
            except Exception as error:
                self._has_answered = self._has_answered or not is_line(error)
                is_hopeful = is_line(error) or may_pass(error)
                patience = self.limits.total if self._has_answered else self.limits.first
                left = started + patience - time.monotonic()
                if is_hopeful and left <= 0:
                    hint = "run again when it is back"
                    self._dead = StoreError(f"{self.uri}: the line to it is dead", hint, self.uri)
                if not is_hopeful or self._dead:
                    raise
            time.sleep(min(pause * random.uniform(0.5, 1), left))
            pause = min(2 * pause, 5)

    @contextmanager
    def errors(self, key: str) -> Iterator[None]:
        """Turn what obstore raises into one StoreError."""
        try:
            yield
        except (BaseError, FileNotFoundError, ValueError) as error:
            if isinstance(error, FileNotFoundError) and error.filename is not None:
                raise
            raise self._store_error(f"{self.uri}/{key}", error) from error

    def _store_error(self, address: str, error: Exception) -> StoreError:
        text = str(error)
        if code := code_of(error):
            message = re.search(r"<Message>(.*?)</Message>", text, re.DOTALL)
            said = f"{code} {message[1] if message else ''}".strip()
            return StoreError(f"{address}: {said}", HINTS.get(code, UNEXPECTED_HINT), self.uri)
        if status := re.search(r"status code: (\d+) ([^:\n]*)", text):
            return StoreError(f"{address}: {status[1]} {status[2]}", HINTS.get(status[1], UNEXPECTED_HINT), self.uri)
        if "HTTP error" in text:
            return StoreError(f"{address}: {_transport_problem(text)}", self.reach_hint, self.uri)
        return StoreError(f"{address}: {text.partition(chr(10))[0]}", UNEXPECTED_HINT, self.uri)


def code_of(error: Exception) -> str:
    """Return the server's word for what is wrong, or nothing where it sent none."""
    found = re.search(r"<Code>(\w+)</Code>", str(error))
    return found[1] if found else ""


def is_transport(error: Exception) -> bool:
    """Return whether the line failed, not the server."""
    return isinstance(error, GenericError) and "HTTP error" in str(error)


def is_timeout(error: Exception) -> bool:
    """Return whether the line failed by saying nothing."""
    return is_transport(error) and ("TimedOut" in str(error) or "Timeout" in str(error))


def is_unknown(error: Exception) -> bool:
    """Return whether the server does not know what it was asked."""
    return code_of(error) == "NotImplemented" or "status code: 501" in str(error)


def _may_pass(error: Exception) -> bool:
    return isinstance(error, (GenericError, AlreadyExistsError)) and (
        code_of(error) in PASSING_CODES
        or re.search(rf"status code: ({'|'.join(map(str, PASSING_STATUSES))})", str(error)) is not None
    )


def _aside(act: Callable[[], T]) -> T:
    """Act in a thread: the main one would not hear Ctrl-C while it waits in obstore."""
    results: list[T] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            results.append(act())
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
    return results[0]


def _transport_problem(text: str) -> str:
    if "TimedOut" in text:
        return "no answer in time"
    found = re.search(r'(?:message|error): "([^"]+)"', text)
    return found[1] if found else "the connection broke"
