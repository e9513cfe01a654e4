"""The JetStream context (ADR-37): publishes with their acks, reads from the leader, deletes, streams, consumers.

Invariants: publishes are no API calls and are not held up by them. Every read asks the stream's leader, no replica.
"""

import asyncio
import binascii
from collections import deque
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any

import anyio

from rebaser_client.jetstream.calls import Calls, answer, limit
from rebaser_client.jetstream.connection import Connection
from rebaser_client.jetstream.consume import Batch, Following
from rebaser_client.jetstream.consumer import Consumer
from rebaser_client.jetstream.ensure import consumer_request, ensure_consumer, ensure_stream
from rebaser_client.jetstream.errors import (
    CONSUMER_NOT_FOUND,
    DELETE_FAILED,
    NO_MESSAGE,
    SEQUENCE_NOT_FOUND,
    STREAM_NOT_FOUND,
    ApiError,
    NoRespondersError,
    RequestTimeoutError,
)
from rebaser_client.jetstream.groups import Group, check_name, check_update
from rebaser_client.jetstream.infos import AccountInfo, ConsumerInfo, PubAck, StreamInfo
from rebaser_client.jetstream.messages import STATUS, Message, Msg, StoredMessage, parse_headers
from rebaser_client.jetstream.names import path
from rebaser_client.jetstream.options import DEFAULT_EXPIRES, Limits
from rebaser_client.jetstream.stream import Stream
from rebaser_core.errors import TransientError

DELETE_GROUP = 64  # deletes behind one answer
NOBODY_TRIES, NOBODY_PAUSE = 3, 0.25  # of a publish: a node of a cluster learns a moment later who stores a subject
EXPECTED_LAST = "Nats-Expected-Last-Subject-Sequence"


class JetStream(Calls):
    """JetStream over `connection`. `timeout` (seconds) bounds every call that names no other.

    All methods raise `ApiError` for a refusal, `RequestTimeoutError`, `NoRespondersError` or `NotConnectedError`, and
    `ConfigError` for names that no server takes.
    """

    def __init__(self, connection: Connection, *, domain: str | None = None, timeout: float = 5.0) -> None:
        super().__init__(connection, domain=domain, timeout=timeout)
        self._created: dict[str, str] = {}

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
    ) -> Batch:
        """`message` is done, and here is room for `max_messages` more: one message to the server instead of two.

        It goes out when the batch is opened or first read from. `no_wait`: what is there now, and no more. Only the
        acknowledgement of this message cannot be confirmed; that others come shows that it arrived.
        """
        limits = Limits.of_fetch(max_messages, None, expires, None)
        return Following(self, message, limits, Group.of(group, None, None, None), no_wait=no_wait)

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

    async def last(self, stream: str, subject: str) -> StoredMessage | None:
        """The newest message of `subject`."""
        return await self._get(stream, {"last_by_subj": subject})

    async def next(self, stream: str, subject: str, sequence: int) -> StoredMessage | None:
        """The first message of `subject` at or behind `sequence`."""
        return await self._get(stream, {"seq": max(sequence, 1), "next_by_subj": subject})

    async def get(self, stream: str, sequence: int) -> StoredMessage | None:
        """The message at `sequence`."""
        return await self._get(stream, {"seq": sequence})

    async def delete_message(self, stream: str, sequence: int, *, erase: bool = False) -> None:
        """Delete one message; one that is not there is deleted already.

        `erase`: overwrite it on disk first, which takes milliseconds.
        """
        try:
            await self.call(f"STREAM.MSG.DELETE.{path(stream)}", {"seq": sequence, "no_erase": not erase})
        except ApiError as error:
            if not _deleted_already(error):
                raise

    async def delete_many(self, stream: str, sequences: Sequence[int]) -> None:
        """Have messages deleted, in groups that share one answer: that of the last.

        The server takes calls up in order but works on several at once, so some may still be under way for a moment,
        and one that failed is not noticed. Callers must not depend on any single one.
        """
        subject = f"{self.prefix}STREAM.MSG.DELETE.{path(stream)}"
        for start in range(0, len(sequences), DELETE_GROUP):
            *silent, last = sequences[start : start + DELETE_GROUP]
            async with limit():
                for sequence in silent:
                    await self.connection.publish(subject, b'{"seq":%d,"no_erase":true}' % sequence)
            await self.delete_message(stream, last)

    async def purge(
        self, stream: str, subject: str | None = None, *, sequence: int | None = None, keep: int | None = None
    ) -> int:
        """Delete what `subject` (all: None) has below `sequence`, or all but its newest `keep`; returns how many."""
        body = {"filter": subject, "seq": sequence, "keep": keep}
        given = {name: value for name, value in body.items() if value is not None}
        return int((await self.call(f"STREAM.PURGE.{path(stream)}", given)).get("purged", 0))

    # -- streams ---------------------------------------------------------------------------------------------------

    async def add_stream(self, config: Mapping[str, Any]) -> Stream:
        """Create a stream. `config` is JetStream's `StreamConfig` (JSON API, docs.nats.io), here and below.

        One that is there with the same configuration is returned, with another it is an error (10058).
        """
        return Stream(self, StreamInfo.of(await self.call(f"STREAM.CREATE.{path(config.get('name', ''))}", config)))

    async def update_stream(self, config: Mapping[str, Any]) -> Stream:
        """Replace the configuration of a stream: what `config` does not name gets the server's default."""
        return Stream(self, StreamInfo.of(await self.call(f"STREAM.UPDATE.{path(config.get('name', ''))}", config)))

    async def get_stream(self, name: str) -> Stream:
        return Stream(self, await self.stream_info(name))

    async def delete_stream(self, name: str) -> None:
        """Delete a stream with all it holds; one that is not there is deleted already."""
        try:
            await self.call(f"STREAM.DELETE.{path(name)}")
        except ApiError as error:
            if error.err_code != STREAM_NOT_FOUND:
                raise

    async def list_streams(self, subject: str | None = None) -> AsyncIterator[StreamInfo]:
        """All streams, or those that take messages of `subject` (a pattern). One call for each page of them."""
        async for info in self.pages("STREAM.LIST", "streams", {"subject": subject} if subject else None):
            yield StreamInfo.of(info)

    async def ensure_stream(self, config: Mapping[str, Any], beginning: Mapping[str, Any] | None = None) -> None:
        """Create the stream, or update what may be; raises `ConfigError` where it cannot be made as wanted.

        What `config` does not name is left as it is; `beginning`: further fields of one that is created.
        """
        await ensure_stream(self.call, config, beginning or {})

    async def stream_info(self, stream: str) -> StreamInfo:
        info = StreamInfo.of(await self.call(f"STREAM.INFO.{path(stream)}"))
        self._created[stream] = info.created
        return info

    async def stream_created(self, stream: str) -> str:
        """`StreamInfo.created` as somebody saw it last; asked for only if nobody did."""
        return self._created.get(stream) or (await self.stream_info(stream)).created

    async def subject_counts(self, stream: str, pattern: str) -> dict[str, int]:
        """Messages by subject, for the subjects that match `pattern`. The server answers in pages of 100,000."""
        counts: dict[str, int] = {}
        offset = 0
        while True:
            body = {"subjects_filter": pattern, "offset": offset}
            answer = await self.call(f"STREAM.INFO.{path(stream)}", body)
            page = answer["state"].get("subjects") or {}
            counts.update(page)
            offset += len(page)
            if not page or offset >= answer.get("total", 0):
                return counts

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
        return await self._put_consumer(stream, config, "create", pedantic=pedantic, timeout=timeout)

    async def update_consumer(self, stream: str, config: Mapping[str, Any], *, pedantic: bool = False) -> Consumer:
        """Replace the configuration of a consumer; one that is not there is an error (10149)."""
        return await self._put_consumer(stream, config, "update", pedantic=pedantic)

    async def create_or_update_consumer(
        self, stream: str, config: Mapping[str, Any], *, pedantic: bool = False
    ) -> Consumer:
        """Have a consumer with just this configuration."""
        return await self._put_consumer(stream, config, "", pedantic=pedantic)

    async def get_consumer(self, stream: str, name: str) -> Consumer:
        return Consumer(self, await self.consumer_info(stream, name))

    async def list_consumers(self, stream: str) -> AsyncIterator[ConsumerInfo]:
        """All consumers of a stream. One call for each page of them."""
        async for info in self.pages(f"CONSUMER.LIST.{path(stream)}", "consumers"):
            yield ConsumerInfo.of(info)

    async def ensure_consumer(self, stream: str, config: Mapping[str, Any]) -> None:
        """Create the consumer, or update what may be; raises `ConfigError` where it cannot be made as wanted."""
        await ensure_consumer(self.call, stream, config)

    async def consumer_info(self, stream: str, consumer: str) -> ConsumerInfo:
        return ConsumerInfo.of(await self.call(f"CONSUMER.INFO.{path(stream, consumer)}"))

    async def delete_consumer(self, stream: str, consumer: str) -> None:
        """Delete a consumer; one that is not there is deleted already."""
        try:
            await self.call(f"CONSUMER.DELETE.{path(stream, consumer)}")
        except ApiError as error:
            if error.err_code not in (CONSUMER_NOT_FOUND, STREAM_NOT_FOUND):
                raise

    async def unpin(self, stream: str, consumer: str, group: str) -> None:
        """Take the pin from the pinned client of `group`; whoever pulls next without one gets it."""
        check_name(group)
        await self.call(f"CONSUMER.UNPIN.{path(stream, consumer)}", {"group": group})

    async def account_info(self) -> AccountInfo:
        return AccountInfo.of(await self.call("INFO"))

    async def _put_consumer(
        self,
        stream: str,
        config: Mapping[str, Any],
        action: str,
        *,
        pedantic: bool,
        timeout: float | None = None,  # noqa: ASYNC109 - see Connection.request
    ) -> Consumer:
        name = config.get("name") or config.get("durable_name") or self.connection.new_name()
        subject, body = consumer_request(stream, {**config, "name": name}, action, pedantic=pedantic)
        if action != "create":
            try:
                check_update((await self.consumer_info(stream, name)).config, config)
            except ApiError as error:
                if error.err_code != CONSUMER_NOT_FOUND:
                    raise
        return Consumer(self, ConsumerInfo.of(await self.call(subject, body, timeout=timeout)))

    async def _get(self, stream: str, body: Mapping[str, Any]) -> StoredMessage | None:
        try:
            stored = (await self.call(f"STREAM.MSG.GET.{path(stream)}", body))["message"]
        except ApiError as error:
            if error.err_code == NO_MESSAGE:
                return None
            raise
        headers = parse_headers(binascii.a2b_base64(stored["hdrs"])) if "hdrs" in stored else {}
        data = binascii.a2b_base64(stored.get("data", ""))
        return StoredMessage(stored["subject"], stored["seq"], headers, data, stored.get("time", ""))


def _pub_ack(message: Msg) -> PubAck:
    if message.headers.get(STATUS) == "503":
        raise NoRespondersError("no stream stores messages of this subject")
    stored = answer(message)
    sequence = stored.get("seq")
    if type(sequence) is not int:
        raise TransientError("what answered a publish is no stream", code="jetstream")
    return PubAck(sequence, "duplicate" in stored)


def _deleted_already(error: ApiError) -> bool:
    if error.err_code == DELETE_FAILED:
        return error.description.endswith(("EOF", "found"))
    return error.err_code in (SEQUENCE_NOT_FOUND, NO_MESSAGE)
