"""ULIDs, and the tokens that are allowed in a subject."""

import pickle
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rebaser_core.errors import UnprocessableError
from rebaser_core.ids import ChangeSetKey, check_token, numbered_ulid, random_ulid, ulid, ulid_time_ms

# The example of the specification (github.com/ulid/spec): its 48 bits of time and 80 random bits.
KNOWN = "01ARZ3NDEKTSV4RRFFQ69G5FAV"
KNOWN_MS, KNOWN_RANDOM = 1_469_922_850_259, bytes.fromhex("d6764c61efb99302bd5b")

times = st.integers(0, 2**48 - 1)
randomness = st.binary(min_size=10, max_size=10)


def test_a_ulid_is_that_of_the_specification() -> None:
    assert ulid(KNOWN_MS, KNOWN_RANDOM) == KNOWN
    assert ulid_time_ms(KNOWN) == KNOWN_MS


def test_the_smallest_and_the_largest_ulid() -> None:
    assert ulid(0, bytes(10)) == "0" * 26
    assert ulid(2**48 - 1, b"\xff" * 10) == "7" + "Z" * 25


@settings(deadline=None)
@given(times, st.binary(min_size=16, max_size=16))
def test_a_ulid_of_random_bytes_has_five_bits_of_each(time: int, random: bytes) -> None:
    text = random_ulid(time, random)
    assert ulid_time_ms(text) == time
    assert text[10:] == "".join("0123456789ABCDEFGHJKMNPQRSTVWXYZ"[byte & 31] for byte in random)


@given(times, randomness, times, randomness)
def test_ulids_sort_by_time_then_randomness(first: int, low: bytes, second: int, high: bytes) -> None:
    assert (ulid(first, low) < ulid(second, high)) == ((first, low) < (second, high))


@given(times, randomness)
def test_a_numbered_ulid_is_the_one_that_ends_with_the_number(time: int, random: bytes) -> None:
    whole = ulid(time, random)
    assert numbered_ulid(whole[:18], int.from_bytes(random[5:], "big")) == whole


@settings(deadline=None)
@given(times, randomness)
def test_a_ulid_gives_its_time_back_and_is_a_subject_token(time: int, random: bytes) -> None:
    text = ulid(time, random)
    assert ulid_time_ms(text) == time
    assert check_token(text, "id") == text


@pytest.mark.parametrize("text", ["", KNOWN[:-1], KNOWN + "0", "8" + KNOWN[1:], KNOWN[:-1] + "U", KNOWN.lower()])
def test_what_is_no_ulid_is_refused(text: str) -> None:
    with pytest.raises(UnprocessableError):
        ulid_time_ms(text)


@pytest.mark.parametrize("token", ["a", "A-Z_0-9", "x" * 64, KNOWN])
def test_a_subject_token_passes_unchanged(token: str) -> None:
    assert check_token(token, "workspace") == token


@pytest.mark.parametrize(
    "token", [None, 7, b"a", "", "x" * 65, "a.b", "*", ">", "a b", "a\n", "\n", "ä", "٣", "a/b", "$JS"], ids=repr
)
def test_what_is_no_subject_token_is_refused_by_name(token: Any) -> None:
    with pytest.raises(UnprocessableError, match="workspace") as caught:
        check_token(token, "workspace")
    assert caught.value.code == "invalid_id"


def test_a_key_checks_both_of_its_names() -> None:
    assert str(ChangeSetKey.of("w", "c")) == "w.c"
    for names in (("w.", "c"), ("w", "*"), ("", "c")):
        with pytest.raises(UnprocessableError):
            ChangeSetKey.of(*names)


def test_a_key_in_another_process_has_the_hash_of_that_process() -> None:
    key = ChangeSetKey("demo", "a")
    object.__setattr__(key, "_hash", 7)  # as if this process hashed texts differently
    copied = pickle.loads(pickle.dumps(key))
    assert copied == key
    assert {copied: 1}[ChangeSetKey("demo", "a")] == 1
