"""Reading a request ends in bounded time: if the blob store is slow, as an outage, otherwise as a failed attempt."""

import threading
from types import SimpleNamespace
from typing import Any, cast

import anyio
import pytest

from rebaser.change_set.readers import request_reader
from rebaser.change_set.readers.request_reader import HeldRequest, RequestReader
from rebaser.settings import Settings
from rebaser_client.jetstream import Message
from rebaser_core import thresholds
from rebaser_core.commit import BlobRef
from rebaser_core.errors import TransientError, UnprocessableError
from rebaser_core.ids import ChangeSetKey, RequestId
from rebaser_core.messages import EnqueueUpdatesRequest, encode, encode_updates_blob
from rebaser_core.updates import Derive, Recompute, Set, Update

pytestmark = pytest.mark.anyio

KEY = ChangeSetKey("ws", "cs")
ADDRESS = "sha256:" + "0" * 64


class Store:
    """A blob store that answers with `data`, or never."""

    def __init__(self, data: bytes | None) -> None:
        self.data = data

    async def get(self, address: str, *, max_bytes: int) -> bytes:
        if self.data is None:
            await anyio.sleep_forever()
        assert self.data is not None
        return self.data


def reader(data: bytes | None, apply_timeout: float = 60.0) -> RequestReader:
    settings = Settings(apply_timeout=apply_timeout)
    return RequestReader(cast("Any", SimpleNamespace(settings=settings, blobs=Store(data))), KEY)


def message() -> Message:
    headers, payload = encode(EnqueueUpdatesRequest(RequestId("r"), "ws", "cs", None, ADDRESS))
    return Message("s", "$JS.ACK.S.C.1.7.7.1.0", payload, headers | {"X-Redrive": "2"})


async def test_a_blob_store_that_does_not_answer_is_an_outage() -> None:
    with anyio.fail_after(60), pytest.raises(TransientError, match=r"longer than 0\.05 s"):
        await reader(None, 0.05).read(message())


async def test_all_that_a_request_says_is_read() -> None:
    """The digest covers everything, so that another request under the same id is distinguished from a copy."""

    def sent(updates: tuple[Update, ...] | None, from_: str | None, recompute: Recompute | None) -> Message:
        address = None if updates else ADDRESS
        headers, payload = encode(
            EnqueueUpdatesRequest(RequestId("r"), "ws", "cs", updates, address, from_, recompute=recompute)
        )
        return Message("s", "$JS.ACK.S.C.1.7.7.1.0", payload, headers | {"X-Redrive": "2"})

    edits, digests = (Set("a", 1),), set[bytes]()
    for recompute in (None, Recompute("sum")):
        for from_ in (None, "here", "there"):
            inline = await reader(None).read(sent(edits, from_, recompute))
            stored = await reader(encode_updates_blob(edits)).read(sent(None, from_, recompute))
            for read in (inline, stored):
                assert (read.sequence, read.request_id, read.updates) == (7, "r", edits)
                assert (read.from_change_set, read.recompute, read.redrive) == (from_, recompute, 2)
                digests.add(read.digest)
            assert (inline.blob, inline.digest) == (None, stored.digest)
            assert stored.blob == BlobRef(ADDRESS, len(encode_updates_blob(edits)))
    assert len(digests) == 6


@pytest.mark.parametrize("version", ["2", "99"])
async def test_a_request_that_cannot_be_read_still_says_how_often_it_was_redriven(version: str) -> None:
    """Otherwise, its answer would be taken for the answer to an earlier attempt."""
    broken = message()
    broken = Message(
        broken.subject, broken.reply, b"no request", {**(broken.headers or {}), "X-MESSAGE-VERSION": version}
    )
    try:
        found = await reader(None).read(broken)
    except HeldRequest as held:
        found = held.request
    assert found.error is not None
    assert (found.sequence, found.redrive) == (7, 2)


async def test_a_payload_that_takes_too_long_to_read_is_a_failed_try(monkeypatch: pytest.MonkeyPatch) -> None:
    over = threading.Event()
    monkeypatch.setattr(request_reader, "decode_updates_blob", lambda *_: over.wait(300))
    try:
        with anyio.fail_after(60), pytest.raises(HeldRequest) as held:
            await reader(bytes(thresholds.now.updates_on_loop_max_bytes), 0.05).read(message())
    finally:
        over.set()
    assert held.value.error.code in request_reader.INTERNAL_CODES
    request = held.value.request
    assert (request.sequence, request.request_id, request.redrive) == (7, "r", 2)


@pytest.mark.parametrize(("workspace", "change_set"), [("ws", "other"), ("other", "cs")])
async def test_a_request_that_names_another_change_set_is_dead(workspace: str, change_set: str) -> None:
    headers, payload = encode(EnqueueUpdatesRequest(RequestId("r"), workspace, change_set, (Set("a", 1),)))
    read = await reader(None).read(Message("s", "$JS.ACK.S.C.1.7.7.1.0", payload, headers))
    assert isinstance(read.error, UnprocessableError)
    assert (read.error.code, read.updates, read.request_id) == ("wrong_change_set", (), "@7")


@pytest.mark.parametrize("here", [True, False])
@pytest.mark.parametrize("inline", [True, False])
async def test_large_values_are_looked_at_beside_the_event_loop_however_few_they_are(
    monkeypatch: pytest.MonkeyPatch, here: bool, inline: bool
) -> None:
    lookers = set[threading.Thread]()
    monkeypatch.setattr(request_reader, "digest_of", lambda *_: lookers.add(threading.current_thread()))
    updates = [Set(f"v{at}", "x" * (1000 if here else 200_000)) for at in range(2)]
    given = None if inline else encode_updates_blob(updates)
    headers, payload = encode(EnqueueUpdatesRequest(RequestId("r"), "ws", "cs", tuple(updates)))
    read = await reader(given, 60).read(
        Message("s", "$JS.ACK.S.C.1.7.7.1.0", payload, headers) if inline else message()
    )
    assert read.updates == tuple(updates)
    assert len(lookers) == 1
    assert (lookers == {threading.current_thread()}) == here


@pytest.mark.parametrize("count", [1, 2 * request_reader.CHECKED_HERE])
async def test_a_request_with_a_definition_that_gives_what_its_function_does_not_take_is_dead(count: int) -> None:
    updates: list[Update] = [Set(f"v{at}", at) for at in range(count)]
    request = EnqueueUpdatesRequest(
        RequestId("r"), "ws", "cs", (*updates, Derive("t", "round", {"v": "v0"}, {"digit": 1}))
    )
    headers, payload = encode(request)
    read = await reader(None).read(Message("s", "$JS.ACK.S.C.1.7.7.1.0", payload, headers))
    assert read.error is not None
    assert read.error.message == f"update {count} of 't': round has no parameter 'digit'; did you mean digits?"
    assert (read.error.code, read.updates, read.request_id) == ("invalid_definition", (), "r")
    assert read.digest  # so that the repaired request under the same id gets the error that it needs another id
