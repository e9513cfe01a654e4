"""The JetStream context (ADR-37): publishes messages, and makes the API calls that return `Stream` and `Consumer`.

Invariant: publishing a message is not an API call, and never waits for API calls.
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
from rebaser_client.nats.errors import NoAnswerError, NoRespondersError
from rebaser_client.nats.header_lines import Headers, with_number
from rebaser_client.nats.messages import STATUS, Msg
from rebaser_core.errors import TransientError

# A node of a cluster may learn later than other nodes which stream stores a subject, so a publish without a responder
# is retried after a pause. The pause has no jitter, because the retries of different clients need not be spread out.
NO_RESPONDERS_TRIES, NO_RESPONDERS_PAUSE = 3, 0.25
EXPECTED_LAST = "Nats-Expected-Last-Subject-Sequence"


class JetStream(JetStreamApi):
    """The JetStream API over `connection`. `timeout` (seconds) applies to every call without a timeout of its own.

    All methods raise `ApiError` if the server refuses a call, `NoAnswerError`, `NoRespondersError` or
    `NotConnectedError` if there is no answer, and `ConfigError` for names that no server accepts.
    """

    # -- messages --------------------------------------------------------------------------------------------------

    async def publish(
        self,
        subject: str,
        payload: bytes,
        headers: Headers | None = None,
        *,
        expected_last_subject_sequence: int | None = None,
        timeout: float | None = None,  # noqa: ASYNC109 - see Connection.request
    ) -> PubAck:
        """Store a message and return its ack.

        After `NoAnswerError`, the message may have been stored. After `ApiError`, it was not stored.
        """
        if expected_last_subject_sequence is not None:
            headers = with_number(headers, EXPECTED_LAST, expected_last_subject_sequence)
        request, timeout = self.connection.request, timeout or self._timeout
        tries = 0
        while True:
            try:
                return pub_ack(await request(subject, payload, headers, timeout=timeout))
            except NoRespondersError:
                tries += 1
                if tries == NO_RESPONDERS_TRIES:
                    raise
            await anyio.sleep(NO_RESPONDERS_PAUSE)

    async def publish_unconfirmed(self, subject: str, payload: bytes, headers: dict[str, str] | None = None) -> None:
        """Send a message to a stream whose configuration has `no_ack`, which means that the stream sends no
        confirmation.

        The caller cannot know whether the message was stored.
        """
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
        """Acknowledge `message` and pull `max_messages` more, with one message to the server instead of two.

        The message to the server is sent when the batch is opened or first read from. If `no_wait` is true, the batch
        contains only the messages that are available at that moment. The acknowledgement cannot be confirmed, but the
        arrival of the next messages shows that the server has received it.
        """
        limits = PullLimits.of_fetch(max_messages, None, expires, None)
        return AckNextBatch(self, message, limits, PriorityGroup.of(group, None, None, None), no_wait=no_wait)

    async def publish_all(self, subject: str, payloads: Iterable[bytes], *, window: int = 16) -> list[PubAck]:
        """Store messages in order, and return their acks. At most `window` messages are unconfirmed at a time.

        After an error, some of the messages may be stored.
        """
        connection = self.connection
        acks: list[PubAck] = []
        waiting: deque[tuple[str, asyncio.Future[Msg]]] = deque()

        async def settle(max_waiting: int) -> None:
            while len(waiting) > max_waiting:
                acks.append(pub_ack(await waiting[0][1]))
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
            raise NoAnswerError(f"no answer on {subject} within {self._timeout:g} s") from None
        finally:
            for inbox, _ in waiting:
                connection.close_reply(inbox)
        if any(ack.sequence >= following.sequence for ack, following in pairwise(acks)):
            raise TransientError(f"messages on {subject} were not stored in order", code="jetstream")
        return acks

    # -- streams ---------------------------------------------------------------------------------------------------

    async def add_stream(self, config: Mapping[str, Any]) -> Stream:
        """Create a stream. Here and in the methods below, `config` is a `StreamConfig` of the JSON API (docs.nats.io).

        If the stream exists with the same configuration, it is returned. If it exists with another configuration, this
        method raises `ApiError` (error 10058).
        """
        return Stream(
            self, StreamInfo.of(await self.call(f"STREAM.CREATE.{subject_tokens(config.get('name', ''))}", config))
        )

    async def update_stream(self, config: Mapping[str, Any]) -> Stream:
        """Replace the configuration of a stream. Fields that `config` does not contain get the server's default."""
        return Stream(
            self, StreamInfo.of(await self.call(f"STREAM.UPDATE.{subject_tokens(config.get('name', ''))}", config))
        )

    async def get_stream(self, name: str) -> Stream:
        return Stream(self, await self.stream_info(name))

    async def list_streams(self, subject: str | None = None) -> AsyncIterator[StreamInfo]:
        """Yield all streams, or only the streams with subjects that match the pattern `subject`.

        The server is called once for each page of the list.
        """
        async for info in self.pages("STREAM.LIST", "streams", {"subject": subject} if subject else None):
            yield StreamInfo.of(info)

    async def ensure_stream(self, config: Mapping[str, Any], beginning: Mapping[str, Any] | None = None) -> None:
        """Create the stream, or update the fields in `config`. Raise `ConfigError` if the server refuses the change.

        Fields that `config` does not contain stay unchanged. `beginning` contains additional fields, which are used
        only if the stream is created.
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
        """Create a consumer. If `config` (`ConsumerConfig`, docs.nats.io) has no name, one is generated.

        If the consumer exists with the same configuration, it is returned. If it exists with another configuration,
        this method raises `ApiError` (error 10148). If `pedantic` is true, the server refuses values that it would
        otherwise correct silently. Raise `ConfigError` for priority groups that ADR-42 forbids.
        """
        return Consumer(self, await self.put_consumer(stream, config, "create", pedantic=pedantic, timeout=timeout))

    async def update_consumer(self, stream: str, config: Mapping[str, Any], *, pedantic: bool = False) -> Consumer:
        """Replace the configuration of a consumer. Raise `ApiError` (error 10149) if the consumer does not exist."""
        return Consumer(self, await self.put_consumer(stream, config, "update", pedantic=pedantic))

    async def create_or_update_consumer(
        self, stream: str, config: Mapping[str, Any], *, pedantic: bool = False
    ) -> Consumer:
        """Create a consumer, or replace its configuration."""
        return Consumer(self, await self.put_consumer(stream, config, "", pedantic=pedantic))

    async def get_consumer(self, stream: str, name: str) -> Consumer:
        return Consumer(self, await self.consumer_info(stream, name))

    async def ensure_consumer(self, stream: str, config: Mapping[str, Any]) -> None:
        """Create the consumer, or update the fields in `config`. Raise `ConfigError` if the server refuses the change.

        Fields that `config` does not contain stay unchanged.
        """
        await ensure_consumer(self.call, stream, config)

    async def account_info(self) -> AccountInfo:
        return AccountInfo.of(await self.call("INFO"))


def pub_ack(message: Msg) -> PubAck:
    """Parse the answer to a publish. Raise `ApiError` if the server refused the message, and `NoRespondersError` if no
    stream stores its subject."""
    if not message.data and message.headers.get(STATUS) == "503":
        raise NoRespondersError("no stream stores messages of this subject, or JetStream is not available")
    stored = parse_answer(message)
    sequence = stored.get("seq")
    if type(sequence) is not int:
        raise TransientError(
            "the answer to a publish is not from a stream: check that no other program answers on its subject",
            code="jetstream",
        )
    return PubAck(sequence, "duplicate" in stored)
