"""The digest of the content of a request."""

from itertools import combinations

import pytest

from rebaser_core.encoding.envelope import ContentType
from rebaser_core.ids import RequestId
from rebaser_core.messages import EnqueueUpdatesRequest, decode, decode_updates_blob, encode, encode_updates_blob
from rebaser_core.messages.content_digest import digest_of
from rebaser_core.updates import Derive, Match, Recompute, Remove, Set, Unset, Update

UPDATES: tuple[Update, ...] = (
    Set("a", 1.0),
    Set("b", {"x": [1, -0.0, None, "ü"], "y": True}),
    Derive("c", "sum", {"values": ("a", Match("b*")), "of": "a"}, {"p": {"q": 2**53 + 1}}),
    Unset("d"),
    Remove("e"),
)


@pytest.mark.parametrize("count", [1, 1000])
def test_it_is_the_same_however_the_updates_travel(count: int) -> None:
    updates = UPDATES * count
    digest = digest_of(updates, None, None)
    for content_type in ContentType:
        request = decode(*encode(EnqueueUpdatesRequest(RequestId("r"), "w", "c", updates), content_type))
        assert isinstance(request, EnqueueUpdatesRequest)
        assert digest_of(request.updates or (), None, None) == digest
    assert digest_of(decode_updates_blob(encode_updates_blob(updates)), None, None) == digest


def test_it_stays_what_it_was_when_a_log_was_written() -> None:
    """With another digest, repeated requests would be refused after an upgrade."""
    assert digest_of(UPDATES, None, None).hex() == "98659c3835b9639f"
    assert digest_of((), "branch", Recompute("sum")).hex() == "55591eb7111c54db"


def test_the_order_of_a_map_says_nothing() -> None:
    turned = (Set("b", {"y": 1, "x": 2}), Derive("c", "f", {}, {"y": 1, "x": 2}))
    assert digest_of(turned, None, None) == digest_of(
        (Set("b", {"x": 2, "y": 1}), Derive("c", "f", {}, {"x": 2, "y": 1})), None, None
    )


def test_other_content_has_another() -> None:
    many = (Set("a", 0),) * 2000
    asked: list[tuple[tuple[Update, ...], str | None, Recompute | None]] = [
        ((), None, None),
        ((), "a", None),
        ((), None, Recompute()),
        ((), None, Recompute("a")),
        ((Set("a", 1),), None, None),
        ((Set("a", 1.0),), None, None),
        ((Set("a", "1"),), None, None),
        ((Set("a", True),), None, None),
        ((Set("a", [[], 1]),), None, None),
        ((Set("a", [[1]]),), None, None),
        ((Set("a", 1), Set("b", 1)), None, None),
        ((Set("b", 1), Set("a", 1)), None, None),
        ((Unset("a"),), None, None),
        ((Remove("a"),), None, None),
        ((Derive("a", "f", {"x": "b", "y": "c"}),), None, None),
        ((Derive("a", "f", {"y": "c", "x": "b"}),), None, None),
        ((Derive("a", "f", {"x": ("b",), "y": "c"}),), None, None),
        (many, None, None),
        ((*many[1:], Set("a", 1)), None, None),
        (many[1:], None, None),
    ]
    digests = [digest_of(*one) for one in asked]
    assert all(one != other for one, other in combinations(digests, 2))
