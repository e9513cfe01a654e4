"""The JetStream context (ADR-37): publishes with their acks, streams and consumers as objects.

Invariant: publishes are no API calls and are not held up by them.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Iterable, Mapping
from itertools import pairwise
from typing import Any

import anyio

from rebaser_client.jetstream.api import JetStreamApi
from rebaser_client.jetstream.api_calls import parse_answer
from rebaser_client.jetstream.ensure import ensure_consumer, ensure_stream
from rebaser_client.jetstream.infos import AccountInfo, PubAck, StreamInfo
from rebaser_client.jetstream.messages import Message
from rebaser_client.jetstream.names import subject_tokens
from rebaser_client.jetstream.priority_groups import PriorityGroup
from rebaser_client.jetstream.pull.batches import AckNextBatch, MessageBatch
from rebaser_client.jetstream.pull.consumer import Consumer
from rebaser_client.jetstream.pull.options import DEFAULT_EXPIRES, PullLimits
from rebaser_client.jetstream.stream import Stream
from rebaser_client.nats.errors import NoRespondersError, RequestTimeoutError
from rebaser_client.nats.messages import STATUS, Msg
from rebaser_core.errors import TransientError

NOBODY_TRIES, NOBODY_PAUSE = 3, 0.25  # of a publish: a node of a cluster learns a moment later who stores a subject
EXPECTED_LAST = "Nats-Expected-Last-Subject-Sequence"


class JetStream(JetStreamApi):
    """JetStream over `connection`. `timeout` (seconds) bounds every call that names no other.

    All methods raise `ApiError` for a refusal, `RequestTimeoutError`, `NoRespondersError` or `NotConnectedError`, and
    `ConfigError` for names that no server takes.
    """

    # -- messages --------------------------------------------------------------------------------------------------

    async def publish(
        self,
        subject: str,
        payload: bytes,
        headers: dict[str, str] | None = None,
        *,
        expected_last_subject_sequence: int | None = None,
        timeout: float | None = None,  # noqa: ASYNC109 - see Connection.request
    ) -> PubAck:
        """Store a message, confirmed. After a timeout it may be stored, after an `ApiError` it is not."""
        if expected_last_subject_sequence is not None:
            headers = {**(headers or {}), EXPECTED_LAST: str(expected_last_subject_sequence)}
        tries = 0
        while True:
            try:
                return _pub_ack(
                    await self.connection.request(subject, payload, headers, timeout=timeout or self._timeout)
                )
            except NoRespondersError:
                tries += 1
                if tries == NOBODY_TRIES:
                    raise
            await anyio.sleep(NOBODY_PAUSE)

    async def publish_unconfirmed(self, subject: str, payload: bytes, headers: dict[str, str] | None = None) -> None:
        """Send a message to a stream with `no_ack`, which confirms none. Nobody tells whether it was stored."""
        await self.connection.publish(subject, payload, headers)

    def ack_next(
        self,
        message: Message,
        max_messages: int = 1,
        *,
        expires: float = DEFAULT_EXPIRES,
        no_wait: bool = False,
        group: str | None = None,
    ) -> MessageBatch:
        """`message` is done, and here is room for `max_messages` more: one message to the server instead of two.

        It goes out when the batch is opened or first read from. `no_wait`: what is there now, and no more. Only the
        acknowledgement of this message cannot be confirmed; that others come shows that it arrived.
        """
        limits = PullLimits.of_fetch(max_messages, None, expires, None)
        return AckNextBatch(self, message, limits, PriorityGroup.of(group, None, None, None), no_wait=no_wait)

    async def publish_all(self, subject: str, payloads: Iterable[bytes], *, window: int = 16) -> list[PubAck]:
        """Store messages in order, `window` of them unconfirmed at most. After a failure some are stored."""
        connection = self.connection
        acks: list[PubAck] = []
        waiting: deque[tuple[str, asyncio.Future[Msg]]] = deque()

        async def settle(room: int) -> None:
            while len(waiting) > room:
                acks.append(_pub_ack(await waiting[0][1]))
                connection.close_reply(waiting.popleft()[0])

        try:
            for payload in payloads:
                with anyio.fail_after(self._timeout):
                    await settle(window - 1)
                waiting.append(connection.open_reply(subject))
                await connection.publish(subject, payload, reply=waiting[-1][0])
            with anyio.fail_after(self._timeout):
                await settle(0)
        except TimeoutError:
            raise RequestTimeoutError(f"no answer on {subject} within {self._timeout:g} s") from None
        finally:
            for inbox, _ in waiting:
                connection.close_reply(inbox)
        if any(one.sequence >= two.sequence for one, two in pairwise(acks)):
            raise TransientError(f"messages on {subject} were not stored in order", code="jetstream")
        return acks

    # -- streams ---------------------------------------------------------------------------------------------------

    async def add_stream(self, config: Mapping[str, Any]) -> Stream:
        """Create a stream. `config` is JetStream's `StreamConfig` (JSON API, docs.nats.io), here and below.

        One that is there with the same configuration is returned, with another it is an error (10058).
        """
        return Stream(
            self, StreamInfo.of(await self.call(f"STREAM.CREATE.{subject_tokens(config.get('name', ''))}", config))
        )

    async def update_stream(self, config: Mapping[str, Any]) -> Stream:
        """Replace the configuration of a stream: what `config` does not name gets the server's default."""
        return Stream(
            self, StreamInfo.of(await self.call(f"STREAM.UPDATE.{subject_tokens(config.get('name', ''))}", config))
        )

    async def get_stream(self, name: str) -> Stream:
        return Stream(self, await self.stream_info(name))

    async def list_streams(self, subject: str | None = None) -> AsyncIterator[StreamInfo]:
        """All streams, or those that take messages of `subject` (a pattern). One call for each page of them."""
        async for info in self.pages("STREAM.LIST", "streams", {"subject": subject} if subject else None):
            yield StreamInfo.of(info)

    async def ensure_stream(self, config: Mapping[str, Any], beginning: Mapping[str, Any] | None = None) -> None:
        """Create the stream, or update what may be; raises `ConfigError` where it cannot be made as wanted.

        What `config` does not name is left as it is; `beginning`: further fields of one that is created.
        """
        await ensure_stream(self.call, config, beginning or {})

    # -- consumers -------------------------------------------------------------------------------------------------

    async def create_consumer(
        self,
        stream: str,
        config: Mapping[str, Any],
        *,
        pedantic: bool = False,
        timeout: float | None = None,  # noqa: ASYNC109 - see Connection.request
    ) -> Consumer:
        """Create a consumer; without a name in `config` (`ConsumerConfig`, docs.nats.io) it gets one.

        One that is there with the same configuration is returned, with another it is an error (10148). `pedantic`: the
        server refuses what it would put right silently. Priority groups that ADR-42 forbids are a `ConfigError`.
        """
        return Consumer(self, await self.put_consumer(stream, config, "create", pedantic=pedantic, timeout=timeout))

    async def update_consumer(self, stream: str, config: Mapping[str, Any], *, pedantic: bool = False) -> Consumer:
        """Replace the configuration of a consumer; one that is not there is an error (10149)."""
        return Consumer(self, await self.put_consumer(stream, config, "update", pedantic=pedantic))

    async def create_or_update_consumer(
        self, stream: str, config: Mapping[str, Any], *, pedantic: bool = False
    ) -> Consumer:
        """Have a consumer with just this configuration."""
        return Consumer(self, await self.put_consumer(stream, config, "", pedantic=pedantic))

    async def get_consumer(self, stream: str, name: str) -> Consumer:
        return Consumer(self, await self.consumer_info(stream, name))

    async def ensure_consumer(self, stream: str, config: Mapping[str, Any]) -> None:
        """Create the consumer, or update what may be; raises `ConfigError` where it cannot be made as wanted."""
        await ensure_consumer(self.call, stream, config)

    async def account_info(self) -> AccountInfo:
        return AccountInfo.of(await self.call("INFO"))


def _pub_ack(message: Msg) -> PubAck:
    if message.headers.get(STATUS) == "503":
        raise NoRespondersError("no stream stores messages of this subject")
    stored = parse_answer(message)
    sequence = stored.get("seq")
    if type(sequence) is not int:
        raise TransientError("what answered a publish is no stream", code="jetstream")
    return PubAck(sequence, "duplicate" in stored)
