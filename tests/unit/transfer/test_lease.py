"""Who may write to a place in a store, and for how long: uploads of several machines, with a clock of the test's."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from clock import Clock
from memory_store import MemoryStore

from jobsubmit.errors import StoreError
from jobsubmit.stores.protocol import Stored
from jobsubmit.transfer import lease
from jobsubmit.transfer.code_ref import CodeRef
from jobsubmit.transfer.lease import HeldLease, Lease, acquire_lease, read_lease, require_ours, wait_for_expiry
from jobsubmit.transfer.progress import Progress

CODE = CodeRef("memory://store/code", "code", "tree", "code", "d" * 64)
KEY = CODE.manifest_key
MANIFEST = b'{"format": 1, "digest": "d", "files": []}\n'


class Notes(Progress):
    """Keep what is said."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def say(self, text: str) -> None:
        self.said.append(text)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    found = Clock()
    monkeypatch.setattr(lease, "time", found)
    return found


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


def put(store: MemoryStore, **fields: Any) -> Lease:
    """Have another machine's claim in the place."""
    claim = Lease(**{"owner": "theirs", "host": "elsewhere", "pid": 7, **fields})
    store.objects[KEY] = json.dumps({"format": 1, "claim": claim._asdict(), "files": []}).encode()
    return claim


def found(store: MemoryStore) -> Stored | None:
    return store.get_unless(KEY, "")


def wait(store: MemoryStore, owner: str = "ours", notes: Progress | None = None) -> Stored | None:
    return wait_for_expiry(store, CODE, found(store), owner, notes or Notes())


def taken(store: MemoryStore) -> HeldLease:
    place = acquire_lease(store, CODE, found(store), "ours")
    assert place is not None
    return place


@pytest.fixture
def place(store: MemoryStore, clock: Clock) -> Iterator[HeldLease]:
    """Return a place that is ours."""
    held = taken(store)
    yield held
    held.__exit__(None)


# ── before an upload ────────────────────────────────────────────────────────────────────────────────────────────────


def test_an_upload_that_ends_is_waited_for(store: MemoryStore, clock: Clock) -> None:
    put(store)
    clock.at(30, lambda: store.objects.update({KEY: MANIFEST}))
    notes = Notes()
    got = wait(store, notes=notes)
    assert got is not None and got.data == MANIFEST
    assert 30 <= clock.passed < 33
    assert len(notes.said) == 1
    assert "process 7 on elsewhere is uploading to memory://store/code" in notes.said[0]


@pytest.mark.parametrize("last", [0, 10, 80, 600])
def test_one_that_shows_no_sign_of_life_for_90_seconds_is_taken_over(
    last: int, store: MemoryStore, clock: Clock
) -> None:
    put(store)
    for moment in range(10, last + 1, 10):
        clock.at(moment, lambda beat=moment: put(store, beat=beat))  # type: ignore[misc]
    got = wait(store)
    assert got is not None and read_lease(got.data) is not None
    assert last + 90 <= clock.passed < last + 93
    held = acquire_lease(store, CODE, got, "ours")
    assert held is not None
    held.__exit__(None)


def test_one_that_has_given_up_is_not_waited_for(store: MemoryStore, clock: Clock) -> None:
    put(store, is_over=True)
    wait(store)
    assert clock.passed == 0
    put(store)
    clock.at(5, lambda: put(store, is_over=True))
    wait(store)
    assert 5 <= clock.passed < 8


def test_one_of_our_own_lock_is_dead(store: MemoryStore, clock: Clock) -> None:
    put(store, owner="ours")
    wait(store)
    assert clock.passed == 0


def test_a_claim_that_somebody_removed_is_no_claim(store: MemoryStore, clock: Clock) -> None:
    put(store)
    clock.at(5, lambda: store.objects.pop(KEY))
    assert wait(store) is None
    assert clock.passed < 8


def test_of_two_that_saw_the_same_one_gets_the_place(store: MemoryStore, clock: Clock) -> None:
    seen = found(store)
    first, second = acquire_lease(store, CODE, seen, "one"), acquire_lease(store, CODE, seen, "two")
    assert first is not None
    assert second is None
    first.__exit__(None)


# ── during an upload ────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_reader_sees_that_nothing_is_whole(store: MemoryStore, place: HeldLease) -> None:
    document = json.loads(store.objects[KEY])
    assert document["files"] == []
    assert "digest" not in document
    place.end_with(MANIFEST)
    assert store.objects[KEY] == MANIFEST


def test_a_lease_lasts_25_seconds_and_each_renewal_begins_another(
    store: MemoryStore, clock: Clock, place: HeldLease
) -> None:
    for _ in range(5):
        clock.sleep(24)
        place.require()
        place.renew()
    assert clock.passed == 5 * 24


def test_without_a_lease_nothing_is_sent_until_the_store_answers_again(
    store: MemoryStore, clock: Clock, place: HeldLease
) -> None:
    store.broken = "no route"
    clock.sleep(20)
    place.renew()
    place.require()  # the lease is still good
    clock.at(60, lambda: setattr(store, "broken", ""))
    clock.at(60, place.renew)
    clock.sleep(10)
    place.require()
    assert 60 <= clock.passed < 61


def test_a_store_that_stays_away_is_an_error_that_says_why(store: MemoryStore, clock: Clock, place: HeldLease) -> None:
    store.broken = "no route"
    place.renew()
    clock.sleep(26)
    with pytest.raises(StoreError, match="no route"):
        place.require()
    assert 150 <= clock.passed < 152


def test_a_machine_that_slept_has_lost_its_lease(store: MemoryStore, clock: Clock, place: HeldLease) -> None:
    clock.longest = 7200
    clock.now += 3600
    clock.at(3601, place.renew)
    clock.sleep(0)
    put(store)  # somebody took over meanwhile
    place.renew()
    with pytest.raises(StoreError, match="another upload took over"):
        place.require()


@pytest.mark.parametrize("theirs", [b"", MANIFEST, b"anything"])
def test_who_was_overtaken_replaces_nothing(theirs: bytes, store: MemoryStore, place: HeldLease) -> None:
    store.objects[KEY] = theirs
    with pytest.raises(StoreError, match="another upload took over"):
        place.end_with(MANIFEST + b" ")
    assert store.objects[KEY] == theirs


# ── after an upload ─────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_failure_keeps_nobody_waiting(store: MemoryStore, clock: Clock) -> None:
    with pytest.raises(KeyboardInterrupt), taken(store):
        raise KeyboardInterrupt
    claim = read_lease(store.objects[KEY])
    assert claim is not None and claim.is_over
    wait(store, owner="another")
    assert clock.passed == 0


def test_a_failure_after_being_overtaken_changes_nothing(store: MemoryStore, clock: Clock) -> None:
    place = taken(store)
    theirs = put(store)
    place.renew()
    with pytest.raises(StoreError), place:
        place.require()
    assert read_lease(store.objects[KEY]) == theirs


# ── what lies there ─────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"[]",
        b'{"claim": []}',
        b'{"claim": {"owner": "x"}}',
        b'{"claim": {"owner": "x", "host": "y", "pid": "7"}}',
        b'{"claim": {"owner": "x", "host": "y", "pid": 7, "beat": 1, "is_over": 0}}',
        b'{"claim": {"owner": "x", "host": "y", "pid": 7, "more": 1}}',
        b'{"claim": {"owner": "x", "host": "y", "pid": 7}}' + b" " * 4096,
    ],
)
def test_what_is_no_claim(data: bytes) -> None:
    assert read_lease(data) is None


@pytest.mark.parametrize("data", [b"", b"<html>", b"[]", b'{"files": []}', b"1"])
def test_what_is_not_ours_is_left_alone(data: bytes) -> None:
    with pytest.raises(StoreError, match="is not a manifest of jobsubmit"):
        require_ours(CODE, Stored(data, "tag"))


@pytest.mark.parametrize("data", [MANIFEST, b'{"format": 1, "files": [], "claim": {}}'])
def test_what_is_ours_may_be_replaced(data: bytes) -> None:
    require_ours(CODE, Stored(data, "tag"))
    require_ours(CODE, None)
