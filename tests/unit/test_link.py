"""Tests the subscriptions of a link to NATS, without a server."""

from types import SimpleNamespace
from typing import Any

import anyio
import nats.errors
import pytest

from rebaser_client.nats.header_lines import encode_headers
from rebaser_client.nats.link import Link
from rebaser_core.errors import UnprocessableError

pytestmark = pytest.mark.anyio


def ignore(*_: object) -> None: ...


@pytest.fixture
def link() -> Link:
    link = Link(ignore, secure=False)
    fake: Any = SimpleNamespace(is_connected=True, subscribe_soon=lambda _: (7, False), ended=[])
    fake.unsubscribe_soon = fake.ended.append
    fake.flushed = anyio.sleep_forever
    link.client = fake
    return link


async def test_a_subscription_that_is_cancelled_leaves_nothing(link: Link) -> None:
    async with anyio.create_task_group() as group:
        group.start_soon(link.subscribe, "a.b", ignore)
        await anyio.wait_all_tasks_blocked()
        assert list(link._parser.handlers) == [b"7"]
        group.cancel_scope.cancel()
    assert list(link._parser.handlers) == []
    client: Any = link.client
    assert client.ended == [7]


@pytest.mark.parametrize("subject", ["", "a b", "a..b", "a.", ">.a"])
async def test_a_subject_that_nats_refuses_is_refused_here(link: Link, subject: str) -> None:
    with pytest.raises(UnprocessableError, match=r"an empty token \(`a\.\.b`\), or a `>` before its end"):
        await link.subscribe(subject, ignore)


async def test_messages_that_are_sent_together_take_one_write(link: Link) -> None:
    written: list[bytes] = []
    client: Any = link.client

    def write_soon(command: bytes) -> bool:
        written.append(command)
        return True

    client.write_soon = write_soon
    assert link.publish_all([("a.b", b"one"), ("a", b"")])
    assert written == [b"PUB a.b  3\r\none\r\nPUB a  0\r\n\r\n"]
    client.is_connected = False
    with pytest.raises(nats.errors.ConnectionClosedError):
        link.publish_all([("a", b"")])
    assert len(written) == 1


async def test_headers_that_are_encoded_already_are_written_as_they_are(link: Link) -> None:
    written: list[tuple[bytes, int]] = []
    client: Any = link.client
    client.publish_soon = lambda *sent: written.append(sent)
    block = encode_headers({"X-A": "b"})
    link.publish("a.b", b"one", "inbox", block)
    link.publish("a.b", b"one", "inbox", {"X-A": "b"})
    assert written == [(b"HPUB a.b inbox 20 23\r\nNATS/1.0\r\nX-A: b\r\n\r\none\r\n", 23)] * 2
