"""Tests what a run of garbage collection deletes."""

from hashlib import sha256

import pytest

from rebaser_core.blobs.address import address_of, find_addresses
from rebaser_core.blobs.garbage import FRESH_FOR, StoredBlob, decode_candidates, encode_candidates, plan
from rebaser_core.errors import UnprocessableError

GRACE = 86_400_000
NOW = 10 * GRACE
FRESH = int(FRESH_FOR * 1000)


def blob(name: str = "a", stored: int = 0, *, trashed: bool = False) -> StoredBlob:
    return StoredBlob(address_of(name.encode()), 1, stored, "1", trashed)


def test_what_is_garbage_for_the_first_time_is_a_candidate_and_stays() -> None:
    done = plan([blob()], [], {}, NOW, GRACE)
    assert done.candidates == {blob().address: NOW}
    assert done.trash == done.erase == done.restore == ()


@pytest.mark.parametrize(
    ("since", "stored", "goes"),
    [
        (NOW - GRACE, NOW - GRACE - FRESH, True),
        (NOW - GRACE + 1, 0, False),
        (0, 0, True),
    ],
)
def test_a_candidate_goes_when_it_was_one_and_is_stored_for_a_grace(since: int, stored: int, goes: bool) -> None:
    one = blob(stored=stored - FRESH)
    done = plan([one], [], {one.address: since}, NOW, GRACE)
    assert (done.trash, done.erase) == ((one,) if goes else (), ())
    assert done.candidates == {one.address: since}


@pytest.mark.parametrize("stored", [NOW - GRACE - FRESH + 1, NOW - GRACE, NOW - 1])
def test_what_was_stored_again_begins_anew(stored: int) -> None:
    """The blob may have been needed again between two runs."""
    one = blob(stored=stored)
    done = plan([one], [], {one.address: NOW - GRACE}, NOW, GRACE)
    assert done.trash == ()
    assert done.candidates == {one.address: NOW}


def test_the_trash_is_erased_a_grace_later() -> None:
    young, old = blob("young", NOW - 1, trashed=True), blob("old", trashed=True)
    done = plan([young, old], [], {young.address: 0, old.address: 0}, NOW, GRACE)
    assert (done.trash, done.erase) == ((), (old,))
    assert set(done.candidates) == {young.address, old.address}


def test_what_is_needed_again_comes_back_and_begins_anew() -> None:
    one = blob(trashed=True)
    done = plan([], [one], {one.address: 0}, NOW, GRACE)
    assert done.restore == (one,)
    assert done.candidates == {}


def test_a_clock_that_went_back_deletes_nothing() -> None:
    one = blob()
    done = plan([one], [], {one.address: NOW + 10 * GRACE}, NOW, GRACE)
    assert done.trash == ()
    assert done.candidates == {one.address: NOW}


def test_candidates_are_read_as_they_were_written() -> None:
    candidates = {address_of(b"%d" % number): number % 3 for number in range(10)}
    data = encode_candidates(candidates, "run")
    assert decode_candidates(data) == candidates
    assert decode_candidates(encode_candidates({}, "run")) == {}
    assert encode_candidates({}, "run") != encode_candidates({}, "other run")
    assert not find_addresses(data), "a list of garbage names none of it, or nothing would ever be garbage"


@pytest.mark.parametrize(
    "data", [b"", b"\xa0", encode_candidates({address_of(b""): 1}, "run")[:-1], sha256(b"").digest()]
)
def test_what_is_no_list_of_candidates_is_refused(data: bytes) -> None:
    with pytest.raises(UnprocessableError):
        decode_candidates(data)


def test_addresses_are_found_wherever_they_stand() -> None:
    one, other = address_of(b"1"), address_of(b"2")
    assert find_addresses(f'{{"a": "{one}"}} sha256:12 {other}{one}'.encode()) == {one, other}
