"""Retries of S3 requests: which failures are transient, how long to retry, and when a connection counts as lost."""

from __future__ import annotations

import random
import re
import threading
import time
from collections.abc import Callable
from typing import NamedTuple, TypeVar

from obstore.exceptions import AlreadyExistsError, GenericError

from jobsubmit.agent.retry import PASSING_STATUSES
from jobsubmit.common.waiting import join
from jobsubmit.errors import StoreError

T = TypeVar("T")


PASSING_CODES = ("RequestTimeout", "OperationAborted", "SlowDown", "TooManyRequests", "InternalError")


class Limits(NamedTuple):
    """Limits of waiting, in seconds: for a connection, for an answer or its next bytes, and for all tries together.

    Until the server has answered once, no new try starts after `first`: the address may be wrong.
    """

    connect: float = 5
    answer: float = 30
    first: float = 5
    total: float = 120


def code_of(error: Exception) -> str:
    """Return the server's error code, or nothing if it sent none."""
    found = re.search(r"<Code>(\w+)</Code>", str(error))
    return found[1] if found else ""


def is_transport(error: Exception) -> bool:
    """Return whether the connection failed, not the server."""
    return isinstance(error, GenericError) and "HTTP error" in str(error)


def is_untrusted(error: Exception) -> bool:
    """Return whether the server's certificate was refused."""
    return is_transport(error) and "InvalidCertificate(" in str(error)


def may_come_back(error: Exception) -> bool:
    """Return whether the connection failed for a reason that may be gone at the next try."""
    return is_transport(error) and not is_untrusted(error) and "InvalidContentType" not in str(error)


def is_timeout(error: Exception) -> bool:
    """Return whether the connection timed out."""
    return is_transport(error) and ("TimedOut" in str(error) or "Timeout" in str(error))


def is_unknown(error: Exception) -> bool:
    """Return whether the server does not implement the request."""
    return code_of(error) == "NotImplemented" or "status code: 501" in str(error)


def may_pass(error: Exception) -> bool:
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
    join(thread)
    if errors:
        raise errors[0]
    return results[0]


class RetryLoop:
    """Retries the requests to one bucket after connection errors and other transient failures."""

    def __init__(self, uri: str, limits: Limits) -> None:
        self.uri, self.limits = uri, limits
        self.has_answered = False
        self._lost: StoreError | None = None

    def require_connection(self) -> None:
        """Raise StoreError if another thread has waited for the connection until the deadline."""
        if self._lost:
            raise self._lost

    def run(
        self,
        act: Callable[[], T],
        is_connection_error: Callable[[Exception], bool],
        may_pass: Callable[[Exception], bool],
    ) -> T:
        """Call `act`, and retry it with jitter up to the deadline; Ctrl-C takes effect at once."""
        started, pause = time.monotonic(), 0.1
        while True:
            try:
                result = self.hear_interrupts(act)
                self._lost = None
                return result
            except Exception as error:
                self.has_answered = self.has_answered or not is_connection_error(error)
                is_hopeful = is_connection_error(error) or may_pass(error)
                limit = self.limits.total if self.has_answered else self.limits.first
                left = started + limit - time.monotonic()
                if is_hopeful and left <= 0:
                    hint = "run again when the server answers"
                    self._lost = StoreError(f"{self.uri}: the connection to the server is lost", hint, self.uri)
                if not is_hopeful or self._lost:
                    raise
            time.sleep(min(pause * random.uniform(0.5, 1), left))
            pause = min(2 * pause, 5)

    def hear_interrupts(self, act: Callable[[], T]) -> T:
        """Call `act` so that Ctrl-C takes effect at once: the main thread would not notice it while it waits."""
        return _aside(act) if threading.current_thread() is threading.main_thread() else act()
