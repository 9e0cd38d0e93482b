"""The lease, which replaces a manifest while its files are replaced: one writer, and no reader meanwhile."""

from __future__ import annotations

import hashlib
import json
import os
import threading
import time
from contextlib import suppress
from typing import Any, NamedTuple

from jobsubmit.errors import StoreError
from jobsubmit.stores.protocol import ObjectStore, Stored
from jobsubmit.transfer.code_ref import CodeRef
from jobsubmit.transfer.progress import Progress

RENEW_SECONDS = 10
# An owner that could not renew its claim for so long sends nothing new, until it could.
LEASE_SECONDS = 25
# A claim that did not change for so long is taken over: longer than a lease and a request that began at its end.
SILENCE_SECONDS = 90
_LOOK_SECONDS = 1
_HOPE_SECONDS = 150
_LAST_WORD_SECONDS = 1
_LARGEST = 4096  # of a claim, in bytes: a manifest is not read twice
_KINDS = (str, str, int, int, bool)

_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)  # it goes on while a laptop sleeps


class Lease(NamedTuple):
    """Who replaces the files at a key: the lock it holds, its machine and process; `beat` grows with each renewal.

    `is_over` means that its owner has ended and did not finish.
    """

    owner: str
    host: str
    pid: int
    beat: int = 0
    is_over: bool = False


def require_ours(code: CodeRef, found: Stored | None) -> None:
    """Raise StoreError if the object at the manifest's key was not written by jobsubmit."""
    if found is None:
        return
    try:
        document: Any = json.loads(found.data or b"")
        is_ours = "format" in document and "files" in document
    except (ValueError, TypeError, RecursionError):
        is_ours = False
    if not is_ours:
        address = code.uri + code.manifest_key[len(code.key) :]
        raise StoreError(
            f"{address} exists, but is not a manifest of jobsubmit",
            "choose another URI, or replace it with --force (create: --recheck)",
        )


def read_lease(data: bytes | None) -> Lease | None:
    """Return the lease at a manifest's key, if there is one."""
    if data is None or len(data) > _LARGEST:
        return None
    try:
        document: Any = json.loads(data)
        claim = Lease(**document["claim"])
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    return claim if all(type(value) is kind for value, kind in zip(claim, _KINDS, strict=True)) else None


def wait_for_expiry(
    store: ObjectStore, code: CodeRef, found: Stored | None, owner: str, progress: Progress
) -> Stored | None:
    """Return what is at the manifest's key once no other upload holds the lease.

    A lease of our own lock, or one that is over, belongs to a dead upload. Any other is valid while it is renewed.
    """
    claim = read_lease(found.data) if found else None
    if claim is None or claim.is_over or claim.owner == owner:
        return found
    progress.say(
        f"process {claim.pid} on {claim.host} is uploading to {code.uri}: "
        f"waiting until it ends, or until its lease expires ({SILENCE_SECONDS} s without renewal)"
    )
    seen = _now()
    while found and (claim := read_lease(found.data)) and not claim.is_over and _now() - seen < SILENCE_SECONDS:
        time.sleep(_LOOK_SECONDS)
        new = store.get_unless(code.manifest_key, found.tag)
        if new is None or (new.data is not None and new.tag != found.tag):
            found, seen = new, _now()
    return found


class HeldLease:
    """A lease that is renewed until it is released."""

    def __init__(self, store: ObjectStore, code: CodeRef, claim: Lease, tag: str, since: float) -> None:
        self.store, self.code = store, code
        self.claim, self.tag = claim, tag
        self._renewed, self._is_lost = since, False
        self._problem = StoreError(f"{code.uri}: the store no longer answers", "run again when it does")
        self._over = threading.Event()
        self._beating = threading.Thread(target=self._beat, daemon=True)
        self._beating.start()

    def require(self) -> None:
        """Return when the lease is certain to be valid; raise StoreError if it is lost, or cannot be renewed."""
        while not self._is_lost and (age := _now() - self._renewed) > LEASE_SECONDS:
            if age > _HOPE_SECONDS:
                raise self._problem
            time.sleep(0.1)
        if self._is_lost:
            raise lease_lost_error(self.code)

    def end_with(self, manifest: bytes) -> None:
        """Replace the lease with the manifest; raise StoreError if another upload has taken over."""
        self._over.set()
        self._beating.join()
        if self._is_lost:
            raise lease_lost_error(self.code)
        digest = hashlib.sha256(manifest).hexdigest()
        if self.store.put(self.code.manifest_key, manifest, digest, expected=self.tag) is None:
            raise lease_lost_error(self.code)

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """After a failure, store in the lease that it is over, if the store answers in time."""
        self._over.set()
        was_lost, self._is_lost = self._is_lost, True  # whatever still runs may send nothing new
        if kind is not None and not was_lost:
            last = threading.Thread(target=self._say_over, daemon=True)
            last.start()
            last.join(_LAST_WORD_SECONDS)

    def renew(self) -> None:
        """Renew the lease; if the store does not answer, the next renewal tries again."""
        try:
            self._put(self.claim._replace(beat=self.claim.beat + 1))
        except StoreError as error:
            self._problem = error

    def _beat(self) -> None:
        while not self._over.wait(RENEW_SECONDS):
            self.renew()

    def _say_over(self) -> None:
        with suppress(StoreError):
            self._beating.join()
            self._put(self.claim._replace(is_over=True))

    def _put(self, claim: Lease) -> None:
        started = _now()
        tag = _put(self.store, self.code, claim, self.tag)
        if tag is None:
            self._is_lost = True
            self._over.set()
        else:
            self.claim, self.tag, self._renewed = claim, tag, started


def acquire_lease(store: ObjectStore, code: CodeRef, found: Stored | None, owner: str) -> HeldLease | None:
    """Acquire the lease where `found` is stored; return None if another upload was faster."""
    claim = Lease(owner, os.uname().nodename, os.getpid(), beat=time.time_ns())  # unlike any other, even of ours
    since = _now()
    tag = _put(store, code, claim, found.tag if found else "")
    return HeldLease(store, code, claim, tag, since) if tag is not None else None


def lease_lost_error(code: CodeRef) -> StoreError:
    """Return the error for an upload that lost its lease to another one."""
    return StoreError(
        f"{code.uri}: another upload took over this destination", "to store your version, run the command again"
    )


def _put(store: ObjectStore, code: CodeRef, claim: Lease, expected: str) -> str | None:
    """Store a claim in the shape of a manifest that lists nothing."""
    data = json.dumps({"format": 1, "claim": claim._asdict(), "files": []}).encode() + b"\n"
    return store.put(code.manifest_key, data, hashlib.sha256(data).hexdigest(), expected=expected)


def _now() -> float:
    return time.clock_gettime(_CLOCK)
