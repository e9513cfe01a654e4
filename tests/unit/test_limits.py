"""Each limit of the settings holds for inline requests and for blobs, and error messages name it."""

from collections.abc import Callable
from dataclasses import fields
from types import SimpleNamespace
from typing import Any, cast

import pytest

from rebaser.change_set.readers.request_reader import RequestReader
from rebaser.settings import load_settings
from rebaser_client.jetstream import Message
from rebaser_core.ids import ChangeSetKey, RequestId
from rebaser_core.limits import Limits
from rebaser_core.messages import EnqueueUpdatesRequest, encode, encode_updates_blob
from rebaser_core.updates import Derive, Match, Set, Unset, Update

pytestmark = pytest.mark.anyio

ADDRESS = "sha256:" + "0" * 64
LIMIT = 40


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


# By limit: a function that makes updates of exactly the given size, and the code with which larger ones are refused.
REACH: dict[str, tuple[Callable[[int], tuple[Update, ...]], str]] = {
    "max_id_length": (lambda count: (Unset("x" * count),), "invalid_update"),
    "max_depth": (lambda count: (Set("a", nested(count)),), "too_deep"),
    "max_value_bytes": (lambda count: (Set("a", "x" * (count - 2)),), "too_large"),  # CBOR writes the length first
    "max_updates": (lambda count: (Unset("a"),) * count, "too_large"),
    "max_matches": (
        lambda count: (Derive("a", "sum", {"of": ("b", *(Match("*"),) * (count - 1)), "and": Match("c/*")}),),
        "too_large",
    ),
    "max_inputs": (lambda count: (Derive("a", "sum", {"of": ("b",) * (count - 1), "and": "c"}),), "too_large"),
}


class Blobs:
    """Holds one blob, and limits the bytes that it returns as a store does."""

    def __init__(self, data: bytes) -> None:
        self.data = data

    async def get(self, address: str, *, max_bytes: int) -> bytes:
        return self.data


async def refusal(name: str, limit: int, updates: tuple[Update, ...], *, in_blob: bool) -> str | None:
    """Return the code with which the server refuses a request with `updates`; None if it is accepted."""
    settings = load_settings(limits={name: str(limit)})
    blobs = Blobs(encode_updates_blob(updates))
    reader = RequestReader(cast("Any", SimpleNamespace(settings=settings, blobs=blobs)), ChangeSetKey("ws", "cs"))
    content = (None, ADDRESS) if in_blob else (updates, None)
    headers, payload = encode(EnqueueUpdatesRequest(RequestId("r"), "ws", "cs", *content))
    incoming = await reader.read(Message("s", "$JS.ACK.S.C.1.7.7.1.0", payload, headers))
    assert (incoming.error is None) == (incoming.updates == updates)
    return None if incoming.error is None else incoming.error.code


@pytest.mark.parametrize("in_blob", [False, True])
@pytest.mark.parametrize("name", REACH)
async def test_a_limit_is_what_a_request_may_reach(name: str, in_blob: bool) -> None:
    updates, code = REACH[name]
    assert await refusal(name, LIMIT, updates(LIMIT), in_blob=in_blob) is None
    assert await refusal(name, LIMIT, updates(LIMIT + 1), in_blob=in_blob) == code


@pytest.mark.parametrize("in_blob", [False, True])
async def test_a_request_has_no_more_bytes_than_it_may(in_blob: bool) -> None:
    updates = (Set("a", "x" * 1000),)
    size = len(
        encode_updates_blob(updates)
        if in_blob
        else encode(EnqueueUpdatesRequest(RequestId("r"), "ws", "cs", updates))[1]
    )
    assert await refusal("max_request_bytes", size, updates, in_blob=in_blob) is None
    assert await refusal("max_request_bytes", size - 1, updates, in_blob=in_blob) == "too_large"


def test_no_limit_is_left_out() -> None:
    assert {field.name for field in fields(Limits)} == {*REACH, "max_request_bytes"}
